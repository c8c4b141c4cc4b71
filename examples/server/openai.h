// server/openai: what the chat protocol and the text protocol of OpenAI have in common.
//
// Tests   tests/test_server_openai.py
#pragma once
#include "service.h"

namespace server {

class OpenAiProtocol : public Protocol {
  public:
    /// object: what a piece of the stream calls itself.
    OpenAiProtocol(const Service& s, const StreamOptions& options, const char* id_prefix, const char* object)
        : options_(options),
          head_({{"id", random_id(id_prefix)},
                 {"object", object},
                 {"created", unix_seconds()},
                 {"model", s.alias},
                 {"system_fingerprint", "auspex-" AUSPEX_VERSION}}) {}

    void begin(const Usage&) override {}

    void logprobs(uint32_t, const std::vector<TokenLogprob>& more) override {
        logprobs_.insert(logprobs_.end(), more.begin(), more.end());
    }

    void end(const std::vector<Choice>& choices) override {
        if (options_.include_usage) write_data(whole(Json::array(), choices));
        out_ += "data: [DONE]\n\n";
    }

    void fail(const Failure& failure) override { write_data(openai_error(failure)); }

  protected:
    /// The head, these choices as the client sees them, and the usage and timings of all.
    Json whole(Json shown, const std::vector<Choice>& choices) const {
        Json all = head_;
        all["choices"] = std::move(shown);
        all["usage"] = usage_json(choices);
        all["timings"] = timings_json(total_usage(choices));
        return all;
    }

    const StreamOptions options_;
    const Json head_;                     ///< the members that everything begins with
    std::vector<TokenLogprob> logprobs_;  ///< whose text was not written yet
};

}  // namespace server
