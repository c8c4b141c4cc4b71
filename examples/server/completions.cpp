// server/completions: /v1/completions, OpenAI's text protocol, and /completion, that of llama.cpp.
//
// Tests   tests/test_server_openai.py
#include "openai.h"

namespace server {

namespace {

class TextProtocol final : public OpenAiProtocol {
  public:
    TextProtocol(const Service& s, const StreamOptions& options)
        : OpenAiProtocol(s, options, "cmpl-", "text_completion") {}
    void event(uint32_t i, const auspex::ReplyEvent& e) override { chunk(i, e.text, nullptr); }
    void end_choice(uint32_t i, const Choice& c) override {
        chunk(i, "", finish_name(c));
        counter_ = {};
    }
    Json answer(const std::vector<Choice>& choices) override {
        Json shown = Json::array();
        for (const Choice& c : choices) {
            CharacterCounter counter;
            shown.push_back({{"text", c.content},
                             {"index", shown.size()},
                             {"logprobs", c.logprobs.empty() ? Json() : text_logprobs(c.logprobs, &counter)},
                             {"finish_reason", finish_name(c)}});
        }
        return whole(std::move(shown), choices);
    }

  private:
    void chunk(uint32_t i, const std::string& text, const char* finish) {
        Json all = head_;
        Json choice = {{"text", text}, {"index", i}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
        if (finish) choice["finish_reason"] = finish;
        if (!logprobs_.empty()) choice["logprobs"] = text_logprobs(logprobs_, &counter_);
        logprobs_.clear();
        all["choices"] = Json::array({choice});
        write_data(all);
    }
    CharacterCounter counter_;  ///< of the tokens before logprobs_
};

/// llama.cpp's own form: one choice, flat members.
class NativeProtocol final : public Protocol {
  public:
    explicit NativeProtocol(const Service& s) : alias_(s.alias) {}
    void begin(const Usage&) override {}
    void event(uint32_t, const auspex::ReplyEvent& e) override {
        write_data({{"index", 0}, {"content", e.text}, {"tokens", Json::array()}, {"stop", false}});
    }
    void end_choice(uint32_t, const Choice& c) override { write_data(last(c, "")); }
    void end(const std::vector<Choice>&) override {}
    void fail(const Failure& failure) override { write_data(openai_error(failure)); }
    Json answer(const std::vector<Choice>& choices) override { return last(choices[0], choices[0].content); }

  private:
    Json last(const Choice& c, const std::string& text) const {
        const char* type = c.finish == Finish::length ? "limit" : c.finish == Finish::stop ? "word" : "eos";
        return {{"index", 0},
                {"content", text},
                {"stop", true},
                {"stop_type", type},
                {"stopping_word", c.stop},
                {"model", alias_},
                {"tokens_predicted", c.usage.n_predicted},
                {"tokens_evaluated", c.usage.n_prompt},
                {"tokens_cached", c.usage.n_cached},
                {"truncated", false},
                {"timings", timings_json(c.usage)}};
    }
    const std::string alias_;
};

/// A string, or the ids of tokens.
Failure read_prompt(Service& s, const Json& body, GenerationRequest* to) {
    const auto found = body.find("prompt");
    if (found == body.end()) return bad_request("prompt is missing, expected a string or a list of token ids");
    const Json* prompt = &*found;
    const bool is_list = prompt->is_array() && !prompt->empty() && !(*prompt)[0].is_number();
    if (is_list && prompt->size() > 1)
        return not_supported("prompt is a list of " + std::to_string(prompt->size()) +
                             " prompts, expected one; send each of them by itself");
    if (is_list) prompt = &(*prompt)[0];
    if (prompt->is_string()) {
        const std::string text = prompt->get<std::string>();
        to->scripted = s.engine.script().find(text);
        const Status encoded = s.engine.model().encode(text, {true, true}).get(to->ids);
        if (!encoded.ok()) return from_status(encoded);
    } else if (prompt->is_array()) {
        if (const Failure failure = read_ids(s, *prompt, "prompt", &to->ids); !failure.ok()) return failure;
    } else {
        return bad_request("prompt is " + describe(*prompt) + ", expected a string or a list of token ids");
    }
    if (to->ids.empty()) return bad_request("prompt is empty, expected at least one token");
    to->marks.push_back({to->ids.size() - 1, false});  // so that the same prompt again costs its last row
    return check_context(s.engine, to->ids.size());
}

Failure read_text(Service& s, const HttpRequest& r, GenerationRequest* to, StreamOptions* stream) {
    Json body;
    Failure failure = open_body(s, r, &body);
    if (failure.ok()) failure = read_limits(body, to);
    if (!failure.ok()) return failure;
    const Fields fields(body, "", &failure);
    read_stream(fields, stream);
    to->n_top_logprob = read_logprobs(fields, false);
    read_sampling(fields, s.defaults, s.engine.model().info().n_vocab, to);
    for (const char* key : {"suffix", "echo"}) fields.refuse_wish(key, "leave it out");
    refuse_functions(fields);
    int64_t n_best = to->n_choice;
    fields.integer("best_of", 0, INT32_MAX, &n_best);
    if (n_best > to->n_choice) fields.refuse_wish("best_of", "leave it out; n gives several replies");
    to->is_chat = false;
    ReplyForm form;
    read_response_format(fields, &form);
    if (failure.ok()) failure = read_prompt(s, body, to);
    return failure.ok() ? s.engine.constraints().apply(s.engine.model(), form, to) : failure;
}

}  // namespace

HttpAnswer completions(Service& s, const HttpRequest& r) {
    GenerationRequest request;
    request.n_max = 16;  // OpenAI's default: a text has no end of its own
    StreamOptions stream;
    const Failure failure = read_text(s, r, &request, &stream);
    if (!failure.ok()) return failed(failure);
    return generate(s.engine, std::move(request), std::make_shared<TextProtocol>(s, stream), stream.stream, r);
}

HttpAnswer native_completion(Service& s, const HttpRequest& r) {
    GenerationRequest request;
    StreamOptions stream;
    const Failure failure = read_text(s, r, &request, &stream);
    if (!failure.ok()) return failed(failure);
    if (request.n_top_logprob >= 0)
        return failed(not_supported("logprobs are not available here; use /v1/completions, or leave them out"));
    if (request.n_choice > 1)
        return failed(not_supported("n is not available here; use /v1/completions, or send the request again"));
    return generate(s.engine, std::move(request), std::make_shared<NativeProtocol>(s), stream.stream, r);
}

}  // namespace server
