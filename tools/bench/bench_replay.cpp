// bench_replay: the controller against every fixed depth, phase by phase, in hindsight.
//
// No policy can change the text, so all of them generate the same tokens from the same openings and seed, and only the
// time differs. With --synth-phases acceptance is synthetic, for models with random weights; the phases then differ in
// its probability.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <deque>

#include "bench_texts.h"
#include "examples/cli/draft.h"
#include "../synthetic_acceptance.h"
#include "examples/cli/platform.h"
#include "examples/cli/plot.h"

namespace cli {
namespace {

struct Phase {
    std::string name;
    std::vector<Token> opening;  ///< appended before it; empty: the text just goes on
    float synth_accept = 0;
};

/// One policy's run over all phases.
struct Played {
    std::vector<double> seconds;  ///< by phase
    std::vector<Token> text;      ///< everything generated
    std::vector<auspex::DraftCycle> cycles;
    std::vector<size_t> first;  ///< cycle with which each phase begins
    auspex::Session session;    ///< while it runs; writes to `cycles`
    uint32_t synth_seed = 1;
};

class Replay {
  public:
    explicit Replay(Bench& b) : b_(b), o_(b.o) {}

    Status run() {
        std::vector<Opening> openings;
        Status s =
            o_.synth_phases.empty() ? read_openings(o_, {"log", "story", "code", "json"}, &openings) : read_chances();
        if (s.ok()) s = b_.open();
        if (s.ok()) s = b_.warm_up();
        draft_.source = auspex::Draft::mtp;
        if (s.ok()) s = choose_draft_vocab(o_.draft_vocab, b_.on.model.info(), &draft_);
        if (!s.ok()) return s;
        make_phases(openings);
        n_policy_ = static_cast<size_t>(o_.draft_max) + 2;
        played_.resize(n_policy_);
        seconds_.resize(n_policy_);
        b_.say("%zu phases of %lld tokens, %lld runs; every policy from the same start\n", phases_.size(),
               static_cast<long long>(o_.phase), static_cast<long long>(o_.repeat));
        for (int64_t run = -1; run < o_.repeat; ++run) {  // the first one is not counted: kernels are made in it
            s = play(run);
            clear_progress_line();
            if (!s.ok()) return s;
        }
        report();
        if (!same_text_)
            return Status(
                Code::unsupported,
                "the policies did not generate the same text: drafting is not lossless on this device; please "
                "report it");
        if (s.ok() && !o_.trace.empty()) b_.files = trace();
        if (s.ok() && b_.files.ok() && !o_.plot.empty()) b_.files = plot();
        return s;
    }

  private:
    size_t controller() const { return n_policy_ - 1; }
    std::string policy_name(size_t policy) const {
        return policy == controller() ? "controller" : policy == 0 ? "off" : "depth " + std::to_string(policy);
    }

    Status read_chances() {
        const std::string& list = o_.synth_phases;
        for (size_t from = 0; from <= list.size();) {
            const size_t end = std::min(list.find(',', from), list.size());
            const std::string part = list.substr(from, end - from);
            char* rest = nullptr;
            const double chance = std::strtod(part.c_str(), &rest);
            if (part.empty() || *rest != 0 || !(chance > 0 && chance <= 1))
                return Status(Code::bad_argument,
                              "--synth-phases has '" + part +
                                  "', expected chances above 0 and up to 1 with commas between them, as in 0.95,0.35");
            chances_.push_back(static_cast<float>(chance));
            from = end + 1;
        }
        return {};
    }

    void make_phases(const std::vector<Opening>& openings) {
        constexpr size_t kOpeningBytes = 600;
        for (int64_t round = 0; round < o_.rounds; ++round) {
            for (const Opening& opening : openings)
                phases_.push_back({opening.name,
                                   tokens_of(b_.on.model, opening, kOpeningBytes, static_cast<uint64_t>(round) + 1),
                                   0});
            for (const float chance : chances_) {
                char name[32];
                std::snprintf(name, sizeof name, "accept %.2f", double{chance});
                phases_.push_back({name, {}, chance});
            }
        }
        if (!chances_.empty()) phases_[0].opening = b_.ids(static_cast<size_t>(o_.context));
        n_context_ = 16;
        for (const Phase& p : phases_)
            n_context_ += p.opening.size() + static_cast<size_t>(o_.phase) + 6 * (auspex::kMaxDraft + 1);
    }

    /// All policies from the start, in new sessions, so that nothing was learned before. They take turns of a few
    /// tokens: what slows the machine for a while slows all of them.
    Status play(int64_t run) {
        std::deque<Played> now(n_policy_);
        for (size_t i = 0; i < n_policy_; ++i) {
            auspex::DraftOptions draft = i == 0 ? Bench::no_draft() : draft_;
            draft.depth = i == controller() ? -1 : static_cast<int>(i);
            draft.max_depth = static_cast<uint32_t>(o_.draft_max);
            const Status s = b_.session(o_.window, n_context_, "--phase and --rounds, and their openings (--context)",
                                        draft, &now[i].cycles)
                                 .get(now[i].session);
            if (!s.ok()) return s;
            now[i].synth_seed = static_cast<uint32_t>(run + 2);
        }
        std::vector<Token> history;
        const size_t n = static_cast<size_t>(o_.phase);
        for (const Phase& phase : phases_) {
            std::vector<size_t> begin(n_policy_);
            history.insert(history.end(), phase.opening.begin(), phase.opening.end());
            for (size_t i = 0; i < n_policy_; ++i) {
                const Status s = open_phase(phase, history, i != 0, &now[i]);
                if (!s.ok()) return s;
                begin[i] = now[i].session.history().size();
            }
            for (size_t done = 0; done < n; done += turn_)
                for (size_t k = 0; k < n_policy_; ++k) {
                    const size_t i = (k + static_cast<size_t>(run + 1)) % n_policy_;  // none is always the first
                    const Status s = generate_timed(now[i].session, o_.sampling, begin[i] + std::min(n, done + turn_),
                                                    &now[i].seconds.back());
                    if (!s.ok()) return s;
                }
            for (size_t i = 0; i < n_policy_; ++i) {
                const Span<const Token> all = now[i].session.history();
                now[i].seconds.back() *=
                    double(n) / double(all.size() - begin[i]);  // the last cycle may go beyond the phase
                if (phase.synth_accept == 0)
                    now[i].text.insert(now[i].text.end(), all.begin() + begin[i] - 1, all.begin() + begin[i] + n);
            }
            if (phase.synth_accept == 0) {
                const Span<const Token> all = now[0].session.history();
                history.assign(all.begin(), all.begin() + begin[0] + n);
            }
        }
        for (const Played& p : now) same_text_ = same_text_ && p.text == now[0].text;
        if (run < 0) {
            choose_turn(sum(now[0].seconds));
            return {};
        }
        for (size_t i = 0; i < n_policy_; ++i) {
            now[i].session = auspex::Session();
            seconds_[i].push_back(now[i].seconds);
            played_[i].push_back(std::move(now[i]));
        }
        return {};
    }

    /// The fewer tokens a turn has, the better do slow moments of a machine that others use fall on all alike; but each
    /// turn waits for the cycles that it has queued. seconds: of a run without drafts.
    void choose_turn(double seconds) {
        constexpr double kTurnSeconds = 0.2, kMin = 16;
        turn_ = static_cast<size_t>(
            std::clamp(kTurnSeconds * double(o_.phase) * double(phases_.size()) / seconds, kMin, double(kMaxTurn)));
    }

    /// Brings a session to where a phase begins; its first sample needs no pass and is not timed.
    Status open_phase(const Phase& phase, const std::vector<Token>& history, bool drafts, Played* to) {
        Status s;
        if (phase.synth_accept > 0 && drafts)
            tools::set_acceptance(to->session, static_cast<float>(phase.synth_accept), to->synth_seed);
        if (!phase.opening.empty()) {
            s = to->session.sync(history).status();
            if (s.ok()) s = to->session.next(o_.sampling).status();
        }
        to->first.push_back(to->cycles.size());
        to->seconds.push_back(0);
        return s;
    }

    /// Seconds of a cycle at depth g of the fixed policy: the mean of a run, the median of the runs.
    double cycle_seconds(size_t g) const {
        std::vector<double> means;
        for (const Played& p : played_[g]) {
            double us = 0, n = 0;
            for (const auspex::DraftCycle& c : p.cycles)
                if (c.depth == g) us += c.us, n += 1;
            if (n > 0) means.push_back(us / n);
        }
        return median(means) * 1e-6;
    }
    double relative(size_t g) const { return cycle_seconds(g) / cycle_seconds(0); }

    void report() {
        const Hindsight h = hindsight(seconds_);
        const double n = double(o_.phase);
        const auto share = [](const Hindsight::Share& s) {
            return nlohmann::ordered_json{{"mean", s.mean}, {"least", s.min}, {"most", s.max}};
        };
        const auto phase_median = [&](size_t policy, size_t phase) {
            std::vector<double> t;
            for (const auto& run : seconds_[policy]) t.push_back(run[phase]);
            return median(t);
        };
        nlohmann::ordered_json& out = b_.out["controller"];
        out = {{"phase_tokens", o_.phase}, {"runs", o_.repeat}, {"same_text", same_text_}};
        if (!chances_.empty()) out["synthetic"] = true, out.erase("same_text");
        out["hindsight"] = share(h.all);
        out["over_off"] = share(h.over_off);
        out["worst_phase"] = h.worst_phase;
        b_.say("\n%-12s %10s %12s %12s   %-10s %s\n", "phase", "off, t/s", "best, t/s", "own, t/s", "best is",
               "best depth's time / own time, mean (min .. max)");
        for (size_t k = 0; k < phases_.size(); ++k) {
            const double off = n / phase_median(0, k), best = n / phase_median(h.best[k], k),
                         own = n / phase_median(controller(), k);
            nlohmann::ordered_json row = {{"name", phases_[k].name},
                                          {"best_depth", h.best[k]},
                                          {"score", share(h.by_phase[k])},
                                          {"own_tps", own}};
            for (size_t g = 0; g < controller(); ++g) row["fixed_tps"].push_back(n / phase_median(g, k));
            out["phases"].push_back(row);
            b_.say("%-12s %10.1f %12.1f %12.1f   %-10s %.3f (%.3f .. %.3f)\n", phases_[k].name.c_str(), off, best, own,
                   policy_name(h.best[k]).c_str(), h.by_phase[k].mean, h.by_phase[k].min, h.by_phase[k].max);
        }
        b_.say(
            "\nagainst the best fixed depth of each phase: %.3f (%.3f .. %.3f), worst phase %.3f\nagainst drafting "
            "off: %.3f (%.3f .. %.3f)\n",
            h.all.mean, h.all.min, h.all.max, h.worst_phase, h.over_off.mean, h.over_off.min, h.over_off.max);
        b_.say("\n%-12s %10s %8s %14s %12s\n", "policy", "tokens/s", "R", "tokens/cycle", "accepted");
        for (size_t policy = 0; policy < n_policy_; ++policy) {
            std::vector<double> totals;
            for (const auto& run : seconds_[policy]) totals.push_back(sum(run));
            double n_token = 0, n_cycle = 0, drafted = 0, accepted = 0;
            for (const Played& p : played_[policy])
                for (const auspex::DraftCycle& c : p.cycles)
                    n_token += c.accepted + 1, n_cycle += 1, drafted += c.depth, accepted += c.accepted;
            const double tps = n * double(phases_.size()) / median(totals);
            nlohmann::ordered_json row = {{"policy", policy_name(policy)},
                                          {"tps", tps},
                                          {"tokens_per_cycle", n_token / n_cycle},
                                          {"accepted_share", drafted > 0 ? accepted / drafted : 0}};
            b_.say("%-12s %10.1f ", policy_name(policy).c_str(), tps);
            if (policy < controller())
                row["relative_cost"] = relative(policy), b_.say("%8.2f ", relative(policy));
            else
                b_.say("%8s ", "");
            b_.say("%14.2f %11.1f%%\n", n_token / n_cycle, drafted > 0 ? 100 * accepted / drafted : 0);
            out["policies"].push_back(row);
        }
        if (chances_.empty()) b_.say("the text is %s under all of them\n", same_text_ ? "the same" : "NOT the same");
    }

    /// Tokens at which the cycles of a run end.
    static std::vector<double> token_axis(const Played& p) {
        std::vector<double> x;
        double n = 0;
        for (const auspex::DraftCycle& c : p.cycles) x.push_back(n), n += c.accepted + 1;
        return x;
    }
    /// Tokens per second over the last kSmooth tokens of each cycle.
    static PlotLine speed_line(const std::string& name, const Played& p) {
        constexpr double kSmooth = 48;
        PlotLine line{name, token_axis(p), {}, true};
        double tokens = 0, seconds = 0;
        for (size_t i = 0, first = 0; i < p.cycles.size(); ++i) {
            tokens += p.cycles[i].accepted + 1, seconds += p.cycles[i].us + p.cycles[i].probe_us;
            for (; tokens - p.cycles[first].accepted - 1 >= kSmooth; ++first)
                tokens -= p.cycles[first].accepted + 1, seconds -= p.cycles[first].us + p.cycles[first].probe_us;
            line.y.push_back(tokens >= kSmooth / 2 ? tokens / seconds * 1e6 : NAN);
        }
        return line;
    }

    /// The controller's slowest run: the one to look into.
    Status trace() const {
        const auto& runs = seconds_[controller()];
        size_t slowest = 0;
        for (size_t run = 1; run < runs.size(); ++run)
            if (sum(runs[run]) > sum(runs[slowest])) slowest = run;
        std::string lines;
        for (const auspex::DraftCycle& c : played_[controller()][slowest].cycles) lines += trace_line(c);
        std::FILE* file = cli::open_stream(o_.trace, "wb");
        const bool written = file && std::fwrite(lines.data(), 1, lines.size(), file) == lines.size();
        return (file && std::fclose(file) == 0 && written)
                   ? Status()
                   : Status(Code::io_error, "--trace '" + o_.trace + "' could not be written: " + std::strerror(errno));
    }

    Status plot() const {
        constexpr double kSmooth = 48;  // drafts
        const Played& own = played_[controller()].back();
        const std::vector<double> x = token_axis(own);
        std::vector<PlotMark> marks;
        for (size_t k = 0; k < phases_.size(); ++k) marks.push_back({x[own.first[k]], phases_[k].name});
        const Hindsight h = hindsight(seconds_);
        Plot depth{"Controller: draft depth", "", "drafts a cycle", {}, true, marks, double(o_.draft_max), true, 1};
        PlotLine chosen{"controller", x, {}, true}, best{"best fixed depth in hindsight", x, {}, true};
        Plot accepted{"Acceptance, and what it takes to pay", "", "accepted / drafted", {}, true, marks, 1.2, true};
        PlotLine share{"acceptance of the last 48 drafts", x, {}, true},
            even{"break-even (of depth 1 while off)", x, {}, true};
        double n_drafted = 0, n_accepted = 0;
        for (size_t i = 0, first = 0, k = 0; i < own.cycles.size(); ++i) {
            const auspex::DraftCycle& c = own.cycles[i];
            while (k + 1 < phases_.size() && i >= own.first[k + 1]) ++k;
            chosen.y.push_back(c.depth);
            best.y.push_back(double(h.best[k]));
            n_drafted += c.depth, n_accepted += c.accepted;
            while (n_drafted - own.cycles[first].depth >= kSmooth)
                n_drafted -= own.cycles[first].depth, n_accepted -= own.cycles[first].accepted, ++first;
            share.y.push_back(c.depth > 0 ? n_accepted / n_drafted : NAN);
            even.y.push_back(c.break_even_ratio > 0 ? c.break_even_ratio : NAN);
        }
        depth.lines = {chosen, best};
        accepted.lines = {share, even};
        Plot speed{"Speed over the last 48 tokens", "tokens generated", "tokens / s", {}, true, marks, 0, true};
        size_t whole = 1;
        const auto total = [&](size_t policy) {
            double all = 0;
            for (const auto& run : seconds_[policy]) all += sum(run);
            return all;
        };
        for (size_t g = 1; g < controller(); ++g)
            if (total(g) < total(whole)) whole = g;
        speed.lines = {speed_line("controller", own), speed_line("off", played_[0].back()),
                       speed_line(policy_name(whole) + " throughout", played_[whole].back())};
        return write_plots(o_.plot, {depth, accepted, speed}, true);
    }

    Bench& b_;
    const BenchOptions& o_;
    auspex::DraftOptions draft_;
    std::vector<Phase> phases_;
    std::vector<float> chances_;
    size_t n_policy_ = 0, n_context_ = 0;
    static constexpr size_t kMaxTurn = 64;
    size_t turn_ = kMaxTurn;                   ///< tokens that a policy generates before it is the next one's turn
    std::vector<std::vector<Played>> played_;  ///< [policy][run]; fixed depths 0 .. , then the controller
    Seconds seconds_;
    bool same_text_ = true;
};

}  // namespace

Status bench_replay(Bench& b) { return Replay(b).run(); }

}  // namespace cli
