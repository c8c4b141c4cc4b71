#include "router.h"

#include <algorithm>
#include <cstring>

#include "page.h"
#include "printable.h"

namespace server {

namespace {

HttpAnswer page(Service&, const HttpRequest&) {
    HttpAnswer a;
    a.type = "text/html; charset=utf-8";
    a.body = page_text();
    a.headers["Content-Security-Policy"] =
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";  // which default-src does not cover
    return a;
}

HttpAnswer not_here(Service&, const HttpRequest& r) {
    return failed(not_supported(r.path + " is not available in this server: it runs one language model"));
}

struct Route {
    const char* method;
    const char* path;  ///< ends with '/': what begins with it
    Endpoint endpoint;
    bool is_public = false;
};

const Route kRoutes[] = {
    {"GET", "/", page, true},
    {"GET", "/index.html", page, true},
    {"GET", "/health", health, true},
    {"GET", "/v1/health", health, true},
    {"GET", "/v1/models", models, true},
    {"GET", "/models", models, true},
    {"GET", "/v1/models/", models, true},
    {"GET", "/props", props},
    {"GET", "/metrics", metrics},
    {"GET", "/slots", slots},
    {"POST", "/slots/", slot_action},
    {"POST", "/v1/chat/completions", chat_completions},
    {"POST", "/chat/completions", chat_completions},
    {"POST", "/v1/chat/completions/input_tokens", chat_input_tokens},
    {"POST", "/v1/completions", completions},
    {"POST", "/completions", completions},
    {"POST", "/completion", native_completion},
    {"POST", "/v1/messages", messages},
    {"POST", "/v1/messages/count_tokens", count_tokens},
    {"POST", "/v1/responses", responses},
    {"POST", "/v1/responses/input_tokens", responses_input_tokens},
    {"POST", "/tokenize", tokenize},
    {"POST", "/detokenize", detokenize},
    {"POST", "/apply-template", apply_template},
    {"POST", "/v1/embeddings", not_here},
    {"POST", "/embeddings", not_here},
    {"POST", "/embedding", not_here},
    {"POST", "/rerank", not_here},
    {"POST", "/v1/rerank", not_here},
    {"POST", "/infill", not_here},
    {"GET", "/lora-adapters", not_here},
    {"POST", "/lora-adapters", not_here},
};

bool fits(const Route& route, const std::string& path) {
    const size_t n = std::strlen(route.path);
    if (n > 1 && route.path[n - 1] == '/') return path.size() > n && path.compare(0, n, route.path) == 0;
    return path == route.path;
}

/// HEAD is answered as GET is; the body is left out below.
const Route* find_route(const HttpRequest& r, std::string* allowed) {
    const std::string method = r.method == "HEAD" ? "GET" : r.method;
    for (const Route& route : kRoutes) {
        if (!fits(route, r.path)) continue;
        if (method == route.method) return &route;
        *allowed += std::string(allowed->empty() ? "" : ", ") + route.method;
    }
    return nullptr;
}

/// "http://LocalHost:3000" -> "localhost"; "[::1]:80" -> "[::1]"
std::string host_name(std::string host) {
    const size_t scheme = host.find("://");
    if (scheme != std::string::npos) host = host.substr(scheme + 3);
    const size_t end = !host.empty() && host[0] == '[' ? host.find(']') + 1 : host.find(':');
    return lower(host.substr(0, end));
}

/// Takes the same time wherever the two differ.
bool equal(const std::string& a, const std::string& b) {
    unsigned different = a.size() == b.size() ? 0 : 1;
    for (size_t i = 0; i < a.size(); ++i)
        different |= static_cast<unsigned>(static_cast<unsigned char>(a[i]) ^
                                           static_cast<unsigned char>(b.empty() ? '\0' : b[i % b.size()]));
    return different == 0;
}

bool speaks_anthropic(const std::string& path) { return path.compare(0, 12, "/v1/messages") == 0; }

}  // namespace

/// Pages of this machine, and programs that are no web pages (file and sandboxed pages call themselves "null", as any
/// page can).
bool Router::is_allowed(const std::string& origin) const {
    for (const std::string& o : access_.origins)
        if (o == "*" || o == origin) return true;
    const size_t scheme = origin.find("://");
    if (scheme == std::string::npos) return false;
    const bool web = origin.compare(0, 4, "http") == 0;
    return !web || is_loopback(host_name(origin));
}

/// In either header: clients send a stand-in for a key in the one that their settings do not name.
bool Router::has_key(const HttpRequest& r) const {
    const std::string bearer = r.header("authorization"), prefix = "bearer ";
    const bool is_bearer = lower(bearer.substr(0, prefix.size())) == prefix;
    const std::string given[] = {r.header("x-api-key"), is_bearer ? bearer.substr(prefix.size()) : ""};
    bool found = false;
    for (const std::string& key : access_.keys)
        for (const std::string& one : given) found = equal(one, key) || found;
    return found;
}

HttpAnswer Router::with_cors(const HttpRequest& r, HttpAnswer a) const {
    const std::string origin = r.header("origin");
    if (origin.empty() || !is_allowed(origin)) return a;
    a.headers["Access-Control-Allow-Origin"] = origin;
    a.headers["Access-Control-Allow-Credentials"] = "true";
    a.headers["Vary"] = "Origin";
    return a;
}

HttpAnswer Router::refuse(const HttpRequest& r, const Failure& failure) const {
    const Json body = speaks_anthropic(r.path) ? anthropic_error(failure) : openai_error(failure);
    return with_cors(r, json_answer(body, failure.status));
}

HttpAnswer Router::error(int status, const HttpRequest& r, const std::string& why) const {
    HttpAnswer a = refuse(r, http_failure(status, why));
    if (status == 503) a.headers["Retry-After"] = "1";
    return a;
}

HttpAnswer Router::check(const HttpRequest& r) const {
    const std::string host = r.header("host"), origin = r.header("origin");
    if (access_.is_loopback && !host.empty() && !is_loopback(host_name(host)))
        return refuse(r, http_failure(403, "the request was sent to the host '" + host_name(host) +
                                               "', expected localhost or 127.0.0.1; start the server with --host and "
                                               "--api-key to be used under other names"));
    if (!origin.empty() && !is_allowed(origin))
        return refuse(r, http_failure(403, "web pages of '" + origin +
                                               "' may not use this server; start it with --cors-origin to allow them"));
    if (r.method == "OPTIONS") {
        HttpAnswer a;
        const std::string headers = r.header("access-control-request-headers");
        a.headers["Access-Control-Allow-Methods"] = "GET, POST, OPTIONS";
        a.headers["Access-Control-Allow-Headers"] = headers.empty() ? "*" : headers;
        a.headers["Access-Control-Max-Age"] = "86400";
        return with_cors(r, std::move(a));
    }
    std::string allowed;
    const Route* route = find_route(r, &allowed);
    if (!route && !allowed.empty()) {
        HttpAnswer a = refuse(r, http_failure(405, r.path + " does not take " + r.method + ", expected " + allowed));
        a.headers["Allow"] = allowed;
        return a;
    }
    if (!route) {
        const bool ollama = r.path.compare(0, 5, "/api/") == 0;
        return refuse(r, not_found("there is nothing at " + r.path + "; docs/SERVER.md lists the endpoints" +
                                   (ollama ? ". This server does not speak Ollama's protocol: choose OpenAI's in the "
                                             "client, with a base URL that ends with /v1"
                                           : "")));
    }
    if (!route->is_public && !access_.keys.empty() && !has_key(r))
        return refuse(r, http_failure(401,
                                      "the key is missing or wrong, expected Authorization: Bearer KEY or "
                                      "X-Api-Key: KEY"));
    HttpAnswer pass;
    pass.status = 0;
    return pass;
}

HttpAnswer Router::handle(const HttpRequest& r) {
    std::string allowed;
    const Route* route = find_route(r, &allowed);
    HttpAnswer a = route->endpoint(service_, r);
    if (service_.log_requests)  // a path may contain any byte; each request is one line
        cli::note(r.method + " " + cli::printable(r.path) + " " + std::to_string(a.status));
    return with_cors(r, std::move(a));
}

}  // namespace server
