// cli/common: what several commands share: options, loading, input, errors.
#pragma once
#include "auspex.hpp"

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace cli {

using auspex::Code;
using auspex::Result;
using auspex::Span;
using auspex::Status;
using auspex::Token;

// Exit codes. An interrupted command ends as shells expect it: 128 + SIGINT.
constexpr int kDone = 0, kFailed = 1, kBadInput = 2, kInterrupted = 130;

constexpr int64_t kMaxContext = 1 << 24;  ///< of SessionOptions::n_context

/// Prints "auspex: bad_file: ..." to stderr. Returns kBadInput if other arguments or files would help, kFailed for a
/// failure at run time, kInterrupted after Ctrl-C.
int report(const Status& status);
/// An error of the library, which names its fields, with the options of the command line instead.
std::string with_options(std::string text);
/// A line "auspex: note: ..." on stderr.
void note(const std::string& text);

// ------------------------------------------------------------------------------- options

/// -m, --mtp-file, --device, --memory-limit, --barriers-only, --threads, --cpu-path, --packed-file, -v
struct PlaceOptions {
    std::string model, mtp_file;
    std::string packed_file;  ///< a path, auto, or empty: none
    std::string device = "auto";
    std::string cpu_path = "best";
    std::optional<int> threads;
    bool verbose = false;
    bool barriers_only = false;
    std::string memory_limit;  ///< "12G"; empty: none
};
void add_place(CLI::App& command, PlaceOptions& o);
void add_model(CLI::App& command, PlaceOptions& o);
void add_mtp_file(CLI::App& command, PlaceOptions& o);

/// A flag that sets `to` to `means`, and with =false to the opposite.
CLI::Option* add_switch(CLI::App& command, const char* name, bool means, std::optional<bool>& to, const char* help);
/// --temp, --top-k, --top-p, --min-p, penalties, --seed
void add_sampling(CLI::App& command, auspex::Sampling& o);

/// -p TEXT, -f FILE, or standard input
struct TextOptions {
    std::string text, file;
    CLI::Option* text_given = nullptr;
    CLI::Option* file_given = nullptr;
};
void add_text(CLI::App& command, TextOptions& o, const char* what);

// ------------------------------------------------------------------------------- loading

/// The file named by -m, else the demo model: beside this program, installed, or in the repository.
/// errors    bad_argument: a directory, a pipe or a device; not_found: no demo model.
Result<std::string> find_model(const std::string& named);
/// errors    bad_argument: --ctx is out of range.
Status check_ctx(int64_t ctx, const auspex::ModelInfo& model);
Result<auspex::Device> open_device(const PlaceOptions& o);

struct Loaded {
    Loaded() = default;
    ~Loaded();  ///< saves compiled pipelines, so that the next start is faster
    Loaded(const Loaded&) = delete;
    Loaded& operator=(const Loaded&) = delete;
    auspex::Device device;
    auspex::Model model;
    std::string path;
};
/// Opens the device and loads the model, with a progress line when stderr is a terminal.
Status load(const PlaceOptions& o, Loaded* to);

/// A progress callback that draws on stderr when that is a terminal, and cancels after Ctrl-C.
auspex::Progress progress_line();
void clear_progress_line();

// --------------------------------------------------------------------------------- input

/// A whole file, or standard input for "-". errors: bad_argument: a directory, or more than 1 GiB; not_found, io_error.
Result<std::string> read_bytes(const std::string& path);
/// The same without the mark of UTF-8 that editors on Windows put before a text: for JSON, grammars and lists.
Result<std::string> read_document(const std::string& path);
/// The text that the options name. errors: bad_argument: none given, or not UTF-8 (names the offset); those of
/// read_bytes().
Result<std::string> read_text(const TextOptions& o, const char* what);
/// bad_argument with the offset of the first byte that is not UTF-8.
Status check_utf8(const std::string& text, const std::string& what);
/// "1,2,3", "[1, 2, 3]", "1 2 3", or @FILE with any of these, each from `lowest` (not negative) to `highest`.
Result<std::vector<Token>> read_list(const std::string& list, const char* what, int64_t highest, int64_t lowest = 0);
/// read_list() of ids below n_vocab.
Result<std::vector<Token>> read_ids(const std::string& list, uint32_t n_vocab);

/// Refuses "-" as the name of an output: standard output has the text, and not every output can be written in order.
Status check_output(const std::string& path, const char* option);
/// The same, for a file that is written at the end: refuses it at once if it cannot be written. Leaves it as it is.
Status check_late_output(const std::string& path, const char* option);
/// Writes to standard output and flushes it. errors: io_error: not everything could be written.
Status print(const std::string& text);

/// Seconds of a monotonic clock.
double now();

}  // namespace cli
