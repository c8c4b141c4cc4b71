// engine/draft_vocab: the ids that a draft-only head keeps.
//
// Owns    the counts of used tokens, for DraftOptions::vocab_by_use.
// Thread  belongs to one session.
// Tests   tests/test_draft.cpp.
#pragma once
#include "../base/token.h"
#include "draft.h"
#include "model.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// Rows of the draft-only head that the options ask for; 0: none. By use and without a number, about an eighth.
inline uint32_t draft_vocab_rows(const DraftOptions& d, uint32_t n_vocab) {
    if (d.n_vocab != 0 || !d.vocab_by_use) return d.n_vocab;
    const uint32_t eighth = n_vocab / 8;
    return eighth < 1024 ? 1024 : eighth > 32768 ? 32768 : eighth;
}
/// The ids of a draft-only head of n rows, ascending: control ids, then those of the highest count, then
/// the lowest. `count` [n_vocab] or empty.
std::vector<Token> choose_draft_vocab(const Tokenizer& tokenizer, uint32_t n_vocab, uint32_t n,
                                      Span<const uint32_t> count);
/// The same from a given list. errors: bad_argument: an id outside the vocabulary.
Result<std::vector<Token>> check_draft_vocab(const Tokenizer& tokenizer, uint32_t n_vocab, Span<const Token> ids);

/// What choosing the ids of a head of n rows again takes meanwhile, beside the old head: the new one (of head_bytes)
/// and its rows as the file has them. 0 where it is written in place of the old one.
uint64_t draft_renewal_bytes(const Plan& plan, Kind device, uint32_t n, uint64_t head_bytes);

class DraftVocab {
  public:
    /// Gives the context the draft head that `draft` asks for, and fills in what it takes (DraftOptions::n_vocab and
    /// vocab_by_use as used, `bytes`), and takes the memory that choosing its ids again needs.
    /// errors    bad_argument, unsupported, out_of_memory.
    Status open(const Model::Impl& model, Context& context, MtpDraft& mtp, DraftOptions* draft, uint64_t* bytes);
    uint64_t memory_bytes() const { return reserve_.size(); }
    /// With vocab_by_use: counts the tokens that came since, and chooses the head's ids again. Call between
    /// generations.
    Status renew(Span<const Token> history);
    /// The history begins anew.
    void forget() { n_counted_ = 0; }

  private:
    const Model::Impl* model_ = nullptr;
    uint32_t n_head_ = 0;
    Block reserve_;  ///< given back while the head is made again, so that a sync() takes no more than create() did
    Context* context_ = nullptr;
    MtpDraft* mtp_ = nullptr;
    std::vector<uint32_t> use_count_;  ///< [n_vocab] or empty
    size_t n_counted_ = 0;             ///< tokens of the history that are counted
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
