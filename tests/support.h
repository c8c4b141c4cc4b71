// tests/support: what several test files share.
#pragma once
#include "../src/auspex.hpp"

#include <string>
#include <vector>

// Whether this build runs under a sanitizer that takes over memory or threads.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define AUSPEX_TEST_SANITIZED 1
#endif
#endif
#if !defined(AUSPEX_TEST_SANITIZED) && (defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__))
#define AUSPEX_TEST_SANITIZED 1
#endif
#ifndef AUSPEX_TEST_SANITIZED
#define AUSPEX_TEST_SANITIZED 0
#endif

namespace test {

/// Whether tests run at their long lengths: AUSPEX_TEST_DEEP=1 in the environment, set by `tools/test.sh deep`.
bool deep();

/// Records that the running test case is skipped, and why; the caller returns. The test program lists these at its end
/// (tests/main.cpp), tools/test.sh adds them up.
void skip(const std::string& why);
/// The same for want of a device, with what the system answered. Fails the test case where AUSPEX_REQUIRE_GPU=1.
void skip_without_device(const std::string& answer);
/// One skipped test case, in the order they ran.
struct Skipped {
    std::string name, why;
};
const std::vector<Skipped>& skipped();

/// The folder with models, references and vectors that is not part of the repository. Found through the environment
/// variable AUSPEX_SHARED or beside the checkout. Null where it is absent: then the running test case is skipped,
/// because it needs `what` of that folder.
const char* shared_dir(const char* what);

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

/// The GPU. Null where there is none; then the running test case is skipped.
auspex::Device gpu_device();
/// Whether a device of this name is one that AUSPEX_REQUIRE_GPU=1 accepts: a software device only where
/// VK_ICD_FILENAMES chose it. Always true where that variable is not set.
bool device_counts(const std::string& name);

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
    /// Seeds that are neighbours give one stream, a draw apart: for independent streams multiply them, see SyncScripts.
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
