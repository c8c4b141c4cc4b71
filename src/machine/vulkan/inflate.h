// machine/vulkan/inflate: a decoder of zlib streams, for the embedded SPIR-V.
//
// What    RFC 1950 and RFC 1951 decoding; any input gives bytes or a Status, never an access out of bounds.
// Owns    nothing.
// Thread  any.
// Tests   tests/test_inflate.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../../base/base.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// Decodes a zlib stream that must hold exactly `to.size()` bytes and end where `from` ends.
///
/// errors    bad_file: damaged, cut short, too long, or with a wrong checksum; the text says where.
/// cost      about 200 MB/s of output.
/// source    RFC 1950 (zlib), RFC 1951 (deflate).
Status inflate_zlib(Span<const std::byte> from, Span<std::byte> to);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
