// server/decoder: bodies of requests that come compressed.
//
// Thread  one.
// Tests   tests/test_server_http.py
#pragma once
#include <functional>
#include <memory>
#include <string>

namespace server {

/// Takes a body out of its encoding, piece by piece. cpp-httplib's own way takes one that was cut for a whole one.
class Decoder {
  public:
    using Give = std::function<bool(const char* bytes, size_t n)>;
    virtual ~Decoder() = default;
    /// Gives what these bytes hold. False if they are not in the encoding, if they follow its end, or if `give` says
    /// so.
    virtual bool read(const char* bytes, size_t n, const Give& give) = 0;
    /// The body may end here.
    virtual bool is_complete() const = 0;
    /// encoding  "gzip", "deflate" or "br"; "" or "identity": the bytes are given as they are. Null: another, or one
    ///           without which cpp-httplib was built.
    static std::unique_ptr<Decoder> create(const std::string& encoding);
};

}  // namespace server
