// base/base: checked arithmetic, message text, quoting of untrusted names, owned memory.
//
// Owns    helpers that every layer uses; nothing here knows about models.
// Thread  no shared state.
// Tests   tests/test_base.cpp
#pragma once
#include "../auspex.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#ifndef AUSPEX_ASSERT
#include <cassert>
#define AUSPEX_ASSERT(x) assert(x)
#endif

#if defined(__GNUC__)
#define AUSPEX_INLINE inline __attribute__((always_inline))
#else
#define AUSPEX_INLINE inline
#endif

// Between these two the compiler makes small code, which compiles faster, instead of fast code: around functions that
// run once per model, session, schema or request and spend no time in loops of their own.
#if defined(__clang__)
#define AUSPEX_SMALL_CODE_BEGIN _Pragma("clang attribute push(__attribute__((cold)), apply_to = function)")
#define AUSPEX_SMALL_CODE_END _Pragma("clang attribute pop")
#elif defined(__GNUC__) && defined(__OPTIMIZE__)
#define AUSPEX_SMALL_CODE_BEGIN _Pragma("GCC push_options") _Pragma("GCC optimize(\"Os\")")
#define AUSPEX_SMALL_CODE_END _Pragma("GCC pop_options")
#else
#define AUSPEX_SMALL_CODE_BEGIN
#define AUSPEX_SMALL_CODE_END
#endif

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// *out = a * b; false on overflow.
inline bool mul_fits(uint64_t a, uint64_t b, uint64_t* out) {
    if (a != 0 && b > UINT64_MAX / a) return false;
    *out = a * b;
    return true;
}
/// FNV-1a, 64 bits: a fingerprint and a checksum. It does not resist an attacker.
struct Fnv {
    uint64_t value = 0xcbf29ce484222325ull;
    void mix(uint64_t v) { value = (value ^ v) * 0x100000001b3ull; }
    void bytes(const void* p, size_t n) {
        for (size_t i = 0; i < n; ++i) mix(static_cast<const unsigned char*>(p)[i]);
    }
};

/// The value of a hexadecimal digit, or -1.
inline int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/// Reads n hexadecimal digits at *at, which moves past them. False where one is missing; *at is then that place.
inline bool read_hex(std::string_view text, size_t* at, size_t n, uint32_t* out) {
    for (*out = 0; n > 0; --n, ++*at) {
        const int digit = *at < text.size() ? hex_digit(text[*at]) : -1;
        if (digit < 0) return false;
        *out = *out << 4 | static_cast<uint32_t>(digit);
    }
    return true;
}

/// n rounded up to a multiple of `to`, a power of two; n is below 2^63.
constexpr uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) & ~(to - 1); }
/// n / by, rounded up. n + by may overflow: drivers report limits up to the end of the type.
template <class T>
constexpr T ceil_div(T n, T by) {
    return static_cast<T>(n / by + (n % by != 0));
}

/// Makes the next push_back() allocate nothing. Vectors that grow together all call it first: where one finds no
/// memory, none has grown.
template <class T>
void make_room(std::vector<T>& v) {
    if (v.size() == v.capacity()) v.reserve(v.empty() ? 8 : 2 * v.size());
}

/// One argument of say(): a text, a character or a number. An array of them is less code than a call for each.
class Part {
  public:
    Part(const char* v) : kind_(Kind::literal), text_(v) {}            // NOLINT: implicit on purpose
    Part(const std::string& v) : kind_(Kind::string), string_(&v) {}   // NOLINT
    Part(const std::string_view& v) : kind_(Kind::view), view_(&v) {}  // NOLINT
    Part(char v) : kind_(Kind::letter), letter_(v) {}                  // NOLINT
    Part(double v) : kind_(Kind::real), real_(v) {}                    // NOLINT
    template <class T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, char>, int> = 0>
    Part(T v)  // NOLINT
        : kind_(std::is_signed_v<T> ? Kind::integer : Kind::natural), integer_(static_cast<int64_t>(v)) {}
    void append_to(std::string& s) const;

  private:
    enum class Kind : uint8_t { literal, string, view, letter, real, integer, natural } kind_;
    union {
        const char* text_;
        const std::string* string_;
        const std::string_view* view_;
        char letter_;
        double real_;
        int64_t integer_;
    };
};
std::string say_parts(const Part* parts, size_t n);
/// Concatenates its arguments: say("found ", n, ", expected ", m). Inlined, like fail(): hardly a list of types comes
/// twice, and a function for each is more code than the list.
template <class... A>
AUSPEX_INLINE std::string say(const A&... parts) {
    const Part list[] = {parts...};
    return say_parts(list, sizeof...(parts));
}
/// A number that snprintf printed, with a point for the decimal sign of the process's locale, which may be several
/// bytes.
std::string with_point(std::string_view number);
/// What snprintf prints with `format`, which takes a precision and a double ("%.*e"), with a point in every locale.
std::string print_real(const char* format, int precision, double value);
/// Text that came from a file, for a message: in single quotes, control and non-ASCII bytes as \xNN, cut after
/// `max_bytes`. Every name or value that a file chooses goes through here, so that no message can carry a terminal
/// escape or a line break.
std::string quote(std::string_view text, size_t max_bytes = 80);

/// Sorts numbers, mostly indices, by any rule: one function for lists that are sorted once, because each std::sort with
/// a rule of its own is up to 4 KB of code.
void sort_indices(std::vector<uint32_t>& list, const std::function<bool(uint32_t, uint32_t)>& less);
/// 0 .. n-1 in the order of `less`.
std::vector<uint32_t> sorted_indices(size_t n, const std::function<bool(uint32_t, uint32_t)>& less);

Status fail_parts(Code code, const Part* parts, size_t n);
template <class... A>
AUSPEX_INLINE Status fail(Code code, const A&... parts) {
    const Part list[] = {parts...};
    return fail_parts(code, list, sizeof...(parts));
}

/// Reads a T from any address, aligned or not.
template <class T>
T load(const void* p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

/// Returns from the enclosing function when `expr` is a Status that is not ok.
#define AUSPEX_TRY(expr)                \
    do {                                \
        ::auspex::Status try_ = (expr); \
        if (!try_.ok()) return try_;    \
    } while (false)

/// Owns one zeroed block from the caller's Allocator.
class Block {
  public:
    Block() = default;
    ~Block() { reset(); }
    Block(Block&& o) noexcept { *this = std::move(o); }
    Block& operator=(Block&& o) noexcept;
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    /// Frees the old block and allocates `bytes` bytes, aligned to 64; `what` names them in the error. zeroed: false
    /// for memory that is written before it is read, so that the system need not back it until then.
    Status take(const Allocator& from, uint64_t bytes, const char* what, bool zeroed = true);
    void reset();
    std::byte* data() const { return data_; }
    size_t size() const { return size_; }
    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }

  private:
    Allocator from_;
    std::byte* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
