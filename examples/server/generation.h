// server/generation: one request for text, from the tokens of its prompt to the events of its reply.
//
// Owns    what the engine's thread and the thread of the connection share: the events between them.
// Thread  run() on the engine's thread, wait() on the connection's.
// Tests   tests/test_server_openai.py
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "logprobs.h"

namespace server {

struct GenerationRequest;

/// What the engine's thread works with.
struct Worker {
    const auspex::Model& model;
    auspex::Session& session;
    std::function<Status()> recover;  ///< opens the device again; the session goes on there
    /// A sync() with the prompt. Unless stopped is null it is cancelled where the turn is over, and *stopped is set;
    /// the rows that were computed stay.
    std::function<Status(const GenerationRequest&, auspex::SyncReport*, bool* stopped)> read_prompt;
    std::function<void(double)> begin_turn;  ///< with the seconds that the change to this conversation took
    std::function<bool()> is_turn_over;      ///< others wait, and it has lasted long enough
    /// Replies with this many rows or more, prompt included, are completed in one turn: the checkpoints had no room for
    /// one of them between two turns. SIZE_MAX again once nobody waits.
    size_t max_rows = SIZE_MAX;
    uint64_t n_replaced = 0;  ///< how often other work on the session may have replaced its rows and checkpoints

    /// Calls it again if the device was lost and could be opened again.
    template <class Call>
    Status call(const Call& call) {
        const Status s = call();
        if (s.code != Code::device_lost) return s;
        const Status recovered = recover();
        return recovered.ok() ? call() : recovered;
    }
};

/// What the engine's thread does for somebody.
class Task {
  public:
    virtual ~Task() = default;
    /// Returns false if the turn is over before the task is complete; run() is called again, after the others that
    /// wait.
    virtual bool run(Worker& worker) = 0;
    /// It will not run, or not to its end.
    virtual void fail(const Failure& failure) = 0;
    /// Whether other tasks may run between two turns of this one, and this one between theirs. One that takes none runs
    /// once those that came before it are complete; of those that came after it, some may have begun.
    virtual bool takes_turns() const { return false; }
    /// Nobody waits for it any more. Engine::cancel() also stops it.
    std::atomic<bool> cancelled{false};
    bool has_begun = false;  ///< under the engine's mutex
    uint64_t number = 0;     ///< in the order in which they came; under the engine's mutex
};

/// What a reply took.
struct Usage {
    size_t n_prompt = 0, n_cached = 0, n_predicted = 0;
    size_t n_thinking = 0;  ///< of those predicted
    double prompt_s = 0, predicted_s = 0;
    uint64_t n_cycle = 0;
    uint64_t drafted[auspex::kMaxDraft] = {}, accepted[auspex::kMaxDraft] = {};  ///< by place in the cycle
    std::string reuse;                                                           ///< which rows were computed, and why
    uint64_t n_drafted() const;
    uint64_t n_accepted() const;
};

using auspex::Finish;  ///< a full context is a length, a script's end is none

/// Replies for prompts instead of the model's own, for tests of clients: the entry whose `when` stands last in the
/// prompt.
class Script {
  public:
    struct Entry {
        std::string when, reply;
        bool lose_device = false;  ///< in the middle of the reply the device is opened again, as if it had been lost
    };
    /// Reads [{"when": "...", "reply": "..."}, ...]; "lose_device": true may be beside them. errors: those of
    /// cli::read_bytes; bad_argument: of another form.
    static cli::Result<Script> load(const std::string& path);
    /// Null if no entry fits.
    const Entry* find(const std::string& prompt) const;

  private:
    std::vector<Entry> entries_;
};

struct GenerationRequest {
    std::vector<auspex::Token> ids;
    std::vector<auspex::Mark> marks;
    auspex::Sampling sampling;
    bool constrain_answer = false;   ///< the constraint begins after the thinking; else with the reply
    int64_t n_max = -1;              ///< tokens of the reply; -1: until the context is full
    std::vector<std::string> stops;  ///< looked for in the text, of a chat outside thinking and calls
    uint32_t n_choice = 1;           ///< replies; the seeds of the later ones count on from the first's
    int64_t thinking_budget = -1;    ///< tokens after which the thinking is closed; -1: no limit
    bool special = false;            ///< show control tokens
    int n_top_logprob = -1;          ///< log probabilities of the answer's tokens and of so many others; -1: none
    bool live_usage = false;         ///< events of text have the usage so far
    // What the reply is parsed with.
    bool is_chat = true;                                    ///< false: the text is passed on as it is
    bool inside_thinking = false, closed_thinking = false;  ///< as in ChatPrompt
    std::vector<std::string> tools;
    const Script::Entry* scripted = nullptr;  ///< the reply, instead of what the model would say
    /// A call that the model begins is valid as far as it goes, so that it may be passed on before it is complete.
    bool streams_calls() const { return sampling.constraint && !constrain_answer && !scripted; }
};

struct GenerationEvent {
    enum class Kind {
        prompt,  ///< the prompt of this choice was computed; usage
        text,    ///< more of the reply
        end,     ///< the choice is complete; finish, stop, usage
        failed,  ///< nothing follows
        done,    ///< all choices are complete; nothing follows
    };
    Kind kind = Kind::text;
    uint32_t i_choice = 0;
    std::vector<auspex::ReplyEvent> parts;  ///< of text: parsed, up to a stop string
    std::vector<TokenLogprob> logprobs;     ///< of tokens since the last event
    Finish finish = Finish::end;
    std::string stop;  ///< the stop string that ended it
    Usage usage;
    Failure failure;
};

class Generation final : public Task {
  public:
    explicit Generation(GenerationRequest request);
    ~Generation() override;
    bool run(Worker& worker) override;
    void fail(const Failure& failure) override;
    bool takes_turns() const override { return true; }
    /// All events that have come; empty if none came in time. Text that follows text is held back for a moment, so that
    /// the tokens of a fast model come together: each time it wakes the caller takes time from the model's threads.
    std::deque<GenerationEvent> wait(std::chrono::milliseconds timeout);
    const GenerationRequest& request() const { return request_; }
    /// Of all choices; valid once run() has returned.
    const std::vector<Usage>& usages() const { return usages_; }
    size_t n_token() const { return n_token_; }  ///< of the reply so far; any thread

  private:
    class Reply;
    void push(GenerationEvent event);

    const GenerationRequest request_;
    std::unique_ptr<Reply> reply_;  ///< the one that is being generated
    std::vector<Usage> usages_;
    std::atomic<size_t> n_token_{0};
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<GenerationEvent> events_;
    bool is_awaited_ = false;                          ///< somebody sleeps until the next event
    bool is_urgent_ = false;                           ///< one of the events is more than text
    std::chrono::steady_clock::time_point last_text_;  ///< when wait() returned text; the connection's thread
};

}  // namespace server
