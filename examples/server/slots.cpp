// server/slots: the one slot, and saving it to a file.
//
// Tests   tests/test_server_slots.py
#include <cctype>
#include <filesystem>
#include <fstream>

#include "service.h"

namespace server {

namespace {

/// Work on the session that somebody waits for.
class SlotTask final : public Task {
  public:
    explicit SlotTask(std::function<Status(auspex::Session&)> work) : work_(std::move(work)) {}
    bool run(Worker& worker) override {
        ++worker.n_replaced;
        Status s = worker.call([&] { return work_(worker.session); });
        s.text = cli::with_options(s.text);  // no field of a request, but of the server's start
        if (s.ok())
            end({});
        else
            fail(from_status(s));
        return true;
    }
    void fail(const Failure& failure) override { end(failure); }
    /// Waits a little. True once it has run, or will not.
    bool wait(Failure* failure) {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait_for(lock, kPoll, [this] { return complete_; });
        *failure = failure_;
        return complete_;
    }

  private:
    void end(const Failure& failure) {
        const std::lock_guard<std::mutex> lock(mutex_);
        failure_ = failure;
        complete_ = true;
        changed_.notify_all();
    }
    const std::function<Status(auspex::Session&)> work_;
    std::mutex mutex_;
    std::condition_variable changed_;
    Failure failure_;
    bool complete_ = false;
};

/// Runs the work on the engine's thread. A client that leaves before it has begun no longer wants it; from then on its
/// end is awaited, because it uses what its caller holds.
Failure run(Service& s, const HttpRequest& r, std::function<Status(auspex::Session&)> work) {
    const auto task = std::make_shared<SlotTask>(std::move(work));
    Failure failure = s.engine.submit(task);
    if (!failure.ok()) return failure;
    while (!task->wait(&failure))
        if (!r.connected() && s.engine.cancel(task)) return unavailable(kLeft);
    return failure;
}

/// A plain name in the folder for sessions: no path, no hidden file.
Failure read_filename(Service& s, const HttpRequest& r, std::string* path) {
    if (s.sessions.empty())
        return not_supported("slots cannot be saved: start the server with --slot-save-path FOLDER");
    Json body;
    Failure failure = parse_body(r.body, &body);
    if (!failure.ok()) return failure;
    std::string name;
    const Fields fields(body, "", &failure);
    if (!fields.text("filename", &name)) fields.refuse("filename", "a string");
    if (!failure.ok()) return failure;
    bool plain = !name.empty() && name.size() <= 128 && name[0] != '.';
    for (const char c : name)
        plain = plain && (std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_');
    if (!plain)
        return bad_request("filename is '" + name +
                           "', expected 1 to 128 letters, digits, '.', '-' and '_', beginning with no '.'");
    *path = s.sessions + "/" + name;
    return {};
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

/// The folder may hold files of the user, even the model that is served: saving replaces nothing but saved
/// conversations, damaged ones included.
Failure check_replaceable(const std::string& path) {
    constexpr std::string_view kMagic = "auspexL1";  // of Session::save()
    std::error_code unknown;
    if (!std::filesystem::exists(path, unknown)) return {};
    char head[kMagic.size()] = {};
    std::ifstream(path, std::ios::binary).read(head, sizeof head);
    if (std::string_view(head, sizeof head) == kMagic) return {};
    return bad_request("'" + name_of(path) + "' is no saved conversation; choose another name");
}

// A saved conversation has a note beside its rows: the thinking before its calls, which clients do not send back, by
// the id of the first call of each message: {"auspex_server": 1, "thoughts": {ID: TEXT, ...}}
constexpr const char *kNoteForm = "auspex_server", *kThoughts = "thoughts";

/// Empty if the server keeps no thinking of this conversation. That of others is none of its file.
Result<std::string> write_note(const Service& s, const auspex::Session& session) {
    std::string text;
    const Status decoded = s.engine.model().decode(session.history(), {true}).get(text);
    if (!decoded.ok()) return decoded;
    const Json thoughts = s.thoughts.select(
        [&](const Json& one) { return one.is_string() && text.find(one.get<std::string>()) != std::string::npos; });
    return thoughts.empty() ? std::string() : dump({{kNoteForm, 1}, {kThoughts, thoughts}});
}

/// What another program has noted, such as `auspex chat`, is not the server's.
void read_note(const std::string& note, const std::string& name, Service* s) {
    Json all;
    if (!parse_json(note, &all) || !all.is_object() || !all.contains(kNoteForm)) return;
    const Json thoughts = all.value(kThoughts, Json());
    bool valid = all[kNoteForm] == 1 && thoughts.is_object();
    for (const Json& one : thoughts) valid = valid && one.is_string();
    if (!valid)
        return cli::note("the thinking before the calls in '" + name +
                         "' cannot be read: its note is of another version, or no text by the id of a call");
    for (const auto& one : thoughts.items()) s->thoughts.add(one.key(), one.value());
}

Failure save(Service& s, const HttpRequest& r, Json* to) {
    std::string path;
    Failure failure = read_filename(s, r, &path);
    if (failure.ok()) failure = check_replaceable(path);
    if (!failure.ok()) return failure;
    const double start = cli::now();
    size_t n_saved = 0;
    auspex::SaveReport report;
    failure = run(s, r, [&](auspex::Session& session) {
        n_saved = session.history().size();
        std::string note;
        const Status noted = write_note(s, session).get(note);
        if (!noted.ok()) return noted;
        const Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(note.data()), note.size());
        return session.save(path.c_str(), bytes).get(report);
    });
    (*to)["filename"] = name_of(path);
    (*to)["n_saved"] = n_saved;
    (*to)["n_written"] = report.written_bytes;
    (*to)["timings"] = {{"save_ms", (cli::now() - start) * 1e3}};
    return failure;
}

Failure restore(Service& s, const HttpRequest& r, Json* to) {
    std::string path;
    Failure failure = read_filename(s, r, &path);
    if (!failure.ok()) return failure;
    const double start = cli::now();
    auspex::SessionFile file;
    failure = run(s, r, [&](auspex::Session& session) { return session.load(path.c_str()).get(file); });
    (*to)["filename"] = name_of(path);
    if (failure.ok()) read_note({reinterpret_cast<const char*>(file.note.data()), file.note.size()}, name_of(path), &s);
    (*to)["n_restored"] = file.n_token;
    std::error_code unknown;
    (*to)["n_read"] = failure.ok() ? std::filesystem::file_size(path, unknown) : 0;
    (*to)["timings"] = {{"restore_ms", (cli::now() - start) * 1e3}};
    return failure;
}

Failure erase(Service& s, const HttpRequest& r, Json* to) {
    size_t n_erased = 0;
    const Failure failure = run(s, r, [&](auspex::Session& session) {
        n_erased = session.history().size();
        return session.sync({}).status();
    });
    (*to)["n_erased"] = n_erased;
    return failure;
}

}  // namespace

HttpAnswer slots(Service& s, const HttpRequest& r) {
    const Failure failure = s.engine.check();
    if (!failure.ok()) return failed(failure);
    const Counters c = s.engine.counters();
    const auto wanted = r.query.find("fail_on_no_slot");
    if (c.is_busy && wanted != r.query.end() && wanted->second == "1")
        return failed(unavailable("the slot is busy with another request"));
    const Json slot = {{"id", 0},
                       {"id_task", c.n_task},
                       {"n_ctx", s.engine.n_context()},
                       {"speculative", s.engine.session_options().draft.source != auspex::Draft::off},
                       {"is_processing", c.is_busy},
                       {"params", Json::object()},
                       {"n_history", c.n_history},
                       {"next_token", Json::array({{{"n_decoded", c.n_token}}})}};
    return json_answer(Json::array({slot}));
}

HttpAnswer slot_action(Service& s, const HttpRequest& r) {
    const std::string prefix = "/slots/";
    if (r.path.substr(prefix.size()) != "0")
        return failed(not_found("there is no slot " + r.path.substr(prefix.size()) + ", only slot 0"));
    const auto found = r.query.find("action");
    const std::string action = found == r.query.end() ? "" : found->second;
    Json answer = {{"id_slot", 0}};
    Failure failure = s.engine.check();
    if (!failure.ok()) return failed(failure);
    if (action == "save")
        failure = save(s, r, &answer);
    else if (action == "restore")
        failure = restore(s, r, &answer);
    else if (action == "erase")
        failure = erase(s, r, &answer);
    else
        failure = bad_request("action is '" + action + "', expected save, restore or erase");
    return failure.ok() ? json_answer(answer) : failed(failure);
}

}  // namespace server
