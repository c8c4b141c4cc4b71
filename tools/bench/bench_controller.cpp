#include "bench_controller.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/virtual_clock.h"

namespace cli {

Status bench_controller_virtual(int64_t n_run, bool json) {
    using nlohmann::ordered_json;
    if (n_run < 1 || n_run > 1000)
        return Status(Code::bad_argument,
                      "--repeat is " + std::to_string(n_run) + ", expected 1 .. 1000 recorded streams");
    const std::vector<virtual_clock::Table> tables = virtual_clock::score_runs(static_cast<uint32_t>(n_run), {});
    const virtual_clock::Table& own = tables[0];
    if (!json) {
        std::printf("hindsight: the best fixed depth's time, phase by phase, over the policy's own; %lld streams\n\n",
                    static_cast<long long>(n_run));
        std::printf("%-16s %8s %10s %12s %13s %13s\n", "policy", "mean", "worst run", "worst phase", "worst single",
                    "min over off");
        for (const virtual_clock::Table& t : tables)
            std::printf("%-16s %8.3f %10.3f %12.3f %13.3f %13.3f\n", t.policy.c_str(), t.mean, t.worst_run,
                        t.worst_phase, t.worst_single, t.min_over_off);
        std::printf("\n%-26s %-12s %9s %9s %12s  of\n", "workload", "cost", "hindsight", "over off", "worst phase");
        for (const virtual_clock::Score& s : own.scores)
            std::printf("%-26s %-12s %9.3f %9.3f %12.3f  %s\n", s.workload.c_str(), s.curve.c_str(), s.hindsight,
                        s.over_off, s.worst_phase, s.worst_kind.c_str());
        return print("");
    }
    const auto three = [](const virtual_clock::Table& t) {
        return ordered_json{{"mean", t.mean},
                            {"worst_run", t.worst_run},
                            {"worst_phase", t.worst_phase},
                            {"worst_flip", t.worst_flip},
                            {"worst_single", t.worst_single},
                            {"min_over_off", t.min_over_off}};
    };
    ordered_json out = three(own);
    out["streams"] = n_run;
    out["definitions"] = {
        {"mean",
         "of the scores of all workloads and cost curves; score = sum over phases of the best fixed depth's time / own "
         "time"},
        {"worst_run", "the lowest of these scores"},
        {"worst_phase",
         "the same ratio over all phases of one kind in one workload on one curve, the lowest; flips of 128 tokens or "
         "less count as one kind"},
        {"worst_flip", "the same, where each length and side of the flips is its own kind"},
        {"worst_single", "the same ratio of one single phase of one stream, luck included"},
        {"min_over_off", "time without drafting / own time, the lowest of all workloads, curves and streams"}};
    for (const virtual_clock::Table& t : tables)
        if (&t != &own) out["baselines"][t.policy] = three(t);
    for (const virtual_clock::Score& s : own.scores)
        out["scores"].push_back({{"workload", s.workload},
                                 {"curve", s.curve},
                                 {"hindsight", s.hindsight},
                                 {"over_off", s.over_off},
                                 {"worst_phase", s.worst_phase},
                                 {"worst_kind", s.worst_kind},
                                 {"switches", s.n_switch},
                                 {"acceptance_probe_share", s.acceptance_probe_share}});
    return print(out.dump() + "\n");
}

}  // namespace cli
