// server/fields: JSON of requests: parsing within limits, members with types, and errors in HTTP's terms.
//
// Tests   tests/test_server_http.py, tests/test_server_fields.py
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common.h"

namespace server {

using Json = nlohmann::ordered_json;  // keeps the order of members: a tool's text is part of the prompt
/// The base class of Json::object_t: its operator[] and find() pass all members, these do not.
using Members = std::vector<std::pair<const std::string, Json>>;
using cli::Code;
using cli::Result;
using cli::Span;
using cli::Status;
using cli::Token;

/// What is wrong with a request. status 0: nothing.
struct Failure {
    int status = 0;
    std::string type;  ///< as OpenAI's clients know it: "invalid_request_error"
    std::string message;
    Json extra = Json::object();  ///< further members of the error
    bool ok() const { return status == 0; }
};
Failure bad_request(const std::string& message);
Failure not_found(const std::string& message);
/// Status 400: clients repeat a request that was answered with 501, and some do so for minutes.
Failure not_supported(const std::string& message);
Failure unavailable(const std::string& message);
/// exceed_context_size_error, with the fields that agents read.
Failure context_exceeded(size_t n_prompt, size_t n_context);
/// The request is valid but for its length, so that its tokens can be counted.
bool is_context_exceeded(const Failure& failure);
/// The error of an HTTP status: 413 becomes invalid_request_error.
Failure http_failure(int status, const std::string& message);
Failure from_status(const Status& status);
/// {"error": {"code", "message", "type"}}
Json openai_error(const Failure& failure);
/// {"type": "error", "error": {"type", "message"}}
Json anthropic_error(const Failure& failure);

/// One line of UTF-8; what is none becomes U+FFFD. Numbers of a request are as it wrote them, or equal.
std::string dump(const Json& json);
/// The value of a number. Those that neither double nor 64 bits hold exactly are kept as they were written, in a binary
/// value, which nothing else is. False if it is none.
bool read_number(const Json& json, double* to);
/// How deep lists and objects are nested: 0 of other values, and of those that are empty.
size_t depth_of(const Json& json);

/// Whether bytes are text: not a part of a character, as some tokens are.
bool is_utf8(const std::string& bytes);

/// A request's body. failure: not JSON (with the place), nested too deeply, or no object.
Failure parse_body(const std::string& body, Json* to);
/// Any JSON text; false if it is none.
bool parse_json(const std::string& text, Json* to);

/// Reads members of an object. A member that is null is as one that is missing; one of another type, or out of range,
/// is a failure, of which the first is kept.
class Fields {
  public:
    /// path      of the object, for messages: "" or "stream_options.".
    Fields(const Json& object, std::string path, Failure* failure)
        : object_(object), path_(std::move(path)), failure_(failure) {}
    const Json* find(const char* key) const;
    /// Whether it is there and is anything but null, false, 0, "" and [].
    bool asks(const char* key) const;
    bool number(const char* key, double low, double high, double* to) const;
    bool number(const char* key, double low, double high, float* to) const;
    bool integer(const char* key, int64_t low, int64_t high, int64_t* to) const;
    bool boolean(const char* key, bool* to) const;
    bool text(const char* key, std::string* to) const;
    /// A string, or a list of strings.
    bool texts(const char* key, std::vector<std::string>* to) const;
    const Json* object(const char* key) const;
    const Json* list(const char* key) const;
    /// Keeps a failure about this member: its path and `what`.
    void fail(const std::string& key, const std::string& what) const;
    /// The same, where it has another value than expected.
    void refuse(const char* key, const std::string& expected) const;
    /// Refuses `key` as not supported if it asks for something. instead: what the client can do, as in "leave it out".
    void refuse_wish(const char* key, const std::string& instead) const;
    /// Keeps any failure, unless there is one.
    void keep(const Failure& failure) const;
    /// Reads an object inside this one, with the same failure. name: "tool_choice.".
    Fields inside(const Json& object, const std::string& name) const { return {object, path_ + name, failure_}; }

  private:
    const Json* typed(const char* key, bool (Json::*is)() const noexcept, const char* expected) const;
    const Json& object_;
    std::string path_;
    Failure* failure_;
};

/// "an object", "a list", "a string", "true", "3".
std::string describe(const Json& json);
/// The text of a part {"type": ..., "text": ...} or {"type": "refusal", "refusal": ...} of a content. Other parts are
/// failures, named by `path`.
std::string part_text(const Json& part, const std::string& path, Failure* failure);
/// The text of a content that is a string, null or a list of parts.
std::string content_text(const Json& content, const std::string& path, Failure* failure);

/// `prefix` and 24 random letters and digits.
std::string random_id(const char* prefix);
int64_t unix_seconds();

}  // namespace server
