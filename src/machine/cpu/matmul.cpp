#include "matmul.h"

#include "kernels.h"

#include <algorithm>
#include <cstring>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace matmul_impl {

/// How a shape is held: the view, without data.
Matrix layout(const CpuKernels& k, const MatrixShape& s) {
    Matrix m;
    m.type = s.type;
    m.kernels = &k;
    m.d_out = s.d_out;
    m.d_in = s.d_in;
    StripForm f;
    if (k.n_lane != 0 && strip_form(s.type, &f)) {
        m.n_lane = k.n_lane;
        m.stride = f.strip_bytes(m.n_lane, s.d_in);
    } else {
        m.stride = row_bytes(s.type, s.d_in);
    }
    return m;
}

uint64_t slice_bytes(const Matrix& m) {
    return m.stride * (m.n_lane ? ceil_div(uint64_t{m.d_out}, uint64_t{m.n_lane}) : m.d_out);
}

struct PackJob {
    const Matrix* m;
    const std::byte* rows;
    const Token* ids;
    std::byte* to;
    uint32_t n_slice;
};

void pack_part(void* context, uint32_t i_thread, uint32_t n_thread) {
    const PackJob& job = *static_cast<const PackJob*>(context);
    const Matrix& m = *job.m;
    const uint64_t from_row = row_bytes(m.type, m.d_in);
    uint64_t a, b;
    if (m.n_lane == 0) {
        even_part(uint64_t{job.n_slice} * m.d_out, {i_thread, n_thread, nullptr}, &a, &b);
        if (!job.ids)
            std::memcpy(job.to + a * from_row, job.rows + a * from_row, static_cast<size_t>((b - a) * from_row));
        else
            for (; a < b; ++a)
                std::memcpy(job.to + a * from_row, job.rows + static_cast<uint64_t>(job.ids[a]) * from_row,
                            static_cast<size_t>(from_row));
        return;
    }
    const uint64_t n_strip = ceil_div(uint64_t{m.d_out}, uint64_t{m.n_lane});
    even_part(job.n_slice * n_strip, {i_thread, n_thread, nullptr}, &a, &b);
    for (uint64_t s = a; s < b; ++s) {
        const uint64_t row = s % n_strip * m.n_lane;
        const uint64_t left = m.d_out - row;
        const uint32_t n = left < m.n_lane ? static_cast<uint32_t>(left) : m.n_lane;
        const uint64_t first = job.ids ? 0 : s / n_strip * m.d_out + row;
        pack_strip(m, job.rows + first * from_row, job.ids ? job.ids + row : nullptr, n, job.to + s * m.stride);
    }
}

// ----------------------------------------------------------------------------- the reference path

constexpr uint32_t kPiece = 256;   // inputs decoded at once: whole blocks of every type
constexpr uint32_t kColumns = 32;  // rows of the input that share a decoded piece
constexpr uint32_t kPartial = 8;

AUSPEX_NOINLINE double dot_piece(const float* w, const float* x, uint32_t n) {
    // Not inlined: a compiler may order these sums as it likes, but it must do so in one way for all callers. The
    // pointers move, because with an index GCC 12 transposes what it reads and takes four times as long.
    float sum[kPartial] = {};
    const float* end = w + n / kPartial * kPartial;
    for (; w != end; w += kPartial, x += kPartial)
        for (uint32_t j = 0; j < kPartial; ++j) sum[j] += w[j] * x[j];
    for (uint32_t j = 0; j < n % kPartial; ++j) sum[j] += w[j] * x[j];
    double all = 0;
    for (uint32_t j = 0; j < kPartial; ++j) all += static_cast<double>(sum[j]);
    return all;
}

}  // namespace matmul_impl

/// Rows r0..r1 of y: weights decoded a piece at a time, products in float, pieces summed in double.
void reference_rows(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate,
                    uint32_t r0, uint32_t r1) {
    using namespace matmul_impl;
    const uint64_t piece_bytes = row_bytes(w.type, kPiece);
    for (uint32_t r = r0; r < r1; ++r) {
        const std::byte* row = w.data + w.stride * r;
        for (uint32_t c0 = 0; c0 < n_row; c0 += kColumns) {
            const uint32_t n = n_row - c0 < kColumns ? n_row - c0 : kColumns;
            double sum[kColumns] = {};
            for (uint32_t k = 0; k < w.d_in; k += kPiece) {
                const uint32_t n_in = w.d_in - k < kPiece ? w.d_in - k : kPiece;
                float piece[kPiece];
                decode_row(w.type, row + k / kPiece * piece_bytes, piece, n_in);
                for (uint32_t c = 0; c < n; ++c) {
                    const uint32_t from = in.gather ? in.gather[c0 + c] : c0 + c;
                    sum[c] += dot_piece(piece, in.x + in.ld * from + k, n_in);
                }
            }
            for (uint32_t c = 0; c < n; ++c) {
                float* to = y + ld_y * (c0 + c) + r;
                const float product = static_cast<float>(sum[c] * static_cast<double>(w.scale));
                *to = accumulate ? *to + product : product;
            }
        }
    }
}

namespace matmul_impl {

/// errors    bad_argument: the type's kernels know no matrix scale, or there are not as many as slices.
Status check_scale(const MatrixShape& s) {
    const size_t n = s.scale.size();
    if (n != 0 && s.type != Type::nvfp4)
        return fail(Code::bad_argument, "a matrix scale for ", type_info(s.type).name, ", expected NVFP4");
    if (n > 1 && n != s.n_slice)
        return fail(Code::bad_argument, n, " matrix scales for ", s.n_slice, " matrices, expected one each");
    return {};
}

/// The scales of the slices: in the view where all have the same.
void put_scales(const MatrixShape& s, Matrix* view, std::vector<float>* of_slices) {
    if (s.scale.empty()) return;
    view->scale = s.scale[0];
    if (s.scale.size() > 1) of_slices->assign(s.scale.begin(), s.scale.end());
}

}  // namespace matmul_impl

uint64_t packed_bytes(const CpuKernels& kernels, const MatrixShape& shape, bool keep) {
    const Matrix m = matmul_impl::layout(kernels, shape);
    if (m.n_lane == 0 && keep) return 0;
    return matmul_impl::slice_bytes(m) * shape.n_slice;
}

Status pack_matrix(const CpuKernels& kernels, const MatrixShape& shape, const std::byte* rows, bool keep,
                   const Allocator& from, Pool* pool, PackedMatrix* out, const Token* ids) {
    using namespace matmul_impl;
    const TypeInfo info = type_info(shape.type);
    if (!info.name || !info.supported)
        return fail(Code::unsupported, "weights of type id ", static_cast<uint32_t>(shape.type), ", expected one of ",
                    supported_types());
    if (shape.d_out == 0 || shape.d_in == 0 || shape.n_slice == 0 || !rows)
        return fail(Code::bad_argument, "an empty matrix [", shape.n_slice, ", ", shape.d_out, ", ", shape.d_in, "]");
    if (shape.d_in % info.n_block != 0)
        return fail(Code::bad_argument, "rows of ", shape.d_in, " weights, expected a multiple of ", info.n_block,
                    ", the block of ", info.name);
    AUSPEX_TRY(check_scale(shape));
    Matrix m = layout(kernels, shape);
    uint64_t all = 0;
    if (!mul_fits(slice_bytes(m), shape.n_slice, &all) || all > SIZE_MAX / 2)
        return fail(Code::bad_argument, "a matrix [", shape.n_slice, ", ", shape.d_out, ", ", shape.d_in, "] of ",
                    info.name, " is too large to address");
    PackedMatrix result;
    if (m.n_lane == 0 && keep) {
        m.data = rows;
    } else {
        const bool in_place = out->own_.size() == all;
        if (!in_place) AUSPEX_TRY(result.own_.take(from, all, "a weight matrix"));
        std::byte* to = (in_place ? out->own_ : result.own_).data();
        if (in_place) std::memset(to, 0, static_cast<size_t>(all));
        m.data = to;
        PackJob job{&m, rows, ids, to, shape.n_slice};
        if (pool)
            pool->run(pack_part, &job);
        else
            pack_part(&job, 0, 1);
        if (in_place) result.own_ = std::move(out->own_);
    }
    result.view_ = m;
    put_scales(shape, &result.view_, &result.scales_);
    result.n_slice_ = shape.n_slice;
    result.slice_bytes_ = slice_bytes(m);
    *out = std::move(result);
    return {};
}

Status map_matrix(const CpuKernels& kernels, const MatrixShape& shape, Span<const std::byte> packed,
                  PackedMatrix* out) {
    const uint64_t expected = packed_bytes(kernels, shape, false);
    if (packed.size() != expected)
        return fail(Code::bad_file, "a packed matrix of ", packed.size(), " bytes, expected ", expected);
    PackedMatrix result;
    result.view_ = matmul_impl::layout(kernels, shape);
    result.view_.data = packed.data();
    AUSPEX_TRY(matmul_impl::check_scale(shape));
    matmul_impl::put_scales(shape, &result.view_, &result.scales_);
    result.n_slice_ = shape.n_slice;
    result.slice_bytes_ = matmul_impl::slice_bytes(result.view_);
    *out = std::move(result);
    return {};
}

size_t quantised_bytes(uint32_t n_row, uint32_t d_in) {
    return n_row * static_cast<size_t>(round_up(uint64_t{d_in / 32} * sizeof(Int16Block), 64));
}

void quantise_rows(const CpuKernels& kernels, const float* x, size_t ld, uint32_t n_row, uint32_t d_in, void* to,
                   const Share& share) {
    AUSPEX_ASSERT(kernels.quantise && d_in % 32 == 0);
    const uint32_t n_block = d_in / 32;
    uint64_t a, b;
    even_part(uint64_t{n_row} * n_block, share, &a, &b);
    while (a < b) {
        const uint64_t row = a / n_block, block = a % n_block;
        const uint64_t n = n_block - block < b - a ? n_block - block : b - a;
        Int16Block* blocks =
            reinterpret_cast<Int16Block*>(static_cast<std::byte*>(to) + quantised_bytes(1, d_in) * row);
        kernels.quantise(x + ld * row + 32 * block, static_cast<uint32_t>(n), blocks + block);
        a += n;
    }
}

void matmul(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate,
            const Share& share) {
    const auto part = w.n_lane ? w.kernels->strips : w.kernels->plain;
    AUSPEX_ASSERT(w.wants_integers() ? in.quantised != nullptr : in.x != nullptr);
    // A chunk of 64 rows stays in the second-level cache while all rows of the input pass over it.
    const uint32_t step = share.ticket ? kMatmulChunk : 16;  // a multiple of every strip
    each_piece(ceil_div(w.d_out, step), kMaxChunks, share, [&](uint32_t from, uint32_t to) {
        const uint32_t end = std::min(to * step, w.d_out);
        for (uint32_t r = from * step; r < end; r += kMatmulChunk)
            part(w, in, n_row, y, ld_y, accumulate, r, std::min(r + kMatmulChunk, end));
    });
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
