#include "first_prompt.h"
#ifndef AUSPEX_NO_VULKAN
#include "list_builder.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

Status request_pipelines(const VulkanModel& model, const ContextOptions& options) {
    Buffers buffers;
    AUSPEX_TRY(Buffers::outline(model, options).get(buffers));
    const Tape& trunk = model.plan->trunk;
    const auto request = [&](const ListBuilder::Piece& piece) {
        DispatchList list;
        AUSPEX_TRY(ListBuilder(model, buffers).build(piece).get(list));
        for (const PipelineKey& key : list.keys()) model.device->pipelines->request_ahead(key);
        return Status();
    };
    Pass prompt;
    prompt.tape = &trunk;
    prompt.wide = !model.small();
    prompt.n_row = model.small() ? kMaxTentative : buffers.n_row_max;
    AUSPEX_TRY(request([&](ListBuilder& b) {
        b.open_request(0);
        b.tape(prompt);
        b.head(trunk, 1, ListBuilder::HeadRows::kept);
    }));
    return request([&](ListBuilder& b) {
        Pass token;
        token.tape = &trunk;
        token.head = token.largest = true;
        b.tape(token);
        b.sample(trunk, 1, {}, true);
        b.accept();
    });
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
