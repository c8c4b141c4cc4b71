// server/constraint: what a request demands of the form of its reply, as a constraint on what is sampled.
//
// Owns    the constraints of recent requests: an agent sends the same tools with every step.
// Thread  any.
// Tests   tests/test_server_constraint.py
#pragma once
#include <deque>
#include <functional>
#include <mutex>
#include <string>

#include "generation.h"

namespace server {

/// The form that a client wants. At most one of schema and gbnf; with tools a schema is that of replies without calls.
struct ReplyForm {
    std::string schema;  ///< JSON Schema
    std::string gbnf;
    bool call_required = false;
    std::string call_name;  ///< of the tool that must be called; empty: any
    bool parallel = true;   ///< more than one call
    bool no_call = false;   ///< the prompt shows the tools, but none may be called
    bool is_free() const { return schema.empty() && gbnf.empty(); }
};

class ConstraintCache {
  public:
    /// Sets the request's constraint. Failure: a schema or grammar that cannot be enforced, or a demanded call of a
    /// tool that is not offered.
    Failure apply(const auspex::Model& model, ReplyForm form, GenerationRequest* to);

  private:
    struct Entry {
        std::string key;
        auspex::Constraint constraint;
    };
    Status find(const auspex::Model& model, const std::string& key,
                const std::function<Result<auspex::Grammar>()>& make, auspex::Constraint* to);
    static constexpr size_t kMaxEntries = 16;
    std::mutex mutex_;
    std::deque<Entry> entries_;  ///< the latest first
};

/// response_format {"type": text, json_object or json_schema}, json_schema, grammar.
void read_response_format(const Fields& fields, ReplyForm* to);
/// {"type": "text"} or {"type": "json_schema", "schema"}: that of responses and messages. name: for messages.
Failure read_format(const Json& format, const std::string& name, ReplyForm* to);

}  // namespace server
