#include "connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace server {

namespace {

/// Milliseconds until `deadline`, at least 0.
int until(std::chrono::steady_clock::time_point deadline) {
    const auto left = deadline - std::chrono::steady_clock::now();
    return static_cast<int>(std::max<long long>(0, std::chrono::ceil<std::chrono::milliseconds>(left).count()));
}

/// poll() that a signal does not end early. Returns its result.
int poll_until(pollfd* fds, nfds_t n, std::chrono::steady_clock::time_point deadline) {
    for (;;) {
        const int ready = ::poll(fds, n, until(deadline));
        if (ready >= 0 || errno != EINTR) return ready;
    }
}

}  // namespace

Connection::~Connection() {
    // Closing with unread bytes would reset the connection, and the client might lose the answer: read some of them.
    ::shutdown(fd_, SHUT_WR);
    const auto deadline = Clock::now() + std::chrono::milliseconds(500);
    for (size_t n = 0; n < (size_t{8} << 20);) {
        pollfd fds[2] = {{fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
        if (poll_until(fds, 2, deadline) <= 0 || fds[0].revents == 0) break;
        const ssize_t got = ::recv(fd_, buffer_, sizeof buffer_, 0);
        if (got <= 0) break;
        n += static_cast<size_t>(got);
    }
    ::close(fd_);
}

bool Connection::wait_for_request() {
    in_head_ = true;
    n_head_ = 0;
    if (at_ == end_) {
        pollfd fds[2] = {{fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
        const auto deadline = Clock::now() + std::chrono::seconds(options_.idle_seconds);
        if (poll_until(fds, 2, deadline) <= 0 || fds[1].revents != 0) return false;
    }
    deadline_ = Clock::now() + std::chrono::seconds(options_.head_seconds);
    return at_ < end_ || fill();
}

void Connection::end_head() {
    in_head_ = false;
    deadline_ = Clock::now() + std::chrono::seconds(options_.body_seconds);
}

bool Connection::readable() {
    if (at_ < end_) return true;
    pollfd fds[2] = {{fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    const int ready = poll_until(fds, 2, deadline_);
    if (ready == 0) refused_ = 408;
    return ready > 0 && fds[0].revents != 0;
}

bool Connection::fill() {
    if (!readable()) return false;
    const ssize_t got = ::recv(fd_, buffer_, sizeof buffer_, 0);
    at_ = 0;
    end_ = got > 0 ? static_cast<size_t>(got) : 0;
    return got > 0;
}

long Connection::read(char* to, size_t n) {
    if (at_ == end_ && !fill()) return refused_ ? -1 : 0;
    n = std::min(n, end_ - at_);
    if (in_head_ && (n_head_ += n) > options_.max_head_bytes) {
        refused_ = 431;
        return -1;
    }
    std::memcpy(to, buffer_ + at_, n);
    at_ += n;
    return static_cast<long>(n);
}

long Connection::write(const char* from, size_t n) {
    for (size_t done = 0; done < n;) {
        const ssize_t sent = ::send(fd_, from + done, n - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) done += static_cast<size_t>(sent);
        if (sent >= 0 || errno == EINTR) continue;
        if ((errno != EAGAIN && errno != EWOULDBLOCK) || !writable()) return -1;
    }
    return static_cast<long>(n);
}

/// Waits until the client takes more; not for long if the server stops meanwhile.
bool Connection::writable() {
    for (;;) {
        pollfd fds[2] = {{fd_, POLLOUT, 0}, {stop_fd_, POLLIN, 0}};
        const auto deadline = Clock::now() + std::chrono::seconds(stopping_ ? 1 : options_.write_seconds);
        if (poll_until(fds, stopping_ ? 1 : 2, deadline) <= 0) return false;
        stopping_ = stopping_ || fds[1].revents != 0;  // a client that takes nothing must not keep the server
        if (fds[0].revents != 0) return (fds[0].revents & POLLOUT) != 0;
    }
}

bool Connection::gone() const {
    char byte;
    const ssize_t got = ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace server
