// server/connection: the socket of one client, with limits on the head and body of each request.
//
// Owns    the socket. Bounds what a client may send before its request is understood, and how long that may take. Takes
//         the head and the chunks of a body apart, so that neither depends on the version of cpp-httplib.
// Thread  one: the connection's own.
// Tests   tests/test_server_http.py, tests/test_server_stalls.py
#pragma once
#include <chrono>
#include <string>
#include <string_view>

#include "head_lines.h"
#include "http.h"
#include "sockets.h"

namespace server {

class Connection {
  public:
    /// stop   is set when the server stops.
    /// crowd  of which an idle connection takes one to make room for another.
    Connection(Socket socket, const Event& stop, const Event& crowd, const HttpOptions& options)
        : socket_(socket), stop_(stop), crowd_(crowd), options_(options) {}
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    /// Waits for the first byte of the next request. False if there will be none.
    bool wait_for_request();
    /// Reads the head. False if a line of it is refused, it ends early or is late: refusal() says why.
    bool read_head();
    /// What read_head() has read.
    const Head& head() const { return lines_.head; }
    /// The head was understood: what follows is the body.
    /// interim   the client understands answers before the answer (HTTP/1.1).
    void end_head(bool chunked, bool interim);
    /// Bytes read of the body without its framing; 0 at the end, -1 beyond a limit.
    long read(char* to, size_t n);
    /// Sends "100 Continue" to a client that understands it. False if it does not, or has left.
    bool go_on();
    /// All of it, or -1.
    ptrdiff_t write(const char* from, size_t n);
    /// The client has closed the connection, or it is broken.
    bool gone() { return peer() == Peer::gone; }
    /// The client sends nothing more. Only bytes sent to it show whether it has left: then gone() becomes true.
    bool half_closed() { return peer() != Peer::open; }
    /// Whether the client still waits for its answer, of which nothing was written yet. One that sends nothing more is
    /// sent "100 Continue", which clients skip, to find out.
    bool awaited();
    /// Why reading failed; status 0 if it did not, or the client has left.
    const ReadRefusal& refusal() const { return refusal_; }
    bool in_head() const { return in_head_; }
    bool chunked() const { return chunked_; }
    Socket socket() const { return socket_; }

    bool closing = false;  ///< no further request is read
    std::string encoding;  ///< of the body, in lower case
    bool waits = false;    ///< for "100 Continue", before it sends the body

  private:
    using Clock = std::chrono::steady_clock;
    bool wait_for_bytes(Clock::time_point deadline);
    Peer peer();
    bool readable();
    bool fill();
    long receive(char* to, size_t n);
    ReadRefusal too_slow() const;
    bool read_line(std::string* line);
    bool next_chunk();
    bool writable();

    const Socket socket_;
    const Event &stop_, &crowd_;
    const HttpOptions& options_;
    Peer peer_ = Peer::open;
    char buffer_[16384];
    size_t at_ = 0, end_ = 0;
    bool first_ = true;  ///< no request was read yet
    bool in_head_ = true;
    HeadLines lines_;
    bool chunked_ = false, interim_ = false;
    int n_asked_ = 0;  ///< by awaited()
    Clock::time_point next_ask_;
    enum class Chunks { first, further, ended } chunks_ = Chunks::first;
    uint64_t n_chunk_ = 0;  ///< bytes of the chunk that are still to come
    Clock::time_point deadline_;
    Clock::time_point gives_way_;  ///< when the body may end for another connection that waits
    ReadRefusal refusal_;
    bool stopping_ = false;  ///< the server stops: the last bytes get a second
};

}  // namespace server
