// server/info: what the server is and does: health, models, properties, metrics.
//
// Tests   tests/test_server_http.py
#include <malloc.h>

#include "service.h"

extern "C" size_t __sanitizer_get_current_allocated_bytes() __attribute__((weak));  // only where one is linked

namespace server {

HttpAnswer health(Service& s, const HttpRequest&) {
    const Failure failure = s.engine.check();
    return failure.ok() ? json_answer({{"status", "ok"}}) : failed(failure);
}

HttpAnswer models(Service& s, const HttpRequest& r) {
    const Failure failure = s.engine.check();
    if (!failure.ok()) return failed(failure);
    const auspex::Model model = s.engine.model();
    const auspex::ModelInfo& info = model.info();
    const Json one = {{"id", s.alias},
                      {"object", "model"},
                      {"created", unix_seconds()},
                      {"owned_by", "auspex"},
                      {"meta",
                       {{"vocab_type", 2},
                        {"n_vocab", info.n_vocab},
                        {"n_ctx", s.engine.n_context()},
                        {"n_ctx_train", info.n_context},
                        {"n_embd", info.d_model},
                        {"n_params", info.n_parameter},
                        {"size", info.file_bytes}}},
                      {"architecture", {{"input_modalities", {"text"}}, {"output_modalities", {"text"}}}}};
    const std::string prefix = "/v1/models/";
    if (r.path.compare(0, prefix.size(), prefix) == 0) {
        if (r.path.substr(prefix.size()) == s.alias) return json_answer(one);
        return failed(not_found("there is no model '" + r.path.substr(prefix.size()) + "', only '" + s.alias + "'"));
    }
    // Some clients read "models" with names of their own.
    const Json other = {{"id", s.alias}, {"slug", s.alias}, {"name", s.alias}, {"model", s.alias}};
    return json_answer({{"object", "list"}, {"data", Json::array({one})}, {"models", Json::array({other})}});
}

HttpAnswer props(Service& s, const HttpRequest&) {
    const Failure failure = s.engine.check();
    if (!failure.ok()) return failed(failure);
    const auspex::Sampling& d = s.defaults.sampling;
    const std::optional<bool> thinking = s.defaults.enable_thinking;  // null: what the template does by itself
    const Counters c = s.engine.counters();
    return json_answer({{"default_generation_settings",
                         {{"n_ctx", s.engine.n_context()},
                          {"params",
                           {{"temperature", d.temperature},
                            {"top_k", d.top_k},
                            {"top_p", d.top_p},
                            {"min_p", d.min_p},
                            {"repeat_penalty", d.repeat_penalty},
                            {"presence_penalty", d.presence_penalty},
                            {"frequency_penalty", d.frequency_penalty}}}}},
                        {"total_slots", 1},
                        {"model_alias", s.alias},
                        {"model_path", s.engine.path()},
                        {"chat_template", s.chat_template},
                        {"modalities", {{"vision", false}, {"audio", false}}},
                        {"build_info", "auspex-" AUSPEX_VERSION},
                        {"enable_thinking", thinking ? Json(*thinking) : Json()},
                        {"device", s.engine.device_name()},
                        {"memory_bytes", c.memory_bytes},
                        {"weight_bytes", s.engine.model().info().weight_bytes}});
}

namespace {

/// Prometheus text.
class Metrics {
  public:
    void add(const char* name, const char* type, const char* help, double value) {
        head(name, type, help);
        line(name, "", value);
    }
    void head(const std::string& name, const char* type, const char* help) {
        text += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
    }
    void line(const std::string& name, const std::string& label, double value) {
        char number[40];
        std::snprintf(number, sizeof number, " %.17g\n", value);
        text += name + label + number;
    }
    std::string text;
};

/// Bytes that are allocated and not freed; 0 where the system's library does not tell. Memory that the system gave and
/// the library keeps for later is not in it.
uint64_t heap_bytes() {
    if (__sanitizer_get_current_allocated_bytes) return __sanitizer_get_current_allocated_bytes();
#if defined(__GLIBC__) && (__GLIBC__ > 2 || (__GLIBC__ == 2 && __GLIBC_MINOR__ >= 33))
    const struct mallinfo2 all = mallinfo2();
    return all.uordblks + all.hblkhd;
#else
    return 0;
#endif
}

double rate(double n, double seconds) { return seconds > 0 ? n / seconds : 0; }

}  // namespace

HttpAnswer metrics(Service& s, const HttpRequest&) {
    const Counters c = s.engine.counters();
    uint64_t n_drafted = 0, n_accepted = 0;
    for (uint32_t i = 0; i < auspex::kMaxDraft; ++i) n_drafted += c.drafted[i], n_accepted += c.accepted[i];
    const auto number = [](uint64_t n) { return static_cast<double>(n); };
    Metrics m;
    m.add("llamacpp:prompt_tokens_total", "counter", "Prompt tokens computed.", number(c.n_prompt));
    m.add("llamacpp:prompt_seconds_total", "counter", "Time spent on prompts.", c.prompt_s);
    m.add("llamacpp:tokens_predicted_total", "counter", "Tokens generated.", number(c.n_predicted));
    m.add("llamacpp:tokens_predicted_seconds_total", "counter", "Time spent on generating.", c.predicted_s);
    m.add("llamacpp:prompt_tokens_seconds", "gauge", "Prompt tokens a second.", rate(number(c.n_prompt), c.prompt_s));
    m.add("llamacpp:predicted_tokens_seconds", "gauge", "Tokens generated a second.",
          rate(number(c.n_predicted), c.predicted_s));
    m.add("llamacpp:requests_processing", "gauge", "Requests being processed.", c.is_busy ? 1 : 0);
    m.add("llamacpp:requests_deferred", "gauge", "Requests waiting.", number(c.n_waiting));
    m.add("llamacpp:n_tokens_max", "gauge", "Most tokens of a context so far.", number(c.n_max));
    m.add("llamacpp:n_decode_total", "counter", "Passes of the model while generating.", number(c.n_cycle));
    m.add("llamacpp:n_busy_slots_per_decode", "gauge", "Requests per pass.", c.n_cycle > 0 ? 1 : 0);
    m.add("llamacpp:spec_decode_num_drafts_total", "counter", "Passes that verified a draft.", number(c.drafted[0]));
    m.add("llamacpp:spec_decode_num_draft_tokens_total", "counter", "Tokens drafted.", number(n_drafted));
    m.add("llamacpp:spec_decode_num_accepted_tokens_total", "counter", "Of those, accepted.", number(n_accepted));
    const std::string by_place = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total";
    m.head(by_place, "counter", "Tokens accepted, by place in the draft.");
    for (uint32_t i = 0; i < auspex::kMaxDraft; ++i)
        m.line(by_place, "{position=\"" + std::to_string(i) + "\"}", number(c.accepted[i]));
    m.add("auspex_turns_total", "counter", "Turns that ended for others before the request was complete.",
          number(c.n_turn));
    m.add("auspex_prefix_rows_reused_total", "counter", "Prompt rows taken from what was computed before.",
          number(c.n_cached));
    m.add("auspex_prefix_rows_redone_total", "counter", "Prompt rows computed.", number(c.n_prompt));
    m.add("auspex_heap_bytes", "gauge", "Memory that is allocated and not freed.", number(heap_bytes()));
    HttpAnswer a;
    a.type = "text/plain; version=0.0.4; charset=utf-8";
    a.body = std::move(m.text);
    return a;
}

}  // namespace server
