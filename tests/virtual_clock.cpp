#include "virtual_clock.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

namespace virtual_clock {

using auspex::detail::AcceptanceProbe;
using auspex::detail::Controller;
using auspex::detail::Decision;
using auspex::detail::DraftSeen;

const Curve kCurve[kCurves] = {{"moe", 1.69, 0.49, 0.15},
                               {"dense", 1.20, 0.15, 0.02},
                               {"moe_trimmed", 1.37, 0.35, 0.10},
                               {"unprofitable", 2.31, 0.50, 0.15}};

namespace {

constexpr double kPlainSeconds = 0.02, kDeeper = 0.985;

uint64_t mix(uint64_t z) {  // splitmix64
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
/// The i-th number in (0, 1) of a stream.
double uniform(uint64_t seed, uint64_t stream, uint64_t i) {
    return (double(mix(mix(mix(seed) ^ stream) ^ i) >> 11) + 0.5) / 9007199254740992.0;
}
double normal(uint64_t seed, uint64_t stream, uint64_t i) {
    return std::sqrt(-2 * std::log(uniform(seed, stream, 2 * i))) *
           std::cos(6.283185307179586 * uniform(seed, stream, 2 * i + 1));
}
enum Stream : uint64_t { kOutcome = 1, kLevel, kTime, kAccident, kAccidentSize, kShared };

/// Load by other processes: factors on the time of a plain step and on what drafts add to it.
struct Load {
    double plain = 1, drafts = 1;
};

struct Text {
    std::vector<double> u, level;
    std::vector<uint32_t> phase;
    std::vector<uint32_t> first;  // token of each phase
    std::vector<Load> load;       // of the machine when it is reached
    uint32_t n() const { return static_cast<uint32_t>(u.size()); }
};

Text record(const Workload& w, const Settings& s) {
    const uint64_t seed = s.seed;
    Text t;
    double wander = 0;
    Load load;
    for (uint32_t i = 0; i < w.phases.size(); ++i) {
        t.first.push_back(t.n());
        for (uint32_t k = 0; k < w.phases[i].n_token; ++k) {
            const uint64_t p = t.u.size();
            wander = 0.95 * wander + std::sqrt(1 - 0.95 * 0.95) * normal(seed, kLevel, p);
            t.u.push_back(uniform(seed, kOutcome, p));
            t.level.push_back(std::clamp(w.phases[i].acceptance + w.phases[i].wander * wander, 0.02, 0.995));
            t.phase.push_back(i);
            if (uniform(seed, kShared, 4 * p) < s.shared) {
                const bool quiet = uniform(seed, kShared, 4 * p + 1) < 0.5;
                load.plain = quiet ? 1 : std::exp(0.26 + 0.84 * uniform(seed, kShared, 4 * p + 2));
                load.drafts = quiet ? 1 : load.plain * uniform(seed, kShared, 4 * p + 3);
            }
            t.load.push_back(load);
        }
    }
    return t;
}

/// Attention makes a plain step slower with context, and a verify somewhat more so: published R(3) - 1
/// grows by a quarter over 100K tokens.
double cycle_seconds(const Curve& c, const Phase& at, const Load& load, uint32_t context, uint32_t depth) {
    const double length = context / 65536.0, plain = kPlainSeconds * (1 + length) * at.clock;
    if (depth == 0) return plain * load.plain;
    double r = 1 + (c.first - 1 + c.slope * (depth - 1)) * (1 + 0.2 * length) * at.load;
    r = std::max(r, at.min_row_cost * (depth + 1));
    return plain * (load.plain + (r - 1) * load.drafts);
}

class Fixed : public Policy {
  public:
    explicit Fixed(uint32_t depth) : depth_(depth) {}
    Decision next(uint32_t) override { return {depth_, 0}; }

  private:
    uint32_t depth_;
};

/// Three drafts or none. Drafts while accepted/drafted over the last 16 cycles is above a bound; else
/// stays off for 64 tokens and tries again with 8 cycles.
class Toggle : public Policy {
  public:
    Toggle(double threshold, bool measured) : threshold_(threshold), measured_(measured) {}
    Decision next(uint32_t) override {
        if (measured_ && n_plain_ < 2) return {0, 0};
        return {off_ > 0 ? 0u : kDepth, 0};
    }
    void observe(const DraftSeen& s) override {
        if (s.depth == 0) {
            plain_ += (s.seconds - plain_) / std::min(++n_plain_, 20.0);
            if (off_ > 0 && --off_ == 0) window_.clear();
            return;
        }
        drafting_ += (s.seconds - drafting_) / std::min(++n_drafting_, 20.0);
        window_.push_back(s.accepted);
        if (window_.size() > 16) window_.pop_front();
        if (window_.size() < 8) return;
        double sum = 0;
        for (const uint32_t a : window_) sum += a;
        const double r = sum / (double(kDepth) * double(window_.size()));
        if (r < (measured_ ? (drafting_ / plain_ - 1) / kDepth : threshold_)) off_ = 64;
    }

  private:
    static constexpr uint32_t kDepth = 3;
    double threshold_;
    bool measured_;
    double plain_ = 0, n_plain_ = 0, drafting_ = 0, n_drafting_ = 0;
    uint32_t off_ = 0;
    std::deque<uint32_t> window_;
};

class Controlled : public Policy {
  public:
    explicit Controlled(Controller& by) : by_(by) {}
    Decision next(uint32_t context) override { return by_.next(context); }
    void observe(const DraftSeen& s) override { by_.observe(s); }
    void observe_acceptance_probe(const AcceptanceProbe& s) override { by_.observe_acceptance_probe(s); }

  private:
    Controller& by_;
};

std::vector<Phase> repeat(const std::vector<Phase>& these, uint32_t n) {
    std::vector<Phase> all;
    for (uint32_t i = 0; i < n; ++i) all.insert(all.end(), these.begin(), these.end());
    return all;
}
/// Contexts that go on from `start`.
Workload chain(std::string name, std::vector<Phase> phases, uint32_t start) {
    for (Phase& p : phases) p.context = start, start += p.n_token;
    return {std::move(name), std::move(phases)};
}

}  // namespace

std::unique_ptr<Policy> fixed_depth(uint32_t depth) { return std::make_unique<Fixed>(depth); }
std::unique_ptr<Policy> fixed_toggle(double threshold) { return std::make_unique<Toggle>(threshold, false); }
std::unique_ptr<Policy> measured_toggle() { return std::make_unique<Toggle>(0, true); }
std::unique_ptr<Policy> controlled(Controller& by) { return std::make_unique<Controlled>(by); }

std::vector<Workload> workloads() {
    // Levels: published accepted/drafted of 0.88 .. 0.96 on logs and code is a conditional 0.95 .. 0.98;
    // open-ended text reaches 0.45 .. 0.75.
    const auto text = [](const char* kind, uint32_t n, double acceptance, double wander = 0.04) {
        Phase p;
        p.kind = kind, p.n_token = n, p.acceptance = acceptance, p.wander = wander;
        return p;
    };
    const Phase code = text("code", 256, 0.90), prose = text("prose", 256, 0.55), json = text("json", 256, 0.96);
    std::vector<Workload> all;
    all.push_back(chain("W1 code/prose/json/prose", repeat({code, prose, json, prose}, 4), 1024));
    all.push_back(chain("W2 log", {text("log", 2048, 0.97, 0.02)}, 1024));
    all.push_back(chain("W3 open-ended", {text("open", 2048, 0.45)}, 1024));
    std::vector<Phase> flips;
    for (const uint32_t n : {32u, 64u, 128u})
        for (uint32_t i = 0; i < 2048 / n; ++i)
            flips.push_back(i % 2 == 0 ? text("easy", n, 0.95, 0.02) : text("hard", n, 0.35));
    for (Phase& p : flips) p.kind += " " + std::to_string(p.n_token);
    all.push_back(chain("W4 flips", flips, 1024));
    // Turns of 512 tokens after pasted documents of 1K to 64K tokens.
    Workload growing{"W5 context 1K to 64K", {}};
    for (uint32_t i = 0; i < 14; ++i) {
        Phase p = i % 2 == 0 ? code : prose;
        p.n_token = 512;
        p.context = static_cast<uint32_t>(1024 * std::pow(64.0, i / 14.0));
        growing.phases.push_back(p);
    }
    all.push_back(growing);
    // The clock falls to 0.6 for a while; later another process makes extra rows dearer.
    std::vector<Phase> load = repeat({code, prose}, 8);
    for (size_t i = 4; i < 8; ++i) load[i].clock = 1 / 0.6, load[i].kind += " slow";
    for (size_t i = 10; i < 14; ++i) load[i].load = 1.4, load[i].kind += " loaded";
    all.push_back(chain("W6 clock and load", load, 1024));
    all.push_back(chain("W7 temperature 0.7", {text("warm", 2048, 0.70, 0.10)}, 1024));
    // Each row costs more than a plain step: not even certain drafts pay.
    std::vector<Phase> never = repeat({text("log", 256, 0.97, 0.02), text("open", 256, 0.45)}, 4);
    for (Phase& p : never) p.min_row_cost = 1.15;
    all.push_back(chain("W8 unprofitable cost", never, 1024));
    return all;
}

Played play(const Workload& w, const Curve& c, const Settings& s, Policy& policy) {
    const Text text = record(w, s);
    Played out;
    out.seconds.assign(w.phases.size(), 0);
    struct Result {
        DraftSeen cycle;
        AcceptanceProbe acceptance_probe;
    };
    std::deque<Result> in_flight;  // finished, not yet reported to the policy
    uint64_t i_cycle = 0;
    const uint32_t n = text.n();
    for (uint32_t at = 0; at < n;) {
        const Phase& phase = w.phases[text.phase[at]];
        const uint32_t context = phase.context + at - text.first[text.phase[at]];
        const Decision d = policy.next(context);
        const uint32_t depth = d.depth;
        Result r;
        r.cycle.depth = depth;
        r.cycle.context = context;
        while (r.cycle.accepted < depth) {
            const uint32_t p = at + r.cycle.accepted;
            if (p >= n || !(text.u[p] < text.level[p] * std::pow(kDeeper, r.cycle.accepted))) break;
            ++r.cycle.accepted;
        }
        double noise = std::exp(s.noise * normal(s.seed, kTime, i_cycle));
        if (uniform(s.seed, kAccident, i_cycle) < s.accidents)
            noise *= 1.5 + 1.5 * uniform(s.seed, kAccidentSize, i_cycle);
        ++i_cycle;
        r.cycle.seconds = cycle_seconds(c, phase, text.load[at], context, depth) * noise;
        if (d.probe_rows > 0) {
            const uint32_t rows = std::min(d.probe_rows, at);
            r.acceptance_probe.n = rows;
            for (uint32_t k = 0; k < rows; ++k) {
                const uint32_t p = at - rows + k;
                if (text.u[p] < text.level[p]) ++r.acceptance_probe.hits, r.acceptance_probe.order |= 1u << k;
            }
            // Half of a pass is weights that any row needs, half grows with the rows.
            r.acceptance_probe.seconds =
                cycle_seconds(c, phase, text.load[at], context, 0) * c.acceptance_probe * (0.5 + 0.5 * rows / 16.0);
            out.seconds[text.phase[at]] += r.acceptance_probe.seconds;
            out.probe_seconds += r.acceptance_probe.seconds;
        }
        const uint32_t n_new = r.cycle.accepted + 1;
        for (uint32_t k = 0; k < n_new; ++k)  // a cycle over a border is shared by its tokens
            out.seconds[text.phase[std::min(at + k, n - 1)]] += r.cycle.seconds / n_new;
        at += n_new;
        in_flight.push_back(r);
        while (in_flight.size() > s.lag) {
            if (in_flight.front().acceptance_probe.n > 0)
                policy.observe_acceptance_probe(in_flight.front().acceptance_probe);
            policy.observe(in_flight.front().cycle);
            in_flight.pop_front();
        }
    }
    for (const double t : out.seconds) out.total += t;
    return out;
}

std::vector<Table> score_runs(uint32_t n_run, const Settings& s) {
    const char* const names[] = {"controller", "off", "fixed_3", "toggle_0.80", "toggle_measured"};
    std::vector<Table> tables;
    for (const char* name : names) {
        tables.emplace_back();
        tables.back().policy = name;
    }
    struct Sum {
        double best = 0, own = 0;
        double ratio() const { return best / own; }
    };
    struct Run {
        Sum all;
        std::map<std::string, Sum> kinds, flips;
        double off = 0, acceptance_probe = 0, n_switch = 0, single = 1e9, over_off = 1e9;
    };
    for (const Workload& w : workloads()) {
        for (const Curve& c : kCurve) {
            std::vector<Run> runs(tables.size());
            for (uint32_t i_run = 0; i_run < n_run; ++i_run) {
                Settings now = s;
                now.seed += i_run;
                const Played off = play(w, c, now, *fixed_depth(0));
                std::vector<double> best = off.seconds;
                for (uint32_t g = 1; g <= s.max_depth; ++g) {
                    const Played p = play(w, c, now, *fixed_depth(g));
                    for (size_t k = 0; k < best.size(); ++k) best[k] = std::min(best[k], p.seconds[k]);
                }
                for (size_t i = 0; i < tables.size(); ++i) {
                    Controller controller(s.max_depth);
                    const std::unique_ptr<Policy> policy = i == 0   ? controlled(controller)
                                                           : i == 1 ? fixed_depth(0)
                                                           : i == 2 ? fixed_depth(3)
                                                           : i == 3 ? fixed_toggle(0.80)
                                                                    : measured_toggle();
                    const Played own = play(w, c, now, *policy);
                    Run& run = runs[i];
                    for (size_t k = 0; k < best.size(); ++k) {
                        const Phase& phase = w.phases[k];
                        for (Sum* sum : {&run.all, &run.kinds[phase.n_token <= 128 ? "flips" : phase.kind],
                                         &run.flips[phase.kind]})
                            sum->best += best[k], sum->own += own.seconds[k];
                        run.single = std::min(run.single, best[k] / own.seconds[k]);
                    }
                    run.off += off.total;
                    run.over_off = std::min(run.over_off, off.total / own.total);
                    run.acceptance_probe += own.probe_seconds;
                    if (i == 0) run.n_switch += double(controller.report().n_depth_change);
                }
            }
            for (size_t i = 0; i < tables.size(); ++i) {
                const Run& run = runs[i];
                Score score;
                score.workload = w.name;
                score.curve = c.name;
                score.hindsight = run.all.ratio();
                score.over_off = run.off / run.all.own;
                score.worst_over_off = run.over_off;
                score.worst_single = run.single;
                score.n_switch = run.n_switch / n_run;
                score.acceptance_probe_share = run.acceptance_probe / run.all.own;
                score.worst_phase = score.worst_flip = 1e9;
                for (const auto& kind : run.kinds)
                    if (kind.second.ratio() < score.worst_phase)
                        score.worst_phase = kind.second.ratio(), score.worst_kind = kind.first;
                for (const auto& kind : run.flips) score.worst_flip = std::min(score.worst_flip, kind.second.ratio());
                Table& t = tables[i];
                t.mean += score.hindsight;
                t.worst_run = std::min(t.worst_run, score.hindsight);
                t.worst_phase = std::min(t.worst_phase, score.worst_phase);
                t.worst_flip = std::min(t.worst_flip, score.worst_flip);
                t.worst_single = std::min(t.worst_single, score.worst_single);
                t.min_over_off = std::min(t.min_over_off, score.worst_over_off);
                t.scores.push_back(std::move(score));
            }
        }
    }
    for (Table& t : tables) t.mean /= double(t.scores.size());
    return tables;
}

}  // namespace virtual_clock
