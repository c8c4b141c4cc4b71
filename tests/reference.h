// tests/reference: outputs of an independent float32 implementation, for comparison.
#pragma once
#include "../src/base/json.h"
#include "support.h"

namespace test {

/// One reference set: a JSON description beside a file of float32 arrays.
struct Reference {
    auspex::detail::Json json;
    std::vector<float> floats;
    bool ok = false;
    std::string model_path;

    struct Array {
        const float* data = nullptr;
        size_t n_row = 0, n_col = 0;
        const float* row(size_t i) const { return data + i * n_col; }
    };
    Array array(const std::string& name) const;
};

/// `name`: "demo-q4_k_m" or another set of ../shared. ok is false where that folder is absent; then the running test
/// case is skipped.
Reference load_reference(const std::string& name);
/// The small set of the demo model that belongs to the repository (tests/data/reference/README.md).
Reference load_small_reference();

std::vector<auspex::Token> ids_of(const auspex::detail::Json& list);
std::vector<double> numbers_of(const auspex::detail::Json& list);

/// sqrt(sum (a-b)^2 / sum b^2); infinity where that is NaN
double relative_error(const float* a, const float* b, size_t n);
size_t arg_max(const float* a, size_t n);
/// Largest minus second largest.
double margin(const float* a, size_t n);

}  // namespace test
