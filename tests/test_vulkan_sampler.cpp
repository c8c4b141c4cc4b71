// Steps and sampled_ids on the device: who is sampled, what is accepted, where the next step begins.
#include "../src/auspex.hpp"
#ifndef AUSPEX_NO_VULKAN
#include "vulkan_rig.h"

#include <algorithm>
#include <cmath>
#include <map>

using namespace auspex;
using namespace auspex::detail;
using namespace auspex::detail::args;

namespace {

using u32 = uint32_t;
using test::kStepBytes;
using test::Rig;

void philox(u32 c[4], u32 k0, u32 k1) {
    for (int i = 0; i < 10; i++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const uint64_t a = uint64_t{0xD2511F53u} * c[0], b = uint64_t{0xCD9E8D57u} * c[2];
        const u32 next[4] = {static_cast<u32>(b >> 32) ^ c[1] ^ k0, static_cast<u32>(b),
                             static_cast<u32>(a >> 32) ^ c[3] ^ k1, static_cast<u32>(a)};
        std::copy_n(next, 4, c);
    }
}

/// The sample in double; `clear` is how far the runner-up, or the edge of top-p, is away.
u32 sampled(std::vector<float> l, const SampleArgs& s, const std::vector<u32>& window, u32 position, double* clear) {
    std::map<u32, u32> seen;
    for (u32 id : window) seen[id]++;
    for (const auto& [id, count] : seen) {
        const float x = l[id] > 0 ? l[id] / s.repeat_penalty : l[id] * s.repeat_penalty;
        l[id] = x - (float(count) * s.frequency_penalty + s.presence_penalty);
    }
    std::vector<u32> order(l.size());
    for (u32 i = 0; i < order.size(); i++) order[i] = i;
    std::sort(order.begin(), order.end(), [&](u32 a, u32 b) { return l[a] > l[b] || (l[a] == l[b] && a < b); });
    const double top = l[order[0]];
    if (s.top_k > 0 && s.top_k < order.size()) order.resize(s.top_k);
    *clear = 1;
    const auto mass = [&](u32 id) { return std::floor(std::exp(l[id] - top) * 16777216); };
    if (s.top_p < 1) {
        double total = 0, sum = 0;
        for (u32 id : order) total += mass(id);
        size_t n = 0;
        while (n < order.size() && (n == 0 || sum < s.top_p * total)) {
            sum += mass(order[n++]);
            *clear = std::min(*clear, 1000 * std::fabs(sum / total - s.top_p));
        }
        order.resize(n);
    }
    double best = -1e300, second = -1e300;
    u32 result = 0;
    for (u32 id : order) {
        if (s.min_p > 0 && l[id] < top + std::log(s.min_p)) continue;
        u32 c[4] = {id / 4, position, 0, 0};
        philox(c, s.seed_lo, s.seed_hi);
        const double y = s.temperature > 0
                             ? l[id] / s.temperature - std::log(-std::log1p(-(c[id % 4] + 0.5) / 4294967296.0))
                             : double(l[id]);
        if (y > best || (y == best && id < result)) {
            second = best;
            best = y;
            result = id;
        } else {
            second = std::max(second, y);
        }
    }
    if (s.temperature > 0) *clear = std::min(*clear, best - second);
    return result;
}

}  // namespace

TEST_CASE(
    "greedy samples the largest logit, ties to the lower id, never a NaN; acceptance keeps the drafts that agree") {
    auto vulkan = test::Vulkan::open();
    if (!vulkan) return;
    {
        constexpr u32 kVocab = 5003, kRing = 16;
        Rig rig(*vulkan);
        const u32 step = rig.add(kStepBytes), logits = rig.add(4 * kVocab * kMaxRows),
                  part = rig.add(8 * 13 * kMaxRows), ring = rig.add(16 * kRing);
        rig.take();
        const SamplePassArgs sample{kVocab, 0, kVocab, 13, 388, 0};
        StepArgs accept{};
        accept.ring_length = kRing;
        rig.begin();
        rig.run("sample_part", 256, {}, {step, logits, part}, sample, 13, kMaxRows);
        rig.run("sample_final", 256, {}, {step, part}, sample, kMaxRows);
        rig.run("step_accept", 32, {}, {step, ring}, accept, 1);
        rig.end();
        test::Random random(3);
        for (u32 round = 0; round < 30; round++) {
            StepState* s = rig.at<StepState>(step);
            u32* history = rig.at<u32>(step) + kHistoryWord;
            *s = StepState{};
            const u32 n = 1 + random.below(9), base = 8185 + round, good = random.below(n);
            std::vector<u32> best(n);
            for (u32 r = 0; r < n; r++) {
                float* l = rig.at<float>(logits) + size_t(r) * kVocab;
                for (u32 i = 0; i < kVocab; i++) {
                    l[i] = float(int(random.below(200))) - 210.0f;
                    if (l[i] > l[best[r]]) best[r] = i;
                }
                for (u32 i = 0; i < kVocab; i += 388)  // the first of each slice
                    if (i != best[r] && round % 3 == 0) l[i] = NAN;
            }
            s->n_row = n;
            s->base = s->position = base;
            s->n_draft = n - 1;
            s->limit = round == 7 ? base + 2 : 1u << 30;
            s->ring_write = round;
            for (u32 i = 0; i + 1 < n; i++) history[(base + i + 1) % kHistory] = i < good ? best[i] : best[i] + 1;
            const u32 stop = round % 5 == 0 ? best[good / 2] : 999999;
            s->n_stop = 1;
            s->stop[0] = stop;
            u32 emitted = good + 1, done = 0;
            for (u32 i = 0; i < emitted; i++)
                if (best[i] == stop || base + i + 2 >= s->limit) {
                    emitted = i + 1;
                    done = 1;
                }
            rig.go();
            CHECK(s->n_accept == emitted - 1);
            CHECK(s->done == done);
            CHECK(s->ring_write == round + emitted);
            for (u32 r = 0; r < n; r++) CHECK(s->sampled[r] == best[r]);
            for (u32 i = 0; i < emitted; i++) {
                const RingEntry& e = rig.at<RingEntry>(ring)[(round + i) % kRing];
                CHECK(e.sequence == round + i + 1);
                CHECK(e.token == best[i]);
                CHECK(e.position == base + i + 1);
                CHECK((e.info & 3) == (i + 1 == emitted ? 1 + 2 * done : 0));
                CHECK(history[(base + i + 1) % kHistory] == best[i]);
            }
        }
    }
    vulkan->finish();
}

TEST_CASE("a cycle updates positions, drafts and commits without the host") {
    auto vulkan = test::Vulkan::open();
    if (!vulkan) return;
    {
        Rig rig(*vulkan);
        const u32 step = rig.add(kStepBytes), request = rig.add(4 * (kRequestWords + 16)), ring = rig.add(16 * 16);
        rig.take();
        StepArgs args{};
        args.ring_length = 16;
        args.token_shift = 1;
        StepState* s = rig.at<StepState>(step);
        u32* history = rig.at<u32>(step) + kHistoryWord;
        const auto one = [&](const char* name, u32 mode, u32 n_draft) {
            StepArgs a = args;
            a.mode = mode;
            a.n_draft = n_draft;
            rig.begin();
            const bool accept = std::strcmp(name, "step_accept") == 0, open = std::strcmp(name, "step_open") == 0;
            rig.run(name, open ? 256u : 32u, {},
                    accept ? std::vector<u32>{step, ring} : std::vector<u32>{step, request, step}, a, 1);
            rig.end();
            rig.go();
        };
        StepRequest r{};
        r.n_row = r.n_id = 3;
        r.position = 200;
        r.first_logit = 2;
        r.flags = kRequestTrunk | kRequestSampling;
        r.limit = 207;
        *rig.at<StepRequest>(request) = r;
        for (u32 i = 0; i < 3; i++) rig.at<u32>(request)[kRequestWords + i] = 50 + i;
        one("step_open", 0, 0);  // a prompt of three rows, then the first token
        CHECK(history[202] == 52);
        CHECK(s->parity == 1);
        s->sampled[0] = 60;
        one("step_accept", 0, 0);
        CHECK(history[203] == 60);
        one("step_mtp", 0, 0);
        CHECK(s->n_row == 1);
        CHECK(s->hidden_from == 2);
        CHECK(s->position + s->token_shift == 203);
        s->sampled[0] = 61;  // draft 1
        one("step_next", 0, 0);
        CHECK(history[204] == 61);
        CHECK(s->position + s->token_shift == 204);
        s->sampled[0] = 62;  // draft 2
        one("step_next", 0, 0);
        CHECK(history[205] == 62);
        one("step_open", 1, 2);  // verify 60, 61, 62
        CHECK(s->n_row == 3);
        CHECK(s->position == 203);
        CHECK(s->n_commit == 0);  // the prompt was committed at once
        CHECK(s->tentative == 1);
        s->sampled[0] = 61;
        s->sampled[1] = 99;  // draft 2 was wrong
        s->sampled[2] = 98;
        one("step_accept", 0, 0);
        CHECK(s->n_accept == 1);
        CHECK(s->done == 0);
        CHECK(history[205] == 99);
        one("step_open", 1, 5);  // the limit leaves room for two rows
        CHECK(s->position == 205);
        CHECK(s->n_commit == 2);
        CHECK(s->n_row == 2);
        s->sampled[0] = 97;
        one("step_accept", 0, 0);
        CHECK(s->done == 1);
        const u32 parity = s->parity;
        one("step_open", 1, 2);  // nothing more happens
        CHECK(s->n_row == 0);
        CHECK(s->parity == parity);
        one("step_accept", 0, 0);
        CHECK(s->ring_write == 4);
    }
    vulkan->finish();
}

TEST_CASE("biases are added to the logits of their ids in order, also where a draft vocabulary chose the ids") {
    auto vulkan = test::Vulkan::open();
    if (!vulkan) return;
    {
        constexpr u32 kVocab = 1501, kLogitRows = 3;
        Rig rig(*vulkan);
        const u32 step = rig.add(kStepBytes), logits = rig.add(4 * kVocab * kLogitRows), ids = rig.add(4 * kVocab);
        rig.take();
        test::Random random(17);
        for (const u32 chosen : {0u, 1u}) {
            SamplePassArgs push{kVocab, 0, kVocab, 0, 0, chosen};
            rig.begin();
            rig.run("sample_bias", 256, {}, {step, logits, ids}, push, kLogitRows);
            rig.end();
            std::vector<u32> id_of(kVocab);  // of each logit
            for (u32 i = 0, id = 0; i < kVocab; i++, id++) id_of[i] = chosen ? id += random.below(3) : i;
            std::copy(id_of.begin(), id_of.end(), rig.at<u32>(ids));
            for (const u32 n_bias : {0u, 1u, 3u, 256u, 700u, kMaxBias}) {
                StepState* state = rig.at<StepState>(step);
                *state = StepState{};
                state->n_row = kLogitRows;
                state->sampling.n_bias = n_bias;
                std::vector<std::pair<u32, float>> bias;  // ids in no vocabulary among them, and several of one id
                for (u32 i = 0; i < n_bias; i++) bias.push_back({random.below(2 * kVocab), random.normal() * 7});
                if (n_bias == 3) bias[0].first = bias[1].first = bias[2].first = id_of[kVocab - 1];
                std::stable_sort(bias.begin(), bias.end(), [](auto& a, auto& b) { return a.first < b.first; });
                std::memcpy(rig.at<u32>(step) + kBiasWord, bias.data(), n_bias * sizeof bias[0]);
                std::vector<float> l(kVocab * kLogitRows);
                for (float& x : l) x = random.normal() * 3;
                l[5] = -INFINITY;
                rig.put(logits, l);
                rig.go();
                for (u32 r = 0; r < kLogitRows; r++)
                    for (const auto& [id, value] : bias) {
                        const auto at = std::lower_bound(id_of.begin(), id_of.end(), id);
                        if (at != id_of.end() && *at == id) l[r * kVocab + u32(at - id_of.begin())] += value;
                    }
                CHECK(std::equal(l.begin(), l.end(), rig.at<float>(logits)));
            }
        }
    }
    vulkan->finish();
}

TEST_CASE("penalties count each id of the window once, whatever the window and however often the id is there") {
    auto vulkan = test::Vulkan::open();
    if (!vulkan) return;
    {
        constexpr u32 kVocab = 5000, kLogitRows = 2;
        Rig rig(*vulkan);
        const u32 step = rig.add(kStepBytes), logits = rig.add(4 * kVocab * kLogitRows);
        rig.take();
        rig.begin();
        rig.run("sample_penalty", 256, {}, {step, logits}, SamplePassArgs{kVocab, 0, kVocab, 0, 0, 0}, kLogitRows);
        rig.end();
        test::Random random(12);
        const struct Case {
            u32 window, position, n_id;  // n_id: how many different ids
        } cases[] = {{1, 0, 9},         {2, 0, 9},        {3, 9, 1},        {64, 8150, 9},     {65, 40, 5000},
                     {700, 9000, 5000}, {4079, 4500, 50}, {4096, 4500, 50}, {4096, 9000, 1},   {4096, 12000, 5000},
                     {4096, 4094, 300}, {4096, 70, 300},  {9999, 9999, 99}, {4096, 9000, 9000}};
        for (const Case& one : cases) {
            const u32 window = one.window, position = one.position, n_id = one.n_id;
            CAPTURE(window);
            CAPTURE(position);
            CAPTURE(n_id);
            StepState* state = rig.at<StepState>(step);
            u32* history = rig.at<u32>(step) + kHistoryWord;
            *state = StepState{};
            state->n_row = kLogitRows;
            state->position = position;
            state->sampling.penalty_window = window;
            state->sampling.repeat_penalty = 2;  // values that make every result exact
            state->sampling.frequency_penalty = 0.5f;
            state->sampling.presence_penalty = 0.25f;
            const u32 first = random.below(kHistory);
            for (u32 i = 0; i < kHistory; i++)  // 9000: each once, and some in no vocabulary
                history[(first + i) % kHistory] = n_id == 9000 ? i : random.below(n_id) * (kVocab / n_id);
            std::vector<float> l(kVocab * kLogitRows);
            for (float& x : l) x = float(random.below(257)) * 0.25f - 32;
            rig.put(logits, l);
            rig.go();
            for (u32 r = 0; r < kLogitRows; r++) {
                const u32 end = position + r + 1;
                std::map<u32, u32> seen;
                for (u32 i = 0; i < std::min({window, end, kMaxPenaltyWindow}); i++)
                    seen[history[(end - 1 - i) % kHistory]]++;
                for (const auto& [id, count] : seen) {
                    if (id >= kVocab) continue;
                    float& x = l[r * kVocab + id];
                    x = (x > 0 ? x / 2 : x * 2) - (float(count) * 0.5f + 0.25f);
                }
            }
            CHECK(std::equal(l.begin(), l.end(), rig.at<float>(logits)));
        }
    }
    vulkan->finish();
}

TEST_CASE("sampling follows its definition: penalties, top-k, top-p, min-p, temperature, keyed noise, never a NaN") {
    u32 known[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
    philox(known, 0xa4093822, 0x299f31d0);
    REQUIRE(known[0] == 0xd16cfe09);
    REQUIRE(known[3] == 0x24126ea1);
    auto vulkan = test::Vulkan::open();
    if (!vulkan) return;
    {
        constexpr u32 kVocab = 1501, kLogitRows = 3, kParts = 5;
        Rig rig(*vulkan);
        const u32 step = rig.add(kStepBytes), logits = rig.add(4 * kVocab * kLogitRows),
                  part = rig.add(8 * kParts * kLogitRows), hist = rig.add(4 * kSampleRowWords * kLogitRows),
                  list = rig.add(8 * kVocab * kLogitRows), best = rig.add(8 * kParts * kLogitRows);
        rig.take();
        const SamplePassArgs push{kVocab, 0, kVocab, kParts, (kVocab + kParts - 1) / kParts, 0};
        rig.begin();
        rig.run("sample_penalty", 256, {}, {step, logits}, push, kLogitRows);
        rig.run("sample_part", 256, {}, {step, logits, part}, push, kParts, kLogitRows);
        rig.run("sample_hist", 256, {}, {step, logits, part, hist}, push, kParts, kLogitRows);
        rig.run("sample_gather", 256, {{vk::spec::sample_gather::kFrom, kSampleAll}},
                {step, logits, part, hist, list, best}, push, kParts, kLogitRows);
        rig.run("sample_draw", 256, {{vk::spec::sample_draw::kFrom, kSampleAll}}, {step, part, hist, list, best}, push,
                kLogitRows);
        rig.end();
        test::Random random(11);
        const u32 top_k[] = {0, 20, 0, 1, 500, 0};
        const float top_p[] = {1, 0.95f, 0.9f, 0.5f, 0.99f};
        u32 n_clear = 0;
        for (u32 round = 0; round < 42; round++) {
            SampleArgs s{};
            s.temperature = round % 7 == 6 ? 0.0f : 0.5f + 0.25f * float(round % 4);
            s.top_k = top_k[round % 6];
            s.top_p = top_p[round % 5];
            s.min_p = round % 3 == 2 ? 0.05f : 0.0f;
            s.repeat_penalty = round % 4 == 1 ? 1.3f : 1.0f;
            s.frequency_penalty = round % 8 == 3 ? 0.4f : 0.0f;
            s.presence_penalty = round % 4 == 3 ? 1.5f : 0.0f;
            s.penalty_window = round % 2 == 0 ? 64 : 700;
            s.seed_lo = round * 77 + 1;
            s.seed_hi = round;
            StepState* state = rig.at<StepState>(step);
            u32* history = rig.at<u32>(step) + kHistoryWord;
            *state = StepState{};
            state->n_row = kLogitRows;
            state->position = 8180 + round;
            state->sampling = s;
            for (u32 i = 0; i < kHistory; i++) history[i] = random.below(kVocab);
            std::vector<float> l(kVocab * kLogitRows);
            for (float& x : l)
                x = round % 11 == 5 ? float(random.below(20)) : random.normal() * (round % 3 == 0 ? 1.0f : 3.0f);
            std::vector<float> given = l;
            for (u32 i = 0; i < 400 && round % 2 == 0; i++) {  // a slice of them, and more
                given[i] = NAN;
                l[i] = -INFINITY;
            }
            rig.put(logits, given);
            rig.go();
            for (u32 r = 0; r < kLogitRows; r++) {
                const u32 end = state->position + r + 1;
                std::vector<u32> window;
                for (u32 i = 0; i < s.penalty_window; i++) window.push_back(history[(end - 1 - i) % kHistory]);
                double clear = 0;
                const u32 want = sampled(std::vector<float>(l.begin() + r * kVocab, l.begin() + (r + 1) * kVocab), s,
                                         window, end, &clear);
                if (clear < 1e-4) continue;  // too close to tell apart in single precision
                n_clear++;
                CHECK(state->sampled[r] == want);
            }
            for (u32 i = 0; i < kSampleRowWords * kLogitRows; i++) REQUIRE(rig.at<u32>(hist)[i] == 0);
        }
        CHECK(n_clear > 100);

        // A quotient beyond float: the largest logit, not the lowest id.
        for (const u32 top_k : {0u, 20u}) {
            StepState* state = rig.at<StepState>(step);
            *state = StepState{};
            state->n_row = kLogitRows;
            state->sampling.temperature = 1e-20f;
            state->sampling.top_k = top_k;
            state->sampling.top_p = state->sampling.repeat_penalty = 1;
            std::vector<float> l(kVocab * kLogitRows, 1e20f);
            for (u32 r = 0; r < kLogitRows; r++) l[r * kVocab + 700 + r] = 2e20f;
            l[2 * kVocab + 702] = 3e30f;
            rig.put(logits, l);
            rig.go();
            for (u32 r = 0; r < kLogitRows; r++) CHECK(state->sampled[r] == 700 + r);
        }
    }
    vulkan->finish();
}
#endif  // AUSPEX_NO_VULKAN
