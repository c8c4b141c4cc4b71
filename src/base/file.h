// base/file: read-only files, parts of files, and the names of shards.
//
// Owns    mapping a file, or copying it into memory.
// Thread  any thread may read an open File.
// Tests   tests/test_base.cpp
#pragma once
#include "base.h"

#include <optional>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace file_impl {
struct Bytes;
}

/// A failure with the path in front, unless its text names it already.
Status with_path(const Status& s, const char* path);

/// A read-only file: mapped if the platform can, else, or on request, copied into memory. Its size is fixed at open().
/// While a mapped file is open nobody may truncate it: the operating system ends a process that reads a missing page
/// (SIGBUS). A copy is safe from that.
class File {
  public:
    File() = default;
    ~File();
    File(File&& o) noexcept;
    File& operator=(File&& o) noexcept;
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    /// path      UTF-8.
    /// copy_to   if given, the file is copied into memory from there instead of being mapped.
    /// errors    bad_argument: no path, or a directory, a device or a pipe; not_found; io_error: empty, no permission
    ///           (the text has the path and the operating system's reason); out_of_memory: for a copy.
    /// cost      a mapped file is not read yet.
    static Result<File> open(const char* path, const Allocator* copy_to = nullptr);
    /// A part of a file that the caller has opened, and may close afterwards. Its position stays where it is on POSIX
    /// systems. A part whose offset is no multiple of kByteAlignment is copied.
    ///
    /// copy_to   memory for a copy.
    /// copy      copy in any case.
    /// errors    as above; bad_argument: beyond the end of the file. unsupported: no descriptors on this platform.
    static Result<File> open(const FileRange& range, const Allocator& copy_to, bool copy);
    /// A copy of what the reader gives, asked from front to back in pieces of at most kMaxRead bytes.
    ///
    /// progress  called before each piece; may be empty.
    /// errors    bad_argument: no function, or it claims more than was asked for; io_error: it gave nothing, or `bytes`
    ///           is 0; out_of_memory, cancelled.
    static Result<File> read(const FileReader& reader, const Allocator& copy_to, const Progress& progress);
    static constexpr size_t kMaxRead = size_t{4} << 20;
    /// A GGUF file's tensors are aligned to at least this, counted from its beginning; kernels read them so.
    static constexpr size_t kByteAlignment = 8;
    Span<const std::byte> bytes() const { return {data_, size_}; }
    bool is_copy() const { return data_ && !map_; }
    /// When it was last written, as the system counts; empty where that is not known.
    std::optional<uint64_t> modified() const { return modified_; }
    /// Takes the pages of these bytes out of the process's memory, if they are bytes of this file and it is mapped.
    /// They are read again when they are next used, from the system's cache while it keeps them.
    void release(const std::byte* from, uint64_t n_byte) const;

  private:
    void close();
    void set(const file_impl::Bytes& bytes);

    const std::byte* data_ = nullptr;
    size_t size_ = 0;
    const std::byte* map_ = nullptr;  ///< the pages around data_; null: a copy
    size_t map_bytes_ = 0;
    std::optional<uint64_t> modified_;
    Block copy_;
};

/// Largest number of shards of a split model.
constexpr uint32_t kMaxShards = 1024;

/// The paths of all shards, in order, from the path of shard `no` (from 0) of `count`:
/// "<prefix>-00001-of-00003.gguf" with (0, 3) gives three paths in the same folder.
///
/// errors    bad_file: no is not below count, or count is above kMaxShards (wrong keys in the file).
///           bad_argument: the name does not have the form that no and count require.
Result<std::vector<std::string>> shard_paths(const std::string& first, uint32_t no, uint32_t count);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
