// server/router: which endpoint answers, and who may ask.
//
// Owns    the table of paths; keys, origins and host names that are allowed.
// Thread  any.
// Tests   tests/test_server_http.py
#pragma once
#include "service.h"

namespace server {

struct Access {
    std::vector<std::string> keys;     ///< empty: no key is needed
    std::vector<std::string> origins;  ///< further web pages that may use the server; "*": all
    bool is_loopback = true;           ///< it listens on this machine alone
};

class Router {
  public:
    Router(Service& service, Access access) : service_(service), access_(std::move(access)) {}
    /// Looks at the head of a request. An answer with status 0 lets it pass.
    HttpAnswer check(const HttpRequest& r) const;
    HttpAnswer handle(const HttpRequest& r);
    /// The answer to a request that HTTP itself refuses.
    HttpAnswer error(int status, const HttpRequest& r, const std::string& why) const;

  private:
    bool is_allowed(const std::string& origin) const;
    bool has_key(const HttpRequest& r) const;
    HttpAnswer refuse(const HttpRequest& r, const Failure& failure) const;
    HttpAnswer with_cors(const HttpRequest& r, HttpAnswer a) const;
    Service& service_;
    const Access access_;
};

}  // namespace server
