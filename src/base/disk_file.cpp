#include "disk_file.h"

#include "os.h"

#include <algorithm>
#include <chrono>
#include <limits>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace disk_file_impl {

using Mode = DiskFile::Mode;
constexpr uint64_t kMaxPiece = uint64_t{1} << 30;  // of one call of the operating system

/// An error of the operating system, in its words.
inline Status refused(const std::string& path, const char* doing, const std::error_code& why) {
    const bool missing = why == std::errc::no_such_file_or_directory || why == std::errc::not_a_directory;
    const bool full = why == std::errc::no_space_on_device || why == std::errc::file_too_large;
    const bool large = why == std::errc::value_too_large;
    return fail(missing ? Code::not_found : Code::io_error, "cannot ", doing, " '", path, "': ", why.message(),
                missing ? ". Check the path and that its folder exists."
                : full  ? ". Free some space, or save to another disk."
                : large ? kSmallFilesOnly
                        : ". Check that this user may do that and that the disk works.");
}
inline Status not_regular(const std::string& path) {
    return fail(Code::bad_argument, "'", path,
                "' is a folder, a device or a pipe, expected a regular file. Name another file.");
}
/// What open_file() does, for its errors. The last two modes are those of a temporary file, and the errors name the
/// file that it will become.
inline const char* opening(Mode mode) {
    return mode == Mode::create || mode == Mode::renew ? "create a file beside" : "open";
}
inline Status ended(const std::string& path, uint64_t at, uint64_t n) {
    return fail(Code::bad_file, "'", path, "' ends before byte ", at + n, ", where a part of ", n,
                " bytes ends: it is cut short. Use a copy of it if there is one.");
}

#if defined(_WIN32)

inline HANDLE handle_of(intptr_t h) { return reinterpret_cast<HANDLE>(h); }

/// True for what exists and cannot be replaced by a file.
inline bool is_special(const std::string& path) {
    const std::wstring wide = wide_path(path.c_str());
    if (names_device(full_path(wide))) return true;  // NUL has the attributes of a file
    const DWORD attributes = GetFileAttributesW(wide.c_str());
    return attributes != INVALID_FILE_ATTRIBUTES && (attributes & (FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_DEVICE));
}

inline Status open_file(const std::string& path, Mode mode, const std::string& named, intptr_t* to) {
    if (wide_path(path.c_str()).empty()) return not_utf8(named);
    if (is_special(path)) return not_regular(named);
    const DWORD access = mode == Mode::read ? GENERIC_READ : GENERIC_READ | GENERIC_WRITE;
    // Others may read, rename and delete the file meanwhile, but not write it.
    const HANDLE h = CreateFileW(wide_path(path.c_str()).c_str(), access, FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr,
                                 mode == Mode::create ? CREATE_NEW : OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
    if (h == INVALID_HANDLE_VALUE) return refused(named, opening(mode), last_error());
    *to = reinterpret_cast<intptr_t>(h);
    if (GetFileType(h) == FILE_TYPE_DISK) return {};
    return not_regular(named);
}

inline void close_file(intptr_t h) { CloseHandle(handle_of(h)); }

inline bool size_of(intptr_t h, uint64_t* to) {
    LARGE_INTEGER size;
    if (!GetFileSizeEx(handle_of(h), &size)) return false;
    *to = static_cast<uint64_t>(size.QuadPart);
    return true;
}

inline OVERLAPPED place_of(uint64_t at) {
    OVERLAPPED place{};
    place.Offset = static_cast<DWORD>(at);
    place.OffsetHigh = static_cast<DWORD>(at >> 32);
    return place;
}
/// Bytes read, 0 at the end, or -1.
inline int64_t read_some(intptr_t h, uint64_t at, void* to, uint64_t n) {
    OVERLAPPED place = place_of(at);
    DWORD got = 0;
    if (ReadFile(handle_of(h), to, static_cast<DWORD>(n), &got, &place)) return got;
    return GetLastError() == ERROR_HANDLE_EOF ? 0 : -1;
}
inline int64_t write_some(intptr_t h, uint64_t at, const void* from, uint64_t n) {
    OVERLAPPED place = place_of(at);
    DWORD got = 0;
    return WriteFile(handle_of(h), from, static_cast<DWORD>(n), &got, &place) ? static_cast<int64_t>(got) : -1;
}
inline bool was_interrupted() { return false; }
inline bool sync_file(intptr_t h) { return FlushFileBuffers(handle_of(h)) != 0; }
inline bool cut_file(intptr_t h, uint64_t size) {
    LARGE_INTEGER to;
    to.QuadPart = static_cast<LONGLONG>(size);
    return SetFilePointerEx(handle_of(h), to, nullptr, FILE_BEGIN) && SetEndOfFile(handle_of(h));
}
inline bool rename_file(const std::string& from, const std::string& to) {
    return MoveFileExW(wide_path(from.c_str()).c_str(), wide_path(to.c_str()).c_str(),
                       MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH) != 0;
}
inline void delete_file(const std::string& path) { DeleteFileW(wide_path(path.c_str()).c_str()); }
inline std::string without_links(const std::string& path) { return path; }
inline void copy_mode(const std::string&, intptr_t, bool) {}
inline void sync_folder(const std::string&) {}  // MOVEFILE_WRITE_THROUGH did
inline uint64_t process_number() { return GetCurrentProcessId(); }
inline bool is_updated(intptr_t) { return false; }  // it could not have been opened
constexpr bool kReadsAtOnce = true;
constexpr bool kLocksNames = false;

#elif defined(__unix__) || defined(__APPLE__)

/// True for what exists and cannot be replaced by a file.
inline bool is_special(const std::string& path) {
    struct stat info;
    return ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
}

/// Until the file is closed nobody else can open it for updates. False also if it is not the one of this name any more:
/// another may have replaced it before it was locked.
inline bool keep_others_out(int fd, const std::string& path) {
    struct stat opened, named;
    return ::flock(fd, LOCK_EX | LOCK_NB) == 0 && ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
           opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

/// Whether this user's process may have left it when it was ended while it wrote.
inline bool is_own(const struct stat& info) { return info.st_uid == ::geteuid() && info.st_nlink == 1; }

inline Status open_file(const std::string& path, Mode mode, const std::string& named, intptr_t* to) {
    // O_NONBLOCK: opening a pipe must not wait for its other end; regular files ignore the flag.
    const int access = mode == Mode::read ? O_RDONLY : O_RDWR;
    const int make = mode == Mode::create ? O_CREAT | O_EXCL : mode == Mode::renew ? O_CREAT | O_NOFOLLOW : 0;
    const int flags = O_CLOEXEC | O_NONBLOCK | access | make;
    if (is_special(path)) return not_regular(named);
    const int fd = ::open(path.c_str(), flags, 0666);
    if (fd < 0) return refused(named, opening(mode), last_error());
    *to = fd;
    struct stat info;
    if (::fstat(fd, &info) != 0) return refused(named, opening(mode), last_error());
    if (!S_ISREG(info.st_mode)) return not_regular(named);
    if (mode == Mode::renew && ::flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) ::unlink(path.c_str());  // a file system without locks: nobody can use this name
        return refused(named, opening(mode), std::make_error_code(std::errc::device_or_resource_busy));
    }
    const bool locks = mode == Mode::update || mode == Mode::renew;
    if ((locks && !keep_others_out(fd, path)) || (mode == Mode::renew && !is_own(info)))
        return refused(named, opening(mode), std::make_error_code(std::errc::device_or_resource_busy));
    if (mode == Mode::renew && ::ftruncate(fd, 0) != 0) return refused(named, opening(mode), last_error());
    return {};
}

inline bool is_updated(intptr_t h) {
    if (::flock(static_cast<int>(h), LOCK_SH | LOCK_NB) != 0) return errno == EWOULDBLOCK;
    (void)::flock(static_cast<int>(h), LOCK_UN);
    return false;
}
inline void close_file(intptr_t h) { ::close(static_cast<int>(h)); }

inline bool size_of(intptr_t h, uint64_t* to) {
    struct stat info;
    if (::fstat(static_cast<int>(h), &info) != 0) return false;
    *to = static_cast<uint64_t>(info.st_size);
    return true;
}
/// False, with errno set, if off_t has too few bits.
inline bool fits_offset(uint64_t end) {
    const bool fits = end <= static_cast<uint64_t>(std::numeric_limits<off_t>::max());
    if (!fits) errno = EOVERFLOW;
    return fits;
}
/// Bytes read, 0 at the end, or -1.
inline int64_t read_some(intptr_t h, uint64_t at, void* to, uint64_t n) {
    if (!fits_offset(at + n)) return -1;
    return ::pread(static_cast<int>(h), to, static_cast<size_t>(n), static_cast<off_t>(at));
}
inline int64_t write_some(intptr_t h, uint64_t at, const void* from, uint64_t n) {
    if (!fits_offset(at + n)) return -1;
    return ::pwrite(static_cast<int>(h), from, static_cast<size_t>(n), static_cast<off_t>(at));
}
inline bool was_interrupted() { return errno == EINTR; }
inline bool sync_file(intptr_t h) {
    int done;
    do done = ::fsync(static_cast<int>(h));
    while (done != 0 && errno == EINTR);
    return done == 0;
}
inline bool cut_file(intptr_t h, uint64_t size) {
    return fits_offset(size) && ::ftruncate(static_cast<int>(h), static_cast<off_t>(size)) == 0;
}
inline bool rename_file(const std::string& from, const std::string& to) {
    return ::rename(from.c_str(), to.c_str()) == 0;
}
inline void delete_file(const std::string& path) { ::unlink(path.c_str()); }
/// The file that a symbolic link leads to, whether it exists or not: to rename to a link would replace the link.
inline std::string without_links(std::string path) {
    constexpr int kMaxLinks = 40;
    char to[4096];
    for (int i = 0; i < kMaxLinks; ++i) {
        const ssize_t n = ::readlink(path.c_str(), to, sizeof to);
        if (n <= 0 || static_cast<size_t>(n) == sizeof to) break;
        const size_t folder = to[0] == '/' ? 0 : path.rfind('/') + 1;  // npos + 1 is 0
        path = path.substr(0, folder).append(to, static_cast<size_t>(n));
    }
    return path;
}
/// Gives a file the mode of the one that it replaces. While it is being written (is_written) its owner may write it as
/// well, so that the next process can open what a process that was ended has left.
inline void copy_mode(const std::string& from, intptr_t to, bool is_written) {
    struct stat info;
    if (::stat(from.c_str(), &info) != 0) return;
    const mode_t mode = (info.st_mode & 07777u) | (is_written ? S_IRUSR | S_IWUSR : 0u);
    (void)!::fchmod(static_cast<int>(to), mode);
}
/// So that the new name survives a loss of power. A file system that cannot do it is left alone.
inline void sync_folder(const std::string& folder) {
    const int fd = ::open(folder.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    (void)!::fsync(fd);
    ::close(fd);
}
inline uint64_t process_number() { return static_cast<uint64_t>(::getpid()); }
constexpr bool kReadsAtOnce = true;
constexpr bool kLocksNames = true;  ///< an open file can be renamed and deleted, and is locked until it is closed

#else  // any other hosted platform: the C library

inline bool is_special(const std::string&) { return false; }
inline std::FILE* stream_of(intptr_t h) { return reinterpret_cast<std::FILE*>(h); }

inline Status open_file(const std::string& path, Mode mode, const std::string& named, intptr_t* to) {
    errno = 0;
    std::FILE* f = std::fopen(path.c_str(), mode == Mode::read ? "rb" : mode == Mode::update ? "r+b" : "w+b");
    if (!f) return refused(named, opening(mode), last_error());
    *to = reinterpret_cast<intptr_t>(f);
    return {};
}
inline void close_file(intptr_t h) { std::fclose(stream_of(h)); }
inline bool seek(intptr_t h, uint64_t at) {
    return at <= INT32_MAX && std::fseek(stream_of(h), static_cast<long>(at), SEEK_SET) == 0;
}
inline bool size_of(intptr_t h, uint64_t* to) {
    if (std::fseek(stream_of(h), 0, SEEK_END) != 0) return false;
    const long size = std::ftell(stream_of(h));
    *to = static_cast<uint64_t>(size);
    return size >= 0;
}
inline int64_t read_some(intptr_t h, uint64_t at, void* to, uint64_t n) {
    if (!seek(h, at)) return -1;
    const size_t got = std::fread(to, 1, static_cast<size_t>(n), stream_of(h));
    return got == 0 && std::ferror(stream_of(h)) ? -1 : static_cast<int64_t>(got);
}
inline int64_t write_some(intptr_t h, uint64_t at, const void* from, uint64_t n) {
    if (!seek(h, at)) return -1;
    const size_t got = std::fwrite(from, 1, static_cast<size_t>(n), stream_of(h));
    return got == 0 ? -1 : static_cast<int64_t>(got);
}
inline bool was_interrupted() { return false; }
inline bool sync_file(intptr_t h) { return std::fflush(stream_of(h)) == 0; }
inline bool cut_file(intptr_t, uint64_t) { return false; }
inline bool rename_file(const std::string& from, const std::string& to) {
    std::remove(to.c_str());
    return std::rename(from.c_str(), to.c_str()) == 0;
}
inline void delete_file(const std::string& path) { std::remove(path.c_str()); }
inline std::string without_links(const std::string& path) { return path; }
inline void copy_mode(const std::string&, intptr_t, bool) {}
inline void sync_folder(const std::string&) {}
inline uint64_t process_number() { return 0; }
inline bool is_updated(intptr_t) { return false; }
constexpr bool kReadsAtOnce = false;  // the place is the stream's
constexpr bool kLocksNames = false;

#endif

}  // namespace disk_file_impl

uint64_t unique_number() {
    Fnv h;
    h.mix(reinterpret_cast<uintptr_t>(&h));
    h.mix(static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()));
    h.mix(static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
    h.mix(disk_file_impl::process_number());
    return h.value;
}

DiskFile::DiskFile(DiskFile&& o) noexcept
    : path_(std::move(o.path_)), handle_(std::exchange(o.handle_, intptr_t{-1})) {}

DiskFile& DiskFile::operator=(DiskFile&& o) noexcept {
    if (this != &o) {
        close();
        path_ = std::move(o.path_);
        handle_ = std::exchange(o.handle_, intptr_t{-1});
    }
    return *this;
}

void DiskFile::close() {
    if (handle_ != -1) disk_file_impl::close_file(handle_);
    handle_ = -1;
}

Result<DiskFile> DiskFile::open(const char* path, Mode mode, const char* named) {
    if (!path || !*path)
        return fail(Code::bad_argument, "the path is ", path ? "empty" : "null", ", expected the name of a file");
    DiskFile f;
    f.path_ = named ? named : path;
    AUSPEX_TRY(disk_file_impl::open_file(path, mode, f.path_, &f.handle_));
    return f;
}

Result<uint64_t> DiskFile::size() const {
    uint64_t n = 0;
    if (!disk_file_impl::size_of(handle_, &n)) return disk_file_impl::refused(path_, "measure", last_error());
    return n;
}

namespace disk_file_impl {

/// What the last system call returned: 1, or 0 where the file ends before, or -1.
int64_t read_all(intptr_t h, uint64_t at, void* to, uint64_t n) {
    std::byte* bytes = static_cast<std::byte*>(to);
    for (uint64_t done = 0; done < n;) {
        const int64_t got = read_some(h, at + done, bytes + done, std::min(n - done, kMaxPiece));
        if (got < 0 && was_interrupted()) continue;
        if (got <= 0) return got;
        done += static_cast<uint64_t>(got);
    }
    return 1;
}

}  // namespace disk_file_impl

Status DiskFile::read(uint64_t at, void* to, uint64_t n) const {
    using namespace disk_file_impl;
    const int64_t got = read_all(handle_, at, to, n);
    if (got > 0) return {};
    return got == 0 ? ended(path_, at, n) : refused(path_, "read", last_error());
}

bool DiskFile::try_read(uint64_t at, void* to, uint64_t n) const {
    return disk_file_impl::read_all(handle_, at, to, n) > 0;
}

bool DiskFile::is_updated() const { return disk_file_impl::is_updated(handle_); }

bool DiskFile::reads_at_once() { return disk_file_impl::kReadsAtOnce; }

Status DiskFile::write(uint64_t at, const void* from, uint64_t n) {
    using namespace disk_file_impl;
    const std::byte* bytes = static_cast<const std::byte*>(from);
    for (uint64_t done = 0; done < n;) {
        const int64_t got = write_some(handle_, at + done, bytes + done, std::min(n - done, kMaxPiece));
        if (got < 0 && was_interrupted()) continue;
        if (got <= 0) return refused(path_, "write", last_error());
        done += static_cast<uint64_t>(got);
    }
    return {};
}

Status DiskFile::sync() {
    if (disk_file_impl::sync_file(handle_)) return {};
    return disk_file_impl::refused(path_, "write", last_error());
}

Status DiskFile::cut(uint64_t size) {
    if (disk_file_impl::cut_file(handle_, size)) return {};
    return disk_file_impl::refused(path_, "shorten", last_error());
}

Status TemporaryFile::create(const char* path) {
    if (!path || !*path)
        return fail(Code::bad_argument, "the path is ", path ? "empty" : "null", ", expected the name of a file");
    path_ = disk_file_impl::without_links(path);
    const size_t slash = path_.rfind('/');
    folder_ =
        slash == std::string::npos ? "." : path_.substr(0, slash + 1);  // now: replace() must not run out of memory
    if (disk_file_impl::is_special(path_)) return disk_file_impl::not_regular(path);
    // A process that is ended while it writes leaves a file, maybe as large as a model: the next one writes over it.
    // Only beside another writer the name is new.
    std::string name = path_ + ".auspex.tmp";
    DiskFile file;
    if (!disk_file_impl::kLocksNames || !DiskFile::open(name.c_str(), DiskFile::Mode::renew, path).get(file).ok()) {
        name = say(path_, ".", unique_number() % 1000000000, ".tmp");
        AUSPEX_TRY(DiskFile::open(name.c_str(), DiskFile::Mode::create, path).get(file));
    }
    name_ = std::move(name);
    file_ = std::move(file);
    disk_file_impl::copy_mode(path_, file_.handle_, true);
    return {};
}

Status TemporaryFile::replace() {
    using namespace disk_file_impl;
    copy_mode(path_, file_.handle_, false);
    AUSPEX_TRY(file_.sync());
    if (!kLocksNames) file_.close();
    if (!rename_file(name_, path_)) return refused(file_.path(), "replace", last_error());
    file_.close();
    name_.clear();
    disk_file_impl::sync_folder(folder_);
    return {};
}

void TemporaryFile::remove() {
    if (!disk_file_impl::kLocksNames) file_.close();
    if (!name_.empty()) disk_file_impl::delete_file(name_);
    file_.close();  // the lock goes after the name: nobody else has opened it by then
    name_.clear();
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
