// server/log_softmax: the largest logits of a row, and the logarithm of the sum of their exponentials.
//
// A row has a quarter of a million logits, and a token of a small model takes less than a millisecond on a GPU: the
// loops are written so that a compiler makes vectors of them, and this file alone of the server is built with -O3.
// Tests   tests/test_server_openai.py
#pragma once
#include "auspex.hpp"

#include <vector>

namespace server {

/// The ids of the n largest logits, the largest first; among equal ones the lower id.
std::vector<auspex::Token> find_top(auspex::Span<const float> logits, size_t n);

/// ln of the sum of exp(logit). top: what find_top() gave, not empty; these enter the sum exactly, so that their
/// probabilities are never more than 1 together, the others with a relative error of 2e-7 (1 + their distance).
double log_of_sum(auspex::Span<const float> logits, const std::vector<auspex::Token>& top);

}  // namespace server
