// server/sockets: what differs between the sockets of Linux, other Unix systems and Windows.
//
// Thread  any, one at a time for each socket; an Event from several at once.
// Tests   tests/test_server_http.py, tests/test_server_stalls.py; on Windows tests/test_platforms.py
#pragma once
#if defined(_WIN32)
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <winsock2.h>
// After winsock2.h, which it needs.
#include <ws2tcpip.h>
#else
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#endif

#include <chrono>
#include <cstddef>
#include <string>

namespace server {

#if defined(_WIN32)
using Socket = SOCKET;
constexpr Socket kNoSocket = INVALID_SOCKET;
#else
using Socket = int;
constexpr Socket kNoSocket = -1;
#endif

/// What the system says about the last call of this thread that failed; empty since forget_socket_error().
std::string socket_error();
void forget_socket_error();

/// What getaddrinfo() says by its result.
std::string lookup_error(int result);

/// poll(), with its result. milliseconds: -1: without a limit.
int poll_for(pollfd* fds, size_t n, int milliseconds);
/// The same, not ended early by a signal.
int poll_until(pollfd* fds, size_t n, std::chrono::steady_clock::time_point deadline);

/// Whether poll() says that a connection is broken. Windows sets POLLHUP where the other end has only half-closed it,
/// too.
bool is_broken(const pollfd& told);

/// Non-blocking, and not inherited by child processes.
void prepare(Socket s);
void close_socket(Socket s);
/// Half-closes the connection: the other end reads the end after what was sent.
void end_sending(Socket s);
/// Bytes received; 0 at the end, or if the connection is broken; -1 if there are none now.
long receive(Socket s, char* to, size_t n);
/// Bytes sent; 0 if the other end takes none now, -1 if the connection is broken.
long send(Socket s, const char* from, size_t n);

enum class Peer {
    open,
    half_closed,  ///< sends nothing more; whether it has left, only bytes sent to it show
    gone          ///< has left, or the connection is broken; some systems report it once, then half_closed
};
/// How many times to send to a half-closed connection to learn that the other end has left: the first one draws a
/// reset, which peer_of() reports on Linux; elsewhere the second one fails.
#if defined(__linux__)
constexpr int kProbes = 1;
#else
constexpr int kProbes = 2;
#endif
/// What the other end has done. Only Linux reports it while bytes that it sent are unread.
Peer peer_of(Socket s);

/// Only one program at a time can listen on the port; on Unix also soon after another one has ended, whose last
/// connections the system has not forgotten.
void make_port_exclusive(Socket s);

struct Accepted {
    Socket socket = kNoSocket;  ///< prepared; kNoSocket: there is none, because of
    enum class Failure { nobody_waits, no_room, broken, other } failure = Failure::other;
    std::string why;  ///< in the system's words
};
/// A connection that waits at a listening socket.
Accepted accept_one(Socket listening);

/// Once, before the first socket: writing to a client that has left is an error and no signal, and as many clients may
/// come as the system allows.
void prepare_process();

/// A counter that poll() sees: readable while it is above 0.
class Event {
  public:
    Event();
    ~Event();
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    /// False if the system gave none.
    bool is_open() const { return read_ != kNoSocket; }
    /// What poll() watches, with POLLIN.
    Socket socket() const { return read_; }
    bool is_set() const;
    void add() const;
    /// Takes one. False if it was 0.
    bool take() const;

  private:
    Socket read_ = kNoSocket, write_ = kNoSocket;
};

}  // namespace server
