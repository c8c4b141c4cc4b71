// sync_scripts: as many checks of tests/sync_scripts.h as asked for.
// usage: sync_scripts [--count N] [--seed S] [--steps N] [--device cpu|vulkan] [--gpu INDEX] [MODEL]
#include <climits>
#include <cstdio>
#include <cstring>

#include "../tests/sync_scripts.h"
#include "../tests/tiny.h"
#include "read_option.h"

int main(int argc, char** argv) {
    using namespace auspex;
    uint64_t count = 1000, seed = 1;
    uint32_t n_step = 24;
    DeviceOptions options;
    options.kind = Kind::cpu;
    options.n_thread = 1;
    const char* path = nullptr;
    for (int i = 1; i < argc; ++i) {
        const auto is = [&](const char* name) { return std::strcmp(argv[i], name) == 0 && i + 1 < argc; };
        bool good = true;
        if (is("--count"))
            good = tools::read_number<uint64_t>(argv[++i], count, 1, UINT64_MAX);
        else if (is("--seed"))
            good = tools::read_number<uint64_t>(argv[++i], seed, 0, UINT64_MAX);
        else if (is("--steps"))
            good = tools::read_number<uint32_t>(argv[++i], n_step, 1, UINT32_MAX);
        else if (is("--device"))
            good = tools::read_device(argv[++i], options.kind);
        else if (is("--gpu"))
            good = tools::read_number<int>(argv[++i], options.vulkan_index, 0, INT_MAX);
        else if (argv[i][0] != '-')
            path = argv[i];
        else
            good = false;
        if (!good)
            return std::fprintf(stderr,
                                "usage: sync_scripts [--count N] [--seed S] [--steps N] [--device cpu|vulkan] "
                                "[--gpu INDEX] [MODEL]\n"),
                   2;
    }
    const std::vector<std::byte> bytes = path ? std::vector<std::byte>() : test::tiny_model();
    Device device;
    Model model;
    Status s = Device::open(options).get(device);
    if (s.ok()) s = (path ? Model::load(device, path) : Model::load(device, bytes)).get(model);
    if (!s.ok()) return std::fprintf(stderr, "%s\n", s.message().c_str()), 1;
    test::SyncScripts scripts(model, seed, options.kind == Kind::vulkan, static_cast<uint32_t>(n_step));
    const std::string bad = scripts.run(count);
    const auto count_of = [](uint64_t n, const char* what) {
        std::printf(", %llu %s", static_cast<unsigned long long>(n), what);
    };
    std::printf("%llu checks in %llu scripts on %s", static_cast<unsigned long long>(scripts.n_check),
                static_cast<unsigned long long>(scripts.n_script), device.name().c_str());
    count_of(scripts.n_cancel, "cancels");
    count_of(scripts.n_edit, "edits");
    count_of(scripts.n_restore, "restores");
    count_of(scripts.n_switch, "switches");
    count_of(scripts.n_fork, "forks");
    count_of(scripts.n_move, "moves");
    count_of(scripts.n_file, "files");
    count_of(scripts.n_score, "scores");
    count_of(scripts.n_resumed, "times back to a checkpoint");
    count_of(scripts.n_reply, "checkpoints within a reply");
    count_of(scripts.n_evict, "checkpoints given up");
    count_of(scripts.n_logit, "logits");
    count_of(scripts.n_state, "states compared");
    count_of(scripts.n_accepted, "drafts accepted");
    std::printf(": %s\n", bad.empty() ? "none differs" : bad.c_str());
    return bad.empty() ? 0 : 1;
}
