// base/clock: how long something has taken.
//
// Thread  no state.
#pragma once
#include "../auspex.hpp"

#include <chrono>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
