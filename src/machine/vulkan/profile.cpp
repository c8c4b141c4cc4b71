// machine/vulkan/profile: the time of each kernel class of a step.
// The dispatch list of the step is recorded once more, with a timestamp at every barrier; recordings that decode carry
// none. Bytes are the minimum that must move: weights, states, logits.
#include "context.h"
#ifndef AUSPEX_NO_VULKAN

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace profile_impl {

constexpr uint32_t kMarks = 4096, kWarm = 3, kRuns = 7;

}  // namespace profile_impl

Result<std::vector<KernelTime>> VulkanContext::profile(uint32_t n_row, uint32_t first_row) {
    using namespace profile_impl;
    const Plan& plan = *model_->plan;
    const GpuRef& gpu = model_->device->gpu;
    if (gpu->traits.timestamp_bits == 0)
        return fail(Code::unsupported, gpu->traits.name, " has no timestamps on its compute queue");
    Step step;
    step.tape = &plan.trunk;
    step.n_row = step.n_logit = n_row;
    step.place(first_row);
    step.tentative = true;
    AUSPEX_TRY(check(step));
    forget_rows();
    Commands commands;
    AUSPEX_TRY(Commands::create(gpu, kMarks).get(commands));
    DispatchList list;
    AUSPEX_TRY(ListBuilder(*model_, buffers_)
                   .build([&](ListBuilder& b) {
                       Pass pass;
                       pass.tape = &plan.trunk;
                       pass.n_row = n_row;
                       pass.head = pass.largest = true;
                       b.tape(pass);
                       b.sample(plan.trunk, n_row, false, false, true);
                   })
                   .get(list));
    Pipelines& pipelines = *model_->device->pipelines;
    AUSPEX_TRY(list.record(pipelines, list.request(&pipelines), &commands, true));
    const std::vector<DispatchList::Stage> stages = list.stages();
    std::vector<std::vector<double>> us(stages.size());
    for (uint32_t run = 0; run < kWarm + kRuns; ++run) {
        uint32_t index = 0;
        args::StepRequest* request = nullptr;
        Recording* open = nullptr;
        AUSPEX_TRY(take_request(&index).get(request));
        AUSPEX_TRY(open_recording(index).get(open));
        request->n_row = request->n_id = n_row;
        request->position = first_row;
        request->tentative = 1;
        request->n_commit = n_pending_;
        request->flags = args::kRequestTrunk;
        std::memset(request + 1, 0, n_row * sizeof(Token));
        AUSPEX_TRY(submit({open}));
        n_pending_ = 0;
        AUSPEX_TRY(barrier());
        AUSPEX_TRY(commands.run());
        if (run < kWarm) continue;
        std::vector<std::pair<std::string, double>> times;
        AUSPEX_TRY(commands.timings().get(times));
        for (size_t i = 0; i < times.size() && i < us.size(); ++i) us[i].push_back(times[i].second);
    }
    std::vector<KernelTime> out;
    for (size_t i = 0; i < us.size(); ++i) {
        const DispatchList::Stage& m = stages[i];
        auto at = std::find_if(out.begin(), out.end(), [&](const KernelTime& k) { return k.name == m.label; });
        if (at == out.end()) at = out.insert(out.end(), KernelTime{m.label, 0, 0, 0});
        std::sort(us[i].begin(), us[i].end());
        at->count += 1;
        at->us += us[i].empty() ? 0 : us[i][us[i].size() / 2];
        at->bytes += m.bytes;
    }
    return out;
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
