// The unit that holds the library, stb-style, or with AUSPEX_IMPLEMENTATION_PART a part of it; a plain include may come
// before.
#include "auspex.hpp"

// As Windows and Qt define them; the implementation uses these names.
#define small char
#define emit
#define slots

#define AUSPEX_IMPLEMENTATION
#if !defined(AUSPEX_IMPLEMENTATION_PART) || AUSPEX_IMPLEMENTATION_PART == 1
#define AUSPEX_C_IMPLEMENTATION
#include "auspex.h"  // brings auspex.hpp

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
