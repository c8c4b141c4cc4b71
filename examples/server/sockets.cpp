#include "sockets.h"

#if !defined(_WIN32)
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace server {

// ----------------------------------------------------------------------------- what each system has

#if defined(_WIN32)

static int last_error() { return WSAGetLastError(); }
static bool would_wait(int error) { return error == WSAEWOULDBLOCK; }
/// The kernel buffers all of one send(), however slowly the other end reads: large ones would hide that it does not.
static int length(size_t n) { return static_cast<int>(std::min<size_t>(n, 256 << 10)); }

void forget_socket_error() { WSASetLastError(0); }

static std::string words_for(int error) {
    wchar_t wide[512];
    DWORD n = FormatMessageW(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, nullptr,
                             static_cast<DWORD>(error), 0, wide, 512, nullptr);
    while (n > 0 && (wide[n - 1] <= L' ' || wide[n - 1] == L'.')) --n;
    char text[2048];
    const int n_byte = WideCharToMultiByte(CP_UTF8, 0, wide, static_cast<int>(n), text, sizeof text, nullptr, nullptr);
    return n_byte > 0 ? std::string(text, static_cast<size_t>(n_byte)) : "error " + std::to_string(error);
}

std::string lookup_error(int result) { return words_for(result); }

int poll_for(pollfd* fds, size_t n, int milliseconds) { return WSAPoll(fds, static_cast<ULONG>(n), milliseconds); }

bool is_broken(const pollfd& told) { return (told.revents & (POLLERR | POLLNVAL)) != 0; }

void prepare(Socket s) {
    u_long on = 1;
    ::ioctlsocket(s, FIONBIO, &on);
    SetHandleInformation(reinterpret_cast<HANDLE>(s), HANDLE_FLAG_INHERIT, 0);
}
void close_socket(Socket s) { ::closesocket(s); }
void end_sending(Socket s) { ::shutdown(s, SD_SEND); }

void make_port_exclusive(Socket s) {  // SO_REUSEADDR would let others share the port
    const int on = 1;
    ::setsockopt(s, SOL_SOCKET, SO_EXCLUSIVEADDRUSE, reinterpret_cast<const char*>(&on), sizeof on);
}

static Accepted::Failure failure_of(int error) {
    using Failure = Accepted::Failure;
    switch (error) {
        case WSAEWOULDBLOCK:
        case WSAEINTR:
        case WSAECONNRESET: return Failure::nobody_waits;
        case WSAEMFILE: return Failure::no_room;
        case WSAEBADF:
        case WSAEINVAL:
        case WSAENOTSOCK: return Failure::broken;
        default: return Failure::other;
    }
}

void prepare_process() {}

// WSAPoll() takes sockets only: an event is a datagram that a UDP socket sends to itself.
Event::Event() {
    const Socket s = ::socket(AF_INET, SOCK_DGRAM, 0);
    sockaddr_in self = {};
    self.sin_family = AF_INET;
    self.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr* const address = reinterpret_cast<sockaddr*>(&self);
    int n = sizeof self;
    if (s == kNoSocket) return;
    if (::bind(s, address, n) != 0 || ::getsockname(s, address, &n) != 0 || ::connect(s, address, n) != 0) {
        close_socket(s);
        return;
    }
    prepare(s);
    read_ = write_ = s;
}

Event::~Event() {
    if (read_ != kNoSocket) close_socket(read_);
}

void Event::add() const { ::send(write_, "", 1, 0); }

bool Event::take() const {
    char one = 0;
    return ::recv(read_, &one, 1, 0) > 0;
}

#else

static int last_error() { return errno; }
static bool would_wait(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }
static size_t length(size_t n) { return n; }

void forget_socket_error() { errno = 0; }

static std::string words_for(int error) { return std::strerror(error); }

std::string lookup_error(int result) { return ::gai_strerror(result); }

int poll_for(pollfd* fds, size_t n, int milliseconds) { return ::poll(fds, static_cast<nfds_t>(n), milliseconds); }

bool is_broken(const pollfd& told) { return (told.revents & (POLLERR | POLLNVAL | POLLHUP)) != 0; }

void prepare(Socket s) {
    ::fcntl(s, F_SETFD, FD_CLOEXEC);
    ::fcntl(s, F_SETFL, ::fcntl(s, F_GETFL) | O_NONBLOCK);
}
void close_socket(Socket s) { ::close(s); }
void end_sending(Socket s) { ::shutdown(s, SHUT_WR); }

void make_port_exclusive(Socket s) {  // without it the port stays taken for minutes
    const int on = 1;
    ::setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

static Accepted::Failure failure_of(int error) {
    using Failure = Accepted::Failure;
    if (would_wait(error) || error == ECONNABORTED) return Failure::nobody_waits;
    if (error == EMFILE || error == ENFILE) return Failure::no_room;
    return error == EBADF || error == EINVAL || error == ENOTSOCK ? Failure::broken : Failure::other;
}

void prepare_process() {
    ::signal(SIGPIPE, SIG_IGN);
    rlimit limit = {};  // the usual one of 1024 is meant for programs that use select()
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 8192);
    ::setrlimit(RLIMIT_NOFILE, &limit);
}

Event::Event() {
    int ends[2];
    if (::pipe(ends) != 0) return;
    read_ = ends[0];
    write_ = ends[1];
    prepare(read_);
    prepare(write_);
}

Event::~Event() {
    for (const Socket end : {read_, write_})
        if (end != kNoSocket) close_socket(end);
}

void Event::add() const {
    while (::write(write_, "", 1) < 0 && errno == EINTR) {
    }
}

bool Event::take() const {
    char one = 0;
    return ::read(read_, &one, 1) > 0;
}

#endif

// --------------------------------------------------------------------------------- what all share

std::string socket_error() {
    const int error = last_error();
    return error == 0 ? std::string() : words_for(error);
}

/// Milliseconds until `deadline`, at least 0.
static int until(std::chrono::steady_clock::time_point deadline) {
    const auto left = deadline - std::chrono::steady_clock::now();
    return static_cast<int>(std::max<long long>(0, std::chrono::ceil<std::chrono::milliseconds>(left).count()));
}

int poll_until(pollfd* fds, size_t n, std::chrono::steady_clock::time_point deadline) {
    for (;;) {
        const int ready = poll_for(fds, n, until(deadline));
        if (ready >= 0 || !would_wait(last_error())) return ready;
    }
}

long receive(Socket s, char* to, size_t n) {
    const auto got = ::recv(s, to, length(n), 0);
    if (got < 0) return would_wait(last_error()) ? -1 : 0;
    return static_cast<long>(got);
}

long send(Socket s, const char* from, size_t n) {
    const auto sent = ::send(s, from, length(n), 0);
    if (sent < 0 && would_wait(last_error())) return 0;
    return static_cast<long>(sent);
}

Peer peer_of(Socket s) {
#if defined(__linux__)
    pollfd fd = {s, POLLRDHUP, 0};
    if (poll_for(&fd, 1, 0) <= 0) return Peer::open;
    return fd.revents == POLLRDHUP ? Peer::half_closed : Peer::gone;
#else
    char byte = 0;
    const auto n = ::recv(s, &byte, 1, MSG_PEEK);
    if (n < 0) return would_wait(last_error()) ? Peer::open : Peer::gone;
    return n == 0 ? Peer::half_closed : Peer::open;
#endif
}

Accepted accept_one(Socket listening) {
    Accepted a;
    a.socket = ::accept(listening, nullptr, nullptr);
    if (a.socket != kNoSocket) {
        prepare(a.socket);
        return a;
    }
    a.failure = failure_of(last_error());
    a.why = socket_error();
    return a;
}

bool Event::is_set() const {
    pollfd fd = {read_, POLLIN, 0};
    return poll_for(&fd, 1, 0) > 0;
}

}  // namespace server
