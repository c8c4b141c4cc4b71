#include "session_file.h"

#include "../base/guard.h"

#include "file_parts.h"

#include <algorithm>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace session_file_impl {

/// Passes bytes on and keeps the first error to itself: a full disk must not look like a damaged device.
class QuietWriter : public StateWriter {
  public:
    explicit QuietWriter(StateWriter& to) : to_(to) {}
    Status write(const void* from, uint64_t n) override {
        if (first_.ok()) first_ = to_.write(from, n);
        return {};
    }
    const Status& status() const { return first_; }

  private:
    StateWriter& to_;
    Status first_;
};

/// The bytes of a state part. Those of draft blocks that this session does not have are left out; zeros take the place
/// of those that the file does not have.
class StateSource : public StateReader {
  public:
    StateSource(PartReader& from, const StateHead& head, bool with_draft)
        : from_(from), left_(with_draft ? from.left() : head.trunk_bytes) {}
    Status read(void* to, uint64_t n) override {
        const uint64_t k = std::min(n, left_);
        AUSPEX_TRY(from_.read(to, k));
        left_ -= k;
        if (n != k) std::memset(static_cast<std::byte*>(to) + k, 0, static_cast<size_t>(n - k));
        return {};
    }

  private:
    PartReader& from_;
    uint64_t left_;
};

// ---------------------------------------------------------------------------------------- saving

class FileSaver {
  public:
    FileSaver(Session::Impl& session, const char* path, Span<const std::byte> note)
        : s_(session), path_(path), note_(note) {}

    Result<SaveReport> run() {
        AUSPEX_TRY(prepare());
        list_parts();
        bool appends = false;
        if (worth_appending()) AUSPEX_TRY(log_.append(path_, s_.saved->mark).get(appends));
        if (!appends) {
            for (Wanted& w : parts_) w.known = false;
            const FileIdentity identity = identity_of(s_);
            AUSPEX_TRY(log_.create(
                path_, Span<const std::byte>(reinterpret_cast<const std::byte*>(&identity), sizeof identity)));
        }
        for (Wanted& w : parts_)
            if (!w.known) AUSPEX_TRY(write(&w));
        SaveReport report;
        AUSPEX_TRY(commit());
        report.file_bytes = s_.saved->mark.end;
        report.written_bytes = log_.written();
        report.appended = appends;
        return report;
    }

  private:
    struct Wanted {
        LogPart part;
        uint64_t serial = 0;
        uint32_t item = 0;
        bool known = false;  ///< the file has it
    };
    static constexpr size_t kMaxKept = 4096;

    /// Brings the session to a state that can be written, which changes nothing that a caller can tell.
    Status prepare() {
        if (!path_ || !*path_)
            return fail(Code::bad_argument, "the path is ", path_ ? "empty" : "null", ", expected the name of a file");
        if (note_.size() > kMaxNoteBytes)
            return fail(Code::bad_argument, "the note has ", note_.size(), " bytes, expected at most ", kMaxNoteBytes);
        AUSPEX_TRY(s_.drain());
        AUSPEX_TRY(s_.trunk->fill_draft_cache());  // pending hidden rows are not saved
        AUSPEX_TRY(s_.trunk->find_logits());
        s_.trunk->follow();
        n_row_ = s_.timeline.n_row();
        return {};
    }

    /// Parts come in the order of the last save, so that each is found next to the one before.
    const SavedFile::Part* find(PartKind kind, uint64_t first, uint64_t n, uint64_t serial) {
        const std::vector<SavedFile::Part>& all = s_.saved->parts;
        for (size_t i = 0; i < all.size(); ++i) {
            const size_t at = (i_found_ + i) % all.size();
            const LogPart& p = all[at].part;
            if (p.kind != static_cast<uint32_t>(kind) || p.first != first || p.n != n || all[at].serial != serial)
                continue;
            i_found_ = at;
            return &all[at];
        }
        return nullptr;
    }

    /// known: false if the file cannot have it any more.
    Wanted& add(PartKind kind, uint64_t first, uint64_t n, uint64_t bytes, bool known, uint64_t serial = 0) {
        Wanted w;
        w.part.kind = static_cast<uint32_t>(kind);
        w.part.first = first;
        w.part.n = n;
        w.part.bytes = bytes;
        w.serial = serial;
        const SavedFile::Part* old =
            known && s_.saved && s_.saved->path == path_ ? find(kind, first, n, serial) : nullptr;
        if (old) w.part = old->part, w.known = true;
        parts_.push_back(w);
        return parts_.back();
    }

    void list_parts() {
        text_ = s_.text_head();
        add(PartKind::text, 0, s_.timeline.size(),
            sizeof(TextHead) + s_.timeline.size() * sizeof(Token) + text_.n_logit * sizeof(float), false);
        if (!note_.empty()) add(PartKind::note, 0, 0, note_.size(), false);
        list_rows(PartKind::rows, s_.context->kv_row_bytes(StatePart::trunk));
        if (s_.cache.on()) list_rows(PartKind::draft_rows, s_.context->kv_row_bytes(StatePart::draft));
        const std::vector<PrefixTree::LiveState> kept = s_.tree->live_states();
        for (size_t i = kept.size() - std::min(kept.size(), kMaxKept); i < kept.size(); ++i) {
            // What a later prompt goes back to does not depend on recent states.
            if (kept[i].kind == StateKind::recent || !s_.store->is_whole(kept[i].item)) continue;
            const StatePartHead head = head_of(kept[i].row, s_.store->facts(kept[i].item));
            Wanted& w = add(PartKind::kept_state, kept[i].row, 1, state_part_bytes(head.head), true,
                            s_.store->serial(kept[i].item));
            w.item = kept[i].item;
            w.part.flags = flags_of(kept[i].kind, kept[i].pinned);
        }
        live_ = head_of(n_row_, s_.store->live_facts(n_row_));
        add(PartKind::live_state, n_row_, 1, state_part_bytes(live_.head), false);
    }

    void list_rows(PartKind kind, uint64_t row_bytes) {
        if (row_bytes == 0) return;
        for (size_t first = 0; first < n_row_; first += kFileRows) {
            const size_t n = std::min(kFileRows, n_row_ - first);
            add(kind, first, n, n * row_bytes, !s_.marks.written(first / kFileRows));
        }
    }

    StatePartHead head_of(size_t row, const StateStore::Facts& facts) const {
        StatePartHead p;
        p.facts = facts;
        p.head.row = row;
        p.head.n_span = facts.spans.size();
        p.head.trunk_bytes = s_.store->part_bytes(StatePart::trunk, row);
        p.head.draft_bytes = s_.store->part_bytes(StatePart::draft, row);
        p.head.first_key = facts.mtp.first_key;
        p.head.n_mtp_row = facts.mtp.n_row;
        p.head.n_hidden = facts.mtp.has_hidden ? s_.model->plan.d_model : 0;
        return p;
    }

    /// Whether less than half of the file would be dead.
    bool worth_appending() const {
        if (!s_.saved || s_.saved->path != path_) return false;
        uint64_t live = 0, added = 0;
        for (const Wanted& w : parts_) (w.known ? live : added) += log_bytes_of(w.part.bytes);
        return (live + added) * 2 >= s_.saved->mark.end + added;
    }

    Status write(Wanted* w) {
        AUSPEX_TRY(log_.begin_part(w->part));
        QuietWriter to(log_);
        AUSPEX_TRY(write_part(*w, to));
        AUSPEX_TRY(to.status());
        return log_.end_part(&w->part);
    }

    Status write_part(const Wanted& w, StateWriter& to) {
        switch (static_cast<PartKind>(w.part.kind)) {
            case PartKind::text: return write_text(to);
            case PartKind::note: return to.write(note_.data(), note_.size());
            case PartKind::rows: return write_rows(StatePart::trunk, w.part, to);
            case PartKind::draft_rows: return write_rows(StatePart::draft, w.part, to);
            case PartKind::kept_state: return write_kept(w, to);
            case PartKind::live_state:
                AUSPEX_TRY(write_state_head(live_, s_.options.exact_prompts, to));
                return s_.store->write_live(live_.facts, to);
            case PartKind::commit: break;
        }
        return {};
    }

    Status write_text(StateWriter& to) {
        const Span<const Token> tokens = s_.timeline.tokens();
        AUSPEX_TRY(to.write(&text_, sizeof text_));
        AUSPEX_TRY(to.write(tokens.data(), tokens.size() * sizeof(Token)));
        if (text_.n_logit == 0) return {};
        Span<const float> logits;
        AUSPEX_TRY(s_.trunk->last_logits().get(logits));
        return to.write(logits.data(), logits.size() * sizeof(float));
    }

    Status write_rows(StatePart part, const LogPart& rows, StateWriter& to) {
        return s_.trunk->track(
            s_.context->save_rows({part, static_cast<uint32_t>(rows.first), static_cast<uint32_t>(rows.n)}, to));
    }

    Status write_kept(const Wanted& w, StateWriter& to) {
        const StatePartHead head = head_of(static_cast<size_t>(w.part.first), s_.store->facts(w.item));
        AUSPEX_TRY(write_state_head(head, s_.options.exact_prompts, to));
        return s_.store->write_kept(w.item, static_cast<size_t>(w.part.first), to);
    }

    Status commit() {
        auto saved = std::make_unique<SavedFile>();
        saved->path = path_;
        std::vector<LogPart> index;
        for (const Wanted& w : parts_) {
            index.push_back(w.part);
            saved->parts.push_back({w.part, w.serial});
        }
        AUSPEX_TRY(log_.commit(index, &saved->mark));
        s_.saved = std::move(saved);
        s_.marks.saved(n_row_);
        return {};
    }

    Session::Impl& s_;
    const char* path_;
    Span<const std::byte> note_;
    LogWriter log_;
    std::vector<Wanted> parts_;
    StatePartHead live_;
    TextHead text_{};
    size_t n_row_ = 0, i_found_ = 0;
};

// --------------------------------------------------------------------------------------- loading

class FileLoader {
  public:
    FileLoader(Session::Impl& session, const char* path) : s_(session), path_(path) {}

    Result<SessionFile> run() {
        AUSPEX_TRY(s_.drain());
        AUSPEX_TRY(open_content(path_, &c_));
        AUSPEX_TRY(check_content(s_, &c_));
        auto saved = std::make_unique<SavedFile>();
        saved->path = path_;
        saved->mark = c_.log.mark();
        saved->parts.reserve(c_.log.parts().size());
        Session::Impl::TakeBack take_back(s_);
        AUSPEX_TRY(make_room());
        AUSPEX_TRY(load_rows(StatePart::trunk, c_.rows));
        if (c_.with_draft) AUSPEX_TRY(load_rows(StatePart::draft, c_.draft_rows));
        AUSPEX_TRY(load_live());
        for (const LogPart& p : c_.log.parts())
            saved->parts.push_back({p, p.kind == static_cast<uint32_t>(PartKind::kept_state) ? load_kept(p) : 0});
        s_.marks.saved(n_row());
        s_.saved = c_.same_draft ? std::move(saved) : nullptr;  // else its identity is not ours
        take_back.done = true;
        SessionFile file;
        file.n_token = c_.tokens.size();
        file.note = std::move(c_.note);
        file.recovered = c_.log.recovered();
        return file;
    }

  private:
    size_t n_row() const { return static_cast<size_t>(c_.text.n_row); }

    /// As for a snapshot: the rows are a text of their own, and what was live is kept as a branch.
    Status make_room() {
        AUSPEX_TRY(s_.leave_text());
        s_.trunk->make_room(n_row());
        return {};
    }

    Status load_rows(StatePart part, const std::vector<LogPart>& parts) {
        for (const LogPart& p : parts) {
            PartReader from(c_.log, p);
            s_.trunk->rows_copied(static_cast<size_t>(p.first), static_cast<size_t>(p.n));
            AUSPEX_TRY(s_.trunk->track(
                s_.context->restore_rows({part, static_cast<uint32_t>(p.first), static_cast<uint32_t>(p.n)}, from)));
            AUSPEX_TRY(from.finish());
        }
        return {};
    }

    Status load_live() {
        PartReader from(c_.log, c_.live);
        StatePartHead state;
        AUSPEX_TRY(read_state_head(s_, c_, c_.live, from, &state));
        StateSource source(from, state.head, c_.with_draft);
        AUSPEX_TRY(s_.store->read_live(n_row(), state.facts, source));
        AUSPEX_TRY(from.finish());
        s_.trunk->loaded(c_.tokens, std::move(c_.logits));
        s_.adopt_text(c_.text);
        return {};
    }

    /// The serial number of a checkpoint, or 0: a session goes on without those that it has no room for.
    uint64_t load_kept(const LogPart& part) {
        StatePartHead state;
        PartReader from(c_.log, part);
        if (!read_state_head(s_, c_, part, from, &state).ok()) return 0;
        uint32_t taken = 0;
        const auto copy = [&](uint32_t item) {
            taken = item;
            StateSource source(from, state.head, c_.with_draft);
            AUSPEX_TRY(s_.store->read_kept(item, static_cast<size_t>(part.first), state.facts, source));
            const Status s = from.finish();
            if (!s.ok()) s_.store->drop_state(item);
            return s;
        };
        const bool kept = s_.tree->adopt(static_cast<size_t>(part.first), static_cast<StateKind>(part.flags & 255u),
                                         part.flags >= 256, copy);
        return kept ? s_.store->serial(taken) : 0;
    }

    Session::Impl& s_;
    const char* path_;
    FileContent c_;
};

}  // namespace session_file_impl

Result<SaveReport> save_file(Session::Impl& session, const char* path, Span<const std::byte> note) {
    return session_file_impl::FileSaver(session, path, note).run();
}

Result<SessionFile> load_file(Session::Impl& session, const char* path) {
    return session_file_impl::FileLoader(session, path).run();
}

}  // namespace detail

Result<SaveReport> Session::save(const char* path, Span<const std::byte> note) const AUSPEX_BOUNDARY {
    Impl::Call call(impl_.get());
    AUSPEX_TRY(call.status());
    AUSPEX_TRY(impl_->trunk->alive());
    return detail::save_file(*impl_, path, note);
}
AUSPEX_CATCH

Result<SessionFile> Session::load(const char* path) AUSPEX_BOUNDARY {
    Impl::Call call(impl_.get());
    AUSPEX_TRY(call.status());
    AUSPEX_TRY(impl_->trunk->alive());
    return detail::load_file(*impl_, path);
}
AUSPEX_CATCH

Result<SessionFile> read_session_file(const char* path) AUSPEX_BOUNDARY {
    detail::FileContent content;
    AUSPEX_TRY(detail::open_content(path, &content));
    SessionFile file;
    file.n_token = static_cast<size_t>(content.text.n_token);
    file.note = std::move(content.note);
    file.recovered = content.log.recovered();
    return file;
}
AUSPEX_CATCH

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
