// auspex 0.1.0, the whole library in one header. Made by amalgamate.py: edit src/ and make it again.
// SPDX-License-Identifier: Apache-2.0
#ifndef AUSPEX_HPP_INCLUDED
#define AUSPEX_HPP_INCLUDED

// auspex: hybrid language models (Gated DeltaNet + attention) from GGUF files, embedded as one header.
//
// Use       #define AUSPEX_IMPLEMENTATION in exactly one source file, then #include "auspex.hpp".
//           Every other file just includes it.
// Macros    AUSPEX_IMPLEMENTATION, AUSPEX_NO_VULKAN, AUSPEX_NO_SIMD, AUSPEX_ASSERT, AUSPEX_API.
// Errors    are values: Status and Result. The library never throws, prints, aborts on bad input,
//           reads the environment or keeps globals.
// Threads   Device and Model are immutable and may be shared; a Session belongs to one thread at a time.

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

#endif  // AUSPEX_HPP_INCLUDED

// ==== the internals: declarations ====================================================================
#if (defined(AUSPEX_IMPLEMENTATION) || defined(AUSPEX_INTERNALS)) && !defined(AUSPEX_INTERNALS_INCLUDED)
#define AUSPEX_INTERNALS_INCLUDED

// --------------------------------------------------------------------------------- src/base/base.h

// base/base: checked sizes, alignment, message building, owned memory, asserts.
//
// Owns    the small tools every room uses; nothing of the model.
// Reads   the door's vocabulary.
// Serves  everyone.
// Thread  none of its own.
// Laws    Silence: nothing here prints; tests/test_base.cpp.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifndef AUSPEX_ASSERT
#include <cassert>
#define AUSPEX_ASSERT(x) assert(x)
#endif

namespace auspex {
namespace detail {

/// a * b, or false when it does not fit.
inline bool mul_fits(uint64_t a, uint64_t b, uint64_t* out) {
    if (a != 0 && b > UINT64_MAX / a) return false;
    *out = a * b;
    return true;
}
inline bool add_fits(uint64_t a, uint64_t b, uint64_t* out) {
    if (b > UINT64_MAX - a) return false;
    *out = a + b;
    return true;
}
/// n rounded up to a multiple of `to`, a power of two; the caller keeps n below 2^63.
constexpr uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) & ~(to - 1); }
template <class T>
constexpr T ceil_div(T n, T by) {
    return static_cast<T>((n + by - 1) / by);
}

inline void append(std::string& s, std::string_view v) { s.append(v); }
inline void append(std::string& s, const char* v) { s += v; }
inline void append(std::string& s, const std::string& v) { s += v; }
inline void append(std::string& s, char v) { s += v; }
inline void append(std::string& s, double v) {
    char b[32];
    std::snprintf(b, sizeof b, "%g", v);
    s += b;
}
template <class T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, char>, int> = 0>
void append(std::string& s, T v) {
    s += std::to_string(v);
}
/// Joins its arguments into one text: say("found ", n, ", expected ", m).
template <class... A>
std::string say(const A&... parts) {
    std::string s;
    (append(s, parts), ...);
    return s;
}
template <class... A>
Status fail(Code code, const A&... parts) {
    return Status(code, say(parts...));
}

/// Reads a T from any address, aligned or not.
template <class T>
T load(const void* p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

/// Returns from the enclosing function when `expr` is a Status that is not ok.
#define AUSPEX_TRY(expr)                \
    do {                                \
        ::auspex::Status try_ = (expr); \
        if (!try_.ok()) return try_;    \
    } while (false)

/// A block from the caller's Allocator, zeroed, freed with its owner.
class Block {
  public:
    Block() = default;
    ~Block() { reset(); }
    Block(Block&& o) noexcept { *this = std::move(o); }
    Block& operator=(Block&& o) noexcept;
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    /// Frees what was held and takes `bytes` of zeroed memory, aligned to 64; `what` names it in the error.
    Status take(const Allocator& from, uint64_t bytes, const char* what);
    void reset();
    std::byte* data() const { return data_; }
    size_t size() const { return size_; }
    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }

  private:
    Allocator from_;
    std::byte* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------------- src/base/number.h

// base/number: f16, bf16 and the table of quantised formats.
//
// Owns    what a block of each GGUF type means: sizes, names, decoding, encoding.
// Reads   base.
// Serves  gguf (sizes), weights and machines (decoding, repacking), caches (encoding), tests and tools.
// Thread  none of its own; pure functions.
// Laws    Twin: tests/test_number.cpp, bit-exact block vectors.

#if defined(__BYTE_ORDER__) && defined(__ORDER_BIG_ENDIAN__)
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "auspex reads GGUF bytes in place and so needs a little-endian processor"
#endif
#endif

namespace auspex {
namespace detail {

/// GGUF tensor types by their file id.
enum class Type : uint32_t {
    f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q5_0 = 6, q5_1 = 7, q8_0 = 8,
    q2_k = 10, q3_k = 11, q4_k = 12, q5_k = 13, q6_k = 14, iq4_nl = 20, iq4_xs = 23, bf16 = 30,
};

struct TypeInfo {
    const char* name;       ///< "Q4_K", or null for an id that no file may use
    uint32_t n_block;       ///< elements in one block, at least 1
    uint32_t block_bytes;   ///< bytes of one block; 0 when the name is null
    bool supported;         ///< this library can compute with it
};
/// What is known of a file's type id; `name` is null when the id is unknown or removed.
TypeInfo type_info(uint32_t id);
inline TypeInfo type_info(Type t) { return type_info(static_cast<uint32_t>(t)); }
/// "F32 F16 BF16 Q8_0 ...", for error messages.
std::string supported_types();
/// Bytes of a row of n elements; n must be a multiple of the block.
inline uint64_t row_bytes(Type t, uint64_t n) {
    const TypeInfo i = type_info(t);
    return n / i.n_block * i.block_bytes;
}

float f16_to_f32(uint16_t h);  ///< exact; integer arithmetic, so subnormals survive any processor mode
uint16_t f32_to_f16(float f);  ///< round to nearest even, overflow to infinity
inline float bf16_to_f32(uint16_t h) {
    const uint32_t u = static_cast<uint32_t>(h) << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}
uint16_t f32_to_bf16(float f);  ///< round to nearest even

/// The value of entry q of the IQ4_NL and IQ4_XS codebook.
extern const int8_t kIq4Values[16];

/// Decodes n elements, bit for bit as the format's definition says, whatever the compiler contracts
/// or reorders: every product below is exact in float32 (number.cpp tells why).
/// n is a multiple of the block; `from` needs no alignment. A type id that is not supported is a bug
/// of the caller: Gguf::parse lets none through.
void decode_row(Type t, const void* from, float* to, size_t n);

/// True for every supported type. F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 round exactly as the
/// reference (caches rely on it); the K and IQ4 types are least-squares fits for tests and tools,
/// of ordinary quality and not bit-identical to any other program's.
bool can_encode(Type t);
/// Encodes n elements, a multiple of the block; `to` needs no alignment. An input that is not finite
/// spoils its own block (or super-block) and nothing else.
/// cost      copies and the exact types: a pass or two; K and IQ4: some 20 to 40 passes per element.
void encode_row(Type t, const float* from, void* to, size_t n);

}  // namespace detail
}  // namespace auspex

// --------------------------------------------------------------------------------- src/base/file.h

// base/file: a path becomes bytes.
//
// Owns    mapping or reading files, with the operating system's reason in every error.
// Reads   base.
// Serves  model loading, tools.
// Thread  a File may be read from any thread.
// Laws    Silence: tests/test_base.cpp (missing, directory, empty, no permission).

namespace auspex {
namespace detail {

/// A read-only file: mapped where the platform allows, read into memory otherwise.
/// The size is taken once, at open. As with any mapping, nobody may shorten the file while it is
/// open: the operating system would end the process at the first missing page.
class File {
  public:
    File() = default;
    ~File();
    File(File&& o) noexcept;
    File& operator=(File&& o) noexcept;
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    /// path      UTF-8.
    /// errors    bad_argument (no path), not_found, io_error (a directory, empty, no permission; the text
    ///           has the path and the operating system's reason), out_of_memory (only without mapping).
    /// cost      none of the bytes are read yet when the file is mapped.
    static Result<File> open(const char* path);
    Span<const std::byte> bytes() const { return {data_, size_}; }

  private:
    void close();

    const std::byte* data_ = nullptr;
    size_t size_ = 0;
    bool mapped_ = false;
};

/// The most shards a split model may have.
constexpr uint32_t kMaxShards = 1024;

/// The paths of all shards of a split model, in order, from the path of shard `no` (counted from 0) of
/// `count`: "<prefix>-00001-of-00003.gguf" with (0, 3) gives the three siblings in the same folder.
///
/// errors    bad_file: no is not below count, or count is over kMaxShards (the file's keys are wrong).
///           bad_argument: the name does not end as number and count demand (the text says how).
Result<std::vector<std::string>> shard_paths(const std::string& first, uint32_t no, uint32_t count);

}  // namespace detail
}  // namespace auspex

// --------------------------------------------------------------------------------- src/base/gguf.h

// base/gguf: bytes become a tensor table and metadata; opens no file.
//
// Owns    the container: header, metadata, tensor table, every check of them; and a small writer.
// Reads   number (type sizes).
// Serves  plan (metadata to hyperparameters), weights, token, chat, tools.
// Thread  a parsed Gguf is immutable.
// Laws    Silence: a bad file yields a Status (tests/test_gguf.cpp, tests/fuzz_gguf.cpp).

namespace auspex {
namespace detail {

enum class MetaType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

/// One metadata value: a view into the file's bytes, checked once.
struct Meta {
    std::string_view key;
    MetaType type = MetaType::u8;          ///< of the value, or of the elements of an array
    bool is_array = false;
    uint64_t n = 1;                        ///< elements; 1 for a scalar
    const std::byte* data = nullptr;       ///< first element, unaligned
    /// Strings of an array (or the one string of a scalar), views into the file.
    std::vector<std::string_view> strings;

    /// Of an integer type (of any width and sign; not boolean).
    bool is_integer() const;
    /// Element i as an integer, of any integer or boolean type; false when of another type, when i is
    /// past the end, or when the value is over 2^63-1.
    bool get_int(uint64_t i, int64_t* out) const;
    /// Element i as a number, of any integer or float type; false when of another type or past the end.
    bool get_float(uint64_t i, double* out) const;
};

struct Tensor {
    std::string_view name;
    Type type = Type::f32;          ///< always a supported one when the file was accepted
    uint32_t n_dim = 0;
    uint64_t ne[4] = {1, 1, 1, 1};  ///< ne[0] is contiguous, as in the file
    uint64_t bytes = 0;
    const std::byte* data = nullptr;  ///< in the mapped or borrowed file bytes
    uint32_t shard = 0;
    uint64_t file_offset = 0;         ///< in that shard's file
};

/// A whole model: one file, or all shards of a split one.
class Gguf {
  public:
    /// Parses and checks one file: every rule of the format (docs of each in gguf.cpp), and that the
    /// type of every tensor is supported. `file` must outlive the Gguf, which points into it. A file
    /// without tensors (a vocabulary, or shard 0 of a split model) is accepted.
    ///
    /// errors    bad_file: damaged, truncated or against the format; unsupported: version 1, big-endian,
    ///           or a tensor type this library cannot compute with (named, with the list of those it can).
    /// cost      one pass over the metadata; no tensor data is touched, no string is copied.
    static Result<Gguf> parse(Span<const std::byte> file);
    /// Joins the parsed shards 0..n-1 of a split model after checking that they belong together; the
    /// metadata is that of shard 0. One unsplit file is a model of one shard and passes through, so a
    /// loader always joins: a lone shard of a larger model is refused here.
    ///
    /// errors    bad_file: wrong order or number of shards, shards of different models, a tensor count
    ///           that differs from the announced one, a tensor name that appears twice.
    static Result<Gguf> join(std::vector<Gguf> shards);

    const std::vector<Meta>& meta() const { return meta_; }
    const std::vector<Tensor>& tensors() const { return tensors_; }
    uint64_t file_bytes() const { return file_bytes_; }  ///< of all shards together
    uint32_t version() const { return version_; }

    /// Null when there is none. cost: a binary search.
    const Meta* find(std::string_view key) const;
    const Tensor* tensor(std::string_view name) const;

    /// Typed getters. With a default, an absent key gives it; without, it is bad_file. A key of the wrong
    /// type or out of range is always bad_file; the text names the key, what it holds and what was
    /// expected. Integers of any width (and booleans, as 0 and 1) serve get_u32; integers and floats
    /// serve get_f32, which accepts finite values only.
    Result<std::string> get_string(std::string_view key, const char* if_missing = nullptr) const;
    Result<uint32_t> get_u32(std::string_view key) const;
    Result<uint32_t> get_u32(std::string_view key, uint32_t if_missing) const;
    Result<float> get_f32(std::string_view key) const;
    Result<float> get_f32(std::string_view key, float if_missing) const;
    Result<bool> get_bool(std::string_view key, bool if_missing) const;
    /// A scalar or an array of exactly n elements; a scalar is repeated. An absent key gives n times
    /// *if_missing, unless that is null.
    Result<std::vector<uint32_t>> get_u32s(std::string_view key, uint32_t n, const uint32_t* if_missing = nullptr) const;
    Result<std::vector<float>> get_f32s(std::string_view key, uint32_t n, const float* if_missing = nullptr) const;

  private:
    uint32_t version_ = 0;
    uint64_t file_bytes_ = 0;
    std::vector<Meta> meta_;
    std::vector<Tensor> tensors_;
    // Indices sorted by name: unlike a hash table, no choice of names makes them slow.
    std::vector<uint32_t> meta_order_, tensor_order_;
};

/// Builds a GGUF v3 file in memory: metadata in the order given, tensors without gaps. For tools and
/// tests: what it is given is asserted, not diagnosed.
class GgufWriter {
  public:
    void add(std::string_view key, std::string_view value);
    void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
    void add(std::string_view key, uint32_t value);
    void add(std::string_view key, int32_t value);
    void add(std::string_view key, float value);
    void add(std::string_view key, bool value);
    void add(std::string_view key, uint16_t value);
    void add(std::string_view key, const std::vector<std::string>& values);
    void add(std::string_view key, const std::vector<int32_t>& values);
    void add(std::string_view key, const std::vector<uint32_t>& values);
    void add(std::string_view key, const std::vector<float>& values);
    void add(std::string_view key, const std::vector<bool>& values);
    /// Any type at all, also one that no reader should accept; `bytes` as in the file, with the string
    /// lengths of strings. n < 0 means a scalar, otherwise an array of n elements of that type.
    void add_raw(std::string_view key, uint32_t type, int64_t n, std::string_view bytes);
    /// `ne` as in the file: ne[0] contiguous. `bytes` are copied and must have the size the shape needs.
    void tensor(std::string_view name, Type type, const std::vector<uint64_t>& ne, Span<const std::byte> bytes);
    /// Encodes `values` into `type` (see can_encode) and adds them.
    /// A key general.alignment (uint32) must come before the first tensor; without it, 32.
    void tensor(std::string_view name, Type type, const std::vector<uint64_t>& ne, Span<const float> values);
    std::vector<std::byte> finish() const;

  private:
    struct Info {
        std::string name;
        Type type;
        std::vector<uint64_t> ne;
        uint64_t offset;
    };
    std::string meta_;
    uint64_t n_meta_ = 0;
    uint32_t alignment_ = 32;
    std::vector<Info> infos_;
    std::string data_;
};

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------------ src/base/unicode.h

// base/unicode: UTF-8 and the classes of code points.
//
// Owns    strict decoding, repair of broken bytes, and which code points are letters, numbers,
//         marks and white space (Unicode 15.1; unicode_table.inc is made by tools/make_unicode.py).
// Reads   base.
// Serves  token, chat, json, text_stream.
// Thread  none of its own; pure functions.
// Laws    tests/test_token.cpp.

namespace auspex {
namespace detail {

namespace unicode_impl {
// Generated by tools/make_unicode.py from UnicodeData.txt 15.0.0 and the letters added by 15.1.
// 136726 letters, 1831 numbers, 2450 marks; 132 distinct blocks.
inline constexpr uint32_t kUnicodeStage1Size = 804;
inline constexpr uint8_t kUnicodeStage1[kUnicodeStage1Size] = {
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 1, 17, 18, 19, 1, 20, 21,
    22, 23, 24, 25, 26, 27, 1, 28, 29, 30, 31, 31, 32, 31, 31, 33, 31, 31, 31, 31, 34, 35, 36, 31,
    37, 38, 39, 31, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 40, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 41, 1, 42, 43,
    44, 45, 46, 47, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 48,
    31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31,
    31, 31, 31, 31, 31, 31, 31, 31, 31, 1, 49, 50, 1, 51, 52, 53, 54, 55, 56, 57, 58, 59, 1, 60,
    61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79, 31, 80, 81, 82, 83,
    1, 1, 1, 84, 85, 86, 31, 31, 31, 31, 31, 31, 31, 31, 31, 87, 1, 1, 1, 1, 88, 31, 31, 31,
    31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 1, 1, 89, 31, 31, 31, 31, 31, 31, 31, 31, 31,
    31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31,
    1, 1, 90, 91, 31, 31, 92, 93, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 94, 1, 1, 1, 1, 95, 96, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31,
    31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 97,
    1, 98, 99, 31, 31, 31, 31, 31, 31, 31, 31, 31, 100, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31, 31,
    31, 31, 31, 31, 31, 31, 31, 101, 31, 102, 103, 104, 105, 106, 107, 108, 31, 31, 109, 31, 31, 31, 31, 110,
    111, 112, 113, 31, 114, 31, 31, 115, 116, 117, 31, 31, 118, 119, 120, 31, 31, 121, 31, 31, 31, 31, 31, 31,
    31, 31, 31, 122, 31, 31, 31, 31, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 123, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 124,
    125, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 126, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 127, 1, 1, 128, 31, 31, 31, 31, 31, 31, 31, 31, 31, 1, 1, 129, 31, 31, 31, 31, 31,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 130, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 131,
};
inline constexpr uint64_t kUnicodeStage2[132 * 8] = {
    0x0, 0xaaaaa00000000, 0x15555555555554, 0x15555555555554, 0x0, 0x2a1804a000100000,
    0x5555155555555555, 0x5555155555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x555555005, 0x11000155,
    0xffffffffffffffff, 0xffffffffffffffff, 0xffffffffffffffff, 0x45505155ffffffff, 0x5555555551151000, 0x5555555555555545,
    0x5555555555555555, 0x5555455555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0x55555555555fffc5, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555455555555,
    0x4155555555555, 0x5555555555555555, 0xfffffffc00015555, 0xcfffffffffffffff, 0x555555550000cf3c, 0x1540155555,
    0x3fffff00000000, 0x5555555555555555, 0xffffffffffd55555, 0x55555557500aaaaa, 0x5555555555555555, 0x5555555555555555,
    0xc3fff45555555555, 0x415aaaaa5ff3d7ff, 0x5555555d00000000, 0xffffffff55555555, 0x55555555543fffff, 0x5555555555555555,
    0x5555555555555555, 0x7fffff555, 0x55555555555aaaaa, 0xc1005ffffd55555, 0xffdff55555555555, 0xffdfdff,
    0xfd555555555555, 0x5555555500155555, 0xffff000015545555, 0x5555555555555555, 0xfffffffffff55555, 0xffffffffffffffcf,
    0x55555555555555ff, 0xf7f5555555555555, 0x5555fffdffffffff, 0x55555554aaaaa0f5, 0x55555541415554fd, 0xf705501155515555,
    0x4500c0001fc3c3ff, 0x310aaa05aaaaa0f5, 0x55555541401554fc, 0xf305145155515555, 0x1154000c0fc3c03f, 0xd5faaaaa000,
    0x55555545455554fc, 0xf705545155515555, 0x10fcfcfff, 0xfff40000aaaaa0f5, 0x55555541415554fc, 0xf705545155515555,
    0x4500fc000fc3c3ff, 0xaaa4aaaaa0f5, 0x5114055150155470, 0xf005555550150140, 0xc0010ff3f03f, 0x2aaaaaa000,
    0x55555551515557ff, 0xf705555555515555, 0x4153c000ff3f3ff, 0x2aaa0000aaaaa0f5, 0x55555551515554fd, 0xf705545555515555,
    0x14003c000ff3f3ff, 0xd4aaaaa0f5, 0x55555551515555ff, 0xf7d5555555555555, 0x6aaad5001ff3f3ff, 0x5552aaaaaaaaa0f5,
    0x55501555555554fc, 0x455554555555555, 0xffff33ffc0301555, 0xf0aaaaa000, 0x5555555555555554, 0x3fff5d55555555,
    0xaaaaa3fffd555, 0x0, 0x5555555555155114, 0x7ffff5d55554455, 0x550aaaaa3fff1155, 0x0,
    0xf000000000001, 0xf00cccaaaaaaaaaa, 0x5555555555545555, 0xfffffffc01555555, 0xfffcfffffd55f3ff, 0x3ffffffffffffff,
    0x3000, 0x0, 0x5555555555555555, 0x7fffffffffd55555, 0xf55ff555000aaaaa, 0x555557fd5fffd7f7,
    0xffaaaaadffffff5, 0x5555555555555555, 0x5555555504004555, 0x5515555555555555, 0x5555555555555555, 0x5555555555555555,
    0x551155505515555, 0x5555555555555555, 0x5555555505515555, 0x1555055155555555, 0x5555155555550551, 0x5555555555555555,
    0x5555055155555555, 0x5555555555555555, 0xfc15555555555555, 0x2aaaaaaaaa80000, 0x55555555, 0x5555555555555555,
    0x5555555555555555, 0x555055555555555, 0x5555555555555554, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x5555555541555555, 0x15555555555554, 0x5555555555555555, 0x5555555555555555, 0x15556a0155555,
    0x40000ff555555555, 0x3f555555555, 0xf555555555, 0xf151555555, 0x5555555555555555, 0xffffff5555555555,
    0xd0040ffffffffff, 0xaaaaa000aaaaa, 0xaaaaacfc00000, 0x5555555555555555, 0x5555555555555555, 0x1555555555555,
    0x5555555555557d55, 0x55555555001d5555, 0x5555555555555555, 0x55555555555, 0x1555555555555555, 0xffffff00ffffff,
    0x55555555aaaaa000, 0x15505555555, 0x5555555555555555, 0x5555555500555555, 0x2aaaaa00055555, 0x0,
    0xffd55555555555, 0x5555555555555555, 0x3ffffd5555555555, 0xc3ffffffffffffff, 0xaaaaa000aaaaa, 0xffffffff00004000,
    0x3fffffff, 0x0, 0x55555555555557ff, 0xffffff5555555555, 0xaaaaa015557ff, 0xffffc00000,
    0x555555555555557f, 0x555aaaaa5ffffffd, 0x5555555555555555, 0xfffffff555, 0x5555555555555555, 0xffffffffff55,
    0x555aaaaa540aaaaa, 0x555555555555555, 0x5555555500015555, 0x5415555555555555, 0xffffff3f00000000, 0x1fd7555d57ffff,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0xffffffffffffffff, 0xffffffffffffffff, 0x555055555555555, 0x5555555555555555, 0x4444555505550555, 0x555555555555555,
    0x5555555555555555, 0x1155515555555555, 0x55505501555150, 0x155515001555555, 0x0, 0x0,
    0x0, 0x400aaa0600000000, 0x1555555000aaaaa, 0x0, 0xffffffff00000000, 0x3ffffffff,
    0x554045555504010, 0x5505555545511100, 0xaaaaaaaa10055400, 0xaaaaaaaaaaaaaaaa, 0xaa96a, 0x0,
    0x0, 0x0, 0x0, 0x0, 0x0, 0x0,
    0x0, 0x0, 0x0, 0x0, 0x0, 0x0,
    0x0, 0xaaaaaaaaaaaaaaaa, 0xaaaaaaaaaaaaaa, 0x0, 0x0, 0xaaaaaaaaaaa00000,
    0x0, 0x0, 0x0, 0xaaaaa00000000000, 0xaaaaaaaaaa, 0x0,
    0x0, 0x0, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x800005fd5400155, 0x5555555555555555, 0x5555555504004555,
    0x5555555555555555, 0xc000000040005555, 0x155555555555, 0x1555155515551555, 0x1555155515551555, 0xffffffffffffffff,
    0x0, 0x40000000, 0x0, 0x0, 0x0, 0x0,
    0x0, 0x0, 0x9400, 0x16a0554fffaaaa8, 0x5555555555555554, 0x5555555555555555,
    0x543c155555555555, 0x5555555555555554, 0x5555555555555555, 0x5515555555555555, 0x5555555555555400, 0x5555555455555555,
    0x5555555555555555, 0x5555555555555555, 0xaa015555555, 0x5555555555555555, 0x0, 0x5555555500000000,
    0x0, 0xaaaaa, 0xaaaaaaa8aaaa0000, 0x0, 0xaaaaa, 0xaaaaaaa800000000,
    0x0, 0x0, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x0, 0x0, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x1555555, 0x0, 0x5555555500000000, 0x555555555555555,
    0x5555555501555555, 0x5aaaaa, 0x5555555555555555, 0x4fffff3fd5555555, 0xf555555555555555, 0x5555555555555555,
    0x5555555555555555, 0xfaaaaa555, 0x5555400000000000, 0x5555555555555550, 0x5555555555555555, 0x5555555555555555,
    0x5555555555415555, 0x5555555555555555, 0x5544500155555, 0x5555555000000000, 0x5555555555d57575, 0xaaa0300ffd5,
    0x5555555555555555, 0x5555555555, 0x555555555555555f, 0xffffff5555555555, 0xaaaaa00000fff, 0xd440555fffffffff,
    0x55555555555aaaaa, 0x555555550ffff555, 0xffffffd555, 0x155555555555555, 0x55555555555555ff, 0xffffffd555555555,
    0xaaaaa40000003, 0x155aaaaa55555d55, 0x5555555555555555, 0x3ffffffd5555, 0xaaaaa0f5555d5, 0x5fd0155555555555,
    0x5555555555555555, 0xf557d7f755555555, 0x54000000000001d, 0x3d50ffd55555, 0x155415541554, 0x5555555515551555,
    0x5515555555555555, 0x5555555500055555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0xaaaaa0f3fffd5,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555500000055,
    0x5555555555401555, 0x55555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555505555555,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555, 0x0, 0x7400554000001555, 0x1155155555515555,
    0x5555555555555145, 0x5555555555555555, 0x5555555555555555, 0x555555555, 0x5555554000000000, 0x5555555555555555,
    0x5555555555555555, 0x555555555555555, 0x5555555500000000, 0x5555555555555555, 0x5555555055555555, 0x5555555555555555,
    0x5555, 0x55555500000000, 0xffffffff, 0xffffffff, 0x0, 0x5555515500000000,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x155555555555555, 0xaaaaa00000000, 0x15555555555554,
    0x15555555555554, 0x5555555555555000, 0x5555555555555555, 0x1555555555555555, 0x150555055505550, 0x0,
    0x5555555554555555, 0x4515555555551555, 0x555555505555555, 0x0, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x15555555555555, 0xaaaaaaaaaaaa8000, 0xaaaaaaaaaa, 0xaaaaaaaaaaaaaaaa, 0x2aaaaaaaaaaaa,
    0xa00000, 0x0, 0x0, 0xc00000000000000, 0x0, 0x0,
    0x0, 0x0, 0x155555555555555, 0x5555555555555555, 0x155555555, 0xaaaaaaaaaaaaab,
    0x5555555555555555, 0x55555555540000aa, 0x5555555500255559, 0x3ff55555555555, 0x555555555555555, 0x5555555555555555,
    0xaa855550055, 0x0, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0x555555555555555, 0x55555555000aaaaa, 0x5555005555555555, 0x55555555555555, 0x5555555555555555, 0x5555555500005555,
    0x5555555555555555, 0x5515555500000055, 0x5555451555155555, 0x145554555555545, 0x0, 0x0,
    0x5555555555555555, 0x155555555555, 0x55555555555, 0x5555, 0x5555555555554555, 0x15555155555555,
    0x0, 0x0, 0x5555555555510555, 0x4101455555555555, 0xaaaa055555555555, 0xaaa8155555555555,
    0x1555555555555555, 0xaaaa8000, 0x0, 0xaa80051555555555, 0xaaa55555555555, 0x5555555555555,
    0x0, 0x0, 0x5555555555555555, 0x5a00555555555555, 0xaaaaaaa0aaaaaaaa, 0xaaaaaaaaaaaaaaaa,
    0x55545455ff003cfd, 0xc03f055555555555, 0x2aaaa, 0x2955555555555555, 0xa955555555555555, 0x0,
    0x5555555555545555, 0xaa803d55, 0x5555555555555555, 0x55555555555, 0xaaaa055555555555, 0xaaaa001555555555,
    0x555555555, 0xaaa80000, 0x0, 0x0, 0x5555555555555555, 0x5555555555555555,
    0x15555, 0x0, 0x5555555555555555, 0x1555555555, 0x5555555555555555, 0xaaa0001555555555,
    0x5555555555555555, 0xaaaaa0000ff55, 0x0, 0x0, 0x0, 0x0,
    0x0, 0x0, 0x0, 0x0, 0x0, 0x2aaaaaaaaaaaaaaa,
    0x5555555555555555, 0x503c55555, 0x0, 0xfc00000000000000, 0xa955555555555555, 0x5555555500006aaa,
    0x2abfffff555, 0x5555555500000000, 0xff5, 0x5555555500000000, 0xaaa955, 0x155555555555,
    0x555555555555557f, 0xffff555555555555, 0xaaaaaaa000003fff, 0xc00007d7aaaaaaaa, 0x555555555555557f, 0x3fffff55555555,
    0x5555555500000030, 0xaaaaa00015555, 0x555555555555557f, 0xaaaaa3ffffffd555, 0x5555555500007d00, 0x10d555555555,
    0x555555555555557f, 0xffffffd555555555, 0x11aaaaaf3fc0157, 0x2aaaaaaaaa8, 0x5555554555555555, 0x7000ffffff555555,
    0xd, 0x0, 0x4555555545511555, 0x5555555500015555, 0xd555555555555555, 0xaaaaa003fffff,
    0x55555541415554ff, 0xf7c5545155515555, 0x5400c0010fc3c3ff, 0x3ff03fff0f5, 0x0, 0x0,
    0x0, 0x0, 0x5555555555555555, 0xfffffd5555555555, 0x700aaaaa00157fff, 0x5,
    0x5555555555555555, 0xffffffff55555555, 0xaaaaa000045ff, 0x0, 0x0, 0x0,
    0x0, 0x0, 0x5555555555555555, 0xffff0fffd5555555, 0xf55000000000003, 0x0,
    0x5555555555555555, 0xffffffff55555555, 0xaaaaa00000103, 0x0, 0x5555555555555555, 0x1ffffffd55555,
    0xaaaaa, 0x0, 0xfc15555555555555, 0xaaaaaa00ffffff, 0x1555, 0x0,
    0x0, 0x0, 0x0, 0x0, 0x5555555555555555, 0x3fffffff555555,
    0x0, 0x0, 0x0, 0x5555555555555555, 0x5555555555555555, 0x4000002aaaaaaaaa,
    0x5555145555041555, 0x7fc3cfff55555555, 0xaaaaa000000f7, 0x0, 0x0, 0x5555555555505555,
    0xfff0fffd55555555, 0x347, 0x55555555557ffffd, 0x3fdfffd555555555, 0x55fffffd0000c000, 0x5555555555555555,
    0x40ffffffff55555, 0x5555555500000000, 0x5555555555555555, 0x1555555555555, 0x5555555555515555, 0xffff3fffd5555555,
    0xaaaaaaaa00000001, 0x5555555002aaaaaa, 0xfffffff055555555, 0x3ffffffcffff, 0x0, 0x0,
    0x5555555555451555, 0xcf303ffd55555555, 0xaaaaa0000dfff, 0x5555555555514555, 0x1ffcf3ff55555, 0xaaaaa,
    0x0, 0x0, 0x0, 0x0, 0x0, 0x0,
    0x0, 0x0, 0x0, 0x3fd555555555, 0x55555551555555df, 0xf03fff5555555555,
    0xaaaaa0000003f, 0x0, 0x0, 0x100000000, 0x2aaaaaaaaaa, 0x0,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555, 0x0,
    0x0, 0x0, 0xaaaaaaaaaaaaaaaa, 0xaaaaaaaaaaaaaaaa, 0xaaaaaaaaaaaaaaaa, 0x2aaaaaaa,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0x55, 0x0, 0x0, 0x0, 0x0, 0x0,
    0x0, 0x0, 0x0, 0x0, 0x5555555500000000, 0x5555555555555555,
    0x5555555555555555, 0x155555555, 0x5555555555555555, 0x55555555, 0xfffffffd557, 0x0,
    0x0, 0x0, 0x0, 0x0, 0x5555555555555555, 0x5555555555555555,
    0x1555, 0x0, 0x0, 0x0, 0x0, 0x0,
    0x5555555555555555, 0x1555555555555, 0x1555555555555555, 0x55555555000aaaaa, 0x5555555555555555, 0x1555555555555555,
    0x55555555000aaaaa, 0x3ff05555555, 0x5555555555555555, 0x3fff55555555, 0xaa8aaaaa00000055, 0x540055555555554a,
    0x55555555, 0x0, 0x0, 0x0, 0x0, 0x0,
    0x5555555555555555, 0x5555555555555555, 0x2aaaaaaaaaaa, 0x0, 0x0, 0x0,
    0x5555555555555555, 0x5555555555555555, 0xfffffffdc0155555, 0xffffffffffffffff, 0x5555557fc000ffff, 0x0,
    0x0, 0xf00000345, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x555555555555, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x55555555555, 0x0,
    0x15555, 0x0, 0x0, 0x0, 0x0, 0x0,
    0x0, 0x0, 0x0, 0x0, 0x0, 0x0,
    0x0, 0x0, 0x0, 0x1455545500000000, 0x5555555555555555, 0x1000000015,
    0x41500000000, 0x5555555500005500, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x55555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x155555500155555,
    0x3c05555500015555, 0x0, 0x0, 0x0, 0xffffffffffffffff, 0xffffffff0fffffff,
    0x3fff, 0x0, 0x0, 0x0, 0x0, 0x0,
    0x0, 0x0, 0x0, 0xffc0003ffc0ffc00, 0xfffc3f, 0xff00000,
    0x0, 0x0, 0x0, 0x0, 0x3f0, 0x0,
    0x0, 0x0, 0xaaaaaaaaaa, 0xaaaaaaaaaa, 0x0, 0x0,
    0x0, 0x2aaaaaaaaaaaa, 0x0, 0x0, 0x0, 0x0,
    0x5555555555555555, 0x5555555555555555, 0x5555515555555555, 0x5555555555555555, 0x5155555555555555, 0x5445555551541410,
    0x5555555555555455, 0x5555555555555555, 0x5155515554154555, 0x1545555555555555, 0x5555555155501155, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555550555, 0x5515555555555551, 0x5515555555555555,
    0x5555515555555555, 0x5555515555555555, 0x5555555515555555, 0x5555555515555555, 0x5555555555515555, 0x5555555555515555,
    0xaaaaaaaaa0555515, 0xaaaaaaaaaaaaaaaa, 0xffffffffffffffff, 0xffc03fffffffffff, 0xffffffffffffffff, 0xc0003ffffff,
    0xffc0000000000300, 0xfffffffc, 0x0, 0x0, 0x1555555555555555, 0x155400,
    0x0, 0x0, 0x0, 0x0, 0x0, 0x0,
    0xffc3ffffffff3fff, 0x55555555003ff3cf, 0x5555555555555555, 0x5555555, 0xc0000000, 0x0,
    0x0, 0x0, 0x5555555555555555, 0x5557fff01555555, 0x100aaaaa, 0x0,
    0x0, 0x0, 0x0, 0x0, 0x0, 0x0,
    0x0, 0x0, 0x5555555500000000, 0x35555555, 0x5555555555555555, 0xaaaaaff555555,
    0x0, 0x0, 0x0, 0x0, 0x0, 0x0,
    0x5555555500000000, 0xaaaaaff555555, 0x0, 0x0, 0x0, 0x0,
    0x0, 0x0, 0x0, 0x1555555514551555, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x3fffaaaa8155, 0x0,
    0x5555555555555555, 0x5555555555555555, 0xaaaaa007fff55, 0x0, 0x0, 0x0,
    0x0, 0x0, 0x0, 0x0, 0x0, 0xaaaaaaa800000000,
    0xaaaaaaaaaaaaaaaa, 0x2a8a8aaaaaa, 0x0, 0x0, 0xaaaaaaaaaaaaaaa8, 0xaaaaaaa8aaaaaaa,
    0x0, 0x0, 0x0, 0x0, 0x0, 0x0,
    0x5555555555555455, 0x44551555544114, 0x4444411454444010, 0x1154551555154114, 0x55555555455555, 0x55555555455454,
    0x0, 0x0, 0x2aaaaaa, 0x0, 0x0, 0x0,
    0x0, 0x0, 0x0, 0x0, 0x0, 0x0,
    0x0, 0x0, 0x0, 0x0, 0x0, 0xaaaaa00000000,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x0, 0x5555555555555555, 0x5555555555555, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555500000005,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555500000001, 0x5555555555555555, 0x5555555555555555,
    0x555555555555555, 0x0, 0x0, 0x0, 0x0, 0x0,
    0x555555555555555, 0x0, 0x0, 0x0, 0x0, 0x0,
    0x0, 0x0, 0x5555555555555555, 0x5555555555555555, 0x5555555500155555, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x5555555555555555,
    0x5555555555555555, 0x5555555555555555, 0x5555555555555555, 0x55555555, 0x0, 0x0,
};
}  // namespace unicode_impl

enum class CharClass : uint8_t { other = 0, letter = 1, number = 2, mark = 3 };

inline CharClass char_class(uint32_t c) {
    using namespace unicode_impl;
    if ((c >> 8) < kUnicodeStage1Size) {
        const uint64_t word = kUnicodeStage2[kUnicodeStage1[c >> 8] * 8u + ((c & 255) >> 5)];
        return static_cast<CharClass>((word >> ((c & 31) * 2)) & 3);
    }
    return c >= 0xE0100 && c <= 0xE01EF ? CharClass::mark : CharClass::other;
}

/// The 25 code points of the property White_Space: what \s means in a tokenizer's pattern.
inline bool is_white_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

/// What Python's str.strip() removes: white space and the four separators U+001C..U+001F.
inline bool is_python_space(uint32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

/// The code point at the front of [p, p + n), n > 0, and its length in bytes. A byte that begins no
/// valid sequence gives kBadCodePoint and length 1: overlong forms, surrogates, values beyond
/// U+10FFFF, stray and missing continuation bytes.
constexpr uint32_t kBadCodePoint = 0xFFFFFFFF;
inline uint32_t decode_utf8(const char* p, size_t n, size_t* length) {
    const auto at = [p](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(p[i])); };
    const uint32_t a = at(0);
    *length = 1;
    if (a < 0x80) return a;
    if (a < 0xC2 || a > 0xF4) return kBadCodePoint;
    const size_t want = a < 0xE0 ? 2 : a < 0xF0 ? 3 : 4;
    if (n < want) return kBadCodePoint;
    const uint32_t low = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80;
    const uint32_t high = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
    if (at(1) < low || at(1) > high) return kBadCodePoint;
    uint32_t c = (a & (0xFFu >> (want + 1))) << 6 | (at(1) & 0x3F);
    for (size_t i = 2; i < want; ++i) {
        if ((at(i) & 0xC0) != 0x80) return kBadCodePoint;
        c = c << 6 | (at(i) & 0x3F);
    }
    *length = want;
    return c;
}

/// True when [p, p + n) may still become a valid character by more bytes: a proper prefix of one.
inline bool is_utf8_prefix(const char* p, size_t n) {
    const auto at = [p](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(p[i])); };
    if (n == 0) return false;
    const uint32_t a = at(0);
    if (a < 0xC2 || a > 0xF4) return false;
    if (n >= (a < 0xE0 ? 2u : a < 0xF0 ? 3u : 4u)) return false;
    if (n >= 2) {
        const uint32_t low = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80;
        const uint32_t high = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
        if (at(1) < low || at(1) > high) return false;
    }
    return n < 3 || (at(2) & 0xC0) == 0x80;
}

/// Appends the UTF-8 form of c; what is no code point (a surrogate, too large) becomes U+FFFD.
inline void append_utf8(std::string& to, uint32_t c) {
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) c = 0xFFFD;
    const auto put = [&to](uint32_t byte) { to += static_cast<char>(static_cast<unsigned char>(byte)); };
    if (c < 0x80) {
        put(c);
    } else if (c < 0x800) {
        put(0xC0 | c >> 6);
        put(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        put(0xE0 | c >> 12);
        put(0x80 | (c >> 6 & 0x3F));
        put(0x80 | (c & 0x3F));
    } else {
        put(0xF0 | c >> 18);
        put(0x80 | (c >> 12 & 0x3F));
        put(0x80 | (c >> 6 & 0x3F));
        put(0x80 | (c & 0x3F));
    }
}

/// The offset of the first byte that is not valid UTF-8, or the size of the text.
inline size_t find_bad_utf8(std::string_view text) {
    size_t i = 0, n = 0;
    while (i < text.size()) {
        if (decode_utf8(text.data() + i, text.size() - i, &n) == kBadCodePoint) break;
        i += n;
    }
    return i;
}

/// Appends `text` with every invalid byte replaced by U+FFFD.
inline void append_repaired(std::string& to, std::string_view text) {
    while (!text.empty()) {
        const size_t good = find_bad_utf8(text);
        to.append(text.substr(0, good));
        if (good == text.size()) return;
        append_utf8(to, 0xFFFD);
        text.remove_prefix(good + 1);
    }
}

/// `text` without the white space (as Python sees it) at both ends.
inline std::string_view trim_space(std::string_view text) {
    size_t n = 0;
    while (!text.empty() && is_python_space(decode_utf8(text.data(), text.size(), &n))) text.remove_prefix(n);
    while (!text.empty()) {
        size_t at = text.size() - 1;
        while (at > 0 && text.size() - at < 4 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
        const uint32_t c = decode_utf8(text.data() + at, text.size() - at, &n);
        if (n != text.size() - at || !is_python_space(c)) break;
        text.remove_suffix(n);
    }
    return text;
}

}  // namespace detail
}  // namespace auspex

// --------------------------------------------------------------------------------- src/base/json.h

// base/json: small JSON values for conversations and tool definitions.
//
// Owns    reading JSON with positions in its errors, and writing it as Python's json.dumps does
//         (", " and ": ", keys in their order, ensure_ascii off): chat templates rely on that form.
// Reads   base, unicode.
// Serves  chat.
// Thread  none of its own; a Json is a plain value.
// Laws    Silence: any bytes yield a value or a Status (tests/test_json.cpp, tests/fuzz_chat.cpp).

namespace auspex {
namespace detail {

class Json {
  public:
    enum class Kind { null, boolean, number, string, array, object };
    struct Limits {
        size_t max_bytes = size_t{64} << 20;
        size_t max_depth = 100;
        size_t max_values = 1000000;  ///< a value takes about a hundred bytes
    };

    /// Reads one JSON text (RFC 8259). Repeated keys: the last value wins, at the place of the first.
    /// A lone surrogate escape becomes U+FFFD.
    ///
    /// errors    bad_argument: what was expected, what was found, with line, column and byte.
    /// cost      linear.
    static Result<Json> parse(std::string_view text, const Limits& limits);
    static Result<Json> parse(std::string_view text) { return parse(text, Limits()); }
    static Json of_string(std::string_view text);

    Kind kind() const { return kind_; }
    bool is(Kind k) const { return kind_ == k; }
    const char* kind_name() const;  ///< "an object", for messages
    bool boolean() const { return boolean_; }
    /// The characters of a string, or the digits of a number exactly as they were written.
    const std::string& text() const { return text_; }
    /// Elements of an array, or values of an object (keys()[i] names items()[i]).
    const std::vector<Json>& items() const { return items_; }
    const std::vector<std::string>& keys() const { return keys_; }
    /// The member of an object, or null: also when this is no object. cost: linear in the members.
    const Json* find(std::string_view key) const;

    /// What json.dumps(value, ensure_ascii=False) writes in Python.
    std::string dump() const;
    /// What str(value) writes in Python for null, booleans and numbers ("None", "True", "1.5");
    /// strings as they are, arrays and objects as dump().
    std::string python_str() const;

  private:
    friend class JsonReader;
    void dump_to(std::string& out) const;
    Kind kind_ = Kind::null;
    bool boolean_ = false;
    std::string text_;
    std::vector<Json> items_;
    std::vector<std::string> keys_;
};

}  // namespace detail
}  // namespace auspex

// -------------------------------------------------------------------------- src/base/token_split.h

// base/token_split: cuts text into the pieces that byte pairs are merged within.
//
// Owns    the two pre-tokenizers, qwen2 and qwen35, as one scanner without regular expressions.
// Reads   unicode.
// Serves  token.
// Thread  none of its own; pure functions.
// Laws    pieces cover the text, linear time: tests/test_token.cpp.

namespace auspex {
namespace detail {

enum class Split : uint8_t { qwen2, qwen35 };

/// The end of the piece that begins at text[at], at < text.size(); always beyond `at`. The text is
/// valid UTF-8 (a broken byte counts as a character of its own).
///
/// The scanner takes what the first matching alternative of the published pattern takes, \w being
/// \p{L} for qwen2 and [\p{L}\p{M}] for qwen35:
///   (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\w+ | \p{N} | ?[^\s\w\p{N}]+[\r\n]*
///   | \s*[\r\n]+ | \s+(?!\S) | \s+
/// `n_look`  when given, counts the characters looked at.
/// cost      over a whole text, each character is looked at a bounded number of times.
size_t split_piece(std::string_view text, size_t at, Split split, uint64_t* n_look = nullptr);

}  // namespace detail
}  // namespace auspex

// -------------------------------------------------------------------------------- src/base/token.h

// base/token: text to ids and back.
//
// Owns    the vocabulary of a file: its bytes, its merges, its special tokens; byte-level BPE.
// Reads   gguf (tokenizer keys), token_split, the door's ChatPrompt.
// Serves  engine (Model::encode, decode, is_end), chat by way of the engine.
// Thread  a loaded Tokenizer is immutable: any number of threads at the same time.
// Laws    Silence: tests/test_token.cpp, tests/fuzz_token.cpp. Text survives encode and decode.

namespace auspex {
namespace detail {

/// What the file says a token is (tokenizer.ggml.token_type).
enum class TokenKind : uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

/// Counts the work of an encode(), so that a test can hold it to a bound.
struct EncodeWork {
    uint64_t n_look = 0;   ///< characters looked at by the splitter
    uint64_t n_pair = 0;   ///< adjacent pairs looked up among the merges
    uint64_t n_queue = 0;  ///< entries taken from the queue of a long piece, or scanned in a short one
};

class Tokenizer {
  public:
    Tokenizer() = default;
    /// Copies what it needs; the Gguf may go.
    ///
    /// errors    unsupported: tokenizer.ggml.model other than gpt2, or a pre other than qwen2 and qwen35.
    ///           bad_file: arrays of wrong type or length, texts outside the byte alphabet, a byte
    ///           without token, an id outside the vocabulary, merges that are no pair.
    /// cost      about 0.1 s for 248,000 tokens; three tables of some 20 MB.
    static Result<Tokenizer> load(const Gguf& gguf);

    /// Text to ids; adds nothing. Invalid UTF-8 bytes become U+FFFD. No Unicode normalisation: composed
    /// and decomposed letters stay as written. User-defined tokens are found in any text, control tokens
    /// only when `special` is set; of several at one place the longest.
    /// cost      n log n in the longest piece, linear otherwise; some bytes of scratch per byte.
    std::vector<Token> encode(std::string_view text, bool special, EncodeWork* work = nullptr) const;
    /// The ids of prompt.text(), except that control tokens are found only where they lie wholly in
    /// neighbouring pieces of the template. Borders of pieces are invisible to everything else.
    std::vector<Token> encode(const ChatPrompt& prompt) const;

    /// The bytes of the ids, in order; a character may be cut at either end. Ids outside the
    /// vocabulary and unused ids give nothing; control tokens only when `special` is set.
    std::string decode(Span<const Token> ids, bool special) const;
    std::string_view piece_bytes(Token id, bool special = true) const;

    uint32_t n_vocab() const { return static_cast<uint32_t>(kind_.size()); }
    Split split() const { return split_; }
    TokenKind kind(Token id) const { return kind_[static_cast<size_t>(id)]; }  ///< id within the vocabulary
    /// The token whose bytes are `text`: a special one if there is, else a normal one, else -1.
    Token find(std::string_view text) const;
    bool is_end(Token id) const;
    const std::vector<Token>& ends() const { return ends_; }
    Token eos() const { return eos_; }  ///< -1 when the file names none
    /// Merges whose halves or result are no normal tokens: never applied.
    uint32_t n_merge_skipped() const { return n_merge_skipped_; }

  private:
    struct Merge {
        uint64_t pair = UINT64_MAX;  ///< left id << 32 | right id; all ones in an empty place
        uint32_t rank = 0, merged = 0;
    };
    struct Range {
        size_t from, to;
    };
    struct Scratch;

    Status read_tokens(const Gguf& gguf);
    Status read_merges(const Gguf& gguf);
    Status read_ends(const Gguf& gguf);
    std::string_view raw(uint32_t id) const {
        return std::string_view(pool_).substr(offset_[id], offset_[id + 1] - offset_[id]);
    }
    uint32_t find_normal(std::string_view text) const;
    const Merge* find_merge(uint32_t left, uint32_t right) const;
    uint32_t special_at(std::string_view text, size_t at, size_t control_end, size_t* length) const;
    std::vector<Token> encode_ranges(std::string_view text, const std::vector<Range>& control, EncodeWork& work) const;
    void encode_plain(std::string_view text, Scratch& scratch, std::vector<Token>& ids) const;
    void merge_short(Scratch& scratch, std::vector<Token>& ids) const;
    void merge_long(Scratch& scratch, std::vector<Token>& ids) const;

    Split split_ = Split::qwen2;
    std::string pool_;                ///< bytes of all tokens, one after the other
    std::vector<uint32_t> offset_;    ///< n_vocab + 1 places in it
    std::vector<TokenKind> kind_;
    std::vector<uint32_t> by_bytes_;  ///< open addressing: normal tokens by their bytes
    std::vector<Merge> merges_;       ///< open addressing
    std::vector<uint32_t> specials_;  ///< user-defined, control and unknown tokens, sorted by bytes
    uint32_t special_from_[257] = {}; ///< where those with a first byte begin in specials_
    uint32_t byte_id_[256] = {};
    std::vector<Token> ends_;
    Token eos_ = -1;
    uint32_t n_merge_skipped_ = 0;
};

}  // namespace detail
}  // namespace auspex

// -------------------------------------------------------------------------- src/base/text_stream.h

// base/text_stream: what may be shown of a text that is still growing.
//
// Owns    holding back the bytes of an unfinished character, and text that may begin a stop string.
// Reads   unicode.
// Serves  the door's TextStream (engine/text_stream.cpp).
// Thread  none of its own; functions on the caller's strings.
// Laws    the text shown does not depend on how it was cut: tests/test_token.cpp.

namespace auspex {
namespace detail {

/// Moves the complete characters at the front of `bytes` out. At most 3 bytes stay, those of a
/// character that may still become valid; `all` takes them too. Broken bytes become U+FFFD each.
std::string take_characters(std::string& bytes, bool all);

/// Moves text out of `held` that no stop string can claim any more; what stays is the longest end of
/// it that some stop string begins with (nothing with `all`). At the first complete stop string sets
/// *stopped, gives what stands before it and drops the rest; of two that end at one place the longer.
/// cost      linear in `held` plus the stop strings, for each stop string.
std::string take_unstopped(std::string& held, const std::vector<std::string>& stops, bool all, bool* stopped);

}  // namespace detail
}  // namespace auspex

// --------------------------------------------------------------------------------- src/base/chat.h

// base/chat: messages to prompt text, and replies back to messages.
//
// Owns    the native renderers of the templates it recognises (ChatML, Qwen3.5, Qwen3.6, unsloth's
//         Qwen3.6), reading requests (chat_request.cpp), taking replies apart (chat_parse.cpp).
//         The functions themselves stand at the door: render_chat, recognise_template, parse_reply.
// Reads   json, unicode, the door's chat vocabulary.
// Serves  engine (Model::render), applications through the door.
// Thread  none of its own; pure functions.
// Laws    exact text: tests/test_chat.cpp. Silence: tests/fuzz_chat.cpp.

namespace auspex {
namespace detail {

/// What the Qwen3.5 and 3.6 templates tell the model after the list of tools.
extern const char kToolInstructions[];

/// The text with "\r" left out and without white space at its end, as one number (FNV-1a, 64 bit):
/// how a template is known to the letter.
uint64_t template_fingerprint(std::string_view jinja);

/// Messages are counted from 0 in messages to the caller: "messages[2]".
inline std::string message_path(size_t i) { return say("messages[", i, "]"); }

}  // namespace detail
}  // namespace auspex

// --------------------------------------------------------------------------------- src/plan/plan.h

// plan/plan: a model as an ordered tape of operations over named slots.
//
// Owns    Slot, Op, Plan: what is computed, in which shapes; checked, printable. Shape but no time:
//         no row count, no position, no address stands here.
// Reads   number (weight types).
// Serves  weights (which tensors are wanted), machines (what to run), tests (what to print).
// Thread  a finished Plan is immutable.
// Laws    tests/test_plan.cpp: shapes are checked, the printed tape is pinned for tiny models.

namespace auspex {
namespace detail {

using SlotId = uint32_t;
constexpr SlotId kNoSlot = ~SlotId{0};

enum class SlotRole : uint8_t {
    weight,      ///< constant; filled from a tensor of the file
    activation,  ///< f32, one row of `width()` values per row of the step; scratch
    kept,        ///< an activation whose rows of the last step stay readable until the next step
    kv,          ///< keys and values of one attention layer, by absolute position
    conv,        ///< raw inputs of one causal convolution, by absolute position
    delta,       ///< Gated DeltaNet state S [n_head_v, d_key, d_val] f32 and its tentative terms
};

struct Slot {
    std::string name;      ///< "layer.7.delta.state"; weights carry the file's tensor name
    SlotRole role = SlotRole::activation;
    Type type = Type::f32;            ///< weights: the file's type
    uint64_t shape[3] = {0, 0, 0};    ///< slowest first; weights [d_out, d_in] or [n, d_out, d_in]; vectors [d]
    uint32_t n_dim = 0;
    uint64_t width() const { return shape[n_dim - 1]; }
};

/// The vocabulary. Every operation works on the rows of one step, [n_row, width] f32, unless said.
enum class OpKind : uint8_t {
    embed,       ///< out = w[token of the row]
    rms_norm,    ///< out[out_offset..] = rms(in) * w, over `w`'s width
    matmul,      ///< out = in w'   (accumulate: out += in w'); rows below Step::first_logit skipped when `head`
    swiglu,      ///< out = min(silu(in), limit) * clamp(in2, -limit, limit); limit 0: none
    delta,       ///< Gated DeltaNet: convolution, gates, recurrence, gated norm; in: u, z, beta, alpha
    kv_write,    ///< k-norm, rotation, append keys and values; in: k, v
    attend,      ///< q-norm, rotation, softmax attention over what is visible, output gate; in: q (, gate)
    moe,         ///< router, top-k experts and their weighted sum; in: f; out += ...
    hidden,      ///< out = the hidden rows the step was given (MTP input)
};

enum class AttnGate : uint8_t { none, interleaved, per_head };

struct AttnDims {
    uint32_t n_head = 0, n_head_kv = 0, d_head = 0;
    uint32_t n_rot = 0;         ///< rotated dims, pairs (i, i + n_rot/2)
    float rope_base = 0;
    float scale = 0;            ///< of the scores
    AttnGate gate = AttnGate::none;  ///< interleaved: q rows hold [d_head query, d_head gate] per head
    uint32_t window = 0;        ///< what the model declares: keys at distance < window are visible; 0: all
    float eps = 0;
};

struct DeltaDims {
    uint32_t n_head_k = 0, n_head_v = 0, d_key = 0, d_val = 0, n_conv = 0;
    bool grouped = false;  ///< value head h uses key head h / r (qwen3next) instead of h mod n_head_k
    float eps = 0;         ///< of the gated norm
    uint32_t conv_dim() const { return 2 * n_head_k * d_key + n_head_v * d_val; }
};

struct MoeDims {
    uint32_t n_expert = 0, n_used = 0, d_ff = 0, d_ff_shared = 0;
    bool sigmoid = false;       ///< scores by sigmoid (with selection bias) instead of softmax
    bool normalise = true;      ///< divide the chosen weights by their sum
    float scale = 1;            ///< then multiply
    float limit = 0, limit_shared = 0;  ///< clamps as in swiglu
};

struct Op {
    OpKind kind = OpKind::embed;
    uint32_t layer = 0;
    SlotId out = kNoSlot;
    SlotId in[4] = {kNoSlot, kNoSlot, kNoSlot, kNoSlot};
    /// Weights by role. matmul, embed, rms_norm: [0]. kv_write: [0] k_norm. attend: [0] q_norm.
    /// delta: [0] conv1d [conv_dim, n_conv], [1] dt bias, [2] a, [3] norm.
    /// moe: [0] router, [1] gate, [2] up, [3] down, [4] shared gate, [5] up, [6] down, [7] shared router,
    /// [8] selection bias; gate and up may be one fused stack in [1].
    SlotId w[9] = {kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot};
    SlotId state = kNoSlot;   ///< kv, or delta
    SlotId state2 = kNoSlot;  ///< conv, of a delta
    uint32_t out_offset = 0;  ///< first value of the output row (rms_norm)
    bool accumulate = false;  ///< matmul: add to out
    bool head = false;        ///< only rows whose logits are wanted
    float eps = 0;            ///< rms_norm
    float limit = 0;          ///< swiglu
    AttnDims attn;            ///< kv_write, attend
    DeltaDims delta;          ///< delta
    MoeDims moe;              ///< moe
};

/// A run of operations with an entry and an exit.
struct Tape {
    std::vector<Op> ops;
    size_t n_fill = 0;         ///< MTP: the first n_fill ops are all that a cache-filling row needs
    SlotId hidden = kNoSlot;   ///< kept: what an MTP block is fed from these rows
    SlotId logits = kNoSlot;   ///< kept: [n_vocab]
};

struct Plan {
    std::string architecture;
    uint32_t d_model = 0, n_vocab = 0, n_layer = 0, n_context = 0;
    std::vector<Slot> slots;
    Tape trunk;
    std::vector<Tape> mtp;     ///< one per MTP block; qwen35 uses its one block at every depth

    const Slot& slot(SlotId id) const { return slots[id]; }
    uint32_t mtp_block(uint32_t depth) const {
        const uint32_t last = static_cast<uint32_t>(mtp.size()) - 1;
        return depth - 1 < last ? depth - 1 : last;
    }
};

/// Checks every op against its slots: roles, widths, dims. The first contradiction, named.
Status check_plan(const Plan& plan);
/// One line per op: "layer.3 matmul    x += o  blk.3.attn_output.weight Q4_K [512, 1024]".
std::string print_tape(const Plan& plan, const Tape& tape);
const char* op_name(OpKind kind);

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------------ src/plan/weights.h

// plan/weights: the manifest, which tensor fills which slot, in which shape.
//
// Owns    the match between weight slots and the file's tensors, and every complaint about it.
// Reads   plan, gguf.
// Serves  arch_* (which declare slots through it), machines (which read the bytes).
// Thread  none of its own.
// Laws    tests/test_plan.cpp: a missing or misshapen tensor is named, with both shapes.

namespace auspex {
namespace detail {

/// The bytes behind each weight slot, by SlotId; null for other roles.
struct Weights {
    std::vector<const std::byte*> data;
    bool keep = false;  ///< the bytes outlive the Program, so a machine may use them in place
};

/// Fills every weight slot of the plan. errors: bad_file naming slot, expected and found shape.
Result<Weights> find_weights(const Plan& plan, const Gguf& file);

}  // namespace detail
}  // namespace auspex

// --------------------------------------------------------------------------------- src/plan/arch.h

// plan/arch: hyperparameters become a Plan; one file per model family.
//
// Owns    the choice of family by `general.architecture`, and Builder, the vocabulary all
//         families write their tapes with.
// Reads   plan, gguf.
// Serves  model loading.
// Thread  none of its own.
// Laws    tests/test_plan.cpp; Twin against independent outputs in tests/test_reference.cpp.

namespace auspex {
namespace detail {

struct PlanOptions {
    bool mtp = true;  ///< plan the MTP blocks, if the file has them
};

/// errors    unsupported: an architecture or feature that is not known; bad_file: keys or tensors
///           that are missing, misshapen or contradict each other, each named.
Result<Plan> make_plan(const Gguf& file, const PlanOptions& options);

/// Writes tapes. The first error sticks; every later call does nothing, so a family reads as prose.
class Builder {
  public:
    Builder(const Gguf& file, Plan& plan) : file_(file), plan_(plan) {}

    SlotId activation(std::string name, uint64_t width, SlotRole role = SlotRole::activation);
    SlotId state(std::string name, SlotRole role, uint64_t a, uint64_t b = 0, uint64_t c = 0);
    /// A weight slot for the file's tensor `name`, which must have exactly this shape (slowest first).
    SlotId weight(const std::string& name, std::vector<uint64_t> shape);
    /// The same for 1-D tensors, which must be F32.
    SlotId vector(const std::string& name, uint64_t n);
    bool has(const std::string& name) const { return file_.tensor(name) != nullptr; }

    Op& push(Tape& tape, OpKind kind, uint32_t layer, SlotId out);
    void norm(Tape& tape, uint32_t layer, SlotId out, SlotId in, SlotId w, float eps, uint32_t out_offset = 0);
    void matmul(Tape& tape, uint32_t layer, SlotId out, SlotId in, SlotId w, bool accumulate = false);

    /// Records the first error.
    void fail_with(Status s) {
        if (status_.ok()) status_ = std::move(s);
    }
    bool ok() const { return status_.ok(); }
    Status status() const { return status_; }
    const Gguf& file() const { return file_; }

    /// Hyperparameters under the architecture's prefix; a missing or impossible one is the sticky error.
    uint32_t u32(const char* key, uint32_t low, uint32_t high);
    uint32_t u32_or(const char* key, uint32_t otherwise, uint32_t low, uint32_t high);
    float f32(const char* key);
    float f32_or(const char* key, float otherwise);
    std::string key(const char* name) const { return plan_.architecture + "." + name; }

  private:
    const Gguf& file_;
    Plan& plan_;
    Status status_;
    std::unordered_map<std::string, SlotId> weights_;
};

/// Families. Each fills the plan's tapes from the file.
Status plan_qwen35(const Gguf& file, const PlanOptions& options, Plan& plan);

}  // namespace detail
}  // namespace auspex

// --------------------------------------------------------------------------- src/machine/backend.h

// machine/backend: the narrow waist between a plan and what runs it.
//
// Owns    Step, Machine, Program, Lane. A new operation widens OpKind, never this interface.
// Reads   plan, weights.
// Serves  engine (above); cpu and vulkan implement it.
// Thread  a Machine and a Program may be shared; a Lane belongs to one thread at a time.
// Laws    Row, Commit, Chunk, Twin: the same tests run over every machine.

namespace auspex {
namespace detail {

/// The most rows a tentative step may have: one plus the deepest draft.
constexpr uint32_t kMaxTentative = 9;

/// Rows to run. A step is tentative until committed: commit(k) makes its first k rows history.
struct Step {
    const Tape* tape = nullptr;   ///< of the lane's plan
    const Token* ids = nullptr;   ///< [n_row]
    uint32_t n_row = 0;           ///< at most LaneOptions::n_ubatch, or kMaxTentative when tentative
    uint32_t position = 0;        ///< absolute position of the first row
    uint32_t n_logit = 0;         ///< head ops run on the last n_logit rows, at most kMaxTentative
    bool tentative = false;       ///< rows may be discarded by a smaller commit; else all are committed
    bool fill_only = false;       ///< MTP: run only the ops that fill its cache
    /// MTP: the hidden row given to each row, [n_row, d_model], on the host; null: the rows kept by
    /// the previous trunk step, from row `hidden_from` on.
    const float* hidden = nullptr;
    uint32_t hidden_from = 0;
};

struct LaneOptions {
    uint32_t n_context = 0;   ///< rows of history at most
    uint32_t n_ubatch = 0;    ///< rows of a committed step at most
};

/// One timeline on a machine: caches, state, scratch. All memory is taken when it is opened.
class Lane {
  public:
    virtual ~Lane() = default;
    /// Runs the rows. The trunk's pending rows of an earlier tentative step must be committed first.
    virtual Status run(const Step& step) = 0;
    /// Makes the first k rows of the last tentative trunk step history.
    virtual void commit(uint32_t k) = 0;
    /// Forgets everything: position 0, zero state.
    virtual void reset() = 0;
    /// Runs the tape's head on n kept hidden rows from row `first` of its last step.
    virtual Status head(const Tape& tape, uint32_t first, uint32_t n) = 0;
    /// Kept rows of the last step that wrote them: hidden row i is row i of the step, logits row i
    /// the i-th of those asked for. On the CPU a view, elsewhere a copy; good until the next call.
    virtual Result<Span<const float>> read_row(SlotId slot, uint32_t row) = 0;
    /// State as bytes: caches up to `n_token` positions, recurrent state with committed terms applied.
    virtual Status save(uint32_t n_token, std::vector<std::byte>* to) = 0;
    virtual Status restore(uint32_t n_token, Span<const std::byte> from) = 0;
    virtual uint64_t memory_bytes() const = 0;
};

/// A model's weights on a machine.
class Program {
  public:
    virtual ~Program() = default;
    virtual Result<std::unique_ptr<Lane>> open(const LaneOptions& options) = 0;
    virtual uint64_t weight_bytes() const = 0;
};

class Machine {
  public:
    virtual ~Machine() = default;
    virtual Kind kind() const = 0;
    virtual std::string name() const = 0;
    virtual std::string report() const = 0;
    /// Plan and weights must outlive the Program; the weights' bytes only during the call unless
    /// `weights.keep` says that they stay.
    virtual Result<std::shared_ptr<Program>> load(const Plan& plan, const Weights& weights, const Progress& progress) = 0;
};

}  // namespace detail
}  // namespace auspex

// ---------------------------------------------------------------------- src/machine/cpu/features.h

// machine/cpu/features: which code path this processor can run.
//
// Owns    feature detection; the names of the paths.
// Reads   the door's CpuPath.
// Serves  cpu, matmul, tests.
// Thread  any; no state.
// Laws    a path is offered only when the processor and the operating system both support it.

// The paths that this compiler can build; the processor decides at run time among them.
#if !defined(AUSPEX_NO_SIMD) && (defined(__x86_64__) || defined(_M_X64))
#define AUSPEX_HAS_X86 1
#else
#define AUSPEX_HAS_X86 0
#endif
// NEON code is written for little-endian AArch64.
#if !defined(AUSPEX_NO_SIMD) && defined(__aarch64__) && !defined(__AARCH64EB__)
#define AUSPEX_HAS_NEON 1
#else
#define AUSPEX_HAS_NEON 0
#endif

namespace auspex {
namespace detail {

/// "avx512": the name of a path.
const char* path_name(CpuPath path);
/// True when this build has the path and this processor runs it. `best` and `reference` always.
/// avx512 needs AVX-512 F, BW, VL, DQ and VNNI; avx2 needs AVX2, FMA and F16C; neon needs dotprod.
bool has_path(CpuPath path);
/// The fastest path of this processor; never `best`.
CpuPath best_path();
/// `best` becomes best_path(); any other path itself.
/// errors    unsupported: this processor or build lacks it; the text lists what there is.
Status choose_path(CpuPath wanted, CpuPath* out);
/// Processor cores this process may run on, counting two hardware threads of one core once; at least 1.
uint32_t n_physical_core();

}  // namespace detail
}  // namespace auspex

// -------------------------------------------------------------------------- src/machine/cpu/pool.h

// machine/cpu/pool: a few threads that run one function together.
//
// Owns    the worker threads, how they wake, meet and sleep.
// Reads   base.
// Serves  cpu lanes, pack (loading).
// Thread  run() from any thread, one caller at a time (others wait their turn); barrier() and ticket()
//         only inside the function that run() runs. A Pool must not be destroyed while it runs.
// Laws    Silence: run() and barrier() allocate nothing; tests/test_pool.cpp.

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace auspex {
namespace detail {

/// A thread's part of some shared work: part i of n. With a ticket the parts are handed out in
/// chunks as threads come for them (good when cores differ in speed), else they are cut evenly.
/// What is computed never depends on the cut.
struct Share {
    uint32_t i = 0, n = 1;
    std::atomic<uint32_t>* ticket = nullptr;  ///< zero before the first thread comes
};

/// The even cut: items from..to of n_item for a share.
inline void even_part(uint64_t n_item, const Share& s, uint64_t* from, uint64_t* to) {
    *from = n_item * s.i / s.n;
    *to = n_item * (s.i + 1) / s.n;
}

class Pool {
  public:
    /// Runs on every thread with i_thread in 0 .. n_thread-1; 0 is the caller of run().
    using Work = void (*)(void* context, uint32_t i_thread, uint32_t n_thread);
    static constexpr uint32_t kMaxThread = 256;
    static constexpr uint32_t kTicket = 16;

    /// n_thread threads in all, the caller of run() included: n_thread - 1 are started.
    /// errors    bad_argument: n_thread is 0 or above kMaxThread. out_of_memory: the system gives no more threads.
    static Result<std::unique_ptr<Pool>> open(uint32_t n_thread);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    uint32_t n_thread() const { return n_thread_; }
    /// Calls work on every thread and returns when all have returned. Not from inside `work`.
    /// cost      1-3 us while the workers are still awake (they spin about 50 us after a run), a
    ///           system wake-up otherwise.
    void run(Work work, void* context);
    /// Waits until every thread of the run has come here; what each wrote before is then seen by all.
    /// Also sets every ticket to zero.
    void barrier(uint32_t i_thread);
    /// Shared counter k < kTicket, zero at the start of a run and after each barrier: one for each loop
    /// between two barriers.
    std::atomic<uint32_t>* ticket(uint32_t k) { return &tickets_[k].count; }
    /// A share of an evenly cut loop, or of one cut by ticket k.
    Share even(uint32_t i_thread) const { return {i_thread, n_thread_, nullptr}; }
    Share shared(uint32_t i_thread, uint32_t k) { return {i_thread, n_thread_, n_thread_ > 1 ? ticket(k) : nullptr}; }

  private:
    explicit Pool(uint32_t n_thread);
    struct Worker {
        Pool* pool = nullptr;
        uint32_t i = 0;
    };
    struct alignas(64) Ticket {
        std::atomic<uint32_t> count{0};
    };
    static void work_loop(Worker* me);
    static void* thread_entry(void* me);
    bool start(uint32_t i, int* error);
    void clear_tickets();
    /// Returns when `word` no longer holds `old`: spins, then sleeps.
    void wait_change(const std::atomic<uint32_t>& word, uint32_t old);
    /// Wakes whoever sleeps in wait_change, after the word was changed.
    void wake();

    const uint32_t n_thread_;
    const uint32_t spin_us_;
    uint32_t n_started_ = 0;
    std::vector<Worker> workers_;
    std::vector<std::thread> threads_;
    std::vector<uint64_t> handles_;

    Work work_ = nullptr;  ///< published by run_count_
    void* context_ = nullptr;
    bool stop_ = false;

    alignas(64) std::atomic<uint32_t> run_count_{0};
    alignas(64) std::atomic<uint32_t> arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
    alignas(64) std::atomic<uint32_t> n_asleep_{0};
    Ticket tickets_[kTicket];
    std::mutex sleep_mutex_;
    std::condition_variable sleep_;
    std::mutex run_mutex_;
};

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------ src/machine/cpu/matmul.h

// machine/cpu/matmul: products of activations with weight matrices of every file type.
//
// Owns    Matrix (weights as the CPU reads them), packing, integer activations, the products.
// Reads   number (formats), pool (shares of work), features (paths).
// Serves  cpu (the tape walker).
// Thread  a PackedMatrix is immutable; quantise_rows and matmul run on all threads of a pool at once,
//         each with its own Share, a barrier between the two.
// Laws    Row: the bits of y[c][r] depend on the path, the weights and row c of the input, never on how
//         many rows share the call, nor on threads or their shares. Silence: no allocation in a step.
//         tests/test_matmul.cpp.
//
// Two ways to hold a matrix:
//   plain    the file's rows as they are (float types on every path; every type on the reference
//            path), in place when the bytes may be kept. Products in float with float activations.
//   strips   16 or 8 rows interleaved, so that one vector lane is one output row; the codes and the
//            scales stay the file's (within 3 % of its size for the types below), nothing is rounded.
//            Activations are 16-bit integers held as two int8 columns, high and low: exact integer
//            sums per block of 32 (16), then one float multiply-add per block, in block order.

namespace auspex {
namespace detail {

struct MatrixShape {
    Type type = Type::f32;
    uint32_t d_out = 0, d_in = 0;
    uint32_t n_slice = 1;  ///< a stack [n_slice, d_out, d_in], such as the experts of a layer
};

/// A view of one matrix [d_out, d_in]; owns nothing, cheap to copy.
struct Matrix {
    Type type = Type::f32;
    CpuPath path = CpuPath::reference;
    uint32_t d_out = 0, d_in = 0;
    uint32_t n_lane = 0;               ///< rows in a strip; 0: plain rows
    uint64_t stride = 0;               ///< bytes of a plain row or of a strip
    const std::byte* data = nullptr;
    /// True when matmul reads Rows::quantised; false when it reads Rows::x.
    bool wants_integers() const { return n_lane != 0; }
};

/// A matrix, or a stack of them, ready for products.
class PackedMatrix {
  public:
    bool empty() const { return view_.data == nullptr; }
    uint32_t n_slice() const { return n_slice_; }
    const Matrix& view() const { return view_; }  ///< the first, or only, slice
    Matrix slice(uint32_t i) const {
        Matrix m = view_;
        m.data += i * slice_bytes_;
        return m;
    }
    /// Bytes taken from the allocator; 0 when the file's bytes are used in place.
    uint64_t owned_bytes() const { return own_.size(); }

  private:
    friend Status pack_matrix(CpuPath, const MatrixShape&, const std::byte*, bool, const Allocator&, Pool*, PackedMatrix*);
    Matrix view_;
    uint32_t n_slice_ = 0;
    uint64_t slice_bytes_ = 0;
    Block own_;
};

/// What pack_matrix would take from the allocator, exactly. `keep` as there.
uint64_t packed_bytes(CpuPath path, const MatrixShape& shape, bool keep);

/// Makes a matrix from the file's rows, [n_slice * d_out] rows of row_bytes(type, d_in).
///
/// keep      the bytes outlive the matrix: plain matrices then use them in place.
/// pool      spreads the work; null: the calling thread alone.
/// errors    bad_argument (an impossible shape), unsupported (path or type), out_of_memory.
/// cost      reads the rows once; about 1 GB/s on each thread.
Status pack_matrix(CpuPath path, const MatrixShape& shape, const std::byte* rows, bool keep, const Allocator& from,
                   Pool* pool, PackedMatrix* out);

/// Row `row` as floats [d_in], bit for bit decode_row's values.
void unpack_row(const Matrix& w, uint32_t row, float* to);

/// Bytes that n_row quantised rows of d_in need; 64-aligned storage is best. d_in a multiple of 32.
size_t quantised_bytes(uint32_t n_row, uint32_t d_in);

/// Writes rows x[n_row][d_in], `ld` floats apart, as integers of 16 bits with one scale for 32 values into `to`
/// (quantised_bytes). All threads call it with their shares (cut evenly, tickets are not used); the
/// result is the same for any cut. A NaN makes its block NaN.
void quantise_rows(CpuPath path, const float* x, size_t ld, uint32_t n_row, uint32_t d_in, void* to, const Share& share);

/// The input rows of a product.
struct Rows {
    const float* x = nullptr;          ///< read when !wants_integers()
    size_t ld = 0;                     ///< floats from one row to the next
    const void* quantised = nullptr;   ///< from quantise_rows on the matrix's path; read when wants_integers()
    const uint32_t* pick = nullptr;    ///< row c of the product is input row pick[c]; null: row c
};

/// y[c][r] = sum_k in[c][k] w[r][k], c < n_row, r < d_out; accumulate: y += that.
/// All threads call it with their shares; each writes the rows r that fall to it.
void matmul(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate, const Share& share);

/// The output rows that one ticket of matmul is worth.
constexpr uint32_t kMatmulChunk = 64;

}  // namespace detail
}  // namespace auspex

// -------------------------------------------------------------------------- src/machine/cpu/pack.h

// machine/cpu/pack: how a strip of interleaved rows lies in memory.
//
// Owns    StripForm, the layout that the packer writes and the kernels read.
// Reads   matmul (Matrix).
// Serves  matmul and its kernels.
// Thread  none of its own; pure functions.
// Laws    lossless: unpack_row gives decode_row's bits (tests/test_matmul.cpp).
//
// A strip holds n_lane (16 or 8) consecutive output rows over all of d_in, cut into blocks of 32 inputs
// and pages of 256 (the last one may be shorter). A page is its scales and then its codes, both aligned
// to a vector, so that a product reads memory in one stream. Rows past d_out are zero.
//
//   scales   super: d f16[n_lane], (dmin f16[n_lane]), then for each block int8 scale[n_lane] for each
//            group (one of 32 or two of 16), (then int8 min[n_lane] for each).
//            else: for each block d f16[n_lane], (min f16[n_lane]).
//   codes    for each block, as vectors of n_lane times 4 bytes; byte 4 * lane + j of vector (h, v)
//            belongs to input 16 h + 4 v + j, with h < 2, v < 4:
//            nibble, book  4 vectors v: low nibble h = 0, high nibble h = 1
//            five          the same 4, then 1 vector with bit 4 of code (h, v) at bit 4 h + v
//            six           the same 4, then 2 vectors h with bits 4-5 of code (h, v) at bit 2 v
//            byte          8 vectors (h, v)

#include <cmath>
#include <limits>

namespace auspex {
namespace detail {

enum class CodeForm : uint8_t { nibble, book, five, six, byte };

struct StripForm {
    CodeForm code = CodeForm::nibble;
    uint8_t n_group = 1;      ///< scales in a block of 32
    bool has_min = false;     ///< value = scale * code - min
    bool super = false;       ///< scales are int8 times an f16 for each 256 inputs
    uint8_t offset = 0;       ///< value = scale * (code - offset); not with has_min

    static constexpr uint32_t kCodeBytes[5] = {16, 16, 20, 24, 32};  ///< of a block and lane, by code
    uint32_t code_bytes(uint32_t n_lane) const { return kCodeBytes[static_cast<int>(code)] * n_lane; }  ///< of a block
    uint32_t head_bytes(uint32_t n_lane) const { return super ? (has_min ? 4 : 2) * n_lane : 0; }
    uint32_t scale_bytes(uint32_t n_lane) const {  ///< of one block
        const uint32_t n = has_min ? 2 : 1;
        return super ? n * n_group * n_lane : 2 * n * n_lane;
    }
    /// The scales of a page of n_block blocks, padding included.
    uint32_t page_scale_bytes(uint32_t n_lane, uint32_t n_block) const {
        return (head_bytes(n_lane) + n_block * scale_bytes(n_lane) + 4 * n_lane - 1) & ~(4 * n_lane - 1);
    }
    uint32_t page_bytes(uint32_t n_lane, uint32_t n_block) const {
        return page_scale_bytes(n_lane, n_block) + n_block * code_bytes(n_lane);
    }
    uint64_t strip_bytes(uint32_t n_lane, uint32_t d_in) const {
        const uint32_t n_block = d_in / 32, rest = n_block % 8;
        return round_up(uint64_t{n_block / 8} * page_bytes(n_lane, 8) + (rest ? page_bytes(n_lane, rest) : 0), 64);
    }
};

/// The form in which a file type is held; false for the float types, which stay plain.
bool strip_form(Type type, StripForm* out);

/// Whether a path's byte codes are biased by 128 to be unsigned (what its dot product wants).
inline bool biased_bytes(CpuPath path) { return path == CpuPath::avx512; }

/// Writes one strip from n_row <= n_lane file rows, into zeroed memory (padding is not written).
void pack_strip(const Matrix& m, const std::byte* rows, uint32_t n_row, std::byte* strip);

/// A quantised activation row is this, for each 32 values: about 15 bits, so that products are nearly
/// as exact as with float activations, at the speed of bytes.
struct Int16Block {
    int8_t q[64];          ///< high bytes, within -127..127, then low ones: x = scale (256 high + low)
    float scale;           ///< max |x| / 127 / 256
    float sum;             ///< of the rounded x
    int32_t minus_sum[2];  ///< -sum (256 high + low), for each half
};
static_assert(sizeof(Int16Block) == 80, "packed");

/// The scale of a block whose largest magnitude is `most`, and what to multiply by. Blocks below
/// 1e-30 count as zero, so that the inverse is finite.
inline void int8_scale(float most, bool nan, float* scale, float* inverse) {
    *scale = nan ? std::numeric_limits<float>::quiet_NaN() : most < 1e-30f ? 0 : most / 127;
    *inverse = most < 1e-30f ? 0 : 127 / most;
}
/// What one path provides. Rows r0 .. r1 of y; r0 a multiple of the strip.
struct CpuKernels {
    void (*quantise)(const float* x, uint32_t n_block, Int16Block* to);
    void (*strips)(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate, uint32_t r0,
                   uint32_t r1);
    void (*floats)(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate, uint32_t r0,
                   uint32_t r1);
};
const CpuKernels& avx512_kernels();
const CpuKernels& avx2_kernels();
const CpuKernels& neon_kernels();

}  // namespace detail
}  // namespace auspex

// --------------------------------------------------------------------- src/machine/cpu/simd_avx2.h

// machine/cpu/simd_avx2: the vocabulary of matmul_kernel.inl in AVX2 with FMA and F16C.
//
// Owns    the vector operations; 8 rows to a strip.
// Reads   pack (layout).
// Serves  matmul_avx2.
// Thread  none of its own.
// Laws    no 16-bit sum can overflow (the bounds stand at dot_half); multiply-adds are explicit.

#if AUSPEX_HAS_X86
#include <immintrin.h>

#if defined(__GNUC__)
#define AUSPEX_AVX2 __attribute__((target("avx2,fma,f16c")))
#define AUSPEX_AVX2_INLINE inline __attribute__((always_inline)) AUSPEX_AVX2
#else
#define AUSPEX_AVX2
#define AUSPEX_AVX2_INLINE inline
#endif

namespace auspex {
namespace detail {
namespace cpu_avx2 {

constexpr uint32_t kLane = 8;
constexpr int kMaxRow = 2;          ///< activation rows of one pass over a strip
constexpr int kMaxFloatColumn = 2;  ///< the same for float weights
constexpr int kFloatRow = 4;        ///< output rows of one pass, for float weights
using Floats = __m256;
using Ints = __m256i;

AUSPEX_AVX2_INLINE void prefetch_soon(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
AUSPEX_AVX2_INLINE void prefetch_later(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
AUSPEX_AVX2_INLINE Floats f_zero() { return _mm256_setzero_ps(); }
AUSPEX_AVX2_INLINE Floats f_all(float a) { return _mm256_set1_ps(a); }
AUSPEX_AVX2_INLINE Floats f_mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
AUSPEX_AVX2_INLINE Floats f_fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
AUSPEX_AVX2_INLINE Floats f_fnma(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
AUSPEX_AVX2_INLINE Floats f_from(Ints a) { return _mm256_cvtepi32_ps(a); }
/// kLane halves.
AUSPEX_AVX2_INLINE Floats f_halves(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
/// kLane signed bytes.
AUSPEX_AVX2_INLINE Floats f_bytes(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
AUSPEX_AVX2_INLINE Ints i_add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
AUSPEX_AVX2_INLINE Ints i_zero() { return _mm256_setzero_si256(); }
AUSPEX_AVX2_INLINE Ints i_all(int32_t a) { return _mm256_set1_epi32(a); }
template <int n>
AUSPEX_AVX2_INLINE Ints i_shift(Ints a) {
    return _mm256_slli_epi32(a, n);
}
/// The first n of the lanes to y, or added to it.
AUSPEX_AVX2_INLINE void f_put(float* y, uint32_t n, Floats a, bool accumulate) {
    const __m256i m = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    if (accumulate) a = _mm256_add_ps(_mm256_maskload_ps(y, m), a);
    _mm256_maskstore_ps(y, m, a);
}

/// Byte and book codes are signed here.
constexpr int bias_of(CodeForm) { return 0; }
constexpr bool signed_codes(CodeForm k) { return k == CodeForm::book || k == CodeForm::byte; }

/// Codes (h, v) of a block: bytes, signed for book and byte.
template <CodeForm kCode, int h, int v>
AUSPEX_AVX2_INLINE __m256i codes_of(const uint8_t* p) {
    const __m256i* q = reinterpret_cast<const __m256i*>(p);
    if constexpr (kCode == CodeForm::byte) return _mm256_loadu_si256(q + 4 * h + v);
    __m256i c = _mm256_loadu_si256(q + v);
    if constexpr (h == 1) c = _mm256_srli_epi16(c, 4);
    c = _mm256_and_si256(c, _mm256_set1_epi8(15));
    if constexpr (kCode == CodeForm::book) {
        const __m128i book = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Values));
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(book), c);
    }
    if constexpr (kCode == CodeForm::five) {
        __m256i b = _mm256_loadu_si256(q + 4);
        constexpr int from = 4 * h + v;
        if constexpr (from < 4) b = _mm256_slli_epi16(b, 4 - from);
        if constexpr (from > 4) b = _mm256_srli_epi16(b, from - 4);
        c = _mm256_or_si256(c, _mm256_and_si256(b, _mm256_set1_epi8(16)));
    }
    if constexpr (kCode == CodeForm::six) {
        __m256i b = _mm256_loadu_si256(q + 4 + h);
        if constexpr (v < 2) b = _mm256_slli_epi16(b, 4 - 2 * v);
        if constexpr (v > 2) b = _mm256_srli_epi16(b, 2 * v - 4);
        c = _mm256_or_si256(c, _mm256_and_si256(b, _mm256_set1_epi8(48)));
    }
    return c;
}

/// Pairs of products of codes and activations, as 16-bit sums: at most 2 * 127 * the largest code.
template <CodeForm kCode>
AUSPEX_AVX2_INLINE __m256i pairs(__m256i w, __m256i magnitude, const int8_t* q) {
    const __m256i x = _mm256_set1_epi32(load<int32_t>(q));
    if constexpr (signed_codes(kCode)) return _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(x, w));
    return _mm256_maddubs_epi16(w, x);
}
AUSPEX_AVX2_INLINE __m256i widen(__m256i pair) { return _mm256_madd_epi16(pair, _mm256_set1_epi16(1)); }

template <CodeForm kCode, int n, int h, int v>
AUSPEX_AVX2_INLINE void dot_eight(const uint8_t* codes, const Int16Block* const* x, size_t b, __m256i* sum, Ints* dot) {
    const __m256i w0 = codes_of<kCode, h, v>(codes), w1 = codes_of<kCode, h, v + 1>(codes);
    const __m256i m0 = signed_codes(kCode) ? _mm256_abs_epi8(w0) : w0;
    const __m256i m1 = signed_codes(kCode) ? _mm256_abs_epi8(w1) : w1;
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) {
        const __m256i p0 = pairs<kCode>(w0, m0, x[c / 2][b].q + 32 * (c % 2) + 16 * h + 4 * v);
        const __m256i p1 = pairs<kCode>(w1, m1, x[c / 2][b].q + 32 * (c % 2) + 16 * h + 4 * v + 4);
        if constexpr (signed_codes(kCode)) {  // 2 * 127 * 128 = 32 512 each: 16 bits hold one
            dot[c] = _mm256_add_epi32(dot[c], _mm256_add_epi32(widen(p0), widen(p1)));
        } else if constexpr (kCode == CodeForm::six) {  // 2 * 127 * 63 = 16 002 each: they hold two
            dot[c] = _mm256_add_epi32(dot[c], widen(_mm256_add_epi16(p0, p1)));
        } else {  // 2 * 127 * 31 = 7 874 each, 31 496 in four: they hold a half
            sum[c] = v == 0 ? _mm256_add_epi16(p0, p1) : _mm256_add_epi16(sum[c], _mm256_add_epi16(p0, p1));
        }
    }
}

/// dot[2r], dot[2r + 1] += sum over half h of block b of code * high, low byte of x[r]; n counts both.
template <CodeForm kCode, int n, int h>
AUSPEX_AVX2_INLINE void dot_half(const uint8_t* codes, const Int16Block* const* x, size_t b, Ints* dot) {
    __m256i sum[n];
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) sum[c] = i_zero();
    dot_eight<kCode, n, h, 0>(codes, x, b, sum, dot);
    dot_eight<kCode, n, h, 2>(codes, x, b, sum, dot);
    if constexpr (!signed_codes(kCode) && kCode != CodeForm::six) {
#pragma GCC unroll 16
        for (int c = 0; c < n; ++c) dot[c] = _mm256_add_epi32(dot[c], widen(sum[c]));
    }
}

// ------------------------------------------------------------------------------- float weights

/// kLane weights as floats.
template <Type kType>
AUSPEX_AVX2_INLINE Floats f_weights(const std::byte* p) {
    if constexpr (kType == Type::f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    if constexpr (kType == Type::f16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
AUSPEX_AVX2_INLINE Floats f_load(const float* p) { return _mm256_loadu_ps(p); }
/// The sum of the lanes, always in the same order.
AUSPEX_AVX2_INLINE float f_sum(Floats a) {
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    c = _mm_add_ss(c, _mm_movehdup_ps(c));
    return _mm_cvtss_f32(c);
}

// --------------------------------------------------------------------------------- activations

AUSPEX_AVX2_INLINE int32_t i_sum(__m256i a) {
    __m128i c = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
    c = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0xb1));
    return _mm_cvtsi128_si32(c);
}

/// The largest magnitude of 32 values, and whether one is no number.
AUSPEX_AVX2_INLINE void block_range(const float* x, float* most, bool* nan) {
    __m256 top = _mm256_setzero_ps(), odd = _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
        const __m256 v = _mm256_loadu_ps(x + 8 * i);
        top = _mm256_max_ps(top, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v));
        odd = _mm256_or_ps(odd, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    }
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    *most = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
    *nan = _mm256_movemask_ps(odd) != 0;
}
/// q = round(x * inverse) within -127..127, for 32 values; sums of each half.
AUSPEX_AVX2_INLINE void round_block(const float* x, float inverse, int8_t* q, int32_t* sums) {
    const __m256i low = _mm256_set1_epi32(-127), high = _mm256_set1_epi32(127);
    __m256i p[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        p[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(inverse)));
        p[i] = _mm256_max_epi32(low, _mm256_min_epi32(high, p[i]));
    }
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(p[0], p[1]), _mm256_packs_epi32(p[2], p[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing works within halves
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permutevar8x32_epi32(bytes, order));
    sums[0] = i_sum(_mm256_add_epi32(p[0], p[1]));
    sums[1] = i_sum(_mm256_add_epi32(p[2], p[3]));
}

}  // namespace cpu_avx2
}  // namespace detail
}  // namespace auspex
#endif

// ------------------------------------------------------------------- src/machine/cpu/simd_avx512.h

// machine/cpu/simd_avx512: the vocabulary of matmul_kernel.inl in AVX-512 with VNNI.
//
// Owns    the vector operations; 16 rows to a strip.
// Reads   pack (layout).
// Serves  matmul_avx512.
// Thread  none of its own.
// Laws    multiply-adds are explicit, so that no compiler may choose to fuse or not to.

#if AUSPEX_HAS_X86
#include <immintrin.h>

#if defined(__GNUC__)
#define AUSPEX_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")))
#define AUSPEX_AVX512_INLINE inline __attribute__((always_inline)) AUSPEX_AVX512
#else
#define AUSPEX_AVX512
#define AUSPEX_AVX512_INLINE inline
#endif

namespace auspex {
namespace detail {
namespace cpu_avx512 {

constexpr uint32_t kLane = 16;
constexpr int kMaxRow = 8;          ///< activation rows of one pass over a strip
constexpr int kMaxFloatColumn = 4;  ///< the same for float weights
constexpr int kFloatRow = 4;        ///< output rows of one pass, for float weights
using Floats = __m512;
using Ints = __m512i;

AUSPEX_AVX512_INLINE void prefetch_soon(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
AUSPEX_AVX512_INLINE void prefetch_later(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
AUSPEX_AVX512_INLINE Floats f_zero() { return _mm512_setzero_ps(); }
AUSPEX_AVX512_INLINE Floats f_all(float a) { return _mm512_set1_ps(a); }
AUSPEX_AVX512_INLINE Floats f_mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
AUSPEX_AVX512_INLINE Floats f_fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
AUSPEX_AVX512_INLINE Floats f_fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
AUSPEX_AVX512_INLINE Floats f_from(Ints a) { return _mm512_cvtepi32_ps(a); }
/// kLane halves.
AUSPEX_AVX512_INLINE Floats f_halves(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
/// kLane signed bytes.
AUSPEX_AVX512_INLINE Floats f_bytes(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
AUSPEX_AVX512_INLINE Ints i_add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
AUSPEX_AVX512_INLINE Ints i_zero() { return _mm512_setzero_si512(); }
AUSPEX_AVX512_INLINE Ints i_all(int32_t a) { return _mm512_set1_epi32(a); }
template <int n>
AUSPEX_AVX512_INLINE Ints i_shift(Ints a) {
    return _mm512_slli_epi32(a, n);
}
/// The first n of the lanes to y, or added to it.
AUSPEX_AVX512_INLINE void f_put(float* y, uint32_t n, Floats a, bool accumulate) {
    const __mmask16 m = static_cast<__mmask16>((1u << n) - 1);
    if (accumulate) a = _mm512_add_ps(_mm512_maskz_loadu_ps(m, y), a);
    _mm512_mask_storeu_ps(y, m, a);
}

/// What a byte form's codes stand above the file's; taken back by the kernel.
constexpr int bias_of(CodeForm k) { return k == CodeForm::book || k == CodeForm::byte ? 128 : 0; }

/// Codes (h, v) of a block as unsigned bytes.
template <CodeForm kCode, int h, int v>
AUSPEX_AVX512_INLINE __m512i codes_of(const uint8_t* p) {
    const __m512i* q = reinterpret_cast<const __m512i*>(p);
    if constexpr (kCode == CodeForm::byte) return _mm512_loadu_si512(q + 4 * h + v);
    __m512i c = _mm512_loadu_si512(q + v);
    if constexpr (h == 1) c = _mm512_srli_epi16(c, 4);
    c = _mm512_and_si512(c, _mm512_set1_epi8(15));
    if constexpr (kCode == CodeForm::book) {
        const __m512i book = _mm512_broadcast_i32x4(
            _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, static_cast<char>(129), static_cast<char>(141),
                          static_cast<char>(153), static_cast<char>(166), static_cast<char>(181),
                          static_cast<char>(197), static_cast<char>(217), static_cast<char>(241)));
        return _mm512_shuffle_epi8(book, c);
    }
    if constexpr (kCode == CodeForm::five) {
        __m512i b = _mm512_loadu_si512(q + 4);
        constexpr int from = 4 * h + v;
        if constexpr (from < 4) b = _mm512_slli_epi16(b, 4 - from);
        if constexpr (from > 4) b = _mm512_srli_epi16(b, from - 4);
        c = _mm512_or_si512(c, _mm512_and_si512(b, _mm512_set1_epi8(16)));
    }
    if constexpr (kCode == CodeForm::six) {
        __m512i b = _mm512_loadu_si512(q + 4 + h);
        if constexpr (v < 2) b = _mm512_slli_epi16(b, 4 - 2 * v);
        if constexpr (v > 2) b = _mm512_srli_epi16(b, 2 * v - 4);
        c = _mm512_or_si512(c, _mm512_and_si512(b, _mm512_set1_epi8(48)));
    }
    return c;
}

template <CodeForm kCode, int n, int h, int v>
AUSPEX_AVX512_INLINE void dot_four(const uint8_t* codes, const Int16Block* const* x, size_t b, Ints* dot) {
    const __m512i w = codes_of<kCode, h, v>(codes);
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c)
        dot[c] = _mm512_dpbusd_epi32(dot[c], w, _mm512_set1_epi32(load<int32_t>(x[c / 2][b].q + 32 * (c % 2) + 16 * h + 4 * v)));
}

/// dot[2r], dot[2r + 1] += sum over half h of block b of code * high, low byte of x[r]; n counts both.
template <CodeForm kCode, int n, int h>
AUSPEX_AVX512_INLINE void dot_half(const uint8_t* codes, const Int16Block* const* x, size_t b, Ints* dot) {
    dot_four<kCode, n, h, 0>(codes, x, b, dot);
    dot_four<kCode, n, h, 1>(codes, x, b, dot);
    dot_four<kCode, n, h, 2>(codes, x, b, dot);
    dot_four<kCode, n, h, 3>(codes, x, b, dot);
}

// ------------------------------------------------------------------------------- float weights

/// kLane weights as floats.
template <Type kType>
AUSPEX_AVX512_INLINE Floats f_weights(const std::byte* p) {
    if constexpr (kType == Type::f32) return _mm512_loadu_ps(reinterpret_cast<const float*>(p));
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (kType == Type::f16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
AUSPEX_AVX512_INLINE Floats f_load(const float* p) { return _mm512_loadu_ps(p); }
/// The sum of the lanes, always in the same order.
AUSPEX_AVX512_INLINE float f_sum(Floats a) {
    const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    c = _mm_add_ss(c, _mm_movehdup_ps(c));
    return _mm_cvtss_f32(c);
}

// --------------------------------------------------------------------------------- activations

/// The largest magnitude of 32 values, and whether one is no number.
AUSPEX_AVX512_INLINE void block_range(const float* x, float* most, bool* nan) {
    const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    *most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    *nan = _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0;
}
/// q = round(x * inverse) within -127..127, for 32 values; sums of each half.
AUSPEX_AVX512_INLINE void round_block(const float* x, float inverse, int8_t* q, int32_t* sums) {
    const __m512i low = _mm512_set1_epi32(-127), high = _mm512_set1_epi32(127);
    for (int h = 0; h < 2; ++h) {
        __m512i p = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * h), _mm512_set1_ps(inverse)));
        p = _mm512_max_epi32(low, _mm512_min_epi32(high, p));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16 * h), _mm512_cvtepi32_epi8(p));
        sums[h] = _mm512_reduce_add_epi32(p);
    }
}

}  // namespace cpu_avx512
}  // namespace detail
}  // namespace auspex
#endif

// --------------------------------------------------------------------- src/machine/cpu/simd_neon.h

// machine/cpu/simd_neon: the vocabulary of matmul_kernel.inl in AArch64 NEON with dot products.
//
// Owns    the vector operations; 8 rows to a strip, two registers of four.
// Reads   pack (layout).
// Serves  matmul_neon.
// Thread  none of its own.
// Laws    multiply-adds are explicit, so that no compiler may choose to fuse or not to.

#if AUSPEX_HAS_NEON
#include <arm_neon.h>

// Apple's compilers have dotprod on by default; elsewhere it is asked for function by function.
#if defined(__clang__)
#define AUSPEX_NEON __attribute__((target("dotprod")))
#else
#define AUSPEX_NEON __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
#define AUSPEX_NEON_INLINE inline __attribute__((always_inline)) AUSPEX_NEON

namespace auspex {
namespace detail {
namespace cpu_neon {

constexpr uint32_t kLane = 8;
constexpr int kMaxRow = 4;          ///< activation rows of one pass over a strip
constexpr int kMaxFloatColumn = 2;  ///< the same for float weights
constexpr int kFloatRow = 4;        ///< output rows of one pass, for float weights
struct Floats {
    float32x4_t a, b;
};
struct Ints {
    int32x4_t a, b;
};

AUSPEX_NEON_INLINE void prefetch_soon(const void* p) { __builtin_prefetch(p, 0, 3); }
AUSPEX_NEON_INLINE void prefetch_later(const void* p) { __builtin_prefetch(p, 0, 2); }
AUSPEX_NEON_INLINE Floats f_zero() { return {vdupq_n_f32(0), vdupq_n_f32(0)}; }
AUSPEX_NEON_INLINE Floats f_all(float v) { return {vdupq_n_f32(v), vdupq_n_f32(v)}; }
AUSPEX_NEON_INLINE Floats f_mul(Floats x, Floats y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
AUSPEX_NEON_INLINE Floats f_fma(Floats x, Floats y, Floats z) { return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)}; }
AUSPEX_NEON_INLINE Floats f_fnma(Floats x, Floats y, Floats z) { return {vfmsq_f32(z.a, x.a, y.a), vfmsq_f32(z.b, x.b, y.b)}; }
AUSPEX_NEON_INLINE Floats f_from(Ints x) { return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b)}; }
/// kLane halves.
AUSPEX_NEON_INLINE Floats f_halves(const uint8_t* p) {
    const uint8x16_t h = vld1q_u8(p);
    return {vcvt_f32_f16(vreinterpret_f16_u8(vget_low_u8(h))), vcvt_f32_f16(vreinterpret_f16_u8(vget_high_u8(h)))};
}
/// kLane signed bytes.
AUSPEX_NEON_INLINE Floats f_bytes(const uint8_t* p) {
    const int16x8_t w = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(w))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(w)))};
}
AUSPEX_NEON_INLINE Ints i_add(Ints x, Ints y) { return {vaddq_s32(x.a, y.a), vaddq_s32(x.b, y.b)}; }
AUSPEX_NEON_INLINE Ints i_zero() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
AUSPEX_NEON_INLINE Ints i_all(int32_t v) { return {vdupq_n_s32(v), vdupq_n_s32(v)}; }
template <int n>
AUSPEX_NEON_INLINE Ints i_shift(Ints x) {
    return {vshlq_n_s32(x.a, n), vshlq_n_s32(x.b, n)};
}
/// The first n of the lanes to y, or added to it.
AUSPEX_NEON_INLINE void f_put(float* y, uint32_t n, Floats x, bool accumulate) {
    float v[kLane];
    vst1q_f32(v, x.a);
    vst1q_f32(v + 4, x.b);
    for (uint32_t i = 0; i < n; ++i) y[i] = accumulate ? y[i] + v[i] : v[i];
}

/// acc[i] += w[4i..4i+3] . q[4v..4v+3], signed bytes.
template <int v>
AUSPEX_NEON_INLINE int32x4_t dot_lane(int32x4_t acc, int8x16_t w, int8x16_t q) {
#if defined(__clang__) && __clang_major__ < 16 && !defined(__ARM_FEATURE_DOTPROD)
    // These versions show the intrinsic only when the whole file is compiled for such processors.
    __asm__("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(acc) : "w"(w), "w"(q), "i"(v));
    return acc;
#else
    return vdotq_laneq_s32(acc, w, q, v);
#endif
}

/// Byte and book codes are signed here, and all others fit a signed byte.
constexpr int bias_of(CodeForm) { return 0; }

/// 16 of the bytes of vector (h, v): `half` 0 the first four rows, 1 the other four.
template <CodeForm kCode, int h, int v, int half>
AUSPEX_NEON_INLINE int8x16_t codes_half(const uint8_t* p) {
    if constexpr (kCode == CodeForm::byte) return vreinterpretq_s8_u8(vld1q_u8(p + 32 * (4 * h + v) + 16 * half));
    uint8x16_t c = vld1q_u8(p + 32 * v + 16 * half);
    c = h == 1 ? vshrq_n_u8(c, 4) : vandq_u8(c, vdupq_n_u8(15));
    if constexpr (kCode == CodeForm::book) return vqtbl1q_s8(vld1q_s8(kIq4Values), c);
    if constexpr (kCode == CodeForm::five) {
        uint8x16_t b = vld1q_u8(p + 128 + 16 * half);
        constexpr int from = 4 * h + v;
        if constexpr (from < 4) b = vshlq_n_u8(b, 4 - from);
        if constexpr (from > 4) b = vshrq_n_u8(b, from - 4);
        c = vorrq_u8(c, vandq_u8(b, vdupq_n_u8(16)));
    }
    if constexpr (kCode == CodeForm::six) {
        uint8x16_t b = vld1q_u8(p + 128 + 32 * h + 16 * half);
        if constexpr (v < 2) b = vshlq_n_u8(b, 4 - 2 * v);
        if constexpr (v > 2) b = vshrq_n_u8(b, 2 * v - 4);
        c = vorrq_u8(c, vandq_u8(b, vdupq_n_u8(48)));
    }
    return vreinterpretq_s8_u8(c);
}

template <CodeForm kCode, int n, int h, int v>
AUSPEX_NEON_INLINE void dot_four(const uint8_t* codes, const int8x16_t* q, Ints* dot) {
    const int8x16_t wa = codes_half<kCode, h, v, 0>(codes), wb = codes_half<kCode, h, v, 1>(codes);
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) {
        dot[c].a = dot_lane<v>(dot[c].a, wa, q[c]);
        dot[c].b = dot_lane<v>(dot[c].b, wb, q[c]);
    }
}

/// dot[2r], dot[2r + 1] += sum over half h of block b of code * high, low byte of x[r]; n counts both.
template <CodeForm kCode, int n, int h>
AUSPEX_NEON_INLINE void dot_half(const uint8_t* codes, const Int16Block* const* x, size_t b, Ints* dot) {
    int8x16_t q[n];
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) q[c] = vld1q_s8(x[c / 2][b].q + 32 * (c % 2) + 16 * h);
    dot_four<kCode, n, h, 0>(codes, q, dot);
    dot_four<kCode, n, h, 1>(codes, q, dot);
    dot_four<kCode, n, h, 2>(codes, q, dot);
    dot_four<kCode, n, h, 3>(codes, q, dot);
}

// ------------------------------------------------------------------------------- float weights

/// kLane weights as floats.
template <Type kType>
AUSPEX_NEON_INLINE Floats f_weights(const std::byte* p) {
    const uint8_t* u = reinterpret_cast<const uint8_t*>(p);
    if constexpr (kType == Type::f32) return {vreinterpretq_f32_u8(vld1q_u8(u)), vreinterpretq_f32_u8(vld1q_u8(u + 16))};
    if constexpr (kType == Type::f16) return f_halves(u);
    const uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(u));
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)), vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(h), 16))};
}
AUSPEX_NEON_INLINE Floats f_load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
/// The sum of the lanes, always in the same order.
AUSPEX_NEON_INLINE float f_sum(Floats x) {
    const float32x4_t s = vaddq_f32(x.a, x.b);
    return (vgetq_lane_f32(s, 0) + vgetq_lane_f32(s, 2)) + (vgetq_lane_f32(s, 1) + vgetq_lane_f32(s, 3));
}

// --------------------------------------------------------------------------------- activations

/// The largest magnitude of 32 values, and whether one is no number.
AUSPEX_NEON_INLINE void block_range(const float* x, float* most, bool* nan) {
    float32x4_t top = vdupq_n_f32(0);
    uint32x4_t number = vdupq_n_u32(~0u);
    for (int i = 0; i < 8; ++i) {
        const float32x4_t v = vld1q_f32(x + 4 * i);
        top = vmaxq_f32(top, vabsq_f32(v));
        number = vandq_u32(number, vceqq_f32(v, v));
    }
    *most = vmaxvq_f32(top);
    *nan = vminvq_u32(number) == 0;
}
/// q = round(x * inverse) within -127..127, for 32 values; sums of each half.
AUSPEX_NEON_INLINE void round_block(const float* x, float inverse, int8_t* q, int32_t* sums) {
    const int32x4_t low = vdupq_n_s32(-127), high = vdupq_n_s32(127);
    for (int h = 0; h < 2; ++h) {
        int32x4_t p[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i)
            p[i] = vmaxq_s32(low, vminq_s32(high, vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 16 * h + 4 * i), inverse))));
        const int16x8_t a = vcombine_s16(vqmovn_s32(p[0]), vqmovn_s32(p[1]));
        const int16x8_t b = vcombine_s16(vqmovn_s32(p[2]), vqmovn_s32(p[3]));
        vst1q_s8(q + 16 * h, vcombine_s8(vqmovn_s16(a), vqmovn_s16(b)));
        sums[h] = vaddvq_s32(vaddq_s32(vaddq_s32(p[0], p[1]), vaddq_s32(p[2], p[3])));
    }
}

}  // namespace cpu_neon
}  // namespace detail
}  // namespace auspex
#endif

// --------------------------------------------------------------------------- src/machine/cpu/ops.h

// machine/cpu/ops: one function per operation of the tape, and the inner loops they share.
//
// Owns    the inner loops of every operation but the matrix products (matmul.*), as a table, so
//         that the plain reference and each SIMD path run the same walk.
// Reads   plan (dims), number.
// Serves  cpu.cpp, which walks the tape.
// Thread  each function is pure; cpu.cpp cuts the work. Which thread computes a value never
//         changes its bits.
// Laws    Row, Commit, Chunk, Twin: tests/test_ops.cpp.

namespace auspex {
namespace detail {

/// Positions one attention partial covers; absolute multiples, so that a row's sums do not depend
/// on what else is in the step.
constexpr uint32_t kAttnChunk = 256;
/// Columns of a DeltaNet state handled together: d_key * 32 floats stay in the first-level cache.
constexpr uint32_t kDeltaColumns = 32;
/// Rows of one chunk of the chunked DeltaNet form, and the longest step that stays sequential.
constexpr uint32_t kDeltaChunk = 64;
constexpr uint32_t kDeltaSequential = 16;

/// One term that a row adds to a state: S = decay S + k u'.
struct DeltaTerm {
    float decay;
    const float* k;  ///< [d_key]
    const float* u;  ///< [d_val]
};
/// One row's input to the recurrence of one head.
struct DeltaRow {
    float decay, beta;
    const float* q;  ///< [d_key], scaled
    const float* k;  ///< [d_key]
    const float* v;  ///< [d_val]
    float* u;        ///< [d_val] out: the row's term
    float* o;        ///< [d_val] out
};

/// The inner loops. Each is a pure function of its arguments with a fixed order of operations.
struct Loops {
    const char* name;
    /// y = x / sqrt(mean(x^2) + eps) * w (* w when not null), n values.
    void (*rms_norm)(const float* x, const float* w, float* y, uint32_t n, float eps);
    /// y[i] = min(silu(g[i]), limit) * clamp(u[i], -limit, limit); limit 0: no clamps.
    void (*swiglu)(const float* g, const float* u, float* y, uint32_t n, float limit);
    /// y[i] = x[i] * silu(z[i])
    void (*silu_gate)(const float* x, const float* z, float* y, uint32_t n);
    /// y[i] = x[i] * sigmoid(z[i])
    void (*sigmoid_gate)(const float* x, const float* z, float* y, uint32_t n);
    /// One causal convolution over n channels, then SiLU: taps[j] points at the raw row of tap j,
    /// w is [n, n_tap].
    void (*conv_silu)(const float* const* taps, const float* w, float* y, uint32_t n, uint32_t n_tap);
    void (*to_f16)(const float* x, uint16_t* y, uint32_t n);
    /// One attention partial: keys and values k, v [n_key, ld] f16 for positions in order, one query
    /// q [d] (already scaled); out: max m, sum l, o [d] = sum exp(s - m) v. n_key >= 1.
    void (*attend)(const float* q, const uint16_t* k, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d,
                   float* scores, float* m, float* l, float* o);
    /// o = o * a + p * b, n values (merging partials).
    void (*merge)(float* o, float a, const float* p, float b, uint32_t n);
    /// One head's recurrence: S [d_key, d_val]. First applies n_term terms in order and stores them in
    /// S, then runs the rows on a scratch copy (or on S itself when `in_place`).
    void (*delta_rows)(float* s, uint32_t d_key, uint32_t d_val, const DeltaTerm* terms, uint32_t n_term,
                       const DeltaRow* rows, uint32_t n_row, bool in_place, float* scratch);
    /// The same result to within rounding for up to kDeltaChunk rows, in the chunked form; always in
    /// place. scratch: delta_chunk_scratch() floats.
    void (*delta_chunk)(float* s, uint32_t d_key, uint32_t d_val, const DeltaRow* rows, uint32_t n_row, float* scratch);
    /// `attend` for n_query queries that see the same keys (the heads of one group, rows of one step):
    /// the same bits as one call each, but a key is read and converted once for four of them.
    /// q, m, l, o: one pointer per query; scores: n_query * n_key floats.
    void (*attend_many)(uint32_t n_query, const float* const* q, const uint16_t* k, const uint16_t* v, uint32_t n_key,
                        size_t ld, uint32_t d, float* scores, float* const* m, float* const* l, float* const* o);
};
inline size_t delta_chunk_scratch(uint32_t d_key, uint32_t d_val) {
    return size_t{2} * kDeltaChunk * kDeltaChunk + size_t{kDeltaChunk} * (2 * d_val + 2 * d_key) + 4 * kDeltaChunk;
}
const Loops& reference_loops();
/// The loops of a path (`best`: of this processor's best); the reference where the build lacks it.
const Loops& loops_for(CpuPath path);
/// The table of one instruction set, or null where this build lacks it.
const Loops* avx2_loops();
const Loops* avx512_loops();
const Loops* neon_loops();

/// x / sqrt(sum(x^2) + 1e-6) * scale, in place.
void l2_normalise(float* x, uint32_t n, float scale);

/// cos and sin of position * base^(-2i/n_rot) for i < n_rot/2: table[2i], table[2i+1].
void rotation_table(uint64_t position, uint32_t n_rot, float base, float* table);
/// Rotates the pairs (i, i + n_rot/2) of x.
void rotate(float* x, uint32_t n_rot, const float* table);

}  // namespace detail
}  // namespace auspex

// --------------------------------------------------------------------------- src/machine/cpu/cpu.h

// machine/cpu/cpu: the CPU as a machine: packs weights, walks tapes.
//
// Owns    CpuMachine, its Program and Lane: memory layout, order of ops, barriers between them.
// Reads   backend, ops, matmul, pool.
// Serves  engine.
// Thread  a Lane is used by one thread; all Lanes of a machine take turns on its pool.
// Laws    Row, Commit, Chunk, Silence: tests/test_laws.cpp over every path.

namespace auspex {
namespace detail {

struct CpuOptions {
    CpuPath path = CpuPath::best;
    int n_thread = 0;  ///< 0: one per physical core
    Allocator allocator;
};

/// errors    bad_argument (n_thread), unsupported (a path that this processor lacks), out_of_memory.
Result<std::shared_ptr<Machine>> open_cpu(const CpuOptions& options);

}  // namespace detail
}  // namespace auspex

// -------------------------------------------------------------------------- src/machine/cpu/lane.h

// machine/cpu/lane: one timeline on the CPU: its memory and the walk along a tape.
//
// Owns    CpuProgram (packed weights) and CpuLane (activations, caches, states).
// Reads   backend, ops, matmul, pool.
// Serves  cpu.cpp.
// Thread  run() walks on all threads of the machine's pool.
// Laws    Row, Commit, Chunk, Silence: tests/test_laws.cpp.

namespace auspex {
namespace detail {

class CpuProgram : public Program, public std::enable_shared_from_this<CpuProgram> {
  public:
    const Plan* plan = nullptr;
    CpuPath path = CpuPath::reference;
    const Loops* loops = nullptr;
    std::shared_ptr<Pool> pool;
    Allocator allocator;
    std::vector<PackedMatrix> matrices;       ///< by SlotId; empty for others
    std::vector<const float*> vectors;        ///< by SlotId: F32 tensors read directly
    Block vector_bytes;                       ///< those of `vectors` that could not stay in place
    uint64_t n_weight_bytes = 0;

    Result<std::unique_ptr<Lane>> open(const LaneOptions& options) override;
    uint64_t weight_bytes() const override { return n_weight_bytes; }
};

/// Raw convolution inputs kept by position: the taps before a row and the longest tentative step.
constexpr uint32_t kConvRing = 16;
static_assert(kConvRing >= 7 + kMaxTentative, "8 taps and a full tentative step must fit");

/// Queries that read a chunk of keys together, and the rows of a prefill that one thread takes at a time.
constexpr uint32_t kAttnQueries = 16, kAttnRows = 4;

/// Where a Gated DeltaNet layer keeps its past.
struct DeltaState {
    float* s = nullptr;          ///< [n_head_v, d_key, d_val] committed
    struct Terms {               ///< of one tentative step, row by row
        float* decay = nullptr;  ///< [kMaxTentative, n_head_v]
        float* k = nullptr;      ///< [kMaxTentative, n_head_k * d_key]
        float* u = nullptr;      ///< [kMaxTentative, n_head_v * d_val]
    } terms[2];                  ///< the last step's and this one's, in turn
};

struct KvCache {
    uint16_t* k = nullptr;  ///< [n_slot, width] f16, normed and rotated
    uint16_t* v = nullptr;
    uint32_t width = 0;
};

class CpuLane : public Lane {
  public:
    /// Takes all memory. errors: out_of_memory.
    static Result<std::unique_ptr<Lane>> open(std::shared_ptr<CpuProgram> program, const LaneOptions& options);

    Status run(const Step& step) override;
    void commit(uint32_t k) override { n_pending_ = k; }
    void reset() override;
    Status head(const Tape& tape, uint32_t first, uint32_t n) override;
    Result<Span<const float>> read_row(SlotId slot, uint32_t row) override;
    Status save(uint32_t n_token, std::vector<std::byte>* to) override;
    Status restore(uint32_t n_token, Span<const std::byte> from) override;
    uint64_t memory_bytes() const override { return memory_.size(); }

  private:
    /// A walk on one thread. All threads take the same decisions.
    struct Walk {
        CpuLane& lane;
        uint32_t i_thread, n_thread;
        uint32_t n_ticket = 0;
        SlotId quantised = kNoSlot;  ///< whose rows the int8 buffer holds
        // Slots touched since the last barrier; a full list simply forces one.
        static constexpr uint32_t kMaxTouched = 16;
        SlotId written[kMaxTouched], read[kMaxTouched];
        uint32_t n_written = 0, n_read = 0;

        void tape();
        void barrier();
        Share even() const;
        Share shared();
        void settle(const Op& op);
        void touch(const Op& op);
        void run(const Op& op);
        void embed(const Op& op);
        void hidden(const Op& op);
        void norm(const Op& op);
        void matmul_op(const Op& op);
        void swiglu(const Op& op);
        void delta(const Op& op);
        void kv_write(const Op& op);
        void attend(const Op& op);
    };
    struct Rotation {
        uint32_t n_rot;
        float base;
        float* table;  ///< [rows, n_rot]
    };

    explicit CpuLane(std::shared_ptr<CpuProgram> program) : program_(std::move(program)) {}
    void lay_out(const LaneOptions& options);
    template <class T>
    T* place(uint64_t n);
    float* row(SlotId slot, uint32_t i) const { return rows_[slot] + size_t{i} * program_->plan->slot(slot).width(); }
    const float* rotation(const AttnDims& a, uint32_t i_row) const;
    static void walk_entry(void* lane, uint32_t i_thread, uint32_t n_thread);
    void fold_pending();

    std::shared_ptr<CpuProgram> program_;
    Block memory_;
    std::byte* cursor_ = nullptr;  ///< null while only counting
    uint64_t n_placed_ = 0;
    LaneOptions options_;
    uint32_t n_row_max_ = 0;

    std::vector<float*> rows_;            ///< by SlotId: activations
    std::vector<KvCache> kv_;             ///< by SlotId
    std::vector<DeltaState> delta_;       ///< by SlotId
    std::vector<float*> conv_;            ///< by SlotId: [kConvRing, conv_dim]
    std::vector<Rotation> rotations_;
    float* conv_out_ = nullptr;           ///< [rows, conv_dim] q, k, v of the layer at hand
    float* attn_part_ = nullptr;          ///< partials of a short step
    uint32_t n_chunk_max_ = 0;
    size_t part_stride_ = 0;              ///< floats of one partial: m, l, o
    float* thread_scratch_ = nullptr;
    size_t thread_stride_ = 0;
    std::byte* quantised_ = nullptr;
    DeltaRow* delta_rows_ = nullptr;      ///< [n_thread, kDeltaChunk]

    Step step_;
    uint32_t row0_ = 0;          ///< head(): first row to read
    bool head_only_ = false;
    uint32_t n_pending_ = 0;     ///< committed rows of the last tentative step, still to be folded in
    uint32_t parity_ = 0;        ///< which of DeltaState::terms belongs to the step at hand
};

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------------ src/engine/model.h

// engine/model: what Device and Model hold.
//
// Owns    opening devices, loading a file into a Program, and the facts about it.
// Reads   everything below: file, gguf, token, chat, plan, machines.
// Serves  session; the door.
// Thread  immutable once built.
// Laws    Silence: every bad file is a Status, tests/test_model.cpp.

namespace auspex {

struct Device::Impl {
    DeviceOptions options;
    std::shared_ptr<detail::Machine> machine;
};

struct Model::Impl {
    // In this order: what stands above is used by what stands below, and goes last.
    std::shared_ptr<Device::Impl> device;
    std::vector<detail::File> files;
    detail::Gguf gguf;
    detail::Plan plan;
    detail::Tokenizer tokenizer;
    ModelInfo info;
    std::shared_ptr<detail::Program> program;
};

}  // namespace auspex

// ----------------------------------------------------------------------------- src/engine/sample.h

// engine/sample: from one row of logits to a token.
//
// Owns    penalties, filters and the keyed pick.
// Reads   the door's Sampling.
// Serves  session.
// Thread  a Picker belongs to one session.
// Laws    Draft: a token is a pure function of (logits, sampling, position, the tokens before it);
//         tests/test_sample.cpp.

namespace auspex {
namespace detail {

/// Philox4x32-10 (Salmon et al., SC 2011): 128 random bits for a counter and a key.
struct Philox {
    uint32_t word[4];
};
Philox philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t key);

/// Gumbel noise of an id at a position: -ln(-log1p(-v)), v uniform in (0, 1) from Philox with the
/// counter (id / 4, position, 0, 0), word id mod 4, and the seed as key.
float gumbel(uint64_t seed, uint64_t position, uint32_t id);

/// errors    bad_argument: a value out of range, named.
Status check_sampling(const Sampling& sampling);

class Picker {
  public:
    /// Scratch for n_vocab candidates.
    Status open(const Allocator& from, uint32_t n_vocab);
    uint64_t memory_bytes() const { return candidates_.size(); }
    /// The token for `position`, given everything before it. Allocates nothing.
    /// logits    [n_vocab]; a NaN counts as minus infinity.
    Token pick(Span<const float> logits, const Sampling& sampling, uint64_t position, Span<const Token> before);

  private:
    struct Candidate {
        float logit;
        uint32_t id;
    };
    void penalise(Candidate* c, const Sampling& s, Span<const Token> before);
    Block candidates_;
};

}  // namespace detail
}  // namespace auspex

// ---------------------------------------------------------------------------- src/engine/session.h

// engine/session: one timeline: which rows are computed, which token comes next.
//
// Owns    the history, the positions, what sync() must compute.
// Reads   model, sample, backend (Lane).
// Serves  the door.
// Thread  one thread at a time.
// Laws    Commit, Chunk, Silence: tests/test_session.cpp, tests/test_laws.cpp.

namespace auspex {

struct Session::Impl {
    std::shared_ptr<Model::Impl> model;
    SessionOptions options;
    std::unique_ptr<detail::Lane> lane;
    detail::Picker picker;
    std::vector<Token> history;  ///< capacity taken at the start: a step allocates nothing
    size_t n_row = 0;            ///< rows of the history that the lane holds
    bool has_logits = false;     ///< those of row n_row - 1
    std::vector<float> restored_logits;  ///< those of a restored snapshot, until the next step
    bool lost = false;           ///< the device is gone
    Stats stats;

    /// Runs and commits rows n_row .. n_row + n - 1 of the history.
    Status prefill(size_t n);
    Status check_ids(Span<const Token> ids) const;
    void forget();
    Status run(const detail::Step& step);
    Status track(Status s);  ///< remembers a lost device
};

}  // namespace auspex

#endif  // AUSPEX_INTERNALS_INCLUDED

// ==== the internals: code ============================================================================
#if defined(AUSPEX_IMPLEMENTATION) && !defined(AUSPEX_IMPLEMENTATION_INCLUDED)
#define AUSPEX_IMPLEMENTATION_INCLUDED

// ------------------------------------------------------------------------------- src/base/base.cpp

#include <new>

namespace auspex {

const char* code_name(Code code) {
    switch (code) {
        case Code::ok: return "ok";
        case Code::bad_argument: return "bad_argument";
        case Code::bad_file: return "bad_file";
        case Code::unsupported: return "unsupported";
        case Code::not_found: return "not_found";
        case Code::io_error: return "io_error";
        case Code::out_of_memory: return "out_of_memory";
        case Code::no_device: return "no_device";
        case Code::device_lost: return "device_lost";
        case Code::cancelled: return "cancelled";
        case Code::context_full: return "context_full";
    }
    return "unknown";
}

namespace detail {

constexpr size_t kBlockAlignment = 64;  // one cache line; also what the widest vector loads want

Block& Block::operator=(Block&& o) noexcept {
    if (this != &o) {
        reset();
        from_ = o.from_;
        data_ = std::exchange(o.data_, nullptr);
        size_ = std::exchange(o.size_, size_t{0});
    }
    return *this;
}

Status Block::take(const Allocator& from, uint64_t bytes, const char* what) {
    reset();
    if (bytes == 0) return {};
    void* p = nullptr;
    if (bytes <= SIZE_MAX / 2) {
        const size_t n = static_cast<size_t>(bytes);
        p = from.alloc ? from.alloc(from.user, n, kBlockAlignment)
                       : ::operator new(n, std::align_val_t{kBlockAlignment}, std::nothrow);
    }
    if (!p) return fail(Code::out_of_memory, what, " needs ", bytes, " bytes and the allocator has none left");
    from_ = from;
    data_ = static_cast<std::byte*>(p);
    size_ = static_cast<size_t>(bytes);
    std::memset(data_, 0, size_);
    return {};
}

void Block::reset() {
    if (!data_) return;
    if (from_.free)
        from_.free(from_.user, data_, size_, kBlockAlignment);
    else
        ::operator delete(data_, std::align_val_t{kBlockAlignment});
    data_ = nullptr;
    size_ = 0;
}

}  // namespace detail
}  // namespace auspex

// ----------------------------------------------------------------------------- src/base/number.cpp

// The table of types and their decoding; encoding lives in number_encode.cpp.
//
// Why no fused multiply-add and no reordering can change a bit here: a scale is a binary16 with at
// most 11 significant bits, and what multiplies it are small integers. The widest products have
// 11 + 7 + 5 = 23 bits (Q6_K: a scale up to 127, a code up to 31; the powers of two -128 and -32 cost
// one bit), so every product is exact in float32, also for subnormal scales, which are normal numbers in float32.
// What remains is at most one addition, rounded once: contracted or not, the result is the same.

namespace auspex {
namespace detail {

const int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

namespace number_impl {

constexpr TypeInfo kNoType = {nullptr, 1, 0, false};
/// By file id. Ids without a name were removed from the format; ids past the end are unknown.
constexpr TypeInfo kTypes[] = {
    {"F32", 1, 4, true},         {"F16", 1, 2, true},         {"Q4_0", 32, 18, true},
    {"Q4_1", 32, 20, true},      kNoType,                     kNoType,
    {"Q5_0", 32, 22, true},      {"Q5_1", 32, 24, true},      {"Q8_0", 32, 34, true},
    {"Q8_1", 32, 36, false},     {"Q2_K", 256, 84, true},     {"Q3_K", 256, 110, true},
    {"Q4_K", 256, 144, true},    {"Q5_K", 256, 176, true},    {"Q6_K", 256, 210, true},
    {"Q8_K", 256, 292, false},   {"IQ2_XXS", 256, 66, false}, {"IQ2_XS", 256, 74, false},
    {"IQ3_XXS", 256, 98, false}, {"IQ1_S", 256, 50, false},   {"IQ4_NL", 32, 18, true},
    {"IQ3_S", 256, 110, false},  {"IQ2_S", 256, 82, false},   {"IQ4_XS", 256, 136, true},
    {"I8", 1, 1, false},         {"I16", 1, 2, false},        {"I32", 1, 4, false},
    {"I64", 1, 8, false},        {"F64", 1, 8, false},        {"IQ1_M", 256, 56, false},
    {"BF16", 1, 2, true},        kNoType,                     kNoType,
    kNoType,                     {"TQ1_0", 256, 54, false},   {"TQ2_0", 256, 66, false},
    kNoType,                     kNoType,                     kNoType,
    {"MXFP4", 32, 17, false},    {"NVFP4", 64, 36, false},    {"Q1_0", 128, 18, false},
    {"Q2_0", 64, 18, false},
};
constexpr uint32_t kTypeCount = static_cast<uint32_t>(sizeof kTypes / sizeof kTypes[0]);
static_assert(kTypeCount == 43, "one row per id from 0 to 42");

inline float half_at(const uint8_t* p) { return f16_to_f32(load<uint16_t>(p)); }
inline float of_int(int v) { return static_cast<float>(v); }

// One function per format, one block per call. `b` is the block, `y` its elements. Byte offsets are
// those of the format's definition; low nibbles are the first half of a run, high nibbles the second.

inline void decode_q8_0(const uint8_t* b, float* y) {
    const float d = half_at(b);
    for (int i = 0; i < 32; ++i) y[i] = d * of_int(static_cast<int8_t>(b[2 + i]));
}

inline void decode_q4_0(const uint8_t* b, float* y) {
    const float d = half_at(b);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * of_int((b[2 + j] & 15) - 8);
        y[j + 16] = d * of_int((b[2 + j] >> 4) - 8);
    }
}

inline void decode_q4_1(const uint8_t* b, float* y) {
    const float d = half_at(b), m = half_at(b + 2);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * of_int(b[4 + j] & 15) + m;
        y[j + 16] = d * of_int(b[4 + j] >> 4) + m;
    }
}

/// The two five-bit codes of byte j: nibble and bit j (or j + 16) of the high-bit word.
inline int five_low(uint32_t high, const uint8_t* qs, int j) {
    return (qs[j] & 15) | static_cast<int>((high >> j & 1u) << 4);
}
inline int five_high(uint32_t high, const uint8_t* qs, int j) {
    return (qs[j] >> 4) | static_cast<int>((high >> (j + 16) & 1u) << 4);
}

inline void decode_q5_0(const uint8_t* b, float* y) {
    const float d = half_at(b);
    const uint32_t high = load<uint32_t>(b + 2);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * of_int(five_low(high, b + 6, j) - 16);
        y[j + 16] = d * of_int(five_high(high, b + 6, j) - 16);
    }
}

inline void decode_q5_1(const uint8_t* b, float* y) {
    const float d = half_at(b), m = half_at(b + 2);
    const uint32_t high = load<uint32_t>(b + 4);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * of_int(five_low(high, b + 8, j)) + m;
        y[j + 16] = d * of_int(five_high(high, b + 8, j)) + m;
    }
}

inline void decode_iq4_nl(const uint8_t* b, float* y) {
    const float d = half_at(b);
    for (int j = 0; j < 16; ++j) {
        y[j] = d * of_int(kIq4Values[b[2 + j] & 15]);
        y[j + 16] = d * of_int(kIq4Values[b[2 + j] >> 4]);
    }
}

inline void decode_q2_k(const uint8_t* b, float* y) {
    const uint8_t* qs = b + 16;
    const float d = half_at(b + 80), dmin = half_at(b + 82);
    for (int g = 0; g < 16; ++g) {  // 16 elements share a scale and a minimum
        const float scale = d * of_int(b[g] & 15), min = dmin * of_int(b[g] >> 4);
        const int n = g / 8, shift = 2 * (g % 8 / 2), l0 = g % 2 * 16;
        for (int l = 0; l < 16; ++l) y[16 * g + l] = scale * of_int(qs[32 * n + l0 + l] >> shift & 3) - min;
    }
}

inline void decode_q3_k(const uint8_t* b, float* y) {
    const uint8_t *hmask = b, *qs = b + 32, *scales = b + 96;
    const float d = half_at(b + 108);
    for (int g = 0; g < 16; ++g) {
        const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
        const int high = scales[8 + g % 4] >> (2 * (g / 4)) & 3;
        const float scale = d * of_int((low | high << 4) - 32);
        const int n = g / 8, j = g % 8 / 2, l0 = g % 2 * 16;
        for (int l = l0; l < l0 + 16; ++l) {
            const int q = qs[32 * n + l] >> (2 * j) & 3;
            const int kept = hmask[l] >> (4 * n + j) & 1;  // clear means: subtract four
            y[16 * g + l - l0] = scale * of_int(kept ? q : q - 4);
        }
    }
}

/// The six-bit scale and minimum of sub-block g of Q4_K and Q5_K, from their 12 packed bytes.
inline void six_bit_pair(const uint8_t* p, int g, int* scale, int* min) {
    if (g < 4) {
        *scale = p[g] & 63;
        *min = p[g + 4] & 63;
    } else {
        *scale = (p[g + 4] & 15) | (p[g - 4] >> 6) << 4;
        *min = (p[g + 4] >> 4) | (p[g] >> 6) << 4;
    }
}

inline void decode_q4_k(const uint8_t* b, float* y) {
    const float d = half_at(b), dmin = half_at(b + 2);
    for (int g = 0; g < 8; ++g) {
        int sc, mn;
        six_bit_pair(b + 4, g, &sc, &mn);
        const float scale = d * of_int(sc), min = dmin * of_int(mn);
        const uint8_t* qs = b + 16 + 32 * (g / 2);
        const int shift = 4 * (g % 2);
        for (int l = 0; l < 32; ++l) y[32 * g + l] = scale * of_int(qs[l] >> shift & 15) - min;
    }
}

inline void decode_q5_k(const uint8_t* b, float* y) {
    const float d = half_at(b), dmin = half_at(b + 2);
    const uint8_t* qh = b + 16;
    for (int g = 0; g < 8; ++g) {
        int sc, mn;
        six_bit_pair(b + 4, g, &sc, &mn);
        const float scale = d * of_int(sc), min = dmin * of_int(mn);
        const uint8_t* qs = b + 48 + 32 * (g / 2);
        const int shift = 4 * (g % 2);
        for (int l = 0; l < 32; ++l) {
            const int q = (qs[l] >> shift & 15) | (qh[l] >> g & 1) << 4;
            y[32 * g + l] = scale * of_int(q) - min;
        }
    }
}

inline void decode_q6_k(const uint8_t* b, float* y) {
    const uint8_t *ql = b, *qh = b + 128, *scales = b + 192;
    const float d = half_at(b + 208);
    for (int g = 0; g < 16; ++g) {
        const float scale = d * of_int(static_cast<int8_t>(scales[g]));
        const int n = g / 8, j = g % 8 / 2, l0 = g % 2 * 16;
        for (int l = l0; l < l0 + 16; ++l) {
            const int low = ql[64 * n + 32 * (j % 2) + l] >> (4 * (j / 2)) & 15;
            const int high = qh[32 * n + l] >> (2 * j) & 3;
            y[16 * g + l - l0] = scale * of_int((low | high << 4) - 32);
        }
    }
}

inline void decode_iq4_xs(const uint8_t* b, float* y) {
    const float d = half_at(b);
    const uint16_t scales_h = load<uint16_t>(b + 2);
    for (int g = 0; g < 8; ++g) {
        const int low = b[4 + g / 2] >> (4 * (g % 2)) & 15;
        const int high = scales_h >> (2 * g) & 3;
        const float scale = d * of_int((low | high << 4) - 32);
        const uint8_t* qs = b + 8 + 16 * g;
        for (int j = 0; j < 16; ++j) {
            y[32 * g + j] = scale * of_int(kIq4Values[qs[j] & 15]);
            y[32 * g + j + 16] = scale * of_int(kIq4Values[qs[j] >> 4]);
        }
    }
}

template <class BlockDecoder>
void each_block(Type t, const uint8_t* from, float* to, size_t n, BlockDecoder decode) {
    const TypeInfo info = type_info(t);
    AUSPEX_ASSERT(n % info.n_block == 0);
    for (size_t i = 0; i < n; i += info.n_block, from += info.block_bytes) decode(from, to + i);
}

}  // namespace number_impl

TypeInfo type_info(uint32_t id) {
    return id < number_impl::kTypeCount ? number_impl::kTypes[id] : number_impl::kNoType;
}

std::string supported_types() {
    std::string s;
    for (const TypeInfo& info : number_impl::kTypes)
        if (info.supported) s += (s.empty() ? "" : " ") + std::string(info.name);
    return s;
}

float f16_to_f32(uint16_t h) {
    const uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31u, mantissa = h & 0x3ffu;
    uint32_t u;
    if (exponent == 31) {
        u = 0x7f800000u | mantissa << 13;
    } else if (exponent != 0) {
        u = (exponent + 112) << 23 | mantissa << 13;
    } else {  // subnormal: mantissa * 2^-24, a normal float32 (or zero)
        const float f = static_cast<float>(static_cast<int>(mantissa)) * 5.9604644775390625e-8f;
        std::memcpy(&u, &f, 4);
    }
    u |= sign;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}

uint16_t f32_to_f16(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    const uint32_t sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    uint32_t h;
    if (a > 0x7f800000u) {
        h = 0x7e00u | (a >> 13 & 0x1ffu);  // stays a NaN, and a quiet one
    } else if (a >= 0x477ff000u) {
        h = 0x7c00u;  // 65520 and above round away from the largest finite value
    } else if (a >= 0x38800000u) {
        h = (a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13;
    } else if (a < 0x33000000u) {
        h = 0;  // below half of the smallest subnormal
    } else {    // subnormal: the mantissa shifted to units of 2^-24
        const uint32_t mantissa = (a & 0x7fffffu) | 0x800000u, shift = 126 - (a >> 23);
        const uint32_t rest = mantissa & ((1u << shift) - 1), middle = 1u << (shift - 1);
        h = mantissa >> shift;
        if (rest > middle || (rest == middle && (h & 1u))) ++h;
    }
    return static_cast<uint16_t>(sign | h);
}

uint16_t f32_to_bf16(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(u >> 16 | 0x40u);
    return static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

void decode_row(Type t, const void* from, float* to, size_t n) {
    namespace impl = number_impl;
    const uint8_t* p = static_cast<const uint8_t*>(from);
    switch (t) {
        case Type::f32:
            if (n) std::memcpy(to, p, n * 4);
            return;
        case Type::f16:
            for (size_t i = 0; i < n; ++i) to[i] = impl::half_at(p + 2 * i);
            return;
        case Type::bf16:
            for (size_t i = 0; i < n; ++i) to[i] = bf16_to_f32(load<uint16_t>(p + 2 * i));
            return;
        case Type::q8_0: return impl::each_block(t, p, to, n, impl::decode_q8_0);
        case Type::q4_0: return impl::each_block(t, p, to, n, impl::decode_q4_0);
        case Type::q4_1: return impl::each_block(t, p, to, n, impl::decode_q4_1);
        case Type::q5_0: return impl::each_block(t, p, to, n, impl::decode_q5_0);
        case Type::q5_1: return impl::each_block(t, p, to, n, impl::decode_q5_1);
        case Type::q2_k: return impl::each_block(t, p, to, n, impl::decode_q2_k);
        case Type::q3_k: return impl::each_block(t, p, to, n, impl::decode_q3_k);
        case Type::q4_k: return impl::each_block(t, p, to, n, impl::decode_q4_k);
        case Type::q5_k: return impl::each_block(t, p, to, n, impl::decode_q5_k);
        case Type::q6_k: return impl::each_block(t, p, to, n, impl::decode_q6_k);
        case Type::iq4_nl: return impl::each_block(t, p, to, n, impl::decode_iq4_nl);
        case Type::iq4_xs: return impl::each_block(t, p, to, n, impl::decode_iq4_xs);
    }
    AUSPEX_ASSERT(false);  // a type that is not supported
}

}  // namespace detail
}  // namespace auspex

// ---------------------------------------------------------------------- src/base/number_encode.cpp

// Encoding: exact reference rounding for the types caches use, least squares for the others.

#include <algorithm>

namespace auspex {
namespace detail {
namespace number_encode_impl {

/// a * b rounded to float32 before anything is added to it. The reference codes are
/// trunc(product + offset): a fused multiply-add would skip one rounding and now and then give the
/// neighbouring code. Compilers may fuse across statements and inlined calls; the pragmas and
/// built-ins against it get lost in some of their vectorisers, so the product passes through a
/// register (or memory) that the compiler cannot look into.
inline float rounded_product(float a, float b) {
#if defined(__GNUC__) && (defined(__SSE2__) || defined(__aarch64__))
    float p = a * b;
#if defined(__SSE2__)
    __asm__("" : "+x"(p));
#else
    __asm__("" : "+w"(p));
#endif
    return p;
#else
    volatile float p = a * b;
    return p;
#endif
}

/// v truncated and held in lo..hi; a NaN gives lo, so no input reaches an undefined conversion.
inline int code(float v, int lo, int hi) {
    if (!(v > static_cast<float>(lo))) return lo;
    if (v >= static_cast<float>(hi)) return hi;
    return static_cast<int>(v);
}
/// The nearest integer, held in lo..hi; a NaN gives lo.
inline int nearest(float v, int lo, int hi) {
    if (!(v > static_cast<float>(lo))) return lo;
    if (v >= static_cast<float>(hi)) return hi;
    return static_cast<int>(std::floor(v + 0.5f));
}
/// Half away from zero, held in -128..127; v + 0.5 would round 0.49999997 up, so compare the rest.
inline int round_away(float v) {
    if (!(v > -128.0f)) return -128;
    if (v >= 127.0f) return 127;
    const int whole = static_cast<int>(v);
    const float rest = v - static_cast<float>(whole);
    return whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0);
}

inline uint8_t byte(int v) { return static_cast<uint8_t>(v & 255); }
inline void put_half(uint8_t* p, float v) {
    const uint16_t h = f32_to_f16(v);
    std::memcpy(p, &h, 2);
}
/// What a reader will see: v after rounding to binary16.
inline float as_half(float v) { return f16_to_f32(f32_to_f16(v)); }

/// The first element of the largest magnitude, with its sign.
inline float extreme(const float* x, int n) {
    float a = 0, v = 0;
    for (int i = 0; i < n; ++i)
        if (std::fabs(x[i]) > a) {
            a = std::fabs(x[i]);
            v = x[i];
        }
    return v;
}

// ------------------------------------------------------------ 32 elements, reference rounding

inline void encode_q8_0(const float* x, uint8_t* b) {
    const float d = std::fabs(extreme(x, 32)) / 127.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
    put_half(b, d);
    for (int i = 0; i < 32; ++i) b[2 + i] = byte(round_away(rounded_product(x[i], inverse)));
}

/// Q4_0 and Q5_0: the extreme value gets the lowest code, which is exactly representable.
template <int kBits>
void encode_symmetric(const float* x, uint8_t* b) {
    constexpr int kHalf = 1 << (kBits - 1);
    const float d = extreme(x, 32) / static_cast<float>(-kHalf), inverse = d != 0 ? 1.0f / d : 0.0f;
    const float offset = static_cast<float>(kHalf) + 0.5f;
    uint8_t* qs = b + (kBits == 5 ? 6 : 2);
    uint32_t high = 0;
    put_half(b, d);
    for (int j = 0; j < 16; ++j) {
        const int q0 = code(rounded_product(x[j], inverse) + offset, 0, 2 * kHalf - 1);
        const int q1 = code(rounded_product(x[j + 16], inverse) + offset, 0, 2 * kHalf - 1);
        qs[j] = byte((q0 & 15) | (q1 & 15) << 4);
        high |= static_cast<uint32_t>(q0 >> 4) << j | static_cast<uint32_t>(q1 >> 4) << (j + 16);
    }
    if (kBits == 5) std::memcpy(b + 2, &high, 4);
}

/// Q4_1 and Q5_1: a range from the smallest to the largest element.
template <int kBits>
void encode_range(const float* x, uint8_t* b) {
    constexpr int kTop = (1 << kBits) - 1;
    float min = x[0], max = x[0];
    for (int i = 1; i < 32; ++i) {
        min = std::min(min, x[i]);
        max = std::max(max, x[i]);
    }
    const float d = (max - min) / static_cast<float>(kTop), inverse = d != 0 ? 1.0f / d : 0.0f;
    uint8_t* qs = b + (kBits == 5 ? 8 : 4);
    uint32_t high = 0;
    put_half(b, d);
    put_half(b + 2, min);
    for (int j = 0; j < 16; ++j) {
        const int q0 = code(rounded_product(x[j] - min, inverse) + 0.5f, 0, kTop);
        const int q1 = code(rounded_product(x[j + 16] - min, inverse) + 0.5f, 0, kTop);
        qs[j] = byte((q0 & 15) | (q1 & 15) << 4);
        high |= static_cast<uint32_t>(q0 >> 4) << j | static_cast<uint32_t>(q1 >> 4) << (j + 16);
    }
    if (kBits == 5) std::memcpy(b + 4, &high, 4);
}

// ------------------------------------------------------------------ least squares, scale and minimum

struct Range {
    float scale = 0, min = 0;  ///< x is about scale*code + min, min <= 0
};

/// Fits n values by codes 0..top: tries inverse scales around the plain range and solves the weighted
/// normal equations for scale and minimum at each; keeps the smallest weighted squared error.
inline Range fit_range(const float* x, int n, int top) {
    float low = 0, high = x[0], square = 0;
    for (int i = 0; i < n; ++i) {
        low = std::min(low, x[i]);
        high = std::max(high, x[i]);
        square += x[i] * x[i];
    }
    Range best;
    best.min = low;
    if (!(high > low)) return best;
    const float rms = std::sqrt(square / static_cast<float>(n));
    float best_error = -1;
    for (int t = -1; t <= 20; ++t) {  // -1 is the plain range fit
        const float span = static_cast<float>(top) + (t < 0 ? 0.0f : 0.1f * static_cast<float>(t) - 1.0f);
        const float inverse = span / (high - low);
        float w_sum = 0, wl = 0, wll = 0, wx = 0, wxl = 0;
        for (int i = 0; i < n; ++i) {
            const float l = static_cast<float>(nearest(inverse * (x[i] - low), 0, top));
            const float w = rms + std::fabs(x[i]);
            w_sum += w, wl += w * l, wll += w * l * l, wx += w * x[i], wxl += w * x[i] * l;
        }
        Range now{1.0f / inverse, low};
        if (t >= 0) {
            const float det = w_sum * wll - wl * wl;
            if (!(det > 0)) continue;
            now.scale = (w_sum * wxl - wx * wl) / det;
            now.min = (wll * wx - wl * wxl) / det;
            if (now.min > 0) now = {wxl / wll, 0};
        }
        if (!(now.scale > 0)) continue;
        float error = 0;
        for (int i = 0; i < n; ++i) {
            const float l = static_cast<float>(nearest((x[i] - now.min) / now.scale, 0, top));
            const float e = now.scale * l + now.min - x[i];
            error += (rms + std::fabs(x[i])) * e * e;
        }
        if (best_error < 0 || error < best_error) {
            best_error = error;
            best = now;
        }
    }
    return best;
}

/// A super-block of scale-and-minimum groups: the fits, then both held as small integers.
template <int kGroups>
struct RangeGroups {
    float d = 0, dmin = 0;  ///< as a reader sees them
    int scale[kGroups] = {}, min[kGroups] = {};

    RangeGroups(const float* x, int top, int scale_top) {
        constexpr int kSize = 256 / kGroups;
        Range fits[kGroups];
        float max_scale = 0, max_min = 0;
        for (int g = 0; g < kGroups; ++g) {
            fits[g] = fit_range(x + g * kSize, kSize, top);
            max_scale = std::max(max_scale, fits[g].scale);
            max_min = std::max(max_min, -fits[g].min);
        }
        d = as_half(max_scale / static_cast<float>(scale_top));
        dmin = as_half(max_min / static_cast<float>(scale_top));
        for (int g = 0; g < kGroups; ++g) {
            if (d > 0) scale[g] = nearest(fits[g].scale / d, 0, scale_top);
            if (dmin > 0) min[g] = nearest(-fits[g].min / dmin, 0, scale_top);
        }
    }
    int quantise(float x, int g, int top) const {
        const float s = d * static_cast<float>(scale[g]);
        return s > 0 ? nearest((x + dmin * static_cast<float>(min[g])) / s, 0, top) : 0;
    }
};

inline void encode_q2_k(const float* x, uint8_t* b) {
    const RangeGroups<16> fit(x, 3, 15);
    put_half(b + 80, fit.d);
    put_half(b + 82, fit.dmin);
    for (int g = 0; g < 16; ++g) {
        b[g] = byte(fit.scale[g] | fit.min[g] << 4);
        const int n = g / 8, shift = 2 * (g % 8 / 2), l0 = g % 2 * 16;
        for (int l = 0; l < 16; ++l) {
            uint8_t& q = b[16 + 32 * n + l0 + l];
            q = byte(q | fit.quantise(x[16 * g + l], g, 3) << shift);
        }
    }
}

/// Q4_K and Q5_K: eight groups of 32, six-bit scales and minima packed in 12 bytes.
template <int kBits>
void encode_k45(const float* x, uint8_t* b) {
    constexpr int kTop = (1 << kBits) - 1;
    const RangeGroups<8> fit(x, kTop, 63);
    put_half(b, fit.d);
    put_half(b + 2, fit.dmin);
    uint8_t *packed = b + 4, *qh = b + 16, *qs = b + (kBits == 5 ? 48 : 16);
    for (int g = 0; g < 8; ++g) {
        const int sc = fit.scale[g], mn = fit.min[g];
        if (g < 4) {
            packed[g] = byte(sc);
            packed[g + 4] = byte(mn);
        } else {
            packed[g + 4] = byte((sc & 15) | (mn & 15) << 4);
            packed[g - 4] = byte(packed[g - 4] | sc >> 4 << 6);
            packed[g] = byte(packed[g] | mn >> 4 << 6);
        }
        for (int l = 0; l < 32; ++l) {
            const int q = fit.quantise(x[32 * g + l], g, kTop);
            uint8_t& low = qs[32 * (g / 2) + l];
            low = byte(low | (q & 15) << (4 * (g % 2)));
            if (kBits == 5) qh[l] = byte(qh[l] | q >> 4 << g);
        }
    }
}

// ------------------------------------------------------------------------- least squares, scale only

/// The entry of the IQ4 codebook nearest to v.
inline int nearest_iq4(float v) {
    int q = 0;
    while (q < 15 && 2 * v > static_cast<float>(kIq4Values[q] + kIq4Values[q + 1])) ++q;
    return q;
}

/// The scale s that fits x by s * value(code), weights x^2. `lowest` is the most negative value; the
/// candidates put the extreme element near it. `value_near` maps x/s to the value it would get.
template <class ValueNear>
float fit_scale(const float* x, int n, float lowest, float step, int n_try, ValueNear value_near) {
    const float top = extreme(x, n);
    if (std::fabs(top) < 1e-15f) return 0;
    float best = 0, best_gain = -1;
    for (int t = -n_try; t <= n_try; ++t) {
        const float inverse = (lowest + step * static_cast<float>(t)) / top;
        float wxv = 0, wvv = 0;
        for (int i = 0; i < n; ++i) {
            const float v = value_near(x[i] * inverse), w = x[i] * x[i];
            wxv += w * x[i] * v, wvv += w * v * v;
        }
        if (wvv > 0 && wxv * wxv > best_gain * wvv) {
            best_gain = wxv * wxv / wvv;
            best = wxv / wvv;
        }
    }
    return best;
}

/// A super-block of scale-only groups: the fits, then held as signed integers lowest..-lowest - 1.
template <int kGroups>
struct ScaleGroups {
    float d = 0;  ///< as a reader sees it
    int scale[kGroups] = {};

    template <class ValueNear>
    ScaleGroups(const float* x, int scale_lowest, float lowest, float step, int n_try, ValueNear value_near) {
        constexpr int kSize = 256 / kGroups;
        float fits[kGroups];
        for (int g = 0; g < kGroups; ++g)
            fits[g] = fit_scale(x + g * kSize, kSize, lowest, step, n_try, value_near);
        d = as_half(extreme(fits, kGroups) / static_cast<float>(scale_lowest));
        for (int g = 0; g < kGroups; ++g)
            if (d != 0) scale[g] = nearest(fits[g] / d, scale_lowest, -scale_lowest - 1);
    }
    /// x in units of group g's scale; 0 when that scale is 0.
    float in_units(float x, int g) const {
        const float s = d * static_cast<float>(scale[g]);
        return s != 0 ? x / s : 0.0f;
    }
};

inline void encode_q3_k(const float* x, uint8_t* b) {
    const ScaleGroups<16> fit(x, -32, -4, 0.1f, 9, [](float v) { return static_cast<float>(nearest(v, -4, 3)); });
    put_half(b + 108, fit.d);
    uint8_t *hmask = b, *qs = b + 32, *scales = b + 96;
    for (int g = 0; g < 16; ++g) {
        const int sc = fit.scale[g] + 32;
        uint8_t &low = scales[g % 8], &high = scales[8 + g % 4];
        low = byte(low | (sc & 15) << (g < 8 ? 0 : 4));
        high = byte(high | sc >> 4 << (2 * (g / 4)));
        const int n = g / 8, j = g % 8 / 2, l0 = g % 2 * 16;
        for (int l = l0; l < l0 + 16; ++l) {
            const int q = nearest(fit.in_units(x[16 * g + l - l0], g), -4, 3) + 4;
            uint8_t& two = qs[32 * n + l];
            two = byte(two | (q & 3) << (2 * j));
            hmask[l] = byte(hmask[l] | q >> 2 << (4 * n + j));
        }
    }
}

inline void encode_q6_k(const float* x, uint8_t* b) {
    const ScaleGroups<16> fit(x, -128, -32, 0.1f, 9, [](float v) { return static_cast<float>(nearest(v, -32, 31)); });
    put_half(b + 208, fit.d);
    for (int g = 0; g < 16; ++g) {
        b[192 + g] = byte(fit.scale[g]);
        const int n = g / 8, j = g % 8 / 2, l0 = g % 2 * 16;
        for (int l = l0; l < l0 + 16; ++l) {
            const int q = nearest(fit.in_units(x[16 * g + l - l0], g), -32, 31) + 32;
            uint8_t &low = b[64 * n + 32 * (j % 2) + l], &high = b[128 + 32 * n + l];
            low = byte(low | (q & 15) << (4 * (j / 2)));
            high = byte(high | q >> 4 << (2 * j));
        }
    }
}

inline float iq4_value_near(float v) { return static_cast<float>(kIq4Values[nearest_iq4(v)]); }

inline void encode_iq4_nl(const float* x, uint8_t* b) {
    const float d = as_half(fit_scale(x, 32, -127, 2, 7, iq4_value_near));
    put_half(b, d);
    const auto quantise = [d](float v) { return nearest_iq4(d != 0 ? v / d : 0.0f); };
    for (int j = 0; j < 16; ++j) b[2 + j] = byte(quantise(x[j]) | quantise(x[j + 16]) << 4);
}

inline void encode_iq4_xs(const float* x, uint8_t* b) {
    const ScaleGroups<8> fit(x, -32, -127, 2, 7, iq4_value_near);
    put_half(b, fit.d);
    uint16_t scales_h = 0;
    for (int g = 0; g < 8; ++g) {
        const int sc = fit.scale[g] + 32;
        b[4 + g / 2] = byte(b[4 + g / 2] | (sc & 15) << (4 * (g % 2)));
        scales_h = static_cast<uint16_t>(scales_h | sc >> 4 << (2 * g));
        for (int j = 0; j < 16; ++j) {
            const float* run = x + 32 * g + j;
            b[8 + 16 * g + j] = byte(nearest_iq4(fit.in_units(run[0], g)) | nearest_iq4(fit.in_units(run[16], g)) << 4);
        }
    }
    std::memcpy(b + 2, &scales_h, 2);
}

template <class BlockEncoder>
void each_block(Type t, const float* from, uint8_t* to, size_t n, BlockEncoder encode) {
    const TypeInfo info = type_info(t);
    AUSPEX_ASSERT(n % info.n_block == 0);
    for (size_t i = 0; i < n; i += info.n_block, to += info.block_bytes) {
        std::memset(to, 0, info.block_bytes);  // codes are or-ed in
        encode(from + i, to);
    }
}

}  // namespace number_encode_impl

bool can_encode(Type t) { return type_info(t).supported; }

void encode_row(Type t, const float* from, void* to, size_t n) {
    namespace impl = number_encode_impl;
    uint8_t* p = static_cast<uint8_t*>(to);
    switch (t) {
        case Type::f32:
            if (n) std::memcpy(p, from, n * 4);
            return;
        case Type::f16:
            for (size_t i = 0; i < n; ++i) impl::put_half(p + 2 * i, from[i]);
            return;
        case Type::bf16:
            for (size_t i = 0; i < n; ++i) {
                const uint16_t h = f32_to_bf16(from[i]);
                std::memcpy(p + 2 * i, &h, 2);
            }
            return;
        case Type::q8_0: return impl::each_block(t, from, p, n, impl::encode_q8_0);
        case Type::q4_0: return impl::each_block(t, from, p, n, impl::encode_symmetric<4>);
        case Type::q4_1: return impl::each_block(t, from, p, n, impl::encode_range<4>);
        case Type::q5_0: return impl::each_block(t, from, p, n, impl::encode_symmetric<5>);
        case Type::q5_1: return impl::each_block(t, from, p, n, impl::encode_range<5>);
        case Type::q2_k: return impl::each_block(t, from, p, n, impl::encode_q2_k);
        case Type::q3_k: return impl::each_block(t, from, p, n, impl::encode_q3_k);
        case Type::q4_k: return impl::each_block(t, from, p, n, impl::encode_k45<4>);
        case Type::q5_k: return impl::each_block(t, from, p, n, impl::encode_k45<5>);
        case Type::q6_k: return impl::each_block(t, from, p, n, impl::encode_q6_k);
        case Type::iq4_nl: return impl::each_block(t, from, p, n, impl::encode_iq4_nl);
        case Type::iq4_xs: return impl::each_block(t, from, p, n, impl::encode_iq4_xs);
    }
    AUSPEX_ASSERT(false);  // a type that is not supported
}

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------------- src/base/file.cpp

#include <cerrno>
#include <system_error>

#if defined(_WIN32)
#if !defined(NOMINMAX)
#define NOMINMAX
#define AUSPEX_UNDEF_NOMINMAX
#endif
#if !defined(WIN32_LEAN_AND_MEAN)
#define WIN32_LEAN_AND_MEAN
#define AUSPEX_UNDEF_LEAN
#endif
#include <windows.h>
#ifdef AUSPEX_UNDEF_NOMINMAX
#undef NOMINMAX
#undef AUSPEX_UNDEF_NOMINMAX
#endif
#ifdef AUSPEX_UNDEF_LEAN
#undef WIN32_LEAN_AND_MEAN
#undef AUSPEX_UNDEF_LEAN
#endif
#elif defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace auspex {
namespace detail {
namespace file_impl {

/// What a platform hands back: bytes, and whether they are a mapping.
struct Bytes {
    const std::byte* data = nullptr;
    size_t size = 0;
    bool mapped = false;
};

inline Status is_empty(const char* path) {
    return fail(Code::io_error, "'", path, "' is empty (0 bytes), expected a GGUF file. Download or convert it again.");
}
inline Status is_directory(const char* path) {
    return fail(Code::io_error, "'", path, "' is a directory, expected a GGUF file. Name the file inside it.");
}
inline Status too_large(const char* path, uint64_t size) {
    return fail(Code::io_error, "'", path, "' has ", size, " bytes, more than a ", 8 * sizeof(size_t),
                "-bit process can hold. Use a 64-bit build.");
}
inline Status no_memory(const char* path, uint64_t size) {
    return fail(Code::out_of_memory, "'", path, "' could not be mapped, and reading it needs ", size,
                " bytes that are not free. Close other programs or take a smaller file.");
}
inline Status changed(const char* path, size_t got, size_t size) {
    return fail(Code::io_error, "'", path, "' ended after ", got, " bytes, expected ", size,
                ": it changed while it was being read. Wait until its writer is done.");
}
/// The operating system's own words decide between not_found and io_error.
inline Status refused(const char* path, const char* doing, const std::error_code& why) {
    const bool missing = why == std::errc::no_such_file_or_directory || why == std::errc::not_a_directory;
    return fail(missing ? Code::not_found : Code::io_error, "cannot ", doing, " '", path, "': ", why.message(),
                missing ? ". Check the path." : ". Check that this user may read it and that the disk works.");
}

#if defined(_WIN32)

struct Handle {
    HANDLE h = nullptr;
    ~Handle() {
        if (h && h != INVALID_HANDLE_VALUE) CloseHandle(h);
    }
};
inline std::error_code last_error() { return std::error_code(static_cast<int>(GetLastError()), std::system_category()); }

inline Result<Bytes> take(const char* path) {
    const int n_wide = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, nullptr, 0);
    if (n_wide <= 0) return refused(path, "read the name of", last_error());
    std::wstring wide(static_cast<size_t>(n_wide), L'\0');
    MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, &wide[0], n_wide);

    const DWORD attributes = GetFileAttributesW(wide.c_str());
    if (attributes != INVALID_FILE_ATTRIBUTES && (attributes & FILE_ATTRIBUTE_DIRECTORY)) return is_directory(path);
    Handle file;
    file.h = CreateFileW(wide.c_str(), GENERIC_READ, FILE_SHARE_READ, nullptr, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
    if (file.h == INVALID_HANDLE_VALUE) return refused(path, "open", last_error());
    LARGE_INTEGER length;
    if (!GetFileSizeEx(file.h, &length)) return refused(path, "measure", last_error());
    const uint64_t size = static_cast<uint64_t>(length.QuadPart);
    if (size == 0) return is_empty(path);
    if (size > SIZE_MAX / 2) return too_large(path, size);

    Bytes out;
    out.size = static_cast<size_t>(size);
    Handle mapping;  // a view stays valid after both handles are closed
    mapping.h = CreateFileMappingW(file.h, nullptr, PAGE_READONLY, 0, 0, nullptr);
    if (mapping.h) out.data = static_cast<const std::byte*>(MapViewOfFile(mapping.h, FILE_MAP_READ, 0, 0, 0));
    out.mapped = out.data != nullptr;
    if (out.mapped) return out;

    std::byte* p = new (std::nothrow) std::byte[out.size];
    if (!p) return no_memory(path, size);
    for (size_t got = 0; got < out.size;) {
        const size_t left = out.size - got;
        DWORD n = 0;
        const DWORD want = left > (1u << 30) ? (1u << 30) : static_cast<DWORD>(left);
        if (!ReadFile(file.h, p + got, want, &n, nullptr) || n == 0) {
            Status why = n == 0 && GetLastError() == ERROR_SUCCESS ? changed(path, got, out.size)
                                                                   : refused(path, "read", last_error());
            delete[] p;
            return why;
        }
        got += n;
    }
    out.data = p;
    return out;
}
inline void unmap(const std::byte* p, size_t) { UnmapViewOfFile(p); }

#elif defined(__unix__) || defined(__APPLE__)

struct Descriptor {
    int fd = -1;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
};
inline std::error_code last_error() { return std::error_code(errno, std::generic_category()); }

inline Result<Bytes> take(const char* path) {
    Descriptor file;
    // O_NONBLOCK: a pipe of that name must be refused, not waited for; regular files ignore it.
    file.fd = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file.fd < 0) return refused(path, "open", last_error());
    struct stat info;
    if (::fstat(file.fd, &info) != 0) return refused(path, "measure", last_error());
    if (S_ISDIR(info.st_mode)) return is_directory(path);
    if (!S_ISREG(info.st_mode))
        return fail(Code::io_error, "'", path, "' is a device or a pipe, expected a regular file. Save it to disk first.");
    const uint64_t size = static_cast<uint64_t>(info.st_size);
    if (size == 0) return is_empty(path);
    if (size > SIZE_MAX / 2) return too_large(path, size);

    Bytes out;
    out.size = static_cast<size_t>(size);
    void* view = ::mmap(nullptr, out.size, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (view != MAP_FAILED) {
        // Weights are read once from front to back (upload, repacking) or again and again (in place):
        // either way reading ahead helps. A refusal is no error: it is only a hint.
        (void)::madvise(view, out.size, MADV_WILLNEED);
        out.data = static_cast<const std::byte*>(view);
        out.mapped = true;
        return out;
    }

    std::byte* p = new (std::nothrow) std::byte[out.size];
    if (!p) return no_memory(path, size);
    for (size_t got = 0; got < out.size;) {
        const size_t left = out.size - got;
        const ssize_t n = ::read(file.fd, p + got, left > (size_t{1} << 30) ? (size_t{1} << 30) : left);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            Status why = n == 0 ? changed(path, got, out.size) : refused(path, "read", last_error());
            delete[] p;
            return why;
        }
        got += static_cast<size_t>(n);
    }
    out.data = p;
    return out;
}
inline void unmap(const std::byte* p, size_t size) { ::munmap(const_cast<std::byte*>(p), size); }

#else  // any other hosted platform: the C library, all of it into memory

struct Stream {
    std::FILE* f = nullptr;
    ~Stream() {
        if (f) std::fclose(f);
    }
};
inline std::error_code last_error() { return std::error_code(errno ? errno : EIO, std::generic_category()); }

inline Result<Bytes> take(const char* path) {
    Stream file;
    errno = 0;
    file.f = std::fopen(path, "rb");
    if (!file.f) return refused(path, "open", last_error());
    if (std::fseek(file.f, 0, SEEK_END) != 0) return refused(path, "measure", last_error());
    const long size = std::ftell(file.f);
    if (size < 0) return refused(path, "measure", last_error());
    if (size == 0) return is_empty(path);
    if (std::fseek(file.f, 0, SEEK_SET) != 0) return refused(path, "read", last_error());
    Bytes out;
    out.size = static_cast<size_t>(size);
    std::byte* p = new (std::nothrow) std::byte[out.size];
    if (!p) return no_memory(path, out.size);
    const size_t got = std::fread(p, 1, out.size, file.f);
    if (got != out.size) {
        delete[] p;
        return changed(path, got, out.size);
    }
    out.data = p;
    return out;
}
inline void unmap(const std::byte*, size_t) {}

#endif

/// "-00001-of-00003.gguf" for shard 0 of 3.
inline std::string shard_suffix(uint32_t no, uint32_t count) {
    char b[48];
    std::snprintf(b, sizeof b, "-%05u-of-%05u.gguf", static_cast<unsigned>(no) + 1u, static_cast<unsigned>(count));
    return b;
}

}  // namespace file_impl

File::~File() { close(); }

void File::close() {
    if (mapped_)
        file_impl::unmap(data_, size_);
    else
        delete[] data_;
    data_ = nullptr;
    size_ = 0;
    mapped_ = false;
}

File::File(File&& o) noexcept { *this = std::move(o); }

File& File::operator=(File&& o) noexcept {
    if (this != &o) {
        close();
        data_ = std::exchange(o.data_, nullptr);
        size_ = std::exchange(o.size_, size_t{0});
        mapped_ = std::exchange(o.mapped_, false);
    }
    return *this;
}

Result<File> File::open(const char* path) {
    if (!path || !*path) return fail(Code::bad_argument, "the path is empty, expected the name of a GGUF file");
    Result<file_impl::Bytes> taken = file_impl::take(path);
    if (!taken.ok()) return taken.status();
    File f;
    f.data_ = taken.value().data;
    f.size_ = taken.value().size;
    f.mapped_ = taken.value().mapped;
    return f;
}

Result<std::vector<std::string>> shard_paths(const std::string& first, uint32_t no, uint32_t count) {
    if (count == 0 || count > kMaxShards || no >= count)
        return fail(Code::bad_file, "'", first, "' says it is shard ", no, " (counted from 0) of ", count, ", expected one of 1 to ",
                    kMaxShards, " shards. The file is damaged or was split by a faulty tool: split it again.");
    const std::string suffix = file_impl::shard_suffix(no, count);
    if (first.size() < suffix.size() || first.compare(first.size() - suffix.size(), suffix.size(), suffix) != 0)
        return fail(Code::bad_argument, "'", first, "' is shard ", no + 1, " of ", count, " of a split model, so its name must end in '",
                    suffix, "' for the other shards to be found beside it. Give all shards their original names.");
    const std::string prefix = first.substr(0, first.size() - suffix.size());
    std::vector<std::string> paths;
    paths.reserve(count);
    for (uint32_t i = 0; i < count; ++i) paths.push_back(prefix + file_impl::shard_suffix(i, count));
    return paths;
}

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------------- src/base/gguf.cpp

// Reading: the container's grammar and every check of it, then joining shards.
// The typed getters live in gguf_meta.cpp, the writer in gguf_writer.cpp.


namespace auspex {
namespace detail {
namespace gguf_impl {

// Caps. Every count is first bounded by the bytes that are left, so that no allocation is larger
// than a small multiple of the file; the caps are what no honest file comes near.
constexpr uint64_t kMaxKeys = 1u << 16;
constexpr uint64_t kMaxTensors = 1u << 20;
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxStringBytes = 64u << 20;   // a chat template, generously
constexpr uint64_t kMaxElementBytes = 1u << 20;   // a string of an array: a token or a merge
constexpr uint64_t kMaxArray = 1u << 30;
constexpr uint64_t kMaxNameBytes = 63;
constexpr uint64_t kMinKeyEntry = 14;             // length 8, one byte of key, type 4, one byte of value
constexpr uint64_t kMinTensorEntry = 24;          // length 8, n_dims 4, type 4, offset 8
constexpr uint64_t kHeaderBytes = 24;
constexpr uint64_t kInt63 = INT64_MAX;
constexpr uint32_t kDefaultAlignment = 32;

constexpr char kAgain[] = ". The file is damaged or incomplete: download or convert it again.";

/// A name from the file, fit for a message: quoted, shortened, nothing unprintable.
inline std::string quoted(std::string_view s) {
    constexpr size_t kShown = 80;
    static constexpr char kHex[] = "0123456789abcdef";
    std::string out = "'";
    for (const char c : s.substr(0, kShown)) {
        const unsigned char u = static_cast<unsigned char>(c);
        if (u >= 0x20 && u < 0x7f) {
            out += c;
        } else {
            out += "\\x";
            out += kHex[u >> 4];
            out += kHex[u & 15];
        }
    }
    out += s.size() > kShown ? "...'" : "'";
    return out;
}

/// Bytes of one metadata value; 0 for strings, arrays and unknown ids.
inline uint64_t value_bytes(uint32_t type_id) {
    switch (type_id) {
        case 0: case 1: case 7: return 1;
        case 2: case 3: return 2;
        case 4: case 5: case 6: return 4;
        case 10: case 11: case 12: return 8;
        default: return 0;
    }
}

/// "a, b, c" for messages about shapes.
inline std::string joined(const uint64_t* v, uint32_t n) {
    std::string s;
    for (uint32_t i = 0; i < n; ++i) s += (i ? ", " : "") + std::to_string(v[i]);
    return s;
}

/// Walks the bytes. The one bounds check compares against what is left, never position plus length,
/// which could wrap. The first failure sticks: it is what the caller reports.
class Reader {
  public:
    explicit Reader(Span<const std::byte> file) : p_(file.data()), left_(file.size()), size_(file.size()) {}

    uint64_t left() const { return left_; }
    uint64_t position() const { return size_ - left_; }
    const std::byte* here() const { return p_; }
    Status take_status() { return std::move(status_); }

    /// What is being read, for the message: ("the value of key", key).
    void at(const char* part, std::string_view name = {}) {
        part_ = part;
        name_ = name;
    }
    std::string where() const { return name_.empty() ? std::string(part_) : say(part_, " ", quoted(name_)); }

    bool skip(uint64_t n) {
        if (n > left_) {
            status_ = fail(Code::bad_file, "the file ends inside ", where(), ": at byte ", position(), " expected ", n,
                           " more bytes, found ", left_, kAgain);
            return false;
        }
        p_ += static_cast<size_t>(n);  // n <= left_, which came from a size_t
        left_ -= n;
        return true;
    }
    template <class T>
    bool read(T* out) {
        const std::byte* from = p_;
        if (!skip(sizeof(T))) return false;
        *out = load<T>(from);
        return true;
    }
    bool read_string(std::string_view* out, uint64_t cap) {
        uint64_t n = 0;
        if (!read(&n)) return false;
        if (n > cap || n > left_) {
            status_ = fail(Code::bad_file, where(), ": a string of ", n, " bytes at byte ", position(), ", expected at most ",
                           std::min(cap, left_), n > left_ ? " (the rest of the file)" : " (the limit here)", kAgain);
            return false;
        }
        const char* text = reinterpret_cast<const char*>(p_);
        *out = std::string_view(text, static_cast<size_t>(n));
        return skip(n);
    }
    template <class... A>
    bool refuse(Code code, const A&... parts) {
        status_ = fail(code, parts...);
        return false;
    }

  private:
    const std::byte* p_;
    uint64_t left_, size_;
    const char* part_ = "the header";
    std::string_view name_;
    Status status_;
};

/// What a file that is not GGUF may be instead.
inline const char* stranger(std::string_view magic) {
    if (magic == "vers") return "This looks like a Git LFS pointer: fetch the real file with 'git lfs pull'.";
    if (magic.substr(0, 1) == "<") return "This looks like a web page: use the download link, not the page.";
    if (magic.substr(0, 2) == "PK") return "This looks like a PyTorch or zip archive: convert it to GGUF.";
    if (magic == "ggml" || magic == "tjgg" || magic == "fmgg" || magic == "lmgg")
        return "This looks like a model from before GGUF: convert the original model again.";
    return "Give a .gguf file; other formats must be converted first.";
}

inline bool read_header(Reader& r, uint32_t* version, uint64_t* n_tensor, uint64_t* n_meta) {
    if (r.left() < kHeaderBytes)
        return r.refuse(Code::bad_file, "the file has ", r.left(), " bytes, expected at least the ", kHeaderBytes,
                        " bytes of a GGUF header", kAgain);
    const std::string_view magic(reinterpret_cast<const char*>(r.here()), 4);
    if (magic != "GGUF")
        return r.refuse(Code::bad_file, "the file begins with ", quoted(magic), ", expected 'GGUF'. ", stranger(magic));
    r.skip(4);
    if (!r.read(version) || !r.read(n_tensor) || !r.read(n_meta)) return false;
    const uint32_t v = *version;
    if (v != 0 && (v & 0xffffu) == 0)
        return r.refuse(Code::unsupported, "the file is big-endian (its version reads as ", v,
                        "), expected little-endian. Convert the model for little-endian machines.");
    if (v == 1)
        return r.refuse(Code::unsupported, "the file is GGUF version 1, which is obsolete, expected version 2 or 3. Convert the model again.");
    if (v != 2 && v != 3)
        return r.refuse(Code::unsupported, "the file is GGUF version ", v, ", expected version 2 or 3. Update this library or convert for version 3.");
    if (*n_meta > kMaxKeys || *n_meta > r.left() / kMinKeyEntry)
        return r.refuse(Code::bad_file, "the header announces ", *n_meta, " metadata keys, expected at most ",
                        std::min(kMaxKeys, r.left() / kMinKeyEntry), " (the limit is ", kMaxKeys, ", and ", r.left(),
                        " bytes follow)", kAgain);
    if (*n_tensor > kMaxTensors || *n_tensor > r.left() / kMinTensorEntry)
        return r.refuse(Code::bad_file, "the header announces ", *n_tensor, " tensors, expected at most ",
                        std::min(kMaxTensors, r.left() / kMinTensorEntry), " (the limit is ", kMaxTensors, ", and ", r.left(),
                        " bytes follow)", kAgain);
    return true;
}

/// True when all of the n one-byte values are 0 or 1.
inline bool check_booleans(Reader& r, const Meta& m, const std::byte* p, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i)
        if (static_cast<unsigned>(p[i]) > 1)
            return r.refuse(Code::bad_file, "key ", quoted(m.key), ": boolean ", i, " is ", static_cast<unsigned>(p[i]),
                            ", expected 0 or 1", kAgain);
    return true;
}

inline bool read_array(Reader& r, Meta& m) {
    uint32_t type_id = 0;
    if (!r.read(&type_id) || !r.read(&m.n)) return false;
    m.is_array = true;
    if (type_id == static_cast<uint32_t>(MetaType::array))
        return r.refuse(Code::unsupported, "key ", quoted(m.key),
                        " holds an array of arrays, expected elements that are numbers, booleans or strings. Convert again without this key.");
    const bool is_string = type_id == static_cast<uint32_t>(MetaType::string);
    const uint64_t size = is_string ? 8 : value_bytes(type_id);  // a string costs at least its length
    if (size == 0)
        return r.refuse(Code::bad_file, "key ", quoted(m.key), ": array elements of type id ", type_id, ", expected 0 to 12", kAgain);
    if (m.n > kMaxArray || m.n > r.left() / size)
        return r.refuse(Code::bad_file, "key ", quoted(m.key), ": an array of ", m.n, " elements, expected at most ",
                        std::min(kMaxArray, r.left() / size), " (", r.left(), " bytes follow)", kAgain);
    m.type = static_cast<MetaType>(type_id);
    m.data = r.here();
    if (!is_string) return r.skip(m.n * size) && (m.type != MetaType::boolean || check_booleans(r, m, m.data, m.n));
    m.strings.reserve(static_cast<size_t>(m.n));  // at most two bytes per byte of file
    for (uint64_t i = 0; i < m.n; ++i) {
        std::string_view s;
        if (!r.read_string(&s, kMaxElementBytes)) return false;
        m.strings.push_back(s);
    }
    return true;
}

inline bool read_meta(Reader& r, Meta& m) {
    r.at("a metadata key");
    if (!r.read_string(&m.key, kMaxKeyBytes)) return false;
    const bool clean = std::all_of(m.key.begin(), m.key.end(), [](char c) { return c > 0x20 && c < 0x7f; });
    if (m.key.empty() || !clean)
        return r.refuse(Code::bad_file, "metadata key ", quoted(m.key), " before byte ", r.position(),
                        ", expected at least one character, and only printable ASCII", kAgain);
    r.at("the value of key", m.key);
    uint32_t type_id = 0;
    if (!r.read(&type_id)) return false;
    if (type_id == static_cast<uint32_t>(MetaType::array)) return read_array(r, m);
    if (type_id == static_cast<uint32_t>(MetaType::string)) {
        m.type = MetaType::string;
        m.data = r.here();
        m.strings.resize(1);
        return r.read_string(&m.strings[0], kMaxStringBytes);
    }
    const uint64_t size = value_bytes(type_id);
    if (size == 0)
        return r.refuse(Code::bad_file, "key ", quoted(m.key), ": value of type id ", type_id, ", expected 0 to 12", kAgain);
    m.type = static_cast<MetaType>(type_id);
    m.data = r.here();
    return r.skip(size) && (m.type != MetaType::boolean || check_booleans(r, m, m.data, 1));
}

inline Status bad_type(std::string_view tensor, uint32_t type_id) {
    const TypeInfo info = type_info(type_id);
    const std::string can = say(". Supported are: ", supported_types(), ". Take a file in one of these types.");
    if (info.name)
        return fail(Code::unsupported, "tensor ", quoted(tensor), " is of type ", info.name, " (id ", type_id,
                    "), which this library cannot compute with", can);
    const bool removed = type_id == 4 || type_id == 5 || (type_id >= 31 && type_id <= 33) || (type_id >= 36 && type_id <= 38);
    const bool fork = type_id >= 97 && type_id < 400;
    return fail(Code::unsupported, "tensor ", quoted(tensor), " is of type id ", type_id,
                removed ? ", which was removed from the format"
                : fork  ? ", which belongs to a fork of the format"
                        : ", which is not a known type",
                can);
}

/// One tensor info; leaves the offset relative to the data section in file_offset.
inline bool read_tensor(Reader& r, Tensor& t) {
    r.at("a tensor name");
    if (!r.read_string(&t.name, kMaxNameBytes)) return false;
    if (t.name.empty() || t.name.find('\0') != std::string_view::npos)
        return r.refuse(Code::bad_file, "tensor name ", quoted(t.name), " before byte ", r.position(), ", expected 1 to ",
                        kMaxNameBytes, " bytes, none of them zero", kAgain);
    r.at("the entry of tensor", t.name);
    if (!r.read(&t.n_dim)) return false;
    if (t.n_dim < 1 || t.n_dim > 4)
        return r.refuse(Code::bad_file, "tensor ", quoted(t.name), " has ", t.n_dim, " dimensions, expected 1 to 4", kAgain);
    uint64_t count = 1;
    for (uint32_t i = 0; i < t.n_dim; ++i)
        if (!r.read(&t.ne[i])) return false;
    for (uint32_t i = 0; i < t.n_dim; ++i) {
        if (t.ne[i] == 0 || count > kInt63 / t.ne[i])
            return r.refuse(Code::bad_file, "tensor ", quoted(t.name), " is [", joined(t.ne, t.n_dim),
                            "], expected no zero and less than 2^63 elements", kAgain);
        count *= t.ne[i];
    }
    uint32_t type_id = 0;
    if (!r.read(&type_id) || !r.read(&t.file_offset)) return false;
    const TypeInfo info = type_info(type_id);
    if (!info.name || !info.supported) {
        const Status s = bad_type(t.name, type_id);
        return r.refuse(s.code, s.text);
    }
    t.type = static_cast<Type>(type_id);
    if (t.ne[0] % info.n_block != 0)
        return r.refuse(Code::bad_file, "tensor ", quoted(t.name), " of type ", info.name, " has rows of ", t.ne[0],
                        " elements, expected a multiple of ", info.n_block, kAgain);
    if (!mul_fits(count / info.n_block, info.block_bytes, &t.bytes) || t.bytes > kInt63)
        return r.refuse(Code::bad_file, "tensor ", quoted(t.name), " [", joined(t.ne, t.n_dim), "] of type ", info.name,
                        ", expected less than 2^63 bytes", kAgain);
    return true;
}

/// Places the tensors in the data section: in table order, each at the next aligned byte, all inside
/// the file. That rules out gaps, overlaps and aliases at once; every usual writer keeps it.
inline bool place_tensors(Reader& r, Span<const std::byte> file, uint32_t alignment, std::vector<Tensor>& tensors) {
    if (tensors.empty()) return true;  // a vocabulary may end right after the metadata
    const uint64_t size = file.size(), base = round_up(r.position(), alignment);
    uint64_t expected = 0;
    for (Tensor& t : tensors) {
        const uint64_t offset = t.file_offset;
        if (offset % alignment != 0)
            return r.refuse(Code::bad_file, "tensor ", quoted(t.name), " has offset ", offset, ", expected a multiple of ",
                            alignment, " (general.alignment)", kAgain);
        if (base > size || t.bytes > size - base || offset > size - base - t.bytes)
            return r.refuse(Code::bad_file, "tensor ", quoted(t.name), " needs ", t.bytes, " bytes at ", base, " + ", offset,
                            ", but the file has only ", size, " bytes. The download was cut short or the file is damaged: get it again.");
        if (offset != expected)
            return r.refuse(Code::bad_file, "tensor ", quoted(t.name), " has offset ", offset, ", expected ", expected,
                            ": tensors follow each other in table order without gaps. Convert the model again.");
        expected = offset + round_up(t.bytes, alignment);  // both below the file's size
        t.file_offset = base + offset;
        t.data = file.data() + static_cast<size_t>(t.file_offset);
    }
    return true;
}

/// Indices of `items` in the order of their names; `twice` gets an index whose name came before.
template <class Item, class Name>
std::vector<uint32_t> sorted_by(const std::vector<Item>& items, Name name, const Item** twice) {
    std::vector<uint32_t> order(items.size());
    for (uint32_t i = 0; i < items.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return name(items[a]) < name(items[b]); });
    *twice = nullptr;
    for (size_t i = 1; i < order.size(); ++i)
        if (name(items[order[i - 1]]) == name(items[order[i]])) *twice = &items[order[i]];
    return order;
}
inline std::string_view name_of(const Meta& m) { return m.key; }
inline std::string_view name_of(const Tensor& t) { return t.name; }

template <class Item>
const Item* look_up(const std::vector<Item>& items, const std::vector<uint32_t>& order, std::string_view name) {
    const auto at = std::lower_bound(order.begin(), order.end(), name,
                                     [&](uint32_t i, std::string_view n) { return name_of(items[i]) < n; });
    return at != order.end() && name_of(items[*at]) == name ? &items[*at] : nullptr;
}

}  // namespace gguf_impl

Result<Gguf> Gguf::parse(Span<const std::byte> file) {
    namespace impl = gguf_impl;
    impl::Reader r(file);
    Gguf g;
    uint64_t n_tensor = 0, n_meta = 0;
    g.file_bytes_ = file.size();
    if (!impl::read_header(r, &g.version_, &n_tensor, &n_meta)) return r.take_status();

    g.meta_.resize(static_cast<size_t>(n_meta));
    for (Meta& m : g.meta_)
        if (!impl::read_meta(r, m)) return r.take_status();
    const Meta* key_twice = nullptr;
    g.meta_order_ = impl::sorted_by(g.meta_, [](const Meta& m) { return m.key; }, &key_twice);
    if (key_twice)
        return fail(Code::bad_file, "metadata key ", impl::quoted(key_twice->key), " appears more than once, expected unique keys",
                    impl::kAgain);

    uint32_t alignment = impl::kDefaultAlignment;
    if (const Meta* m = g.find("general.alignment")) {
        if (m->is_array || m->type != MetaType::u32)
            return fail(Code::bad_file, "key 'general.alignment' is not a single u32, expected one", impl::kAgain);
        alignment = load<uint32_t>(m->data);
        if (alignment < 8 || alignment > 1u << 20 || (alignment & (alignment - 1)) != 0)
            return fail(Code::bad_file, "key 'general.alignment' is ", alignment, ", expected a power of two from 8 to ", 1u << 20,
                        impl::kAgain);
    }

    if (n_tensor > r.left() / impl::kMinTensorEntry)  // again: the metadata has eaten its share
        return fail(Code::bad_file, "the header announces ", n_tensor, " tensors, expected at most ", r.left() / impl::kMinTensorEntry,
                    " in the ", r.left(), " bytes after the metadata", impl::kAgain);
    g.tensors_.resize(static_cast<size_t>(n_tensor));
    for (Tensor& t : g.tensors_)
        if (!impl::read_tensor(r, t)) return r.take_status();
    const Tensor* name_twice = nullptr;
    g.tensor_order_ = impl::sorted_by(g.tensors_, [](const Tensor& t) { return t.name; }, &name_twice);
    if (name_twice)
        return fail(Code::bad_file, "tensor ", impl::quoted(name_twice->name), " appears more than once, expected unique names",
                    impl::kAgain);
    if (!impl::place_tensors(r, file, alignment, g.tensors_)) return r.take_status();
    return g;
}

Result<Gguf> Gguf::join(std::vector<Gguf> shards) {
    namespace impl = gguf_impl;
    constexpr char kTogether[] = " Give all shards of one model, in order, from the same download.";
    if (shards.empty()) return fail(Code::bad_argument, "no shards were given, expected at least one");
    for (uint32_t i = 0; i < shards.size(); ++i) {
        const Gguf& s = shards[i];
        uint32_t count = 0, no = 0;
        Status status = s.get_u32("split.count", 1).get(count);
        if (status.ok()) status = s.get_u32("split.no", 0).get(no);
        if (!status.ok()) return status;
        if (count != shards.size())
            return fail(Code::bad_file, "shard ", i, " says the model has ", count, " shards, but ", shards.size(), " were given.", kTogether);
        if (no != i) return fail(Code::bad_file, "shard ", i, " says it is number ", no, " (counted from 0).", kTogether);
        const Meta *arch = s.find("general.architecture"), *first = shards[0].find("general.architecture");
        const bool named = arch && first && !arch->strings.empty() && !first->strings.empty();
        if (named && arch->strings[0] != first->strings[0])
            return fail(Code::bad_file, "shard ", i, " is of architecture ", impl::quoted(arch->strings[0]), ", shard 0 of ",
                        impl::quoted(first->strings[0]), ".", kTogether);
    }

    uint64_t found = 0;
    for (const Gguf& s : shards) found += s.tensors_.size();
    for (uint32_t i = 0; i < shards.size(); ++i) {
        if (shards.size() == 1 && !shards[i].find("split.tensors.count")) break;  // an ordinary unsplit file
        uint32_t announced = 0;
        Status status = shards[i].get_u32("split.tensors.count").get(announced);
        if (!status.ok()) return status;
        if (announced != found)
            return fail(Code::bad_file, "shard ", i, " says the model has ", announced, " tensors, the shards hold ", found, ".", kTogether);
    }

    Gguf g = std::move(shards[0]);
    g.tensors_.reserve(static_cast<size_t>(found));
    for (uint32_t i = 1; i < shards.size(); ++i) {
        for (Tensor& t : shards[i].tensors_) {
            t.shard = i;
            g.tensors_.push_back(t);
        }
        g.file_bytes_ += shards[i].file_bytes_;
    }
    const Tensor* twice = nullptr;
    g.tensor_order_ = impl::sorted_by(g.tensors_, [](const Tensor& t) { return t.name; }, &twice);
    if (twice)
        return fail(Code::bad_file, "tensor ", impl::quoted(twice->name), " appears more than once (last in shard ", twice->shard, ").",
                    kTogether);
    return g;
}

const Meta* Gguf::find(std::string_view key) const { return gguf_impl::look_up(meta_, meta_order_, key); }
const Tensor* Gguf::tensor(std::string_view name) const { return gguf_impl::look_up(tensors_, tensor_order_, name); }

}  // namespace detail
}  // namespace auspex

// -------------------------------------------------------------------------- src/base/gguf_meta.cpp

// Typed views of metadata values: what a key holds, and the message when it is not what was wanted.


namespace auspex {
namespace detail {
namespace gguf_meta_impl {

constexpr const char* kTypeNames[] = {"u8",      "i8",     "u16",   "i16", "u32", "i32", "f32",
                                      "boolean", "string", "array", "u64", "i64", "f64"};

inline size_t width(MetaType t) {
    switch (t) {
        case MetaType::u8: case MetaType::i8: case MetaType::boolean: return 1;
        case MetaType::u16: case MetaType::i16: return 2;
        case MetaType::u32: case MetaType::i32: case MetaType::f32: return 4;
        case MetaType::u64: case MetaType::i64: case MetaType::f64: return 8;
        case MetaType::string: case MetaType::array: break;
    }
    return 0;
}

/// "an array of 3 i32", "the u32 17", "a string": what stands in the file.
inline std::string described(const Meta& m) {
    const char* type = kTypeNames[static_cast<uint32_t>(m.type)];
    if (m.is_array) return say("an array of ", m.n, " ", type);
    if (m.type == MetaType::string) return "a string";
    if (m.type == MetaType::boolean) return load<uint8_t>(m.data) ? "the boolean true" : "the boolean false";
    int64_t i = 0;
    if (m.get_int(0, &i)) return say("the ", type, " ", i);
    double f = 0;
    return m.get_float(0, &f) ? say("the ", type, " ", f) : say("a ", type);
}

/// Element i for a message about one bad element.
inline std::string element(const Meta& m, uint64_t i) {
    if (!m.is_array) return described(m);
    double f = 0;
    const char* type = kTypeNames[static_cast<uint32_t>(m.type)];
    return m.get_float(i, &f) ? say("the ", type, " ", f, " as element ", i) : say("an array of ", m.n, " ", type);
}

inline Status missing(std::string_view key, const char* expected) {
    return fail(Code::bad_file, "the file has no key '", key, "', expected ", expected,
                ". It is not a complete model: convert it again with a current converter.");
}
inline Status wrong(std::string_view key, const std::string& found, const std::string& expected) {
    return fail(Code::bad_file, "key '", key, "' is ", found, ", expected ", expected,
                ". Convert the model again with a current converter.");
}

constexpr char kU32[] = "an integer from 0 to 4294967295";
constexpr char kF32[] = "a finite number that fits float32";

inline bool as_u32(const Meta& m, uint64_t i, uint32_t* out) {
    int64_t v = 0;
    if (!m.get_int(i, &v) || v < 0 || v > static_cast<int64_t>(UINT32_MAX)) return false;
    *out = static_cast<uint32_t>(v);
    return true;
}
inline bool as_f32(const Meta& m, uint64_t i, float* out) {
    double v = 0;
    if (!m.get_float(i, &v) || !(std::fabs(v) <= 3.4028234663852886e38)) return false;
    *out = static_cast<float>(v);
    return true;
}

template <class T>
Result<T> one(const Gguf& g, std::string_view key, const T* if_missing, bool (*as)(const Meta&, uint64_t, T*), const char* expected) {
    const Meta* m = g.find(key);
    if (!m && if_missing) return *if_missing;
    if (!m) return missing(key, expected);
    T v{};
    if (m->is_array || !as(*m, 0, &v)) return wrong(key, described(*m), expected);
    return v;
}

template <class T>
Result<std::vector<T>> many(const Gguf& g, std::string_view key, uint32_t n, const T* if_missing,
                            bool (*as)(const Meta&, uint64_t, T*), const char* expected) {
    const Meta* m = g.find(key);
    if (!m && if_missing) return std::vector<T>(n, *if_missing);
    const auto wanted = [&] { return say(expected, ", or an array of ", n, " of them"); };
    if (!m) return missing(key, wanted().c_str());
    if (m->is_array && m->n != n) return wrong(key, described(*m), wanted());
    std::vector<T> v(n);
    for (uint32_t i = 0; i < n; ++i)
        if (!as(*m, m->is_array ? i : 0, &v[i])) return wrong(key, element(*m, i), wanted());
    return v;
}

}  // namespace gguf_meta_impl

bool Meta::is_integer() const {
    return type != MetaType::boolean && type != MetaType::string && type != MetaType::array && type != MetaType::f32 &&
           type != MetaType::f64;
}

bool Meta::get_int(uint64_t i, int64_t* out) const {
    if (i >= n) return false;
    const std::byte* p = data + static_cast<size_t>(i) * gguf_meta_impl::width(type);
    switch (type) {
        case MetaType::u8: case MetaType::boolean: *out = load<uint8_t>(p); return true;
        case MetaType::i8: *out = load<int8_t>(p); return true;
        case MetaType::u16: *out = load<uint16_t>(p); return true;
        case MetaType::i16: *out = load<int16_t>(p); return true;
        case MetaType::u32: *out = load<uint32_t>(p); return true;
        case MetaType::i32: *out = load<int32_t>(p); return true;
        case MetaType::i64: *out = load<int64_t>(p); return true;
        case MetaType::u64: {
            const uint64_t v = load<uint64_t>(p);
            if (v > static_cast<uint64_t>(INT64_MAX)) return false;
            *out = static_cast<int64_t>(v);
            return true;
        }
        case MetaType::f32: case MetaType::f64: case MetaType::string: case MetaType::array: break;
    }
    return false;
}

bool Meta::get_float(uint64_t i, double* out) const {
    if (i >= n) return false;
    const std::byte* p = data + static_cast<size_t>(i) * gguf_meta_impl::width(type);
    int64_t v = 0;
    if (type == MetaType::f32) {
        *out = static_cast<double>(load<float>(p));
    } else if (type == MetaType::f64) {
        *out = load<double>(p);
    } else if (type == MetaType::u64) {
        *out = static_cast<double>(load<uint64_t>(p));
    } else if (is_integer() && get_int(i, &v)) {
        *out = static_cast<double>(v);
    } else {
        return false;
    }
    return true;
}

Result<std::string> Gguf::get_string(std::string_view key, const char* if_missing) const {
    namespace impl = gguf_meta_impl;
    const Meta* m = find(key);
    if (!m && if_missing) return std::string(if_missing);
    if (!m) return impl::missing(key, "a string");
    if (m->is_array || m->type != MetaType::string) return impl::wrong(key, impl::described(*m), "a string");
    return std::string(m->strings[0]);
}

Result<uint32_t> Gguf::get_u32(std::string_view key) const {
    return gguf_meta_impl::one<uint32_t>(*this, key, nullptr, gguf_meta_impl::as_u32, gguf_meta_impl::kU32);
}
Result<uint32_t> Gguf::get_u32(std::string_view key, uint32_t if_missing) const {
    return gguf_meta_impl::one<uint32_t>(*this, key, &if_missing, gguf_meta_impl::as_u32, gguf_meta_impl::kU32);
}
Result<float> Gguf::get_f32(std::string_view key) const {
    return gguf_meta_impl::one<float>(*this, key, nullptr, gguf_meta_impl::as_f32, gguf_meta_impl::kF32);
}
Result<float> Gguf::get_f32(std::string_view key, float if_missing) const {
    return gguf_meta_impl::one<float>(*this, key, &if_missing, gguf_meta_impl::as_f32, gguf_meta_impl::kF32);
}

Result<bool> Gguf::get_bool(std::string_view key, bool if_missing) const {
    namespace impl = gguf_meta_impl;
    const Meta* m = find(key);
    if (!m) return if_missing;
    if (m->is_array || m->type != MetaType::boolean) return impl::wrong(key, impl::described(*m), "a boolean");
    return load<uint8_t>(m->data) != 0;
}

Result<std::vector<uint32_t>> Gguf::get_u32s(std::string_view key, uint32_t n, const uint32_t* if_missing) const {
    return gguf_meta_impl::many<uint32_t>(*this, key, n, if_missing, gguf_meta_impl::as_u32, gguf_meta_impl::kU32);
}
Result<std::vector<float>> Gguf::get_f32s(std::string_view key, uint32_t n, const float* if_missing) const {
    return gguf_meta_impl::many<float>(*this, key, n, if_missing, gguf_meta_impl::as_f32, gguf_meta_impl::kF32);
}

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------ src/base/gguf_writer.cpp

// Writing: what tools and tests need to make a file that Gguf::parse accepts.

namespace auspex {
namespace detail {
namespace gguf_writer_impl {

template <class T>
void put(std::string& s, T v) {
    char b[sizeof(T)];
    std::memcpy(b, &v, sizeof(T));
    s.append(b, sizeof(T));
}
inline void put_string(std::string& s, std::string_view v) {
    put<uint64_t>(s, v.size());
    s.append(v);
}
template <class T>
std::string bytes_of(T v) {
    std::string s;
    put(s, v);
    return s;
}
/// The elements of a numeric array, one after the other.
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

}  // namespace gguf_writer_impl

void GgufWriter::add_raw(std::string_view key, uint32_t type, int64_t n, std::string_view bytes) {
    namespace impl = gguf_writer_impl;
    impl::put_string(meta_, key);
    if (n >= 0) {
        impl::put<uint32_t>(meta_, impl::id(MetaType::array));
        impl::put<uint32_t>(meta_, type);
        impl::put<uint64_t>(meta_, static_cast<uint64_t>(n));
    } else {
        impl::put<uint32_t>(meta_, type);
    }
    meta_.append(bytes);
    ++n_meta_;
}

void GgufWriter::add(std::string_view key, std::string_view value) {
    std::string s;
    gguf_writer_impl::put_string(s, value);
    add_raw(key, gguf_writer_impl::id(MetaType::string), -1, s);
}
void GgufWriter::add(std::string_view key, uint32_t value) {
    if (key == "general.alignment") {
        AUSPEX_ASSERT(infos_.empty() && value != 0 && (value & (value - 1)) == 0);
        alignment_ = value;
    }
    add_raw(key, gguf_writer_impl::id(MetaType::u32), -1, gguf_writer_impl::bytes_of(value));
}
void GgufWriter::add(std::string_view key, int32_t value) {
    add_raw(key, gguf_writer_impl::id(MetaType::i32), -1, gguf_writer_impl::bytes_of(value));
}
void GgufWriter::add(std::string_view key, float value) {
    add_raw(key, gguf_writer_impl::id(MetaType::f32), -1, gguf_writer_impl::bytes_of(value));
}
void GgufWriter::add(std::string_view key, bool value) {
    add_raw(key, gguf_writer_impl::id(MetaType::boolean), -1, gguf_writer_impl::bytes_of<uint8_t>(value ? 1 : 0));
}
void GgufWriter::add(std::string_view key, uint16_t value) {
    add_raw(key, gguf_writer_impl::id(MetaType::u16), -1, gguf_writer_impl::bytes_of(value));
}

void GgufWriter::add(std::string_view key, const std::vector<std::string>& values) {
    std::string s;
    for (const std::string& v : values) gguf_writer_impl::put_string(s, v);
    add_raw(key, gguf_writer_impl::id(MetaType::string), gguf_writer_impl::length(values), s);
}
void GgufWriter::add(std::string_view key, const std::vector<int32_t>& values) {
    namespace impl = gguf_writer_impl;
    add_raw(key, impl::id(MetaType::i32), impl::length(values), impl::list_bytes<int32_t>(values));
}
void GgufWriter::add(std::string_view key, const std::vector<uint32_t>& values) {
    namespace impl = gguf_writer_impl;
    add_raw(key, impl::id(MetaType::u32), impl::length(values), impl::list_bytes<uint32_t>(values));
}
void GgufWriter::add(std::string_view key, const std::vector<float>& values) {
    namespace impl = gguf_writer_impl;
    add_raw(key, impl::id(MetaType::f32), impl::length(values), impl::list_bytes<float>(values));
}
void GgufWriter::add(std::string_view key, const std::vector<bool>& values) {
    namespace impl = gguf_writer_impl;
    add_raw(key, impl::id(MetaType::boolean), impl::length(values), impl::list_bytes<uint8_t>(values));
}

void GgufWriter::tensor(std::string_view name, Type type, const std::vector<uint64_t>& ne, Span<const std::byte> bytes) {
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
    AUSPEX_ASSERT(can_encode(type));
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(type, values.size())));
    encode_row(type, values.data(), bytes.data(), values.size());  // rows are whole blocks: one long row is all rows
    tensor(name, type, ne, Span<const std::byte>(bytes));
}

std::vector<std::byte> GgufWriter::finish() const {
    namespace impl = gguf_writer_impl;
    std::string head = "GGUF";
    impl::put<uint32_t>(head, 3);
    impl::put<uint64_t>(head, infos_.size());
    impl::put<uint64_t>(head, n_meta_);
    head += meta_;
    for (const Info& info : infos_) {
        impl::put_string(head, info.name);
        impl::put<uint32_t>(head, static_cast<uint32_t>(info.ne.size()));
        for (const uint64_t n : info.ne) impl::put<uint64_t>(head, n);
        impl::put<uint32_t>(head, static_cast<uint32_t>(info.type));
        impl::put<uint64_t>(head, info.offset);
    }
    head.resize(static_cast<size_t>(round_up(head.size(), alignment_)));
    std::vector<std::byte> file(head.size() + data_.size());
    std::memcpy(file.data(), head.data(), head.size());
    if (!data_.empty()) std::memcpy(file.data() + head.size(), data_.data(), data_.size());
    return file;
}

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------------- src/base/json.cpp

#include <unordered_map>

namespace auspex {
namespace detail {
namespace json_impl {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// A JSON number as Python prints it after reading it: integers keep their digits, others become the
/// shortest text that reads back as the same double.
std::string python_number(const std::string& text, bool as_json) {
    if (text.find_first_of(".eE") == std::string::npos) return text == "-0" ? "0" : text;
    // strtod and snprintf follow the process's locale; only the decimal sign differs.
    char probe[8];
    std::snprintf(probe, sizeof probe, "%.1f", 0.5);
    const char point = probe[1];
    std::string local = text;
    for (char& c : local)
        if (c == '.') c = point;
    const double value = std::strtod(local.c_str(), nullptr);
    if (std::isinf(value)) return std::string(value < 0 ? "-" : "") + (as_json ? "Infinity" : "inf");
    char b[40];
    for (int digits = 0; digits < 17; ++digits) {
        std::snprintf(b, sizeof b, "%.*e", digits, value);
        if (std::strtod(b, nullptr) == value) break;
    }
    // b is [-]d[.ddd]e[+-]xx; take it apart and lay it out as Python does.
    std::string digits;
    const char* p = b;
    const bool negative = *p == '-';
    if (negative) ++p;
    for (; *p != 'e'; ++p)
        if (is_digit(*p)) digits += *p;
    const int exponent = static_cast<int>(std::strtol(p + 1, nullptr, 10));
    while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
    const int n = static_cast<int>(digits.size());
    std::string out = negative ? "-" : "";
    if (exponent >= 16 || exponent < -4) {
        out += digits[0];
        if (n > 1) out += "." + digits.substr(1);
        const int size = exponent < 0 ? -exponent : exponent;
        out += say("e", exponent < 0 ? "-" : "+", size < 10 ? "0" : "", size);
    } else if (exponent < 0) {
        out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
    } else if (n > exponent + 1) {
        out += digits.substr(0, static_cast<size_t>(exponent) + 1) + "." + digits.substr(static_cast<size_t>(exponent) + 1);
    } else {
        out += digits + std::string(static_cast<size_t>(exponent + 1 - n), '0') + ".0";
    }
    return out;
}

void dump_string(std::string& out, const std::string& text) {
    static const char kHex[] = "0123456789abcdef";
    out += '"';
    for (const char c : text) {
        switch (c) {
            case '"': out += "\\\""; break;
            case '\\': out += "\\\\"; break;
            case '\n': out += "\\n"; break;
            case '\r': out += "\\r"; break;
            case '\t': out += "\\t"; break;
            case '\b': out += "\\b"; break;
            case '\f': out += "\\f"; break;
            default:
                if (static_cast<unsigned char>(c) < 0x20) {
                    out += "\\u00";
                    out += kHex[c >> 4];
                    out += kHex[c & 15];
                } else {
                    out += c;
                }
        }
    }
    out += '"';
}

}  // namespace json_impl

/// A recursive reader; the first failure sticks in `status`.
class JsonReader {
  public:
    JsonReader(std::string_view text, const Json::Limits& limits) : text_(text), limits_(limits) {}

    Status read(Json& out) {
        if (text_.size() > limits_.max_bytes)
            return fail(Code::bad_argument, "JSON text of ", text_.size(), " bytes, at most ", limits_.max_bytes, " are read");
        const size_t bad = find_bad_utf8(text_);
        if (bad < text_.size()) {
            at_ = bad;
            expected("UTF-8");
            return status_;
        }
        if (!value(out, 0)) return status_;
        space();
        if (at_ < text_.size()) expected("the end of the JSON text");
        return status_;
    }

  private:
    bool expected(const char* what) {
        size_t line = 1, column = 1;
        for (size_t i = 0; i < at_; ++i) {
            if (text_[i] == '\n') {
                ++line;
                column = 1;
            } else if ((static_cast<unsigned char>(text_[i]) & 0xC0) != 0x80) {
                ++column;
            }
        }
        std::string found = "the end";
        if (at_ < text_.size()) {
            const unsigned char c = static_cast<unsigned char>(text_[at_]);
            char b[16];
            std::snprintf(b, sizeof b, c > 0x20 && c < 0x7F ? "'%c'" : "byte 0x%02x", static_cast<unsigned>(c));
            found = b;
        }
        status_ = fail(Code::bad_argument, "JSON: expected ", what, ", found ", found, " at line ", line, ", column ", column,
                       " (byte ", at_, ")");
        return false;
    }

    void space() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) ++at_;
    }
    bool have(char c) const { return at_ < text_.size() && text_[at_] == c; }
    bool take(char c) {
        if (!have(c)) return false;
        ++at_;
        return true;
    }
    bool word(const char* w) {
        const std::string_view v(w);
        if (text_.substr(at_, v.size()) != v) return expected("a value");
        at_ += v.size();
        return true;
    }

    bool value(Json& out, size_t depth) {
        if (++n_value_ > limits_.max_values) {
            status_ = fail(Code::bad_argument, "JSON: more than ", limits_.max_values, " values");
            return false;
        }
        if (depth > limits_.max_depth) {
            status_ = fail(Code::bad_argument, "JSON: nested deeper than ", limits_.max_depth, " levels at byte ", at_);
            return false;
        }
        space();
        if (at_ == text_.size()) return expected("a value");
        switch (text_[at_]) {
            case '{': return object(out, depth);
            case '[': return array(out, depth);
            case '"': out.kind_ = Json::Kind::string; return string(out.text_);
            case 't': out.kind_ = Json::Kind::boolean; out.boolean_ = true; return word("true");
            case 'f': out.kind_ = Json::Kind::boolean; return word("false");
            case 'n': return word("null");
            default: return number(out);
        }
    }

    bool number(Json& out) {
        const size_t from = at_;
        const auto digits = [this] {
            if (at_ == text_.size() || !json_impl::is_digit(text_[at_])) return false;
            while (at_ < text_.size() && json_impl::is_digit(text_[at_])) ++at_;
            return true;
        };
        const bool minus = take('-');
        if (!take('0') && !digits()) return expected(minus ? "a digit" : "a value");
        if (take('.') && !digits()) return expected("a digit");
        if (have('e') || have('E')) {
            ++at_;
            if (!take('+')) take('-');
            if (!digits()) return expected("a digit");
        }
        out.kind_ = Json::Kind::number;
        out.text_ = std::string(text_.substr(from, at_ - from));
        return true;
    }

    bool hex4(uint32_t* out) {
        *out = 0;
        for (int i = 0; i < 4; ++i, ++at_) {
            const char c = at_ < text_.size() ? text_[at_] : '\0';
            uint32_t d = 0;
            if (json_impl::is_digit(c)) d = static_cast<uint32_t>(c - '0');
            else if (c >= 'a' && c <= 'f') d = static_cast<uint32_t>(c - 'a' + 10);
            else if (c >= 'A' && c <= 'F') d = static_cast<uint32_t>(c - 'A' + 10);
            else return expected("four hexadecimal digits");
            *out = *out << 4 | d;
        }
        return true;
    }

    bool string(std::string& out) {
        ++at_;
        for (;;) {
            const size_t from = at_;
            while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' && static_cast<unsigned char>(text_[at_]) >= 0x20) ++at_;
            out.append(text_.substr(from, at_ - from));
            if (take('"')) return true;
            if (!take('\\')) return expected("a closing quote (control characters are written as escapes)");
            const char c = at_ < text_.size() ? text_[at_] : '\0';
            static const char kFrom[] = "\"\\/bfnrt", kTo[] = "\"\\/\b\f\n\r\t";
            const char* simple = c != '\0' ? std::strchr(kFrom, c) : nullptr;
            if (simple != nullptr) {
                out += kTo[simple - kFrom];
                ++at_;
            } else if (c == 'u') {
                ++at_;
                uint32_t high = 0, low = 0;
                if (!hex4(&high)) return false;
                if (high >= 0xD800 && high <= 0xDBFF && text_.substr(at_, 2) == "\\u") {
                    const size_t back = at_;
                    at_ += 2;
                    if (!hex4(&low)) return false;
                    if (low >= 0xDC00 && low <= 0xDFFF) high = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
                    else at_ = back;
                }
                append_utf8(out, high);
            } else {
                return expected("an escape: one of \" \\ / b f n r t u");
            }
        }
    }

    bool array(Json& out, size_t depth) {
        out.kind_ = Json::Kind::array;
        ++at_;
        space();
        if (take(']')) return true;
        for (;;) {
            out.items_.emplace_back();
            if (!value(out.items_.back(), depth + 1)) return false;
            space();
            if (take(']')) return true;
            if (!take(',')) return expected("',' or ']'");
        }
    }

    bool object(Json& out, size_t depth) {
        out.kind_ = Json::Kind::object;
        std::unordered_map<std::string, size_t> seen;  // only once there are enough keys to need it
        ++at_;
        space();
        if (take('}')) return true;
        for (;;) {
            space();
            if (!have('"')) return expected("a key in quotes");
            std::string key;
            if (!string(key)) return false;
            space();
            if (!take(':')) return expected("':'");
            size_t place = out.keys_.size();
            if (out.keys_.size() < 16) {
                for (size_t i = 0; i < out.keys_.size(); ++i)
                    if (out.keys_[i] == key) place = i;
            } else {
                if (seen.empty())
                    for (size_t i = 0; i < out.keys_.size(); ++i) seen.emplace(out.keys_[i], i);
                place = seen.emplace(key, place).first->second;
            }
            if (place == out.keys_.size()) {
                out.keys_.push_back(std::move(key));
                out.items_.emplace_back();
            } else {
                out.items_[place] = Json();
            }
            if (!value(out.items_[place], depth + 1)) return false;
            space();
            if (take('}')) return true;
            if (!take(',')) return expected("',' or '}'");
        }
    }

    std::string_view text_;
    const Json::Limits& limits_;
    size_t at_ = 0, n_value_ = 0;
    Status status_;
};

Result<Json> Json::parse(std::string_view text, const Limits& limits) {
    Json value;
    Status status = JsonReader(text, limits).read(value);
    if (!status.ok()) return status;
    return value;
}

Json Json::of_string(std::string_view text) {
    Json value;
    value.kind_ = Kind::string;
    value.text_ = std::string(text);
    return value;
}

const char* Json::kind_name() const {
    switch (kind_) {
        case Kind::null: return "null";
        case Kind::boolean: return "a boolean";
        case Kind::number: return "a number";
        case Kind::string: return "a string";
        case Kind::array: return "an array";
        case Kind::object: break;
    }
    return "an object";
}

const Json* Json::find(std::string_view key) const {
    for (size_t i = 0; i < keys_.size(); ++i)
        if (keys_[i] == key) return &items_[i];
    return nullptr;
}

void Json::dump_to(std::string& out) const {
    switch (kind_) {
        case Kind::null: out += "null"; return;
        case Kind::boolean: out += boolean_ ? "true" : "false"; return;
        case Kind::number: out += json_impl::python_number(text_, true); return;
        case Kind::string: json_impl::dump_string(out, text_); return;
        case Kind::array:
        case Kind::object: break;
    }
    const bool object = kind_ == Kind::object;
    out += object ? '{' : '[';
    for (size_t i = 0; i < items_.size(); ++i) {
        if (i > 0) out += ", ";
        if (object) {
            json_impl::dump_string(out, keys_[i]);
            out += ": ";
        }
        items_[i].dump_to(out);
    }
    out += object ? '}' : ']';
}

std::string Json::dump() const {
    std::string out;
    dump_to(out);
    return out;
}

std::string Json::python_str() const {
    switch (kind_) {
        case Kind::null: return "None";
        case Kind::boolean: return boolean_ ? "True" : "False";
        case Kind::number: return json_impl::python_number(text_, false);
        case Kind::string: return text_;
        case Kind::array:
        case Kind::object: break;
    }
    return dump();
}

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------ src/base/token_split.cpp

namespace auspex {
namespace detail {
namespace split_impl {

enum Bits : uint8_t { kWord = 1, kNumber = 2, kSpace = 4, kLetter = 8, kBreak = 16 };

struct Char {
    uint8_t bits;
    size_t length;
    bool is(uint8_t b) const { return (bits & b) != 0; }
    bool punctuation() const { return (bits & (kWord | kNumber | kSpace)) == 0; }
};

class Scanner {
  public:
    Scanner(std::string_view text, Split split) : text_(text), marks_(split == Split::qwen35) {}

    /// The character at `at`; at the end one of length 0 that is white space and nothing more.
    Char look(size_t at) {
        if (at >= text_.size()) return Char{kSpace, 0};
        ++n_look;
        Char c{0, 1};
        const uint32_t code = decode_utf8(text_.data() + at, text_.size() - at, &c.length);
        if (code == '\r' || code == '\n') {
            c.bits = kSpace | kBreak;
        } else if (is_white_space(code)) {
            c.bits = kSpace;
        } else {
            switch (char_class(code)) {
                case CharClass::letter: c.bits = kWord | kLetter; break;
                case CharClass::number: c.bits = kNumber; break;
                case CharClass::mark: c.bits = marks_ ? kWord : 0; break;
                case CharClass::other: break;
            }
        }
        return c;
    }

    size_t run_of_words(size_t at) {
        for (Char c = look(at); c.is(kWord); c = look(at)) at += c.length;
        return at;
    }

    uint64_t n_look = 0;

  private:
    std::string_view text_;
    bool marks_;
};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// The length of an English contraction at the front of `text`, or 0.
size_t contraction(std::string_view text) {
    if (text.size() < 2 || text[0] != '\'') return 0;
    const char a = lower(text[1]), b = text.size() > 2 ? lower(text[2]) : '\0';
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

size_t next(Scanner& scan, std::string_view text, size_t at) {
    if (const size_t n = contraction(text.substr(at, 3))) return at + n;

    const Char first = scan.look(at);
    const size_t second_at = at + first.length;
    // A word, with one character before it that is neither letter, number nor line break.
    if (!first.is(kBreak | kLetter | kNumber)) {
        const Char second = scan.look(second_at);
        if (second.is(kWord)) return scan.run_of_words(second_at + second.length);
    }
    if (first.is(kWord)) return scan.run_of_words(second_at);
    if (first.is(kNumber)) return second_at;

    // Punctuation, with one space before it and line breaks after it.
    size_t end = text[at] == ' ' && scan.look(second_at).punctuation() ? second_at : at;
    if (scan.look(end).punctuation()) {
        for (Char c = scan.look(end); c.punctuation(); c = scan.look(end)) end += c.length;
        while (end < text.size() && (text[end] == '\r' || text[end] == '\n')) ++end;
        return end;
    }

    // White space: through its last line break; else all but the last character, which belongs to
    // what follows; all of it at the end of the text.
    size_t last = at, after_break = 0, n_char = 0;
    end = at;
    for (Char c = first; c.length > 0 && c.is(kSpace); c = scan.look(end)) {
        last = end;
        end += c.length;
        ++n_char;
        if (c.is(kBreak)) after_break = end;
    }
    if (after_break > 0) return after_break;
    return n_char > 1 && end < text.size() ? last : end;
}

}  // namespace split_impl

size_t split_piece(std::string_view text, size_t at, Split split, uint64_t* n_look) {
    split_impl::Scanner scan(text, split);
    const size_t end = split_impl::next(scan, text, at);
    if (n_look != nullptr) *n_look += scan.n_look;
    return end;
}

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------------ src/base/token.cpp

namespace auspex {
namespace detail {
namespace token_impl {

constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kMaxTokens = size_t{1} << 22;
constexpr size_t kMaxTokenBytes = size_t{1} << 20;
constexpr size_t kMaxPoolBytes = size_t{1} << 30;
constexpr size_t kMaxPieceBytes = size_t{1} << 30;  ///< longer pieces are cut, so that positions fit 32 bits
constexpr size_t kShort = 32;                       ///< up to here a scan beats a queue

/// The byte alphabet of GPT-2: printable bytes stand for themselves, the other 68 for U+0100 onwards.
struct ByteAlphabet {
    uint16_t code_of[256] = {};
    int16_t byte_of[0x144] = {};
    constexpr ByteAlphabet() {
        for (int16_t& b : byte_of) b = -1;
        uint16_t more = 0x100;
        for (uint16_t b = 0; b < 256; ++b) {
            const bool plain = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
            code_of[b] = plain ? b : more++;
            byte_of[code_of[b]] = static_cast<int16_t>(b);
        }
    }
};
constexpr ByteAlphabet kAlphabet;

/// Appends the bytes that `text`, written in the byte alphabet, stands for.
bool append_raw(std::string& to, std::string_view text) {
    size_t n = 0;
    for (size_t at = 0; at < text.size(); at += n) {
        const uint32_t c = decode_utf8(text.data() + at, text.size() - at, &n);
        if (c >= 0x144 || kAlphabet.byte_of[c] < 0) return false;
        to += static_cast<char>(static_cast<unsigned char>(kAlphabet.byte_of[c]));
    }
    return true;
}

uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0x9E3779B97F4A7C15ull;
    x ^= x >> 29;
    x *= 0xD6E8FEB86659FD93ull;
    return x ^ (x >> 32);
}
uint64_t hash_bytes(std::string_view s) {
    uint64_t h = s.size();
    for (; s.size() >= 8; s.remove_prefix(8)) h = mix(h ^ load<uint64_t>(s.data()));
    uint64_t tail = 0;
    std::memcpy(&tail, s.data(), s.size());
    return mix(h ^ tail);
}
/// A power of two with at least half of it free once n entries are in.
size_t table_size(size_t n) {
    size_t size = 16;
    while (size < n * 2) size *= 2;
    return size;
}

/// A text for a message: at most 40 bytes of it, printable.
std::string shown(std::string_view text) {
    std::string s;
    for (const char c : text.substr(0, 40)) s += static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x7F ? c : '?';
    return text.size() > 40 ? s + "..." : s;
}

/// The strings of a required array, or why there are none.
Status string_array(const Gguf& gguf, const char* key, const std::vector<std::string_view>** out) {
    const Meta* m = gguf.find(key);
    if (m == nullptr) return fail(Code::bad_file, "the key '", key, "' is missing; the file has no usable tokenizer: convert it again");
    if (!m->is_array || m->type != MetaType::string || m->strings.size() != m->n)
        return fail(Code::bad_file, "the key '", key, "' is not an array of strings: convert the file again");
    *out = &m->strings;
    return Status();
}

Status check_name(const Gguf& gguf, const char* key, const char* supported, std::string* found) {
    if (gguf.find(key) == nullptr) return fail(Code::unsupported, "the key '", key, "' is missing; supported: ", supported);
    return gguf.get_string(key).get(*found);
}

}  // namespace token_impl

struct Tokenizer::Scratch {
    EncodeWork& work;
    std::string_view piece;
    std::vector<uint32_t> id, next, prev, rank, merged;
    std::vector<uint64_t> queue;
};

// ------------------------------------------------------------------------------------- loading

Result<Tokenizer> Tokenizer::load(const Gguf& gguf) {
    using namespace token_impl;
    Tokenizer t;
    std::string model, pre;
    if (Status s = check_name(gguf, "tokenizer.ggml.model", "gpt2 (byte-level BPE)", &model); !s.ok()) return s;
    if (model != "gpt2")
        return fail(Code::unsupported, "tokenizer.ggml.model is '", shown(model), "', supported: gpt2 (byte-level BPE)");
    if (Status s = check_name(gguf, "tokenizer.ggml.pre", "qwen2, qwen35", &pre); !s.ok()) return s;
    if (pre != "qwen2" && pre != "qwen35")
        return fail(Code::unsupported, "tokenizer.ggml.pre is '", shown(pre), "', supported: qwen2, qwen35");
    t.split_ = pre == "qwen2" ? Split::qwen2 : Split::qwen35;
    if (Status s = t.read_tokens(gguf); !s.ok()) return s;
    if (Status s = t.read_merges(gguf); !s.ok()) return s;
    if (Status s = t.read_ends(gguf); !s.ok()) return s;
    return t;
}

Status Tokenizer::read_tokens(const Gguf& gguf) {
    using namespace token_impl;
    const std::vector<std::string_view>* texts = nullptr;
    if (Status s = string_array(gguf, "tokenizer.ggml.tokens", &texts); !s.ok()) return s;
    const size_t n = texts->size();
    if (n == 0 || n > kMaxTokens) return fail(Code::bad_file, "the vocabulary has ", n, " tokens, expected 1..", kMaxTokens);
    const Meta* types = gguf.find("tokenizer.ggml.token_type");
    if (types == nullptr || !types->is_array || !types->is_integer())
        return fail(Code::bad_file, "the key 'tokenizer.ggml.token_type' is ", types == nullptr ? "missing" : "not an array of integers",
                    ", expected one i32 for each of ", n, " tokens: convert the file again");
    if (types->n != n)
        return fail(Code::bad_file, "'tokenizer.ggml.token_type' has ", types->n, " elements, expected one for each of ", n, " tokens");

    size_t n_byte = 0;
    for (const std::string_view text : *texts) {
        if (text.size() > kMaxTokenBytes) return fail(Code::bad_file, "a token of ", text.size(), " bytes, at most ", kMaxTokenBytes, " are allowed");
        n_byte += text.size();
        if (n_byte > kMaxPoolBytes) return fail(Code::bad_file, "the tokens hold more than ", kMaxPoolBytes, " bytes");
    }
    pool_.reserve(n_byte);
    offset_.reserve(n + 1);
    kind_.reserve(n);
    for (uint32_t id = 0; id < n; ++id) {
        offset_.push_back(static_cast<uint32_t>(pool_.size()));
        const std::string_view text = (*texts)[id];
        int64_t type = 0;
        if (!types->get_int(id, &type) || type < 1 || type > 6)
            return fail(Code::bad_file, "token ", id, " ('", shown(text), "') has type ", type, ", expected 1..6");
        kind_.push_back(static_cast<TokenKind>(type));
        if (kind_.back() == TokenKind::normal) {
            if (!append_raw(pool_, text))
                return fail(Code::bad_file, "token ", id, " ('", shown(text), "') is no text of the GPT-2 byte alphabet");
        } else if (kind_.back() == TokenKind::byte) {
            const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; };
            const bool form = text.size() == 6 && text.substr(0, 3) == "<0x" && text[5] == '>';
            if (!form || digit(text[3]) < 0 || digit(text[4]) < 0)
                return fail(Code::bad_file, "byte token ", id, " is '", shown(text), "', expected the form <0xAB>");
            pool_ += static_cast<char>(static_cast<unsigned char>(digit(text[3]) * 16 + digit(text[4])));
        } else if (kind_.back() != TokenKind::unused) {
            pool_.append(text);
            if (!text.empty()) specials_.push_back(id);
        }
    }
    offset_.push_back(static_cast<uint32_t>(pool_.size()));

    // Of equal texts the first id wins.
    by_bytes_.assign(table_size(n), kNone);
    const size_t mask = by_bytes_.size() - 1;
    for (uint32_t id = 0; id < n; ++id) {
        if (kind_[id] != TokenKind::normal || raw(id).empty()) continue;
        size_t at = hash_bytes(raw(id)) & mask;
        while (by_bytes_[at] != kNone && raw(by_bytes_[at]) != raw(id)) at = (at + 1) & mask;
        if (by_bytes_[at] == kNone) by_bytes_[at] = id;
    }
    for (uint32_t b = 0; b < 256; ++b) {
        const char c = static_cast<char>(static_cast<unsigned char>(b));
        byte_id_[b] = find_normal(std::string_view(&c, 1));
        if (byte_id_[b] == kNone)
            return fail(Code::bad_file, "the vocabulary has no token for the single byte ", b, "; byte-level BPE needs all 256: convert the file again");
    }

    std::sort(specials_.begin(), specials_.end(), [this](uint32_t a, uint32_t b) {
        const int order = raw(a).compare(raw(b));
        return order != 0 ? order < 0 : a < b;
    });
    uint32_t at = 0;
    for (uint32_t b = 0; b < 256; ++b) {
        special_from_[b] = at;
        while (at < specials_.size() && static_cast<unsigned char>(raw(specials_[at])[0]) == b) ++at;
    }
    special_from_[256] = at;
    return Status();
}

Status Tokenizer::read_merges(const Gguf& gguf) {
    using namespace token_impl;
    const std::vector<std::string_view>* texts = nullptr;
    if (Status s = string_array(gguf, "tokenizer.ggml.merges", &texts); !s.ok()) return s;
    if (texts->size() > kMaxTokens * 2) return fail(Code::bad_file, texts->size(), " merges, at most ", kMaxTokens * 2, " are allowed");
    merges_.assign(table_size(texts->size()), Merge());
    const size_t mask = merges_.size() - 1;
    std::string both;
    for (uint32_t rank = 0; rank < texts->size(); ++rank) {
        const std::string_view text = (*texts)[rank];
        // The first space from position 1 on: a lone space cannot occur in the byte alphabet, so
        // position 0 is only skipped for files that follow the rule to the letter.
        const size_t cut = text.find(' ', 1);
        if (cut == std::string_view::npos || cut + 1 == text.size())
            return fail(Code::bad_file, "merge ", rank, " is '", shown(text), "', expected two texts with one space between");
        both.clear();
        bool known = append_raw(both, text.substr(0, cut));
        const size_t middle = both.size();
        known = known && append_raw(both, text.substr(cut + 1));
        // Only normal tokens take part: no sequence of merges can spell a control token.
        const std::string_view all(both);
        const uint32_t left = known ? find_normal(all.substr(0, middle)) : kNone;
        const uint32_t right = known ? find_normal(all.substr(middle)) : kNone;
        const uint32_t merged = known ? find_normal(all) : kNone;
        if (left == kNone || right == kNone || merged == kNone) {
            ++n_merge_skipped_;
            continue;
        }
        const uint64_t pair = uint64_t{left} << 32 | right;
        size_t at = mix(pair) & mask;
        while (merges_[at].pair != UINT64_MAX && merges_[at].pair != pair) at = (at + 1) & mask;
        if (merges_[at].pair == UINT64_MAX) {
            merges_[at].pair = pair;
            merges_[at].rank = rank;
            merges_[at].merged = merged;
        }
    }
    return Status();
}

Status Tokenizer::read_ends(const Gguf& gguf) {
    static const char* const kIds[] = {"eos", "eot", "eom", "bos", "padding", "unknown", "mask", "seperator",
                                       "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"};
    for (size_t i = 0; i < sizeof kIds / sizeof kIds[0]; ++i) {
        const std::string key = say("tokenizer.ggml.", kIds[i], "_token_id");
        const Meta* m = gguf.find(key);
        if (m == nullptr) continue;
        int64_t id = -1;
        if (m->is_array || !m->get_int(0, &id)) return fail(Code::bad_file, "the key '", key, "' is no integer");
        if (id < 0 || id >= int64_t{n_vocab()})
            return fail(Code::bad_file, "'", key, "' is ", id, ", outside the vocabulary of ", n_vocab(), " tokens");
        if (i == 0) eos_ = static_cast<Token>(id);
        if (i < 3) ends_.push_back(static_cast<Token>(id));
    }
    for (const char* text : {"<|im_end|>", "<|endoftext|>"}) {
        const Token id = find(text);
        if (id >= 0 && kind(id) != TokenKind::normal) ends_.push_back(id);
    }
    std::sort(ends_.begin(), ends_.end());
    ends_.erase(std::unique(ends_.begin(), ends_.end()), ends_.end());
    return Status();
}

// ------------------------------------------------------------------------------------- looking

uint32_t Tokenizer::find_normal(std::string_view text) const {
    if (by_bytes_.empty() || text.empty()) return token_impl::kNone;
    const size_t mask = by_bytes_.size() - 1;
    size_t at = token_impl::hash_bytes(text) & mask;
    while (by_bytes_[at] != token_impl::kNone && raw(by_bytes_[at]) != text) at = (at + 1) & mask;
    return by_bytes_[at];
}

const Tokenizer::Merge* Tokenizer::find_merge(uint32_t left, uint32_t right) const {
    const uint64_t pair = uint64_t{left} << 32 | right;
    const size_t mask = merges_.size() - 1;
    size_t at = token_impl::mix(pair) & mask;
    while (merges_[at].pair != UINT64_MAX && merges_[at].pair != pair) at = (at + 1) & mask;
    return merges_[at].pair == pair ? &merges_[at] : nullptr;
}

Token Tokenizer::find(std::string_view text) const {
    const auto place = std::lower_bound(specials_.begin(), specials_.end(), text,
                                        [this](uint32_t id, std::string_view t) { return raw(id) < t; });
    if (place != specials_.end() && raw(*place) == text) return static_cast<Token>(*place);
    const uint32_t id = find_normal(text);
    return id == token_impl::kNone ? -1 : static_cast<Token>(id);
}

bool Tokenizer::is_end(Token id) const { return std::binary_search(ends_.begin(), ends_.end(), id); }

std::string_view Tokenizer::piece_bytes(Token id, bool special) const {
    if (id < 0 || static_cast<size_t>(id) >= kind_.size()) return {};
    const TokenKind kind = kind_[static_cast<size_t>(id)];
    if (!special && (kind == TokenKind::control || kind == TokenKind::unknown)) return {};
    return raw(static_cast<uint32_t>(id));
}

std::string Tokenizer::decode(Span<const Token> ids, bool special) const {
    std::string out;
    for (const Token id : ids) out.append(piece_bytes(id, special));
    return out;
}

// ------------------------------------------------------------------------------------ encoding

std::vector<Token> Tokenizer::encode(std::string_view text, bool special, EncodeWork* work) const {
    EncodeWork unused;
    std::string repaired;
    if (find_bad_utf8(text) < text.size()) {
        append_repaired(repaired, text);
        text = repaired;
    }
    std::vector<Range> control;
    if (special) control.push_back(Range{0, text.size()});
    return encode_ranges(text, control, work != nullptr ? *work : unused);
}

std::vector<Token> Tokenizer::encode(const ChatPrompt& prompt) const {
    EncodeWork unused;
    std::string text;
    std::vector<Range> control;
    for (const ChatPrompt::Piece& piece : prompt.pieces) {
        const size_t from = text.size();
        append_repaired(text, piece.text);
        if (!piece.from_template || text.size() == from) continue;
        if (!control.empty() && control.back().to == from) control.back().to = text.size();
        else control.push_back(Range{from, text.size()});
    }
    return encode_ranges(text, control, unused);
}

/// The longest special token at text[at]; one that ends beyond `control_end` must be user-defined.
uint32_t Tokenizer::special_at(std::string_view text, size_t at, size_t control_end, size_t* length) const {
    const unsigned char first = static_cast<unsigned char>(text[at]);
    auto from = specials_.begin() + special_from_[first], to = specials_.begin() + special_from_[first + 1];
    uint32_t best = token_impl::kNone;
    // All of [from, to) agree with the text in their first `n` bytes; the shortest come first.
    for (size_t n = 1; from != to; ++n) {
        for (; from != to && raw(*from).size() == n; ++from) {
            const bool allowed = kind_[*from] == TokenKind::user_defined || at + n <= control_end;
            if (allowed && (best == token_impl::kNone || *length < n)) {
                best = *from;
                *length = n;
            }
        }
        if (from == to || at + n == text.size()) break;
        const unsigned char want = static_cast<unsigned char>(text[at + n]);
        const auto byte = [this, n](uint32_t id) { return static_cast<unsigned char>(raw(id)[n]); };
        from = std::partition_point(from, to, [&](uint32_t id) { return byte(id) < want; });
        to = std::partition_point(from, to, [&](uint32_t id) { return byte(id) == want; });
    }
    return best;
}

std::vector<Token> Tokenizer::encode_ranges(std::string_view text, const std::vector<Range>& control, EncodeWork& work) const {
    std::vector<Token> ids;
    if (kind_.empty()) return ids;
    Scratch scratch{work, {}, {}, {}, {}, {}, {}, {}};
    size_t plain_from = 0, at = 0;
    auto range = control.begin();
    while (at < text.size()) {
        const unsigned char first = static_cast<unsigned char>(text[at]);
        if (special_from_[first] == special_from_[first + 1u]) {
            ++at;
            continue;
        }
        while (range != control.end() && range->to <= at) ++range;
        const size_t control_end = range != control.end() && range->from <= at ? range->to : 0;
        size_t length = 0;
        const uint32_t id = special_at(text, at, control_end, &length);
        if (id == token_impl::kNone) {
            ++at;
            continue;
        }
        encode_plain(text.substr(plain_from, at - plain_from), scratch, ids);
        ids.push_back(static_cast<Token>(id));
        at += length;
        plain_from = at;
    }
    encode_plain(text.substr(plain_from), scratch, ids);
    return ids;
}

void Tokenizer::encode_plain(std::string_view text, Scratch& scratch, std::vector<Token>& ids) const {
    for (size_t at = 0; at < text.size();) {
        const size_t end = split_piece(text, at, split_, &scratch.work.n_look);
        while (at < end) {
            scratch.piece = text.substr(at, std::min(end - at, token_impl::kMaxPieceBytes));
            at += scratch.piece.size();
            if (scratch.piece.size() <= token_impl::kShort) merge_short(scratch, ids);
            else merge_long(scratch, ids);
        }
    }
}

/// Merges the pair of lowest rank, the leftmost of equals, until none is left: by scanning.
void Tokenizer::merge_short(Scratch& scratch, std::vector<Token>& ids) const {
    using token_impl::kNone;
    uint32_t id[token_impl::kShort];
    const Merge* merge[token_impl::kShort];  // of i and i + 1
    size_t n = scratch.piece.size();
    for (size_t i = 0; i < n; ++i) id[i] = byte_id_[static_cast<unsigned char>(scratch.piece[i])];
    for (size_t i = 0; i + 1 < n; ++i) merge[i] = find_merge(id[i], id[i + 1]);
    scratch.work.n_pair += n - 1;
    while (n > 1) {
        size_t best = n;
        uint32_t rank = kNone;
        for (size_t i = 0; i + 1 < n; ++i) {
            if (merge[i] != nullptr && merge[i]->rank < rank) {
                best = i;
                rank = merge[i]->rank;
            }
        }
        scratch.work.n_queue += n;
        if (best == n) break;
        id[best] = merge[best]->merged;
        for (size_t i = best + 1; i + 1 < n; ++i) id[i] = id[i + 1];
        for (size_t i = best + 1; i + 2 < n; ++i) merge[i] = merge[i + 1];
        --n;
        if (best > 0) merge[best - 1] = find_merge(id[best - 1], id[best]);
        if (best + 1 < n) merge[best] = find_merge(id[best], id[best + 1]);
        scratch.work.n_pair += 2;
    }
    for (size_t i = 0; i < n; ++i) ids.push_back(static_cast<Token>(id[i]));
}

/// The same by a queue of (rank, position). An entry is stale when the pair that now begins at its
/// position has another rank.
void Tokenizer::merge_long(Scratch& s, std::vector<Token>& ids) const {
    using token_impl::kNone;
    const uint32_t n = static_cast<uint32_t>(s.piece.size());
    for (std::vector<uint32_t>* v : {&s.id, &s.next, &s.prev, &s.rank, &s.merged}) v->resize(n);
    for (uint32_t i = 0; i < n; ++i) {
        s.id[i] = byte_id_[static_cast<unsigned char>(s.piece[i])];
        s.next[i] = i + 1;
        s.prev[i] = i - 1;  // of 0: kNone
    }
    const auto look_up = [&](uint32_t i) {
        const uint32_t j = s.next[i];
        const Merge* m = j < n ? find_merge(s.id[i], s.id[j]) : nullptr;
        ++s.work.n_pair;
        s.rank[i] = m != nullptr ? m->rank : kNone;
        s.merged[i] = m != nullptr ? m->merged : kNone;
        return m != nullptr;
    };
    const auto later = [](uint64_t a, uint64_t b) { return a > b; };
    s.queue.clear();
    for (uint32_t i = 0; i < n; ++i)
        if (look_up(i)) s.queue.push_back(uint64_t{s.rank[i]} << 32 | i);
    std::make_heap(s.queue.begin(), s.queue.end(), later);
    const auto push = [&](uint32_t i) {
        s.queue.push_back(uint64_t{s.rank[i]} << 32 | i);
        std::push_heap(s.queue.begin(), s.queue.end(), later);
    };
    while (!s.queue.empty()) {
        const uint64_t entry = s.queue.front();
        std::pop_heap(s.queue.begin(), s.queue.end(), later);
        s.queue.pop_back();
        ++s.work.n_queue;
        const uint32_t i = static_cast<uint32_t>(entry);
        if (s.rank[i] != static_cast<uint32_t>(entry >> 32)) continue;
        const uint32_t gone = s.next[i];
        s.id[i] = s.merged[i];
        s.rank[gone] = kNone;
        s.next[i] = s.next[gone];
        if (s.next[i] < n) s.prev[s.next[i]] = i;
        if (look_up(i)) push(i);
        if (s.prev[i] != kNone && look_up(s.prev[i])) push(s.prev[i]);
    }
    for (uint32_t i = 0; i < n; i = s.next[i]) ids.push_back(static_cast<Token>(s.id[i]));
}

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------ src/base/text_stream.cpp

namespace auspex {
namespace detail {

std::string take_characters(std::string& bytes, bool all) {
    size_t keep = 0;
    if (!all) {
        for (size_t n = 1; n <= 3 && n <= bytes.size(); ++n)
            if (is_utf8_prefix(bytes.data() + bytes.size() - n, n)) keep = n;
    }
    std::string out;
    append_repaired(out, std::string_view(bytes).substr(0, bytes.size() - keep));
    bytes.erase(0, bytes.size() - keep);
    return out;
}

std::string take_unstopped(std::string& held, const std::vector<std::string>& stops, bool all, bool* stopped) {
    constexpr size_t kNever = std::string::npos;
    size_t stop_end = kNever, stop_from = kNever, n_hold = 0;
    std::vector<size_t> back;  // Knuth, Morris, Pratt: the longest border of each prefix of the stop
    for (const std::string& stop : stops) {
        if (stop.empty()) continue;
        back.assign(stop.size(), 0);
        for (size_t i = 1, n = 0; i < stop.size(); ++i) {
            while (n > 0 && stop[i] != stop[n]) n = back[n - 1];
            if (stop[i] == stop[n]) ++n;
            back[i] = n;
        }
        size_t n = 0;
        for (size_t i = 0; i < held.size() && i < stop_end; ++i) {
            while (n > 0 && held[i] != stop[n]) n = back[n - 1];
            if (held[i] == stop[n]) ++n;
            if (n < stop.size()) continue;
            const size_t from = i + 1 - n;
            if (i + 1 < stop_end || from < stop_from) stop_from = from;
            stop_end = i + 1;
            break;
        }
        if (n < stop.size() && n > n_hold) n_hold = n;
    }
    std::string out;
    if (stop_end != kNever) {
        *stopped = true;
        out = held.substr(0, stop_from);
        held.clear();
        return out;
    }
    if (all) n_hold = 0;
    out = held.substr(0, held.size() - n_hold);
    held.erase(0, held.size() - n_hold);
    return out;
}

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------------- src/base/chat.cpp

namespace auspex {
namespace detail {

const char kToolInstructions[] =
    "\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n"
    "<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n</parameter>\n"
    "</function>\n</tool_call>\n\n"
    "<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after\n"
    "- If there is no function call available, answer the question like normal with your current knowledge and do not tell "
    "the user about function calls\n"
    "</IMPORTANT>";

namespace chat_impl {

/// Text of which some stretches were written by the template.
struct Marked {
    std::string text;
    std::vector<std::pair<size_t, size_t>> marks;  ///< [from, to), ascending

    void add(std::string_view part, bool mark) {
        if (mark) marks.emplace_back(text.size(), text.size() + part.size());
        text.append(part);
    }
    /// The stretch `part`, a view into `text`.
    Marked cut(std::string_view part) const {
        const size_t from = static_cast<size_t>(part.data() - text.data()), to = from + part.size();
        Marked out;
        out.text = std::string(part);
        for (const auto& m : marks) {
            const size_t a = m.first < from ? from : m.first, b = m.second > to ? to : m.second;
            if (a < b) out.marks.emplace_back(a - from, b - from);
        }
        return out;
    }
};

/// Collects pieces; neighbours of one origin are joined.
class Writer {
  public:
    void fixed(std::string_view text) { add(text, true); }
    void input(std::string_view text) { add(text, false); }
    void input(const Marked& m) {
        size_t at = 0;
        for (const auto& mark : m.marks) {
            add(std::string_view(m.text).substr(at, mark.first - at), false);
            add(std::string_view(m.text).substr(mark.first, mark.second - mark.first), true);
            at = mark.second;
        }
        add(std::string_view(m.text).substr(at), false);
    }
    ChatPrompt prompt;

  private:
    void add(std::string_view text, bool fixed) {
        if (text.empty()) return;
        if (prompt.pieces.empty() || prompt.pieces.back().from_template != fixed)
            prompt.pieces.push_back(ChatPrompt::Piece{std::string(), fixed});
        prompt.pieces.back().text.append(text);
    }
};

bool starts_with(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }
bool ends_with(std::string_view text, std::string_view with) {
    return text.size() >= with.size() && text.substr(text.size() - with.size()) == with;
}
bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string_view strip_newlines_left(std::string_view text) {
    while (!text.empty() && text.front() == '\n') text.remove_prefix(1);
    return text;
}
std::string_view strip_newlines_right(std::string_view text) {
    while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
    return text;
}

/// What the three Qwen templates write; they differ in a handful of places, named by `style_`.
class Qwen {
  public:
    Qwen(const ChatRequest& request, ChatStyle style) : request_(request), messages_(request.messages), style_(style) {}

    Result<ChatPrompt> render() {
        if (messages_.empty()) return fail(Code::bad_argument, "No messages provided.");
        if (Status s = head(); !s.ok()) return s;
        if (Status s = find_last_query(); !s.ok()) return s;
        for (size_t i = 0; i < messages_.size(); ++i)
            if (Status s = message(i); !s.ok()) return s;
        if (request_.add_generation_prompt) {
            out_.fixed("<|im_start|>assistant\n");
            out_.fixed(request_.enable_thinking ? "<think>\n" : "<think>\n\n</think>\n\n");
            out_.prompt.inside_thinking = request_.enable_thinking;
        }
        return std::move(out_.prompt);
    }

  private:
    bool unsloth() const { return style_ == ChatStyle::qwen36_unsloth; }
    bool is_system(size_t i) const {
        return messages_[i].role == "system" || (unsloth() && messages_[i].role == "developer");
    }

    /// The trimmed content; `count` numbers its images and videos.
    Marked content(const ChatMessage& m, bool count) {
        Marked all;
        if (m.parts.empty()) all.text = m.content;
        for (const ContentPart& part : m.parts) {
            if (part.kind == ContentPart::Kind::text) {
                all.add(part.text, false);
                continue;
            }
            const bool image = part.kind == ContentPart::Kind::image;
            size_t& number = image ? n_image_ : n_video_;
            if (count) ++number;
            if (request_.add_vision_id) all.add(say(image ? "Picture " : "Video ", number, ": "), true);
            all.add(image ? "<|vision_start|><|image_pad|><|vision_end|>" : "<|vision_start|><|video_pad|><|vision_end|>", true);
        }
        return all.cut(trim_space(all.text));
    }

    Status system_content(size_t i, Marked* out) {
        for (const ContentPart& part : messages_[i].parts)
            if (part.kind != ContentPart::Kind::text)
                return fail(Code::bad_argument, "System message cannot contain ",
                            part.kind == ContentPart::Kind::image ? "images." : "videos.", " (", message_path(i), ")");
        *out = content(messages_[i], false);
        return Status();
    }

    /// Tools and the system message.
    Status head() {
        Marked system;
        if (is_system(0)) {
            n_system_ = 1;
            if (Status s = system_content(0, &system); !s.ok()) return s;
            if (unsloth() && messages_.size() > 1 && is_system(1)) {
                n_system_ = 2;
                Marked second;
                if (Status s = system_content(1, &second); !s.ok()) return s;
                system.text += '\n' + second.text;
            }
        }
        if (!request_.tools.empty()) {
            out_.fixed("<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>");
            for (size_t i = 0; i < request_.tools.size(); ++i) {
                Json tool;
                if (Status s = Json::parse(request_.tools[i]).get(tool); !s.ok())
                    return fail(Code::bad_argument, "tools[", i, "]: ", s.text);
                if (!tool.is(Json::Kind::object))
                    return fail(Code::bad_argument, "tools[", i, "] is ", tool.kind_name(), ", expected an object");
                out_.fixed("\n");
                out_.input(tool.dump());
            }
            out_.fixed("\n</tools>");
            out_.fixed(kToolInstructions);
            if (!system.text.empty()) {
                out_.fixed("\n\n");
                out_.input(system);
            }
            out_.fixed("<|im_end|>\n");
        } else if (n_system_ > 0 && !(unsloth() && system.text.empty())) {
            turn("system", system);
        }
        return Status();
    }

    /// The last user message that is not a tool's answer in disguise: thinking after it is kept.
    Status find_last_query() {
        last_query_ = messages_.size() - 1;
        for (size_t i = messages_.size(); i-- > 0;) {
            if (messages_[i].role != "user") continue;
            const Marked c = content(messages_[i], false);
            if (starts_with(c.text, "<tool_response>") && ends_with(c.text, "</tool_response>")) continue;
            last_query_ = i;
            return Status();
        }
        if (unsloth()) return Status();
        return fail(Code::bad_argument, "No user query found in messages.");
    }

    void turn(const char* role, const Marked& text) {
        out_.fixed(say("<|im_start|>", role, "\n"));
        out_.input(text);
        out_.fixed("<|im_end|>\n");
    }

    Status message(size_t i) {
        const ChatMessage& m = messages_[i];
        if (is_system(i)) {
            if (i == 0 || unsloth()) return Status();
            return fail(Code::bad_argument, "System message must be at the beginning. (", message_path(i), ")");
        }
        if (m.role == "user") {
            turn("user", content(m, true));
        } else if (m.role == "assistant") {
            return assistant(i);
        } else if (m.role == "tool") {
            if (i > 0 && messages_[i - 1].role != "tool") out_.fixed("<|im_start|>user");
            out_.fixed("\n<tool_response>\n");
            out_.input(content(m, true));
            out_.fixed("\n</tool_response>");
            if (i + 1 == messages_.size() || messages_[i + 1].role != "tool") out_.fixed("<|im_end|>\n");
        } else if (!unsloth()) {
            return fail(Code::bad_argument, "Unexpected message role. (", message_path(i), " has the role '", m.role,
                        "', expected system, user, assistant or tool)");
        } else {
            return Status();
        }
        return Status();
    }

    Status assistant(size_t i) {
        const ChatMessage& m = messages_[i];
        const Marked whole = content(m, true);
        std::string_view answer = whole.text;
        std::string_view reasoning;
        static const std::string_view kOpen = "<think>", kClose = "</think>";
        if (m.has_reasoning) {
            reasoning = m.reasoning;
        } else if (const size_t close = answer.find(kClose); close != std::string_view::npos) {
            reasoning = strip_newlines_right(answer.substr(0, close));
            const size_t open = reasoning.rfind(kOpen);
            if (open != std::string_view::npos) reasoning.remove_prefix(open + kOpen.size());
            answer = strip_newlines_left(answer.substr(answer.rfind(kClose) + kClose.size()));
        }
        reasoning = trim_space(reasoning);

        out_.fixed("<|im_start|>assistant\n");
        const bool keep = i > last_query_ || (style_ != ChatStyle::qwen35 && request_.preserve_thinking);
        if (keep) {
            out_.fixed("<think>\n");
            // Reasoning taken from the content may hold marks of images; its own field holds text only.
            if (m.has_reasoning) out_.input(reasoning);
            else if (!reasoning.empty()) out_.input(whole.cut(reasoning));
            out_.fixed("\n</think>\n\n");
        }
        out_.input(whole.cut(answer));
        for (size_t k = 0; k < m.tool_calls.size(); ++k) {
            const bool blank = trim_space(answer).empty();
            out_.fixed(k > 0 ? "\n" : blank ? "" : "\n\n");
            if (Status s = call(m.tool_calls[k], say(message_path(i), ".tool_calls[", k, "]")); !s.ok()) return s;
        }
        out_.fixed("<|im_end|>\n");
        return Status();
    }

    Status call(const ToolCall& c, const std::string& path) {
        out_.fixed("<tool_call>\n<function=");
        out_.input(c.name);
        out_.fixed(">\n");
        for (const ToolArgument& a : c.arguments) {
            out_.fixed("<parameter=");
            out_.input(a.name);
            out_.fixed(">\n");
            if (a.json) {
                Json value;
                if (Status s = Json::parse(a.value).get(value); !s.ok())
                    return fail(Code::bad_argument, path, ", argument '", a.name, "': ", s.text);
                // 3.6 writes JSON; 3.5, and unsloth's 3.6 with it, writes str() of what is no container.
                out_.input(style_ == ChatStyle::qwen36 && !value.is(Json::Kind::string) ? value.dump() : value.python_str());
            } else {
                out_.input(a.value);
            }
            out_.fixed("\n</parameter>\n");
        }
        out_.fixed("</function>\n</tool_call>");
        return Status();
    }

    const ChatRequest& request_;
    const std::vector<ChatMessage>& messages_;
    ChatStyle style_;
    Writer out_;
    size_t n_system_ = 0, last_query_ = 0, n_image_ = 0, n_video_ = 0;
};

/// Plain ChatML: every message is a turn, printed as it is. Nothing is dropped in silence but the
/// reasoning of earlier turns, for which it has no place.
Result<ChatPrompt> render_chatml(const ChatRequest& request, bool no_think) {
    static const char kAdvice[] = "; the model was not trained for it: write it into the text of a message instead";
    if (request.messages.empty()) return fail(Code::bad_argument, "No messages provided.");
    if (!request.tools.empty())
        return fail(Code::bad_argument, "the request has ", request.tools.size(), " tools, but this model's ChatML template cannot show tools", kAdvice);
    Writer out;
    for (size_t i = 0; i < request.messages.size(); ++i) {
        const ChatMessage& m = request.messages[i];
        if (m.role.empty()) return fail(Code::bad_argument, message_path(i), " has no role");
        if (!m.tool_calls.empty())
            return fail(Code::bad_argument, message_path(i), " has tool calls, but this model's ChatML template cannot show them", kAdvice);
        out.fixed("<|im_start|>");
        out.input(m.role);
        out.fixed("\n");
        if (m.parts.empty()) out.input(m.content);
        for (const ContentPart& part : m.parts) {
            if (part.kind != ContentPart::Kind::text)
                return fail(Code::bad_argument, message_path(i), " holds an image or a video, but this model's ChatML template cannot show them");
            out.input(part.text);
        }
        out.fixed("<|im_end|>\n");
    }
    if (request.add_generation_prompt) {
        out.fixed("<|im_start|>assistant\n");
        if (no_think) out.fixed("<think>\n\n</think>\n\n");
    }
    return std::move(out.prompt);
}

void replace_all(std::string& s, std::string_view from, std::string_view to) {
    for (size_t at = s.find(from); at != std::string::npos; at = s.find(from, at + to.size())) s.replace(at, from.size(), to);
}

/// The template without white space and with one kind of quotes: how it is laid out says nothing.
std::string squeezed(std::string_view jinja) {
    std::string s;
    for (const char c : jinja)
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') s += c == '"' ? '\'' : c;
    return s;
}

/// True for a template that prints every message as one ChatML turn and does nothing else; `tail` is
/// what it writes behind the opening of the assistant's turn.
bool is_plain_chatml(std::string s, std::string* tail) {
    if (s.size() > 1000) return false;
    replace_all(s, "{%-", "{%");
    replace_all(s, "-%}", "%}");
    replace_all(s, "{{-", "{{");
    replace_all(s, "-}}", "}}");
    replace_all(s, "message['role']", "message.role");
    replace_all(s, "message['content']", "message.content");
    replace_all(s, "'+'", "");  // neighbouring literals
    replace_all(s, "{%ifnotadd_generation_promptisdefined%}{%setadd_generation_prompt=false%}{%endif%}", "");
    static const std::string_view kTurns =
        "{%formessageinmessages%}{{'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>\\n'}}{%endfor%}"
        "{%ifadd_generation_prompt%}{{'<|im_start|>assistant\\n";
    static const std::string_view kEnd = "'}}{%endif%}";
    if (!starts_with(s, kTurns) || !ends_with(s, kEnd) || s.size() < kTurns.size() + kEnd.size()) return false;
    *tail = s.substr(kTurns.size(), s.size() - kTurns.size() - kEnd.size());
    return !contains(*tail, "'");
}

}  // namespace chat_impl

uint64_t template_fingerprint(std::string_view jinja) {
    uint64_t h = 0xCBF29CE484222325ull;
    while (!jinja.empty() && static_cast<unsigned char>(jinja.back()) <= ' ') jinja.remove_suffix(1);
    for (const char c : jinja) {
        if (c == '\r') continue;
        h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
    }
    return h;
}

}  // namespace detail

Result<ChatPrompt> render_chat(const ChatRequest& request, ChatStyle style) {
    using namespace detail::chat_impl;
    switch (style) {
        case ChatStyle::qwen35:
        case ChatStyle::qwen36:
        case ChatStyle::qwen36_unsloth: return Qwen(request, style).render();
        case ChatStyle::chatml:
        case ChatStyle::chatml_no_think: break;
    }
    return render_chatml(request, style == ChatStyle::chatml_no_think);
}

ChatStyle recognise_template(std::string_view jinja, std::string* note) {
    using namespace detail::chat_impl;
    std::string unused;
    std::string& why = note != nullptr ? *note : unused;
    why.clear();
    if (detail::trim_space(jinja).empty()) {
        why = "the file holds no chat template; plain ChatML is used";
        return ChatStyle::chatml;
    }
    const uint64_t print = detail::template_fingerprint(jinja);
    if (print == 0xF07C510F47FBACA0ull) return ChatStyle::qwen35;
    if (print == 0x8AE3A8BC6E68F114ull) return ChatStyle::qwen36;
    if (print == 0x77679534B83745D6ull) return ChatStyle::qwen36_unsloth;

    const std::string s = squeezed(jinja);
    if (contains(s, "last_query_index") && contains(s, "<function=example_function_name>")) {
        const bool newer = contains(s, "preserve_thinking");
        const bool json_values = contains(s, "args_value|stringifargs_valueisstringelseargs_value|tojson");
        const bool developer = contains(s, "=='developer'");
        const ChatStyle style = developer ? ChatStyle::qwen36_unsloth : newer && json_values ? ChatStyle::qwen36 : ChatStyle::qwen35;
        why = detail::say("the chat template is a variant of ",
                          style == ChatStyle::qwen35 ? "Qwen3.5's" : style == ChatStyle::qwen36 ? "Qwen3.6's" : "unsloth's Qwen3.6",
                          " that is not known to the letter; it is rendered like that one");
        if (contains(s, "reasoning_effort")) why += ", without its reasoning_effort";
        return style;
    }
    std::string tail;
    if (is_plain_chatml(s, &tail)) {
        if (tail.empty()) return ChatStyle::chatml;
        if (tail == "<think>\\n\\n</think>\\n\\n") return ChatStyle::chatml_no_think;
        why = "the chat template is ChatML, but opens the assistant's turn in a way that is not known; plain ChatML is used";
        return ChatStyle::chatml;
    }
    why = contains(s, "<|im_start|>") ? "the chat template uses ChatML turns with rules that are not known (a default system text, tools); plain ChatML is used"
                                      : "the chat template is not known; plain ChatML is used, which may not suit this model";
    return ChatStyle::chatml;
}

}  // namespace auspex

// ----------------------------------------------------------------------- src/base/chat_request.cpp

namespace auspex {
namespace detail {
namespace chat_request_impl {

Status wrong(const std::string& path, const Json& found, const char* expected) {
    return fail(Code::bad_argument, path, " is ", found.kind_name(), ", expected ", expected);
}

/// A member that is there and not null.
const Json* given(const Json& object, const char* key) {
    const Json* value = object.find(key);
    return value != nullptr && !value->is(Json::Kind::null) ? value : nullptr;
}

Status read_content(const Json& json, const std::string& path, ChatMessage& m) {
    if (json.is(Json::Kind::null)) return Status();
    if (json.is(Json::Kind::string)) {
        m.content = json.text();
        return Status();
    }
    if (!json.is(Json::Kind::array)) {
        Status s = wrong(path, json, "a string, a list or null");
        s.text = "Unexpected content type. (" + s.text + ")";
        return s;
    }
    for (size_t i = 0; i < json.items().size(); ++i) {
        const Json& item = json.items()[i];
        const std::string here = say(path, "[", i, "]");
        if (!item.is(Json::Kind::object)) return wrong(here, item, "an object");
        const Json* type = item.find("type");
        const auto type_is = [type](const char* name) { return type != nullptr && type->is(Json::Kind::string) && type->text() == name; };
        ContentPart part;
        if (item.find("image") != nullptr || item.find("image_url") != nullptr || type_is("image")) {
            part.kind = ContentPart::Kind::image;
        } else if (item.find("video") != nullptr || type_is("video")) {
            part.kind = ContentPart::Kind::video;
        } else if (const Json* text = item.find("text")) {
            if (!text->is(Json::Kind::string)) return wrong(here + ".text", *text, "a string");
            part.text = text->text();
        } else {
            return fail(Code::bad_argument, "Unexpected item type in content. (", here, ": expected a text, image or video item)");
        }
        m.parts.push_back(std::move(part));
    }
    return Status();
}

Status read_arguments(const Json& json, const std::string& path, ToolCall& call) {
    static const char kExpected[] = "an object or a string holding one";
    if (json.is(Json::Kind::string)) {
        // OpenAI's clients send the object as text.
        if (trim_space(json.text()).empty()) return Status();
        Json inner;
        if (Status s = Json::parse(json.text()).get(inner); !s.ok())
            return fail(Code::bad_argument, path, " is a string that holds no JSON object: ", s.text);
        if (!inner.is(Json::Kind::object)) return fail(Code::bad_argument, path, " is a string that holds ", inner.kind_name(), ", expected ", kExpected);
        return read_arguments(inner, path, call);
    }
    if (!json.is(Json::Kind::object)) return wrong(path, json, kExpected);
    for (size_t i = 0; i < json.items().size(); ++i) {
        const Json& value = json.items()[i];
        const bool plain = value.is(Json::Kind::string);
        call.arguments.push_back(ToolArgument{json.keys()[i], plain ? value.text() : value.dump(), !plain});
    }
    return Status();
}

Status read_calls(const Json& json, const std::string& path, ChatMessage& m) {
    if (!json.is(Json::Kind::array)) return wrong(path, json, "a list");
    for (size_t i = 0; i < json.items().size(); ++i) {
        const std::string here = say(path, "[", i, "]");
        const Json* call = &json.items()[i];
        if (!call->is(Json::Kind::object)) return wrong(here, *call, "an object");
        if (const Json* function = call->find("function")) call = function;
        if (!call->is(Json::Kind::object)) return wrong(here + ".function", *call, "an object");
        const Json* name = call->find("name");
        if (name == nullptr || !name->is(Json::Kind::string)) return fail(Code::bad_argument, here, " has no name, expected a string");
        ToolCall out;
        out.name = name->text();
        if (const Json* arguments = given(*call, "arguments"))
            if (Status s = read_arguments(*arguments, here + ".arguments", out); !s.ok()) return s;
        m.tool_calls.push_back(std::move(out));
    }
    return Status();
}

Status read_message(const Json& json, const std::string& path, ChatMessage& m) {
    if (!json.is(Json::Kind::object)) return wrong(path, json, "an object");
    const Json* role = json.find("role");
    if (role == nullptr || !role->is(Json::Kind::string)) return fail(Code::bad_argument, path, " has no role, expected a string");
    m.role = role->text();
    if (const Json* content = json.find("content"))
        if (Status s = read_content(*content, path + ".content", m); !s.ok()) return s;
    if (const Json* reasoning = json.find("reasoning_content"); reasoning != nullptr && reasoning->is(Json::Kind::string)) {
        m.reasoning = reasoning->text();
        m.has_reasoning = true;
    }
    if (const Json* calls = given(json, "tool_calls"))
        if (Status s = read_calls(*calls, path + ".tool_calls", m); !s.ok()) return s;
    return Status();
}

Status read_switches(const Json& json, const std::string& path, ChatRequest& r) {
    const struct {
        const char* key;
        bool* to;
    } switches[] = {{"add_generation_prompt", &r.add_generation_prompt},
                    {"enable_thinking", &r.enable_thinking},
                    {"preserve_thinking", &r.preserve_thinking},
                    {"add_vision_id", &r.add_vision_id}};
    for (const auto& s : switches) {
        const Json* value = given(json, s.key);
        if (value == nullptr) continue;
        if (!value->is(Json::Kind::boolean)) return wrong(path + s.key, *value, "true or false");
        *s.to = value->boolean();
    }
    return Status();
}

Status read_request(const Json& json, ChatRequest& r) {
    if (!json.is(Json::Kind::object)) return wrong("the request", json, "an object with \"messages\"");
    const Json* messages = json.find("messages");
    if (messages == nullptr) return fail(Code::bad_argument, "the request has no \"messages\"");
    if (!messages->is(Json::Kind::array)) return wrong("messages", *messages, "a list");
    for (size_t i = 0; i < messages->items().size(); ++i) {
        r.messages.emplace_back();
        if (Status s = read_message(messages->items()[i], message_path(i), r.messages.back()); !s.ok()) return s;
    }
    if (const Json* tools = given(json, "tools")) {
        if (!tools->is(Json::Kind::array)) return wrong("tools", *tools, "a list");
        for (size_t i = 0; i < tools->items().size(); ++i) {
            const Json& tool = tools->items()[i];
            if (!tool.is(Json::Kind::object)) return wrong(say("tools[", i, "]"), tool, "an object");
            r.tools.push_back(tool.dump());
        }
    }
    if (Status s = read_switches(json, "", r); !s.ok()) return s;
    if (const Json* more = given(json, "chat_template_kwargs")) {
        if (!more->is(Json::Kind::object)) return wrong("chat_template_kwargs", *more, "an object");
        return read_switches(*more, "chat_template_kwargs.", r);
    }
    return Status();
}

}  // namespace chat_request_impl
}  // namespace detail

Result<ChatRequest> ChatRequest::from_json(std::string_view text) {
    detail::Json json;
    if (Status s = detail::Json::parse(text).get(json); !s.ok()) return s;
    ChatRequest request;
    if (Status s = detail::chat_request_impl::read_request(json, request); !s.ok()) return s;
    return request;
}

}  // namespace auspex

// ------------------------------------------------------------------------- src/base/chat_parse.cpp

namespace auspex {
namespace detail {
namespace chat_parse_impl {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
constexpr std::string_view kCall = "<tool_call>", kCallEnd = "</tool_call>";
constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";
constexpr size_t kNever = std::string_view::npos;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/// A place in the text between a call's opening and where the next one opens.
struct Cursor {
    std::string_view text;
    size_t at;

    void space() {
        while (at < text.size() && is_space(text[at])) ++at;
    }
    bool see(std::string_view what) const { return text.substr(at, what.size()) == what; }
    bool take(std::string_view what) {
        if (!see(what)) return false;
        at += what.size();
        return true;
    }
    /// A name up to '>' on the same line, without white space around it.
    bool name(std::string* out) {
        size_t end = at;
        while (end < text.size() && text[end] != '>' && text[end] != '\n' && text[end] != '<') ++end;
        if (end == text.size() || text[end] != '>') return false;
        *out = std::string(trim_space(text.substr(at, end - at)));
        at = end + 1;
        return !out->empty();
    }
};

/// What the request's tools declare.
class Schemas {
  public:
    explicit Schemas(const std::vector<std::string>& tools) {
        for (const std::string& tool : tools) {
            Json json;
            if (Json::parse(tool).get(json).ok()) tools_.push_back(std::move(json));
        }
    }
    bool knows(std::string_view name) const { return function(name) != nullptr; }

    /// Types the text of an argument: declared strings stay as they are, the rest is JSON if it reads so.
    ToolArgument typed(std::string_view tool, std::string name, std::string_view text) const {
        const Json* type = nullptr;
        if (const Json* f = function(tool))
            if (const Json* parameters = f->find("parameters"))
                if (const Json* properties = parameters->find("properties"))
                    if (const Json* property = properties->find(name)) type = property->find("type");
        const auto declared = [type](const char* what) {
            if (type == nullptr) return false;
            if (type->is(Json::Kind::string)) return type->text() == what;
            for (const Json& t : type->items())
                if (t.is(Json::Kind::string) && t.text() == what) return true;
            return false;
        };
        ToolArgument out{std::move(name), std::string(text), false};
        const std::string_view bare = trim_space(text);
        Json value;
        if (declared("string") && !(declared("null") && bare == "null")) return out;
        if (Json::parse(bare).get(value).ok()) {
            // A quoted string of JSON is a string all the same.
            out.json = !value.is(Json::Kind::string);
            out.value = out.json ? value.dump() : value.text();
        } else if (declared("boolean") && (bare == "True" || bare == "False")) {
            out = ToolArgument{std::move(out.name), bare == "True" ? "true" : "false", true};
        } else if (type != nullptr && bare == "None") {
            out = ToolArgument{std::move(out.name), "null", true};
        }
        return out;
    }

  private:
    const Json* function(std::string_view name) const {
        for (const Json& tool : tools_) {
            const Json* inner = tool.find("function");
            const Json& f = inner != nullptr ? *inner : tool;
            const Json* n = f.find("name");
            if (n != nullptr && n->is(Json::Kind::string) && n->text() == name) return &f;
        }
        return nullptr;
    }
    std::vector<Json> tools_;
};

/// The value of a parameter: up to a closing tag that is followed by another parameter or the end of
/// the function, so that a value may itself hold closing tags. One newline is taken off either end.
bool value_of(Cursor& c, std::string_view* out) {
    c.take("\r");
    c.take("\n");
    for (size_t end = c.text.find(kParameterEnd, c.at); end != kNever; end = c.text.find(kParameterEnd, end + 1)) {
        Cursor after{c.text, end + kParameterEnd.size()};
        after.space();
        if (!after.see(kParameter) && !after.see(kFunctionEnd) && !after.see(kCallEnd)) continue;
        std::string_view value = c.text.substr(c.at, end - c.at);
        if (!value.empty() && value.back() == '\n') value.remove_suffix(1);
        if (!value.empty() && value.back() == '\r') value.remove_suffix(1);
        *out = value;
        c.at = after.at;
        return true;
    }
    return false;
}

/// <function=NAME> and its parameters, from behind "<function=".
bool xml_call(Cursor& c, const Schemas& schemas, ToolCall* out) {
    if (!c.name(&out->name)) return false;
    c.space();
    while (c.take(kParameter)) {
        std::string name;
        std::string_view value;
        if (!c.name(&name) || !value_of(c, &value)) return false;
        out->arguments.push_back(schemas.typed(out->name, std::move(name), value));
        c.space();
    }
    const bool closed = c.take(kFunctionEnd);
    c.space();
    return c.take(kCallEnd) || closed;
}

/// {"name": ..., "arguments": {...}} as older models write it, up to </tool_call> or the end.
bool json_call(Cursor& c, ToolCall* out) {
    size_t end = c.text.find(kCallEnd, c.at);
    if (end == kNever) end = c.text.size();
    Json json;
    if (!Json::parse(c.text.substr(c.at, end - c.at)).get(json).ok()) return false;
    const Json* name = json.find("name");
    const Json* arguments = json.find("arguments");
    if (name == nullptr || !name->is(Json::Kind::string)) return false;
    if (arguments != nullptr && !arguments->is(Json::Kind::object)) return false;
    out->name = name->text();
    for (size_t i = 0; arguments != nullptr && i < arguments->items().size(); ++i) {
        const Json& v = arguments->items()[i];
        const bool plain = v.is(Json::Kind::string);
        out->arguments.push_back(ToolArgument{arguments->keys()[i], plain ? v.text() : v.dump(), !plain});
    }
    c.at = end;
    c.take(kCallEnd);
    return true;
}

/// Where a call opens, at `from` or later: <tool_call> before <function= or {, or unless `wrapped` a
/// bare <function= of a tool that the request knows.
size_t find_call(std::string_view text, size_t from, const Schemas& schemas, bool wrapped = false) {
    for (size_t at = text.find('<', from); at != kNever; at = text.find('<', at + 1)) {
        Cursor c{text, at};
        if (c.take(kCall)) {
            c.space();
            if (c.see(kFunction) || c.see("{")) return at;
        } else if (!wrapped && c.take(kFunction)) {
            std::string name;
            if (c.name(&name) && schemas.knows(name)) return at;
        }
    }
    return kNever;
}

/// Splits `text` into content and calls.
void take_calls(std::string_view text, const Schemas& schemas, ChatReply& reply) {
    std::string content;
    size_t at = 0, next_wrapped = 0;
    for (size_t open = find_call(text, 0, schemas); open != kNever;) {
        Cursor c{text, open};
        const bool wrapped = c.take(kCall);
        c.space();
        const bool xml = c.take(kFunction);
        // A call ends before the next one opens, so that a broken one cannot swallow a good one, and so
        // that no stretch is read again and again. In a wrapped call a bare <function= opens nothing.
        if (next_wrapped <= open) next_wrapped = find_call(text, c.at, schemas, true);
        c.text = text.substr(0, wrapped ? next_wrapped : find_call(text, c.at, schemas));
        const size_t inside = c.at;
        ToolCall call;
        if (xml ? xml_call(c, schemas, &call) : json_call(c, &call)) {
            const std::string_view before = text.substr(at, open - at);
            if (!trim_space(before).empty()) content.append(before);
            reply.tool_calls.push_back(std::move(call));
            at = c.at;
            open = find_call(text, at, schemas);
        } else {
            open = find_call(text, inside, schemas);
        }
    }
    const std::string_view rest = text.substr(at);
    if (reply.tool_calls.empty()) {
        reply.content = std::string(rest);
        return;
    }
    content.append(rest);
    reply.content = std::string(trim_space(content));
}

std::string_view without_newlines_in_front(std::string_view text) {
    while (!text.empty() && (text.front() == '\n' || text.front() == '\r')) text.remove_prefix(1);
    return text;
}

}  // namespace chat_parse_impl
}  // namespace detail

ChatReply parse_reply(std::string_view text, bool inside_thinking, const std::vector<std::string>& tools) {
    using namespace detail::chat_parse_impl;
    const Schemas schemas(tools);
    ChatReply reply;
    // Some models open the block again though the prompt did.
    Cursor c{text, 0};
    c.space();
    if (c.take(kThink)) {
        inside_thinking = true;
        text.remove_prefix(c.at);
    }
    if (inside_thinking) {
        const size_t end = text.find(kThinkEnd);
        size_t thinking_end = end;
        std::string_view rest;
        if (end != kNever) {
            rest = without_newlines_in_front(text.substr(end + kThinkEnd.size()));
        } else {
            // Never closed: all of it is thinking, unless a whole call was made from within.
            thinking_end = text.size();
            ChatReply inside;
            const size_t open = find_call(text, 0, schemas);
            if (open != kNever) take_calls(text.substr(open), schemas, inside);
            if (!inside.tool_calls.empty()) {
                thinking_end = open;
                reply = std::move(inside);
            }
        }
        reply.thinking = std::string(detail::trim_space(text.substr(0, thinking_end)));
        if (end == kNever) return reply;
        text = rest;
    }
    take_calls(text, schemas, reply);
    return reply;
}

}  // namespace auspex

// ------------------------------------------------------------------------------- src/plan/plan.cpp

namespace auspex {
namespace detail {
namespace plan_impl {

struct Checker {
    const Plan& plan;
    const char* tape = "";
    size_t i_op = 0;

    Status bad(const Op& op, const std::string& what) const {
        return fail(Code::bad_file, "plan: ", tape, " op ", i_op, " (", op_name(op.kind), ", layer ", op.layer, "): ", what);
    }
    /// The slot exists, plays one of two roles and, where n is not 0, has rows of n values.
    Status want(const Op& op, SlotId id, const char* what, SlotRole role, SlotRole role2, uint64_t n) const {
        if (id >= plan.slots.size()) return bad(op, say(what, " is missing"));
        const Slot& s = plan.slot(id);
        if (s.role != role && s.role != role2) return bad(op, say(what, " '", s.name, "' has the wrong role"));
        if (n != 0 && s.width() != n) return bad(op, say(what, " '", s.name, "' has rows of ", s.width(), " values, expected ", n));
        return {};
    }
    Status act(const Op& op, SlotId id, const char* what, uint64_t n = 0) const {
        return want(op, id, what, SlotRole::activation, SlotRole::kept, n);
    }
    Status weight(const Op& op, SlotId id, const char* what, uint64_t n = 0) const {
        return want(op, id, what, SlotRole::weight, SlotRole::weight, n);
    }
    Status matrix(const Op& op, SlotId id, const char* what, uint64_t d_out, uint64_t d_in) const {
        Status s = weight(op, id, what, d_in);
        if (!s.ok()) return s;
        const Slot& w = plan.slot(id);
        if (w.n_dim < 2 || (d_out != 0 && w.shape[w.n_dim - 2] != d_out))
            return bad(op, say(what, " '", w.name, "' has ", w.n_dim < 2 ? 1 : w.shape[w.n_dim - 2], " output rows, expected ", d_out));
        return {};
    }
    uint64_t width(SlotId id) const { return id < plan.slots.size() ? plan.slot(id).width() : 0; }

    Status check(const Op& op) const;
};

Status Checker::check(const Op& op) const {
    AUSPEX_TRY(op.kind == OpKind::kv_write ? Status() : act(op, op.out, "output"));
    switch (op.kind) {
        case OpKind::embed:
            return matrix(op, op.w[0], "table", plan.n_vocab, width(op.out));
        case OpKind::hidden:
            return act(op, op.out, "output", plan.d_model);
        case OpKind::rms_norm:
            AUSPEX_TRY(act(op, op.in[0], "input"));
            AUSPEX_TRY(weight(op, op.w[0], "norm", width(op.in[0])));
            if (op.out_offset + width(op.in[0]) > width(op.out)) return bad(op, "the output row is too short");
            return {};
        case OpKind::matmul:
            AUSPEX_TRY(act(op, op.in[0], "input"));
            return matrix(op, op.w[0], "matrix", width(op.out), width(op.in[0]));
        case OpKind::swiglu:
            AUSPEX_TRY(act(op, op.in[0], "gate", width(op.out)));
            return act(op, op.in[1], "up", width(op.out));
        case OpKind::delta: {
            const DeltaDims& d = op.delta;
            const uint64_t value_dim = uint64_t{d.n_head_v} * d.d_val;
            if (d.n_head_k == 0 || d.n_head_v % d.n_head_k != 0) return bad(op, "value heads must be a multiple of key heads");
            if (d.d_key == 0 || d.d_key > 256 || d.d_val == 0 || d.d_val > 256 || d.n_conv < 2 || d.n_conv > 8)
                return bad(op, say("head dims ", d.d_key, " and ", d.d_val, " must be 1..256, conv taps ", d.n_conv, " 2..8"));
            AUSPEX_TRY(act(op, op.in[0], "u", d.conv_dim()));
            AUSPEX_TRY(act(op, op.in[1], "z", value_dim));
            AUSPEX_TRY(act(op, op.in[2], "beta", d.n_head_v));
            AUSPEX_TRY(act(op, op.in[3], "alpha", d.n_head_v));
            AUSPEX_TRY(act(op, op.out, "output", value_dim));
            AUSPEX_TRY(matrix(op, op.w[0], "conv1d", d.conv_dim(), d.n_conv));
            AUSPEX_TRY(weight(op, op.w[1], "dt bias", d.n_head_v));
            AUSPEX_TRY(weight(op, op.w[2], "a", d.n_head_v));
            AUSPEX_TRY(weight(op, op.w[3], "norm", d.d_val));
            AUSPEX_TRY(want(op, op.state, "state", SlotRole::delta, SlotRole::delta, d.d_val));
            return want(op, op.state2, "conv", SlotRole::conv, SlotRole::conv, d.conv_dim());
        }
        case OpKind::kv_write: {
            const AttnDims& a = op.attn;
            AUSPEX_TRY(act(op, op.in[0], "k", uint64_t{a.n_head_kv} * a.d_head));
            AUSPEX_TRY(act(op, op.in[1], "v", uint64_t{a.n_head_kv} * a.d_head));
            if (op.w[0] != kNoSlot) AUSPEX_TRY(weight(op, op.w[0], "k norm", a.d_head));
            return want(op, op.state, "kv", SlotRole::kv, SlotRole::kv, uint64_t{a.n_head_kv} * a.d_head);
        }
        case OpKind::attend: {
            const AttnDims& a = op.attn;
            if (a.n_head_kv == 0 || a.n_head % a.n_head_kv != 0) return bad(op, "query heads must be a multiple of KV heads");
            if (a.n_rot > a.d_head || a.n_rot % 2 != 0) return bad(op, "rotated dims must be even and fit the head");
            if (a.d_head > 512 || a.d_head % 8 != 0) return bad(op, say("head dim ", a.d_head, " must be a multiple of 8, at most 512"));
            const uint64_t per_head = a.gate == AttnGate::interleaved ? 2 * uint64_t{a.d_head} : a.d_head;
            AUSPEX_TRY(act(op, op.in[0], "q", per_head * a.n_head));
            if (a.gate == AttnGate::per_head) AUSPEX_TRY(act(op, op.in[1], "gate", a.n_head));
            AUSPEX_TRY(act(op, op.out, "output", uint64_t{a.n_head} * a.d_head));
            if (op.w[0] != kNoSlot) AUSPEX_TRY(weight(op, op.w[0], "q norm", a.d_head));
            return want(op, op.state, "kv", SlotRole::kv, SlotRole::kv, uint64_t{a.n_head_kv} * a.d_head);
        }
        case OpKind::moe: {
            const MoeDims& m = op.moe;
            const uint64_t d = width(op.in[0]);
            if (m.n_used == 0 || m.n_used > m.n_expert) return bad(op, say(m.n_used, " of ", m.n_expert, " experts cannot be used"));
            AUSPEX_TRY(act(op, op.out, "output", d));
            AUSPEX_TRY(matrix(op, op.w[0], "router", m.n_expert, d));
            AUSPEX_TRY(matrix(op, op.w[1], "gate experts", op.w[2] == kNoSlot ? 2 * m.d_ff : m.d_ff, d));
            if (op.w[2] != kNoSlot) AUSPEX_TRY(matrix(op, op.w[2], "up experts", m.d_ff, d));
            return matrix(op, op.w[3], "down experts", d, m.d_ff);
        }
    }
    return bad(op, "unknown operation");
}

const char* name_of(const Plan& plan, SlotId id) { return id < plan.slots.size() ? plan.slot(id).name.c_str() : "-"; }

std::string shape_text(const Slot& s) {
    std::string t = "[";
    for (uint32_t i = 0; i < s.n_dim; ++i) append(t, say(i ? ", " : "", s.shape[i]));
    return t + "]";
}

}  // namespace plan_impl

const char* op_name(OpKind kind) {
    switch (kind) {
        case OpKind::embed: return "embed";
        case OpKind::rms_norm: return "rms_norm";
        case OpKind::matmul: return "matmul";
        case OpKind::swiglu: return "swiglu";
        case OpKind::delta: return "delta";
        case OpKind::kv_write: return "kv_write";
        case OpKind::attend: return "attend";
        case OpKind::moe: return "moe";
        case OpKind::hidden: return "hidden";
    }
    return "?";
}

Status check_plan(const Plan& plan) {
    plan_impl::Checker c{plan};
    auto walk = [&](const Tape& tape, const char* name) -> Status {
        c.tape = name;
        for (c.i_op = 0; c.i_op < tape.ops.size(); ++c.i_op) AUSPEX_TRY(c.check(tape.ops[c.i_op]));
        if (tape.hidden >= plan.slots.size() || plan.slot(tape.hidden).role != SlotRole::kept || plan.slot(tape.hidden).width() != plan.d_model)
            return fail(Code::bad_file, "plan: ", name, " leaves no hidden rows of ", plan.d_model, " values");
        if (tape.logits >= plan.slots.size() || plan.slot(tape.logits).role != SlotRole::kept || plan.slot(tape.logits).width() != plan.n_vocab)
            return fail(Code::bad_file, "plan: ", name, " leaves no logits of ", plan.n_vocab, " values");
        return {};
    };
    AUSPEX_TRY(walk(plan.trunk, "trunk"));
    for (const Tape& t : plan.mtp) AUSPEX_TRY(walk(t, "mtp"));
    return {};
}

std::string print_tape(const Plan& plan, const Tape& tape) {
    using namespace plan_impl;
    std::string text;
    for (const Op& op : tape.ops) {
        std::string line = say("layer ", op.layer, "  ", op_name(op.kind), "  ", name_of(plan, op.kind == OpKind::kv_write ? op.state : op.out),
                               op.out_offset ? say("[", op.out_offset, "..]") : std::string(), op.accumulate ? " += " : " <- ");
        bool first = true;
        for (SlotId id : op.in)
            if (id != kNoSlot) {
                append(line, say(first ? "" : ", ", name_of(plan, id)));
                first = false;
            }
        for (SlotId id : op.w)
            if (id != kNoSlot)
                append(line, say("  ", plan.slot(id).name, " ", type_info(plan.slot(id).type).name, " ", shape_text(plan.slot(id))));
        if (op.kind == OpKind::attend)
            append(line, say("  heads ", op.attn.n_head, "/", op.attn.n_head_kv, " x ", op.attn.d_head, " rotated ", op.attn.n_rot,
                             op.attn.window ? say(" window ", op.attn.window) : std::string()));
        if (op.kind == OpKind::delta)
            append(line, say("  heads ", op.delta.n_head_k, "/", op.delta.n_head_v, " x ", op.delta.d_key));
        if (op.kind == OpKind::moe) append(line, say("  experts ", op.moe.n_used, " of ", op.moe.n_expert));
        text += line + "\n";
    }
    return text;
}

}  // namespace detail
}  // namespace auspex

// ---------------------------------------------------------------------------- src/plan/weights.cpp

namespace auspex {
namespace detail {

Result<Weights> find_weights(const Plan& plan, const Gguf& file) {
    Weights found;
    found.data.resize(plan.slots.size(), nullptr);
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Slot& s = plan.slots[id];
        if (s.role != SlotRole::weight) continue;
        const Tensor* t = file.tensor(s.name);
        if (!t) return fail(Code::bad_file, "tensor '", s.name, "' vanished between planning and loading");
        found.data[id] = t->data;
    }
    return found;
}

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------------- src/plan/arch.cpp

namespace auspex {
namespace detail {
namespace arch_impl {

std::string shape_text(const std::vector<uint64_t>& s) {
    std::string t = "[";
    for (size_t i = 0; i < s.size(); ++i) append(t, say(i ? ", " : "", s[i]));
    return t + "]";
}

/// The file's shape, slowest first, without leading dimensions of 1 beyond `n_dim`.
std::vector<uint64_t> file_shape(const Tensor& t, size_t n_dim) {
    size_t n = t.n_dim;
    while (n > n_dim && t.ne[n - 1] == 1) --n;
    std::vector<uint64_t> s;
    for (size_t i = n; i-- > 0;) s.push_back(t.ne[i]);
    return s;
}

}  // namespace arch_impl

SlotId Builder::activation(std::string name, uint64_t width, SlotRole role) {
    Slot s;
    s.name = std::move(name);
    s.role = role;
    s.n_dim = 1;
    s.shape[0] = width;
    plan_.slots.push_back(std::move(s));
    return static_cast<SlotId>(plan_.slots.size() - 1);
}

SlotId Builder::state(std::string name, SlotRole role, uint64_t a, uint64_t b, uint64_t c) {
    const SlotId id = activation(std::move(name), a, role);
    Slot& s = plan_.slots[id];
    if (b) s.shape[s.n_dim++] = b;
    if (c) s.shape[s.n_dim++] = c;
    return id;
}

SlotId Builder::weight(const std::string& name, std::vector<uint64_t> shape) {
    if (!ok()) return kNoSlot;
    auto known = weights_.find(name);
    if (known != weights_.end()) return known->second;
    const Tensor* t = file_.tensor(name);
    if (!t) {
        fail_with(fail(Code::bad_file, "tensor '", name, "' is missing, expected ", arch_impl::shape_text(shape),
                       "; the file is incomplete or of another architecture than '", plan_.architecture, "'"));
        return kNoSlot;
    }
    const std::vector<uint64_t> found = arch_impl::file_shape(*t, shape.size());
    if (found != shape) {
        fail_with(fail(Code::bad_file, "tensor '", name, "' is ", arch_impl::shape_text(found), ", expected ", arch_impl::shape_text(shape),
                       " from the file's metadata; one of them is wrong: convert the model again"));
        return kNoSlot;
    }
    // A sibling scale multiplies the product; ignoring it would give fluent nonsense.
    const std::string scale = name.size() > 7 && name.compare(name.size() - 7, 7, ".weight") == 0 ? name.substr(0, name.size() - 7) + ".scale" : name + ".scale";
    if (file_.tensor(scale)) {
        fail_with(fail(Code::unsupported, "tensor '", scale, "' scales '", name, "'; files with separate scales are not supported, use a plain quantisation"));
        return kNoSlot;
    }
    Slot s;
    s.name = name;
    s.role = SlotRole::weight;
    s.type = t->type;
    s.n_dim = static_cast<uint32_t>(shape.size());
    for (size_t i = 0; i < shape.size(); ++i) s.shape[i] = shape[i];
    plan_.slots.push_back(std::move(s));
    const SlotId id = static_cast<SlotId>(plan_.slots.size() - 1);
    weights_.emplace(name, id);
    return id;
}

SlotId Builder::vector(const std::string& name, uint64_t n) {
    const SlotId id = weight(name, {n});
    if (id != kNoSlot && plan_.slots[id].type != Type::f32) {
        fail_with(fail(Code::bad_file, "tensor '", name, "' is ", type_info(plan_.slots[id].type).name, ", expected F32 as every vector"));
        return kNoSlot;
    }
    return id;
}

Op& Builder::push(Tape& tape, OpKind kind, uint32_t layer, SlotId out) {
    tape.ops.emplace_back();
    Op& op = tape.ops.back();
    op.kind = kind;
    op.layer = layer;
    op.out = out;
    return op;
}

void Builder::norm(Tape& tape, uint32_t layer, SlotId out, SlotId in, SlotId w, float eps, uint32_t out_offset) {
    Op& op = push(tape, OpKind::rms_norm, layer, out);
    op.in[0] = in;
    op.w[0] = w;
    op.eps = eps;
    op.out_offset = out_offset;
}

void Builder::matmul(Tape& tape, uint32_t layer, SlotId out, SlotId in, SlotId w, bool accumulate) {
    Op& op = push(tape, OpKind::matmul, layer, out);
    op.in[0] = in;
    op.w[0] = w;
    op.accumulate = accumulate;
}

uint32_t Builder::u32(const char* name, uint32_t low, uint32_t high) {
    if (!ok()) return low;
    Result<uint32_t> r = file_.get_u32(key(name));
    if (!r.ok()) {
        fail_with(r.status());
        return low;
    }
    if (r.value() < low || r.value() > high) {
        fail_with(fail(Code::bad_file, "key '", key(name), "' is ", r.value(), ", expected ", low, "..", high));
        return low;
    }
    return r.value();
}

uint32_t Builder::u32_or(const char* name, uint32_t otherwise, uint32_t low, uint32_t high) {
    return file_.find(key(name)) ? u32(name, low, high) : otherwise;
}

float Builder::f32(const char* name) {
    if (!ok()) return 0;
    Result<float> r = file_.get_f32(key(name));
    if (!r.ok()) {
        fail_with(r.status());
        return 0;
    }
    if (!std::isfinite(r.value())) {
        fail_with(fail(Code::bad_file, "key '", key(name), "' is not a finite number"));
        return 0;
    }
    return r.value();
}

float Builder::f32_or(const char* name, float otherwise) { return file_.find(key(name)) ? f32(name) : otherwise; }

Result<Plan> make_plan(const Gguf& file, const PlanOptions& options) {
    Result<std::string> arch = file.get_string("general.architecture");
    if (!arch.ok()) return arch.status();
    Plan plan;
    plan.architecture = arch.value();
    Status s;
    if (plan.architecture == "qwen35")
        s = plan_qwen35(file, options, plan);
    else
        s = fail(Code::unsupported, "architecture '", plan.architecture, "' is not supported; this version runs qwen35");
    if (!s.ok()) return s;
    s = check_plan(plan);
    if (!s.ok()) return s;
    return plan;
}

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------ src/plan/arch_qwen35.cpp

// plan/arch_qwen35: Qwen3.5 and 3.6 dense: three Gated DeltaNet layers, then one of gated attention.
// Source: docs/MODEL.md, "qwen35".


namespace auspex {
namespace detail {
namespace qwen35_impl {

struct Dims {
    uint32_t n_block, n_layer, n_mtp, d_model, d_ff, interval;
    float eps;
    AttnDims attn;
    DeltaDims delta;
    std::vector<bool> recurrent;  // by block
};

/// The activations that all layers share.
struct Scratch {
    SlotId x, a, q, k, v, o_attn, u, z, beta, alpha, o_delta, gate, up, e, c, h_in;
};

Status read_dims(Builder& b, const Gguf& file, Plan& plan, Dims& d) {
    d.n_block = b.u32("block_count", 1, 1024);
    d.n_mtp = b.u32_or("nextn_predict_layers", 0, 0, 8);
    if (b.ok() && d.n_mtp >= d.n_block)
        b.fail_with(fail(Code::bad_file, "key '", b.key("nextn_predict_layers"), "' is ", d.n_mtp, ", but there are only ", d.n_block, " blocks"));
    d.n_layer = d.n_block - d.n_mtp;
    d.d_model = b.u32("embedding_length", 32, 1u << 16);
    d.d_ff = b.u32("feed_forward_length", 32, 1u << 20);
    d.eps = b.f32("attention.layer_norm_rms_epsilon");
    d.interval = b.u32_or("full_attention_interval", 4, 1, 1024);
    plan.n_context = b.u32("context_length", 1, 1u << 30);

    AttnDims& a = d.attn;
    a.n_head = b.u32("attention.head_count", 1, 1024);
    a.n_head_kv = b.u32_or("attention.head_count_kv", a.n_head, 1, 1024);
    a.d_head = b.u32("attention.key_length", 8, 512);
    const uint32_t d_value = b.u32_or("attention.value_length", a.d_head, 8, 512);
    if (b.ok() && d_value != a.d_head)
        b.fail_with(fail(Code::unsupported, "key heads of ", a.d_head, " and value heads of ", d_value, " values; expected equal widths"));
    a.n_rot = b.u32("rope.dimension_count", 2, 512);
    a.rope_base = b.f32_or("rope.freq_base", 10000.0f);
    a.scale = b.f32_or("attention.scale", 0.0f);
    if (a.scale == 0.0f) a.scale = 1.0f / std::sqrt(static_cast<float>(a.d_head));
    a.gate = AttnGate::interleaved;
    a.eps = d.eps;
    Result<std::string> scaling = file.get_string(b.key("rope.scaling.type"), "none");
    if (!scaling.ok()) return scaling.status();
    if (scaling.value() != "none" && scaling.value() != "")
        b.fail_with(fail(Code::unsupported, "key '", b.key("rope.scaling.type"), "' is '", scaling.value(),
                         "'; only unscaled rotations are supported: use the file at its trained context"));

    DeltaDims& g = d.delta;
    g.n_conv = b.u32("ssm.conv_kernel", 2, 8);
    g.d_key = b.u32("ssm.state_size", 8, 256);
    g.n_head_k = b.u32("ssm.group_count", 1, 1024);
    g.n_head_v = b.u32("ssm.time_step_rank", 1, 1024);
    g.d_val = g.d_key;
    g.eps = d.eps;
    const uint32_t inner = b.u32("ssm.inner_size", 8, 1u << 20);
    if (b.ok() && uint64_t{g.n_head_v} * g.d_val != inner)
        b.fail_with(fail(Code::bad_file, "key '", b.key("ssm.inner_size"), "' is ", inner, ", expected ", uint64_t{g.n_head_v} * g.d_val, " (time_step_rank * state_size)"));
    if (!b.ok()) return b.status();

    d.recurrent.resize(d.n_block);
    for (uint32_t i = 0; i < d.n_block; ++i) d.recurrent[i] = i < d.n_layer && (i + 1) % d.interval != 0;
    if (const Meta* mask = file.find(b.key("attention.recurrent_layers"))) {
        if (!mask->is_array || mask->n != d.n_block)
            return fail(Code::bad_file, "key '", mask->key, "' has ", mask->n, " entries, expected ", d.n_block, " (block_count)");
        for (uint32_t i = 0; i < d.n_layer; ++i) {
            int64_t bit = 0;
            if (!mask->get_int(i, &bit)) return fail(Code::bad_file, "key '", mask->key, "' holds no booleans");
            d.recurrent[i] = bit != 0;
        }
    }
    return {};
}

void attention(Builder& b, Tape& tape, uint32_t il, const Dims& d, const Scratch& s, bool fill_first) {
    const AttnDims& a = d.attn;
    const std::string blk = say("blk.", il, ".");
    const uint64_t kv_dim = uint64_t{a.n_head_kv} * a.d_head, q_dim = uint64_t{a.n_head} * a.d_head;
    const SlotId kv = b.state(say("layer.", il, ".kv"), SlotRole::kv, kv_dim);
    b.matmul(tape, il, s.k, s.a, b.weight(blk + "attn_k.weight", {kv_dim, d.d_model}));
    b.matmul(tape, il, s.v, s.a, b.weight(blk + "attn_v.weight", {kv_dim, d.d_model}));
    if (!fill_first) b.matmul(tape, il, s.q, s.a, b.weight(blk + "attn_q.weight", {2 * q_dim, d.d_model}));
    Op& write = b.push(tape, OpKind::kv_write, il, kNoSlot);
    write.in[0] = s.k;
    write.in[1] = s.v;
    write.w[0] = b.vector(blk + "attn_k_norm.weight", a.d_head);
    write.state = kv;
    write.attn = a;
    if (fill_first) {  // a cache-filling row stops here
        tape.n_fill = tape.ops.size();
        b.matmul(tape, il, s.q, s.a, b.weight(blk + "attn_q.weight", {2 * q_dim, d.d_model}));
    }
    Op& attend = b.push(tape, OpKind::attend, il, s.o_attn);
    attend.in[0] = s.q;
    attend.w[0] = b.vector(blk + "attn_q_norm.weight", a.d_head);
    attend.state = kv;
    attend.attn = a;
    b.matmul(tape, il, s.x, s.o_attn, b.weight(blk + "attn_output.weight", {d.d_model, q_dim}), true);
}

void delta(Builder& b, Tape& tape, uint32_t il, const Dims& d, const Scratch& s) {
    const DeltaDims& g = d.delta;
    const std::string blk = say("blk.", il, ".");
    const uint64_t value_dim = uint64_t{g.n_head_v} * g.d_val;
    b.matmul(tape, il, s.u, s.a, b.weight(blk + "attn_qkv.weight", {g.conv_dim(), d.d_model}));
    b.matmul(tape, il, s.z, s.a, b.weight(blk + "attn_gate.weight", {value_dim, d.d_model}));
    b.matmul(tape, il, s.beta, s.a, b.weight(blk + "ssm_beta.weight", {g.n_head_v, d.d_model}));
    b.matmul(tape, il, s.alpha, s.a, b.weight(blk + "ssm_alpha.weight", {g.n_head_v, d.d_model}));
    Op& op = b.push(tape, OpKind::delta, il, s.o_delta);
    op.in[0] = s.u;
    op.in[1] = s.z;
    op.in[2] = s.beta;
    op.in[3] = s.alpha;
    op.w[0] = b.weight(blk + "ssm_conv1d.weight", {g.conv_dim(), g.n_conv});
    op.w[1] = b.vector(blk + "ssm_dt.bias", g.n_head_v);
    op.w[2] = b.vector(blk + "ssm_a", g.n_head_v);
    op.w[3] = b.vector(blk + "ssm_norm.weight", g.d_val);
    op.state = b.state(say("layer.", il, ".delta.state"), SlotRole::delta, g.n_head_v, g.d_key, g.d_val);
    op.state2 = b.state(say("layer.", il, ".delta.conv"), SlotRole::conv, g.conv_dim());
    op.delta = g;
    b.matmul(tape, il, s.x, s.o_delta, b.weight(blk + "ssm_out.weight", {d.d_model, value_dim}), true);
}

void ffn(Builder& b, Tape& tape, uint32_t il, const Dims& d, const Scratch& s) {
    const std::string blk = say("blk.", il, ".");
    b.norm(tape, il, s.a, s.x, b.vector(blk + "post_attention_norm.weight", d.d_model), d.eps);
    b.matmul(tape, il, s.gate, s.a, b.weight(blk + "ffn_gate.weight", {d.d_ff, d.d_model}));
    b.matmul(tape, il, s.up, s.a, b.weight(blk + "ffn_up.weight", {d.d_ff, d.d_model}));
    Op& act = b.push(tape, OpKind::swiglu, il, s.gate);
    act.in[0] = s.gate;
    act.in[1] = s.up;
    b.matmul(tape, il, s.x, s.gate, b.weight(blk + "ffn_down.weight", {d.d_model, d.d_ff}), true);
}

/// The end of a tape: final norm to `hidden`, head to `logits`.
void head(Builder& b, Tape& tape, uint32_t il, const Scratch& s, SlotId norm, SlotId table, float eps) {
    b.norm(tape, il, tape.hidden, s.x, norm, eps);
    b.matmul(tape, il, tape.logits, tape.hidden, table);
    tape.ops.back().head = true;
}

}  // namespace qwen35_impl

Status plan_qwen35(const Gguf& file, const PlanOptions& options, Plan& plan) {
    using namespace qwen35_impl;
    Builder b(file, plan);
    Dims d{};
    AUSPEX_TRY(read_dims(b, file, plan, d));
    const Tensor* table = file.tensor("token_embd.weight");
    if (!table) return fail(Code::bad_file, "tensor 'token_embd.weight' is missing; every file needs it");
    if (!file.tensor("blk.0.attn_norm.weight"))
        return fail(Code::unsupported, "tensor 'blk.0.attn_norm.weight' is missing; a file with only the MTP block drafts for another model and cannot run alone");
    if (table->ne[1] == 0 || table->ne[1] > (1u << 24)) return fail(Code::bad_file, "tensor 'token_embd.weight' has ", table->ne[1], " rows, expected 1..16777216");
    plan.d_model = d.d_model;
    plan.n_vocab = static_cast<uint32_t>(table->ne[1]);
    plan.n_layer = d.n_layer;

    Scratch s{};
    const DeltaDims& g = d.delta;
    const uint64_t value_dim = uint64_t{g.n_head_v} * g.d_val, kv_dim = uint64_t{d.attn.n_head_kv} * d.attn.d_head,
                   q_dim = uint64_t{d.attn.n_head} * d.attn.d_head;
    s.x = b.activation("x", d.d_model);
    s.a = b.activation("a", d.d_model);
    s.q = b.activation("q", 2 * q_dim);
    s.k = b.activation("k", kv_dim);
    s.v = b.activation("v", kv_dim);
    s.o_attn = b.activation("o", q_dim);
    s.u = b.activation("u", g.conv_dim());
    s.z = b.activation("z", value_dim);
    s.beta = b.activation("beta", g.n_head_v);
    s.alpha = b.activation("alpha", g.n_head_v);
    s.o_delta = b.activation("od", value_dim);
    s.gate = b.activation("gate", d.d_ff);
    s.up = b.activation("up", d.d_ff);

    const SlotId embd = b.weight("token_embd.weight", {plan.n_vocab, d.d_model});
    const SlotId out = b.has("output.weight") ? b.weight("output.weight", {plan.n_vocab, d.d_model}) : embd;
    const SlotId out_norm = b.vector("output_norm.weight", d.d_model);

    Tape& trunk = plan.trunk;
    trunk.hidden = b.activation("hidden", d.d_model, SlotRole::kept);
    trunk.logits = b.activation("logits", plan.n_vocab, SlotRole::kept);
    b.push(trunk, OpKind::embed, 0, s.x).w[0] = embd;
    for (uint32_t il = 0; il < d.n_layer && b.ok(); ++il) {
        b.norm(trunk, il, s.a, s.x, b.vector(say("blk.", il, ".attn_norm.weight"), d.d_model), d.eps);
        if (d.recurrent[il])
            delta(b, trunk, il, d, s);
        else
            attention(b, trunk, il, d, s, false);
        ffn(b, trunk, il, d, s);
    }
    head(b, trunk, d.n_layer, s, out_norm, out, d.eps);

    const uint32_t n_mtp = options.mtp && d.n_mtp > 0 && b.has(say("blk.", d.n_layer, ".nextn.eh_proj.weight")) ? d.n_mtp : 0;
    if (n_mtp > 1) return fail(Code::unsupported, "key '", b.key("nextn_predict_layers"), "' is ", n_mtp, "; this architecture is known with at most 1");
    if (n_mtp == 1) {
        const uint32_t il = d.n_layer;
        const std::string blk = say("blk.", il, ".");
        s.e = b.activation("mtp.e", d.d_model);
        s.h_in = b.activation("mtp.h", d.d_model);
        s.c = b.activation("mtp.c", 2 * d.d_model);
        plan.mtp.emplace_back();
        Tape& t = plan.mtp.back();
        t.hidden = b.activation("mtp.hidden", d.d_model, SlotRole::kept);
        t.logits = b.activation("mtp.logits", plan.n_vocab, SlotRole::kept);
        const std::string own_embd = blk + "nextn.embed_tokens.weight", own_norm = blk + "nextn.shared_head_norm.weight",
                          own_head = blk + "nextn.shared_head_head.weight";
        b.push(t, OpKind::embed, il, s.e).w[0] = b.has(own_embd) ? b.weight(own_embd, {plan.n_vocab, d.d_model}) : embd;
        b.push(t, OpKind::hidden, il, s.h_in);
        b.norm(t, il, s.c, s.e, b.vector(blk + "nextn.enorm.weight", d.d_model), d.eps);
        b.norm(t, il, s.c, s.h_in, b.vector(blk + "nextn.hnorm.weight", d.d_model), d.eps, d.d_model);
        b.matmul(t, il, s.x, s.c, b.weight(blk + "nextn.eh_proj.weight", {d.d_model, 2 * uint64_t{d.d_model}}));
        b.norm(t, il, s.a, s.x, b.vector(blk + "attn_norm.weight", d.d_model), d.eps);
        attention(b, t, il, d, s, true);
        ffn(b, t, il, d, s);
        head(b, t, il, s, b.has(own_norm) ? b.vector(own_norm, d.d_model) : out_norm,
             b.has(own_head) ? b.weight(own_head, {plan.n_vocab, d.d_model}) : out, d.eps);
    }
    return b.status();
}

}  // namespace detail
}  // namespace auspex

// -------------------------------------------------------------------- src/machine/cpu/features.cpp

#if AUSPEX_HAS_X86
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif
#if defined(__linux__)
#include <sched.h>
#endif
#if AUSPEX_HAS_NEON && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace auspex {
namespace detail {
namespace features_impl {

#if AUSPEX_HAS_X86
struct Leaf {
    uint32_t a = 0, b = 0, c = 0, d = 0;
};
Leaf cpuid(uint32_t leaf, uint32_t sub) {
    Leaf r;
#if defined(_MSC_VER)
    int v[4];
    __cpuid(v, 0);
    if (static_cast<uint32_t>(v[0]) < leaf) return r;
    __cpuidex(v, static_cast<int>(leaf), static_cast<int>(sub));
    r = {static_cast<uint32_t>(v[0]), static_cast<uint32_t>(v[1]), static_cast<uint32_t>(v[2]), static_cast<uint32_t>(v[3])};
#else
    if (!__get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d)) return Leaf{};
#endif
    return r;
}
/// Which register sets the operating system saves; only where cpuid says OSXSAVE.
uint64_t saved_registers() {
#if defined(_MSC_VER)
    return _xgetbv(0);
#else
    uint32_t low, high;
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(low), "=d"(high) : "c"(0));  // xgetbv, for any assembler
    return uint64_t{high} << 32 | low;
#endif
}
bool bits(uint64_t word, uint64_t mask) { return (word & mask) == mask; }

bool has_x86(bool wide) {
    // Bit numbers: Intel SDM volume 2, CPUID.
    const Leaf one = cpuid(1, 0), seven = cpuid(7, 0);
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    if (!bits(one.c, fma | osxsave | avx | f16c)) return false;
    const uint64_t saved = saved_registers();
    if (!bits(saved, 0x6) || !bits(seven.b, 1u << 5)) return false;  // xmm and ymm; AVX2
    if (!wide) return true;
    const uint32_t f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, vnni = 1u << 11;
    return bits(saved, 0xe6) && bits(seven.b, f | dq | bw | vl) && bits(seven.c, vnni);
}
#endif

#if defined(__linux__)
/// The first number in a small file of the kernel's, or -1.
long first_number(const char* pattern, int cpu) {
    char path[128];
    std::snprintf(path, sizeof path, pattern, cpu);
    std::FILE* f = std::fopen(path, "r");
    if (!f) return -1;
    long n = -1;
    if (std::fscanf(f, "%ld", &n) != 1) n = -1;
    std::fclose(f);
    return n;
}
#endif

}  // namespace features_impl

const char* path_name(CpuPath path) {
    switch (path) {
        case CpuPath::best: return "best";
        case CpuPath::reference: return "reference";
        case CpuPath::avx2: return "avx2";
        case CpuPath::avx512: return "avx512";
        case CpuPath::neon: return "neon";
    }
    return "unknown";
}

bool has_path(CpuPath path) {
    switch (path) {
        case CpuPath::best:
        case CpuPath::reference: return true;
#if AUSPEX_HAS_X86
        case CpuPath::avx2: return features_impl::has_x86(false);
        case CpuPath::avx512: return features_impl::has_x86(true);
#else
        case CpuPath::avx2:
        case CpuPath::avx512: return false;
#endif
        case CpuPath::neon:
#if AUSPEX_HAS_NEON && defined(__linux__)
            return (getauxval(AT_HWCAP) & (1ul << 20)) != 0;  // HWCAP_ASIMDDP
#elif AUSPEX_HAS_NEON && defined(__APPLE__)
            return true;  // every Apple AArch64 Mac has it; phones since the A11
#else
            return false;
#endif
    }
    return false;
}

CpuPath best_path() {
    for (const CpuPath p : {CpuPath::avx512, CpuPath::avx2, CpuPath::neon})
        if (has_path(p)) return p;
    return CpuPath::reference;
}

Status choose_path(CpuPath wanted, CpuPath* out) {
    if (!has_path(wanted)) {
        std::string there = "reference";
        for (const CpuPath p : {CpuPath::avx2, CpuPath::avx512, CpuPath::neon})
            if (has_path(p)) there = say(there, ", ", path_name(p));
        return fail(Code::unsupported, "CPU path '", path_name(wanted), "' is not available: this processor and build have ",
                    there, ". Choose one of these, or best.");
    }
    *out = wanted == CpuPath::best ? best_path() : wanted;
    return {};
}

uint32_t n_physical_core() {
    uint32_t n = std::thread::hardware_concurrency();
#if defined(__linux__)
    using features_impl::first_number;
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
        // A core counts at its first allowed hardware thread. Where cores differ in size (phones), the
        // small ones would only hold the others up.
        long largest = -1;
        for (int i = 0; i < CPU_SETSIZE; ++i)
            if (CPU_ISSET(i, &allowed)) {
                const long c = first_number("/sys/devices/system/cpu/cpu%d/cpu_capacity", i);
                if (c > largest) largest = c;
            }
        cpu_set_t seen;
        CPU_ZERO(&seen);
        uint32_t cores = 0;
        for (int i = 0; i < CPU_SETSIZE; ++i) {
            if (!CPU_ISSET(i, &allowed)) continue;
            if (largest > 0 && 2 * first_number("/sys/devices/system/cpu/cpu%d/cpu_capacity", i) < largest) continue;
            const long first = first_number("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
            const int core = first >= 0 && first < CPU_SETSIZE ? static_cast<int>(first) : i;
            if (CPU_ISSET(core, &seen)) continue;
            CPU_SET(core, &seen);
            ++cores;
        }
        if (cores > 0) n = cores;
    }
#elif defined(__APPLE__)
    for (const char* key : {"hw.perflevel0.physicalcpu", "hw.physicalcpu"}) {
        int v = 0;
        size_t size = sizeof v;
        if (sysctlbyname(key, &v, &size, nullptr, 0) == 0 && v > 0) {
            n = static_cast<uint32_t>(v);
            break;
        }
    }
#endif
    return n > 0 ? n : 1;
}

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------ src/machine/cpu/pool.cpp

#include <chrono>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define AUSPEX_PTHREAD 1
#else
#define AUSPEX_PTHREAD 0
#endif
#if (defined(__x86_64__) || defined(_M_X64)) && !defined(__GNUC__)
#include <immintrin.h>
#endif

namespace auspex {
namespace detail {
namespace pool_impl {

constexpr uint32_t kSpinMicros = 50;

/// Tells the core that this is a waiting loop.
inline void pause() {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_ia32_pause();
#elif defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__) && defined(__GNUC__)
    __asm__ volatile("isb" ::: "memory");  // waits a little; "yield" does nothing on most cores
#endif
}

}  // namespace pool_impl

Pool::Pool(uint32_t n_thread)
    : n_thread_(n_thread),
      // With more threads than processors, a spinning thread only keeps the awaited one from running.
      spin_us_(n_thread > std::thread::hardware_concurrency() ? 0 : pool_impl::kSpinMicros) {
    workers_.resize(n_thread);
    for (uint32_t i = 0; i < n_thread; ++i) workers_[i] = {this, i};
}

void* Pool::thread_entry(void* me) {
    work_loop(static_cast<Worker*>(me));
    return nullptr;
}

// pthread_create reports a failure as a value, std::thread only as an exception.
bool Pool::start(uint32_t i, int* error) {
#if AUSPEX_PTHREAD
    static_assert(sizeof(pthread_t) <= sizeof(uint64_t), "a handle fits");
    pthread_t t{};
    *error = pthread_create(&t, nullptr, thread_entry, &workers_[i]);
    if (*error != 0) return false;
    uint64_t handle = 0;
    std::memcpy(&handle, &t, sizeof t);
    handles_.push_back(handle);
#else
    *error = 0;
    threads_.emplace_back(work_loop, &workers_[i]);
#endif
    ++n_started_;
    return true;
}

Result<std::unique_ptr<Pool>> Pool::open(uint32_t n_thread) {
    if (n_thread == 0 || n_thread > kMaxThread)
        return fail(Code::bad_argument, "a pool of ", n_thread, " threads was asked for, expected 1 to ", kMaxThread);
    std::unique_ptr<Pool> pool(new Pool(n_thread));
    for (uint32_t i = 1; i < n_thread; ++i) {
        int error = 0;
        if (!pool->start(i, &error))
            return fail(Code::out_of_memory, "the system started ", i - 1, " of ", n_thread - 1,
                        " threads and then refused with error ", error, ": ", std::strerror(error), ". Ask for fewer threads.");
    }
    return pool;
}

Pool::~Pool() {
    stop_ = true;
    run_count_.fetch_add(1);
    wake();
#if AUSPEX_PTHREAD
    for (const uint64_t handle : handles_) {
        pthread_t t{};
        std::memcpy(&t, &handle, sizeof t);
        pthread_join(t, nullptr);
    }
#endif
    for (std::thread& t : threads_) t.join();
}

void Pool::work_loop(Worker* me) {
    Pool& pool = *me->pool;
    for (uint32_t seen = 0;; ++seen) {
        pool.wait_change(pool.run_count_, seen);
        if (pool.stop_) return;
        pool.work_(pool.context_, me->i, pool.n_thread_);
        pool.barrier(me->i);
    }
}

void Pool::run(Work work, void* context) {
    if (n_thread_ == 1) {
        clear_tickets();
        work(context, 0, 1);
        return;
    }
    std::lock_guard<std::mutex> turn(run_mutex_);
    clear_tickets();
    work_ = work;
    context_ = context;
    run_count_.fetch_add(1);
    wake();
    work(context, 0, n_thread_);
    barrier(0);
}

void Pool::clear_tickets() {
    for (Ticket& t : tickets_) t.count.store(0, std::memory_order_relaxed);
}

void Pool::barrier(uint32_t) {
    if (n_thread_ == 1) {
        clear_tickets();
        return;
    }
    const uint32_t phase = phase_.load(std::memory_order_relaxed);  // cannot change before we arrive
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < n_thread_) {
        wait_change(phase_, phase);
        return;
    }
    arrived_.store(0, std::memory_order_relaxed);
    clear_tickets();
    phase_.fetch_add(1);
    wake();
}

void Pool::wait_change(const std::atomic<uint32_t>& word, uint32_t old) {
    using Clock = std::chrono::steady_clock;
    const auto changed = [&] { return word.load(std::memory_order_acquire) != old; };
    if (changed()) return;
    if (spin_us_ > 0) {
        const auto until = Clock::now() + std::chrono::microseconds(spin_us_);
        do {
            for (int i = 0; i < 32; ++i) {
                if (changed()) return;
                pool_impl::pause();
            }
        } while (Clock::now() < until);
    } else {
        for (int i = 0; i < 4; ++i) {
            std::this_thread::yield();
            if (changed()) return;
        }
    }
    // Announce the sleep, then look again: wake() changes the word first and looks for sleepers after,
    // both sequentially consistent, so one of the two sees the other.
    std::unique_lock<std::mutex> lock(sleep_mutex_);
    n_asleep_.fetch_add(1);
    sleep_.wait(lock, [&] { return word.load() != old; });
    n_asleep_.fetch_sub(1);
}

void Pool::wake() {
    if (n_asleep_.load() == 0) return;
    { std::lock_guard<std::mutex> lock(sleep_mutex_); }
    sleep_.notify_all();
}

}  // namespace detail
}  // namespace auspex
#undef AUSPEX_PTHREAD

// ------------------------------------------------------------------------ src/machine/cpu/pack.cpp

namespace auspex {
namespace detail {

bool strip_form(Type type, StripForm* out) {
    StripForm f;
    switch (type) {
        case Type::q4_0: f.offset = 8; break;
        case Type::q4_1: f.has_min = true; break;
        case Type::q5_0: f.code = CodeForm::five, f.offset = 16; break;
        case Type::q5_1: f.code = CodeForm::five, f.has_min = true; break;
        case Type::q8_0: f.code = CodeForm::byte; break;
        case Type::q2_k: f.n_group = 2, f.has_min = f.super = true; break;
        case Type::q3_k: f.code = CodeForm::six, f.n_group = 2, f.super = true, f.offset = 32; break;  // code + 28
        case Type::q4_k: f.has_min = f.super = true; break;
        case Type::q5_k: f.code = CodeForm::five, f.has_min = f.super = true; break;
        case Type::q6_k: f.code = CodeForm::six, f.n_group = 2, f.super = true, f.offset = 32; break;
        case Type::iq4_nl: f.code = CodeForm::book; break;
        case Type::iq4_xs: f.code = CodeForm::book, f.super = true; break;
        case Type::f32:
        case Type::f16:
        case Type::bf16: return false;
    }
    *out = f;
    return true;
}

namespace pack_impl {

/// One block of 32 inputs of one row, spelled out: what the file says, nothing rounded. Codes are
/// handled four at a time, as the bytes of a word; masks keep shifts within the bytes.
struct Plain {
    uint16_t d = 0, d_min = 0;          ///< f16 bits; super forms: of the 256
    int8_t scale[2] = {}, min[2] = {};  ///< super forms, for each half (both the same where one covers 32)
    uint32_t code[8] = {};              ///< unsigned bytes; byte form: the int8's bits
};

/// Both 6-bit numbers of sub-block g from the 12 scale bytes of Q4_K and Q5_K.
inline void six_bit_pair(const uint8_t* b, uint32_t g, Plain* p) {
    uint32_t sc, mn;
    if (g < 4) {
        sc = b[g] & 63u;
        mn = b[g + 4] & 63u;
    } else {
        const uint32_t both = b[g + 4], sc_top = b[g - 4], mn_top = b[g];
        sc = (both & 15) | (sc_top >> 6) << 4;
        mn = both >> 4 | (mn_top >> 6) << 4;
    }
    p->scale[0] = p->scale[1] = static_cast<int8_t>(sc);
    p->min[0] = p->min[1] = static_cast<int8_t>(mn);
}

inline uint32_t word(const uint8_t* p, uint32_t i) { return load<uint32_t>(p + 4 * i); }
/// 16 bytes, low nibbles first.
inline void nibbles(const uint8_t* qs, uint32_t* code) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 4; ++i) {
        code[i] = word(qs, i) & 0x0f0f0f0fu;
        code[i + 4] = word(qs, i) >> 4 & 0x0f0f0f0fu;
    }
}
/// Bit i of qh on top of the nibble of code i: the product copies four bits to the bottoms of four bytes.
inline void fifth_bits(uint32_t qh, uint32_t* code) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 8; ++i) code[i] |= ((qh >> (4 * i) & 15u) * 0x00204081u & 0x01010101u) << 4;
}
/// The masked fields at `shift` of 32 bytes.
inline void fields(const uint8_t* from, uint32_t shift, uint32_t mask, uint32_t* code) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < 8; ++i) code[i] = word(from, i) >> shift & mask * 0x01010101u;
}

/// Block `block` (of 32 inputs) of a row in the file's format.
template <Type kType>
inline void read_plain(const TypeInfo& info, const uint8_t* row, uint32_t block, Plain* p) {
    const bool super = info.n_block == 256;
    const uint32_t g = super ? block % 8 : 0;
    const uint8_t* f = row + size_t{super ? block / 8 : block} * info.block_bytes;
    uint32_t top[8];
    switch (kType) {
        case Type::q4_0:
        case Type::iq4_nl:
            p->d = load<uint16_t>(f);
            nibbles(f + 2, p->code);
            break;
        case Type::q4_1:
            p->d = load<uint16_t>(f);
            p->d_min = load<uint16_t>(f + 2) ^ 0x8000u;  // the file adds it, the form takes it away
            nibbles(f + 4, p->code);
            break;
        case Type::q5_0:
            p->d = load<uint16_t>(f);
            nibbles(f + 6, p->code);
            fifth_bits(load<uint32_t>(f + 2), p->code);
            break;
        case Type::q5_1:
            p->d = load<uint16_t>(f);
            p->d_min = load<uint16_t>(f + 2) ^ 0x8000u;
            nibbles(f + 8, p->code);
            fifth_bits(load<uint32_t>(f + 4), p->code);
            break;
        case Type::q8_0:
            p->d = load<uint16_t>(f);
            std::memcpy(p->code, f + 2, 32);
            break;
        case Type::q2_k:
            p->d = load<uint16_t>(f + 80);
            p->d_min = load<uint16_t>(f + 82);
            for (uint32_t h = 0; h < 2; ++h) {
                p->scale[h] = f[2 * g + h] & 15;
                p->min[h] = static_cast<int8_t>(f[2 * g + h] >> 4);
            }
            fields(f + 16 + 32 * (g / 4), 2 * (g % 4), 3, p->code);
            break;
        case Type::q3_k:
            p->d = load<uint16_t>(f + 108);
            for (uint32_t h = 0; h < 2; ++h) {
                const uint32_t k = 2 * g + h;
                const uint32_t low = k < 8 ? f[96 + k] & 15u : f[96 + k - 8] >> 4;
                const uint32_t high = (f[96 + 8 + k % 4] >> (2 * (k / 4))) & 3u;
                p->scale[h] = static_cast<int8_t>(static_cast<int32_t>(low | high << 4) - 32);
            }
            // q - (bit ? 0 : 4), and 32 up: q + 28 + 4 bit; no byte carries over
            fields(f + 32 + 32 * (g / 4), 2 * (g % 4), 3, p->code);
            fields(f, g, 1, top);
            for (uint32_t i = 0; i < 8; ++i) p->code[i] += 0x1c1c1c1cu + 4 * top[i];
            break;
        case Type::q4_k:
        case Type::q5_k:
            p->d = load<uint16_t>(f);
            p->d_min = load<uint16_t>(f + 2);
            six_bit_pair(f + 4, g, p);
            fields(f + (kType == Type::q4_k ? 16 : 48) + 32 * (g / 2), 4 * (g % 2), 15, p->code);
            if (kType == Type::q4_k) break;
            fields(f + 16, g, 1, top);
            for (uint32_t i = 0; i < 8; ++i) p->code[i] |= top[i] << 4;
            break;
        case Type::q6_k:
            p->d = load<uint16_t>(f + 208);
            std::memcpy(p->scale, f + 192 + 2 * g, 2);
            fields(f + 64 * (g / 4) + 32 * (g % 2), g % 4 / 2 * 4, 15, p->code);
            fields(f + 128 + 32 * (g / 4), 2 * (g % 4), 3, top);
            for (uint32_t i = 0; i < 8; ++i) p->code[i] |= top[i] << 4;
            break;
        case Type::iq4_xs: {
            p->d = load<uint16_t>(f);
            const uint32_t low = (f[4 + g / 2] >> (4 * (g % 2))) & 15u;
            const uint32_t high = (uint32_t{load<uint16_t>(f + 2)} >> (2 * g)) & 3u;
            p->scale[0] = p->scale[1] = static_cast<int8_t>(static_cast<int32_t>(low | high << 4) - 32);
            nibbles(f + 8 + 16 * g, p->code);
            break;
        }
        case Type::f32:
        case Type::f16:
        case Type::bf16: break;
    }
}

/// Where a block's bytes are in a strip.
struct Place {
    size_t head = 0, scales = 0, codes = 0;
};
Place place(const StripForm& f, uint32_t n_lane, uint32_t d_in, uint32_t block) {
    const uint32_t page = block / 8, left = d_in / 32 - 8 * page;
    Place p;
    p.head = size_t{page} * f.page_bytes(n_lane, 8);
    p.scales = p.head + f.head_bytes(n_lane) + size_t{block % 8} * f.scale_bytes(n_lane);
    p.codes = p.head + f.page_scale_bytes(n_lane, left < 8 ? left : 8) + size_t{block % 8} * f.code_bytes(n_lane);
    return p;
}

void put_f16(uint8_t* to, uint16_t v) { std::memcpy(to, &v, 2); }

inline void put_word(uint8_t* to, uint32_t v) { std::memcpy(to, &v, 4); }

/// The codes of one row's block into its lane of the strip's block.
inline void write_codes(CodeForm form, uint32_t n_lane, uint32_t lane, const uint32_t* code, uint32_t bias, uint8_t* to) {
    to += 4 * lane;
    const uint32_t step = 4 * n_lane;
    if (form == CodeForm::byte) {
        for (uint32_t i = 0; i < 8; ++i) put_word(to + step * i, code[i] ^ bias * 0x01010101u);
        return;
    }
    uint32_t more[2] = {};
#pragma GCC unroll 4
    for (uint32_t v = 0; v < 4; ++v) {
        const uint32_t a = code[v], b = code[4 + v];
        put_word(to + step * v, (a & 0x0f0f0f0fu) | (b & 0x0f0f0f0fu) << 4);
        const uint32_t a_top = a >> 4 & 0x0f0f0f0fu, b_top = b >> 4 & 0x0f0f0f0fu;
        if (form == CodeForm::five) {
            more[0] |= a_top << v | b_top << (4 + v);
        } else if (form == CodeForm::six) {
            more[0] |= a_top << (2 * v);
            more[1] |= b_top << (2 * v);
        }
    }
    if (form == CodeForm::five || form == CodeForm::six) put_word(to + step * 4, more[0]);
    if (form == CodeForm::six) put_word(to + step * 5, more[1]);
}

uint8_t read_code(CodeForm form, uint32_t n_lane, uint32_t lane, uint32_t i, uint8_t bias, const uint8_t* from) {
    const uint32_t h = i / 16, v = i / 4 % 4, at = 4 * lane + i % 4;
    if (form == CodeForm::byte) return from[4 * n_lane * (4 * h + v) + at] ^ bias;
    uint32_t c = (from[4 * n_lane * v + at] >> (4 * h)) & 15u;
    const uint8_t* more = from + 16 * n_lane;
    if (form == CodeForm::five) c |= ((more[at] >> (4 * h + v)) & 1u) << 4;
    if (form == CodeForm::six) c |= ((more[4 * n_lane * h + at] >> (2 * v)) & 3u) << 4;
    return static_cast<uint8_t>(c);
}

template <Type kType>
void pack_rows(const Matrix& m, const StripForm& f, const uint8_t* rows, uint32_t n_row, uint8_t* to) {
    const TypeInfo info = type_info(kType);
    const uint32_t R = m.n_lane;
    const size_t row_step = static_cast<size_t>(row_bytes(kType, m.d_in));
    const uint32_t bias = biased_bytes(m.path) ? 128 : 0;
    for (uint32_t b = 0; b < m.d_in / 32; ++b) {
        const Place at = place(f, R, m.d_in, b);
        uint8_t* s = to + at.scales;
        for (uint32_t lane = 0; lane < n_row; ++lane) {
            Plain p;
            read_plain<kType>(info, rows + lane * row_step, b, &p);
            if (f.super) {
                if (b % 8 == 0) {
                    put_f16(to + at.head + 2 * lane, p.d);
                    if (f.has_min) put_f16(to + at.head + 2 * R + 2 * lane, p.d_min);
                }
                for (uint32_t g = 0; g < f.n_group; ++g) {
                    s[R * g + lane] = static_cast<uint8_t>(p.scale[g]);
                    if (f.has_min) s[R * (f.n_group + g) + lane] = static_cast<uint8_t>(p.min[g]);
                }
            } else {
                put_f16(s + 2 * lane, p.d);
                if (f.has_min) put_f16(s + 2 * R + 2 * lane, p.d_min);
            }
            write_codes(f.code, R, lane, p.code, bias, to + at.codes);
        }
    }
}

}  // namespace pack_impl

void pack_strip(const Matrix& m, const std::byte* rows, uint32_t n_row, std::byte* strip) {
    using namespace pack_impl;
    StripForm f;
    if (!strip_form(m.type, &f)) return;
    const uint8_t* from = reinterpret_cast<const uint8_t*>(rows);
    uint8_t* to = reinterpret_cast<uint8_t*>(strip);
    switch (m.type) {
        case Type::q4_0: return pack_rows<Type::q4_0>(m, f, from, n_row, to);
        case Type::q4_1: return pack_rows<Type::q4_1>(m, f, from, n_row, to);
        case Type::q5_0: return pack_rows<Type::q5_0>(m, f, from, n_row, to);
        case Type::q5_1: return pack_rows<Type::q5_1>(m, f, from, n_row, to);
        case Type::q8_0: return pack_rows<Type::q8_0>(m, f, from, n_row, to);
        case Type::q2_k: return pack_rows<Type::q2_k>(m, f, from, n_row, to);
        case Type::q3_k: return pack_rows<Type::q3_k>(m, f, from, n_row, to);
        case Type::q4_k: return pack_rows<Type::q4_k>(m, f, from, n_row, to);
        case Type::q5_k: return pack_rows<Type::q5_k>(m, f, from, n_row, to);
        case Type::q6_k: return pack_rows<Type::q6_k>(m, f, from, n_row, to);
        case Type::iq4_nl: return pack_rows<Type::iq4_nl>(m, f, from, n_row, to);
        case Type::iq4_xs: return pack_rows<Type::iq4_xs>(m, f, from, n_row, to);
        case Type::f32:
        case Type::f16:
        case Type::bf16: return;
    }
}

void unpack_row(const Matrix& w, uint32_t row, float* to) {
    using namespace pack_impl;
    StripForm f;
    if (w.n_lane == 0 || !strip_form(w.type, &f)) {
        decode_row(w.type, w.data + w.stride * row, to, w.d_in);
        return;
    }
    const uint32_t R = w.n_lane, lane = row % R;
    const uint8_t* base = reinterpret_cast<const uint8_t*>(w.data + w.stride * (row / R));
    const uint8_t bias = biased_bytes(w.path) ? 128 : 0;
    for (uint32_t b = 0; b < w.d_in / 32; ++b) {
        const Place at = place(f, R, w.d_in, b);
        const uint8_t* s = base + at.scales;
        const uint8_t* head = f.super ? base + at.head : s;
        const float d = f16_to_f32(load<uint16_t>(head + 2 * lane));
        const float d_min = f.has_min ? f16_to_f32(load<uint16_t>(head + 2 * R + 2 * lane)) : 0;
        int16_t q[32];
        for (uint32_t i = 0; i < 32; ++i) {
            const uint8_t c = read_code(f.code, R, lane, i, bias, base + at.codes);
            q[i] = f.code == CodeForm::book   ? kIq4Values[c]
                   : f.code == CodeForm::byte ? static_cast<int8_t>(c)
                                              : static_cast<int16_t>(c - f.offset);
        }
        // As in decode_row, every product here is exact in float32 (11 bits of an f16, 8 of a scale, 5 of
        // a code), so that no order and no fused multiply-add can change a bit.
        for (uint32_t i = 0; i < 32; ++i) {
            const uint32_t g = i / (32u / f.n_group);
            float scale = d, min = d_min;
            if (f.super) {
                scale = d * static_cast<float>(static_cast<int8_t>(s[R * g + lane]));
                if (f.has_min) min = d_min * static_cast<float>(static_cast<int8_t>(s[R * (f.n_group + g) + lane]));
            }
            const float v = scale * static_cast<float>(q[i]);
            to[32 * size_t{b} + i] = f.has_min ? v - min : v;
        }
    }
}

}  // namespace detail
}  // namespace auspex

// ---------------------------------------------------------------------- src/machine/cpu/matmul.cpp

namespace auspex {
namespace detail {
namespace matmul_impl {

bool float_type(Type t) { return t == Type::f32 || t == Type::f16 || t == Type::bf16; }

uint32_t lanes(CpuPath path) { return path == CpuPath::avx512 ? 16 : 8; }

/// The view without data: how a shape is held on a path.
Matrix layout(CpuPath path, const MatrixShape& s) {
    Matrix m;
    m.type = s.type;
    m.path = path;
    m.d_out = s.d_out;
    m.d_in = s.d_in;
    StripForm f;
    if (path != CpuPath::reference && strip_form(s.type, &f)) {
        m.n_lane = lanes(path);
        m.stride = f.strip_bytes(m.n_lane, s.d_in);
    } else {
        m.stride = row_bytes(s.type, s.d_in);
    }
    return m;
}

uint64_t slice_bytes(const Matrix& m) {
    return m.stride * (m.n_lane ? ceil_div(uint64_t{m.d_out}, uint64_t{m.n_lane}) : m.d_out);
}

const CpuKernels* kernels(CpuPath path) {
    switch (path) {
#if AUSPEX_HAS_X86
        case CpuPath::avx512: return &avx512_kernels();
        case CpuPath::avx2: return &avx2_kernels();
#else
        case CpuPath::avx512:
        case CpuPath::avx2: break;
#endif
#if AUSPEX_HAS_NEON
        case CpuPath::neon: return &neon_kernels();
#else
        case CpuPath::neon: break;
#endif
        case CpuPath::best:
        case CpuPath::reference: break;
    }
    return nullptr;
}

struct PackJob {
    const Matrix* m;
    const std::byte* rows;
    std::byte* to;
    uint32_t n_slice;
};

void pack_part(void* context, uint32_t i_thread, uint32_t n_thread) {
    const PackJob& job = *static_cast<const PackJob*>(context);
    const Matrix& m = *job.m;
    const uint64_t from_row = row_bytes(m.type, m.d_in);
    uint64_t a, b;
    if (m.n_lane == 0) {
        even_part(uint64_t{job.n_slice} * m.d_out, {i_thread, n_thread, nullptr}, &a, &b);
        std::memcpy(job.to + a * from_row, job.rows + a * from_row, static_cast<size_t>((b - a) * from_row));
        return;
    }
    const uint64_t n_strip = ceil_div(uint64_t{m.d_out}, uint64_t{m.n_lane});
    even_part(job.n_slice * n_strip, {i_thread, n_thread, nullptr}, &a, &b);
    for (uint64_t s = a; s < b; ++s) {
        const uint64_t row = s % n_strip * m.n_lane;
        const uint64_t left = m.d_out - row;
        const uint32_t n = left < m.n_lane ? static_cast<uint32_t>(left) : m.n_lane;
        pack_strip(m, job.rows + (s / n_strip * m.d_out + row) * from_row, n, job.to + s * m.stride);
    }
}

// ----------------------------------------------------------------------------- the reference path

constexpr uint32_t kPiece = 256;    // inputs decoded at once: a multiple of every block
constexpr uint32_t kColumns = 32;   // activation rows that share a decoded piece
constexpr uint32_t kPartial = 8;

#if defined(__GNUC__)
__attribute__((noinline))
#endif
double dot_piece(const float* w, const float* x, uint32_t n) {
    // One function for every call, so that whatever a compiler makes of these sums, it makes it of all alike.
    float sum[kPartial] = {};
    uint32_t k = 0;
    for (; k + kPartial <= n; k += kPartial)
        for (uint32_t j = 0; j < kPartial; ++j) sum[j] += w[k + j] * x[k + j];
    for (; k < n; ++k) sum[k % kPartial] += w[k] * x[k];
    double all = 0;
    for (uint32_t j = 0; j < kPartial; ++j) all += static_cast<double>(sum[j]);
    return all;
}

/// Rows r0..r1 of y: weights decoded a piece at a time, products in float, pieces summed in double.
void reference_rows(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate, uint32_t r0, uint32_t r1) {
    const uint64_t piece_bytes = row_bytes(w.type, kPiece);
    for (uint32_t r = r0; r < r1; ++r) {
        const std::byte* row = w.data + w.stride * r;
        for (uint32_t c0 = 0; c0 < n_row; c0 += kColumns) {
            const uint32_t n = n_row - c0 < kColumns ? n_row - c0 : kColumns;
            double sum[kColumns] = {};
            for (uint32_t k = 0; k < w.d_in; k += kPiece) {
                const uint32_t n_in = w.d_in - k < kPiece ? w.d_in - k : kPiece;
                float piece[kPiece];
                decode_row(w.type, row + k / kPiece * piece_bytes, piece, n_in);
                for (uint32_t c = 0; c < n; ++c) {
                    const uint32_t from = in.pick ? in.pick[c0 + c] : c0 + c;
                    sum[c] += dot_piece(piece, in.x + in.ld * from + k, n_in);
                }
            }
            for (uint32_t c = 0; c < n; ++c) {
                float* to = y + ld_y * (c0 + c) + r;
                *to = accumulate ? *to + static_cast<float>(sum[c]) : static_cast<float>(sum[c]);
            }
        }
    }
}

}  // namespace matmul_impl

uint64_t packed_bytes(CpuPath path, const MatrixShape& shape, bool keep) {
    const Matrix m = matmul_impl::layout(path, shape);
    if (m.n_lane == 0 && keep) return 0;
    return matmul_impl::slice_bytes(m) * shape.n_slice;
}

Status pack_matrix(CpuPath path, const MatrixShape& shape, const std::byte* rows, bool keep, const Allocator& from,
                   Pool* pool, PackedMatrix* out) {
    using namespace matmul_impl;
    if (path == CpuPath::best || (path != CpuPath::reference && !kernels(path)))
        return fail(Code::unsupported, "weights cannot be packed for CPU path '", path_name(path), "': this build lacks it");
    const TypeInfo info = type_info(shape.type);
    if (!info.name || !info.supported)
        return fail(Code::unsupported, "weights of type id ", static_cast<uint32_t>(shape.type), ", expected one of ", supported_types());
    if (shape.d_out == 0 || shape.d_in == 0 || shape.n_slice == 0 || !rows)
        return fail(Code::bad_argument, "an empty matrix [", shape.n_slice, ", ", shape.d_out, ", ", shape.d_in, "]");
    if (shape.d_in % info.n_block != 0)
        return fail(Code::bad_argument, "rows of ", shape.d_in, " weights, expected a multiple of ", info.n_block, ", the block of ", info.name);
    Matrix m = layout(path, shape);
    uint64_t all = 0;
    if (!mul_fits(slice_bytes(m), shape.n_slice, &all) || all > SIZE_MAX / 2)
        return fail(Code::bad_argument, "a matrix [", shape.n_slice, ", ", shape.d_out, ", ", shape.d_in, "] of ", info.name, " is too large to address");
    PackedMatrix result;
    if (m.n_lane == 0 && keep) {
        m.data = rows;
    } else {
        const Status taken = result.own_.take(from, all, "a weight matrix");
        if (!taken.ok()) return taken;
        m.data = result.own_.data();
        PackJob job{&m, rows, result.own_.data(), shape.n_slice};
        if (pool)
            pool->run(pack_part, &job);
        else
            pack_part(&job, 0, 1);
    }
    result.view_ = m;
    result.n_slice_ = shape.n_slice;
    result.slice_bytes_ = slice_bytes(m);
    *out = std::move(result);
    return {};
}

size_t quantised_bytes(uint32_t n_row, uint32_t d_in) { return n_row * static_cast<size_t>(round_up(uint64_t{d_in / 32} * sizeof(Int16Block), 64)); }

void quantise_rows(CpuPath path, const float* x, size_t ld, uint32_t n_row, uint32_t d_in, void* to, const Share& share) {
    const CpuKernels* k = matmul_impl::kernels(path);
    AUSPEX_ASSERT(k && d_in % 32 == 0);
    if (!k) return;
    const uint32_t n_block = d_in / 32;
    uint64_t a, b;
    even_part(uint64_t{n_row} * n_block, share, &a, &b);
    while (a < b) {
        const uint64_t row = a / n_block, block = a % n_block;
        const uint64_t n = n_block - block < b - a ? n_block - block : b - a;
        Int16Block* blocks = reinterpret_cast<Int16Block*>(static_cast<std::byte*>(to) + quantised_bytes(1, d_in) * row);
        k->quantise(x + ld * row + 32 * block, static_cast<uint32_t>(n), blocks + block);
        a += n;
    }
}

void matmul(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate, const Share& share) {
    const CpuKernels* k = matmul_impl::kernels(w.path);
    const auto part = !k ? matmul_impl::reference_rows : w.n_lane ? k->strips : k->floats;
    AUSPEX_ASSERT(w.wants_integers() ? in.quantised != nullptr : in.x != nullptr);
    // Chunks of 64 rows keep the weights in the second-level cache while all columns pass over them.
    const uint32_t n_chunk = ceil_div(w.d_out, kMatmulChunk);
    const auto rows = [&](uint32_t r0, uint32_t r1) {
        if (r0 < r1) part(w, in, n_row, y, ld_y, accumulate, r0, r1 < w.d_out ? r1 : w.d_out);
    };
    if (share.ticket) {
        for (;;) {
            const uint32_t i = share.ticket->fetch_add(1, std::memory_order_relaxed);
            if (i >= n_chunk) return;
            rows(i * kMatmulChunk, (i + 1) * kMatmulChunk);
        }
    }
    constexpr uint32_t step = 16;  // a multiple of every strip
    uint64_t a, b;
    even_part(ceil_div(w.d_out, step), share, &a, &b);
    for (uint64_t r = a * step; r < b * step; r += kMatmulChunk)
        rows(static_cast<uint32_t>(r), static_cast<uint32_t>(r + kMatmulChunk < b * step ? r + kMatmulChunk : b * step));
}

}  // namespace detail
}  // namespace auspex

// ----------------------------------------------------------------- src/machine/cpu/matmul_avx2.cpp

#if AUSPEX_HAS_X86
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12: false alarm inside its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
namespace auspex {
namespace detail {
namespace cpu_avx2 {
#define AUSPEX_SIMD AUSPEX_AVX2
#define AUSPEX_SIMD_INLINE AUSPEX_AVX2_INLINE
// The products of strips and of float rows, written once for every instruction set. A file that pastes
// it has opened a namespace with the vector vocabulary (simd_*.h) and defined AUSPEX_SIMD and
// AUSPEX_SIMD_INLINE, the attributes that allow those instructions. No lambdas: they would not
// inherit the attributes.

/// One strip against up to kMaxRow rows of activations.
struct StripJob {
    const uint8_t* strip = nullptr;
    uint32_t n_block = 0;
    StripForm form;
    const Int16Block* x[kMaxRow] = {};    ///< all set; surplus ones repeat another
    float* y = nullptr;                   ///< [n_column][ld_y], at the strip's first row
    size_t ld_y = 0;
    uint32_t n_in = 0;                    ///< activation rows that exist
    uint32_t n_row = 0;                   ///< rows of the strip that exist
    bool accumulate = false;
};

constexpr int log2_of(int n) { return n <= 1 ? 0 : 1 + log2_of(n / 2); }

/// The integer sums of a row: 256 times that of the high bytes, plus that of the low ones.
AUSPEX_SIMD_INLINE Ints whole(const Ints* dot, int c) { return i_add(i_shift<8>(dot[2 * c]), dot[2 * c + 1]); }

template <int n>
AUSPEX_SIMD_INLINE void start(Ints* dot) {
#pragma GCC unroll 16
    for (int c = 0; c < 2 * n; ++c) dot[c] = i_zero();
}
/// Groups of 16: from the integer sum of a half goes what the offset takes away.
template <bool kMin, int offset, int n, int h>
AUSPEX_SIMD_INLINE void end_half(const Int16Block* const* x, size_t b, const Ints* dot, Floats scale, Floats min, Floats* acc) {
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) {
        const Floats unit = f_all(x[c][b].scale);
        Ints sum = whole(dot, c);
        if constexpr (offset != 0) sum = i_add(sum, i_shift<log2_of(offset)>(i_all(x[c][b].minus_sum[h])));
        acc[c] = f_fma(f_mul(f_from(sum), unit), scale, acc[c]);
        // minus_sum has the sign turned already
        if constexpr (kMin) acc[c] = f_fma(f_mul(f_from(i_all(x[c][b].minus_sum[h])), unit), min, acc[c]);
    }
}

/// y[c][lane] = sum over blocks b, in order, of scale * (x.scale * sum(code * q)) - min * x.sum.
/// The sums of integers are exact; each float step is one fused multiply-add of its own (row, column).
template <CodeForm kCode, int kGroup, bool kMin, int kOffset, int n>
AUSPEX_SIMD void strip_product(const StripJob& job) {
    constexpr int offset = kOffset + bias_of(kCode);
    constexpr uint32_t code_step = StripForm::kCodeBytes[static_cast<int>(kCode)] * kLane;
    const Int16Block* x[n];
    Floats acc[n];
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) {
        x[c] = job.x[c];
        acc[c] = f_zero();
    }
    Floats d = f_zero(), d_min = f_zero();
    const uint8_t* page = job.strip;
    size_t b = 0;
    for (uint32_t left = job.n_block; left > 0;) {
        const uint32_t n_here = left < 8 ? left : 8;
        const uint8_t* scales = page;
        const uint8_t* codes = page + job.form.page_scale_bytes(kLane, n_here);
        page = codes + n_here * code_step;
        left -= n_here;
        if (job.form.super) {
            d = f_halves(scales);
            if constexpr (kMin) d_min = f_halves(scales + 2 * kLane);
            scales += (kMin ? 4 : 2) * kLane;
        }
        for (const size_t end = b + n_here; b < end; ++b, codes += code_step) {
            // One row keeps pace with the memory's own prefetching; more fall behind and profit from a hint.
            if constexpr (n > 1)
                for (size_t i = 0; i < code_step; i += 64) prefetch_soon(codes + 4096 + i);
            Floats scale[kGroup], min[kGroup];
            if (job.form.super) {
#pragma GCC unroll 2
                for (int g = 0; g < kGroup; ++g) {
                    scale[g] = f_mul(d, f_bytes(scales));
                    scales += kLane;
                }
                if constexpr (kMin) {
#pragma GCC unroll 2
                    for (int g = 0; g < kGroup; ++g) {
                        min[g] = f_mul(d_min, f_bytes(scales));
                        scales += kLane;
                    }
                }
            } else {
                scale[0] = f_halves(scales);
                scales += 2 * kLane;
                if constexpr (kMin) {
                    min[0] = f_halves(scales);
                    scales += 2 * kLane;
                }
                if constexpr (kGroup == 2) scale[1] = scale[0], min[1] = min[0];
            }
            Ints dot[2 * n];
            start<n>(dot);
            if constexpr (kGroup == 1) {
                // An offset is a minimum in disguise: scale * (code - offset) = scale * code - scale * offset.
                if constexpr (offset != 0) min[0] = f_mul(scale[0], f_all(static_cast<float>(offset)));
                dot_half<kCode, 2 * n, 0>(codes, x, b, dot);
                dot_half<kCode, 2 * n, 1>(codes, x, b, dot);
#pragma GCC unroll 16
                for (int c = 0; c < n; ++c) {
                    acc[c] = f_fma(f_mul(f_from(whole(dot, c)), f_all(x[c][b].scale)), scale[0], acc[c]);
                    if constexpr (kMin || offset != 0) acc[c] = f_fnma(min[0], f_all(x[c][b].sum), acc[c]);
                }
            } else {
                dot_half<kCode, 2 * n, 0>(codes, x, b, dot);
                end_half<kMin, offset, n, 0>(x, b, dot, scale[0], min[0], acc);
                start<n>(dot);
                dot_half<kCode, 2 * n, 1>(codes, x, b, dot);
                end_half<kMin, offset, n, 1>(x, b, dot, scale[1], min[1], acc);
            }
        }
    }
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c)
        if (static_cast<uint32_t>(c) < job.n_in) f_put(job.y + static_cast<size_t>(c) * job.ld_y, job.n_row, acc[c], job.accumulate);
}

using StripKernel = void (*)(const StripJob&);

template <CodeForm kCode, int kGroup, bool kMin, int kOffset>
AUSPEX_SIMD StripKernel pick_rows(uint32_t n) {
    if constexpr (kMaxRow >= 8)
        if (n == 8) return strip_product<kCode, kGroup, kMin, kOffset, 8>;
    if constexpr (kMaxRow >= 4)
        if (n == 4) return strip_product<kCode, kGroup, kMin, kOffset, 4>;
    return n == 1 ? strip_product<kCode, kGroup, kMin, kOffset, 1> : strip_product<kCode, kGroup, kMin, kOffset, 2>;
}

/// The kernel of a form for n = 1, 2, 4 or 8 rows, up to kMaxRow. Every form of strip_form() is here.
AUSPEX_SIMD StripKernel strip_kernel(const StripForm& f, uint32_t n) {
    switch (f.code) {
        case CodeForm::nibble:
            if (f.n_group == 2) return pick_rows<CodeForm::nibble, 2, true, 0>(n);
            return f.has_min ? pick_rows<CodeForm::nibble, 1, true, 0>(n) : pick_rows<CodeForm::nibble, 1, false, 8>(n);
        case CodeForm::book: return pick_rows<CodeForm::book, 1, false, 0>(n);
        case CodeForm::five: return f.has_min ? pick_rows<CodeForm::five, 1, true, 0>(n) : pick_rows<CodeForm::five, 1, false, 16>(n);
        case CodeForm::six: return pick_rows<CodeForm::six, 2, false, 32>(n);
        case CodeForm::byte: break;
    }
    return pick_rows<CodeForm::byte, 1, false, 0>(n);
}

/// How many rows the next pass takes when `left` remain; the last pass may be partly empty.
inline uint32_t pass_width(uint32_t left, uint32_t most) {
    if (left >= most) return most;
    return left > 4 ? 8 : left > 2 ? 4 : left;
}

AUSPEX_SIMD void strips(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate, uint32_t r0, uint32_t r1) {
    StripForm form;
    if (!strip_form(w.type, &form)) return;
    const size_t step = quantised_bytes(1, w.d_in);
    const uint8_t* base = reinterpret_cast<const uint8_t*>(w.data);
    const uint8_t* rows = static_cast<const uint8_t*>(in.quantised);
    StripJob job;
    job.n_block = w.d_in / 32;
    job.form = form;
    job.ld_y = ld_y;
    job.accumulate = accumulate;
    for (uint32_t c0 = 0; c0 < n_row;) {
        const uint32_t width = pass_width(n_row - c0, kMaxRow);
        job.n_in = n_row - c0 < width ? n_row - c0 : width;
        for (uint32_t c = 0; c < width; ++c) {
            const uint32_t from = c0 + (c < job.n_in ? c : 0);
            job.x[c] = reinterpret_cast<const Int16Block*>(rows + step * (in.pick ? in.pick[from] : from));
        }
        const StripKernel kernel = strip_kernel(form, width);
        for (uint32_t r = r0; r < r1; r += kLane) {
            job.strip = base + w.stride * (r / kLane);
            job.n_row = r1 - r < kLane ? r1 - r : kLane;
            job.y = y + static_cast<size_t>(c0) * ld_y + r;
            kernel(job);
        }
        c0 += job.n_in;
    }
}

// ------------------------------------------------------------------------------- float weights

/// y[c][i] = w[i] . x[c] for kFloatRow rows and n columns: one vector sum each, in steps of kLane inputs,
/// what is left over as one step filled with zeros.
template <Type kType, int n>
AUSPEX_SIMD void float_product(const std::byte* const* w, size_t stride, const float* const* x, uint32_t d_in, float (*out)[kFloatRow]) {
    constexpr size_t size = kType == Type::f32 ? 4 : 2;
    Floats acc[n][kFloatRow];
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c)
#pragma GCC unroll 16
        for (int i = 0; i < kFloatRow; ++i) acc[c][i] = f_zero();
    const uint32_t whole = d_in / kLane * kLane;
    const size_t ahead = kFloatRow * stride;  // the same place in the next rows
    for (size_t k = 0; k < whole; k += kLane) {
#pragma GCC unroll 16
        for (int i = 0; i < kFloatRow; ++i) {
            prefetch_later(w[i] + k * size + ahead);
            const Floats a = f_weights<kType>(w[i] + k * size);
#pragma GCC unroll 16
            for (int c = 0; c < n; ++c) acc[c][i] = f_fma(a, f_load(x[c] + k), acc[c][i]);
        }
    }
    if (whole < d_in) {
        std::byte rest[kFloatRow][kLane * size] = {};
        for (int i = 0; i < kFloatRow; ++i) std::memcpy(rest[i], w[i] + whole * size, (d_in - whole) * size);
#pragma GCC unroll 16
        for (int c = 0; c < n; ++c) {
            float tail[kLane] = {};
            std::memcpy(tail, x[c] + whole, (d_in - whole) * sizeof(float));
            const Floats b = f_load(tail);
#pragma GCC unroll 16
            for (int i = 0; i < kFloatRow; ++i) acc[c][i] = f_fma(f_weights<kType>(rest[i]), b, acc[c][i]);
        }
    }
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c)
#pragma GCC unroll 16
        for (int i = 0; i < kFloatRow; ++i) out[c][i] = f_sum(acc[c][i]);
}

using FloatKernel = void (*)(const std::byte* const*, size_t, const float* const*, uint32_t, float (*)[kFloatRow]);
template <Type kType>
AUSPEX_SIMD FloatKernel pick_float_columns(uint32_t n) {
    if constexpr (kMaxFloatColumn >= 4)
        if (n > 2) return float_product<kType, kMaxFloatColumn>;
    return n > 1 ? float_product<kType, 2> : float_product<kType, 1>;
}

AUSPEX_SIMD void floats(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate, uint32_t r0, uint32_t r1) {
    for (uint32_t c0 = 0; c0 < n_row; c0 += kMaxFloatColumn) {
        const uint32_t n = n_row - c0 < kMaxFloatColumn ? n_row - c0 : kMaxFloatColumn;
        const float* x[kMaxFloatColumn];
        for (uint32_t c = 0; c < kMaxFloatColumn; ++c) {
            const uint32_t from = c0 + (c < n ? c : 0);
            x[c] = in.x + in.ld * (in.pick ? in.pick[from] : from);
        }
        const FloatKernel kernel = w.type == Type::f32   ? pick_float_columns<Type::f32>(n)
                                   : w.type == Type::f16 ? pick_float_columns<Type::f16>(n)
                                                         : pick_float_columns<Type::bf16>(n);
        for (uint32_t r = r0; r < r1; r += kFloatRow) {
            const std::byte* rows[kFloatRow];
            const uint32_t n_here = r1 - r < kFloatRow ? r1 - r : kFloatRow;
            for (uint32_t i = 0; i < kFloatRow; ++i) rows[i] = w.data + w.stride * (r + (i < n_here ? i : 0));
            float out[kMaxFloatColumn][kFloatRow];
            kernel(rows, static_cast<size_t>(w.stride), x, w.d_in, out);
            for (uint32_t c = 0; c < n; ++c)
                for (uint32_t i = 0; i < n_here; ++i) {
                    float* to = y + ld_y * (c0 + c) + r + i;
                    *to = accumulate ? *to + out[c][i] : out[c][i];
                }
        }
    }
}

/// x to 16 bits as a high and a low byte: round(x / (256 scale)), then what that left, in steps of scale.
AUSPEX_SIMD void quantise(const float* x, uint32_t n_block, Int16Block* to) {
    for (uint32_t b = 0; b < n_block; ++b, ++to, x += 32) {
        float most, scale, inverse, left[32];
        bool nan;
        int32_t high[2], low[2];
        block_range(x, &most, &nan);
        int8_scale(most, nan, &scale, &inverse);
        round_block(x, inverse, to->q, high);
        for (int i = 0; i < 32; ++i) left[i] = std::fma(-scale, static_cast<float>(to->q[i]), x[i]);
        round_block(left, 256 * inverse, to->q + 32, low);
        to->scale = scale / 256;
        for (int h = 0; h < 2; ++h) to->minus_sum[h] = -(256 * high[h] + low[h]);
        to->sum = to->scale * static_cast<float>(-(to->minus_sum[0] + to->minus_sum[1]));
    }
}
#undef AUSPEX_SIMD
#undef AUSPEX_SIMD_INLINE
#undef AUSPEX_AVX2
#undef AUSPEX_AVX2_INLINE
}  // namespace cpu_avx2

const CpuKernels& avx2_kernels() {
    static constexpr CpuKernels kKernels = {cpu_avx2::quantise, cpu_avx2::strips, cpu_avx2::floats};
    return kKernels;
}

}  // namespace detail
}  // namespace auspex
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

// --------------------------------------------------------------- src/machine/cpu/matmul_avx512.cpp

#if AUSPEX_HAS_X86
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12: false alarm inside its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
namespace auspex {
namespace detail {
namespace cpu_avx512 {
#define AUSPEX_SIMD AUSPEX_AVX512
#define AUSPEX_SIMD_INLINE AUSPEX_AVX512_INLINE
// The products of strips and of float rows, written once for every instruction set. A file that pastes
// it has opened a namespace with the vector vocabulary (simd_*.h) and defined AUSPEX_SIMD and
// AUSPEX_SIMD_INLINE, the attributes that allow those instructions. No lambdas: they would not
// inherit the attributes.

/// One strip against up to kMaxRow rows of activations.
struct StripJob {
    const uint8_t* strip = nullptr;
    uint32_t n_block = 0;
    StripForm form;
    const Int16Block* x[kMaxRow] = {};    ///< all set; surplus ones repeat another
    float* y = nullptr;                   ///< [n_column][ld_y], at the strip's first row
    size_t ld_y = 0;
    uint32_t n_in = 0;                    ///< activation rows that exist
    uint32_t n_row = 0;                   ///< rows of the strip that exist
    bool accumulate = false;
};

constexpr int log2_of(int n) { return n <= 1 ? 0 : 1 + log2_of(n / 2); }

/// The integer sums of a row: 256 times that of the high bytes, plus that of the low ones.
AUSPEX_SIMD_INLINE Ints whole(const Ints* dot, int c) { return i_add(i_shift<8>(dot[2 * c]), dot[2 * c + 1]); }

template <int n>
AUSPEX_SIMD_INLINE void start(Ints* dot) {
#pragma GCC unroll 16
    for (int c = 0; c < 2 * n; ++c) dot[c] = i_zero();
}
/// Groups of 16: from the integer sum of a half goes what the offset takes away.
template <bool kMin, int offset, int n, int h>
AUSPEX_SIMD_INLINE void end_half(const Int16Block* const* x, size_t b, const Ints* dot, Floats scale, Floats min, Floats* acc) {
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) {
        const Floats unit = f_all(x[c][b].scale);
        Ints sum = whole(dot, c);
        if constexpr (offset != 0) sum = i_add(sum, i_shift<log2_of(offset)>(i_all(x[c][b].minus_sum[h])));
        acc[c] = f_fma(f_mul(f_from(sum), unit), scale, acc[c]);
        // minus_sum has the sign turned already
        if constexpr (kMin) acc[c] = f_fma(f_mul(f_from(i_all(x[c][b].minus_sum[h])), unit), min, acc[c]);
    }
}

/// y[c][lane] = sum over blocks b, in order, of scale * (x.scale * sum(code * q)) - min * x.sum.
/// The sums of integers are exact; each float step is one fused multiply-add of its own (row, column).
template <CodeForm kCode, int kGroup, bool kMin, int kOffset, int n>
AUSPEX_SIMD void strip_product(const StripJob& job) {
    constexpr int offset = kOffset + bias_of(kCode);
    constexpr uint32_t code_step = StripForm::kCodeBytes[static_cast<int>(kCode)] * kLane;
    const Int16Block* x[n];
    Floats acc[n];
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) {
        x[c] = job.x[c];
        acc[c] = f_zero();
    }
    Floats d = f_zero(), d_min = f_zero();
    const uint8_t* page = job.strip;
    size_t b = 0;
    for (uint32_t left = job.n_block; left > 0;) {
        const uint32_t n_here = left < 8 ? left : 8;
        const uint8_t* scales = page;
        const uint8_t* codes = page + job.form.page_scale_bytes(kLane, n_here);
        page = codes + n_here * code_step;
        left -= n_here;
        if (job.form.super) {
            d = f_halves(scales);
            if constexpr (kMin) d_min = f_halves(scales + 2 * kLane);
            scales += (kMin ? 4 : 2) * kLane;
        }
        for (const size_t end = b + n_here; b < end; ++b, codes += code_step) {
            // One row keeps pace with the memory's own prefetching; more fall behind and profit from a hint.
            if constexpr (n > 1)
                for (size_t i = 0; i < code_step; i += 64) prefetch_soon(codes + 4096 + i);
            Floats scale[kGroup], min[kGroup];
            if (job.form.super) {
#pragma GCC unroll 2
                for (int g = 0; g < kGroup; ++g) {
                    scale[g] = f_mul(d, f_bytes(scales));
                    scales += kLane;
                }
                if constexpr (kMin) {
#pragma GCC unroll 2
                    for (int g = 0; g < kGroup; ++g) {
                        min[g] = f_mul(d_min, f_bytes(scales));
                        scales += kLane;
                    }
                }
            } else {
                scale[0] = f_halves(scales);
                scales += 2 * kLane;
                if constexpr (kMin) {
                    min[0] = f_halves(scales);
                    scales += 2 * kLane;
                }
                if constexpr (kGroup == 2) scale[1] = scale[0], min[1] = min[0];
            }
            Ints dot[2 * n];
            start<n>(dot);
            if constexpr (kGroup == 1) {
                // An offset is a minimum in disguise: scale * (code - offset) = scale * code - scale * offset.
                if constexpr (offset != 0) min[0] = f_mul(scale[0], f_all(static_cast<float>(offset)));
                dot_half<kCode, 2 * n, 0>(codes, x, b, dot);
                dot_half<kCode, 2 * n, 1>(codes, x, b, dot);
#pragma GCC unroll 16
                for (int c = 0; c < n; ++c) {
                    acc[c] = f_fma(f_mul(f_from(whole(dot, c)), f_all(x[c][b].scale)), scale[0], acc[c]);
                    if constexpr (kMin || offset != 0) acc[c] = f_fnma(min[0], f_all(x[c][b].sum), acc[c]);
                }
            } else {
                dot_half<kCode, 2 * n, 0>(codes, x, b, dot);
                end_half<kMin, offset, n, 0>(x, b, dot, scale[0], min[0], acc);
                start<n>(dot);
                dot_half<kCode, 2 * n, 1>(codes, x, b, dot);
                end_half<kMin, offset, n, 1>(x, b, dot, scale[1], min[1], acc);
            }
        }
    }
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c)
        if (static_cast<uint32_t>(c) < job.n_in) f_put(job.y + static_cast<size_t>(c) * job.ld_y, job.n_row, acc[c], job.accumulate);
}

using StripKernel = void (*)(const StripJob&);

template <CodeForm kCode, int kGroup, bool kMin, int kOffset>
AUSPEX_SIMD StripKernel pick_rows(uint32_t n) {
    if constexpr (kMaxRow >= 8)
        if (n == 8) return strip_product<kCode, kGroup, kMin, kOffset, 8>;
    if constexpr (kMaxRow >= 4)
        if (n == 4) return strip_product<kCode, kGroup, kMin, kOffset, 4>;
    return n == 1 ? strip_product<kCode, kGroup, kMin, kOffset, 1> : strip_product<kCode, kGroup, kMin, kOffset, 2>;
}

/// The kernel of a form for n = 1, 2, 4 or 8 rows, up to kMaxRow. Every form of strip_form() is here.
AUSPEX_SIMD StripKernel strip_kernel(const StripForm& f, uint32_t n) {
    switch (f.code) {
        case CodeForm::nibble:
            if (f.n_group == 2) return pick_rows<CodeForm::nibble, 2, true, 0>(n);
            return f.has_min ? pick_rows<CodeForm::nibble, 1, true, 0>(n) : pick_rows<CodeForm::nibble, 1, false, 8>(n);
        case CodeForm::book: return pick_rows<CodeForm::book, 1, false, 0>(n);
        case CodeForm::five: return f.has_min ? pick_rows<CodeForm::five, 1, true, 0>(n) : pick_rows<CodeForm::five, 1, false, 16>(n);
        case CodeForm::six: return pick_rows<CodeForm::six, 2, false, 32>(n);
        case CodeForm::byte: break;
    }
    return pick_rows<CodeForm::byte, 1, false, 0>(n);
}

/// How many rows the next pass takes when `left` remain; the last pass may be partly empty.
inline uint32_t pass_width(uint32_t left, uint32_t most) {
    if (left >= most) return most;
    return left > 4 ? 8 : left > 2 ? 4 : left;
}

AUSPEX_SIMD void strips(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate, uint32_t r0, uint32_t r1) {
    StripForm form;
    if (!strip_form(w.type, &form)) return;
    const size_t step = quantised_bytes(1, w.d_in);
    const uint8_t* base = reinterpret_cast<const uint8_t*>(w.data);
    const uint8_t* rows = static_cast<const uint8_t*>(in.quantised);
    StripJob job;
    job.n_block = w.d_in / 32;
    job.form = form;
    job.ld_y = ld_y;
    job.accumulate = accumulate;
    for (uint32_t c0 = 0; c0 < n_row;) {
        const uint32_t width = pass_width(n_row - c0, kMaxRow);
        job.n_in = n_row - c0 < width ? n_row - c0 : width;
        for (uint32_t c = 0; c < width; ++c) {
            const uint32_t from = c0 + (c < job.n_in ? c : 0);
            job.x[c] = reinterpret_cast<const Int16Block*>(rows + step * (in.pick ? in.pick[from] : from));
        }
        const StripKernel kernel = strip_kernel(form, width);
        for (uint32_t r = r0; r < r1; r += kLane) {
            job.strip = base + w.stride * (r / kLane);
            job.n_row = r1 - r < kLane ? r1 - r : kLane;
            job.y = y + static_cast<size_t>(c0) * ld_y + r;
            kernel(job);
        }
        c0 += job.n_in;
    }
}

// ------------------------------------------------------------------------------- float weights

/// y[c][i] = w[i] . x[c] for kFloatRow rows and n columns: one vector sum each, in steps of kLane inputs,
/// what is left over as one step filled with zeros.
template <Type kType, int n>
AUSPEX_SIMD void float_product(const std::byte* const* w, size_t stride, const float* const* x, uint32_t d_in, float (*out)[kFloatRow]) {
    constexpr size_t size = kType == Type::f32 ? 4 : 2;
    Floats acc[n][kFloatRow];
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c)
#pragma GCC unroll 16
        for (int i = 0; i < kFloatRow; ++i) acc[c][i] = f_zero();
    const uint32_t whole = d_in / kLane * kLane;
    const size_t ahead = kFloatRow * stride;  // the same place in the next rows
    for (size_t k = 0; k < whole; k += kLane) {
#pragma GCC unroll 16
        for (int i = 0; i < kFloatRow; ++i) {
            prefetch_later(w[i] + k * size + ahead);
            const Floats a = f_weights<kType>(w[i] + k * size);
#pragma GCC unroll 16
            for (int c = 0; c < n; ++c) acc[c][i] = f_fma(a, f_load(x[c] + k), acc[c][i]);
        }
    }
    if (whole < d_in) {
        std::byte rest[kFloatRow][kLane * size] = {};
        for (int i = 0; i < kFloatRow; ++i) std::memcpy(rest[i], w[i] + whole * size, (d_in - whole) * size);
#pragma GCC unroll 16
        for (int c = 0; c < n; ++c) {
            float tail[kLane] = {};
            std::memcpy(tail, x[c] + whole, (d_in - whole) * sizeof(float));
            const Floats b = f_load(tail);
#pragma GCC unroll 16
            for (int i = 0; i < kFloatRow; ++i) acc[c][i] = f_fma(f_weights<kType>(rest[i]), b, acc[c][i]);
        }
    }
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c)
#pragma GCC unroll 16
        for (int i = 0; i < kFloatRow; ++i) out[c][i] = f_sum(acc[c][i]);
}

using FloatKernel = void (*)(const std::byte* const*, size_t, const float* const*, uint32_t, float (*)[kFloatRow]);
template <Type kType>
AUSPEX_SIMD FloatKernel pick_float_columns(uint32_t n) {
    if constexpr (kMaxFloatColumn >= 4)
        if (n > 2) return float_product<kType, kMaxFloatColumn>;
    return n > 1 ? float_product<kType, 2> : float_product<kType, 1>;
}

AUSPEX_SIMD void floats(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate, uint32_t r0, uint32_t r1) {
    for (uint32_t c0 = 0; c0 < n_row; c0 += kMaxFloatColumn) {
        const uint32_t n = n_row - c0 < kMaxFloatColumn ? n_row - c0 : kMaxFloatColumn;
        const float* x[kMaxFloatColumn];
        for (uint32_t c = 0; c < kMaxFloatColumn; ++c) {
            const uint32_t from = c0 + (c < n ? c : 0);
            x[c] = in.x + in.ld * (in.pick ? in.pick[from] : from);
        }
        const FloatKernel kernel = w.type == Type::f32   ? pick_float_columns<Type::f32>(n)
                                   : w.type == Type::f16 ? pick_float_columns<Type::f16>(n)
                                                         : pick_float_columns<Type::bf16>(n);
        for (uint32_t r = r0; r < r1; r += kFloatRow) {
            const std::byte* rows[kFloatRow];
            const uint32_t n_here = r1 - r < kFloatRow ? r1 - r : kFloatRow;
            for (uint32_t i = 0; i < kFloatRow; ++i) rows[i] = w.data + w.stride * (r + (i < n_here ? i : 0));
            float out[kMaxFloatColumn][kFloatRow];
            kernel(rows, static_cast<size_t>(w.stride), x, w.d_in, out);
            for (uint32_t c = 0; c < n; ++c)
                for (uint32_t i = 0; i < n_here; ++i) {
                    float* to = y + ld_y * (c0 + c) + r + i;
                    *to = accumulate ? *to + out[c][i] : out[c][i];
                }
        }
    }
}

/// x to 16 bits as a high and a low byte: round(x / (256 scale)), then what that left, in steps of scale.
AUSPEX_SIMD void quantise(const float* x, uint32_t n_block, Int16Block* to) {
    for (uint32_t b = 0; b < n_block; ++b, ++to, x += 32) {
        float most, scale, inverse, left[32];
        bool nan;
        int32_t high[2], low[2];
        block_range(x, &most, &nan);
        int8_scale(most, nan, &scale, &inverse);
        round_block(x, inverse, to->q, high);
        for (int i = 0; i < 32; ++i) left[i] = std::fma(-scale, static_cast<float>(to->q[i]), x[i]);
        round_block(left, 256 * inverse, to->q + 32, low);
        to->scale = scale / 256;
        for (int h = 0; h < 2; ++h) to->minus_sum[h] = -(256 * high[h] + low[h]);
        to->sum = to->scale * static_cast<float>(-(to->minus_sum[0] + to->minus_sum[1]));
    }
}
#undef AUSPEX_SIMD
#undef AUSPEX_SIMD_INLINE
#undef AUSPEX_AVX512
#undef AUSPEX_AVX512_INLINE
}  // namespace cpu_avx512

const CpuKernels& avx512_kernels() {
    static constexpr CpuKernels kKernels = {cpu_avx512::quantise, cpu_avx512::strips, cpu_avx512::floats};
    return kKernels;
}

}  // namespace detail
}  // namespace auspex
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

// ----------------------------------------------------------------- src/machine/cpu/matmul_neon.cpp

#if AUSPEX_HAS_NEON
namespace auspex {
namespace detail {
namespace cpu_neon {
#define AUSPEX_SIMD AUSPEX_NEON
#define AUSPEX_SIMD_INLINE AUSPEX_NEON_INLINE
// The products of strips and of float rows, written once for every instruction set. A file that pastes
// it has opened a namespace with the vector vocabulary (simd_*.h) and defined AUSPEX_SIMD and
// AUSPEX_SIMD_INLINE, the attributes that allow those instructions. No lambdas: they would not
// inherit the attributes.

/// One strip against up to kMaxRow rows of activations.
struct StripJob {
    const uint8_t* strip = nullptr;
    uint32_t n_block = 0;
    StripForm form;
    const Int16Block* x[kMaxRow] = {};    ///< all set; surplus ones repeat another
    float* y = nullptr;                   ///< [n_column][ld_y], at the strip's first row
    size_t ld_y = 0;
    uint32_t n_in = 0;                    ///< activation rows that exist
    uint32_t n_row = 0;                   ///< rows of the strip that exist
    bool accumulate = false;
};

constexpr int log2_of(int n) { return n <= 1 ? 0 : 1 + log2_of(n / 2); }

/// The integer sums of a row: 256 times that of the high bytes, plus that of the low ones.
AUSPEX_SIMD_INLINE Ints whole(const Ints* dot, int c) { return i_add(i_shift<8>(dot[2 * c]), dot[2 * c + 1]); }

template <int n>
AUSPEX_SIMD_INLINE void start(Ints* dot) {
#pragma GCC unroll 16
    for (int c = 0; c < 2 * n; ++c) dot[c] = i_zero();
}
/// Groups of 16: from the integer sum of a half goes what the offset takes away.
template <bool kMin, int offset, int n, int h>
AUSPEX_SIMD_INLINE void end_half(const Int16Block* const* x, size_t b, const Ints* dot, Floats scale, Floats min, Floats* acc) {
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) {
        const Floats unit = f_all(x[c][b].scale);
        Ints sum = whole(dot, c);
        if constexpr (offset != 0) sum = i_add(sum, i_shift<log2_of(offset)>(i_all(x[c][b].minus_sum[h])));
        acc[c] = f_fma(f_mul(f_from(sum), unit), scale, acc[c]);
        // minus_sum has the sign turned already
        if constexpr (kMin) acc[c] = f_fma(f_mul(f_from(i_all(x[c][b].minus_sum[h])), unit), min, acc[c]);
    }
}

/// y[c][lane] = sum over blocks b, in order, of scale * (x.scale * sum(code * q)) - min * x.sum.
/// The sums of integers are exact; each float step is one fused multiply-add of its own (row, column).
template <CodeForm kCode, int kGroup, bool kMin, int kOffset, int n>
AUSPEX_SIMD void strip_product(const StripJob& job) {
    constexpr int offset = kOffset + bias_of(kCode);
    constexpr uint32_t code_step = StripForm::kCodeBytes[static_cast<int>(kCode)] * kLane;
    const Int16Block* x[n];
    Floats acc[n];
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c) {
        x[c] = job.x[c];
        acc[c] = f_zero();
    }
    Floats d = f_zero(), d_min = f_zero();
    const uint8_t* page = job.strip;
    size_t b = 0;
    for (uint32_t left = job.n_block; left > 0;) {
        const uint32_t n_here = left < 8 ? left : 8;
        const uint8_t* scales = page;
        const uint8_t* codes = page + job.form.page_scale_bytes(kLane, n_here);
        page = codes + n_here * code_step;
        left -= n_here;
        if (job.form.super) {
            d = f_halves(scales);
            if constexpr (kMin) d_min = f_halves(scales + 2 * kLane);
            scales += (kMin ? 4 : 2) * kLane;
        }
        for (const size_t end = b + n_here; b < end; ++b, codes += code_step) {
            // One row keeps pace with the memory's own prefetching; more fall behind and profit from a hint.
            if constexpr (n > 1)
                for (size_t i = 0; i < code_step; i += 64) prefetch_soon(codes + 4096 + i);
            Floats scale[kGroup], min[kGroup];
            if (job.form.super) {
#pragma GCC unroll 2
                for (int g = 0; g < kGroup; ++g) {
                    scale[g] = f_mul(d, f_bytes(scales));
                    scales += kLane;
                }
                if constexpr (kMin) {
#pragma GCC unroll 2
                    for (int g = 0; g < kGroup; ++g) {
                        min[g] = f_mul(d_min, f_bytes(scales));
                        scales += kLane;
                    }
                }
            } else {
                scale[0] = f_halves(scales);
                scales += 2 * kLane;
                if constexpr (kMin) {
                    min[0] = f_halves(scales);
                    scales += 2 * kLane;
                }
                if constexpr (kGroup == 2) scale[1] = scale[0], min[1] = min[0];
            }
            Ints dot[2 * n];
            start<n>(dot);
            if constexpr (kGroup == 1) {
                // An offset is a minimum in disguise: scale * (code - offset) = scale * code - scale * offset.
                if constexpr (offset != 0) min[0] = f_mul(scale[0], f_all(static_cast<float>(offset)));
                dot_half<kCode, 2 * n, 0>(codes, x, b, dot);
                dot_half<kCode, 2 * n, 1>(codes, x, b, dot);
#pragma GCC unroll 16
                for (int c = 0; c < n; ++c) {
                    acc[c] = f_fma(f_mul(f_from(whole(dot, c)), f_all(x[c][b].scale)), scale[0], acc[c]);
                    if constexpr (kMin || offset != 0) acc[c] = f_fnma(min[0], f_all(x[c][b].sum), acc[c]);
                }
            } else {
                dot_half<kCode, 2 * n, 0>(codes, x, b, dot);
                end_half<kMin, offset, n, 0>(x, b, dot, scale[0], min[0], acc);
                start<n>(dot);
                dot_half<kCode, 2 * n, 1>(codes, x, b, dot);
                end_half<kMin, offset, n, 1>(x, b, dot, scale[1], min[1], acc);
            }
        }
    }
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c)
        if (static_cast<uint32_t>(c) < job.n_in) f_put(job.y + static_cast<size_t>(c) * job.ld_y, job.n_row, acc[c], job.accumulate);
}

using StripKernel = void (*)(const StripJob&);

template <CodeForm kCode, int kGroup, bool kMin, int kOffset>
AUSPEX_SIMD StripKernel pick_rows(uint32_t n) {
    if constexpr (kMaxRow >= 8)
        if (n == 8) return strip_product<kCode, kGroup, kMin, kOffset, 8>;
    if constexpr (kMaxRow >= 4)
        if (n == 4) return strip_product<kCode, kGroup, kMin, kOffset, 4>;
    return n == 1 ? strip_product<kCode, kGroup, kMin, kOffset, 1> : strip_product<kCode, kGroup, kMin, kOffset, 2>;
}

/// The kernel of a form for n = 1, 2, 4 or 8 rows, up to kMaxRow. Every form of strip_form() is here.
AUSPEX_SIMD StripKernel strip_kernel(const StripForm& f, uint32_t n) {
    switch (f.code) {
        case CodeForm::nibble:
            if (f.n_group == 2) return pick_rows<CodeForm::nibble, 2, true, 0>(n);
            return f.has_min ? pick_rows<CodeForm::nibble, 1, true, 0>(n) : pick_rows<CodeForm::nibble, 1, false, 8>(n);
        case CodeForm::book: return pick_rows<CodeForm::book, 1, false, 0>(n);
        case CodeForm::five: return f.has_min ? pick_rows<CodeForm::five, 1, true, 0>(n) : pick_rows<CodeForm::five, 1, false, 16>(n);
        case CodeForm::six: return pick_rows<CodeForm::six, 2, false, 32>(n);
        case CodeForm::byte: break;
    }
    return pick_rows<CodeForm::byte, 1, false, 0>(n);
}

/// How many rows the next pass takes when `left` remain; the last pass may be partly empty.
inline uint32_t pass_width(uint32_t left, uint32_t most) {
    if (left >= most) return most;
    return left > 4 ? 8 : left > 2 ? 4 : left;
}

AUSPEX_SIMD void strips(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate, uint32_t r0, uint32_t r1) {
    StripForm form;
    if (!strip_form(w.type, &form)) return;
    const size_t step = quantised_bytes(1, w.d_in);
    const uint8_t* base = reinterpret_cast<const uint8_t*>(w.data);
    const uint8_t* rows = static_cast<const uint8_t*>(in.quantised);
    StripJob job;
    job.n_block = w.d_in / 32;
    job.form = form;
    job.ld_y = ld_y;
    job.accumulate = accumulate;
    for (uint32_t c0 = 0; c0 < n_row;) {
        const uint32_t width = pass_width(n_row - c0, kMaxRow);
        job.n_in = n_row - c0 < width ? n_row - c0 : width;
        for (uint32_t c = 0; c < width; ++c) {
            const uint32_t from = c0 + (c < job.n_in ? c : 0);
            job.x[c] = reinterpret_cast<const Int16Block*>(rows + step * (in.pick ? in.pick[from] : from));
        }
        const StripKernel kernel = strip_kernel(form, width);
        for (uint32_t r = r0; r < r1; r += kLane) {
            job.strip = base + w.stride * (r / kLane);
            job.n_row = r1 - r < kLane ? r1 - r : kLane;
            job.y = y + static_cast<size_t>(c0) * ld_y + r;
            kernel(job);
        }
        c0 += job.n_in;
    }
}

// ------------------------------------------------------------------------------- float weights

/// y[c][i] = w[i] . x[c] for kFloatRow rows and n columns: one vector sum each, in steps of kLane inputs,
/// what is left over as one step filled with zeros.
template <Type kType, int n>
AUSPEX_SIMD void float_product(const std::byte* const* w, size_t stride, const float* const* x, uint32_t d_in, float (*out)[kFloatRow]) {
    constexpr size_t size = kType == Type::f32 ? 4 : 2;
    Floats acc[n][kFloatRow];
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c)
#pragma GCC unroll 16
        for (int i = 0; i < kFloatRow; ++i) acc[c][i] = f_zero();
    const uint32_t whole = d_in / kLane * kLane;
    const size_t ahead = kFloatRow * stride;  // the same place in the next rows
    for (size_t k = 0; k < whole; k += kLane) {
#pragma GCC unroll 16
        for (int i = 0; i < kFloatRow; ++i) {
            prefetch_later(w[i] + k * size + ahead);
            const Floats a = f_weights<kType>(w[i] + k * size);
#pragma GCC unroll 16
            for (int c = 0; c < n; ++c) acc[c][i] = f_fma(a, f_load(x[c] + k), acc[c][i]);
        }
    }
    if (whole < d_in) {
        std::byte rest[kFloatRow][kLane * size] = {};
        for (int i = 0; i < kFloatRow; ++i) std::memcpy(rest[i], w[i] + whole * size, (d_in - whole) * size);
#pragma GCC unroll 16
        for (int c = 0; c < n; ++c) {
            float tail[kLane] = {};
            std::memcpy(tail, x[c] + whole, (d_in - whole) * sizeof(float));
            const Floats b = f_load(tail);
#pragma GCC unroll 16
            for (int i = 0; i < kFloatRow; ++i) acc[c][i] = f_fma(f_weights<kType>(rest[i]), b, acc[c][i]);
        }
    }
#pragma GCC unroll 16
    for (int c = 0; c < n; ++c)
#pragma GCC unroll 16
        for (int i = 0; i < kFloatRow; ++i) out[c][i] = f_sum(acc[c][i]);
}

using FloatKernel = void (*)(const std::byte* const*, size_t, const float* const*, uint32_t, float (*)[kFloatRow]);
template <Type kType>
AUSPEX_SIMD FloatKernel pick_float_columns(uint32_t n) {
    if constexpr (kMaxFloatColumn >= 4)
        if (n > 2) return float_product<kType, kMaxFloatColumn>;
    return n > 1 ? float_product<kType, 2> : float_product<kType, 1>;
}

AUSPEX_SIMD void floats(const Matrix& w, const Rows& in, uint32_t n_row, float* y, size_t ld_y, bool accumulate, uint32_t r0, uint32_t r1) {
    for (uint32_t c0 = 0; c0 < n_row; c0 += kMaxFloatColumn) {
        const uint32_t n = n_row - c0 < kMaxFloatColumn ? n_row - c0 : kMaxFloatColumn;
        const float* x[kMaxFloatColumn];
        for (uint32_t c = 0; c < kMaxFloatColumn; ++c) {
            const uint32_t from = c0 + (c < n ? c : 0);
            x[c] = in.x + in.ld * (in.pick ? in.pick[from] : from);
        }
        const FloatKernel kernel = w.type == Type::f32   ? pick_float_columns<Type::f32>(n)
                                   : w.type == Type::f16 ? pick_float_columns<Type::f16>(n)
                                                         : pick_float_columns<Type::bf16>(n);
        for (uint32_t r = r0; r < r1; r += kFloatRow) {
            const std::byte* rows[kFloatRow];
            const uint32_t n_here = r1 - r < kFloatRow ? r1 - r : kFloatRow;
            for (uint32_t i = 0; i < kFloatRow; ++i) rows[i] = w.data + w.stride * (r + (i < n_here ? i : 0));
            float out[kMaxFloatColumn][kFloatRow];
            kernel(rows, static_cast<size_t>(w.stride), x, w.d_in, out);
            for (uint32_t c = 0; c < n; ++c)
                for (uint32_t i = 0; i < n_here; ++i) {
                    float* to = y + ld_y * (c0 + c) + r + i;
                    *to = accumulate ? *to + out[c][i] : out[c][i];
                }
        }
    }
}

/// x to 16 bits as a high and a low byte: round(x / (256 scale)), then what that left, in steps of scale.
AUSPEX_SIMD void quantise(const float* x, uint32_t n_block, Int16Block* to) {
    for (uint32_t b = 0; b < n_block; ++b, ++to, x += 32) {
        float most, scale, inverse, left[32];
        bool nan;
        int32_t high[2], low[2];
        block_range(x, &most, &nan);
        int8_scale(most, nan, &scale, &inverse);
        round_block(x, inverse, to->q, high);
        for (int i = 0; i < 32; ++i) left[i] = std::fma(-scale, static_cast<float>(to->q[i]), x[i]);
        round_block(left, 256 * inverse, to->q + 32, low);
        to->scale = scale / 256;
        for (int h = 0; h < 2; ++h) to->minus_sum[h] = -(256 * high[h] + low[h]);
        to->sum = to->scale * static_cast<float>(-(to->minus_sum[0] + to->minus_sum[1]));
    }
}
#undef AUSPEX_SIMD
#undef AUSPEX_SIMD_INLINE
#undef AUSPEX_NEON
#undef AUSPEX_NEON_INLINE
}  // namespace cpu_neon

const CpuKernels& neon_kernels() {
    static constexpr CpuKernels kKernels = {cpu_neon::quantise, cpu_neon::strips, cpu_neon::floats};
    return kKernels;
}

}  // namespace detail
}  // namespace auspex
#endif

// ------------------------------------------------------------- src/machine/cpu/loops_reference.cpp

// machine/cpu/loops_reference: the inner loops as plainly as they can be said. Shapes and formulas
// stand in ops.h; the SIMD paths are held to these by tests/test_ops.cpp.


namespace auspex {
namespace detail {
namespace loops_reference {

/// a * b + c: fused where the build's target does that natively, two roundings elsewhere (a fused one
/// would be a library call, a hundred times slower). Every sum here uses it, so bits agree within a build.
inline float mul_add(float a, float b, float c) {
#ifdef FP_FAST_FMAF
    return std::fma(a, b, c);
#else
    return a * b + c;
#endif
}

inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
inline float silu(float x) { return x * sigmoid(x); }

void rms_norm(const float* x, const float* w, float* y, uint32_t n, float eps) {
    double sum = 0;
    for (uint32_t i = 0; i < n; ++i) sum += double{x[i]} * double{x[i]};
    const float scale = static_cast<float>(1.0 / std::sqrt(sum / n + double{eps}));
    for (uint32_t i = 0; i < n; ++i) y[i] = w ? x[i] * scale * w[i] : x[i] * scale;
}

void swiglu(const float* g, const float* u, float* y, uint32_t n, float limit) {
    for (uint32_t i = 0; i < n; ++i) {
        float a = silu(g[i]), b = u[i];
        if (limit > 0) {
            a = std::fmin(a, limit);
            b = std::fmax(-limit, std::fmin(b, limit));
        }
        y[i] = a * b;
    }
}

void silu_gate(const float* x, const float* z, float* y, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) y[i] = x[i] * silu(z[i]);
}

void sigmoid_gate(const float* x, const float* z, float* y, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) y[i] = x[i] * sigmoid(z[i]);
}

void conv_silu(const float* const* taps, const float* w, float* y, uint32_t n, uint32_t n_tap) {
    for (uint32_t c = 0; c < n; ++c) {
        float sum = 0;
        for (uint32_t j = 0; j < n_tap; ++j) sum = mul_add(w[size_t{c} * n_tap + j], taps[j][c], sum);
        y[c] = silu(sum);
    }
}

void to_f16(const float* x, uint16_t* y, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) y[i] = f32_to_f16(x[i]);
}

void attend(const float* q, const uint16_t* k, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d, float* scores, float* m,
            float* l, float* o) {
    float top = -INFINITY;
    for (uint32_t i = 0; i < n_key; ++i) {
        float s = 0;
        for (uint32_t j = 0; j < d; ++j) s = mul_add(q[j], f16_to_f32(k[i * ld + j]), s);
        scores[i] = s;
        top = std::fmax(top, s);
    }
    float sum = 0;
    for (uint32_t j = 0; j < d; ++j) o[j] = 0;
    for (uint32_t i = 0; i < n_key; ++i) {
        const float p = std::exp(scores[i] - top);
        sum += p;
        for (uint32_t j = 0; j < d; ++j) o[j] = mul_add(p, f16_to_f32(v[i * ld + j]), o[j]);
    }
    *m = top;
    *l = sum;
}

void attend_many(uint32_t n_query, const float* const* q, const uint16_t* k, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d,
                 float* scores, float* const* m, float* const* l, float* const* o) {
    for (uint32_t i = 0; i < n_query; ++i) attend(q[i], k, v, n_key, ld, d, scores, m[i], l[i], o[i]);
}

void merge(float* o, float a, const float* p, float b, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) o[i] = mul_add(p[i], b, o[i] * a);
}

/// The rows of one block of columns j0 .. j0+n_col-1, on block [d_key, n_col] (ld values apart).
void delta_columns(float* s, size_t ld, uint32_t d_key, uint32_t j0, uint32_t n_col, const DeltaRow* rows, uint32_t n_row) {
    float rho[kDeltaColumns], sigma[kDeltaColumns];
    for (uint32_t t = 0; t < n_row; ++t) {
        const DeltaRow& r = rows[t];
        float kq = 0;
        for (uint32_t j = 0; j < n_col; ++j) rho[j] = sigma[j] = 0;
        for (uint32_t i = 0; i < d_key; ++i) {
            kq = mul_add(r.k[i], r.q[i], kq);
            for (uint32_t j = 0; j < n_col; ++j) {
                rho[j] = mul_add(s[i * ld + j], r.k[i], rho[j]);
                sigma[j] = mul_add(s[i * ld + j], r.q[i], sigma[j]);
            }
        }
        for (uint32_t j = 0; j < n_col; ++j) {
            const float u = r.beta * mul_add(-r.decay, rho[j], r.v[j0 + j]);
            r.u[j0 + j] = u;
            r.o[j0 + j] = mul_add(kq, u, r.decay * sigma[j]);
        }
        for (uint32_t i = 0; i < d_key; ++i)
            for (uint32_t j = 0; j < n_col; ++j) s[i * ld + j] = mul_add(r.k[i], r.u[j0 + j], r.decay * s[i * ld + j]);
    }
}

void delta_rows(float* s, uint32_t d_key, uint32_t d_val, const DeltaTerm* terms, uint32_t n_term, const DeltaRow* rows, uint32_t n_row,
                bool in_place, float* scratch) {
    for (uint32_t j0 = 0; j0 < d_val; j0 += kDeltaColumns) {
        const uint32_t n_col = d_val - j0 < kDeltaColumns ? d_val - j0 : kDeltaColumns;
        for (uint32_t t = 0; t < n_term; ++t)
            for (uint32_t i = 0; i < d_key; ++i)
                for (uint32_t j = j0; j < j0 + n_col; ++j)
                    s[size_t{i} * d_val + j] = mul_add(terms[t].k[i], terms[t].u[j], terms[t].decay * s[size_t{i} * d_val + j]);
        if (in_place) {
            delta_columns(s + j0, d_val, d_key, j0, n_col, rows, n_row);
            continue;
        }
        for (uint32_t i = 0; i < d_key; ++i)
            for (uint32_t j = 0; j < n_col; ++j) scratch[i * n_col + j] = s[size_t{i} * d_val + j0 + j];
        delta_columns(scratch, n_col, d_key, j0, n_col, rows, n_row);
    }
}

void delta_chunk(float* s, uint32_t d_key, uint32_t d_val, const DeltaRow* rows, uint32_t n, float* scratch) {
    if (n == 0) return;
    // With G the inclusive sums of log decay and D_ij = exp(G_i - G_j), kept as products of decays
    // (all at most 1): A_ij = beta_i (k_i.k_j) D_ij below the diagonal, V' = (I + A)^-1 (beta (v - e^G k'S0)).
    float* a = scratch;                       // [n, n] strictly lower: A; attention P on and below
    float* p = a + size_t{kDeltaChunk} * kDeltaChunk;
    float* w = p + size_t{kDeltaChunk} * kDeltaChunk;  // [n, d_val] V'
    float* g = w + size_t{kDeltaChunk} * d_val;        // [n] decay from the start of the chunk to row i
    for (uint32_t i = 0; i < n; ++i) g[i] = (i ? g[i - 1] : 1.0f) * rows[i].decay;
    for (uint32_t i = 0; i < n; ++i) {
        float d = 1.0f;  // D_ij for j = i, i-1, ..
        for (uint32_t j = i + 1; j-- > 0;) {
            float kk = 0, qk = 0;
            for (uint32_t x = 0; x < d_key; ++x) {
                kk = mul_add(rows[i].k[x], rows[j].k[x], kk);
                qk = mul_add(rows[i].q[x], rows[j].k[x], qk);
            }
            a[i * n + j] = rows[i].beta * kk * d;
            p[i * n + j] = qk * d;
            d *= rows[j].decay;
        }
    }
    for (uint32_t i = 0; i < n; ++i) {
        float* wi = w + size_t{i} * d_val;
        for (uint32_t j = 0; j < d_val; ++j) wi[j] = rows[i].o[j] = 0;
        for (uint32_t x = 0; x < d_key; ++x)
            for (uint32_t j = 0; j < d_val; ++j) {
                wi[j] = mul_add(rows[i].k[x], s[size_t{x} * d_val + j], wi[j]);
                rows[i].o[j] = mul_add(rows[i].q[x], s[size_t{x} * d_val + j], rows[i].o[j]);
            }
        for (uint32_t j = 0; j < d_val; ++j) {
            wi[j] = rows[i].beta * (rows[i].v[j] - g[i] * wi[j]);
            rows[i].o[j] *= g[i];
        }
        for (uint32_t y = 0; y < i; ++y)
            for (uint32_t j = 0; j < d_val; ++j) wi[j] = mul_add(-a[i * n + y], w[size_t{y} * d_val + j], wi[j]);
        for (uint32_t y = 0; y <= i; ++y)
            for (uint32_t j = 0; j < d_val; ++j) rows[i].o[j] = mul_add(p[i * n + y], w[size_t{y} * d_val + j], rows[i].o[j]);
    }
    for (uint32_t x = 0; x < size_t{d_key} * d_val; ++x) s[x] *= g[n - 1];
    float d = 1.0f;
    for (uint32_t i = n; i-- > 0;) {
        for (uint32_t x = 0; x < d_key; ++x)
            for (uint32_t j = 0; j < d_val; ++j)
                s[size_t{x} * d_val + j] = mul_add(rows[i].k[x] * d, w[size_t{i} * d_val + j], s[size_t{x} * d_val + j]);
        d *= rows[i].decay;
    }
}

}  // namespace loops_reference

const Loops& reference_loops() {
    namespace r = loops_reference;
    static constexpr Loops loops = {"reference", r::rms_norm, r::swiglu, r::silu_gate, r::sigmoid_gate, r::conv_silu, r::to_f16,
                                    r::attend, r::merge, r::delta_rows, r::delta_chunk, r::attend_many};
    return loops;
}

const Loops& loops_for(CpuPath path) {
    if (path == CpuPath::best) path = best_path();
    const Loops* loops = nullptr;
    if (path == CpuPath::avx2) loops = avx2_loops();
    if (path == CpuPath::avx512) loops = avx512_loops();
    if (path == CpuPath::neon) loops = neon_loops();
    return loops ? *loops : reference_loops();
}

void l2_normalise(float* x, uint32_t n, float scale) {
    double sum = 0;
    for (uint32_t i = 0; i < n; ++i) sum += double{x[i]} * double{x[i]};
    const float f = static_cast<float>(1.0 / std::sqrt(sum + 1e-6)) * scale;
    for (uint32_t i = 0; i < n; ++i) x[i] *= f;
}

void rotation_table(uint64_t position, uint32_t n_rot, float base, float* table) {
    for (uint32_t i = 0; i < n_rot / 2; ++i) {
        // In double: at a million positions a float angle would be wrong by a tenth of a turn.
        const double angle = static_cast<double>(position) * std::pow(double{base}, -2.0 * i / n_rot);
        table[2 * i] = static_cast<float>(std::cos(angle));
        table[2 * i + 1] = static_cast<float>(std::sin(angle));
    }
}

void rotate(float* x, uint32_t n_rot, const float* table) {
    const uint32_t half = n_rot / 2;
    for (uint32_t i = 0; i < half; ++i) {
        const float c = table[2 * i], s = table[2 * i + 1], a = x[i], b = x[i + half];
        x[i] = a * c - b * s;
        x[i + half] = a * s + b * c;
    }
}

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------ src/machine/cpu/loops_avx2.cpp

// machine/cpu/loops_avx2: the inner loops on AVX2, FMA and F16C: the vocabulary of loops_simd.inl.

#if AUSPEX_HAS_X86
#include <immintrin.h>


// The includer's flags need not allow these instructions; this region does.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace auspex {
namespace detail {
namespace loops_avx2 {

using V = __m256;
constexpr uint32_t W = 8;
constexpr uint32_t kStreamRows = 2; // rows of a state between two loads of its sums
constexpr uint32_t kWide = 4;    // vectors of state columns in one walk of delta_rows
constexpr uint32_t kTile = 2;    // vectors of one row of a product tile
constexpr uint32_t kScore = 1;   // the same for twice the rows
constexpr uint32_t kPairs = 8;   // sums in one tile of attention

inline V zero() { return _mm256_setzero_ps(); }
inline V splat(float a) { return _mm256_set1_ps(a); }
inline V add(V a, V b) { return _mm256_add_ps(a, b); }
inline V sub(V a, V b) { return _mm256_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm256_mul_ps(a, b); }
inline V div(V a, V b) { return _mm256_div_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V fnma(V a, V b, V c) { return _mm256_fnmadd_ps(a, b, c); }
inline V vmin(V a, V b) { return _mm256_min_ps(a, b); }  // b where either is not a number
inline V vmax(V a, V b) { return _mm256_max_ps(a, b); }
inline V floor_of(V a) { return _mm256_floor_ps(a); }
inline V nearest(V a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V power_of_two(V n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline V load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, V a) { _mm256_storeu_ps(p, a); }
inline __m256i first(uint32_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline V load_n(const float* p, uint32_t n, float fill) {
    const __m256i m = first(n);
    return _mm256_blendv_ps(splat(fill), _mm256_maskload_ps(p, m), _mm256_castsi256_ps(m));
}
inline void store_n(float* p, V a, uint32_t n) { _mm256_maskstore_ps(p, first(n), a); }
inline V load_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline V load_f16_n(const uint16_t* p, uint32_t n) {
    uint16_t t[W] = {};
    std::memcpy(t, p, sizeof(uint16_t) * n);
    return load_f16(t);
}
inline void store_f16(uint16_t* p, V a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }
inline void sum4(const V* v, float* out) {
    const V s = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}
inline float max_of(V a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}
inline void load_taps4(const float* w, V* t) {
    const V a = load(w), b = load(w + 8), c = load(w + 16), d = load(w + 24);
    // Channel i beside channel i + 4, then a 4 x 4 transpose in each half.
    const V c0 = _mm256_permute2f128_ps(a, c, 0x20), c1 = _mm256_permute2f128_ps(a, c, 0x31);
    const V c2 = _mm256_permute2f128_ps(b, d, 0x20), c3 = _mm256_permute2f128_ps(b, d, 0x31);
    const V x = _mm256_unpacklo_ps(c0, c1), y = _mm256_unpackhi_ps(c0, c1);
    const V z = _mm256_unpacklo_ps(c2, c3), u = _mm256_unpackhi_ps(c2, c3);
    t[0] = _mm256_shuffle_ps(x, z, 0x44);
    t[1] = _mm256_shuffle_ps(x, z, 0xEE);
    t[2] = _mm256_shuffle_ps(y, u, 0x44);
    t[3] = _mm256_shuffle_ps(y, u, 0xEE);
}

// The inner loops of ops.h, written once for every instruction set. A file that pastes this has opened
// a namespace, allowed its instructions for every function that follows, and defined the vocabulary:
//
//   V, W                     a vector of floats and its lanes
//   load, store, load_n, store_n (first n lanes), load_f16, load_f16_n, store_f16, splat, zero
//   add, sub, mul, div, vmin, vmax, floor_of, nearest, power_of_two (of a whole number)
//   fma(a, b, c) = a b + c, fnma(a, b, c) = c - a b, each rounded once
//   sum4(v, out)             the lane sums of four vectors, each in the same fixed order
//   max_of, load_taps4       largest lane; W channels of [n, 4] as four vectors
//   kWide, kTile, kScore, kPairs   how many vectors the registers hold, per loop; kStreamRows: see delta_stream
//
// Order   Every sum of products is a chain of explicit fma. No product feeds an addition, so a compiler
//         that contracts a*b + c finds nothing to contract and the bits are the source's.
// Tails   go through the same vector code with fewer lanes: a value's bits do not depend on its place.
#if defined(__GNUC__)
#define AUSPEX_LOOPS_INLINE inline __attribute__((always_inline))
#else
#define AUSPEX_LOOPS_INLINE inline
#endif
#if defined(__clang__)
#define AUSPEX_LOOPS_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define AUSPEX_LOOPS_UNROLL _Pragma("GCC unroll 16")
#else
#define AUSPEX_LOOPS_UNROLL
#endif

inline float sum_of(V a) {
    const V four[4] = {a, a, a, a};
    float out[4];
    sum4(four, out);
    return out[0];
}

// ------------------------------------------------------------------------------ values one by one

/// e^x + c, the sum rounded once; e^x within 1 unit in the last place, 0 below -104, held at e^88 above 88.
/// x = n ln 2 + r; e^r from a polynomial fitted for least relative error (3e-9) on |r| <= ln 2 / 2.
AUSPEX_LOOPS_INLINE V exp_plus(V x, V c) {
    x = vmax(splat(-104.0f), vmin(splat(88.0f), x));
    const V n = nearest(mul(x, splat(1.44269504f)));
    V r = fnma(n, splat(0.693145751953125f), x);  // ln 2, leading bits: n times this is exact
    r = fnma(n, splat(1.42860682e-6f), r);
    V p = splat(0.00138145406f);
    p = fma(p, r, splat(0.00836874545f));
    p = fma(p, r, splat(0.041668389f));
    p = fma(p, r, splat(0.166665211f));
    p = fma(p, r, splat(0.49999994f));
    p = fma(mul(p, r), r, r);
    p = add(p, splat(1.0f));
    // 2^n in two steps, for n reaches down to the smallest subnormal.
    const V half = floor_of(mul(n, splat(0.5f)));
    return fma(mul(p, power_of_two(half)), power_of_two(sub(n, half)), c);
}
// The divisors below are finite, because a compiler that was told to be fast divides by way of the
// reciprocal, and infinity times its reciprocal is not a number. What e^-88 leaves is below 1e-36.
AUSPEX_LOOPS_INLINE V sigmoid(V x) { return div(splat(1.0f), exp_plus(sub(zero(), x), splat(1.0f))); }
AUSPEX_LOOPS_INLINE V silu(V x) { return div(vmax(splat(-104.0f), x), exp_plus(sub(zero(), x), splat(1.0f))); }

inline void rms_norm(const float* x, const float* w, float* y, uint32_t n, float eps) {
    V acc[4] = {zero(), zero(), zero(), zero()};
    uint32_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W) {
        AUSPEX_LOOPS_UNROLL
        for (uint32_t v = 0; v < 4; ++v) {
            const V a = load(x + i + v * W);
            acc[v] = fma(a, a, acc[v]);
        }
    }
    for (; i < n; i += W) {
        const V a = n - i < W ? load_n(x + i, n - i, 0.0f) : load(x + i);
        acc[0] = fma(a, a, acc[0]);
    }
    float sums[4];
    sum4(acc, sums);
    const double sum = (double{sums[0]} + double{sums[1]}) + (double{sums[2]} + double{sums[3]});
    const V scale = splat(static_cast<float>(1.0 / std::sqrt(sum / n + double{eps})));
    for (i = 0; i + W <= n; i += W) {
        const V a = mul(load(x + i), scale);
        store(y + i, w ? mul(a, load(w + i)) : a);
    }
    if (i < n) {
        const V a = mul(load_n(x + i, n - i, 0.0f), scale);
        store_n(y + i, w ? mul(a, load_n(w + i, n - i, 0.0f)) : a, n - i);
    }
}

enum class Gate { swiglu, swiglu_limit, silu, sigmoid };
/// a: the value that goes through the gate's curve, b: the value it multiplies.
template <Gate kGate>
AUSPEX_LOOPS_INLINE V gate(V a, V b, float limit) {
    if (kGate == Gate::sigmoid) return mul(b, sigmoid(a));
    V s = silu(a);
    if (kGate == Gate::swiglu_limit) {
        s = vmin(splat(limit), s);
        b = vmax(splat(-limit), vmin(splat(limit), b));
    }
    return mul(s, b);
}
template <Gate kGate>
AUSPEX_LOOPS_INLINE void gate_all(const float* a, const float* b, float* y, uint32_t n, float limit) {
    uint32_t i = 0;
    for (; i + W <= n; i += W) store(y + i, gate<kGate>(load(a + i), load(b + i), limit));
    if (i < n) store_n(y + i, gate<kGate>(load_n(a + i, n - i, 0.0f), load_n(b + i, n - i, 0.0f), limit), n - i);
}
inline void swiglu(const float* g, const float* u, float* y, uint32_t n, float limit) {
    if (limit > 0) gate_all<Gate::swiglu_limit>(g, u, y, n, limit);
    else gate_all<Gate::swiglu>(g, u, y, n, limit);
}
inline void silu_gate(const float* x, const float* z, float* y, uint32_t n) { gate_all<Gate::silu>(z, x, y, n, 0.0f); }
inline void sigmoid_gate(const float* x, const float* z, float* y, uint32_t n) { gate_all<Gate::sigmoid>(z, x, y, n, 0.0f); }

/// m channels from c on (m < W: a tail).
AUSPEX_LOOPS_INLINE V conv_part(const float* const* taps, const float* w, uint32_t c, uint32_t n_tap, uint32_t m) {
    V sum = zero();
    for (uint32_t j = 0; j < n_tap; ++j) {
        float t[W] = {};
        for (uint32_t i = 0; i < m; ++i) t[i] = w[size_t{c + i} * n_tap + j];
        sum = fma(load(t), load_n(taps[j] + c, m, 0.0f), sum);
    }
    return silu(sum);
}
inline void conv_silu(const float* const* taps, const float* w, float* y, uint32_t n, uint32_t n_tap) {
    uint32_t c = 0;
    if (n_tap == 4) {
        const float *t0 = taps[0], *t1 = taps[1], *t2 = taps[2], *t3 = taps[3];
        for (; c + W <= n; c += W) {
            V t[4];
            load_taps4(w + size_t{c} * 4, t);
            V sum = fma(t[0], load(t0 + c), zero());
            sum = fma(t[1], load(t1 + c), sum);
            sum = fma(t[2], load(t2 + c), sum);
            store(y + c, silu(fma(t[3], load(t3 + c), sum)));
        }
    }
    for (; c + W <= n; c += W) store(y + c, conv_part(taps, w, c, n_tap, W));
    if (c < n) store_n(y + c, conv_part(taps, w, c, n_tap, n - c), n - c);
}

inline void to_f16(const float* x, uint16_t* y, uint32_t n) {
    uint32_t i = 0;
    for (; i + W <= n; i += W) store_f16(y + i, load(x + i));
    if (i < n) {
        uint16_t t[W];
        store_f16(t, load_n(x + i, n - i, 0.0f));
        std::memcpy(y + i, t, sizeof(uint16_t) * (n - i));
    }
}

inline void merge(float* o, float a, const float* p, float b, uint32_t n) {
    uint32_t i = 0;
    for (; i + W <= n; i += W) store(o + i, fma(load(p + i), splat(b), mul(load(o + i), splat(a))));
    if (i < n) store_n(o + i, fma(load_n(p + i, n - i, 0.0f), splat(b), mul(load_n(o + i, n - i, 0.0f), splat(a))), n - i);
}

// -------------------------------------------------------------------------------------- attention

/// scores[a][c] = q[a] . k[c] for kQ queries and kK keys. One chain of multiply-adds per pair, whatever
/// the tile: converting a key to float is shared, the bits are not.
template <uint32_t kQ, uint32_t kK>
AUSPEX_LOOPS_INLINE void score_tile(const float* const* q, const uint16_t* k, size_t ld, uint32_t d, float* scores, size_t ld_scores) {
    constexpr uint32_t n = kQ * kK, n4 = (n + 3) / 4 * 4;
    V acc[n4];
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < n4; ++i) acc[i] = zero();
    uint32_t j = 0;
    for (; j + W <= d; j += W) {
        V key[kK];
        AUSPEX_LOOPS_UNROLL
        for (uint32_t c = 0; c < kK; ++c) key[c] = load_f16(k + c * ld + j);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t i = 0; i < n; ++i) acc[i] = fma(load(q[i / kK] + j), key[i % kK], acc[i]);
    }
    if (j < d) {
        AUSPEX_LOOPS_UNROLL
        for (uint32_t i = 0; i < n; ++i)
            acc[i] = fma(load_n(q[i / kK] + j, d - j, 0.0f), load_f16_n(k + (i % kK) * ld + j, d - j), acc[i]);
    }
    float sums[n4];
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < n4; i += 4) sum4(acc + i, sums + i);
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < n; ++i) scores[(i / kK) * ld_scores + i % kK] = sums[i];
}

/// o[a][j ..] = sum over keys, in order, of p[a][i] v[i][j ..], for kQ queries and kV vectors.
template <uint32_t kQ, uint32_t kV>
AUSPEX_LOOPS_INLINE void value_tile(const float* p, size_t ld_p, const uint16_t* v, uint32_t n_key, size_t ld, float* const* o, uint32_t j) {
    V acc[kQ * kV];
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < kQ * kV; ++i) acc[i] = zero();
    v += j;
    for (uint32_t key = 0; key < n_key; ++key, v += ld) {
        V value[kV];
        AUSPEX_LOOPS_UNROLL
        for (uint32_t i = 0; i < kV; ++i) value[i] = load_f16(v + i * W);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t i = 0; i < kQ * kV; ++i) acc[i] = fma(splat(p[(i / kV) * ld_p + key]), value[i % kV], acc[i]);
    }
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < kQ * kV; ++i) store(o[i / kV] + j + (i % kV) * W, acc[i]);
}
/// All columns: tiles of kV vectors, then of half as many, and so on; at last the lanes that are left.
template <uint32_t kQ, uint32_t kV>
AUSPEX_LOOPS_INLINE void values(const float* p, size_t ld_p, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d, float* const* o, uint32_t j) {
    for (; j + kV * W <= d; j += kV * W) value_tile<kQ, kV>(p, ld_p, v, n_key, ld, o, j);
    if constexpr (kV > 1) {
        values<kQ, kV / 2>(p, ld_p, v, n_key, ld, d, o, j);
    } else if (j < d) {
        for (uint32_t a = 0; a < kQ; ++a) {
            V acc = zero();
            for (uint32_t key = 0; key < n_key; ++key) acc = fma(splat(p[a * ld_p + key]), load_f16_n(v + key * ld + j, d - j), acc);
            store_n(o[a] + j, acc, d - j);
        }
    }
}

/// scores become exp(scores - max); their max and sum.
inline void softmax(float* scores, uint32_t n, float* m, float* l) {
    V top = splat(-INFINITY);
    uint32_t i = 0;
    for (; i + W <= n; i += W) top = vmax(top, load(scores + i));
    if (i < n) top = vmax(top, load_n(scores + i, n - i, -INFINITY));
    *m = max_of(top);
    top = splat(*m);
    V sum = zero();
    for (i = 0; i + W <= n; i += W) {
        const V p = exp_plus(sub(load(scores + i), top), zero());
        store(scores + i, p);
        sum = add(sum, p);
    }
    if (i < n) {
        const V p = exp_plus(sub(load_n(scores + i, n - i, -INFINITY), top), zero());
        store_n(scores + i, p, n - i);
        sum = add(sum, p);
    }
    *l = sum_of(sum);
}

template <uint32_t kQ>
inline void attend_queries(const float* const* q, const uint16_t* k, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d, float* scores,
                           float* const* m, float* const* l, float* const* o) {
    constexpr uint32_t kK = kPairs / kQ;
    uint32_t c = 0;
    for (; c + kK <= n_key; c += kK) score_tile<kQ, kK>(q, k + c * ld, ld, d, scores + c, n_key);
    for (; c < n_key; ++c) score_tile<kQ, 1>(q, k + c * ld, ld, d, scores + c, n_key);
    for (uint32_t a = 0; a < kQ; ++a) softmax(scores + size_t{a} * n_key, n_key, m[a], l[a]);
    values<kQ, kPairs / kQ>(scores, n_key, v, n_key, ld, d, o, 0);
}
inline void attend_many(uint32_t n_query, const float* const* q, const uint16_t* k, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d,
                        float* scores, float* const* m, float* const* l, float* const* o) {
    uint32_t a = 0;
    for (; a + 4 <= n_query; a += 4) attend_queries<4>(q + a, k, v, n_key, ld, d, scores, m + a, l + a, o + a);
    for (; a + 2 <= n_query; a += 2) attend_queries<2>(q + a, k, v, n_key, ld, d, scores, m + a, l + a, o + a);
    if (a < n_query) attend_queries<1>(q + a, k, v, n_key, ld, d, scores, m + a, l + a, o + a);
}
inline void attend(const float* q, const uint16_t* k, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d, float* scores, float* m, float* l,
                   float* o) {
    attend_queries<1>(&q, k, v, n_key, ld, d, scores, &m, &l, &o);
}

// --------------------------------------------------------------------------------- DeltaNet, by rows

/// s after a term: the one place where a state changes, so that a term gives the same bits whether it is
/// applied with its own row or at the start of a later step.
AUSPEX_LOOPS_INLINE V grown(V s, V decay, V k, V u) { return fma(k, u, mul(decay, s)); }

AUSPEX_LOOPS_INLINE V part_load(const float* p, uint32_t n) { return n < W ? load_n(p, n, 0.0f) : load(p); }
AUSPEX_LOOPS_INLINE void part_store(float* p, V v, uint32_t n) {
    if (n < W) store_n(p, v, n);
    else store(p, v);
}

inline float dot(const float* a, const float* b, uint32_t n) {
    V acc = zero();
    uint32_t i = 0;
    for (; i + W <= n; i += W) acc = fma(load(a + i), load(b + i), acc);
    if (i < n) acc = fma(load_n(a + i, n - i, 0.0f), load_n(b + i, n - i, 0.0f), acc);
    return sum_of(acc);
}

/// A piece of a state: rows i from .. from + n - 1 of some columns, the first at `at`, `ld` floats apart.
struct Piece {
    const float* at;
    size_t ld;
    uint32_t from, n;
};
enum class Adds { nothing, one_term, terms };
constexpr uint32_t kStream = 256;    // columns of the walk through memory

/// One walk over kV vectors of columns (the last of m lanes): reads the state once, adds the terms
/// (pointers to u at these columns), writes it to `to` when kStore, and takes a row's k and q (both, or
/// null) into rho = S'k and sigma = S'q, which go on from what they hold.
template <uint32_t kV, Adds kAdds, bool kStore, bool kRow>
AUSPEX_LOOPS_INLINE void delta_walk(const Piece& piece, float* to, size_t ld_to, const DeltaTerm* terms, uint32_t n_term, uint32_t j0,
                                    const DeltaRow* row, float* rho_sum, float* sigma_sum, uint32_t m) {
    V rho[kV], sigma[kV], u[kV];
    AUSPEX_LOOPS_UNROLL
    for (uint32_t v = 0; v < kV; ++v) {
        rho[v] = kRow ? load(rho_sum + v * W) : zero();
        sigma[v] = kRow ? load(sigma_sum + v * W) : zero();
        u[v] = kAdds == Adds::one_term ? part_load(terms->u + j0 + v * W, v + 1 < kV ? W : m) : zero();
    }
    const V decay = kAdds == Adds::one_term ? splat(terms->decay) : zero();
    const float* term_k = kAdds == Adds::one_term ? terms->k : nullptr;
    const float *row_k = kRow ? row->k : nullptr, *row_q = kRow ? row->q : nullptr;
    const float* in = piece.at;
    for (uint32_t i = piece.from; i < piece.from + piece.n; ++i, in += piece.ld) {
        V s[kV];
        AUSPEX_LOOPS_UNROLL
        for (uint32_t v = 0; v < kV; ++v) s[v] = kV > 1 ? load(in + v * W) : part_load(in, m);
        if (kAdds == Adds::one_term) {
            const V k = splat(term_k[i]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kV; ++v) s[v] = grown(s[v], decay, k, u[v]);
        }
        if (kAdds == Adds::terms)
            for (uint32_t t = 0; t < n_term; ++t) {
                const V k = splat(terms[t].k[i]), d = splat(terms[t].decay);
                const float* tu = terms[t].u + j0;
                AUSPEX_LOOPS_UNROLL
                for (uint32_t v = 0; v < kV; ++v) s[v] = grown(s[v], d, k, kV > 1 ? load(tu + v * W) : part_load(tu, m));
            }
        if (kStore) {
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kV; ++v) {
                if (kV > 1) store(to + v * W, s[v]);
                else part_store(to, s[v], m);
            }
            to += ld_to;
        }
        if (kRow) {
            const V k = splat(row_k[i]), q = splat(row_q[i]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kV; ++v) {
                rho[v] = fma(s[v], k, rho[v]);
                sigma[v] = fma(s[v], q, sigma[v]);
            }
        }
    }
    if (kRow) {
        AUSPEX_LOOPS_UNROLL
        for (uint32_t v = 0; v < kV; ++v) {
            store(rho_sum + v * W, rho[v]);
            store(sigma_sum + v * W, sigma[v]);
        }
    }
}

/// The row's u and o at columns j0 .. j0 + n - 1, from its sums over the state before it.
AUSPEX_LOOPS_INLINE void delta_finish(const DeltaRow& row, const float* rho, const float* sigma, uint32_t d_key, uint32_t j0, uint32_t n) {
    const V kq = splat(dot(row.k, row.q, d_key)), decay = splat(row.decay), beta = splat(row.beta);
    for (uint32_t j = 0; j < n; j += W) {
        const V u = mul(beta, fnma(decay, load(rho + j), part_load(row.v + j0 + j, n - j)));
        part_store(row.u + j0 + j, u, n - j);
        part_store(row.o + j0 + j, fma(kq, u, mul(decay, load(sigma + j))), n - j);
    }
}

/// Adds the terms to the state and runs the first row on it, through memory in the order it lies there:
/// for a single row the traffic is the cost.
template <Adds kAdds, bool kRow>
inline void delta_stream(float* s, uint32_t d_key, uint32_t d_val, const DeltaTerm* terms, uint32_t n_term, const DeltaRow* row) {
    constexpr bool kStore = kAdds != Adds::nothing;
    float rho[kStream], sigma[kStream];
    for (uint32_t j0 = 0; j0 < d_val; j0 += kStream) {
        const uint32_t n_col = d_val - j0 < kStream ? d_val - j0 : kStream;
        for (uint32_t j = 0; kRow && j < n_col; j += W) {
            store(rho + j, zero());
            store(sigma + j, zero());
        }
        for (uint32_t i = 0; i < d_key; i += kStreamRows) {
            float* at = s + size_t{i} * d_val + j0;
            Piece piece = {at, d_val, i, d_key - i < kStreamRows ? d_key - i : kStreamRows};
            uint32_t j = 0;
            for (; j + kWide * W <= n_col; j += kWide * W, piece.at += kWide * W)
                delta_walk<kWide, kAdds, kStore, kRow>(piece, at + j, d_val, terms, n_term, j0 + j, row, rho + j, sigma + j, W);
            for (; j < n_col; j += W, piece.at += W)
                delta_walk<1, kAdds, kStore, kRow>(piece, at + j, d_val, terms, n_term, j0 + j, row, rho + j, sigma + j, n_col - j < W ? n_col - j : W);
        }
        if (kRow) delta_finish(*row, rho, sigma, d_key, j0, n_col);
    }
}

/// The rows after the first on one block of columns. Row t's walk first adds row t-1's term, so each row
/// costs one read and one write; between rows the block stays in the scratch, where it is not strided and
/// so fits the first-level cache.
template <uint32_t kV>
inline void delta_block(float* s, uint32_t d_key, uint32_t d_val, const DeltaRow* rows, uint32_t n_row, bool in_place, float* scratch, uint32_t j0,
                        uint32_t m) {
    Piece piece = {s + j0, d_val, 0, d_key};
    const uint32_t n_col = (kV - 1) * W + m;
    for (uint32_t t = 1; t < n_row; ++t) {
        const DeltaTerm last = {rows[t - 1].decay, rows[t - 1].k, rows[t - 1].u};
        float rho[kV * W] = {}, sigma[kV * W] = {};
        if (t + 1 < n_row || in_place) {
            delta_walk<kV, Adds::one_term, true, true>(piece, scratch, n_col, &last, 1, j0, rows + t, rho, sigma, m);
            piece.at = scratch;
            piece.ld = n_col;
        } else {
            delta_walk<kV, Adds::one_term, false, true>(piece, nullptr, 0, &last, 1, j0, rows + t, rho, sigma, m);
        }
        delta_finish(rows[t], rho, sigma, d_key, j0, n_col);
    }
    if (in_place) {
        const DeltaTerm last = {rows[n_row - 1].decay, rows[n_row - 1].k, rows[n_row - 1].u};
        delta_walk<kV, Adds::one_term, true, false>(piece, s + j0, d_val, &last, 1, j0, nullptr, nullptr, nullptr, m);
    }
}

inline void delta_rows(float* s, uint32_t d_key, uint32_t d_val, const DeltaTerm* terms, uint32_t n_term, const DeltaRow* rows, uint32_t n_row,
                       bool in_place, float* scratch) {
    // Every sum over i of one column is one chain in order, however the columns and rows are blocked.
    if (n_row == 0) {
        if (n_term == 1) delta_stream<Adds::one_term, false>(s, d_key, d_val, terms, 1, nullptr);
        else if (n_term) delta_stream<Adds::terms, false>(s, d_key, d_val, terms, n_term, nullptr);
        return;
    }
    if (n_term == 0) delta_stream<Adds::nothing, true>(s, d_key, d_val, nullptr, 0, rows);
    else if (n_term == 1) delta_stream<Adds::one_term, true>(s, d_key, d_val, terms, 1, rows);
    else delta_stream<Adds::terms, true>(s, d_key, d_val, terms, n_term, rows);
    if (n_row == 1 && !in_place) return;
    if (n_row == 1) {
        const DeltaTerm last = {rows->decay, rows->k, rows->u};
        delta_stream<Adds::one_term, false>(s, d_key, d_val, &last, 1, nullptr);
        return;
    }
    constexpr uint32_t kNarrow = kDeltaColumns / W;
    uint32_t j = 0;
    for (; j + kNarrow * W <= d_val; j += kNarrow * W) delta_block<kNarrow>(s, d_key, d_val, rows, n_row, in_place, scratch, j, W);
    for (; j < d_val; j += W) delta_block<1>(s, d_key, d_val, rows, n_row, in_place, scratch, j, d_val - j < W ? d_val - j : W);
}

// ------------------------------------------------------------------------------ DeltaNet, by chunks

/// acc[r] += sum over x < n of a[r][x] b[x], for kM rows a and kV vectors of b's columns.
template <uint32_t kM, uint32_t kV>
AUSPEX_LOOPS_INLINE void product(V* acc, const float* const* a, const float* b, size_t ld, uint32_t n) {
    V sum[kM * kV];  // a copy: some compilers keep an array in memory once any loop indexes it
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < kM * kV; ++i) sum[i] = acc[i];
    for (uint32_t x = 0; x < n; ++x, b += ld) {
        V row[kV];
        AUSPEX_LOOPS_UNROLL
        for (uint32_t v = 0; v < kV; ++v) row[v] = load(b + v * W);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kM; ++r) {
            const V f = splat(a[r][x]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kV; ++v) sum[r * kV + v] = fma(f, row[v], sum[r * kV + v]);
        }
    }
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < kM * kV; ++i) acc[i] = sum[i];
}

constexpr uint32_t kTileRows = 4;            // rows of one register tile
constexpr uint32_t kPanel = kTile * W;       // columns of one register tile
constexpr uint32_t kSubChunk = 16;           // rows solved together: see delta_chunk
static_assert(kSubChunk % (kScore * W) == 0 && kDeltaChunk % kSubChunk == 0 && kPanel <= kDeltaChunk, "tiles must fit");

/// Where delta_chunk keeps what, in its scratch.
struct ChunkPlan {
    float* kt;     ///< [d_key, kDeltaChunk] keys by column; later times their decay to the end of the sub-chunk
    float* a;      ///< [kDeltaChunk, kSubChunk] -beta_i (k_i . k_j) D_ij within the row's sub-chunk
    float* p;      ///< [kDeltaChunk, kSubChunk] (q_i . k_j) D_ij, 0 for j > i
    float* w;      ///< [kSubChunk, kPanel] V', the rows' terms
    float* s;      ///< [d_key, kPanel] columns of the state
    float* g;      ///< [kDeltaChunk] decay from the start of the sub-chunk to the end of row i
    float* rest;   ///< [kDeltaChunk] decay from the end of row i to the end of the sub-chunk
};

/// Fills a, p, g, rest and scales kt for the rows from .. from + n - 1 of a chunk.
inline void chunk_scores(const ChunkPlan& plan, const DeltaRow* rows, uint32_t from, uint32_t n, uint32_t d_key) {
    float between[kTileRows][kSubChunk] = {};  // D_ij: decay from the end of row j to the end of row i; 0 for j > i
    float run[kSubChunk] = {};
    for (uint32_t i0 = 0; i0 < n; i0 += kTileRows) {
        const float* x[2 * kTileRows];
        for (uint32_t r = 0; r < kTileRows; ++r) {
            const uint32_t i = i0 + r < n ? i0 + r : n - 1;
            x[r] = rows[from + i].k;
            x[kTileRows + r] = rows[from + i].q;
            if (i0 + r >= n) continue;
            const float decay = rows[from + i].decay;
            for (uint32_t j = 0; j < i; ++j) run[j] *= decay;
            run[i] = 1.0f;
            std::memcpy(between[r], run, sizeof run);
            plan.g[from + i] = i ? plan.g[from + i - 1] * decay : decay;
        }
        for (uint32_t c = 0; c < i0 + kTileRows; c += kScore * W) {
            V acc[2 * kTileRows * kScore];
            AUSPEX_LOOPS_UNROLL
            for (uint32_t r = 0; r < 2 * kTileRows * kScore; ++r) acc[r] = zero();
            product<2 * kTileRows, kScore>(acc, x, plan.kt + from + c, kDeltaChunk, d_key);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t r = 0; r < kTileRows; ++r) {
                if (i0 + r >= n) continue;
                const size_t at = size_t{from + i0 + r} * kSubChunk + c;
                const V minus_beta = splat(-rows[from + i0 + r].beta);
                AUSPEX_LOOPS_UNROLL
                for (uint32_t v = 0; v < kScore; ++v) {
                    const V d = load(between[r] + c + v * W);
                    store(plan.a + at + v * W, mul(mul(minus_beta, acc[r * kScore + v]), d));
                    store(plan.p + at + v * W, mul(acc[(kTileRows + r) * kScore + v], d));
                }
            }
        }
    }
    for (uint32_t j = 0; j < kSubChunk; ++j) plan.rest[from + j] = j < n ? run[j] : 0.0f;
    for (uint32_t x = 0; x < d_key; ++x)
        for (uint32_t j = 0; j < kSubChunk; j += W) {
            float* k = plan.kt + size_t{x} * kDeltaChunk + from + j;
            store(k, mul(load(k), load(plan.rest + from + j)));
        }
}

/// One sub-chunk on one panel of columns: the rows' terms w and outputs o, then the state.
inline void chunk_panel(const ChunkPlan& plan, const DeltaRow* rows, uint32_t from, uint32_t n, uint32_t d_key, uint32_t j0, uint32_t n_col) {
    constexpr uint32_t n_acc = kTileRows * kTile;
    V acc[n_acc];
    const float* a[kTileRows];
    for (uint32_t i0 = 0; i0 < n; i0 += kTileRows) {
        const uint32_t m = n - i0 < kTileRows ? n - i0 : kTileRows;
        // W = beta (v - g k'S) - A W, from the top; the tile's own rows at the end, one after the other.
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < n_acc; ++r) acc[r] = zero();
        for (uint32_t r = 0; r < kTileRows; ++r) a[r] = rows[from + (i0 + r < n ? i0 + r : n - 1)].k;
        product<kTileRows, kTile>(acc, a, plan.s, kPanel, d_key);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            const uint32_t i = from + (i0 + r < n ? i0 + r : n - 1);
            const V beta = splat(rows[i].beta), g = splat(plan.g[i]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v) {
                const V value = v * W < n_col ? part_load(rows[i].v + j0 + v * W, n_col - v * W) : zero();
                acc[r * kTile + v] = mul(beta, fnma(g, acc[r * kTile + v], value));
            }
            a[r] = plan.a + size_t{i} * kSubChunk;
        }
        product<kTileRows, kTile>(acc, a, plan.w, kPanel, i0);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 1; r < kTileRows; ++r) {
            AUSPEX_LOOPS_UNROLL
            for (uint32_t y = 0; y < r; ++y) {
                const V f = splat(a[r][i0 + y]);
                AUSPEX_LOOPS_UNROLL
                for (uint32_t v = 0; v < kTile; ++v) acc[r * kTile + v] = fma(f, acc[y * kTile + v], acc[r * kTile + v]);
            }
        }
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v)
                if (r < m) store(plan.w + size_t{i0 + r} * kPanel + v * W, acc[r * kTile + v]);
        }
        // o = g q'S + P W
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < n_acc; ++r) acc[r] = zero();
        for (uint32_t r = 0; r < kTileRows; ++r) a[r] = rows[from + (i0 + r < n ? i0 + r : n - 1)].q;
        product<kTileRows, kTile>(acc, a, plan.s, kPanel, d_key);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            const uint32_t i = from + (i0 + r < n ? i0 + r : n - 1);
            const V g = splat(plan.g[i]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v) acc[r * kTile + v] = mul(g, acc[r * kTile + v]);
            a[r] = plan.p + size_t{i} * kSubChunk;
        }
        product<kTileRows, kTile>(acc, a, plan.w, kPanel, i0 + m);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            if (r >= m) continue;
            float* o = rows[from + i0 + r].o + j0;
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v)
                if (v * W < n_col) part_store(o + v * W, acc[r * kTile + v], n_col - v * W);
        }
    }
    // S = g S + K'W, the keys already decayed to the end of the sub-chunk
    const V g = splat(plan.g[from + n - 1]);
    for (uint32_t x0 = 0; x0 < d_key; x0 += kTileRows) {
        const uint32_t m = d_key - x0 < kTileRows ? d_key - x0 : kTileRows;
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            const size_t x = r < m ? x0 + r : d_key - 1;
            a[r] = plan.kt + x * kDeltaChunk + from;
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v) acc[r * kTile + v] = mul(g, load(plan.s + x * kPanel + v * W));
        }
        product<kTileRows, kTile>(acc, a, plan.w, kPanel, n);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v)
                if (r < m) store(plan.s + size_t{x0 + r} * kPanel + v * W, acc[r * kTile + v]);
        }
    }
}

// The chunked form of Yang, Kautz, Hatamizadeh (arXiv 2412.06464), section 3, with decays kept as products
// (at most 1, so nothing overflows). Its work per row is 3 d_key d_val multiply-adds plus what grows with
// the rows solved together, so the chunk is cut into sub-chunks; the state stays in the first-level cache,
// one panel of columns at a time, for all of them.
inline void delta_chunk(float* s, uint32_t d_key, uint32_t d_val, const DeltaRow* rows, uint32_t n, float* scratch) {
    if (n == 0) return;
    ChunkPlan plan;
    plan.kt = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t{63});
    plan.s = plan.kt + size_t{d_key} * kDeltaChunk;
    plan.a = plan.s + size_t{d_key} * kPanel;
    plan.p = plan.a + size_t{kDeltaChunk} * kSubChunk;
    plan.w = plan.p + size_t{kDeltaChunk} * kSubChunk;
    plan.g = plan.w + size_t{kSubChunk} * kPanel;
    plan.rest = plan.g + kDeltaChunk;
    const uint32_t n_pad = ceil_div(n, kSubChunk) * kSubChunk;
    for (uint32_t x = 0; x < d_key; ++x) {
        float* k = plan.kt + size_t{x} * kDeltaChunk;
        for (uint32_t i = 0; i < n; ++i) k[i] = rows[i].k[x];
        for (uint32_t i = n; i < n_pad; ++i) k[i] = 0.0f;
    }
    for (uint32_t from = 0; from < n; from += kSubChunk)
        chunk_scores(plan, rows, from, n - from < kSubChunk ? n - from : kSubChunk, d_key);
    for (uint32_t j = 0; j < d_val; j += kPanel) {
        const uint32_t n_col = d_val - j < kPanel ? d_val - j : kPanel;
        for (uint32_t x = 0; x < d_key; ++x)
            for (uint32_t v = 0; v < kTile; ++v)
                store(plan.s + size_t{x} * kPanel + v * W, v * W < n_col ? part_load(s + size_t{x} * d_val + j + v * W, n_col - v * W) : zero());
        for (uint32_t from = 0; from < n; from += kSubChunk)
            chunk_panel(plan, rows, from, n - from < kSubChunk ? n - from : kSubChunk, d_key, j, n_col);
        for (uint32_t x = 0; x < d_key; ++x)
            for (uint32_t v = 0; v * W < n_col; ++v)
                part_store(s + size_t{x} * d_val + j + v * W, load(plan.s + size_t{x} * kPanel + v * W), n_col - v * W);
    }
}

#undef AUSPEX_LOOPS_INLINE
#undef AUSPEX_LOOPS_UNROLL

}  // namespace loops_avx2
}  // namespace detail
}  // namespace auspex

#if defined(__clang__)
#pragma clang attribute pop
#elif defined(__GNUC__)
#pragma GCC pop_options
#endif
#endif

namespace auspex {
namespace detail {

const Loops* avx2_loops() {
#if AUSPEX_HAS_X86
    namespace r = loops_avx2;
    static constexpr Loops loops = {"avx2",   r::rms_norm, r::swiglu, r::silu_gate,  r::sigmoid_gate, r::conv_silu,
                                    r::to_f16, r::attend,   r::merge,  r::delta_rows, r::delta_chunk,  r::attend_many};
    return &loops;
#else
    return nullptr;
#endif
}

}  // namespace detail
}  // namespace auspex

// ---------------------------------------------------------------- src/machine/cpu/loops_avx512.cpp

// machine/cpu/loops_avx512: the inner loops on AVX-512 F, BW, VL and DQ: the vocabulary of loops_simd.inl.

#if AUSPEX_HAS_X86
#include <immintrin.h>


// The includer's flags need not allow these instructions; this region does.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))), apply_to = function)
#elif defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12: false alarm inside its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#endif

namespace auspex {
namespace detail {
namespace loops_avx512 {

using V = __m512;
constexpr uint32_t W = 16;
constexpr uint32_t kStreamRows = 8; // rows of a state between two loads of its sums
constexpr uint32_t kWide = 4;    // vectors of state columns in one walk of delta_rows
constexpr uint32_t kTile = 4;    // vectors of one row of a product tile
constexpr uint32_t kScore = 1;   // the same for twice the rows
constexpr uint32_t kPairs = 16;  // sums in one tile of attention

inline V zero() { return _mm512_setzero_ps(); }
inline V splat(float a) { return _mm512_set1_ps(a); }
inline V add(V a, V b) { return _mm512_add_ps(a, b); }
inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
inline V div(V a, V b) { return _mm512_div_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V fnma(V a, V b, V c) { return _mm512_fnmadd_ps(a, b, c); }
inline V vmin(V a, V b) { return _mm512_min_ps(a, b); }  // b where either is not a number
inline V vmax(V a, V b) { return _mm512_max_ps(a, b); }
inline V floor_of(V a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
inline V nearest(V a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V power_of_two(V n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, V a) { _mm512_storeu_ps(p, a); }
inline __mmask16 first(uint32_t n) { return static_cast<__mmask16>((1u << n) - 1); }
inline V load_n(const float* p, uint32_t n, float fill) { return _mm512_mask_loadu_ps(splat(fill), first(n), p); }
inline void store_n(float* p, V a, uint32_t n) { _mm512_mask_storeu_ps(p, first(n), a); }
inline V load_f16(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline V load_f16_n(const uint16_t* p, uint32_t n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p)); }
inline void store_f16(uint16_t* p, V a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
inline __m256 halved(V a) { return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)); }
inline void sum4(const V* v, float* out) {
    const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(halved(v[0]), halved(v[1])), _mm256_hadd_ps(halved(v[2]), halved(v[3])));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}
inline float max_of(V a) {
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}
inline void load_taps4(const float* w, V* t) {
    const V a = load(w), b = load(w + 16), c = load(w + 32), d = load(w + 48);
    // Two taps of eight channels each in one register, then the halves side by side.
    const __m512i even = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i odd = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
    const V x = _mm512_permutex2var_ps(a, even, b), y = _mm512_permutex2var_ps(c, even, d);
    const V z = _mm512_permutex2var_ps(a, odd, b), u = _mm512_permutex2var_ps(c, odd, d);
    t[0] = _mm512_shuffle_f32x4(x, y, 0x44);
    t[1] = _mm512_shuffle_f32x4(x, y, 0xEE);
    t[2] = _mm512_shuffle_f32x4(z, u, 0x44);
    t[3] = _mm512_shuffle_f32x4(z, u, 0xEE);
}

// The inner loops of ops.h, written once for every instruction set. A file that pastes this has opened
// a namespace, allowed its instructions for every function that follows, and defined the vocabulary:
//
//   V, W                     a vector of floats and its lanes
//   load, store, load_n, store_n (first n lanes), load_f16, load_f16_n, store_f16, splat, zero
//   add, sub, mul, div, vmin, vmax, floor_of, nearest, power_of_two (of a whole number)
//   fma(a, b, c) = a b + c, fnma(a, b, c) = c - a b, each rounded once
//   sum4(v, out)             the lane sums of four vectors, each in the same fixed order
//   max_of, load_taps4       largest lane; W channels of [n, 4] as four vectors
//   kWide, kTile, kScore, kPairs   how many vectors the registers hold, per loop; kStreamRows: see delta_stream
//
// Order   Every sum of products is a chain of explicit fma. No product feeds an addition, so a compiler
//         that contracts a*b + c finds nothing to contract and the bits are the source's.
// Tails   go through the same vector code with fewer lanes: a value's bits do not depend on its place.
#if defined(__GNUC__)
#define AUSPEX_LOOPS_INLINE inline __attribute__((always_inline))
#else
#define AUSPEX_LOOPS_INLINE inline
#endif
#if defined(__clang__)
#define AUSPEX_LOOPS_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define AUSPEX_LOOPS_UNROLL _Pragma("GCC unroll 16")
#else
#define AUSPEX_LOOPS_UNROLL
#endif

inline float sum_of(V a) {
    const V four[4] = {a, a, a, a};
    float out[4];
    sum4(four, out);
    return out[0];
}

// ------------------------------------------------------------------------------ values one by one

/// e^x + c, the sum rounded once; e^x within 1 unit in the last place, 0 below -104, held at e^88 above 88.
/// x = n ln 2 + r; e^r from a polynomial fitted for least relative error (3e-9) on |r| <= ln 2 / 2.
AUSPEX_LOOPS_INLINE V exp_plus(V x, V c) {
    x = vmax(splat(-104.0f), vmin(splat(88.0f), x));
    const V n = nearest(mul(x, splat(1.44269504f)));
    V r = fnma(n, splat(0.693145751953125f), x);  // ln 2, leading bits: n times this is exact
    r = fnma(n, splat(1.42860682e-6f), r);
    V p = splat(0.00138145406f);
    p = fma(p, r, splat(0.00836874545f));
    p = fma(p, r, splat(0.041668389f));
    p = fma(p, r, splat(0.166665211f));
    p = fma(p, r, splat(0.49999994f));
    p = fma(mul(p, r), r, r);
    p = add(p, splat(1.0f));
    // 2^n in two steps, for n reaches down to the smallest subnormal.
    const V half = floor_of(mul(n, splat(0.5f)));
    return fma(mul(p, power_of_two(half)), power_of_two(sub(n, half)), c);
}
// The divisors below are finite, because a compiler that was told to be fast divides by way of the
// reciprocal, and infinity times its reciprocal is not a number. What e^-88 leaves is below 1e-36.
AUSPEX_LOOPS_INLINE V sigmoid(V x) { return div(splat(1.0f), exp_plus(sub(zero(), x), splat(1.0f))); }
AUSPEX_LOOPS_INLINE V silu(V x) { return div(vmax(splat(-104.0f), x), exp_plus(sub(zero(), x), splat(1.0f))); }

inline void rms_norm(const float* x, const float* w, float* y, uint32_t n, float eps) {
    V acc[4] = {zero(), zero(), zero(), zero()};
    uint32_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W) {
        AUSPEX_LOOPS_UNROLL
        for (uint32_t v = 0; v < 4; ++v) {
            const V a = load(x + i + v * W);
            acc[v] = fma(a, a, acc[v]);
        }
    }
    for (; i < n; i += W) {
        const V a = n - i < W ? load_n(x + i, n - i, 0.0f) : load(x + i);
        acc[0] = fma(a, a, acc[0]);
    }
    float sums[4];
    sum4(acc, sums);
    const double sum = (double{sums[0]} + double{sums[1]}) + (double{sums[2]} + double{sums[3]});
    const V scale = splat(static_cast<float>(1.0 / std::sqrt(sum / n + double{eps})));
    for (i = 0; i + W <= n; i += W) {
        const V a = mul(load(x + i), scale);
        store(y + i, w ? mul(a, load(w + i)) : a);
    }
    if (i < n) {
        const V a = mul(load_n(x + i, n - i, 0.0f), scale);
        store_n(y + i, w ? mul(a, load_n(w + i, n - i, 0.0f)) : a, n - i);
    }
}

enum class Gate { swiglu, swiglu_limit, silu, sigmoid };
/// a: the value that goes through the gate's curve, b: the value it multiplies.
template <Gate kGate>
AUSPEX_LOOPS_INLINE V gate(V a, V b, float limit) {
    if (kGate == Gate::sigmoid) return mul(b, sigmoid(a));
    V s = silu(a);
    if (kGate == Gate::swiglu_limit) {
        s = vmin(splat(limit), s);
        b = vmax(splat(-limit), vmin(splat(limit), b));
    }
    return mul(s, b);
}
template <Gate kGate>
AUSPEX_LOOPS_INLINE void gate_all(const float* a, const float* b, float* y, uint32_t n, float limit) {
    uint32_t i = 0;
    for (; i + W <= n; i += W) store(y + i, gate<kGate>(load(a + i), load(b + i), limit));
    if (i < n) store_n(y + i, gate<kGate>(load_n(a + i, n - i, 0.0f), load_n(b + i, n - i, 0.0f), limit), n - i);
}
inline void swiglu(const float* g, const float* u, float* y, uint32_t n, float limit) {
    if (limit > 0) gate_all<Gate::swiglu_limit>(g, u, y, n, limit);
    else gate_all<Gate::swiglu>(g, u, y, n, limit);
}
inline void silu_gate(const float* x, const float* z, float* y, uint32_t n) { gate_all<Gate::silu>(z, x, y, n, 0.0f); }
inline void sigmoid_gate(const float* x, const float* z, float* y, uint32_t n) { gate_all<Gate::sigmoid>(z, x, y, n, 0.0f); }

/// m channels from c on (m < W: a tail).
AUSPEX_LOOPS_INLINE V conv_part(const float* const* taps, const float* w, uint32_t c, uint32_t n_tap, uint32_t m) {
    V sum = zero();
    for (uint32_t j = 0; j < n_tap; ++j) {
        float t[W] = {};
        for (uint32_t i = 0; i < m; ++i) t[i] = w[size_t{c + i} * n_tap + j];
        sum = fma(load(t), load_n(taps[j] + c, m, 0.0f), sum);
    }
    return silu(sum);
}
inline void conv_silu(const float* const* taps, const float* w, float* y, uint32_t n, uint32_t n_tap) {
    uint32_t c = 0;
    if (n_tap == 4) {
        const float *t0 = taps[0], *t1 = taps[1], *t2 = taps[2], *t3 = taps[3];
        for (; c + W <= n; c += W) {
            V t[4];
            load_taps4(w + size_t{c} * 4, t);
            V sum = fma(t[0], load(t0 + c), zero());
            sum = fma(t[1], load(t1 + c), sum);
            sum = fma(t[2], load(t2 + c), sum);
            store(y + c, silu(fma(t[3], load(t3 + c), sum)));
        }
    }
    for (; c + W <= n; c += W) store(y + c, conv_part(taps, w, c, n_tap, W));
    if (c < n) store_n(y + c, conv_part(taps, w, c, n_tap, n - c), n - c);
}

inline void to_f16(const float* x, uint16_t* y, uint32_t n) {
    uint32_t i = 0;
    for (; i + W <= n; i += W) store_f16(y + i, load(x + i));
    if (i < n) {
        uint16_t t[W];
        store_f16(t, load_n(x + i, n - i, 0.0f));
        std::memcpy(y + i, t, sizeof(uint16_t) * (n - i));
    }
}

inline void merge(float* o, float a, const float* p, float b, uint32_t n) {
    uint32_t i = 0;
    for (; i + W <= n; i += W) store(o + i, fma(load(p + i), splat(b), mul(load(o + i), splat(a))));
    if (i < n) store_n(o + i, fma(load_n(p + i, n - i, 0.0f), splat(b), mul(load_n(o + i, n - i, 0.0f), splat(a))), n - i);
}

// -------------------------------------------------------------------------------------- attention

/// scores[a][c] = q[a] . k[c] for kQ queries and kK keys. One chain of multiply-adds per pair, whatever
/// the tile: converting a key to float is shared, the bits are not.
template <uint32_t kQ, uint32_t kK>
AUSPEX_LOOPS_INLINE void score_tile(const float* const* q, const uint16_t* k, size_t ld, uint32_t d, float* scores, size_t ld_scores) {
    constexpr uint32_t n = kQ * kK, n4 = (n + 3) / 4 * 4;
    V acc[n4];
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < n4; ++i) acc[i] = zero();
    uint32_t j = 0;
    for (; j + W <= d; j += W) {
        V key[kK];
        AUSPEX_LOOPS_UNROLL
        for (uint32_t c = 0; c < kK; ++c) key[c] = load_f16(k + c * ld + j);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t i = 0; i < n; ++i) acc[i] = fma(load(q[i / kK] + j), key[i % kK], acc[i]);
    }
    if (j < d) {
        AUSPEX_LOOPS_UNROLL
        for (uint32_t i = 0; i < n; ++i)
            acc[i] = fma(load_n(q[i / kK] + j, d - j, 0.0f), load_f16_n(k + (i % kK) * ld + j, d - j), acc[i]);
    }
    float sums[n4];
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < n4; i += 4) sum4(acc + i, sums + i);
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < n; ++i) scores[(i / kK) * ld_scores + i % kK] = sums[i];
}

/// o[a][j ..] = sum over keys, in order, of p[a][i] v[i][j ..], for kQ queries and kV vectors.
template <uint32_t kQ, uint32_t kV>
AUSPEX_LOOPS_INLINE void value_tile(const float* p, size_t ld_p, const uint16_t* v, uint32_t n_key, size_t ld, float* const* o, uint32_t j) {
    V acc[kQ * kV];
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < kQ * kV; ++i) acc[i] = zero();
    v += j;
    for (uint32_t key = 0; key < n_key; ++key, v += ld) {
        V value[kV];
        AUSPEX_LOOPS_UNROLL
        for (uint32_t i = 0; i < kV; ++i) value[i] = load_f16(v + i * W);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t i = 0; i < kQ * kV; ++i) acc[i] = fma(splat(p[(i / kV) * ld_p + key]), value[i % kV], acc[i]);
    }
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < kQ * kV; ++i) store(o[i / kV] + j + (i % kV) * W, acc[i]);
}
/// All columns: tiles of kV vectors, then of half as many, and so on; at last the lanes that are left.
template <uint32_t kQ, uint32_t kV>
AUSPEX_LOOPS_INLINE void values(const float* p, size_t ld_p, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d, float* const* o, uint32_t j) {
    for (; j + kV * W <= d; j += kV * W) value_tile<kQ, kV>(p, ld_p, v, n_key, ld, o, j);
    if constexpr (kV > 1) {
        values<kQ, kV / 2>(p, ld_p, v, n_key, ld, d, o, j);
    } else if (j < d) {
        for (uint32_t a = 0; a < kQ; ++a) {
            V acc = zero();
            for (uint32_t key = 0; key < n_key; ++key) acc = fma(splat(p[a * ld_p + key]), load_f16_n(v + key * ld + j, d - j), acc);
            store_n(o[a] + j, acc, d - j);
        }
    }
}

/// scores become exp(scores - max); their max and sum.
inline void softmax(float* scores, uint32_t n, float* m, float* l) {
    V top = splat(-INFINITY);
    uint32_t i = 0;
    for (; i + W <= n; i += W) top = vmax(top, load(scores + i));
    if (i < n) top = vmax(top, load_n(scores + i, n - i, -INFINITY));
    *m = max_of(top);
    top = splat(*m);
    V sum = zero();
    for (i = 0; i + W <= n; i += W) {
        const V p = exp_plus(sub(load(scores + i), top), zero());
        store(scores + i, p);
        sum = add(sum, p);
    }
    if (i < n) {
        const V p = exp_plus(sub(load_n(scores + i, n - i, -INFINITY), top), zero());
        store_n(scores + i, p, n - i);
        sum = add(sum, p);
    }
    *l = sum_of(sum);
}

template <uint32_t kQ>
inline void attend_queries(const float* const* q, const uint16_t* k, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d, float* scores,
                           float* const* m, float* const* l, float* const* o) {
    constexpr uint32_t kK = kPairs / kQ;
    uint32_t c = 0;
    for (; c + kK <= n_key; c += kK) score_tile<kQ, kK>(q, k + c * ld, ld, d, scores + c, n_key);
    for (; c < n_key; ++c) score_tile<kQ, 1>(q, k + c * ld, ld, d, scores + c, n_key);
    for (uint32_t a = 0; a < kQ; ++a) softmax(scores + size_t{a} * n_key, n_key, m[a], l[a]);
    values<kQ, kPairs / kQ>(scores, n_key, v, n_key, ld, d, o, 0);
}
inline void attend_many(uint32_t n_query, const float* const* q, const uint16_t* k, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d,
                        float* scores, float* const* m, float* const* l, float* const* o) {
    uint32_t a = 0;
    for (; a + 4 <= n_query; a += 4) attend_queries<4>(q + a, k, v, n_key, ld, d, scores, m + a, l + a, o + a);
    for (; a + 2 <= n_query; a += 2) attend_queries<2>(q + a, k, v, n_key, ld, d, scores, m + a, l + a, o + a);
    if (a < n_query) attend_queries<1>(q + a, k, v, n_key, ld, d, scores, m + a, l + a, o + a);
}
inline void attend(const float* q, const uint16_t* k, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d, float* scores, float* m, float* l,
                   float* o) {
    attend_queries<1>(&q, k, v, n_key, ld, d, scores, &m, &l, &o);
}

// --------------------------------------------------------------------------------- DeltaNet, by rows

/// s after a term: the one place where a state changes, so that a term gives the same bits whether it is
/// applied with its own row or at the start of a later step.
AUSPEX_LOOPS_INLINE V grown(V s, V decay, V k, V u) { return fma(k, u, mul(decay, s)); }

AUSPEX_LOOPS_INLINE V part_load(const float* p, uint32_t n) { return n < W ? load_n(p, n, 0.0f) : load(p); }
AUSPEX_LOOPS_INLINE void part_store(float* p, V v, uint32_t n) {
    if (n < W) store_n(p, v, n);
    else store(p, v);
}

inline float dot(const float* a, const float* b, uint32_t n) {
    V acc = zero();
    uint32_t i = 0;
    for (; i + W <= n; i += W) acc = fma(load(a + i), load(b + i), acc);
    if (i < n) acc = fma(load_n(a + i, n - i, 0.0f), load_n(b + i, n - i, 0.0f), acc);
    return sum_of(acc);
}

/// A piece of a state: rows i from .. from + n - 1 of some columns, the first at `at`, `ld` floats apart.
struct Piece {
    const float* at;
    size_t ld;
    uint32_t from, n;
};
enum class Adds { nothing, one_term, terms };
constexpr uint32_t kStream = 256;    // columns of the walk through memory

/// One walk over kV vectors of columns (the last of m lanes): reads the state once, adds the terms
/// (pointers to u at these columns), writes it to `to` when kStore, and takes a row's k and q (both, or
/// null) into rho = S'k and sigma = S'q, which go on from what they hold.
template <uint32_t kV, Adds kAdds, bool kStore, bool kRow>
AUSPEX_LOOPS_INLINE void delta_walk(const Piece& piece, float* to, size_t ld_to, const DeltaTerm* terms, uint32_t n_term, uint32_t j0,
                                    const DeltaRow* row, float* rho_sum, float* sigma_sum, uint32_t m) {
    V rho[kV], sigma[kV], u[kV];
    AUSPEX_LOOPS_UNROLL
    for (uint32_t v = 0; v < kV; ++v) {
        rho[v] = kRow ? load(rho_sum + v * W) : zero();
        sigma[v] = kRow ? load(sigma_sum + v * W) : zero();
        u[v] = kAdds == Adds::one_term ? part_load(terms->u + j0 + v * W, v + 1 < kV ? W : m) : zero();
    }
    const V decay = kAdds == Adds::one_term ? splat(terms->decay) : zero();
    const float* term_k = kAdds == Adds::one_term ? terms->k : nullptr;
    const float *row_k = kRow ? row->k : nullptr, *row_q = kRow ? row->q : nullptr;
    const float* in = piece.at;
    for (uint32_t i = piece.from; i < piece.from + piece.n; ++i, in += piece.ld) {
        V s[kV];
        AUSPEX_LOOPS_UNROLL
        for (uint32_t v = 0; v < kV; ++v) s[v] = kV > 1 ? load(in + v * W) : part_load(in, m);
        if (kAdds == Adds::one_term) {
            const V k = splat(term_k[i]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kV; ++v) s[v] = grown(s[v], decay, k, u[v]);
        }
        if (kAdds == Adds::terms)
            for (uint32_t t = 0; t < n_term; ++t) {
                const V k = splat(terms[t].k[i]), d = splat(terms[t].decay);
                const float* tu = terms[t].u + j0;
                AUSPEX_LOOPS_UNROLL
                for (uint32_t v = 0; v < kV; ++v) s[v] = grown(s[v], d, k, kV > 1 ? load(tu + v * W) : part_load(tu, m));
            }
        if (kStore) {
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kV; ++v) {
                if (kV > 1) store(to + v * W, s[v]);
                else part_store(to, s[v], m);
            }
            to += ld_to;
        }
        if (kRow) {
            const V k = splat(row_k[i]), q = splat(row_q[i]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kV; ++v) {
                rho[v] = fma(s[v], k, rho[v]);
                sigma[v] = fma(s[v], q, sigma[v]);
            }
        }
    }
    if (kRow) {
        AUSPEX_LOOPS_UNROLL
        for (uint32_t v = 0; v < kV; ++v) {
            store(rho_sum + v * W, rho[v]);
            store(sigma_sum + v * W, sigma[v]);
        }
    }
}

/// The row's u and o at columns j0 .. j0 + n - 1, from its sums over the state before it.
AUSPEX_LOOPS_INLINE void delta_finish(const DeltaRow& row, const float* rho, const float* sigma, uint32_t d_key, uint32_t j0, uint32_t n) {
    const V kq = splat(dot(row.k, row.q, d_key)), decay = splat(row.decay), beta = splat(row.beta);
    for (uint32_t j = 0; j < n; j += W) {
        const V u = mul(beta, fnma(decay, load(rho + j), part_load(row.v + j0 + j, n - j)));
        part_store(row.u + j0 + j, u, n - j);
        part_store(row.o + j0 + j, fma(kq, u, mul(decay, load(sigma + j))), n - j);
    }
}

/// Adds the terms to the state and runs the first row on it, through memory in the order it lies there:
/// for a single row the traffic is the cost.
template <Adds kAdds, bool kRow>
inline void delta_stream(float* s, uint32_t d_key, uint32_t d_val, const DeltaTerm* terms, uint32_t n_term, const DeltaRow* row) {
    constexpr bool kStore = kAdds != Adds::nothing;
    float rho[kStream], sigma[kStream];
    for (uint32_t j0 = 0; j0 < d_val; j0 += kStream) {
        const uint32_t n_col = d_val - j0 < kStream ? d_val - j0 : kStream;
        for (uint32_t j = 0; kRow && j < n_col; j += W) {
            store(rho + j, zero());
            store(sigma + j, zero());
        }
        for (uint32_t i = 0; i < d_key; i += kStreamRows) {
            float* at = s + size_t{i} * d_val + j0;
            Piece piece = {at, d_val, i, d_key - i < kStreamRows ? d_key - i : kStreamRows};
            uint32_t j = 0;
            for (; j + kWide * W <= n_col; j += kWide * W, piece.at += kWide * W)
                delta_walk<kWide, kAdds, kStore, kRow>(piece, at + j, d_val, terms, n_term, j0 + j, row, rho + j, sigma + j, W);
            for (; j < n_col; j += W, piece.at += W)
                delta_walk<1, kAdds, kStore, kRow>(piece, at + j, d_val, terms, n_term, j0 + j, row, rho + j, sigma + j, n_col - j < W ? n_col - j : W);
        }
        if (kRow) delta_finish(*row, rho, sigma, d_key, j0, n_col);
    }
}

/// The rows after the first on one block of columns. Row t's walk first adds row t-1's term, so each row
/// costs one read and one write; between rows the block stays in the scratch, where it is not strided and
/// so fits the first-level cache.
template <uint32_t kV>
inline void delta_block(float* s, uint32_t d_key, uint32_t d_val, const DeltaRow* rows, uint32_t n_row, bool in_place, float* scratch, uint32_t j0,
                        uint32_t m) {
    Piece piece = {s + j0, d_val, 0, d_key};
    const uint32_t n_col = (kV - 1) * W + m;
    for (uint32_t t = 1; t < n_row; ++t) {
        const DeltaTerm last = {rows[t - 1].decay, rows[t - 1].k, rows[t - 1].u};
        float rho[kV * W] = {}, sigma[kV * W] = {};
        if (t + 1 < n_row || in_place) {
            delta_walk<kV, Adds::one_term, true, true>(piece, scratch, n_col, &last, 1, j0, rows + t, rho, sigma, m);
            piece.at = scratch;
            piece.ld = n_col;
        } else {
            delta_walk<kV, Adds::one_term, false, true>(piece, nullptr, 0, &last, 1, j0, rows + t, rho, sigma, m);
        }
        delta_finish(rows[t], rho, sigma, d_key, j0, n_col);
    }
    if (in_place) {
        const DeltaTerm last = {rows[n_row - 1].decay, rows[n_row - 1].k, rows[n_row - 1].u};
        delta_walk<kV, Adds::one_term, true, false>(piece, s + j0, d_val, &last, 1, j0, nullptr, nullptr, nullptr, m);
    }
}

inline void delta_rows(float* s, uint32_t d_key, uint32_t d_val, const DeltaTerm* terms, uint32_t n_term, const DeltaRow* rows, uint32_t n_row,
                       bool in_place, float* scratch) {
    // Every sum over i of one column is one chain in order, however the columns and rows are blocked.
    if (n_row == 0) {
        if (n_term == 1) delta_stream<Adds::one_term, false>(s, d_key, d_val, terms, 1, nullptr);
        else if (n_term) delta_stream<Adds::terms, false>(s, d_key, d_val, terms, n_term, nullptr);
        return;
    }
    if (n_term == 0) delta_stream<Adds::nothing, true>(s, d_key, d_val, nullptr, 0, rows);
    else if (n_term == 1) delta_stream<Adds::one_term, true>(s, d_key, d_val, terms, 1, rows);
    else delta_stream<Adds::terms, true>(s, d_key, d_val, terms, n_term, rows);
    if (n_row == 1 && !in_place) return;
    if (n_row == 1) {
        const DeltaTerm last = {rows->decay, rows->k, rows->u};
        delta_stream<Adds::one_term, false>(s, d_key, d_val, &last, 1, nullptr);
        return;
    }
    constexpr uint32_t kNarrow = kDeltaColumns / W;
    uint32_t j = 0;
    for (; j + kNarrow * W <= d_val; j += kNarrow * W) delta_block<kNarrow>(s, d_key, d_val, rows, n_row, in_place, scratch, j, W);
    for (; j < d_val; j += W) delta_block<1>(s, d_key, d_val, rows, n_row, in_place, scratch, j, d_val - j < W ? d_val - j : W);
}

// ------------------------------------------------------------------------------ DeltaNet, by chunks

/// acc[r] += sum over x < n of a[r][x] b[x], for kM rows a and kV vectors of b's columns.
template <uint32_t kM, uint32_t kV>
AUSPEX_LOOPS_INLINE void product(V* acc, const float* const* a, const float* b, size_t ld, uint32_t n) {
    V sum[kM * kV];  // a copy: some compilers keep an array in memory once any loop indexes it
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < kM * kV; ++i) sum[i] = acc[i];
    for (uint32_t x = 0; x < n; ++x, b += ld) {
        V row[kV];
        AUSPEX_LOOPS_UNROLL
        for (uint32_t v = 0; v < kV; ++v) row[v] = load(b + v * W);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kM; ++r) {
            const V f = splat(a[r][x]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kV; ++v) sum[r * kV + v] = fma(f, row[v], sum[r * kV + v]);
        }
    }
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < kM * kV; ++i) acc[i] = sum[i];
}

constexpr uint32_t kTileRows = 4;            // rows of one register tile
constexpr uint32_t kPanel = kTile * W;       // columns of one register tile
constexpr uint32_t kSubChunk = 16;           // rows solved together: see delta_chunk
static_assert(kSubChunk % (kScore * W) == 0 && kDeltaChunk % kSubChunk == 0 && kPanel <= kDeltaChunk, "tiles must fit");

/// Where delta_chunk keeps what, in its scratch.
struct ChunkPlan {
    float* kt;     ///< [d_key, kDeltaChunk] keys by column; later times their decay to the end of the sub-chunk
    float* a;      ///< [kDeltaChunk, kSubChunk] -beta_i (k_i . k_j) D_ij within the row's sub-chunk
    float* p;      ///< [kDeltaChunk, kSubChunk] (q_i . k_j) D_ij, 0 for j > i
    float* w;      ///< [kSubChunk, kPanel] V', the rows' terms
    float* s;      ///< [d_key, kPanel] columns of the state
    float* g;      ///< [kDeltaChunk] decay from the start of the sub-chunk to the end of row i
    float* rest;   ///< [kDeltaChunk] decay from the end of row i to the end of the sub-chunk
};

/// Fills a, p, g, rest and scales kt for the rows from .. from + n - 1 of a chunk.
inline void chunk_scores(const ChunkPlan& plan, const DeltaRow* rows, uint32_t from, uint32_t n, uint32_t d_key) {
    float between[kTileRows][kSubChunk] = {};  // D_ij: decay from the end of row j to the end of row i; 0 for j > i
    float run[kSubChunk] = {};
    for (uint32_t i0 = 0; i0 < n; i0 += kTileRows) {
        const float* x[2 * kTileRows];
        for (uint32_t r = 0; r < kTileRows; ++r) {
            const uint32_t i = i0 + r < n ? i0 + r : n - 1;
            x[r] = rows[from + i].k;
            x[kTileRows + r] = rows[from + i].q;
            if (i0 + r >= n) continue;
            const float decay = rows[from + i].decay;
            for (uint32_t j = 0; j < i; ++j) run[j] *= decay;
            run[i] = 1.0f;
            std::memcpy(between[r], run, sizeof run);
            plan.g[from + i] = i ? plan.g[from + i - 1] * decay : decay;
        }
        for (uint32_t c = 0; c < i0 + kTileRows; c += kScore * W) {
            V acc[2 * kTileRows * kScore];
            AUSPEX_LOOPS_UNROLL
            for (uint32_t r = 0; r < 2 * kTileRows * kScore; ++r) acc[r] = zero();
            product<2 * kTileRows, kScore>(acc, x, plan.kt + from + c, kDeltaChunk, d_key);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t r = 0; r < kTileRows; ++r) {
                if (i0 + r >= n) continue;
                const size_t at = size_t{from + i0 + r} * kSubChunk + c;
                const V minus_beta = splat(-rows[from + i0 + r].beta);
                AUSPEX_LOOPS_UNROLL
                for (uint32_t v = 0; v < kScore; ++v) {
                    const V d = load(between[r] + c + v * W);
                    store(plan.a + at + v * W, mul(mul(minus_beta, acc[r * kScore + v]), d));
                    store(plan.p + at + v * W, mul(acc[(kTileRows + r) * kScore + v], d));
                }
            }
        }
    }
    for (uint32_t j = 0; j < kSubChunk; ++j) plan.rest[from + j] = j < n ? run[j] : 0.0f;
    for (uint32_t x = 0; x < d_key; ++x)
        for (uint32_t j = 0; j < kSubChunk; j += W) {
            float* k = plan.kt + size_t{x} * kDeltaChunk + from + j;
            store(k, mul(load(k), load(plan.rest + from + j)));
        }
}

/// One sub-chunk on one panel of columns: the rows' terms w and outputs o, then the state.
inline void chunk_panel(const ChunkPlan& plan, const DeltaRow* rows, uint32_t from, uint32_t n, uint32_t d_key, uint32_t j0, uint32_t n_col) {
    constexpr uint32_t n_acc = kTileRows * kTile;
    V acc[n_acc];
    const float* a[kTileRows];
    for (uint32_t i0 = 0; i0 < n; i0 += kTileRows) {
        const uint32_t m = n - i0 < kTileRows ? n - i0 : kTileRows;
        // W = beta (v - g k'S) - A W, from the top; the tile's own rows at the end, one after the other.
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < n_acc; ++r) acc[r] = zero();
        for (uint32_t r = 0; r < kTileRows; ++r) a[r] = rows[from + (i0 + r < n ? i0 + r : n - 1)].k;
        product<kTileRows, kTile>(acc, a, plan.s, kPanel, d_key);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            const uint32_t i = from + (i0 + r < n ? i0 + r : n - 1);
            const V beta = splat(rows[i].beta), g = splat(plan.g[i]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v) {
                const V value = v * W < n_col ? part_load(rows[i].v + j0 + v * W, n_col - v * W) : zero();
                acc[r * kTile + v] = mul(beta, fnma(g, acc[r * kTile + v], value));
            }
            a[r] = plan.a + size_t{i} * kSubChunk;
        }
        product<kTileRows, kTile>(acc, a, plan.w, kPanel, i0);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 1; r < kTileRows; ++r) {
            AUSPEX_LOOPS_UNROLL
            for (uint32_t y = 0; y < r; ++y) {
                const V f = splat(a[r][i0 + y]);
                AUSPEX_LOOPS_UNROLL
                for (uint32_t v = 0; v < kTile; ++v) acc[r * kTile + v] = fma(f, acc[y * kTile + v], acc[r * kTile + v]);
            }
        }
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v)
                if (r < m) store(plan.w + size_t{i0 + r} * kPanel + v * W, acc[r * kTile + v]);
        }
        // o = g q'S + P W
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < n_acc; ++r) acc[r] = zero();
        for (uint32_t r = 0; r < kTileRows; ++r) a[r] = rows[from + (i0 + r < n ? i0 + r : n - 1)].q;
        product<kTileRows, kTile>(acc, a, plan.s, kPanel, d_key);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            const uint32_t i = from + (i0 + r < n ? i0 + r : n - 1);
            const V g = splat(plan.g[i]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v) acc[r * kTile + v] = mul(g, acc[r * kTile + v]);
            a[r] = plan.p + size_t{i} * kSubChunk;
        }
        product<kTileRows, kTile>(acc, a, plan.w, kPanel, i0 + m);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            if (r >= m) continue;
            float* o = rows[from + i0 + r].o + j0;
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v)
                if (v * W < n_col) part_store(o + v * W, acc[r * kTile + v], n_col - v * W);
        }
    }
    // S = g S + K'W, the keys already decayed to the end of the sub-chunk
    const V g = splat(plan.g[from + n - 1]);
    for (uint32_t x0 = 0; x0 < d_key; x0 += kTileRows) {
        const uint32_t m = d_key - x0 < kTileRows ? d_key - x0 : kTileRows;
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            const size_t x = r < m ? x0 + r : d_key - 1;
            a[r] = plan.kt + x * kDeltaChunk + from;
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v) acc[r * kTile + v] = mul(g, load(plan.s + x * kPanel + v * W));
        }
        product<kTileRows, kTile>(acc, a, plan.w, kPanel, n);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v)
                if (r < m) store(plan.s + size_t{x0 + r} * kPanel + v * W, acc[r * kTile + v]);
        }
    }
}

// The chunked form of Yang, Kautz, Hatamizadeh (arXiv 2412.06464), section 3, with decays kept as products
// (at most 1, so nothing overflows). Its work per row is 3 d_key d_val multiply-adds plus what grows with
// the rows solved together, so the chunk is cut into sub-chunks; the state stays in the first-level cache,
// one panel of columns at a time, for all of them.
inline void delta_chunk(float* s, uint32_t d_key, uint32_t d_val, const DeltaRow* rows, uint32_t n, float* scratch) {
    if (n == 0) return;
    ChunkPlan plan;
    plan.kt = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t{63});
    plan.s = plan.kt + size_t{d_key} * kDeltaChunk;
    plan.a = plan.s + size_t{d_key} * kPanel;
    plan.p = plan.a + size_t{kDeltaChunk} * kSubChunk;
    plan.w = plan.p + size_t{kDeltaChunk} * kSubChunk;
    plan.g = plan.w + size_t{kSubChunk} * kPanel;
    plan.rest = plan.g + kDeltaChunk;
    const uint32_t n_pad = ceil_div(n, kSubChunk) * kSubChunk;
    for (uint32_t x = 0; x < d_key; ++x) {
        float* k = plan.kt + size_t{x} * kDeltaChunk;
        for (uint32_t i = 0; i < n; ++i) k[i] = rows[i].k[x];
        for (uint32_t i = n; i < n_pad; ++i) k[i] = 0.0f;
    }
    for (uint32_t from = 0; from < n; from += kSubChunk)
        chunk_scores(plan, rows, from, n - from < kSubChunk ? n - from : kSubChunk, d_key);
    for (uint32_t j = 0; j < d_val; j += kPanel) {
        const uint32_t n_col = d_val - j < kPanel ? d_val - j : kPanel;
        for (uint32_t x = 0; x < d_key; ++x)
            for (uint32_t v = 0; v < kTile; ++v)
                store(plan.s + size_t{x} * kPanel + v * W, v * W < n_col ? part_load(s + size_t{x} * d_val + j + v * W, n_col - v * W) : zero());
        for (uint32_t from = 0; from < n; from += kSubChunk)
            chunk_panel(plan, rows, from, n - from < kSubChunk ? n - from : kSubChunk, d_key, j, n_col);
        for (uint32_t x = 0; x < d_key; ++x)
            for (uint32_t v = 0; v * W < n_col; ++v)
                part_store(s + size_t{x} * d_val + j + v * W, load(plan.s + size_t{x} * kPanel + v * W), n_col - v * W);
    }
}

#undef AUSPEX_LOOPS_INLINE
#undef AUSPEX_LOOPS_UNROLL

}  // namespace loops_avx512
}  // namespace detail
}  // namespace auspex

#if defined(__clang__)
#pragma clang attribute pop
#elif defined(__GNUC__)
#pragma GCC pop_options
#pragma GCC diagnostic pop
#endif
#endif

namespace auspex {
namespace detail {

const Loops* avx512_loops() {
#if AUSPEX_HAS_X86
    namespace r = loops_avx512;
    static constexpr Loops loops = {"avx512", r::rms_norm, r::swiglu, r::silu_gate,  r::sigmoid_gate, r::conv_silu,
                                    r::to_f16, r::attend,   r::merge,  r::delta_rows, r::delta_chunk,  r::attend_many};
    return &loops;
#else
    return nullptr;
#endif
}

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------ src/machine/cpu/loops_neon.cpp

// machine/cpu/loops_neon: the inner loops on AArch64's Advanced SIMD: the vocabulary of loops_simd.inl.
// Everything here is in the base instruction set, so no region of its own is needed.

#if AUSPEX_HAS_NEON
#include <arm_neon.h>


namespace auspex {
namespace detail {
namespace loops_neon {

using V = float32x4_t;
constexpr uint32_t W = 4;
constexpr uint32_t kStreamRows = 4; // rows of a state between two loads of its sums
constexpr uint32_t kWide = 8;    // vectors of state columns in one walk of delta_rows
constexpr uint32_t kTile = 4;    // vectors of one row of a product tile
constexpr uint32_t kScore = 2;   // the same for twice the rows
constexpr uint32_t kPairs = 16;  // sums in one tile of attention

inline V zero() { return vdupq_n_f32(0.0f); }
inline V splat(float a) { return vdupq_n_f32(a); }
inline V add(V a, V b) { return vaddq_f32(a, b); }
inline V sub(V a, V b) { return vsubq_f32(a, b); }
inline V mul(V a, V b) { return vmulq_f32(a, b); }
inline V div(V a, V b) { return vdivq_f32(a, b); }
inline V fma(V a, V b, V c) { return vfmaq_f32(c, a, b); }
inline V fnma(V a, V b, V c) { return vfmsq_f32(c, a, b); }
inline V vmin(V a, V b) { return vminq_f32(a, b); }
inline V vmax(V a, V b) { return vmaxq_f32(a, b); }
inline V floor_of(V a) { return vrndmq_f32(a); }
inline V nearest(V a) { return vrndnq_f32(a); }
inline V power_of_two(V n) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23)); }
inline V load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, V a) { vst1q_f32(p, a); }
inline V load_n(const float* p, uint32_t n, float fill) {
    float t[W] = {fill, fill, fill, fill};
    std::memcpy(t, p, sizeof(float) * n);
    return load(t);
}
inline void store_n(float* p, V a, uint32_t n) {
    float t[W];
    store(t, a);
    std::memcpy(p, t, sizeof(float) * n);
}
inline V load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline V load_f16_n(const uint16_t* p, uint32_t n) {
    uint16_t t[W] = {};
    std::memcpy(t, p, sizeof(uint16_t) * n);
    return load_f16(t);
}
inline void store_f16(uint16_t* p, V a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }
inline void sum4(const V* v, float* out) { store(out, vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3]))); }
inline float max_of(V a) { return vmaxvq_f32(a); }
inline void load_taps4(const float* w, V* t) {
    const float32x4x4_t x = vld4q_f32(w);
    t[0] = x.val[0];
    t[1] = x.val[1];
    t[2] = x.val[2];
    t[3] = x.val[3];
}

// The inner loops of ops.h, written once for every instruction set. A file that pastes this has opened
// a namespace, allowed its instructions for every function that follows, and defined the vocabulary:
//
//   V, W                     a vector of floats and its lanes
//   load, store, load_n, store_n (first n lanes), load_f16, load_f16_n, store_f16, splat, zero
//   add, sub, mul, div, vmin, vmax, floor_of, nearest, power_of_two (of a whole number)
//   fma(a, b, c) = a b + c, fnma(a, b, c) = c - a b, each rounded once
//   sum4(v, out)             the lane sums of four vectors, each in the same fixed order
//   max_of, load_taps4       largest lane; W channels of [n, 4] as four vectors
//   kWide, kTile, kScore, kPairs   how many vectors the registers hold, per loop; kStreamRows: see delta_stream
//
// Order   Every sum of products is a chain of explicit fma. No product feeds an addition, so a compiler
//         that contracts a*b + c finds nothing to contract and the bits are the source's.
// Tails   go through the same vector code with fewer lanes: a value's bits do not depend on its place.
#if defined(__GNUC__)
#define AUSPEX_LOOPS_INLINE inline __attribute__((always_inline))
#else
#define AUSPEX_LOOPS_INLINE inline
#endif
#if defined(__clang__)
#define AUSPEX_LOOPS_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define AUSPEX_LOOPS_UNROLL _Pragma("GCC unroll 16")
#else
#define AUSPEX_LOOPS_UNROLL
#endif

inline float sum_of(V a) {
    const V four[4] = {a, a, a, a};
    float out[4];
    sum4(four, out);
    return out[0];
}

// ------------------------------------------------------------------------------ values one by one

/// e^x + c, the sum rounded once; e^x within 1 unit in the last place, 0 below -104, held at e^88 above 88.
/// x = n ln 2 + r; e^r from a polynomial fitted for least relative error (3e-9) on |r| <= ln 2 / 2.
AUSPEX_LOOPS_INLINE V exp_plus(V x, V c) {
    x = vmax(splat(-104.0f), vmin(splat(88.0f), x));
    const V n = nearest(mul(x, splat(1.44269504f)));
    V r = fnma(n, splat(0.693145751953125f), x);  // ln 2, leading bits: n times this is exact
    r = fnma(n, splat(1.42860682e-6f), r);
    V p = splat(0.00138145406f);
    p = fma(p, r, splat(0.00836874545f));
    p = fma(p, r, splat(0.041668389f));
    p = fma(p, r, splat(0.166665211f));
    p = fma(p, r, splat(0.49999994f));
    p = fma(mul(p, r), r, r);
    p = add(p, splat(1.0f));
    // 2^n in two steps, for n reaches down to the smallest subnormal.
    const V half = floor_of(mul(n, splat(0.5f)));
    return fma(mul(p, power_of_two(half)), power_of_two(sub(n, half)), c);
}
// The divisors below are finite, because a compiler that was told to be fast divides by way of the
// reciprocal, and infinity times its reciprocal is not a number. What e^-88 leaves is below 1e-36.
AUSPEX_LOOPS_INLINE V sigmoid(V x) { return div(splat(1.0f), exp_plus(sub(zero(), x), splat(1.0f))); }
AUSPEX_LOOPS_INLINE V silu(V x) { return div(vmax(splat(-104.0f), x), exp_plus(sub(zero(), x), splat(1.0f))); }

inline void rms_norm(const float* x, const float* w, float* y, uint32_t n, float eps) {
    V acc[4] = {zero(), zero(), zero(), zero()};
    uint32_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W) {
        AUSPEX_LOOPS_UNROLL
        for (uint32_t v = 0; v < 4; ++v) {
            const V a = load(x + i + v * W);
            acc[v] = fma(a, a, acc[v]);
        }
    }
    for (; i < n; i += W) {
        const V a = n - i < W ? load_n(x + i, n - i, 0.0f) : load(x + i);
        acc[0] = fma(a, a, acc[0]);
    }
    float sums[4];
    sum4(acc, sums);
    const double sum = (double{sums[0]} + double{sums[1]}) + (double{sums[2]} + double{sums[3]});
    const V scale = splat(static_cast<float>(1.0 / std::sqrt(sum / n + double{eps})));
    for (i = 0; i + W <= n; i += W) {
        const V a = mul(load(x + i), scale);
        store(y + i, w ? mul(a, load(w + i)) : a);
    }
    if (i < n) {
        const V a = mul(load_n(x + i, n - i, 0.0f), scale);
        store_n(y + i, w ? mul(a, load_n(w + i, n - i, 0.0f)) : a, n - i);
    }
}

enum class Gate { swiglu, swiglu_limit, silu, sigmoid };
/// a: the value that goes through the gate's curve, b: the value it multiplies.
template <Gate kGate>
AUSPEX_LOOPS_INLINE V gate(V a, V b, float limit) {
    if (kGate == Gate::sigmoid) return mul(b, sigmoid(a));
    V s = silu(a);
    if (kGate == Gate::swiglu_limit) {
        s = vmin(splat(limit), s);
        b = vmax(splat(-limit), vmin(splat(limit), b));
    }
    return mul(s, b);
}
template <Gate kGate>
AUSPEX_LOOPS_INLINE void gate_all(const float* a, const float* b, float* y, uint32_t n, float limit) {
    uint32_t i = 0;
    for (; i + W <= n; i += W) store(y + i, gate<kGate>(load(a + i), load(b + i), limit));
    if (i < n) store_n(y + i, gate<kGate>(load_n(a + i, n - i, 0.0f), load_n(b + i, n - i, 0.0f), limit), n - i);
}
inline void swiglu(const float* g, const float* u, float* y, uint32_t n, float limit) {
    if (limit > 0) gate_all<Gate::swiglu_limit>(g, u, y, n, limit);
    else gate_all<Gate::swiglu>(g, u, y, n, limit);
}
inline void silu_gate(const float* x, const float* z, float* y, uint32_t n) { gate_all<Gate::silu>(z, x, y, n, 0.0f); }
inline void sigmoid_gate(const float* x, const float* z, float* y, uint32_t n) { gate_all<Gate::sigmoid>(z, x, y, n, 0.0f); }

/// m channels from c on (m < W: a tail).
AUSPEX_LOOPS_INLINE V conv_part(const float* const* taps, const float* w, uint32_t c, uint32_t n_tap, uint32_t m) {
    V sum = zero();
    for (uint32_t j = 0; j < n_tap; ++j) {
        float t[W] = {};
        for (uint32_t i = 0; i < m; ++i) t[i] = w[size_t{c + i} * n_tap + j];
        sum = fma(load(t), load_n(taps[j] + c, m, 0.0f), sum);
    }
    return silu(sum);
}
inline void conv_silu(const float* const* taps, const float* w, float* y, uint32_t n, uint32_t n_tap) {
    uint32_t c = 0;
    if (n_tap == 4) {
        const float *t0 = taps[0], *t1 = taps[1], *t2 = taps[2], *t3 = taps[3];
        for (; c + W <= n; c += W) {
            V t[4];
            load_taps4(w + size_t{c} * 4, t);
            V sum = fma(t[0], load(t0 + c), zero());
            sum = fma(t[1], load(t1 + c), sum);
            sum = fma(t[2], load(t2 + c), sum);
            store(y + c, silu(fma(t[3], load(t3 + c), sum)));
        }
    }
    for (; c + W <= n; c += W) store(y + c, conv_part(taps, w, c, n_tap, W));
    if (c < n) store_n(y + c, conv_part(taps, w, c, n_tap, n - c), n - c);
}

inline void to_f16(const float* x, uint16_t* y, uint32_t n) {
    uint32_t i = 0;
    for (; i + W <= n; i += W) store_f16(y + i, load(x + i));
    if (i < n) {
        uint16_t t[W];
        store_f16(t, load_n(x + i, n - i, 0.0f));
        std::memcpy(y + i, t, sizeof(uint16_t) * (n - i));
    }
}

inline void merge(float* o, float a, const float* p, float b, uint32_t n) {
    uint32_t i = 0;
    for (; i + W <= n; i += W) store(o + i, fma(load(p + i), splat(b), mul(load(o + i), splat(a))));
    if (i < n) store_n(o + i, fma(load_n(p + i, n - i, 0.0f), splat(b), mul(load_n(o + i, n - i, 0.0f), splat(a))), n - i);
}

// -------------------------------------------------------------------------------------- attention

/// scores[a][c] = q[a] . k[c] for kQ queries and kK keys. One chain of multiply-adds per pair, whatever
/// the tile: converting a key to float is shared, the bits are not.
template <uint32_t kQ, uint32_t kK>
AUSPEX_LOOPS_INLINE void score_tile(const float* const* q, const uint16_t* k, size_t ld, uint32_t d, float* scores, size_t ld_scores) {
    constexpr uint32_t n = kQ * kK, n4 = (n + 3) / 4 * 4;
    V acc[n4];
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < n4; ++i) acc[i] = zero();
    uint32_t j = 0;
    for (; j + W <= d; j += W) {
        V key[kK];
        AUSPEX_LOOPS_UNROLL
        for (uint32_t c = 0; c < kK; ++c) key[c] = load_f16(k + c * ld + j);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t i = 0; i < n; ++i) acc[i] = fma(load(q[i / kK] + j), key[i % kK], acc[i]);
    }
    if (j < d) {
        AUSPEX_LOOPS_UNROLL
        for (uint32_t i = 0; i < n; ++i)
            acc[i] = fma(load_n(q[i / kK] + j, d - j, 0.0f), load_f16_n(k + (i % kK) * ld + j, d - j), acc[i]);
    }
    float sums[n4];
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < n4; i += 4) sum4(acc + i, sums + i);
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < n; ++i) scores[(i / kK) * ld_scores + i % kK] = sums[i];
}

/// o[a][j ..] = sum over keys, in order, of p[a][i] v[i][j ..], for kQ queries and kV vectors.
template <uint32_t kQ, uint32_t kV>
AUSPEX_LOOPS_INLINE void value_tile(const float* p, size_t ld_p, const uint16_t* v, uint32_t n_key, size_t ld, float* const* o, uint32_t j) {
    V acc[kQ * kV];
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < kQ * kV; ++i) acc[i] = zero();
    v += j;
    for (uint32_t key = 0; key < n_key; ++key, v += ld) {
        V value[kV];
        AUSPEX_LOOPS_UNROLL
        for (uint32_t i = 0; i < kV; ++i) value[i] = load_f16(v + i * W);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t i = 0; i < kQ * kV; ++i) acc[i] = fma(splat(p[(i / kV) * ld_p + key]), value[i % kV], acc[i]);
    }
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < kQ * kV; ++i) store(o[i / kV] + j + (i % kV) * W, acc[i]);
}
/// All columns: tiles of kV vectors, then of half as many, and so on; at last the lanes that are left.
template <uint32_t kQ, uint32_t kV>
AUSPEX_LOOPS_INLINE void values(const float* p, size_t ld_p, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d, float* const* o, uint32_t j) {
    for (; j + kV * W <= d; j += kV * W) value_tile<kQ, kV>(p, ld_p, v, n_key, ld, o, j);
    if constexpr (kV > 1) {
        values<kQ, kV / 2>(p, ld_p, v, n_key, ld, d, o, j);
    } else if (j < d) {
        for (uint32_t a = 0; a < kQ; ++a) {
            V acc = zero();
            for (uint32_t key = 0; key < n_key; ++key) acc = fma(splat(p[a * ld_p + key]), load_f16_n(v + key * ld + j, d - j), acc);
            store_n(o[a] + j, acc, d - j);
        }
    }
}

/// scores become exp(scores - max); their max and sum.
inline void softmax(float* scores, uint32_t n, float* m, float* l) {
    V top = splat(-INFINITY);
    uint32_t i = 0;
    for (; i + W <= n; i += W) top = vmax(top, load(scores + i));
    if (i < n) top = vmax(top, load_n(scores + i, n - i, -INFINITY));
    *m = max_of(top);
    top = splat(*m);
    V sum = zero();
    for (i = 0; i + W <= n; i += W) {
        const V p = exp_plus(sub(load(scores + i), top), zero());
        store(scores + i, p);
        sum = add(sum, p);
    }
    if (i < n) {
        const V p = exp_plus(sub(load_n(scores + i, n - i, -INFINITY), top), zero());
        store_n(scores + i, p, n - i);
        sum = add(sum, p);
    }
    *l = sum_of(sum);
}

template <uint32_t kQ>
inline void attend_queries(const float* const* q, const uint16_t* k, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d, float* scores,
                           float* const* m, float* const* l, float* const* o) {
    constexpr uint32_t kK = kPairs / kQ;
    uint32_t c = 0;
    for (; c + kK <= n_key; c += kK) score_tile<kQ, kK>(q, k + c * ld, ld, d, scores + c, n_key);
    for (; c < n_key; ++c) score_tile<kQ, 1>(q, k + c * ld, ld, d, scores + c, n_key);
    for (uint32_t a = 0; a < kQ; ++a) softmax(scores + size_t{a} * n_key, n_key, m[a], l[a]);
    values<kQ, kPairs / kQ>(scores, n_key, v, n_key, ld, d, o, 0);
}
inline void attend_many(uint32_t n_query, const float* const* q, const uint16_t* k, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d,
                        float* scores, float* const* m, float* const* l, float* const* o) {
    uint32_t a = 0;
    for (; a + 4 <= n_query; a += 4) attend_queries<4>(q + a, k, v, n_key, ld, d, scores, m + a, l + a, o + a);
    for (; a + 2 <= n_query; a += 2) attend_queries<2>(q + a, k, v, n_key, ld, d, scores, m + a, l + a, o + a);
    if (a < n_query) attend_queries<1>(q + a, k, v, n_key, ld, d, scores, m + a, l + a, o + a);
}
inline void attend(const float* q, const uint16_t* k, const uint16_t* v, uint32_t n_key, size_t ld, uint32_t d, float* scores, float* m, float* l,
                   float* o) {
    attend_queries<1>(&q, k, v, n_key, ld, d, scores, &m, &l, &o);
}

// --------------------------------------------------------------------------------- DeltaNet, by rows

/// s after a term: the one place where a state changes, so that a term gives the same bits whether it is
/// applied with its own row or at the start of a later step.
AUSPEX_LOOPS_INLINE V grown(V s, V decay, V k, V u) { return fma(k, u, mul(decay, s)); }

AUSPEX_LOOPS_INLINE V part_load(const float* p, uint32_t n) { return n < W ? load_n(p, n, 0.0f) : load(p); }
AUSPEX_LOOPS_INLINE void part_store(float* p, V v, uint32_t n) {
    if (n < W) store_n(p, v, n);
    else store(p, v);
}

inline float dot(const float* a, const float* b, uint32_t n) {
    V acc = zero();
    uint32_t i = 0;
    for (; i + W <= n; i += W) acc = fma(load(a + i), load(b + i), acc);
    if (i < n) acc = fma(load_n(a + i, n - i, 0.0f), load_n(b + i, n - i, 0.0f), acc);
    return sum_of(acc);
}

/// A piece of a state: rows i from .. from + n - 1 of some columns, the first at `at`, `ld` floats apart.
struct Piece {
    const float* at;
    size_t ld;
    uint32_t from, n;
};
enum class Adds { nothing, one_term, terms };
constexpr uint32_t kStream = 256;    // columns of the walk through memory

/// One walk over kV vectors of columns (the last of m lanes): reads the state once, adds the terms
/// (pointers to u at these columns), writes it to `to` when kStore, and takes a row's k and q (both, or
/// null) into rho = S'k and sigma = S'q, which go on from what they hold.
template <uint32_t kV, Adds kAdds, bool kStore, bool kRow>
AUSPEX_LOOPS_INLINE void delta_walk(const Piece& piece, float* to, size_t ld_to, const DeltaTerm* terms, uint32_t n_term, uint32_t j0,
                                    const DeltaRow* row, float* rho_sum, float* sigma_sum, uint32_t m) {
    V rho[kV], sigma[kV], u[kV];
    AUSPEX_LOOPS_UNROLL
    for (uint32_t v = 0; v < kV; ++v) {
        rho[v] = kRow ? load(rho_sum + v * W) : zero();
        sigma[v] = kRow ? load(sigma_sum + v * W) : zero();
        u[v] = kAdds == Adds::one_term ? part_load(terms->u + j0 + v * W, v + 1 < kV ? W : m) : zero();
    }
    const V decay = kAdds == Adds::one_term ? splat(terms->decay) : zero();
    const float* term_k = kAdds == Adds::one_term ? terms->k : nullptr;
    const float *row_k = kRow ? row->k : nullptr, *row_q = kRow ? row->q : nullptr;
    const float* in = piece.at;
    for (uint32_t i = piece.from; i < piece.from + piece.n; ++i, in += piece.ld) {
        V s[kV];
        AUSPEX_LOOPS_UNROLL
        for (uint32_t v = 0; v < kV; ++v) s[v] = kV > 1 ? load(in + v * W) : part_load(in, m);
        if (kAdds == Adds::one_term) {
            const V k = splat(term_k[i]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kV; ++v) s[v] = grown(s[v], decay, k, u[v]);
        }
        if (kAdds == Adds::terms)
            for (uint32_t t = 0; t < n_term; ++t) {
                const V k = splat(terms[t].k[i]), d = splat(terms[t].decay);
                const float* tu = terms[t].u + j0;
                AUSPEX_LOOPS_UNROLL
                for (uint32_t v = 0; v < kV; ++v) s[v] = grown(s[v], d, k, kV > 1 ? load(tu + v * W) : part_load(tu, m));
            }
        if (kStore) {
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kV; ++v) {
                if (kV > 1) store(to + v * W, s[v]);
                else part_store(to, s[v], m);
            }
            to += ld_to;
        }
        if (kRow) {
            const V k = splat(row_k[i]), q = splat(row_q[i]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kV; ++v) {
                rho[v] = fma(s[v], k, rho[v]);
                sigma[v] = fma(s[v], q, sigma[v]);
            }
        }
    }
    if (kRow) {
        AUSPEX_LOOPS_UNROLL
        for (uint32_t v = 0; v < kV; ++v) {
            store(rho_sum + v * W, rho[v]);
            store(sigma_sum + v * W, sigma[v]);
        }
    }
}

/// The row's u and o at columns j0 .. j0 + n - 1, from its sums over the state before it.
AUSPEX_LOOPS_INLINE void delta_finish(const DeltaRow& row, const float* rho, const float* sigma, uint32_t d_key, uint32_t j0, uint32_t n) {
    const V kq = splat(dot(row.k, row.q, d_key)), decay = splat(row.decay), beta = splat(row.beta);
    for (uint32_t j = 0; j < n; j += W) {
        const V u = mul(beta, fnma(decay, load(rho + j), part_load(row.v + j0 + j, n - j)));
        part_store(row.u + j0 + j, u, n - j);
        part_store(row.o + j0 + j, fma(kq, u, mul(decay, load(sigma + j))), n - j);
    }
}

/// Adds the terms to the state and runs the first row on it, through memory in the order it lies there:
/// for a single row the traffic is the cost.
template <Adds kAdds, bool kRow>
inline void delta_stream(float* s, uint32_t d_key, uint32_t d_val, const DeltaTerm* terms, uint32_t n_term, const DeltaRow* row) {
    constexpr bool kStore = kAdds != Adds::nothing;
    float rho[kStream], sigma[kStream];
    for (uint32_t j0 = 0; j0 < d_val; j0 += kStream) {
        const uint32_t n_col = d_val - j0 < kStream ? d_val - j0 : kStream;
        for (uint32_t j = 0; kRow && j < n_col; j += W) {
            store(rho + j, zero());
            store(sigma + j, zero());
        }
        for (uint32_t i = 0; i < d_key; i += kStreamRows) {
            float* at = s + size_t{i} * d_val + j0;
            Piece piece = {at, d_val, i, d_key - i < kStreamRows ? d_key - i : kStreamRows};
            uint32_t j = 0;
            for (; j + kWide * W <= n_col; j += kWide * W, piece.at += kWide * W)
                delta_walk<kWide, kAdds, kStore, kRow>(piece, at + j, d_val, terms, n_term, j0 + j, row, rho + j, sigma + j, W);
            for (; j < n_col; j += W, piece.at += W)
                delta_walk<1, kAdds, kStore, kRow>(piece, at + j, d_val, terms, n_term, j0 + j, row, rho + j, sigma + j, n_col - j < W ? n_col - j : W);
        }
        if (kRow) delta_finish(*row, rho, sigma, d_key, j0, n_col);
    }
}

/// The rows after the first on one block of columns. Row t's walk first adds row t-1's term, so each row
/// costs one read and one write; between rows the block stays in the scratch, where it is not strided and
/// so fits the first-level cache.
template <uint32_t kV>
inline void delta_block(float* s, uint32_t d_key, uint32_t d_val, const DeltaRow* rows, uint32_t n_row, bool in_place, float* scratch, uint32_t j0,
                        uint32_t m) {
    Piece piece = {s + j0, d_val, 0, d_key};
    const uint32_t n_col = (kV - 1) * W + m;
    for (uint32_t t = 1; t < n_row; ++t) {
        const DeltaTerm last = {rows[t - 1].decay, rows[t - 1].k, rows[t - 1].u};
        float rho[kV * W] = {}, sigma[kV * W] = {};
        if (t + 1 < n_row || in_place) {
            delta_walk<kV, Adds::one_term, true, true>(piece, scratch, n_col, &last, 1, j0, rows + t, rho, sigma, m);
            piece.at = scratch;
            piece.ld = n_col;
        } else {
            delta_walk<kV, Adds::one_term, false, true>(piece, nullptr, 0, &last, 1, j0, rows + t, rho, sigma, m);
        }
        delta_finish(rows[t], rho, sigma, d_key, j0, n_col);
    }
    if (in_place) {
        const DeltaTerm last = {rows[n_row - 1].decay, rows[n_row - 1].k, rows[n_row - 1].u};
        delta_walk<kV, Adds::one_term, true, false>(piece, s + j0, d_val, &last, 1, j0, nullptr, nullptr, nullptr, m);
    }
}

inline void delta_rows(float* s, uint32_t d_key, uint32_t d_val, const DeltaTerm* terms, uint32_t n_term, const DeltaRow* rows, uint32_t n_row,
                       bool in_place, float* scratch) {
    // Every sum over i of one column is one chain in order, however the columns and rows are blocked.
    if (n_row == 0) {
        if (n_term == 1) delta_stream<Adds::one_term, false>(s, d_key, d_val, terms, 1, nullptr);
        else if (n_term) delta_stream<Adds::terms, false>(s, d_key, d_val, terms, n_term, nullptr);
        return;
    }
    if (n_term == 0) delta_stream<Adds::nothing, true>(s, d_key, d_val, nullptr, 0, rows);
    else if (n_term == 1) delta_stream<Adds::one_term, true>(s, d_key, d_val, terms, 1, rows);
    else delta_stream<Adds::terms, true>(s, d_key, d_val, terms, n_term, rows);
    if (n_row == 1 && !in_place) return;
    if (n_row == 1) {
        const DeltaTerm last = {rows->decay, rows->k, rows->u};
        delta_stream<Adds::one_term, false>(s, d_key, d_val, &last, 1, nullptr);
        return;
    }
    constexpr uint32_t kNarrow = kDeltaColumns / W;
    uint32_t j = 0;
    for (; j + kNarrow * W <= d_val; j += kNarrow * W) delta_block<kNarrow>(s, d_key, d_val, rows, n_row, in_place, scratch, j, W);
    for (; j < d_val; j += W) delta_block<1>(s, d_key, d_val, rows, n_row, in_place, scratch, j, d_val - j < W ? d_val - j : W);
}

// ------------------------------------------------------------------------------ DeltaNet, by chunks

/// acc[r] += sum over x < n of a[r][x] b[x], for kM rows a and kV vectors of b's columns.
template <uint32_t kM, uint32_t kV>
AUSPEX_LOOPS_INLINE void product(V* acc, const float* const* a, const float* b, size_t ld, uint32_t n) {
    V sum[kM * kV];  // a copy: some compilers keep an array in memory once any loop indexes it
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < kM * kV; ++i) sum[i] = acc[i];
    for (uint32_t x = 0; x < n; ++x, b += ld) {
        V row[kV];
        AUSPEX_LOOPS_UNROLL
        for (uint32_t v = 0; v < kV; ++v) row[v] = load(b + v * W);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kM; ++r) {
            const V f = splat(a[r][x]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kV; ++v) sum[r * kV + v] = fma(f, row[v], sum[r * kV + v]);
        }
    }
    AUSPEX_LOOPS_UNROLL
    for (uint32_t i = 0; i < kM * kV; ++i) acc[i] = sum[i];
}

constexpr uint32_t kTileRows = 4;            // rows of one register tile
constexpr uint32_t kPanel = kTile * W;       // columns of one register tile
constexpr uint32_t kSubChunk = 16;           // rows solved together: see delta_chunk
static_assert(kSubChunk % (kScore * W) == 0 && kDeltaChunk % kSubChunk == 0 && kPanel <= kDeltaChunk, "tiles must fit");

/// Where delta_chunk keeps what, in its scratch.
struct ChunkPlan {
    float* kt;     ///< [d_key, kDeltaChunk] keys by column; later times their decay to the end of the sub-chunk
    float* a;      ///< [kDeltaChunk, kSubChunk] -beta_i (k_i . k_j) D_ij within the row's sub-chunk
    float* p;      ///< [kDeltaChunk, kSubChunk] (q_i . k_j) D_ij, 0 for j > i
    float* w;      ///< [kSubChunk, kPanel] V', the rows' terms
    float* s;      ///< [d_key, kPanel] columns of the state
    float* g;      ///< [kDeltaChunk] decay from the start of the sub-chunk to the end of row i
    float* rest;   ///< [kDeltaChunk] decay from the end of row i to the end of the sub-chunk
};

/// Fills a, p, g, rest and scales kt for the rows from .. from + n - 1 of a chunk.
inline void chunk_scores(const ChunkPlan& plan, const DeltaRow* rows, uint32_t from, uint32_t n, uint32_t d_key) {
    float between[kTileRows][kSubChunk] = {};  // D_ij: decay from the end of row j to the end of row i; 0 for j > i
    float run[kSubChunk] = {};
    for (uint32_t i0 = 0; i0 < n; i0 += kTileRows) {
        const float* x[2 * kTileRows];
        for (uint32_t r = 0; r < kTileRows; ++r) {
            const uint32_t i = i0 + r < n ? i0 + r : n - 1;
            x[r] = rows[from + i].k;
            x[kTileRows + r] = rows[from + i].q;
            if (i0 + r >= n) continue;
            const float decay = rows[from + i].decay;
            for (uint32_t j = 0; j < i; ++j) run[j] *= decay;
            run[i] = 1.0f;
            std::memcpy(between[r], run, sizeof run);
            plan.g[from + i] = i ? plan.g[from + i - 1] * decay : decay;
        }
        for (uint32_t c = 0; c < i0 + kTileRows; c += kScore * W) {
            V acc[2 * kTileRows * kScore];
            AUSPEX_LOOPS_UNROLL
            for (uint32_t r = 0; r < 2 * kTileRows * kScore; ++r) acc[r] = zero();
            product<2 * kTileRows, kScore>(acc, x, plan.kt + from + c, kDeltaChunk, d_key);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t r = 0; r < kTileRows; ++r) {
                if (i0 + r >= n) continue;
                const size_t at = size_t{from + i0 + r} * kSubChunk + c;
                const V minus_beta = splat(-rows[from + i0 + r].beta);
                AUSPEX_LOOPS_UNROLL
                for (uint32_t v = 0; v < kScore; ++v) {
                    const V d = load(between[r] + c + v * W);
                    store(plan.a + at + v * W, mul(mul(minus_beta, acc[r * kScore + v]), d));
                    store(plan.p + at + v * W, mul(acc[(kTileRows + r) * kScore + v], d));
                }
            }
        }
    }
    for (uint32_t j = 0; j < kSubChunk; ++j) plan.rest[from + j] = j < n ? run[j] : 0.0f;
    for (uint32_t x = 0; x < d_key; ++x)
        for (uint32_t j = 0; j < kSubChunk; j += W) {
            float* k = plan.kt + size_t{x} * kDeltaChunk + from + j;
            store(k, mul(load(k), load(plan.rest + from + j)));
        }
}

/// One sub-chunk on one panel of columns: the rows' terms w and outputs o, then the state.
inline void chunk_panel(const ChunkPlan& plan, const DeltaRow* rows, uint32_t from, uint32_t n, uint32_t d_key, uint32_t j0, uint32_t n_col) {
    constexpr uint32_t n_acc = kTileRows * kTile;
    V acc[n_acc];
    const float* a[kTileRows];
    for (uint32_t i0 = 0; i0 < n; i0 += kTileRows) {
        const uint32_t m = n - i0 < kTileRows ? n - i0 : kTileRows;
        // W = beta (v - g k'S) - A W, from the top; the tile's own rows at the end, one after the other.
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < n_acc; ++r) acc[r] = zero();
        for (uint32_t r = 0; r < kTileRows; ++r) a[r] = rows[from + (i0 + r < n ? i0 + r : n - 1)].k;
        product<kTileRows, kTile>(acc, a, plan.s, kPanel, d_key);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            const uint32_t i = from + (i0 + r < n ? i0 + r : n - 1);
            const V beta = splat(rows[i].beta), g = splat(plan.g[i]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v) {
                const V value = v * W < n_col ? part_load(rows[i].v + j0 + v * W, n_col - v * W) : zero();
                acc[r * kTile + v] = mul(beta, fnma(g, acc[r * kTile + v], value));
            }
            a[r] = plan.a + size_t{i} * kSubChunk;
        }
        product<kTileRows, kTile>(acc, a, plan.w, kPanel, i0);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 1; r < kTileRows; ++r) {
            AUSPEX_LOOPS_UNROLL
            for (uint32_t y = 0; y < r; ++y) {
                const V f = splat(a[r][i0 + y]);
                AUSPEX_LOOPS_UNROLL
                for (uint32_t v = 0; v < kTile; ++v) acc[r * kTile + v] = fma(f, acc[y * kTile + v], acc[r * kTile + v]);
            }
        }
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v)
                if (r < m) store(plan.w + size_t{i0 + r} * kPanel + v * W, acc[r * kTile + v]);
        }
        // o = g q'S + P W
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < n_acc; ++r) acc[r] = zero();
        for (uint32_t r = 0; r < kTileRows; ++r) a[r] = rows[from + (i0 + r < n ? i0 + r : n - 1)].q;
        product<kTileRows, kTile>(acc, a, plan.s, kPanel, d_key);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            const uint32_t i = from + (i0 + r < n ? i0 + r : n - 1);
            const V g = splat(plan.g[i]);
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v) acc[r * kTile + v] = mul(g, acc[r * kTile + v]);
            a[r] = plan.p + size_t{i} * kSubChunk;
        }
        product<kTileRows, kTile>(acc, a, plan.w, kPanel, i0 + m);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            if (r >= m) continue;
            float* o = rows[from + i0 + r].o + j0;
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v)
                if (v * W < n_col) part_store(o + v * W, acc[r * kTile + v], n_col - v * W);
        }
    }
    // S = g S + K'W, the keys already decayed to the end of the sub-chunk
    const V g = splat(plan.g[from + n - 1]);
    for (uint32_t x0 = 0; x0 < d_key; x0 += kTileRows) {
        const uint32_t m = d_key - x0 < kTileRows ? d_key - x0 : kTileRows;
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            const size_t x = r < m ? x0 + r : d_key - 1;
            a[r] = plan.kt + x * kDeltaChunk + from;
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v) acc[r * kTile + v] = mul(g, load(plan.s + x * kPanel + v * W));
        }
        product<kTileRows, kTile>(acc, a, plan.w, kPanel, n);
        AUSPEX_LOOPS_UNROLL
        for (uint32_t r = 0; r < kTileRows; ++r) {
            AUSPEX_LOOPS_UNROLL
            for (uint32_t v = 0; v < kTile; ++v)
                if (r < m) store(plan.s + size_t{x0 + r} * kPanel + v * W, acc[r * kTile + v]);
        }
    }
}

// The chunked form of Yang, Kautz, Hatamizadeh (arXiv 2412.06464), section 3, with decays kept as products
// (at most 1, so nothing overflows). Its work per row is 3 d_key d_val multiply-adds plus what grows with
// the rows solved together, so the chunk is cut into sub-chunks; the state stays in the first-level cache,
// one panel of columns at a time, for all of them.
inline void delta_chunk(float* s, uint32_t d_key, uint32_t d_val, const DeltaRow* rows, uint32_t n, float* scratch) {
    if (n == 0) return;
    ChunkPlan plan;
    plan.kt = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t{63});
    plan.s = plan.kt + size_t{d_key} * kDeltaChunk;
    plan.a = plan.s + size_t{d_key} * kPanel;
    plan.p = plan.a + size_t{kDeltaChunk} * kSubChunk;
    plan.w = plan.p + size_t{kDeltaChunk} * kSubChunk;
    plan.g = plan.w + size_t{kSubChunk} * kPanel;
    plan.rest = plan.g + kDeltaChunk;
    const uint32_t n_pad = ceil_div(n, kSubChunk) * kSubChunk;
    for (uint32_t x = 0; x < d_key; ++x) {
        float* k = plan.kt + size_t{x} * kDeltaChunk;
        for (uint32_t i = 0; i < n; ++i) k[i] = rows[i].k[x];
        for (uint32_t i = n; i < n_pad; ++i) k[i] = 0.0f;
    }
    for (uint32_t from = 0; from < n; from += kSubChunk)
        chunk_scores(plan, rows, from, n - from < kSubChunk ? n - from : kSubChunk, d_key);
    for (uint32_t j = 0; j < d_val; j += kPanel) {
        const uint32_t n_col = d_val - j < kPanel ? d_val - j : kPanel;
        for (uint32_t x = 0; x < d_key; ++x)
            for (uint32_t v = 0; v < kTile; ++v)
                store(plan.s + size_t{x} * kPanel + v * W, v * W < n_col ? part_load(s + size_t{x} * d_val + j + v * W, n_col - v * W) : zero());
        for (uint32_t from = 0; from < n; from += kSubChunk)
            chunk_panel(plan, rows, from, n - from < kSubChunk ? n - from : kSubChunk, d_key, j, n_col);
        for (uint32_t x = 0; x < d_key; ++x)
            for (uint32_t v = 0; v * W < n_col; ++v)
                part_store(s + size_t{x} * d_val + j + v * W, load(plan.s + size_t{x} * kPanel + v * W), n_col - v * W);
    }
}

#undef AUSPEX_LOOPS_INLINE
#undef AUSPEX_LOOPS_UNROLL

}  // namespace loops_neon
}  // namespace detail
}  // namespace auspex
#endif

namespace auspex {
namespace detail {

const Loops* neon_loops() {
#if AUSPEX_HAS_NEON
    namespace r = loops_neon;
    static constexpr Loops loops = {"neon",    r::rms_norm, r::swiglu, r::silu_gate,  r::sigmoid_gate, r::conv_silu,
                                    r::to_f16, r::attend,   r::merge,  r::delta_rows, r::delta_chunk,  r::attend_many};
    return &loops;
#else
    return nullptr;
#endif
}

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------ src/machine/cpu/lane.cpp

namespace auspex {
namespace detail {
namespace lane_impl {

constexpr uint32_t kAlign = 64;

}  // namespace lane_impl

Result<std::unique_ptr<Lane>> CpuProgram::open(const LaneOptions& options) { return CpuLane::open(shared_from_this(), options); }

template <class T>
T* CpuLane::place(uint64_t n) {
    T* at = cursor_ ? reinterpret_cast<T*>(cursor_ + n_placed_) : nullptr;
    n_placed_ += round_up(n * sizeof(T), lane_impl::kAlign);
    return at;
}

// Runs twice: once to count, once to hand out.
void CpuLane::lay_out(const LaneOptions& options) {
    const Plan& plan = *program_->plan;
    const uint32_t n_thread = program_->pool->n_thread();
    n_placed_ = 0;
    rows_.assign(plan.slots.size(), nullptr);
    kv_.assign(plan.slots.size(), KvCache());
    delta_.assign(plan.slots.size(), DeltaState());
    conv_.assign(plan.slots.size(), nullptr);
    rotations_.clear();

    const uint64_t n_position = round_up(options.n_context, kAttnChunk);
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Slot& s = plan.slot(id);
        switch (s.role) {
            case SlotRole::weight: break;
            case SlotRole::activation:
            case SlotRole::kept: {
                const bool logits = id == plan.trunk.logits || std::any_of(plan.mtp.begin(), plan.mtp.end(), [&](const Tape& t) { return t.logits == id; });
                rows_[id] = place<float>((logits ? kMaxTentative : n_row_max_) * s.width());
                break;
            }
            case SlotRole::kv:
                kv_[id].width = static_cast<uint32_t>(s.width());
                kv_[id].k = place<uint16_t>(n_position * s.width());
                kv_[id].v = place<uint16_t>(n_position * s.width());
                break;
            case SlotRole::conv: conv_[id] = place<float>(kConvRing * s.width()); break;
            case SlotRole::delta: delta_[id].s = place<float>(s.shape[0] * s.shape[1] * s.shape[2]); break;
        }
    }
    uint64_t conv_dim = 0, d_in = 0, n_head = 0, group = 0, d_head = 0, delta_floats = 0;
    auto look = [&](const Tape& tape) {
        for (const Op& op : tape.ops) {
            if (op.kind == OpKind::matmul) d_in = std::max(d_in, plan.slot(op.in[0]).width());
            if (op.kind == OpKind::attend) {
                n_head = std::max<uint64_t>(n_head, op.attn.n_head);
                group = std::max<uint64_t>(group, op.attn.n_head / op.attn.n_head_kv);
                d_head = std::max<uint64_t>(d_head, op.attn.d_head);
                const bool known = std::any_of(rotations_.begin(), rotations_.end(), [&](const Rotation& r) { return r.n_rot == op.attn.n_rot && r.base == op.attn.rope_base; });
                if (!known) rotations_.push_back({op.attn.n_rot, op.attn.rope_base, place<float>(uint64_t{n_row_max_} * op.attn.n_rot)});
            }
            if (op.kind == OpKind::delta) {
                const DeltaDims& d = op.delta;
                conv_dim = std::max<uint64_t>(conv_dim, d.conv_dim());
                delta_floats = std::max<uint64_t>(delta_floats, std::max<uint64_t>(delta_chunk_scratch(d.d_key, d.d_val),
                                                                                   uint64_t{d.d_key} * d.d_val + uint64_t{kDeltaSequential} * d.d_val));
                for (DeltaState::Terms& t : delta_[op.state].terms) {
                    t.decay = place<float>(uint64_t{kMaxTentative} * d.n_head_v);
                    t.k = place<float>(uint64_t{kMaxTentative} * d.n_head_k * d.d_key);
                    t.u = place<float>(uint64_t{kMaxTentative} * d.n_head_v * d.d_val);
                }
            }
        }
    };
    look(plan.trunk);
    for (const Tape& t : plan.mtp) look(t);
    conv_out_ = place<float>(uint64_t{n_row_max_} * conv_dim);
    n_chunk_max_ = static_cast<uint32_t>(n_position / kAttnChunk);
    part_stride_ = round_up(d_head + 2, 16);
    attn_part_ = place<float>(uint64_t{kMaxTentative} * n_head * n_chunk_max_ * part_stride_);
    thread_stride_ = std::max<uint64_t>(round_up(delta_floats, 16), uint64_t{kAttnQueries} * kAttnChunk + 2 * kAttnRows * group * part_stride_);
    thread_scratch_ = place<float>(n_thread * thread_stride_);
    quantised_ = d_in % 32 == 0 ? place<std::byte>(quantised_bytes(n_row_max_, static_cast<uint32_t>(d_in))) : nullptr;
    delta_rows_ = place<DeltaRow>(uint64_t{n_thread} * kDeltaChunk);
}

Result<std::unique_ptr<Lane>> CpuLane::open(std::shared_ptr<CpuProgram> program, const LaneOptions& options) {
    std::unique_ptr<CpuLane> lane(new CpuLane(std::move(program)));
    lane->options_ = options;
    lane->n_row_max_ = std::max(options.n_ubatch, kMaxTentative);
    lane->lay_out(options);
    AUSPEX_TRY(lane->memory_.take(lane->program_->allocator, lane->n_placed_, "a session's caches and scratch"));
    lane->cursor_ = lane->memory_.data();
    lane->lay_out(options);
    return std::unique_ptr<Lane>(std::move(lane));
}

void CpuLane::reset() {
    const Plan& plan = *program_->plan;
    n_pending_ = 0;
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Slot& s = plan.slot(id);
        if (s.role == SlotRole::delta) std::fill_n(delta_[id].s, s.shape[0] * s.shape[1] * s.shape[2], 0.0f);
        if (s.role == SlotRole::conv) std::fill_n(conv_[id], kConvRing * s.width(), 0.0f);
    }
}

Status CpuLane::run(const Step& step) {
    const uint32_t limit = step.tentative ? kMaxTentative : n_row_max_;
    if (step.n_row == 0 || step.n_row > limit || step.n_logit > step.n_row || step.n_logit > kMaxTentative)
        return fail(Code::bad_argument, "a step of ", step.n_row, " rows with ", step.n_logit, " logits, expected 1..", limit, " and at most ", kMaxTentative);
    if (step.position > options_.n_context || options_.n_context - step.position < step.n_row)
        return fail(Code::context_full, "rows ", step.position, "..", uint64_t{step.position} + step.n_row - 1, " do not fit a context of ", options_.n_context);
    step_ = step;
    row0_ = 0;
    head_only_ = false;
    const bool trunk = step.tape == &program_->plan->trunk;
    if (trunk) parity_ ^= 1;
    program_->pool->run(walk_entry, this);
    if (trunk) n_pending_ = 0;  // folded in by this step; its own rows wait for commit()
    return {};
}

Status CpuLane::head(const Tape& tape, uint32_t first, uint32_t n) {
    if (n == 0 || n > kMaxTentative || first + n > n_row_max_) return fail(Code::bad_argument, "logits of rows ", first, "..", first + n, " were asked for");
    step_.tape = &tape;
    step_.n_row = n;
    step_.n_logit = n;
    row0_ = first;
    head_only_ = true;
    program_->pool->run(walk_entry, this);
    return {};
}

Result<Span<const float>> CpuLane::read_row(SlotId slot, uint32_t i) {
    return Span<const float>(row(slot, i), static_cast<size_t>(program_->plan->slot(slot).width()));
}

void CpuLane::fold_pending() {
    if (n_pending_ == 0) return;
    for (const Op& op : program_->plan->trunk.ops) {
        if (op.kind != OpKind::delta) continue;
        const DeltaDims& d = op.delta;
        const DeltaState& state = delta_[op.state];
        const DeltaState::Terms& t = state.terms[parity_];
        for (uint32_t h = 0; h < d.n_head_v; ++h) {
            const uint32_t hk = d.grouped ? h / (d.n_head_v / d.n_head_k) : h % d.n_head_k;
            DeltaTerm terms[kMaxTentative];
            for (uint32_t i = 0; i < n_pending_; ++i)
                terms[i] = {t.decay[i * d.n_head_v + h], t.k + (size_t{i} * d.n_head_k + hk) * d.d_key, t.u + (size_t{i} * d.n_head_v + h) * d.d_val};
            program_->loops->delta_rows(state.s + size_t{h} * d.d_key * d.d_val, d.d_key, d.d_val, terms, n_pending_, nullptr, 0, false, thread_scratch_);
        }
    }
    n_pending_ = 0;
}

namespace lane_impl {

/// Visits everything that makes up a timeline of n_token tokens, as (pointer, bytes), in plan order.
template <class F>
void each_part(const Plan& plan, const std::vector<KvCache>& kv, const std::vector<DeltaState>& delta, const std::vector<float*>& conv, uint32_t n_token, F visit) {
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Slot& s = plan.slot(id);
        if (s.role == SlotRole::kv) {
            visit(kv[id].k, uint64_t{n_token} * kv[id].width * sizeof(uint16_t));
            visit(kv[id].v, uint64_t{n_token} * kv[id].width * sizeof(uint16_t));
        }
        if (s.role == SlotRole::delta) visit(delta[id].s, s.shape[0] * s.shape[1] * s.shape[2] * sizeof(float));
        if (s.role == SlotRole::conv) visit(conv[id], kConvRing * s.width() * sizeof(float));
    }
}

}  // namespace lane_impl

Status CpuLane::save(uint32_t n_token, std::vector<std::byte>* to) {
    fold_pending();
    lane_impl::each_part(*program_->plan, kv_, delta_, conv_, n_token, [&](const void* p, uint64_t n) {
        const std::byte* b = static_cast<const std::byte*>(p);
        to->insert(to->end(), b, b + n);
    });
    return {};
}

Status CpuLane::restore(uint32_t n_token, Span<const std::byte> from) {
    uint64_t need = 0;
    auto count = [&](const void*, uint64_t n) { need += n; };
    lane_impl::each_part(*program_->plan, kv_, delta_, conv_, n_token, count);
    if (need != from.size()) return fail(Code::bad_argument, "a snapshot of ", n_token, " tokens has ", from.size(), " bytes, expected ", need, "; it belongs to another model or version");
    n_pending_ = 0;
    const std::byte* at = from.data();
    lane_impl::each_part(*program_->plan, kv_, delta_, conv_, n_token, [&](void* p, uint64_t n) {
        if (n) std::memcpy(p, at, n);
        at += n;
    });
    return {};
}

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------ src/machine/cpu/walk.cpp

// machine/cpu/walk: the tape, op by op, on every thread. Formulas stand at the inner loops (ops.h);
// here is who does which part, and where the threads meet.


namespace auspex {
namespace detail {
namespace walk_impl {

inline bool holds(const SlotId* list, uint32_t n, SlotId id) {
    for (uint32_t i = 0; i < n; ++i)
        if (list[i] == id) return true;
    return false;
}

}  // namespace walk_impl

void CpuLane::walk_entry(void* lane, uint32_t i_thread, uint32_t n_thread) {
    Walk walk{*static_cast<CpuLane*>(lane), i_thread, n_thread, 0, kNoSlot, {}, {}, 0, 0};
    walk.tape();
}

void CpuLane::Walk::barrier() {
    lane.program_->pool->barrier(i_thread);
    n_written = n_read = n_ticket = 0;
}

Share CpuLane::Walk::even() const { return {i_thread, n_thread, nullptr}; }

Share CpuLane::Walk::shared() {
    if (n_ticket == Pool::kTicket) barrier();
    return lane.program_->pool->shared(i_thread, n_ticket++);
}

/// Meets the other threads if this op would read what one of them may still be writing, or write
/// what one may still be reading.
void CpuLane::Walk::settle(const Op& op) {
    bool clash = n_written + 2 > kMaxTouched || n_read + 4 > kMaxTouched;
    for (SlotId id : op.in) clash = clash || (id != kNoSlot && walk_impl::holds(written, n_written, id));
    clash = clash || walk_impl::holds(written, n_written, op.out) || walk_impl::holds(read, n_read, op.out);
    clash = clash || (op.state != kNoSlot && walk_impl::holds(written, n_written, op.state));
    if (clash) barrier();
}

void CpuLane::Walk::touch(const Op& op) {
    for (SlotId id : op.in)
        if (id != kNoSlot) read[n_read++] = id;
    const SlotId out = op.kind == OpKind::kv_write ? op.state : op.out;
    written[n_written++] = out;
    if (out == quantised) quantised = kNoSlot;
}

void CpuLane::Walk::tape() {
    const Step& step = lane.step_;
    if (!lane.head_only_) {
        for (const Rotation& r : lane.rotations_)
            for (uint32_t i = i_thread; i < step.n_row; i += n_thread) rotation_table(uint64_t{step.position} + i, r.n_rot, r.base, r.table + size_t{i} * r.n_rot);
        barrier();
    }
    const size_t n = step.fill_only ? step.tape->n_fill : step.tape->ops.size();
    for (size_t i = 0; i < n; ++i) {
        const Op& op = step.tape->ops[i];
        if (op.head ? step.n_logit == 0 : lane.head_only_) continue;
        run(op);
    }
}

void CpuLane::Walk::run(const Op& op) {
    settle(op);
    switch (op.kind) {
        case OpKind::embed: embed(op); break;
        case OpKind::hidden: hidden(op); break;
        case OpKind::rms_norm: norm(op); break;
        case OpKind::matmul: matmul_op(op); break;
        case OpKind::swiglu: swiglu(op); break;
        case OpKind::delta: delta(op); break;
        case OpKind::kv_write: kv_write(op); break;
        case OpKind::attend: attend(op); break;
        case OpKind::moe: break;  // load() refused the plan
    }
    touch(op);
}

void CpuLane::Walk::embed(const Op& op) {
    const Matrix& table = lane.program_->matrices[op.w[0]].view();
    for (uint32_t i = i_thread; i < lane.step_.n_row; i += n_thread) unpack_row(table, static_cast<uint32_t>(lane.step_.ids[i]), lane.row(op.out, i));
}

void CpuLane::Walk::hidden(const Op& op) {
    const uint32_t d = lane.program_->plan->d_model;
    for (uint32_t i = i_thread; i < lane.step_.n_row; i += n_thread) {
        const float* from = lane.step_.hidden ? lane.step_.hidden + size_t{i} * d : lane.row(lane.program_->plan->trunk.hidden, lane.step_.hidden_from + i);
        std::memcpy(lane.row(op.out, i), from, d * sizeof(float));
    }
}

void CpuLane::Walk::norm(const Op& op) {
    const float* w = lane.program_->vectors[op.w[0]];
    const uint32_t d = static_cast<uint32_t>(lane.program_->plan->slot(op.in[0]).width());
    for (uint32_t i = i_thread; i < lane.step_.n_row; i += n_thread)
        lane.program_->loops->rms_norm(lane.row(op.in[0], i), w, lane.row(op.out, i) + op.out_offset, d, op.eps);
}

void CpuLane::Walk::matmul_op(const Op& op) {
    const Plan& plan = *lane.program_->plan;
    const Matrix& w = lane.program_->matrices[op.w[0]].view();
    const uint32_t n_row = op.head ? lane.step_.n_logit : lane.step_.n_row;
    const uint32_t first = op.head ? lane.row0_ + lane.step_.n_row - n_row : 0;
    Rows in;
    in.x = lane.row(op.in[0], first);
    in.ld = static_cast<size_t>(plan.slot(op.in[0]).width());
    if (w.wants_integers()) {
        if (quantised != op.in[0] || op.head) {
            // Others may still be multiplying with what the buffer holds.
            if (n_read != 0) barrier();
            quantise_rows(w.path, in.x, in.ld, n_row, w.d_in, lane.quantised_, even());
            barrier();
            quantised = op.in[0];
        }
        in.quantised = lane.quantised_;
    }
    matmul(w, in, n_row, lane.row(op.out, 0), static_cast<size_t>(plan.slot(op.out).width()), op.accumulate, shared());
}

void CpuLane::Walk::swiglu(const Op& op) {
    const uint32_t d = static_cast<uint32_t>(lane.program_->plan->slot(op.out).width());
    constexpr uint32_t kPart = 256;
    const uint64_t n_part = ceil_div(d, kPart);
    uint64_t from, to;
    even_part(n_part * lane.step_.n_row, even(), &from, &to);
    for (uint64_t i = from; i < to; ++i) {
        const uint32_t r = static_cast<uint32_t>(i / n_part), c = static_cast<uint32_t>(i % n_part) * kPart;
        lane.program_->loops->swiglu(lane.row(op.in[0], r) + c, lane.row(op.in[1], r) + c, lane.row(op.out, r) + c, d - c < kPart ? d - c : kPart, op.limit);
    }
}

void CpuLane::Walk::delta(const Op& op) {
    const DeltaDims& d = op.delta;
    const Step& step = lane.step_;
    const Loops& loops = *lane.program_->loops;
    const DeltaState& state = lane.delta_[op.state];
    const DeltaState::Terms &mine = state.terms[lane.parity_], &last = state.terms[lane.parity_ ^ 1];
    float* ring = lane.conv_[op.state2];
    const uint32_t conv_dim = d.conv_dim(), key_dim = d.n_head_k * d.d_key;
    const float *conv_w = lane.program_->vectors[op.w[0]], *dt = lane.program_->vectors[op.w[1]], *a = lane.program_->vectors[op.w[2]], *norm = lane.program_->vectors[op.w[3]];

    // Convolution and normalisation, by (row, head): query heads, key heads, value heads.
    const uint32_t n_unit = 2 * d.n_head_k + d.n_head_v;
    for (uint64_t i = i_thread; i < uint64_t{step.n_row} * n_unit; i += n_thread) {
        const uint32_t r = static_cast<uint32_t>(i / n_unit), h = static_cast<uint32_t>(i % n_unit);
        const uint32_t n = h < 2 * d.n_head_k ? d.d_key : d.d_val;
        const uint32_t c = h < 2 * d.n_head_k ? h * d.d_key : 2 * key_dim + (h - 2 * d.n_head_k) * d.d_val;
        const float* taps[8];
        for (uint32_t j = 0; j < d.n_conv; ++j) {
            const int64_t back = int64_t{r} - (d.n_conv - 1) + j;  // row of this step, or before it
            const uint64_t position = uint64_t{step.position} + kConvRing + static_cast<uint64_t>(back);
            taps[j] = (back >= 0 ? lane.row(op.in[0], static_cast<uint32_t>(back)) : ring + size_t{position % kConvRing} * conv_dim) + c;
        }
        float* y = lane.conv_out_ + size_t{r} * conv_dim + c;
        loops.conv_silu(taps, conv_w + size_t{c} * d.n_conv, y, n, d.n_conv);
        if (h < d.n_head_k) l2_normalise(y, n, 1.0f / std::sqrt(static_cast<float>(d.d_key)));
        else if (h < 2 * d.n_head_k) {
            l2_normalise(y, n, 1.0f);
            if (step.tentative) std::memcpy(mine.k + (size_t{r} * d.n_head_k + h - d.n_head_k) * d.d_key, y, n * sizeof(float));
        }
    }
    barrier();

    // The raw inputs by position; every row that a later step can look back to.
    const uint32_t keep = step.n_row < kConvRing ? step.n_row : kConvRing;
    for (uint32_t i = i_thread; i < keep; i += n_thread) {
        const uint32_t r = step.n_row - keep + i;
        std::memcpy(ring + size_t{(step.position + r) % kConvRing} * conv_dim, lane.row(op.in[0], r), conv_dim * sizeof(float));
    }

    // The recurrence, by value head.
    float* scratch = lane.thread_scratch_ + i_thread * lane.thread_stride_;
    DeltaRow* rows = lane.delta_rows_ + size_t{i_thread} * kDeltaChunk;
    const uint32_t piece = step.tentative || step.n_row <= kDeltaSequential ? kDeltaSequential : kDeltaChunk;
    for (uint32_t h = i_thread; h < d.n_head_v; h += n_thread) {
        const uint32_t hk = d.grouped ? h / (d.n_head_v / d.n_head_k) : h % d.n_head_k;
        float* s = state.s + size_t{h} * d.d_key * d.d_val;
        DeltaTerm terms[kMaxTentative];
        uint32_t n_term = lane.n_pending_;
        for (uint32_t i = 0; i < n_term; ++i)
            terms[i] = {last.decay[i * d.n_head_v + h], last.k + (size_t{i} * d.n_head_k + hk) * d.d_key, last.u + (size_t{i} * d.n_head_v + h) * d.d_val};
        for (uint32_t r0 = 0; r0 < step.n_row; r0 += piece) {
            const uint32_t n = step.n_row - r0 < piece ? step.n_row - r0 : piece;
            float* spare_u = scratch + size_t{d.d_key} * d.d_val;
            for (uint32_t i = 0; i < n; ++i) {
                const uint32_t r = r0 + i;
                const float* y = lane.conv_out_ + size_t{r} * conv_dim;
                const float alpha = lane.row(op.in[3], r)[h] + dt[h];
                const float softplus = alpha > 20.0f ? alpha : std::log1p(std::exp(alpha));
                rows[i].decay = std::exp(a[h] * softplus);
                rows[i].beta = 1.0f / (1.0f + std::exp(-lane.row(op.in[2], r)[h]));
                rows[i].q = y + size_t{hk} * d.d_key;
                rows[i].k = y + key_dim + size_t{hk} * d.d_key;
                rows[i].v = y + 2 * key_dim + size_t{h} * d.d_val;
                rows[i].u = step.tentative ? mine.u + (size_t{r} * d.n_head_v + h) * d.d_val : spare_u + size_t{i % kDeltaSequential} * d.d_val;
                rows[i].o = lane.row(op.out, r) + size_t{h} * d.d_val;
                if (step.tentative) mine.decay[r * d.n_head_v + h] = rows[i].decay;
            }
            if (piece == kDeltaSequential) {
                loops.delta_rows(s, d.d_key, d.d_val, terms, n_term, rows, n, !step.tentative, scratch);
            } else {
                if (n_term) loops.delta_rows(s, d.d_key, d.d_val, terms, n_term, nullptr, 0, true, scratch);
                loops.delta_chunk(s, d.d_key, d.d_val, rows, n, scratch);
            }
            n_term = 0;
            for (uint32_t i = 0; i < n; ++i) {
                loops.rms_norm(rows[i].o, norm, rows[i].o, d.d_val, d.eps);
                loops.silu_gate(rows[i].o, lane.row(op.in[1], r0 + i) + size_t{h} * d.d_val, rows[i].o, d.d_val);
            }
        }
    }
}

const float* CpuLane::rotation(const AttnDims& a, uint32_t i_row) const {
    for (const Rotation& r : rotations_)
        if (r.n_rot == a.n_rot && r.base == a.rope_base) return r.table + size_t{i_row} * r.n_rot;
    return nullptr;
}

void CpuLane::Walk::kv_write(const Op& op) {
    const AttnDims& a = op.attn;
    const Loops& loops = *lane.program_->loops;
    const KvCache& kv = lane.kv_[op.state];
    const float* norm = op.w[0] == kNoSlot ? nullptr : lane.program_->vectors[op.w[0]];
    for (uint64_t i = i_thread; i < uint64_t{lane.step_.n_row} * a.n_head_kv; i += n_thread) {
        const uint32_t r = static_cast<uint32_t>(i / a.n_head_kv), h = static_cast<uint32_t>(i % a.n_head_kv);
        const size_t at = size_t{lane.step_.position + r} * kv.width + size_t{h} * a.d_head;
        float* k = lane.row(op.in[0], r) + size_t{h} * a.d_head;
        if (norm) loops.rms_norm(k, norm, k, a.d_head, a.eps);
        rotate(k, a.n_rot, lane.rotation(a, r));
        loops.to_f16(k, kv.k + at, a.d_head);
        loops.to_f16(lane.row(op.in[1], r) + size_t{h} * a.d_head, kv.v + at, a.d_head);
    }
}

void CpuLane::Walk::attend(const Op& op) {
    const AttnDims& a = op.attn;
    const Step& step = lane.step_;
    const Loops& loops = *lane.program_->loops;
    const KvCache& kv = lane.kv_[op.state];
    const float* norm = op.w[0] == kNoSlot ? nullptr : lane.program_->vectors[op.w[0]];
    const size_t q_stride = a.gate == AttnGate::interleaved ? size_t{2} * a.d_head : a.d_head;
    const uint32_t group = a.n_head / a.n_head_kv;
    float* scratch = lane.thread_scratch_ + i_thread * lane.thread_stride_;

    for (uint64_t i = i_thread; i < uint64_t{step.n_row} * a.n_head; i += n_thread) {
        const uint32_t r = static_cast<uint32_t>(i / a.n_head), h = static_cast<uint32_t>(i % a.n_head);
        float* q = lane.row(op.in[0], r) + h * q_stride;
        if (norm) loops.rms_norm(q, norm, q, a.d_head, a.eps);
        rotate(q, a.n_rot, lane.rotation(a, r));
        for (uint32_t j = 0; j < a.d_head; ++j) q[j] *= a.scale;
    }
    barrier();

    const uint32_t n_chunk = ceil_div(step.position + step.n_row, kAttnChunk);
    const uint32_t chunk0 = a.window != 0 && step.position + 1 > a.window ? (step.position + 1 - a.window) / kAttnChunk : 0;

    // What rows r0 .. r1-1 see of one chunk through the query heads of one key head: a partial for each
    // at part(r, i), i < group; its weight (part[1]) is 0 where a row sees nothing there. Rows that see the
    // whole chunk share the reading of it; the bits are those of one query at a time.
    auto partials = [&](uint32_t r0, uint32_t r1, uint32_t hk, uint32_t chunk, auto part) {
        const float* q[kAttnQueries];
        float *m[kAttnQueries], *l[kAttnQueries], *o[kAttnQueries];
        uint32_t n = 0, from = 0, to = 0;
        auto flush = [&] {
            const size_t at = size_t{from} * kv.width + size_t{hk} * a.d_head;
            if (n != 0) loops.attend_many(n, q, kv.k + at, kv.v + at, to - from, kv.width, a.d_head, scratch, m, l, o);
            n = 0;
        };
        for (uint32_t r = r0; r < r1; ++r) {
            const uint32_t p = step.position + r;
            const uint32_t low = a.window != 0 && p + 1 > a.window ? p + 1 - a.window : 0;
            const uint32_t from_r = chunk * kAttnChunk > low ? chunk * kAttnChunk : low;
            const uint32_t to_r = (chunk + 1) * kAttnChunk < p + 1 ? (chunk + 1) * kAttnChunk : p + 1;
            if (from_r != from || to_r != to) flush();
            from = from_r;
            to = to_r;
            for (uint32_t i = 0; i < group; ++i) {
                float* at = part(r, i);
                at[1] = 0;
                if (from >= to) continue;
                if (n == kAttnQueries) flush();
                q[n] = lane.row(op.in[0], r) + (size_t{hk} * group + i) * q_stride;
                m[n] = at;
                l[n] = at + 1;
                o[n] = at + 2;
                ++n;
            }
        }
        flush();
    };
    // Merges a partial into a row's sums, in chunk order. A sum of weight 0 is still empty.
    auto merge = [&](float* sum, const float* part) {
        if (part[1] == 0) return;
        if (sum[1] == 0) {
            std::memcpy(sum, part, (a.d_head + 2) * sizeof(float));
            return;
        }
        const float m = sum[0] > part[0] ? sum[0] : part[0];
        const float keep = std::exp(sum[0] - m), take = std::exp(part[0] - m);
        sum[0] = m;
        sum[1] = std::fma(part[1], take, sum[1] * keep);
        loops.merge(sum + 2, keep, part + 2, take, a.d_head);
    };
    auto finish = [&](uint32_t r, uint32_t h, const float* sum) {
        float* o = lane.row(op.out, r) + size_t{h} * a.d_head;
        const float scale = 1.0f / sum[1];
        for (uint32_t j = 0; j < a.d_head; ++j) o[j] = sum[2 + j] * scale;
        if (a.gate == AttnGate::interleaved) {
            loops.sigmoid_gate(o, lane.row(op.in[0], r) + h * q_stride + a.d_head, o, a.d_head);
        } else if (a.gate == AttnGate::per_head) {
            const float g = 1.0f / (1.0f + std::exp(-lane.row(op.in[1], r)[h]));
            for (uint32_t j = 0; j < a.d_head; ++j) o[j] *= g;
        }
    };

    if (step.n_row > kMaxTentative) {
        // Enough rows to keep every thread busy: tiles of rows, chunk after chunk.
        float *parts = scratch + kAttnQueries * kAttnChunk, *sums = parts + kAttnRows * group * lane.part_stride_;
        const uint64_t n_tile = ceil_div(step.n_row, kAttnRows);
        for (uint64_t i = i_thread; i < n_tile * a.n_head_kv; i += n_thread) {
            const uint32_t hk = static_cast<uint32_t>(i % a.n_head_kv), r0 = static_cast<uint32_t>(i / a.n_head_kv) * kAttnRows;
            const uint32_t r1 = r0 + kAttnRows < step.n_row ? r0 + kAttnRows : step.n_row, n = (r1 - r0) * group;
            auto part = [&](uint32_t r, uint32_t g) { return parts + ((r - r0) * group + g) * lane.part_stride_; };
            for (uint32_t k = 0; k < n; ++k) sums[k * lane.part_stride_ + 1] = 0;
            for (uint32_t c = chunk0; c < n_chunk && c * kAttnChunk < step.position + r1; ++c) {
                partials(r0, r1, hk, c, part);
                for (uint32_t k = 0; k < n; ++k) merge(sums + k * lane.part_stride_, parts + k * lane.part_stride_);
            }
            for (uint32_t k = 0; k < n; ++k) finish(r0 + k / group, hk * group + k % group, sums + k * lane.part_stride_);
        }
        return;
    }
    // Few rows: chunks side by side, merged afterwards in the same order.
    auto part = [&](uint32_t r, uint32_t h, uint32_t c) { return lane.attn_part_ + ((size_t{r} * a.n_head + h) * lane.n_chunk_max_ + c) * lane.part_stride_; };
    for (uint64_t i = i_thread; i < uint64_t{a.n_head_kv} * (n_chunk - chunk0); i += n_thread) {
        const uint32_t c = chunk0 + static_cast<uint32_t>(i / a.n_head_kv), hk = static_cast<uint32_t>(i % a.n_head_kv);
        partials(0, step.n_row, hk, c, [&](uint32_t r, uint32_t g) { return part(r, hk * group + g, c); });
    }
    barrier();
    for (uint64_t i = i_thread; i < uint64_t{step.n_row} * a.n_head; i += n_thread) {
        const uint32_t r = static_cast<uint32_t>(i / a.n_head), h = static_cast<uint32_t>(i % a.n_head);
        float* sum = scratch;
        sum[1] = 0;
        for (uint32_t c = chunk0; c < n_chunk; ++c) merge(sum, part(r, h, c));
        finish(r, h, sum);
    }
}

}  // namespace detail
}  // namespace auspex

// ------------------------------------------------------------------------- src/machine/cpu/cpu.cpp

namespace auspex {
namespace detail {

class CpuMachine : public Machine {
  public:
    CpuPath path = CpuPath::reference;
    std::shared_ptr<Pool> pool;
    Allocator allocator;

    Kind kind() const override { return Kind::cpu; }
    std::string name() const override { return say("cpu (", path_name(path), ", ", pool->n_thread(), pool->n_thread() == 1 ? " thread)" : " threads)"); }
    std::string report() const override {
        std::string text = say("kind     cpu\nthreads  ", pool->n_thread(), " of ", n_physical_core(), " physical cores\npath     ", path_name(path), "\n");
        for (CpuPath p : {CpuPath::avx512, CpuPath::avx2, CpuPath::neon, CpuPath::reference})
            append(text, say("  ", path_name(p), has_path(p) ? "  available\n" : "  not on this processor or not in this build\n"));
        return text;
    }
    Result<std::shared_ptr<Program>> load(const Plan& plan, const Weights& weights, const Progress& progress) override;
};

namespace cpu_impl {

enum class Use : uint8_t { none, matrix, vector };

/// How each weight slot is read: through products, or value by value.
std::vector<Use> uses(const Plan& plan) {
    std::vector<Use> use(plan.slots.size(), Use::none);
    auto look = [&](const Tape& tape) {
        for (const Op& op : tape.ops) {
            const bool matrix = op.kind == OpKind::embed || op.kind == OpKind::matmul || op.kind == OpKind::moe;
            for (SlotId id : op.w)
                if (id != kNoSlot) use[id] = matrix ? Use::matrix : Use::vector;
        }
    };
    look(plan.trunk);
    for (const Tape& t : plan.mtp) look(t);
    return use;
}

MatrixShape shape_of(const Slot& s) {
    MatrixShape m;
    m.type = s.type;
    m.d_in = static_cast<uint32_t>(s.shape[s.n_dim - 1]);
    m.d_out = static_cast<uint32_t>(s.shape[s.n_dim - 2]);
    m.n_slice = s.n_dim == 3 ? static_cast<uint32_t>(s.shape[0]) : 1;
    return m;
}

uint64_t n_value(const Slot& s) {
    uint64_t n = 1;
    for (uint32_t i = 0; i < s.n_dim; ++i) n *= s.shape[i];
    return n;
}

}  // namespace cpu_impl

Result<std::shared_ptr<Program>> CpuMachine::load(const Plan& plan, const Weights& weights, const Progress& progress) {
    using namespace cpu_impl;
    auto program = std::make_shared<CpuProgram>();
    program->plan = &plan;
    program->path = path;
    program->loops = &loops_for(path);
    program->pool = pool;
    program->allocator = allocator;
    program->matrices.resize(plan.slots.size());
    program->vectors.resize(plan.slots.size(), nullptr);
    const std::vector<Use> use = uses(plan);

    uint64_t total = 0, done = 0, vector_floats = 0;
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Slot& s = plan.slot(id);
        if (use[id] == Use::none) continue;
        total += row_bytes(s.type, n_value(s));
        if (use[id] == Use::vector && !(s.type == Type::f32 && weights.keep)) vector_floats += round_up(n_value(s), 16);
    }
    AUSPEX_TRY(program->vector_bytes.take(allocator, vector_floats * sizeof(float), "the model's vectors"));
    float* next = program->vector_bytes.as<float>();
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Slot& s = plan.slot(id);
        const uint64_t n = n_value(s);
        if (use[id] == Use::vector) {
            if (s.type == Type::f32 && weights.keep) {
                program->vectors[id] = reinterpret_cast<const float*>(weights.data[id]);
            } else {
                decode_row(s.type, weights.data[id], next, static_cast<size_t>(n));
                program->vectors[id] = next;
                next += round_up(n, 16);
            }
        } else if (use[id] == Use::matrix) {
            if (progress && !progress("loading weights", total ? static_cast<float>(static_cast<double>(done) / static_cast<double>(total)) : 0))
                return fail(Code::cancelled, "loading was cancelled by the progress callback");
            Status st = pack_matrix(path, shape_of(s), weights.data[id], weights.keep, allocator, pool.get(), &program->matrices[id]);
            if (!st.ok()) return fail(st.code, "tensor '", s.name, "': ", st.text);
        }
        if (use[id] != Use::none) done += row_bytes(s.type, n);
        if (use[id] == Use::matrix) program->n_weight_bytes += program->matrices[id].owned_bytes() ? program->matrices[id].owned_bytes() : row_bytes(s.type, n);
        if (use[id] == Use::vector) program->n_weight_bytes += n * sizeof(float);
    }
    if (progress) progress("loading weights", 1.0f);
    return std::shared_ptr<Program>(std::move(program));
}

Result<std::shared_ptr<Machine>> open_cpu(const CpuOptions& options) {
    auto machine = std::make_shared<CpuMachine>();
    machine->allocator = options.allocator;
    AUSPEX_TRY(choose_path(options.path, &machine->path));
    if (options.n_thread < 0) return fail(Code::bad_argument, "n_thread is ", options.n_thread, ", expected 0 (one per core) or more");
    const uint32_t n = options.n_thread == 0 ? n_physical_core() : static_cast<uint32_t>(options.n_thread);
    Result<std::unique_ptr<Pool>> pool = Pool::open(n < Pool::kMaxThread ? n : options.n_thread == 0 ? Pool::kMaxThread : n);
    if (!pool.ok()) return pool.status();
    machine->pool = std::move(pool.value());
    return std::shared_ptr<Machine>(std::move(machine));
}

}  // namespace detail
}  // namespace auspex

// ---------------------------------------------------------------------------- src/engine/model.cpp

#include <map>


namespace auspex {
namespace model_impl {

using namespace detail;

std::string text_of(const Gguf& file, const char* key) {
    Result<std::string> r = file.get_string(key, "");
    return r.ok() ? r.value() : std::string();
}

void fill_info(Model::Impl& m) {
    ModelInfo& i = m.info;
    const Plan& plan = m.plan;
    i.architecture = plan.architecture;
    i.name = text_of(m.gguf, "general.name");
    i.n_layer = plan.n_layer;
    for (const Op& op : plan.trunk.ops) i.n_attention += op.kind == OpKind::attend;
    i.n_mtp = static_cast<uint32_t>(plan.mtp.size());
    i.d_model = plan.d_model;
    i.n_vocab = plan.n_vocab;
    i.n_context = plan.n_context;
    for (const Slot& s : plan.slots) {
        if (s.role != SlotRole::weight) continue;
        uint64_t n = 1;
        for (uint32_t d = 0; d < s.n_dim; ++d) n *= s.shape[d];
        i.n_parameter += n;
    }
    i.file_bytes = m.gguf.file_bytes();
    i.weight_bytes = m.program->weight_bytes();
    i.chat_style = recognise_template(text_of(m.gguf, "tokenizer.chat_template"), &i.chat_note);
}

/// Everything after the bytes are there. `keep`: they stay.
Result<std::shared_ptr<Model::Impl>> build(std::shared_ptr<Model::Impl> m, const LoadOptions& options) {
    PlanOptions plan_options;
    plan_options.mtp = options.mtp;
    AUSPEX_TRY(make_plan(m->gguf, plan_options).get(m->plan));
    AUSPEX_TRY(Tokenizer::load(m->gguf).get(m->tokenizer));
    if (m->tokenizer.n_vocab() > m->plan.n_vocab)
        return fail(Code::bad_file, "the tokenizer has ", m->tokenizer.n_vocab(), " tokens but 'token_embd.weight' only ", m->plan.n_vocab, " rows; convert the model again");
    Weights weights;
    AUSPEX_TRY(find_weights(m->plan, m->gguf).get(weights));
    weights.keep = true;
    AUSPEX_TRY(m->device->machine->load(m->plan, weights, options.progress).get(m->program));
    fill_info(*m);
    const Logger& log = m->device->options.log;
    if (log && !m->info.chat_note.empty()) log(LogLevel::warning, m->info.chat_note);
    return m;
}

/// Opens the shards that `first` belongs to.
Status read_shards(const char* path, Gguf first, Model::Impl& m) {
    uint32_t n = 1, no = 0;
    AUSPEX_TRY(first.get_u32("split.count", 1u).get(n));
    if (n <= 1) {
        std::vector<Gguf> one;
        one.push_back(std::move(first));
        return Gguf::join(std::move(one)).get(m.gguf);
    }
    AUSPEX_TRY(first.get_u32("split.no", 0u).get(no));
    if (no != 0) return fail(Code::bad_argument, "'", path, "' is shard ", no + 1, " of ", n, "; pass the first shard");
    std::vector<std::string> paths;
    AUSPEX_TRY(shard_paths(path, no, n).get(paths));
    std::vector<Gguf> shards;
    shards.push_back(std::move(first));
    for (uint32_t i = 1; i < n; ++i) {
        File file;
        AUSPEX_TRY(File::open(paths[i].c_str()).get(file));
        Gguf shard;
        Status s = Gguf::parse(file.bytes()).get(shard);
        if (!s.ok()) return fail(s.code, "'", paths[i], "': ", s.text);
        shards.push_back(std::move(shard));
        m.files.push_back(std::move(file));
    }
    return Gguf::join(std::move(shards)).get(m.gguf);
}

}  // namespace model_impl

Result<Device> Device::open(const DeviceOptions& options) {
    auto impl = std::make_shared<Impl>();
    impl->options = options;
    if (options.kind == Kind::vulkan) return Status(Code::no_device, "this build has no Vulkan machine; open Kind::cpu");
    detail::CpuOptions cpu;
    cpu.path = options.cpu_path;
    cpu.n_thread = options.n_thread;
    cpu.allocator = options.allocator;
    AUSPEX_TRY(detail::open_cpu(cpu).get(impl->machine));
    Device device;
    device.impl_ = std::move(impl);
    return device;
}

std::string Device::name() const { return impl_->machine->name(); }
std::string Device::report() const { return impl_->machine->report(); }
Kind Device::kind() const { return impl_->machine->kind(); }
std::vector<std::byte> Device::pipeline_cache() const { return {}; }

Result<Model> Model::load(const Device& device, const char* path, const LoadOptions& options) {
    if (!device) return Status(Code::bad_argument, "the Device was never opened; call Device::open first");
    auto m = std::make_shared<Impl>();
    m->device = device.impl();
    m->files.emplace_back();
    AUSPEX_TRY(detail::File::open(path).get(m->files[0]));
    detail::Gguf first;
    Status s = detail::Gguf::parse(m->files[0].bytes()).get(first);
    if (s.ok()) s = model_impl::read_shards(path, std::move(first), *m);
    Result<std::shared_ptr<Impl>> built = s.ok() ? model_impl::build(m, options) : Result<std::shared_ptr<Impl>>(s);
    if (!built.ok()) return detail::fail(built.status().code, "'", path, "': ", built.status().text);
    Model model;
    model.impl_ = std::move(m);
    return model;
}

Result<Model> Model::load(const Device& device, Span<const std::byte> file, const LoadOptions& options) {
    if (!device) return Status(Code::bad_argument, "the Device was never opened; call Device::open first");
    auto m = std::make_shared<Impl>();
    m->device = device.impl();
    std::vector<detail::Gguf> one(1);
    AUSPEX_TRY(detail::Gguf::parse(file).get(one[0]));
    AUSPEX_TRY(detail::Gguf::join(std::move(one)).get(m->gguf));
    Result<std::shared_ptr<Impl>> built = model_impl::build(m, options);
    if (!built.ok()) return built.status();
    Model model;
    model.impl_ = std::move(m);
    return model;
}

const ModelInfo& Model::info() const { return impl_->info; }
std::vector<Token> Model::encode(std::string_view text, const EncodeOptions& options) const { return impl_->tokenizer.encode(text, options.special); }
std::vector<Token> Model::encode(const ChatPrompt& prompt) const { return impl_->tokenizer.encode(prompt); }
std::string Model::decode(Span<const Token> ids, const DecodeOptions& options) const { return impl_->tokenizer.decode(ids, options.special); }
bool Model::is_end(Token id) const { return impl_->tokenizer.is_end(id); }
Result<ChatPrompt> Model::render(const ChatRequest& request) const { return render_chat(request, impl_->info.chat_style); }

std::string Model::describe_plan() const {
    using namespace detail;
    const Plan& plan = impl_->plan;
    std::map<std::string, std::pair<uint64_t, uint64_t>> by_type;  // name -> (tensors, bytes)
    for (const Slot& s : plan.slots) {
        if (s.role != SlotRole::weight) continue;
        uint64_t n = 1;
        for (uint32_t d = 0; d < s.n_dim; ++d) n *= s.shape[d];
        auto& entry = by_type[type_info(s.type).name];
        entry.first += 1;
        entry.second += row_bytes(s.type, n);
    }
    std::string text;
    for (const auto& t : by_type) append(text, say(t.first, ": ", t.second.first, " tensors, ", t.second.second, " bytes\n"));
    append(text, "trunk\n" + print_tape(plan, plan.trunk));
    for (size_t i = 0; i < plan.mtp.size(); ++i) append(text, say("mtp ", i, " (fills its cache with the first ", plan.mtp[i].n_fill, " ops)\n") + print_tape(plan, plan.mtp[i]));
    return text;
}

}  // namespace auspex

// --------------------------------------------------------------------------- src/engine/sample.cpp

namespace auspex {
namespace detail {

Philox philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t key) {
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
        const uint32_t n0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0, n2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
        c1 = static_cast<uint32_t>(b);
        c3 = static_cast<uint32_t>(a);
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

namespace sample_impl {

inline float gumbel_of(uint32_t r) {
    // E = -log1p(-v) keeps its resolution where it is small and the noise large.
    const double v = (static_cast<double>(r) + 0.5) / 4294967296.0;
    return static_cast<float>(-std::log(-std::log1p(-v)));
}

/// No noise exceeds -ln(-log1p(-2^-33)) = 22.87: what trails the leader by more cannot win.
constexpr float kGumbelMax = 22.88f;

Status out_of_range(const char* name, double found, const char* expected) {
    return fail(Code::bad_argument, "sampling.", name, " is ", found, ", expected ", expected);
}

}  // namespace sample_impl

float gumbel(uint64_t seed, uint64_t position, uint32_t id) {
    const Philox p = philox(id / 4, static_cast<uint32_t>(position), 0, 0, seed);
    return sample_impl::gumbel_of(p.word[id % 4]);
}

Status check_sampling(const Sampling& s) {
    using sample_impl::out_of_range;
    // Written so that a NaN fails too.
    if (!(s.temperature >= 0 && s.temperature <= 100)) return out_of_range("temperature", double{s.temperature}, "0..100");
    if (!(s.top_k >= 0)) return out_of_range("top_k", s.top_k, "0 (all) or more");
    if (!(s.top_p > 0 && s.top_p <= 1)) return out_of_range("top_p", double{s.top_p}, "above 0, at most 1");
    if (!(s.min_p >= 0 && s.min_p <= 1)) return out_of_range("min_p", double{s.min_p}, "0..1");
    if (!(s.repeat_penalty > 0 && s.repeat_penalty <= 100)) return out_of_range("repeat_penalty", double{s.repeat_penalty}, "above 0, at most 100");
    if (!(std::fabs(s.frequency_penalty) <= 100)) return out_of_range("frequency_penalty", double{s.frequency_penalty}, "-100..100");
    if (!(std::fabs(s.presence_penalty) <= 100)) return out_of_range("presence_penalty", double{s.presence_penalty}, "-100..100");
    if (s.penalty_window > 4096) return out_of_range("penalty_window", s.penalty_window, "0..4096");
    return {};
}

Status Picker::open(const Allocator& from, uint32_t n_vocab) {
    return candidates_.take(from, uint64_t{n_vocab} * sizeof(Candidate), "the sampler's candidates");
}

void Picker::penalise(Candidate* c, const Sampling& s, Span<const Token> before) {
    if (s.repeat_penalty == 1 && s.frequency_penalty == 0 && s.presence_penalty == 0) return;
    const size_t n = std::min<size_t>(before.size(), s.penalty_window);
    const Token* last = before.end() - n;
    // Windows are short: counting by looking back needs no table and no memory.
    for (size_t i = 0; i < n; ++i) {
        if (std::find(last, last + i, last[i]) != last + i) continue;  // counted at its first place
        const auto count = std::count(last + i, last + n, last[i]);
        float& l = c[last[i]].logit;
        l = l > 0 ? l / s.repeat_penalty : l * s.repeat_penalty;
        l -= static_cast<float>(count) * s.frequency_penalty + s.presence_penalty;
    }
}

Token Picker::pick(Span<const float> logits, const Sampling& s, uint64_t position, Span<const Token> before) {
    Candidate* c = candidates_.as<Candidate>();
    size_t n = logits.size();
    for (uint32_t i = 0; i < n; ++i) c[i] = {std::isnan(logits[i]) ? -INFINITY : logits[i], i};
    penalise(c, s, before);
    // Higher logit first, lower id on ties: the order of every filter.
    auto ahead = [](const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; };
    if (s.temperature <= 0) return static_cast<Token>(std::min_element(c, c + n, ahead)->id);

    if (s.top_k > 0 && static_cast<size_t>(s.top_k) < n) {
        std::nth_element(c, c + s.top_k, c + n, ahead);
        n = static_cast<size_t>(s.top_k);
    }
    if (s.top_p < 1) {
        // By id for the sum, so that its rounding does not depend on how the selection shuffled.
        std::sort(c, c + n, [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
        const float top = std::min_element(c, c + n, ahead)->logit;
        double total = 0;
        for (size_t i = 0; i < n; ++i) total += std::exp(double{c[i].logit} - double{top});
        auto behind = [&](const Candidate& a, const Candidate& b) { return ahead(b, a); };
        std::make_heap(c, c + n, behind);
        double mass = 0;
        size_t kept = 0;
        while (kept < n && mass < double{s.top_p} * total) {
            std::pop_heap(c, c + (n - kept), behind);
            mass += std::exp(double{c[n - kept - 1].logit} - double{top});
            ++kept;
        }
        std::copy(c + (n - kept), c + n, c);
        n = kept;
    }
    const float top = std::min_element(c, c + n, ahead)->logit;
    const float floor = s.min_p > 0 ? top + std::log(s.min_p) : -INFINITY;

    const float reach = top / s.temperature - 2 * sample_impl::kGumbelMax;
    Token best = -1;
    float best_score = 0;
    for (size_t i = 0; i < n; ++i) {
        if (c[i].logit < floor) continue;
        const float scaled = c[i].logit / s.temperature;
        if (scaled < reach || (best >= 0 && scaled + sample_impl::kGumbelMax < best_score)) continue;
        const float score = scaled + gumbel(s.seed, position, c[i].id);
        const Token id = static_cast<Token>(c[i].id);
        if (best < 0 || score > best_score || (score == best_score && id < best)) {
            best = id;
            best_score = score;
        }
    }
    // Every logit at minus infinity leaves nothing to compare: the lowest id, as for greedy.
    return best >= 0 ? best : static_cast<Token>(std::min_element(c, c + n, ahead)->id);
}

}  // namespace detail
}  // namespace auspex

// -------------------------------------------------------------------------- src/engine/session.cpp

namespace auspex {
namespace session_impl {

using namespace detail;

constexpr uint32_t kDefaultContext = 4096;
constexpr uint32_t kMaxUbatch = 4096;

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// What a snapshot begins with; everything else is the lane's.
struct SnapshotHead {
    char magic[8];
    uint64_t n_token;
    uint64_t n_logit;  ///< n_vocab, or 0 when the logits of the last row are not part of it
    uint64_t model_id;
};
constexpr char kMagic[8] = {'a', 'u', 's', 'p', 'e', 'x', 'S', '1'};

/// Tells models apart, so that a snapshot cannot be restored into another one.
uint64_t model_id(const Model::Impl& m) {
    uint64_t h = 0xcbf29ce484222325ull;
    auto mix = [&](std::string_view s) {
        for (char c : s) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    };
    mix(m.plan.architecture);
    for (const Slot& s : m.plan.slots) mix(say(s.name, static_cast<uint32_t>(s.type), ":", s.shape[0], ",", s.shape[1], ";"));
    mix(m.device->machine->name());
    return h;
}

}  // namespace session_impl

Status Session::Impl::track(Status s) {
    if (s.code == Code::device_lost) lost = true;
    return s;
}

Status Session::Impl::check_ids(Span<const Token> ids) const {
    const Token n = static_cast<Token>(model->plan.n_vocab);
    for (size_t i = 0; i < ids.size(); ++i)
        if (ids[i] < 0 || ids[i] >= n) return detail::fail(Code::bad_argument, "token ", i, " has id ", ids[i], ", expected 0..", n - 1);
    return {};
}

Status Session::Impl::run(const detail::Step& step) {
    restored_logits.clear();
    Status s = lane->run(step);
    if (s.code == Code::device_lost) lost = true;
    return s;
}

void Session::Impl::forget() {
    restored_logits.clear();
    lane->reset();
    history.clear();
    n_row = 0;
    has_logits = false;
}

Status Session::Impl::prefill(size_t n) {
    const size_t end = n_row + n, total = n;
    while (n_row < end) {
        if (options.progress && total > options.n_ubatch &&
            !options.progress("reading the prompt", static_cast<float>(total - (end - n_row)) / static_cast<float>(total))) {
            history.resize(n_row);
            return Status(Code::cancelled, "reading the prompt was cancelled by the progress callback");
        }
        detail::Step step;
        step.tape = &model->plan.trunk;
        step.ids = history.data() + n_row;
        step.n_row = static_cast<uint32_t>(std::min<size_t>(end - n_row, options.n_ubatch));
        step.position = static_cast<uint32_t>(n_row);
        step.n_logit = n_row + step.n_row == end ? 1 : 0;
        AUSPEX_TRY(run(step));
        n_row += step.n_row;
        has_logits = step.n_logit != 0;
        stats.rows_prefilled += step.n_row;
    }
    return {};
}

Result<Session> Session::create(const Model& model, const SessionOptions& given) {
    using namespace session_impl;
    if (!model) return Status(Code::bad_argument, "the Model was never loaded; call Model::load first");
    auto impl = std::make_shared<Impl>();
    impl->model = model.impl();
    impl->options = given;
    SessionOptions& o = impl->options;
    const Plan& plan = impl->model->plan;
    if (o.n_context == 0) o.n_context = std::min(kDefaultContext, plan.n_context);
    if (o.n_context > (1u << 24)) return fail(Code::bad_argument, "n_context is ", o.n_context, ", expected at most ", 1u << 24);
    if (o.n_ubatch == 0 || o.n_ubatch > kMaxUbatch) return fail(Code::bad_argument, "n_ubatch is ", o.n_ubatch, ", expected 1..", kMaxUbatch);
    o.n_ubatch = std::min(o.n_ubatch, o.n_context);
    LaneOptions lane;
    lane.n_context = o.n_context;
    lane.n_ubatch = o.n_ubatch;
    AUSPEX_TRY(impl->model->program->open(lane).get(impl->lane));
    AUSPEX_TRY(impl->picker.open(impl->model->device->options.allocator, plan.n_vocab));
    impl->history.reserve(size_t{o.n_context} + kMaxTentative);
    impl->stats.memory_bytes = impl->lane->memory_bytes() + impl->picker.memory_bytes() + impl->history.capacity() * sizeof(Token);
    const Logger& log = impl->model->device->options.log;
    if (log && o.n_context > plan.n_context)
        log(LogLevel::warning, say("n_context is ", o.n_context, " but the model was trained for ", plan.n_context, " rows; expect worse text beyond"));
    Session session;
    session.impl_ = std::move(impl);
    return session;
}

Result<size_t> Session::sync(Span<const Token> history) {
    Impl& s = *impl_;
    if (s.lost) return Status(Code::device_lost, "the device was lost earlier; open a new one");
    if (history.size() > s.options.n_context)
        return detail::fail(Code::bad_argument, "the history has ", history.size(), " tokens, the session holds ", s.options.n_context, "; create it with a larger n_context or shorten the text");
    AUSPEX_TRY(s.check_ids(history));
    const auto start = std::chrono::steady_clock::now();
    // The caller may hand back a view of our own history: keep only what changes.
    size_t same = 0;
    while (same < history.size() && same < s.history.size() && history[same] == s.history[same]) ++same;
    const std::vector<Token> rest(history.begin() + same, history.end());
    const bool rewind = same < s.n_row || (same == s.n_row && same == history.size() && !s.has_logits && same != 0);
    if (rewind || history.empty()) {
        const std::vector<Token> kept(s.history.begin(), s.history.begin() + static_cast<std::ptrdiff_t>(same));
        s.forget();
        s.history.insert(s.history.end(), kept.begin(), kept.end());
    }
    s.history.resize(same);
    s.history.insert(s.history.end(), rest.begin(), rest.end());
    const size_t n = s.history.size() - s.n_row;
    Status done = s.prefill(n);
    s.stats.prefill_s += session_impl::seconds_since(start);
    if (!done.ok()) return done;
    return n;
}

Result<Span<const Token>> Session::next(const Sampling& sampling) {
    Impl& s = *impl_;
    if (s.lost) return Status(Code::device_lost, "the device was lost earlier; open a new one");
    AUSPEX_TRY(detail::check_sampling(sampling));
    if (s.history.empty()) return Status(Code::bad_argument, "there is no history to continue; call sync() with at least one token");
    if (s.history.size() >= s.options.n_context) return detail::fail(Code::context_full, "the history has ", s.history.size(), " tokens, all that n_context allows");
    const auto start = std::chrono::steady_clock::now();
    while (s.n_row < s.history.size()) {
        detail::Step step;
        step.tape = &s.model->plan.trunk;
        step.ids = s.history.data() + s.n_row;
        step.n_row = 1;
        step.position = static_cast<uint32_t>(s.n_row);
        step.n_logit = 1;
        step.tentative = true;
        AUSPEX_TRY(s.run(step));
        s.lane->commit(1);
        s.n_row += 1;
        s.has_logits = true;
        s.stats.rows_decoded += 1;
    }
    if (!s.has_logits) {  // a cancelled prompt or a bare snapshot: the last row must be computed again
        const std::vector<Token> all = s.history;
        Result<size_t> again = sync(all);
        if (!again.ok()) return again.status();
    }
    Span<const float> logits = s.restored_logits;
    if (logits.empty()) AUSPEX_TRY(s.track(s.lane->read_row(s.model->plan.trunk.logits, 0).get(logits)));
    s.history.push_back(s.picker.pick(logits, sampling, s.history.size(), s.history));
    s.stats.tokens_picked += 1;
    s.stats.decode_s += session_impl::seconds_since(start);
    return Span<const Token>(s.history.data() + s.history.size() - 1, 1);
}

Span<const Token> Session::history() const { return impl_->history; }
Stats Session::stats() const { return impl_->stats; }

Status Session::score(Span<const Token> ids, const RowSink& sink) {
    using namespace detail;
    Impl& s = *impl_;
    if (ids.empty() || ids.size() > s.options.n_context) return fail(Code::bad_argument, ids.size(), " tokens to score, expected 1..", s.options.n_context);
    AUSPEX_TRY(s.check_ids(ids));
    const std::vector<Token> all(ids.begin(), ids.end());
    s.forget();
    s.history.insert(s.history.end(), all.begin(), all.end());
    while (s.n_row < all.size()) {
        const uint32_t n = static_cast<uint32_t>(std::min<size_t>(all.size() - s.n_row, s.options.n_ubatch));
        Step step;
        step.tape = &s.model->plan.trunk;
        step.ids = all.data() + s.n_row;
        step.n_row = n;
        step.position = static_cast<uint32_t>(s.n_row);
        AUSPEX_TRY(s.run(step));
        for (uint32_t first = 0; first < n; first += kMaxTentative) {
            const uint32_t k = std::min(kMaxTentative, n - first);
            AUSPEX_TRY(s.track(s.lane->head(s.model->plan.trunk, first, k)));
            for (uint32_t i = 0; i < k; ++i) {
                Span<const float> row;
                AUSPEX_TRY(s.track(s.lane->read_row(s.model->plan.trunk.logits, i).get(row)));
                sink(s.n_row + first + i, row);
            }
        }
        s.n_row += n;
    }
    // Leave the last row's logits where next() looks for them.
    AUSPEX_TRY(s.track(s.lane->head(s.model->plan.trunk, static_cast<uint32_t>((all.size() - 1) % s.options.n_ubatch), 1)));
    s.has_logits = true;
    return {};
}

Status Session::score_mtp(Span<const Token> ids, uint32_t depth, const RowSink& sink) {
    using namespace detail;
    Impl& s = *impl_;
    const Plan& plan = s.model->plan;
    if (plan.mtp.empty()) return Status(Code::unsupported, "this model has no MTP block loaded, so there are no draft rows to score");
    if (depth == 0 || depth > kMaxTentative - 1) return fail(Code::bad_argument, "depth is ", depth, ", expected 1..", kMaxTentative - 1);
    if (ids.size() <= depth || ids.size() > s.options.n_context)
        return fail(Code::bad_argument, ids.size(), " tokens to score at depth ", depth, ", expected ", depth + 1, "..", s.options.n_context);
    AUSPEX_TRY(s.check_ids(ids));
    const std::vector<Token> all(ids.begin(), ids.end());
    s.forget();
    std::vector<float> hidden(all.size() * plan.d_model);
    // One causal pass over `tape`, rows in ubatches; `each` sees every step after it ran.
    auto pass = [&](const Tape& tape, size_t shift, size_t n, const float* given, auto each) -> Status {
        for (size_t p = 0; p < n; p += s.options.n_ubatch) {
            Step step;
            step.tape = &tape;
            step.ids = all.data() + p + shift;
            step.n_row = static_cast<uint32_t>(std::min<size_t>(n - p, s.options.n_ubatch));
            step.position = static_cast<uint32_t>(p);
            step.hidden = given ? given + p * plan.d_model : nullptr;
            AUSPEX_TRY(s.run(step));
            AUSPEX_TRY(each(p, step.n_row));
        }
        return {};
    };
    auto keep_hidden = [&](const Tape& tape, std::vector<float>& to) {
        return [&](size_t p, uint32_t n) -> Status {
            for (uint32_t i = 0; i < n; ++i) {
                Span<const float> row;
                AUSPEX_TRY(s.lane->read_row(tape.hidden, i).get(row));
                std::copy(row.begin(), row.end(), to.begin() + static_cast<std::ptrdiff_t>((p + i) * plan.d_model));
            }
            return {};
        };
    };
    AUSPEX_TRY(pass(plan.trunk, 0, all.size(), nullptr, keep_hidden(plan.trunk, hidden)));
    std::vector<float> next(hidden.size());
    for (uint32_t d = 1; d <= depth; ++d) {
        const Tape& tape = plan.mtp[plan.mtp_block(d)];
        auto keep = keep_hidden(tape, next);
        auto each = [&](size_t p, uint32_t n) -> Status {
            AUSPEX_TRY(keep(p, n));
            for (uint32_t first = 0; d == depth && first < n; first += kMaxTentative) {
                const uint32_t k = std::min(kMaxTentative, n - first);
                AUSPEX_TRY(s.lane->head(tape, first, k));
                for (uint32_t i = 0; i < k; ++i) {
                    Span<const float> row;
                    AUSPEX_TRY(s.lane->read_row(tape.logits, i).get(row));
                    sink(p + first + i, row);
                }
            }
            return {};
        };
        AUSPEX_TRY(pass(tape, d, all.size() - d, hidden.data(), each));
        hidden.swap(next);
    }
    s.forget();
    return {};
}

Result<Snapshot> Session::save() const {
    using namespace session_impl;
    Impl& s = *impl_;
    Snapshot snap;
    // Only computed rows make up a state; a picked token that was not run yet is run again later.
    snap.n_token = s.n_row;
    SnapshotHead head;
    std::memcpy(head.magic, kMagic, sizeof kMagic);
    head.n_token = s.n_row;
    head.n_logit = s.has_logits ? s.model->plan.n_vocab : 0;
    head.model_id = model_id(*s.model);
    const std::byte* h = reinterpret_cast<const std::byte*>(&head);
    snap.bytes.insert(snap.bytes.end(), h, h + sizeof head);
    const std::byte* ids = reinterpret_cast<const std::byte*>(s.history.data());
    snap.bytes.insert(snap.bytes.end(), ids, ids + s.n_row * sizeof(Token));
    if (s.has_logits) {
        Span<const float> logits = s.restored_logits;
        if (logits.empty()) AUSPEX_TRY(s.track(s.lane->read_row(s.model->plan.trunk.logits, 0).get(logits)));
        const std::byte* l = reinterpret_cast<const std::byte*>(logits.data());
        snap.bytes.insert(snap.bytes.end(), l, l + logits.size() * sizeof(float));
    }
    AUSPEX_TRY(s.track(s.lane->save(static_cast<uint32_t>(s.n_row), &snap.bytes)));
    return snap;
}

Status Session::restore(const Snapshot& snap) {
    using namespace session_impl;
    Impl& s = *impl_;
    SnapshotHead head{};
    if (snap.bytes.size() >= sizeof head) std::memcpy(&head, snap.bytes.data(), sizeof head);
    if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0) return Status(Code::bad_argument, "this is no snapshot of a session");
    if (head.model_id != model_id(*s.model)) return Status(Code::bad_argument, "this snapshot belongs to another model or device; save it again with this one");
    if (head.n_token > s.options.n_context) return fail(Code::bad_argument, "the snapshot holds ", head.n_token, " tokens, the session ", s.options.n_context);
    const size_t n = static_cast<size_t>(head.n_token), ids_end = sizeof head + n * sizeof(Token);
    if (head.n_logit != 0 && head.n_logit != s.model->plan.n_vocab) return Status(Code::bad_argument, "this snapshot is damaged");
    const size_t n_logit = static_cast<size_t>(head.n_logit), state = ids_end + n_logit * sizeof(float);
    if (snap.bytes.size() < state) return Status(Code::bad_argument, "this snapshot is cut short");
    std::vector<Token> ids(n);
    if (n) std::memcpy(ids.data(), snap.bytes.data() + sizeof head, n * sizeof(Token));
    AUSPEX_TRY(s.check_ids(ids));
    s.forget();
    AUSPEX_TRY(s.track(s.lane->restore(static_cast<uint32_t>(n), Span<const std::byte>(snap.bytes.data() + state, snap.bytes.size() - state))));
    s.history.insert(s.history.end(), ids.begin(), ids.end());
    s.n_row = n;
    s.restored_logits.resize(n_logit);
    if (n_logit) std::memcpy(s.restored_logits.data(), snap.bytes.data() + ids_end, n_logit * sizeof(float));
    s.has_logits = n_logit != 0;
    return {};
}

}  // namespace auspex

// ---------------------------------------------------------------------- src/engine/text_stream.cpp

namespace auspex {

TextStream::TextStream(const Model& model, std::vector<std::string> stops, const DecodeOptions& options)
    : model_(model), stops_(std::move(stops)), options_(options) {}

std::string TextStream::push(Token id) {
    if (stopped_) return std::string();
    bytes_ += model_.decode(Span<const Token>(&id, 1), options_);
    return take(false);
}

std::string TextStream::finish() { return stopped_ ? std::string() : take(true); }

std::string TextStream::take(bool all) {
    held_ += detail::take_characters(bytes_, all);
    return detail::take_unstopped(held_, stops_, all, &stopped_);
}

}  // namespace auspex

#endif  // AUSPEX_IMPLEMENTATION_INCLUDED
