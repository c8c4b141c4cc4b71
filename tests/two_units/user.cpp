// The application's side: a plain include, the door and nothing behind it.
#define Status int  // as Xlib does
#include "auspex.hpp"
#undef Status
#include "auspex.hpp"  // and once more, as two of its headers might
#include "auspex.h"

#include <cstdio>

const char* name_of(auspex::Code code);  // implementation.cpp
auspex::Status open_and_close();

int main() {
    // The same function seen from both units, and a real object made in one and used in the other.
    const bool same = auspex::code_name(auspex::Code::bad_file) == name_of(auspex::Code::bad_file);
    const auspex::Status opened = open_and_close();
    auspex::DeviceOptions options;
    options.kind = auspex::Kind::cpu;
    const auspex::Result<auspex::Device> device = auspex::Device::open(options);
    auspex_device* from_c = nullptr;
    const bool c =
        auspex_abi_version() == AUSPEX_ABI_VERSION && auspex_device_open(nullptr, &from_c, nullptr) == AUSPEX_OK;
    auspex_device_free(from_c);
    if (same && c && opened.ok() && device.ok()) return 0;
    std::printf("same name: %d; C: %d; there: %s; here: %s\n", same, c, opened.message().c_str(),
                device.status().message().c_str());
    return 1;
}
