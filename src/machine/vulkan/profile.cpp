// machine/vulkan/profile: the time of each kernel class of a step, and the counts of its dispatch lists.
//
// What    profile() records the dispatch list of a step once more, with a timestamp at every barrier; recordings that
//         decode have none. Bytes are the minimum that must move: weights, states, logits. count() builds the lists of
//         a step and records nothing.
// Tests   tests/test_vulkan_model.cpp, tests/test_dispatch_list.cpp.
#include "context.h"
#ifndef AUSPEX_NO_VULKAN

#include <algorithm>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace profile_impl {

constexpr uint32_t kMarks = 4096, kWarm = 3, kRuns = 7;

Step step_of(const Plan& plan, uint32_t n_row, uint32_t first_row) {
    Step step;
    step.tape = &plan.trunk;
    step.n_row = n_row;
    step.place(first_row);
    step.tentative = n_row <= kMaxTentative;
    return step;
}

}  // namespace profile_impl

Status VulkanContext::may_profile(uint32_t n_row, uint32_t first_row) const {
    const GpuRef& gpu = model_->device->gpu;
    if (gpu->traits.timestamp_bits == 0)
        return fail(Code::unsupported, gpu->traits.name, " has no timestamps on its compute queue");
    const uint32_t n_row_max = model_->small() ? kMaxTentative : n_chunk_max_;
    if (n_row > n_row_max)
        return fail(Code::bad_argument, "a step of ", n_row, " rows, expected at most ", n_row_max,
                    ", which run at once");
    return check(profile_impl::step_of(*model_->plan, n_row, first_row));
}

Result<std::vector<KernelTime>> VulkanContext::profile(uint32_t n_row, uint32_t first_row) {
    using namespace profile_impl;
    AUSPEX_TRY(may_profile(n_row, first_row));
    const Plan& plan = *model_->plan;
    const GpuRef& gpu = model_->device->gpu;
    const Step step = step_of(plan, n_row, first_row);
    forget_rows();
    Commands commands;
    AUSPEX_TRY(Commands::create(gpu, kMarks).get(commands));
    DispatchList list;
    AUSPEX_TRY(ListBuilder(*model_, buffers_)
                   .build(
                       [&](ListBuilder& b) {
                           Pass pass;
                           pass.tape = &plan.trunk;
                           pass.n_row = step.tentative ? n_row : row_class(n_row);
                           pass.wide = !step.tentative;
                           pass.head = pass.largest = step.tentative;
                           b.tape(pass);
                           if (step.tentative) b.sample(plan.trunk, n_row, {}, true);
                       },
                       false)
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
        request->tentative = step.tentative;
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

/// The recordings follow those of run_trunk().
Result<StepCounts> VulkanContext::count(const Step& step) const {
    using Kind = RecordingKey::Kind;
    if (step.tape != &model_->plan->trunk) return Status(Code::bad_argument, "count() takes steps of the trunk");
    AUSPEX_TRY(check_step(step, *model_->plan, options_));
    const bool few = step.n_row <= kMaxTentative, narrow = few || model_->small();
    StepCounts counts;
    counts.n_row = step.n_row;
    std::vector<PipelineKey> distinct;
    auto add = [&](const RecordingKey& key) -> Status {
        std::vector<DispatchList> lists;
        AUSPEX_TRY(build(key).get(lists));
        for (const DispatchList& list : lists) {
            counts.n_dispatch += list.n_dispatch();
            counts.n_barrier += list.n_barrier();
            for (const PipelineKey& k : list.keys())
                if (std::find(distinct.begin(), distinct.end(), k) == distinct.end()) distinct.push_back(k);
        }
        return {};
    };
    for (uint32_t at = 0, n = 0; at < step.n_row; at += n) {
        n = few ? step.n_row : std::min(narrow ? kMaxTentative : n_chunk_, step.n_row - at);
        RecordingKey open, body;
        open.kind = Kind::open;
        body.kind = narrow ? Kind::narrow : Kind::wide;
        body.n = narrow ? n : row_class(n);
        body.logits = few && step.n_logit == n;
        body.keep = narrow && options_.mtp;
        AUSPEX_TRY(add(open));
        AUSPEX_TRY(add(body));
    }
    if (step.n_logit != 0 && (!few || step.n_logit != step.n_row)) {
        RecordingKey head;
        head.kind = Kind::head;
        head.n = step.n_logit;
        head.few = few;
        AUSPEX_TRY(add(head));
    }
    counts.n_pipeline = static_cast<uint32_t>(distinct.size());
    return counts;
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
#endif  // AUSPEX_NO_VULKAN
