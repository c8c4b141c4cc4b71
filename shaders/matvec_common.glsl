// matvec_common.glsl: arguments and epilogues of the two matrix-vector kernels.
//
// Memory  0 w         units of 16 bytes, tiles as in quant/tile.glsl            read
//         1 x         f32 [X_ROWS, d_in], rows 16-byte aligned                  read
//         2 norm      f32 [d_in], the norm's weight          (NORM)             read
//         3 squares   f32 [X_ROWS, n_part], partial sums of x^2  (NORM)         read
//         4 y         f32 [X_ROWS, ...]                                         written
//         5 residual  f32 [X_ROWS, d_out]; may be y itself   (kEpilogueAdd)     read
//         6 out       kEpilogueAdd: f32 [X_ROWS, d_out / 16], sums of squares of 16 values of y each
//                     kEpilogueLogits: (f32 bits, id) [X_ROWS, n_group], the largest of each workgroup
//                                                                               written
//         8 words     the step buffer, for chain.glsl        (CHAINED)          counters read and written
// moe_columns.glsl says what experts read instead. A buffer that a variant does not use may be bound to anything.
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint X_ROWS = 1u;        // rows of x
layout(constant_id = 2) const uint SPLIT = 4u;    // parts that the columns are cut into, summed in order
layout(constant_id = 3) const uint TILES = 1u;    // row tiles of a workgroup
#ifdef MATRIX
// With kNormAny and kEpilogueAny, one pipeline serves all products between two norms. The code of a step exceeds a
// core's instruction cache, so stages that share code miss less often.
layout(constant_id = 4) const uint NORM_ = 0u;
layout(constant_id = 5) const uint EPILOGUE_ = 0u;
layout(constant_id = 13) const uint CHAINED = 0u;   // chain.glsl
#define NORM (NORM_ == kNormAny ? (args.mode >> 2) & 1u : NORM_)   // 1: x * norm / rms(x) instead of x
#define EPILOGUE (EPILOGUE_ == kEpilogueAny ? args.mode & 3u : EPILOGUE_)
#else
layout(constant_id = 4) const uint NORM = 0u;
layout(constant_id = 5) const uint EPILOGUE = 0u;
#endif

#ifdef MATRIX
// Buffers by address: a descriptor would be one more fetch, a cache miss in every stage, before the first load.
// Measured on an H100: 0.4 us of a stage's 6 us.
#define BUFFER(binding_, access, Name, type, name) layout(buffer_reference, std430, buffer_reference_align = 16) \
    access buffer Name { type name[]; };
#define READ_ readonly coherent   // what the stage before may have written: chain.glsl
#define UNITS at_w.w
#define X at_x.x
#define NORMS at_norm.norm
#define SQUARES at_squares.squares
#define Y at_y.y
#define RESIDUAL at_residual.residual
#define OUT at_out.out_
#define CHOICE(i) (ROLE == kRoleRow ? C_(at_squares).choice[i] : C_(at_residual).choice[i])
#else
#define BUFFER(binding_, access, Name, type, name) layout(set = 0, binding = binding_, std430) access buffer Name { \
    type name[]; };
#define READ_ readonly
#define UNITS w
#define X x
#define NORMS norm
#define SQUARES squares
#define Y y
#define RESIDUAL residual
#define OUT out_
#define CHOICE(i) (ROLE == kRoleRow ? choice_row[i] : choice[i])
#endif
BUFFER(0, readonly, W_, uvec4, w)
BUFFER(1, READ_, X_, vec4, x)
BUFFER(2, readonly, N_, vec4, norm)
BUFFER(3, READ_, P_, float, squares)
BUFFER(4, writeonly, Y_, float, y)
BUFFER(5, READ_, R_, float, residual)
BUFFER(6, writeonly, O_, float, out_)
#ifdef MATRIX
BUFFER(5, coherent, C_, uvec2, choice)
BUFFER(7, readonly, Bias_, float, bias)
BUFFER(8, coherent, Words_, uint, words)
#else
BUFFER(5, readonly, C_, uvec2, choice)
BUFFER(3, readonly, CR_, uvec2, choice_row)
#endif
layout(push_constant) uniform Push {
    MatvecArgs args;
#ifdef MATRIX
    layout(offset = kPushBytes) W_ at_w;   // kPushBytes: Commands::bind() puts the addresses there
    X_ at_x;
    N_ at_norm;
    P_ at_squares;
    Y_ at_y;
    R_ at_residual;
    O_ at_out;
    Bias_ at_bias;   // moe_columns.glsl
    Words_ at_words;   // the step buffer, for chain.glsl
#endif
};
#ifdef MATRIX
#define CHAIN_WORDS at_words.words
#include "chain.glsl"
#endif

#include "moe_columns.glsl"

// The including kernel defines SLOTS, the largest number of tiles that it finishes at once; n_slot is the actual
// number. All sizes are multiples of 16 bytes: a driver was seen to pack shared arrays without the alignment that
// matrix loads need.
shared float inv_rms[(X_ROWS + 3u) / 4u * 4u];
#ifdef MATRIX   // kEpilogueAdd sums squares by shuffles there
shared float best_s[EPILOGUE_ == kEpilogueLogits ? 16u * X_ROWS * SLOTS : 4u];
#else
shared float best_s[16u * X_ROWS * SLOTS];
#endif
shared uint best_id[(X_ROWS * SLOTS + 3u) / 4u * 4u];
shared uint kept[(2u * X_ROWS + 3u) / 4u * 4u];   // by row of x: the largest value of earlier tiles, and its id

float silu(float v) {
    precise float e = exp(-abs(v));
    precise float d = 1.0 + e;
    precise float r = (v >= 0.0 ? 1.0 : e) / d;
    precise float p = v * r;
    return p;
}

// Sum o of the workgroup: row o & 15 of tile (o >> 4) / X_ROWS times row (o >> 4) % X_ROWS of x. The kernel defines it.
float total(uint o);

uint n_slot = SLOTS;

float held[2];   // residuals of the invocation's first two results, loaded early

uint residual_at(uint o, uint tile0, out bool inside) {
    const uint tile = tile0 + (o >> 4) / X_ROWS, at = args.first_row + tile * 16u + (o & 15u);
    inside = tile < args.n_tile && at < args.d_out;
    return args.residual_offset + row_out((o >> 4) % X_ROWS) * args.residual_stride + at;
}

void hold_residual(uint i, uint n, uint tile0) {
    if (EPILOGUE != kEpilogueAdd) return;
    [[unroll]] for (uint k = 0u; k < 2u; k++) {
        bool inside = false;
        const uint at = residual_at(i + k * n, tile0, inside);
        held[k] = i + k * n < n_slot * X_ROWS * 16u && inside ? RESIDUAL[at] : 0.0;
    }
}

// Writes the results of n_slot tiles from tile0 on. All n invocations of the workgroup call it, i = 0 .. n - 1.
// `first`: these are the workgroup's first tiles; `end`: they are its last.
void write_tiles(uint i, uint n, uint tile0, bool first, bool end) {
    if (EPILOGUE == kEpilogueSwiglu) {
        [[dont_unroll]] for (uint o = i; o < n_slot * X_ROWS * 8u; o += n) {
            const uint row = o & 7u, col = (o >> 3) % X_ROWS, tile = tile0 + (o >> 3) / X_ROWS,
                at = (args.first_row >> 1) + tile * 8u + row;
            float gate = total((o >> 3) * 16u + row), up = total((o >> 3) * 16u + row + 8u);
            if (NORM == 1u) {
                precise float g = gate * inv_rms[col], u = up * inv_rms[col];
                gate = g;
                up = u;
            }
            gate = silu(gate);
            if (args.limit > 0.0) {
                gate = min(gate, args.limit);
                up = clamp(up, -args.limit, args.limit);
            }
            if (tile < args.n_tile && at < args.d_out && has_column(col))
                Y[args.y_offset + row_out(col) * args.y_stride + at] = gate * up;
        }
        return;
    }
    [[dont_unroll]] for (uint o = i, k = 0u; o < n_slot * X_ROWS * 16u; o += n, k++) {
        const uint col = (o >> 4) % X_ROWS, tile = tile0 + (o >> 4) / X_ROWS,
            at = args.first_row + tile * 16u + (o & 15u);
        bool inside = tile < args.n_tile && at < args.d_out && has_column(col);
        float v = total(o);
        if (EPILOGUE == kEpilogueAdd) {
            float r = 0.0;
            if (first && k < 2u) r = k == 0u ? held[0] : held[1];
            else {
                const uint from = residual_at(o, tile0, inside);
                if (inside) r = RESIDUAL[from];
            }
            v = NORM == 1u ? fma(v, inv_rms[col], r) : v + r;
#ifdef MATRIX
            // Sums over 16 neighbouring lanes, in the order of the sums below, without a barrier.
            const float s0 = inside ? v : 0.0, s1 = subgroupShuffleXor(s0, 1u), s2 = subgroupShuffleXor(s0, 2u),
                s3 = subgroupShuffleXor(s0, 3u);
            float q = fma(s3, s3, fma(s2, s2, fma(s1, s1, s0 * s0)));
            q += subgroupShuffleXor(q, 4u);
            q += subgroupShuffleXor(q, 8u);
            if ((o & 15u) == 0u && tile < args.n_tile)
                OUT[args.out_offset + row_out(col) * args.out_stride + (args.first_row >> 4) + tile] = q;
#else
            best_s[o] = inside ? v : 0.0;
#endif
        } else if (NORM == 1u) {
            precise float scaled = v * inv_rms[col];
            v = scaled;
        }
        if (EPILOGUE == kEpilogueLogits) best_s[o] = inside && v > -3.4028234e38 ? v : -3.4028234e38;  // never a NaN
        if (inside) Y[args.y_offset + row_out(col) * args.y_stride + at] = v;
    }
#ifndef MATRIX
    if (EPILOGUE == kEpilogueAdd) {
        barrier();
        [[dont_unroll]] for (uint o = i; o < n_slot * X_ROWS; o += n) {
            const uint b = o * 16u, tile = tile0 + o / X_ROWS;
            float q[4];
            [[unroll]] for (uint k = 0u; k < 4u; k++) {
                const uint at = b + 4u * k;
                q[k] = fma(best_s[at + 3u], best_s[at + 3u],
                    fma(best_s[at + 2u], best_s[at + 2u],
                    fma(best_s[at + 1u], best_s[at + 1u], best_s[at] * best_s[at])));
            }
            if (tile < args.n_tile) OUT[args.out_offset + row_out(o % X_ROWS) * args.out_stride + (args.first_row >> 4)
                + tile] = (q[0] + q[1]) + (q[2] + q[3]);
        }
    }
#endif
    if (EPILOGUE == kEpilogueLogits) {
        barrier();
        [[dont_unroll]] for (uint o = i; o < n_slot * X_ROWS; o += n) {
            const uint b = o * 16u;
            float best = best_s[b];
            uint id = 0u;
            [[dont_unroll]] for (uint k = 1u; k < 16u; k++) {
                if (best_s[b + k] > best) {
                    best = best_s[b + k];
                    id = k;
                }
            }
            id += args.first_row + (tile0 + o / X_ROWS) * 16u;
            if (SLOTS == 1u && !first && !(best > uintBitsToFloat(kept[2u * o]))) {
                best = uintBitsToFloat(kept[2u * o]);
                id = kept[2u * o + 1u];
            }
            best_s[b] = best;
            best_id[o] = id;
        }
        barrier();
        [[dont_unroll]] for (uint col = i; col < X_ROWS; col += n) {
            float best = best_s[col * 16u];
            uint id = best_id[col];
            for (uint k = 1u; k < n_slot; k++) {
                const uint o = k * X_ROWS + col;
                if (best_s[o * 16u] > best) {
                    best = best_s[o * 16u];
                    id = best_id[o];
                }
            }
            kept[2u * col] = floatBitsToUint(best);
            kept[2u * col + 1u] = id;
            if (end) {
                const uint at = args.out_offset + 2u * (col * args.out_stride + args.first_group + gl_WorkGroupID.x);
                OUT[at] = best;
                OUT[at + 1u] = uintBitsToFloat(id);
            }
        }
    }
}
