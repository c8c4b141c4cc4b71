#include "backend.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

Status check_step(const Step& step, const Plan& plan, const ContextOptions& options) {
    const bool trunk = step.tape == &plan.trunk;
    const uint32_t n_row_max = std::max(options.n_ubatch, kMaxTentative);
    uint32_t limit = trunk ? n_row_max : std::min(n_row_max, kMaxMtpRows);
    if (step.tentative || step.hidden) limit = kMaxTentative;
    if (!trunk && !options.mtp)
        return Status(Code::bad_argument, "a step of an MTP block on a context opened without it");
    if (step.n_row == 0 || step.n_row > limit || step.n_logit > step.n_row || step.n_logit > kMaxTentative)
        return fail(Code::bad_argument, "a step of ", step.n_row, " rows with ", step.n_logit, " logits, expected 1..",
                    limit, " and at most ", kMaxTentative);
    if (step.sequence != 0)
        return fail(Code::bad_argument, "rows of sequence ", step.sequence,
                    " were given, expected 0: a context holds one sequence");
    if (step.first_row > options.n_context || options.n_context - step.first_row < step.n_row)
        return fail(Code::context_full, "rows ", step.first_row, "..", uint64_t{step.first_row} + step.n_row - 1,
                    " do not fit a context of ", options.n_context);
    return {};
}

void add_item(std::vector<MemoryItem>* items, const std::string& what, int layer, uint64_t bytes, MemoryPlace place) {
    if (bytes == 0) return;
    for (MemoryItem& item : *items)
        if (item.layer == layer && item.place == place && item.what == what) {
            item.bytes += bytes;
            return;
        }
    items->push_back({what, layer, bytes, place});
}

Result<SlotId> draft_table(const Plan& plan) {
    SlotId table = kNoSlot;
    for (const Tape& tape : plan.mtp)
        for (const Op& op : tape.ops) {
            if (!op.head || op.kind != OpKind::matmul) continue;
            if (table != kNoSlot && table != op.w[0])
                return Status(
                    Code::unsupported,
                    "the MTP blocks of this model have heads of their own; a draft vocabulary needs them to share one");
            table = op.w[0];
        }
    if (table == kNoSlot) return Status(Code::unsupported, "a draft vocabulary needs an MTP block with a head");
    return table;
}

Status check_draft_head(const Plan& plan, const ContextOptions& options, const std::byte* rows, Span<const Token> ids) {
    if (plan.mtp.empty() || !options.mtp)
        return Status(Code::unsupported, "a draft vocabulary needs an MTP block, and a context opened with it");
    SlotId table = kNoSlot;
    AUSPEX_TRY(draft_table(plan).get(table));
    if (!rows) return Status(Code::unsupported, "a draft vocabulary needs the model's file to stay readable");
    const uint64_t n_id = plan.slot(table).shape[0];
    Token last = -1;
    for (const Token id : ids) {
        if (id <= last || id >= static_cast<Token>(n_id))
            return fail(Code::bad_argument, "draft vocabulary: id ", id, " after ", last,
                        ", expected ascending ids below ", n_id);
        last = id;
    }
    return {};
}

uint64_t Context::kv_row_bytes(StatePart part) const {
    uint64_t bytes = 0;
    for (const uint64_t piece : row_pieces(part)) bytes += piece;
    return bytes;
}

Status Context::save(uint32_t n_row, std::vector<std::byte>* to) {
    const uint64_t bytes = n_row * kv_row_bytes(StatePart::trunk) + state_bytes(StatePart::trunk, n_row);
    to->reserve(to->size() + static_cast<size_t>(bytes));
    VectorWriter writer(to);
    AUSPEX_TRY(save_rows({StatePart::trunk, 0, n_row}, writer));
    return save_state(StatePart::trunk, n_row, writer);
}

Status Context::restore(uint32_t n_row, Span<const std::byte> from) {
    const uint64_t bytes = n_row * kv_row_bytes(StatePart::trunk) + state_bytes(StatePart::trunk, n_row);
    if (bytes != from.size())
        return fail(Code::bad_argument, "a snapshot of ", n_row, " tokens has ", from.size(), " bytes, expected ",
                    bytes);
    SpanReader reader(from);
    AUSPEX_TRY(restore_rows({StatePart::trunk, 0, n_row}, reader));
    return restore_state(StatePart::trunk, n_row, reader);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
