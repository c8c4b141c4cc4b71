// auspex: hybrid language models (Gated DeltaNet + attention) from GGUF files, embedded as one header.
//
// Use       #define AUSPEX_IMPLEMENTATION in exactly one source file, then #include "auspex.hpp".
//           Every other file just includes it.
// Macros    AUSPEX_IMPLEMENTATION, AUSPEX_NO_VULKAN, AUSPEX_NO_SIMD, AUSPEX_ASSERT, AUSPEX_API.
// Errors    are values: Status and Result. The library never throws, prints, aborts on bad input,
//           reads the environment or keeps globals.
// Threads   Device and Model are immutable and may be shared; a Session belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#ifndef AUSPEX_API
#define AUSPEX_API
#endif

namespace auspex {

#define AUSPEX_VERSION "0.1.0"

// ---------------------------------------------------------------------------------- vocabulary

enum class Code {
    ok,
    bad_argument,   ///< the caller passed something impossible; the text names what was expected
    bad_file,       ///< the file is damaged or contradicts itself
    unsupported,    ///< a valid file or request that this version does not handle
    not_found,      ///< no such file, device or item
    io_error,       ///< the operating system refused
    out_of_memory,  ///< host or device memory
    no_device,      ///< no usable device of the kind asked for
    device_lost,    ///< the device is gone: the session is over, the process is unharmed
    cancelled,      ///< a progress callback returned false
    context_full,   ///< no room for another row
};

/// The name of a code as it appears in messages: "bad_file".
AUSPEX_API const char* code_name(Code code);

/// The outcome of a call: a code and, unless it is ok, a text that names what was expected, what
/// was found and what to do.
struct [[nodiscard]] Status {
    Code code = Code::ok;
    std::string text;

    Status() = default;
    Status(Code c, std::string t) : code(c), text(std::move(t)) {}
    bool ok() const { return code == Code::ok; }
    /// "bad_file: the text", or "ok".
    std::string message() const { return ok() ? "ok" : std::string(code_name(code)) + ": " + text; }
};

/// A T or the Status that explains why there is none.
template <class T>
class [[nodiscard]] Result {
  public:
    Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit on purpose
    Result(Status status) : status_(std::move(status)) {}
    bool ok() const { return status_.ok(); }
    const Status& status() const { return status_; }
    /// Moves the value out; `out` is untouched on failure.
    Status get(T& out) && {
        if (ok()) out = std::move(value_);
        return std::move(status_);
    }
    /// Only when ok().
    T& value() { return value_; }
    const T& value() const { return value_; }

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

/// Where host memory for weights, caches and activations comes from. Small bookkeeping uses the
/// standard allocator. `alloc` returns null when there is no more; `free` gets the same size back.
struct Allocator {
    void* (*alloc)(void* user, size_t bytes, size_t alignment) = nullptr;
    void (*free)(void* user, void* p, size_t bytes, size_t alignment) = nullptr;
    void* user = nullptr;
};

enum class LogLevel { info, warning };
/// Called with one line, no newline, from the thread that made the call being logged.
using Logger = std::function<void(LogLevel, std::string_view)>;

/// Called now and then with what is going on and how far it is, 0..1; return false to cancel.
using Progress = std::function<bool(const char* what, float fraction)>;

// -------------------------------------------------------------------------------------- device

enum class Kind { best, cpu, vulkan };

/// Which of the CPU's code paths to use. `reference` is the plain float path every other one is
/// measured against; `best` takes the fastest this processor has.
enum class CpuPath { best, reference, avx2, avx512, neon };

/// The application's own Vulkan objects, as opaque handles, so that this header needs no Vulkan
/// header. The application keeps ownership and must outlive the Device.
struct VulkanHandles {
    void* instance = nullptr;         ///< VkInstance
    void* physical_device = nullptr;  ///< VkPhysicalDevice
    void* device = nullptr;           ///< VkDevice
    void* queue = nullptr;            ///< VkQueue with compute; the Device submits to it
    uint32_t queue_family = 0;
    void* get_instance_proc_addr = nullptr;  ///< PFN_vkGetInstanceProcAddr
    /// Held around every vkQueueSubmit when the queue is shared with other threads; may be empty.
    std::function<void()> lock_queue, unlock_queue;
    /// The VkPhysicalDeviceFeatures2 chain and the extensions the device was created with. Optional
    /// features are used only as far as these name them; timelineSemaphore is needed in any case.
    const void* enabled_features = nullptr;
    Span<const char* const> enabled_extensions;
};

struct DeviceOptions {
    Kind kind = Kind::best;
    int vulkan_index = -1;                  ///< which Vulkan device; -1 takes the best
    const VulkanHandles* borrow = nullptr;  ///< run on the application's device instead
    CpuPath cpu_path = CpuPath::best;
    int n_thread = 0;                ///< CPU threads; 0: one per physical core
    size_t memory_limit_bytes = 0;   ///< 0: what the driver or the system reports as free
    Span<const std::byte> pipeline_cache;  ///< a blob from Device::pipeline_cache(), or empty
    Allocator allocator;
    Logger log;
};

/// A place where models run. Cheap to copy; copies share one device.
///
/// thread    any, at the same time.
class AUSPEX_API Device {
  public:
    Device() = default;
    /// Opens a device. Kind::best takes a real GPU where there is one and the CPU otherwise, and
    /// says through the logger why a GPU was passed over.
    ///
    /// errors    no_device: nothing of that kind; the text lists what was found.
    ///           bad_argument: an option out of range.
    /// cost      CPU: microseconds. Vulkan: 50-200 ms, less with a pipeline cache.
    static Result<Device> open(const DeviceOptions& options = {});
    /// "cpu (avx512, 2 threads)" or the GPU's name.
    std::string name() const;
    /// What was probed, which kernel variants were chosen, and why; several lines.
    std::string report() const;
    Kind kind() const;
    /// The pipeline cache as bytes to store and hand to the next open(); empty on the CPU.
    std::vector<std::byte> pipeline_cache() const;
    explicit operator bool() const { return impl_ != nullptr; }

    struct Impl;
    const std::shared_ptr<Impl>& impl() const { return impl_; }

  private:
    std::shared_ptr<Impl> impl_;
};

// --------------------------------------------------------------------------------------- model

/// How a conversation is turned into prompt text; recognised from the template in the file.
/// `chatml_no_think` is ChatML whose assistant turn is opened with an empty think block.
enum class ChatStyle { chatml, chatml_no_think, qwen35, qwen36, qwen36_unsloth };

struct ModelInfo {
    std::string architecture, name;
    uint32_t n_layer = 0;      ///< trunk layers, MTP blocks not counted
    uint32_t n_attention = 0;  ///< of those, how many keep a KV cache
    uint32_t n_mtp = 0;        ///< MTP blocks that are loaded
    uint32_t d_model = 0;
    uint32_t n_vocab = 0;
    uint32_t n_context = 0;  ///< rows the model was trained for
    uint64_t n_parameter = 0;
    uint64_t file_bytes = 0;
    uint64_t weight_bytes = 0;  ///< as held by the device, repacked
    ChatStyle chat_style = ChatStyle::chatml;
    std::string chat_note;  ///< why this style: names an unknown template
};

struct LoadOptions {
    Progress progress;
    bool mtp = true;  ///< load the draft block, if the file has one
};

struct EncodeOptions {
    /// Parse control tokens such as <|im_end|> written out in the text. Off by default, so that
    /// text from a user cannot inject them.
    bool special = false;
};

struct DecodeOptions {
    bool special = false;  ///< show control tokens too
};

struct ChatPrompt;
struct ChatRequest;

/// A model loaded onto a Device. Immutable and cheap to copy; keeps its Device alive.
///
/// thread    any, at the same time.
class AUSPEX_API Model {
  public:
    Model() = default;
    /// Loads a GGUF file; of a split model, the first shard. Tensors are read or repacked onto the
    /// device; the file is not needed afterwards except where the CPU path maps it.
    ///
    /// errors    not_found, io_error, bad_file, unsupported, out_of_memory, cancelled.
    /// cost      reads the file once.
    static Result<Model> load(const Device& device, const char* path, const LoadOptions& options = {});
    /// The same from memory; the bytes must outlive the Model.
    static Result<Model> load(const Device& device, Span<const std::byte> file, const LoadOptions& options = {});

    const ModelInfo& info() const;

    /// Text to ids. Invalid UTF-8 bytes are replaced by U+FFFD. Adds nothing.
    /// cost      about a microsecond for each ten bytes.
    std::vector<Token> encode(std::string_view text, const EncodeOptions& options = {}) const;
    /// A rendered chat prompt to ids: control tokens are parsed in the template's own text only.
    std::vector<Token> encode(const ChatPrompt& prompt) const;
    /// Ids to text; ids outside the vocabulary give nothing. The bytes are the tokens' own: where a
    /// character is spread over tokens, a part of them gives a part of it (TextStream puts it together).
    std::string decode(Span<const Token> ids, const DecodeOptions& options = {}) const;
    /// True for the ids that end a generation.
    bool is_end(Token id) const;

    /// The exact text of the model's chat template for this conversation.
    /// errors    bad_argument: what the template itself would refuse, in its own words.
    Result<ChatPrompt> render(const ChatRequest& request) const;
    /// A readable listing: metadata, tensors by type, the tape of operations.
    std::string describe_plan() const;

    explicit operator bool() const { return impl_ != nullptr; }

    struct Impl;
    const std::shared_ptr<Impl>& impl() const { return impl_; }

  private:
    std::shared_ptr<Impl> impl_;
};

// ---------------------------------------------------------------------------------------- chat

/// One argument of a tool call. `json` tells whether `value` is JSON text or a plain string.
struct ToolArgument {
    std::string name, value;
    bool json = false;
};
struct ToolCall {
    std::string name;
    std::vector<ToolArgument> arguments;
};
/// One item of a content that is a list. Images and videos are rendered as the marks that stand for
/// them; filling these with embeddings is beyond this version.
struct ContentPart {
    enum class Kind { text, image, video };
    Kind kind = Kind::text;
    std::string text;
};
struct ChatMessage {
    std::string role;       ///< system, user, assistant or tool
    std::string content;
    std::vector<ContentPart> parts;  ///< unless empty, stands in place of `content`
    std::string reasoning;  ///< assistant only; used when has_reasoning, else taken from <think> in the content
    bool has_reasoning = false;
    std::vector<ToolCall> tool_calls;
};

/// A conversation to render.
struct AUSPEX_API ChatRequest {
    std::vector<ChatMessage> messages;
    std::vector<std::string> tools;  ///< one JSON object each
    bool add_generation_prompt = true;
    bool enable_thinking = true;
    bool preserve_thinking = false;
    bool add_vision_id = false;  ///< number images and videos: "Picture 1: "
    /// Reads {"messages": [...], "tools": [...], and the switches above}, in OpenAI's form; the switches
    /// may also stand in "chat_template_kwargs". Tool arguments may be an object or a string holding
    /// one. Other keys are left alone.
    /// errors    bad_argument: not JSON (with the position), or not of this form (with the path).
    static Result<ChatRequest> from_json(std::string_view text);
};

/// Prompt text in pieces that know where they come from, so that control tokens in a user's text
/// stay text.
struct ChatPrompt {
    struct Piece {
        std::string text;
        bool from_template = false;
    };
    std::vector<Piece> pieces;
    bool inside_thinking = false;  ///< the prompt ends inside <think>
    std::string text() const {
        std::string all;
        for (const Piece& p : pieces) all += p.text;
        return all;
    }
};

/// Renders with a style and without a model. `style` from recognise_template().
/// errors    bad_argument: what the template would refuse, in its own words and with the place; with
///           ChatML also tools, tool calls and images, which its template cannot show.
AUSPEX_API Result<ChatPrompt> render_chat(const ChatRequest& request, ChatStyle style);
/// Which native renderer writes what this Jinja template would. `note`, if given, is emptied when the
/// template is known to the letter, and says otherwise what was not known and what is done instead.
AUSPEX_API ChatStyle recognise_template(std::string_view jinja, std::string* note);

/// What a model wrote, taken apart.
struct ChatReply {
    std::string thinking, content;
    std::vector<ToolCall> tool_calls;
};
/// Takes output text apart. Malformed calls stay in `content`. `inside_thinking` as in ChatPrompt.
/// `tools` (JSON objects as in ChatRequest) decide which arguments are plain strings; an argument
/// they do not describe is JSON where it reads as such, else a string.
/// cost      linear.
AUSPEX_API ChatReply parse_reply(std::string_view text, bool inside_thinking,
                                 const std::vector<std::string>& tools = {});

// ------------------------------------------------------------------------------------ sampling

/// How the next token is picked. Order: penalties, top-k, top-p, min-p, temperature, pick.
/// The pick is Gumbel-max with noise keyed by (seed, position, id): the token is a pure function
/// of its logits and its position, so drafting cannot change it.
struct Sampling {
    float temperature = 0;         ///< 0: the largest logit, ties to the lower id
    int top_k = 0;                 ///< keep the k largest; 0: all
    float top_p = 1;               ///< keep the smallest set with this much probability
    float min_p = 0;               ///< keep what has at least this share of the largest
    float repeat_penalty = 1;      ///< divides positive and multiplies negative logits of seen ids
    float frequency_penalty = 0;   ///< subtracted once per occurrence
    float presence_penalty = 0;    ///< subtracted once per seen id
    uint32_t penalty_window = 64;  ///< how many of the last tokens count as seen; at most 4096
    uint64_t seed = 0;
};

// ------------------------------------------------------------------------------------- session

struct SessionOptions {
    uint32_t n_context = 0;  ///< rows of history at most; 0: the smaller of 4096 and the model's
    uint32_t n_ubatch = 512; ///< rows computed at once in a prefill, 1..4096
    Progress progress;       ///< called during long prefills
};

struct Stats {
    uint64_t rows_prefilled = 0;   ///< rows computed by sync()
    uint64_t rows_decoded = 0;     ///< rows computed by next()
    uint64_t tokens_picked = 0;
    double prefill_s = 0;          ///< wall time in sync()
    double decode_s = 0;           ///< wall time in next()
    uint64_t memory_bytes = 0;     ///< held by this session
};

/// The state of a timeline as bytes; only for a Session of the same model and options.
struct Snapshot {
    std::vector<std::byte> bytes;
    size_t n_token = 0;
};

/// One timeline of tokens over a Model. Keeps its Model alive.
///
/// thread    one thread at a time; other Sessions of the Model may run at the same time.
class AUSPEX_API Session {
  public:
    Session() = default;
    /// Allocates everything the session will ever need.
    /// errors    bad_argument, out_of_memory (the text says how much was wanted).
    static Result<Session> create(const Model& model, const SessionOptions& options = {});

    /// Makes the history equal to `history`, computing only the rows that are missing.
    ///
    /// history   every token from the start, at most the session's n_context; empty forgets all.
    /// returns   rows computed: 0 when nothing changed, history.size() after a restart.
    /// errors    bad_argument: an id outside the vocabulary, or too long (the text names both numbers).
    ///           device_lost: this session is over; the process is unharmed.
    ///           cancelled: by the progress callback; the rows so far are kept.
    /// cost      one prefill of those rows. An edit in the middle restarts from the beginning or
    ///           from the nearest restored snapshot.
    Result<size_t> sync(Span<const Token> history);

    /// Picks the next token, or several when drafting, and appends them to the history.
    ///
    /// returns   the new tokens; the view holds until the next call.
    /// errors    bad_argument: no history yet, or a sampling value out of range.
    ///           context_full: the history has n_context tokens.
    Result<Span<const Token>> next(const Sampling& sampling = {});

    /// Every token so far.
    Span<const Token> history() const;

    /// Runs `ids` from the start of a fresh timeline and hands each row's logits to `row`, in
    /// order. Leaves the history equal to `ids`. For measuring and testing.
    using RowSink = std::function<void(size_t position, Span<const float> logits)>;
    Status score(Span<const Token> ids, const RowSink& row);
    /// The MTP block at depth d (1..8), teacher-forced: row t holds the logits for token t+d+1,
    /// given the true tokens up to t+d. Rows 0 .. ids.size()-1-d.
    Status score_mtp(Span<const Token> ids, uint32_t depth, const RowSink& row);

    Result<Snapshot> save() const;
    Status restore(const Snapshot& snapshot);
    Stats stats() const;
    explicit operator bool() const { return impl_ != nullptr; }

    struct Impl;
    const std::shared_ptr<Impl>& impl() const { return impl_; }

  private:
    std::shared_ptr<Impl> impl_;
};

/// Turns tokens into text to show: holds back bytes until a character is complete, and text that
/// may be the beginning of a stop string.
class AUSPEX_API TextStream {
  public:
    explicit TextStream(const Model& model, std::vector<std::string> stops = {}, const DecodeOptions& options = {});
    /// The text that `id` makes safe to show.
    std::string push(Token id);
    /// What was held back, at the end of a generation; broken characters become U+FFFD.
    std::string finish();
    /// True once a stop string was found; it and what follows are never shown.
    bool stopped() const { return stopped_; }

  private:
    std::string take(bool all);
    Model model_;
    std::vector<std::string> stops_;
    DecodeOptions options_;
    std::string bytes_, held_;
    bool stopped_ = false;
};

}  // namespace auspex
