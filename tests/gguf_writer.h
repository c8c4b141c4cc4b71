// tests/gguf_writer: GGUF files made in memory.
#pragma once
#include "../src/base/gguf.h"

namespace test {

using auspex::Span;
using auspex::detail::Type;

/// Builds a GGUF v3 file in memory: metadata in the order given, tensors without gaps. Arguments are asserted.
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
    /// A value of any type id, valid or not; `bytes` as in the file. n < 0: a scalar, else an array of n elements.
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

}  // namespace test
