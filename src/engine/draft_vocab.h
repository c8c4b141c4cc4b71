// engine/draft_vocab: the ids that a draft-only head keeps.
//
// Owns    the counts of used tokens, for DraftOptions::vocab_by_use.
// Thread  belongs to one session.
// Tests   tests/test_draft.cpp.
#pragma once
#include <algorithm>

#include "../base/token.h"
#include "draft.h"
#include "model.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// Rows of the draft-only head that the options ask for; 0: none. With vocab_by_use and no number: an eighth of the
/// vocabulary, within 1024..32768.
inline uint32_t draft_vocab_rows(const DraftOptions& d, uint32_t n_vocab) {
    if (d.n_vocab != 0 || !d.vocab_by_use) return d.n_vocab;
    const uint32_t eighth = n_vocab / 8;
    return eighth < 1024 ? 1024 : eighth > 32768 ? 32768 : eighth;
}
/// The ids of a draft-only head of n rows, ascending: control ids, then those of the highest count, then
/// the lowest. `count` [n_vocab] or empty.
std::vector<Token> choose_draft_vocab(const Tokenizer& tokenizer, uint32_t n_vocab, uint32_t n,
                                      Span<const uint32_t> count);
/// The ids of the draft-only head that the options ask for, given or chosen; empty: none, or one as long as the
/// vocabulary. errors: bad_argument: an id outside the vocabulary.
Result<std::vector<Token>> draft_head_ids(const Tokenizer& tokenizer, uint32_t n_vocab, const DraftOptions& d);

class DraftVocab {
  public:
    /// Makes the draft-only head that `draft` asks for. Sets n_vocab and vocab_by_use of `draft` to the values used and
    /// `bytes` to the memory of the head.
    ///
    /// errors    bad_argument, unsupported, out_of_memory.
    Status open(const Model::Impl& model, Context& context, MtpDraft& mtp, DraftOptions* draft, uint64_t* bytes);
    /// With vocab_by_use: counts the tokens since the last call and chooses the head's ids anew. Call between
    /// generations.
    Status renew(Span<const Token> history);
    /// Continues the counts of another session's, with the same head.
    Status copy(const DraftVocab& other);
    /// Of the tokens counted so far, only the first n are still history.
    void forget(size_t n) { n_counted_ = std::min(n_counted_, n); }

  private:
    Status remake(std::vector<Token> ids);

    const Model::Impl* model_ = nullptr;
    uint32_t n_head_ = 0;
    Context* context_ = nullptr;
    MtpDraft* mtp_ = nullptr;
    std::vector<uint32_t> use_count_;  ///< [n_vocab] or empty
    size_t n_counted_ = 0;             ///< tokens of the history counted so far
    bool due_ = false;                 ///< renew() failed: it is to try again, although nothing more is counted
    bool stale_ = false;               ///< making the head failed: it may hold rows of other ids
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
