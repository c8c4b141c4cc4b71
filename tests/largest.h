// tests/largest: the largest of several errors, which std::max and std::fmax take to be small where one is NaN.
#pragma once
#include <cmath>

namespace test {

/// The larger of two errors. What is not a number counts as infinite, so that no bound holds it and no later error
/// replaces it.
inline double larger_error(double a, double b) { return std::isnan(a) || std::isnan(b) ? INFINITY : std::fmax(a, b); }

}  // namespace test
