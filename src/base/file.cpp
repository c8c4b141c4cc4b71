#include "file.h"

#include "os.h"

#include <algorithm>
#include <new>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace file_impl {

/// The bytes of a file, mapped or allocated.
struct Bytes {
    const std::byte* data = nullptr;
    size_t size = 0;
    const std::byte* map = nullptr;  ///< null: allocated
    size_t map_bytes = 0;
    std::optional<uint64_t> modified;
};

/// A part of an open file, and the name that errors give it.
struct Part {
    std::string name;
    uint64_t offset = 0, size = 0;
    bool copy = false;
};

inline Status is_empty(const std::string& name) {
    return fail(Code::io_error, name, " is empty (0 bytes), expected a GGUF file. Download or convert it again.");
}
inline Status is_directory(const std::string& name) {
    return fail(Code::bad_argument, name, " is a directory, expected a GGUF file. Name the file inside it.");
}
/// Memory for all of it, when it is copied or cannot be mapped.
inline Status take_copy(const std::string& name, uint64_t size, const Allocator& copy_to, Block* copy) {
    if (size > SIZE_MAX / 2)
        return fail(Code::io_error, name, " has ", size, " bytes, expected at most ", SIZE_MAX / 2, ", what a ",
                    8 * sizeof(size_t), "-bit process can hold. ",
                    sizeof(size_t) < sizeof(uint64_t) ? "Use a 64-bit build." : "Check the size that was given.");
    return copy->take(copy_to, static_cast<size_t>(size), say("a copy of ", name).c_str());
}
inline Status not_regular(const std::string& name) {
    return fail(Code::bad_argument, name, " is a device or a pipe, expected a regular file. Save it to disk first.");
}
inline Status changed(const Part& part, size_t got) {
    return fail(Code::io_error, part.name, " ended after ", got, " bytes, expected ", part.size,
                ": it changed while it was being read. Wait until its writer is done.");
}
/// An error of the operating system, in its words.
inline Status refused(const std::string& name, const char* doing, const std::error_code& why) {
    const bool missing = why == std::errc::no_such_file_or_directory || why == std::errc::not_a_directory;
    const bool large = why == std::errc::value_too_large;
    return fail(missing ? Code::not_found : Code::io_error, "cannot ", doing, " ", name, ": ", why.message(),
                missing ? ". Check the path."
                : large ? kSmallFilesOnly
                        : ". Check that this user may read it and that the disk works.");
}
/// How errors name a part of an open file.
inline std::string range_name(const FileRange& r) {
    return say("the file of descriptor ", r.file, " from byte ", r.offset, " on");
}
/// The part of a file of `file_bytes` bytes.
inline Result<Part> part_of(const FileRange& r, uint64_t file_bytes) {
    Part part{range_name(r), r.offset, r.bytes, false};
    if (r.offset > file_bytes)
        return fail(Code::bad_argument, part.name, ": the file has only ", file_bytes,
                    " bytes. Give the offset and size of the GGUF file in it.");
    if (r.bytes > file_bytes - r.offset)
        return fail(Code::bad_argument, part.name, ": ", r.bytes, " bytes were asked for, but it has ",
                    file_bytes - r.offset, ". Give the offset and size of the GGUF file in it.");
    if (part.size == 0) part.size = file_bytes - r.offset;
    if (part.size == 0) return is_empty(part.name);
    return part;
}
inline std::string quoted(const char* path) { return say("'", path, "'"); }

#if defined(_WIN32)

struct Handle {
    HANDLE h = nullptr;
    ~Handle() {
        if (h && h != INVALID_HANDLE_VALUE) CloseHandle(h);
    }
};

/// The size of an open file, which must be a regular one.
inline Result<uint64_t> size_of(HANDLE file, const std::string& name) {
    const DWORD type = GetFileType(file);
    if (type == FILE_TYPE_CHAR || type == FILE_TYPE_PIPE) return not_regular(name);
    LARGE_INTEGER length;
    if (type == FILE_TYPE_DISK && GetFileSizeEx(file, &length)) return static_cast<uint64_t>(length.QuadPart);
    if (type == FILE_TYPE_DISK && GetLastError() == ERROR_INVALID_FUNCTION) return not_regular(name);  // a whole disk
    return refused(name, "measure", last_error());
}

/// Maps or reads a part of an open file.
inline Result<Bytes> take_part(HANDLE file, const Part& part, const Allocator& copy_to, Block* copy) {
    Bytes out;
    FILETIME written{};
    if (GetFileTime(file, nullptr, nullptr, &written))
        out.modified = uint64_t{written.dwHighDateTime} << 32 | written.dwLowDateTime;
    if (!part.copy && part.size <= SIZE_MAX / 2) {
        SYSTEM_INFO system;
        GetSystemInfo(&system);
        const uint64_t from = part.offset / system.dwAllocationGranularity * system.dwAllocationGranularity;
        Handle mapping;  // a view stays valid after both handles are closed
        mapping.h = CreateFileMappingW(file, nullptr, PAGE_READONLY, 0, 0, nullptr);
        out.map_bytes = static_cast<size_t>(part.offset - from + part.size);
        if (mapping.h)
            out.map = static_cast<const std::byte*>(MapViewOfFile(
                mapping.h, FILE_MAP_READ, static_cast<DWORD>(from >> 32), static_cast<DWORD>(from), out.map_bytes));
        out.data = out.map ? out.map + (part.offset - from) : nullptr;
    }
    out.size = static_cast<size_t>(part.size);
    if (out.map) return out;

    AUSPEX_TRY(take_copy(part.name, part.size, copy_to, copy));
    std::byte* p = copy->data();
    for (size_t got = 0; got < out.size;) {
        const size_t left = out.size - got;
        const uint64_t at = part.offset + got;
        OVERLAPPED where{};
        where.Offset = static_cast<DWORD>(at);
        where.OffsetHigh = static_cast<DWORD>(at >> 32);
        DWORD n = 0;
        const DWORD want = left > (1u << 30) ? (1u << 30) : static_cast<DWORD>(left);
        if (!ReadFile(file, p + got, want, &n, &where) && GetLastError() != ERROR_HANDLE_EOF)
            return refused(part.name, "read", last_error());
        if (n == 0) return changed(part, got);
        got += n;
    }
    out.data = p;
    return out;
}

inline Result<Bytes> take(const char* path, const Allocator* copy_to, Block* copy) {
    Part part{quoted(path), 0, 0, copy_to != nullptr};
    const std::wstring wide = wide_path(path);
    if (wide.empty()) return not_utf8(path);
    const DWORD attributes = GetFileAttributesW(wide.c_str());
    if (attributes != INVALID_FILE_ATTRIBUTES && (attributes & FILE_ATTRIBUTE_DIRECTORY))
        return is_directory(part.name);
    Handle file;
    file.h = CreateFileW(wide.c_str(), GENERIC_READ, FILE_SHARE_READ, nullptr, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL,
                         nullptr);
    if (file.h == INVALID_HANDLE_VALUE) return refused(part.name, "open", last_error());
    AUSPEX_TRY(size_of(file.h, part.name).get(part.size));
    if (part.size == 0) return is_empty(part.name);
    return take_part(file.h, part, copy_to ? *copy_to : Allocator(), copy);
}
inline Result<Bytes> take(const FileRange& range, const Allocator& copy_to, bool copies, Block* copy) {
    const HANDLE file = reinterpret_cast<HANDLE>(range.file);
    uint64_t size = 0;
    AUSPEX_TRY(size_of(file, range_name(range)).get(size));
    Part part;
    AUSPEX_TRY(part_of(range, size).get(part));
    part.copy = copies;
    return take_part(file, part, copy_to, copy);
}
inline void unmap(const std::byte* p, size_t) { UnmapViewOfFile(p); }
/// Unlocking pages that are not locked takes them out of the working set.
inline void release(const std::byte* p, size_t size) { (void)VirtualUnlock(const_cast<std::byte*>(p), size); }
inline size_t page_bytes() {
    SYSTEM_INFO system;
    GetSystemInfo(&system);
    return system.dwPageSize;
}

#elif defined(__unix__) || defined(__APPLE__)

struct Descriptor {
    int fd = -1;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
};

inline size_t page_bytes() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

/// Maps or reads a part of an open file.
inline Result<Bytes> take_part(int file, const Part& part, const Allocator& copy_to, Block* copy) {
    Bytes out;
    out.size = static_cast<size_t>(part.size);
    struct stat info;
    if (::fstat(file, &info) == 0) out.modified = static_cast<uint64_t>(info.st_mtime);
    if (!part.copy && part.size <= SIZE_MAX / 2) {
        const uint64_t page = page_bytes(), skip = part.offset % page;
        out.map_bytes = static_cast<size_t>(skip + part.size);
        void* view =
            ::mmap(nullptr, out.map_bytes, PROT_READ, MAP_PRIVATE, file, static_cast<off_t>(part.offset - skip));
        if (view != MAP_FAILED) {
            // Weights are read from front to back or used in place; reading ahead helps both. Only a hint.
            (void)::madvise(view, out.map_bytes, MADV_WILLNEED);
            out.map = static_cast<const std::byte*>(view);
            out.data = out.map + skip;
            return out;
        }
    }
    AUSPEX_TRY(take_copy(part.name, part.size, copy_to, copy));
    std::byte* p = copy->data();
    for (size_t got = 0; got < out.size;) {
        const size_t left = out.size - got;
        const ssize_t n = ::pread(file, p + got, left > (size_t{1} << 30) ? (size_t{1} << 30) : left,
                                  static_cast<off_t>(part.offset + got));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n == 0 ? changed(part, got) : refused(part.name, "read", last_error());
        got += static_cast<size_t>(n);
    }
    out.data = p;
    return out;
}
/// The size of an open file, which must be a regular one.
inline Result<uint64_t> size_of(int file, const std::string& name) {
    struct stat info;
    if (::fstat(file, &info) != 0) return refused(name, "measure", last_error());
    if (S_ISDIR(info.st_mode)) return is_directory(name);
    if (!S_ISREG(info.st_mode)) return not_regular(name);
    return static_cast<uint64_t>(info.st_size);
}

inline Result<Bytes> take(const char* path, const Allocator* copy_to, Block* copy) {
    Part part{quoted(path), 0, 0, copy_to != nullptr};
    Descriptor file;
    // O_NONBLOCK: opening a pipe must not wait for a writer; regular files ignore the flag.
    file.fd = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file.fd < 0) return refused(part.name, "open", last_error());
    AUSPEX_TRY(size_of(file.fd, part.name).get(part.size));
    if (part.size == 0) return is_empty(part.name);
    return take_part(file.fd, part, copy_to ? *copy_to : Allocator(), copy);
}
inline Result<Bytes> take(const FileRange& range, const Allocator& copy_to, bool copies, Block* copy) {
    const int file = static_cast<int>(range.file);
    if (file != range.file)
        return fail(Code::bad_argument, range_name(range), ": expected a descriptor, which is an int");
    uint64_t size = 0;
    AUSPEX_TRY(size_of(file, range_name(range)).get(size));
    Part part;
    AUSPEX_TRY(part_of(range, size).get(part));
    part.copy = copies;
    return take_part(file, part, copy_to, copy);
}
inline void unmap(const std::byte* p, size_t size) { ::munmap(const_cast<std::byte*>(p), size); }
/// The mapping is never written, so nothing is lost.
inline void release(const std::byte* p, size_t size) {
    (void)::madvise(const_cast<std::byte*>(p), size, MADV_DONTNEED);
}

#else  // any other hosted platform: the C library, all of it into memory

struct Stream {
    std::FILE* f = nullptr;
    ~Stream() {
        if (f) std::fclose(f);
    }
};

inline Result<Bytes> take(const char* path, const Allocator* copy_to, Block* copy) {
    Part part{quoted(path), 0, 0, true};
    Stream file;
    errno = 0;
    file.f = std::fopen(path, "rb");
    if (!file.f) return refused(part.name, "open", last_error());
    if (std::fseek(file.f, 0, SEEK_END) != 0) return refused(part.name, "measure", last_error());
    const long size = std::ftell(file.f);
    if (size < 0) return refused(part.name, "measure", last_error());
    if (size == 0) return is_empty(part.name);
    if (std::fseek(file.f, 0, SEEK_SET) != 0) return refused(part.name, "read", last_error());
    part.size = static_cast<uint64_t>(size);
    AUSPEX_TRY(take_copy(part.name, part.size, copy_to ? *copy_to : Allocator(), copy));
    Bytes out;
    out.size = static_cast<size_t>(size);
    const size_t got = std::fread(copy->data(), 1, out.size, file.f);
    if (got != out.size) return changed(part, got);
    out.data = copy->data();
    return out;
}
inline Result<Bytes> take(const FileRange& range, const Allocator&, bool, Block*) {
    return fail(Code::unsupported, range_name(range),
                " cannot be read: this platform has no file descriptors. Load it by a FileReader or from memory.");
}
inline void unmap(const std::byte*, size_t) {}
inline void release(const std::byte*, size_t) {}
inline size_t page_bytes() { return 1; }

#endif

/// "-00001-of-00003.gguf" for shard 0 of 3.
inline std::string shard_suffix(uint32_t no, uint32_t count) {
    char b[48];
    std::snprintf(b, sizeof b, "-%05u-of-%05u.gguf", static_cast<unsigned>(no) + 1u, static_cast<unsigned>(count));
    return b;
}

}  // namespace file_impl

File::~File() { close(); }

void File::release(const std::byte* from, uint64_t n_byte) const {
    const auto begin = reinterpret_cast<uintptr_t>(data_), at = reinterpret_cast<uintptr_t>(from);
    if (!map_ || at < begin || at - begin > size_ || n_byte > size_ - (at - begin)) return;
    // Whole pages: neighbours on the first and last one are read again when they are used.
    const size_t page = file_impl::page_bytes(), offset = at - reinterpret_cast<uintptr_t>(map_),
                 first = offset / page * page, end = offset + static_cast<size_t>(n_byte);
    file_impl::release(map_ + first, std::min(static_cast<size_t>(round_up(end, page)), map_bytes_) - first);
}

void File::close() {
    if (map_) file_impl::unmap(map_, map_bytes_);
    copy_.reset();
    data_ = map_ = nullptr;
    size_ = map_bytes_ = 0;
    modified_.reset();
}

File::File(File&& o) noexcept { *this = std::move(o); }

File& File::operator=(File&& o) noexcept {
    if (this != &o) {
        close();
        data_ = std::exchange(o.data_, nullptr);
        size_ = std::exchange(o.size_, size_t{0});
        map_ = std::exchange(o.map_, nullptr);
        map_bytes_ = std::exchange(o.map_bytes_, size_t{0});
        modified_ = std::exchange(o.modified_, std::nullopt);
        copy_ = std::move(o.copy_);
    }
    return *this;
}

Status with_path(const Status& s, const char* path) {
    const std::string name = say("'", path, "'");
    return s.ok() || s.text.find(name) != std::string::npos ? s : fail(s.code, name, ": ", s.text);
}

Result<File> File::open(const char* path, const Allocator* copy_to) {
    if (!path || !*path)
        return fail(Code::bad_argument, "the path is ", path ? "empty" : "null", ", expected the name of a GGUF file");
    File f;
    file_impl::Bytes taken;
    AUSPEX_TRY(file_impl::take(path, copy_to, &f.copy_).get(taken));
    f.set(taken);
    return f;
}

Result<File> File::open(const FileRange& range, const Allocator& copy_to, bool copy) {
    File f;
    file_impl::Bytes taken;
    AUSPEX_TRY(file_impl::take(range, copy_to, copy || range.offset % kByteAlignment != 0, &f.copy_).get(taken));
    f.set(taken);
    return f;
}

void File::set(const file_impl::Bytes& b) {
    data_ = b.data;
    size_ = b.size;
    map_ = b.map;
    map_bytes_ = b.map_bytes;
    modified_ = b.modified;
}

Result<File> File::read(const FileReader& reader, const Allocator& copy_to, const Progress& progress) {
    if (!reader.read)
        return Status(Code::bad_argument,
                      "the reader has no function `read`; give it one that copies bytes of the file");
    const std::string name = "the reader's file";
    if (reader.bytes == 0) return file_impl::is_empty(name);
    File f;
    AUSPEX_TRY(file_impl::take_copy(name, reader.bytes, copy_to, &f.copy_));
    f.data_ = f.copy_.data();
    f.size_ = static_cast<size_t>(reader.bytes);
    for (size_t at = 0; at < f.size_;) {
        if (progress && !progress("read", static_cast<float>(at) / static_cast<float>(f.size_)))
            return Status(Code::cancelled, "the progress callback cancelled reading the file");
        const size_t want = std::min(f.size_ - at, kMaxRead), n = reader.read(at, f.copy_.data() + at, want);
        if (n == 0)
            return fail(Code::io_error, "the reader gave nothing at byte ", at, " of ", f.size_,
                        ". Check that `bytes` is the size of the file, and what the reader reads from.");
        if (n > want)
            return fail(Code::bad_argument, "the reader was asked for ", want, " bytes at byte ", at,
                        " and says that it gave ", n);
        at += n;
    }
    return f;
}

Result<std::vector<std::string>> shard_paths(const std::string& first, uint32_t no, uint32_t count) {
    if (count == 0 || count > kMaxShards || no >= count)
        return fail(Code::bad_file, "'", first, "' says it is shard ", uint64_t{no} + 1, " of ", count,
                    ", expected one of 1 to ", kMaxShards,
                    " shards. The file is damaged or was split by a faulty tool: split it again.");
    const std::string suffix = file_impl::shard_suffix(no, count);
    if (first.size() < suffix.size() || first.compare(first.size() - suffix.size(), suffix.size(), suffix) != 0)
        return fail(Code::bad_argument, "'", first, "' is shard ", no + 1, " of ", count,
                    " of a split model, so its name must end in '", suffix,
                    "' for the other shards to be found beside it. Give all shards their original names.");
    const std::string prefix = first.substr(0, first.size() - suffix.size());
    std::vector<std::string> paths;
    paths.reserve(count);
    for (uint32_t i = 0; i < count; ++i) paths.push_back(prefix + file_impl::shard_suffix(i, count));
    return paths;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
