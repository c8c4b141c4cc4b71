// tests/support: what several test files share.
#pragma once
#include "../src/auspex.hpp"

#include <string>
#include <vector>

namespace test {

/// The folder with models, references and vectors that is not part of the repository, or null.
/// Found through the AUSPEX_SHARED environment variable or beside the checkout.
const char* shared_dir();

/// The whole file, or an empty string when it cannot be read.
std::string read_text(const std::string& path);

/// The folder of this repository (for the demo model), from the build system.
std::string repo_dir();

/// What these open; the test fails where it cannot be.
auspex::Device open_device(const auspex::DeviceOptions& options);
auspex::Device cpu_device(int n_thread = 1, auspex::CpuPath path = auspex::CpuPath::best);
/// A model from a file, or from bytes that stay.
auspex::Model load_model(const auspex::Device& device, const std::string& path);
auspex::Model load_model(const auspex::Device& device, const std::vector<std::byte>& bytes,
                         const auspex::LoadOptions& options = {});

/// The GPU. Null where there is none, and the test says that it was skipped.
auspex::Device gpu_device();

/// Ways to sample that share no code path: greedy, filtered, hot, and one with penalties.
std::vector<auspex::Sampling> samplings();

inline uint64_t sum(const uint64_t* v, size_t n) {
    uint64_t s = 0;
    for (size_t i = 0; i < n; ++i) s += v[i];
    return s;
}

/// A small deterministic generator for test data.
struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed * 0x9E3779B97F4A7C15ull + 1) {}
    uint64_t next() {
        state += 0x9E3779B97F4A7C15ull;
        uint64_t z = state;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    uint32_t below(uint32_t n) { return static_cast<uint32_t>(next() % n); }
    /// Roughly normal, standard deviation 1.
    float normal() {
        const uint64_t r = next();
        const double s = double(r & 0xffff) + double((r >> 16) & 0xffff) + double((r >> 32) & 0xffff) + double(r >> 48);
        return static_cast<float>((s / 65536.0 - 2.0) * 1.7320508);
    }
    std::vector<float> normals(size_t n, float scale = 1) {
        std::vector<float> v(n);
        for (float& x : v) x = normal() * scale;
        return v;
    }
};

}  // namespace test
