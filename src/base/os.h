// base/os: the operating system's last error, and how it spells paths.
//
// Thread  any.
// Tests   tests/test_base.cpp, tests/test_platforms.py
#pragma once
#include "base.h"
#include "os_headers.h"

#include <cerrno>
#include <string>
#include <system_error>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// What to do about std::errc::value_too_large, which a file of 2 GiB gives where off_t has 32 bits.
constexpr const char* kSmallFilesOnly =
    ". This program was compiled for files of less than 2 GiB. Use a 64-bit build, or compile it with "
    "-D_FILE_OFFSET_BITS=64.";

/// Of the last call that failed on this thread.
inline std::error_code last_error() {
#if defined(_WIN32)
    return std::error_code(static_cast<int>(GetLastError()), std::system_category());
#else
    // Functions of the C library need not set errno.
    return std::error_code(errno ? errno : EIO, std::generic_category());
#endif
}

#if defined(_WIN32)
/// UTF-8 as Windows spells it; empty if it is not UTF-8.
inline std::wstring wide_text(const char* text) {
    const int n = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, nullptr, 0);
    if (n <= 0) return {};
    std::wstring wide(static_cast<size_t>(n) - 1, L'\0');
    MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, &wide[0], n);
    return wide;
}

/// A path from its root on, or with the prefix of devices ("\\.\NUL"); empty if Windows cannot tell.
inline std::wstring full_path(const std::wstring& name) {
    const DWORD room = GetFullPathNameW(name.c_str(), 0, nullptr, nullptr);
    std::wstring full(room, L'\0');
    const DWORD length = room == 0 ? 0 : GetFullPathNameW(name.c_str(), room, &full[0], nullptr);
    full.resize(length < room ? length : 0);
    return full;
}
inline bool names_device(const std::wstring& full) { return full.compare(0, 4, L"\\\\.\\") == 0; }

/// A path in UTF-8 as the functions of Windows take it; empty if it is not UTF-8. One that is long, counted from its
/// root on, gets the prefix that lifts their limit of 260 characters.
inline std::wstring wide_path(const char* path) {
    const std::wstring name = wide_text(path);
    if (name.compare(0, 4, L"\\\\?\\") == 0) return name;
    const std::wstring full = full_path(name);
    constexpr size_t kLong = 200;
    if (full.size() < kLong || names_device(full)) return name;
    const bool share = full.compare(0, 2, L"\\\\") == 0;  // \\server\share\...
    return share ? L"\\\\?\\UNC\\" + full.substr(2) : L"\\\\?\\" + full;
}
inline Status not_utf8(const std::string& path) {
    return fail(Code::bad_argument, "the path '", path,
                "' is not UTF-8, expected UTF-8 on every platform. Convert it.");
}
#endif

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
