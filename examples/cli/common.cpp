#include "common.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cache.h"
#include "platform.h"
#include "printable.h"
#include "window.h"

namespace cli {

// -------------------------------------------------------------------------------- errors

std::string with_options(std::string text) {
    static const char* const kNames[][2] = {
        {"sampling.temperature", "--temp"},
        {"sampling.top_k", "--top-k"},
        {"sampling.top_p", "--top-p"},
        {"sampling.min_p", "--min-p"},
        {"sampling.repeat_penalty", "--repeat-penalty"},
        {"sampling.frequency_penalty", "--frequency-penalty"},
        {"sampling.presence_penalty", "--presence-penalty"},
        {"sampling.penalty_window", "--penalty-window"},
        {"draft.min_probability", "--draft-min-p"},
        {"kv_budget_bytes", "--kv-budget"},
        {"memory_limit_bytes", "--memory-limit"},
        {"n_context", "--ctx"},
        {"n_ubatch", "--ubatch"},
    };
    // Whole words alone: a file may have such a name.
    const auto is_end = [&text](size_t at) { return at >= text.size() || std::strchr(" ,;:)", text[at]); };
    for (const auto& name : kNames) {
        const size_t n = std::strlen(name[0]);
        for (size_t at = text.find(name[0]); at != std::string::npos; at = text.find(name[0], at + 1))
            if ((at == 0 || std::strchr(" (\n", text[at - 1])) && is_end(at + n)) text.replace(at, n, name[1]);
    }
    return text;
}

int report(const Status& status) {
    if (status.ok()) return kDone;
    clear_progress_line();
    if (status.code == Code::cancelled && interrupted()) {
        std::fprintf(stderr, "auspex: interrupted\n");
        return kInterrupted;
    }
    std::fprintf(stderr, "auspex: %s\n", printable(with_options(status.message()), true).c_str());
    switch (status.code) {
        case Code::bad_argument:
        case Code::bad_file:
        case Code::unsupported:
        case Code::not_found: return kBadInput;
        default: return kFailed;
    }
}

void note(const std::string& text) {
    clear_progress_line();
    std::fprintf(stderr, "auspex: note: %s\n", printable(text, true).c_str());
}

// ------------------------------------------------------------------------------- options

void add_model(CLI::App& command, PlaceOptions& o) {
    command.add_option("-m,--model", o.model,
                       "GGUF file, or the first shard of a split model (default: the demo model)");
}

void add_mtp_file(CLI::App& command, PlaceOptions& o) {
    command.add_option("--mtp-file", o.mtp_file,
                       "GGUF file with the MTP block, if the model's own file has none (often named mtp-*.gguf)");
}

void add_place(CLI::App& command, PlaceOptions& o) {
    add_model(command, o);
    add_mtp_file(command, o);
    command.add_option("--device", o.device, "auto, cpu, vulkan or vulkan:N")->capture_default_str();
    command.add_option(
        "--memory-limit", o.memory_limit,
        "Memory limit of the device, as in 12G; on a GPU, experts that do not fit stay in the host's memory");
    command.add_flag("--barriers-only", o.barriers_only,
                     "Synchronise GPU kernels with barriers only, if a driver hangs; slower, the text stays the same");
    command.add_option("--cpu-path", o.cpu_path, "best, reference, avx2, avx512 or neon")->capture_default_str();
    command.add_option("--threads", o.threads, "CPU threads (default: one per physical core)");
    command.add_option(
        "--packed-file", o.packed_file,
        "CPU: keep the weights as the processor reads them in FILE, or with auto in the cache folder, so "
        "that the next start packs nothing and processes share them");
    command.add_flag("-v,--verbose", o.verbose, "Report on stderr what was chosen and why");
}

CLI::Option* add_switch(CLI::App& command, const char* name, bool means, std::optional<bool>& to, const char* help) {
    // A flag: CLI11's own would set `to` where it is not given.
    return command
        .add_option_function<bool>(
            name, [&to, means](bool on) { to = on == means; }, help)
        ->type_name("")
        ->expected(0)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void add_sampling(CLI::App& command, auspex::Sampling& o) {
    command.add_option("--temp", o.temperature, "Temperature; 0 always takes the most likely token")
        ->capture_default_str();
    command.add_option("--top-k", o.top_k, "Keep the K most likely tokens; 0: all")->capture_default_str();
    command.add_option("--top-p", o.top_p, "Keep the smallest set with this much probability")->capture_default_str();
    command.add_option("--min-p", o.min_p, "Keep tokens with at least this share of the highest probability")
        ->capture_default_str();
    command.add_option("--repeat-penalty", o.repeat_penalty, "Penalty on recent tokens; 1: off")->capture_default_str();
    command.add_option("--frequency-penalty", o.frequency_penalty, "Subtracted once per occurrence of a recent token")
        ->capture_default_str();
    command.add_option("--presence-penalty", o.presence_penalty, "Subtracted once from each recent token")
        ->capture_default_str();
    command.add_option("--penalty-window", o.penalty_window, "How many of the last tokens are recent")
        ->capture_default_str();
    command.add_option("--seed", o.seed, "The same seed gives the same text")->capture_default_str();
}

void add_text(CLI::App& command, TextOptions& o, const char* what) {
    o.text_given = command.add_option("-p,--prompt", o.text, std::string(what) + " as an argument");
    o.file_given = command.add_option("-f,--file", o.file,
                                      std::string(what) + " from a file; -, or neither of the two, is standard input");
    o.text_given->excludes(o.file_given);
}

// ------------------------------------------------------------------------------- loading

constexpr int kMaxThreads = 256;  // of DeviceOptions::n_thread

static Status check_no_directory(const std::string& path) {
    std::error_code error;
    if (!std::filesystem::is_directory(native_path(path), error)) return {};
    return Status(Code::bad_argument, "'" + path + "' is a directory, expected a file");
}

/// Refuses what exists but cannot be a model. A path that does not exist is left to the library.
static Status check_model_file(const std::string& path) {
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(native_path(path), error);
    if (error || !std::filesystem::exists(status)) return {};
    if (const Status s = check_no_directory(path); !s.ok()) return s;
    if (!std::filesystem::is_regular_file(status))
        return Status(Code::bad_argument,
                      "'" + path + "' is a pipe or a device, expected a regular file: save it first");
    if (std::filesystem::file_size(native_path(path), error) == 0 && !error)
        return Status(Code::bad_file,
                      "'" + path + "' is empty (0 bytes), expected a GGUF file; download or convert it again");
    return {};
}

Result<std::string> find_model(const std::string& named) {
    if (!named.empty()) {
        const Status s = check_model_file(named);
        if (!s.ok()) return s;
        return named;
    }
    const std::string demo = "examples/models/auspex-demo.gguf", here = executable_folder();
    std::vector<std::string> places = {demo};
    if (!here.empty()) {
        places.push_back(here + "/auspex-demo.gguf");
        places.push_back(here + "/../share/auspex/auspex-demo.gguf");  // an installed one
        places.push_back(here + "/../" + demo);                        // a build folder in the repository
    }
    places.push_back(std::string(AUSPEX_SOURCE_DIR) + "/" + demo);
    std::string tried;
    for (const std::string& p : places) {
        if (std::ifstream(native_path(p)).good()) return p;
        tried += "\n  " + p;
    }
    return Status(Code::not_found,
                  "no model was named and the demo model is in none of these places; give -m FILE:" + tried);
}

Status check_ctx(int64_t ctx, const auspex::ModelInfo& model) {
    if (ctx >= 1 && ctx <= kMaxContext) return {};
    return Status(Code::bad_argument, "--ctx " + std::to_string(ctx) + ": expected 1 .. " +
                                          std::to_string(kMaxContext) + "; the model was trained for " +
                                          std::to_string(model.n_context) + " rows");
}

/// Compiled pipelines of the device used last. The library rejects those of another device and compiles its own.
constexpr const char* kPipelines = "pipelines.bin";

Result<auspex::Device> open_device(const PlaceOptions& o) {
    auspex::DeviceOptions d;
    if (!o.memory_limit.empty()) {
        uint64_t limit = 0;
        const Status s = read_size(o.memory_limit, "--memory-limit").get(limit);
        if (!s.ok()) return s;
        d.memory_limit_bytes = static_cast<size_t>(std::min<uint64_t>(limit, SIZE_MAX));
    }
    d.barriers_only = o.barriers_only;
    std::string index;
    if (o.device == "auto")
        d.kind = auspex::Kind::best;
    else if (o.device == "cpu")
        d.kind = auspex::Kind::cpu;
    else if (o.device == "vulkan")
        d.kind = auspex::Kind::vulkan;
    else if (o.device.rfind("vulkan:", 0) == 0) {
        d.kind = auspex::Kind::vulkan;
        index = o.device.substr(7);
        if (index.empty() || index.size() > 3 || index.find_first_not_of("0123456789") != std::string::npos)
            return Status(Code::bad_argument,
                          "--device " + o.device + ": expected a number after 'vulkan:', as in vulkan:0");
        d.vulkan_index = std::atoi(index.c_str());
    } else {
        return Status(Code::bad_argument, "--device " + o.device + ": expected auto, cpu, vulkan or vulkan:N");
    }

    struct Path {
        const char* name;
        auspex::CpuPath path;
    };
    const Path paths[] = {{"best", auspex::CpuPath::best},
                          {"reference", auspex::CpuPath::reference},
                          {"avx2", auspex::CpuPath::avx2},
                          {"avx512", auspex::CpuPath::avx512},
                          {"neon", auspex::CpuPath::neon}};
    bool known = false;
    for (const Path& p : paths)
        if (o.cpu_path == p.name) d.cpu_path = p.path, known = true;
    if (!known)
        return Status(Code::bad_argument,
                      "--cpu-path " + o.cpu_path + ": expected best, reference, avx2, avx512 or neon");

    if (o.threads && (*o.threads < 1 || *o.threads > kMaxThreads))
        return Status(Code::bad_argument, "--threads " + std::to_string(*o.threads) + ": expected 1 .. " +
                                              std::to_string(kMaxThreads) + "; leave it out for one per physical core");
    d.n_thread = o.threads.value_or(0);
    const std::string pipelines = d.kind == auspex::Kind::cpu ? std::string() : read_cache(kPipelines);
    d.pipeline_cache = Span<const std::byte>(reinterpret_cast<const std::byte*>(pipelines.data()), pipelines.size());
    const bool verbose = o.verbose;
    d.log = [verbose](auspex::LogLevel level, std::string_view line) {
        if (verbose || level == auspex::LogLevel::warning) note(std::string(line));
    };
    return auspex::Device::open(d);
}

static bool line_shown = false;

auspex::Progress progress_line() {
    const bool draw = stderr_is_terminal();
    double last = 0;
    return [draw, last](const char* what, float fraction) mutable {
        const double t = now();
        if (draw && t - last > 0.1) {
            std::fprintf(stderr, "\r%s %3.0f %%\033[K", what, double(fraction) * 100);
            std::fflush(stderr);
            line_shown = true;
            last = t;
        }
        return !interrupted();
    };
}

void clear_progress_line() {
    if (!line_shown) return;
    std::fprintf(stderr, "\r\033[K");
    std::fflush(stderr);
    line_shown = false;
}

Loaded::~Loaded() {
    if (!device || device.kind() == auspex::Kind::cpu) return;
    const std::vector<std::byte> made = device.pipeline_cache();
    const std::string bytes(reinterpret_cast<const char*>(made.data()), made.size());
    if (!bytes.empty() && bytes != read_cache(kPipelines)) write_cache(kPipelines, bytes);
}

/// LoadOptions::packed_file. A name in the cache folder only has to differ between combinations.
static std::string packed_file(const PlaceOptions& o, const std::string& model) {
    if (o.packed_file != "auto") return o.packed_file;
    const std::string folder = cache_folder();
    if (folder.empty()) return {};
    std::error_code error;
    const auto absolute = std::filesystem::absolute(native_path(model), error);
    return utf8_path(native_path(folder) /
                     key_name("weights", utf8_path(absolute) + "|" + o.mtp_file + "|" + o.cpu_path, ".packed"));
}

Status load(const PlaceOptions& o, Loaded* to) {
    Status s = check_output(o.packed_file, "--packed-file");
    if (s.ok()) s = find_model(o.model).get(to->path);
    if (s.ok()) s = find_model(o.mtp_file.empty() ? to->path : o.mtp_file).status();
    if (!s.ok()) return s;
    s = open_device(o).get(to->device);
    if (!s.ok()) return s;
    auspex::LoadOptions options;
    options.progress = progress_line();
    options.mtp_file = o.mtp_file;
    options.packed_file = packed_file(o, to->path);
    if (!o.packed_file.empty() && options.packed_file.empty())
        note(
            "--packed-file auto: there is no cache folder that can be written, so nothing is kept; name a file "
            "instead");
    s = auspex::Model::load(to->device, to->path.c_str(), options).get(to->model);
    clear_progress_line();
    if (s.ok() && o.verbose) note(to->path + " on " + to->device.name());
    return s;
}

// --------------------------------------------------------------------------------- input

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // devices and pipes may have no end

Result<std::string> read_bytes(const std::string& path) {
    if (const Status s = check_no_directory(path); path != "-" && !s.ok()) return s;
    std::FILE* f = path == "-" ? stdin : open_stream(path, "rb");
    const std::string name = path == "-" ? "standard input" : "'" + path + "'";
    if (!f) {
        const int why = errno;
        return Status(why == ENOENT ? Code::not_found : Code::io_error, name + ": " + std::strerror(why));
    }
    std::string all;
    char part[1 << 16];
    size_t n;
    while (all.size() <= kMaxTextBytes && (n = std::fread(part, 1, sizeof part, f)) > 0) all.append(part, n);
    const int why = std::ferror(f) ? errno : 0;
    if (f != stdin) std::fclose(f);
    // Ctrl-C also ends the program that writes to a pipe, which then looks like the end of the text.
    if (interrupted()) return Status(Code::cancelled, "interrupted while reading " + name);
    if (why) return Status(Code::io_error, name + ": " + std::strerror(why));
    if (all.size() > kMaxTextBytes)
        return Status(Code::bad_argument, name + " has more than " + std::to_string(kMaxTextBytes) +
                                              " bytes, expected a text; split it into several files");
    return all;
}

Result<std::string> read_document(const std::string& path) {
    Result<std::string> all = read_bytes(path);
    if (all.value().compare(0, 3, "\xef\xbb\xbf") == 0) all.value().erase(0, 3);
    return all;
}

Status check_utf8(const std::string& text, const std::string& what) {
    const size_t at = find_bad_utf8(text);
    if (at == text.size()) return {};
    char byte[8];
    std::snprintf(byte, sizeof byte, "0x%02x", static_cast<unsigned>(static_cast<unsigned char>(text[at])));
    return Status(Code::bad_argument, what + " is not UTF-8: byte " + byte + " at offset " + std::to_string(at) +
                                          " begins no character; convert it first (iconv -t UTF-8)");
}

Result<std::string> read_text(const TextOptions& o, const char* what) {
    std::string text, from = std::string("the ") + what;
    if (o.text_given->count() > 0) {
        text = o.text;
    } else if (o.file_given->count() > 0 || !stdin_is_terminal()) {
        Status s = read_bytes(o.file_given->count() > 0 ? o.file : "-").get(text);
        if (!s.ok()) return s;
    } else {
        return Status(Code::bad_argument, from + " is missing: give -p TEXT, -f FILE, or pipe it in");
    }
    const Status s = check_utf8(text, from);
    if (!s.ok()) return s;
    return text;
}

Result<std::vector<Token>> read_list(const std::string& list, const char* what, int64_t highest, int64_t lowest) {
    std::string text = list;
    if (!list.empty() && list[0] == '@') {
        const Status s = read_document(list.substr(1)).get(text);
        if (!s.ok()) return s;
    }
    std::vector<Token> ids;
    size_t i = 0, end = text.size();
    const auto skip_space = [&] {
        while (i < end && std::strchr(" \t\r\n", text[i]) && text[i] != 0) ++i;
    };
    const auto bad = [&](const std::string& found) {
        return Status(Code::bad_argument,
                      std::string("the list of ") + what + " has " + found + " at character " + std::to_string(i + 1) +
                          ", expected whole numbers with commas or spaces between them, as in 1,2,3 or [1, 2, 3]");
    };
    skip_space();
    const bool bracketed = i < end && text[i] == '[';
    if (bracketed) ++i, skip_space();
    bool comma = false;
    while (i < end && text[i] != ']') {
        const size_t from = i;
        int64_t value = 0;
        const bool negative = text[i] == '-';
        if (negative) ++i;
        if (i >= end || text[i] < '0' || text[i] > '9') return i = from, bad(std::string("'") + text[from] + "'");
        for (; i < end && text[i] >= '0' && text[i] <= '9'; ++i)
            if (value <= highest) value = value * 10 + (text[i] - '0');
        if (negative || value < lowest || value > highest)
            return Status(Code::bad_argument, std::string("the list of ") + what + " has " +
                                                  text.substr(from, i - from) + ", expected " + std::to_string(lowest) +
                                                  " .. " + std::to_string(highest));
        if (i < end && !std::strchr(", \t\r\n]", text[i])) return bad(std::string("'") + text[i] + "'");
        ids.push_back(static_cast<Token>(value));
        skip_space();
        comma = i < end && text[i] == ',';
        if (comma) ++i, skip_space();
    }
    if (comma) return bad("nothing after its last comma");
    if (bracketed) {
        if (i >= end) return bad("no closing ']'");
        ++i, skip_space();
    }
    if (i < end) return bad(std::string("'") + text[i] + "'");
    return ids;
}

Result<std::vector<Token>> read_ids(const std::string& list, uint32_t n_vocab) {
    return read_list(list, "ids", static_cast<int64_t>(n_vocab) - 1);
}

Status check_output(const std::string& path, const char* option) {
    if (path != "-") return {};
    return Status(Code::bad_argument, std::string(option) +
                                          " -: this cannot go to standard output, expected the name of a file (./- for "
                                          "one that is named so)");
}

Status check_late_output(const std::string& path, const char* option) {
    const Status s = check_output(path, option);
    if (!s.ok() || path.empty() || names_device(path)) return s;
    const std::filesystem::path file = native_path(path);
    std::error_code error;
    const std::filesystem::file_type type = std::filesystem::status(file, error).type();
    if (type == std::filesystem::file_type::directory)
        return Status(Code::bad_argument, option + (" " + path) + ": this is a folder, expected the name of a file");
    const bool is_new = type == std::filesystem::file_type::not_found;
    if (!is_new && type != std::filesystem::file_type::regular) return {};  // to open a pipe may wait
    if (is_new && std::filesystem::is_symlink(file, error)) return {};      // opening makes the file that it names
    std::FILE* f = open_stream(path, "ab");
    if (!f) return Status(Code::io_error, option + (" '" + path + "' cannot be written: ") + std::strerror(errno));
    std::fclose(f);
    if (is_new) std::filesystem::remove(file, error);
    return {};
}

Status print(const std::string& text) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return {};
    return Status(Code::io_error, std::string("standard output: ") + std::strerror(errno));
}

double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace cli
