#include "head_lines.h"

#include <string_view>

namespace server {

namespace {

/// A byte that names of headers may have (RFC 9110, 5.6.2).
bool is_token(char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c != '\0' && std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos);
}

}  // namespace

void HeadLines::read(char* byte, ReadRefusal* refusal) {
    const char c = *byte;
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
    else if (c != '\r' || (!is_first_ && !is_named_ && n_ > 1))
        read_name(byte, refusal);
}

/// A byte inside a line.
void HeadLines::read_name(char* byte, ReadRefusal* refusal) {
    const char c = *byte;
    if (is_first_) return;
    if (is_named_) {
        has_value_ = has_value_ || (c != ' ' && c != '\t');
        // cpp-httplib decodes values as it does those of a URL: %36 would be the digit 6.
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
    if (name_ == "range") *byte = '_';
}

bool HeadLines::says_length() const { return name_ == "content-length" || name_ == "transfer-encoding"; }

void HeadLines::end_line(ReadRefusal* refusal) {
    // cpp-httplib leaves out headers without a value.
    if (!has_value_ && says_length()) *refusal = {400, "the header " + name_ + " has no value"};
    const bool was_last = !is_first_ && n_ == 2;
    *this = HeadLines();
    is_first_ = false;
    ended_ = was_last;
}

}  // namespace server
