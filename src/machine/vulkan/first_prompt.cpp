#include "first_prompt.h"
#ifndef AUSPEX_NO_VULKAN
#include "list_builder.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace first_prompt_impl {

constexpr uint32_t kFewRows = 16;  // 64 queries where four heads share keys: attention's smaller tile

}  // namespace first_prompt_impl

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
    const auto request_prompt = [&](uint32_t n_row) {
        Pass prompt;
        prompt.tape = &trunk;
        prompt.wide = !model.small();
        prompt.n_row = n_row;
        return request([&](ListBuilder& b) {
            b.open_request(0);
            b.tape(prompt);
            b.head(trunk, 1, ListBuilder::HeadRows::kept);
        });
    };
    AUSPEX_TRY(request_prompt(model.small() ? kMaxTentative : buffers.n_row_max));
    AUSPEX_TRY(request([&](ListBuilder& b) {
        Pass token;
        token.tape = &trunk;
        token.head = token.largest = true;
        b.tape(token);
        b.sample(trunk, 1, {}, true);
        b.accept();
    }));
    // A turn's rows are fewer: products and attention take other tiles for them.
    using first_prompt_impl::kFewRows;
    for (uint32_t n_row = buffers.n_row_max; !model.small() && n_row > kFewRows;) {
        n_row = std::max(n_row / 2, kFewRows);
        AUSPEX_TRY(request_prompt(n_row));
    }
    return {};
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
