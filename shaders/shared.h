// shared.h: lets a header be read by C++ and GLSL, and the limits that every kernel keeps.
//
// A header wraps its declarations in AUSPEX_SHARED_BEGIN and AUSPEX_SHARED_END, writes constants as AUSPEX_CONST uint
// and structs of 32-bit scalars and arrays of them alone: then std430 and C++ lay them out alike. Those of push
// constants are compared by size in src/machine/vulkan/shader_contract.h.
#ifndef AUSPEX_SHADERS_SHARED_H
#define AUSPEX_SHADERS_SHARED_H

#ifdef __cplusplus
#include "../src/auspex.hpp"

#include <cstddef>
#include <cstdint>
// clang-format off
#define AUSPEX_SHARED_BEGIN \
    namespace auspex { inline namespace AUSPEX_VERSION_NAMESPACE { namespace detail { namespace args { \
    using uint = uint32_t;
#define AUSPEX_SHARED_END } } } }
// clang-format on
#define AUSPEX_CONST constexpr
#else
#define AUSPEX_SHARED_BEGIN
#define AUSPEX_SHARED_END
#define AUSPEX_CONST const
#endif

AUSPEX_SHARED_BEGIN
AUSPEX_CONST uint kMaxBindings = 12;   // buffers of a kernel: set 0, bindings 0 .. 11
AUSPEX_CONST uint kPushBytes = 128;    // of a kernel's push constants; addresses of buffers may follow
AUSPEX_CONST uint kMaxRows = 9;        // rows of a tentative pass: one and the deepest draft
AUSPEX_CONST uint kTileRows = 16;      // of a tile of weights; quant/tile.glsl
AUSPEX_CONST uint kTileColumns = 256;  // likewise

// What a product does with its sums: specialization constant EPILOGUE.
AUSPEX_CONST uint kEpilogueStore = 0;   // y = W x
AUSPEX_CONST uint kEpilogueAdd = 1;     // y = residual + W x; matvec also leaves sums of squares of 16 values each
AUSPEX_CONST uint kEpilogueSwiglu = 2;  // rows 0 .. 7 of a tile: gate, 8 .. 15: up; y = silu(gate) * up
AUSPEX_CONST uint kEpilogueLogits = 3;  // matvec: y = W x, and the largest of each workgroup, ties to the lower id
AUSPEX_CONST uint kEpilogueHalves = 3;  // gemm: swiglu divided by kHalvesFactor, as halves: x of the next product
AUSPEX_CONST uint kEpilogueAny = 4;     // matvec_mma: MatvecArgs::mode says which
AUSPEX_CONST uint kNormAny = 2;         // likewise for NORM, else 0 or 1
AUSPEX_SHARED_END

#endif
