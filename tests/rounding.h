// tests/rounding: the rounding modes that an application's thread may have.
#pragma once
#include <cfenv>
#include <string>

namespace test {

/// Calls f(name) in each of them.
template <class F>
void each_rounding(F f) {
    struct Restored {
        int mode = std::fegetround();
        ~Restored() { std::fesetround(mode); }
    } restored;
    static constexpr struct {
        const char* name;
        int mode;
    } kModes[] = {
        {"to nearest", FE_TONEAREST}, {"upward", FE_UPWARD}, {"downward", FE_DOWNWARD}, {"to zero", FE_TOWARDZERO}};
    for (const auto& m : kModes) {
        std::fesetround(m.mode);
        f(std::string(m.name));
    }
}

}  // namespace test
