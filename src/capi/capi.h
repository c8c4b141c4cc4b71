// capi/capi: what the functions of auspex.h share: handles, answers, structs and buffers.
//
// Owns    the handles' layout, the conversion between structs of C and options of C++, and the boundary that no
//         exception crosses. Uses the public C++ interface alone.
// Thread  helpers without state; a session's handle has a lock for auspex_session_cancel().
// Tests   tests/test_capi.cpp, tests/test_capi_refused.cpp, tests/capi_client.c, tests/test_capi.py
#pragma once
#include "../auspex.hpp"

#include "../auspex.h"

#include <atomic>
#include <cstring>
#include <mutex>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {

/// What a function returns: a code and a text, which is empty if it is AUSPEX_OK.
struct [[nodiscard]] Answer {
    auspex_code code = AUSPEX_OK;
    std::string text;

    Answer() = default;
    Answer(auspex_code c, std::string t) : code(c), text(std::move(t)) {}
    Answer(Status s);  // NOLINT: implicit on purpose
    bool ok() const { return code == AUSPEX_OK; }
};

inline Answer bad(std::string text) { return Answer(AUSPEX_BAD_ARGUMENT, std::move(text)); }

/// Returns from the enclosing function unless `expr` is an Answer or a Status that is ok.
#define AUSPEX_C_TRY(expr)                       \
    do {                                         \
        ::auspex::capi::Answer answer_ = (expr); \
        if (!answer_.ok()) return answer_;       \
    } while (false)

/// Fills the caller's error, if there is one, and returns the code.
auspex_code give(auspex_error* error, auspex_code code, const char* text, size_t n_text) noexcept;

/// Gives the error of the exception that is being handled. Call in a catch block only.
auspex_code give_exception(auspex_error* error) noexcept;

/// Runs the body of a function of auspex.h. Nothing that is thrown leaves it.
template <class F>
auspex_code call(auspex_error* error, F body) noexcept {
#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
    try {
#endif
        const Answer answer = body();
        return give(error, answer.code, answer.text.data(), answer.text.size());
#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
    } catch (...) {
        return give_exception(error);
    }
#endif
}

// ------------------------------------------------------------------------------------------ handles

/// Begins every handle: tells the kinds apart, and living handles from freed ones as far as that is possible.
template <uint64_t kMagic>
struct Handle {
    static constexpr uint64_t kKind = kMagic;
    volatile uint64_t magic = kMagic;
    Handle() = default;
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle() { magic = 0; }
};

/// A handle of C; null where it is not one of this kind.
template <class T>
bool is(const T* handle) {
    return handle != nullptr && reinterpret_cast<uintptr_t>(handle) % alignof(T) == 0 && handle->magic == T::kKind;
}

template <class T>
Answer need(const T* handle, const char* name) {
    if (is(handle)) return Answer();
    return bad(std::string("the ") + name +
               (handle == nullptr ? " is null" : " is another kind of object, or was freed") + "; expected an auspex_" +
               name);
}

/// out_of_memory for an object whose constructor, or a value whose function, had no memory for it: both are empty then.
template <class T>
Answer need_memory(const T& made) {
    if (made) return Answer();
    return Answer(AUSPEX_OUT_OF_MEMORY, "the standard allocator has no memory left; free some, or ask for less");
}

/// Clears what an output points to.
template <class T>
Answer need_output(T* p, const char* name) {
    if (p == nullptr) return bad(std::string(name) + " is null; expected a place for the result");
    *p = T();
    return Answer();
}

// ------------------------------------------------------------------------------------------ structs

constexpr uint32_t kMaxStruct = 4096;  ///< bytes; a size beyond was never set

/// Whether struct_size can be the size of this struct in any version.
Answer check_size(uint32_t size, size_t alignment, const char* name);
/// Whether the bytes of a larger struct that this library does not know are 0.
Answer check_tail(const void* p, size_t known, uint32_t size, const char* name);

/// Reads a struct of any version: what it does not have is 0. from: null is all 0.
template <class T>
Answer read(const T* from, T* to, const char* name) {
    *to = T();
    if (from == nullptr) return Answer();
    const uint32_t n = from->struct_size;
    AUSPEX_C_TRY(check_size(n, alignof(T), name));
    AUSPEX_C_TRY(check_tail(from, sizeof(T), n, name));
    std::memcpy(to, from, n < sizeof(T) ? n : sizeof(T));
    return Answer();
}

/// Whether a struct can be filled. null: not if it is needed.
template <class T>
Answer check_output(const T* to, const char* name, bool needed) {
    if (to == nullptr) return needed ? bad(std::string(name) + " is null; expected a struct to fill") : Answer();
    return check_size(to->struct_size, alignof(T), name);
}

/// Fills a struct of any version that check_output() has passed.
template <class T>
void write(T* to, const T& from) {
    if (to == nullptr) return;
    const uint32_t n = to->struct_size;
    std::memset(static_cast<void*>(to), 0, n);
    std::memcpy(static_cast<void*>(to), &from, n < sizeof(T) ? n : sizeof(T));
    to->struct_size = n;
}

template <class T>
auspex_code init(T* p, uint32_t size) {
    if (p == nullptr || !check_size(size, alignof(T), "").ok()) return AUSPEX_BAD_ARGUMENT;
    std::memset(static_cast<void*>(p), 0, size);
    p->struct_size = size;
    return AUSPEX_OK;
}

/// A number that becomes an enumerator.
Answer check_range(int64_t value, int64_t first, int64_t last, const char* name);

// ---------------------------------------------------------------------------------- texts and lists

/// Copies n elements to a buffer of the caller. extra: room for a NUL. Sets *length in any case.
template <class T>
Answer fill(const T* from, size_t n, T* to, size_t capacity, size_t* length, size_t extra, const char* name) {
    *length = n;
    if (to == nullptr && capacity > 0) return bad(std::string(name) + " is null and its capacity is not 0");
    if (capacity < n + extra)
        return Answer(AUSPEX_BUFFER_TOO_SMALL, std::string(name) + " has room for " + std::to_string(capacity) +
                                                   ", expected at least " + std::to_string(n + extra));
    if (n > 0) std::memcpy(to, from, n * sizeof(T));
    return Answer();
}
/// The same for text: adds the NUL.
Answer fill_text(std::string_view text, char* to, size_t capacity, size_t* length);
/// A text of at most n - 1 bytes for an array in a struct, cut at a character.
void put_text(std::string_view text, char* to, size_t n) noexcept;

/// A pointer and a length going in.
template <class T>
Answer view(const T* p, size_t n, Span<const T>* out, const char* name) {
    if (p == nullptr && n > 0) return bad(std::string(name) + " is null and its length is not 0");
    *out = Span<const T>(p, n);
    return Answer();
}
Answer view_text(const char* p, size_t n, std::string_view* out, const char* name);
Answer need_path(const char* path);

// ------------------------------------------------------------------------------------------ options

/// The allocator and the job system of the application, with the pointers that their functions get.
struct Host {
    void* (*allocate)(size_t bytes, size_t alignment, void* user);
    void (*release)(void* p, size_t bytes, size_t alignment, void* user);
    void* user;
    void (*run_jobs)(uint32_t n, void (*task)(void* context, uint32_t i), void* context, void* user);
    void* jobs_user;
};

Answer device_options(const auspex_device_options& from, const std::shared_ptr<Host>& host, DeviceOptions* to);
Answer load_options(const auspex_load_options* from, LoadOptions* to);
Answer session_options(const auspex_session_options* from, SessionOptions* to);
Answer sampling(const auspex_sampling* from, Sampling* to);
/// The request of a chat.
Answer chat_request(const char* json, size_t n_json, ChatRequest* to);

/// Calls on_event for each event. Not ok: it cancelled.
Answer say_events(const std::vector<ReplyEvent>& events, auspex_on_event on_event, void* user);

}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// The handles of auspex.h. `host` comes first: what was allocated through it is freed before it.
struct auspex_device : auspex::capi::Handle<0x617578'6465'7631> {
    std::shared_ptr<auspex::capi::Host> host;
    auspex::Device device;
};
struct auspex_model : auspex::capi::Handle<0x617578'6d6f'6431> {
    std::shared_ptr<auspex::capi::Host> host;
    auspex::Model model;
};
struct auspex_session : auspex::capi::Handle<0x617578'7365'7331> {
    std::shared_ptr<auspex::capi::Host> host;
    auspex::Model model;
    auspex::Session session;
    std::mutex lock;         ///< guards the two below
    bool running = false;    ///< a call runs on it
    bool cancelled = false;  ///< and is to return AUSPEX_CANCELLED
};
struct auspex_constraint : auspex::capi::Handle<0x617578'636f'6e31> {
    auspex::Constraint constraint;
    std::string ignored;  ///< lines
};
struct auspex_plan : auspex::capi::Handle<0x617578'706c'6131> {
    auspex::MemoryPlan plan;
};
struct auspex_snapshot : auspex::capi::Handle<0x617578'736e'6131> {
    auspex::Snapshot snapshot;
};
struct auspex_stream : auspex::capi::Handle<0x617578'7374'7231> {
    std::shared_ptr<auspex::capi::Host> host;
    auspex::TextStream stream;
    std::string text;                          ///< what the last call returned
    mutable std::atomic<bool> busy = {false};  ///< a call runs on it
};
struct auspex_reply : auspex::capi::Handle<0x617578'7265'7031> {
    auspex::ReplyStream stream;
    mutable std::atomic<bool> busy = {false};
};

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {

/// One call on a session: refuses another at the same time, and carries auspex_session_cancel() to it.
class Running {
  public:
    explicit Running(auspex_session* session);
    ~Running();
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    Answer answer() const;  ///< bad_argument unless it may run
    bool cancelled() const;
    /// The answer of a call that has computed everything: cancelled if a cancel came during its last step.
    Answer done() const;
    Session& session() const { return session_->session; }

  private:
    auspex_session* session_;
    bool runs_ = false;
};

/// One call on a stream or reply: refuses another at the same time.
class Turn {
  public:
    explicit Turn(std::atomic<bool>& busy) : busy_(busy), mine_(!busy.exchange(true, std::memory_order_acquire)) {}
    ~Turn() {
        if (mine_) busy_.store(false, std::memory_order_release);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    bool mine() const { return mine_; }
    Answer answer(const char* name) const;  ///< bad_argument unless it may run

  private:
    std::atomic<bool>& busy_;
    const bool mine_;
};

/// Runs the body of a function on a session: body(running).
template <class F>
auspex_code call_session(auspex_session* session, auspex_error* error, F body) noexcept {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(session, "session"));
        Running running(session);
        AUSPEX_C_TRY(running.answer());
        return body(running);
    });
}

}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
