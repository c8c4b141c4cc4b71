// server/reply: runs a generation and lets a protocol write what it yields, as a stream or as one answer.
//
// Thread  that of the connection.
// Tests   tests/test_server_openai.py
#pragma once
#include "engine.h"
#include "http.h"

namespace server {

constexpr auto kPoll = std::chrono::milliseconds(20);  ///< how soon a client that left is noticed
constexpr const char* kLeft = "the client has closed the connection or, with HTTP/1.0, its sending side; use HTTP/1.1";

/// One complete choice.
struct Choice {
    struct Call {
        std::string name, arguments;  ///< arguments: the text of a JSON object, or its beginning if the reply was cut
    };
    std::string thinking, content;  ///< content: also the text of a completion
    std::vector<Call> calls;
    Finish finish = Finish::end;
    std::string stop;
    Usage usage;
    std::vector<TokenLogprob> logprobs;  ///< of the tokens after it, if they are asked for
};

/// How a protocol says it. Each method adds to the stream what it has to say; the answer without a stream is made from
/// the choices alone.
class Protocol {
  public:
    virtual ~Protocol() = default;
    /// The prompt of the first choice was computed. Called once, before anything but fail().
    virtual void begin(const Usage& usage) = 0;
    /// Text of one kind is whatever of it came together: of one token or of several.
    virtual void event(uint32_t i_choice, const auspex::ReplyEvent& event) = 0;
    /// Of tokens whose text is in the events that follow, or in none if it is held back.
    virtual void logprobs(uint32_t, const std::vector<TokenLogprob>&) {}
    /// So far, where the request wants to know it; with the events that follow.
    virtual void live_usage(const Usage&) {}
    virtual void end_choice(uint32_t i_choice, const Choice& choice) = 0;
    virtual void end(const std::vector<Choice>& choices) = 0;
    /// In the middle of a stream, or before its beginning.
    virtual void fail(const Failure& failure) = 0;
    virtual Json answer(const std::vector<Choice>& choices) = 0;
    virtual Json error(const Failure& failure) const { return openai_error(failure); }
    /// What was written since the last call.
    std::string take() { return std::exchange(out_, {}); }

  protected:
    /// data: {...}
    void write_data(const Json& json) { out_ += "data: " + dump(json) + "\n\n"; }
    /// event: name, and data whose first member is that name.
    void write_event(const char* name, const Json& members);
    std::string out_;
};

/// Runs the request and answers it. Cancels it if the client leaves.
HttpAnswer generate(Engine& engine, GenerationRequest request, std::shared_ptr<Protocol> protocol, bool stream,
                    const HttpRequest& http);

HttpAnswer json_answer(const Json& json, int status = 200);

/// The names of OpenAI for why a reply ended.
const char* finish_name(const Choice& choice);
/// {"completion_tokens", "prompt_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"}
Json usage_json(const std::vector<Choice>& choices);
/// Of all choices together: the prompt is that of the first one, which computed it.
Usage total_usage(const std::vector<Choice>& choices);
/// cache_n, prompt_n, prompt_ms, ..., with drafting draft_n and draft_n_accepted.
Json timings_json(const Usage& usage);

}  // namespace server
