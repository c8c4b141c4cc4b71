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
    int n_thread = 0;                      ///< CPU threads; 0: one per physical core
    size_t memory_limit_bytes = 0;         ///< 0: what the driver or the system reports as free
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
    bool mtp = true;  ///< load the draft blocks, if there are any
    /// A file with the model's draft blocks ("mtp-*.gguf"; of a split one the first shard), when they are not in the
    /// model's own file or others shall take their place. Or its bytes, which must outlive the Model. Embedding and
    /// head are the model's, unless this file has a smaller head: drafts then use that.
    std::string mtp_file;
    Span<const std::byte> mtp_bytes;
    /// On a GPU: layers, from the first on, whose experts stay in the system's memory, where the GPU reads them:
    /// slower, the same text. -1: as few as let the weights and a session with default options fit the device, by
    /// its memory_limit_bytes or what the driver reports; none where nothing is short.
    int host_expert_layers = -1;
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
    std::string role;  ///< system, user, assistant or tool
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

/// Where guesses of the next tokens come from. All of a guess that the model itself would have picked
/// is kept, the rest is thrown away: the text is the same with every source, at every depth.
enum class Draft {
    off,
    mtp,         ///< the model's own draft block
    lookup,      ///< what followed earlier, where the last tokens have been seen before
    mtp_lookup,  ///< lookup where it has a long match, the draft block elsewhere
    best,        ///< mtp where the model has a draft block, else off
};

/// The most tokens that one pass can verify.
constexpr uint32_t kMaxDraft = 8;

struct DraftOptions {
    Draft source = Draft::off;
    /// Tokens guessed for each pass, 0..kMaxDraft. -1: chosen before each pass by what was measured, so that
    /// drafting is never slower than plain decoding by more than 2 %; DraftReport tells what was chosen and why.
    int depth = -1;
    uint32_t max_depth = 6;     ///< of the depths that are chosen so: 1..kMaxDraft
    float min_probability = 0;  ///< stop guessing where the draft block gives its choice less than this
    uint32_t window = 4096;     ///< rows the draft block looks back; 0: all
    /// Rows of a draft-only head over the most common ids: guesses become cheaper and a little worse.
    /// 0: the model's own head. Costs a copy of these rows.
    uint32_t n_vocab = 0;
    std::vector<Token> vocab;  ///< the ids of that head (control ids are added); empty: the n_vocab lowest
    /// Instead, at each sync(), the n_vocab ids that this session's texts used most.
    bool vocab_by_use = false;
};

/// Why the draft depth changed.
enum class DraftReason : uint8_t {
    none,
    cold_start,     ///< each depth is measured first
    drafting_pays,  ///< it was off
    off_pays,
    better_depth,
    probe,         ///< one pass to measure a depth again, and back
    unprofitable,  ///< with these costs no acceptance would make it pay
    unlocked,      ///< costs or the context have changed since
};
/// "drafting pays"
AUSPEX_API const char* draft_reason_name(DraftReason reason);

/// A change of the draft depth.
struct DraftSwitch {
    uint64_t n_token = 0;  ///< tokens of this report before it
    uint32_t from = 0, to = 0;
    DraftReason reason = DraftReason::none;
};

/// What drafting did and what is known about it now. Arrays are indexed by depth, or by place in the cycle
/// from 1 on; a cycle is one pass of next(): 1 + depth rows. R(g) is the time of a cycle at depth g in plain
/// steps; drafting pays while the expected tokens of a cycle, E(g), are above it.
struct DraftReport {
    uint64_t n_token = 0, n_cycle = 0;
    uint64_t tokens[kMaxDraft + 1] = {};  ///< emitted by cycles of this depth
    uint64_t cycles[kMaxDraft + 1] = {};
    uint64_t judged[kMaxDraft + 1] = {};    ///< guesses at this place that were reached: all before them were right
    uint64_t accepted[kMaxDraft + 1] = {};  ///< of those
    uint64_t probe_rows = 0, probe_hits = 0,
             probe_passes = 0;  ///< while off: guesses made only to see if they are right
    double seconds = 0;         ///< of all cycles
    double probe_seconds = 0;
    double off_seconds = 0;  ///< estimate of the same tokens without drafting
    // Now, at this context length; where a depth was not measured (samples), from a line through its neighbours.
    double step_seconds[kMaxDraft + 1] = {};  ///< T(g); 0: nothing is known yet
    double relative[kMaxDraft + 1] = {};      ///< R(g) = T(g) / T(0)
    uint32_t samples[kMaxDraft + 1] = {};
    double break_even_r[kMaxDraft + 1] = {};  ///< accepted/drafted from which on depth g pays: (R(g) - 1) / g
    double break_even_a[kMaxDraft + 1] =
        {};  ///< the same as the chance of each guess to be right after right ones; above 1: it cannot pay
    double acceptance[kMaxDraft + 1] = {};  ///< a_i: chance of guess i to be right when those before it were
    double expected[kMaxDraft + 1] = {};    ///< E(g)
    uint32_t depth = 0;                     ///< of the last cycle
    bool unprofitable = false;              ///< off until costs or context change
    uint64_t n_switch = 0;
    std::vector<DraftSwitch> switches;  ///< the last 64, oldest first
    /// Times as fast as without drafting, by estimate.
    double gain() const { return seconds + probe_seconds > 0 ? off_seconds / (seconds + probe_seconds) : 1; }
};

/// One pass of next(), as it was decided and as it went.
struct DraftCycle {
    size_t n_token = 0;   ///< tokens in the history before it
    uint32_t wanted = 0;  ///< depth decided on
    uint32_t depth = 0;   ///< guesses made: fewer near the end of the context, or after an early stop
    uint32_t accepted = 0;
    double us = 0;  ///< of the whole cycle
    double catch_up_us =
        0;  ///< of that, in a cycle without drafts: keeping the draft block's cache up, as far as that is timed
    uint32_t probe_rows = 0;  ///< of a acceptance_probe pass before it
    uint32_t probe_hits = 0;
    double probe_us = 0;
    // What the decision stood on; 0 while nothing is measured.
    double acceptance = 0;                   ///< a_1
    double expected = 0;                     ///< E(wanted)
    double relative = 0;                     ///< R(wanted)
    double break_even_r = 0;                 ///< in accepted/drafted: of `wanted`, of depth 1 when that is 0
    DraftReason reason = DraftReason::none;  ///< unless none, the depth changed
};

/// How keys and values are kept: 16, 8.5, 4.5, 5 or 32 bits a value. Rounded as the GGUF types of these names; f32
/// rounds nothing, for comparing with float32 implementations, and is kept by the CPU alone.
enum class KvType { f16, q8_0, q4_0, q4_1, f32 };

constexpr uint32_t kAllLayers = ~uint32_t{0};        ///< every attention layer, draft blocks included
constexpr uint32_t kDraftLayers = ~uint32_t{0} - 1;  ///< the attention layers of the MTP blocks

/// How far back one attention layer sees. A window changes what the model computes.
struct LayerWindow {
    uint32_t layer = kAllLayers;  ///< counted from 0; the MTP blocks follow the trunk
    uint32_t window = 0;          ///< a row sees itself and the window - 1 rows before it; 0: everything
    uint32_t sinks = 0;           ///< first positions that stay visible all the same, at most 256
};
/// Reads "3:64,7:full", "all:4096", "all:16384+4,27:full,mtp:1024": layers or `all` or `mtp`, then a window or
/// `full`, and after a + the sinks. What stands later counts.
/// errors    bad_argument: names the piece that is not of this form.
AUSPEX_API Result<std::vector<LayerWindow>> parse_windows(std::string_view spec);
/// The same form back: "3:64+4,7:full".
AUSPEX_API std::string print_windows(const std::vector<LayerWindow>& windows);

/// The first token that a layer no longer sees.
struct WindowLeft {
    uint32_t layer = 0, window = 0, sinks = 0;
    size_t n_token = 0;  ///< rows of the timeline by now
};

enum class MemoryPlace {
    allocator,  ///< through DeviceOptions::allocator
    device,     ///< the GPU's memory
    file,       ///< read where the file is mapped; takes nothing of its own
    host,       ///< bookkeeping, through the standard allocator
    pinned,     ///< the system's memory, read by the GPU where it is: experts that its own has no room for
};
struct MemoryItem {
    std::string what;  ///< "weights Q4_K", "keys q8_0", "attention scratch"
    int layer = -1;    ///< or -1: no layer's own
    uint64_t bytes = 0;
    MemoryPlace place = MemoryPlace::allocator;
};
/// Another way to set things up, and what it would take.
struct MemoryAlternative {
    std::string what;  ///< "keys and values in q8_0"
    uint64_t total_bytes = 0;
    bool fits = false;
};
/// What a model and one session on it take, before anything is taken.
struct MemoryPlan {
    std::vector<MemoryItem> items;
    uint64_t weight_bytes = 0;   ///< taken by Model::load
    uint64_t session_bytes = 0;  ///< taken by Session::create
    uint64_t file_bytes = 0;     ///< read in place, not part of the total
    uint64_t total_bytes = 0;    ///< weight_bytes + session_bytes
    uint64_t pinned_bytes = 0;   ///< of the total: experts in the system's memory, which the limit does not count
    uint64_t draft_weight_bytes =
        0;  ///< of weight_bytes and file_bytes: the MTP blocks, gone with LoadOptions::mtp off
    uint64_t draft_session_bytes = 0;  ///< of session_bytes: what drafting takes at any depth, gone with Draft::off
    uint64_t kv_token_bytes = 0;       ///< by which each further token of n_context would raise it
    uint64_t limit_bytes = 0;          ///< DeviceOptions::memory_limit_bytes
    bool fits = true;                  ///< total_bytes - pinned_bytes is within the limit, or there is none
    std::vector<LayerWindow> windows;  ///< of every attention layer
    std::string window_rule;           ///< how kv_budget_bytes was met; else empty
    std::vector<MemoryAlternative> alternatives;  ///< unless it fits: from the mildest change on
};

struct SessionOptions {
    uint32_t n_context = 0;                         ///< rows of history at most; 0: the smaller of 4096 and the model's
    uint32_t n_ubatch = 512;                        ///< rows computed at once in a prefill, 1..4096
    Progress progress;                              ///< called during long prefills
    KvType kv_k = KvType::f16, kv_v = KvType::f16;  ///< how keys and values are kept
    std::vector<LayerWindow> windows;               ///< what stands later counts; layers not named see everything
    /// Unless 0, windows are chosen so that all keys and values take at most this; `windows` must be empty. The
    /// last 2/5 of the attention layers see everything, the others a window with 4 sinks: the largest power of two, at
    /// least 1024, that fits. If none does, fewer layers see everything; at last none, with windows down to 64.
    uint64_t kv_budget_bytes = 0;
    /// Called once a timeline for each layer with a window, when a first token is out of its sight.
    std::function<void(const WindowLeft&)> on_window_left;
    DraftOptions draft;
    /// On a GPU: tokens computed ahead of the caller, 0..7, which hides the way there and back. The device stops at
    /// an end token or a full context by itself; a caller who stops elsewhere and then changes the text pays a new
    /// prefill, because what was computed ahead cannot be taken back. No effect on the text or on the CPU.
    uint32_t run_ahead = 0;
    /// Called for each cycle when its result is there, from next(), sync() or save().
    std::function<void(const DraftCycle&)> on_cycle;
};

struct Stats {
    uint64_t rows_prefilled = 0;  ///< rows computed by sync()
    uint64_t rows_decoded = 0;    ///< rows computed by next()
    uint64_t tokens_sampled = 0;
    double prefill_s = 0;              ///< wall time in sync()
    double decode_s = 0;               ///< wall time in next()
    uint64_t memory_bytes = 0;         ///< held by this session
    std::vector<LayerWindow> windows;  ///< of every attention layer, 0: it sees everything
    std::string window_rule;           ///< how kv_budget_bytes was met
    // Drafting. A cycle is one pass of next(): 1 + n rows that verify n guesses.
    uint64_t cycles[kMaxDraft + 1] = {};  ///< by the number of guesses verified
    uint64_t drafted[kMaxDraft] = {};     ///< guesses verified, by place in the cycle
    uint64_t accepted[kMaxDraft] = {};    ///< of those, how many were the model's own choice
    uint64_t draft_bytes = 0;             ///< memory of the draft-only head
    DraftReport draft;
};

/// What one kind of kernel did in one step.
struct KernelTime {
    std::string name;
    uint32_t count = 0;
    double us = 0;
    uint64_t bytes = 0;  ///< weights and state that had to move at least
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
    /// errors    bad_argument, out_of_memory: the text says how much was wanted, and what would take less.
    static Result<Session> create(const Model& model, const SessionOptions& options = {});

    /// What create() would take, to the byte, and the weights with it; takes nothing.
    /// errors    those of create() but out_of_memory; unsupported: this kind of device cannot tell.
    static Result<MemoryPlan> plan(const Model& model, const SessionOptions& options = {});
    /// The same from the file's header alone, for a model that is not loaded.
    static Result<MemoryPlan> plan(const Device& device, const char* path, const SessionOptions& options = {},
                                   const LoadOptions& load = {});

    /// The oldest position, sinks aside, that the next row sees in this attention layer; 0 without a window.
    /// errors    bad_argument: this layer keeps no keys; the text lists those that do.
    Result<size_t> recall_horizon(uint32_t layer) const;

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
    /// returns   the new tokens; the view holds until the next call. Where drafting gives several, an
    ///           id that ends a generation (Model::is_end) is the last of them.
    /// errors    bad_argument: no history yet, or a sampling value out of range.
    ///           context_full: the history has n_context tokens.
    Result<Span<const Token>> next(const Sampling& sampling = {});

    /// How deep the next calls of next() draft: 0..kMaxDraft, or -1. Takes no memory, changes no text.
    /// errors    bad_argument: out of range, or above 0 in a session created with Draft::off.
    Status set_draft_depth(int depth);

    /// Every token so far.
    Span<const Token> history() const;

    /// Runs `ids` from the start of a fresh timeline and hands each row's logits to `row`, in
    /// order. Leaves the history equal to `ids`. For measuring and testing.
    using RowSink = std::function<void(size_t position, Span<const float> logits)>;
    Status score(Span<const Token> ids, const RowSink& row);
    /// The MTP block at depth d (1..8), teacher-forced: row t holds the logits for token t+d+1,
    /// given the true tokens up to t+d. Rows 0 .. ids.size()-1-d.
    Status score_mtp(Span<const Token> ids, uint32_t depth, const RowSink& row);

    /// Times each kind of kernel in a step of n_row (1..9) rows that sees n_token tokens before it. Forgets the
    /// history. errors    bad_argument, context_full: beyond what the session holds; unsupported: not on the CPU, nor
    /// on a
    ///           GPU without timestamps.
    /// cost      about ten such steps.
    Result<std::vector<KernelTime>> profile(uint32_t n_row = 1, size_t n_token = 0);

    Result<Snapshot> save() const;
    Status restore(const Snapshot& snapshot);
    Stats stats() const;
    /// Counts from zero again, so that stats() tells of one request. What was learned stays.
    void clear_stats();

    /// The costs measured so far, to spare a later session the measuring: for the same device, driver, model,
    /// windows and KV formats, whose names are inside.
    std::vector<std::byte> save_costs() const;
    /// errors    bad_argument: of another device, driver, model or setting (the text names both); bad_file: damaged.
    ///           Nothing is changed then.
    Status load_costs(Span<const std::byte> costs);
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
