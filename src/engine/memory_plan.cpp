#include "memory_plan.h"

#include "../base/guard.h"
#include "draft_vocab.h"
#include "lookup.h"
#include "memory_limit.h"
#include "row_marks.h"
#include "session_options.h"

#include <algorithm>
#include <map>

#include "../plan/arch.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace memory_plan_impl {
namespace {

using namespace detail;

constexpr uint32_t kDefaultContext = 4096, kMaxUbatch = 4096;
constexpr uint32_t kBudgetSinks = 4, kMinWindowWithFull = 1024, kMinWindow = 64;

Type type_of(KvType t) {
    switch (t) {
        case KvType::q8_0: return Type::q8_0;
        case KvType::q4_0: return Type::q4_0;
        case KvType::q4_1: return Type::q4_1;
        case KvType::f32: return Type::f32;
        case KvType::f16: break;
    }
    return Type::f16;
}

/// One attention layer and its slot.
struct Layer {
    uint32_t layer;
    SlotId slot;
    bool draft;
    uint32_t declared;  ///< the model's own window; 0: none
};

std::vector<Layer> attention_layers(const Plan& plan) {
    std::vector<Layer> all;
    auto look = [&](const Tape& tape, bool draft) {
        for (const Op& op : tape.ops)
            if (op.kind == OpKind::attend) all.push_back({op.layer, op.state, draft, op.attn.window});
    };
    look(plan.trunk, false);
    for (const Tape& t : plan.mtp) look(t, true);
    return all;
}

std::string list_layers(const std::vector<Layer>& layers) {
    std::string text;
    for (const Layer& l : layers) text += say(text.empty() ? "" : ", ", l.layer, l.draft ? " (mtp)" : "");
    return text.empty() ? "none" : text;
}

uint64_t kv_bytes(const std::vector<KvShape>& shapes) {
    uint64_t n = 0;
    for (const KvShape& s : shapes) n += s.bytes();
    return n;
}

Status set_windows(const std::vector<Layer>& layers, const std::vector<LayerWindow>& windows,
                   std::vector<KvOptions>* kv) {
    for (const LayerWindow& w : windows) {
        if (w.sinks > kMaxSinks)
            return fail(Code::bad_argument, "a window with ", w.sinks, " sinks, expected at most ", kMaxSinks);
        bool found = w.layer == kAllLayers || w.layer == kDraftLayers;
        for (const Layer& l : layers) {
            if (w.layer != kAllLayers && !(w.layer == kDraftLayers && l.draft) && w.layer != l.layer) continue;
            (*kv)[l.slot].window = w.window;
            (*kv)[l.slot].sinks = w.window == 0 ? 0 : w.sinks;
            found = true;
        }
        if (!found)
            return fail(Code::bad_argument, "a window for layer ", w.layer,
                        ", which is not an attention layer; the attention layers are: ", list_layers(layers));
    }
    return {};
}

/// Chooses windows by the rule of SessionOptions::kv_budget_bytes; `rule`, if given, gets the outcome in words. The
/// trunk's windows change the text, so they do not depend on whether this session drafts.
Status meet_budget(const Plan& plan, const std::vector<Layer>& layers, uint64_t budget, ContextOptions* context,
                   std::string* rule) {
    const uint32_t n =
        static_cast<uint32_t>(std::count_if(layers.begin(), layers.end(), [](const Layer& l) { return !l.draft; }));
    ContextOptions drafting = *context;
    drafting.mtp = !plan.mtp.empty();
    drafting.mtp_window = DraftOptions().window;
    std::vector<KvShape> shapes;
    uint64_t bytes = 0;  // of the last attempt
    auto attempt = [&](uint32_t n_full, uint32_t window) -> Result<bool> {
        for (uint32_t i = 0; i < layers.size(); ++i) {
            const Layer& l = layers[i];
            const bool full = window == 0 || (!l.draft && i + n_full >= n && i < n);
            // A window that the model has already stays as it is: with sinks it would be another.
            const bool own = full || (l.declared != 0 && l.declared <= window);
            drafting.kv[l.slot].window = own ? 0 : window;
            drafting.kv[l.slot].sinks = own ? 0 : kBudgetSinks;
        }
        AUSPEX_TRY(kv_shapes(plan, drafting).get(shapes));
        bytes = kv_bytes(shapes);
        return bytes <= budget;
    };
    const bool declares = std::any_of(layers.begin(), layers.end(), [](const Layer& l) { return l.declared != 0; });
    auto take = [&](const std::string& how) -> Status {
        context->kv = drafting.kv;
        if (!rule) return {};
        AUSPEX_TRY(kv_shapes(plan, *context).get(shapes));
        const uint64_t taken = kv_bytes(shapes);
        *rule =
            say("kv budget of ", budget, " bytes: ", how,
                declares ? ", apart from narrower windows of the model's own" : "", "; keys and values take ", taken);
        if (taken < bytes) *rule += say(", and with a draft block at its default window ", bytes);
        return {};
    };
    bool fits = false;
    AUSPEX_TRY(attempt(n, 0).get(fits));
    if (fits) return take("every layer sees everything");
    uint32_t largest = kMinWindow;
    while (uint64_t{largest} * 2 < context->n_context) largest *= 2;
    for (uint32_t n_full = ceil_div(2 * n, 5u) + 1; n_full-- > 0;)
        for (uint32_t w = largest; w >= (n_full != 0 ? kMinWindowWithFull : kMinWindow); w /= 2) {
            AUSPEX_TRY(attempt(n_full, w).get(fits));
            if (fits)
                return take(say("the last ", n_full, " of ", n,
                                " attention layers see everything, the others the last ", w, " rows and ", kBudgetSinks,
                                " sinks"));
        }
    return fail(Code::bad_argument, "kv_budget_bytes is ", budget, ", but keys and values take at least ", bytes, " (",
                kMinWindow, " rows in every layer, ", drafting.mtp ? "the draft block's included, " : "", "n_ubatch ",
                context->n_ubatch, "); allow that much, take a smaller n_ubatch, or another KV format");
}

void add(std::vector<MemoryItem>* items, std::string what, int layer, uint64_t bytes, MemoryPlace place) {
    if (bytes != 0) items->push_back({std::move(what), layer, bytes, place});
}

/// What of a plan the limit counts.
uint64_t counted_bytes(const MemoryPlan& m) { return m.total_bytes - m.pinned_bytes; }

/// Items and sums of one set of options.
Result<MemoryPlan> measure(const Model::Impl& model, const Plan& plan, SessionOptions o) {
    const Device::Impl& device = *model.device;
    MemoryPlan m;
    AUSPEX_TRY(check_session_options(model, o));
    SessionLayout layout;
    AUSPEX_TRY(session_layout(plan, o).get(layout));
    m.windows = std::move(layout.windows);
    m.window_rule = std::move(layout.window_rule);
    m.checkpoint_bytes = layout.checkpoint_bytes;
    AUSPEX_TRY(plan_weights(model, plan, &m.items));
    const size_t n_weight = m.items.size();
    AUSPEX_TRY(device.machine->plan_context(plan, layout.context, &m.items));
    if (layout.context.mtp) {
        add(&m.items, "hidden rows of drafts", -1, uint64_t{kMaxTentative} * plan.d_model * sizeof(float),
            MemoryPlace::allocator);
        std::vector<Token> ids;
        AUSPEX_TRY(draft_head_ids(model.tokenizer, plan.n_vocab, o.draft).get(ids));
        if (!ids.empty())
            AUSPEX_TRY(device.machine->plan_draft_head(plan, static_cast<uint32_t>(ids.size()), &m.items));
    }
    add(&m.items, "checkpoints", -1, m.checkpoint_bytes, MemoryPlace::allocator);
    add(&m.items, "sampler", -1, Sampler::bytes_for(plan.n_vocab), MemoryPlace::allocator);
    if (drafts_by_lookup(o.draft.source))
        add(&m.items, "index for lookup", -1, Lookup::memory_bytes(o.n_context), MemoryPlace::host);
    add(&m.items, "history", -1,
        (uint64_t{o.n_context} + kMaxTentative) * sizeof(Token) + PrefixTree::history_bytes(o.n_context) +
            RowMarks::memory_bytes(o.n_context),
        MemoryPlace::host);
    for (size_t i = 0; i < m.items.size(); ++i) {
        const MemoryItem& item = m.items[i];
        (item.place == MemoryPlace::file ? m.file_bytes
         : i < n_weight                  ? m.weight_bytes
                                         : m.session_bytes) += item.bytes;
        if (item.place == MemoryPlace::pinned) m.pinned_bytes += item.bytes;
    }
    if (device.machine->kind() == Kind::vulkan) m.pinned_bytes += m.checkpoint_bytes;
    m.total_bytes = m.weight_bytes + m.session_bytes;
    for (const KvShape& s : layout.kv)
        if (s.n_ring != 0 && s.window == 0) m.kv_token_bytes += s.k_bytes + s.v_bytes;
    m.limit_bytes = limit_of(model);
    m.fits = m.limit_bytes == 0 || counted_bytes(m) <= m.limit_bytes;
    return m;
}

/// Number of layers with experts; on_host: only those whose experts stay in system memory.
uint32_t n_expert_layer(const Plan& plan, bool on_host = false) {
    uint32_t n = 0;
    for (const Tape* tape : plan.tapes())
        for (const Op& op : tape->ops) n += op.kind == OpKind::moe && (!on_host || plan.slot(op.w[1]).on_host);
    return n;
}

uint32_t n_host_layer(const Plan& plan) { return n_expert_layer(plan, true); }

/// Moves the experts of the first n such layers to system memory, and those of the others to the device.
void keep_experts_on_host(Plan& plan, uint32_t n) {
    for (const Tape* tape : plan.tapes())
        for (const Op& op : tape->ops) {
            if (op.kind != OpKind::moe) continue;
            for (uint32_t i = 1; i <= 3; ++i)
                if (op.w[i] != kNoSlot) plan.slots[op.w[i]].on_host = n != 0;
            n -= n != 0;
        }
}

/// The model's plan without its MTP blocks.
Status without_mtp(const Model::Impl& model, Plan* to) {
    PlanOptions bare;
    bare.mtp = false;
    AUSPEX_TRY(make_plan(model.gguf, bare).get(*to));
    keep_experts_on_host(*to, n_host_layer(model.plan));
    return {};
}

/// The windows of the trunk's layers, without those of MTP blocks.
std::vector<LayerWindow> trunk_windows(const Plan& plan, const std::vector<LayerWindow>& windows) {
    std::vector<LayerWindow> trunk;
    for (const LayerWindow& w : windows)
        if (w.layer == kAllLayers || w.layer < plan.n_layer) trunk.push_back(w);
    return trunk;
}

/// Sets the draft_*_bytes of `m`: the difference to a plan without drafting. Both sessions without checkpoints, which
/// have a budget of their own and may need a buffer beside it.
Status measure_drafting(const Model::Impl& model, SessionOptions o, MemoryPlan* m) {
    Plan bare;
    AUSPEX_TRY(without_mtp(model, &bare));
    std::vector<MemoryItem> weights;
    AUSPEX_TRY(plan_weights(model, bare, &weights));
    m->draft_weight_bytes = m->weight_bytes + m->file_bytes;
    for (const MemoryItem& i : weights) m->draft_weight_bytes -= i.bytes;
    if (o.draft.source == Draft::off) return {};
    MemoryPlan on, off;
    o.checkpoint_bytes = 0;
    AUSPEX_TRY(measure(model, model.plan, o).get(on));
    o.draft.source = Draft::off;
    o.kv_budget_bytes = 0;  // keep the windows: a budget would give the trunk the memory of drafting
    o.windows = trunk_windows(model.plan, m->windows);
    AUSPEX_TRY(measure(model, bare, o).get(off));
    m->draft_session_bytes = on.session_bytes - off.session_bytes;
    return {};
}

void offer(const std::string& what, const MemoryPlan& changed, MemoryPlan* m) {
    m->alternatives.push_back({what, counted_bytes(changed), changed.fits});
}

/// Offers the longest context that fits with nothing else changed; if none does, the shortest. o: defaults filled in.
void offer_shorter_context(const Model::Impl& model, SessionOptions o, MemoryPlan* m) {
    const uint32_t n_context = o.n_context;
    for (uint32_t n = n_context; n > 256;) {
        o.n_context = n = static_cast<uint32_t>(round_up(n / 2, 256));
        MemoryPlan shorter;
        if (!measure(model, model.plan, o).get(shorter).ok()) return;
        if (!shorter.fits && n > 256) continue;
        return offer(say("a context of ", n, " instead of ", n_context, ", nothing else changed"), shorter, m);
    }
}

/// Fills m->alternatives with options that need less of what the limit counts, from the smallest change to the largest.
/// Each includes the changes before it, apart from experts in system memory and a shorter context, which stand alone.
void build_alternatives(const Model::Impl& model, const SessionOptions& given, MemoryPlan* m) {
    SessionOptions o = given;
    o.on_window_full = {};
    const Plan* plan = &model.plan;
    SessionOptions defaults = o;
    ContextOptions context;
    if (!plan_context_options(*plan, defaults, &context, nullptr).ok()) return;
    uint64_t min_bytes = counted_bytes(*m);
    std::string so_far;
    // Offers the changes before it and this one. It is kept where less counts than with those before it.
    auto step = [&](const std::string& before, const std::string& what, const SessionOptions& changed, const Plan* on) {
        MemoryPlan less;
        if (!measure(model, *on, changed).get(less).ok() || counted_bytes(less) >= min_bytes) return;
        min_bytes = counted_bytes(less);
        o = changed;
        plan = on;
        so_far = before + (before.empty() ? "" : ", ") + what;
        offer(so_far, less, m);
    };
    // Experts in system memory change only the speed, so offer them first.
    const uint32_t n_layer = n_expert_layer(*plan), n_host = n_host_layer(*plan);
    if (model.device->machine->kind() == Kind::vulkan && n_host < n_layer) {
        Plan on_host = *plan;
        keep_experts_on_host(on_host, n_layer);
        MemoryPlan less;
        if (measure(model, on_host, o).get(less).ok() && counted_bytes(less) < min_bytes)
            offer(say("the experts of all ", n_layer, " layers in the system's memory (host_expert_layers)"), less, m);
    }
    SessionOptions next = o;
    if (model.device->machine->kind() == Kind::cpu) {  // a GPU's limit counts only a buffer for copying them
        next.checkpoint_bytes = 0;
        step(so_far, "no checkpoints", next, plan);
    }
    auto wide = [](KvType t) { return t == KvType::f16 || t == KvType::f32; };
    if (wide(o.kv_k) || wide(o.kv_v)) {
        next = o;
        next.kv_k = next.kv_v = KvType::q8_0;
        step(so_far, "keys and values in q8_0", next, plan);
    }
    Plan bare;
    if (!plan->mtp.empty() && without_mtp(model, &bare).ok()) {
        next = o;
        next.windows = trunk_windows(bare, o.windows);
        next.draft.source = Draft::off;
        step(so_far, "the draft block left out", next, &bare);
    }
    // Each window takes the place of the one before.
    const std::string before_windows = so_far;
    for (uint32_t window : {16384u, 4096u, 1024u, 256u}) {
        if (window >= defaults.n_context) continue;
        next = o;
        next.kv_budget_bytes = 0;
        next.windows.clear();
        // Never wider than the windows in effect.
        for (const LayerWindow& w : m->windows) {
            if (w.layer >= plan->n_layer && plan->mtp.empty()) continue;
            const bool narrower = w.window != 0 && w.window <= window;
            next.windows.push_back({w.layer, narrower ? w.window : window, narrower ? w.sinks : kBudgetSinks});
        }
        step(before_windows, say("windows of ", window, " rows in every layer"), next, plan);
    }
    if (defaults.n_ubatch > 64) {
        next = o;
        next.n_ubatch = 64;
        step(so_far, "n_ubatch 64", next, plan);
    }
    if (o.kv_k != KvType::q4_0) {
        next = o;
        next.kv_k = next.kv_v = KvType::q4_0;
        step(so_far, "keys and values in q4_0 instead", next, plan);
    }
    if (m->limit_bytes != 0) offer_shorter_context(model, defaults, m);
}

std::string describe_alternatives(const MemoryPlan& m) {
    std::string text;
    for (const MemoryAlternative& c : m.alternatives)
        text += say("\n  ", c.total_bytes, " bytes (", mib(c.total_bytes),
                    m.limit_bytes == 0 ? ")"
                    : c.fits           ? ", fits)"
                                       : ", does not fit)",
                    ": ", c.what);
    return text.empty() ? "; no option of this session would take less" : "; these options would take less:" + text;
}

constexpr uint32_t kMaxWindowNumber = 0xffffffef;  ///< in a specification; those beyond have meanings of their own

/// Parses digits at *at and moves it past them. False if there are none, or the number is too large.
bool parse_number(std::string_view s, size_t* at, uint32_t* out) {
    uint64_t n = 0;
    const size_t from = *at;
    while (*at < s.size() && s[*at] >= '0' && s[*at] <= '9' && n < 0xffffffffu)
        n = n * 10 + static_cast<uint64_t>(s[(*at)++] - '0');
    *out = static_cast<uint32_t>(n);
    return *at > from && n <= kMaxWindowNumber;
}

}  // namespace
}  // namespace memory_plan_impl

Result<std::vector<LayerWindow>> parse_windows(std::string_view spec) AUSPEX_BOUNDARY {
    using namespace memory_plan_impl;
    std::vector<LayerWindow> all;
    for (size_t from = 0; from <= spec.size();) {
        const size_t end = std::min(spec.find(',', from), spec.size());
        const std::string_view piece = spec.substr(from, end - from);
        auto bad = [&](const std::string& why) {
            return fail(Code::bad_argument, "window '", piece, "': ", why,
                        "; expected LAYER:ROWS, LAYER:full or LAYER:ROWS+SINKS, with `all` or `mtp` for LAYER too, as "
                        "in 3:64,7:full or all:4096+4");
        };
        LayerWindow w;
        const size_t colon = piece.find(':');
        if (colon == std::string_view::npos) return bad(piece.empty() ? "the entry is empty" : "it has no ':'");
        const std::string_view layer = piece.substr(0, colon), rows = piece.substr(colon + 1);
        size_t at = 0;
        if (layer == "all")
            w.layer = kAllLayers;
        else if (layer == "mtp")
            w.layer = kDraftLayers;
        else if (!parse_number(layer, &at, &w.layer) || at != layer.size())
            return bad(say("its layer is not a number up to ", kMaxWindowNumber));
        if (rows != "full") {
            at = 0;
            if (!parse_number(rows, &at, &w.window))
                return bad(say("its rows are not a number up to ", kMaxWindowNumber));
            if (w.window == 0) return bad("a window of 0 rows would see nothing");
            if (at < rows.size()) {
                if (rows[at++] != '+' || !parse_number(rows, &at, &w.sinks) || at != rows.size())
                    return bad("only +SINKS may follow the rows, with at most 256 of them");
                if (w.sinks > kMaxSinks) return bad("at most 256 sinks are kept");
            }
        }
        all.push_back(w);
        from = end + 1;
    }
    return all;
}
AUSPEX_CATCH

std::string print_windows(const std::vector<LayerWindow>& windows) AUSPEX_BOUNDARY {
    std::string text;
    for (const LayerWindow& w : windows) {
        if (!text.empty()) text += ",";
        text += w.layer == kAllLayers ? "all" : w.layer == kDraftLayers ? "mtp" : detail::say(w.layer);
        text += w.window == 0 ? ":full" : detail::say(":", w.window);
        if (w.window != 0 && w.sinks != 0) text += detail::say("+", w.sinks);
    }
    return text;
}
AUSPEX_CATCH_EMPTY

namespace detail {

std::string mib(uint64_t bytes) {
    const uint64_t tenth = (bytes * 10 + (1u << 19)) >> 20;
    return say(tenth / 10, ".", tenth % 10, " MiB");
}

Status plan_weights(const Model::Impl& model, const Plan& plan, std::vector<MemoryItem>* items) {
    memory_plan_impl::add(items, "copy of the file", -1, model.copied_bytes, MemoryPlace::allocator);
    Weights weights;
    AUSPEX_TRY(weights_of(model, plan).get(weights));
    return model.device->machine->plan_weights(plan, weights, model.program.get(), items);
}

Status plan_context_options(const Plan& plan, SessionOptions& o, ContextOptions* context, std::string* rule) {
    using namespace memory_plan_impl;
    if (o.n_context == 0) o.n_context = std::min(kDefaultContext, plan.n_context);
    if (o.n_context > kMaxContext)
        return fail(Code::bad_argument, "n_context is ", o.n_context, ", expected at most ", kMaxContext);
    if (o.n_ubatch > kMaxUbatch)
        return fail(Code::bad_argument, "n_ubatch is ", o.n_ubatch, ", expected 1..", kMaxUbatch,
                    ", or 0 to let the device decide");
    if (o.n_ubatch == 0) o.n_ubatch = kDefaultUbatch;
    o.n_ubatch = std::min(o.n_ubatch, o.n_context);
    context->n_context = o.n_context;
    context->n_ubatch = o.n_ubatch;
    context->exact_prompts = o.exact_prompts;
    if (o.draft.source == Draft::best) o.draft.source = plan.mtp.empty() ? Draft::lookup : Draft::mtp_lookup;
    context->mtp = !plan.mtp.empty() && drafts_with_block(o.draft.source);
    // A budget has room for the default.
    const uint32_t window = DraftOptions().window;
    if (o.kv_budget_bytes != 0 && (o.draft.window == 0 || o.draft.window > window)) o.draft.window = window;
    context->mtp_window = o.draft.window;
    context->min_probability = o.draft.min_probability;
    KvOptions kv;
    kv.k = type_of(o.kv_k);
    kv.v = type_of(o.kv_v);
    context->kv.assign(plan.slots.size(), kv);
    const std::vector<Layer> layers = attention_layers(plan);
    AUSPEX_TRY(set_windows(layers, o.windows, &context->kv));
    if (o.kv_budget_bytes == 0) return {};
    if (!o.windows.empty())
        return Status(
            Code::bad_argument,
            "kv_budget_bytes and windows were both given; the budget chooses the windows, so give one of them");
    return meet_budget(plan, layers, o.kv_budget_bytes, context, rule);
}

Result<StateSizes> checkpoint_sizes(const Plan& plan, ContextOptions context) {
    context.mtp = !plan.mtp.empty();
    std::vector<KvShape> shapes;
    AUSPEX_TRY(kv_shapes(plan, context).get(shapes));
    return StateSizes::of(plan, shapes);
}

Result<SessionLayout> session_layout(const Plan& plan, SessionOptions& o) {
    SessionLayout to;
    AUSPEX_TRY(plan_context_options(plan, o, &to.context, &to.window_rule));
    AUSPEX_TRY(kv_shapes(plan, to.context).get(to.kv));
    for (const memory_plan_impl::Layer& l : memory_plan_impl::attention_layers(plan)) {
        const KvShape& s = to.kv[l.slot];
        if (s.n_ring != 0) to.windows.push_back({l.layer, s.window, s.sinks});
    }
    AUSPEX_TRY(checkpoint_sizes(plan, to.context).get(to.sizes));
    AUSPEX_TRY(checkpoint_budget(to.sizes, o.checkpoint_bytes, o.n_context).get(to.checkpoint_bytes));
    to.context.saved_state_bytes = saved_state_bytes(StateSizes::of(plan, to.kv), to.checkpoint_bytes);
    return to;
}

void choose_ubatch(const Model::Impl& model, SessionOptions* o) {
    if (o->n_ubatch != 0) return;
    o->n_ubatch = kDefaultUbatch;
    if (o->kv_budget_bytes != 0) return;
    SessionOptions more = *o;
    more.n_ubatch = model.device->machine->best_ubatch();
    if (more.n_ubatch == o->n_ubatch) return;
    MemoryPlan m;
    if (!memory_plan_impl::measure(model, model.plan, more).get(m).ok()) return;  // an error of 512 rows is reported
    if (m.fits) o->n_ubatch = more.n_ubatch;
}

Result<MemoryPlan> plan_memory(const Model::Impl& model, const SessionOptions& given, bool alternatives) {
    MemoryPlan m;
    SessionOptions options = given;
    choose_ubatch(model, &options);
    AUSPEX_TRY(memory_plan_impl::measure(model, model.plan, options).get(m));
    AUSPEX_TRY(memory_plan_impl::measure_drafting(model, options, &m));
    if (alternatives) memory_plan_impl::build_alternatives(model, options, &m);
    return m;
}

Status place_experts(Model::Impl& model, const LoadOptions& options) {
    using namespace memory_plan_impl;
    const uint32_t n_layer = n_expert_layer(model.plan);
    if (options.host_expert_layers < -1)
        return fail(Code::bad_argument, "host_expert_layers is ", options.host_expert_layers,
                    ", expected a number of layers, or -1 for as few as needed");
    if (n_layer == 0 || model.device->machine->kind() != Kind::vulkan) return {};
    if (options.host_expert_layers >= 0) {
        keep_experts_on_host(model.plan, std::min(static_cast<uint32_t>(options.host_expert_layers), n_layer));
        return {};
    }
    if (limit_of(model) == 0) return {};
    uint32_t low = 0, high = n_layer;
    for (bool first = true; low < high; first = false) {
        const uint32_t n = first ? 0 : low + (high - low) / 2;  // often none is needed
        keep_experts_on_host(model.plan, n);
        MemoryPlan m;
        if (!plan_memory(model, SessionOptions(), false).get(m).ok()) {  // the device allows smaller sessions at most
            AUSPEX_TRY(plan_weights(model, model.plan, &m.items));
            m.fits = limited_bytes(m.items) <= limit_of(model);
        }
        if (m.fits)
            high = n;
        else
            low = n + 1;
    }
    keep_experts_on_host(model.plan, low);
    return {};
}

Status explain_shortage(const Model::Impl& model, const SessionOptions& options, Status done) {
    if (done.code != Code::out_of_memory) return done;
    MemoryPlan m;
    if (plan_memory(model, options, true).get(m).ok()) done.text += memory_plan_impl::describe_alternatives(m);
    return done;
}

Status reserve_session(const Model::Impl& model, SessionOptions* options, Reservation* to) {
    using namespace memory_plan_impl;
    const SessionOptions asked = *options;
    const uint64_t given = model.device->options.memory_limit_bytes;
    const bool cpu = model.device->machine->kind() == Kind::cpu;
    for (;;) {
        *options = asked;
        choose_ubatch(model, options);
        if (given == 0 && !cpu) return {};  // checked where it is allocated
        MemoryPlan m;
        AUSPEX_TRY(measure(model, model.plan, *options).get(m));
        if (!m.fits) {
            build_alternatives(model, *options, &m);
            // As the limit counts them: experts in system memory and a GPU's checkpoints are beside it.
            const uint64_t checkpoints = cpu ? 0 : m.checkpoint_bytes, n_byte = counted_bytes(m);
            return fail(Code::out_of_memory, "the model (", m.weight_bytes - (m.pinned_bytes - checkpoints),
                        " bytes) and this session (", m.session_bytes - checkpoints, ") take ", n_byte, " bytes (",
                        mib(n_byte), "), ",
                        m.pinned_bytes == 0 ? ""
                                            : say("beside ", m.pinned_bytes,
                                                  " bytes of the host's memory that the limit does not count; "),
                        given == 0               ? "the system has room for "
                        : given == m.limit_bytes ? "memory_limit_bytes is "
                                                 : "memory_limit_bytes less what others hold is ",
                        m.limit_bytes, describe_alternatives(m));
        }
        if (cpu || to->take(model.device, counted_bytes(m) - model.reserved.bytes())) return {};
        // Another thread has taken that memory since: what is left decides.
    }
}

}  // namespace detail

Result<MemoryPlan> Session::plan(const Model& model, const SessionOptions& options) AUSPEX_BOUNDARY {
    if (!model) return detail::empty_handle("Model", "Model::load");
    MemoryPlan m;
    AUSPEX_TRY(detail::plan_memory(*model.impl(), options, false).get(m));
    if (m.fits) return m;
    return detail::plan_memory(*model.impl(), options, true);
}
AUSPEX_CATCH

Result<MemoryPlan> Session::plan(const Device& device, const char* path, const SessionOptions& options,
                                 const LoadOptions& load) AUSPEX_BOUNDARY {
    if (!device) return detail::empty_handle("Device", "Device::open");
    if (!path) return Status(Code::bad_argument, "the path is null, expected the name of a GGUF file");
    Model::Impl header;
    header.device = device.impl();
    Status s = detail::open_files(path, load, false, &header);
    detail::PlanOptions plan_options;
    plan_options.mtp = load.mtp;
    if (s.ok()) s = detail::make_plan(header.gguf, plan_options).get(header.plan);
    const DraftOptions& d = options.draft;  // a draft-only head keeps the control ids too
    if (s.ok() && (d.n_vocab != 0 || !d.vocab.empty() || d.vocab_by_use))
        s = detail::Tokenizer::load(header.gguf).get(header.tokenizer);
    if (s.ok()) s = detail::place_experts(header, load);
    header.packed_file = load.packed_file;
    MemoryPlan m;
    if (s.ok()) s = detail::plan_memory(header, options, false).get(m);
    if (s.ok() && !m.fits) s = detail::plan_memory(header, options, true).get(m);
    if (!s.ok()) return detail::with_path(s, path);
    return m;
}
AUSPEX_CATCH

Result<size_t> Session::first_visible(uint32_t layer) const AUSPEX_BOUNDARY {
    Impl::Call call(impl_.get());
    AUSPEX_TRY(call.status());
    const Impl& s = *impl_;
    for (const detail::KvShape& k : s.kv)
        if (k.n_ring != 0 && k.layer == layer) return size_t{k.low(static_cast<uint32_t>(s.timeline.n_row()))};
    return detail::fail(Code::bad_argument, "layer ", layer, " keeps no keys; those that do: ",
                        memory_plan_impl::list_layers(memory_plan_impl::attention_layers(s.model->plan)));
}
AUSPEX_CATCH

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
