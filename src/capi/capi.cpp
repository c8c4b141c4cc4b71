#include "capi.h"

#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {
namespace {

auspex_code code_of(Code code) {
    switch (code) {
        case Code::ok: return AUSPEX_OK;
        case Code::bad_argument: return AUSPEX_BAD_ARGUMENT;
        case Code::bad_file: return AUSPEX_BAD_FILE;
        case Code::unsupported: return AUSPEX_UNSUPPORTED;
        case Code::not_found: return AUSPEX_NOT_FOUND;
        case Code::io_error: return AUSPEX_IO_ERROR;
        case Code::out_of_memory: return AUSPEX_OUT_OF_MEMORY;
        case Code::no_device: return AUSPEX_NO_DEVICE;
        case Code::device_lost: return AUSPEX_DEVICE_LOST;
        case Code::cancelled: return AUSPEX_CANCELLED;
        case Code::context_full: break;
    }
    return AUSPEX_CONTEXT_FULL;
}

}  // namespace

Answer::Answer(Status s) : code(code_of(s.code)), text(std::move(s.text)) {}

void put_text(std::string_view text, char* to, size_t n) noexcept {
    size_t length = text.size() < n ? text.size() : n - 1;
    if (length < text.size())
        while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) --length;
    if (length > 0) std::memcpy(to, text.data(), length);
    to[length] = '\0';
}

auspex_code give(auspex_error* error, auspex_code code, const char* text, size_t n_text) noexcept {
    constexpr uint32_t kText = offsetof(auspex_error, text);
    if (error == nullptr || error->struct_size <= kText) return code;
    const uint32_t size = error->struct_size < sizeof *error ? error->struct_size : uint32_t{sizeof *error};
    error->code = code;
    put_text(std::string_view(text, n_text), error->text, size - kText);
    return code;
}

#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
auspex_code give_exception(auspex_error* error) noexcept {
    static constexpr char kMemory[] = "the standard allocator has no memory left; free some, or ask for less";
    static constexpr char kThrown[] = "a callback threw an exception; callbacks of the C interface must not throw";
    try {
        throw;
    } catch (const std::bad_alloc&) {
    } catch (const std::length_error&) {
    } catch (...) {
        return give(error, AUSPEX_BAD_ARGUMENT, kThrown, sizeof kThrown - 1);
    }
    return give(error, AUSPEX_OUT_OF_MEMORY, kMemory, sizeof kMemory - 1);
}
#endif

Answer check_size(uint32_t size, size_t alignment, const char* name) {
    if (size >= alignment && size <= kMaxStruct && size % alignment == 0) return Answer();
    return bad(std::string(name) + ".struct_size is " + std::to_string(size) + ", expected sizeof(" + name +
               "); clear the struct and set it first");
}

Answer check_tail(const void* p, size_t known, uint32_t size, const char* name) {
    const unsigned char* bytes = static_cast<const unsigned char*>(p);
    for (size_t i = known; i < size; ++i)
        if (bytes[i] != 0)
            return bad(std::string(name) + " has " + std::to_string(size) + " bytes, this library (ABI " +
                       std::to_string(AUSPEX_ABI_VERSION) + ") knows " + std::to_string(known) + ", and byte " +
                       std::to_string(i) + " is not 0; leave newer fields 0, or use a newer library");
    return Answer();
}

Answer check_range(int64_t value, int64_t first, int64_t last, const char* name) {
    if (value >= first && value <= last) return Answer();
    return bad(std::string(name) + " is " + std::to_string(value) + ", expected " + std::to_string(first) +
               (first == last ? std::string() : ".." + std::to_string(last)));
}

Answer fill_text(std::string_view text, char* to, size_t capacity, size_t* length) {
    AUSPEX_C_TRY(fill(text.data(), text.size(), to, capacity, length, 1, "the buffer"));
    to[text.size()] = '\0';
    return Answer();
}

Answer view_text(const char* p, size_t n, std::string_view* out, const char* name) {
    Span<const char> span;
    AUSPEX_C_TRY(view(p, n, &span, name));
    *out = std::string_view(span.data(), span.size());
    return Answer();
}

Answer need_path(const char* path) { return path != nullptr ? Answer() : bad("path is null; expected a file's name"); }

// ------------------------------------------------------------------------------------------ options

Answer device_options(const auspex_device_options& from, const std::shared_ptr<Host>& host, DeviceOptions* to) {
    AUSPEX_C_TRY(check_range(from.kind, AUSPEX_KIND_BEST, AUSPEX_KIND_VULKAN, "kind"));
    AUSPEX_C_TRY(check_range(from.gpu, 0, INT32_MAX, "gpu"));
    AUSPEX_C_TRY(check_range(from.cpu_path, AUSPEX_CPU_BEST, AUSPEX_CPU_NEON, "cpu_path"));
    AUSPEX_C_TRY(check_range(from.reserved, 0, 0, "auspex_device_options.reserved"));
    AUSPEX_C_TRY(check_range(from.reserved2, 0, 0, "auspex_device_options.reserved2"));
    AUSPEX_C_TRY(check_range(from.reserved3, 0, 0, "auspex_device_options.reserved3"));
    AUSPEX_C_TRY(check_range(from.barriers_only, 0, 1, "barriers_only"));
    if ((from.allocate == nullptr) != (from.release == nullptr))
        return bad("one of allocate and release is null; expected both, or neither");
    if (from.memory_limit_bytes > SIZE_MAX) return bad("memory_limit_bytes is beyond the address space");
    Span<const std::byte> cache;
    AUSPEX_C_TRY(
        view(static_cast<const std::byte*>(from.pipeline_cache), from.n_pipeline_cache, &cache, "pipeline_cache"));
    to->kind = static_cast<Kind>(from.kind);
    to->vulkan_index = from.gpu - 1;
    to->cpu_path = static_cast<CpuPath>(from.cpu_path);
    to->n_thread = from.n_thread;
    to->memory_limit_bytes = static_cast<size_t>(from.memory_limit_bytes);
    to->pipeline_cache = cache;
    to->max_submit_ms = from.max_submit_ms;
    to->barriers_only = from.barriers_only != 0;
    *host = {from.allocate, from.release, from.allocator_user, from.run_jobs, from.jobs_user};
    if (from.run_jobs != nullptr) {
        to->jobs.user = host.get();
        to->jobs.run = [](void* user, uint32_t n, void (*task)(void* context, uint32_t i), void* context) {
            const Host& h = *static_cast<const Host*>(user);
            h.run_jobs(n, task, context, h.jobs_user);
        };
    }
    if (from.allocate != nullptr) {
        to->allocator.user = host.get();
        to->allocator.alloc = [](void* user, size_t bytes, size_t alignment) {
            const Host& h = *static_cast<const Host*>(user);
            return h.allocate(bytes, alignment, h.user);
        };
        to->allocator.free = [](void* user, void* p, size_t bytes, size_t alignment) {
            const Host& h = *static_cast<const Host*>(user);
            h.release(p, bytes, alignment, h.user);
        };
    }
    if (from.log != nullptr)
        to->log = [log = from.log, user = from.log_user](LogLevel level, std::string_view line) {
            log(level == LogLevel::warning ? AUSPEX_LOG_WARNING : AUSPEX_LOG_INFO, std::string(line).c_str(),
                line.size(), user);
        };
    return Answer();
}

/// The progress callback of options that have one.
template <class From, class To>
void set_progress(const From& from, To* to) {
    if (from.progress == nullptr) return;
    to->progress = [ask = from.progress, user = from.progress_user](const char* what, float fraction) {
        return ask(what, fraction, user) == 0;
    };
}

Answer load_options(const auspex_load_options* given, LoadOptions* to) {
    auspex_load_options from;
    AUSPEX_C_TRY(read(given, &from, "auspex_load_options"));
    AUSPEX_C_TRY(check_range(from.without_mtp, 0, 1, "without_mtp"));
    AUSPEX_C_TRY(check_range(from.copy_file, 0, 1, "copy_file"));
    AUSPEX_C_TRY(check_range(from.reserved[0] | from.reserved[1], 0, 0, "auspex_load_options.reserved"));
    AUSPEX_C_TRY(check_range(from.reserved2, 0, 0, "auspex_load_options.reserved2"));
    AUSPEX_C_TRY(check_range(from.host_expert_layers, -1, INT32_MAX, "host_expert_layers"));
    to->mtp = from.without_mtp == 0;
    to->copy_file = from.copy_file != 0;
    to->host_expert_layers = from.host_expert_layers == 0  ? -1
                             : from.host_expert_layers < 0 ? 0
                                                           : from.host_expert_layers;
    if (from.mtp_file != nullptr) to->mtp_file = from.mtp_file;
    if (from.packed_file != nullptr) to->packed_file = from.packed_file;
    set_progress(from, to);
    return Answer();
}

Answer session_options(const auspex_session_options* given, SessionOptions* to) {
    auspex_session_options from;
    AUSPEX_C_TRY(read(given, &from, "auspex_session_options"));
    AUSPEX_C_TRY(check_range(from.kv_k, AUSPEX_KV_F16, AUSPEX_KV_F32, "kv_k"));
    AUSPEX_C_TRY(check_range(from.kv_v, AUSPEX_KV_F16, AUSPEX_KV_F32, "kv_v"));
    AUSPEX_C_TRY(check_range(from.draft, AUSPEX_DRAFT_OFF, AUSPEX_DRAFT_BEST, "draft"));
    AUSPEX_C_TRY(check_range(from.draft_depth, -1, int64_t{kMaxDraft}, "draft_depth"));
    AUSPEX_C_TRY(check_range(from.exact_prompts, 0, 1, "exact_prompts"));
    AUSPEX_C_TRY(check_range(from.reserved, 0, 0, "auspex_session_options.reserved"));
    to->n_context = from.n_context;
    to->exact_prompts = from.exact_prompts != 0;
    if (from.n_ubatch != 0) to->n_ubatch = from.n_ubatch;
    to->run_ahead = from.run_ahead;
    to->kv_k = static_cast<KvType>(from.kv_k);
    to->kv_v = static_cast<KvType>(from.kv_v);
    to->draft.source = static_cast<Draft>(from.draft);
    to->draft.depth = from.draft_depth == 0 ? -1 : from.draft_depth < 0 ? 0 : from.draft_depth;
    to->kv_budget_bytes = from.kv_budget_bytes;
    if (from.checkpoint_bytes != 0)
        to->checkpoint_bytes = from.checkpoint_bytes == AUSPEX_NO_CHECKPOINTS ? 0 : from.checkpoint_bytes;
    if (from.windows != nullptr) AUSPEX_C_TRY(parse_windows(from.windows).get(to->windows));
    set_progress(from, to);
    return Answer();
}

static Answer out_of_range(const char* name, float found, const char* expected) {
    char number[32];
    for (int digits = 6; digits <= 9; ++digits) {  // as few as read back as the value
        std::snprintf(number, sizeof number, "%.*g", digits, static_cast<double>(found));
        if (std::strtof(number, nullptr) == found) break;
    }
    return bad(std::string("sampling.") + name + " is " + number + ", expected " + expected);
}

Answer sampling(const auspex_sampling* given, Sampling* to) {
    auspex_sampling from;
    AUSPEX_C_TRY(read(given, &from, "auspex_sampling"));
    AUSPEX_C_TRY(check_range(from.reserved, 0, 0, "auspex_sampling.reserved"));
    if (from.grammar != nullptr) {
        AUSPEX_C_TRY(need(from.grammar, "constraint"));
        to->constraint = from.grammar->constraint;
    }
    if (from.constrained_from > SIZE_MAX - 1) return bad("constrained_from is beyond the address space");
    if (from.constrained_from != 0) to->constrained_from = static_cast<size_t>(from.constrained_from - 1);
    Span<const auspex_logit_bias> bias;
    AUSPEX_C_TRY(view(from.logit_bias, from.n_logit_bias, &bias, "logit_bias"));
    for (const auspex_logit_bias& b : bias) to->logit_bias.push_back({b.id, b.bias});
    to->temperature = from.temperature;
    to->top_k = from.top_k;
    // Here, other than in Sampling, 0 is a value of these two. Written so that a NaN fails too.
    if (!(from.top_p >= 0 && from.top_p <= 1)) return out_of_range("top_p", from.top_p, "0 (all) or up to 1");
    if (!(from.repeat_penalty >= 0 && from.repeat_penalty <= 100))
        return out_of_range("repeat_penalty", from.repeat_penalty, "0 (none) or up to 100");
    if (from.top_p != 0) to->top_p = from.top_p;
    to->min_p = from.min_p;
    if (from.repeat_penalty != 0) to->repeat_penalty = from.repeat_penalty;
    to->frequency_penalty = from.frequency_penalty;
    to->presence_penalty = from.presence_penalty;
    if (from.penalty_window != 0) to->penalty_window = from.penalty_window;
    to->seed = from.seed;
    return Answer();
}

Answer chat_request(const char* json, size_t n_json, ChatRequest* to) {
    std::string_view text;
    AUSPEX_C_TRY(view_text(json, n_json, &text, "json"));
    return ChatRequest::from_json(text).get(*to);
}

// --------------------------------------------------------------------------------- running calls

Running::Running(auspex_session* session) : session_(session) {
    const std::lock_guard<std::mutex> hold(session->lock);
    runs_ = !session->running;
    session->running = true;
}

Running::~Running() {
    if (!runs_) return;
    const std::lock_guard<std::mutex> hold(session_->lock);
    session_->running = false;
    if (session_->cancelled) session_->session.cancel(false);
    session_->cancelled = false;
}

namespace {
Answer in_use(const char* name) {
    return bad(std::string("a call runs on this ") + name + ", on another thread or around a callback; wait for it");
}
}  // namespace

Answer Running::answer() const { return runs_ ? Answer() : in_use("session"); }

Answer Turn::answer(const char* name) const { return mine_ ? Answer() : in_use(name); }

bool Running::cancelled() const {
    const std::lock_guard<std::mutex> hold(session_->lock);
    return session_->cancelled;
}

Answer Running::done() const {
    return cancelled() ? Answer(AUSPEX_CANCELLED, "cancelled during the last step; its rows are computed") : Answer();
}

}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
