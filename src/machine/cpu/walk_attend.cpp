// machine/cpu/walk_attend: attention layers: keys and values into the cache, queries against it.
//
// kv_write
//   in[0] k, in[1] v  [n_row, n_head_kv * d_head]  f32  in; k normed and rotated in place
//   state             keys and values by KV row, in the types of the cache  out
// attend
//   in[0] q    [n_row, n_head * d_head], or with an interleaved gate [n_row, n_head, 2, d_head]  f32  in
//   in[1] g    [n_row, n_head] f32, in: gates of whole heads, if the layer has them
//   out        [n_row, n_head * d_head]  f32  out
//
//   o = sum over visible KV rows j of softmax_j(scale q . k_j) v_j, times sigmoid(gate)
//
// A row at KV row p sees the rows within its window and the sinks. Its sum is cut into the sinks that lie before the
// window and chunks of kAttnChunk KV rows at absolute multiples; each gives a partial (m, l, o), merged in that order.
// So a row's bits depend neither on the other rows of the step nor on the threads.
//
// Cost    a row and visible KV row: 4 n_head d_head flops; keys and values are read once for each kAttnRows rows.
// Source  docs/MODEL.md. Counterpart: shaders/kv_append.comp, attend_step.comp, attend_rows.comp.
#include "walk.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

const float* CpuWalk::rotation(const Op& op, uint32_t i_row) const {
    for (const CpuContext::Rotation& r : context_.rotations_)
        if (r.n_rot == op.attn.n_rot && r.base == op.attn.rope_base && r.factors == op.w[1])
            return r.table + size_t{i_row} * r.n_rot;
    return nullptr;
}

void CpuWalk::kv_write(const Op& op) {
    const AttnDims& a = op.attn;
    const KvCache& kv = context_.kv_[op.state];
    const float* norm = vector(op.w[0]);
    for (uint64_t i = i_thread_; i < uint64_t{step_.n_row} * a.n_head_kv; i += n_thread_) {
        const uint32_t r = static_cast<uint32_t>(i / a.n_head_kv), h = static_cast<uint32_t>(i % a.n_head_kv);
        float* k = row(op.in[0], r) + size_t{h} * a.d_head;
        const float* v = row(op.in[1], r) + size_t{h} * a.d_head;
        if (norm) loops_.rms_norm(k, norm, k, a.d_head, a.eps);
        rotate(k, a.n_rot, rotation(op, r));
        auto store = [&](std::byte* to_k, std::byte* to_v, uint32_t place) {
            auto one = [&](Type type, const float* x, std::byte* to, uint64_t bytes) {
                to += place * bytes + row_bytes(type, uint64_t{h} * a.d_head);
                if (type == Type::f16)
                    loops_.to_f16(x, reinterpret_cast<uint16_t*>(to), a.d_head);
                else
                    encode_row(type, x, to, a.d_head);
            };
            one(kv.shape.k, k, to_k, kv.shape.k_bytes);
            one(kv.shape.v, v, to_v, kv.shape.v_bytes);
        };
        const uint32_t p = step_.first_row + r;
        store(kv.k, kv.v, kv.shape.place(p));
        if (p < kv.shape.sinks) store(kv.sink_k, kv.sink_v, p);
    }
}

/// The attend operation of one layer. A partial is part_stride floats: m, l, o [d_head]; l is 0 where a row sees
/// nothing.
struct CpuWalk::Attention {
    CpuWalk& walk;
    const Op& op;
    const AttnDims& a;
    const KvCache& kv;
    const Step& step;
    const uint32_t group;   ///< query heads of one key head
    const size_t q_stride;  ///< floats from one query head to the next
    const size_t part_stride;
    float* const scratch;    ///< of this thread
    const uint32_t n_chunk;  ///< chunks up to the last row of the step

    /// The chunk number of the sinks.
    static constexpr uint32_t kSinks = ~uint32_t{0};

    Attention(CpuWalk& w, const Op& o)
        : walk(w),
          op(o),
          a(o.attn),
          kv(w.context_.kv_[o.state]),
          step(w.step_),
          group(a.n_head / a.n_head_kv),
          q_stride(a.gate == AttnGate::interleaved ? size_t{2} * a.d_head : a.d_head),
          part_stride(w.context_.part_stride_),
          scratch(w.scratch()),
          n_chunk(ceil_div(step.first_row + step.n_row, kAttnChunk)) {}

    float* query(uint32_t r, uint32_t h) const { return walk.row(op.in[0], r) + h * q_stride; }
    /// The oldest KV row that a row at p sees, sinks aside.
    uint32_t oldest(uint32_t p) const {
        const uint32_t low = kv.shape.low(p);
        return low > step.first_key ? low : step.first_key;
    }
    /// The KV rows from .. to - 1 of one chunk (or of the sinks) that a row at p sees.
    void visible(uint32_t chunk, uint32_t p, uint32_t* from, uint32_t* to) const {
        const uint32_t low = oldest(p);
        if (chunk == kSinks) {
            *from = step.first_key;
            *to = kv.shape.sinks < low ? kv.shape.sinks : low;
        } else {
            *from = chunk * kAttnChunk > low ? chunk * kAttnChunk : low;
            *to = (chunk + 1) * kAttnChunk < p + 1 ? (chunk + 1) * kAttnChunk : p + 1;
        }
    }

    void prepare_queries() const;
    template <class F>
    void partials(uint32_t r0, uint32_t r1, uint32_t hk, uint32_t chunk, F part) const;
    void merge(float* sum, const float* part) const;
    void finish(uint32_t r, uint32_t h, const float* sum) const;
    void by_row_tiles() const;
    void by_chunks() const;
};

/// Norms, rotates and scales the queries in place.
void CpuWalk::Attention::prepare_queries() const {
    const float* norm = walk.vector(op.w[0]);
    for (uint64_t i = walk.i_thread_; i < uint64_t{step.n_row} * a.n_head; i += walk.n_thread_) {
        const uint32_t r = static_cast<uint32_t>(i / a.n_head), h = static_cast<uint32_t>(i % a.n_head);
        float* q = query(r, h);
        if (norm) walk.loops_.rms_norm(q, norm, q, a.d_head, a.eps);
        rotate(q, a.n_rot, walk.rotation(op, r));
        for (uint32_t j = 0; j < a.d_head; ++j) q[j] *= a.scale;
    }
}

/// What rows r0 .. r1-1 see of one chunk through the query heads of key head hk: a partial for each at part(r, i),
/// i < group. Queries that see the same KV rows are handed over together, which changes no bit (Loops::attend_many).
template <class F>
void CpuWalk::Attention::partials(uint32_t r0, uint32_t r1, uint32_t hk, uint32_t chunk, F part) const {
    const float* q[kAttnQueries];
    float *m[kAttnQueries], *l[kAttnQueries], *o[kAttnQueries];
    uint32_t n = 0, from = 0, to = 0;
    auto flush = [&] {
        if (n == 0) return;
        const std::byte *k = chunk == kSinks ? kv.sink_k : kv.k, *v = chunk == kSinks ? kv.sink_v : kv.v;
        const uint32_t place = chunk == kSinks ? from : kv.shape.place(from);
        const uint64_t head = uint64_t{hk} * a.d_head;
        const size_t k_stride = static_cast<size_t>(kv.shape.k_bytes), v_stride = static_cast<size_t>(kv.shape.v_bytes);
        walk.loops_.attend_many(n, q, {k + place * k_stride + row_bytes(kv.shape.k, head), k_stride, kv.shape.k},
                                {v + place * v_stride + row_bytes(kv.shape.v, head), v_stride, kv.shape.v}, to - from,
                                a.d_head, scratch, m, l, o);
        n = 0;
    };
    for (uint32_t r = r0; r < r1; ++r) {
        uint32_t from_r, to_r;
        visible(chunk, step.first_row + r, &from_r, &to_r);
        if (from_r != from || to_r != to) flush();
        from = from_r;
        to = to_r;
        for (uint32_t i = 0; i < group; ++i) {
            float* at = part(r, i);
            at[1] = 0;
            if (from >= to) continue;
            if (n == kAttnQueries) flush();
            q[n] = query(r, hk * group + i);
            m[n] = at;
            l[n] = at + 1;
            o[n] = at + 2;
            ++n;
        }
    }
    flush();
}

/// Merges a partial into a row's sums.
void CpuWalk::Attention::merge(float* sum, const float* part) const {
    if (part[1] == 0) return;
    if (sum[1] == 0) {
        std::memcpy(sum, part, (a.d_head + 2) * sizeof(float));
        return;
    }
    const float m = sum[0] > part[0] ? sum[0] : part[0];
    const float keep = exp_f32(sum[0] - m), take = exp_f32(part[0] - m);
    sum[0] = m;
    sum[1] = static_cast<float>(double{part[1]} * double{take} + double{sum[1] * keep});
    walk.loops_.merge(sum + 2, keep, part + 2, take, a.d_head);
}

/// Divides by the sum of weights and applies the gate.
void CpuWalk::Attention::finish(uint32_t r, uint32_t h, const float* sum) const {
    float* o = walk.row(op.out, r) + size_t{h} * a.d_head;
    const float scale = 1.0f / sum[1];
    for (uint32_t j = 0; j < a.d_head; ++j) o[j] = sum[2 + j] * scale;
    if (a.gate == AttnGate::interleaved) {
        walk.loops_.sigmoid_gate(o, query(r, h) + a.d_head, o, a.d_head);
    } else if (a.gate == AttnGate::per_head) {
        const float g = sigmoid(walk.row(op.in[1], r)[h]);
        for (uint32_t j = 0; j < a.d_head; ++j) o[j] *= g;
    }
}

/// Many rows: each thread takes tiles of kAttnRows rows and one key head, chunk after chunk.
void CpuWalk::Attention::by_row_tiles() const {
    float *parts = scratch + kAttnQueries * kAttnChunk, *sums = parts + kAttnRows * group * part_stride;
    const uint64_t n_tile = ceil_div(step.n_row, kAttnRows);
    for (uint64_t i = walk.i_thread_; i < n_tile * a.n_head_kv; i += walk.n_thread_) {
        const uint32_t hk = static_cast<uint32_t>(i % a.n_head_kv),
                       r0 = static_cast<uint32_t>(i / a.n_head_kv) * kAttnRows;
        const uint32_t r1 = r0 + kAttnRows < step.n_row ? r0 + kAttnRows : step.n_row, n = (r1 - r0) * group;
        for (uint32_t k = 0; k < n; ++k) sums[k * part_stride + 1] = 0;
        auto add = [&](uint32_t chunk) {
            partials(r0, r1, hk, chunk,
                     [&](uint32_t r, uint32_t g) { return parts + ((r - r0) * group + g) * part_stride; });
            for (uint32_t k = 0; k < n; ++k) merge(sums + k * part_stride, parts + k * part_stride);
        };
        if (kv.shape.sinks != 0) add(kSinks);
        for (uint32_t c = oldest(step.first_row + r0) / kAttnChunk; c < n_chunk && c * kAttnChunk < step.first_row + r1;
             ++c)
            add(c);
        for (uint32_t k = 0; k < n; ++k) finish(r0 + k / group, hk * group + k % group, sums + k * part_stride);
    }
}

/// Few rows: each thread takes chunks of one key head; the partials are merged afterwards in the same order.
void CpuWalk::Attention::by_chunks() const {
    const uint32_t n_sink_part = kv.shape.sinks != 0 ? 1 : 0, chunk0 = oldest(step.first_row) / kAttnChunk;
    const uint32_t n_part = n_sink_part + n_chunk - chunk0;
    auto part = [&](uint32_t r, uint32_t h, uint32_t c) {
        return walk.context_.attn_part_ + ((size_t{r} * a.n_head + h) * walk.context_.n_part_max_ + c) * part_stride;
    };
    for (uint64_t i = walk.i_thread_; i < uint64_t{a.n_head_kv} * n_part; i += walk.n_thread_) {
        const uint32_t c = static_cast<uint32_t>(i / a.n_head_kv), hk = static_cast<uint32_t>(i % a.n_head_kv);
        partials(0, step.n_row, hk, c < n_sink_part ? kSinks : chunk0 + c - n_sink_part,
                 [&](uint32_t r, uint32_t g) { return part(r, hk * group + g, c); });
    }
    walk.barrier();
    for (uint64_t i = walk.i_thread_; i < uint64_t{step.n_row} * a.n_head; i += walk.n_thread_) {
        const uint32_t r = static_cast<uint32_t>(i / a.n_head), h = static_cast<uint32_t>(i % a.n_head);
        float* sum = scratch;
        sum[1] = 0;
        for (uint32_t c = 0; c < n_part; ++c) merge(sum, part(r, h, c));
        finish(r, h, sum);
    }
}

void CpuWalk::attend(const Op& op) {
    const Attention attention(*this, op);
    attention.prepare_queries();
    barrier();
    if (step_.n_row > kMaxTentative)
        attention.by_row_tiles();
    else
        attention.by_chunks();
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
