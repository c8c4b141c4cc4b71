// server/head_lines: what HTTP/1.1 demands of the lines of a head.
//
// Thread  one.
// Tests   tests/test_server_heads.py
#pragma once
#include <string>

namespace server {

constexpr size_t kMaxLineBytes = 8192;  ///< of a line of a head or between chunks, with its end

/// Why a request is not read to its end.
struct ReadRefusal {
    int status = 0;  ///< 0: it is
    std::string why;
};

/// Reads a head before cpp-httplib does, which passes over the lines that it cannot parse: where such a line has the
/// length of the body, the body would be read as the next request.
class HeadLines {
  public:
    /// byte      the next one of the head. It may be replaced: the header Range gets another name, since nothing here
    ///           has parts, but cpp-httplib would refuse a request whose ranges it cannot read, and cut the answers to
    ///           others.
    /// refusal   set where the head cannot go on with it.
    void read(char* byte, ReadRefusal* refusal);
    /// The empty line that ends the head was read.
    bool ended() const { return ended_; }

  private:
    void read_name(char* byte, ReadRefusal* refusal);
    void end_line(ReadRefusal* refusal);
    bool says_length() const;

    bool is_first_ = true;  ///< in the request line
    bool ended_ = false;
    size_t n_ = 0;  ///< bytes of this line
    char last_ = 0;
    std::string name_;  ///< of the header of this line, in lower case
    bool is_named_ = false, has_value_ = false;
};

}  // namespace server
