#include "engine.h"

#include <algorithm>
#include <new>

namespace server {

namespace {

/// Rows of context unless the user says otherwise: what an agent's first request needs, several times over.
constexpr uint32_t kContext = 32768;
/// Memory for checkpoints unless the user says otherwise: this share of the free memory, within these bounds, and no
/// more than the context can use. An agent switches between a long conversation and those of its subagents.
constexpr uint64_t kCacheShare = 8, kMinCache = uint64_t{512} << 20, kMaxCache = uint64_t{8} << 30;
/// A turn lasts at least this many times as long as the change to its conversation took, so that changes cost at most
/// 5 %.
constexpr double kTurnOverSwitch = 20;

}  // namespace

void Engine::start(std::function<void(const Status&)> loaded) {
    thread_ = std::thread([this, loaded = std::move(loaded)] {
        const Status s = load();
        loaded(s);
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (state_ == State::loading) state_ = s.ok() ? State::ready : State::failed;
            why_ = s.message();
        }
        if (s.ok()) work();
    });
}

Status Engine::prepare(const auspex::ModelInfo& model) {
    Status s = options_.script.empty() ? Status() : Script::load(options_.script).get(script_);
    if (!s.ok()) return s;
    auspex::SessionOptions& o = session_options_;
    const int64_t n_context = options_.n_context.value_or(std::min(model.n_context, kContext));
    s = cli::check_ctx(n_context, model);
    if (!s.ok()) return s;
    o.n_context = static_cast<uint32_t>(n_context);
    o.run_ahead = 1;  // a GPU does not wait for this thread between two cycles
    o.progress = [this](const char*, float) { return goes_on_with_prompt(); };
    if (options_.cache == "0")
        o.checkpoint_bytes = 0;
    else if (!options_.cache.empty())
        s = cli::read_size(options_.cache, "--cache").get(o.checkpoint_bytes);
    if (s.ok()) s = cli::choose_draft(options_.draft, model, options_.place.verbose, &o.draft);
    if (s.ok()) s = cli::choose_window(options_.window, &o);
    return s.ok() ? trace_.open(options_.draft, &o) : s;
}

Status Engine::load() {
    Status s = cli::load(options_.place, &on_);
    if (!s.ok()) return s;
    if (options_.cache.empty()) s = choose_cache();
    if (s.ok()) s = create_session();
    constexpr std::string_view kField = "checkpoint_bytes";  // the first word of the library's error
    if (s.text.compare(0, kField.size(), kField) == 0) s.text.replace(0, kField.size(), "--cache");
    return s;
}

Status Engine::choose_cache() {
    auspex::MemoryPlan plan;
    const Status s = auspex::Session::plan(on_.model, session_options_).get(plan);
    if (!s.ok() || plan.checkpoint_bytes < kMinCache) return s;  // all that the context can use
    const uint64_t rows = uint64_t{session_options_.n_context} * plan.kv_token_bytes;
    const uint64_t share = auspex::free_host_memory() / kCacheShare;
    session_options_.checkpoint_bytes = std::clamp(share, kMinCache, std::min(kMaxCache, kMinCache + 2 * rows));
    return s;
}

Status Engine::create_session() {
    auspex::Session session;
    const Status s = auspex::Session::create(on_.model, session_options_).get(session);
    if (!s.ok()) return s;
    costs_.load(on_, session_options_, session);
    const std::lock_guard<std::mutex> lock(mutex_);
    session_ = std::move(session);
    counters_.memory_bytes = session_.stats().memory_bytes;
    if (state_ == State::stopping || (current_ && current_->cancelled)) session_.cancel();
    return s;
}

void Engine::replace(auspex::Device device, auspex::Model model) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::swap(on_.device, device);
    std::swap(on_.model, model);
}

/// Opens the device again, and goes on there with the history as it is.
Status Engine::recover() {
    cli::note("the device '" + device_name() + "' was lost; opening it again");
    Status s;
    {
        cli::Loaded opened;
        s = cli::load(options_.place, &opened);
        if (s.ok()) s = session_.move_to(opened.model).status();
        if (s.ok()) replace(opened.device, opened.model);
    }
    if (s.code == Code::out_of_memory) s = start_anew();
    if (!s.ok()) cli::note("it cannot be used: " + s.message());
    return s;
}

/// For devices without room for two models: lets go of the lost one, and computes the live history again. Other
/// conversations are computed when they go on.
Status Engine::start_anew() {
    const auspex::Span<const Token> known = session_.history();
    const std::vector<Token> history(known.begin(), known.end());
    {
        auspex::Session lost;
        const std::lock_guard<std::mutex> lock(mutex_);
        std::swap(session_, lost);
        if (state_ == State::ready) state_ = State::loading;
    }
    replace({}, {});
    cli::Loaded opened;
    Status s = cli::load(options_.place, &opened);
    if (s.ok()) replace(opened.device, opened.model);
    if (s.ok()) s = create_session();
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (state_ == State::loading) state_ = s.ok() ? State::ready : State::failed;
        why_ = s.message();
    }
    return s.ok() && !history.empty() ? session_.sync(history).status() : s;
}

auspex::Model Engine::model() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return on_.model;
}

std::string Engine::device_name() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return on_.device.name();
}

Worker Engine::worker() {
    Worker w{on_.model, session_, {}, {}, {}, {}};
    w.read_prompt = [this](const GenerationRequest& request, auspex::SyncReport* synced, bool* stopped) {
        return read_prompt(request, synced, stopped);
    };
    w.recover = [this] { return recover(); };
    w.begin_turn = [this](double switch_s) { begin_turn(switch_s); };
    w.is_turn_over = [this] { return is_turn_over(); };
    return w;
}

void Engine::begin_turn(double switch_s) {
    turn_start_ = cli::now();
    is_switched_ = true;
    turn_s_ = std::max(static_cast<double>(options_.turn_ms) * 1e-3, switch_s * kTurnOverSwitch);
}

bool Engine::is_turn_over() const {
    if (options_.turn_ms == 0 || cli::now() - turn_start_ < turn_s_) return false;
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::any_of(queue_.begin(), queue_.end(), [this](const auto& t) { return may_run(*t); });
}

/// A task that takes no turns must find the session as the requests before it leave it.
bool Engine::may_run(const Task& task) const {
    const auto is_earlier = [&](const std::shared_ptr<Task>& t) { return t && t->number < task.number; };
    return task.takes_turns() || !(is_earlier(current_) || std::any_of(queue_.begin(), queue_.end(), is_earlier));
}

Status Engine::read_prompt(const GenerationRequest& request, auspex::SyncReport* synced, bool* stopped) {
    if (stopped) stop_prompt_ = is_switched_ ? Stop::yes : Stop::after_a_piece;
    const Status s = session_.sync(request.ids, request.marks).get(*synced);
    if (stopped) *stopped = stop_prompt_ == Stop::stopped;
    stop_prompt_ = Stop::no;
    is_switched_ = true;
    return s;
}

/// Called before each piece of a prompt; the first time, the rows that it continues from have just been restored.
bool Engine::goes_on_with_prompt() {
    if (stop_prompt_ == Stop::after_a_piece) {
        stop_prompt_ = Stop::yes;
        begin_turn(cli::now() - turn_start_);
    } else if (stop_prompt_ == Stop::yes && is_turn_over()) {
        stop_prompt_ = Stop::stopped;
    }
    return stop_prompt_ != Stop::stopped;
}

void Engine::work() {
    Worker worker = this->worker();
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return state_ == State::stopping || !queue_.empty(); });
        if (state_ == State::stopping) break;
        const auto next = std::find_if(queue_.begin(), queue_.end(), [this](const auto& t) { return may_run(*t); });
        current_ = *next;  // the earliest of all may always run
        queue_.erase(next);
        const std::shared_ptr<Task> task = current_;
        session_.cancel(task->cancelled);
        if (!task->has_begun) ++counters_.n_task;
        task->has_begun = true;
        lock.unlock();
        begin_turn(0);
        is_switched_ = false;
        bool complete = true;
        try {
            complete = task->run(worker);
        } catch (const std::bad_alloc&) {
            task->fail(http_failure(500, "the server has no memory left for this request"));
        }
        const auto* reply = complete ? dynamic_cast<const Generation*>(task.get()) : nullptr;
        if (reply && options_.place.verbose) tell_rows(*reply);
        lock.lock();
        if (reply) count(*reply);
        counters_.n_history = session_.history().size();
        current_.reset();
        if (!complete) {
            ++counters_.n_turn;
            queue_.push_back(task);
        }
        if (queue_.empty()) worker.max_rows = SIZE_MAX;  // those who left no room for it are gone
    }
    lock.unlock();
    costs_.save(session_);
}

void Engine::tell_rows(const Generation& task) {
    for (const Usage& u : task.usages())
        cli::note(std::to_string(u.n_prompt) + " rows of prompt, " + std::to_string(u.n_prompt - u.n_cached) +
                  " computed (" + u.reuse + "), " + std::to_string(u.n_predicted) + " tokens of reply");
}

void Engine::count(const Generation& task) {
    Counters& c = counters_;
    ++c.n_request;
    for (const Usage& u : task.usages()) {
        c.n_prompt += u.n_prompt - u.n_cached;
        c.n_cached += u.n_cached;
        c.n_predicted += u.n_predicted;
        c.n_cycle += u.n_cycle;
        c.n_max = std::max<uint64_t>(c.n_max, u.n_prompt + u.n_predicted);
        c.prompt_s += u.prompt_s;
        c.predicted_s += u.predicted_s;
        for (uint32_t i = 0; i < auspex::kMaxDraft; ++i) c.drafted[i] += u.drafted[i], c.accepted[i] += u.accepted[i];
    }
}

void Engine::fail_waiting() {
    std::deque<std::shared_ptr<Task>> waiting;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        waiting.swap(queue_);
    }
    for (const auto& task : waiting) task->fail(unavailable("the server is stopping"));
}

Status Engine::stop() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        state_ = State::stopping;
        if (current_) session_.cancel();
        changed_.notify_all();
    }
    fail_waiting();
    if (thread_.joinable()) thread_.join();
    fail_waiting();  // its turn ended meanwhile
    return trace_.close();
}

Failure Engine::check() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    switch (state_) {
        case State::loading: return unavailable("Loading model");
        case State::failed: return http_failure(500, "the model could not be loaded: " + why_);
        case State::stopping: return unavailable("the server is stopping");
        case State::ready: break;
    }
    return {};
}

Failure Engine::submit(std::shared_ptr<Task> task) {
    const Failure failure = check();
    if (!failure.ok()) return failure;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state_ == State::stopping) return unavailable("the server is stopping");
    // One that finds the model idle does not wait.
    if (queue_.size() >= options_.max_queue + (current_ ? 0 : 1))
        return unavailable(std::to_string(queue_.size()) +
                           " requests wait already, which is the limit; try later, or "
                           "start the server with a larger --queue");
    task->number = ++n_submitted_;
    queue_.push_back(std::move(task));
    changed_.notify_all();
    return {};
}

bool Engine::cancel(const std::shared_ptr<Task>& task) {
    const std::lock_guard<std::mutex> lock(mutex_);
    task->cancelled = true;
    if (task == current_) session_.cancel();
    // A task that has begun stays queued: what it did is still to be counted.
    if (!task->has_begun) queue_.erase(std::remove(queue_.begin(), queue_.end(), task), queue_.end());
    return !task->has_begun;
}

Counters Engine::counters() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    Counters c = counters_;
    c.n_waiting = queue_.size();
    c.is_busy = current_ != nullptr;
    if (const auto* reply = dynamic_cast<const Generation*>(current_.get())) c.n_token = reply->n_token();
    return c;
}

}  // namespace server
