// The workloads of docs/TIMELINES.md that have a name.
#include "bench_trace.h"

namespace cli {
namespace {

/// Repeatable choices.
class Choices {
  public:
    explicit Choices(uint64_t seed) : state_(seed) {}
    uint64_t next() { return state_ = seed_of(state_, 0x9e37); }
    /// low .. high
    size_t between(size_t low, size_t high) { return low + static_cast<size_t>((next() >> 20) % (high - low + 1)); }
    bool once_in(size_t n) { return between(1, n) == 1; }

  private:
    uint64_t state_;
};

/// What an assistant wrote; templates drop the thinking of earlier turns.
struct Written {
    TextPart thinking, text;
};
constexpr size_t kHeader = 3;  // tokens that open a turn
constexpr size_t kThink = 2;   // tokens that open the thinking, the last ones of a prompt
constexpr uint64_t kHeaderSeed = 1, kThinkSeed = 4;

/// The answer's tokens, as one text: thinking and text follow each other.
TextPart answer_of(const Written& w) { return {w.thinking.seed, w.thinking.n + w.text.n}; }

void add_written(const Written& w, bool thinking, TraceRequest* r) {
    if (thinking) r->add(kThinkSeed, kThink);
    const TextPart part = thinking ? answer_of(w) : w.text;
    r->add(part.seed, part.n);
}

struct AgentRequest {
    TextPart user;
    std::vector<Written> steps;
    std::vector<TextPart> results;
};

/// The prompt of the next step of the last request.
TraceRequest agent_prompt(const std::vector<AgentRequest>& requests, bool keep_thinking) {
    constexpr size_t kSystem = 12000;
    TraceRequest r;
    r.add(2, kSystem);
    r.marks.push_back({kSystem, true});
    for (size_t i = 0; i < requests.size(); ++i) {
        const AgentRequest& a = requests[i];
        const bool last = i + 1 == requests.size();
        r.add(a.user.seed, a.user.n);
        r.add(kHeaderSeed, kHeader);
        if (last) r.marks.push_back({r.n_prompt, false});
        for (size_t k = 0; k < a.steps.size(); ++k) {
            add_written(a.steps[k], last || keep_thinking, &r);
            if (k < a.results.size()) r.add(a.results[k].seed, a.results[k].n);
        }
    }
    return r;
}

Written write(Choices& c, size_t thinking, size_t text) {
    const uint64_t seed = c.next();
    return {{seed, c.between(thinking / 2, thinking * 3 / 2)}, {seed_of(seed, 7), c.between(text / 2, text * 3 / 2)}};
}

}  // namespace

TraceRequest title_request(uint64_t seed, size_t n) {
    TraceRequest r;
    r.kind = RequestKind::title;
    r.add(3, n / 4);
    if (n >= 4) r.marks.push_back({n / 4, true});
    r.add(seed, n - n / 4);
    r.marks.push_back({n, false});
    r.answer = {seed_of(seed, 1), 15};
    return r;
}

RequestTrace make_agent_trace(bool keep_thinking) {
    RequestTrace trace;
    trace.name = keep_thinking ? "agent, thinking kept" : "agent, thinking dropped";
    Choices c(11);
    for (int session = 0; session < 6; ++session) {
        std::vector<AgentRequest> requests;
        for (int i = 0; i < 9; ++i) {
            requests.push_back({{c.next(), c.between(100, 300)}, {}, {}});
            const size_t n_step = c.between(6, 10);
            for (size_t step = 0; step < n_step; ++step) {
                TraceRequest r = agent_prompt(requests, keep_thinking);
                AgentRequest& last = requests.back();
                r.add(kThinkSeed, kThink);
                last.steps.push_back(write(c, 300, 120));
                r.answer = answer_of(last.steps.back());
                if (step + 1 < n_step) last.results.push_back({c.next(), c.between(225, 675)});
                trace.requests.push_back(std::move(r));
            }
            trace.requests.push_back(title_request(c.next(), 800));
        }
    }
    return trace;
}

namespace {

struct Turn {
    TextPart user;
    Written written;
};

TraceRequest chat_prompt(const std::vector<Turn>& turns, uint64_t system, bool keep_thinking) {
    constexpr size_t kSystem = 400;
    TraceRequest r;
    r.add(system, kSystem);
    r.marks.push_back({kSystem, true});
    for (size_t i = 0; i < turns.size(); ++i) {
        r.add(turns[i].user.seed, turns[i].user.n);
        r.add(kHeaderSeed, kHeader);
        if (i + 1 == turns.size())
            r.marks.push_back({r.n_prompt, false});
        else
            add_written(turns[i].written, keep_thinking, &r);
    }
    return r;
}

/// The next turn of a conversation: a new message, the last answer again, or an edit of one of the last five messages.
TraceRequest next_turn(Choices& c, std::vector<Turn>* turns, uint64_t system, bool keep_thinking) {
    const size_t kind = turns->empty() ? 10 : c.between(1, 10);
    if (kind == 1) {
        const size_t back = c.between(1, std::min<size_t>(5, turns->size()));
        turns->resize(turns->size() - back);
    }
    if (kind != 2) turns->push_back({{c.next(), c.between(50, 250)}, {}});
    turns->back().written = write(c, 900, 400);
    TraceRequest r = chat_prompt(*turns, system, keep_thinking);
    r.add(kThinkSeed, kThink);
    r.answer = answer_of(turns->back().written);
    return r;
}

}  // namespace

RequestTrace make_chat_trace(bool keep_thinking, size_t n_branch) {
    RequestTrace trace;
    trace.name = std::string("chat, thinking ") + (keep_thinking ? "kept, " : "dropped, ") + std::to_string(n_branch) +
                 (n_branch == 1 ? " branch" : " branches");
    Choices c(12);
    for (uint64_t conversation = 0; conversation < 10; ++conversation) {
        std::vector<std::vector<Turn>> branches(n_branch);
        for (int turn = 0; turn < 60; ++turn)
            for (std::vector<Turn>& turns : branches)
                trace.requests.push_back(next_turn(c, &turns, seed_of(conversation, 5), keep_thinking));
    }
    return trace;
}

RequestTrace make_loop_trace(const LoopShape& shape) {
    RequestTrace trace;
    trace.name = "loop of " + std::to_string(shape.prefix) + " + " + std::to_string(shape.steps) + " x " +
                 std::to_string(shape.append) + " rows, titles of " + std::to_string(shape.title);
    TraceRequest r;
    r.add(2, shape.prefix);
    const size_t system = std::min<size_t>(12000, shape.prefix / 2);
    if (system != 0) r.marks.push_back({system, true});
    for (size_t i = 0; i <= shape.steps; ++i) {
        if (i != 0) {
            if (shape.title != 0) trace.requests.push_back(title_request(seed_of(31, i), shape.title));
            r.prompt.push_back(r.answer);
            r.n_prompt += r.answer.n;
            r.add(seed_of(32, i), shape.append);
            r.marks.resize(system != 0);
            r.kind = RequestKind::step;
        }
        r.marks.push_back({r.n_prompt - std::min(kHeader, r.n_prompt), false});
        r.answer = {seed_of(33, i), shape.answer};
        trace.requests.push_back(r);
    }
    return trace;
}

}  // namespace cli
