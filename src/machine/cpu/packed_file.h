// machine/cpu/packed_file: weights as the kernels read them, in a file that is mapped.
//
// Owns    the format of the file, and its mapping while a model uses it.
// Format  Header, Entry [n_entry], then the bytes of each matrix, at multiples of 64. Numbers are the machine's own, so
//         the file belongs to one computer. Its key says which model, instruction set and layout it is for. Entries
//         have a checksum; matrices have none, as in the model's own file.
// Thread  the thread that loads opens and writes; any may read the mapping.
// Tests   tests/test_packed_file.cpp
#pragma once
#include "../../base/checksum.h"
#include "../../base/file.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

class PackedFile {
  public:
    /// The bytes of a matrix, by its slot.
    struct Part {
        uint32_t slot = 0;
        Span<const std::byte> bytes;
    };
    /// Maps the file at `path`. Empty where there is none, or one that is damaged or has another key: write() may
    /// replace it.
    ///
    /// errors    bad_argument: a file of another kind, which must not be replaced, or no file at all; io_error.
    static Result<PackedFile> open(const std::string& path, uint64_t key);
    /// Writes the parts, in the order of their slots, and puts the file in the place of what is there. At any moment
    /// the name has the old file or the new one.
    ///
    /// errors    io_error, not_found: no such folder.
    /// cost      waits for the disk.
    static Status write(const std::string& path, uint64_t key, Span<const Part> parts);

    bool empty() const { return entries_.empty(); }
    /// Empty where the file has no such slot.
    Span<const std::byte> find(uint32_t slot) const;

  private:
    struct Header {
        char magic[8];
        uint64_t key;
        uint64_t n_entry;
        uint64_t file_bytes;
        uint64_t checksum;  ///< of the entries
        uint64_t zero[3];
    };
    struct Entry {
        uint64_t slot, offset, bytes;
    };
    static_assert(sizeof(Header) == 64 && sizeof(Entry) == 24, "written as they are");
    static constexpr char kMagic[9] = "auspexpk";
    static bool read_entries(const File& file, uint64_t key, std::vector<Entry>* to);

    File file_;
    std::vector<Entry> entries_;  ///< by slot, ascending
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
