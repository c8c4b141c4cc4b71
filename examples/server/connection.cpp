#include "connection.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace server {

Connection::~Connection() {
    // Closing with unread bytes would reset the connection, and the client might lose the answer: read some of them.
    end_sending(socket_);
    const auto deadline = Clock::now() + std::chrono::milliseconds(500);
    for (size_t n = 0; n < (size_t{8} << 20);) {
        pollfd fds[2] = {{socket_, POLLIN, 0}, {stop_.socket(), POLLIN, 0}};
        if (poll_until(fds, 2, deadline) <= 0 || fds[0].revents == 0) break;
        const long got = server::receive(socket_, buffer_, sizeof buffer_);
        if (got == 0) break;
        if (got > 0) n += static_cast<size_t>(got);
    }
    close_socket(socket_);
}

bool Connection::wait_for_request() {
    in_head_ = true;
    const int seconds = first_ ? options_.head_seconds : kIdleSeconds;
    const auto deadline = Clock::now() + std::chrono::seconds(seconds);
    // Some clients write an empty line after a body: it is no request.
    for (int n_blank = 0;; ++n_blank) {
        if (at_ == end_ && !wait_for_bytes(deadline)) return false;
        deadline_ = Clock::now() + std::chrono::seconds(options_.head_seconds);
        if (at_ == end_ && !fill()) return false;
        if (n_blank == 2 || (buffer_[at_] != '\r' && buffer_[at_] != '\n')) break;
        ++at_;
    }
    first_ = false;
    return true;
}

/// False if none come in time, or the connection is to make room for another.
bool Connection::wait_for_bytes(Clock::time_point deadline) {
    for (;;) {
        pollfd fds[3] = {{socket_, POLLIN, 0}, {stop_.socket(), POLLIN, 0}, {crowd_.socket(), POLLIN, 0}};
        if (poll_until(fds, 3, deadline) <= 0 || fds[1].revents != 0) return false;
        if (fds[0].revents != 0) return true;
        if (crowd_.take()) return false;  // the first one to ask makes room
    }
}

void Connection::end_head(bool chunked, bool interim) {
    in_head_ = false;
    n_asked_ = 0;
    chunked_ = chunked;
    interim_ = interim;
    chunks_ = Chunks::first;
    n_chunk_ = 0;
    deadline_ = Clock::now() + std::chrono::seconds(kBodySeconds);
    gives_way_ = Clock::now() + std::chrono::seconds(options_.head_seconds);
}

bool Connection::read_head() {
    lines_ = HeadLines();
    for (size_t n = 0; !lines_.ended() && refusal_.status == 0;) {
        char c = 0;
        if (receive(&c, 1) != 1) {
            if (refusal_.status == 0) refusal_ = {400, kNoRequestLine};
            break;
        }
        lines_.read(c, &refusal_);
        if (++n > kMaxHeadBytes && refusal_.status == 0)
            refusal_ = {431, "the head of the request is larger than " + std::to_string(kMaxHeadBytes) +
                                 " bytes; send fewer headers"};
    }
    return refusal_.status == 0;
}

/// True if bytes can be read, or the end was reached, within the limits of the request.
bool Connection::readable() {
    if (at_ < end_) return true;
    pollfd fds[2] = {{socket_, POLLIN, 0}, {stop_.socket(), POLLIN, 0}};
    const auto now = Clock::now(), pause = now + std::chrono::seconds(options_.head_seconds);
    // Past the deadline also where bytes are at hand: a body or what follows its chunks may go on for ever.
    const bool late = now >= deadline_ || (!in_head_ && now > gives_way_ && crowd_.take());
    const int ready = late ? 0 : poll_until(fds, 2, in_head_ ? deadline_ : std::min(deadline_, pause));
    if (ready == 0) refusal_ = too_slow();
    if (ready > 0 && fds[0].revents == 0) refusal_ = {503, "the server is stopping"};
    return ready > 0 && fds[0].revents != 0;
}

ReadRefusal Connection::too_slow() const {
    const std::string head = std::to_string(options_.head_seconds), body = std::to_string(kBodySeconds);
    return {408, "the request did not arrive in time, expected its head within " + head + " s and its body within " +
                     body + " s, or " + head + " s where clients wait for a connection, without a pause of " + head +
                     " s"};
}

bool Connection::fill() {
    at_ = end_ = 0;
    long got = -1;
    while (got < 0) {
        if (!readable()) return false;
        got = server::receive(socket_, buffer_, sizeof buffer_);
    }
    end_ = static_cast<size_t>(got);
    return got > 0;
}

long Connection::receive(char* to, size_t n) {
    if (at_ == end_ && !fill()) return refusal_.status ? -1 : 0;
    n = std::min(n, end_ - at_);
    std::memcpy(to, buffer_ + at_, n);
    at_ += n;
    return static_cast<long>(n);
}

long Connection::read(char* to, size_t n) {
    if (!chunked_) return receive(to, n);
    const bool valid = n_chunk_ > 0 || chunks_ == Chunks::ended || next_chunk();
    if (valid && n_chunk_ == 0) return 0;
    const long got = valid ? receive(to, static_cast<size_t>(std::min<uint64_t>(n, n_chunk_))) : 0;
    if (got > 0) {
        n_chunk_ -= static_cast<uint64_t>(got);
        return got;
    }
    if (refusal_.status == 0) refusal_ = {400, "the body ended early, or is not in chunks as its head states"};
    return -1;
}

/// A line between chunks, without its end. False if it has none within the limit.
bool Connection::read_line(std::string* line) {
    line->clear();
    for (char c = 0; line->size() <= kMaxLineBytes && receive(&c, 1) == 1;) {
        line->push_back(c);
        if (c != '\n') continue;
        const bool whole = line->size() >= 2 && (*line)[line->size() - 2] == '\r';
        if (whole) line->resize(line->size() - 2);
        return whole;
    }
    return false;
}

/// Reads on to the data of the next chunk, or to the end of the body. False if this is no chunk.
bool Connection::next_chunk() {
    std::string line;
    if (chunks_ == Chunks::further && (!read_line(&line) || !line.empty())) return false;
    chunks_ = Chunks::further;
    if (!read_line(&line)) return false;
    const std::string size = line.substr(0, line.find_first_of("; \t"));  // the rest is an extension: nobody uses them
    const bool hex = size.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
    if (!hex || size.empty() || size.size() > 15) return false;
    n_chunk_ = std::strtoull(size.c_str(), nullptr, 16);
    if (n_chunk_ > 0) return true;
    size_t n_trailer = 0;
    do {  // further headers, which nobody uses either
        if (!read_line(&line)) return false;
        n_trailer += line.size() + 2;
    } while (!line.empty() && n_trailer <= kMaxHeadBytes);
    if (n_trailer > kMaxHeadBytes) {
        refusal_ = {
            431, "the headers after the body are larger than " + std::to_string(kMaxHeadBytes) + " bytes; send fewer"};
        return false;
    }
    chunks_ = Chunks::ended;
    return true;
}

ptrdiff_t Connection::write(const char* from, size_t n) {
    for (size_t done = 0; done < n;) {
        const long sent = send(socket_, from + done, n - done);
        if (sent < 0) peer_ = Peer::gone;
        if (sent < 0 || (sent == 0 && !writable())) return -1;
        done += static_cast<size_t>(sent);
    }
    return static_cast<ptrdiff_t>(n);
}

/// Waits until the client takes more; not for long if the server stops meanwhile.
bool Connection::writable() {
    auto deadline = Clock::now() + std::chrono::seconds(kWriteSeconds);
    for (;;) {
        // A client that takes nothing must not keep the server.
        if (stopping_) deadline = std::min(deadline, Clock::now() + std::chrono::seconds(1));
        pollfd fds[2] = {{socket_, POLLOUT, 0}, {stop_.socket(), POLLIN, 0}};
        if (poll_until(fds, stopping_ ? 1 : 2, deadline) <= 0 || Clock::now() >= deadline) return false;
        stopping_ = stopping_ || fds[1].revents != 0;
        if ((fds[0].revents & POLLOUT) != 0) return true;
        if (is_broken(fds[0])) return false;
        if (fds[0].revents != 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));  // poll() does not wait
    }
}

/// Once it is gone it stays so, whatever the system says later.
Peer Connection::peer() {
    if (peer_ != Peer::gone) peer_ = peer_of(socket_);
    return peer_;
}

bool Connection::awaited() {
    if (gone()) return false;
    if (n_asked_ == kProbes || !half_closed() || Clock::now() < next_ask_) return true;
    ++n_asked_;
    next_ask_ = Clock::now() + std::chrono::milliseconds(100);
    return go_on();
}

bool Connection::go_on() {
    const std::string_view text = "HTTP/1.1 100 Continue\r\n\r\n";
    return interim_ && write(text.data(), text.size()) > 0;
}

}  // namespace server
