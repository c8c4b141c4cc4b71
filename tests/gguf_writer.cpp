#include "gguf_writer.h"

#include "encode.h"

namespace test {

using namespace auspex;
using namespace auspex::detail;

namespace {

template <class T>
void put(std::string& s, T v) {
    char b[sizeof(T)];
    std::memcpy(b, &v, sizeof(T));
    s.append(b, sizeof(T));
}
void put_string(std::string& s, std::string_view v) {
    put<uint64_t>(s, v.size());
    s.append(v);
}
template <class T>
std::string bytes_of(T v) {
    std::string s;
    put(s, v);
    return s;
}
/// The bytes of a numeric array.
template <class Stored, class List>
std::string list_bytes(const List& values) {
    std::string s;
    s.reserve(values.size() * sizeof(Stored));
    for (const auto v : values) put<Stored>(s, static_cast<Stored>(v));
    return s;
}
template <class List>
int64_t length(const List& values) {
    return static_cast<int64_t>(values.size());
}
constexpr uint32_t id(MetaType t) { return static_cast<uint32_t>(t); }

}  // namespace

void GgufWriter::add_raw(std::string_view key, uint32_t type, int64_t n, std::string_view bytes) {
    put_string(meta_, key);
    if (n >= 0) {
        put<uint32_t>(meta_, id(MetaType::array));
        put<uint32_t>(meta_, type);
        put<uint64_t>(meta_, static_cast<uint64_t>(n));
    } else {
        put<uint32_t>(meta_, type);
    }
    meta_.append(bytes);
    ++n_meta_;
}

void GgufWriter::add(std::string_view key, std::string_view value) {
    std::string s;
    put_string(s, value);
    add_raw(key, id(MetaType::string), -1, s);
}
void GgufWriter::add(std::string_view key, uint32_t value) {
    if (key == "general.alignment") {
        AUSPEX_ASSERT(infos_.empty() && value != 0 && (value & (value - 1)) == 0);
        alignment_ = value;
    }
    add_raw(key, id(MetaType::u32), -1, bytes_of(value));
}
void GgufWriter::add(std::string_view key, int32_t value) { add_raw(key, id(MetaType::i32), -1, bytes_of(value)); }
void GgufWriter::add(std::string_view key, float value) { add_raw(key, id(MetaType::f32), -1, bytes_of(value)); }
void GgufWriter::add(std::string_view key, bool value) {
    add_raw(key, id(MetaType::boolean), -1, bytes_of<uint8_t>(value ? 1 : 0));
}
void GgufWriter::add(std::string_view key, uint16_t value) { add_raw(key, id(MetaType::u16), -1, bytes_of(value)); }

void GgufWriter::add(std::string_view key, const std::vector<std::string>& values) {
    std::string s;
    for (const std::string& v : values) put_string(s, v);
    add_raw(key, id(MetaType::string), length(values), s);
}
void GgufWriter::add(std::string_view key, const std::vector<int32_t>& values) {
    add_raw(key, id(MetaType::i32), length(values), list_bytes<int32_t>(values));
}
void GgufWriter::add(std::string_view key, const std::vector<uint32_t>& values) {
    add_raw(key, id(MetaType::u32), length(values), list_bytes<uint32_t>(values));
}
void GgufWriter::add(std::string_view key, const std::vector<float>& values) {
    add_raw(key, id(MetaType::f32), length(values), list_bytes<float>(values));
}
void GgufWriter::add(std::string_view key, const std::vector<bool>& values) {
    add_raw(key, id(MetaType::boolean), length(values), list_bytes<uint8_t>(values));
}

void GgufWriter::tensor(std::string_view name, Type type, const std::vector<uint64_t>& ne,
                        Span<const std::byte> bytes) {
    AUSPEX_ASSERT(!ne.empty() && ne.size() <= 4 && !name.empty() && name.size() <= 63);
    AUSPEX_ASSERT(ne[0] % type_info(type).n_block == 0);
    uint64_t needed = row_bytes(type, ne[0]);
    for (size_t i = 1; i < ne.size(); ++i) needed *= ne[i];
    AUSPEX_ASSERT(bytes.size() == needed);
    (void)needed;
    data_.resize(static_cast<size_t>(round_up(data_.size(), alignment_)));
    infos_.push_back({std::string(name), type, ne, data_.size()});
    if (!bytes.empty()) data_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void GgufWriter::tensor(std::string_view name, Type type, const std::vector<uint64_t>& ne, Span<const float> values) {
    AUSPEX_ASSERT(type_info(type).supported);
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(type, values.size())));
    encode(type, values.data(), bytes.data(), values.size());  // rows are whole blocks: one long row is all rows
    tensor(name, type, ne, Span<const std::byte>(bytes));
}

std::vector<std::byte> GgufWriter::finish() const {
    std::string head = "GGUF";
    put<uint32_t>(head, 3);
    put<uint64_t>(head, infos_.size());
    put<uint64_t>(head, n_meta_);
    head += meta_;
    for (const Info& info : infos_) {
        put_string(head, info.name);
        put<uint32_t>(head, static_cast<uint32_t>(info.ne.size()));
        for (const uint64_t n : info.ne) put<uint64_t>(head, n);
        put<uint32_t>(head, static_cast<uint32_t>(info.type));
        put<uint64_t>(head, info.offset);
    }
    head.resize(static_cast<size_t>(round_up(head.size(), alignment_)));
    std::vector<std::byte> file(head.size() + data_.size());
    std::memcpy(file.data(), head.data(), head.size());
    if (!data_.empty()) std::memcpy(file.data() + head.size(), data_.data(), data_.size());
    return file;
}

}  // namespace test
