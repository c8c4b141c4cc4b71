// tests/draft_rig: models, sessions and texts for the tests of drafting.
#pragma once
#include <cstdlib>
#include <cstring>

#include "draft_sources.h"
#include "reference.h"
#include "session_rig.h"
#include "tiny.h"

namespace draft_rig {

using namespace auspex;
using namespace auspex::detail;
using namespace test;

/// A tiny model whose file outlives it. Its logits are decided enough that some drafts are right.
struct Tiny {
    std::vector<std::byte> bytes;
    Model model;
    explicit Tiny(Type type = Type::q8_0, TinyOptions options = {}) {
        options.type = type;
        options.scales = TinyOptions::Scales::separate;  // with NVFP4
        bytes = tiny_qwen35(options);
        model = load_model(cpu_device(), bytes);
    }
};

struct Setup {
    DraftOptions draft;
    uint32_t n_context = 512, n_ubatch = 64;
    uint64_t checkpoint_bytes = kDefaultCheckpoints;
    std::unique_ptr<DraftSource> text_source;  ///< in place of lookup
};

inline Setup with(Draft source, int depth) {
    Setup s;
    s.draft.source = source;
    s.draft.depth = depth;
    return s;
}

inline Session open(const Model& model, Setup setup) {
    SessionOptions options;
    options.n_context = setup.n_context;
    options.n_ubatch = setup.n_ubatch;
    options.draft = setup.draft;
    options.checkpoint_bytes = setup.checkpoint_bytes;
    Session session = test::open(model, options);
    if (setup.text_source) session.impl()->sources.text = std::move(setup.text_source);
    return session;
}

inline std::vector<Token> text(const Model& model, Setup setup, const std::vector<Token>& prompt, size_t n,
                               const Sampling& sampling, Stats* stats = nullptr) {
    Session session = open(model, std::move(setup));
    sync(session, prompt);
    std::vector<Token> out = more(session, n, sampling);
    out.resize(n);
    if (stats) *stats = session.stats();
    return out;
}

inline Model demo_model(int n_thread) {
    return load_model(cpu_device(n_thread), repo_dir() + "/examples/models/auspex-demo.gguf");
}

}  // namespace draft_rig
