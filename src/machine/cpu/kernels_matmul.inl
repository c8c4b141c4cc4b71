// Products of activations with weight matrices, and the conversion of activations for them. Part of kernels.inl.
//
//   weights  strips of kLane rows (pack.h), or plain rows of f32, f16 or bf16, in
//   x        Int16Block rows for strips, f32 rows for plain weights, in
//   y        [n_row][ld_y] f32, out, or in and out to accumulate
//
// Formula y[c][r] = sum over k of x[c][k] w[r][k], where w has the matrix scale (Matrix::scale) in it
// Cost    a weight is read once for each kMaxRow (kMaxFloatColumn) rows of x; with strips a weight and row costs two
//         int8 multiply-adds (high and low byte of x), or one of int16.
// Order   strips: exact integer sums per block of 32 (or 16), then one fused multiply-add per block, in block order.
//         Plain rows: one chain of multiply-adds per lane, lanes added at the end. Neither depends on n_row.
// Counterpart  shaders/matvec.comp, gemm.comp. Plain form: reference_rows in matmul.cpp.

/// One strip against up to kMaxRow rows of activations.
struct StripJob {
    const uint8_t* strip = nullptr;
    uint32_t n_block = 0;
    StripForm form;
    const Int16Block* x[kMaxRow] = {};  ///< as many as the kernel takes
    float* y = nullptr;                 ///< [rows of x][ld_y], at the strip's first row
    size_t ld_y = 0;
    float scale = 1;     ///< form.e4m3: what strip_e4m3() is multiplied by, 2^7 times the matrix scale
    uint32_t n_row = 0;  ///< rows of the strip that exist
    bool accumulate = false;
    bool hints = false;  ///< the strip comes from memory: later passes find it in a cache
};

/// Codes (h, v) of a block as bytes: input 16 h + 4 v + j of each row, j < 4. With a codebook its values.
template <CodeForm kCode, int h, int v>
AUSPEX_INLINE Bytes codes_of(const uint8_t* codes, [[maybe_unused]] Codebook table) {
    constexpr size_t step = 4 * kLane;
    if constexpr (kCode == CodeForm::byte) return load_bytes(codes + step * (4 * h + v));
    Bytes c = load_bytes(codes + step * v);
    if constexpr (kCode == CodeForm::nibble && kColumn == 1) return c;  // dot_codes separates the halves
    c = h == 1 ? high_nibbles(c) : low_nibbles(c);
    if constexpr (kCode == CodeForm::codebook) return codebook_values(table, c);
    if constexpr (kCode == CodeForm::five)
        c = byte_or(c, byte_and(byte_shift<4 - (4 * h + v)>(load_bytes(codes + step * 4)), 16));
    if constexpr (kCode == CodeForm::six)
        c = byte_or(c, byte_and(byte_shift<4 - 2 * v>(load_bytes(codes + step * (4 + h))), 48));
    return c;
}

/// Adds the integer sums over half h of block b: codes times the high bytes of x[r] to dot[2 r], times the low bytes to
/// dot[2 r + 1], or times the words of x[r] to dot[r]; n is the length of dot. The instruction set defines how many
/// vectors of codes it takes at a time (kDotVectors) and the registers it keeps during a half (HalfDot).
template <CodeForm kCode, int n, int h>
AUSPEX_INLINE void dot_half(const uint8_t* codes, Codebook table, const Int16Block* const* x, size_t b,
                            StripInts* dot) {
    HalfDot<n> half;
    begin_half<kCode, n, h>(half, x, b);
    if constexpr (kDotVectors == 1) {
        const Bytes w0 = codes_of<kCode, h, 0>(codes, table);
        dot_codes<kCode, n, h, 0>(half, &w0, x, b, dot);
        const Bytes w1 = codes_of<kCode, h, 1>(codes, table);
        dot_codes<kCode, n, h, 1>(half, &w1, x, b, dot);
        const Bytes w2 = codes_of<kCode, h, 2>(codes, table);
        dot_codes<kCode, n, h, 2>(half, &w2, x, b, dot);
        const Bytes w3 = codes_of<kCode, h, 3>(codes, table);
        dot_codes<kCode, n, h, 3>(half, &w3, x, b, dot);
    } else {
        static_assert(kDotVectors <= 2, "one or two vectors of codes at a time");
        const Bytes w01[2] = {codes_of<kCode, h, 0>(codes, table), codes_of<kCode, h, 1>(codes, table)};
        dot_codes<kCode, n, h, 0>(half, w01, x, b, dot);
        const Bytes w23[2] = {codes_of<kCode, h, 2>(codes, table), codes_of<kCode, h, 3>(codes, table)};
        dot_codes<kCode, n, h, 2>(half, w23, x, b, dot);
    }
    finish_half<kCode, n, h>(half, dot);
}

constexpr int log2_of(int n) { return n <= 1 ? 0 : 1 + log2_of(n / 2); }

/// The integer sums of a row: 256 times that of the high bytes, plus that of the low ones.
AUSPEX_INLINE StripInts combine(const StripInts* dot, int c) {
    if constexpr (kColumn == 1) return dot[c];
    return int_add(int_shift<8>(dot[2 * c]), dot[2 * c + 1]);
}

template <int n>
AUSPEX_INLINE void clear(StripInts* dot) {
    AUSPEX_UNROLL
    for (int c = 0; c < kColumn * n; ++c) dot[c] = int_splat(0);
}
/// Forms with a scale for each 16 inputs: adds half h of a block to the row's sums. The offset is taken from the
/// integer sum, which stays exact.
template <bool kMin, int offset, int n, int h>
AUSPEX_INLINE void add_half(const Int16Block* const* x, size_t b, const StripInts* dot, StripFloats scale,
                            StripFloats min, StripFloats* acc) {
    AUSPEX_UNROLL
    for (int c = 0; c < n; ++c) {
        const StripFloats unit = strip_splat(x[c][b].scale);
        StripInts sum = combine(dot, c);
        if constexpr (offset != 0) sum = int_add(sum, int_shift<log2_of(offset)>(int_splat(x[c][b].minus_sum[h])));
        acc[c] = fma(mul(to_floats(sum), unit), scale, acc[c]);
        if constexpr (kMin) acc[c] = fma(mul(to_floats(int_splat(x[c][b].minus_sum[h])), unit), min, acc[c]);
    }
}

/// y[c][lane] = sum over blocks b, ascending, of scale * (x.scale * sum(code * q)) - min * x.sum.
template <CodeForm kCode, int kGroup, bool kMin, int kOffset, int n>
inline void strip_product(const StripJob& job) {
    constexpr int offset = kOffset + bias_of(kCode);
    constexpr uint32_t code_step = StripForm::kCodeBytes[static_cast<int>(kCode)] * kLane;
    constexpr size_t kBlockLine = (code_step + (kMin ? 4 : 2) * kLane + 63) / 64;  // cache lines, scales included
    constexpr size_t kAhead = 4096;                                                // bytes from a line to its hint
    const Int16Block* x[n];
    StripFloats acc[n];
    AUSPEX_UNROLL
    for (int c = 0; c < n; ++c) {
        x[c] = job.x[c];
        acc[c] = strip_splat(0);
    }
    StripFloats d = strip_splat(0), d_min = strip_splat(0);
    Codebook table{};
    if constexpr (kCode == CodeForm::codebook) table = load_codebook(job.form.codebook);
    const uint8_t* page = job.strip;
    size_t b = 0;
    for (uint32_t left = job.n_block; left > 0;) {
        const uint32_t n_here = left < 8 ? left : 8;
        const uint8_t* scales = page;
        const uint8_t* codes = page + job.form.page_scale_bytes(kLane, n_here);
        const uint8_t* ahead = page + kAhead;
        page = codes + n_here * code_step;
        left -= n_here;
        if (job.form.super) {
            d = strip_f16(scales);
            if constexpr (kMin) d_min = strip_f16(scales + 2 * kLane);
            scales += (kMin ? 4 : 2) * kLane;
        }
        for (const size_t end = b + n_here; b < end; ++b, codes += code_step) {
            if (job.hints) {  // the hardware's prefetcher falls behind, even with one row
                AUSPEX_UNROLL
                for (size_t i = 0; i < kBlockLine; ++i) prefetch_soon(ahead + 64 * i);
                ahead += 64 * kBlockLine;
            }
            StripFloats scale[kGroup], min[kGroup];
            if constexpr (kCode == CodeForm::codebook && kGroup == 2) {
                AUSPEX_UNROLL
                for (int g = 0; g < kGroup; ++g) {
                    scale[g] = mul(strip_e4m3(scales), strip_splat(job.scale));
                    scales += kLane;
                }
            } else if (job.form.super) {
                AUSPEX_UNROLL
                for (int g = 0; g < kGroup; ++g) {
                    scale[g] = mul(d, strip_i8(scales));
                    scales += kLane;
                }
                if constexpr (kMin) {
                    AUSPEX_UNROLL
                    for (int g = 0; g < kGroup; ++g) {
                        min[g] = mul(d_min, strip_i8(scales));
                        scales += kLane;
                    }
                }
            } else if (kCode == CodeForm::codebook && job.form.power) {
                scale[0] = strip_fp4_scale(scales);
                scales += kLane;
            } else {
                scale[0] = strip_f16(scales);
                scales += 2 * kLane;
                if constexpr (kMin) {
                    min[0] = strip_f16(scales);
                    scales += 2 * kLane;
                }
                if constexpr (kGroup == 2) scale[1] = scale[0];
                if constexpr (kGroup == 2 && kMin) min[1] = min[0];
            }
            StripInts dot[kColumn * n];
            clear<n>(dot);
            if constexpr (kGroup == 1) {
                // An offset is a minimum too: scale * (code - offset) = scale * code - scale * offset.
                if constexpr (offset != 0) min[0] = mul(scale[0], strip_splat(static_cast<float>(offset)));
                dot_half<kCode, kColumn * n, 0>(codes, table, x, b, dot);
                dot_half<kCode, kColumn * n, 1>(codes, table, x, b, dot);
                AUSPEX_UNROLL
                for (int c = 0; c < n; ++c) {
                    acc[c] = fma(mul(to_floats(combine(dot, c)), strip_splat(x[c][b].scale)), scale[0], acc[c]);
                    if constexpr (kMin || offset != 0) acc[c] = fnma(min[0], strip_splat(x[c][b].sum), acc[c]);
                }
            } else {
                dot_half<kCode, kColumn * n, 0>(codes, table, x, b, dot);
                add_half<kMin, offset, n, 0>(x, b, dot, scale[0], min[0], acc);
                clear<n>(dot);
                dot_half<kCode, kColumn * n, 1>(codes, table, x, b, dot);
                add_half<kMin, offset, n, 1>(x, b, dot, scale[1], min[1], acc);
            }
        }
    }
    AUSPEX_UNROLL
    for (int c = 0; c < n; ++c)
        strip_store(job.y + static_cast<size_t>(c) * job.ld_y, job.n_row, acc[c], job.accumulate);
}

using StripKernel = void (*)(const StripJob&);

template <CodeForm kCode, int kGroup, bool kMin, int kOffset, int n = kMaxRow>
inline StripKernel choose_rows(uint32_t n_row) {
    if constexpr (n > 1)
        if (n_row < n) return choose_rows<kCode, kGroup, kMin, kOffset, n - 1>(n_row);
    return strip_product<kCode, kGroup, kMin, kOffset, n>;
}

/// The kernel of a form for n = 1 .. kMaxRow rows. Every form of strip_form() is here.
inline StripKernel strip_kernel(const StripForm& f, uint32_t n) {
    switch (f.code) {
        case CodeForm::nibble:
            if (f.n_group == 2) return choose_rows<CodeForm::nibble, 2, true, 0>(n);
            return f.has_min ? choose_rows<CodeForm::nibble, 1, true, 0>(n)
                             : choose_rows<CodeForm::nibble, 1, false, 8>(n);
        case CodeForm::codebook:
            return f.n_group == 2 ? choose_rows<CodeForm::codebook, 2, false, 0>(n)
                                  : choose_rows<CodeForm::codebook, 1, false, 0>(n);
        case CodeForm::five:
            return f.has_min ? choose_rows<CodeForm::five, 1, true, 0>(n)
                             : choose_rows<CodeForm::five, 1, false, 16>(n);
        case CodeForm::six: return choose_rows<CodeForm::six, 2, false, 32>(n);
        case CodeForm::byte: break;
    }
    return choose_rows<CodeForm::byte, 1, false, 0>(n);
}

/// Rows of the next pass when `left` remain: passes as few and as equal as can be.
inline uint32_t pass_width(uint32_t left) {
    const uint32_t n_pass = (left + kMaxRow - 1) / kMaxRow;
    return (left + n_pass - 1) / n_pass;
}

/// Rows r0 .. r1 of y from strips; r0 a multiple of kLane.
inline void strips(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate, uint32_t r0,
                   uint32_t r1) {
    StripForm form;
    if (!strip_form(w.type, &form)) return;
    const size_t step = quantised_bytes(1, w.d_in);
    const uint8_t* base = reinterpret_cast<const uint8_t*>(w.data);
    const uint8_t* rows = static_cast<const uint8_t*>(in.quantised);
    StripJob job;
    job.n_block = w.d_in / 32;
    job.form = form;
    job.ld_y = ld_y;
    job.scale = 128 * w.scale;
    job.accumulate = accumulate;
    for (uint32_t c0 = 0; c0 < n_row;) {
        const uint32_t width = pass_width(n_row - c0);
        for (uint32_t c = 0; c < width; ++c) {
            const uint32_t from = in.gather ? in.gather[c0 + c] : c0 + c;
            job.x[c] = reinterpret_cast<const Int16Block*>(rows + step * from);
        }
        job.hints = c0 == 0;
        const StripKernel kernel = strip_kernel(form, width);
        for (uint32_t r = r0; r < r1; r += kLane) {
            job.strip = base + w.stride * (r / kLane);
            job.n_row = r1 - r < kLane ? r1 - r : kLane;
            job.y = y + static_cast<size_t>(c0) * ld_y + r;
            kernel(job);
        }
        c0 += width;
    }
}

// ------------------------------------------------------------------------------- float weights

/// W weights as floats.
template <Type kType>
AUSPEX_INLINE V load_weights(const std::byte* p) {
    if constexpr (kType == Type::f32) return load(reinterpret_cast<const float*>(p));
    if constexpr (kType == Type::f16) return load_f16(p);
    if constexpr (kType == Type::bf16) return load_bf16(p);
}

constexpr int kFloatRow = 4;  ///< output rows of one pass

/// out[c][i] = w[i] . x[c] for kFloatRow rows of w and n rows of x: a vector of chains each, W inputs at a time; the
/// last inputs are filled up with zeros.
template <Type kType, int n>
inline void float_product(const std::byte* const* w, size_t stride, const float* const* x, uint32_t d_in,
                          float (*out)[kFloatRow]) {
    constexpr size_t size = kType == Type::f32 ? 4 : 2;
    V acc[n][kFloatRow];
    AUSPEX_UNROLL
    for (int c = 0; c < n; ++c) {
        AUSPEX_UNROLL
        for (int i = 0; i < kFloatRow; ++i) acc[c][i] = zero();
    }
    const uint32_t whole = d_in / W * W;
    const size_t ahead = kFloatRow * stride;  // the same place in the next rows
    for (size_t k = 0; k < whole; k += W) {
        AUSPEX_UNROLL
        for (int i = 0; i < kFloatRow; ++i) {
            prefetch_later(w[i] + k * size + ahead);
            const V a = load_weights<kType>(w[i] + k * size);
            AUSPEX_UNROLL
            for (int c = 0; c < n; ++c) acc[c][i] = fma(a, load(x[c] + k), acc[c][i]);
        }
    }
    if (whole < d_in) {
        std::byte rest[kFloatRow][W * size] = {};
        for (int i = 0; i < kFloatRow; ++i) std::memcpy(rest[i], w[i] + whole * size, (d_in - whole) * size);
        AUSPEX_UNROLL
        for (int c = 0; c < n; ++c) {
            float tail[W] = {};
            std::memcpy(tail, x[c] + whole, (d_in - whole) * sizeof(float));
            const V b = load(tail);
            AUSPEX_UNROLL
            for (int i = 0; i < kFloatRow; ++i) acc[c][i] = fma(load_weights<kType>(rest[i]), b, acc[c][i]);
        }
    }
    AUSPEX_UNROLL
    for (int c = 0; c < n; ++c) {
        AUSPEX_UNROLL
        for (int i = 0; i < kFloatRow; ++i) out[c][i] = sum_halves(acc[c][i]);
    }
}

using FloatKernel = void (*)(const std::byte* const*, size_t, const float* const*, uint32_t, float (*)[kFloatRow]);
template <Type kType>
inline FloatKernel choose_columns(uint32_t n) {
    if constexpr (kMaxFloatColumn >= 4)
        if (n > 2) return float_product<kType, kMaxFloatColumn>;
    return n > 1 ? float_product<kType, 2> : float_product<kType, 1>;
}

/// Rows r0 .. r1 of y from plain rows of f32, f16 or bf16.
inline void plain(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate, uint32_t r0,
                  uint32_t r1) {
    for (uint32_t c0 = 0; c0 < n_row; c0 += kMaxFloatColumn) {
        const uint32_t n = n_row - c0 < kMaxFloatColumn ? n_row - c0 : kMaxFloatColumn;
        const float* x[kMaxFloatColumn];
        for (uint32_t c = 0; c < kMaxFloatColumn; ++c) {
            const uint32_t from = c0 + (c < n ? c : 0);
            x[c] = in.x + in.ld * (in.gather ? in.gather[from] : from);
        }
        const FloatKernel kernel = w.type == Type::f32   ? choose_columns<Type::f32>(n)
                                   : w.type == Type::f16 ? choose_columns<Type::f16>(n)
                                                         : choose_columns<Type::bf16>(n);
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

/// Converts x [32 n_block] f32 to 16-bit integers, as a high byte round(x / (256 scale)) and a low byte for the rest in
/// steps of scale, or to words of both. A NaN makes its block's scale NaN.
inline void quantise(const float* x, uint32_t n_block, Int16Block* to) {
    for (uint32_t b = 0; b < n_block; ++b, ++to, x += 32) {
        float max, scale, inverse, rest[32];
        bool nan;
        int32_t high[2], low[2];
        block_range(x, &max, &nan);
        int8_scale(max, nan, &scale, &inverse);
        round_block(x, inverse, to->q, high);
        for (int i = 0; i < 32; ++i) rest[i] = std::fma(-scale, static_cast<float>(to->q[i]), x[i]);
        round_block(rest, 256 * inverse, to->q + 32, low);
        join_columns(to->q);
        to->scale = scale / 256;
        for (int h = 0; h < 2; ++h) to->minus_sum[h] = -(256 * high[h] + low[h]);
        to->sum = to->scale * static_cast<float>(-(to->minus_sum[0] + to->minus_sum[1]));
    }
}
