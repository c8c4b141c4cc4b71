// base/gguf: the GGUF container, from bytes to a tensor table and metadata. Opens no file.
//
// Owns    reading (gguf.cpp) with every check of the format, and typed metadata (gguf_meta.cpp).
// Thread  a parsed Gguf is immutable.
// Tests   tests/test_gguf.cpp, tests/fuzz_gguf.cpp: any bytes give a Gguf or a Status
#pragma once
#include "number.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

enum class MetaType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
/// Bytes of one value; 0 for strings, arrays and unknown types.
uint32_t value_bytes(MetaType type);

/// One metadata value: a checked view into the file's bytes.
struct Meta {
    std::string_view key;
    MetaType type = MetaType::u8;  ///< of the value, or of the elements of an array
    bool is_array = false;
    uint64_t n = 1;                   ///< elements; 1 for a scalar
    const std::byte* data = nullptr;  ///< first element, unaligned
    /// Strings of an array (or the one string of a scalar), views into the file.
    std::vector<std::string_view> strings;

    /// True for integers of any width and sign, not for booleans.
    bool is_integer() const;
    /// Element i of an integer or boolean type; false for another type, i past the end, or a value above 2^63-1.
    bool get_int(uint64_t i, int64_t* out) const;
    /// Element i of an integer or float type; false for another type or i past the end.
    bool get_float(uint64_t i, double* out) const;
};

struct Tensor {
    std::string_view name;
    Type type = Type::f32;
    uint32_t n_dim = 0;
    uint64_t ne[4] = {1, 1, 1, 1};  ///< ne[0] is contiguous, as in the file
    uint64_t bytes = 0;
    const std::byte* data = nullptr;  ///< in the file's bytes
    uint32_t shard = 0;
    uint64_t file_offset = 0;  ///< in that shard's file
};

/// A whole model: one file, or all shards of a split one.
class Gguf {
  public:
    /// Parses one file and checks every rule of the format, and that the type of every tensor is supported. `file`
    /// must outlive the Gguf, which points into it. A file without tensors (a vocabulary, or shard 0 of a split model)
    /// is accepted.
    ///
    /// errors    bad_file: damaged, truncated or against the format; unsupported: version 1, big-endian,
    ///           or a tensor type this library cannot compute with (named, with the list of those it can).
    /// cost      one pass over the metadata; no tensor data is touched, no string is copied.
    static Result<Gguf> parse(Span<const std::byte> file);
    /// Joins the shards 0..n-1 of a split model after checking that they belong together; the metadata is that of
    /// shard 0. A loader calls this for every file: an unsplit file is one shard, and a single shard of a larger model
    /// is refused here.
    ///
    /// names     of the shards' files, for errors; may be empty. Errors count shards from 1, as file names do.
    /// errors    bad_file: wrong order or number of shards, shards of different models, a tensor count
    ///           that differs from the announced one, a tensor name that appears twice.
    static Result<Gguf> join(std::vector<Gguf> shards, const std::vector<std::string>& names = {});
    /// A Gguf of values and tensors from other files. file_bytes: of all those files together.
    /// errors    bad_file: a name appears twice.
    static Result<Gguf> gather(std::vector<Meta> meta, std::vector<Tensor> tensors, uint64_t file_bytes);

    const std::vector<Meta>& meta() const { return meta_; }
    const std::vector<Tensor>& tensors() const { return tensors_; }
    uint64_t file_bytes() const { return file_bytes_; }  ///< of all shards together
    uint32_t version() const { return version_; }

    /// Null if there is none. cost: a binary search.
    const Meta* find(std::string_view key) const;
    const Tensor* tensor(std::string_view name) const;

    /// Typed values. A missing key gives the default, or bad_file if there is none. A wrong type or a value out of
    /// range is bad_file; the text names the key, what it holds and what was expected. get_u32 accepts integers of any
    /// width and booleans as 0 and 1; get_f32 accepts finite floats and integers.
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
    // Indices sorted by name: a hash table could be made slow by a choice of names.
    std::vector<uint32_t> meta_order_, tensor_order_;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
