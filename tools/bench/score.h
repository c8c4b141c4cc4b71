// bench/score: the arithmetic of what auspex-bench prints: confidence intervals, diversity of a text, break-even of
// drafting, scores against hindsight. Standard library alone: no model, no clock, no printing.
//
// Thread  plain functions.
// Tests   tests/test_score.cpp.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

namespace cli {

struct Interval {
    double low = 0, high = 1;
};

/// The 95 % confidence interval of a share of which `hits` of `n` samples are known; 0 .. 1 for n = 0.
/// Source: Wilson, Probable Inference, the Law of Succession, and Statistical Inference (1927). Unlike the
/// textbook interval it stays within 0 .. 1 and holds for few samples and for shares near the ends.
inline Interval wilson(uint64_t hits, uint64_t n) {
    if (n == 0) return {};
    const double z = 1.959963984540054, count = double(n), p = double(hits) / count;
    const double middle = p + z * z / (2 * count),
                 half = z * std::sqrt(p * (1 - p) / count + z * z / (4 * count * count)), scale = 1 + z * z / count;
    return {std::max(0.0, (middle - half) / scale), std::min(1.0, (middle + half) / scale)};
}

/// The share of runs of `n` ids that occur for the first time: 1 when nothing repeats, near 0 in a loop;
/// 1 for a text of fewer than n ids.
inline double distinct_share(const std::vector<int32_t>& ids, size_t n) {
    if (n == 0 || ids.size() < n) return 1;
    std::set<std::vector<int32_t>> seen;
    const size_t all = ids.size() - n + 1;
    for (size_t i = 0; i < all; ++i)
        seen.insert(std::vector<int32_t>(ids.begin() + static_cast<std::ptrdiff_t>(i),
                                         ids.begin() + static_cast<std::ptrdiff_t>(i + n)));
    return double(seen.size()) / double(all);
}

/// Accepted/drafted above which a depth of g >= 1 pays if its cycle costs r plain steps.
inline double break_even_ratio(double r, uint32_t g) { return (r - 1) / g; }

/// The same as conditional acceptance: the a with 1 + a + .. + a^g = r; above 1 when r is beyond g + 1.
inline double break_even_acceptance(double r, uint32_t g) {
    double low = 0, high = 2;
    for (int i = 0; i < 60; ++i) {  // the sum grows with a: halve the interval
        const double a = (low + high) / 2;
        double tokens = 1;
        for (uint32_t k = 0; k < g; ++k) tokens = 1 + a * tokens;
        (tokens > r ? high : low) = a;
    }
    return high;
}

inline double median(std::vector<double> v) {
    if (v.empty()) return 0;
    std::sort(v.begin(), v.end());
    return v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

inline double sum(const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0); }

/// Seconds by [policy][run][phase]. Policies 0 .. n-2 are the fixed depths, 0 first; the last one is judged.
using Seconds = std::vector<std::vector<std::vector<double>>>;

/// The judged policy against the fixed depths. The best depth of a phase is the one with the lowest median over
/// the runs, so that no single lucky run decides; run k is compared with run k.
struct Hindsight {
    struct Share {
        double mean = 0, min = 0, max = 0;  ///< over the runs
    };
    std::vector<size_t> best;     ///< depth by phase
    std::vector<Share> by_phase;  ///< the best depth's time / own time
    Share all;                    ///< the same over the whole text
    Share over_off;               ///< depth 0's time / own time, over the whole text
    double worst_phase = 0;       ///< the lowest mean of by_phase
};

inline Hindsight hindsight(const Seconds& seconds) {
    Hindsight h;
    if (seconds.size() < 2 || seconds[0].empty()) return h;
    const size_t n_fixed = seconds.size() - 1, n_run = seconds[0].size(), n_phase = seconds[0][0].size();
    const auto& own = seconds.back();
    const auto share = [&](auto ratio) {
        Hindsight::Share s;
        for (size_t run = 0; run < n_run; ++run) {
            const double r = ratio(run);
            s.mean += r / double(n_run);
            s.min = run == 0 ? r : std::min(s.min, r);
            s.max = std::max(s.max, r);
        }
        return s;
    };
    for (size_t phase = 0; phase < n_phase; ++phase) {
        size_t best = 0;
        double min = 0;
        for (size_t g = 0; g < n_fixed; ++g) {
            std::vector<double> times;
            for (size_t run = 0; run < n_run; ++run) times.push_back(seconds[g][run][phase]);
            const double t = median(times);
            if (g == 0 || t < min) min = t, best = g;
        }
        h.best.push_back(best);
        h.by_phase.push_back(share([&](size_t run) { return seconds[best][run][phase] / own[run][phase]; }));
        h.worst_phase = phase == 0 ? h.by_phase[0].mean : std::min(h.worst_phase, h.by_phase.back().mean);
    }
    h.all = share([&](size_t run) {
        double best = 0;
        for (size_t phase = 0; phase < n_phase; ++phase) best += seconds[h.best[phase]][run][phase];
        return best / sum(own[run]);
    });
    h.over_off = share([&](size_t run) { return sum(seconds[0][run]) / sum(own[run]); });
    return h;
}

}  // namespace cli
