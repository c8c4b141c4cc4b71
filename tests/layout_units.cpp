// tests/layout_units: what the layouts of weights (shaders/quant) do for matrix units, on the CPU.
//
// A software device has no matrix units, so it runs unpack() alone. Here store_x() and product() (matvec_mma.comp),
// decode_share() and share_values() (gemm_mma.comp), translated by make_layout_units.py, meet rows of x and tiles of
// random blocks. The operation of the units is replaced; its operands are distributed as matrix_layout_fits() in tune.h
// asks.
#include "../src/machine/vulkan/repack.h"
#include "glsl.h"
#include "largest.h"
#include "number_fields.h"

#include <cstdio>

namespace {

using namespace glsl;
using auspex::detail::Type;

// The buffers and built-ins that a shader sees.
uvec4* w;
uvec2* w2;
uint* w1;
#define UNITS w
const float TINY = 16777216.0f;
struct {
    uint x = 1;  // one invocation fills a table
} gl_WorkGroupSize;
uint gl_LocalInvocationIndex;
constexpr uint gl_SubgroupInvocationID = 1;  // its entry of a codebook is not zero
void barrier() {}
uint half_twice(uvec2 v, uint t) { return (((t < 2 ? v.x : v.y) >> (16 * (t & 1))) & 0xffffu) * 0x10001u; }

uint word_of(uvec4 v, uint i) { return v[i]; }

constexpr uint SX = auspex::detail::args::kMatvecRowHalves;
uvec4 s[8 * SX / 8];  // x as store_x() leaves it
float scale[8];
vec4 xa, xb;  // what an invocation has loaded of x
struct {
    uint first_row = 16;
} args;
uint column0, part;  // of C: its columns column0 and column0 + 1; of its rows, what invocation `part` of four has

/// Shuffles between 32 invocations that run one after the other, several times: each run sees the operands of the run
/// before it, so that a function with n shuffles in a row is right from run n + 1 on.
struct Shuffles {
    vec2 seen[8][32], now[8][32];
    uint me = 0, n_call = 0;
    vec2 exchange(vec2 v, uint mask) {
        now[n_call][me] = v;
        return seen[n_call++][me ^ mask];
    }
} shuffles;
float subgroupShuffleXor(float v, uint mask) { return shuffles.exchange(vec2(v), mask).x; }
vec2 subgroupShuffleXor(vec2 v, uint mask) { return shuffles.exchange(v, mask); }

/// What an invocation adds to a block of C, before the four invocations of a row are added.
struct FragC {
    float c[4];
    explicit FragC(double) : c{} {}
    float operator[](int i) const { return c[i]; }
};
void multiply(FragC& C, uint a0, uint a1, uint a2, uint a3, uint at) {
    const vec2 row[4] = {unpackHalf2x16(a0), unpackHalf2x16(a1), unpackHalf2x16(a2), unpackHalf2x16(a3)};
    for (uint col = 0; col < 2; ++col) {
        float b[4];
        for (uint i = 0; i < 4; ++i) {
            const uint k = at + (column0 + col) * SX + 2 * part + 8 * (i / 2) + i % 2;
            b[i] = auspex::detail::f16_to_f32(static_cast<uint16_t>(s[k / 8][k / 2 % 4] >> (16 * (k % 2))));
        }
        C.c[col] += row[0].x * b[0] + row[0].y * b[1] + row[1].x * b[2] + row[1].y * b[3];
        C.c[2 + col] += row[2].x * b[0] + row[2].y * b[1] + row[3].x * b[2] + row[3].y * b[3];
    }
}
#define MMA(C, a0, a1, a2, a3, at) multiply(C, a0, a1, a2, a3, at);
#define ADD(sum, e0, e1, C)            \
    {                                  \
        const float f0_ = e0;          \
        const float f1_ = e1;          \
        sum.x = fma(f0_, C[0], sum.x); \
        sum.y = fma(f0_, C[1], sum.y); \
        sum.z = fma(f1_, C[2], sum.z); \
        sum.w = fma(f1_, C[3], sum.w); \
    }
/// Of the codebook's entries, which invocation n holds in the low or the high half of a word.
#define subgroupShuffle(value, n) (packHalf2x16(vec2(code_value((n)&15u), 0.0)) << ((value) < 65536u ? 0u : 16u))
#include "layout_units.inc"

struct Functions {
    void (*store_x)(uint n, uint first, uint l);
    vec4 (*product)(uint l, uint t);
    void (*shares)(uint l, uint e, uint kb, uvec4& lo, uvec4& hi, vec4* values);
    float factor;
};

/// A tile of random blocks, its weights, and rows of x, rounded to what store_x() may keep of them.
struct Trial {
    float weight[16][256], largest[16] = {};
    double x[8][256];
    std::vector<uvec4> tile;

    Trial(Type type, const Functions& f, test::Random& random) {
        using namespace auspex::detail;
        using auspex::Span;
        const TypeInfo info = type_info(type);
        std::vector<uint8_t> file(16 * row_bytes(type, 256));
        if (info.n_block == 1) {
            for (size_t i = 0; i < file.size(); i += 2) put(f32_to_f16(random.normal()), &file[i]);
        } else {
            for (uint8_t& byte : file) byte = static_cast<uint8_t>(random.below(256));
            test::set_exponents(type, file.data(), file.size(), -12, 6, random);
            for (size_t at = 0; at < file.size(); at += info.block_bytes)
                for (const int field : test::half_fields(type))
                    put(f32_to_f16(0.01f * random.normal()), &file[at + static_cast<size_t>(field)]);
        }
        // A tile of two matrices, which in NVFP4 have a scale each.
        const float whole[2] = {0.0037f, -0.00011f};
        const bool scaled = type == Type::nvfp4;
        for (uint r = 0; r < 16; ++r) {
            decode_row(type, file.data() + r * row_bytes(type, 256), weight[r], 256);
            if (scaled)
                for (float& v : weight[r]) v *= whole[r / 8];
            for (const float v : weight[r]) largest[r] = std::max(largest[r], std::fabs(v));
        }
        const vk::Tiling tiling = vk::tiling(type, 8, 256, true);
        const auto rows = [&](size_t i) {
            return vk::MatrixRows(file.data() + 8 * i * row_bytes(type, 256),
                                  scaled ? Span<const float>(whole + i, 1) : Span<const float>());
        };
        tile.resize(tiling.bytes() / 16);
        vk::repack(tiling, type, rows(0), rows(1), 0, 1, reinterpret_cast<std::byte*>(tile.data()));
        w = tile.data();
        w2 = reinterpret_cast<uvec2*>(w);
        w1 = reinterpret_cast<uint*>(w);
        for (uint c = 0; c < 8; ++c) stage(f, c, random);
    }
    static void put(uint16_t half, uint8_t* to) { std::memcpy(to, &half, 2); }

    /// Row c: normal values; row 7: the largest sums that can occur, of values just below a power of two.
    void stage(const Functions& f, uint c, test::Random& random) {
        float loaded[256], top = 0;
        for (float& v : loaded) {
            v = c == 7 ? 1.9999f : 3.0f * random.normal();
            top = std::max(top, std::fabs(v));
        }
        for (uint run = 0; run < 8; ++run) {
            for (uint l = 0; l < 32; ++l) {
                const float* const from = loaded + 32 * (l >> 2) + 4 * (l & 3);
                xa = vec4(from[0], from[1], from[2], from[3]);
                xb = vec4(from[16], from[17], from[18], from[19]);
                shuffles.me = l, shuffles.n_call = 0;
                f.store_x(c, 0, l);
            }
            std::memcpy(shuffles.seen, shuffles.now, sizeof shuffles.now);
        }
        const float up = std::ldexp(1.0f, 10 - std::ilogb(top));
        for (uint k = 0; k < 256; ++k) x[c][k] = double{float16_t(loaded[k] * up).v} / up;
    }
};

/// The largest errors: of product() against the sum of magnitudes, of the others against the row's largest weight.
struct Errors {
    double product = 0, values = 0, halves = 0;
};

void check_product(const Trial& trial, const Functions& f, Errors* worst) {
    for (uint g = 0; g < 8; ++g)
        for (column0 = 0; column0 < 8; column0 += 2) {
            vec4 sum;
            for (part = 0; part < 4; ++part) sum = sum + f.product(4 * g + part, part);
            for (uint i = 0; i < 4; ++i) {
                double want = 0, size = 0;
                for (uint k = 0; k < 256; ++k) {
                    const double p = double{trial.weight[g + 8 * (i / 2)][k]} * trial.x[column0 + i % 2][k];
                    want += p, size += std::fabs(p);
                }
                const double got = double{sum[i]} * scale[column0 + i % 2];
                worst->product = test::larger_error(worst->product, std::fabs(got - want) / size);
            }
        }
}

void check_shares(const Trial& trial, const Functions& f, Errors* worst) {
    for (uint l = 0; l < 32; ++l)
        for (uint e = 0; e < 2; ++e)
            for (uint kb = 0; kb < 4; ++kb) {
                uvec4 lo, hi;
                vec4 values[4];
                f.shares(l, e, kb, lo, hi, values);
                const uint row = (l >> 2) + 8 * e;
                for (uint b = 0; b < 4; ++b)
                    for (uint i = 0; i < 4; ++i) {
                        const double want = trial.weight[row][64 * kb + 16 * b + 4 * (l & 3) + i];
                        const vec2 two = unpackHalf2x16((b < 2 ? lo : hi)[2 * (b % 2) + i / 2]);
                        const double half = (i % 2 ? two.y : two.x) / f.factor, value = values[b][i] / f.factor;
                        worst->halves = test::larger_error(worst->halves, std::fabs(half - want) / trial.largest[row]);
                        worst->values = test::larger_error(worst->values, std::fabs(value - want) / trial.largest[row]);
                    }
            }
}

bool check(const char* name, Type type, const Functions& f) {
    test::Random random(5);
    Errors worst;
    for (int i = 0; i < 20; ++i) {
        const Trial trial(type, f, random);
        check_product(trial, f, &worst);
        check_shares(trial, f, &worst);
    }
    const bool ok = worst.product < 1e-6 && worst.values < 1e-7 && worst.halves < 1.5e-3;
    std::printf("%-8s product %.1e, values %.1e, halves %.1e%s\n", name, worst.product, worst.values, worst.halves,
                ok ? "" : ": WRONG, expected at most 1e-6, 1e-7, 1.5e-3");
    return ok;
}

}  // namespace

int main() {
    bool ok = true;
#define AUSPEX_LAYOUT(name)                                                           \
    ok &= check(#name, Type::name,                                                    \
                {name##_matrix::store_x,                                              \
                 [](uint l, uint t) {                                                 \
                     gl_LocalInvocationIndex = l;                                     \
                     return name##_matrix::product(name##_matrix::fetch(0, l), 0, t); \
                 },                                                                   \
                 [](uint l, uint e, uint kb, uvec4& lo, uvec4& hi, vec4* values) {    \
                     using namespace name##_shares;                                   \
                     open_table(0);                                                   \
                     const Share share = fetch_share(0, l, e, kb);                    \
                     decode_share(share, kb, lo, hi);                                 \
                     share_values(share, kb, values);                                 \
                 },                                                                   \
                 name##_shares::kFactor});
    AUSPEX_PRODUCT_LAYOUTS
    return ok ? 0 : 1;
}
