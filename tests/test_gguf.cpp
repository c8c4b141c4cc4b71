// Tests of base/gguf: a valid file is read exactly, an invalid one is rejected with a reason.
#include "../src/base/file.h"
#include "../src/base/gguf.h"
#include "gguf_writer.h"
#include "support.h"

#include <doctest/doctest.h>

#include <limits>

namespace {

using namespace auspex;
using namespace auspex::detail;
using test::GgufWriter;

/// A file written field by field, so that every field can lie. Kept in a vector of exactly its size,
/// so that a sanitizer sees the first byte read too many.
struct Raw {
    std::string s;
    template <class T>
    Raw& put(T v) {
        char b[sizeof(T)];
        std::memcpy(b, &v, sizeof(T));
        s.append(b, sizeof(T));
        return *this;
    }
    Raw& u32(uint32_t v) { return put(v); }
    Raw& u64(uint64_t v) { return put(v); }
    Raw& text(std::string_view v) {
        u64(v.size());
        s.append(v);
        return *this;
    }
    Raw& header(uint64_t n_tensor, uint64_t n_meta, uint32_t version = 3) {
        s += "GGUF";
        return u32(version).u64(n_tensor).u64(n_meta);
    }
    Raw& key(std::string_view name, uint32_t type) { return text(name).u32(type); }
    Raw& tensor(std::string_view name, const std::vector<uint64_t>& ne, uint32_t type, uint64_t offset) {
        text(name).u32(static_cast<uint32_t>(ne.size()));
        for (const uint64_t n : ne) u64(n);
        return u32(type).u64(offset);
    }
    Raw& pad(size_t to = 32) {
        s.resize((s.size() + to - 1) / to * to);
        return *this;
    }
    Raw& zeros(size_t n) {
        s.append(n, '\0');
        return *this;
    }
    std::vector<std::byte> bytes() const {
        const std::byte* p = reinterpret_cast<const std::byte*>(s.data());
        return std::vector<std::byte>(p, p + s.size());
    }
};

Status verdict(const std::vector<std::byte>& file) { return Gguf::parse(file).status(); }
Status verdict(const Raw& raw) { return verdict(raw.bytes()); }
bool contains(const Status& s, const std::string& part) { return s.text.find(part) != std::string::npos; }

/// The file is refused with this code, and the text has each of these parts.
void refused(const Status& s, Code code, std::initializer_list<const char*> parts) {
    CAPTURE(s.message());
    CHECK(s.code == code);
    for (const char* part : parts) {
        CAPTURE(std::string(part));
        CHECK(contains(s, part));
    }
}

std::string floats(size_t n) { return std::string(n * 4, '\0'); }
Span<const std::byte> as_bytes(const std::string& s) {
    return {reinterpret_cast<const std::byte*>(s.data()), s.size()};
}
template <class T>
std::string raw_bytes(T v) {
    return std::string(Raw().put(v).s);
}

/// One shard of a split model with one small tensor, or none.
std::vector<std::byte> shard(uint16_t no, uint16_t count, int32_t n_tensor, const char* tensor_name,
                             const char* architecture = nullptr) {
    GgufWriter w;
    if (architecture) w.add("general.architecture", architecture);
    w.add("split.no", no);
    w.add("split.count", count);
    w.add("split.tensors.count", n_tensor);
    if (tensor_name) w.tensor(tensor_name, Type::f32, {2}, as_bytes(floats(2)));
    return w.finish();
}
Result<Gguf> joined(const std::vector<std::vector<std::byte>>& files) {
    std::vector<Gguf> parsed;
    for (const auto& f : files) {
        auto g = Gguf::parse(f);
        if (!g.ok()) return g.status();
        parsed.push_back(std::move(g.value()));
    }
    return Gguf::join(std::move(parsed));
}

std::vector<std::byte> unhex(const std::string& s) {
    const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
    std::vector<std::byte> b;
    for (size_t i = 0; i + 1 < s.size(); i += 2)
        b.push_back(static_cast<std::byte>(digit(s[i]) << 4 | digit(s[i + 1])));
    return b;
}

}  // namespace

TEST_CASE("the reader reads back what the writer wrote") {
    test::Random random(5);
    const std::vector<float> values = random.normals(64 * 3);
    GgufWriter w;
    w.add("general.architecture", "qwen35");
    w.add("a.u32", uint32_t{17});
    w.add("a.i32", int32_t{-5});
    w.add("a.f32", 1.5f);
    w.add("a.bool", true);
    w.add("a.u16", uint16_t{65535});
    w.add("a.strings", std::vector<std::string>{"one", "", "three"});
    w.add("a.i32s", std::vector<int32_t>{3, 4, -1});
    w.add("a.u32s", std::vector<uint32_t>{1, 2});
    w.add("a.f32s", std::vector<float>{0.25f, 4});
    w.add("a.bools", std::vector<bool>{true, false, true});
    w.tensor("first", Type::f32, {64, 3}, Span<const float>(values));
    w.tensor("odd", Type::q8_0, {32}, Span<const float>(values.data(), 32));  // 34 bytes: padding follows
    w.tensor("last", Type::f16, {2, 2, 2, 2}, Span<const float>(values.data(), 16));
    const std::vector<std::byte> file = w.finish();

    const auto parsed = Gguf::parse(file);
    REQUIRE_MESSAGE(parsed.ok(), parsed.status().message());
    const Gguf& g = parsed.value();
    CHECK(g.version() == 3);
    CHECK(g.file_bytes() == file.size());
    CHECK(g.meta().size() == 11);
    CHECK(g.meta()[1].key == "a.u32");  // in file order
    CHECK(g.get_string("general.architecture").value() == "qwen35");
    CHECK(g.get_u32("a.u32").value() == 17);
    CHECK(g.get_u32("a.u16").value() == 65535);
    CHECK(g.get_f32("a.f32").value() == 1.5f);
    CHECK(g.get_f32("a.i32").value() == -5);
    CHECK(g.get_bool("a.bool", false).value());
    const Meta* strings = g.find("a.strings");
    REQUIRE(strings);
    CHECK(strings->is_array);
    CHECK(strings->strings == std::vector<std::string_view>{"one", "", "three"});
    int64_t i = 0;
    CHECK(g.find("a.i32s")->get_int(2, &i));
    CHECK(i == -1);
    CHECK_FALSE(g.find("a.i32s")->get_int(3, &i));
    CHECK_FALSE(strings->get_int(0, &i));
    CHECK(g.find("a.i32s")->is_integer());
    CHECK_FALSE(g.find("a.bools")->is_integer());
    CHECK(g.find("a.bools")->get_int(1, &i));
    CHECK(i == 0);
    CHECK(g.find("no.such.key") == nullptr);

    REQUIRE(g.tensors().size() == 3);
    const Tensor* first = g.tensor("first");
    REQUIRE(first);
    CHECK(first->n_dim == 2);
    CHECK(first->ne[0] == 64);
    CHECK(first->ne[1] == 3);
    CHECK(first->ne[3] == 1);
    CHECK(first->bytes == 64 * 3 * 4);
    CHECK(first->file_offset % 32 == 0);
    CHECK(first->data == file.data() + first->file_offset);
    CHECK(std::memcmp(first->data, values.data(), first->bytes) == 0);
    CHECK(g.tensor("odd")->bytes == 34);
    CHECK(g.tensor("last")->file_offset == g.tensor("odd")->file_offset + 64);
    CHECK(f16_to_f32(load<uint16_t>(g.tensor("last")->data)) == f16_to_f32(f32_to_f16(values[0])));
    CHECK(g.tensor("fir") == nullptr);
}

TEST_CASE("every supported type can be stored, and its size follows from its shape") {
    GgufWriter w;
    const std::vector<float> x = test::Random(9).normals(512);
    std::vector<Type> types;
    for (uint32_t id = 0; id < 64; ++id)
        if (type_info(id).supported) {
            types.push_back(static_cast<Type>(id));
            w.tensor(type_info(id).name, types.back(), {256, 2}, Span<const float>(x));
        }
    const std::vector<std::byte> file = w.finish();
    const auto parsed = Gguf::parse(file);
    REQUIRE_MESSAGE(parsed.ok(), parsed.status().message());
    for (const Type t : types) {
        const Tensor* tensor = parsed.value().tensor(type_info(t).name);
        REQUIRE(tensor);
        CHECK(tensor->type == t);
        CHECK(tensor->bytes == 2 * row_bytes(t, 256));
    }
}

TEST_CASE("versions 2 and 3 are read, and a file may consist of metadata only") {
    CHECK(verdict(Raw().header(0, 0, 2)).ok());
    CHECK(verdict(Raw().header(0, 0, 3)).ok());
    CHECK(verdict(Raw().header(0, 0).pad()).ok());
    CHECK(verdict(Raw().header(0, 1).key("k", 0).put<uint8_t>(1)).ok());  // 38 bytes, nothing after
    Raw v2;
    v2.header(1, 0, 2).tensor("a", {4}, 0, 0).pad().zeros(16);
    CHECK(verdict(v2).ok());
}

TEST_CASE("a file that is not GGUF of a known version is rejected with advice") {
    refused(verdict(Raw()), Code::bad_file, {"0 bytes", "24 bytes", "download"});
    refused(verdict(Raw().u32(0x46554747).u32(3)), Code::bad_file, {"8 bytes"});
    Raw lfs, page, magic;
    lfs.s = "version https://git-lfs.github.com/spec/v1";
    page.s = "<!DOCTYPE html><html><head></head></html>";
    magic.s = std::string("GGML") + floats(10);
    refused(verdict(lfs), Code::bad_file, {"'vers'", "expected 'GGUF'", "git lfs pull"});
    refused(verdict(page), Code::bad_file, {"'<!DO'", "web page"});
    refused(verdict(magic), Code::bad_file, {"'GGML'"});
    magic.s = "PK\3\4" + floats(10);
    refused(verdict(magic), Code::bad_file, {"'PK\\x03\\x04'", "PyTorch or zip archive"});
    for (const char* old : {"ggml", "tjgg", "fmgg", "lmgg"}) {
        magic.s = old + floats(10);
        refused(verdict(magic), Code::bad_file, {"from before GGUF"});
    }
    refused(verdict(Raw().header(0, 0, 1)), Code::unsupported, {"version 1", "expected version 2 or 3"});
    refused(verdict(Raw().header(0, 0, 4)), Code::unsupported, {"version 4"});
    refused(verdict(Raw().header(0, 0, 0)), Code::unsupported, {"version 0"});
    refused(verdict(Raw().header(0, 0, 0x03000000)), Code::unsupported, {"big-endian"});
    refused(verdict(Raw().header(0, 0, 0x02000000)), Code::unsupported, {"big-endian"});
}

TEST_CASE("counts that the file cannot hold are refused before anything is reserved") {
    refused(verdict(Raw().header(0, uint64_t{1} << 60).zeros(64)), Code::bad_file,
            {"1152921504606846976 metadata keys", "at most 4"});
    refused(verdict(Raw().header(UINT64_MAX, 0).zeros(64)), Code::bad_file, {"tensors", "at most 2"});
    refused(verdict(Raw().header(0, 70000).zeros(2000000)), Code::bad_file, {"at most 65536"});
    refused(verdict(Raw().header((1u << 20) + 1, 0).zeros((size_t{1} << 20) * 24 + 64)), Code::bad_file,
            {"at most 1048576"});
    // the counts fit one by one, but not together
    refused(verdict(Raw().header(2, 1).key("k", 8).text(std::string(30, 'x')).zeros(24)), Code::bad_file,
            {"2 tensors", "after the metadata"});
}

TEST_CASE("strings and arrays beyond the file or the limits are rejected") {
    refused(verdict(Raw().header(0, 1).u64(UINT64_MAX - 3).zeros(40)), Code::bad_file,
            {"18446744073709551612 bytes", "expected at most"});
    refused(verdict(Raw().header(0, 1).text(std::string(65536, 'k')).zeros(40)), Code::bad_file,
            {"65536 bytes", "65535"});
    refused(verdict(Raw().header(0, 1).key("k", 8).u64(65).zeros(64)), Code::bad_file,
            {"value of key 'k'", "65 bytes", "64"});
    refused(verdict(Raw().header(0, 1).key("k", 8).zeros(4)), Code::bad_file,
            {"ends inside the value of key 'k'", "expected 8 more bytes, found 4"});
    refused(verdict(Raw().header(0, 1).key("key", 4).zeros(3)), Code::bad_file,
            {"'key'", "expected 4 more bytes, found 3"});
    const auto array = [](uint32_t type, uint64_t n, size_t n_bytes) {
        return Raw().header(0, 1).key("k", 9).u32(type).u64(n).zeros(n_bytes);
    };
    CHECK(verdict(array(4, 4, 16)).ok());
    CHECK(verdict(array(4, 0, 0)).ok());
    CHECK(verdict(array(8, 3, 24)).ok());  // three empty strings
    refused(verdict(array(4, 5, 16)), Code::bad_file, {"array of 5 elements", "at most 4"});
    refused(verdict(array(4, uint64_t{1} << 62, 16)), Code::bad_file, {"at most 4"});  // times 4 would wrap
    refused(verdict(array(8, 4, 24)), Code::bad_file, {"array of 4 elements", "at most 3"});
    refused(verdict(array(9, 1, 64)), Code::unsupported, {"array of arrays"});
    refused(verdict(array(13, 1000, 64)), Code::bad_file, {"type id 13", "0 to 12"});
    refused(verdict(array(0xffffffffu, UINT64_MAX, 64)), Code::bad_file, {"type id 4294967295"});
    Raw long_token;
    long_token.header(0, 1).key("k", 9).u32(8).u64(1).text(std::string((1u << 20) + 1, 'x'));
    refused(verdict(long_token), Code::bad_file, {"1048577 bytes", "1048576"});
}

TEST_CASE("duplicate keys, keys with control characters and unknown types are rejected") {
    refused(verdict(Raw().header(0, 1).key("k", 13).zeros(32)), Code::bad_file, {"'k'", "type id 13"});
    refused(verdict(Raw().header(0, 1).key("", 4).zeros(32)), Code::bad_file, {"key ''", "at least one character"});
    refused(verdict(Raw().header(0, 1).key(std::string_view("a\0\n", 3), 4).zeros(32)), Code::bad_file,
            {"'a\\x00\\x0a'"});
    refused(verdict(Raw().header(0, 2).key("k", 4).u32(1).key("k", 4).u32(1)), Code::bad_file,
            {"'k'", "more than once"});
    refused(verdict(Raw().header(0, 1).key("k", 7).put<uint8_t>(2)), Code::bad_file, {"boolean 0 is 2", "0 or 1"});
    refused(verdict(Raw().header(0, 1).key("k", 9).u32(7).u64(3).put<uint8_t>(1).put<uint8_t>(0).put<uint8_t>(255)),
            Code::bad_file, {"boolean 2 is 255"});
}

TEST_CASE("the alignment is a power of two from 8 to a mebibyte") {
    const auto aligned = [](uint32_t a) { return verdict(Raw().header(0, 1).key("general.alignment", 4).u32(a)); };
    for (const uint32_t good : {8u, 32u, 64u, 1u << 20}) CHECK(aligned(good).ok());
    for (const uint32_t bad : {0u, 1u, 4u, 48u, 1u << 21, 1u << 31})
        refused(aligned(bad), Code::bad_file, {"general.alignment", "power of two from 8 to 1048576"});
    refused(verdict(Raw().header(0, 1).key("general.alignment", 10).u64(32)), Code::bad_file,
            {"general.alignment", "u32"});
    refused(verdict(Raw().header(0, 1).key("general.alignment", 9).u32(4).u64(1).u32(32)), Code::bad_file,
            {"single u32"});

    GgufWriter w;
    w.add("general.alignment", uint32_t{128});
    w.tensor("a", Type::f32, {1}, as_bytes(floats(1)));
    w.tensor("b", Type::f32, {1}, as_bytes(floats(1)));
    const std::vector<std::byte> file = w.finish();
    const auto g = Gguf::parse(file);
    REQUIRE_MESSAGE(g.ok(), g.status().message());
    CHECK(g.value().tensor("a")->file_offset % 128 == 0);
    CHECK(g.value().tensor("b")->file_offset == g.value().tensor("a")->file_offset + 128);
}

TEST_CASE("tensor names and shapes are checked before they are used") {
    const auto one = [](std::string_view name, const std::vector<uint64_t>& ne, uint32_t type) {
        return verdict(Raw().header(1, 0).tensor(name, ne, type, 0).pad().zeros(1024));
    };
    CHECK(one("a", {4}, 0).ok());
    CHECK(one(std::string(63, 'n'), {4}, 0).ok());
    refused(one("", {4}, 0), Code::bad_file, {"tensor name ''", "1 to 63"});
    // The error names the bound that is met first.
    const auto name_of = [](uint64_t n, size_t n_left) {
        Raw raw;
        raw.header(1, 0).u64(n).zeros(n_left);
        return verdict(raw);
    };
    refused(name_of(uint64_t{1} << 60, 100), Code::bad_file,
            {"a string of 1152921504606846976 bytes", "expected at most 63 (the limit here)"});
    refused(name_of(uint64_t{1} << 60, 24), Code::bad_file, {"expected at most 24 (the rest of the file)"});
    refused(one(std::string(64, 'n'), {4}, 0), Code::bad_file, {"64 bytes", "63"});
    refused(one(std::string_view("a\0b", 3), {4}, 0), Code::bad_file, {"'a\\x00b'"});
    refused(one("a", {}, 0), Code::bad_file, {"0 dimensions", "1 to 4"});
    refused(one("a", {1, 1, 1, 1, 1}, 0), Code::bad_file, {"5 dimensions"});
    refused(verdict(Raw().header(1, 0).text("a").u32(0xffffffffu).zeros(1024)), Code::bad_file,
            {"4294967295 dimensions"});
    refused(one("a", {4, 0}, 0), Code::bad_file, {"'a' is [4, 0]"});
    refused(one("a", {uint64_t{1} << 63}, 0), Code::bad_file, {"2^63 elements"});
    refused(one("a", {(uint64_t{1} << 42) + 1, uint64_t{1} << 42}, 0), Code::bad_file,
            {"2^63 elements"});  // wraps to 2^42
    refused(one("a", {uint64_t{1} << 62}, 0), Code::bad_file, {"2^63 bytes"});
    refused(one("a", {uint64_t{1} << 61}, 0), Code::bad_file, {"2^63 bytes"});  // 2^63
    refused(one("a", {48, 2}, 8), Code::bad_file, {"Q8_0", "rows of 48", "multiple of 32"});
    refused(one("blk.0.w", {128}, 12), Code::bad_file, {"Q4_K", "rows of 128", "multiple of 256"});
    refused(verdict(Raw().header(2, 0).tensor("a", {8}, 0, 0).tensor("a", {8}, 0, 32).pad().zeros(64)), Code::bad_file,
            {"'a'", "more than once"});
    refused(verdict(Raw().header(1, 0).text("abc").u32(2).u64(1).u32(7)), Code::bad_file,
            {"ends inside the entry of tensor 'abc'"});
}

TEST_CASE("an unsupported tensor type is rejected by name, with the list of supported ones") {
    const auto typed = [](uint32_t type) {
        return verdict(Raw().header(1, 0).tensor("blk.0.w", {256}, type, 0).pad().zeros(2048));
    };
    refused(typed(35), Code::unsupported, {"'blk.0.w'", "TQ2_0", "id 35", "Q4_K", "BF16", "Take a file"});
    refused(typed(21), Code::unsupported, {"IQ3_S"});
    refused(typed(9), Code::unsupported, {"Q8_1"});
    refused(typed(26), Code::unsupported, {"I32"});
    for (const uint32_t removed : {4u, 5u, 31u, 38u}) refused(typed(removed), Code::unsupported, {"removed", "Q4_K"});
    for (const uint32_t removed : {32u, 33u, 36u, 37u}) refused(typed(removed), Code::unsupported, {"removed"});
    for (const uint32_t forked : {97u, 399u}) refused(typed(forked), Code::unsupported, {"fork"});
    for (const uint32_t unknown : {96u, 400u}) refused(typed(unknown), Code::unsupported, {"not a known type"});
    refused(typed(137), Code::unsupported, {"type id 137", "fork"});
    refused(typed(43), Code::unsupported, {"type id 43", "not a known type"});
    refused(typed(0xffffffffu), Code::unsupported, {"type id 4294967295", "not a known type"});
}

TEST_CASE("tensor data lies inside the file, aligned, in order, without gaps") {
    const auto at = [](uint64_t first, uint64_t second, size_t n_data) {
        return verdict(Raw().header(2, 0).tensor("a", {10}, 0, first).tensor("b", {4}, 0, second).pad().zeros(n_data));
    };
    CHECK(at(0, 64, 80).ok());  // the last tensor's padding may be missing
    CHECK(at(0, 64, 96).ok());
    refused(at(0, 64, 79), Code::bad_file, {"'b'", "needs 16 bytes", "cut short"});
    refused(at(0, 64, 0), Code::bad_file, {"'a'", "cut short"});
    refused(at(4, 64, 96), Code::bad_file, {"offset 4", "multiple of 32"});
    refused(at(0, 96, 128), Code::bad_file, {"'b' has offset 96, expected 64"});
    refused(at(0, 32, 128), Code::bad_file, {"'b' has offset 32, expected 64"});
    refused(at(0, 0, 128), Code::bad_file, {"'b' has offset 0, expected 64"});
    refused(at(64, 0, 128), Code::bad_file, {"'a' has offset 64, expected 0"});
    refused(at(0, UINT64_MAX - 31, 128), Code::bad_file, {"'b'", "cut short"});  // offset plus size would wrap
    Raw no_data;
    no_data.header(1, 0).tensor("a", {10}, 0, 0);
    REQUIRE(no_data.s.size() % 32 != 0);
    refused(verdict(no_data), Code::bad_file, {"'a'", "cut short"});  // not even the padding before the data
}

TEST_CASE("a file cut anywhere is refused, never read past its end") {
    GgufWriter w;
    w.add("general.architecture", "qwen35");
    w.add("tokens", std::vector<std::string>{"a", "bc", ""});
    w.add("sizes", std::vector<int32_t>{1, 2, 3});
    w.add("flag", true);
    w.tensor("x", Type::f32, {3}, as_bytes(floats(3)));
    w.tensor("y", Type::q8_0, {32, 2}, Span<const float>(std::vector<float>(64, 1.0f)));
    const std::vector<std::byte> whole = w.finish();
    REQUIRE(verdict(whole).ok());
    for (size_t n = 0; n < whole.size(); ++n) {
        const Status s = verdict(std::vector<std::byte>(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n)));
        CAPTURE(n);
        CHECK(s.code == Code::bad_file);
        CHECK(s.text.size() > 40);
    }
}

TEST_CASE("a file with a flipped byte is accepted or rejected and never crashes the reader") {
    GgufWriter w;
    w.add("general.alignment", uint32_t{32});
    w.add("tokens", std::vector<std::string>{"a", "bc"});
    w.add("sizes", std::vector<uint32_t>{1, 2, 3});
    w.tensor("x", Type::f32, {3}, as_bytes(floats(3)));
    const std::vector<std::byte> whole = w.finish();
    int n_refused = 0;
    for (size_t i = 0; i < whole.size(); ++i)
        for (const int flip : {0x01, 0x80, 0xff}) {
            std::vector<std::byte> file = whole;
            file[i] ^= static_cast<std::byte>(flip);
            const auto g = Gguf::parse(file);
            n_refused += !g.ok();
            if (!g.ok()) CHECK(!g.status().text.empty());
            for (const Tensor& t : g.value().tensors()) CHECK(t.data + t.bytes <= file.data() + file.size());
        }
    CHECK(n_refused > 100);
}

TEST_CASE("integers and floats of any width are read, and range-checked") {
    GgufWriter w;
    w.add_raw("u8", 0, -1, raw_bytes<uint8_t>(200));
    w.add_raw("i8", 1, -1, raw_bytes<int8_t>(-3));
    w.add_raw("u16", 2, -1, raw_bytes<uint16_t>(60000));
    w.add_raw("i16", 3, -1, raw_bytes<int16_t>(300));
    w.add_raw("u64", 10, -1, raw_bytes<uint64_t>(4294967295u));
    w.add_raw("u64.big", 10, -1, raw_bytes<uint64_t>(UINT64_MAX));
    w.add_raw("i64", 11, -1, raw_bytes<int64_t>(4294967296));
    w.add_raw("f64", 12, -1, raw_bytes<double>(0.5));
    w.add_raw("f64.big", 12, -1, raw_bytes<double>(1e300));
    w.add("nan", std::numeric_limits<float>::quiet_NaN());
    w.add("inf", std::numeric_limits<float>::infinity());
    w.add("text", "hello");
    w.add("list", std::vector<int32_t>{8, 8, -2});
    w.add("pattern", std::vector<bool>{true, false});
    w.add("true", true);
    const std::vector<std::byte> file = w.finish();
    const auto parsed = Gguf::parse(file);
    REQUIRE_MESSAGE(parsed.ok(), parsed.status().message());
    const Gguf& g = parsed.value();
    CHECK(g.get_u32("u8").value() == 200);
    CHECK(g.get_u32("u16").value() == 60000);
    CHECK(g.get_u32("i16").value() == 300);
    CHECK(g.get_u32("u64").value() == 4294967295u);
    CHECK(g.get_f32("f64").value() == 0.5f);
    CHECK(g.get_f32("u8").value() == 200);
    CHECK(g.get_u32("absent", 7).value() == 7);
    CHECK(g.get_f32("absent", 0.5f).value() == 0.5f);
    CHECK(g.get_string("absent", "d").value() == "d");
    CHECK(g.get_bool("absent", true).value());

    refused(g.get_u32("i8").status(), Code::bad_file, {"'i8' is the i8 -3", "from 0 to 4294967295", "Convert"});
    refused(g.get_u32("u64.big").status(), Code::bad_file, {"u64"});
    refused(g.get_u32("i64", 1).status(), Code::bad_file, {"the i64 4294967296"});
    refused(g.get_u32("text").status(), Code::bad_file, {"'text' is a string"});
    refused(g.get_u32("list").status(), Code::bad_file, {"an array of 3 i32"});
    refused(g.get_u32("f64").status(), Code::bad_file, {"the f64 0.5"});
    refused(g.get_u32("absent").status(), Code::bad_file, {"no key 'absent'", "expected an integer"});
    refused(g.get_f32("nan", 1.0f).status(), Code::bad_file, {"'nan'", "finite"});
    refused(g.get_f32("inf").status(), Code::bad_file, {"finite"});
    refused(g.get_f32("f64.big").status(), Code::bad_file, {"1e+300"});
    refused(g.get_f32("true").status(), Code::bad_file, {"the boolean true"});
    refused(g.get_string("u8").status(), Code::bad_file, {"the u8 200", "a string"});
    refused(g.get_bool("u8", true).status(), Code::bad_file, {"a boolean"});

    CHECK(g.get_u32s("u8", 3).value() == std::vector<uint32_t>{200, 200, 200});  // a scalar is repeated
    CHECK(g.get_u32s("pattern", 2).value() == std::vector<uint32_t>{1, 0});
    CHECK(g.get_f32s("list", 3).value() == std::vector<float>{8, 8, -2});
    const uint32_t nine = 9;
    CHECK(g.get_u32s("absent", 2, &nine).value() == std::vector<uint32_t>{9, 9});
    refused(g.get_u32s("absent", 2).status(), Code::bad_file, {"no key 'absent'", "array of 2"});
    refused(g.get_u32s("list", 3).status(), Code::bad_file, {"'list'", "-2 as element 2"});
    refused(g.get_u32s("list", 2).status(), Code::bad_file, {"an array of 3 i32", "array of 2"});
    refused(g.get_f32s("text", 2).status(), Code::bad_file, {"a string"});
}

TEST_CASE("shards that belong together become one model") {
    const std::vector<std::vector<std::byte>> files = {shard(0, 3, 2, nullptr, "qwen35"), shard(1, 3, 2, "b"),
                                                       shard(2, 3, 2, "a")};
    const auto g = joined(files);
    REQUIRE_MESSAGE(g.ok(), g.status().message());
    REQUIRE(g.value().tensors().size() == 2);
    CHECK(g.value().tensor("a")->shard == 2);
    CHECK(g.value().tensor("b")->shard == 1);
    CHECK(g.value().tensor("b")->data == files[1].data() + g.value().tensor("b")->file_offset);
    CHECK(g.value().get_string("general.architecture").value() == "qwen35");
    CHECK(g.value().file_bytes() == files[0].size() + files[1].size() + files[2].size());

    CHECK(joined({GgufWriter().finish()}).ok());  // an ordinary file is a model of one shard
    CHECK(joined({shard(0, 1, 1, "a")}).ok());
    CHECK(joined({shard(0, 0, 1, "a")}).ok());  // merged from shards
    CHECK(joined({shard(0, 2, 2, "a"), shard(1, 2, 2, "b", "qwen35")}).ok());
}

TEST_CASE("shards that do not belong together are refused") {
    refused(Gguf::join({}).status(), Code::bad_argument, {"no shards"});
    refused(joined({shard(0, 3, 3, "a")}).status(), Code::bad_file, {"3 shards", "1 were given"});
    refused(joined({shard(0, 0, 2, "a"), shard(1, 0, 2, "b")}).status(), Code::bad_file, {"0 shards", "2 were given"});
    refused(joined({shard(0, 2, 2, "a"), shard(0, 2, 2, "b")}).status(), Code::bad_file,
            {"shard 2 says it is shard 1"});
    refused(joined({shard(1, 2, 2, "a"), shard(0, 2, 2, "b")}).status(), Code::bad_file,
            {"shard 1 says it is shard 2"});
    refused(joined({shard(0, 2, 2, "a"), shard(1, 3, 2, "b")}).status(), Code::bad_file,
            {"shard 2 says the model has 3 shards"});
    refused(joined({shard(0, 2, 5, "a"), shard(1, 2, 5, "b")}).status(), Code::bad_file, {"5 tensors", "hold 2"});
    refused(joined({shard(0, 2, 2, "a"), shard(1, 2, -1, "b")}).status(), Code::bad_file,
            {"shard 2: ", "split.tensors.count", "i32 -1"});
    refused(joined({shard(0, 2, 2, "a"), shard(1, 2, 2, "a")}).status(), Code::bad_file, {"'a' of shard 2"});
    for (uint16_t with = 1; with < 20; ++with) {  // whichever has the name again, and whatever the sort does with it
        std::vector<std::vector<std::byte>> files;
        for (uint16_t i = 0; i < 20; ++i)
            files.push_back(shard(i, 20, 20, i == with ? "t0" : ("t" + std::to_string(i)).c_str()));
        const std::string words = "'t0' of shard " + std::to_string(with + 1) + " is";
        refused(joined(files).status(), Code::bad_file, {words.c_str()});
    }
    refused(joined({shard(0, 2, 2, "a", "qwen35"), shard(1, 2, 2, "b", "step35")}).status(), Code::bad_file,
            {"shard 2 is of", "'step35'", "shard 1 of 'qwen35'"});
    refused(joined({shard(0, 2, 2, "a"), GgufWriter().finish()}).status(), Code::bad_file, {"shard 2"});
}

TEST_CASE("what is gathered has no two keys or tensors of one name") {
    Meta a, b;
    a.key = "a";
    b.key = "b";
    Tensor s, t;
    s.name = "s";
    t.name = "t";
    CHECK(Gguf::gather({a, b}, {s, t}, 1).value().tensors().size() == 2);
    refused(Gguf::gather({a, b, a}, {s, t}, 1).status(), Code::bad_file, {"metadata key 'a' appears more than once"});
    refused(Gguf::gather({a, b}, {t, s, t}, 1).status(), Code::bad_file, {"tensor 't' appears more than once"});
}

TEST_CASE("a vocabulary of 250,000 tokens is read without copying the strings") {
    std::vector<std::string> tokens;
    for (int i = 0; i < 248320; ++i) tokens.push_back("token-" + std::to_string(i));
    GgufWriter w;
    w.add("tokenizer.ggml.tokens", tokens);
    const std::vector<std::byte> file = w.finish();
    const auto g = Gguf::parse(file);
    REQUIRE_MESSAGE(g.ok(), g.status().message());
    const Meta* m = g.value().find("tokenizer.ggml.tokens");
    REQUIRE(m);
    REQUIRE(m->strings.size() == tokens.size());
    bool all_views = true, all_equal = true;
    const char *begin = reinterpret_cast<const char*>(file.data()), *end = begin + file.size();
    for (size_t i = 0; i < tokens.size(); ++i) {
        all_views = all_views && m->strings[i].data() >= begin && m->strings[i].data() + m->strings[i].size() <= end;
        all_equal = all_equal && m->strings[i] == tokens[i];
    }
    CHECK(all_views);
    CHECK(all_equal);
}

TEST_CASE("the published valid and malformed files are accepted and rejected as stated") {
    const char* shared = test::shared_dir("vectors/gguf_cases.json");
    if (!shared) return;
    const std::string json = test::read_text(std::string(shared) + "/vectors/gguf_cases.json");
    const auto quoted_after = [&](const char* key, size_t from) {
        const size_t open = json.find('"', json.find(':', json.find(key, from))) + 1;
        return json.substr(open, json.find('"', open) - open);
    };
    int n_case = 0, n_good = 0;
    for (size_t at = 0; (at = json.find("\"name\"", at)) != std::string::npos; ++at, ++n_case) {
        const std::string name = quoted_after("\"name\"", at);
        const bool accept = json.compare(json.find_first_not_of(": ", json.find("\"accept\"", at) + 8), 4, "true") == 0;
        const Status s = verdict(unhex(quoted_after("\"hex\"", at)));
        CAPTURE(name);
        CAPTURE(s.message());
        CHECK(s.ok() == accept);
        n_good += accept;
    }
    CHECK(n_case >= 31);
    CHECK(n_good >= 3);
}

TEST_CASE("the models and the vocabulary of ../shared are accepted") {
    const char* shared = test::shared_dir("models");
    if (!shared) return;
    const struct {
        const char* path;
        size_t n_tensor;
    } files[] = {
        {"/models/demo-q4_k_m.gguf", 1},   {"/models/demo-q8_0.gguf", 1},
        {"/models/random-dense.gguf", 1},  {"/models/random-moe.gguf", 1},
        {"/models/random-step35.gguf", 1}, {"/vectors/vocab/qwen2-rebuilt-vocab.gguf", 0},
    };
    for (const auto& f : files) {
        CAPTURE(std::string(f.path));
        auto file = File::open((std::string(shared) + f.path).c_str());
        REQUIRE_MESSAGE(file.ok(), file.status().message());
        const auto g = Gguf::parse(file.value().bytes());
        CHECK_MESSAGE(g.ok(), g.status().message());
        CHECK((g.value().tensors().size() >= f.n_tensor));
        CHECK(g.value().find("tokenizer.ggml.tokens"));
    }
}
