// server/head_lines: what HTTP/1.1 demands of the lines of a head.
//
// Thread  one.
// Tests   tests/test_server_heads.py
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace server {

constexpr size_t kMaxLineBytes = 8192;  ///< of a line of a head or between chunks, with its end

/// Of a head that ends early, too.
constexpr const char* kNoRequestLine =
    "the request's head ended early, or its first line is none of HTTP/1.1, expected a method such as POST, a path and "
    "HTTP/1.1";

/// Why a request is not read to its end.
struct ReadRefusal {
    int status = 0;  ///< 0: it is
    std::string why;
};

/// The lines of a head.
struct Head {
    std::string first_line;  ///< without its end
    /// In order, those without a value left out. Names are in lower case; no white space is around values.
    std::vector<std::pair<std::string, std::string>> headers;

    size_t count(std::string_view name) const;
    /// The values of all headers of a name, with ", " between them.
    std::string joined(std::string_view name) const;
};

/// Takes a head apart, byte by byte. cpp-httplib does not: each of its versions passes over other lines that it cannot
/// read, and a line that it does not see may say where the body ends.
class HeadLines {
  public:
    /// refusal  set where the head cannot go on with this byte.
    void read(char byte, ReadRefusal* refusal);
    /// The empty line that ends the head was read.
    bool ended() const { return ended_; }

    Head head;

  private:
    void read_header(char byte, ReadRefusal* refusal);
    void end_line(ReadRefusal* refusal);
    bool says_length() const;

    bool is_first_ = true, ended_ = false;
    size_t n_ = 0;  ///< bytes of this line
    char last_ = 0;
    std::string name_, value_;  ///< of the header of this line
    bool is_named_ = false;
};

}  // namespace server
