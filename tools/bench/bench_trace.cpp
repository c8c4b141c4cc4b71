#include "bench_trace.h"

namespace cli {

uint64_t seed_of(uint64_t a, uint64_t b, uint64_t c) {
    auspex::detail::Fnv hash;
    for (const uint64_t v : {a, b, c})
        for (int shift = 0; shift < 64; shift += 16) hash.mix((v >> shift) & 0xffff);
    return hash.value;
}

void append_tokens(const TextPart& part, std::vector<Token>* ids) {
    constexpr uint64_t kVocab = 248320;  // of the published models of this family
    uint64_t state = part.seed;
    for (size_t i = 0; i < part.n; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids->push_back(static_cast<Token>((state >> 33) % kVocab));
    }
}

size_t RequestTrace::max_tokens() const {
    size_t n = 0;
    for (const TraceRequest& r : requests) n = std::max(n, r.n_prompt + r.answer.n);
    return n;
}

size_t SeenText::known(const std::vector<TextPart>& prompt) const {
    size_t n = 0;
    Key key{0, 0, 0};
    for (const TextPart& part : prompt) {
        key.seed = part.seed;
        const auto at = parts_.find(key);
        if (at == parts_.end()) return n;
        n += std::min(part.n, at->second.n);
        if (at->second.n < part.n) return n;
        key = {at->second.id, part.n, 0};
    }
    return n;
}

void SeenText::add(const std::vector<TextPart>& text) {
    Key key{0, 0, 0};
    for (const TextPart& part : text) {
        key.seed = part.seed;
        Known& known = parts_[key];
        if (known.id == 0) known.id = parts_.size();
        known.n = std::max(known.n, part.n);
        key = {known.id, part.n, 0};
    }
}

}  // namespace cli
