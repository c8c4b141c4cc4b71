#include "pair.h"

#include <algorithm>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace pair_impl {
namespace {

constexpr const char* kOther = "; the draft file was made for another model: take the one made for this";

/// Block counts from a file's metadata.
struct Blocks {
    uint32_t n_block = 0, n_mtp = 0;
    uint32_t n_layer() const { return n_block - n_mtp; }
};

Status read_blocks(const Gguf& g, const std::string& arch, const char* which, Blocks* b) {
    AUSPEX_TRY(g.get_u32(arch + ".block_count").get(b->n_block));
    AUSPEX_TRY(g.get_u32(arch + ".nextn_predict_layers", 0).get(b->n_mtp));
    if (b->n_mtp >= b->n_block)
        return fail(Code::bad_file, "key ", quote(arch + ".nextn_predict_layers"), " of ", which, " is ", b->n_mtp,
                    ", but there are only ", b->n_block, " blocks");
    return {};
}

/// Element i as a number, or the scalar; false for a string.
bool number(const Meta& m, uint64_t i, double* out) {
    const uint64_t at = m.is_array ? i : 0;
    int64_t n = 0;
    if (m.get_float(at, out)) return true;
    if (!m.get_int(at, &n)) return false;
    *out = static_cast<double>(n);
    return true;
}

/// Checks that a key has the same value in both files; per block if one of them has a value per block.
Status agree(const Meta& model, const Meta& draft, const Blocks& of_model, const Blocks& of_draft) {
    if (model.type == MetaType::string || draft.type == MetaType::string) return {};
    const bool same_shape = model.is_array == draft.is_array && model.n == draft.n;
    const bool by_block =
        (!model.is_array || model.n == of_model.n_block) && (!draft.is_array || draft.n == of_draft.n_block);
    auto length = [](const Meta& m) { return m.is_array ? say("an array of ", m.n) : std::string("one value"); };
    if (!same_shape && !by_block)
        return fail(Code::bad_file, "key '", draft.key, "' is ", length(draft), " in the draft file, expected ",
                    length(model), " as in the model", kOther);
    for (uint64_t i = 0; i < (same_shape ? model.n : of_model.n_layer()); ++i) {
        double a = 0, b = 0;
        if (!number(model, i, &a) || !number(draft, i, &b) || a != b)
            return fail(Code::bad_file, "key '", draft.key, "' is ", b,
                        model.is_array || draft.is_array ? say(" for block ", i) : std::string(),
                        " in the draft file, expected ", a, " as in the model", kOther);
    }
    return {};
}

/// Keys that may differ: counts that pair_files() compares itself, and the context length.
bool may_differ(std::string_view key, const std::string& arch) {
    const std::string_view rest = key.substr(arch.size() + 1);
    return rest == "block_count" || rest == "nextn_predict_layers" || rest == "context_length" ||
           rest.substr(0, 13) == "rope.scaling.";
}

/// "output.weight", or the embedding if that serves as the head.
const Tensor* head_of(const Gguf& g) {
    const Tensor* head = g.tensor("output.weight");
    return head ? head : g.tensor("token_embd.weight");
}

/// Checks that a table outside the blocks has the same shape in both files, if the draft file has it.
Status same_shape(const Tensor* model, const Tensor* draft) {
    if (!model || !draft || (model->ne[0] == draft->ne[0] && model->ne[1] == draft->ne[1])) return {};
    return fail(Code::bad_file, "tensor '", draft->name, "' is [", draft->ne[1], ", ", draft->ne[0],
                "] (n_vocab, d_model) in the draft file, expected [", model->ne[1], ", ", model->ne[0],
                "] as in the model", kOther);
}

/// Checks that both files have the same texts of ordinary tokens. Those of others, such as a padding token, are
/// sometimes renamed when a model is trained further.
Status same_tokens(const Meta& model, const Meta& draft, const Meta* types) {
    constexpr int64_t kNormal = 1;
    for (size_t i = 0; i < std::min(model.strings.size(), draft.strings.size()); ++i) {
        int64_t type = kNormal;
        if (types) (void)types->get_int(i, &type);
        if (type == kNormal && model.strings[i] != draft.strings[i])
            return fail(Code::bad_file, "token ", i, " of the draft file is ", quote(draft.strings[i]), ", expected ",
                        quote(model.strings[i]), " as in the model", kOther);
    }
    return {};
}

Status same_model(const Gguf& model, const Gguf& draft, const std::string& arch, const Blocks& of_model,
                  const Blocks& of_draft) {
    AUSPEX_TRY(same_shape(model.tensor("token_embd.weight"), draft.tensor("token_embd.weight")));
    AUSPEX_TRY(same_shape(head_of(model), draft.tensor("output.weight")));
    const Meta *a = model.find("tokenizer.ggml.tokens"), *b = draft.find("tokenizer.ggml.tokens");
    if (a && b && a->n != b->n)
        return fail(Code::bad_file, "the draft file's tokenizer has ", b->n, " tokens, expected ", a->n,
                    " as the model's", kOther);
    if (a && b) AUSPEX_TRY(same_tokens(*a, *b, model.find("tokenizer.ggml.token_type")));
    if (of_model.n_layer() != of_draft.n_layer())
        return fail(Code::bad_file, "the MTP blocks of the draft file follow ", of_draft.n_layer(),
                    " layers, expected ", of_model.n_layer(), " as the model has", kOther);
    for (const Meta& m : draft.meta()) {
        if (m.key.size() <= arch.size() || m.key.substr(0, arch.size()) != arch || m.key[arch.size()] != '.' ||
            may_differ(m.key, arch))
            continue;
        if (const Meta* known = model.find(m.key)) AUSPEX_TRY(agree(*known, m, of_model, of_draft));
    }
    return {};
}

}  // namespace
}  // namespace pair_impl

int64_t block_of(std::string_view name) {
    if (name.substr(0, 4) != "blk.") return -1;
    int64_t n = -1;
    for (size_t i = 4; i < name.size() && i < 12 && name[i] >= '0' && name[i] <= '9'; ++i)
        n = (n < 0 ? 0 : n) * 10 + (name[i] - '0');
    return n;
}

bool is_of_draft_head(std::string_view name) {
    return name == kDraftHead || name == kDraftHeadScale || name == "output_extra.input_scale";
}

std::string scale_name(std::string_view weight) {
    constexpr std::string_view kEnd = ".weight";
    if (weight.size() > kEnd.size() && weight.substr(weight.size() - kEnd.size()) == kEnd)
        weight.remove_suffix(kEnd.size());
    return say(weight, ".scale");
}

Result<Gguf> pair_files(const Gguf& model, const Gguf& draft) {
    using namespace pair_impl;
    std::string arch, other;
    AUSPEX_TRY(model.get_string("general.architecture").get(arch));
    AUSPEX_TRY(draft.get_string("general.architecture").get(other));
    if (arch != other)
        return fail(Code::bad_file, "the draft file is of architecture ", quote(other), ", expected ", quote(arch),
                    " as the model", kOther);
    Blocks of_model, of_draft;
    AUSPEX_TRY(read_blocks(model, arch, "the model", &of_model));
    AUSPEX_TRY(read_blocks(draft, arch, "the draft file", &of_draft));
    if (!model.tensor("blk.0.attn_norm.weight") && draft.tensor("blk.0.attn_norm.weight"))
        return Status(Code::bad_file,
                      "the model file holds only MTP blocks and the draft file holds layers; swap the two files");
    const uint32_t n_layer = of_model.n_layer();
    const std::string first = say("blk.", of_draft.n_layer(), ".nextn.eh_proj.weight");
    if (of_draft.n_mtp == 0 || !draft.tensor(first))
        return fail(Code::bad_file, "the draft file has no MTP block: expected key ",
                    quote(arch + ".nextn_predict_layers"), " above 0 and tensor '", first, "', found ", of_draft.n_mtp,
                    " and ", draft.tensor(first) ? "the tensor" : "no such tensor",
                    "; take a file that was converted with its MTP blocks (often named mtp-*.gguf)");
    AUSPEX_TRY(same_model(model, draft, arch, of_model, of_draft));

    // Keys that count blocks or have a value per block come from the draft file, which knows all blocks.
    std::vector<Meta> meta;
    const std::string counts[] = {arch + ".block_count", arch + ".nextn_predict_layers"};
    for (const Meta& m : model.meta()) {
        const Meta* d = m.key.substr(0, arch.size()) == arch ? draft.find(m.key) : nullptr;
        const bool longer = d && (m.is_array || d->is_array) && m.n != d->n;
        if (m.key != counts[0] && m.key != counts[1]) meta.push_back(longer ? *d : m);
    }
    for (const std::string& key : counts) meta.push_back(*draft.find(key));

    std::vector<Tensor> tensors;
    // A copy of the embedding serves as the head only where the model's own does.
    const bool tied = !model.tensor("output.weight");
    const Tensor *head = head_of(model), *smaller = tied ? head_of(draft) : draft.tensor("output.weight");
    if (smaller && head && smaller->bytes >= head->bytes) smaller = nullptr;
    for (const Tensor& t : model.tensors())
        if (block_of(t.name) < int64_t{n_layer} && !(smaller && is_of_draft_head(t.name))) tensors.push_back(t);
    for (const Tensor& t : draft.tensors())
        if (block_of(t.name) >= int64_t{n_layer}) tensors.push_back(t);
    const auto add_as = [&](const char* name, const Tensor* t) {
        if (t == nullptr) return;
        tensors.push_back(*t);
        tensors.back().name = name;
    };
    add_as(kDraftHead, smaller);
    if (smaller) add_as(kDraftHeadScale, draft.tensor(scale_name(smaller->name)));
    return Gguf::gather(std::move(meta), std::move(tensors), model.file_bytes() + draft.file_bytes());
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
