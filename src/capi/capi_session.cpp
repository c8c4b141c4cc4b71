// capi/capi_session: sessions, their files and snapshots of auspex.h.
#include "capi.h"

#include <algorithm>

using auspex::capi::Answer;
using auspex::capi::call;
using auspex::capi::call_session;
using auspex::capi::need;
using auspex::capi::Running;

auspex_code auspex_session_options_init(auspex_session_options* options, uint32_t struct_size) {
    return auspex::capi::init(options, struct_size);
}

auspex_code auspex_sampling_init(auspex_sampling* sampling, uint32_t struct_size) {
    return auspex::capi::init(sampling, struct_size);
}

auspex_code auspex_session_create(const auspex_model* model, const auspex_session_options* given,
                                  auspex_session** session, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(session, "session"));
        AUSPEX_C_TRY(need(model, "model"));
        auspex::SessionOptions options;
        AUSPEX_C_TRY(auspex::capi::session_options(given, &options));
        auto made = std::make_unique<auspex_session>();
        made->host = model->host;
        made->model = model->model;
        AUSPEX_C_TRY(auspex::Session::create(model->model, options).get(made->session));
        *session = made.release();
        return Answer();
    });
}

void auspex_session_free(auspex_session* session) {
    if (auspex::capi::is(session)) delete session;
}

void auspex_session_cancel(auspex_session* session) {
    if (!auspex::capi::is(session)) return;
    const std::lock_guard<std::mutex> hold(session->lock);
    if (!session->running) return;
    session->cancelled = true;
    session->session.cancel();
}

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {
namespace {

void write_report(const SyncReport& from, auspex_sync_report* report) {
    auspex_sync_report to = {};
    to.reason = static_cast<int32_t>(from.reason);
    to.rows_computed = from.rows_computed;
    to.rows_reused = from.rows_reused;
    to.diverged_at = from.diverged_at;
    to.checkpoint_row = from.checkpoint_row;
    put_text(from.text, to.text, sizeof to.text);
    write(report, to);
}

void write_file_info(const SessionFile& from, auspex_file_info* info) {
    auspex_file_info to = {};
    to.recovered = from.recovered ? 1 : 0;
    to.n_token = from.n_token;
    to.note_bytes = from.note.size();
    write(info, to);
}

}  // namespace
}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

auspex_code auspex_session_sync(auspex_session* session, const int32_t* ids, size_t n_ids, const auspex_mark* marks,
                                size_t n_marks, auspex_sync_report* report, auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::check_output(report, "auspex_sync_report", false));
        auspex::Span<const auspex::Token> history;
        auspex::Span<const auspex_mark> given;
        AUSPEX_C_TRY(auspex::capi::view(ids, n_ids, &history, "ids"));
        AUSPEX_C_TRY(auspex::capi::view(marks, n_marks, &given, "marks"));
        std::vector<auspex::Mark> wanted;
        for (const auspex_mark& m : given) {
            AUSPEX_C_TRY(auspex::capi::check_range(m.pinned, 0, 1, "auspex_mark.pinned"));
            AUSPEX_C_TRY(auspex::capi::check_range(m.reserved, 0, 0, "auspex_mark.reserved"));
            wanted.push_back({static_cast<size_t>(std::min<uint64_t>(m.row, SIZE_MAX)), m.pinned != 0});
        }
        auspex::SyncReport done;
        AUSPEX_C_TRY(running.session().sync(history, wanted).get(done));
        auspex::capi::write_report(done, report);
        return running.done();
    });
}

auspex_code auspex_session_next(auspex_session* session, const auspex_sampling* given, int32_t* ids, size_t capacity,
                                size_t* n_ids, auspex_error* error) {
    static_assert(AUSPEX_MAX_TOKENS == auspex::kMaxDraft + 1, "a cycle gives the drafts and one more");
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(n_ids, "n_ids"));
        if (ids == nullptr || capacity < AUSPEX_MAX_TOKENS) {
            *n_ids = AUSPEX_MAX_TOKENS;
            return Answer(AUSPEX_BUFFER_TOO_SMALL, "ids has room for " + std::to_string(ids == nullptr ? 0 : capacity) +
                                                       ", expected at least AUSPEX_MAX_TOKENS");
        }
        auspex::Sampling sampling;
        AUSPEX_C_TRY(auspex::capi::sampling(given, &sampling));
        auspex::Span<const auspex::Token> tokens;
        AUSPEX_C_TRY(running.session().next(sampling).get(tokens));
        AUSPEX_C_TRY(auspex::capi::fill(tokens.data(), tokens.size(), ids, capacity, n_ids, 0, "ids"));
        if (running.cancelled())
            return Answer(AUSPEX_CANCELLED, "cancelled during the step, whose tokens are in ids and in the history");
        return Answer();
    });
}

auspex_code auspex_session_logits(auspex_session* session, const float** logits, size_t* n_logits,
                                  auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(logits, "logits"));
        AUSPEX_C_TRY(auspex::capi::need_output(n_logits, "n_logits"));
        auspex::Span<const float> all;
        AUSPEX_C_TRY(running.session().logits().get(all));
        *logits = all.data();
        *n_logits = all.size();
        return running.done();
    });
}

auspex_code auspex_session_score(auspex_session* session, const int32_t* ids, size_t n_ids, auspex_on_row on_row,
                                 void* user, auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        if (on_row == nullptr) return auspex::capi::bad("on_row is null; expected a function");
        auspex::Span<const auspex::Token> all;
        AUSPEX_C_TRY(auspex::capi::view(ids, n_ids, &all, "ids"));
        bool stopped = false;
        const auspex::Status done = running.session().score(all, [&](size_t row, auspex::Span<const float> logits) {
            if (stopped) return;
            stopped = on_row(row, logits.data(), logits.size(), user) != 0;
            if (stopped) running.session().cancel();
        });
        if (!stopped) return done.ok() ? running.done() : Answer(done);
        running.session().cancel(false);
        return Answer(AUSPEX_CANCELLED, "cancelled by on_row");
    });
}

auspex_code auspex_session_history(auspex_session* session, int32_t* ids, size_t capacity, size_t* n_ids,
                                   auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(n_ids, "n_ids"));
        const auspex::Span<const auspex::Token> all = running.session().history();
        return auspex::capi::fill(all.data(), all.size(), ids, capacity, n_ids, 0, "ids");
    });
}

auspex_code auspex_session_set_draft_depth(auspex_session* session, int32_t depth, auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::check_range(depth, -1, int64_t{auspex::kMaxDraft}, "depth"));
        return running.session().set_draft_depth(depth == 0 ? -1 : depth < 0 ? 0 : depth);
    });
}

auspex_code auspex_session_get_stats(auspex_session* session, auspex_stats* stats, auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::check_output(stats, "auspex_stats", true));
        const auspex::Stats from = running.session().stats();
        auspex_stats to = {};
        to.rows_prefilled = from.rows_prefilled;
        to.rows_decoded = from.rows_decoded;
        to.tokens_sampled = from.tokens_sampled;
        to.prefill_s = from.prefill_s;
        to.decode_s = from.decode_s;
        to.memory_bytes = from.memory_bytes;
        for (const uint64_t n : from.drafted) to.drafted += n;
        for (const uint64_t n : from.accepted) to.accepted += n;
        auspex::capi::write(stats, to);
        return Answer();
    });
}

// ------------------------------------------------------------------------------- forking and moving

auspex_code auspex_session_fork(auspex_session* session, auspex_session** fork, auspex_error* error) {
    if (fork != nullptr) *fork = nullptr;  // also where the session is refused
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(fork, "fork"));
        auto made = std::make_unique<auspex_session>();
        made->host = session->host;
        made->model = session->model;
        AUSPEX_C_TRY(running.session().fork().get(made->session));
        *fork = made.release();
        return Answer();
    });
}

auspex_code auspex_session_move_to(auspex_session* session, const auspex_model* model, auspex_sync_report* report,
                                   auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(need(model, "model"));
        AUSPEX_C_TRY(auspex::capi::check_output(report, "auspex_sync_report", false));
        auspex::SyncReport done;
        AUSPEX_C_TRY(running.session().move_to(model->model).get(done));
        session->model = model->model;  // the old one is freed before its memory
        session->host = model->host;
        auspex::capi::write_report(done, report);
        return Answer();
    });
}

// ------------------------------------------------------------------------------- files and snapshots

auspex_code auspex_session_save(auspex_session* session, const char* path, const void* note, size_t n_note,
                                auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_path(path));
        auspex::Span<const std::byte> bytes;
        AUSPEX_C_TRY(auspex::capi::view(static_cast<const std::byte*>(note), n_note, &bytes, "note"));
        return running.session().save(path, bytes).status();
    });
}

auspex_code auspex_session_load(auspex_session* session, const char* path, auspex_file_info* info,
                                auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_path(path));
        AUSPEX_C_TRY(auspex::capi::check_output(info, "auspex_file_info", false));
        auspex::SessionFile file;
        AUSPEX_C_TRY(running.session().load(path).get(file));
        auspex::capi::write_file_info(file, info);
        return Answer();
    });
}

auspex_code auspex_read_session_file(const char* path, auspex_file_info* info, void* note, size_t capacity,
                                     size_t* n_note, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_path(path));
        AUSPEX_C_TRY(auspex::capi::check_output(info, "auspex_file_info", false));
        AUSPEX_C_TRY(auspex::capi::need_output(n_note, "n_note"));
        auspex::SessionFile file;
        AUSPEX_C_TRY(auspex::read_session_file(path).get(file));
        auspex::capi::write_file_info(file, info);
        return auspex::capi::fill(file.note.data(), file.note.size(), static_cast<std::byte*>(note), capacity, n_note,
                                  0, "note");
    });
}

auspex_code auspex_snapshot_take(auspex_session* session, auspex_snapshot** snapshot, auspex_error* error) {
    if (snapshot != nullptr) *snapshot = nullptr;  // also where the session is refused
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(snapshot, "snapshot"));
        auto made = std::make_unique<auspex_snapshot>();
        AUSPEX_C_TRY(running.session().save().get(made->snapshot));
        *snapshot = made.release();
        return Answer();
    });
}

auspex_code auspex_snapshot_from_bytes(const void* bytes, size_t n_bytes, auspex_snapshot** snapshot,
                                       auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(snapshot, "snapshot"));
        auspex::Span<const std::byte> all;
        AUSPEX_C_TRY(auspex::capi::view(static_cast<const std::byte*>(bytes), n_bytes, &all, "bytes"));
        auto made = std::make_unique<auspex_snapshot>();
        made->snapshot.bytes.assign(all.begin(), all.end());
        *snapshot = made.release();
        return Answer();
    });
}

auspex_code auspex_snapshot_bytes(const auspex_snapshot* snapshot, const void** bytes, size_t* n_bytes,
                                  uint64_t* n_token, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(snapshot, "snapshot"));
        AUSPEX_C_TRY(auspex::capi::need_output(bytes, "bytes"));
        AUSPEX_C_TRY(auspex::capi::need_output(n_bytes, "n_bytes"));
        *bytes = snapshot->snapshot.bytes.data();
        *n_bytes = snapshot->snapshot.bytes.size();
        if (n_token != nullptr) *n_token = snapshot->snapshot.n_token;
        return Answer();
    });
}

auspex_code auspex_snapshot_restore(const auspex_snapshot* snapshot, auspex_session* session, auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(need(snapshot, "snapshot"));
        return running.session().restore(snapshot->snapshot);
    });
}

void auspex_snapshot_free(auspex_snapshot* snapshot) {
    if (auspex::capi::is(snapshot)) delete snapshot;
}
