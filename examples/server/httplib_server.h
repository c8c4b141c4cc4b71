// server/httplib_server: hides the differences between cpp-httplib 0.11 and 0.41.
//
// cmake/auspex_server.cmake compiles this file to see whether the server can be built.
#pragma once
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

// MinGW's GCC before 16 frees what is thread_local before it runs its destructors, at the end of each thread (GCC bug
// 80816). What cpp-httplib keeps so and the server reaches is constant: one for all threads is as good.
#if defined(__MINGW32__) && !defined(__clang__) && __GNUC__ < 16
#define thread_local static
#include <httplib.h>
#undef thread_local
#else
#include <httplib.h>
#endif

namespace server {

/// What cpp-httplib reads, the first line of a request and no header, and where it writes. Headers and body are read
/// here: versions disagree on both. No `override`: which functions are virtual depends on the version.
class RequestLineStream final : public httplib::Stream {
  public:
    /// socket  of the connection.
    /// write   sends bytes to the client; -1 if that failed.
    RequestLineStream(const std::string& line, socket_t socket, std::function<ptrdiff_t(const char*, size_t)> write)
        : text_(line + "\r\n\r\n"), socket_(socket), write_(std::move(write)) {}
    bool is_readable() const { return at_ < text_.size(); }
    bool is_writable() const { return true; }
    bool wait_readable() const { return is_readable(); }
    bool wait_writable() const { return true; }
    time_t duration() const { return 0; }
    ssize_t read(char* to, size_t n) {
        n = text_.copy(to, n, at_);
        at_ += n;
        return static_cast<ssize_t>(n);
    }
    ssize_t write(const char* from, size_t n) { return write_(from, n); }
    void get_remote_ip_and_port(std::string&, int&) const {}
    void get_local_ip_and_port(std::string&, int&) const {}
    socket_t socket() const { return socket_; }

  private:
    const std::string text_;
    const socket_t socket_;
    const std::function<ptrdiff_t(const char*, size_t)> write_;
    size_t at_ = 0;
};

/// A server whose connections are accepted elsewhere.
class HttplibServer : public httplib::Server {
  protected:
    using EndHead = std::function<void(httplib::Request&)>;

    /// Reads a request from the stream and answers it. False if the connection cannot go on. end_head is called once
    /// the first line was read.
    template <class S>
    static bool process_one(S& s, RequestLineStream& stream, const EndHead& end_head) {
        // Some versions set it where they miss a body. Impl knows whether the client wants the end.
        bool closed = false;
        return call(s, stream, closed, end_head);
    }

  private:
    template <class S>
    static auto call(S& s, httplib::Stream& stream, bool& closed, const EndHead& end_head)
        -> decltype(s.process_request(stream, false, closed, end_head)) {
        return s.process_request(stream, false, closed, end_head);
    }
    /// Later versions want the addresses of both ends, which nothing here reads.
    template <class S>
    static auto call(S& s, httplib::Stream& stream, bool& closed, const EndHead& end_head)
        -> decltype(s.process_request(stream, {}, 0, {}, 0, false, closed, end_head)) {
        return s.process_request(stream, {}, 0, {}, 0, false, closed, end_head);
    }
};

}  // namespace server
