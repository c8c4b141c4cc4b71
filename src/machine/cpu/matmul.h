// machine/cpu/matmul: products of activations with weight matrices of every file type.
//
// Owns    Matrix (weights as the CPU reads them), packing, integer activations, the products.
// Reads   number (formats), pool (shares of work), features (paths).
// Serves  cpu (the tape walker).
// Thread  a PackedMatrix is immutable; quantise_rows and matmul run on all threads of a pool at once,
//         each with its own Share, a barrier between the two.
// Laws    Row: the bits of y[c][r] depend on the path, the weights and row c of the input, never on how
//         many rows share the call, nor on threads or their shares. HotPath: no allocation in a step.
//         tests/test_matmul.cpp.
//
// Two ways to hold a matrix:
//   plain    the file's rows as they are (float types on every path; every type on the reference
//            path), in place when the bytes may be kept. Products in float with float activations.
//   strips   16 or 8 rows interleaved, so that one vector lane is one output row; the codes and the
//            scales stay the file's (within 3 % of its size for the types below), nothing is rounded.
//            Activations are 16-bit integers held as two int8 columns, high and low: exact integer
//            sums per block of 32 (16), then one float multiply-add per block, in block order.
#pragma once
#include "../../base/number.h"
#include "features.h"
#include "../pool.h"

namespace auspex {
namespace detail {

struct MatrixShape {
    Type type = Type::f32;
    uint32_t d_out = 0, d_in = 0;
    uint32_t n_slice = 1;  ///< a stack [n_slice, d_out, d_in], such as the experts of a layer
};

/// A view of one matrix [d_out, d_in]; owns nothing, cheap to copy.
struct Matrix {
    Type type = Type::f32;
    CpuPath path = CpuPath::reference;
    uint32_t d_out = 0, d_in = 0;
    uint32_t n_lane = 0;  ///< rows in a strip; 0: plain rows
    uint64_t stride = 0;  ///< bytes of a plain row or of a strip
    const std::byte* data = nullptr;
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
        return m;
    }
    /// Bytes taken from the allocator; 0 when the file's bytes are used in place.
    uint64_t owned_bytes() const { return own_.size(); }

  private:
    friend Status pack_matrix(CpuPath, const MatrixShape&, const std::byte*, bool, const Allocator&, Pool*,
                              PackedMatrix*);
    Matrix view_;
    uint32_t n_slice_ = 0;
    uint64_t slice_bytes_ = 0;
    Block own_;
};

/// What pack_matrix would take from the allocator, exactly. `keep` as there.
uint64_t packed_bytes(CpuPath path, const MatrixShape& shape, bool keep);

/// Makes a matrix from the file's rows, [n_slice * d_out] rows of row_bytes(type, d_in).
///
/// keep      the bytes outlive the matrix: plain matrices then use them in place.
/// pool      spreads the work; null: the calling thread alone.
/// errors    bad_argument (an impossible shape), unsupported (path or type), out_of_memory.
/// cost      reads the rows once; about 1 GB/s on each thread.
Status pack_matrix(CpuPath path, const MatrixShape& shape, const std::byte* rows, bool keep, const Allocator& from,
                   Pool* pool, PackedMatrix* out);

/// Row `row` as floats [d_in], bit for bit decode_row's values.
void unpack_row(const Matrix& w, uint32_t row, float* to);

/// Bytes that n_row quantised rows of d_in need; 64-aligned storage is best. d_in a multiple of 32.
size_t quantised_bytes(uint32_t n_row, uint32_t d_in);

/// Writes rows x[n_row][d_in], `ld` floats apart, as integers of 16 bits with one scale for 32 values into `to`
/// (quantised_bytes). All threads call it with their shares (cut evenly, tickets are not used); the
/// result is the same for any cut. A NaN makes its block NaN.
void quantise_rows(CpuPath path, const float* x, size_t ld, uint32_t n_row, uint32_t d_in, void* to,
                   const Share& share);

/// The input rows of a product.
struct Rows {
    const float* x = nullptr;          ///< read when !wants_integers()
    size_t ld = 0;                     ///< floats from one row to the next
    const void* quantised = nullptr;   ///< from quantise_rows on the matrix's path; read when wants_integers()
    const uint32_t* gather = nullptr;  ///< row c of the product is input row gather[c]; null: row c
};

/// y[c][r] = sum_k in[c][k] w[r][k], c < n_row, r < d_out; accumulate: y += that.
/// All threads call it with their shares; each writes the rows r that fall to it.
void matmul(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate,
            const Share& share);

/// The output rows that one ticket of matmul is worth.
constexpr uint32_t kMatmulChunk = 64;

}  // namespace detail
}  // namespace auspex
