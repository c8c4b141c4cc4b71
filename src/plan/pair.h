// plan/pair: a model and its MTP blocks in a file of their own become one table.
//
// Owns    the check that the two belong together, and which tensors of each are used.
// Reads   gguf.
// Serves  model loading, tools.
// Thread  none of its own.
// Laws    the pair computes what one file with everything computes: tests/test_pair.cpp.
#pragma once
#include "../base/gguf.h"

namespace auspex {
namespace detail {

/// A head that only drafts use, cheaper than the model's; some files have one.
constexpr const char* kDraftHead = "output_extra.weight";

/// `model` with the MTP blocks of `draft`, in place of its own if it has any. Everything around the blocks is the
/// model's: the copies of embedding, head and norm that such files carry are not used. One exception: a head that takes
/// fewer bytes than the model's is there to make drafts cheaper, and is used for them, as kDraftHead.
///
/// errors    bad_file: the files are not of one model, or `draft` has no such block; the text says what differs.
/// cost      look-ups only. The bytes behind both must outlive the result.
Result<Gguf> pair_files(const Gguf& model, const Gguf& draft);

}  // namespace detail
}  // namespace auspex
