#include "head_lines.h"

#include <algorithm>

namespace server {

namespace {

/// A byte that names of headers may have (RFC 9110, 5.6.2).
bool is_token(char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c != '\0' && std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos);
}

/// A method, a target and HTTP/1.0 or HTTP/1.1, with a space between them.
bool is_request_line(std::string_view line) {
    const size_t method = line.find(' '), version = line.rfind(' ');
    const std::string_view last = version == std::string_view::npos ? line : line.substr(version + 1);
    return method != std::string_view::npos && method != 0 && version > method + 1 &&
           (last == "HTTP/1.1" || last == "HTTP/1.0");
}

}  // namespace

size_t Head::count(std::string_view name) const {
    return static_cast<size_t>(
        std::count_if(headers.begin(), headers.end(), [&](const auto& h) { return h.first == name; }));
}

std::string Head::joined(std::string_view name) const {
    std::string all;
    for (const auto& h : headers)
        if (h.first == name) all += (all.empty() ? "" : ", ") + h.second;
    return all;
}

void HeadLines::read(char c, ReadRefusal* refusal) {
    const bool after_return = last_ == '\r';
    last_ = c;
    if (++n_ > kMaxLineBytes)
        *refusal = is_first_ ? ReadRefusal{414, "the first line of the request is larger than " +
                                                    std::to_string(kMaxLineBytes) + " bytes; send a shorter URL"}
                             : ReadRefusal{431, "a line of the request's head is larger than " +
                                                    std::to_string(kMaxLineBytes) + " bytes; send a shorter header"};
    else if (after_return != (c == '\n') || c == '\0')
        *refusal = {400,
                    "a line of the request's head has a carriage return, a line feed or a byte 0 in it, expected lines "
                    "that end with a carriage return and a line feed"};
    else if (c == '\n')
        end_line(refusal);
    else if (is_first_ && c != '\r')
        head.first_line.push_back(c);
    else if (!is_first_ && (c != '\r' || (!is_named_ && n_ > 1)))
        read_header(c, refusal);
}

/// A byte of a header.
void HeadLines::read_header(char c, ReadRefusal* refusal) {
    if (is_named_) {
        value_.push_back(c);
        if (c == '%' && says_length()) *refusal = {400, "the header " + name_ + " has a % in it"};
        return;
    }
    is_named_ = c == ':' && !name_.empty();
    if (is_named_) return;
    if (!is_token(c)) {
        *refusal = {400,
                    "a line of the request's head is no header, expected a name, a colon right after it and a value, "
                    "on one line"};
        return;
    }
    name_.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
}

bool HeadLines::says_length() const { return name_ == "content-length" || name_ == "transfer-encoding"; }

void HeadLines::end_line(ReadRefusal* refusal) {
    ended_ = !is_first_ && n_ == 2;
    const size_t from = value_.find_first_not_of(" \t"), to = value_.find_last_not_of(" \t");
    if (is_first_ && !is_request_line(head.first_line))
        *refusal = {400, kNoRequestLine};
    else if (from != std::string::npos)
        head.headers.emplace_back(std::move(name_), value_.substr(from, to - from + 1));
    else if (says_length())
        *refusal = {400, "the header " + name_ + " has no value"};
    is_first_ = is_named_ = false;
    n_ = 0;
    last_ = 0;
    name_.clear();
    value_.clear();
}

}  // namespace server
