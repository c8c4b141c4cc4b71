// The unit that holds the library, stb-style, or with AUSPEX_IMPLEMENTATION_PART a part of it; a plain include may come
// before.
#include "auspex.hpp"

// As Windows, Qt, Xlib and Apple define them; the implementation uses these names. Those of the standard library's
// names are undefined by its own headers, so these come before.
#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#define small char
#define emit
#define slots
#define Status int
#define check(condition) expected_no_call
#define verify(condition) expected_no_call
#define min(a, b) expected_no_call
#define max(a, b) expected_no_call

#define AUSPEX_IMPLEMENTATION
#if !defined(AUSPEX_IMPLEMENTATION_PART) || AUSPEX_IMPLEMENTATION_PART == 1
#define AUSPEX_C_IMPLEMENTATION
#include "auspex.h"  // brings auspex.hpp

#undef Status  // or the next lines would name auspex::int
const char* name_of(auspex::Code code);
const char* name_of(auspex::Code code) { return auspex::code_name(code); }

auspex::Status open_and_close();
auspex::Status open_and_close() {
    auspex::DeviceOptions options;
    options.kind = auspex::Kind::cpu;
    auspex::Device device;
    return auspex::Device::open(options).get(device);
}
#else
#include "auspex.hpp"
#endif
