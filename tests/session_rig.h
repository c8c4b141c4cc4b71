// tests/session_rig: what tests do with a session and with lists of tokens; a call that fails ends the test case.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>

#include "../src/engine/session.h"
#include "support.h"

namespace test {

inline auspex::Session open(const auspex::Model& model, const auspex::SessionOptions& options = {}) {
    auspex::Session session;
    const auspex::Status s = auspex::Session::create(model, options).get(session);
    REQUIRE_MESSAGE(s.ok(), s.message());
    return session;
}

inline auspex::SyncReport sync(auspex::Session& session, auspex::Span<const auspex::Token> ids,
                               const std::vector<auspex::Mark>& marks = {}) {
    auto r = session.sync(ids, marks);
    REQUIRE_MESSAGE(r.ok(), r.status().message());
    return r.value();
}

/// At least n tokens: the last cycle may give more.
inline std::vector<auspex::Token> more(auspex::Session& session, size_t n, const auspex::Sampling& sampling = {}) {
    std::vector<auspex::Token> out;
    while (out.size() < n) {
        const auto next = session.next(sampling);
        REQUIRE_MESSAGE(next.ok(), next.status().message());
        REQUIRE(!next.value().empty());
        out.insert(out.end(), next.value().begin(), next.value().end());
    }
    return out;
}
/// Generates until the history has n tokens or more.
inline void grow(auspex::Session& session, size_t n, const auspex::Sampling& sampling = {}) {
    const size_t has = session.history().size();
    if (has < n) more(session, n - has, sampling);
}

/// The history, or its first n tokens if it has more.
inline std::vector<auspex::Token> history(const auspex::Session& session, size_t n = SIZE_MAX) {
    const auspex::Span<const auspex::Token> h = session.history();
    return {h.begin(), h.begin() + std::min(n, h.size())};
}

/// Rows and state of the trunk.
inline std::vector<std::byte> bytes_of(auspex::Session& session) {
    std::vector<std::byte> bytes;
    auspex::Session::Impl& s = *session.impl();
    REQUIRE(s.drain().ok());
    s.timeline.close_step();
    REQUIRE(s.context->save(static_cast<uint32_t>(s.timeline.n_row()), &bytes).ok());
    return bytes;
}

inline std::vector<auspex::Token> first(const std::vector<auspex::Token>& ids, size_t n) {
    return {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n)};
}
inline std::vector<auspex::Token> join(std::vector<auspex::Token> a, const std::vector<auspex::Token>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

}  // namespace test
