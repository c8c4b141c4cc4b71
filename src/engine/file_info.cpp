// engine/file_info: what a GGUF file holds, and its tokenizer alone; no weight is read.
//
// Owns    read_file_info() and Vocabulary of the public header.
// Thread  none of its own; a loaded Vocabulary is immutable.
// Tests   tests/test_file_info.cpp; tests/test_cli.py through `auspex inspect` and `auspex tokenize`.
#include "../base/float_mode.h"
#include "../base/guard.h"
#include "../plan/arch.h"
#include "model.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace file_info_impl {
namespace {

using namespace detail;

const char* value_type_name(MetaType type) {
    switch (type) {
        case MetaType::u8: return "u8";
        case MetaType::i8: return "i8";
        case MetaType::u16: return "u16";
        case MetaType::i16: return "i16";
        case MetaType::u32: return "u32";
        case MetaType::i32: return "i32";
        case MetaType::f32: return "f32";
        case MetaType::boolean: return "bool";
        case MetaType::string: return "string";
        case MetaType::array: return "array";
        case MetaType::u64: return "u64";
        case MetaType::i64: return "i64";
        case MetaType::f64: return "f64";
    }
    return "";
}

std::string element_text(const Meta& m, uint64_t i) {
    const DefaultFloatMode mode;
    if (m.type == MetaType::string) return std::string(m.strings[static_cast<size_t>(i)]);
    int64_t n = 0;
    if (m.type == MetaType::boolean) return m.get_int(i, &n) && n != 0 ? "true" : "false";
    if (m.type == MetaType::u64) return std::to_string(detail::load<uint64_t>(m.data + i * 8));
    if (m.is_integer() && m.get_int(i, &n)) return std::to_string(n);
    double d = 0;
    m.get_float(i, &d);
    return print_real("%.*g", 17, d);
}

FileValue value(const Meta& m) {
    constexpr uint64_t kMaxElements = 8;
    FileValue v;
    v.key = std::string(m.key);
    v.type = value_type_name(m.type);
    v.is_array = m.is_array;
    v.n = m.n;
    for (uint64_t i = 0; i < std::min(m.n, kMaxElements); ++i) v.elements.push_back(element_text(m, i));
    return v;
}

FileTensor tensor(const Tensor& t) {
    FileTensor out;
    out.name = std::string(t.name);
    out.type = type_info(t.type).name;
    for (uint32_t i = t.n_dim; i-- > 0;) out.shape.push_back(t.ne[i]);
    out.bytes = t.bytes;
    return out;
}

Status open(const char* path, const LoadOptions& options, Model::Impl* file) {
    if (!path) return Status(Code::bad_argument, "the path is null, expected the name of a GGUF file");
    return with_path(open_files(path, options, false, file), path);
}

}  // namespace
}  // namespace file_info_impl

Result<FileInfo> read_file_info(const char* path, const LoadOptions& options) AUSPEX_BOUNDARY {
    using namespace detail;
    Model::Impl file;
    AUSPEX_TRY(file_info_impl::open(path, options, &file));
    const Gguf& gguf = file.gguf;
    FileInfo info;
    info.gguf_version = gguf.version();
    info.n_file = static_cast<uint32_t>(file.files.size());
    info.bytes = gguf.file_bytes();
    for (const Meta& m : gguf.meta()) info.metadata.push_back(file_info_impl::value(m));
    for (const Tensor& t : gguf.tensors()) info.tensors.push_back(file_info_impl::tensor(t));
    PlanOptions plan_options;
    plan_options.mtp = options.mtp;
    Plan plan;
    info.plan_status = make_plan(gguf, plan_options).get(plan);
    if (!info.plan_status.ok()) return info;
    info.plan_status = describe_model(plan, gguf, &info.model);
    if (!info.plan_status.ok()) {
        info.model = ModelInfo();
        return info;
    }
    info.trunk = print_tape(plan, plan.trunk);
    for (const Tape& t : plan.mtp) info.mtp.push_back(print_tape(plan, t));
    return info;
}
AUSPEX_CATCH

struct Vocabulary::Impl {
    detail::Tokenizer tokenizer;
};

Result<Vocabulary> Vocabulary::load(const char* path) AUSPEX_BOUNDARY {
    Model::Impl file;
    AUSPEX_TRY(file_info_impl::open(path, LoadOptions(), &file));
    auto impl = std::make_shared<Impl>();
    AUSPEX_TRY(detail::Tokenizer::load(file.gguf).get(impl->tokenizer));
    Vocabulary vocabulary;
    vocabulary.impl_ = std::move(impl);
    return vocabulary;
}
AUSPEX_CATCH

uint32_t Vocabulary::n_token() const { return impl_ ? impl_->tokenizer.n_vocab() : 0; }

Result<std::vector<Token>> Vocabulary::encode(std::string_view text,
                                              const EncodeOptions& options) const AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("Vocabulary", "Vocabulary::load");
    return impl_->tokenizer.encode(text, options.special, nullptr, options.begin);
}
AUSPEX_CATCH

Result<std::string> Vocabulary::decode(Span<const Token> ids, const DecodeOptions& options) const AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("Vocabulary", "Vocabulary::load");
    return impl_->tokenizer.decode(ids, options.special);
}
AUSPEX_CATCH

bool Vocabulary::is_end(Token id) const { return impl_ && impl_->tokenizer.is_end(id); }

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
