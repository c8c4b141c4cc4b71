#include "packed_file.h"

#include <algorithm>

#include "../../base/disk_file.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

constexpr char PackedFile::kMagic[9];

bool PackedFile::read_entries(const File& file, uint64_t key, std::vector<Entry>* to) {
    const Span<const std::byte> all = file.bytes();
    Header h;
    std::memcpy(&h, all.data(), sizeof h);
    const uint64_t n_max = (all.size() - sizeof h) / sizeof(Entry);
    if (h.key != key || h.file_bytes != all.size() || h.n_entry == 0 || h.n_entry > n_max) return false;
    const size_t n_byte = static_cast<size_t>(h.n_entry) * sizeof(Entry);
    if (checksum_of(all.data() + sizeof h, n_byte) != h.checksum) return false;
    to->resize(static_cast<size_t>(h.n_entry));
    std::memcpy(to->data(), all.data() + sizeof h, n_byte);
    for (const Entry& e : *to)
        if (e.offset % 64 != 0 || e.offset > all.size() || e.bytes > all.size() - e.offset) return false;
    return true;
}

Result<PackedFile> PackedFile::open(const std::string& path, uint64_t key) {
    PackedFile packed;
    DiskFile probe;
    const Status found = DiskFile::open(path.c_str(), DiskFile::Mode::read).get(probe);
    if (found.code == Code::not_found) return packed;
    AUSPEX_TRY(found);
    uint64_t size = 0;
    AUSPEX_TRY(probe.size().get(size));
    char magic[8] = {};
    if (size > 0) AUSPEX_TRY(probe.read(0, magic, static_cast<size_t>(std::min<uint64_t>(size, sizeof magic))));
    if (size > 0 && std::memcmp(magic, kMagic, sizeof magic) != 0)
        return fail(Code::bad_argument, "'", path,
                    "' is no file of packed weights and is left as it is; name a new file for them");
    if (size < sizeof(Header)) return packed;
    probe.close();
    File file;
    AUSPEX_TRY(File::open(path.c_str()).get(file));
    std::vector<Entry> entries;
    if (file.bytes().size() < sizeof(Header) || !read_entries(file, key, &entries)) return packed;
    packed.file_ = std::move(file);
    packed.entries_ = std::move(entries);
    return packed;
}

Status PackedFile::write(const std::string& path, uint64_t key, Span<const Part> parts) {
    Header h{};
    std::memcpy(h.magic, kMagic, sizeof h.magic);
    h.key = key;
    h.n_entry = parts.size();
    std::vector<Entry> entries;
    uint64_t at = round_up(sizeof h + parts.size() * sizeof(Entry), 64);
    for (const Part& p : parts) {
        entries.push_back({p.slot, at, p.bytes.size()});
        at = round_up(at + p.bytes.size(), 64);
    }
    h.file_bytes = at;
    h.checksum = checksum_of(entries.data(), entries.size() * sizeof(Entry));
    TemporaryFile to;
    AUSPEX_TRY(to.create(path.c_str()));
    AUSPEX_TRY(to.file().cut(at));
    AUSPEX_TRY(to.file().write(0, &h, sizeof h));
    AUSPEX_TRY(to.file().write(sizeof h, entries.data(), entries.size() * sizeof(Entry)));
    for (size_t i = 0; i < parts.size(); ++i)
        AUSPEX_TRY(to.file().write(entries[i].offset, parts[i].bytes.data(), parts[i].bytes.size()));
    return to.replace();
}

Span<const std::byte> PackedFile::find(uint32_t slot) const {
    const auto e =
        std::lower_bound(entries_.begin(), entries_.end(), slot, [](const Entry& a, uint32_t b) { return a.slot < b; });
    if (e == entries_.end() || e->slot != slot) return {};
    return file_.bytes().subspan(static_cast<size_t>(e->offset), static_cast<size_t>(e->bytes));
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
