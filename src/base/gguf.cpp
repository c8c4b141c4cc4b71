// Reading and checking a GGUF file, and joining shards.
#include "gguf.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace gguf_impl {

// Limits. Every count is checked against the bytes that are left first, so that no allocation exceeds a small multiple
// of the file; real files stay far below these limits.
constexpr uint64_t kMaxKeys = 1u << 16;
constexpr uint64_t kMaxTensors = 1u << 20;
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxStringBytes = 64u << 20;  // far above any chat template
constexpr uint64_t kMaxElementBytes = 1u << 20;  // a string of an array: a token or a merge
constexpr uint64_t kMaxArray = 1u << 30;
constexpr uint64_t kMaxNameBytes = 63;
constexpr uint64_t kMinKeyEntry = 14;     // length 8, one byte of key, type 4, one byte of value
constexpr uint64_t kMinTensorEntry = 24;  // length 8, n_dims 4, type 4, offset 8
constexpr uint64_t kHeaderBytes = 24;
constexpr uint64_t kInt63 = INT64_MAX;
constexpr uint32_t kDefaultAlignment = 32;

constexpr char kAgain[] = ". The file is damaged or incomplete: download or convert it again.";

/// "a, b, c" for messages about shapes.
inline std::string joined(const uint64_t* v, uint32_t n) {
    std::string s;
    for (uint32_t i = 0; i < n; ++i) s += (i ? ", " : "") + std::to_string(v[i]);
    return s;
}

/// Reads the bytes in order. skip() has the only bounds check; it compares with the bytes left, because position plus
/// length could overflow. Keeps the first error.
class Reader {
  public:
    explicit Reader(Span<const std::byte> file) : p_(file.data()), left_(file.size()), size_(file.size()) {}

    uint64_t left() const { return left_; }
    uint64_t position() const { return size_ - left_; }
    const std::byte* here() const { return p_; }
    Status take_status() { return std::move(status_); }

    /// Says what is being read, for error texts: ("the value of key", key).
    void at(const char* part, std::string_view name = {}) {
        part_ = part;
        name_ = name;
    }
    std::string where() const { return name_.empty() ? std::string(part_) : say(part_, " ", quote(name_)); }

    bool skip(uint64_t n) {
        if (n > left_) {
            status_ = fail(Code::bad_file, "the file ends inside ", where(), ": at byte ", position(), " expected ", n,
                           " more bytes, found ", left_, kAgain);
            return false;
        }
        p_ += static_cast<size_t>(n);  // n <= left_, which came from a size_t
        left_ -= n;
        return true;
    }
    template <class T>
    bool read(T* out) {
        const std::byte* from = p_;
        if (!skip(sizeof(T))) return false;
        *out = load<T>(from);
        return true;
    }
    bool read_string(std::string_view* out, uint64_t cap) {
        uint64_t n = 0;
        if (!read(&n)) return false;
        if (n > cap || n > left_) {
            status_ =
                fail(Code::bad_file, where(), ": a string of ", n, " bytes at byte ", position(), ", expected at most ",
                     std::min(cap, left_), left_ < cap ? " (the rest of the file)" : " (the limit here)", kAgain);
            return false;
        }
        const char* text = reinterpret_cast<const char*>(p_);
        *out = std::string_view(text, static_cast<size_t>(n));
        return skip(n);
    }
    template <class... A>
    AUSPEX_INLINE bool refuse(Code code, const A&... parts) {
        status_ = fail(code, parts...);
        return false;
    }

  private:
    const std::byte* p_;
    uint64_t left_, size_;
    const char* part_ = "the header";
    std::string_view name_;
    Status status_;
};

/// A hint what a file that is not GGUF may be.
inline const char* other_format(std::string_view magic) {
    if (magic == "vers") return "This looks like a Git LFS pointer: fetch the real file with 'git lfs pull'.";
    if (magic.substr(0, 1) == "<") return "This looks like a web page: use the download link, not the page.";
    if (magic.substr(0, 2) == "PK") return "This looks like a PyTorch or zip archive: convert it to GGUF.";
    if (magic == "ggml" || magic == "tjgg" || magic == "fmgg" || magic == "lmgg")
        return "This looks like a model from before GGUF: convert the original model again.";
    return "Give a .gguf file; other formats must be converted first.";
}

inline bool read_header(Reader& r, uint32_t* version, uint64_t* n_tensor, uint64_t* n_meta) {
    if (r.left() < kHeaderBytes)
        return r.refuse(Code::bad_file, "the file has ", r.left(), " bytes, expected at least the ", kHeaderBytes,
                        " bytes of a GGUF header", kAgain);
    const std::string_view magic(reinterpret_cast<const char*>(r.here()), 4);
    if (magic != "GGUF")
        return r.refuse(Code::bad_file, "the file begins with ", quote(magic), ", expected 'GGUF'. ",
                        other_format(magic));
    r.skip(4);
    if (!r.read(version) || !r.read(n_tensor) || !r.read(n_meta)) return false;
    const uint32_t v = *version;
    if (v != 0 && (v & 0xffffu) == 0)
        return r.refuse(Code::unsupported, "the file is big-endian (its version reads as ", v,
                        "), expected little-endian. Convert the model for little-endian machines.");
    if (v == 1)
        return r.refuse(
            Code::unsupported,
            "the file is GGUF version 1, which is obsolete, expected version 2 or 3. Convert the model again.");
    if (v != 2 && v != 3)
        return r.refuse(Code::unsupported, "the file is GGUF version ", v,
                        ", expected version 2 or 3. Update this library or convert for version 3.");
    if (*n_meta > kMaxKeys || *n_meta > r.left() / kMinKeyEntry)
        return r.refuse(Code::bad_file, "the header announces ", *n_meta, " metadata keys, expected at most ",
                        std::min(kMaxKeys, r.left() / kMinKeyEntry), " (the limit is ", kMaxKeys, ", and ", r.left(),
                        " bytes follow)", kAgain);
    if (*n_tensor > kMaxTensors || *n_tensor > r.left() / kMinTensorEntry)
        return r.refuse(Code::bad_file, "the header announces ", *n_tensor, " tensors, expected at most ",
                        std::min(kMaxTensors, r.left() / kMinTensorEntry), " (the limit is ", kMaxTensors, ", and ",
                        r.left(), " bytes follow)", kAgain);
    return true;
}

/// True when all of the n one-byte values are 0 or 1.
inline bool check_booleans(Reader& r, const Meta& m, const std::byte* p, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i)
        if (static_cast<unsigned>(p[i]) > 1)
            return r.refuse(Code::bad_file, "key ", quote(m.key), ": boolean ", i, " is ", static_cast<unsigned>(p[i]),
                            ", expected 0 or 1", kAgain);
    return true;
}

inline bool read_array(Reader& r, Meta& m) {
    uint32_t type_id = 0;
    if (!r.read(&type_id) || !r.read(&m.n)) return false;
    m.is_array = true;
    if (type_id == static_cast<uint32_t>(MetaType::array))
        return r.refuse(Code::unsupported, "key ", quote(m.key),
                        " holds an array of arrays, expected elements that are numbers, booleans or strings. Convert "
                        "again without this key.");
    m.type = static_cast<MetaType>(type_id);
    const bool is_string = m.type == MetaType::string;
    const uint64_t size = is_string ? 8 : value_bytes(m.type);  // a string costs at least its length
    if (size == 0)
        return r.refuse(Code::bad_file, "key ", quote(m.key), ": array elements of type id ", type_id,
                        ", expected 0 to 12", kAgain);
    if (m.n > kMaxArray || m.n > r.left() / size)
        return r.refuse(Code::bad_file, "key ", quote(m.key), ": an array of ", m.n, " elements, expected at most ",
                        std::min(kMaxArray, r.left() / size), " (", r.left(), " bytes follow)", kAgain);
    m.data = r.here();
    if (!is_string) return r.skip(m.n * size) && (m.type != MetaType::boolean || check_booleans(r, m, m.data, m.n));
    m.strings.reserve(static_cast<size_t>(m.n));  // at most two bytes per byte of file
    for (uint64_t i = 0; i < m.n; ++i) {
        std::string_view s;
        if (!r.read_string(&s, kMaxElementBytes)) return false;
        m.strings.push_back(s);
    }
    return true;
}

AUSPEX_SMALL_CODE_BEGIN

inline bool read_meta(Reader& r, Meta& m) {
    r.at("a metadata key");
    if (!r.read_string(&m.key, kMaxKeyBytes)) return false;
    const bool clean = std::all_of(m.key.begin(), m.key.end(), [](char c) { return c > 0x20 && c < 0x7f; });
    if (m.key.empty() || !clean)
        return r.refuse(Code::bad_file, "metadata key ", quote(m.key), " before byte ", r.position(),
                        ", expected at least one character, and only printable ASCII", kAgain);
    r.at("the value of key", m.key);
    uint32_t type_id = 0;
    if (!r.read(&type_id)) return false;
    if (type_id == static_cast<uint32_t>(MetaType::array)) return read_array(r, m);
    if (type_id == static_cast<uint32_t>(MetaType::string)) {
        m.type = MetaType::string;
        m.data = r.here();
        m.strings.resize(1);
        return r.read_string(&m.strings[0], kMaxStringBytes);
    }
    m.type = static_cast<MetaType>(type_id);
    const uint64_t size = value_bytes(m.type);
    if (size == 0)
        return r.refuse(Code::bad_file, "key ", quote(m.key), ": value of type id ", type_id, ", expected 0 to 12",
                        kAgain);
    m.data = r.here();
    return r.skip(size) && (m.type != MetaType::boolean || check_booleans(r, m, m.data, 1));
}

inline Status bad_type(std::string_view tensor, uint32_t type_id) {
    const TypeInfo info = type_info(type_id);
    const std::string can = say(". Supported are: ", supported_types(), ". Take a file in one of these types.");
    if (info.name)
        return fail(Code::unsupported, "tensor ", quote(tensor), " is of type ", info.name, " (id ", type_id,
                    "), which this library cannot compute with", can);
    const bool removed =
        type_id == 4 || type_id == 5 || (type_id >= 31 && type_id <= 33) || (type_id >= 36 && type_id <= 38);
    const bool fork = type_id >= 97 && type_id < 400;
    return fail(Code::unsupported, "tensor ", quote(tensor), " is of type id ", type_id,
                removed ? ", which was removed from the format"
                : fork  ? ", which belongs to a fork of the format"
                        : ", which is not a known type",
                can);
}

/// One entry of the tensor table; file_offset is relative to the data section until place_tensors().
inline bool read_tensor(Reader& r, Tensor& t) {
    r.at("a tensor name");
    if (!r.read_string(&t.name, kMaxNameBytes)) return false;
    if (t.name.empty() || t.name.find('\0') != std::string_view::npos)
        return r.refuse(Code::bad_file, "tensor name ", quote(t.name), " before byte ", r.position(),
                        ", expected 1 to ", kMaxNameBytes, " bytes, none of them zero", kAgain);
    r.at("the entry of tensor", t.name);
    if (!r.read(&t.n_dim)) return false;
    if (t.n_dim < 1 || t.n_dim > 4)
        return r.refuse(Code::bad_file, "tensor ", quote(t.name), " has ", t.n_dim, " dimensions, expected 1 to 4",
                        kAgain);
    uint64_t count = 1;
    for (uint32_t i = 0; i < t.n_dim; ++i)
        if (!r.read(&t.ne[i])) return false;
    for (uint32_t i = 0; i < t.n_dim; ++i) {
        if (t.ne[i] == 0 || count > kInt63 / t.ne[i])
            return r.refuse(Code::bad_file, "tensor ", quote(t.name), " is [", joined(t.ne, t.n_dim),
                            "], expected no zero and less than 2^63 elements", kAgain);
        count *= t.ne[i];
    }
    uint32_t type_id = 0;
    if (!r.read(&type_id) || !r.read(&t.file_offset)) return false;
    const TypeInfo info = type_info(type_id);
    if (!info.name || !info.supported) {
        const Status s = bad_type(t.name, type_id);
        return r.refuse(s.code, s.text);
    }
    t.type = static_cast<Type>(type_id);
    if (t.ne[0] % info.n_block != 0)
        return r.refuse(Code::bad_file, "tensor ", quote(t.name), " of type ", info.name, " has rows of ", t.ne[0],
                        " elements, expected a multiple of ", info.n_block, kAgain);
    if (!mul_fits(count / info.n_block, info.block_bytes, &t.bytes) || t.bytes > kInt63)
        return r.refuse(Code::bad_file, "tensor ", quote(t.name), " [", joined(t.ne, t.n_dim), "] of type ", info.name,
                        ", expected less than 2^63 bytes", kAgain);
    return true;
}

/// Computes where the tensors are. They must follow each other in table order, each at the next aligned byte, inside
/// the file: no gaps, no overlaps. All common writers do that.
inline bool place_tensors(Reader& r, Span<const std::byte> file, uint32_t alignment, std::vector<Tensor>& tensors) {
    if (tensors.empty()) return true;  // a vocabulary may end right after the metadata
    const uint64_t size = file.size(), base = round_up(r.position(), alignment);
    uint64_t expected = 0;
    for (Tensor& t : tensors) {
        const uint64_t offset = t.file_offset;
        if (offset % alignment != 0)
            return r.refuse(Code::bad_file, "tensor ", quote(t.name), " has offset ", offset,
                            ", expected a multiple of ", alignment, " (general.alignment)", kAgain);
        if (base > size || t.bytes > size - base || offset > size - base - t.bytes)
            return r.refuse(Code::bad_file, "tensor ", quote(t.name), " needs ", t.bytes, " bytes at ", base, " + ",
                            offset, ", but the file has only ", size,
                            " bytes. The download was cut short or the file is damaged: get it again.");
        if (offset != expected)
            return r.refuse(Code::bad_file, "tensor ", quote(t.name), " has offset ", offset, ", expected ", expected,
                            ": tensors follow each other in table order without gaps. Convert the model again.");
        expected = offset + round_up(t.bytes, alignment);  // both below the file's size
        t.file_offset = base + offset;
        t.data = file.data() + static_cast<size_t>(t.file_offset);
    }
    return true;
}

inline std::string_view name_of(const Meta& m) { return m.key; }
inline std::string_view name_of(const Tensor& t) { return t.name; }

/// Indices of names in their order, equal ones as they come; `twice` receives the index of a name that came before, or
/// SIZE_MAX.
std::vector<uint32_t> sorted_names(const std::vector<std::string_view>& names, size_t* twice) {
    std::vector<uint32_t> order = sorted_indices(names.size(), [&](uint32_t a, uint32_t b) {
        const int differs = names[a].compare(names[b]);
        return differs != 0 ? differs < 0 : a < b;
    });
    *twice = SIZE_MAX;
    for (size_t i = 1; i < order.size(); ++i)
        if (names[order[i - 1]] == names[order[i]]) *twice = order[i];
    return order;
}

/// Indices of `items` sorted by name; `twice` receives an item whose name another one has, or null.
template <class Item>
std::vector<uint32_t> sorted_by_name(const std::vector<Item>& items, const Item** twice) {
    std::vector<std::string_view> names;
    names.reserve(items.size());
    for (const Item& item : items) names.push_back(name_of(item));
    size_t i_twice = 0;
    std::vector<uint32_t> order = sorted_names(names, &i_twice);
    *twice = i_twice < items.size() ? &items[i_twice] : nullptr;
    return order;
}

template <class Item>
const Item* look_up(const std::vector<Item>& items, const std::vector<uint32_t>& order, std::string_view name) {
    const auto at = std::lower_bound(order.begin(), order.end(), name,
                                     [&](uint32_t i, std::string_view n) { return name_of(items[i]) < n; });
    return at != order.end() && name_of(items[*at]) == name ? &items[*at] : nullptr;
}

}  // namespace gguf_impl

Result<Gguf> Gguf::parse(Span<const std::byte> file) {
    namespace impl = gguf_impl;
    impl::Reader r(file);
    Gguf g;
    uint64_t n_tensor = 0, n_meta = 0;
    g.file_bytes_ = file.size();
    if (!impl::read_header(r, &g.version_, &n_tensor, &n_meta)) return r.take_status();

    g.meta_.resize(static_cast<size_t>(n_meta));
    for (Meta& m : g.meta_)
        if (!impl::read_meta(r, m)) return r.take_status();
    const Meta* key_twice = nullptr;
    g.meta_order_ = impl::sorted_by_name(g.meta_, &key_twice);
    if (key_twice)
        return fail(Code::bad_file, "metadata key ", quote(key_twice->key),
                    " appears more than once, expected unique keys", impl::kAgain);

    uint32_t alignment = impl::kDefaultAlignment;
    if (const Meta* m = g.find("general.alignment")) {
        if (m->is_array || m->type != MetaType::u32)
            return fail(Code::bad_file, "key 'general.alignment' is not a single u32, expected one", impl::kAgain);
        alignment = load<uint32_t>(m->data);
        if (alignment < 8 || alignment > 1u << 20 || (alignment & (alignment - 1)) != 0)
            return fail(Code::bad_file, "key 'general.alignment' is ", alignment,
                        ", expected a power of two from 8 to ", 1u << 20, impl::kAgain);
    }

    if (n_tensor > r.left() / impl::kMinTensorEntry)  // again, without the metadata's bytes
        return fail(Code::bad_file, "the header announces ", n_tensor, " tensors, expected at most ",
                    r.left() / impl::kMinTensorEntry, " in the ", r.left(), " bytes after the metadata", impl::kAgain);
    g.tensors_.resize(static_cast<size_t>(n_tensor));
    for (Tensor& t : g.tensors_)
        if (!impl::read_tensor(r, t)) return r.take_status();
    const Tensor* name_twice = nullptr;
    g.tensor_order_ = impl::sorted_by_name(g.tensors_, &name_twice);
    if (name_twice)
        return fail(Code::bad_file, "tensor ", quote(name_twice->name),
                    " appears more than once, expected unique names", impl::kAgain);
    if (!impl::place_tensors(r, file, alignment, g.tensors_)) return r.take_status();
    return g;
}

Result<Gguf> Gguf::join(std::vector<Gguf> shards, const std::vector<std::string>& names) {
    namespace impl = gguf_impl;
    const auto shard = [&](uint64_t i) {
        return say("shard ", i + 1, i < names.size() ? " ('" + names[static_cast<size_t>(i)] + "')" : std::string());
    };
    const auto of_shard = [&](uint64_t i, const Status& s) {  // an ordinary file needs no number
        return shards.size() == 1 ? s : fail(s.code, shard(i), ": ", s.text);
    };
    constexpr char kTogether[] = " Give all shards of one model, in order, from the same download.";
    if (shards.empty()) return fail(Code::bad_argument, "no shards were given, expected at least one");
    for (uint32_t i = 0; i < shards.size(); ++i) {
        const Gguf& s = shards[i];
        uint32_t count = 0, no = 0;
        Status status = s.get_u32("split.count", 1).get(count);
        if (status.ok()) status = s.get_u32("split.no", 0).get(no);
        if (!status.ok()) return of_shard(i, status);
        if (count == 0 && shards.size() == 1) count = 1;  // tools that merge shards leave 0
        if (count != shards.size())
            return fail(Code::bad_file, shard(i), " says the model has ", count, " shards, but ", shards.size(),
                        " were given.", kTogether);
        if (no != i) return fail(Code::bad_file, shard(i), " says it is shard ", uint64_t{no} + 1, ".", kTogether);
        const Meta *arch = s.find("general.architecture"), *first = shards[0].find("general.architecture");
        const bool named = arch && first && !arch->strings.empty() && !first->strings.empty();
        if (named && arch->strings[0] != first->strings[0])
            return fail(Code::bad_file, shard(i), " is of architecture ", quote(arch->strings[0]), ", shard 1 of ",
                        quote(first->strings[0]), ".", kTogether);
    }

    uint64_t found = 0;
    for (const Gguf& s : shards) found += s.tensors_.size();
    for (uint32_t i = 0; i < shards.size(); ++i) {
        if (shards.size() == 1 && !shards[i].find("split.tensors.count")) break;  // an ordinary unsplit file
        uint32_t announced = 0;
        const Status status = shards[i].get_u32("split.tensors.count").get(announced);
        if (!status.ok()) return of_shard(i, status);
        if (announced != found)
            return fail(Code::bad_file, shard(i), " says the model has ", announced, " tensors, the shards hold ",
                        found, ".", kTogether);
    }

    Gguf g = std::move(shards[0]);
    g.tensors_.reserve(static_cast<size_t>(found));
    for (uint32_t i = 1; i < shards.size(); ++i) {
        for (Tensor& t : shards[i].tensors_) {
            t.shard = i;
            g.tensors_.push_back(t);
        }
        g.file_bytes_ += shards[i].file_bytes_;
    }
    const Tensor* twice = nullptr;
    g.tensor_order_ = impl::sorted_by_name(g.tensors_, &twice);
    if (twice)
        return fail(Code::bad_file, "tensor ", quote(twice->name), " of ", shard(twice->shard),
                    " is in an earlier shard, too.", kTogether);
    return g;
}

Result<Gguf> Gguf::gather(std::vector<Meta> meta, std::vector<Tensor> tensors, uint64_t file_bytes) {
    namespace impl = gguf_impl;
    Gguf g;
    g.version_ = 3;
    g.file_bytes_ = file_bytes;
    g.meta_ = std::move(meta);
    g.tensors_ = std::move(tensors);
    const Meta* key_twice = nullptr;
    const Tensor* name_twice = nullptr;
    g.meta_order_ = impl::sorted_by_name(g.meta_, &key_twice);
    g.tensor_order_ = impl::sorted_by_name(g.tensors_, &name_twice);
    if (key_twice) return fail(Code::bad_file, "metadata key ", quote(key_twice->key), " appears more than once");
    if (name_twice) return fail(Code::bad_file, "tensor ", quote(name_twice->name), " appears more than once");
    return g;
}

const Meta* Gguf::find(std::string_view key) const { return gguf_impl::look_up(meta_, meta_order_, key); }
const Tensor* Gguf::tensor(std::string_view name) const { return gguf_impl::look_up(tensors_, tensor_order_, name); }

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
