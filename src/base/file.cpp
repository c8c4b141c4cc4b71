#include "file.h"

#include "os.h"

#include <new>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace file_impl {

/// The bytes of a file, mapped or allocated.
struct Bytes {
    const std::byte* data = nullptr;
    size_t size = 0;
    bool mapped = false;
};

inline Status is_empty(const char* path) {
    return fail(Code::io_error, "'", path, "' is empty (0 bytes), expected a GGUF file. Download or convert it again.");
}
inline Status is_directory(const char* path) {
    return fail(Code::bad_argument, "'", path, "' is a directory, expected a GGUF file. Name the file inside it.");
}
inline Status too_large(const char* path, uint64_t size) {
    return fail(Code::io_error, "'", path, "' has ", size, " bytes, more than a ", 8 * sizeof(size_t),
                "-bit process can hold. Use a 64-bit build.");
}
/// Memory for all of the file, when it is copied or cannot be mapped.
inline Status take_copy(const char* path, uint64_t size, const Allocator* copy_to, Block* copy) {
    return copy->take(copy_to ? *copy_to : Allocator(), size, say("a copy of '", path, "'").c_str());
}
inline Status changed(const char* path, size_t got, size_t size) {
    return fail(Code::io_error, "'", path, "' ended after ", got, " bytes, expected ", size,
                ": it changed while it was being read. Wait until its writer is done.");
}
/// An error of the operating system, in its words.
inline Status refused(const char* path, const char* doing, const std::error_code& why) {
    const bool missing = why == std::errc::no_such_file_or_directory || why == std::errc::not_a_directory;
    return fail(missing ? Code::not_found : Code::io_error, "cannot ", doing, " '", path, "': ", why.message(),
                missing ? ". Check the path." : ". Check that this user may read it and that the disk works.");
}

#if defined(_WIN32)

struct Handle {
    HANDLE h = nullptr;
    ~Handle() {
        if (h && h != INVALID_HANDLE_VALUE) CloseHandle(h);
    }
};

inline Result<Bytes> take(const char* path, const Allocator* copy_to, Block* copy) {
    const std::wstring wide = wide_path(path);
    if (wide.empty()) return refused(path, "read the name of", last_error());
    const DWORD attributes = GetFileAttributesW(wide.c_str());
    if (attributes != INVALID_FILE_ATTRIBUTES && (attributes & FILE_ATTRIBUTE_DIRECTORY)) return is_directory(path);
    Handle file;
    file.h = CreateFileW(wide.c_str(), GENERIC_READ, FILE_SHARE_READ, nullptr, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL,
                         nullptr);
    if (file.h == INVALID_HANDLE_VALUE) return refused(path, "open", last_error());
    LARGE_INTEGER length;
    if (!GetFileSizeEx(file.h, &length)) return refused(path, "measure", last_error());
    const uint64_t size = static_cast<uint64_t>(length.QuadPart);
    if (size == 0) return is_empty(path);
    if (size > SIZE_MAX / 2) return too_large(path, size);

    Bytes out;
    out.size = static_cast<size_t>(size);
    Handle mapping;  // a view stays valid after both handles are closed
    if (!copy_to) mapping.h = CreateFileMappingW(file.h, nullptr, PAGE_READONLY, 0, 0, nullptr);
    if (mapping.h) out.data = static_cast<const std::byte*>(MapViewOfFile(mapping.h, FILE_MAP_READ, 0, 0, 0));
    out.mapped = out.data != nullptr;
    if (out.mapped) return out;

    AUSPEX_TRY(take_copy(path, size, copy_to, copy));
    std::byte* p = copy->data();
    for (size_t got = 0; got < out.size;) {
        const size_t left = out.size - got;
        DWORD n = 0;
        const DWORD want = left > (1u << 30) ? (1u << 30) : static_cast<DWORD>(left);
        if (!ReadFile(file.h, p + got, want, &n, nullptr) || n == 0)
            return n == 0 && GetLastError() == ERROR_SUCCESS ? changed(path, got, out.size)
                                                             : refused(path, "read", last_error());
        got += n;
    }
    out.data = p;
    return out;
}
inline void unmap(const std::byte* p, size_t) { UnmapViewOfFile(p); }

#elif defined(__unix__) || defined(__APPLE__)

struct Descriptor {
    int fd = -1;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
};

inline Result<Bytes> take(const char* path, const Allocator* copy_to, Block* copy) {
    Descriptor file;
    // O_NONBLOCK: opening a pipe must not wait for a writer; regular files ignore the flag.
    file.fd = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file.fd < 0) return refused(path, "open", last_error());
    struct stat info;
    if (::fstat(file.fd, &info) != 0) return refused(path, "measure", last_error());
    if (S_ISDIR(info.st_mode)) return is_directory(path);
    if (!S_ISREG(info.st_mode))
        return fail(Code::bad_argument, "'", path,
                    "' is a device or a pipe, expected a regular file. Save it to disk first.");
    const uint64_t size = static_cast<uint64_t>(info.st_size);
    if (size == 0) return is_empty(path);
    if (size > SIZE_MAX / 2) return too_large(path, size);

    Bytes out;
    out.size = static_cast<size_t>(size);
    void* view = copy_to ? MAP_FAILED : ::mmap(nullptr, out.size, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (view != MAP_FAILED) {
        // Weights are read from front to back or used in place; reading ahead helps both. Only a hint.
        (void)::madvise(view, out.size, MADV_WILLNEED);
        out.data = static_cast<const std::byte*>(view);
        out.mapped = true;
        return out;
    }

    AUSPEX_TRY(take_copy(path, size, copy_to, copy));
    std::byte* p = copy->data();
    for (size_t got = 0; got < out.size;) {
        const size_t left = out.size - got;
        const ssize_t n = ::read(file.fd, p + got, left > (size_t{1} << 30) ? (size_t{1} << 30) : left);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n == 0 ? changed(path, got, out.size) : refused(path, "read", last_error());
        got += static_cast<size_t>(n);
    }
    out.data = p;
    return out;
}
inline void unmap(const std::byte* p, size_t size) { ::munmap(const_cast<std::byte*>(p), size); }

#else  // any other hosted platform: the C library, all of it into memory

struct Stream {
    std::FILE* f = nullptr;
    ~Stream() {
        if (f) std::fclose(f);
    }
};

inline Result<Bytes> take(const char* path, const Allocator* copy_to, Block* copy) {
    Stream file;
    errno = 0;
    file.f = std::fopen(path, "rb");
    if (!file.f) return refused(path, "open", last_error());
    if (std::fseek(file.f, 0, SEEK_END) != 0) return refused(path, "measure", last_error());
    const long size = std::ftell(file.f);
    if (size < 0) return refused(path, "measure", last_error());
    if (size == 0) return is_empty(path);
    if (std::fseek(file.f, 0, SEEK_SET) != 0) return refused(path, "read", last_error());
    Bytes out;
    out.size = static_cast<size_t>(size);
    AUSPEX_TRY(take_copy(path, out.size, copy_to, copy));
    const size_t got = std::fread(copy->data(), 1, out.size, file.f);
    if (got != out.size) return changed(path, got, out.size);
    out.data = copy->data();
    return out;
}
inline void unmap(const std::byte*, size_t) {}

#endif

/// "-00001-of-00003.gguf" for shard 0 of 3.
inline std::string shard_suffix(uint32_t no, uint32_t count) {
    char b[48];
    std::snprintf(b, sizeof b, "-%05u-of-%05u.gguf", static_cast<unsigned>(no) + 1u, static_cast<unsigned>(count));
    return b;
}

}  // namespace file_impl

File::~File() { close(); }

void File::close() {
    if (mapped_) file_impl::unmap(data_, size_);
    copy_.reset();
    data_ = nullptr;
    size_ = 0;
    mapped_ = false;
}

File::File(File&& o) noexcept { *this = std::move(o); }

File& File::operator=(File&& o) noexcept {
    if (this != &o) {
        close();
        data_ = std::exchange(o.data_, nullptr);
        size_ = std::exchange(o.size_, size_t{0});
        mapped_ = std::exchange(o.mapped_, false);
        copy_ = std::move(o.copy_);
    }
    return *this;
}

Status with_path(const Status& s, const char* path) {
    const std::string name = say("'", path, "'");
    return s.ok() || s.text.compare(0, name.size(), name) == 0 ? s : fail(s.code, name, ": ", s.text);
}

Result<File> File::open(const char* path, const Allocator* copy_to) {
    if (!path || !*path)
        return fail(Code::bad_argument, "the path is ", path ? "empty" : "null", ", expected the name of a GGUF file");
    File f;
    Result<file_impl::Bytes> taken = file_impl::take(path, copy_to, &f.copy_);
    if (!taken.ok()) return taken.status();
    f.data_ = taken.value().data;
    f.size_ = taken.value().size;
    f.mapped_ = taken.value().mapped;
    return f;
}

Result<std::vector<std::string>> shard_paths(const std::string& first, uint32_t no, uint32_t count) {
    if (count == 0 || count > kMaxShards || no >= count)
        return fail(Code::bad_file, "'", first, "' says it is shard ", no, " (counted from 0) of ", count,
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
