#include "session.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "platform.h"
#include "printable.h"

namespace cli {

namespace {

/// The arguments are a text, as in OpenAI's requests: a number in it stays as the model wrote it.
nlohmann::ordered_json call_json(const auspex::ToolCall& call) {
    std::string arguments;
    for (const auspex::ToolArgument& a : call.arguments)
        arguments +=
            (arguments.empty() ? "" : ", ") + json_line(a.name) + ": " + (a.json ? a.value : json_line(a.value));
    return {{"function", {{"name", call.name}, {"arguments", "{" + arguments + "}"}}}};
}

nlohmann::ordered_json messages_json(const Messages& messages) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const auspex::ChatMessage& m : messages) {
        nlohmann::ordered_json one = {{"role", m.role}, {"content", m.content}};
        if (m.has_reasoning) one["reasoning_content"] = m.reasoning;
        for (const auspex::ToolCall& call : m.tool_calls) one["tool_calls"].push_back(call_json(call));
        all.push_back(one);
    }
    return all;
}

}  // namespace

void add_session(CLI::App& command, SessionFlag& o) {
    command.add_option("--session", o.path,
                       "Continue the conversation in this file and save it there; a new one if there is no such file");
}

/// Refuses a file that cannot be saved before any text is generated. Saving may write a file with a longer name first
/// and rename it, so that one is tried. A link is not: saving follows it.
static Status check_writable(const std::string& path) {
    std::error_code error;
    if (std::filesystem::is_symlink(native_path(path), error)) return {};
    const std::string name = path + ".000000000.tmp";
    std::FILE* f = open_stream(name, "wb");
    if (!f) return Status(Code::io_error, "--session " + path + ": it cannot be written: " + std::strerror(errno));
    std::fclose(f);
    std::filesystem::remove(native_path(name), error);
    return {};
}

/// The smallest value if there is no such file.
static std::filesystem::file_time_type time_written(const std::string& path) {
    std::error_code error;
    return std::filesystem::last_write_time(native_path(path), error);
}

Status find_session(SessionFlag* o) {
    if (o->path.empty()) return {};
    if (const Status s = check_output(o->path, "--session"); !s.ok()) return s;
    std::error_code error;
    if (names_device(o->path) || std::filesystem::is_directory(native_path(o->path), error))
        return Status(Code::bad_argument,
                      "--session " + o->path + ": this is a folder, a device or a pipe, expected a regular file");
    const std::filesystem::path folder = native_path(o->path).parent_path();
    if (!folder.empty() && !std::filesystem::is_directory(folder, error))
        return Status(Code::not_found, "--session " + o->path + ": the folder '" + utf8_path(folder) +
                                           "' does not exist; create it first");
    const Status s = read_session(o);
    return s.ok() ? check_writable(o->path) : s;
}

Status read_session(SessionFlag* o) {
    if (o->path.empty()) return {};
    std::error_code error;
    o->exists = std::filesystem::exists(native_path(o->path), error);
    o->written = time_written(o->path);
    o->file = auspex::SessionFile();
    return o->exists ? auspex::read_session_file(o->path.c_str()).get(o->file) : Status();
}

Status load_session(SessionFlag* o, bool verbose, auspex::Session& session) {
    if (!o->exists) return {};
    o->written = time_written(o->path);  // before it is read: a save that comes between is told of
    const Status s = session.load(o->path.c_str()).get(o->file);
    if (!s.ok()) return s;
    if (o->file.recovered)
        note("the last save to '" + o->path + "' was cut short; the conversation goes on from the save before it");
    if (verbose || stderr_is_terminal())
        std::fprintf(stderr, "[continues %s: %zu tokens]\n", printable(o->path).c_str(), o->file.n_token);
    return {};
}

Status save_session(SessionFlag* o, bool verbose, const std::string& said, const auspex::Session& session,
                    auspex::SaveReport* report) {
    if (o->path.empty()) return {};
    const std::filesystem::file_time_type written = time_written(o->path);
    if (written != o->written && written != std::filesystem::file_time_type::min())
        note("another program has saved to '" + o->path + "' meanwhile; its conversation is replaced by this one");
    const Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(said.data()), said.size());
    const Result<auspex::SaveReport> saved = session.save(o->path.c_str(), bytes);
    if (!saved.ok()) return saved.status();
    o->written = time_written(o->path);
    if (report) *report = saved.value();
    if (verbose)
        std::fprintf(stderr, "[%s %s: %.1f of %.1f MiB]\n", saved.value().appended ? "appended to" : "saved",
                     printable(o->path).c_str(), double(saved.value().written_bytes) / (1 << 20),
                     double(saved.value().file_bytes) / (1 << 20));
    return {};
}

std::string chat_note(const auspex::ChatRequest& request, const Branches& branches, uint64_t n_retry) {
    nlohmann::ordered_json all;
    all["auspex_chat"] = 1;
    if (request.enable_thinking) all["enable_thinking"] = *request.enable_thinking;
    if (request.preserve_thinking) all["preserve_thinking"] = *request.preserve_thinking;
    if (n_retry != 0) all["retries"] = n_retry;
    all["messages"] = messages_json(request.messages);
    for (const Messages& other : branches.others()) all["branches"].push_back({{"messages", messages_json(other)}});
    return json_line(all);
}

Status read_chat_note(const SessionFlag& o, auspex::ChatRequest* request, Branches* branches, uint64_t* n_retry) {
    const std::string text(reinterpret_cast<const char*>(o.file.note.data()), o.file.note.size());
    const nlohmann::json all = nlohmann::json::parse(text, nullptr, false);
    std::vector<std::string> tools = std::move(request->tools);  // from --tools: a note holds none
    Status s = auspex::ChatRequest::from_json(text).get(*request);
    request->tools = std::move(tools);
    std::vector<Messages> others;
    if (s.ok() && all.contains("branches"))
        for (const nlohmann::json& one : all["branches"]) {
            auspex::ChatRequest other;
            if (s.ok()) s = auspex::ChatRequest::from_json(one.dump()).get(other);
            others.push_back(std::move(other.messages));
        }
    branches->set_others(std::move(others));
    if (s.ok() && all.contains("retries") && all["retries"].is_number_unsigned()) *n_retry = all["retries"];
    if (s.ok() && all.contains("auspex_chat")) return {};
    return Status(Code::bad_argument, "'" + o.path +
                                          "' holds no chat; continue a text with `auspex run --session`, or "
                                          "name another file");
}

}  // namespace cli
