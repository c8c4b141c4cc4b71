// machine/vulkan/quirks: faults of drivers that a device does not report, and what is done without there.
//
// What    A table by vendor, device, driver and driver version. An entry turns traits off, or sets one of its own; what
//         is in force is named in the device's report.
// Owns    nothing.
// Tests   an entry for the device at hand turns traits off: tests/test_vulkan_shapes.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../../base/base.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

struct DeviceTraits;

/// What a quirk does, as bits.
enum QuirkBits : uint32_t {
    kNoTimeline = 1,       ///< submissions are numbered by fences
    kNoMatrix = 2,         ///< no cooperative matrices
    kNoDot = 4,            ///< no integer dot products
    kNoHalf = 8,           ///< no arithmetic in halves
    kNoSmallBuffers = 16,  ///< no buffers of 8 and 16 bits
    kNoAddresses = 32,     ///< no device addresses
    kNoShuffle = 64,       ///< no subgroup shuffles
    kShortLoops = 128,     ///< the loops of an invocation end after 65,535 rounds in all
    kNoChain = 256,        ///< workgroups of later dispatches may start before those of earlier ones
};

/// A driver with a fault. Members that are 0 match every device.
struct Quirk {
    const char* reason;      ///< for the report: what goes wrong, and where that is known from
    uint32_t bits;           ///< of QuirkBits
    uint32_t driver_id = 0;  ///< VkDriverId; 0 matches devices of Vulkan 1.1 too, which may not tell it
    uint32_t vendor_id = 0;
    uint32_t device_id = 0;
    uint32_t mended_in = 0;  ///< driverVersion without the fault, as the driver encodes it; 0: none is known
};

/// The drivers that are known.
Span<const Quirk> known_quirks();
/// Turns off in the traits what those of the quirks do that match the device; returns the reasons. Before the device is
/// created.
std::vector<std::string> apply_quirks(Span<const Quirk> quirks, DeviceTraits* traits);

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
