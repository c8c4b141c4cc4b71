#include "http.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <new>
#include <sstream>
#include <thread>

#include "connection.h"
#include "decoder.h"
#include "httplib_server.h"

namespace server {

namespace {

constexpr size_t kMaxThreads = 1024;
constexpr size_t kMaxPathBytes = 1024;
constexpr int kAcceptPauseMs = 100;        ///< after the system could not give a connection
constexpr double kAcceptNoteSeconds = 60;  ///< at least, between two notes about that

/// The connection that this thread serves: cpp-httplib does not give it to the handlers.
thread_local Connection* t_connection = nullptr;

/// A thread for each connection: one that streams holds its thread for minutes, and must not keep others waiting.
/// Where all are taken an idle connection ends for one that waits; `crowd` counts these.
class Threads {
  public:
    explicit Threads(const Event& crowd) : crowd_(crowd) {}
    /// thread    the one that accepts connections
    void add(std::function<void()> task) {
        std::unique_lock<std::mutex> lock(mutex_);
        waiting_.push_back(std::move(task));
        if (live_.size() >= kMaxThreads) return crowd_.add();
        const Place place = live_.emplace(live_.end());
        lock.unlock();  // starting a thread is slow, and those that end need the lock
        std::thread started;
        try {
            started = std::thread([this, place] { work(place); });
        } catch (const std::system_error&) {  // the system has no thread left
        }
        lock.lock();
        if (started.joinable()) {
            *place = std::move(started);
            stored_.notify_all();
            return;
        }
        live_.erase(place);
        if (!live_.empty()) return crowd_.add();  // another thread takes the task
        take_tasks(lock);
    }
    /// An idle connection ends for one that cannot be accepted. A request of this kind is withdrawn once one was.
    void ask_for_room() {
        if (!crowd_.is_set()) crowd_.add();
    }
    /// Returns once all have ended.
    void wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return live_.empty(); });
        lock.unlock();
        for (std::thread& t : ended_) t.join();
    }

  private:
    using Place = std::list<std::thread>::iterator;

    /// A thread that ends joins those that ended before it: they only have to return. Detached ones can come to share
    /// thread_local storage under MinGW.
    void work(Place place) {
        std::unique_lock<std::mutex> lock(mutex_);
        take_tasks(lock);
        stored_.wait(lock, [place] { return place->joinable(); });
        std::list<std::thread> before;
        before.swap(ended_);
        lock.unlock();
        for (std::thread& t : before) t.join();
        lock.lock();
        ended_.splice(ended_.end(), live_, place);
        done_.notify_all();
    }

    void take_tasks(std::unique_lock<std::mutex>& lock) {
        while (!waiting_.empty()) {
            const std::function<void()> task = std::move(waiting_.front());
            waiting_.pop_front();
            while (waiting_.empty() && crowd_.take()) {  // no connection has to make room any more
            }
            lock.unlock();
            task();
            lock.lock();
        }
    }

    const Event& crowd_;
    std::mutex mutex_;
    std::condition_variable stored_, done_;
    std::deque<std::function<void()>> waiting_;
    std::list<std::thread> live_, ended_;
};

class SinkStream final : public AnswerStream {
  public:
    explicit SinkStream(httplib::DataSink& sink) : sink_(sink) {}
    bool write(std::string_view bytes) override { return bytes.empty() || sink_.write(bytes.data(), bytes.size()); }
    bool connected() override { return !t_connection->gone(); }
    bool half_closed() override { return t_connection->half_closed(); }

  private:
    httplib::DataSink& sink_;
};

/// What the body of one request takes of the bytes that all bodies may have.
class BodyShare {
  public:
    BodyShare(std::atomic<size_t>& all, size_t max_all) : all_(all), max_all_(max_all) {}
    ~BodyShare() { all_ -= n_; }
    BodyShare(const BodyShare&) = delete;
    BodyShare& operator=(const BodyShare&) = delete;
    /// False if they are taken.
    bool take(size_t n) {
        n_ += n;
        return (all_ += n) <= max_all_;
    }

  private:
    std::atomic<size_t>& all_;
    const size_t max_all_;
    size_t n_ = 0;
};

bool is_number(const std::string& text) {
    return !text.empty() && text.size() <= 18 && text.find_first_not_of("0123456789") == std::string::npos;
}

bool is_printable(const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

}  // namespace

struct HttpServer::Impl final : HttplibServer {
    HttpOptions options;
    HttpServer::Handler check, handle;
    HttpServer::Refusal error;
    Event stop, crowd;
    Socket listening = kNoSocket;
    Threads threads{crowd};
    std::atomic<int> n_answering{0};  ///< requests whose head was read and whose answer is not complete
    std::atomic<size_t> n_bodies{0};  ///< bytes of the bodies that are held

    /// The socket that cpp-httplib has bound, made ready for take_connections().
    void begin_listening() {
        listening = svr_sock_;
        prepare(listening);
        // cpp-httplib lets five connections wait, which a page or an agent exceeds; more time out before they are
        // accepted.
        ::listen(listening, SOMAXCONN);
    }

    /// cpp-httplib breaks off streams that still run.
    void end_streams() { svr_sock_ = INVALID_SOCKET; }

    /// Until the server stops. cpp-httplib's own loop would end with the first connection that cannot be accepted, as
    /// when the system has no descriptor or no memory left for it. errors: io_error: the socket cannot be used.
    Status take_connections() {
        using Failure = Accepted::Failure;
        for (double next_note = 0;;) {
            pollfd fds[2] = {{listening, POLLIN, 0}, {stop.socket(), POLLIN, 0}};
            poll_for(fds, 2, -1);
            if (fds[1].revents != 0) return {};
            const Accepted a = accept_one(listening);
            if (a.socket != kNoSocket) {
                threads.add([this, s = a.socket] { process_and_close_socket(s); });
                continue;
            }
            if (a.failure == Failure::nobody_waits) continue;
            if (a.failure == Failure::broken)
                return Status(cli::Code::io_error, "no connection can be accepted any more: " + a.why);
            if (a.failure == Failure::no_room) threads.ask_for_room();
            if (cli::now() >= next_note) {
                cli::note("cannot accept a connection now, trying again: " + a.why);
                next_note = cli::now() + kAcceptNoteSeconds;
            }
            poll_for(fds + 1, 1, kAcceptPauseMs);
        }
    }

    bool process_and_close_socket(socket_t fd) override {
        Connection c(fd, stop, crowd, options);
        t_connection = &c;
        while (!c.closing && c.wait_for_request() && c.read_head()) {
            RequestLineStream stream(c.head().first_line, c.socket(),
                                     [&c](const char* from, size_t n) { return c.write(from, n); });
            c.closing = true;  // what follows a first line that is refused is no request
            const EndHead end_head = [&](httplib::Request& r) {
                const Head& h = c.head();
                c.closing = r.version == "HTTP/1.0" || wants_close(h);  // in 1.0 a stream ends with the connection
                ++n_answering;
                c.encoding = lower(h.joined("content-encoding"));
                c.waits = lower(h.joined("expect")) == "100-continue";
                c.end_head(lower(h.joined("transfer-encoding")) == "chunked" && h.count("content-length") == 0,
                           r.version != "HTTP/1.0");
            };
            const bool goes_on = process_one(*this, stream, end_head);
            if (!c.in_head()) --n_answering;
            if (!goes_on) break;
        }
        if (c.in_head() && c.refusal().status != 0) refuse(c);
        return true;
    }

    /// "close" may be one of several options.
    static bool wants_close(const Head& h) {
        std::istringstream options(lower(h.joined("connection")));
        for (std::string one; std::getline(options >> std::ws, one, ',');)
            if (one.substr(0, one.find_last_not_of(" \t") + 1) == "close") return true;
        return false;
    }

    static const char* phrase(int status) {
        switch (status) {
            case 408: return "Request Timeout";
            case 414: return "URI Too Long";
            case 431: return "Request Header Fields Too Large";
            case 503: return "Service Unavailable";
            default: return "Bad Request";
        }
    }

    /// Tells a client why its head was not read to its end.
    void refuse(Connection& c) const {
        const int status = c.refusal().status;
        const std::string body = error(status, {}, c.refusal().why).body;
        const std::string answer =
            "HTTP/1.1 " + std::to_string(status) + " " + phrase(status) + "\r\nContent-Type: " + kJsonType +
            "\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
        c.write(answer.data(), answer.size());
    }

    /// "http://host:port/path" is the path of that host, whatever the header Host says (RFC 9112, 3.2.2).
    static void take_absolute(const std::string& target, HttpRequest* to) {
        const std::string scheme = lower(target.substr(0, target.find("://") + 1));
        if (scheme != "http:" && scheme != "https:") return;
        const size_t host = scheme.size() + 2, end = std::min(target.find_first_of("/?", host), target.size());
        if (end == host || to->path.compare(0, end, target, 0, end) != 0) return;  // a host has no escapes
        to->headers["host"] = target.substr(host, end - host);
        to->path.erase(0, end);
        if (to->path.empty()) to->path = "/";
    }

    static HttpRequest head(const httplib::Request& from) {
        HttpRequest to;
        to.method = from.method;
        to.path = from.path;
        for (const auto& h : t_connection->head().headers)
            if (h.first != "transfer-encoding" || !t_connection->chunked()) to.headers.insert(h);
        for (const auto& p : from.params) to.query.emplace(p.first, p.second);
        take_absolute(from.target, &to);
        to.connected = [c = t_connection] { return c->awaited(); };
        return to;
    }

    static void give(HttpAnswer answer, const httplib::Request& from, httplib::Response& to) {
        to.status = answer.status;
        for (const auto& h : answer.headers)
            if (is_printable(h.second)) to.set_header(h.first, h.second);
        if (answer.stream) {
            const auto provider = [write = std::move(answer.stream)](size_t, httplib::DataSink& sink) {
                try {
                    SinkStream stream(sink);
                    write(stream);
                    sink.done();
                    return true;
                } catch (const std::bad_alloc&) {  // nobody above this would catch it
                    return false;
                }
            };
            if (from.version == "HTTP/1.0")
                to.set_content_provider(answer.type, provider);
            else
                to.set_chunked_content_provider(answer.type, provider);
            return;
        }
        to.body = std::move(answer.body);
        to.set_header("Content-Type", answer.type);
    }

    /// Refuses heads whose body nobody can find or read, and those that `check` refuses.
    HttpAnswer check_head(const HttpRequest& r) const {
        if (lower(r.header("content-type")).rfind("multipart/form-data", 0) == 0)
            return error(415, r, "the body is a form of several parts, expected JSON (application/json)");
        const Head& h = t_connection->head();
        if (h.count("content-length") > 1 || h.count("transfer-encoding") > 1)
            return error(400, r, "Content-Length or Transfer-Encoding is given twice, expected one of them once");
        if (h.count("host") > 1) return error(400, r, "Host is given twice, expected it once");
        const std::string length = r.header("content-length");
        const bool has_length = r.headers.count("content-length") != 0;
        const bool has_coding = r.headers.count("transfer-encoding") != 0;  // other than chunks
        if (r.path.size() > kMaxPathBytes)
            return error(414, r,
                         "the path has " + std::to_string(r.path.size()) + " bytes, expected at most " +
                             std::to_string(kMaxPathBytes));
        if (has_length && !is_number(length)) return error(400, r, "Content-Length is no number of bytes");
        if (has_length && has_coding)
            return error(400, r, "both Content-Length and Transfer-Encoding are given, expected one of them");
        if (has_coding) return error(501, r, "the Transfer-Encoding is not known, expected chunked");
        if (!Decoder::create(t_connection->encoding))
            return error(415, r,
                         "the body is in the encoding '" + t_connection->encoding +
                             "', which is not known here; send it as it is");
        if (has_length && std::stoull(length) > options.max_body_bytes) return too_large(r);
        return check(r);
    }

    HttpAnswer too_large(const HttpRequest& r) const {
        return error(413, r, "the body is larger than " + std::to_string(options.max_body_bytes) + " bytes");
    }

    /// Answers the request.
    HandlerResponse route(const httplib::Request& from, httplib::Response& to) {
        HttpRequest r = head(from);
        HttpAnswer refused = check_head(r);
        const std::string length = r.header("content-length");
        const bool has_body = t_connection->chunked() || length.find_first_not_of('0') != std::string::npos ||
                              r.headers.count("transfer-encoding") != 0;
        const bool reads_body = refused.status == 0 && r.method == "POST" && has_body;
        if (has_body && !reads_body) t_connection->closing = true;  // it may still come, and nobody reads it
        BodyShare share(n_bodies, options.max_bodies_bytes);
        if (reads_body) refused = take_body(&r, &share);
        give(refused.status != 0 ? std::move(refused) : handle(r), from, to);
        return HandlerResponse::Handled;
    }

    /// Reads the body of the request. An answer with a status other than 0 says why that failed.
    HttpAnswer take_body(HttpRequest* r, BodyShare* share) {
        bool large = false, crowded = false;
        const auto keep = [&](const char* bytes, size_t n) {
            large = large || n > options.max_body_bytes - r->body.size();
            crowded = crowded || (!large && !share->take(n));
            if (!large && !crowded) r->body.append(bytes, n);
            return !large && !crowded;
        };
        Connection& c = *t_connection;
        if (c.waits) c.go_on();
        const std::unique_ptr<Decoder> decoder = Decoder::create(c.encoding);
        uint64_t left = c.chunked() ? UINT64_MAX : std::stoull(r->header("content-length"));
        char bytes[16384];
        long n = 1;
        bool valid = true;
        while (valid && left > 0) {
            n = c.read(bytes, static_cast<size_t>(std::min<uint64_t>(left, sizeof bytes)));
            if (n <= 0) break;
            left -= static_cast<uint64_t>(n);
            valid = decoder->read(bytes, static_cast<size_t>(n), keep);
        }
        const bool ended = c.chunked() ? n == 0 : left == 0;
        HttpAnswer pass;
        pass.status = 0;
        if (valid && ended && decoder->is_complete()) return pass;
        c.closing = true;
        if (large) return too_large(*r);
        if (crowded)
            return error(503, *r,
                         "the bodies of the requests here together exceed " + std::to_string(options.max_bodies_bytes) +
                             " bytes; try again when some of them are answered");
        if (c.refusal().status != 0) return error(c.refusal().status, *r, c.refusal().why);
        return error(400, *r, "the body ended early, or is not in the encoding that its head states");
    }
};

std::string lower(std::string text) {
    for (char& c : text)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return text;
}

bool is_loopback(std::string host) {
    if (host == "localhost") return true;
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    addrinfo numeric = {}, *found = nullptr;
    numeric.ai_flags = AI_NUMERICHOST;
    const bool is_text = host.find('\0') == std::string::npos;
    if (!is_text || ::getaddrinfo(host.c_str(), nullptr, &numeric, &found) != 0) return false;
    bool loopback = false;
    if (found->ai_family == AF_INET)
        loopback = ntohl(reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr.s_addr) >> 24 == 127;
    if (found->ai_family == AF_INET6)
        loopback = IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(found->ai_addr)->sin6_addr);
    ::freeaddrinfo(found);
    return loopback;
}

std::string HttpRequest::header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? std::string() : found->second;
}

HttpServer::HttpServer(const HttpOptions& options, Handler check, Handler handle, Refusal error)
    : impl_(std::make_unique<Impl>()) {
    Impl& s = *impl_;
    s.options = options;
    s.check = std::move(check);
    s.handle = std::move(handle);
    s.error = std::move(error);
    s.set_tcp_nodelay(true);
    s.set_socket_options([](socket_t fd) { make_port_exclusive(fd); });  // its own would share it
    s.set_pre_routing_handler([&s](const httplib::Request& r, httplib::Response& to) { return s.route(r, to); });
    s.set_post_routing_handler([](const httplib::Request&, httplib::Response& to) {
        to.headers.erase("Accept-Ranges");  // cpp-httplib's, for HEAD
        to.headers.erase("Keep-Alive");
        to.headers.erase("Connection");  // later versions say "close" with each error
        if (t_connection->closing)
            to.set_header("Connection", "close");
        else
            to.set_header("Keep-Alive", "timeout=" + std::to_string(kIdleSeconds) + ", max=1000000");
    });
    s.set_error_handler([&s](const httplib::Request& r, httplib::Response& to) {
        if (to.body.empty() && !to.content_provider_) s.give(s.error(to.status, s.head(r), kNoRequestLine), r, to);
    });
    s.set_exception_handler([&s](const httplib::Request& r, httplib::Response& to, std::exception_ptr) {
        t_connection->closing = true;  // the body may not have been read to its end
        s.give(s.error(500, s.head(r), "the server has no memory left for this request"), r, to);
    });
}

HttpServer::~HttpServer() = default;

Status HttpServer::bind(int* port) {
    const HttpOptions& o = impl_->options;
    if (!impl_->stop.is_open() || !impl_->crowd.is_open())
        return Status(cli::Code::io_error, "the system gives no descriptor: " + socket_error());
    forget_socket_error();
    *port = o.port;
    if (o.port == 0)
        *port = impl_->bind_to_any_port(o.host);
    else if (!impl_->bind_to_port(o.host, o.port))
        *port = -1;
    if (*port > 0) {
        impl_->begin_listening();
        return {};
    }
    const std::string why = socket_error();
    return Status(cli::Code::io_error, "cannot listen on " + o.host + ":" + std::to_string(o.port) + ": " +
                                           (why.empty() ? "the address is none of this host" : why) +
                                           "; choose another --port or --host");
}

void HttpServer::listen(const std::function<void(const Status&)>& failed) {
    const Status s = impl_->take_connections();
    close_socket(impl_->listening);  // clients that come now are refused
    if (!s.ok()) failed(s);
    impl_->threads.wait();
}

void HttpServer::stop() {
    impl_->stop.add();
    // Streams say something at their end.
    for (int i = 0; i < 5000 && impl_->n_answering > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    impl_->end_streams();
}

}  // namespace server
