#include "guard.h"

#include <new>
#include <stdexcept>
#include <system_error>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
namespace guard_impl {

/// Memory has just run out: the short text fits a std::string without allocating.
Status short_of(Code code, const char* brief, const char* text) noexcept {
    Status status;
    status.code = code;
    try {
        status.text = text;
    } catch (...) {
        status.text = brief;
    }
    return status;
}

}  // namespace guard_impl

Status status_of_exception() {
    using guard_impl::short_of;
    try {
        throw;
    } catch (const std::bad_alloc&) {
    } catch (const std::length_error&) {    // a container asked for more than it can address
    } catch (const std::system_error& e) {  // also the base of what <filesystem> and streams throw, in a callback
        if (e.code() != std::errc::resource_unavailable_try_again) throw;
        return short_of(Code::out_of_memory, "no more threads",
                        "the system refused to start another thread; end other programs, or ask for fewer threads");
    }
    return short_of(Code::out_of_memory, "no host memory",
                    "the standard allocator has no memory left; free some, or use a smaller model, context or file");
}
#endif

Status empty_handle(const char* handle, const char* make) {
    return fail(Code::bad_argument, "the ", handle, " is empty; call ", make, " first");
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
