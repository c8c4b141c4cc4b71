// server/httplib_server: cpp-httplib 0.11 to 0.41, as far as their versions call differently what http.cpp uses.
//
// cmake/auspex_server.cmake compiles this file to see whether the server can be built.
#pragma once
#include <httplib.h>

#include <functional>
#include <string>

namespace server {

/// A server whose connections are accepted elsewhere.
class HttplibServer : public httplib::Server {
  protected:
    using EndHead = std::function<void(httplib::Request&)>;

    /// Reads a request from the stream and answers it. False if the connection cannot go on. end_head is called once
    /// the head was read.
    template <class S>
    static bool process_one(S& s, httplib::Stream& stream, const EndHead& end_head) {
        bool closed =
            false;  // some versions set it where they miss a body; Impl knows whether the client wants the end
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
