// A file of parts: what it gives back, what survives an append that was cut short, and the checksum of its parts.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "../src/engine/part_log.h"
#include "allocations.h"
#include "support.h"

using namespace auspex;
using namespace auspex::detail;
using namespace test;

namespace {

namespace fs = std::filesystem;

std::vector<std::byte> random_bytes(size_t n, uint64_t seed) {
    Random random(seed);
    std::vector<std::byte> bytes(n);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.next());
    return bytes;
}

struct Log {
    fs::path folder = fs::temp_directory_path() / ("auspex-log-" + std::to_string(unique_number()));
    std::string path = (folder / "log").string();
    LogMark mark;
    std::vector<LogPart> parts;
    Log() { fs::create_directories(folder); }
    ~Log() { fs::remove_all(folder); }

    Status add(LogWriter& to, uint32_t kind, const std::vector<std::byte>& bytes) {
        LogPart part;
        part.kind = kind;
        part.bytes = bytes.size();
        AUSPEX_TRY(to.begin_part(part));
        const size_t half = bytes.size() / 2;
        AUSPEX_TRY(to.write(bytes.data(), half));
        AUSPEX_TRY(to.write(bytes.data() + half, bytes.size() - half));
        AUSPEX_TRY(to.end_part(&part));
        parts.push_back(part);
        return {};
    }
    std::vector<std::byte> read(LogReader& from, size_t i) {
        std::vector<std::byte> bytes(from.parts()[i].bytes);
        PartReader reader(from, from.parts()[i]);
        REQUIRE(reader.read(bytes.data(), bytes.size()).ok());
        REQUIRE(reader.finish().ok());
        return bytes;
    }
};

}  // namespace

TEST_CASE("a checksum does not depend on how the bytes are divided, and every bit counts") {
    std::vector<std::byte> bytes = random_bytes(200, 1);
    const uint64_t whole = checksum_of(bytes.data(), bytes.size());
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
        Checksum sum;
        sum.add(bytes.data(), cut);
        sum.add(bytes.data() + cut, bytes.size() - cut);
        CHECK(sum.value() == whole);
    }
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
        bytes[bit / 8] ^= std::byte{1} << (bit % 8);
        CHECK(checksum_of(bytes.data(), bytes.size()) != whole);
        bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    bytes.push_back(std::byte{0});
    CHECK(checksum_of(bytes.data(), bytes.size()) != whole);
}

TEST_CASE("a log gives back its parts, also those larger than its buffer, and goes on where it ended") {
    Log log;
    const std::vector<std::byte> identity = random_bytes(64, 2), big = random_bytes(kLogBuffer * 2 + 77, 3),
                                 small = random_bytes(13, 4), late = random_bytes(5000, 5);
    {
        LogWriter to;
        REQUIRE(to.create(log.path.c_str(), identity).ok());
        REQUIRE(log.add(to, 1, big).ok());
        REQUIRE(log.add(to, 2, small).ok());
        CHECK(!fs::exists(log.path));
        REQUIRE(to.commit(log.parts, &log.mark).ok());
        CHECK(to.written() == fs::file_size(log.path));
    }
    {
        LogWriter to;
        REQUIRE(to.append(log.path.c_str(), log.mark).value());
        log.parts.erase(log.parts.begin() + 1);
        REQUIRE(log.add(to, 3, late).ok());
        REQUIRE(to.commit(log.parts, &log.mark).ok());
    }
    LogReader from;
    REQUIRE(from.open(log.path.c_str()).ok());
    CHECK(std::equal(identity.begin(), identity.end(), from.identity().begin(), from.identity().end()));
    REQUIRE(from.parts().size() == 2);
    CHECK(log.read(from, 0) == big);
    CHECK(log.read(from, 1) == late);
    CHECK(!from.recovered());
    CHECK(from.mark().end == fs::file_size(log.path));
    PartReader reader(from, from.parts()[1]);
    CHECK(reader.skip(5001).code == Code::bad_file);
    CHECK(from.verify(true).ok());
}

TEST_CASE("commits of a log are numbered, and one whose number was passed is not appended to") {
    Log log;
    LogMark one, two;
    {
        LogWriter to;
        REQUIRE(to.create(log.path.c_str(), {}).ok());
        REQUIRE(to.commit(log.parts, &one).ok());
    }
    {
        LogWriter to;
        REQUIRE(to.append(log.path.c_str(), one).value());
        REQUIRE(to.commit(log.parts, &two).ok());
    }
    CHECK(one.sequence == 1);
    CHECK(two.sequence == 2);
    LogMark passed = two;
    passed.sequence = 1;
    LogWriter to;
    CHECK(!to.append(log.path.c_str(), passed).value());
    CHECK(to.append(log.path.c_str(), two).value());
}

TEST_CASE("an index that names a part twice is refused: reading every part takes no longer than the file") {
    Log log;
    LogWriter to;
    REQUIRE(to.create(log.path.c_str(), random_bytes(64, 2)).ok());
    REQUIRE(log.add(to, 1, random_bytes(100, 3)).ok());
    REQUIRE(log.add(to, 2, random_bytes(1000, 4)).ok());
    log.parts.push_back(log.parts.back());
    REQUIRE(to.commit(log.parts, &log.mark).ok());
    LogReader from;
    CHECK(from.open(log.path.c_str()).code == Code::bad_file);
}

TEST_CASE("verify() finds the first damaged part, alone or with several threads") {
    for (const size_t n_part : {size_t{3}, size_t{20}}) {  // of 1 MiB: from 16 on there are threads
        CAPTURE(n_part);
        Log log;
        {
            LogWriter to;
            REQUIRE(to.create(log.path.c_str(), {}).ok());
            for (size_t i = 0; i < n_part; ++i) REQUIRE(log.add(to, 1, random_bytes(kLogBuffer, i)).ok());
            REQUIRE(to.commit(log.parts, &log.mark).ok());
        }
        const auto verify = [&] {
            LogReader from;
            REQUIRE(from.open(log.path.c_str()).ok());
            return from.verify(true);
        };
        CHECK(verify().ok());
        for (const size_t i : {n_part - 1, n_part / 2}) {  // the later one first
            {
                std::fstream file(log.path, std::ios::in | std::ios::out | std::ios::binary);
                file.seekp(static_cast<std::streamoff>(log.parts[i].at + 12345));
                file.put('x');
            }
            const Status s = verify();
            CHECK(s.code == Code::bad_file);
            CHECK(s.message().find(say("at byte ", log.parts[i].at, " ")) != std::string::npos);
        }
    }
}

TEST_CASE("a log that is not committed leaves the file as it was, and one that changed is not appended to") {
    Log log;
    const std::vector<std::byte> bytes = random_bytes(3000, 6);
    {
        LogWriter to;
        REQUIRE(to.create(log.path.c_str(), {}).ok());
        REQUIRE(log.add(to, 1, bytes).ok());
    }
    CHECK(fs::is_empty(log.folder));
    log.parts.clear();
    {
        LogWriter to;
        REQUIRE(to.create(log.path.c_str(), {}).ok());
        REQUIRE(log.add(to, 1, bytes).ok());
        REQUIRE(to.commit(log.parts, &log.mark).ok());
    }
    const uint64_t size = fs::file_size(log.path);
    {
        LogWriter to;
        REQUIRE(to.append(log.path.c_str(), log.mark).value());
        REQUIRE(log.add(to, 2, random_bytes(kLogBuffer + 1, 7)).ok());
        CHECK(fs::file_size(log.path) > size);
    }
    CHECK(fs::file_size(log.path) == size);
    LogWriter late;
    LogMark other = log.mark;
    other.sequence += 1;
    CHECK(!late.append(log.path.c_str(), other).value());
    other = log.mark;
    other.file_id += 1;
    CHECK(!late.append(log.path.c_str(), other).value());
    fs::resize_file(log.path, size + 1);
    CHECK(!late.append(log.path.c_str(), log.mark).value());
    LogReader from;
    REQUIRE(from.open(log.path.c_str()).ok());
    CHECK(from.recovered());
    CHECK(from.parts().size() == 1);
    fs::remove(log.path);
    CHECK(!late.append(log.path.c_str(), log.mark).value());
}

TEST_CASE("while one writer appends, another cannot, and what a writer drops is its own") {
    Log log;
    LogWriter first;
    REQUIRE(first.create(log.path.c_str(), {}).ok());
    REQUIRE(log.add(first, 1, random_bytes(3000, 6)).ok());
    REQUIRE(first.commit(log.parts, &log.mark).ok());
    {
        LogWriter one, two;
        REQUIRE(one.append(log.path.c_str(), log.mark).value());
        CHECK(!two.append(log.path.c_str(), log.mark).value());
        REQUIRE(log.add(one, 2, random_bytes(kLogBuffer + 1, 7)).ok());
#if !defined(_WIN32)  // it cannot be read meanwhile
        CHECK(fs::file_size(log.path) > log.mark.end);
        LogReader meanwhile;
        REQUIRE(meanwhile.open(log.path.c_str()).ok());
        CHECK(!meanwhile.recovered());  // this save is not cut short: it goes on
        CHECK(meanwhile.mark().end == log.mark.end);
#endif
    }
    log.parts.pop_back();
    {  // the one before was dropped, and lets go of the file
        LogWriter next;
        REQUIRE(next.append(log.path.c_str(), log.mark).value());
        REQUIRE(log.add(next, 2, random_bytes(100, 8)).ok());
        REQUIRE(next.commit(log.parts, &log.mark).ok());
    }
    LogReader from;
    REQUIRE(from.open(log.path.c_str()).ok());
    CHECK(!from.recovered());
    CHECK(from.mark().end == log.mark.end);
    CHECK(from.verify(false).ok());
}

TEST_CASE("errors of a file that is written anew name it, and not the temporary one") {
    Log log;
    const auto refused = [](const std::string& path) {
        TemporaryFile to;
        return to.create(path.c_str());
    };
    const std::string lost = (log.folder / "none" / "log").string(),
                      too_long = (log.folder / std::string(250, 'x')).string();
    const Status no_folder = refused(lost), no_name = refused(too_long);
    CHECK(no_folder.code == Code::not_found);
    CHECK_MESSAGE(no_folder.text.find("cannot create a file beside '" + lost + "':") != std::string::npos,
                  no_folder.text);
    CHECK(!no_name.ok());  // Windows may have no such file, too
    CHECK_MESSAGE(no_name.text.find("beside '" + too_long + "':") != std::string::npos, no_name.text);
    const Status folder = refused(log.folder.string());
    CHECK(folder.code == Code::bad_argument);
    CHECK(folder.text.find("'" + log.folder.string() + "' is a folder") != std::string::npos);
    TemporaryFile to;
    REQUIRE(to.create(log.path.c_str()).ok());
    CHECK(to.file().path() == log.path);
#if defined(_WIN32)
    for (const char* device : {"NUL", "nul", "\\\\.\\NUL"}) {
        const Status s = refused(device);
        CHECK(s.code == Code::bad_argument);
        CHECK_MESSAGE(s.text.find(std::string("'") + device + "' is a folder, a device") != std::string::npos, s.text);
    }
    const Status not_text = refused("bad\xff.session");
    CHECK(not_text.code == Code::bad_argument);
    CHECK_MESSAGE(not_text.text.find("'bad\xff.session' is not UTF-8") != std::string::npos, not_text.text);
#endif
}

#if defined(__unix__)
TEST_CASE("a file that is written anew keeps who may read it") {
    Log log;
    for (const auto mode : {fs::perms::owner_read | fs::perms::owner_write, fs::perms(0640)}) {
        LogWriter to;
        log.parts.clear();
        REQUIRE(to.create(log.path.c_str(), {}).ok());
        REQUIRE(log.add(to, 1, random_bytes(10, 1)).ok());
        REQUIRE(to.commit(log.parts, &log.mark).ok());
        fs::permissions(log.path, mode);
        LogWriter again;
        log.parts.clear();
        REQUIRE(again.create(log.path.c_str(), {}).ok());
        REQUIRE(log.add(again, 1, random_bytes(10, 2)).ok());
        REQUIRE(again.commit(log.parts, &log.mark).ok());
        CHECK(fs::status(log.path).permissions() == mode);
    }
}

TEST_CASE("a file that replaces a read-only one can be written until it does: one that is left is used again") {
    Log log;
    std::ofstream(log.path) << "old";
    const fs::path temporary = log.path + ".auspex.tmp";
    fs::permissions(log.path, fs::perms(0440));
    TemporaryFile to;
    REQUIRE(to.create(log.path.c_str()).ok());
    CHECK(fs::status(temporary).permissions() == fs::perms(0640));
    REQUIRE(to.file().write(0, "new", 3).ok());
    REQUIRE(to.replace().ok());
    CHECK(fs::status(log.path).permissions() == fs::perms(0440));
    CHECK(!fs::exists(temporary));
}

TEST_CASE("a symbolic link stays one, and the file that it leads to is written, also where there is none yet") {
    Log log;
    const fs::path link = log.folder / "link", real = log.folder / "real" / "log";
    fs::create_directory(log.folder / "real");
    fs::create_symlink("real/other", link);
    fs::create_symlink(real, log.folder / "real" / "other");
    for (int i = 0; i < 2; ++i) {
        LogWriter to;
        log.parts.clear();
        REQUIRE(to.create(link.string().c_str(), {}).ok());
        REQUIRE(log.add(to, 1, random_bytes(10, 1)).ok());
        REQUIRE(to.commit(log.parts, &log.mark).ok());
        CHECK(fs::is_symlink(link));
        CHECK(fs::is_symlink(log.folder / "real" / "other"));
        CHECK(fs::is_regular_file(fs::symlink_status(real)));
        LogWriter more;
        CHECK(more.append(link.string().c_str(), log.mark).value());
    }
    CHECK(std::distance(fs::directory_iterator(log.folder / "real"), fs::directory_iterator()) == 2);
}
#endif

TEST_CASE("checking a large file takes one buffer, whatever the number of threads") {
    Log log;
    const std::vector<std::byte> bytes = random_bytes(4 << 20, 3);
    {
        LogWriter to;
        REQUIRE(to.create(log.path.c_str(), {}).ok());
        for (uint32_t i = 0; i < 5; ++i) REQUIRE(log.add(to, 1, bytes).ok());
        REQUIRE(to.commit(log.parts, &log.mark).ok());
    }
    {
        const AllocationCount count;
        LogReader from;
        REQUIRE(from.open(log.path.c_str()).ok());
        CHECK(from.verify(true).ok());
        CHECK(count.bytes() < (3 << 19));
    }
    {
        std::fstream file(log.path, std::ios::binary | std::ios::in | std::ios::out);
        file.seekp(static_cast<std::streamoff>(log.parts[3].at) + 3000000);
        file.put(static_cast<char>(~bytes[3000000]));
    }
    LogReader from;
    REQUIRE(from.open(log.path.c_str()).ok());
    const Status s = from.verify(true);
    CHECK(s.code == Code::bad_file);
    CHECK_MESSAGE(s.text.find("the part at byte " + std::to_string(log.parts[3].at)) != std::string::npos, s.text);
}
