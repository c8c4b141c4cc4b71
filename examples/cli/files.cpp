#include "files.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "platform.h"

namespace cli {
namespace {

namespace fs = std::filesystem;

/// An option that names a file.
struct FileOption {
    const char* name;
    char mark = 0;                     ///< '@': only behind one that begins the value; '=': behind the first one
    std::vector<const char*> words{};  ///< values that are no file
};

/// A new option with a file belongs in one of these lists.
const std::vector<FileOption>& outputs() {
    static const std::vector<FileOption> all = {{"--out"},
                                                {"--mtp-out"},
                                                {"--trace"},
                                                {"--plot"},
                                                {"--session"},
                                                {"--session-file"},
                                                {"--packed-file", 0, {"auto"}}};
    return all;
}
const std::vector<FileOption>& inputs() {
    static const std::vector<FileOption> all = {{"--model"},
                                                {"--mtp-file"},
                                                {"--file"},
                                                {"--messages"},
                                                {"--template"},
                                                {"--json-schema"},
                                                {"--grammar"},
                                                {"--tools"},
                                                {"--masks"},
                                                {"--api-key-file"},
                                                {"--script"},
                                                {"--text", '='},
                                                {"--draft-vocab", 0, {"auto"}},
                                                {"--replay", 0, {"agent", "chat", "loop"}},
                                                {"--ids", '@'},
                                                {"--rows", '@'},
                                                {"--decode", '@'},
                                                {"--prefill", '@'},
                                                {"--depth", '@'},
                                                {"--mtp", '@'}};
    return all;
}

struct NamedFile {
    std::string by, path;  ///< the option
};

/// The file that a value of the option names; empty if it names none.
std::string file_in(const FileOption& option, const std::string& value) {
    const auto is_value = [&](const char* word) { return value == word; };
    if (value == "-" || std::any_of(option.words.begin(), option.words.end(), is_value)) return {};
    if (option.mark == 0) return value;
    const size_t at = value.find(option.mark);
    return at == std::string::npos || (option.mark == '@' && at != 0) ? std::string() : value.substr(at + 1);
}

std::vector<NamedFile> files_of(const CLI::App& command, const std::vector<FileOption>& options) {
    std::vector<NamedFile> files;
    for (const FileOption& o : options) {
        const CLI::Option* option = command.get_option_no_throw(o.name);
        if (!option) continue;
        for (const std::string& value : option->results())
            if (std::string path = file_in(o, value); !path.empty()) files.push_back({o.name, std::move(path)});
    }
    return files;
}

/// Adds the other shards of a split model, "NAME-00002-of-00003.gguf" and so on, as far as there are any.
void add_shards(const NamedFile& first, std::vector<NamedFile>* to) {
    constexpr size_t kSuffix = 20;
    unsigned no = 0, n = 0;
    int end = 0;
    if (first.path.size() < kSuffix) return;
    const std::string stem = first.path.substr(0, first.path.size() - kSuffix), suffix = first.path.substr(stem.size());
    if (std::sscanf(suffix.c_str(), "-%5u-of-%5u.gguf%n", &no, &n, &end) != 2 || end != int{kSuffix}) return;
    std::error_code error;
    for (unsigned i = 2; i <= n; ++i) {
        char name[48];
        std::snprintf(name, sizeof name, "-%05u-of-%05u.gguf", i, n);
        if (!fs::exists(native_path(stem + name), error)) return;
        to->push_back({first.by, stem + name});
    }
}

/// Everything that the command reads.
std::vector<NamedFile> read_files(const CLI::App& command) {
    std::vector<NamedFile> files = files_of(command, inputs());
    const CLI::Option* model = command.get_option_no_throw("--model");
    std::string demo;
    if (model && model->count() == 0 && find_model("").get(demo).ok()) files.push_back({"--model", demo});
    const std::vector<NamedFile> named = files;
    for (const NamedFile& f : named)
        if (f.by == "--model" || f.by == "--mtp-file") add_shards(f, &files);
    files.push_back({"standard input", "/dev/stdin"});  // leads to a file that was redirected, where systems have it
    return files;
}

/// Where a file is or would be, behind links.
fs::path place_of(const std::string& path) {
    std::error_code error;
    fs::path at = fs::absolute(native_path(path), error);
    constexpr int kMaxLinks = 40;
    for (int i = 0; i < kMaxLinks && fs::is_symlink(at, error); ++i)
        at = at.parent_path() / fs::read_symlink(at, error);
    return fs::weakly_canonical(at, error);
}

/// Whether two paths lead to the same file, which need not exist yet. Devices and pipes may well be read and written.
bool is_same_file(const std::string& a, const std::string& b) {
    std::error_code error;
    if (fs::equivalent(native_path(a), native_path(b), error)) return fs::is_regular_file(native_path(a), error);
    if (fs::exists(native_path(a), error) || fs::exists(native_path(b), error)) return false;
    const fs::path place = place_of(a);
    return !place.empty() && same_spelling(place, place_of(b));
}

/// bad_argument if the output would overwrite the file that is read.
Status check_input(const NamedFile& to, const NamedFile& from) {
    if (!is_same_file(to.path, from.path)) return {};
    return Status(Code::bad_argument, to.by + " " + to.path + ": this would overwrite '" + from.path +
                                          "', the file of " + from.by + "; expected another file");
}

/// bad_argument if both outputs go to one file.
Status check_outputs(const NamedFile& a, const NamedFile& b) {
    if (!is_same_file(a.path, b.path)) return {};
    const std::string same = a.by + " and " + b.by + " both name '" + a.path + "'",
                      other = a.by + " '" + a.path + "' and " + b.by + " '" + b.path + "' are the same file";
    return Status(Code::bad_argument, (a.path == b.path ? same : other) + ", expected two files");
}

}  // namespace

Status check_files(const CLI::App& command) {
    const std::vector<NamedFile> written = files_of(command, outputs());
    if (written.empty()) return {};
    const std::vector<NamedFile> read = read_files(command);
    Status s;
    for (size_t i = 0; s.ok() && i < written.size(); ++i) {
        for (const NamedFile& from : read)
            if (s.ok()) s = check_input(written[i], from);
        for (size_t k = i + 1; s.ok() && k < written.size(); ++k) s = check_outputs(written[i], written[k]);
    }
    return s;
}

}  // namespace cli
