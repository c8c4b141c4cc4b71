// Tests of base/base and base/file: checked arithmetic, Status, memory blocks, mapped files, names of shards.
#include "../src/base/base.h"
#include "../src/base/file.h"
#include "../src/base/os.h"
#include "../src/base/system.h"
#include "support.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>

namespace {

using namespace auspex;
using namespace auspex::detail;
namespace fs = std::filesystem;

/// A new empty folder, removed by the destructor.
struct Folder {
    fs::path path;
    Folder() {
        const auto mark = reinterpret_cast<uintptr_t>(this);
        for (uint64_t i = 0; path.empty(); ++i) {
            const fs::path p = fs::temp_directory_path() / say("auspex-test-", mark, "-", i);
            if (fs::create_directory(p)) path = p;
        }
    }
    ~Folder() {
        std::error_code ignored;
        fs::remove_all(path, ignored);
    }
    std::string file(const char* name, const std::string& content) const {
        std::ofstream((path / name), std::ios::binary) << content;
        return (path / name).string();
    }
};

bool contains(const Status& s, const std::string& part) { return s.text.find(part) != std::string::npos; }

/// An allocator that counts the bytes in use and refuses on request.
struct Counter {
    size_t out = 0, calls = 0;
    bool refuse = false;
    Allocator allocator() {
        Allocator a;
        a.user = this;
        a.alloc = [](void* user, size_t bytes, size_t alignment) -> void* {
            Counter& c = *static_cast<Counter*>(user);
            if (c.refuse) return nullptr;
            ++c.calls;
            c.out += bytes;
            return ::operator new (bytes, std::align_val_t{alignment}, std::nothrow);
        };
        a.free = [](void* user, void* p, size_t bytes, size_t alignment) {
            static_cast<Counter*>(user)->out -= bytes;
            ::operator delete (p, std::align_val_t{alignment});
        };
        return a;
    }
};

}  // namespace

TEST_CASE("checked arithmetic reports overflow instead of wrapping") {
    uint64_t v = 0;
    CHECK(mul_fits(0, UINT64_MAX, &v));
    CHECK(v == 0);
    CHECK(mul_fits(UINT32_MAX, UINT32_MAX, &v));
    CHECK(v == 0xfffffffe00000001ull);
    CHECK_FALSE(mul_fits(uint64_t{1} << 32, uint64_t{1} << 32, &v));
    CHECK(round_up(0, 32) == 0);
    CHECK(round_up(1, 32) == 32);
    CHECK(round_up(64, 32) == 64);
    CHECK(ceil_div(7, 4) == 2);
    CHECK(ceil_div(8, 4) == 2);
}

TEST_CASE("the message of a Status has its code and its text") {
    CHECK(Status().message() == "ok");
    const Status s =
        fail(Code::bad_file, "tensor '", std::string("x"), "' has ", 3, " of ", uint64_t{4}, ", ", 0.5, '!');
    CHECK(s.message() == "bad_file: tensor 'x' has 3 of 4, 0.5!");
    CHECK(std::string(code_name(Code::context_full)) == "context_full");
    int out = 7;
    CHECK_FALSE(Result<int>(fail(Code::not_found, "none")).get(out).ok());
    CHECK(out == 7);
    CHECK(Result<int>(5).get(out).ok());
    CHECK(out == 5);
}

TEST_CASE("a number in a message has the digits that tell it from a limit") {
    CHECK(say(1.0000001f) == "1.0000001");
    CHECK(say(100.00001f) == "100.00001");
    CHECK(say(double{0.1f}) == "0.1");
    CHECK(say(1.0 + 1e-15) == "1.000000000000001");
    CHECK(say(0.1) == "0.1");
    CHECK(say(1e300) == "1e+300");
    CHECK(say(16777217.0) == "16777217");
    CHECK(say(-std::numeric_limits<float>::infinity()) == "-inf");
    CHECK(say(std::numeric_limits<double>::quiet_NaN()).find("nan") != std::string::npos);
}

TEST_CASE("the decimal sign of a locale becomes a point") {
    CHECK(with_point("-0,5e-05") == "-0.5e-05");
    CHECK(with_point("0\xD9\xAB"
                     "75") == "0.75");
    CHECK(with_point("1.5") == "1.5");
    CHECK(with_point("-nan(ind)") == "-nan(ind)");
    CHECK(with_point("") == "");
}

TEST_CASE("text from a file is quoted: no control byte, no line break, a bounded length") {
    CHECK(quote("blk.0.attn_q") == "'blk.0.attn_q'");
    CHECK(quote("\x1b]0;pwned\x07\n\x7f") == "'\\x1b]0;pwned\\x07\\x0a\\x7f'");
    CHECK(quote("\xc3\xa9") == "'\\xc3\\xa9'");
    CHECK(quote("") == "''");
    CHECK(quote(std::string(100, 'a')) == "'" + std::string(80, 'a') + "...'");
    CHECK(quote("abcd", 3) == "'abc...'");
}

TEST_CASE("a block is zeroed, aligned, counted and freed") {
    Counter counter;
    {
        Block a, b;
        REQUIRE(a.take(counter.allocator(), 1000, "a test").ok());
        CHECK(a.size() == 1000);
        CHECK(reinterpret_cast<uintptr_t>(a.data()) % 64 == 0);
        CHECK(std::all_of(a.data(), a.data() + 1000, [](std::byte v) { return v == std::byte{0}; }));
        CHECK(counter.out == 1000);
        b = std::move(a);
        CHECK(a.data() == nullptr);
        CHECK(b.size() == 1000);
        REQUIRE(b.take(counter.allocator(), 64, "a test").ok());  // what it held goes back first
        CHECK(counter.out == 64);
        REQUIRE(b.take(counter.allocator(), 0, "a test").ok());
        CHECK(b.data() == nullptr);
        REQUIRE(b.take(counter.allocator(), 5, "a test").ok());
        REQUIRE(a.take(Allocator(), 5, "a test").ok());  // the default one needs no counting
    }
    CHECK(counter.out == 0);
    CHECK(counter.calls == 3);
}

TEST_CASE("a failed allocation is reported with the name and size of the block") {
    Counter counter;
    counter.refuse = true;
    Block b;
    const Status refused = b.take(counter.allocator(), 4096, "the cache");
    CHECK(refused.code == Code::out_of_memory);
    CHECK(contains(refused, "the cache needs 4096 bytes"));
    CHECK(b.take(Allocator(), UINT64_MAX, "too much").code == Code::out_of_memory);
    CHECK(b.data() == nullptr);
}

TEST_CASE("a mapped file has the bytes that were written, and can be moved") {
    const Folder folder;
    std::string content;
    for (int i = 0; i < 10000; ++i) content += static_cast<char>(i * 7);
    auto opened = File::open(folder.file("a.bin", content).c_str());
    REQUIRE(opened.ok());
    File f = std::move(opened.value());
    REQUIRE(f.bytes().size() == content.size());
    CHECK(std::memcmp(f.bytes().data(), content.data(), content.size()) == 0);
    File g;
    g = std::move(f);
    CHECK(f.bytes().empty());
    CHECK(std::memcmp(g.bytes().data(), content.data(), content.size()) == 0);
}

TEST_CASE("pages that were released can be read again, and what is no page of the file stays as it is") {
    const Folder folder;
    std::string content;
    for (int i = 0; i < 300000; ++i) content += static_cast<char>(i * 13 % 251);
    const std::string path = folder.file("a.bin", content);
    for (const bool copy : {false, true}) {
        CAPTURE(copy);
        const Allocator allocator;
        File f;
        REQUIRE(File::open(path.c_str(), copy ? &allocator : nullptr).get(f).ok());
        const std::byte* p = f.bytes().data();
        f.release(p, f.bytes().size());
        f.release(p + 100000, 10);
        f.release(p + 299999, 1);
        f.release(p + 299999, 2);  // beyond the end
        f.release(nullptr, 4096);
        std::string other = content;
        f.release(reinterpret_cast<const std::byte*>(other.data()), other.size());
        CHECK(other == content);
        CHECK(std::memcmp(p, content.data(), content.size()) == 0);
    }
}

TEST_CASE("a file that cannot be opened is an error with its path and the reason") {
    const Folder folder;
    const std::string missing = (folder.path / "missing.gguf").string();
    const Status no_file = File::open(missing.c_str()).status();
    CHECK(no_file.code == Code::not_found);
    CHECK(contains(no_file, missing));
    CHECK(contains(no_file, "Check the path"));

    const Status directory = File::open(folder.path.string().c_str()).status();
    CHECK(directory.code == Code::bad_argument);
    CHECK(contains(directory, "is a directory, expected a GGUF file"));

    const Status empty = File::open(folder.file("empty.gguf", "").c_str()).status();
    CHECK(empty.code == Code::io_error);
    CHECK(contains(empty, "is empty (0 bytes)"));

    const std::string below_a_file = folder.file("plain", "x") + "/model.gguf";
    CHECK(File::open(below_a_file.c_str()).status().code == Code::not_found);
    CHECK(File::open("").status().code == Code::bad_argument);
    CHECK(File::open(nullptr).status().code == Code::bad_argument);
}

#if defined(_WIN32)
TEST_CASE("on Windows a device, a pipe and a path that is not UTF-8 are refused by what they are") {
    for (const char* device : {"NUL", "nul", "\\\\.\\NUL"}) {
        const Status s = File::open(device).status();
        CHECK_MESSAGE(s.code == Code::bad_argument, s.text);
        CHECK(contains(s, say("'", device, "' is a device or a pipe, expected a regular file")));
    }
    const Status not_text = File::open("bad\xff.gguf").status();
    CHECK(not_text.code == Code::bad_argument);
    CHECK(contains(not_text, "is not UTF-8"));

    HANDLE ends[2] = {};
    REQUIRE(CreatePipe(&ends[0], &ends[1], nullptr, 0));
    const Status pipe = File::open(FileRange{reinterpret_cast<intptr_t>(ends[0]), 0, 0}, Allocator(), false).status();
    CHECK_MESSAGE(pipe.code == Code::bad_argument, pipe.text);
    CHECK(contains(pipe, "is a device or a pipe"));
    for (const HANDLE h : ends) CloseHandle(h);
    CHECK(File::open(FileRange{0x7ffffff0, 0, 0}, Allocator(), false).status().code ==
          Code::io_error);  // no handle at all
}

TEST_CASE("on Windows a short path is opened also from a long folder") {
    const Folder folder;
    const fs::path before = fs::current_path(), deep = folder.path / std::string(150 - 1, 'd');
    const std::string name(190, 'n');
    fs::create_directory(deep);
    fs::current_path(deep);
    const std::wstring wide = wide_path(name.c_str());
    CHECK(wide.compare(0, 4, L"\\\\?\\") == 0);
    CHECK(wide_path("short") == L"short");
    CHECK(wide_path("NUL") == L"NUL");
    CHECK(wide_path("\\\\?\\C:\\x") == L"\\\\?\\C:\\x");
    const HANDLE h = CreateFileW(wide.c_str(), GENERIC_WRITE, 0, nullptr, CREATE_NEW, FILE_ATTRIBUTE_NORMAL, nullptr);
    REQUIRE(h != INVALID_HANDLE_VALUE);
    DWORD n = 0;
    CHECK(WriteFile(h, "GGUF", 4, &n, nullptr));
    CloseHandle(h);
    CHECK(File::open(name.c_str()).ok());
    CHECK(DeleteFileW(wide.c_str()));
    fs::current_path(before);
}
#endif

TEST_CASE("a file without permission is an error with the system's message") {
    const Folder folder;
    const std::string path = folder.file("secret.gguf", "GGUF");
    fs::permissions(path, fs::perms::none);
    if (std::ifstream(path).good()) {
        test::skip("this user may read every file");
        return;
    }
    const Status s = File::open(path.c_str()).status();
    CHECK(s.code == Code::io_error);
    CHECK(contains(s, path));
    CHECK(contains(s, "may read it"));
}

TEST_CASE("the names of all shards follow from the name of one") {
    const auto paths = shard_paths("dir-00001-of-00003.gguf/big-00001-of-00003.gguf", 0, 3);
    REQUIRE(paths.ok());
    REQUIRE(paths.value().size() == 3);
    CHECK(paths.value()[0] == "dir-00001-of-00003.gguf/big-00001-of-00003.gguf");
    CHECK(paths.value()[2] == "dir-00001-of-00003.gguf/big-00003-of-00003.gguf");
    const auto from_second = shard_paths("x-00002-of-00002.gguf", 1, 2);
    REQUIRE(from_second.ok());
    CHECK(from_second.value()[0] == "x-00001-of-00002.gguf");

    const Status renamed = shard_paths("model.gguf", 0, 3).status();
    CHECK(renamed.code == Code::bad_argument);
    CHECK(contains(renamed, "must end in '-00001-of-00003.gguf'"));
    CHECK_FALSE(shard_paths("x-00002-of-00003.gguf", 0, 3).ok());  // name and key disagree
    CHECK(shard_paths("x-00004-of-00003.gguf", 3, 3).status().code == Code::bad_file);
    CHECK(contains(shard_paths("x-00004-of-00003.gguf", 3, 3).status(), "shard 4 of 3"));
    CHECK(shard_paths("x-00001-of-00000.gguf", 0, 0).status().code == Code::bad_file);
    CHECK(shard_paths("x-00001-of-01025.gguf", 0, 1025).status().code == Code::bad_file);
}

#if defined(__linux__)
TEST_CASE("free memory heeds the limits of the process's control group and of those around it") {
    const struct {
        const char* group;  ///< /proc/self/cgroup
        std::vector<std::pair<const char*, const char*>> files;
        uint64_t left;
    } cases[] = {
        // A service of systemd: files of the page cache that it can drop count as free.
        {"0::/system.slice/a.service\n",
         {{"system.slice/a.service/memory.max", "2000"},
          {"system.slice/a.service/memory.high", "max"},
          {"system.slice/a.service/memory.current", "700"},
          {"system.slice/a.service/memory.stat", "anon 500\ninactive_file 200\n"}},
         1500},
        {"0::/a/b\n", {{"a/b/memory.max", "max"}, {"a/b/memory.high", "900"}, {"a/b/memory.current", "700"}}, 200},
        // The limit of a group around it, which has used more than the group itself.
        {"0::/a/b\n",
         {{"a/memory.max", "1000"},
          {"a/memory.current", "400"},
          {"a/b/memory.max", "2000"},
          {"a/b/memory.current", "100"}},
         600},
        {"0::/a\n", {{"a/memory.max", "1000"}, {"a/memory.current", "1001"}}, 0},
        // A container: the topmost group that it sees is its own, whatever the path.
        {"0::/\n", {{"memory.max", "1000"}, {"memory.current", "300"}}, 700},
        {"12:cpu,memory:/docker/0a\n0::/\n",
         {{"memory/memory.limit_in_bytes", "1000"},
          {"memory/memory.usage_in_bytes", "400"},
          {"memory/memory.stat", "inactive_file 1\ntotal_inactive_file 50\n"}},
         650},
        // Version 1, as Slurm sets it up.
        {"8:cpuset:/x\n4:memory:/slurm/job\n1:name=memory:/y\n",
         {{"memory/slurm/job/memory.limit_in_bytes", "1000"}, {"memory/slurm/job/memory.usage_in_bytes", "400"}},
         600},
        {"0::/a\n", {{"a/memory.max", "max"}, {"a/memory.current", "300"}}, UINT64_MAX},
        {"4:memory:/a\n",
         {{"memory/a/memory.limit_in_bytes", "9223372036854771712"}, {"memory/a/memory.usage_in_bytes", "400"}},
         UINT64_MAX},
        {"", {}, UINT64_MAX},
    };
    for (const auto& c : cases) {
        CAPTURE(c.group);
        const Folder root;
        const auto write = [&](const std::string& name, const char* text) {
            fs::create_directories((root.path / name).parent_path());
            root.file(name.c_str(), text);
        };
        write("proc/self/cgroup", c.group);
        for (const auto& [name, text] : c.files) write(std::string("sys/fs/cgroup/") + name, text);
        CHECK(left_in_control_groups(root.path.string()) == c.left);
    }
    CHECK(left_in_control_groups("/nowhere") == UINT64_MAX);
    CHECK(free_memory_bytes() / 2 <= left_in_control_groups(""));  // what others take meanwhile is far less
}
#endif
