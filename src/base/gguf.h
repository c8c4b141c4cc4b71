// base/gguf: bytes become a tensor table and metadata; opens no file.
//
// Owns    the container: header, metadata, tensor table, every check of them; and a small writer.
// Reads   number (type sizes).
// Serves  plan (metadata to hyperparameters), weights, token, chat, tools.
// Thread  a parsed Gguf is immutable.
// Laws    HotPath: a bad file yields a Status (tests/test_gguf.cpp, tests/fuzz_gguf.cpp).
#pragma once
#include "number.h"

namespace auspex {
namespace detail {

enum class MetaType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

/// One metadata value: a view into the file's bytes, checked once.
struct Meta {
    std::string_view key;
    MetaType type = MetaType::u8;  ///< of the value, or of the elements of an array
    bool is_array = false;
    uint64_t n = 1;                   ///< elements; 1 for a scalar
    const std::byte* data = nullptr;  ///< first element, unaligned
    /// Strings of an array (or the one string of a scalar), views into the file.
    std::vector<std::string_view> strings;

    /// Of an integer type (of any width and sign; not boolean).
    bool is_integer() const;
    /// Element i as an integer, of any integer or boolean type; false when of another type, when i is
    /// past the end, or when the value is over 2^63-1.
    bool get_int(uint64_t i, int64_t* out) const;
    /// Element i as a number, of any integer or float type; false when of another type or past the end.
    bool get_float(uint64_t i, double* out) const;
};

struct Tensor {
    std::string_view name;
    Type type = Type::f32;  ///< always a supported one when the file was accepted
    uint32_t n_dim = 0;
    uint64_t ne[4] = {1, 1, 1, 1};  ///< ne[0] is contiguous, as in the file
    uint64_t bytes = 0;
    const std::byte* data = nullptr;  ///< in the mapped or borrowed file bytes
    uint32_t shard = 0;
    uint64_t file_offset = 0;  ///< in that shard's file
};

/// A whole model: one file, or all shards of a split one.
class Gguf {
  public:
    /// Parses and checks one file: every rule of the format (docs of each in gguf.cpp), and that the
    /// type of every tensor is supported. `file` must outlive the Gguf, which points into it. A file
    /// without tensors (a vocabulary, or shard 0 of a split model) is accepted.
    ///
    /// errors    bad_file: damaged, truncated or against the format; unsupported: version 1, big-endian,
    ///           or a tensor type this library cannot compute with (named, with the list of those it can).
    /// cost      one pass over the metadata; no tensor data is touched, no string is copied.
    static Result<Gguf> parse(Span<const std::byte> file);
    /// Joins the parsed shards 0..n-1 of a split model after checking that they belong together; the
    /// metadata is that of shard 0. One unsplit file is a model of one shard and passes through, so a
    /// loader always joins: a lone shard of a larger model is refused here.
    ///
    /// errors    bad_file: wrong order or number of shards, shards of different models, a tensor count
    ///           that differs from the announced one, a tensor name that appears twice.
    static Result<Gguf> join(std::vector<Gguf> shards);
    /// A table of what was taken out of others; `file_bytes` of all files behind it. errors: bad_file: a name stands
    /// there twice.
    static Result<Gguf> gather(std::vector<Meta> meta, std::vector<Tensor> tensors, uint64_t file_bytes);

    const std::vector<Meta>& meta() const { return meta_; }
    const std::vector<Tensor>& tensors() const { return tensors_; }
    uint64_t file_bytes() const { return file_bytes_; }  ///< of all shards together
    uint32_t version() const { return version_; }

    /// Null when there is none. cost: a binary search.
    const Meta* find(std::string_view key) const;
    const Tensor* tensor(std::string_view name) const;

    /// Typed getters. With a default, an absent key gives it; without, it is bad_file. A key of the wrong
    /// type or out of range is always bad_file; the text names the key, what it holds and what was
    /// expected. Integers of any width (and booleans, as 0 and 1) serve get_u32; integers and floats
    /// serve get_f32, which accepts finite values only.
    Result<std::string> get_string(std::string_view key, const char* if_missing = nullptr) const;
    Result<uint32_t> get_u32(std::string_view key) const;
    Result<uint32_t> get_u32(std::string_view key, uint32_t if_missing) const;
    Result<float> get_f32(std::string_view key) const;
    Result<float> get_f32(std::string_view key, float if_missing) const;
    Result<bool> get_bool(std::string_view key, bool if_missing) const;
    /// A scalar or an array of exactly n elements; a scalar is repeated. An absent key gives n times
    /// *if_missing, unless that is null.
    Result<std::vector<uint32_t>> get_u32s(std::string_view key, uint32_t n,
                                           const uint32_t* if_missing = nullptr) const;
    Result<std::vector<float>> get_f32s(std::string_view key, uint32_t n, const float* if_missing = nullptr) const;

  private:
    uint32_t version_ = 0;
    uint64_t file_bytes_ = 0;
    std::vector<Meta> meta_;
    std::vector<Tensor> tensors_;
    // Indices sorted by name: unlike a hash table, no choice of names makes them slow.
    std::vector<uint32_t> meta_order_, tensor_order_;
};

/// Builds a GGUF v3 file in memory: metadata in the order given, tensors without gaps. For tools and
/// tests: what it is given is asserted, not diagnosed.
class GgufWriter {
  public:
    void add(std::string_view key, std::string_view value);
    void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
    void add(std::string_view key, uint32_t value);
    void add(std::string_view key, int32_t value);
    void add(std::string_view key, float value);
    void add(std::string_view key, bool value);
    void add(std::string_view key, uint16_t value);
    void add(std::string_view key, const std::vector<std::string>& values);
    void add(std::string_view key, const std::vector<int32_t>& values);
    void add(std::string_view key, const std::vector<uint32_t>& values);
    void add(std::string_view key, const std::vector<float>& values);
    void add(std::string_view key, const std::vector<bool>& values);
    /// Any type at all, also one that no reader should accept; `bytes` as in the file, with the string
    /// lengths of strings. n < 0 means a scalar, otherwise an array of n elements of that type.
    void add_raw(std::string_view key, uint32_t type, int64_t n, std::string_view bytes);
    /// `ne` as in the file: ne[0] contiguous. `bytes` are copied and must have the size the shape needs.
    void tensor(std::string_view name, Type type, const std::vector<uint64_t>& ne, Span<const std::byte> bytes);
    /// Encodes `values` as `type` and adds them.
    /// A key general.alignment (uint32) must come before the first tensor; without it, 32.
    void tensor(std::string_view name, Type type, const std::vector<uint64_t>& ne, Span<const float> values);
    std::vector<std::byte> finish() const;

  private:
    struct Info {
        std::string name;
        Type type;
        std::vector<uint64_t> ne;
        uint64_t offset;
    };
    std::string meta_;
    uint64_t n_meta_ = 0;
    uint32_t alignment_ = 32;
    std::vector<Info> infos_;
    std::string data_;
};

}  // namespace detail
}  // namespace auspex
