// server/http: HTTP/1.1 over cpp-httplib, as requests and answers that know nothing of it.
//
// Owns    the listening socket, a thread for each connection, and the limits on size and time of a request.
// Thread  handlers run on the connection's thread, many at the same time.
// Tests   tests/test_server_http.py, tests/test_server_stalls.py
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "common.h"

namespace server {

using cli::Status;

/// With ASCII's letters in lower case.
std::string lower(std::string text);

/// Whether a host is this machine and nobody else reaches it: "localhost", or an address that needs no look-up, an IPv6
/// one with or without brackets.
bool is_loopback(std::string host);

struct HttpRequest {
    std::string method, path;                    ///< path: percent-decoded, without the query
    std::map<std::string, std::string> headers;  ///< names in lower case; the first of each name
    std::map<std::string, std::string> query;    ///< the first of each name
    std::string body;                            ///< empty where only the head was read
    std::function<bool()> connected;             ///< false once the client has left
    std::string header(const std::string& name) const;
};

/// Where a streamed answer goes.
class AnswerStream {
  public:
    virtual ~AnswerStream() = default;
    /// False if the client is gone: nothing that follows will arrive.
    virtual bool write(std::string_view bytes) = 0;
    virtual bool connected() = 0;
    /// The client sends nothing more. If it has left, connected() is false soon after the next bytes.
    virtual bool half_closed() = 0;
};

constexpr const char* kJsonType = "application/json; charset=utf-8";

struct HttpAnswer {
    int status = 200;
    std::string type = kJsonType;
    std::string body;
    std::map<std::string, std::string> headers;
    std::function<void(AnswerStream&)> stream;  ///< unless empty: writes the body piece by piece
};

constexpr size_t kMaxHeadBytes = size_t{64} << 10;
/// To read the body, without a pause of HttpOptions::head_seconds; or that, if others need its thread.
constexpr int kBodySeconds = 120;
constexpr int kIdleSeconds = 60;   ///< between two requests of a connection, unless others need its thread
constexpr int kWriteSeconds = 30;  ///< without the client taking anything

struct HttpOptions {
    std::string host = "127.0.0.1";
    int port = 8080;  ///< 0: a free one
    size_t max_body_bytes = size_t{64} << 20;
    size_t max_bodies_bytes = size_t{128} << 20;  ///< of all requests that are read or answered
    int head_seconds = 10;  ///< to the first byte of a connection, and from that of a request to the end of its head
};

class HttpServer {
  public:
    using Handler = std::function<HttpAnswer(const HttpRequest&)>;
    using Refusal = std::function<HttpAnswer(int status, const HttpRequest&, const std::string& why)>;
    /// check     is given the head of each request; an answer with a status other than 0 ends it there.
    /// handle    is given what `check` let pass, with the body.
    /// error     makes the answer to a request that HTTP itself refuses, for instance 413.
    HttpServer(const HttpOptions& options, Handler check, Handler handle, Refusal error);
    ~HttpServer();
    /// Takes the port, and tells which one it is. errors: io_error: it is in use, or the address is none of this host.
    Status bind(int* port);
    /// Serves until stop(); returns once every connection is closed. A connection that cannot be accepted is tried
    /// again.
    /// failed    called if no further connection can be accepted; those that there are go on.
    void listen(const std::function<void(const Status&)>& failed);
    /// thread    any, once bind() has succeeded.
    void stop();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace server
