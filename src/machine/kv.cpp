#include "kv.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace kv_impl {

Status check_type(const char* what, Type t, uint32_t d_head, const std::string& slot) {
    if (!type_info(t).kv)
        return fail(Code::unsupported, what, " of '", slot, "' in ",
                    type_info(t).name ? type_info(t).name : "an unknown type",
                    ", expected F16, Q8_0, Q4_0, Q4_1 or F32");
    const uint32_t block = type_info(t).n_block;
    if (d_head % block != 0)
        return fail(Code::unsupported, what, " of '", slot, "' in ", type_info(t).name, ": heads of ", d_head,
                    " are not whole blocks of ", block, "; keep them in F16");
    return {};
}

}  // namespace kv_impl

uint32_t KvShape::n_part() const {
    if (window == 0) return n_ring / kKvChunk;
    // The window of the first row and the rest of the step, at any offset within a chunk.
    return static_cast<uint32_t>(ceil_div(uint64_t{window} + kMaxTentative - 2, uint64_t{kKvChunk})) + 1 +
           (sinks != 0 ? 1 : 0);
}

Result<std::vector<KvShape>> kv_shapes(const Plan& plan, const ContextOptions& options) {
    std::vector<KvShape> all(plan.slots.size());
    if (!options.kv.empty() && options.kv.size() != plan.slots.size())
        return fail(Code::bad_argument, "KV options for ", options.kv.size(), " slots, the plan has ",
                    plan.slots.size());
    const uint64_t context = round_up(uint64_t{options.n_context}, kKvChunk);
    for (const Tape* tape : plan.tapes(options.mtp)) {
        const bool draft = tape != &plan.trunk;
        for (const Op& op : tape->ops) {
            if (op.kind != OpKind::attend) continue;
            const Slot& slot = plan.slot(op.state);
            const KvOptions want = options.kv.empty() ? KvOptions() : options.kv[op.state];
            if (want.sinks > kMaxSinks)
                return fail(Code::bad_argument, "'", slot.name, "': ", want.sinks,
                            " sinks were asked for, expected at most ", kMaxSinks);
            AUSPEX_TRY(kv_impl::check_type("keys", want.k, op.attn.d_head, slot.name));
            AUSPEX_TRY(kv_impl::check_type("values", want.v, op.attn.d_head, slot.name));
            KvShape& s = all[op.state];
            s.layer = op.layer;
            s.draft = draft;
            s.k = want.k;
            s.v = want.v;
            s.width = static_cast<uint32_t>(slot.width());
            s.k_bytes = row_bytes(want.k, s.width);
            s.v_bytes = row_bytes(want.v, s.width);
            // The narrowest of the options' window, the model's own, and the limit for draft blocks.
            uint64_t window = want.window == 0 ? context : want.window;
            if (draft && options.mtp_window != 0) window = std::min<uint64_t>(window, options.mtp_window);
            s.sinks = want.sinks;
            if (op.attn.window != 0 && op.attn.window <= window) {
                window = op.attn.window;
                s.declared = true;
                // Sinks belong to the window that was asked for; a narrower one of the model's own has none.
                if (want.window == 0 || op.attn.window < want.window) s.sinks = 0;
            }
            const uint32_t ubatch = std::max(options.n_ubatch, kMaxTentative);
            const uint64_t longest = draft ? std::min(ubatch, kMaxMtpRows) : ubatch;
            s.n_ring = static_cast<uint32_t>(std::min(context, round_up(window + longest - 1, kKvChunk)));
            s.window = window >= options.n_context ? 0 : static_cast<uint32_t>(window);
            if (s.window == 0) {
                s.sinks = 0;
                s.n_ring = static_cast<uint32_t>(context);
            }
        }
    }
    return all;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
