// tests/fork_rig: sessions that are forked and moved, and what they must give.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>

#include "../src/engine/session.h"
#include "tiny.h"

namespace fork_rig {

using namespace auspex;
using namespace auspex::detail;
using namespace test;

constexpr int kOff = -2;  ///< no draft source

inline SessionOptions options_of(int depth, uint32_t run_ahead = 0) {
    SessionOptions o;
    o.n_context = 512;
    o.n_ubatch = 32;
    o.draft.source = depth == kOff ? Draft::off : Draft::mtp;
    o.draft.depth = depth == kOff ? 0 : depth;
    o.run_ahead = run_ahead;
    o.checkpoint_bytes = uint64_t{16} << 20;
    return o;
}

inline Session open(const Model& model, const SessionOptions& options) {
    Session session;
    const Status s = Session::create(model, options).get(session);
    REQUIRE_MESSAGE(s.ok(), s.message());
    return session;
}

inline Session fork(const Session& session) {
    Session other;
    const Status s = session.fork().get(other);
    REQUIRE_MESSAGE(s.ok(), s.message());
    return other;
}

inline SyncReport sync(Session& session, const std::vector<Token>& ids, const std::vector<Mark>& marks = {}) {
    auto r = session.sync(ids, marks);
    REQUIRE_MESSAGE(r.ok(), r.status().message());
    return r.value();
}

inline SyncReport move(Session& session, const Model& model) {
    auto r = session.move_to(model);
    REQUIRE_MESSAGE(r.ok(), r.status().message());
    return r.value();
}

/// Generates until the history has n tokens or more.
inline void grow(Session& session, size_t n, const Sampling& sampling = {}) {
    while (session.history().size() < n) {
        const auto r = session.next(sampling);
        REQUIRE_MESSAGE(r.ok(), r.status().message());
    }
}

inline std::vector<Token> history(const Session& session, size_t n = SIZE_MAX) {
    const Span<const Token> h = session.history();
    return {h.begin(), h.begin() + std::min(n, h.size())};
}

inline std::vector<Token> join(std::vector<Token> a, const std::vector<Token>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

/// Rows and state as bytes. A GPU's also hold convolution inputs that no later row reads.
inline std::vector<std::byte> bytes_of(Session& session) {
    std::vector<std::byte> bytes;
    Session::Impl& s = *session.impl();
    REQUIRE(s.drain().ok());
    s.timeline.close_step();
    REQUIRE(s.context->save(static_cast<uint32_t>(s.timeline.n_row()), &bytes).ok());
    return bytes;
}
inline bool on_cpu(const Session& session) { return session.impl()->model->device->machine->kind() == Kind::cpu; }

/// The device of a session is gone, as far as the engine knows.
inline void lose(Session& session) { (void)session.impl()->trunk->track(Status(Code::device_lost, "for a test")).ok(); }

/// A model that both back ends run.
inline TinyOptions gpu_tiny() {
    TinyOptions o;
    o.n_head_k = 1;
    o.n_head_v = 2;
    return o;
}

}  // namespace fork_rig
