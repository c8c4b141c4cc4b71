// machine/state_stream: where the bytes of a sequence's state go to and come from.
//
// What    StateWriter and StateReader: memory, pages of an arena, or a file, so that no whole copy is made on the way.
// Thread  one at a time.
// Tests   tests/test_state.cpp.
#pragma once
#include "../base/base.h"

#include <cstring>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

class StateWriter {
  public:
    virtual ~StateWriter() = default;
    /// Takes the next n bytes. errors: of the medium; what was written before is then of no use.
    virtual Status write(const void* from, uint64_t n) = 0;
};

class StateReader {
  public:
    virtual ~StateReader() = default;
    /// Gives the next n bytes. errors: of the medium, or it has fewer.
    virtual Status read(void* to, uint64_t n) = 0;
};

/// Appends to a vector.
class VectorWriter : public StateWriter {
  public:
    explicit VectorWriter(std::vector<std::byte>* to) : to_(to) {}
    Status write(const void* from, uint64_t n) override {
        const std::byte* bytes = static_cast<const std::byte*>(from);
        to_->insert(to_->end(), bytes, bytes + n);
        return {};
    }

  private:
    std::vector<std::byte>* to_;
};

/// Reads a span from its beginning.
class SpanReader : public StateReader {
  public:
    explicit SpanReader(Span<const std::byte> from) : rest_(from) {}
    Status read(void* to, uint64_t n) override {
        if (n > rest_.size())
            return fail(Code::bad_file, "a state ends ", n - rest_.size(), " bytes before its part does");
        if (n != 0) std::memcpy(to, rest_.data(), static_cast<size_t>(n));
        rest_ = rest_.subspan(static_cast<size_t>(n), rest_.size() - static_cast<size_t>(n));
        return {};
    }

  private:
    Span<const std::byte> rest_;
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
