#include "model.h"

#include <algorithm>
#include <map>

#include "../base/chat.h"
#include "../machine/cpu/cpu.h"
#include "../machine/vulkan/vulkan.h"
#include "../plan/arch.h"
#include "../plan/pair.h"

namespace auspex {
namespace model_impl {

using namespace detail;

std::string text_of(const Gguf& file, const char* key) {
    Result<std::string> r = file.get_string(key, "");
    return r.ok() ? r.value() : std::string();
}

/// Everything after the bytes are there. `keep`: they stay.
Result<std::shared_ptr<Model::Impl>> build(std::shared_ptr<Model::Impl> m, const LoadOptions& options) {
    PlanOptions plan_options;
    plan_options.mtp = options.mtp;
    AUSPEX_TRY(add_mtp_file(options, &m->files, &m->gguf));
    AUSPEX_TRY(make_plan(m->gguf, plan_options).get(m->plan));
    AUSPEX_TRY(Tokenizer::load(m->gguf, options.progress).get(m->tokenizer));
    if (m->tokenizer.n_vocab() > m->plan.n_vocab)
        return fail(Code::bad_file, "the tokenizer has ", m->tokenizer.n_vocab(),
                    " tokens but 'token_embd.weight' only ", m->plan.n_vocab, " rows; convert the model again");
    AUSPEX_TRY(place_experts(*m, options));
    Weights weights;
    AUSPEX_TRY(find_weights(m->plan, m->gguf).get(weights));
    weights.keep = true;
    AUSPEX_TRY(m->device->machine->load(m->plan, weights, options.progress).get(m->program));
    describe_model(m->plan, m->gguf, &m->info);
    m->info.weight_bytes = m->program->weight_bytes();
    const Logger& log = m->device->options.log;
    if (log && !m->info.chat_note.empty()) log(LogLevel::warning, m->info.chat_note);
    return m;
}

}  // namespace model_impl

namespace detail {

void describe_model(const Plan& plan, const Gguf& gguf, ModelInfo* to) {
    using model_impl::text_of;
    to->architecture = plan.architecture;
    to->name = text_of(gguf, "general.name");
    to->n_layer = plan.n_layer;
    to->n_attention = 0;
    for (const Op& op : plan.trunk.ops) to->n_attention += op.kind == OpKind::attend;
    to->n_mtp = static_cast<uint32_t>(plan.mtp.size());
    to->d_model = plan.d_model;
    to->n_vocab = plan.n_vocab;
    to->n_context = plan.n_context;
    to->n_parameter = 0;
    for (const Slot& s : plan.slots) {
        if (s.role != SlotRole::weight) continue;
        uint64_t n = 1;
        for (uint32_t d = 0; d < s.n_dim; ++d) n *= s.shape[d];
        to->n_parameter += n;
    }
    to->file_bytes = gguf.file_bytes();
    to->chat_style = recognise_template(text_of(gguf, "tokenizer.chat_template"), &to->chat_note);
}

Status open_gguf(const char* path, std::vector<File>* files, Gguf* to) {
    auto open = [&](const char* name, Gguf* one) -> Status {
        File file;
        AUSPEX_TRY(File::open(name).get(file));
        AUSPEX_TRY(Gguf::parse(file.bytes()).get(*one));
        files->push_back(std::move(file));
        return {};
    };
    std::vector<Gguf> shards(1);
    AUSPEX_TRY(open(path, &shards[0]));
    uint32_t n = 1, no = 0;
    AUSPEX_TRY(shards[0].get_u32("split.count", 1u).get(n));
    AUSPEX_TRY(shards[0].get_u32("split.no", 0u).get(no));
    if (n > 1) {
        if (no != 0)
            return fail(Code::bad_argument, "'", path, "' is shard ", no + 1, " of ", n, "; pass the first shard");
        std::vector<std::string> paths;
        AUSPEX_TRY(shard_paths(path, no, n).get(paths));
        shards.resize(n);
        for (uint32_t i = 1; i < n; ++i) {
            const Status s = open(paths[i].c_str(), &shards[i]);
            if (!s.ok()) return fail(s.code, "'", paths[i], "': ", s.text);
        }
    }
    return Gguf::join(std::move(shards)).get(*to);
}

Status add_mtp_file(const LoadOptions& options, std::vector<File>* files, Gguf* model) {
    const bool named = !options.mtp_file.empty(), given = !options.mtp_bytes.empty();
    if (named && given)
        return Status(Code::bad_argument, "mtp_file and mtp_bytes were both given; expected one of them");
    if (!options.mtp || (!named && !given)) return {};
    Gguf draft;
    Status s;
    if (named) {
        s = open_gguf(options.mtp_file.c_str(), files, &draft);
    } else {
        std::vector<Gguf> one(1);
        s = Gguf::parse(options.mtp_bytes).get(one[0]);
        if (s.ok()) s = Gguf::join(std::move(one)).get(draft);
    }
    if (s.ok()) s = pair_files(*model, draft).get(*model);
    if (s.ok()) return s;
    return fail(s.code, "with the draft file", named ? " '" + options.mtp_file + "'" : std::string(), ": ", s.text);
}

}  // namespace detail

Result<Device> Device::open(const DeviceOptions& options) {
    auto impl = std::make_shared<Impl>();
    impl->options = options;
    const bool must = options.kind == Kind::vulkan || options.borrow != nullptr;
    if (options.kind != Kind::cpu) {
#ifndef AUSPEX_NO_VULKAN
        Status gpu = detail::open_vulkan(options).get(impl->machine);
#else
        Status gpu(Code::no_device, "this build leaves Vulkan out (AUSPEX_NO_VULKAN); open Kind::cpu");
#endif
        if (!gpu.ok() && must) return gpu;
        if (!gpu.ok() && options.log) options.log(LogLevel::info, "running on the CPU: " + gpu.text);
        if (gpu.ok()) {
            Device device;
            device.impl_ = std::move(impl);
            return device;
        }
    } else if (must) {
        return Status(Code::bad_argument, "Vulkan handles were given for Kind::cpu; use Kind::vulkan or Kind::best");
    }
    detail::CpuOptions cpu;
    cpu.path = options.cpu_path;
    cpu.n_thread = options.n_thread;
    cpu.allocator = options.allocator;
    AUSPEX_TRY(detail::open_cpu(cpu).get(impl->machine));
    Device device;
    device.impl_ = std::move(impl);
    return device;
}

std::string Device::name() const { return impl_->machine->name(); }
std::string Device::report() const { return impl_->machine->report(); }
Kind Device::kind() const { return impl_->machine->kind(); }
std::vector<std::byte> Device::pipeline_cache() const { return impl_->machine->pipeline_cache(); }

Result<Model> Model::load(const Device& device, const char* path, const LoadOptions& options) {
    if (!device) return Status(Code::bad_argument, "the Device was never opened; call Device::open first");
    auto m = std::make_shared<Impl>();
    m->device = device.impl();
    Status s = detail::open_gguf(path, &m->files, &m->gguf);
    Result<std::shared_ptr<Impl>> built = s.ok() ? model_impl::build(m, options) : Result<std::shared_ptr<Impl>>(s);
    if (!built.ok()) return detail::fail(built.status().code, "'", path, "': ", built.status().text);
    Model model;
    model.impl_ = std::move(m);
    return model;
}

Result<Model> Model::load(const Device& device, Span<const std::byte> file, const LoadOptions& options) {
    if (!device) return Status(Code::bad_argument, "the Device was never opened; call Device::open first");
    auto m = std::make_shared<Impl>();
    m->device = device.impl();
    std::vector<detail::Gguf> one(1);
    AUSPEX_TRY(detail::Gguf::parse(file).get(one[0]));
    AUSPEX_TRY(detail::Gguf::join(std::move(one)).get(m->gguf));
    Result<std::shared_ptr<Impl>> built = model_impl::build(m, options);
    if (!built.ok()) return built.status();
    Model model;
    model.impl_ = std::move(m);
    return model;
}

const ModelInfo& Model::info() const { return impl_->info; }
Result<std::vector<Token>> Model::encode(std::string_view text, const EncodeOptions& options) const {
    return impl_->tokenizer.encode(text, options.special);
}
Result<std::vector<Token>> Model::encode(const ChatPrompt& prompt) const { return impl_->tokenizer.encode(prompt); }
Result<std::string> Model::decode(Span<const Token> ids, const DecodeOptions& options) const {
    return impl_->tokenizer.decode(ids, options.special);
}
bool Model::is_end(Token id) const { return impl_->tokenizer.is_end(id); }
Result<ChatPrompt> Model::render(const ChatRequest& request) const {
    return render_chat(request, impl_->info.chat_style);
}

std::string Model::describe_plan() const {
    using namespace detail;
    const Plan& plan = impl_->plan;
    std::map<std::string, std::pair<uint64_t, uint64_t>> by_type;  // name -> (tensors, bytes)
    for (const Slot& s : plan.slots) {
        if (s.role != SlotRole::weight) continue;
        uint64_t n = 1;
        for (uint32_t d = 0; d < s.n_dim; ++d) n *= s.shape[d];
        auto& entry = by_type[type_info(s.type).name];
        entry.first += 1;
        entry.second += row_bytes(s.type, n);
    }
    std::string text;
    for (const auto& t : by_type)
        append(text, say(t.first, ": ", t.second.first, " tensors, ", t.second.second, " bytes\n"));
    append(text, "trunk\n" + print_tape(plan, plan.trunk));
    for (size_t i = 0; i < plan.mtp.size(); ++i)
        append(text, say("mtp ", i, " (fills its cache with the first ", plan.mtp[i].n_fill, " ops)\n") +
                         print_tape(plan, plan.mtp[i]));
    return text;
}

}  // namespace auspex
