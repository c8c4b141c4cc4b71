// base/guard: what the standard library throws when memory or threads run out becomes a Status at the public boundary.
//
// Owns    the function-try-blocks that stand around each public function; Undo, for what an exception leaves half done.
// Thread  none of its own.
// Test    tests/test_fault.cpp: every allocation and thread start fails in turn.
#pragma once
#include "base.h"

#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
/// Wraps the body of a function that returns a Status or a Result:
///     Status f() AUSPEX_BOUNDARY { ... }
///     AUSPEX_CATCH
/// Exceptions that are not the standard library's own for memory or threads pass through. Without exceptions the macros
/// are empty.
#define AUSPEX_BOUNDARY try
#define AUSPEX_CATCH                                    \
    catch (...) {                                       \
        return ::auspex::detail::status_of_exception(); \
    }
/// For a function that returns a plain value, an empty one on failure.
#define AUSPEX_CATCH_EMPTY                             \
    catch (...) {                                      \
        (void)::auspex::detail::status_of_exception(); \
        return {};                                     \
    }
#else
#define AUSPEX_BOUNDARY
#define AUSPEX_CATCH
#define AUSPEX_CATCH_EMPTY
#endif

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// The Status for the exception that is being handled. Call in a catch block only; rethrows what it does not know.
Status status_of_exception();

/// Calls `undo` at the end of its scope, also where an exception ends it, unless keep() was called.
template <class F>
class Undo {
  public:
    explicit Undo(F undo) : undo_(std::move(undo)) {}
    ~Undo() {
        if (!kept_) undo_();
    }
    Undo(const Undo&) = delete;
    Undo& operator=(const Undo&) = delete;
    void keep() { kept_ = true; }

  private:
    F undo_;
    bool kept_ = false;
};

/// What `make` gives, or an empty handle where there is no memory for it: for constructors, whose objects say later
/// that they are empty.
template <class Make>
auto made_or_empty(Make make) -> decltype(make()) AUSPEX_BOUNDARY {
    return make();
}
AUSPEX_CATCH_EMPTY

/// bad_argument for a method of a handle that was never filled.
Status empty_handle(const char* handle, const char* make);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
