#include "draft_vocab.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace draft_vocab_impl {
namespace {

/// True for ids that text alone never gives; a draft-only head must be able to say them.
bool is_control(const Tokenizer& tokenizer, Token id) {
    if (static_cast<uint32_t>(id) >= tokenizer.n_vocab()) return false;
    const TokenKind kind = tokenizer.kind(id);
    return kind == TokenKind::control || kind == TokenKind::user_defined || tokenizer.is_end(id);
}

/// A given list with the control ids, ascending.
Result<std::vector<Token>> check_draft_vocab(const Tokenizer& tokenizer, uint32_t n_vocab, Span<const Token> given) {
    std::vector<Token> ids(given.begin(), given.end());
    for (size_t i = 0; i < ids.size(); ++i)
        if (ids[i] < 0 || static_cast<uint32_t>(ids[i]) >= n_vocab)
            return fail(Code::bad_argument, "draft.vocab: entry ", i, " is id ", ids[i], ", expected 0..", n_vocab - 1);
    for (uint32_t i = 0; i < tokenizer.n_vocab() && i < n_vocab; ++i)
        if (is_control(tokenizer, static_cast<Token>(i))) ids.push_back(static_cast<Token>(i));
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
}

}  // namespace
}  // namespace draft_vocab_impl

std::vector<Token> choose_draft_vocab(const Tokenizer& tokenizer, uint32_t n_vocab, uint32_t n,
                                      Span<const uint32_t> count) {
    std::vector<Token> ids, rest;
    for (uint32_t i = 0; i < n_vocab; ++i) {
        const Token id = static_cast<Token>(i);
        const bool text = i < tokenizer.n_vocab() && tokenizer.kind(id) != TokenKind::unused;
        if (draft_vocab_impl::is_control(tokenizer, id))
            ids.push_back(id);
        else if (text)
            rest.push_back(id);
    }
    const size_t n_rest = std::min<size_t>(rest.size(), n > ids.size() ? n - ids.size() : 0);
    if (!count.empty())
        std::sort(rest.begin(), rest.end(), [&](Token a, Token b) {
            const uint32_t n_a = count[static_cast<size_t>(a)], n_b = count[static_cast<size_t>(b)];
            return n_a != n_b ? n_a > n_b : a < b;
        });
    ids.insert(ids.end(), rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(n_rest));
    std::sort(ids.begin(), ids.end());
    return ids;
}

Result<std::vector<Token>> draft_head_ids(const Tokenizer& tokenizer, uint32_t n_vocab, const DraftOptions& d) {
    std::vector<Token> ids;
    const uint32_t n = draft_vocab_rows(d, n_vocab);
    if (!d.vocab.empty())
        AUSPEX_TRY(draft_vocab_impl::check_draft_vocab(tokenizer, n_vocab, d.vocab).get(ids));
    else if (n > 0 && n < n_vocab)
        ids = choose_draft_vocab(tokenizer, n_vocab, n, {});
    if (ids.size() >= n_vocab) ids.clear();
    return ids;
}

Status DraftVocab::open(const Model::Impl& model, Context& context, MtpDraft& mtp, DraftOptions* draft,
                        uint64_t* bytes) {
    const uint32_t n_vocab = model.plan.n_vocab;
    *bytes = 0;
    draft->n_vocab = draft_vocab_rows(*draft, n_vocab);
    std::vector<Token> ids;
    AUSPEX_TRY(draft_head_ids(model.tokenizer, n_vocab, *draft).get(ids));
    if (ids.empty()) {
        draft->vocab_by_use = false;
        return {};
    }
    const uint64_t before = context.memory_bytes();
    AUSPEX_TRY(context.draft_head(ids));
    *bytes = context.memory_bytes() - before;
    mtp.set_ids(std::move(ids));
    if (!draft->vocab_by_use) return {};
    model_ = &model;
    n_head_ = draft->n_vocab;
    context_ = &context;
    mtp_ = &mtp;
    use_count_.assign(n_vocab, 0);
    return {};
}

Status DraftVocab::renew(Span<const Token> history) {
    if (use_count_.empty() || (history.size() <= n_counted_ && !due_)) return {};
    due_ = true;
    for (; n_counted_ < history.size(); ++n_counted_) ++use_count_[static_cast<size_t>(history[n_counted_])];
    AUSPEX_TRY(remake(choose_draft_vocab(model_->tokenizer, model_->plan.n_vocab, n_head_, use_count_)));
    due_ = false;
    return {};
}

Status DraftVocab::copy(const DraftVocab& other) {
    if (use_count_.empty()) return {};
    use_count_ = other.use_count_;
    n_counted_ = other.n_counted_;
    return remake(std::vector<Token>(other.mtp_->ids().begin(), other.mtp_->ids().end()));
}

/// Makes the head of other ids, as many as before: in the same memory.
Status DraftVocab::remake(std::vector<Token> ids) {
    const Span<const Token> now = mtp_->ids();
    if (!stale_ && ids.size() == now.size() && std::equal(ids.begin(), ids.end(), now.begin())) return {};
    stale_ = true;
    AUSPEX_TRY(context_->draft_head(ids));
    stale_ = false;
    mtp_->set_ids(std::move(ids));
    return {};
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
