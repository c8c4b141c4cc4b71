// plan/pair: joins a model file and a file with its MTP blocks.
//
// Owns    the check that the two files belong together, and the choice of tensors from each.
// Thread  no shared state.
// Tests   tests/test_pair.cpp: a pair computes what one file with all tensors computes
#pragma once
#include "../base/gguf.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// An output head for drafting only, smaller than the model's. Some files have one.
constexpr const char *kDraftHead = "output_extra.weight", *kDraftHeadScale = "output_extra.scale";

/// The N of a tensor's name "blk.N.", or -1.
int64_t block_of(std::string_view name);

/// True for kDraftHead and what scales it.
bool is_of_draft_head(std::string_view name);

/// The name of the tensor with the scale of a whole matrix, if the file has one: "blk.0.ffn_up.scale" for
/// "blk.0.ffn_up.weight".
std::string scale_name(std::string_view weight);

/// `model` with the MTP blocks of `draft`, which replace its own. Embedding, head and output norm are the model's, not
/// the copies in `draft`, with one exception: a head in `draft` that is smaller than the model's becomes kDraftHead,
/// its scale kDraftHeadScale.
///
/// errors    bad_file: the files are of different models, or `draft` has no MTP block; the text says what differs.
/// cost      look-ups, and a comparison of the two vocabularies. The bytes of both files must outlive the result.
Result<Gguf> pair_files(const Gguf& model, const Gguf& draft);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
