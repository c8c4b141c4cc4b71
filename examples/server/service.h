// server/service: the endpoints. Each takes a request with its body and returns the answer.
//
// Thread  any, many at the same time.
// Tests   tests/test_server_http.py, tests/test_server_openai.py, tests/test_server_anthropic.py,
//         tests/test_server_responses.py, tests/test_server_constraint.py
#pragma once
#include <map>
#include <mutex>

#include "prompt.h"
#include "reply.h"

namespace server {

/// Values by the ids that this server gave them; the oldest are forgotten. Thread: any.
class IdStore {
  public:
    IdStore(size_t max_ids, size_t max_bytes) : max_ids_(max_ids), max_bytes_(max_bytes) {}
    /// The first value of an id stays.
    void add(const std::string& id, const Json& value);
    bool find(const std::string& id, Json* value) const;
    /// Those that are wanted, by their ids, the oldest first.
    Json select(const std::function<bool(const Json&)>& wanted) const;

  private:
    const size_t max_ids_, max_bytes_;
    mutable std::mutex mutex_;
    std::map<std::string, std::string> values_;  ///< as text, which takes less than Json
    std::deque<std::string> ids_;                ///< the oldest first
    size_t n_bytes_ = 0;                         ///< of the values
};

struct Service {
    Engine& engine;
    Defaults defaults;     ///< complete once the model is loaded
    std::string alias;     ///< the model's name, as clients see it
    std::string sessions;  ///< folder for saved slots; empty: none may be saved
    bool log_requests = false;
    std::string chat_template;                    ///< text of the model's template
    IdStore conversations{64, size_t{64} << 20};  ///< messages by the id of the last reply, for previous_response_id
    IdStore thoughts{16384, size_t{16} << 20};    ///< the thinking of a reply by the id of its first call
    std::mutex long_texts;                        ///< held while one is tokenized, which takes much memory
    explicit Service(Engine& e) : engine(e) {}
};

using Endpoint = HttpAnswer (*)(Service&, const HttpRequest&);

HttpAnswer chat_completions(Service& s, const HttpRequest& r);        // chat.cpp
HttpAnswer chat_input_tokens(Service& s, const HttpRequest& r);       // chat.cpp
HttpAnswer completions(Service& s, const HttpRequest& r);             // completions.cpp
HttpAnswer native_completion(Service& s, const HttpRequest& r);       // completions.cpp
HttpAnswer messages(Service& s, const HttpRequest& r);                // messages.cpp
HttpAnswer count_tokens(Service& s, const HttpRequest& r);            // messages.cpp
HttpAnswer responses(Service& s, const HttpRequest& r);               // responses.cpp
HttpAnswer responses_input_tokens(Service& s, const HttpRequest& r);  // responses.cpp
HttpAnswer health(Service& s, const HttpRequest& r);                  // info.cpp
HttpAnswer models(Service& s, const HttpRequest& r);                  // info.cpp
HttpAnswer props(Service& s, const HttpRequest& r);                   // info.cpp
HttpAnswer metrics(Service& s, const HttpRequest& r);                 // info.cpp
HttpAnswer tokenize(Service& s, const HttpRequest& r);                // text.cpp
HttpAnswer detokenize(Service& s, const HttpRequest& r);              // text.cpp
HttpAnswer apply_template(Service& s, const HttpRequest& r);          // text.cpp
HttpAnswer slots(Service& s, const HttpRequest& r);                   // slots.cpp
HttpAnswer slot_action(Service& s, const HttpRequest& r);             // slots.cpp

/// Answers that all of them give.
HttpAnswer failed(const Failure& failure);

/// The body of a request that needs the model. Fails before it is loaded.
Failure open_body(const Service& s, const HttpRequest& r, Json* body);
/// A list of token ids. field: its name.
Failure read_ids(const Service& s, const Json& list, const std::string& field, std::vector<Token>* to);
/// thinking.budget_tokens
void read_thinking_budget(const Fields& fields, GenerationRequest* to);
/// max_completion_tokens, max_tokens or n_predict; stop; thinking_budget_tokens; n.
Failure read_limits(const Json& body, GenerationRequest* to);
/// What other servers add to the protocols, where it changes the reply and this one does not do it. form: the field
/// that gives a reply its form here.
void refuse_extensions(const Fields& fields, const std::string& form);
/// Refuses `n` above 1, where there is one reply.
void refuse_choices(const Fields& fields);
/// stream, stream_options.include_usage.
struct StreamOptions {
    bool stream = false, include_usage = false;
};
void read_stream(const Fields& fields, StreamOptions* to);

}  // namespace server
