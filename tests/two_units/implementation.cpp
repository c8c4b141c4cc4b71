// The one unit that holds the library, stb-style; a plain include may come before.
#include "auspex.hpp"

// As Windows and Qt define them; the implementation uses these names.
#define small char
#define emit
#define slots

#define AUSPEX_IMPLEMENTATION
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
