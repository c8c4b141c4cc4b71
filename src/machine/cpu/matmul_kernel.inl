// The products of strips and of float rows, written once for every instruction set. A file that pastes
// it has opened a namespace with the vector vocabulary (simd_*.h) and defined AUSPEX_SIMD and
// AUSPEX_SIMD_INLINE, the attributes that allow those instructions. No lambdas: they would not
// inherit the attributes.

/// One strip against up to kMaxRow rows of activations.
struct StripJob {
    const uint8_t* strip = nullptr;
    uint32_t n_block = 0;
    StripForm form;
    const Int16Block* x[kMaxRow] = {};  ///< all set; surplus ones repeat another
    float* y = nullptr;                 ///< [n_column][ld_y], at the strip's first row
    size_t ld_y = 0;
    uint32_t n_in = 0;   ///< activation rows that exist
    uint32_t n_row = 0;  ///< rows of the strip that exist
    bool accumulate = false;
};

constexpr int log2_of(int n) { return n <= 1 ? 0 : 1 + log2_of(n / 2); }

/// The integer sums of a row: 256 times that of the high bytes, plus that of the low ones.
AUSPEX_SIMD_INLINE Ints whole(const Ints* dot, int c) { return i_add(i_shift<8>(dot[2 * c]), dot[2 * c + 1]); }

template <int n>
AUSPEX_SIMD_INLINE void start(Ints* dot) {
#pragma GCC unroll 16
    for (int c = 0; c < 2 * n; ++c) dot[c] = i_zero();
}
/// Groups of 16: from the integer sum of a half goes what the offset takes away.
template <bool kMin, int offset, int n, int h>
AUSPEX_SIMD_INLINE void end_half(const Int16Block* const* x, size_t b, const Ints* dot, Floats scale, Floats min,
                                 Floats* acc) {
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) {
        const Floats unit = f_all(x[c][b].scale);
        Ints sum = whole(dot, c);
        if constexpr (offset != 0) sum = i_add(sum, i_shift<log2_of(offset)>(i_all(x[c][b].minus_sum[h])));
        acc[c] = f_fma(f_mul(f_from(sum), unit), scale, acc[c]);
        // minus_sum has the sign turned already
        if constexpr (kMin) acc[c] = f_fma(f_mul(f_from(i_all(x[c][b].minus_sum[h])), unit), min, acc[c]);
    }
}

/// y[c][lane] = sum over blocks b, in order, of scale * (x.scale * sum(code * q)) - min * x.sum.
/// The sums of integers are exact; each float step is one fused multiply-add of its own (row, column).
template <CodeForm kCode, int kGroup, bool kMin, int kOffset, int n>
AUSPEX_SIMD void strip_product(const StripJob& job) {
    constexpr int offset = kOffset + bias_of(kCode);
    constexpr uint32_t code_step = StripForm::kCodeBytes[static_cast<int>(kCode)] * kLane;
    const Int16Block* x[n];
    Floats acc[n];
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) {
        x[c] = job.x[c];
        acc[c] = f_zero();
    }
    Floats d = f_zero(), d_min = f_zero();
    const uint8_t* page = job.strip;
    size_t b = 0;
    for (uint32_t left = job.n_block; left > 0;) {
        const uint32_t n_here = left < 8 ? left : 8;
        const uint8_t* scales = page;
        const uint8_t* codes = page + job.form.page_scale_bytes(kLane, n_here);
        page = codes + n_here * code_step;
        left -= n_here;
        if (job.form.super) {
            d = f_halves(scales);
            if constexpr (kMin) d_min = f_halves(scales + 2 * kLane);
            scales += (kMin ? 4 : 2) * kLane;
        }
        for (const size_t end = b + n_here; b < end; ++b, codes += code_step) {
            // One row keeps pace with the memory's own prefetching; more fall behind and profit from a hint.
            if constexpr (n > 1)
                for (size_t i = 0; i < code_step; i += 64) prefetch_soon(codes + 4096 + i);
            Floats scale[kGroup], min[kGroup];
            if (job.form.super) {
#pragma GCC unroll 2
                for (int g = 0; g < kGroup; ++g) {
                    scale[g] = f_mul(d, f_bytes(scales));
                    scales += kLane;
                }
                if constexpr (kMin) {
#pragma GCC unroll 2
                    for (int g = 0; g < kGroup; ++g) {
                        min[g] = f_mul(d_min, f_bytes(scales));
                        scales += kLane;
                    }
                }
            } else {
                scale[0] = f_halves(scales);
                scales += 2 * kLane;
                if constexpr (kMin) {
                    min[0] = f_halves(scales);
                    scales += 2 * kLane;
                }
                if constexpr (kGroup == 2) scale[1] = scale[0], min[1] = min[0];
            }
            Ints dot[2 * n];
            start<n>(dot);
            if constexpr (kGroup == 1) {
                // An offset is a minimum in disguise: scale * (code - offset) = scale * code - scale * offset.
                if constexpr (offset != 0) min[0] = f_mul(scale[0], f_all(static_cast<float>(offset)));
                dot_half<kCode, 2 * n, 0>(codes, x, b, dot);
                dot_half<kCode, 2 * n, 1>(codes, x, b, dot);
#pragma GCC unroll 16
                for (int c = 0; c < n; ++c) {
                    acc[c] = f_fma(f_mul(f_from(whole(dot, c)), f_all(x[c][b].scale)), scale[0], acc[c]);
                    if constexpr (kMin || offset != 0) acc[c] = f_fnma(min[0], f_all(x[c][b].sum), acc[c]);
                }
            } else {
                dot_half<kCode, 2 * n, 0>(codes, x, b, dot);
                end_half<kMin, offset, n, 0>(x, b, dot, scale[0], min[0], acc);
                start<n>(dot);
                dot_half<kCode, 2 * n, 1>(codes, x, b, dot);
                end_half<kMin, offset, n, 1>(x, b, dot, scale[1], min[1], acc);
            }
        }
    }
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c)
        if (static_cast<uint32_t>(c) < job.n_in)
            f_put(job.y + static_cast<size_t>(c) * job.ld_y, job.n_row, acc[c], job.accumulate);
}

using StripKernel = void (*)(const StripJob&);

template <CodeForm kCode, int kGroup, bool kMin, int kOffset>
AUSPEX_SIMD StripKernel choose_rows(uint32_t n) {
    if constexpr (kMaxRow >= 8)
        if (n == 8) return strip_product<kCode, kGroup, kMin, kOffset, 8>;
    if constexpr (kMaxRow >= 4)
        if (n == 4) return strip_product<kCode, kGroup, kMin, kOffset, 4>;
    return n == 1 ? strip_product<kCode, kGroup, kMin, kOffset, 1> : strip_product<kCode, kGroup, kMin, kOffset, 2>;
}

/// The kernel of a form for n = 1, 2, 4 or 8 rows, up to kMaxRow. Every form of strip_form() is here.
AUSPEX_SIMD StripKernel strip_kernel(const StripForm& f, uint32_t n) {
    switch (f.code) {
        case CodeForm::nibble:
            if (f.n_group == 2) return choose_rows<CodeForm::nibble, 2, true, 0>(n);
            return f.has_min ? choose_rows<CodeForm::nibble, 1, true, 0>(n)
                             : choose_rows<CodeForm::nibble, 1, false, 8>(n);
        case CodeForm::codebook: return choose_rows<CodeForm::codebook, 1, false, 0>(n);
        case CodeForm::five:
            return f.has_min ? choose_rows<CodeForm::five, 1, true, 0>(n)
                             : choose_rows<CodeForm::five, 1, false, 16>(n);
        case CodeForm::six: return choose_rows<CodeForm::six, 2, false, 32>(n);
        case CodeForm::byte: break;
    }
    return choose_rows<CodeForm::byte, 1, false, 0>(n);
}

/// How many rows the next pass takes when `left` remain; the last pass may be partly empty.
inline uint32_t pass_width(uint32_t left, uint32_t most) {
    if (left >= most) return most;
    return left > 4 ? 8 : left > 2 ? 4 : left;
}

AUSPEX_SIMD void strips(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate,
                        uint32_t r0, uint32_t r1) {
    StripForm form;
    if (!strip_form(w.type, &form)) return;
    const size_t step = quantised_bytes(1, w.d_in);
    const uint8_t* base = reinterpret_cast<const uint8_t*>(w.data);
    const uint8_t* rows = static_cast<const uint8_t*>(in.quantised);
    StripJob job;
    job.n_block = w.d_in / 32;
    job.form = form;
    job.ld_y = ld_y;
    job.accumulate = accumulate;
    for (uint32_t c0 = 0; c0 < n_row;) {
        const uint32_t width = pass_width(n_row - c0, kMaxRow);
        job.n_in = n_row - c0 < width ? n_row - c0 : width;
        for (uint32_t c = 0; c < width; ++c) {
            const uint32_t from = c0 + (c < job.n_in ? c : 0);
            job.x[c] = reinterpret_cast<const Int16Block*>(rows + step * (in.gather ? in.gather[from] : from));
        }
        const StripKernel kernel = strip_kernel(form, width);
        for (uint32_t r = r0; r < r1; r += kLane) {
            job.strip = base + w.stride * (r / kLane);
            job.n_row = r1 - r < kLane ? r1 - r : kLane;
            job.y = y + static_cast<size_t>(c0) * ld_y + r;
            kernel(job);
        }
        c0 += job.n_in;
    }
}

// ------------------------------------------------------------------------------- float weights

/// y[c][i] = w[i] . x[c] for kFloatRow rows and n columns: one vector sum each, in steps of kLane inputs,
/// what is left over as one step filled with zeros.
template <Type kType, int n>
AUSPEX_SIMD void float_product(const std::byte* const* w, size_t stride, const float* const* x, uint32_t d_in,
                               float (*out)[kFloatRow]) {
    constexpr size_t size = kType == Type::f32 ? 4 : 2;
    Floats acc[n][kFloatRow];
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c)
#pragma GCC unroll 16
        for (int i = 0; i < kFloatRow; ++i) acc[c][i] = f_zero();
    const uint32_t whole = d_in / kLane * kLane;
    const size_t ahead = kFloatRow * stride;  // the same place in the next rows
    for (size_t k = 0; k < whole; k += kLane) {
#pragma GCC unroll 16
        for (int i = 0; i < kFloatRow; ++i) {
            prefetch_later(w[i] + k * size + ahead);
            const Floats a = f_weights<kType>(w[i] + k * size);
#pragma GCC unroll 16
            for (int c = 0; c < n; ++c) acc[c][i] = f_fma(a, f_load(x[c] + k), acc[c][i]);
        }
    }
    if (whole < d_in) {
        std::byte rest[kFloatRow][kLane * size] = {};
        for (int i = 0; i < kFloatRow; ++i) std::memcpy(rest[i], w[i] + whole * size, (d_in - whole) * size);
#pragma GCC unroll 16
        for (int c = 0; c < n; ++c) {
            float tail[kLane] = {};
            std::memcpy(tail, x[c] + whole, (d_in - whole) * sizeof(float));
            const Floats b = f_load(tail);
#pragma GCC unroll 16
            for (int i = 0; i < kFloatRow; ++i) acc[c][i] = f_fma(f_weights<kType>(rest[i]), b, acc[c][i]);
        }
    }
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c)
#pragma GCC unroll 16
        for (int i = 0; i < kFloatRow; ++i) out[c][i] = f_sum(acc[c][i]);
}

using FloatKernel = void (*)(const std::byte* const*, size_t, const float* const*, uint32_t, float (*)[kFloatRow]);
template <Type kType>
AUSPEX_SIMD FloatKernel pick_float_columns(uint32_t n) {
    if constexpr (kMaxFloatColumn >= 4)
        if (n > 2) return float_product<kType, kMaxFloatColumn>;
    return n > 1 ? float_product<kType, 2> : float_product<kType, 1>;
}

AUSPEX_SIMD void floats(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate,
                        uint32_t r0, uint32_t r1) {
    for (uint32_t c0 = 0; c0 < n_row; c0 += kMaxFloatColumn) {
        const uint32_t n = n_row - c0 < kMaxFloatColumn ? n_row - c0 : kMaxFloatColumn;
        const float* x[kMaxFloatColumn];
        for (uint32_t c = 0; c < kMaxFloatColumn; ++c) {
            const uint32_t from = c0 + (c < n ? c : 0);
            x[c] = in.x + in.ld * (in.gather ? in.gather[from] : from);
        }
        const FloatKernel kernel = w.type == Type::f32   ? pick_float_columns<Type::f32>(n)
                                   : w.type == Type::f16 ? pick_float_columns<Type::f16>(n)
                                                         : pick_float_columns<Type::bf16>(n);
        for (uint32_t r = r0; r < r1; r += kFloatRow) {
            const std::byte* rows[kFloatRow];
            const uint32_t n_here = r1 - r < kFloatRow ? r1 - r : kFloatRow;
            for (uint32_t i = 0; i < kFloatRow; ++i) rows[i] = w.data + w.stride * (r + (i < n_here ? i : 0));
            float out[kMaxFloatColumn][kFloatRow];
            kernel(rows, static_cast<size_t>(w.stride), x, w.d_in, out);
            for (uint32_t c = 0; c < n; ++c)
                for (uint32_t i = 0; i < n_here; ++i) {
                    float* to = y + ld_y * (c0 + c) + r + i;
                    *to = accumulate ? *to + out[c][i] : out[c][i];
                }
        }
    }
}

/// x to 16 bits as a high and a low byte: round(x / (256 scale)), then what that left, in steps of scale.
AUSPEX_SIMD void quantise(const float* x, uint32_t n_block, Int16Block* to) {
    for (uint32_t b = 0; b < n_block; ++b, ++to, x += 32) {
        float most, scale, inverse, left[32];
        bool nan;
        int32_t high[2], low[2];
        block_range(x, &most, &nan);
        int8_scale(most, nan, &scale, &inverse);
        round_block(x, inverse, to->q, high);
        for (int i = 0; i < 32; ++i) left[i] = std::fma(-scale, static_cast<float>(to->q[i]), x[i]);
        round_block(left, 256 * inverse, to->q + 32, low);
        to->scale = scale / 256;
        for (int h = 0; h < 2; ++h) to->minus_sum[h] = -(256 * high[h] + low[h]);
        to->sum = to->scale * static_cast<float>(-(to->minus_sum[0] + to->minus_sum[1]));
    }
}
