// bench_mtp: whole cycles: n tokens drafted, verified, sampled, committed.
//
// With --synth-accept everything is computed and only the comparison is synthetic, so that a model with random weights
// shows what a trained one would reach. Depths take turns within each run, so that a slow moment of the machine affects
// all of them. With --grammar or --json-schema each depth runs free and constrained, by turns.
#include "bench_texts.h"
#include "examples/cli/draft.h"
#include "../synthetic_acceptance.h"
#include "examples/cli/platform.h"

namespace cli {
namespace {

struct Depth {
    uint32_t g = 0;
    bool constrained = false;
    auspex::Session* on = nullptr;
    std::vector<double> tps, cycle_ms;  ///< by run
    double n_token = 0, n_cycle = 0, accepted = 0, drafted = 0;
};

/// One run of at least n tokens.
Status decode(auspex::Session& on, const auspex::Sampling& sampling, size_t n, Depth* to) {
    const auspex::Stats before = on.stats();
    const size_t begin = on.history().size();
    double seconds = 0;
    const Status s = generate_timed(on, sampling, begin + n, &seconds);
    if (!s.ok()) return s;
    const auspex::Stats after = on.stats();
    const double n_made = double(on.history().size() - begin);
    double n_cycle = double(after.cycles[auspex::kMaxDraft] - before.cycles[auspex::kMaxDraft]);
    for (uint32_t i = 0; i < auspex::kMaxDraft; ++i) {
        n_cycle += double(after.cycles[i] - before.cycles[i]);
        to->drafted += double(after.drafted[i] - before.drafted[i]);
        to->accepted += double(after.accepted[i] - before.accepted[i]);
    }
    to->n_token += n_made;
    to->n_cycle += n_cycle;
    to->tps.push_back(n_made / seconds);
    to->cycle_ms.push_back(seconds * 1e3 / n_cycle);
    return {};
}

/// The cost of filling the MTP block's cache while a prompt is read; runs with and without take turns.
Status prompts(Bench& b, const auspex::DraftOptions& draft) {
    for (const Token length : b.o.prefill) {
        const size_t n = static_cast<size_t>(length);
        const std::vector<Token> ids = b.ids(n);
        auspex::Session without, with;
        Status s = b.session(b.o.window, n + 1, "--prefill").get(without);
        if (s.ok()) s = b.session(b.o.window, n + 1, "--prefill", draft).get(with);
        std::vector<double> times[2];
        auspex::SyncReport synced;
        for (int64_t run = -1; s.ok() && run < b.o.repeat; ++run)  // the first one is not counted
            for (int i = 0; s.ok() && i < 2; ++i) {
                auspex::Session& on = i == 0 ? without : with;
                s = interrupted() ? Status(Code::cancelled, "interrupted") : on.sync({}).get(synced);
                const double start = now();
                if (s.ok()) s = on.sync(ids).get(synced);
                if (run >= 0) times[i].push_back(now() - start);
            }
        clear_progress_line();
        if (!s.ok()) return s;
        const double ratio = median(times[1]) / median(times[0]);
        b.out["prefill_mtp"].push_back({{"tokens", n},
                                        {"tps_off", double(n) / median(times[0])},
                                        {"tps", double(n) / median(times[1])},
                                        {"time_over_off", ratio}});
        b.say("prefill %6zu tokens with the MTP block %8.1f tokens/s, without %.1f: %.3f of its time\n", n,
              double(n) / median(times[1]), double(n) / median(times[0]), ratio);
    }
    return {};
}

}  // namespace

Status bench_mtp(Bench& b) {
    const BenchOptions& o = b.o;
    Status s = b.open();
    if (s.ok()) s = b.warm_up();
    auspex::Sampling forms[2];  // free and constrained
    if (s.ok()) s = choose_constraint(o.constraint, b.on.model, &forms[1].constraint);
    std::vector<Depth> depths(1);  // 0 first: what the others are measured against
    for (const Token g : o.mtp)
        if (g > 0) depths.emplace_back().g = static_cast<uint32_t>(g);
    if (forms[1].constraint)
        for (size_t i = 0, n_free = depths.size(); i < n_free; ++i) {
            depths.push_back(depths[i]);
            depths.back().constrained = true;
        }
    auspex::DraftOptions draft;
    draft.source = auspex::Draft::mtp;
    if (s.ok()) s = choose_draft_vocab(o.draft_vocab, b.on.model.info(), &draft);
    if (s.ok()) s = prompts(b, draft);
    const size_t n = static_cast<size_t>(o.n), start = static_cast<size_t>(o.context),
                 per_run = n + 5 * (auspex::kMaxDraft + 1);
    const size_t n_context = start + per_run * static_cast<size_t>(o.repeat + 1) * depths.size() + 16;
    // Plain decoding has a session of its own, so that it pays for nothing that drafting needs.
    auspex::Session sessions[4];
    auspex::SyncReport synced;
    for (Depth& d : depths) {
        const bool drafts = d.g > 0;
        auspex::Session& on = sessions[(drafts ? 1 : 0) + (d.constrained ? 2 : 0)];
        d.on = &on;
        if (!s.ok() || on) continue;
        s = b.session(o.window, n_context, "--context and, for each depth of --mtp, -n for each of --repeat",
                      drafts ? draft : Bench::no_draft())
                .get(on);
        if (s.ok()) s = on.sync(b.ids(start)).get(synced);
        if (s.ok()) s = on.next(forms[d.constrained]).status();  // the first sample needs no pass
        if (s.ok() && drafts && o.synth_accept) tools::set_acceptance(on, static_cast<float>(*o.synth_accept));
    }
    clear_progress_line();
    if (!s.ok()) return s;
    for (int64_t run = -1; run < o.repeat; ++run) {  // the first one is not counted: it records and compiles
        for (Depth& d : depths) {
            if (d.g != 0) s = d.on->set_draft_depth(static_cast<int>(d.g));
            Depth unseen;
            if (s.ok()) s = decode(*d.on, forms[d.constrained], n, run < 0 ? &unseen : &d);
            if (d.constrained && s.code == Code::bad_argument)
                s.text = "the runs go on with one constrained text for up to " + std::to_string(n_context - start) +
                         " tokens, and this one ended after " + std::to_string(d.on->history().size() - start) +
                         "; give a schema or grammar of longer texts, such as an array with minItems: " + s.text;
            if (!s.ok()) return s;
        }
    }
    b.say("\nwhole cycles from %zu tokens on, %lld runs of %zu tokens%s\n", start, static_cast<long long>(o.repeat), n,
          o.synth_accept ? ", synthetic acceptance" : "");
    b.say(
        "R: a cycle's time over a plain step's. It pays above the break-even, told as accepted/drafted and as "
        "conditional acceptance.\n\n");
    b.say("%5s %10s %21s %10s %6s %14s %10s %12s %12s %8s\n", "draft", "tokens/s", "(min .. max)", "cycle ms", "R",
          "tokens/cycle", "accepted", "pays above", "conditional", "speedup");
    const double plain_ms = median(depths[0].cycle_ms), plain_tps = median(depths[0].tps);
    const uint64_t head_bytes = sessions[1] ? sessions[1].stats().draft_head_bytes : 0;
    for (const Depth& d : depths) {
        const double tps = median(d.tps), low = *std::min_element(d.tps.begin(), d.tps.end()),
                     high = *std::max_element(d.tps.begin(), d.tps.end());
        const double ms = median(d.cycle_ms), r = ms / plain_ms, per_cycle = d.n_token / d.n_cycle,
                     speedup = tps / plain_tps;
        nlohmann::ordered_json row = {
            {"depth", d.g},   {"tps", tps},         {"tps_least", low},   {"tps_most", high},
            {"cycle_ms", ms}, {"relative_cost", r}, {"speedup", speedup}, {"tokens_per_cycle", per_cycle}};
        if (d.constrained) row["constrained"] = true;
        b.say("%5u %10.1f %21s %10.3f %6.2f %14.2f", d.g, tps,
              ("(" + std::to_string(int64_t(low)) + " .. " + std::to_string(int64_t(high)) + ")").c_str(), ms, r,
              per_cycle);
        if (d.g > 0) {
            row["accepted_share"] = d.drafted > 0 ? d.accepted / d.drafted : 0;
            row["break_even_ratio"] = break_even_ratio(r, d.g);
            row["break_even_acceptance"] = break_even_acceptance(r, d.g);
            row["draft_head_bytes"] = head_bytes;
            if (o.synth_accept) row["synth_accept"] = *o.synth_accept;
            b.say(" %9.1f%% %11.1f%% %11.1f%% %8.2f", d.drafted > 0 ? 100 * d.accepted / d.drafted : 0,
                  100 * break_even_ratio(r, d.g), 100 * break_even_acceptance(r, d.g), speedup);
        }
        b.out["mtp"].push_back(row);
        b.say(d.constrained ? "  constrained\n" : "\n");
    }
    return {};
}

}  // namespace cli
