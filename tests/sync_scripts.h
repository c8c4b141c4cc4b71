// tests/sync_scripts: random scripts of public calls on one session, checked against a session that computes the same
// history from the start, in the same pieces.
//
// What is checked: the tokens that next() gives after syncs, edits, cancels, saves, restores, files, forks, moves with
// and without a loss of the device, scored texts, switches between branches, changes of draft depth, source and
// sampling, with and without logits() before, are those of plain decoding, in every KV format and with every draft
// head; the logits of a sync, and now and then the whole state, have the same bits. Half of the scripts save and
// restore, the others switch between branches, with marks and room for no, few or all checkpoints.
#pragma once
#include <algorithm>
#include <filesystem>
#include <cstring>
#include <string>

#include "../src/engine/session.h"
#include "support.h"

namespace test {

class SyncScripts {
  public:
    /// ahead: SessionOptions::run_ahead of the scripts is random.
    /// n_step: calls of a script.
    SyncScripts(const auspex::Model& model, uint64_t seed, bool ahead, uint32_t n_step = 24)
        : model_(model), random_(seed * 0xD1B54A32D192ED03ull), ahead_(ahead), n_step_(n_step) {}

    /// Scripts until n checks were made. The first difference, or an empty text.
    std::string run(uint64_t n) {
        const uint64_t goal = n_check + n;
        while (n_check < goal) {
            const std::string bad = script();
            if (!bad.empty()) return auspex::detail::say("script ", n_script, ": ", log_, bad);
            ++n_script;
        }
        return {};
    }

    uint64_t n_check = 0, n_script = 0, n_cancel = 0, n_restore = 0, n_edit = 0, n_accepted = 0, n_state = 0,
             n_fork = 0, n_move = 0, n_file = 0, n_switch = 0, n_logit = 0, n_evict = 0, n_score = 0;
    uint64_t n_resumed = 0;  ///< syncs that went back to a checkpoint
    uint64_t n_reply = 0;    ///< checkpoints within generated texts, counted at each sync

  private:
    using Token = auspex::Token;
    using Session = auspex::Session;
    static constexpr uint32_t kContext = 160, kWindow = 40;

    std::string script() {
        using namespace auspex;
        log_.clear();
        saved_.clear();
        left_.clear();
        cancelled_.clear();
        branches_ = n_script % 2 == 0;
        static constexpr Draft kSources[] = {Draft::off, Draft::mtp, Draft::mtp, Draft::lookup, Draft::mtp_lookup};
        SessionOptions o;
        o.n_context = kContext;
        o.n_ubatch = random_.below(2) != 0 ? 16 : 48;
        if (random_.below(4) == 0) o.windows = {{kAllLayers, kWindow, 4}};
        static constexpr KvType kFormats[] = {KvType::f16, KvType::f16, KvType::q8_0, KvType::q4_0};
        o.kv_k = kFormats[random_.below(4)];
        o.kv_v = kFormats[random_.below(4)];
        SessionOptions plain = o;
        o.draft.source = kSources[random_.below(5)];
        o.draft.depth = static_cast<int>(random_.below(5)) - 1;
        if (random_.below(4) == 0) o.draft.window = 8 + random_.below(60);
        if (random_.below(4) == 0) o.draft.min_probability = 0.02f;
        if (random_.below(4) == 0) {
            o.draft.n_vocab = 40 + random_.below(200);
            o.draft.vocab_by_use = random_.below(2) == 0;
        }
        if (ahead_) o.run_ahead = random_.below(4);
        reply_stride_ = 1 + random_.below(8);
        o.progress = [this](const char*, float) { return n_call_++ != stop_at_; };
        plain.checkpoint_bytes = 0;
        Status s = Session::create(model_, plain).get(b_);
        if (s.ok()) s = Session::create(model_, o).get(a_);
        if (s.ok() && branches_) {
            o.checkpoint_bytes = some_budget(a_.impl()->tree->options());
            s = Session::create(model_, o).get(a_);
        }
        if (!s.ok()) return s.message();
        std::string bad = sync(ids(1 + random_.below(60)), false);
        for (uint32_t i = 0; i < n_step_ && bad.empty(); ++i) bad = step();
        const Stats stats = a_.stats();
        for (const uint64_t n : stats.accepted) n_accepted += n;
        return bad;
    }

    /// For no checkpoint, for a few, or for all of them.
    uint64_t some_budget(const auspex::detail::PrefixOptions& o) {
        if (random_.below(4) == 0) return auspex::kDefaultCheckpoints;
        return random_.below(6) * (o.state_bytes + random_.below(2) * o.grid * o.row_bytes);
    }

    std::string step() {
        const size_t size = a_.history().size();
        if (size == 0 || size + 40 > kContext) return sync(ids(1 + random_.below(20)), false);
        switch (random_.below(16)) {
            case 0:
                if (!cancelled_.empty() && random_.below(2) == 0) return sync(cancelled_, false);
                [[fallthrough]];
            case 1: return sync(longer(size, 1 + random_.below(30)), random_.below(2) == 0);
            case 2: {  // an edit near the end, or anywhere
                const size_t keep = random_.below(2) == 0 ? size - std::min<size_t>(size, random_.below(8))
                                                          : random_.below(static_cast<uint32_t>(size));
                ++n_edit;
                return sync(longer(keep, random_.below(3) * random_.below(20)), random_.below(3) == 0);
            }
            case 3: return branches_ ? switch_branch() : save();
            case 4: return branches_ ? switch_branch() : restore();
            case 5:
                if (a_.impl()->options.draft.source == auspex::Draft::off) return {};
                log_ += "depth ";
                return text(a_.set_draft_depth(static_cast<int>(random_.below(6)) - 1));
            case 6: return random_.below(2) == 0 ? compare_states() : compare_kept();
            case 12: return fork();
            case 13: return move();
            case 14: return file();
            case 15: return score(longer(random_.below(static_cast<uint32_t>(size)), 1 + random_.below(20)));
            default: return check();
        }
    }

    std::vector<Token> ids(size_t n) {
        std::vector<Token> v(n);
        const uint32_t n_id = random_.below(3) == 0 ? 6 : model_.info().n_vocab;  // few: so that lookup finds something
        for (Token& id : v) id = static_cast<Token>(random_.below(n_id));
        return v;
    }
    std::vector<Token> longer(size_t keep, size_t n) {
        std::vector<Token> v(a_.history().begin(), a_.history().begin() + static_cast<std::ptrdiff_t>(keep));
        for (Token id : ids(n)) v.push_back(id);
        return v;
    }
    static std::string text(const auspex::Status& s) { return s.ok() ? std::string() : s.message(); }

    std::string sync(const std::vector<Token>& wanted, bool cancel) {
        log_ += auspex::detail::say(cancel ? "cancel " : "sync ", wanted.size(), " ");
        n_call_ = 0;
        stop_at_ = cancel ? random_.below(4) : ~0u;
        std::vector<auspex::Mark> marks(branches_ ? random_.below(4) : 0);
        for (auspex::Mark& mark : marks)
            mark = {random_.below(static_cast<uint32_t>(wanted.size() + 1)), random_.below(3) == 0};
        auspex::SyncReport report;
        a_.impl()->tree->on_evict = [this](uint32_t) { ++n_evict; };  // a fork or a move made another tree
        a_.impl()->tree->set_reply_stride(reply_stride_);
        for (const auto& state : a_.impl()->tree->states()) n_reply += state.kind == auspex::detail::StateKind::reply;
        const auspex::Status s = a_.sync(wanted, marks).get(report);
        stop_at_ = ~0u;
        using auspex::SyncReason;
        n_resumed += s.ok() && (report.reason == SyncReason::checkpoint || report.reason == SyncReason::resumed ||
                                report.reason == SyncReason::given_up);
        if (s.code != auspex::Code::cancelled) return s.ok() ? compare_logits() : s.message();
        ++n_cancel;
        cancelled_ = wanted;
        return a_.history().empty() ? sync(wanted, false) : std::string();
    }
    /// Leaves the history for another one that was left, or for a new one that begins like it.
    std::string switch_branch() {
        constexpr size_t kBranches = 3;
        const size_t size = a_.history().size();
        std::vector<Token> now = longer(size, 0);
        if (left_.size() < kBranches && (left_.empty() || random_.below(2) == 0)) {
            left_.push_back(std::move(now));
            return sync(longer(random_.below(static_cast<uint32_t>(size)), 1 + random_.below(20)), false);
        }
        log_ += "back ";
        ++n_switch;
        std::vector<Token>& there = left_[random_.below(static_cast<uint32_t>(left_.size()))];
        now.swap(there);
        for (const Token id : ids(random_.below(3))) now.push_back(id);
        now.resize(std::min<size_t>(now.size(), kContext));
        return sync(now, random_.below(8) == 0);
    }
    /// Bit for bit those of a session that computes everything from the start.
    std::string compare_logits() {
        using namespace auspex;
        Session::Impl &a = *a_.impl(), &b = *b_.impl();
        const size_t n = a.timeline.n_row();
        if (n == 0 || n != a.timeline.size() || !a.trunk->has_logits()) return {};
        std::string bad = replay(a.timeline.tokens(), n);
        if (!bad.empty() || !b.trunk->has_logits()) return bad;
        Span<const float> x, y;
        bad = text(a.trunk->last_logits().get(x));
        if (bad.empty()) bad = text(b.trunk->last_logits().get(y));
        if (!bad.empty()) return bad;
        ++n_logit;
        const bool same = x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
        return same ? bad : detail::say("the logits differ after ", n, " rows");
    }

    std::string save() {
        log_ += "save ";
        auspex::Snapshot snap;
        const auspex::Status s = a_.save().get(snap);
        if (s.ok() && snap.n_token != 0) saved_.push_back(std::move(snap));
        return text(s);
    }
    std::string restore() {
        if (saved_.empty()) return {};
        const auspex::Snapshot& snap = saved_[random_.below(static_cast<uint32_t>(saved_.size()))];
        log_ += auspex::detail::say("restore ", snap.n_token, " ");
        const auspex::Status s = a_.restore(snap);
        ++n_restore;
        // The same history again: a snapshot without logits has its last row computed.
        return !s.ok() || random_.below(2) == 0 ? text(s) : sync(longer(a_.history().size(), 0), false);
    }

    /// One of the two goes on, the other gets another text and ends.
    std::string fork() {
        log_ += "fork ";
        Session other;
        const auspex::Status s = a_.fork().get(other);
        if (!s.ok()) return s.message();
        ++n_fork;
        if (random_.below(2) == 0) std::swap(a_, other);
        return random_.below(2) == 0 ? text(other.sync(ids(5)).status()) : text(other.next().status());
    }
    /// Saves to a file and loads it, which changes nothing.
    std::string file() {
        log_ += "file ";
        const std::string path =
            (std::filesystem::temp_directory_path() / auspex::detail::say("auspex-", auspex::detail::unique_number()))
                .string();
        auspex::Status s = a_.save(path.c_str()).status();
        if (s.ok()) s = a_.save(path.c_str()).status();  // appends
        if (s.ok()) s = a_.load(path.c_str()).status();
        std::error_code error;
        std::filesystem::remove(path, error);
        ++n_file;
        return text(s);
    }
    /// Half of them are cancelled: the history is the text all the same.
    std::string score(const std::vector<Token>& wanted) {
        log_ += auspex::detail::say("score ", wanted.size(), " ");
        n_call_ = 0;
        stop_at_ = random_.below(2) == 0 ? random_.below(6) : ~0u;
        const bool damaged = a_.impl()->trunk->damaged();
        const std::vector<Token> before(a_.history().begin(), a_.history().end());
        const auspex::Status s = a_.score(wanted, [](size_t, auspex::Span<const float>) {});
        stop_at_ = ~0u;
        ++n_score;
        if (!s.ok() && s.code != auspex::Code::cancelled) return s.message();
        const bool repaired = !a_.impl()->trunk->damaged();
        const std::vector<Token>& expected = damaged && !repaired ? before : wanted;
        const bool same = a_.history().size() == expected.size() &&
                          std::equal(expected.begin(), expected.end(), a_.history().begin());
        return !same ? "score() left another history" : s.ok() ? compare_logits() : std::string();
    }
    std::string move() {
        const bool lost = random_.below(2) == 0;
        log_ += lost ? "lost " : "move ";
        if (lost) (void)a_.impl()->trunk->track(auspex::Status(auspex::Code::device_lost, "")).ok();
        ++n_move;
        return text(a_.move_to(model_).status());
    }

    /// Computes rows 0 .. n_row-1 of `tokens` in `b_`, from the start, as `a_` did.
    std::string replay(auspex::Span<const Token> tokens, size_t n_row) {
        return replay(tokens, n_row, a_.impl()->timeline.spans());
    }
    std::string replay(auspex::Span<const Token> tokens, size_t n_row,
                       auspex::Span<const auspex::detail::RowSpan> how) {
        auspex::Session::Impl& b = *b_.impl();
        auspex::Status s = b.drain();
        b.trunk->restart(0);
        for (const Token id : tokens) b.timeline.append(id);
        b.timeline.give_only(b.timeline.size());
        for (const auspex::detail::RowSpan& span : how) {
            const size_t end = std::min(span.first + span.n, n_row);
            while (s.ok() && b.timeline.n_row() < end) {
                if (span.origin == auspex::detail::RowOrigin::decoded) {
                    // Some rows at once: they have the bits of single rows, and take a fraction of the time.
                    const size_t n = std::min<size_t>(end - b.timeline.n_row(), 1 + random_.below(8));
                    s = b.trunk->verify(static_cast<uint32_t>(n) - 1);
                    if (s.ok()) b.trunk->commit(static_cast<uint32_t>(n));
                } else {
                    s = b.trunk->run_prefill(end - b.timeline.n_row());
                }
            }
        }
        if (s.ok() && b.timeline.n_row() != n_row)
            return auspex::detail::say("the record covers ", b.timeline.n_row(), " of ", n_row, " rows");
        return text(s);
    }
    bool decoded(size_t row) const {
        for (const auspex::detail::RowSpan& span : a_.impl()->timeline.spans())
            if (row >= span.first && row < span.first + span.n)
                return span.origin == auspex::detail::RowOrigin::decoded;
        return false;
    }

    /// Some tokens of `a_`, each call's against those of plain decoding.
    std::string check() {
        using namespace auspex;
        Sampling sampling;
        if (random_.below(3) == 0) {
            sampling.temperature = 1.5f;
            sampling.seed = random_.below(4);
            if (random_.below(2) == 0) sampling.top_k = 20;
            if (random_.below(2) == 0) sampling.repeat_penalty = 1.3f;
        }
        const bool with_logits = random_.below(4) == 0;
        std::vector<Token> want(a_.history().begin(), a_.history().end());
        const size_t first = want.size(), n = 1 + random_.below(random_.below(4) == 0 ? 30 : 6);
        log_ += detail::say("next ", first, " ");
        if (first == 0) return {};
        bool began_decoding = false;
        while (a_.history().size() < first + n) {
            const size_t size = a_.history().size();
            if (with_logits && random_.below(2) == 0) {
                const Status s = a_.logits().status();
                if (!s.ok()) return s.message();
                if (size == first) began_decoding = decoded(first - 1);
            }
            auto r = a_.next(sampling);
            if (!r.ok()) return r.status().message();
            if (r.value().empty() || a_.history().size() != size + r.value().size()) return "next() gave nothing";
            if (size == first) began_decoding = decoded(first - 1);
        }
        const size_t end = a_.history().size();
        std::string bad = replay(want, began_decoding ? first - 1 : first);
        while (bad.empty() && b_.history().size() < end) bad = text(b_.next(sampling).status());
        ++n_check;
        if (!bad.empty()) return bad;
        for (size_t i = 0; i < end; ++i)
            if (a_.history()[i] != b_.history()[i])
                return detail::say("token ", i, " of ", end, " is ", a_.history()[i], ", expected ", b_.history()[i]);
        return {};
    }

    /// The state's bytes, at the same row.
    std::string compare_states() {
        using namespace auspex;
        Session::Impl &a = *a_.impl(), &b = *b_.impl();
        std::string bad = text(a.drain());
        const size_t n = a.timeline.n_row();
        if (n == 0) return bad;
        log_ += "state ";
        if (bad.empty()) bad = replay(a.timeline.tokens(), n);
        std::vector<std::byte> x, y;
        a.timeline.close_step();
        if (bad.empty()) bad = text(a.context->save(static_cast<uint32_t>(n), &x));
        if (bad.empty()) bad = text(b.context->save(static_cast<uint32_t>(n), &y));
        ++n_state;
        return !bad.empty() || x == y ? bad : detail::say("the states differ after ", n, " rows");
    }

    /// A checkpoint is what its record says: the bytes of one, against the same rows computed again.
    std::string compare_kept() {
        using namespace auspex;
        using detail::StatePart;
        Session::Impl &a = *a_.impl(), &b = *b_.impl();
        const std::vector<detail::PrefixTree::StateInfo> all = a.tree->states();
        if (all.empty()) return {};
        const detail::PrefixTree::StateInfo& kept = all[random_.below(static_cast<uint32_t>(all.size()))];
        if (kept.row == 0) return {};
        log_ += detail::say("kept ", kept.row, " ");
        std::string bad = replay(kept.tokens, kept.row, a.store->facts(kept.item).spans);
        std::vector<std::byte> x, y;
        detail::VectorWriter to_x(&x), to_y(&y);
        if (bad.empty()) bad = text(a.store->write_kept(kept.item, kept.row, to_x));
        if (bad.empty()) bad = text(b.trunk->save_state(StatePart::trunk, to_y));
        x.resize(std::min(x.size(), y.size()));  // those of draft blocks follow
        ++n_state;
        return !bad.empty() || x == y ? bad : detail::say("the checkpoint at row ", kept.row, " differs");
    }

    auspex::Model model_;
    Random random_;
    bool ahead_;
    uint32_t n_step_;
    size_t reply_stride_ = 0;
    bool branches_ = false;
    Session a_, b_;  ///< under test; plain
    std::vector<auspex::Snapshot> saved_;
    std::vector<std::vector<Token>> left_;  ///< histories of other branches
    std::vector<Token> cancelled_;          ///< the last prompt that was cancelled
    std::string log_;
    uint32_t n_call_ = 0, stop_at_ = ~0u;
};

}  // namespace test
