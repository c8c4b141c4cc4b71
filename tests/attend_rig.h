// tests/attend_rig: an attention layer with random inputs, run through each of its kernels or in double.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../src/machine/vulkan/tune_attend.h"
#include "vulkan_rig.h"

#include <algorithm>
#include <cmath>

namespace test_attend {

using namespace auspex;
using namespace auspex::detail;
using namespace auspex::detail::args;
using u32 = uint32_t;
using test::Rig;
using test::same_bits;
using test::worst;

constexpr u32 kRows = 40;  // of scratch

inline double half_value(double x) {  // to binary16 and back, nearest even
    if (x == 0) return 0;
    int e = 0;
    std::frexp(x, &e);
    const double unit = std::ldexp(1.0, std::max(e - 11, -24));
    return std::nearbyint(x / unit) * unit;
}

struct AttendCase {
    u32 n_head, n_head_kv, d_head, n_rot, window, sinks, flags, n, ring;
    Type k = Type::f16, v = Type::f16;
    u32 first_key = 0;  ///< rows before it are never run, as in the cache of an MTP block
};

inline u32 format_of(Type t) {
    return t == Type::q8_0 ? kKvQ8 : t == Type::q4_0 ? kKvQ40 : t == Type::q4_1 ? kKvQ41 : kKvF16;
}

struct Attend {
    AttendCase c;
    u32 q_width, kv_width, out_width, ring, n_tile, n_chunk, n_segment;
    std::vector<float> q, k, v, q_norm, k_norm, gate;
    Rig rig;
    u32 step, request, acts, q_id, k_id, rope, k_cache, v_cache, part, stat, count, query, out;
    AttendArgs args{};

    Attend(test::Vulkan& vulkan, const AttendCase& which) : c(which), rig(vulkan) {
        q_width = c.n_head * c.d_head * ((c.flags & kAttendInterleaved) != 0 ? 2 : 1);
        kv_width = c.n_head_kv * c.d_head;
        out_width = c.n_head * c.d_head;
        ring = c.ring != 0 ? c.ring : ceil_div(c.n + 9, kChunk) * kChunk;
        n_tile = (kRows * (c.n_head / c.n_head_kv) + 127) / 128 * 2;
        test::Random random(c.n_head + c.n);
        q = random.normals(size_t(c.n) * q_width);
        k = random.normals(size_t(c.n) * kv_width);
        v = random.normals(size_t(c.n) * kv_width);
        q_norm = random.normals(c.d_head, 0.3f);
        k_norm = random.normals(c.d_head, 0.3f);
        gate = random.normals(size_t(c.n) * c.n_head);
        for (u32 i = 0; i < c.d_head; i++) {
            q_norm[i] += 1;
            k_norm[i] += 1;
        }
        args.n_head = c.n_head;
        args.n_head_kv = c.n_head_kv;
        args.n_rot = c.n_rot;
        args.scale = 1 / std::sqrt(float(c.d_head));
        args.eps = 1e-6f;
        args.flags = c.flags;
        args.window = c.window;
        args.sinks = c.sinks;
        args.ring = ring;
        args.capacity = c.sinks + ring;
        args.q_stride = q_width;
        args.k_offset = kRows * q_width;
        args.k_stride = args.v_stride = kv_width;
        args.v_offset = args.k_offset + kRows * kv_width;
        args.gate_offset = args.v_offset + kRows * kv_width;
        args.gate_stride = c.n_head;
        args.out_stride = out_width;
        args.rope_scale = 1;
        step = rig.add(test::kStepBytes);
        request = rig.add(4 * (kRequestWords + 16));
        acts = rig.add(4 * size_t(args.gate_offset + kRows * c.n_head));
        q_id = rig.add(4 * c.d_head);
        k_id = rig.add(4 * c.d_head);
        rope = rig.add(8 * std::max(c.n_rot, 2u));
        k_cache = rig.add(cache_bytes(c.k));
        v_cache = rig.add(cache_bytes(c.v));
        n_chunk = c.n / 128 + 4;
        const size_t slots = n_chunk + n_chunk / 16 + 4;  // chunks, and sets of them
        n_segment = c.n / kSegment + 2;
        const size_t queries = size_t(c.n_head_kv) * 64 * n_tile;
        part = rig.add(std::max(slots * kMaxRows * out_width, n_segment * queries * c.d_head) * 4);
        stat = rig.add(std::max(slots * kMaxRows * c.n_head, n_segment * queries) * 8);
        count = rig.add(size_t(kMaxRows) * c.n_head * 4 * slots);
        query = rig.add(size_t(c.n_head_kv) * n_tile * c.d_head * 256);
        out = rig.add(size_t(kRows) * out_width * 4);
        rig.take();
        rig.put(q_id, q_norm);
        rig.put(k_id, k_norm);
        for (u32 i = 0; i < c.n_rot / 2; i++) {
            const auto turn =
                static_cast<uint64_t>(std::pow(1e7, -2.0 * i / c.n_rot) / 6.283185307179586 * 18446744073709551616.0);
            rig.at<uint64_t>(rope)[i] = turn;
        }
    }

    size_t cache_bytes(Type t) const {
        const size_t rows = size_t(c.n_head_kv) * args.capacity, blocks = c.d_head / 32;
        return rows * (t == Type::f16    ? 2 * c.d_head
                       : t == Type::q8_0 ? c.d_head + (blocks + 1) / 2 * 4
                       : t == Type::q4_0 ? c.d_head / 2 + (blocks + 1) / 2 * 4
                                         : c.d_head / 2 + blocks * 4);
    }

    /// What one row of a cache says, read by the description in shaders/kv_formats.glsl.
    std::vector<float> row_of(u32 id, Type t, u32 head, u32 slot) {
        const uint8_t* base = reinterpret_cast<const uint8_t*>(rig.memory[id].mapped);
        const size_t rows = size_t(c.n_head_kv) * args.capacity, row = size_t(head) * args.capacity + slot,
                     blocks = c.d_head / 32;
        auto half = [](const uint8_t* p) { return f16_to_f32(static_cast<uint16_t>(p[0] | p[1] << 8)); };
        std::vector<float> x;
        for (u32 i = 0; i < c.d_head; i++) {
            const u32 block = i / 32;
            if (t == Type::f16) {
                x.push_back(half(base + (row * c.d_head + i) * 2));
            } else if (t == Type::q8_0) {
                const bool contexts = id == k_cache && c.d_head == 256;  // 16 bytes of a context, then of the next
                const size_t at = contexts ? (i / 16 % 2 * 8 + i / 32) * 16 + i % 16 : i;
                const uint8_t* scales = base + rows * c.d_head + row * ((blocks + 1) / 2 * 4);
                x.push_back(half(scales + 2 * block) *
                            static_cast<float>(static_cast<int8_t>(base[row * c.d_head + at])));
            } else {
                const int code = base[row * c.d_head / 2 + i / 8 * 4 + i % 4] >> (i / 4 % 2 * 4) & 15;
                const uint8_t* scales =
                    base + rows * c.d_head / 2 + row * (t == Type::q4_1 ? blocks * 4 : (blocks + 1) / 2 * 4);
                if (t == Type::q4_1)
                    x.push_back(half(scales + 4 * block) * static_cast<float>(code) + half(scales + 4 * block + 2));
                else
                    x.push_back(half(scales + 2 * block) * static_cast<float>((code ^ 8) - 8));
            }
        }
        return x;
    }
    std::vector<std::byte> caches() {
        std::vector<std::byte> all;
        for (u32 id : {k_cache, v_cache})
            all.insert(all.end(), rig.memory[id].mapped, rig.memory[id].mapped + rig.memory[id].bytes);
        return all;
    }

    /// units, tiles, shared: on matrix units; append: fills the caches and no more
    enum class How { fused, units, split, rows, plain, append, tiles, shared };
    static bool of_prompts(How how) { return how == How::tiles || how == How::shared || how == How::rows; }
    static vk::AttendKernel kernel_of(How how) {
        return how == How::tiles    ? vk::AttendKernel::tile
               : how == How::shared ? vk::AttendKernel::shared
                                    : vk::AttendKernel::rows;
    }
    /// Of prompts; rows have one group, shared no 64. whole: partials of all queries fit, else those of one block.
    struct Tiles {
        u32 group = 256, split = 0;
        bool whole = true;
    } tiles;
    u32 attends_from = 0;  ///< rows before it join the caches and no more

    /// Runs all rows, n_row at a time, with `tile` queries a workgroup (units: 16, or 8). Returns the results of every
    /// row from first_key and attends_from on.
    std::vector<float> run(How how, u32 n_row, u32 tile = 4) {
        for (u32 id : {k_cache, v_cache, step, count}) std::memset(rig.memory[id].mapped, 0, rig.memory[id].bytes);
        for (u32 id : {part, stat, query}) std::memset(rig.memory[id].mapped, 0xff, rig.memory[id].bytes);
        const u32 from = std::max(attends_from, c.first_key);
        if (from > c.first_key) run_rows(How::append, tile, c.first_key, from, n_row);
        return run_rows(how, tile, from, c.n, n_row);
    }

    std::vector<float> run_rows(How how, u32 tile, u32 first, u32 end, u32 n_row) {
        rig.begin();
        rig.run("step_open", 256, {}, {step, request, step}, StepArgs{}, 1);
        record(how, tile);
        rig.end();
        std::vector<float> got;
        for (u32 p = first; p < end; p += n_row) {
            const u32 rows = std::min(n_row, end - p);
            float* to = rig.at<float>(acts);
            std::copy_n(&q[size_t(p) * q_width], rows * q_width, to);
            std::copy_n(&k[size_t(p) * kv_width], rows * kv_width, to + args.k_offset);
            std::copy_n(&v[size_t(p) * kv_width], rows * kv_width, to + args.v_offset);
            std::copy_n(&gate[size_t(p) * c.n_head], rows * c.n_head, to + args.gate_offset);
            StepRequest r{};
            r.n_row = rows;
            r.position = p;
            r.first_key = c.first_key;
            r.flags = c.first_key == 0 ? kRequestTrunk : 0;
            *rig.at<StepRequest>(request) = r;
            rig.go();
            got.insert(got.end(), rig.at<float>(out), rig.at<float>(out) + size_t(rows) * out_width);
        }
        return got;
    }

    void record(How how, u32 tile) {
        AttendArgs push = args;
        const u32 fk = format_of(c.k), fv = format_of(c.v), per_kv = c.n_head / c.n_head_kv;
        namespace s = vk::spec;
        if (how == How::plain) {
            rig.run("kv_any", 64, {{s::kv_any::kDHead, c.d_head}, {s::kv_any::kKType, fk}, {s::kv_any::kVType, fv}},
                    {step, acts, q_id, k_id, rope, k_cache, v_cache, query}, push, kRows, c.n_head_kv + c.n_head);
            rig.run("attend_any", 64,
                    {{s::attend_any::kDHead, c.d_head}, {s::attend_any::kKType, fk}, {s::attend_any::kVType, fv}},
                    {step, acts, query, k_cache, v_cache, out}, push, kRows, c.n_head);
        } else if (how != How::fused && how != How::units) {
            push.part_stride = 64 * n_tile;
            rig.run("kv_append", 256,
                    {{s::kv_append::kDHead, c.d_head},
                     {s::kv_append::kQueries, of_prompts(how) ? vk::attend_queries(kernel_of(how)) : kQueriesNone},
                     {s::kv_append::kKType, fk},
                     {s::kv_append::kVType, fv}},
                    {step, acts, q_id, k_id, rope, k_cache, v_cache, query}, push, 3);
        }
        if (of_prompts(how)) {
            record_tiles(push, kernel_of(how));
        } else if (how == How::fused || how == How::split) {
            push.part_stride = kMaxRows * c.n_head;
            rig.bind("attend_step", 256,
                     {{s::attend_step::kDHead, c.d_head},
                      {s::attend_step::kTile, tile},
                      {s::attend_step::kAppend, how == How::fused},
                      {s::attend_step::kKType, fk},
                      {s::attend_step::kVType, fv},
                      {s::attend_step::kPerKv, per_kv}},
                     {step, acts, q_id, k_id, rope, k_cache, v_cache, part, stat, out, count}, push);
            rig.commands.dispatch(n_chunk, c.n_head_kv, (kMaxRows * (c.n_head / c.n_head_kv) + tile - 1) / tile);
        } else if (how == How::units) {
            push.part_stride = kMaxRows * c.n_head;
            push.count_stride = n_chunk / 16 + 4;
            const u32 tiles = tile == 16 ? 2 : 1;
            rig.bind("attend_mma", 256,
                     {{s::attend_mma::kDHead, c.d_head},
                      {s::attend_mma::kTiles, tiles},
                      {s::attend_mma::kAppend, 1},
                      {s::attend_mma::kWindowed, args.window > 0},
                      {s::attend_mma::kFlags, args.flags},
                      {s::attend_mma::kPerKv, per_kv},
                      {s::attend_mma::kUnitM, 16},
                      {s::attend_mma::kUnitN, 8},
                      {s::attend_mma::kUnitK, 16},
                      {s::attend_mma::kChained, rig.vulkan.gpu->traits.starts_in_order}},
                     {step, acts, q_id, k_id, rope, k_cache, v_cache, part, stat, out, count}, push);
            rig.commands.dispatch(ceil_div(kMaxRows * per_kv, 8 * tiles), c.n_head_kv, n_chunk);
        }
    }

    void record_tiles(AttendArgs push, vk::AttendKernel kernel) {
        namespace s = vk::spec;
        vk::AttendTileChoice choice;
        choice.kernel = kernel;
        choice.group = kernel == vk::AttendKernel::rows ? 256 : tiles.group;
        choice.split = tiles.split;
        const vk::PipelineKey key = choice.key(c.d_head, format_of(c.k), format_of(c.v), push, rig.vulkan.gpu->traits);
        const u32 n_block = 64 * n_tile / kAttendRound, n_round = tiles.whole ? 1 : n_block;
        push.n_part = kAttendRound * n_segment * (tiles.whole ? n_block : 1);
        for (push.round = 0; push.round < n_round; push.round++) {
            rig.bind(key, {step, query, k_cache, v_cache, part, stat}, push);
            rig.commands.dispatch(64 * n_tile / choice.tile(), c.n_head_kv, tiles.split != 0 ? n_segment : 1);
            rig.commands.barrier();
            rig.run("attend_join", 256, {{s::attend_join::kDHead, c.d_head}, {s::attend_join::kSplit, tiles.split}},
                    {step, acts, part, stat, out}, push, kRows * c.n_head * c.d_head / 1024 + 1);
        }
    }

    std::vector<double> turned(const float* x, const std::vector<float>& norm, bool normed, u32 position) const {
        std::vector<double> y(c.d_head);
        double sum = 0;
        for (u32 i = 0; i < c.d_head; i++) sum += double(x[i]) * x[i];
        for (u32 i = 0; i < c.d_head; i++)
            y[i] = normed ? x[i] / std::sqrt(sum / c.d_head + 1e-6) * norm[i] : double(x[i]);
        for (u32 i = 0, h = c.n_rot / 2; i < h; i++) {
            const double angle = position * std::pow(1e7, -2.0 * i / c.n_rot), p = y[i], r = y[i + h];
            y[i] = p * std::cos(angle) - r * std::sin(angle);
            y[i + h] = p * std::sin(angle) + r * std::cos(angle);
        }
        return y;
    }

    std::vector<double> key_of(u32 p, u32 h) const {
        return turned(&k[size_t(p) * kv_width + h * c.d_head], k_norm, (c.flags & kAttendKNorm) != 0, p);
    }

    /// Of a cache in halves.
    std::vector<double> expected() const {
        std::vector<double> keys, values;
        for (u32 p = 0; p < c.n; p++)
            for (u32 h = 0; h < c.n_head_kv; h++) {
                for (double x : key_of(p, h)) keys.push_back(half_value(x));
                for (u32 i = 0; i < c.d_head; i++)
                    values.push_back(half_value(v[size_t(p) * kv_width + h * c.d_head + i]));
            }
        return expected(keys, values);
    }
    /// With keys and values as the caches hold them after a run: of rows `from` and later. No slot may be overwritten.
    std::vector<double> expected_of_caches(u32 from) {
        std::vector<double> keys(size_t(c.n) * kv_width), values(keys.size());
        for (u32 p = c.first_key; p < c.n; p++)
            for (u32 h = 0; h < c.n_head_kv; h++) {
                const std::vector<float> key = row_of(k_cache, c.k, h, p), value = row_of(v_cache, c.v, h, p);
                std::copy(key.begin(), key.end(), &keys[size_t(p) * kv_width + h * c.d_head]);
                std::copy(value.begin(), value.end(), &values[size_t(p) * kv_width + h * c.d_head]);
            }
        return expected(keys, values, from);
    }
    /// With these keys and values, [n, n_head_kv, d_head].
    std::vector<double> expected(const std::vector<double>& keys, const std::vector<double>& values,
                                 u32 from = 0) const {
        std::vector<double> result;
        for (u32 t = from; t < c.n; t++)
            for (u32 h = 0; h < c.n_head; h++) {
                const u32 stride = q_width / c.n_head, g = h / (c.n_head / c.n_head_kv);
                const float* x = &q[size_t(t) * q_width + h * stride];
                const std::vector<double> y = turned(x, q_norm, (c.flags & kAttendQNorm) != 0, t);
                std::vector<double> score(t + 1, -1e300), o(c.d_head);
                double top = -1e300, sum = 0;
                for (u32 p = c.first_key; p <= t; p++) {
                    if (c.window != 0 && t - p >= c.window && p >= c.sinks) continue;
                    double dot = 0;
                    for (u32 i = 0; i < c.d_head; i++) dot += y[i] * keys[size_t(p) * kv_width + g * c.d_head + i];
                    top = std::max(top, score[p] = dot * args.scale);
                }
                for (u32 p = c.first_key; p <= t; p++) {
                    const double e = std::exp(score[p] - top);
                    sum += e;
                    if (e > 0)
                        for (u32 i = 0; i < c.d_head; i++) o[i] += e * values[size_t(p) * kv_width + g * c.d_head + i];
                }
                for (u32 i = 0; i < c.d_head; i++) {
                    double r = o[i] / sum;
                    if ((c.flags & kAttendInterleaved) != 0) r *= test::sigmoid(x[c.d_head + i]);
                    if ((c.flags & kAttendPerHead) != 0) r *= test::sigmoid(gate[size_t(t) * c.n_head + h]);
                    result.push_back(r);
                }
            }
        return result;
    }
};

}  // namespace test_attend
#endif  // AUSPEX_NO_VULKAN
