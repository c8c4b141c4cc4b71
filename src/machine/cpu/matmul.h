// machine/cpu/matmul: products of activations with weight matrices of every file type.
//
// Owns    Matrix (weights as the CPU reads them), packing, conversion of activations, the products.
// Thread  a PackedMatrix is immutable. All threads of a pool call quantise_rows() and, after a barrier, matmul(), each
//         with its own Share.
// Tests   tests/test_matmul.cpp. Row invariance: the bits of y[c][r] depend on the instruction set, the weights and
//         input row c, not on the number of rows, threads or shares. Hot path: allocates nothing.
//
// A matrix is held in one of two ways:
//   plain    the file's rows, unchanged, for float types (on the reference path for all types); used in place if the
//            file's bytes stay. Products in float with float activations.
//   strips   16 or 8 interleaved rows, so that one vector lane is one output row. Codes and scales are those of the
//            file: nothing is rounded, and most types take within 3 % of the file's bytes (Q2_K twice as many).
//            Activations are 16-bit integers, a high and a low int8: exact integer sums per block of 32 (16), then one
//            float multiply-add per block, in block order.
#pragma once
#include "../../base/number.h"
#include "../pool.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

struct CpuKernels;  // kernels.h

struct MatrixShape {
    Type type = Type::f32;
    uint32_t d_out = 0, d_in = 0;
    uint32_t n_slice = 1;  ///< a stack [n_slice, d_out, d_in]: the experts of a layer
    /// What multiplies every weight: one number, or one for each slice; empty: 1. For NVFP4 only.
    Span<const float> scale = {};
};

/// A view of one matrix [d_out, d_in]; does not own its bytes.
struct Matrix {
    Type type = Type::f32;
    const CpuKernels* kernels = nullptr;  ///< the kernels it was packed for
    uint32_t d_out = 0, d_in = 0;
    uint32_t n_lane = 0;  ///< rows in a strip; 0: plain rows
    uint64_t stride = 0;  ///< bytes of a plain row or of a strip
    const std::byte* data = nullptr;
    float scale = 1;  ///< multiplies every weight; with NVFP4 only
    /// True when matmul reads Rows::quantised; false when it reads Rows::x.
    bool wants_integers() const { return n_lane != 0; }
};

/// A matrix, or a stack of them, ready for products.
class PackedMatrix {
  public:
    bool empty() const { return view_.data == nullptr; }
    uint32_t n_slice() const { return n_slice_; }
    const Matrix& view() const { return view_; }  ///< the first, or only, slice
    Matrix slice(uint32_t i) const {
        Matrix m = view_;
        m.data += i * slice_bytes_;
        if (!scales_.empty()) m.scale = scales_[i];
        return m;
    }
    /// Bytes taken from the allocator; 0 if the file's bytes are used in place.
    uint64_t owned_bytes() const { return own_.size(); }
    /// The bytes of all slices, and how many they are.
    Span<const std::byte> bytes() const { return {view_.data, static_cast<size_t>(n_slice_ * slice_bytes_)}; }

  private:
    friend Status map_matrix(const CpuKernels&, const MatrixShape&, Span<const std::byte>, PackedMatrix*);
    friend Status pack_matrix(const CpuKernels&, const MatrixShape&, const std::byte*, bool, const Allocator&, Pool*,
                              PackedMatrix*, const Token*);
    Matrix view_;
    uint32_t n_slice_ = 0;
    uint64_t slice_bytes_ = 0;
    std::vector<float> scales_;  ///< of the slices, if they differ
    Block own_;
};

/// The bytes that pack_matrix() would allocate; `keep` as there.
uint64_t packed_bytes(const CpuKernels& kernels, const MatrixShape& shape, bool keep);

/// Makes a matrix from the file's rows, [n_slice * d_out] rows of row_bytes(type, d_in).
///
/// keep      the bytes outlive the matrix, so plain matrices use them in place.
/// pool      shares the work; null: the calling thread alone.
/// ids       [d_out] which rows of a table of one slice to take, with keep == false; null: all of `rows`, in order.
/// out       a matrix of as many bytes is written over, and nothing is taken.
/// errors    bad_argument (an impossible shape, or matrix scales for another type or of another number), unsupported
/// (type),
///           out_of_memory.
/// cost      reads the rows once; about 1 GB/s on each thread.
Status pack_matrix(const CpuKernels& kernels, const MatrixShape& shape, const std::byte* rows, bool keep,
                   const Allocator& from, Pool* pool, PackedMatrix* out, const Token* ids = nullptr);

/// Makes a matrix from the bytes of one that was packed before, for the same kernels and of the same shape. They
/// outlive the matrix and begin at a multiple of 64.
///
/// errors    bad_file: another number of bytes.
Status map_matrix(const CpuKernels& kernels, const MatrixShape& shape, Span<const std::byte> packed, PackedMatrix* out);

/// Row `row` as floats [d_in], bit for bit decode_row's values times the matrix scale.
void unpack_row(const Matrix& w, uint32_t row, float* to);

/// Bytes that n_row quantised rows of d_in need; 64-aligned storage is best. d_in a multiple of 32.
size_t quantised_bytes(uint32_t n_row, uint32_t d_in);

/// Converts rows x[n_row][d_in], `ld` floats apart, to 16-bit integers with one scale for 32 values, into `to`
/// (quantised_bytes). All threads call it with even shares; the result does not depend on the shares. A NaN makes its
/// block NaN.
void quantise_rows(const CpuKernels& kernels, const float* x, size_t ld, uint32_t n_row, uint32_t d_in, void* to,
                   const Share& share);

/// The input rows of a product.
struct Rows {
    const float* x = nullptr;          ///< read when !wants_integers()
    size_t ld = 0;                     ///< floats from one row to the next
    const void* quantised = nullptr;   ///< from quantise_rows with the matrix's kernels; read when wants_integers()
    const uint32_t* gather = nullptr;  ///< row c of the product is input row gather[c]; null: row c
};

/// y[c][r] = w.scale sum_k in[c][k] w[r][k], c < n_row, r < d_out; accumulate: y += that.
/// All threads call it with their shares; each writes the rows r of its own.
void matmul(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate,
            const Share& share);

/// Rows r0 .. r1 - 1 of a product with plain rows of any type, without vector instructions: decoded a piece at a time,
/// products in float, pieces added in double.
void reference_rows(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate,
                    uint32_t r0, uint32_t r1);

/// Output rows that matmul computes at once, and how many of these chunks a ticket stands for at most.
constexpr uint32_t kMatmulChunk = 64, kMaxChunks = 16;

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
