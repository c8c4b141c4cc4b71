// tests/reply_rig: replies drafted by each source, and what plain decoding makes of the same prompt.
#pragma once
#include "draft_sources.h"
#include "session_rig.h"
#include "tiny.h"

namespace reply_rig {

using namespace auspex;
using namespace auspex::detail;
using namespace test;

inline SessionOptions options_of(Draft source, int depth, uint32_t run_ahead) {
    SessionOptions o;
    o.n_context = 512;
    o.n_ubatch = 64;
    o.draft.source = source;
    o.draft.depth = depth;
    o.run_ahead = run_ahead;
    return o;
}

inline std::vector<float> all_logits(Session& session) {
    const auto logits = session.logits();
    REQUIRE(logits.ok());
    return {logits.value().begin(), logits.value().end()};
}

/// A prompt of n_prompt tokens and what plain decoding makes of it, n tokens in all.
inline std::vector<Token> plain_text(const Model& model, size_t n_prompt, size_t n) {
    Session plain = open(model, options_of(Draft::off, 0, 0));
    sync(plain, tiny_ids(n_prompt, 31));
    grow(plain, n);
    return history(plain, n);
}

/// The sources of drafts, none of them first. lookup: `truth`, what the model says after its prompt.
template <class F>
void for_each_source(const Model& model, const std::vector<Token>& truth, F visit) {
    for (const Draft source : {Draft::off, Draft::mtp, Draft::lookup}) {
        CAPTURE(static_cast<int>(source));
        Session session = open(model, options_of(source, 5, 0));
        if (source == Draft::lookup) session.impl()->sources.text.reset(new Truth(truth));
        visit(session, source == Draft::off);
    }
}

}  // namespace reply_rig
