// bench_profile: where the time of a step goes, kernel class by kernel class.
#include "bench.h"

namespace cli {

static Status profile(Bench& b, uint32_t n_row, size_t depth) {
    auspex::Session on;
    Status s = b.session(b.o.window, depth + n_row, "--depth and --rows").get(on);
    std::vector<auspex::KernelTime> kernels;
    if (s.ok()) s = on.profile(n_row, depth).get(kernels);
    if (!s.ok()) return s;
    std::stable_sort(kernels.begin(), kernels.end(), [](const auto& x, const auto& y) { return x.us > y.us; });
    double us = 0;
    uint64_t bytes = 0;
    for (const auspex::KernelTime& k : kernels) us += k.us, bytes += k.bytes;
    nlohmann::ordered_json report = {
        {"rows", n_row}, {"depth", depth}, {"us", us}, {"bytes", bytes}, {"gbps", double(bytes) / us / 1e3}};
    b.say("\nstep of %u row%s at depth %zu\n%-28s %7s %12s %8s %12s %10s\n", n_row, n_row == 1 ? "" : "s", depth,
          "kernel", "count", "us", "share", "MB", "GB/s");
    const auto line = [&](const std::string& name, uint32_t count, double k_us, uint64_t k_bytes) {
        b.say("%-28s %7u %12.1f %6.1f %% %12.2f %10.1f\n", name.c_str(), count, k_us, 100 * k_us / us,
              double(k_bytes) / 1e6, k_us > 0 ? double(k_bytes) / k_us / 1e3 : 0);
    };
    uint32_t count = 0;
    for (const auspex::KernelTime& k : kernels) {
        line(k.name, k.count, k.us, k.bytes);
        count += k.count;
        report["kernels"].push_back({{"name", k.name},
                                     {"count", k.count},
                                     {"us", k.us},
                                     {"share", k.us / us},
                                     {"bytes", k.bytes},
                                     {"gbps", k.us > 0 ? double(k.bytes) / k.us / 1e3 : 0}});
    }
    line("in all", count, us, bytes);
    b.out["profile"].push_back(report);
    return {};
}

Status bench_profile(Bench& b) {
    Status s = b.open();
    if (s.ok()) s = b.warm_up();
    if (s.ok())
        b.say(
            "each kernel by itself, with a wait behind it: in a real step they overlap, so it takes less than their "
            "sum\n");
    std::vector<Token> rows = b.o.rows, depths = b.o.depths;
    if (rows.empty()) rows = {1, 4};
    if (depths.empty()) depths = {0};
    for (const Token depth : depths)
        for (const Token n_row : rows)
            if (s.ok()) s = profile(b, static_cast<uint32_t>(n_row), static_cast<size_t>(depth));
    return s;
}

}  // namespace cli
