// The list of dispatches that a step becomes: plain data, readable without running anything.
#include "vulkan_model.h"

#ifndef AUSPEX_NO_VULKAN
#include "../src/machine/vulkan/first_prompt.h"
#include "../src/machine/vulkan/list_builder.h"

using namespace test_vulkan_model;

namespace {

/// A tiny model and the buffers of a context of it.
struct Lists {
    Rig rig;
    const vk::VulkanModel& model;
    vk::Buffers buffers;

    explicit Lists(const TinyOptions& tiny) : rig(tiny), model(static_cast<const vk::VulkanModel&>(*rig.gpu)) {
        ContextOptions o;
        o.n_context = 512;
        o.n_ubatch = 64;
        REQUIRE(vk::Buffers::take(model, o).get(buffers).ok());
    }
    vk::DispatchList build(const vk::ListBuilder::Piece& piece) const {
        vk::DispatchList list;
        const Status s = vk::ListBuilder(model, buffers).build(piece).get(list);
        REQUIRE_MESSAGE(s.ok(), s.message());
        return list;
    }
    /// A decode step that samples greedily and accepts: what a cycle without drafts runs.
    vk::DispatchList decode(uint32_t n_row) const {
        return build([&](vk::ListBuilder& b) {
            vk::Pass pass;
            pass.tape = &rig.plan.trunk;
            pass.n_row = n_row;
            pass.head = pass.largest = true;
            b.tape(pass);
            b.sample(rig.plan.trunk, n_row, {}, true);
            b.accept();
        });
    }
    /// What a context runs for a step: up to nine rows with logits, or more rows without.
    std::vector<vk::DispatchList> step(uint32_t n_row) const {
        const bool logits = n_row <= kMaxTentative, narrow = logits || model.small();
        std::vector<vk::DispatchList> lists;
        for (uint32_t at = 0, n = 0; at < n_row; at += n) {
            n = narrow ? std::min(kMaxTentative, n_row - at) : n_row;
            lists.push_back(build([](vk::ListBuilder& b) { b.open_request(0); }));
            vk::Pass pass;
            pass.tape = &rig.plan.trunk;
            pass.n_row = n;
            pass.wide = !narrow;
            pass.head = logits;
            const std::vector<const vk::Node*> nodes = vk::ListBuilder(model, buffers).nodes_of(pass);
            for (uint32_t from = 0, to = 0; !narrow && from < nodes.size(); from = to) {  // a list for each layer
                while (to < nodes.size() && nodes[to]->layer == nodes[from]->layer) ++to;
                lists.push_back(build([&](vk::ListBuilder& b) { b.tape(pass, from, to); }));
            }
            if (!narrow) continue;
            lists.push_back(build([&](vk::ListBuilder& b) {
                b.tape(pass);
                if (logits) b.logits_to_host(rig.plan.trunk, n);
                b.keep(n);
            }));
        }
        return lists;
    }
    uint32_t n_op(OpKind kind) const {
        uint32_t n = 0;
        for (const Op& op : rig.plan.trunk.ops) n += op.kind == kind;
        return n;
    }
};

uint32_t dispatches(const vk::DispatchList& list, const std::string& shader) {
    for (const vk::DispatchList::Count& c : list.counts())
        if (c.shader == shader) return c.n_dispatch;
    return 0;
}

size_t lines(const std::string& text) { return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')); }

}  // namespace

TEST_CASE("a decode step is one dispatch for each fused operation, and building its list makes no pipeline") {
    if (!shared_gpu()) return;
    Lists l(tiny_of(true));
    const size_t made = shared_gpu()->pipelines->size();
    const vk::DispatchList list = l.decode(1);
    CHECK(shared_gpu()->pipelines->size() == made);
    INFO(list.text());
    const uint32_t n_delta = l.n_op(OpKind::delta), n_attend = l.n_op(OpKind::attend);
    REQUIRE(n_delta > 0);
    REQUIRE(n_attend > 0);
    CHECK(dispatches(list, "embed_f16") == 1);
    const vk::DeviceTraits& traits = shared_gpu()->gpu->traits;
    CHECK(shared_gpu()->shuffles == (traits.shuffle() && traits.subgroup_size >= 8));
    const bool fast = shared_gpu()->shuffles;  // the general kernels are two dispatches where these are one
    CHECK(dispatches(list, fast ? "delta_step" : "delta_any") == n_delta);
    CHECK(dispatches(list, "ring_any") == (fast ? 0 : n_delta));
    CHECK(dispatches(list, fast ? "attend_step" : "attend_any") == n_attend);  // the first appends to the cache as well
    CHECK(dispatches(list, "kv_any") == (fast ? 0 : n_attend));
    CHECK(dispatches(list, "kv_append") == 0);
    CHECK(dispatches(list, "sample_final") == 1);
    CHECK(dispatches(list, "sample_part") == 0);  // the head leaves the largest logits
    CHECK(dispatches(list, "step_accept") == 1);
    // Gate, up and activation are one product, norms are part of the products that read them.
    const uint32_t n_pair = l.n_op(OpKind::swiglu);
    CHECK(dispatches(list, "matvec_f16") == l.n_op(OpKind::matmul) - n_pair);
    CHECK(dispatches(list, "swiglu_rows") == 0);
    uint32_t n = 0;
    for (const vk::DispatchList::Count& c : list.counts()) n += c.n_dispatch;
    CHECK(n == list.n_dispatch());
    CHECK(list.n_barrier() < list.n_dispatch());
}

TEST_CASE("a list prints a line for each entry, names a pipeline once, and is the same every time") {
    if (!shared_gpu()) return;
    Lists l(tiny_of(true));
    const vk::DispatchList list = l.decode(4), again = l.decode(4);
    CHECK(lines(list.text()) == list.entries().size());
    CHECK(list.text() == again.text());
    CHECK(list.text().find("dispatch  embed_f16 group 8 grid ") == 0);
    for (size_t i = 0; i < list.keys().size(); ++i)
        for (size_t k = 0; k < i; ++k) CHECK(!(list.keys()[i] == list.keys()[k]));
    // Stages cut the list at its barriers and lose nothing.
    uint64_t bytes = 0, staged = 0;
    for (const vk::DispatchList::Count& c : list.counts()) bytes += c.bytes;
    for (const vk::DispatchList::Stage& s : list.stages()) staged += s.bytes;
    CHECK(bytes == staged);
    CHECK(list.stages().size() == list.n_barrier() + 1);
}

TEST_CASE("the kernels of a row do not depend on the other rows: a list of nine rows runs those of one") {
    if (!shared_gpu()) return;
    for (bool fast : {true, false}) {
        CAPTURE(fast);
        Lists l(tiny_of(fast));
        const vk::DispatchList one = l.decode(1), nine = l.decode(9);
        for (const vk::DispatchList::Count& c : one.counts()) {
            CAPTURE(c.shader);
            CHECK(dispatches(nine, c.shader) >= c.n_dispatch);
        }
        CHECK(one.counts().size() == nine.counts().size());
    }
}

TEST_CASE("the counts of a step are those of its lists, and counting makes no pipeline") {
    if (!shared_gpu()) return;
    struct SmallBytes {  // of the shared device, restored at the end
        uint64_t& bytes = shared_gpu()->small_bytes;
        const uint64_t before = bytes;
        ~SmallBytes() { bytes = before; }
    } limit;
    for (int kind : {0, 1, 2}) {  // 2: a small model, whose prefill is steps of nine rows
        CAPTURE(kind);
        limit.bytes = kind == 2 ? UINT64_MAX : 0;
        Lists l(tiny_of(kind != 1));
        const auto context = l.rig.context();
        const size_t made = shared_gpu()->pipelines->size();
        for (uint32_t n_row : {1u, 4u, 9u, 32u}) {  // more may run in pieces on a software device
            CAPTURE(n_row);
            const bool prefill = n_row > kMaxTentative;
            StepCounts expected;
            std::vector<vk::PipelineKey> keys;
            for (const vk::DispatchList& list : l.step(n_row)) {
                expected.n_dispatch += list.n_dispatch();
                expected.n_barrier += list.n_barrier();
                for (const vk::PipelineKey& k : list.keys())
                    if (std::find(keys.begin(), keys.end(), k) == keys.end()) keys.push_back(k);
            }
            Step step;
            step.tape = &l.rig.plan.trunk;
            step.n_row = n_row;
            step.n_logit = prefill ? 0 : n_row;
            step.tentative = !prefill;
            StepCounts counts;
            const Status s = context->profiler()->count(step).get(counts);
            REQUIRE_MESSAGE(s.ok(), s.message());
            CHECK(counts.n_row == n_row);
            CHECK(counts.n_dispatch == expected.n_dispatch);
            CHECK(counts.n_barrier == expected.n_barrier);
            CHECK(counts.n_pipeline == keys.size());
        }
        CHECK(shared_gpu()->pipelines->size() == made);
        Step step;
        step.tape = &l.rig.plan.trunk;
        step.n_row = 65;
        CHECK(context->profiler()->count(step).status().code == Code::bad_argument);
    }
}

TEST_CASE("a list is recorded and replayed, timed stage by stage") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    Lists l(tiny_of(true));
    const vk::DispatchList list = l.decode(1);
    vk::Pipelines& pipelines = *shared_gpu()->pipelines;
    const std::vector<vk::Pipelines::Id> ids = list.request(&pipelines);
    CHECK(ids.size() == list.keys().size());
    vk::Commands commands;
    const uint32_t n_mark = static_cast<uint32_t>(list.stages().size() + 1);
    REQUIRE(vk::Commands::create(shared_gpu()->gpu, n_mark).get(commands).ok());
    REQUIRE(list.record(pipelines, ids, &commands, true).ok());
    CHECK(commands.n_dispatch() == list.n_dispatch());
    CHECK(commands.n_barrier() == list.n_barrier());
    for (int replay = 0; replay < 2; ++replay) {
        REQUIRE(commands.run().ok());
        std::vector<std::pair<std::string, double>> times;
        REQUIRE(commands.timings().get(times).ok());
        if (shared_gpu()->gpu->traits.timestamp_bits == 0) continue;
        REQUIRE(times.size() == list.stages().size());
        for (size_t i = 0; i < times.size(); ++i) CHECK(times[i].first == list.stages()[i].label);
    }
}

TEST_CASE("cards with few registers get smaller workgroups of DeltaNet, and one column of its state at once") {
    struct Card {
        uint32_t vendor, subgroup_min, max_group_subgroups;
        uint32_t group, columns;  ///< of delta_step and of delta_scan
    };
    for (const Card& card :
         {Card{vk::kNvidia, 32, 32, 1024, 2}, Card{vk::kAmd, 32, 32, 1024, 2}, Card{vk::kIntel, 8, 64, 512, 1},
          Card{vk::kIntel, 8, 56, 256, 1}, Card{vk::kQualcomm, 64, 16, 256, 1}}) {
        if (!shared_gpu()) return;
        if (!shared_gpu()->shuffles) return skip("DeltaNet runs on the general kernel here: no shuffles");
        CAPTURE(card.vendor);
        vk::OpenDetail detail;
        detail.edit_traits = [&](vk::DeviceTraits* t) {
            t->type = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
            t->vendor_id = card.vendor;
            t->subgroup_min = card.subgroup_min;
            t->max_group_subgroups = card.max_group_subgroups;
            t->max_group_invocations = 1024;
            t->n_core = 1;
        };
        DeviceOptions options;
        options.kind = Kind::vulkan;
        vk::OpenDeviceRef device;
        REQUIRE(vk::open_device(options, detail).get(device).ok());
        const ContextRig rig(tiny_of(true));
        std::shared_ptr<vk::VulkanModel> model;
        REQUIRE(vk::VulkanModel::outline(device, rig.plan).get(model).ok());
        ContextOptions o;
        o.n_context = 512;
        o.n_ubatch = 64;
        vk::Buffers buffers;
        REQUIRE(vk::Buffers::outline(*model, o).get(buffers).ok());
        const auto key_of = [&](const char* shader, vk::Pass pass) {
            pass.tape = &rig.plan.trunk;
            vk::DispatchList list;
            REQUIRE(vk::ListBuilder(*model, buffers).build([&](vk::ListBuilder& b) { b.tape(pass); }).get(list).ok());
            for (const vk::PipelineKey& key : list.keys())
                if (key.shader == shader) return key;
            FAIL("no " << shader);
            return vk::PipelineKey();
        };
        vk::Pass prompt;
        prompt.n_row = 64;
        prompt.wide = true;
        CHECK(key_of("delta_step", vk::Pass()).group == card.group);
        CHECK(key_of("delta_scan", prompt).constant(vk::spec::delta_scan::kColumns) == card.columns);
    }
}

TEST_CASE("a first prompt and its first token need the pipelines that are requested before there are weights") {
    for (const bool fast : {false, true}) {
        if (!shared_gpu()) return;
        vk::OpenDeviceRef device;
        DeviceOptions of_device;
        of_device.kind = Kind::vulkan;
        REQUIRE(vk::open_device(of_device, {}).get(device).ok());  // one whose pipelines nobody has requested
        const ContextRig rig(tiny_of(fast));
        ContextOptions o;
        o.n_context = 512;
        o.n_ubatch = 64;
        o.mtp = false;
        std::shared_ptr<vk::VulkanModel> outline;
        REQUIRE(vk::VulkanModel::outline(device, rig.plan).get(outline).ok());
        const size_t n_before = device->pipelines->size();
        REQUIRE(vk::request_pipelines(*outline, o).ok());
        const size_t n = device->pipelines->size();
        CHECK(n >= n_before + 10);
        const std::shared_ptr<LoadedModel> model = rig.load(*vk::make_backend(device));
        CHECK(outline->weight_bytes() == model->weight_bytes());
        std::unique_ptr<Context> context;
        REQUIRE(model->open(o).get(context).ok());
        const std::vector<Token> ids = tiny_ids(65, 3);
        rig.run(*context, part(ids, 0, 64), 0, false, 1);
        LoopStart d;
        d.history = ids;
        d.limit = 80;
        DeviceLoop& loop = *context->device_loop();
        REQUIRE(loop.start(d).ok());
        REQUIRE(loop.queue(0).ok());
        REQUIRE(loop.wait().ok());
        CHECK(device->pipelines->size() == n);
    }
}

TEST_CASE("pieces of a prompt get shorter while they are slow, and long again when they run fast") {
    if (!shared_gpu()) return;
    HotPath hot_path;
    const Rig rig(narrow_of(true));
    struct Restored {
        decltype(vk::OpenDevice::small_bytes) small_bytes = std::exchange(shared_gpu()->small_bytes, 0);
        double max_us = shared_gpu()->max_submit_us;
        ~Restored() {
            shared_gpu()->small_bytes = small_bytes;
            shared_gpu()->max_submit_us = max_us;
        }
    } restored;
    auto context = rig.context();
    const std::vector<Token> ids = tiny_ids(64, 3);
    uint32_t at = 0;
    const auto dispatches = [&] {  // of a prompt of 64 rows
        return context->profiler()->count(rig.step(ids, at, false, 0)).value().n_dispatch;
    };
    const auto prompt = [&](double limit_us) {
        shared_gpu()->max_submit_us = limit_us;
        rig.run(*context, ids, at, false, 0);
        at += 64;
    };
    const uint32_t whole = dispatches();
    for (int i = 0; i < 3; ++i) prompt(0);  // every piece takes longer
    if (shared_gpu()->gpu->traits.short_loops && !shared_gpu()->shuffles)
        CHECK(dispatches() == 2 * whole);  // four of 16 rows, and DeltaNet's general kernel had two of 32
    else
        CHECK(dispatches() > 3 * whole);  // four of 16 rows
    prompt(1e12);
    CHECK(dispatches() == whole);
}

#endif  // AUSPEX_NO_VULKAN
