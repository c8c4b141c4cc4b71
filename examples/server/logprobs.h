// server/logprobs: how likely each token of a reply was, and what else could have stood there.
//
// Values are those of the model: before bias, penalties, filters and temperature.
// Tests   tests/test_server_openai.py
#pragma once
#include "fields.h"

namespace server {

struct TokenLogprob {
    Token id = 0;
    std::string bytes;
    double logprob = 0;
    std::vector<TokenLogprob> top;  ///< the most likely tokens, the best first; empty within a list
};

/// Refuses `include` with message.output_text.logprobs, which asks /v1/responses for them.
void refuse_included_logprobs(const Fields& fields, const std::string& instead);
/// What a request asks for. The number of alternatives; -1: no log probabilities at all.
/// chat: logprobs is true or false, top_logprobs the number. Otherwise logprobs is the number.
int read_logprobs(const Fields& fields, bool chat);

/// errors    those of Model::decode().
Result<TokenLogprob> find_logprob(const auspex::Model& model, Span<const float> logits, Token id, int n_top);

/// {"content": [{id, token, logprob, bytes, top_logprobs}]}
Json chat_logprobs(const std::vector<TokenLogprob>& all);
/// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}. The offset of a token is that of the character to which
/// its first byte belongs.
///
/// n_character   characters that began before these tokens; counts on.
Json text_logprobs(const std::vector<TokenLogprob>& all, size_t* n_character);

}  // namespace server
