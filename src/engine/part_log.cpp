#include "part_log.h"

#include "../machine/pool.h"

#include <algorithm>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace part_log_impl {

constexpr char kMagic[8] = {'a', 'u', 's', 'p', 'e', 'x', 'L', '1'};
constexpr char kTailMagic[8] = {'a', 'u', 's', 'p', 'e', 'x', 'C', 'T'};
constexpr uint32_t kRecordMagic = 0x74726170;        // "part"
constexpr uint64_t kMaxRecords = uint64_t{1} << 22;  // that a search for the last commit passes
// One thread reads and adds up 3 to 6 GB/s, starting some takes a tenth of a millisecond.
constexpr uint64_t kVerifyTogether = uint64_t{16} << 20;
constexpr uint32_t kVerifyThreads = 4;

struct LogHead {
    char magic[8];
    uint64_t file_id;
    uint64_t identity_bytes;
    uint64_t checksum;  ///< of the three before it, and of the identity
};
struct RecordHead {
    uint32_t magic, kind;
    uint64_t bytes, file_id;
    uint64_t checksum;  ///< of the 24 bytes before, and of the record's place
};
struct LogTail {
    uint64_t n_part, sequence;
    uint64_t checksum;  ///< of the parts, of the two before it, of the file's number and of the record's place
    char magic[8];
};
static_assert(sizeof(LogHead) == 32 && sizeof(RecordHead) == 32 && sizeof(LogTail) == 32, "part of the file format");

uint64_t checksum_of_head(const LogHead& head, Span<const std::byte> identity) {
    Checksum sum;
    sum.add(&head, offsetof(LogHead, checksum));
    sum.add(identity.data(), identity.size());
    return sum.value();
}
uint64_t checksum_of_record(const RecordHead& head, uint64_t at) {
    Checksum sum;
    sum.add(&head, offsetof(RecordHead, checksum));
    sum.add(&at, sizeof at);
    return sum.value();
}
/// at: of the record.
uint64_t checksum_of_commit(Span<const LogPart> parts, const LogTail& tail, uint64_t file_id, uint64_t at) {
    Checksum sum;
    sum.add(parts.data(), parts.size() * sizeof(LogPart));
    sum.add(&tail, offsetof(LogTail, checksum));
    sum.add(&file_id, sizeof file_id);
    sum.add(&at, sizeof at);
    return sum.value();
}

Status damaged(const DiskFile& file, const char* what) {
    return fail(Code::bad_file, "'", file.path(), "' is damaged: ", what,
                ". Use a copy of it if there is one, or delete it and start again.");
}

}  // namespace part_log_impl

// --------------------------------------------------------------------------------------- reading

Status LogReader::read_head(uint64_t size) {
    using namespace part_log_impl;
    LogHead head{};
    if (size >= sizeof head) AUSPEX_TRY(file_.read(0, &head, sizeof head));
    if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0)
        return fail(Code::bad_file, "'", file_.path(),
                    "' is no saved session, or one of another version. Name another file.");
    if (head.identity_bytes > kMaxIdentity || head.identity_bytes % 8 != 0)
        return damaged(file_, "its head has an impossible size");
    identity_.resize(static_cast<size_t>(head.identity_bytes));
    AUSPEX_TRY(file_.read(sizeof head, identity_.data(), identity_.size()));
    if (checksum_of_head(head, identity_) != head.checksum) return damaged(file_, "the checksum of its head differs");
    mark_.file_id = head.file_id;
    first_record_ = sizeof head + head.identity_bytes;
    return {};
}

/// Takes the commit whose record begins at `at` if it is whole.
bool LogReader::read_commit(uint64_t at, uint64_t bytes) {
    using namespace part_log_impl;
    if (bytes < sizeof(LogTail) || (bytes - sizeof(LogTail)) % sizeof(LogPart) != 0) return false;
    const uint64_t n = (bytes - sizeof(LogTail)) / sizeof(LogPart);
    if (n > kMaxLogParts) return false;
    LogTail tail{};
    const uint64_t parts_at = at + sizeof(RecordHead), tail_at = parts_at + n * sizeof(LogPart);
    if (!file_.read(tail_at, &tail, sizeof tail).ok() || tail.n_part != n ||
        std::memcmp(tail.magic, kTailMagic, sizeof kTailMagic) != 0)
        return false;
    std::vector<LogPart> parts(static_cast<size_t>(n));
    if (!file_.read(parts_at, parts.data(), n * sizeof(LogPart)).ok()) return false;
    if (checksum_of_commit(parts, tail, mark_.file_id, at) != tail.checksum) return false;
    uint64_t room = at - first_record_;  // of all parts together, so that reading them takes no longer than the file
    for (const LogPart& p : parts) {
        if (p.at < first_record_ || p.at > at || p.bytes > std::min(at - p.at, room)) return false;
        room -= p.bytes;
    }
    parts_ = std::move(parts);
    mark_.sequence = tail.sequence;
    mark_.end = tail_at + sizeof tail;
    return true;
}

/// Takes the commit with which the file ends, if it does.
Result<bool> LogReader::find_commit(uint64_t size) {
    using namespace part_log_impl;
    LogTail tail{};
    if (size < first_record_ || size - first_record_ < sizeof(RecordHead) + sizeof tail) return false;
    const Status s = file_.read(size - sizeof tail, &tail, sizeof tail);
    if (s.code == Code::bad_file) return false;  // its writer has just given up and made it shorter
    AUSPEX_TRY(s);
    const uint64_t room = (size - first_record_ - sizeof(RecordHead) - sizeof tail) / sizeof(LogPart);
    if (tail.n_part > std::min(room, kMaxLogParts)) return false;
    const uint64_t bytes = tail.n_part * sizeof(LogPart) + sizeof tail;
    return read_commit(size - bytes - sizeof(RecordHead), bytes);
}

/// Finds the last whole commit of a file that does not end with one.
void LogReader::scan(uint64_t size) {
    using namespace part_log_impl;
    uint64_t at = first_record_;
    for (uint64_t i = 0; i < kMaxRecords && size - at >= sizeof(RecordHead); ++i) {
        RecordHead head;
        if (!file_.read(at, &head, sizeof head).ok()) return;
        if (head.magic != kRecordMagic || head.file_id != mark_.file_id ||
            checksum_of_record(head, at) != head.checksum)
            return;
        if (head.bytes > size - at - sizeof head) return;
        if (head.kind == 0) (void)read_commit(at, head.bytes);
        at += std::min(size - at, log_bytes_of(head.bytes));
    }
}

Status LogReader::open(const char* path) {
    using namespace part_log_impl;
    AUSPEX_TRY(DiskFile::open(path, DiskFile::Mode::read).get(file_));
    uint64_t size = 0;
    AUSPEX_TRY(file_.size().get(size));
    AUSPEX_TRY(read_head(size));
    buffer_.resize(kLogBuffer);
    for (uint64_t before = ~size; before != size;) {
        bool found = false;
        AUSPEX_TRY(find_commit(size).get(found));
        if (found) recovered_ = false;
        if (found) return {};
        scan(size);
        recovered_ = !file_.is_updated();
        if (!recovered_) break;
        before = size;  // a save may have ended since: then the size is another
        AUSPEX_TRY(file_.size().get(size));
    }
    if (mark_.end != 0) return {};
    return damaged(file_, "it is cut short before its first save ends, or that save's index does not fit its checksum");
}

bool LogReader::intact(const LogPart& part, Span<std::byte> buffer) const {
    Checksum sum;
    for (uint64_t at = 0; at < part.bytes;) {
        const uint64_t n = std::min<uint64_t>(buffer.size(), part.bytes - at);
        if (!file_.try_read(part.at + at, buffer.data(), n)) return false;
        sum.add(buffer.data(), static_cast<size_t>(n));
        at += n;
    }
    return sum.value() == part.checksum;
}

/// Of the parts before it each is intact; how many there are if all are.
Result<size_t> LogReader::n_intact(bool together) {
    using namespace part_log_impl;
    uint64_t bytes = 0;
    for (const LogPart& p : parts_) bytes += p.bytes;
    std::unique_ptr<Pool> pool;
    together = together && bytes >= kVerifyTogether && DiskFile::reads_at_once();
    const uint32_t n_thread = together ? kVerifyThreads : 1;
    if (!Pool::open(n_thread).get(pool).ok()) AUSPEX_TRY(Pool::open(1).get(pool));
    struct Job {
        LogReader& log;
        std::atomic<size_t> next, damaged;
    } job{*this, {0}, {parts_.size()}};
    pool->run(
        [](void* context, uint32_t i_thread, uint32_t n_thread) {
            Job& j = *static_cast<Job*>(context);
            const size_t n_byte = j.log.buffer_.size() / n_thread;  // each has a part of the one buffer
            const Span<std::byte> buffer(j.log.buffer_.data() + i_thread * n_byte, n_byte);
            for (size_t i; (i = j.next++) < j.damaged;)
                if (!j.log.intact(j.log.parts_[i], buffer))
                    for (size_t known = j.damaged; i < known && !j.damaged.compare_exchange_weak(known, i);) {
                    }
        },
        &job);
    return size_t{job.damaged};
}

Status LogReader::verify(bool together) {
    size_t i = 0;
    AUSPEX_TRY(n_intact(together).get(i));
    for (; i < parts_.size(); ++i) AUSPEX_TRY(PartReader(*this, parts_[i]).finish());  // says what is wrong
    return {};
}

Status PartReader::load() {
    std::vector<std::byte>& buffer = log_.buffer();
    const uint64_t n = std::min<uint64_t>(buffer.size(), part_.bytes - loaded_);
    AUSPEX_TRY(log_.file().read(part_.at + loaded_, buffer.data(), n));
    sum_.add(buffer.data(), static_cast<size_t>(n));
    loaded_ += n;
    at_ = 0;
    end_ = static_cast<size_t>(n);
    return {};
}

Status PartReader::read(void* to, uint64_t n) {
    if (n > left())
        return fail(Code::bad_file, "'", log_.file().path(), "': a part of ", part_.bytes, " bytes ends ", n - left(),
                    " bytes too early. The file is damaged.");
    std::byte* bytes = static_cast<std::byte*>(to);
    while (n != 0) {
        if (at_ == end_) AUSPEX_TRY(load());
        const size_t k = static_cast<size_t>(std::min<uint64_t>(n, end_ - at_));
        if (bytes != nullptr) {
            std::memcpy(bytes, log_.buffer().data() + at_, k);
            bytes += k;
        }
        at_ += k;
        done_ += k;
        n -= k;
    }
    return {};
}

Status PartReader::skip(uint64_t n) { return read(nullptr, n); }

Status PartReader::finish() {
    AUSPEX_TRY(skip(left()));
    if (sum_.value() == part_.checksum) return {};
    return part_log_impl::damaged(log_.file(), say("the checksum of the part at byte ", part_.at, " differs").c_str());
}

// --------------------------------------------------------------------------------------- writing

LogWriter::~LogWriter() {
    if (appends_ && !committed_ && at_ + n_buffer_ != begin_) (void)file_.cut(begin_);
}

Status LogWriter::create(const char* path, Span<const std::byte> identity) {
    using namespace part_log_impl;
    buffer_.resize(kLogBuffer);
    AUSPEX_TRY(temporary_.create(path));
    LogHead head{};
    std::memcpy(head.magic, kMagic, sizeof kMagic);
    mark_.file_id = head.file_id = unique_number();
    head.identity_bytes = identity.size();
    head.checksum = checksum_of_head(head, identity);
    AUSPEX_TRY(put(&head, sizeof head));
    return put(identity.data(), identity.size());
}

Result<bool> LogWriter::append(const char* path, const LogMark& last) {
    using namespace part_log_impl;
    buffer_.resize(kLogBuffer);
    DiskFile file;
    if (!DiskFile::open(path, DiskFile::Mode::update).get(file).ok()) return false;
    uint64_t size = 0;
    LogHead head{};
    LogTail tail{};
    if (!file.size().get(size).ok() || size != last.end || size < sizeof head + sizeof tail) return false;
    if (!file.read(0, &head, sizeof head).ok() || !file.read(size - sizeof tail, &tail, sizeof tail).ok()) return false;
    if (head.file_id != last.file_id || tail.sequence != last.sequence ||
        std::memcmp(tail.magic, kTailMagic, sizeof kTailMagic) != 0)
        return false;
    file_ = std::move(file);
    mark_ = last;
    begin_ = at_ = size;
    appends_ = true;
    return true;
}

Status LogWriter::flush() {
    AUSPEX_TRY(file().write(at_, buffer_.data(), n_buffer_));
    at_ += n_buffer_;
    n_buffer_ = 0;
    return {};
}

/// sum: if given, adds the bytes as they lie in the buffer: the source may be slow to read twice.
Status LogWriter::put(const void* from, uint64_t n, Checksum* sum) {
    const std::byte* bytes = static_cast<const std::byte*>(from);
    while (n != 0) {
        const size_t k = static_cast<size_t>(std::min<uint64_t>(n, buffer_.size() - n_buffer_));
        std::memcpy(buffer_.data() + n_buffer_, bytes, k);
        if (sum) sum->add(buffer_.data() + n_buffer_, k);
        n_buffer_ += k;
        bytes += k;
        n -= k;
        if (n_buffer_ == buffer_.size()) AUSPEX_TRY(flush());
    }
    return {};
}

Status LogWriter::pad() {
    constexpr std::byte kZero[8] = {};
    return put(kZero, round_up(at_ + n_buffer_, 8) - (at_ + n_buffer_));
}

Status LogWriter::begin_record(uint32_t kind, uint64_t bytes) {
    using namespace part_log_impl;
    RecordHead head{kRecordMagic, kind, bytes, mark_.file_id, 0};
    head.checksum = checksum_of_record(head, at_ + n_buffer_);
    return put(&head, sizeof head);
}

Status LogWriter::begin_part(const LogPart& part) {
    AUSPEX_TRY(begin_record(part.kind, part.bytes));
    part_ = part;
    part_.at = at_ + n_buffer_;
    n_part_ = 0;
    sum_ = Checksum();
    return {};
}

Status LogWriter::write(const void* from, uint64_t n) {
    if (n > part_.bytes - n_part_)
        return fail(Code::bad_argument, "a part of ", part_.bytes, " bytes was given ", n_part_ + n);
    n_part_ += n;
    return put(from, n, &sum_);
}

Status LogWriter::end_part(LogPart* part) {
    if (n_part_ != part_.bytes)
        return fail(Code::bad_argument, "a part of ", part_.bytes, " bytes was given ", n_part_);
    part_.checksum = sum_.value();
    *part = part_;
    return pad();
}

Status LogWriter::commit(Span<const LogPart> parts, LogMark* mark) {
    using namespace part_log_impl;
    AUSPEX_TRY(flush());
    if (appends_) AUSPEX_TRY(file_.sync());  // the parts are on the disk before the commit that names them
    LogTail tail{};
    const uint64_t at = at_;
    tail.n_part = parts.size();
    tail.sequence = mark_.sequence + 1;
    std::memcpy(tail.magic, kTailMagic, sizeof kTailMagic);
    tail.checksum = checksum_of_commit(parts, tail, mark_.file_id, at);
    AUSPEX_TRY(begin_record(0, parts.size() * sizeof(LogPart) + sizeof tail));
    AUSPEX_TRY(put(parts.data(), parts.size() * sizeof(LogPart)));
    AUSPEX_TRY(put(&tail, sizeof tail));
    AUSPEX_TRY(flush());
    AUSPEX_TRY(appends_ ? file_.sync() : temporary_.replace());
    committed_ = true;
    *mark = {mark_.file_id, tail.sequence, at_};
    return {};
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
