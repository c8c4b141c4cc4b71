// auspex-server: serves one model to clients of OpenAI's and Anthropic's protocols. docs/SERVER.md is its manual.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <mutex>
#include <thread>

#include "command.h"
#include "end_signal.h"
#include "platform.h"
#include "router.h"
#include "sockets.h"

namespace {

using server::Status;

struct ServeOptions {
    server::HttpOptions http;
    server::EngineOptions engine;
    server::Defaults defaults;
    server::Access access;
    int64_t max_queue = 64;
    std::string alias, key_file, sessions, max_body = "64M";
};

/// from: the option, or a place in the file that it names.
Status check_key(const std::string& key, const std::string& from) {
    const auto bad = std::find_if(key.begin(), key.end(), [](char c) { return c <= ' ' || c > '~' || c == '%'; });
    if (!key.empty() && bad == key.end()) return {};
    std::string found = "nothing";  // a key is a secret: its characters are not shown
    if (!key.empty())
        found = (*bad == ' ' ? "a blank at character " : "another one at character ") +
                std::to_string(bad - key.begin() + 1);
    return Status(cli::Code::bad_argument, from + ": expected letters, digits and signs but %, found " + found);
}

Status read_keys(ServeOptions* o) {
    for (const std::string& key : o->access.keys)
        if (const Status s = check_key(key, "--api-key"); !s.ok()) return s;
    if (!o->key_file.empty()) {
        std::string text;
        Status s = cli::read_document(o->key_file).get(text);
        const size_t n_before = o->access.keys.size();
        for (size_t at = 0, n_line = 1; at < text.size() && s.ok(); ++n_line) {
            const size_t end = std::min(text.find('\n', at), text.size());
            std::string line = text.substr(at, end - at);
            if (!line.empty() && line.back() == '\r') line.pop_back();
            if (!line.empty()) {
                s = check_key(line, "--api-key-file " + o->key_file + ", line " + std::to_string(n_line));
                o->access.keys.push_back(line);
            }
            at = end + 1;
        }
        if (!s.ok()) return s;
        if (o->access.keys.size() == n_before)
            return Status(cli::Code::bad_argument,
                          "--api-key-file " + o->key_file + ": the file holds no key, expected one in a line");
    }
    if (o->access.is_loopback || !o->access.keys.empty()) return {};
    return Status(cli::Code::bad_argument, "--host " + o->http.host +
                                               ": other machines can use this address, so give "
                                               "--api-key or --api-key-file too");
}

/// Brings each --cors-origin into the form that browsers send: scheme, host and port in lower case, without a port that
/// the scheme implies and without a path; or "null". Names one that no page can have.
Status read_origins(std::vector<std::string>* origins) {
    for (std::string& o : *origins) {
        const size_t host = o.find("://");
        const bool is_ascii = std::all_of(o.begin(), o.end(), [](char c) { return c > ' ' && c <= '~'; });
        if (!is_ascii)
            return Status(cli::Code::bad_argument, "--cors-origin " + o +
                                                       ": expected letters, digits and signs without accents; browsers "
                                                       "send other names in the form xn--...");
        const bool is_origin = host != std::string::npos && host > 0 && host + 3 < o.size() &&
                               o.find_first_of("/?#*@", host + 3) == std::string::npos;
        if (o != "*" && o != "null" && !is_origin)
            return Status(cli::Code::bad_argument, "--cors-origin " + o +
                                                       ": expected a scheme, a host and maybe a port, as in "
                                                       "https://example.org, without a path; or * for all");
        o = server::lower(o);
        for (const auto& [scheme, port] : {std::pair("http://", ":80"), std::pair("https://", ":443")}) {
            const size_t n = std::strlen(port);
            const bool implied = o.rfind(scheme, 0) == 0 && o.size() > n && o.compare(o.size() - n, n, port) == 0;
            if (implied) o.resize(o.size() - n);
        }
    }
    return {};
}

/// Takes the brackets off an IPv6 address, as in a URL, and refuses a name that nobody knows.
Status read_host(std::string* host) {
    if (host->size() > 2 && host->front() == '[' && host->back() == ']') *host = host->substr(1, host->size() - 2);
    addrinfo* found = nullptr;
    const int error = ::getaddrinfo(host->c_str(), nullptr, nullptr, &found);
    if (error == 0) ::freeaddrinfo(found);
    if (error == 0) return {};
    return Status(cli::Code::bad_argument, "--host " + *host + ": no address of this name was found (" +
                                               server::lookup_error(error) + "); give an address of this machine");
}

/// The first option whose number is outside its range.
Status check_numbers(const ServeOptions& o) {
    const server::Defaults& d = o.defaults;
    const struct {
        const char* name;
        double value, low, high;
    } all[] = {
        {"--port", double(o.http.port), 0, 65535},          {"--queue", double(o.max_queue), 0, 100000},
        {"--turn-ms", double(o.engine.turn_ms), 0, 3600e3}, {"--head-seconds", double(o.http.head_seconds), 1, 3600},
        {"--temp", d.temperature.value_or(0), 0, 100},      {"--top-k", double(d.top_k.value_or(0)), 0, 1e6},
        {"--top-p", d.top_p.value_or(1), 1e-6, 1},          {"--min-p", d.min_p.value_or(0), 0, 1},
    };
    for (const auto& one : all) {
        if (one.value >= one.low && one.value <= one.high) continue;
        char text[120];
        std::snprintf(text, sizeof text, "%s %.7g: expected %.7g .. %.7g", one.name, one.value, one.low, one.high);
        return Status(cli::Code::bad_argument, text);
    }
    return {};
}

Status check(ServeOptions* o) {
    Status s = check_numbers(*o);
    if (s.ok()) s = read_host(&o->http.host);
    if (!s.ok()) return s;
    o->access.is_loopback = server::is_loopback(o->http.host);
    o->engine.max_queue = static_cast<size_t>(o->max_queue);
    uint64_t bytes = 0;
    s = cli::read_size(o->max_body, "--max-body").get(bytes);
    o->http.max_body_bytes = static_cast<size_t>(std::min<uint64_t>(bytes, SIZE_MAX / 2));
    o->http.max_bodies_bytes = std::max<size_t>(2 * o->http.max_body_bytes, size_t{64} << 20);
    std::error_code error;
    if (s.ok() && !o->sessions.empty() && !std::filesystem::is_directory(cli::native_path(o->sessions), error))
        s = Status(cli::Code::not_found,
                   "--slot-save-path " + o->sessions + ": there is no such folder; create it first");
    if (s.ok()) s = read_origins(&o->access.origins);
    return s.ok() ? read_keys(o) : s;
}

/// What clients call the model: the name of its file without the ending.
std::string name_of(const std::string& path) { return cli::utf8_path(cli::native_path(path).stem()); }

/// Refuses a file that cannot be served, and options that do not fit it, before anybody is told a URL.
Status learn_of_model(const cli::PlaceOptions& place, server::Engine* engine, server::Service* to) {
    std::string path;
    Status s = cli::find_model(place.model).get(path);
    auspex::FileInfo file;
    auspex::LoadOptions options;
    options.mtp_file = place.mtp_file;
    if (s.ok()) s = auspex::read_file_info(path.c_str(), options).get(file);
    if (s.ok()) s = file.plan_status;
    if (s.ok()) s = engine->prepare(file.model);
    if (!s.ok()) return s;
    if (to->alias.empty()) to->alias = name_of(path);
    server::complete_defaults(file.metadata, &to->defaults);
    for (const auspex::FileValue& v : file.metadata)
        if (v.key == "tokenizer.chat_template" && !v.elements.empty()) to->chat_template = v.elements[0];
    return {};
}

/// Tells on stderr what is served, and that the demo model is, where none was named.
void tell_ready(const server::Engine& engine, const std::string& alias, const std::string& named) {
    if (named.empty()) cli::note("no model was named: serving the demo model, " + engine.path() + "; choose one by -m");
    cli::note("'" + alias + "' is ready: " + std::to_string(engine.n_context()) + " rows of context on " +
              engine.device_name());
}

/// For connections to end once the engine has: less than the 10 s after which Docker kills what it stops.
constexpr std::chrono::seconds kClosingTime{8};

/// Serves until it is ended.
int serve(ServeOptions o) {
    Status s = check(&o);
    if (!s.ok()) return cli::report(s);
    server::EndSignal end;
    server::prepare_process();

    server::Engine engine(o.engine);
    server::Service service(engine);
    service.alias = o.alias;
    service.defaults = o.defaults;
    service.sessions = o.sessions;
    service.log_requests = o.engine.place.verbose;
    s = learn_of_model(o.engine.place, &engine, &service);
    if (!s.ok()) return cli::report(s);
    server::Router router(service, o.access);
    server::HttpServer http(
        o.http, [&](const server::HttpRequest& r) { return router.check(r); },
        [&](const server::HttpRequest& r) { return router.handle(r); },
        [&](int status, const server::HttpRequest& r, const std::string& why) { return router.error(status, r, why); });
    int port = 0;
    s = http.bind(&port);
    if (!s.ok()) return cli::report(s);
    const std::string host = o.http.host.find(':') == std::string::npos ? o.http.host : "[" + o.http.host + "]";
    s = cli::print("http://" + host + ":" + std::to_string(port) + "\n");
    if (!s.ok()) return cli::report(s);
    std::mutex mutex;
    Status failure;  // the first one, of the engine or the listener
    const auto end_with = [&](const Status& why) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (failure.ok()) failure = why;
        end.set();
    };
    std::thread listener([&] { http.listen(end_with); });
    engine.start([&](const Status& loaded) {
        if (loaded.ok())
            tell_ready(engine, service.alias, o.engine.place.model);
        else
            end_with(loaded);
    });
    const bool is_asked = end.wait();
    const Status stopped = engine.stop();
    int code = 0;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        code = cli::report(is_asked ? stopped : failure);
    }
    // The thread of a connection may compute for minutes, or write to a stderr that nobody reads.
    std::promise<void> closed;
    std::thread deadline([&] {
        if (closed.get_future().wait_for(kClosingTime) != std::future_status::ready) server::end_process(code);
    });
    http.stop();
    listener.join();
    closed.set_value();
    deadline.join();
    return code;
}

void add_options(CLI::App& app, ServeOptions& o) {
    app.add_option("--host", o.http.host, "Address to listen on; one that other machines can use needs --api-key")
        ->capture_default_str();
    app.add_option("--port", o.http.port, "Port; 0: a free one. The first line on stdout is the URL")
        ->capture_default_str();
    app.add_option("--api-key", o.access.keys, "A key that clients must give; may be given several times")
        ->allow_extra_args(false);
    app.add_option("--api-key-file", o.key_file, "File with such keys, one in a line");
    app.add_option("--cors-origin", o.access.origins,
                   "Web pages that may use the server beside those of this machine, as in https://example.org; * for "
                   "all")
        ->allow_extra_args(false);
    app.add_option("--alias", o.alias, "The model's name for clients (default: the name of its file)");
    app.add_option("--ctx", o.engine.n_context, "Rows of context (default: 32768, or what the model was trained for)");
    app.add_option("--cache", o.engine.cache,
                   "Memory for checkpoints of conversations, as in 2G; 0: none (default: an eighth of the free memory, "
                   "512M to 8G, "
                   "or what the context can use)");
    app.add_option("--queue", o.max_queue, "Requests that may wait")->capture_default_str();
    app.add_option("--turn-ms", o.engine.turn_ms,
                   "How long one request may go on while others wait, in milliseconds; longer where a change takes "
                   "long; 0: until it is complete")
        ->capture_default_str();
    app.add_option("--slot-save-path", o.sessions, "Folder for /slots/0?action=save and restore");
    app.add_option("--head-seconds", o.http.head_seconds,
                   "Time for a client to send the head of a request, and longest pause in its body")
        ->capture_default_str();
    app.add_option("--max-body", o.max_body, "Size limit of a request")->capture_default_str();
    CLI::Option* const think =
        cli::add_switch(app, "--think", true, o.defaults.enable_thinking,
                        "Ask the template for answers with thinking, unless the client wants none");
    cli::add_switch(app, "--no-think", false, o.defaults.enable_thinking,
                    "Ask the template for answers without thinking, unless the client wants it")
        ->excludes(think);
    cli::add_switch(app, "--preserve-thinking", true, o.defaults.preserve_thinking,
                    "Show the model the thinking of earlier turns, if its template can");
    app.add_option("--script", o.engine.script,
                   "For testing clients: a JSON list of {when, reply}; the reply whose `when` stands last in a prompt "
                   "is given instead of the model's own");
}

}  // namespace

int main(int argc, char** argv) {
    cli::prepare_streams();
    CLI::App app("auspex-server " AUSPEX_VERSION
                 ": serves a model on this machine to clients of OpenAI's and Anthropic's protocols",
                 "auspex-server");
    app.set_version_flag("--version", "auspex-server " AUSPEX_VERSION);
    app.footer("Exit codes: 0 ended by Ctrl-C or SIGTERM, 1 failed at run time, 2 bad arguments or files.");
    ServeOptions o;
    cli::add_place(app, o.engine.place);
    cli::add_draft(app, o.engine.draft);
    cli::add_window(app, o.engine.window);
    add_options(app, o);
    app.add_option("--temp", o.defaults.temperature, "Temperature unless the client names one");
    app.add_option("--top-k", o.defaults.top_k, "The same for top-k");
    app.add_option("--top-p", o.defaults.top_p, "The same for top-p");
    app.add_option("--min-p", o.defaults.min_p, "The same for min-p");
    return cli::run_command(app, cli::utf8_arguments(argc, argv), [&] { return serve(o); });
}
