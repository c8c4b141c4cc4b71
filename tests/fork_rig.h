// tests/fork_rig: sessions that are forked and moved, and what they must give.
#pragma once
#include "session_rig.h"
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

inline Session fork(const Session& session) {
    Session other;
    const Status s = session.fork().get(other);
    REQUIRE_MESSAGE(s.ok(), s.message());
    return other;
}

inline SyncReport move(Session& session, const Model& model) {
    auto r = session.move_to(model);
    REQUIRE_MESSAGE(r.ok(), r.status().message());
    return r.value();
}

/// The device of a session is gone, as far as the engine knows.
inline void lose(Session& session) { (void)session.impl()->trunk->track(Status(Code::device_lost, "for a test")).ok(); }

/// A model that both back ends run.
inline TinyOptions gpu_tiny() { return narrow(); }

}  // namespace fork_rig
