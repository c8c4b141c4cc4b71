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
/// Counts the characters of a text that comes byte by byte. A byte that is part of none counts as one, because the
/// text shows it as U+FFFD.
class CharacterCounter {
  public:
    /// Returns the index of the character to which the byte belongs, if what follows completes that character.
    size_t add(char c);
    size_t n() const { return n_; }  ///< characters so far, with one that is not complete

  private:
    size_t n_ = 0;
    int n_held_ = 0, n_missing_ = 0;     ///< bytes of the last one, there and to come
    unsigned lowest_ = 0, highest_ = 0;  ///< its next byte
};

/// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}. The offset of a token is that of the character to which
/// its first byte belongs.
///
/// counter   has counted the tokens before these, and goes on.
Json text_logprobs(const std::vector<TokenLogprob>& all, CharacterCounter* counter);

}  // namespace server
