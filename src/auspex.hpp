// auspex: hybrid language models (Gated DeltaNet + attention) from GGUF files, embedded as one header.
//
// Use        #define AUSPEX_IMPLEMENTATION in exactly one source file, then #include "auspex.hpp".
//            Every other file just includes it. To compile on several cores, do so in five files, each with another
//            AUSPEX_IMPLEMENTATION_PART, 1 .. 5.
// Macros     AUSPEX_IMPLEMENTATION, AUSPEX_IMPLEMENTATION_PART, AUSPEX_NO_VULKAN, AUSPEX_NO_SIMD, AUSPEX_NO_AVX512,
//            AUSPEX_ASSERT, AUSPEX_API.
// Errors     are values: Status and Result. The library does not throw, print, abort on bad input, read the
//            environment, install handlers or keep mutable globals. A failed allocation is Code::out_of_memory, as is
//            a thread that the system refuses to start. Functions that return a plain value (a name, a report,
//            statistics) return an empty one when memory runs out. Built with -fno-exceptions the library still
//            checks its own large allocations, but a standard container that cannot grow ends the process.
// Handles    Device and Model are shared by their copies; Session and TextStream can only be moved. A method of an
//            empty handle returns bad_argument, or an empty value.
// Threads    Device and Model are immutable and may be used from any thread. A Session or TextStream belongs to one
//            thread at a time.
// Callbacks  run on the thread that made the call, unless stated. A callback of a Session may call only history(),
//            stats() and cancel() of that Session: every other method changes nothing there and returns bad_argument
//            or an empty value. It must not destroy or move the Session. Callbacks should not throw: an exception
//            from a callback of a Session passes through the call, and the Session stays usable. One that says that
//            memory ran out (std::bad_alloc, std::length_error) is out_of_memory.
//
// Each entry below lists, as far as it applies: what it does, arguments, returns, errors, cost, thread.
#pragma once

#if (defined(_MSVC_LANG) ? _MSVC_LANG : __cplusplus) < 201703L
#error "auspex needs C++17: compile with -std=c++17 (MSVC: /std:c++17) or later"
#endif

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#define AUSPEX_VERSION_MAJOR 0
#define AUSPEX_VERSION_MINOR 1
#define AUSPEX_VERSION_PATCH 0
#define AUSPEX_VERSION "0.1.0"
/// Everything is in this inline namespace: the linker sees auspex::v0_1_0::Session, so one program may hold several
/// versions. Do not declare auspex's types yourself: include this header.
#define AUSPEX_VERSION_NAMESPACE v0_1_0

#ifndef AUSPEX_API
#define AUSPEX_API
#endif
#if defined(__GNUC__)
#define AUSPEX_NOINLINE __attribute__((noinline))
#else
#define AUSPEX_NOINLINE
#endif
// GCC 16 warns that a view which a temporary returns dangles, as in `for (Token id : session.next().value())`. It does
// not point into the temporary.
#define AUSPEX_NO_DANGLING
#if defined(__has_cpp_attribute)
#if __has_cpp_attribute(gnu::no_dangling)
#undef AUSPEX_NO_DANGLING
#define AUSPEX_NO_DANGLING [[gnu::no_dangling]]
#endif
#endif

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {

// ---------------------------------------------------------------------------------- vocabulary

enum class Code {
    ok,
    bad_argument,   ///< an argument is out of range or contradicts another; the text names it
    bad_file,       ///< the file is damaged or contradicts itself
    unsupported,    ///< a valid file or request that this version does not handle
    not_found,      ///< no such file, device or item
    io_error,       ///< the operating system refused
    out_of_memory,  ///< host memory, device memory or threads
    no_device,      ///< no usable device of the kind asked for
    device_lost,    ///< the device is gone, the process is unharmed; Session::move_to() continues on another
    cancelled,      ///< by a progress callback or Session::cancel()
    context_full,   ///< the history has n_context tokens
};

/// The name of a code as messages show it: "bad_file".
AUSPEX_API const char* code_name(Code code);

/// The outcome of a call: a code and, unless it is ok, a text that says what was expected, what was found and what to
/// do.
struct [[nodiscard]] Status {
    Code code = Code::ok;
    std::string text;

    // Out of line: two thousand places in the library make and destroy one.
    Status() = default;
    AUSPEX_API AUSPEX_NOINLINE Status(Code c, std::string t) noexcept;
    AUSPEX_API AUSPEX_NOINLINE Status(const Status&);
    AUSPEX_API AUSPEX_NOINLINE Status(Status&&) noexcept;
    AUSPEX_API AUSPEX_NOINLINE Status& operator=(const Status&);
    AUSPEX_API AUSPEX_NOINLINE Status& operator=(Status&&) noexcept;
    AUSPEX_API AUSPEX_NOINLINE ~Status();
    bool ok() const { return code == Code::ok; }
    /// "bad_file: the text", or "ok".
    std::string message() const { return ok() ? "ok" : std::string(code_name(code)) + ": " + text; }
};

/// A T, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
  public:
    Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit on purpose
    Result(Status status) : status_(std::move(status)) {}
    bool ok() const { return status_.ok(); }
    const Status& status() const { return status_; }
    /// Moves the value to `out`, which is untouched on failure.
    Status get(T& out) && {
        if (ok()) out = std::move(value_);
        return std::move(status_);
    }
    /// The value; on failure a default one.
    T& value() & { return value_; }
    const T& value() const& { return value_; }
    AUSPEX_NO_DANGLING T value() && { return std::move(value_); }

  private:
    T value_{};
    Status status_;
};

/// A view of `size` elements; owns nothing.
template <class T>
class Span {
  public:
    constexpr Span() = default;
    constexpr Span(T* data, size_t size) : data_(data), size_(size) {}
    template <class U, std::enable_if_t<std::is_convertible_v<const U (*)[], T (*)[]>, int> = 0>
    Span(const std::vector<U>& v) : data_(v.data()), size_(v.size()) {}
    template <class U, std::enable_if_t<std::is_convertible_v<U (*)[], T (*)[]>, int> = 0>
    Span(std::vector<U>& v) : data_(v.data()), size_(v.size()) {}
    template <class U, std::enable_if_t<std::is_convertible_v<U (*)[], T (*)[]>, int> = 0>
    constexpr Span(const Span<U>& s) : data_(s.data()), size_(s.size()) {}
    constexpr T* data() const { return data_; }
    constexpr size_t size() const { return size_; }
    constexpr bool empty() const { return size_ == 0; }
    constexpr T* begin() const { return data_; }
    constexpr T* end() const { return data_ + size_; }
    constexpr T& operator[](size_t i) const { return data_[i]; }
    constexpr Span subspan(size_t from, size_t n) const { return Span(data_ + from, n); }

  private:
    T* data_ = nullptr;
    size_t size_ = 0;
};

using Token = int32_t;

/// The source of host memory for weights, caches and activations. Small bookkeeping uses the standard allocator.
/// `alloc` returns null when memory is exhausted; `free` gets the size and alignment of the allocation.
///
/// thread    called from any thread that uses the Device, its Models or their Sessions.
struct Allocator {
    void* (*alloc)(void* user, size_t bytes, size_t alignment) = nullptr;
    void (*free)(void* user, void* p, size_t bytes, size_t alignment) = nullptr;
    void* user = nullptr;
};

/// The application's threads, for programs with a job system of their own. `run` calls task(context, i) for each i in
/// 0..n-1, each once, and returns when all have returned. All n must run at the same time, each on a thread of its own,
/// because they wait for one another after each operation, some microseconds each time; one of the threads may be the
/// caller's. A run takes as long as a step of the model: milliseconds to seconds.
///
/// thread    called on the thread that calls the library, for one Device on one thread at a time. Tasks neither throw
///           nor call the application.
struct JobSystem {
    void (*run)(void* user, uint32_t n, void (*task)(void* context, uint32_t i), void* context) = nullptr;
    void* user = nullptr;
};

enum class LogLevel { info, warning };
/// Receives one line without a newline.
using Logger = std::function<void(LogLevel, std::string_view)>;

/// Receives the name of a long task and the part that is done, 0..1. Return false to cancel it.
using Progress = std::function<bool(const char* what, float fraction)>;

// -------------------------------------------------------------------------------------- device

enum class Kind { best, cpu, vulkan };

/// The CPU's code paths. `reference` is the plain float path against which the others are tested; `best` is the
/// fastest that this processor has.
enum class CpuPath { best, reference, avx2, avx512, neon };

/// The application's own Vulkan objects, as opaque handles, so that this header needs no Vulkan header. The application
/// owns them and must keep them until the last Device, Model and Session on them is gone.
struct VulkanHandles {
    void* instance = nullptr;         ///< VkInstance, made for Vulkan 1.1 or later (VkApplicationInfo::apiVersion)
    void* physical_device = nullptr;  ///< VkPhysicalDevice
    void* device = nullptr;           ///< VkDevice
    void* queue = nullptr;            ///< VkQueue with compute; the Device submits to it
    uint32_t queue_family = 0;
    void* get_instance_proc_addr = nullptr;  ///< PFN_vkGetInstanceProcAddr
    /// Called around every vkQueueSubmit when other threads use the queue too; may be empty.
    std::function<void()> lock_queue, unlock_queue;
    /// The VkPhysicalDeviceFeatures2 chain and the extensions that the device was created with. Features are used only
    /// if they are listed here. None is required; without timelineSemaphore, fences are used.
    const void* enabled_features = nullptr;
    Span<const char* const> enabled_extensions;
};

struct DeviceOptions {
    Kind kind = Kind::best;
    int vulkan_index = -1;                  ///< which Vulkan device; -1: the best
    const VulkanHandles* borrow = nullptr;  ///< run on the application's device instead
    CpuPath cpu_path = CpuPath::best;
    int n_thread = 0;  ///< CPU threads, fewer while other programs use the cores; 0: one per physical core
    /// Runs the CPU's work in place of the library's threads. n_thread then says how many tasks run at the same time,
    /// and must not be 0. The library starts no thread; a GPU's kernels are compiled on the calling thread. Results are
    /// the same, bit for bit.
    JobSystem jobs;
    /// On a GPU: how long one submission of a prompt may take, in milliseconds, so that the application can draw
    /// between two of them. The library measures each piece of a prompt and cuts the next into fewer layers and rows;
    /// the first piece may exceed the limit. A decode step is always one submission. 0: 50.
    uint32_t max_submit_ms = 0;
    /// On a GPU: synchronise the kernels of a step with barriers only. By default they wait on counters where the
    /// driver is known to start dispatches in order (NVIDIA's), which makes steps 6 to 15 % faster. Set it if a driver
    /// hangs in a step. The text is the same.
    bool barriers_only = false;
    /// Memory that a model and a session may take together; on a GPU, that all models and sessions of the device may
    /// take. 0: what the driver or the system reports as free.
    size_t memory_limit_bytes = 0;
    Span<const std::byte> pipeline_cache;  ///< bytes from Device::pipeline_cache(), or empty
    Allocator allocator;
    Logger log;
};

/// Bytes of the host's memory that this process can still take without pushing others out, the limit of a control group
/// included; UINT64_MAX where the system does not say. For choosing SessionOptions::checkpoint_bytes, for example.
AUSPEX_API uint64_t free_host_memory();

/// A device of Device::list().
struct DeviceEntry {
    Kind kind = Kind::cpu;
    int vulkan_index = -1;  ///< as in DeviceOptions; -1 for the CPU, and where there is no Vulkan
    std::string name;       ///< as Device::name(); empty where there is no Vulkan
    Status status;          ///< unless ok, why Device::open() refuses it
};

/// A place where models run. Copies share one device. On a GPU the last copy, and all that was made on it, must be gone
/// before main() returns: drivers clean up at exit, before objects in static storage are destroyed (NVIDIA's crashes).
///
/// thread    any, at the same time.
class AUSPEX_API Device {
  public:
    Device() = default;
    /// Opens a device. Kind::best takes a GPU if there is a usable one, else the CPU; the logger is told why a GPU was
    /// passed over.
    ///
    /// errors    no_device: nothing of that kind; the text lists what was found.
    ///           unsupported: a cpu_path that this processor or build lacks; the text lists those it has.
    ///           bad_argument: an option out of range, or jobs that do not run at the same time. out_of_memory: memory
    ///           or threads.
    /// cost      CPU: microseconds. Vulkan: 50-200 ms, less with a pipeline cache.
    static Result<Device> open(const DeviceOptions& options = {});
    /// Opens every device for a moment, and says which can be used and why the others cannot: the Vulkan devices in the
    /// order of their indices, then the CPU. Where there is no Vulkan, the first entry says why.
    ///
    /// options   kind limits the list; vulkan_index and borrow are ignored; the rest is as for open().
    /// errors    bad_argument: an option out of range. out_of_memory.
    /// cost      that of open() for each device.
    static Result<std::vector<DeviceEntry>> list(const DeviceOptions& options = {});
    /// "cpu (avx512, 2 threads)" or the GPU's name.
    std::string name() const;
    /// What was probed, which kernel variants were chosen, and why; several lines.
    std::string report() const;
    /// Kind::cpu or Kind::vulkan; Kind::best for an empty handle.
    Kind kind() const;
    /// The pipeline cache, to be stored and passed to the next open(); empty on the CPU.
    std::vector<std::byte> pipeline_cache() const;
    explicit operator bool() const { return impl_ != nullptr; }

    struct Impl;
    const std::shared_ptr<Impl>& impl() const { return impl_; }

  private:
    std::shared_ptr<Impl> impl_;
};

// --------------------------------------------------------------------------------------- model

/// How a conversation becomes prompt text. `chatml_no_think` is ChatML that opens the assistant's turn with an empty
/// think block; `jinja` is any other template, which is run as a program.
enum class ChatStyle { chatml, chatml_no_think, qwen35, qwen36, qwen36_unsloth, jinja };

struct ChatProgram;

/// A chat template: its style, and what it can show.
struct ChatTemplate {
    ChatStyle style;
    bool enable_thinking;        ///< for requests that do not say
    bool preserve_thinking;      ///< for requests that do not say
    bool has_preserve_thinking;  ///< the template knows the switch preserve_thinking
    bool shows_tools;            ///< shows tools and an assistant's calls
    bool element_calls;          ///< calls are elements, <function=NAME>; else JSON objects
    bool json_values;            ///< writes arguments of calls as JSON: true, null; else as Python: True, None
    std::shared_ptr<const ChatProgram> program;  ///< of ChatStyle::jinja
    /// The template that the style is named after. For ChatStyle::jinja use recognise_template().
    ChatTemplate(ChatStyle of = ChatStyle::chatml) noexcept
        : style(of),
          enable_thinking(is_qwen()),
          preserve_thinking(false),
          has_preserve_thinking(of == ChatStyle::qwen36 || of == ChatStyle::qwen36_unsloth),
          shows_tools(is_qwen()),
          element_calls(is_qwen()),
          json_values(of != ChatStyle::qwen35 && of != ChatStyle::qwen36_unsloth) {}
    bool has_tools() const noexcept { return shows_tools; }

  private:
    bool is_qwen() const noexcept { return style >= ChatStyle::qwen35 && style <= ChatStyle::qwen36_unsloth; }
};

struct ModelInfo {
    std::string architecture, name;
    uint32_t n_layer = 0;      ///< trunk layers, without MTP blocks
    uint32_t n_attention = 0;  ///< of those, the layers that keep a KV cache
    uint32_t n_mtp = 0;        ///< MTP blocks that are loaded
    uint32_t d_model = 0;
    uint32_t n_vocab = 0;
    uint32_t n_context = 0;  ///< rows the model was trained for
    uint64_t n_parameter = 0;
    uint64_t file_bytes = 0;
    uint64_t weight_bytes = 0;  ///< as the device holds them, repacked
    ChatTemplate chat_template;
    std::string chat_note;  ///< says what the template lacks, or why it cannot be run; else empty
};

struct LoadOptions {
    Progress progress;
    bool mtp = true;  ///< load the MTP blocks, if there are any
    /// Copy the file into memory (DeviceOptions::allocator) instead of mapping it. Slower to load, and takes the file's
    /// size for as long as the Model lives, but then nothing that happens to the file can harm the process.
    bool copy_file = false;
    /// A file with the model's MTP blocks ("mtp-*.gguf"; of a split one the first shard), for models whose own file has
    /// none or to replace them. Or its bytes, which must outlive the Model. Embedding and head are the model's, unless
    /// this file has a smaller head: drafts then use that. Not read if `mtp` is false.
    std::string mtp_file;
    Span<const std::byte> mtp_bytes;
    /// On a GPU: this many layers, counted from the first, keep their experts in the system's memory, where the GPU
    /// reads them: slower, same text. -1: as few as needed for the weights and a session with default options to fit
    /// the device's memory (memory_limit_bytes, or what the driver reports as free); none if everything fits.
    int host_expert_layers = -1;
    /// On the CPU: a file for the weights in the order in which the processor reads them, about as large as the model;
    /// empty: none. The first load writes it and later loads map it: they pack nothing, and processes share that
    /// memory. A file for another model, instruction set or version is replaced; a file of another kind is refused. If
    /// it cannot be read or written, a warning is logged, and the weights stay in the process's own memory. Nobody may
    /// shorten it while a Model lives. For models loaded from a path or a descriptor; a change of the model's file is
    /// detected by size, time and samples.
    std::string packed_file;
};

/// A part of a file that is open for reading: an asset of an Android package, or a model within an archive that stores
/// it uncompressed.
struct FileRange {
    intptr_t file = -1;   ///< a descriptor; on Windows a HANDLE, as _get_osfhandle() gives it
    uint64_t offset = 0;  ///< of the model's first byte
    uint64_t bytes = 0;   ///< of the model; 0: up to the end of the file
};

/// A model that the application reads itself: packed, encrypted, or over a network.
struct FileReader {
    uint64_t bytes = 0;  ///< of the whole model
    /// Writes up to `n` bytes of the model from `offset` on to `to`, and returns how many: fewer are fine, 0 is a
    /// failure. Called from front to back, on the thread that loads.
    std::function<size_t(uint64_t offset, void* to, size_t n)> read;
};

struct EncodeOptions {
    /// Parse control tokens such as <|im_end|> in the text. Off by default, so that a user's text cannot inject them.
    bool special = false;
    /// The text begins a history: put the BOS token first if the file asks for it (tokenizer.ggml.add_bos_token),
    /// unless the text begins with it. Of the supported models, those of step35 ask for it.
    bool begin = false;
};

struct DecodeOptions {
    bool special = false;  ///< show control tokens too; <think>, <tool_call> and their ends are always shown
};

struct ChatPrompt;
struct ChatRequest;
struct Mark;

/// A model loaded onto a Device. Immutable; copies share it. Keeps its Device alive.
///
/// thread    any, at the same time.
class AUSPEX_API Model {
  public:
    Model() = default;
    /// Loads a GGUF file; of a split model, the first shard.
    ///
    /// path      UTF-8. Unless LoadOptions::copy_file is set the file is mapped: while the Model lives nobody may
    ///           shorten the file or overwrite it in place, or the operating system may end the process (SIGBUS).
    ///           Replacing it by rename or deleting it is safe.
    /// errors    bad_argument, not_found, io_error, bad_file, unsupported, out_of_memory, cancelled. Vectors (norms,
    ///           biases) with a value that is not finite are bad_file; matrices are not checked for such values.
    /// cost      reads the file once.
    static Result<Model> load(const Device& device, const char* path, const LoadOptions& options = {});
    /// The same from memory. The bytes must outlive the Model and are read in place; if their address is not a multiple
    /// of 8, they are copied.
    static Result<Model> load(const Device& device, Span<const std::byte> file, const LoadOptions& options = {});
    /// The same from a part of an open file, which is mapped as a path is. The descriptor may be closed afterwards; its
    /// position is not used. A part whose offset is not a multiple of 8 is copied. One file, not a split model.
    ///
    /// errors    also bad_argument: beyond the end of the file, or a pipe; unsupported: a platform without descriptors.
    static Result<Model> load(const Device& device, const FileRange& file, const LoadOptions& options = {});
    /// The same from a function that reads, into memory of DeviceOptions::allocator that the Model keeps.
    /// LoadOptions::progress is also called while it reads. One file, not a split model.
    ///
    /// errors    also io_error: the reader gave nothing. Nothing is kept then.
    static Result<Model> load(const Device& device, const FileReader& file, const LoadOptions& options = {});

    const ModelInfo& info() const;

    /// Text to ids. Each invalid UTF-8 byte becomes U+FFFD. No token is added at either end, unless options say so.
    ///
    /// errors    bad_argument: an empty Model; out_of_memory.
    /// cost      about a microsecond per ten bytes; a word of megabytes takes several, and 22 bytes of memory per byte
    ///           (three times that for invalid UTF-8, of which each byte becomes three).
    Result<std::vector<Token>> encode(std::string_view text, const EncodeOptions& options = {}) const;
    /// A rendered chat prompt to ids: control tokens are parsed in the template's own text only, and the prompt begins
    /// a history (EncodeOptions::begin). marks: if given, gets the prompt's stops as rows, for Session::sync.
    Result<std::vector<Token>> encode(const ChatPrompt& prompt, std::vector<Mark>* marks = nullptr) const;
    /// Ids to bytes; ids outside the vocabulary give nothing. A character may be spread over several tokens, so the
    /// bytes may begin or end within a character; TextStream joins them.
    ///
    /// errors    bad_argument: an empty Model; out_of_memory.
    Result<std::string> decode(Span<const Token> ids, const DecodeOptions& options = {}) const;
    /// True for the ids that end a generation.
    bool is_end(Token id) const;

    /// The exact text of the model's chat template for this conversation.
    ///
    /// errors    those of render_chat().
    Result<ChatPrompt> render(const ChatRequest& request) const;
    /// A readable listing: tensors by type and the operations of each tape.
    std::string describe_plan() const;

    explicit operator bool() const { return impl_ != nullptr; }

    struct Impl;
    const std::shared_ptr<Impl>& impl() const { return impl_; }

  private:
    std::shared_ptr<Impl> impl_;
};

// -------------------------------------------------------------------------- files without weights

/// A metadata value of a GGUF file.
struct FileValue {
    std::string key;
    std::string type;  ///< of the value, or of the elements of an array: "u32", "f32", "bool", "string"
    bool is_array = false;
    uint64_t n = 1;                     ///< elements; 1 for a scalar
    std::vector<std::string> elements;  ///< the first 8 as text: a string as it is, numbers in decimal, true, false
};
struct FileTensor {
    std::string name, type;       ///< "blk.0.attn_q.weight", "Q4_K"
    std::vector<uint64_t> shape;  ///< slowest dimension first
    uint64_t bytes = 0;
};
/// What a GGUF file holds. Names and strings are the file's own bytes: quote control characters before printing them.
struct FileInfo {
    uint32_t gguf_version = 0;
    uint32_t n_file = 0;  ///< shards, and the file of LoadOptions::mtp_file
    uint64_t bytes = 0;   ///< of all of them
    std::vector<FileValue> metadata;
    std::vector<FileTensor> tensors;
    Status plan_status;            ///< unless ok, why this library cannot run the model; the rest is empty then
    ModelInfo model;               ///< weight_bytes is 0: nothing is loaded
    std::string trunk;             ///< the operations of the model, one in a line
    std::vector<std::string> mtp;  ///< the same for each MTP block
};
/// Reads the header of a GGUF file; of a split model, of every shard.
///
/// options   mtp and mtp_file are used; the rest is ignored.
/// errors    not_found, io_error, bad_file, unsupported, bad_argument: as for Model::load. A readable file of a model
///           that cannot run is not an error: see plan_status.
/// cost      one pass over the metadata; no weight is read.
AUSPEX_API Result<FileInfo> read_file_info(const char* path, const LoadOptions& options = {});

/// The tokenizer of a GGUF file, for programs that need no weights. Immutable and cheap to copy.
///
/// thread    any, at the same time.
class AUSPEX_API Vocabulary {
  public:
    Vocabulary() = default;
    /// errors    those of read_file_info(); bad_file, unsupported: the file's tokenizer.
    static Result<Vocabulary> load(const char* path);
    uint32_t n_token() const;
    /// These work as the methods of Model with the same names.
    ///
    /// errors    bad_argument: an empty handle.
    Result<std::vector<Token>> encode(std::string_view text, const EncodeOptions& options = {}) const;
    Result<std::string> decode(Span<const Token> ids, const DecodeOptions& options = {}) const;
    bool is_end(Token id) const;
    explicit operator bool() const { return impl_ != nullptr; }

  private:
    struct Impl;
    std::shared_ptr<const Impl> impl_;
};

// ---------------------------------------------------------------------------------------- chat

/// One argument of a tool call. If `json`, `value` is JSON text, its numbers as they were written; else a plain string.
struct ToolArgument {
    std::string name, value;
    bool json = false;
};
struct ToolCall {
    std::string name;
    std::vector<ToolArgument> arguments;
    /// Other members that a template of ChatStyle::jinja may read, such as id. Other styles read none.
    std::vector<ToolArgument> template_members = {};
};
/// One item of a content that is a list. Images and videos are rendered as their placeholder tokens; this version does
/// not fill them with embeddings.
struct ContentPart {
    enum class Kind { text, image, video };
    Kind kind = Kind::text;
    std::string text;
};
struct ChatMessage {
    std::string role;  ///< system, user, assistant or tool; with ChatStyle::jinja also what else the template knows
    std::string content;
    std::vector<ContentPart> parts;  ///< replaces `content` unless empty
    std::string reasoning;           ///< assistant only; without has_reasoning, what <think> in the content holds
    bool has_reasoning = false;
    std::vector<ToolCall> tool_calls;
    /// Other members that a template of ChatStyle::jinja may read, such as name and tool_call_id. Other styles read
    /// none.
    std::vector<ToolArgument> template_members = {};
};

/// A conversation to render.
struct AUSPEX_API ChatRequest {
    std::vector<ChatMessage> messages;
    std::vector<std::string> tools;  ///< one JSON object each
    bool add_generation_prompt = true;
    // Without a value the template decides.
    std::optional<bool> enable_thinking;    ///< let the model think first
    std::optional<bool> preserve_thinking;  ///< show the thinking of earlier turns
    bool add_vision_id = false;             ///< number images and videos: "Picture 1: "
    /// Other variables of a template of ChatStyle::jinja, such as reasoning_effort. Other styles have none. Names that
    /// the request or the model sets are refused: messages, tools, add_generation_prompt, bos_token, eos_token.
    std::vector<ToolArgument> template_arguments;
    /// Reads {"messages": [...], "tools": [...], and the switches above} in OpenAI's form; the switches may also be in
    /// "chat_template_kwargs", whose other keys become template_arguments. Tool arguments may be an object or a string
    /// that holds one. Other keys of a message or call that are not null become its template_members; other keys of
    /// the request are ignored.
    ///
    /// errors    bad_argument: not JSON (with the position), or not of this form (with the path); out_of_memory.
    static Result<ChatRequest> from_json(std::string_view text);
};

/// Prompt text in pieces that know their origin, so that control tokens in a user's text stay text.
struct ChatPrompt {
    struct Piece {
        std::string text;
        bool from_template = false;
    };
    /// A place between two messages: where a Mark belongs.
    struct Stop {
        size_t piece = 0, at = 0;  ///< before byte `at` of this piece
        bool pinned = false;       ///< the end of the system part
    };
    std::vector<Piece> pieces;
    std::vector<Stop> stops;       ///< ends of the system part, last user message and last message, in ChatML's turns
    bool inside_thinking = false;  ///< the prompt ends inside <think>
    bool closed_thinking = false;  ///< it ends with the template's own </think>: the model is not to think
    std::string text() const {
        std::string all;
        for (const Piece& p : pieces) all += p.text;
        return all;
    }
};

/// Renders without a model.
///
/// chat_template   for example from recognise_template(); a ChatStyle stands for the template it is named after.
/// errors          bad_argument: what the template refuses, in its own words and with the place; tools that it does not
///                 show; with ChatML also tool calls and images; a refused name in template_arguments; a style out of
///                 range. out_of_memory.
/// cost            linear in the text with the named styles; else that of the template's program.
AUSPEX_API Result<ChatPrompt> render_chat(const ChatRequest& request, const ChatTemplate& chat_template);
/// Reads a Jinja template, as model files hold it: gives the style that equals this template exactly, or a program.
/// bos_token and eos_token are empty in it; in a model's own template they are the model's.
///
/// note      if given: empty if the template is followed exactly, but that `upper`, `lower`, `title` and `capitalize`
///           change ASCII letters only; else says what it lacks, or why it cannot be run and what is used instead.
AUSPEX_API ChatTemplate recognise_template(std::string_view jinja, std::string* note);

/// A model's output, parsed.
struct ChatReply {
    std::string thinking, content;
    std::vector<ToolCall> tool_calls;
};
/// Splits output text into thinking, content and tool calls. Malformed calls stay in `content`. White space around
/// the thinking is left out. In a reply with calls, so is white space at the end of the content, between two calls, and
/// before the first text if a call comes first. If a call gives a parameter twice, the last value counts. Each invalid
/// UTF-8 byte becomes U+FFFD.
///
/// inside_thinking   as in ChatPrompt.
/// tools             JSON objects as in ChatRequest. An argument that can only be a string by its schema is taken as it
///                   is written; one that may also be null is null if the text is `null` or `None`; any other is JSON
///                   if it parses.
/// errors    out_of_memory.
/// cost      linear in the text. Each call and argument is looked for among the tools, and among the parameters of one.
AUSPEX_API Result<ChatReply> parse_reply(std::string_view text, bool inside_thinking,
                                         const std::vector<std::string>& tools = {});

/// A part of a reply that is being generated.
struct ReplyEvent {
    enum class Kind : uint8_t {
        reasoning,       ///< text: more of the thinking
        text,            ///< text: more of the content
        call_begin,      ///< text: the name of the tool
        call_arguments,  ///< text: more of the arguments. All of a call together are one JSON object
        call_end,        ///< the call is complete: now it may be made
        call_dropped,    ///< the call is malformed: it must not be made, and follows as text
    };
    Kind kind = Kind::text;
    uint32_t i_call = 0;  ///< which call, counted from 0
    std::string text;
};

/// Splits a reply while it is generated: parse_reply() in pieces. What the events say together does not depend on where
/// the text was cut, and the reply at the end is that of parse_reply(). Text is held back only while it may belong to a
/// tag or a call, is white space that may be the end, or is an unfinished character: the text of an event is whole
/// characters. An argument that can only be a string is passed on as it arrives, one that may also be null once it
/// cannot be null, any other when it is complete. If a call gives a parameter twice, the JSON of its events repeats the
/// key: the last one counts. Can be moved, not copied.
class AUSPEX_API ReplyStream {
  public:
    ReplyStream() noexcept;
    /// inside_thinking, tools   as for parse_reply().
    explicit ReplyStream(bool inside_thinking, const std::vector<std::string>& tools = {});
    ~ReplyStream();
    ReplyStream(ReplyStream&&) noexcept;
    ReplyStream& operator=(ReplyStream&&) noexcept;
    /// text      what TextStream::push() returned, or any other piece of the reply.
    /// errors    bad_argument: an empty ReplyStream, or a finished one. out_of_memory: start over with a new one.
    /// cost      that of parse_reply() over all calls together.
    Result<std::vector<ReplyEvent>> push(std::string_view text);
    /// The text held back, at the end of the reply. Calls in a thinking block that was never closed come here.
    Result<std::vector<ReplyEvent>> finish();
    /// What the events have said so far; after finish() the whole reply.
    const ChatReply& reply() const;
    /// The text so far ends inside a thinking block, which the prompt or the reply itself has opened.
    bool in_thinking() const;
    /// False also where there was no memory to make it.
    explicit operator bool() const { return impl_ != nullptr; }

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// The reply as the assistant's message of a request, in the form that ChatRequest::from_json() reads: role, content,
/// tool_calls if there are any, and reasoning_content if there was thinking or the content holds </think> (which a
/// template would otherwise take for the end of thinking). Each invalid UTF-8 byte becomes U+FFFD.
///
/// errors    out_of_memory.
AUSPEX_API Result<std::string> to_json(const ChatReply& reply);

// ------------------------------------------------------------------------------------ grammars

struct SchemaOptions {
    /// Leave out keywords that cannot be expressed, instead of refusing the schema; Grammar::ignored() lists them.
    bool ignore_unsupported = false;
    /// Members of an object may come in any order. Off: in the order of the schema, then members that it does not name.
    /// Models write in this order, and much of the text is then known in advance.
    bool any_order = false;
    /// Allow a blank, or one or two line breaks with indentation, between tokens. Off: no white space.
    bool white_space = true;
};

enum class ToolChoice {
    automatic,  ///< text, then calls if the model opens one
    required,   ///< a call, and no text before it. Thinking is unconstrained, unless the prompt has closed it
};
struct ToolOptions {
    /// Says how calls are written (element_calls). ModelInfo::chat_template is the model's.
    ChatTemplate chat_template = ChatStyle::qwen36;
    ToolChoice choice = ToolChoice::automatic;
    std::string name;              ///< unless empty, calls are of this tool only
    bool inside_thinking = false;  ///< as in ChatPrompt
    bool parallel = true;          ///< more than one call
    /// As in SchemaOptions; any_order also applies to the arguments of a call.
    bool any_order = false;
    bool ignore_unsupported = false;
    /// Unless empty, a JSON Schema as for from_json_schema(): a reply is either calls or JSON that is valid against it,
    /// and has no other text. All of its keywords are enforced or refused, whatever ignore_unsupported says. With
    /// ToolChoice::required a reply is calls.
    std::string answer;
    bool closed_thinking = false;  ///< as in ChatPrompt: a required call or an answer comes at once
};

/// Which texts are allowed. Immutable; copies share it. Knows bytes only: any model with a vocabulary can follow it.
/// Control tokens (<|im_end|>) match only where a GBNF grammar names them: <name> or <[id]>, negated with ! before it.
///
/// thread    any, at the same time.
class AUSPEX_API Grammar {
  public:
    Grammar() = default;
    /// A grammar in GBNF; texts begin at the rule `root`.
    ///
    /// errors    bad_argument: a mistake, left recursion, or no text at all matches; unsupported: above a limit. The
    ///           text names the line or the rule. out_of_memory.
    /// cost      milliseconds, whatever the text is.
    static Result<Grammar> from_gbnf(std::string_view text);
    /// The texts that match a regular expression (ECMA-262) as a whole.
    ///
    /// errors    bad_argument: a mistake; unsupported: look-around, back references, word boundaries, flags, properties
    ///           other than L, N, M, P and S. The text names the byte. out_of_memory.
    static Result<Grammar> from_regex(std::string_view pattern);
    /// The JSON texts that are valid against a JSON Schema (draft 4 to 2020-12). `format` is checked for date, time,
    /// date-time, duration, email, hostname, ipv4, ipv6, uuid and uri; other formats are ignored. Patterns match
    /// strings that escape only what JSON requires. What the grammar allows is always valid.
    ///
    /// errors    bad_argument: no JSON, no schema, or nothing is valid; unsupported: a keyword that cannot be expressed
    ///           exactly (uniqueItems, unevaluated*, $ref to elsewhere, some forms of not). The text begins with the
    ///           JSON pointer and the keyword. out_of_memory.
    /// cost      a millisecond for an ordinary schema, up to a second for a megabyte or hundreds of patterns and
    ///           multiples.
    static Result<Grammar> from_json_schema(std::string_view schema, const SchemaOptions& options = {});
    /// Replies with tool calls: unconstrained thinking, text, then calls whose arguments are valid against the schema
    /// of the tool. parse_reply() finds every call in them. If the model's vocabulary has control tokens for the tags,
    /// a tag may be that token or spelled out. The text contains no tag that opens a call or thinking.
    ///
    /// tools     1 to 256 JSON objects as in ChatRequest: {"type": "function", "function": {"name", "parameters"}}, or
    ///           the inner object alone.
    /// errors    bad_argument: no tool, none of this name, two of the same name, or an invalid schema. unsupported: as
    ///           from_json_schema(), more than 256 tools, or a name that cannot be written. The text names the tool.
    ///           out_of_memory.
    /// cost      that of from_json_schema() for each tool.
    static Result<Grammar> from_tools(const std::vector<std::string>& tools, const ToolOptions& options = {});
    /// What from_json_schema() left out, as "#/properties/a: uniqueItems", including formats that it does not know.
    /// After from_tools() each begins with the name of the tool. The view is valid while a copy of this Grammar exists.
    Span<const std::string> ignored() const noexcept;

    explicit operator bool() const { return impl_ != nullptr; }

    struct Impl;
    const std::shared_ptr<const Impl>& impl() const { return impl_; }

  private:
    std::shared_ptr<const Impl> impl_;
};

// --------------------------------------------------------------------------------- constraints

/// A rule of the application's own over tokens. Its answers must depend on the arguments alone: it is asked about a
/// text more than once, and about shorter texts after longer ones.
///
/// thread    those of the Sessions that use it. It must not call them.
class AUSPEX_API TokenRule {
  public:
    virtual ~TokenRule() = default;
    /// Whether `id` may follow `text`, the tokens since the constrained text began. Tokens that end a generation are
    /// asked about like any other.
    virtual bool allows(Span<const Token> text, Token id) const = 0;
    /// Clears the bits of the tokens that may not follow `text`: bit id % 32 of word id / 32. Before the call the bits
    /// of the whole vocabulary are set. Called where allows() refused the model's choice. Unless overridden, asks
    /// allows() for each token.
    virtual void filter(Span<const Token> text, Span<uint32_t> bits) const;
};

/// A rule of the application's own over bytes: whether an allowed text begins with `text` or, if `complete`, is `text`.
/// As for TokenRule, the answer must depend on the arguments alone. Control tokens are never allowed; a token that ends
/// a generation is where the text is complete.
using TextRule = std::function<bool(std::string_view text, bool complete)>;

/// Which tokens may come next, for Sampling::constraint. Immutable; copies share it.
///
/// thread    any, at the same time.
class AUSPEX_API Constraint {
  public:
    Constraint() = default;
    /// The texts of a grammar.
    ///
    /// model     whose vocabulary spells the texts. Sessions on other Models with the same vocabulary may use the
    ///           Constraint, too.
    /// errors    bad_argument: an empty Model or Grammar, a control token that the vocabulary does not have, a grammar
    ///           that the vocabulary cannot spell, or a vocabulary without a token that ends a generation.
    ///           out_of_memory.
    /// cost      0.3 s and 36 MB for the first Constraint of a Model with 248,000 tokens, then less than 5 ms.
    static Result<Constraint> create(const Model& model, const Grammar& grammar);
    /// The texts that a rule of the application allows.
    ///
    /// errors    bad_argument: an empty Model or rule; out_of_memory.
    static Result<Constraint> create(const Model& model, std::shared_ptr<const TokenRule> rule);
    static Result<Constraint> create(const Model& model, TextRule rule);

    explicit operator bool() const { return impl_ != nullptr; }
    /// True for copies of one Constraint, not for two made alike.
    friend bool operator==(const Constraint& a, const Constraint& b) { return a.impl_ == b.impl_; }
    friend bool operator!=(const Constraint& a, const Constraint& b) { return !(a == b); }

    struct Impl;
    const std::shared_ptr<const Impl>& impl() const { return impl_; }

  private:
    std::shared_ptr<const Impl> impl_;
};

/// Sampling::constrained_from: where next() is first called with the constraint.
constexpr size_t kFromHere = SIZE_MAX;

// ------------------------------------------------------------------------------------ sampling

/// Added to the logit of one token.
struct LogitBias {
    Token id = 0;
    float bias = 0;  ///< -1000..1000

    friend bool operator==(const LogitBias& a, const LogitBias& b) { return a.id == b.id && a.bias == b.bias; }
};

/// How the next token is sampled: bias, penalties, top-k, top-p, min-p, temperature, then one draw. The draw is
/// Gumbel-max with noise keyed by (seed, position, id): the token is a pure function of its logits and its position, so
/// drafting cannot change it.
struct Sampling {
    float temperature = 0;        ///< 0..100; below 1e-30: the largest logit, ties to the lower id
    int top_k = 0;                ///< keep the k largest; 0: all
    float top_p = 1;              ///< keep the smallest set with this much probability; above 0, at most 1
    float min_p = 0;              ///< keep ids with at least this share of the largest probability; 0..1
    float repeat_penalty = 1;     ///< divides positive and multiplies negative logits of seen ids; above 0, at most 100
    float frequency_penalty = 0;  ///< subtracted once per occurrence; -100..100
    float presence_penalty = 0;   ///< subtracted once per seen id; -100..100
    uint32_t penalty_window = 64;  ///< how many of the last tokens count as seen; at most 4096
    uint64_t seed = 0;
    /// Tokens that it refuses are not sampled. The filters see the model's own distribution; only if none of the tokens
    /// that they keep is allowed are they applied to the allowed ones alone. Tokens that end a generation are allowed
    /// where the constrained text is complete, and are the only ones where it cannot continue.
    Constraint constraint;
    /// The index of the history's token at which the constrained text begins, at most the history's length. kFromHere:
    /// the end of the history when next() is first called with this constraint. A sync() that only takes back tokens of
    /// the constrained text continues it; after any other sync(), restore() or load() it begins anew.
    size_t constrained_from = kFromHere;
    /// Several for one id add up. With more than 1024 biases the host samples: slower on a GPU.
    std::vector<LogitBias> logit_bias;

    friend bool operator==(const Sampling& a, const Sampling& b) {
        return a.temperature == b.temperature && a.top_k == b.top_k && a.top_p == b.top_p && a.min_p == b.min_p &&
               a.repeat_penalty == b.repeat_penalty && a.frequency_penalty == b.frequency_penalty &&
               a.presence_penalty == b.presence_penalty && a.penalty_window == b.penalty_window && a.seed == b.seed &&
               a.constraint == b.constraint && a.constrained_from == b.constrained_from && a.logit_bias == b.logit_bias;
    }
    friend bool operator!=(const Sampling& a, const Sampling& b) { return !(a == b); }
};

// ------------------------------------------------------------------------------------- session

/// Where drafts of the next tokens come from. The model verifies them: tokens that it would have sampled itself are
/// kept, the rest is discarded. The text is the same with every source and at every depth.
enum class Draft {
    off,
    mtp,     ///< the model's MTP block
    lookup,  ///< what followed the last tokens where they occurred before
    /// Both: before each pass the source that promises more; at a fixed depth, lookup where it has a long match.
    mtp_lookup,
    best,  ///< mtp_lookup if the model has an MTP block, else lookup
};

/// The deepest draft: tokens that one pass can verify.
constexpr uint32_t kMaxDraft = 8;

struct DraftOptions {
    Draft source = Draft::off;
    /// Tokens drafted in each pass, 0..kMaxDraft. -1: chosen before each pass from measurements, so that drafting is
    /// never more than 2 % slower than plain decoding, apart from a dozen steps in a session's life in which it learns;
    /// see Session::draft_report().
    int depth = -1;
    uint32_t max_depth = 6;     ///< the deepest that depth -1 may choose: 1..kMaxDraft
    float min_probability = 0;  ///< stop drafting where the MTP block's choice has less probability than this: 0..1
    /// Rows the MTP block looks back; 0: all. With kv_budget_bytes at most 4096. checkpoint_bytes has its share for
    /// what a checkpoint holds of them, whether the session drafts or not.
    uint32_t window = 4096;
    /// Rows of a draft-only head over the most common ids: drafts become cheaper and a little worse. 0, or at least the
    /// size of the vocabulary: the model's own head. Takes memory for a copy of these rows.
    uint32_t n_vocab = 0;
    std::vector<Token> vocab;  ///< if not empty, the ids of such a head (control ids are added), whatever n_vocab is
    /// At each sync(), the n_vocab ids that this session's texts used most instead of the lowest; with n_vocab 0 an
    /// eighth of the vocabulary, within 1024..32768. `vocab` must be empty.
    bool vocab_by_use = false;
};

/// How keys and values are kept: in 16, 8.5, 4.5, 5 or 32 bits per value, rounded as the GGUF types of these names. f32
/// rounds nothing, for comparison with float32 implementations; only the CPU has it.
enum class KvType { f16, q8_0, q4_0, q4_1, f32 };

constexpr uint32_t kAllLayers = ~uint32_t{0};        ///< every attention layer, MTP blocks included
constexpr uint32_t kDraftLayers = ~uint32_t{0} - 1;  ///< the attention layers of the MTP blocks

/// How far back one attention layer sees. A window changes what the model computes. If the model itself declares a
/// narrower one, that is used as it is, without sinks. A window of n_context rows or more is no window.
struct LayerWindow {
    uint32_t layer = kAllLayers;  ///< counted from 0; the MTP blocks follow the trunk
    uint32_t window = 0;          ///< a row sees itself and the window - 1 rows before it; 0: all rows
    uint32_t sinks = 0;           ///< this many first positions stay visible, at most 256
};
/// Parses "3:64,7:full", "all:4096", "all:16384+4,27:full,mtp:1024": a layer, `all` or `mtp`, then a window or `full`,
/// then optionally + and the sinks. Later entries override earlier ones.
///
/// errors    bad_argument: names the entry that is not of this form; out_of_memory.
AUSPEX_API Result<std::vector<LayerWindow>> parse_windows(std::string_view spec);
/// The inverse of parse_windows(): "3:64+4,7:full". Empty for no windows, which parse_windows() refuses.
AUSPEX_API std::string print_windows(const std::vector<LayerWindow>& windows);

/// A layer's window is full: from now on each row evicts the oldest token it could see.
struct WindowFull {
    uint32_t layer = 0, window = 0, sinks = 0;
    size_t n_token = 0;  ///< rows of the timeline so far
};

enum class MemoryPlace {
    allocator,  ///< through DeviceOptions::allocator
    device,     ///< the GPU's memory
    file,       ///< read in place in the file's mapping or copy; takes nothing itself
    host,       ///< through the standard allocator; on a GPU also the driver's memory that the host reads and writes
    pinned,     ///< the system's memory, read there by the GPU: experts for which its own memory has no room
};
struct MemoryItem {
    std::string what;  ///< "weights Q4_K", "keys", "attention scratch"
    int layer = -1;    ///< -1: belongs to no single layer
    uint64_t bytes = 0;
    MemoryPlace place = MemoryPlace::allocator;
};
/// A change of options and what it would take.
struct MemoryAlternative {
    std::string what;          ///< "keys and values in q8_0"
    uint64_t total_bytes = 0;  ///< that the limit counts
    bool fits = false;
};
/// What a model and one session on it take.
struct MemoryPlan {
    std::vector<MemoryItem> items;
    uint64_t weight_bytes = 0;   ///< taken by Model::load
    uint64_t session_bytes = 0;  ///< taken by Session::create
    uint64_t file_bytes = 0;     ///< read in place; not part of the total
    uint64_t total_bytes = 0;    ///< weight_bytes + session_bytes
    /// The part of the total that the limit does not count: experts in the system's memory and, on a GPU, checkpoints.
    uint64_t pinned_bytes = 0;
    uint64_t draft_weight_bytes = 0;   ///< of weight_bytes and file_bytes: saved by LoadOptions::mtp = false
    uint64_t draft_session_bytes = 0;  ///< of session_bytes: saved by Draft::off, apart from checkpoints
    uint64_t checkpoint_bytes = 0;     ///< of session_bytes: SessionOptions::checkpoint_bytes, in host memory
    /// Added by each further token of n_context in layers that see everything. A layer with a window grows, too, while
    /// n_context is less than window + n_ubatch.
    uint64_t kv_token_bytes = 0;
    /// memory_limit_bytes, on a GPU less what other models and sessions hold; without a limit, the free memory and what
    /// the loaded model holds; 0: not known.
    uint64_t limit_bytes = 0;
    bool fits = true;                  ///< total_bytes - pinned_bytes is within the limit, or it is not known
    std::vector<LayerWindow> windows;  ///< of every attention layer
    std::string window_rule;           ///< how kv_budget_bytes was met; else empty
    std::vector<MemoryAlternative> alternatives;  ///< unless it fits: from the smallest change to the largest
};

struct DraftCycle;
struct DraftReport;
struct KernelTime;
struct StepCounts;

/// SessionOptions::checkpoint_bytes: 512 MiB, or less where the session could not use as much.
constexpr uint64_t kDefaultCheckpoints = UINT64_MAX;

struct SessionOptions {
    uint32_t n_context = 0;  ///< tokens of history, at most 16777216; 0: 4096, or the model's if that is less
    /// Rows computed at once in a prefill, 1..4096. 0: 2048 on a GPU with memory of its own and matrix units, if the
    /// session fits and kv_budget_bytes is 0; else 512. Values below 80 may change logits in their last bits.
    uint32_t n_ubatch = 0;
    /// On a GPU, products of prompts (ten rows and more) round activations and weights to halves, and attention on
    /// matrix units rounds as well. With exact_prompts they do not: products use two halves for each value, attention
    /// adds in floats. docs/SPEED.md has the errors and the cost. No effect on steps or on the CPU.
    bool exact_prompts = false;
    Progress progress;                              ///< in a prefill before each n_ubatch rows and at 1; in score()
    KvType kv_k = KvType::f16, kv_v = KvType::f16;  ///< how keys and values are kept
    std::vector<LayerWindow> windows;               ///< later entries override; other layers see everything
    /// Unless 0: windows are chosen so that all keys and values take at most this; `windows` must be empty. The last
    /// 2/5 of the attention layers see everything, the others get a window with 4 sinks: the largest power of two, at
    /// least 1024, that fits. If none fits, fewer layers see everything, and finally none, with windows down to 64.
    /// A draft block that is loaded has its share at the default DraftOptions::window, whether the session drafts or
    /// not, and looks back no further: drafting does not change the windows.
    uint64_t kv_budget_bytes = 0;
    /// Host memory for checkpoints: recurrent states, and rows of branches that are not live. sync() goes back to them
    /// where a history was edited or another branch continues. Reserved by create(); the system provides pages as they
    /// are used. 0: only the live history is kept, and an edit computes everything again.
    uint64_t checkpoint_bytes = kDefaultCheckpoints;
    /// Called once per timeline for each layer with a window, when the window is full.
    std::function<void(const WindowFull&)> on_window_full;
    DraftOptions draft;
    /// On a GPU: cycles queued ahead of the caller, 0..7, which hides the latency between host and device. The device
    /// stops at an end token or a full context by itself. A caller that stops elsewhere, or changes the Sampling,
    /// computes the rows since the last checkpoint again, as they were. No effect on the text, on the CPU, or while
    /// there is a constraint or drafts of lookup promise more.
    uint32_t run_ahead = 0;
    /// Called for each finished cycle, from next(), sync(), save(), fork() or move_to(); for measuring.
    std::function<void(const DraftCycle&)> on_cycle;
};

struct Stats {
    // Rows that are computed again because tokens of run_ahead were dropped count once more. Rows of a reply that
    // sync() or move_to() computes again are computed as next() does, and count as decoded.
    uint64_t rows_prefilled = 0;  ///< rows computed by sync(), move_to() and score()
    uint64_t rows_decoded = 0;    ///< rows computed by next(), drafts included, and by logits()
    uint64_t tokens_sampled = 0;
    double prefill_s = 0;              ///< wall time in sync()
    double decode_s = 0;               ///< wall time in next()
    uint64_t memory_bytes = 0;         ///< held by this session
    std::vector<LayerWindow> windows;  ///< of every attention layer; window 0: it sees everything
    std::string window_rule;           ///< how kv_budget_bytes was met; else empty
    // Drafting. A cycle is one pass of next(): 1 + n rows, which verify n drafts.
    uint64_t cycles[kMaxDraft + 1] = {};  ///< by the number of drafts verified
    uint64_t drafted[kMaxDraft] = {};     ///< drafts verified, by place in the cycle
    uint64_t accepted[kMaxDraft] = {};    ///< of those, the drafts that were kept
    uint64_t draft_head_bytes = 0;        ///< memory of the draft-only head
};

/// A row of a prompt at which later prompts are likely to differ: the end of the system part or of the last user
/// message. sync() keeps the state there. To get several answers to one prompt, add a mark at its last row, so that
/// this row alone is computed again.
struct Mark {
    size_t row = 0;       ///< the number of rows before it
    bool pinned = false;  ///< its checkpoint is given up last
};

/// Why sync() computed the rows that it did.
enum class SyncReason : uint8_t {
    unchanged,   ///< nothing is computed
    appended,    ///< the new history continues the live one
    resumed,     ///< the live rows or a checkpoint end exactly where the known text does
    checkpoint,  ///< rows between the nearest checkpoint and the divergence are computed again
    given_up,    ///< the same; a nearer checkpoint was given up for the budget or because a copy failed
    no_state,    ///< a known text, but no checkpoint that the new history can go on from
    new_text,    ///< nothing in common with any known text
};
/// "appended".
AUSPEX_API const char* sync_reason_name(SyncReason reason);

/// What sync() did.
struct SyncReport {
    size_t rows_computed = 0;
    size_t rows_reused = 0;
    size_t diverged_at = 0;     ///< tokens that the history before and the new one have in common
    size_t checkpoint_row = 0;  ///< rows below it were reused: a checkpoint, or the live tip
    SyncReason reason = SyncReason::unchanged;
    /// For people: "diverged at row 12046 of 30112: token 248068 instead of 151667; nearest checkpoint 12032".
    std::string text;
};

/// A history and its state as bytes, for a Session of the same model and options.
struct Snapshot {
    std::vector<std::byte> bytes;
    size_t n_token = 0;  ///< of the history; for information: restore() reads only the bytes
};

/// What Session::save(path) wrote.
struct SaveReport {
    uint64_t written_bytes = 0;  ///< by this call
    uint64_t file_bytes = 0;     ///< of the file now
    bool appended = false;       ///< to the file that the session saved to or loaded from before
};

/// The largest note of a session file.
constexpr uint64_t kMaxNoteBytes = uint64_t{64} << 20;

/// What a file of Session::save(path) holds beside rows and states.
struct SessionFile {
    size_t n_token = 0;           ///< of the history
    std::vector<std::byte> note;  ///< the application's own bytes, as they were given to save()
    bool recovered = false;       ///< the last save was cut short by a crash; this is the one before it
};
/// Reads these of a file without loading the conversation: to choose n_context, or to list conversations.
///
/// errors    not_found, io_error; bad_file: damaged, cut short or of another version; bad_argument: no path, or not a
///           regular file.
/// cost      reads the index, the tokens and the note.
AUSPEX_API Result<SessionFile> read_session_file(const char* path);

/// One timeline of tokens over a Model. Keeps its Model alive. Can be moved, not copied.
///
/// thread    one thread at a time; other Sessions of the Model may run at the same time.
class AUSPEX_API Session {
  public:
    Session() noexcept;
    ~Session();
    Session(Session&&) noexcept;
    Session& operator=(Session&&) noexcept;

    /// Opens a session and takes the memory that plan() lists. What comes later is small and bounded, docs/MEMORY.md
    /// names it; only score_mtp() takes another context, while it runs.
    ///
    /// errors    bad_argument, unsupported: an option, named.
    ///           out_of_memory: the text says how much was needed and which options would take less.
    static Result<Session> create(const Model& model, const SessionOptions& options = {});

    /// What create() would take, to the byte, and what the weights take. Allocates none of it.
    ///
    /// errors    those of create() except out_of_memory; unsupported: this kind of device cannot tell.
    static Result<MemoryPlan> plan(const Model& model, const SessionOptions& options = {});
    /// The same for a model that is not loaded. Reads the file's header only.
    static Result<MemoryPlan> plan(const Device& device, const char* path, const SessionOptions& options = {},
                                   const LoadOptions& load = {});

    /// Makes the history equal to `history` and computes the rows that are missing.
    ///
    /// history   every token from the start, at most n_context; empty forgets the live history.
    /// marks     rows of it at which to keep a checkpoint, as Model::encode gives them for a prompt; in any order.
    /// returns   the rows computed and reused, and why.
    /// errors    bad_argument: an id outside the vocabulary, a mark beyond the history, or too many tokens (the text
    ///           names both numbers). device_lost: call move_to(), then sync() again.
    ///           cancelled: by cancel() or the progress callback; the rows computed so far are kept, and history() is
    ///           the one before or the beginning of `history`; in the latter case the call that repeats it adds tokens,
    ///           and a constrained text begins anew unless Sampling::constrained_from says where.
    /// cost      one prefill of the rows that no checkpoint covers, and copies of the rows and states that it goes back
    ///           to. Tokens of the last next() are taken back without computing any row, unless logits(), save() or
    ///           fork() was called since, or run_ahead had another cycle queued: the rows since the last checkpoint are
    ///           computed again, as they were.
    Result<SyncReport> sync(Span<const Token> history, Span<const Mark> marks = {});

    /// Samples the next token, or several when drafting, and appends them to the history.
    ///
    /// max_tokens  how many more tokens the caller wants; nothing is computed beyond the last of them. If every call
    ///           gets what is left of a reply's limit, the reply ends with the state of plain decoding, and the next
    ///           prompt goes on from there.
    /// returns   the new tokens, at most kMaxDraft + 1 and max_tokens; the view is valid until the next call. Of
    ///           several, only the last can be an id that ends a generation (Model::is_end).
    /// errors    bad_argument: no history yet, max_tokens 0, a sampling value out of range, a constraint for another
    ///           vocabulary, or a constrained text that has ended or cannot go on.
    ///           unsupported: a constrained text that is too ambiguous, or whose states take too much memory, to be
    ///           followed further. out_of_memory: for the constrained text. context_full: the history has n_context
    ///           tokens. cancelled: the history stays. device_lost: the history is as before the call; move_to()
    ///           continues it.
    /// cost      one step of the model. Allocates nothing but what a constraint remembers of its text, the record of a
    ///           checkpoint, at most every 64 tokens, and records of another text's rows where the reply takes their
    ///           place; the memory of the checkpoint and the rows is already reserved.
    Result<Span<const Token>> next(const Sampling& sampling = {}, uint64_t max_tokens = UINT64_MAX);

    /// The logits of the token after the history, before bias and penalties, for applications that sample by
    /// themselves: sync() with the history and the chosen token appends it. next() may be called afterwards and gives
    /// what it would have given without this call.
    ///
    /// returns   ModelInfo::n_vocab values; the view is valid until the next call.
    /// errors    bad_argument: no history yet. cancelled, device_lost: as next().
    /// cost      one step of the model if the last token has not been run yet; on a GPU a copy to the host.
    Result<Span<const float>> logits();

    /// Stops sync(), next(), logits(), move_to(), score() and score_mtp(): a running call returns cancelled before its
    /// next step, and later calls return it at once, until cancel(false). Computed steps are kept: the next sync()
    /// continues from there.
    ///
    /// thread    any, at any time except while the Session object itself is moved or destroyed; also a signal handler.
    void cancel(bool on = true) noexcept;

    /// Sets how deep next() drafts from now on: 0..kMaxDraft, or -1 as in DraftOptions::depth. Changes no text.
    ///
    /// errors    bad_argument: out of range, or above 0 in a session created with Draft::off.
    Status set_draft_depth(int depth);

    /// Every token so far. The view is valid until the next call.
    Span<const Token> history() const;

    /// The history and its state as bytes. A session that restores them has this history and continues as this one
    /// does, bit for bit.
    ///
    /// errors    out_of_memory, device_lost.
    Result<Snapshot> save() const;
    /// Replaces the history and its state by saved ones.
    ///
    /// errors    bad_argument: damaged, cut short, longer than n_context, or of another model, other weights or
    ///           hyperparameters, another kind of device, other windows or KV formats. The number of threads,
    ///           drafting, the MTP blocks, n_context, n_ubatch and exact_prompts may differ; but a window of n_context
    ///           rows or more counts as none, so n_context must be larger than the windows that the history was saved
    ///           with. out_of_memory, device_lost: the rows of the history are computed again when they are needed. The
    ///           history itself stays in all of these cases. A checksum finds accidents, not forgeries: restore only
    ///           snapshots from a source that you trust.
    Status restore(const Snapshot& snapshot);

    /// Saves the conversation to a file: tokens, rows, state, and the checkpoints of the live history. A loaded session
    /// continues as this one does, bit for bit. A new file is written beside `path`, synced and renamed, so that `path`
    /// holds the old or the new conversation at any moment. If this session last saved to the same path or loaded from
    /// it, only what changed is appended; once more than half of the file is out of date, it is written anew.
    ///
    /// path      UTF-8. If another Session, here or in another process, saves to the file at the same time, the file
    ///           holds the conversation of one of the two. A symbolic link is followed (on Windows, replaced by a new
    ///           file).
    /// note      bytes of the application, at most kMaxNoteBytes; load() returns them. For what the tokens do not say,
    ///           such as the messages of a chat.
    /// errors    bad_argument: no path, a folder or device, on Windows a path that is not UTF-8, or too large a note;
    ///           not_found: no such folder; io_error: no permission, a full disk; out_of_memory, device_lost. The file
    ///           and the session are as before, and no temporary file is left.
    /// cost      waits for the disk. Allocates 1 MiB and an index.
    Result<SaveReport> save(const char* path, Span<const std::byte> note = {}) const;
    /// Makes the conversation of a file the history, and takes over its checkpoints as far as checkpoint_bytes has
    /// room. The history that was live before is kept as a branch.
    ///
    /// returns   the note, and whether the last save was cut short.
    /// errors    not_found, io_error; bad_file: damaged, cut short or of another version; bad_argument: more than
    ///           n_context tokens, or of another model, other weights or hyperparameters, another kind of device, other
    ///           windows or KV formats (the text names both). The number of threads, drafting, the MTP blocks,
    ///           n_context, n_ubatch and exact_prompts may differ; but a window of n_context rows or more counts as
    ///           none, so n_context must be larger than the windows that the history was saved with. Everything is
    ///           checked before the session changes. If a disk or a device fails after that, the history stays and its
    ///           rows are computed again when they are needed. A checksum finds accidents, not forgeries: load only
    ///           files from a source that you trust.
    /// cost      reads the file twice, through a buffer. Allocates 1 MiB, an index, tokens and one row of logits.
    Result<SessionFile> load(const char* path);

    /// A second session of the same Model and options at the same row, which continues independently: both give the
    /// text that this one would have given. Checkpoints, the draft depth and what was learned about drafting are
    /// copied; statistics begin at zero. The fork calls the same callbacks, on the thread that uses the fork.
    ///
    /// errors    out_of_memory, device_lost. This session goes on as before.
    /// cost      the memory of one more session, as plan() states it, and a copy of rows, state and checkpoints: on a
    ///           GPU within its memory, checkpoints in host memory. Computes no row of the trunk. Waits for cycles that
    ///           are queued ahead. After it, taking back tokens of the last next() costs rows, in both sessions.
    /// thread    the fork may be used on another thread as soon as it is returned.
    Result<Session> fork() const;

    /// Continues on another Model of the same weights, loaded on the same or another device: after device_lost, or to
    /// leave a device that still works. History, options, sampling, statistics and callbacks stay. The session releases
    /// the old Model; its memory is freed when no other handle holds it.
    ///
    /// After a loss the history is as the successful calls left it: the last sync(), and every token that next()
    /// returned, but for tokens that a sync() was taking back when it failed. Call that one again. On a device of the
    /// same name and kind the text continues with the same bits; on another kind of device it continues as in a new
    /// session that is given the history.
    ///
    /// returns   rows reused: those copied from a device that still answers to one of the same name and kind. Rows
    ///           computed: after a loss every row, because keys and values were on the lost device; checkpoints in host
    ///           memory stay valid. Between kinds of devices every row, and only checkpoints of marks are made again.
    /// errors    bad_argument: an empty Model, or other weights, MTP blocks or hyperparameters. unsupported: an option
    ///           that the device does not support. out_of_memory, device_lost (the new device), cancelled. The session
    ///           is as before, and may be moved again.
    /// cost      the memory of one more session while it runs; the rows that are computed.
    Result<SyncReport> move_to(const Model& model);

    /// The oldest position, apart from sinks, that the next row sees in this attention layer; 0 without a window.
    ///
    /// errors    bad_argument: this layer keeps no keys; the text lists the layers that do.
    Result<size_t> first_visible(uint32_t layer) const;

    /// Counts since create() or clear_stats().
    Stats stats() const;
    /// Starts counting from zero, so that stats() and draft_report() describe one request. What was learned about
    /// drafting stays.
    void clear_stats();

    /// The measured costs of drafting, so that a later session need not measure again, unless no draft could pay by
    /// them. They are valid for the same device, driver, model, windows and KV formats, whose names they contain.
    std::vector<std::byte> save_costs() const;
    /// Takes over costs that save_costs() gave.
    ///
    /// errors    bad_argument: of another device, driver, model or option (the text names both). bad_file: damaged.
    ///           Nothing is changed then.
    Status load_costs(Span<const std::byte> costs);

    // ---- measuring and testing; the types are in the last section

    /// What drafting did since clear_stats(), and what is known about it now.
    DraftReport draft_report() const;

    /// Receives one row of logits [n_vocab]; the view is valid during the call.
    using RowSink = std::function<void(size_t position, Span<const float> logits)>;
    /// Runs `ids` from position 0 and passes each row's logits to `row`, in order. The history becomes `ids`;
    /// checkpoints of earlier texts stay.
    ///
    /// errors    bad_argument: no `row`, an id outside the vocabulary, or not 1..n_context ids. cancelled: by cancel()
    ///           or the progress callback; the history is `ids` all the same, except after an earlier cancel() and
    ///           while rows are computed again after an earlier call failed: then it stays as it was.
    Status score(Span<const Token> ids, const RowSink& row);
    /// The MTP block at depth d = 1..8, given the true tokens: row t holds the logits for token t + d + 1, given the
    /// tokens up to t + d. Rows 0 .. ids.size() - 1 - d. Empties the history as sync() does.
    ///
    /// errors    as score(), but where that leaves `ids` the history is empty; unsupported: no MTP block is loaded.
    ///           out_of_memory: no room for the second context; the session goes on.
    /// cost      d + 1 passes over `ids`. Opens a second context, which plan() does not count: while it runs, it takes
    ///           once more what create() took for states, keys, values and buffers, with all rows of the MTP block, and
    ///           two hidden rows for each token.
    Status score_mtp(Span<const Token> ids, uint32_t depth, const RowSink& row);

    /// Times each kind of kernel in a step of n_row rows after n_token tokens: 1..9 rows run as in a cycle, more (up to
    /// n_ubatch) as in a piece of a prompt. Empties the history, as an empty sync() does.
    ///
    /// errors    bad_argument: no rows, more rows and tokens than n_context, or more rows than the GPU runs at once, as
    ///           of a small model whose prompts it reads in steps. unsupported: the CPU, or a GPU without timestamps.
    ///           The history stays in these cases. out_of_memory, device_lost.
    /// cost      about ten such steps.
    Result<std::vector<KernelTime>> profile(uint32_t n_row = 1, size_t n_token = 0);
    /// Counts what is dispatched to a GPU for one step. Runs nothing; the history stays.
    ///
    /// n_row     1..9: a decoding step, with the logits of all rows. More, up to n_ubatch: a prefill step, without
    ///           logits; 0 means n_ubatch.
    /// errors    bad_argument: more rows than a step may have. unsupported: the CPU.
    /// cost      a few milliseconds; allocates.
    Result<StepCounts> count_step(uint32_t n_row) const;

    explicit operator bool() const { return impl_ != nullptr; }

    struct Impl;
    Impl* impl() const { return impl_.get(); }

  private:
    std::unique_ptr<Impl> impl_;
    std::shared_ptr<std::atomic<bool>> cancel_;  ///< outlives what move_to() replaces
};

/// Turns tokens into text to show: holds bytes back until a character is complete, and text that may be the beginning
/// of a stop string. Can be moved, not copied.
class AUSPEX_API TextStream {
  public:
    TextStream() noexcept;
    explicit TextStream(const Model& model, std::vector<std::string> stops = {}, const DecodeOptions& options = {});
    ~TextStream();
    TextStream(TextStream&&) noexcept;
    TextStream& operator=(TextStream&&) noexcept;
    /// The text that is safe to show after `id`.
    ///
    /// errors    bad_argument: an empty TextStream or Model; out_of_memory.
    /// cost      linear in the text, whatever the length of the stop strings.
    Result<std::string> push(Token id);
    /// The text held back, at the end of a generation; incomplete characters become U+FFFD.
    Result<std::string> finish();
    /// True once a stop string was found; it and what follows it are never shown.
    bool stopped() const;
    /// False also where there was no memory to make it.
    explicit operator bool() const { return impl_ != nullptr; }

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Finds stop strings in text that comes in pieces. Use it for stop strings that end a reply only where they occur in
/// its content: ReplyStream separates the content from thinking and calls. TextStream looks for its own stop strings in
/// the whole text. Can be moved, not copied.
class AUSPEX_API StopFilter {
  public:
    StopFilter() noexcept;
    /// Empty stop strings are ignored.
    explicit StopFilter(std::vector<std::string> stops);
    ~StopFilter();
    StopFilter(StopFilter&&) noexcept;
    StopFilter& operator=(StopFilter&&) noexcept;
    /// Returns the text in which no stop string can begin any more; at the first complete stop string the text before
    /// it, and nothing from then on. Of two that end at the same place, the longer counts.
    ///
    /// errors    bad_argument: an empty StopFilter; out_of_memory.
    /// cost      linear in the text for each stop string, over all calls together.
    Result<std::string> push(std::string_view text);
    /// Returns the text held back; call it at the end of the text, or where something else follows. errors: as above.
    Result<std::string> finish();
    /// The stop string that ended the text, or null. Valid until the filter is moved or destroyed.
    const std::string* found() const noexcept;
    /// False also where there was no memory to make it.
    explicit operator bool() const { return impl_ != nullptr; }

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// No limit, in ReplyOptions.
constexpr uint64_t kNoLimit = UINT64_MAX;

struct ReplyOptions {
    Sampling sampling;
    /// Where the prompt has opened the thinking, the constraint begins after it. Off: it holds from the first token on.
    bool free_thinking = false;
    uint64_t max_tokens = kNoLimit;
    /// Thinking that has not ended after this many tokens of the reply is closed, and the answer begins. 0: at once.
    uint64_t max_thinking_tokens = kNoLimit;
    std::vector<std::string> stops;  ///< end the reply and are not shown; not looked for in thinking and calls
    bool inside_thinking = false;    ///< as in ChatPrompt
    std::vector<std::string> tools;  ///< as in ChatRequest
    bool parse = true;               ///< off: no reply of a chat; all of it is text
    bool special = false;            ///< as in DecodeOptions
    bool ignore_end = false;         ///< for measuring: goes on after the model's end token
    /// Each next() takes one token of the answer, so that logits() can be called before each, and nothing is computed
    /// beyond it. Thinking still comes several tokens at a time when drafting.
    bool one_by_one = false;
};

/// Why a reply ended.
enum class Finish : uint8_t {
    none,     ///< it has not
    end,      ///< the model ended it
    stop,     ///< a stop string
    length,   ///< ReplyOptions::max_tokens
    context,  ///< the context is full
};

/// Generates one reply to the prompt that is a Session's history: samples, ends thinking that is too long, finds stop
/// strings, and splits the text into thinking, content and calls. What auspex_chat() and `auspex` run on. Can be
/// moved, not copied.
///
///     ReplyGenerator reply(model, session, options);
///     while (s.ok() && reply.ended() == Finish::none) {
///         s = reply.next().get(events);
///         ...
///     }
///     s = reply.finish().get(events);
///
/// thread    that of the Session.
class AUSPEX_API ReplyGenerator {
  public:
    ReplyGenerator() noexcept;
    /// model     the Session's. The handle outlives the generator; after move_to() it may hold the new Model.
    /// session   after sync() with the prompt. It outlives the generator. Whoever changes its history before finish()
    ///           calls resume() before the next step. move_to() is allowed.
    ReplyGenerator(const Model& model, Session& session, ReplyOptions options = {});
    ReplyGenerator(Model&&, Session&, ReplyOptions = {}) = delete;
    ~ReplyGenerator();
    ReplyGenerator(ReplyGenerator&&) noexcept;
    ReplyGenerator& operator=(ReplyGenerator&&) noexcept;

    /// One pass of the model, or the end of thinking that is too long.
    ///
    /// returns   what may be shown now; often nothing.
    /// errors    those of Session::next(), but context_full is an end; and of Session::sync(). bad_argument: an empty
    ///           generator; a reply that has ended; a constraint that refuses the end of the thinking. After
    ///           device_lost and cancelled it may be called again, and nothing of the reply is lost.
    /// cost      that of Session::next().
    Result<std::vector<ReplyEvent>> next();
    /// Goes on with this token instead of a sampled one.
    ///
    /// errors    as next(); bad_argument: an id outside the vocabulary.
    Result<std::vector<ReplyEvent>> push(Token id);
    /// The logits of the next token, as Session::logits(). What was drafted beyond the last one is taken back.
    Result<Span<const float>> logits();
    /// Before the session is used for something else, such as another reply: takes what was sampled ahead of next()
    /// with SessionOptions::run_ahead. Without it these rows are lost, and on a GPU prompts compute them again with
    /// other rounding. The reply may end here.
    ///
    /// returns   what may be shown now.
    /// errors    as next().
    Result<std::vector<ReplyEvent>> pause();
    /// Makes the session's history the prompt and the reply so far: after the session was used for something else, and
    /// at the end, where it may be longer by what was drafted beyond, or lack what finish() added.
    ///
    /// returns   what sync() did. If it computed more than one row, checkpoint_bytes had no room for the others. On a
    ///           GPU they now have the rounding of a prompt, and the reply may go on otherwise than alone.
    /// errors    those of Session::sync(), after which it may be called again; bad_argument: an empty generator.
    Result<SyncReport> resume();
    /// What was held back. Also for a reply that has not ended, which then has; if its thinking was about to be closed,
    /// the text that closes it is added. Bytes of a character that is not complete are not shown: a generator on a
    /// history that ends inside one begins its text with all of it. Computes nothing, and does not change the session.
    ///
    /// errors    bad_argument: an empty generator, or a second call; out_of_memory.
    Result<std::vector<ReplyEvent>> finish();

    /// A stop string may be found as late as in finish().
    Finish ended() const;
    /// The stop string that ended the reply, until the generator is moved or destroyed; null: none did.
    const std::string* stop() const;
    /// The tokens of the reply, without one that ended it. With a stop string those that hold it are the last ones: the
    /// text may end before them, or inside the first. The view is valid until the generator's next call.
    Span<const Token> tokens() const;
    /// The next token belongs to the thinking, as far as the text so far says.
    bool in_thinking() const;
    /// How many tokens of the reply come up to the end of its thinking's text: without the tag that closes it, whoever
    /// wrote that, and white space before the tag. At most max_thinking_tokens. Complete after finish().
    size_t n_thinking_token() const;
    /// The reply, once finish() was called.
    const ChatReply& reply() const;
    /// False also where there was no memory to make it.
    explicit operator bool() const { return impl_ != nullptr; }

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// ------------------------------------------------------------------------ measuring and testing

/// Why the draft depth changed.
enum class DraftReason : uint8_t {
    none,
    cold_start,     ///< each depth is measured first
    drafting_pays,  ///< it was off
    off_pays,       ///< plain decoding is faster
    better_depth,   ///< another depth is faster
    probe,          ///< one pass to measure a depth again, and back
    unprofitable,   ///< with these costs no acceptance would make drafting pay
    costs_changed,  ///< costs or the context have changed since then
};
/// "drafting pays"
AUSPEX_API const char* draft_reason_name(DraftReason reason);

/// One change of the draft depth.
struct DepthChange {
    uint64_t n_token = 0;  ///< tokens of this report before it
    uint32_t from = 0, to = 0;
    DraftReason reason = DraftReason::none;
};

/// What drafting did and what is known about it. Arrays are indexed by depth, or by place in the cycle, from 1 on. A
/// cycle is one pass of next(): 1 + depth rows. R(g) is the time of a cycle at depth g divided by that of a plain step;
/// drafting pays while E(g), the expected tokens of a cycle, is above R(g).
struct DraftReport {
    uint64_t n_token = 0, n_cycle = 0;
    // By the depth that was decided on; Stats::cycles counts by the drafts that were made.
    uint64_t tokens[kMaxDraft + 1] = {};     ///< sampled by these cycles
    uint64_t cycles[kMaxDraft + 1] = {};     ///< their number
    uint64_t evaluated[kMaxDraft + 1] = {};  ///< drafts at this place whose predecessors were all accepted
    uint64_t accepted[kMaxDraft + 1] = {};   ///< of those
    // Of these, drafts made from the text: by lookup, or because a constraint left no choice.
    uint64_t text_cycles = 0;  ///< cycles that verified such drafts
    uint64_t text_tokens = 0;  ///< tokens that these cycles sampled
    uint64_t text_offers = 0;  ///< how often the text offered drafts, verified or not
    uint64_t text_right = 0;   ///< offers whose first draft was the token that came
    // Acceptance probes: while drafting is off, drafts of the MTP block that are only compared with the tokens that
    // came.
    uint64_t n_probe = 0, probe_rows = 0, probe_hits = 0;
    double probe_seconds = 0;
    double seconds = 0;  ///< of all cycles
    /// Estimate for the same tokens without drafting; 0 while no plain step was measured, as with a fixed depth.
    double baseline_seconds = 0;
    // At the present context length, for the MTP block; without one, for lookup with a long match. Values of a depth
    // that was not measured (n_sample 0) are interpolated.
    double cycle_seconds[kMaxDraft + 1] = {};          ///< T(g); 0: nothing is known yet
    double relative_cost[kMaxDraft + 1] = {};          ///< R(g) = T(g) / T(0)
    uint32_t n_sample[kMaxDraft + 1] = {};             ///< measurements of T(g)
    double break_even_ratio[kMaxDraft + 1] = {};       ///< accepted/drafted from which depth g pays: (R(g) - 1) / g
    double break_even_acceptance[kMaxDraft + 1] = {};  ///< the same as a conditional acceptance; above 1: cannot pay
    double acceptance[kMaxDraft + 1] = {};             ///< probability that draft i is accepted if those before it were
    double expected_tokens[kMaxDraft + 1] = {};        ///< E(g)
    uint32_t depth = 0;                                ///< of the last cycle
    bool unprofitable = false;                         ///< drafting is off until costs or context change
    uint64_t n_depth_change = 0;
    std::vector<DepthChange> depth_changes;  ///< the last 64, oldest first
    /// Estimated speed relative to decoding without drafts; 0 where baseline_seconds is.
    double speedup() const { return seconds + probe_seconds > 0 ? baseline_seconds / (seconds + probe_seconds) : 1; }
};

/// One pass of next(): what was decided and what happened.
struct DraftCycle {
    size_t n_token = 0;      ///< tokens in the history before it
    uint32_t chosen = 0;     ///< depth decided on
    uint32_t depth = 0;      ///< drafts made: fewer near the end of the context, or after an early stop
    uint32_t accepted = 0;   ///< of those
    double us = 0;           ///< time of the whole cycle
    double catch_up_us = 0;  ///< part of it, in a cycle without drafts: keeping the MTP cache current, if it is timed
    /// 0: the drafts are the MTP block's. UINT32_MAX: text that a constraint forces. Else: what followed the last
    /// text_match tokens where they occurred before.
    uint32_t text_match = 0;
    uint32_t probe_rows = 0;  ///< of an acceptance probe by the MTP block before it
    uint32_t probe_hits = 0;
    double probe_us = 0;
    // The basis of the decision; 0 while nothing is measured.
    double acceptance = 0;                   ///< probability that the first draft is accepted
    double expected_tokens = 0;              ///< E(chosen)
    double relative_cost = 0;                ///< R(chosen)
    double break_even_ratio = 0;             ///< accepted/drafted: of `chosen`, or of depth 1 if that is 0
    DraftReason reason = DraftReason::none;  ///< unless none, the depth of the MTP block changed
};

/// What one kind of kernel did in one step.
struct KernelTime {
    std::string name;
    uint32_t count = 0;
    double us = 0;
    uint64_t bytes = 0;  ///< of weights and state that had to be read or written at least
};

/// What is dispatched to a GPU for one step.
struct StepCounts {
    uint32_t n_row = 0;
    uint32_t n_dispatch = 0;
    uint32_t n_barrier = 0;   ///< between dispatches; command buffers add one at each end
    uint32_t n_pipeline = 0;  ///< distinct pipelines
};

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
