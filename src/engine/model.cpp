#include "model.h"

#include <algorithm>

#include "../base/chat.h"
#include "../base/checksum.h"
#include "../base/guard.h"
#include "../machine/cpu/cpu.h"
#include "../machine/vulkan/vulkan.h"
#include "../plan/arch.h"
#include "../plan/pair.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace model_impl {
namespace {

using namespace detail;

/// The text of the token that `key` names; empty if there is none.
std::string token_text(const Gguf& file, const char* key) {
    const Meta *id = file.find(key), *texts = file.find("tokenizer.ggml.tokens");
    int64_t i = -1;
    if (id == nullptr || texts == nullptr || !id->get_int(0, &i) || i < 0) return {};
    return static_cast<uint64_t>(i) < texts->strings.size() ? std::string(texts->strings[static_cast<size_t>(i)])
                                                            : std::string();
}

/// An error of the file with MTP blocks, if one is given.
Status of_draft(const LoadOptions& options, const Status& s) {
    if (options.mtp_file.empty() && options.mtp_bytes.empty()) return s;
    return fail(s.code, "with the draft file", options.mtp_file.empty() ? "" : " '" + options.mtp_file + "'", ": ",
                s.text);
}

/// Everything after the header is parsed.
Status build(const LoadOptions& options, Model::Impl* m) {
    PlanOptions plan_options;
    plan_options.mtp = options.mtp;
    AUSPEX_TRY(make_plan(m->gguf, plan_options).get(m->plan));
    Progress tokenizer_progress;  // the weights take longer by far: the fraction stays 0 until they begin
    if (options.progress) tokenizer_progress = [&](const char* what, float) { return options.progress(what, 0.0f); };
    AUSPEX_TRY(Tokenizer::load(m->gguf, tokenizer_progress).get(m->tokenizer));
    if (m->tokenizer.n_vocab() > m->plan.n_vocab)
        return fail(Code::bad_file, "the tokenizer has ", m->tokenizer.n_vocab(),
                    " tokens but 'token_embd.weight' only ", m->plan.n_vocab, " rows; convert the model again");
    AUSPEX_TRY(place_experts(*m, options));
    m->packed_file = options.packed_file;
    AUSPEX_TRY(reserve_weights(*m));
    Weights weights;
    AUSPEX_TRY(weights_of(*m, m->plan).get(weights));
    if (const Status s = check_vectors(m->plan, weights); !s.ok()) {
        Plan trunk = m->plan;
        trunk.mtp.clear();
        return check_vectors(trunk, weights).ok() ? of_draft(options, s) : s;
    }
    const Logger& log = m->device->options.log;
    if (log) weights.warn = [&log](const std::string& text) { log(LogLevel::warning, text); };
    AUSPEX_TRY(m->device->machine->load(m->plan, weights, options.progress).get(m->program));
    AUSPEX_TRY(describe_model(m->plan, m->gguf, &m->info));
    m->info.weight_bytes = m->program->weight_bytes();
    if (log && !m->info.chat_note.empty()) log(LogLevel::warning, m->info.chat_note);
    return {};
}

/// Parses a model that is in memory. Bytes at another address than kernels can read are copied.
Status parse_bytes(Span<const std::byte> bytes, Model::Impl* m, Gguf* to) {
    if (bytes.data() && reinterpret_cast<uintptr_t>(bytes.data()) % File::kByteAlignment != 0) {
        Block copy;
        const Allocator from = m->device ? m->device->options.allocator : Allocator();
        AUSPEX_TRY(copy.take(from, bytes.size(), "an aligned copy of the model's bytes"));
        std::memcpy(copy.data(), bytes.data(), bytes.size());
        bytes = Span<const std::byte>(copy.data(), copy.size());
        m->copied_bytes += copy.size();
        m->copies.push_back(std::move(copy));
    }
    std::vector<Gguf> one(1);
    AUSPEX_TRY(Gguf::parse(bytes).get(one[0]));
    return Gguf::join(std::move(one)).get(*to);
}

/// Opens a GGUF file and, if it is split, its other shards.
Status open_gguf(const char* path, bool copy, Model::Impl* m, Gguf* to) {
    const Allocator* copy_to = copy ? &m->device->options.allocator : nullptr;
    auto open = [&](const char* name, Gguf* one) -> Status {
        File file;
        AUSPEX_TRY(File::open(name, copy_to).get(file));
        AUSPEX_TRY(Gguf::parse(file.bytes()).get(*one));
        m->files.push_back(std::move(file));
        return {};
    };
    std::vector<Gguf> shards(1);
    AUSPEX_TRY(open(path, &shards[0]));
    std::vector<std::string> paths;
    uint32_t n = 1, no = 0;
    AUSPEX_TRY(shards[0].get_u32("split.count", 1u).get(n));
    AUSPEX_TRY(shards[0].get_u32("split.no", 0u).get(no));
    if (n > 1) {
        if (no != 0)
            return fail(Code::bad_argument, "'", path, "' is shard ", no + 1, " of ", n, "; pass the first shard");
        AUSPEX_TRY(shard_paths(path, no, n).get(paths));
        shards.resize(n);
        for (uint32_t i = 1; i < n; ++i) {
            AUSPEX_TRY(with_path(open(paths[i].c_str(), &shards[i]), paths[i].c_str()));
        }
    }
    return Gguf::join(std::move(shards), paths).get(*to);
}

/// Adds the MTP blocks of LoadOptions::mtp_file or mtp_bytes to the model's table, if given.
Status add_mtp_file(const LoadOptions& options, bool copy, Model::Impl* m) {
    const bool named = !options.mtp_file.empty(), given = !options.mtp_bytes.empty();
    if (named && given)
        return Status(Code::bad_argument, "mtp_file and mtp_bytes were both given; expected one of them");
    if (!options.mtp || (!named && !given)) return {};
    Gguf draft;
    Status s = named ? open_gguf(options.mtp_file.c_str(), copy, m, &draft) : parse_bytes(options.mtp_bytes, m, &draft);
    Gguf pair;
    if (s.ok()) s = pair_files(m->gguf, draft).get(pair);
    if (!s.ok()) return of_draft(options, s);
    // Where the model alone has a plan and the pair has none, it is for what the draft file says.
    PlanOptions alone;
    alone.mtp = false;
    s = make_plan(pair, PlanOptions()).status();
    if (!s.ok() && make_plan(m->gguf, alone).ok()) return of_draft(options, s);
    m->gguf = std::move(pair);
    return {};
}

/// Loads a model of one file that is in memory. Bytes of the caller stay the caller's.
Status finish_load(Span<const std::byte> bytes, const LoadOptions& options, Model::Impl* m) {
    AUSPEX_TRY(parse_bytes(bytes, m, &m->gguf));
    AUSPEX_TRY(add_mtp_file(options, options.copy_file, m));
    for (const File& f : m->files)
        if (f.is_copy()) m->copied_bytes += f.bytes().size();
    return build(options, m);
}
/// The same of a file that the model keeps.
Status finish_load(File file, const LoadOptions& options, Model::Impl* m) {
    const Span<const std::byte> bytes = file.bytes();
    m->files.push_back(std::move(file));
    return finish_load(bytes, options, m);
}

Result<std::shared_ptr<Model::Impl>> begin_load(const Device& device) {
    if (!device) return empty_handle("Device", "Device::open");
    auto m = std::make_shared<Model::Impl>();
    m->device = device.impl();
    return m;
}

#ifdef AUSPEX_NO_VULKAN
Status no_vulkan() { return Status(Code::no_device, "this build leaves Vulkan out (AUSPEX_NO_VULKAN); use the CPU"); }
#endif

/// Device::open() on a GPU; no_device where there is none. The options of the CPU must be right there, too.
Status open_gpu(const DeviceOptions& options, std::shared_ptr<Backend>* to) {
    AUSPEX_TRY(check_cpu(options.cpu_path, options.n_thread));
#ifndef AUSPEX_NO_VULKAN
    return open_vulkan(options).get(*to);
#else
    (void)to;
    return no_vulkan();
#endif
}

/// Device::open() on the CPU.
Status open_cpu(const DeviceOptions& options, std::shared_ptr<Backend>* to) {
    CpuOptions cpu;
    cpu.path = options.cpu_path;
    cpu.n_thread = options.n_thread;
    cpu.allocator = options.allocator;
    cpu.jobs = options.jobs;
    return detail::open_cpu(cpu).get(*to);
}

/// The entries of Device::list() for Vulkan.
/// errors    out_of_memory: there was none to look for devices. What fails later belongs to an entry.
Status list_gpus(DeviceOptions options, std::vector<DeviceEntry>* to) {
    std::vector<std::string> names;
#ifndef AUSPEX_NO_VULKAN
    Status s = vk::gpu_names().get(names);
#else
    Status s = no_vulkan();
#endif
    if (s.code == Code::out_of_memory) return s;
    if (!s.ok()) to->push_back({Kind::vulkan, -1, std::string(), s});
    options.kind = Kind::vulkan;
    options.borrow = nullptr;
    for (size_t i = 0; i < names.size(); ++i) {
        options.vulkan_index = static_cast<int>(i);
        std::shared_ptr<Backend> device;
        s = open_gpu(options, &device);
        to->push_back({Kind::vulkan, options.vulkan_index, names[i], s});
    }
    return {};
}

/// errors    bad_argument: a value that is none of the enumeration's, or options that contradict each other.
Status check_device_options(const DeviceOptions& o) {
    if (o.kind != Kind::best && o.kind != Kind::cpu && o.kind != Kind::vulkan)
        return fail(Code::bad_argument, "kind is ", static_cast<int>(o.kind), ", expected best, cpu or vulkan");
    if (o.cpu_path < CpuPath::best || o.cpu_path > CpuPath::neon)
        return fail(Code::bad_argument, "cpu_path is ", static_cast<int>(o.cpu_path),
                    ", expected best, reference, avx2, avx512 or neon");
    if (!o.allocator.alloc != !o.allocator.free)
        return Status(Code::bad_argument, "of allocator, one of alloc and free is null; expected both or neither");
    if (o.jobs.run && o.n_thread <= 0)
        return fail(Code::bad_argument, "n_thread is ", o.n_thread,
                    ", expected how many tasks the job system (jobs) runs at the same time");
    if (o.borrow && o.kind == Kind::cpu)
        return Status(Code::bad_argument, "Vulkan handles were given for Kind::cpu; use Kind::vulkan or Kind::best");
    return {};
}

}  // namespace
}  // namespace model_impl

namespace detail {

Result<Weights> weights_of(const Model::Impl& model, const Plan& plan) {
    Weights weights;
    AUSPEX_TRY(find_weights(plan, model.gguf).get(weights));
    weights.keep = true;
    weights.release = [&model](const std::byte* rows, uint64_t n_byte) {
        for (const File& f : model.files) f.release(rows, n_byte);
    };
    if (model.packed_file.empty() || model.program) return weights;
    Checksum stamp;
    uint64_t bytes = 0;
    for (const File& f : model.files) {
        const std::optional<uint64_t> modified = f.modified();
        if (!modified) break;
        const uint64_t of_file[] = {f.bytes().size(), *modified};
        stamp.add(of_file, sizeof of_file);
        bytes += of_file[0];
    }
    if (bytes != model.gguf.file_bytes())
        return Status(Code::bad_argument,
                      "packed_file was given for a model in memory, whose changes nothing tells; expected one that is "
                      "loaded from a path or a descriptor");
    weights.packed_file = model.packed_file;
    weights.stamp = stamp.value();
    return weights;
}

Status describe_model(const Plan& plan, const Gguf& gguf, ModelInfo* to) {
    using namespace model_impl;
    to->architecture = plan.architecture;
    AUSPEX_TRY(gguf.get_string("general.name", "").get(to->name));
    to->n_layer = plan.n_layer;
    to->n_attention = 0;
    for (const Op& op : plan.trunk.ops) to->n_attention += op.kind == OpKind::attend;
    to->n_mtp = static_cast<uint32_t>(plan.mtp.size());
    to->d_model = plan.d_model;
    to->n_vocab = plan.n_vocab;
    to->n_context = plan.n_context;
    to->n_parameter = 0;
    for (const Slot& s : plan.slots)
        if (s.role == SlotRole::weight) to->n_parameter += s.n_value();
    to->file_bytes = gguf.file_bytes();
    const TemplateTokens tokens = {token_text(gguf, "tokenizer.ggml.bos_token_id"),
                                   token_text(gguf, "tokenizer.ggml.eos_token_id")};
    std::string chat;
    AUSPEX_TRY(gguf.get_string("tokenizer.chat_template", "").get(chat));
    to->chat_template = recognise(chat, tokens, &to->chat_note);
    return {};
}

Status open_files(const char* path, const LoadOptions& options, bool copy, Model::Impl* model) {
    const bool copies = options.copy_file;
    AUSPEX_TRY(model_impl::open_gguf(path, copies && copy, model, &model->gguf));
    AUSPEX_TRY(model_impl::add_mtp_file(options, copies && copy, model));
    if (copies)
        for (const File& f : model->files) model->copied_bytes += f.bytes().size();
    return {};
}

}  // namespace detail

Result<Device> Device::open(const DeviceOptions& options) AUSPEX_BOUNDARY {
    using namespace detail;
    AUSPEX_TRY(model_impl::check_device_options(options));
    if (options.vulkan_index < -1)
        return fail(Code::bad_argument, "vulkan_index is ", options.vulkan_index,
                    ", expected 0 or more, or -1 for the best");
    auto impl = std::make_shared<Impl>();
    impl->options = options;
    if (options.kind != Kind::cpu) {
        const Status gpu = model_impl::open_gpu(options, &impl->machine);
        if (!gpu.ok() && (options.kind == Kind::vulkan || options.borrow)) return gpu;
        if (!gpu.ok() && options.log) options.log(LogLevel::info, "running on the CPU: " + gpu.text);
    }
    if (!impl->machine) AUSPEX_TRY(model_impl::open_cpu(options, &impl->machine));
    Device device;
    device.impl_ = std::move(impl);
    return device;
}
AUSPEX_CATCH

Result<std::vector<DeviceEntry>> Device::list(const DeviceOptions& options) AUSPEX_BOUNDARY {
    AUSPEX_TRY(model_impl::check_device_options(options));
    std::vector<DeviceEntry> all;
    if (options.kind != Kind::cpu) AUSPEX_TRY(model_impl::list_gpus(options, &all));
    if (options.kind == Kind::vulkan) return all;
    std::shared_ptr<detail::Backend> machine;
    const Status s = model_impl::open_cpu(options, &machine);
    all.push_back({Kind::cpu, -1, s.ok() ? machine->name() : "cpu", s});
    return all;
}
AUSPEX_CATCH

std::string Device::name() const AUSPEX_BOUNDARY { return impl_ ? impl_->machine->name() : std::string(); }
AUSPEX_CATCH_EMPTY

std::string Device::report() const AUSPEX_BOUNDARY { return impl_ ? impl_->machine->report() : std::string(); }
AUSPEX_CATCH_EMPTY

Kind Device::kind() const { return impl_ ? impl_->machine->kind() : Kind::best; }

std::vector<std::byte> Device::pipeline_cache() const AUSPEX_BOUNDARY {
    return impl_ ? impl_->machine->pipeline_cache() : std::vector<std::byte>();
}
AUSPEX_CATCH_EMPTY

Result<Model> Model::load(const Device& device, const char* path, const LoadOptions& options) AUSPEX_BOUNDARY {
    std::shared_ptr<Impl> m;
    AUSPEX_TRY(model_impl::begin_load(device).get(m));
    if (!path) return Status(Code::bad_argument, "the path is null, expected the name of a GGUF file");
    Status s = detail::open_files(path, options, true, m.get());
    if (s.ok()) s = model_impl::build(options, m.get());
    if (!s.ok()) return detail::with_path(s, path);
    Model model;
    model.impl_ = std::move(m);
    return model;
}
AUSPEX_CATCH

Result<Model> Model::load(const Device& device, Span<const std::byte> file,
                          const LoadOptions& options) AUSPEX_BOUNDARY {
    std::shared_ptr<Impl> m;
    AUSPEX_TRY(model_impl::begin_load(device).get(m));
    AUSPEX_TRY(model_impl::finish_load(file, options, m.get()));
    Model model;
    model.impl_ = std::move(m);
    return model;
}
AUSPEX_CATCH

Result<Model> Model::load(const Device& device, const FileRange& range, const LoadOptions& options) AUSPEX_BOUNDARY {
    std::shared_ptr<Impl> m;
    AUSPEX_TRY(model_impl::begin_load(device).get(m));
    detail::File file;
    AUSPEX_TRY(detail::File::open(range, m->device->options.allocator, options.copy_file).get(file));
    AUSPEX_TRY(model_impl::finish_load(std::move(file), options, m.get()));
    Model model;
    model.impl_ = std::move(m);
    return model;
}
AUSPEX_CATCH

Result<Model> Model::load(const Device& device, const FileReader& reader, const LoadOptions& options) AUSPEX_BOUNDARY {
    std::shared_ptr<Impl> m;
    AUSPEX_TRY(model_impl::begin_load(device).get(m));
    detail::File file;
    AUSPEX_TRY(detail::File::read(reader, m->device->options.allocator, options.progress).get(file));
    AUSPEX_TRY(model_impl::finish_load(std::move(file), options, m.get()));
    Model model;
    model.impl_ = std::move(m);
    return model;
}
AUSPEX_CATCH

std::string Model::describe_plan() const AUSPEX_BOUNDARY {
    using namespace detail;
    if (!impl_) return std::string();
    const Plan& plan = impl_->plan;
    const auto type_name = [](uint32_t i) { return std::string_view(type_info(kAllTypes[i]).name); };
    std::string text;
    for (const uint32_t i : sorted_indices(sizeof kAllTypes / sizeof *kAllTypes,
                                           [&](uint32_t a, uint32_t b) { return type_name(a) < type_name(b); })) {
        uint64_t n_tensor = 0, n_byte = 0;
        for (const Slot& s : plan.slots) {
            if (s.role != SlotRole::weight || s.type != kAllTypes[i]) continue;
            n_tensor += 1;
            n_byte += row_bytes(s.type, s.n_value());
        }
        if (n_tensor != 0) text.append(say(type_name(i), ": ", n_tensor, " tensors, ", n_byte, " bytes\n"));
    }
    text.append("trunk\n" + print_tape(plan, plan.trunk));
    for (size_t i = 0; i < plan.mtp.size(); ++i)
        text.append(say("mtp ", i, " (fills its cache with the first ", plan.mtp[i].n_fill, " ops)\n") +
                    print_tape(plan, plan.mtp[i]));
    return text;
}
AUSPEX_CATCH_EMPTY

AUSPEX_SMALL_CODE_END

const ModelInfo& Model::info() const {
    static const ModelInfo empty;
    return impl_ ? impl_->info : empty;
}

Result<std::vector<Token>> Model::encode(std::string_view text, const EncodeOptions& options) const AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("Model", "Model::load");
    return impl_->tokenizer.encode(text, options.special, nullptr, options.begin);
}
AUSPEX_CATCH

Result<std::vector<Token>> Model::encode(const ChatPrompt& prompt, std::vector<Mark>* marks) const AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("Model", "Model::load");
    return impl_->tokenizer.encode(prompt, marks);
}
AUSPEX_CATCH

Result<std::string> Model::decode(Span<const Token> ids, const DecodeOptions& options) const AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("Model", "Model::load");
    return impl_->tokenizer.decode(ids, options.special);
}
AUSPEX_CATCH

std::shared_ptr<const detail::VocabTrie> Model::Impl::vocab_trie() {
    const std::lock_guard<std::mutex> hold(trie_lock);
    if (!trie) trie = detail::VocabTrie::build(tokenizer);
    return trie;
}

bool Model::is_end(Token id) const { return impl_ && impl_->tokenizer.is_end(id); }

Result<ChatPrompt> Model::render(const ChatRequest& request) const AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("Model", "Model::load");
    return render_chat(request, impl_->info.chat_template);
}
AUSPEX_CATCH

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
