// server/chat: /v1/chat/completions, OpenAI's chat protocol.
//
// Tests   tests/test_server_openai.py
#include "openai.h"

namespace server {

namespace {

class ChatProtocol final : public OpenAiProtocol {
  public:
    ChatProtocol(Service& s, const StreamOptions& options)
        : OpenAiProtocol(s, options, "chatcmpl-", "chat.completion.chunk"), thoughts_(s.thoughts) {}

    void event(uint32_t i, const auspex::ReplyEvent& e) override {
        open(i);
        using Kind = auspex::ReplyEvent::Kind;
        const uint32_t call = e.i_call;
        switch (e.kind) {
            case Kind::reasoning: return delta(i, {{"reasoning_content", e.text}});
            case Kind::text: return delta(i, {{"content", e.text}}, take_logprobs());
            case Kind::call_begin:
                return delta(i, {{"tool_calls", Json::array({{{"index", call},
                                                              {"id", call_id(i, call)},
                                                              {"type", "function"},
                                                              {"function", {{"name", e.text}, {"arguments", ""}}}}})}});
            case Kind::call_arguments:
                return delta(i,
                             {{"tool_calls", Json::array({{{"index", call}, {"function", {{"arguments", e.text}}}}})}});
            default: return;
        }
    }

    void live_usage(const Usage& usage) override { live_ = timings_json(usage); }

    void end_choice(uint32_t i, const Choice& choice) override {
        open(i);
        if (!choice.calls.empty() && !choice.thinking.empty()) thoughts_.add(call_id(i, 0), choice.thinking);
        Json chunk = head_;
        chunk["choices"] =
            Json::array({{{"index", i}, {"finish_reason", finish_name(choice)}, {"delta", Json::object()}}});
        const Json rest = take_logprobs();
        if (!rest.is_null()) chunk["choices"][0]["logprobs"] = rest;
        if (!options_.include_usage || !live_.is_null()) chunk["timings"] = timings_json(choice.usage);
        write_data(chunk);
    }

    Json answer(const std::vector<Choice>& choices) override {
        Json shown = Json::array();
        for (const Choice& c : choices) {
            const auto i = static_cast<uint32_t>(shown.size());
            shown.push_back({{"index", i},
                             {"finish_reason", finish_name(c)},
                             {"message", message(i, c)},
                             {"logprobs", c.logprobs.empty() ? Json() : chat_logprobs(c.logprobs)}});
        }
        Json all = whole(std::move(shown), choices);
        all["object"] = "chat.completion";
        return all;
    }

  private:
    /// The first chunk of a choice says whose message it is.
    void open(uint32_t i) {
        if (opened_ == i + 1) return;
        opened_ = i + 1;
        delta(i, {{"role", "assistant"}, {"content", nullptr}});
    }

    /// Null if there are none.
    Json take_logprobs() {
        const std::vector<TokenLogprob> all = std::exchange(logprobs_, {});
        return all.empty() ? Json() : chat_logprobs(all);
    }

    void delta(uint32_t i, Json delta, Json logprobs = nullptr) {
        Json chunk = head_;
        chunk["choices"] = Json::array({{{"index", i}, {"finish_reason", nullptr}, {"delta", std::move(delta)}}});
        if (!logprobs.is_null()) chunk["choices"][0]["logprobs"] = std::move(logprobs);
        if (!live_.is_null()) chunk["timings"] = live_;
        write_data(chunk);
    }

    /// Ids of calls, made once: the stream and the answer name the same.
    std::string call_id(uint32_t i_choice, uint32_t i_call) {
        std::string& id = call_ids_[{i_choice, i_call}];
        if (id.empty()) id = random_id("call_");
        return id;
    }

    Json message(uint32_t i, const Choice& c) {
        Json m = {{"role", "assistant"}, {"content", c.content}};
        if (!c.thinking.empty()) m["reasoning_content"] = c.thinking;
        for (uint32_t k = 0; k < c.calls.size(); ++k)
            m["tool_calls"].push_back({{"id", call_id(i, k)},
                                       {"type", "function"},
                                       {"function", {{"name", c.calls[k].name}, {"arguments", c.calls[k].arguments}}}});
        if (c.content.empty() && !c.calls.empty()) m["content"] = nullptr;
        return m;
    }

    IdStore& thoughts_;
    uint32_t opened_ = 0;
    Json live_;  ///< timings so far, if they are wanted
    std::map<std::pair<uint32_t, uint32_t>, std::string> call_ids_;
};

/// Templates show the thinking before calls until the user speaks again, but most clients of this protocol do not send
/// it back, or only the last piece of a stream, as openai-node's stream() does: the model would not see why it called,
/// and the reply would be computed again.
void put_thinking_back(const IdStore& thoughts, Json* messages) {
    for (Json& m : *messages) {
        const auto calls = m.find("tool_calls");
        if (calls == m.end() || !calls->is_array() || calls->empty() || !calls->front().is_object()) continue;
        const Json id = calls->front().value("id", Json());
        Json kept;
        if (!id.is_string() || !thoughts.find(id, &kept)) continue;
        const std::string& whole = kept.get_ref<const std::string&>();
        const std::string sent = m.value("reasoning_content", "");
        if (sent.size() < whole.size() && whole.compare(whole.size() - sent.size(), sent.size(), sent) == 0)
            m["reasoning_content"] = whole;
    }
}

Failure read_chat(Service& s, const HttpRequest& r, Json* body, GenerationRequest* to) {
    Failure failure = open_body(s, r, body);
    Conversation conversation;
    if (failure.ok()) failure = read_conversation(*body, &conversation);
    if (failure.ok()) read_thinking_budget(Fields(*body, "", &failure), to);  // thinking_budget_tokens wins
    if (failure.ok()) failure = read_limits(*body, to);
    if (!failure.ok()) return failure;
    put_thinking_back(s.thoughts, &conversation.messages);
    const Fields fields(*body, "", &failure);
    to->n_top_logprob = read_logprobs(fields, true);
    fields.boolean("timings_per_token", &to->live_usage);
    read_sampling(fields, s.defaults, s.engine.model().info().n_vocab, to);
    if (failure.ok()) failure = prepare(s.engine, conversation, s.defaults, to);
    return failure;
}

}  // namespace

HttpAnswer chat_completions(Service& s, const HttpRequest& r) {
    Json body;
    GenerationRequest request;
    StreamOptions stream;
    Failure failure = read_chat(s, r, &body, &request);
    if (failure.ok()) read_stream(Fields(body, "", &failure), &stream);
    if (!failure.ok()) return failed(failure);
    return generate(s.engine, std::move(request), std::make_shared<ChatProtocol>(s, stream), stream.stream, r);
}

HttpAnswer chat_input_tokens(Service& s, const HttpRequest& r) {
    Json body;
    GenerationRequest request;
    const Failure failure = read_chat(s, r, &body, &request);
    if (!failure.ok() && !is_context_exceeded(failure)) return failed(failure);
    return json_answer({{"object", "response.input_tokens"}, {"input_tokens", request.ids.size()}});
}

}  // namespace server
