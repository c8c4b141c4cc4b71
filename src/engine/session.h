// engine/session: what a Session holds.
//
// Owns    the parts of a session and the order in which public calls use them: Timeline (tokens), Trunk (rows), two
//         decoders (generation), DepthControl (how deep to draft). Each keeps its own state; see their files.
// Thread  one thread at a time.
// Tests   tests/test_session.cpp, tests/test_draft.cpp, tests/sync_scripts.cpp.
#pragma once
#include "device_decoder.h"
#include "draft_vocab.h"
#include "session_file.h"
#include "snapshot.h"
#include "state_store.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {

struct Session::Impl {
    // In this order: a part uses those before it.
    std::shared_ptr<Model::Impl> model;
    detail::Reservation reserved;
    SessionOptions options;
    Stats stats;
    std::vector<detail::KvShape> kv;  ///< by SlotId
    std::unique_ptr<detail::Context> context;
    std::shared_ptr<std::atomic<bool>> cancel;  ///< set by Session::cancel() on any thread
    detail::RowMarks marks;
    detail::Sampler sampler;
    detail::ConstrainedText constrained;
    detail::Timeline timeline;
    detail::MtpCache cache;
    detail::DraftSources sources;
    detail::DraftVocab vocab;
    std::unique_ptr<detail::DepthControl> depth;
    std::unique_ptr<detail::Trunk> trunk;
    std::unique_ptr<detail::StateStore> store;
    std::unique_ptr<detail::PrefixTree> tree;
    std::unique_ptr<detail::HostDecoder> host;
    std::unique_ptr<detail::DeviceDecoder> device;                ///< null where the context has no device loop
    uint64_t state_id = 0, weights_id = 0, draft_weights_id = 0;  ///< of snapshots and files; 0: not computed yet
    std::unique_ptr<detail::SavedFile> saved;  ///< null: no file, or rows and file have nothing in common
    Sampling ahead;                            ///< how tokens computed ahead of the caller were sampled
    bool busy = false;                         ///< a public call is running

    // For tests and measuring.
    std::unique_ptr<detail::AcceptanceJudge> judge;
    bool host_only = false;  ///< the host decodes even where the device could

    /// Takes all memory.
    Status open();
    Status open_draft();
    /// The rule of decoder.h.
    bool decodes_on_device() const;
    /// Waits for what is queued, and mends the state if an earlier call failed. may_stop: as Trunk::repair().
    Status drain(bool may_stop = false);
    Status open_store(const detail::StateSizes& sizes, uint64_t budget);
    /// Empties the history; keeps its checkpoints, and one more at its end. No cycle may be queued.
    Status leave_text();
    Status shorten_reply(size_t n_kept, bool goes_on);
    /// Makes `wanted` the timeline's tokens, keeping the rows that still hold or going back to a checkpoint. The rows
    /// that the report counts as computed are missing, but for those that drain() has computed again for it.
    Result<detail::PrefixReport> replace_tokens(Span<const Token> wanted, Span<const Mark> prompt_marks);
    /// Computes the rows that replace_tokens() has left missing.
    Status read_prompt(const detail::PrefixReport& report);
    /// replace_tokens(), then read_prompt().
    Result<detail::PrefixReport> compute(Span<const Token> wanted, Span<const Mark> prompt_marks);
    /// Forgets what follows the text token by token; it begins anew where tokens are made again.
    void forget_text() {
        vocab.forget(0);
        if (sources.text) sources.text->replaced(0);
        constrained.forget();
    }
    /// Drops tokens that were computed ahead of the caller: by run_ahead, or in a cycle that a callback threw out of.
    Status drop_ahead();
    /// The logits of the last row, which is computed.
    Result<Span<const float>> last_logits();
    /// Computes the rows that a failed call left out, all but that of the last token. Keeps the history if it is
    /// cancelled.
    Status catch_up();
    /// Appends at least one token.
    Status generate(const Sampling& sampling);
    /// The tokens that the caller knows.
    Span<const Token> history() const;
    Status check_ids(Span<const Token> ids) const;
    /// Replaces what `stats` counts; what describes the session stays.
    void set_counts(Stats counts);
    /// cancelled, after Session::cancel().
    Status go_on() const;
    uint64_t snapshot_id();
    /// The text as snapshots and files hold it; nothing is queued.
    detail::TextHead text_head() const;
    /// The timeline has the tokens and rows of a snapshot or file, and the trunk its logits.
    void adopt_text(const detail::TextHead& text);

    class Call;
    class TakeBack;
};

/// A public call on a session: refuses an empty handle, and a call from inside a callback of the same session.
class Session::Impl::Call {
  public:
    explicit Call(Impl* impl) : impl_(impl && !impl->busy ? impl : nullptr), empty_(impl == nullptr) {
        if (impl_) impl_->busy = true;
    }
    ~Call() {
        if (impl_) impl_->busy = false;
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    bool allowed() const { return impl_ != nullptr; }
    Status status() const;  ///< bad_argument unless it is allowed

  private:
    Impl* impl_;
    bool empty_;
};

/// Around a call that replaces the history. Unless it is told that all went well, gives the session back its tokens;
/// their rows are computed again when they are needed. Never allocates when it does.
class Session::Impl::TakeBack {
  public:
    explicit TakeBack(Impl& s)
        : s_(s),
          tokens_(s.timeline.tokens().begin(), s.timeline.tokens().end()),
          spans_(s.trunk->known_spans()),
          asked_(s.timeline.asked()),
          n_given_(s.timeline.n_given()) {}
    ~TakeBack() {
        if (done) return;
        s_.tree->forget_later();
        s_.trunk->take_back(tokens_, std::move(spans_));
        s_.timeline.ask(asked_);
        s_.timeline.give_only(n_given_);
        s_.forget_text();
        s_.saved.reset();
    }
    TakeBack(const TakeBack&) = delete;
    TakeBack& operator=(const TakeBack&) = delete;
    bool done = false;

  private:
    Impl& s_;
    std::vector<Token> tokens_;
    std::vector<detail::RowSpan> spans_;
    detail::Timeline::Asked asked_;
    size_t n_given_;
};

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
