// server/engine: the thread that owns device, model and session, and the queue of tasks before it.
//
// One session serves everybody: its tree of checkpoints keeps what other conversations computed, so that a request
// continues its own where it left off, and a short one beside it costs its own rows only.
// Thread  all methods from any thread, unless stated.
// Tests   tests/test_server_openai.py
#pragma once
#include <functional>
#include <optional>
#include <thread>

#include "constraint.h"
#include "draft.h"
#include "generation.h"
#include "window.h"

namespace server {

struct EngineOptions {
    cli::PlaceOptions place;
    cli::DraftFlags draft;
    cli::WindowFlags window;
    std::optional<int64_t> n_context;  ///< rows; chosen where none are given
    std::string cache;                 ///< memory for checkpoints, as in 2G; empty: chosen
    size_t max_queue = 64;
    int64_t turn_ms = 500;  ///< a reply's turn while others wait; 0: it is completed first
    std::string script;     ///< a file for Script::load; empty: none
};

/// What was done since the start.
struct Counters {
    uint64_t n_request = 0, n_prompt = 0, n_predicted = 0, n_cached = 0, n_cycle = 0, n_max = 0;
    double prompt_s = 0, predicted_s = 0;
    uint64_t drafted[auspex::kMaxDraft] = {}, accepted[auspex::kMaxDraft] = {};
    size_t n_waiting = 0;  ///< now
    bool is_busy = false;  ///< now
    size_t n_history = 0;  ///< tokens of the last history
    size_t n_token = 0;    ///< of the reply that is being generated
    uint64_t n_task = 0;
    uint64_t n_turn = 0;        ///< that ended before the request was complete
    uint64_t memory_bytes = 0;  ///< of the session
};

class Engine {
  public:
    explicit Engine(const EngineOptions& options) : options_(options) {}
    ~Engine() { (void)stop(); }
    /// Reads what the options say of this model, which need not be loaded. errors: of the option, or of its file.
    Status prepare(const auspex::ModelInfo& model);
    /// After prepare(): starts the thread, which loads the model. loaded: called there before the first request, or
    /// with why there will be none.
    void start(std::function<void(const Status&)> loaded);
    /// Fails what runs and what waits, and ends the thread. errors: the trace could not be written.
    Status stop();

    /// Unless the model is ready, why not.
    Failure check() const;
    /// Valid once check() is ok. A copy of the handle: another model takes its place where the device is lost.
    auspex::Model model() const;
    const std::string& path() const { return on_.path; }
    const Script& script() const { return script_; }
    ConstraintCache& constraints() { return constraints_; }
    uint32_t n_context() const { return session_options_.n_context; }
    const auspex::SessionOptions& session_options() const { return session_options_; }
    std::string device_name() const;

    /// Puts the task at the end of the queue. Failure: loading, stopping, or too many wait.
    Failure submit(std::shared_ptr<Task> task);
    /// Nobody waits for the task: it is dropped, or stopped before its next step. True if it has not begun, and will
    /// not.
    bool cancel(const std::shared_ptr<Task>& task);
    Counters counters() const;

  private:
    enum class State { loading, ready, failed, stopping };
    Status load();
    Status choose_cache();
    Status create_session();
    Status recover();
    Status start_anew();
    void replace(auspex::Device device, auspex::Model model);
    void work();
    Worker worker();
    void begin_turn(double switch_s);
    bool is_turn_over() const;
    bool may_run(const Task& task) const;
    Status read_prompt(const GenerationRequest& request, auspex::SyncReport* synced, bool* stopped);
    bool goes_on_with_prompt();
    void fail_waiting();
    /// On stderr: which rows each reply took, and why.
    static void tell_rows(const Generation& task);
    void count(const Generation& task);

    const EngineOptions options_;
    cli::Loaded on_;  ///< changed by the engine's thread, under the mutex, as is session_
    cli::CostCache costs_;
    cli::Trace trace_;  // outlives the session, which writes to it
    auspex::SessionOptions session_options_;
    auspex::Session session_;
    Script script_;
    ConstraintCache constraints_;
    std::thread thread_;

    // Of the engine's thread: the turn of the task that runs.
    double turn_start_ = 0;
    double turn_s_ = 0;         ///< how long it may last: longer where going back to a reply takes longer
    bool is_switched_ = false;  ///< the change to its conversation is over; a further prompt does not count as one
    /// Whether the end of the turn stops the prompt that is being read. One that the turn begins with has at least one
    /// piece read.
    enum class Stop { no, after_a_piece, yes, stopped } stop_prompt_ = Stop::no;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    State state_ = State::loading;
    std::string why_;  ///< it failed
    std::deque<std::shared_ptr<Task>> queue_;
    uint64_t n_submitted_ = 0;
    std::shared_ptr<Task> current_;
    Counters counters_;
};

}  // namespace server
