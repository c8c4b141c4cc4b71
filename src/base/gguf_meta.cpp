// Typed metadata values, and the error texts for a wrong type or value.
#include "gguf.h"

#include <cmath>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace gguf_meta_impl {

constexpr const char* kTypeNames[] = {"u8",      "i8",     "u16",   "i16", "u32", "i32", "f32",
                                      "boolean", "string", "array", "u64", "i64", "f64"};

/// What the file holds: "an array of 3 i32", "the u32 17", "a string".
inline std::string described(const Meta& m) {
    const char* type = kTypeNames[static_cast<uint32_t>(m.type)];
    if (m.is_array) return say("an array of ", m.n, " ", type);
    if (m.type == MetaType::string) return "a string";
    if (m.type == MetaType::boolean) return load<uint8_t>(m.data) ? "the boolean true" : "the boolean false";
    int64_t i = 0;
    if (m.get_int(0, &i)) return say("the ", type, " ", i);
    double f = 0;
    return m.get_float(0, &f) ? say("the ", type, " ", f) : say("a ", type);
}

/// Element i, for an error text.
inline std::string element(const Meta& m, uint64_t i) {
    if (!m.is_array) return described(m);
    double f = 0;
    const char* type = kTypeNames[static_cast<uint32_t>(m.type)];
    return m.get_float(i, &f) ? say("the ", type, " ", f, " as element ", i) : say("an array of ", m.n, " ", type);
}

inline Status missing(std::string_view key, const char* expected) {
    return fail(Code::bad_file, "the file has no key ", quote(key), ", expected ", expected,
                ". It is not a complete model: convert it again with a current converter.");
}
inline Status wrong(std::string_view key, std::string_view found, std::string_view expected) {
    return fail(Code::bad_file, "key ", quote(key), " is ", found, ", expected ", expected,
                ". Convert the model again with a current converter.");
}

constexpr char kU32[] = "an integer from 0 to 4294967295";
constexpr char kF32[] = "a finite number that fits float32";

inline bool as_u32(const Meta& m, uint64_t i, uint32_t* out) {
    int64_t v = 0;
    if (!m.get_int(i, &v) || v < 0 || v > static_cast<int64_t>(UINT32_MAX)) return false;
    *out = static_cast<uint32_t>(v);
    return true;
}
inline bool as_f32(const Meta& m, uint64_t i, float* out) {
    double v = 0;
    if (!m.get_float(i, &v) || !(std::fabs(v) <= 3.4028234663852886e38)) return false;
    *out = static_cast<float>(v);
    return true;
}

template <class T>
Result<T> one(const Gguf& g, std::string_view key, const T* if_missing, bool (*as)(const Meta&, uint64_t, T*),
              const char* expected) {
    const Meta* m = g.find(key);
    if (!m && if_missing) return *if_missing;
    if (!m) return missing(key, expected);
    T v{};
    if (m->is_array || !as(*m, 0, &v)) return wrong(key, described(*m), expected);
    return v;
}

template <class T>
Result<std::vector<T>> many(const Gguf& g, std::string_view key, uint32_t n, const T* if_missing,
                            bool (*as)(const Meta&, uint64_t, T*), const char* expected) {
    const Meta* m = g.find(key);
    if (!m && if_missing) return std::vector<T>(n, *if_missing);
    const auto wanted = [&] { return say(expected, ", or an array of ", n, " of them"); };
    if (!m) return missing(key, wanted().c_str());
    if (m->is_array && m->n != n) return wrong(key, described(*m), wanted());
    std::vector<T> v(n);
    for (uint32_t i = 0; i < n; ++i)
        if (!as(*m, m->is_array ? i : 0, &v[i])) return wrong(key, element(*m, i), wanted());
    return v;
}

}  // namespace gguf_meta_impl

uint32_t value_bytes(MetaType type) {
    switch (type) {
        case MetaType::u8:
        case MetaType::i8:
        case MetaType::boolean: return 1;
        case MetaType::u16:
        case MetaType::i16: return 2;
        case MetaType::u32:
        case MetaType::i32:
        case MetaType::f32: return 4;
        case MetaType::u64:
        case MetaType::i64:
        case MetaType::f64: return 8;
        case MetaType::string:
        case MetaType::array: break;
    }
    return 0;
}

bool Meta::is_integer() const {
    return type != MetaType::boolean && type != MetaType::string && type != MetaType::array && type != MetaType::f32 &&
           type != MetaType::f64;
}

bool Meta::get_int(uint64_t i, int64_t* out) const {
    if (i >= n) return false;
    const std::byte* p = data + static_cast<size_t>(i) * value_bytes(type);
    switch (type) {
        case MetaType::u8:
        case MetaType::boolean: *out = load<uint8_t>(p); return true;
        case MetaType::i8: *out = load<int8_t>(p); return true;
        case MetaType::u16: *out = load<uint16_t>(p); return true;
        case MetaType::i16: *out = load<int16_t>(p); return true;
        case MetaType::u32: *out = load<uint32_t>(p); return true;
        case MetaType::i32: *out = load<int32_t>(p); return true;
        case MetaType::i64: *out = load<int64_t>(p); return true;
        case MetaType::u64: {
            const uint64_t v = load<uint64_t>(p);
            if (v > static_cast<uint64_t>(INT64_MAX)) return false;
            *out = static_cast<int64_t>(v);
            return true;
        }
        case MetaType::f32:
        case MetaType::f64:
        case MetaType::string:
        case MetaType::array: break;
    }
    return false;
}

bool Meta::get_float(uint64_t i, double* out) const {
    if (i >= n) return false;
    const std::byte* p = data + static_cast<size_t>(i) * value_bytes(type);
    int64_t v = 0;
    if (type == MetaType::f32) {
        *out = static_cast<double>(load<float>(p));
    } else if (type == MetaType::f64) {
        *out = load<double>(p);
    } else if (type == MetaType::u64) {
        *out = static_cast<double>(load<uint64_t>(p));
    } else if (is_integer() && get_int(i, &v)) {
        *out = static_cast<double>(v);
    } else {
        return false;
    }
    return true;
}

Result<std::string> Gguf::get_string(std::string_view key, const char* if_missing) const {
    namespace impl = gguf_meta_impl;
    const Meta* m = find(key);
    if (!m && if_missing) return std::string(if_missing);
    if (!m) return impl::missing(key, "a string");
    if (m->is_array || m->type != MetaType::string) return impl::wrong(key, impl::described(*m), "a string");
    return std::string(m->strings[0]);
}

Result<uint32_t> Gguf::get_u32(std::string_view key) const {
    return gguf_meta_impl::one<uint32_t>(*this, key, nullptr, gguf_meta_impl::as_u32, gguf_meta_impl::kU32);
}
Result<uint32_t> Gguf::get_u32(std::string_view key, uint32_t if_missing) const {
    return gguf_meta_impl::one<uint32_t>(*this, key, &if_missing, gguf_meta_impl::as_u32, gguf_meta_impl::kU32);
}
Result<float> Gguf::get_f32(std::string_view key) const {
    return gguf_meta_impl::one<float>(*this, key, nullptr, gguf_meta_impl::as_f32, gguf_meta_impl::kF32);
}
Result<float> Gguf::get_f32(std::string_view key, float if_missing) const {
    return gguf_meta_impl::one<float>(*this, key, &if_missing, gguf_meta_impl::as_f32, gguf_meta_impl::kF32);
}

Result<bool> Gguf::get_bool(std::string_view key, bool if_missing) const {
    namespace impl = gguf_meta_impl;
    const Meta* m = find(key);
    if (!m) return if_missing;
    if (m->is_array || m->type != MetaType::boolean) return impl::wrong(key, impl::described(*m), "a boolean");
    return load<uint8_t>(m->data) != 0;
}

Result<std::vector<uint32_t>> Gguf::get_u32s(std::string_view key, uint32_t n, const uint32_t* if_missing) const {
    return gguf_meta_impl::many<uint32_t>(*this, key, n, if_missing, gguf_meta_impl::as_u32, gguf_meta_impl::kU32);
}
Result<std::vector<float>> Gguf::get_f32s(std::string_view key, uint32_t n, const float* if_missing) const {
    return gguf_meta_impl::many<float>(*this, key, n, if_missing, gguf_meta_impl::as_f32, gguf_meta_impl::kF32);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
