#include "base.h"

#include "float_mode.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <new>
#include <numeric>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {

const char* code_name(Code code) {
    switch (code) {
        case Code::ok: return "ok";
        case Code::bad_argument: return "bad_argument";
        case Code::bad_file: return "bad_file";
        case Code::unsupported: return "unsupported";
        case Code::not_found: return "not_found";
        case Code::io_error: return "io_error";
        case Code::out_of_memory: return "out_of_memory";
        case Code::no_device: return "no_device";
        case Code::device_lost: return "device_lost";
        case Code::cancelled: return "cancelled";
        case Code::context_full: return "context_full";
    }
    return "unknown";
}

Status::Status(Code c, std::string t) noexcept : code(c), text(std::move(t)) {}
Status::Status(const Status&) = default;
Status::Status(Status&&) noexcept = default;
Status& Status::operator=(const Status&) = default;
Status& Status::operator=(Status&&) noexcept = default;
Status::~Status() = default;

namespace detail {

constexpr size_t kBlockAlignment = 64;  // a cache line, and the widest vector load

std::string with_point(std::string_view number) {
    std::string out;
    bool in_sign = false;
    for (const char c : number) {
        const bool kept =
            (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-' || c == '+' || c == '(' || c == ')';
        if (kept || !in_sign) out += kept ? c : '.';
        in_sign = !kept;
    }
    return out;
}

std::string print_real(const char* format, int precision, double value) {
    const DefaultFloatMode mode;
    char number[512];
    std::snprintf(number, sizeof number, format, precision, value);
    return with_point(number);
}

/// The fewest digits, at least 6, that read back as the value (as a float, if it is one): an error that refuses a value
/// just above a limit must not print the limit.
static std::string shortest(double value) {
    const DefaultFloatMode mode;
    const auto as_float = [](double v) { return std::fabs(v) <= FLT_MAX ? double{static_cast<float>(v)} : v; };
    const bool is_float = as_float(value) == value;
    char number[32];
    for (int digits = 6; digits <= 17; ++digits) {
        std::snprintf(number, sizeof number, "%.*g", digits, value);
        const double read = std::strtod(number, nullptr);
        if ((is_float ? as_float(read) : read) == value) break;
    }
    return with_point(number);
}

void Part::append_to(std::string& s) const {
    switch (kind_) {
        case Kind::literal: s += text_; break;
        case Kind::string: s += *string_; break;
        case Kind::view: s += *view_; break;
        case Kind::letter: s += letter_; break;
        case Kind::integer: s += std::to_string(integer_); break;
        case Kind::natural: s += std::to_string(static_cast<uint64_t>(integer_)); break;
        case Kind::real: s += shortest(real_);
    }
}

std::string say_parts(const Part* parts, size_t n) {
    std::string s;
    for (size_t i = 0; i < n; ++i) parts[i].append_to(s);
    return s;
}

Status fail_parts(Code code, const Part* parts, size_t n) { return Status(code, say_parts(parts, n)); }

std::string quote(std::string_view text, size_t max_bytes) {
    static constexpr char kHex[] = "0123456789abcdef";
    std::string out = "'";
    for (const char c : text.substr(0, max_bytes)) {
        const unsigned char u = static_cast<unsigned char>(c);
        if (u >= 0x20 && u < 0x7f) {
            out += c;
        } else {
            out += "\\x";
            out += kHex[u >> 4];
            out += kHex[u & 15];
        }
    }
    out += text.size() > max_bytes ? "...'" : "'";
    return out;
}

void sort_indices(std::vector<uint32_t>& list, const std::function<bool(uint32_t, uint32_t)>& less) {
    std::sort(list.begin(), list.end(), [&less](uint32_t a, uint32_t b) { return less(a, b); });
}

std::vector<uint32_t> sorted_indices(size_t n, const std::function<bool(uint32_t, uint32_t)>& less) {
    std::vector<uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0u);
    sort_indices(order, less);
    return order;
}

Block& Block::operator=(Block&& o) noexcept {
    if (this != &o) {
        reset();
        from_ = o.from_;
        data_ = std::exchange(o.data_, nullptr);
        size_ = std::exchange(o.size_, size_t{0});
    }
    return *this;
}

Status Block::take(const Allocator& from, uint64_t bytes, const char* what, bool zeroed) {
    reset();
    if (bytes == 0) return {};
    void* p = nullptr;
    if (bytes <= SIZE_MAX / 2) {
        const size_t n = static_cast<size_t>(bytes);
        p = from.alloc ? from.alloc(from.user, n, kBlockAlignment)
                       : ::operator new (n, std::align_val_t{kBlockAlignment}, std::nothrow);
    }
    if (!p) return fail(Code::out_of_memory, what, " needs ", bytes, " bytes and the allocator has none left");
    from_ = from;
    data_ = static_cast<std::byte*>(p);
    size_ = static_cast<size_t>(bytes);
    if (zeroed) std::memset(data_, 0, size_);
    return {};
}

void Block::reset() {
    if (!data_) return;
    if (from_.free)
        from_.free(from_.user, data_, size_, kBlockAlignment);
    else
        ::operator delete (data_, std::align_val_t{kBlockAlignment});
    data_ = nullptr;
    size_ = 0;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
