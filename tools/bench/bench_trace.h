// bench_trace: recorded or made-up requests, replayed on a model or on the integers of a session alone.
//
// Owns    the requests of a trace as seeds, from which token ids are made; what an unbounded cache would have to
//         compute; the totals. bench_trace_read.cpp reads files, bench_trace_make.cpp makes the workloads that have a
//         name, bench_trace_dry.cpp runs them through PrefixTree, bench_trace_model.cpp through a Session.
// Thread  one.
// Tests   tests/test_cli_replay.py.
#pragma once
#include <map>
#include <unordered_map>

#include "bench.h"
#include "engine/prefix_tree.h"

namespace cli {

/// n tokens of a text that `seed` names, from its start. The same seed is the same text.
struct TextPart {
    uint64_t seed = 0;
    size_t n = 0;
};

enum class RequestKind : uint8_t { plain, title, step };

struct TraceRequest {
    std::vector<TextPart> prompt;
    TextPart answer;
    std::vector<auspex::Mark> marks;
    size_t n_prompt = 0;  ///< tokens
    RequestKind kind = RequestKind::plain;

    void add(uint64_t seed, size_t n) {
        if (n == 0) return;
        prompt.push_back({seed, n});
        n_prompt += n;
    }
};

struct RequestTrace {
    std::string name;
    std::vector<TraceRequest> requests;  ///< in the order they are served
    size_t max_tokens() const;           ///< of the longest prompt with its answer
};

/// Mixes numbers into a seed.
uint64_t seed_of(uint64_t a, uint64_t b, uint64_t c = 0);
constexpr uint32_t kTraceVocab = 248320;  ///< of the published models of this family
/// Appends the ids of these tokens.
void append_tokens(const TextPart& part, std::vector<Token>* ids, uint32_t n_vocab = kTraceVocab);

/// In which order the rounds of several sessions are served, if the file has times.
enum class TraceOrder {
    arrival,   ///< when they arrive, if serving took no time
    queue,     ///< first come, first served, at 2000 rows/s of new prompt and 50 generated tokens/s
    sessions,  ///< one session after the other
};

/// A file: CSV with a header line, or a JSON object on each line. errors: bad_argument: names line, expected, found.
Result<RequestTrace> read_trace(const std::string& path, TraceOrder order);
/// "agent": 6 sessions of 9 requests of about 8 tool steps, each request followed by a title request.
RequestTrace make_agent_trace(bool keep_thinking);
/// "chat": 10 times n_branch conversations of 60 turns in turn; of the turns 10 % are repeated, 10 % edit an earlier
/// one.
RequestTrace make_chat_trace(bool keep_thinking, size_t n_branch);
/// "loop": a prompt of `prefix` tokens, then `steps` times an answer, a title request and `append` more tokens.
struct LoopShape {
    size_t prefix = 30000, steps = 20, append = 870, title = 800, answer = 32;
};
RequestTrace make_loop_trace(const LoopShape& shape);
TraceRequest title_request(uint64_t seed, size_t n);
/// The trace that the options name. errors: bad_argument, those of read_trace().
Status load_trace(const BenchOptions& o, RequestTrace* trace);

/// The texts that were computed so far, as an unbounded cache with a state at every row would know them.
class SeenText {
  public:
    /// How many rows of this prompt are known.
    size_t known(const std::vector<TextPart>& prompt) const;
    void add(const std::vector<TextPart>& text);

  private:
    struct Key {
        uint64_t parent, cut, seed;  ///< the part before, how much of it, and the part's text
        bool operator==(const Key& o) const { return parent == o.parent && cut == o.cut && seed == o.seed; }
    };
    struct Hash {
        size_t operator()(const Key& k) const { return static_cast<size_t>(seed_of(k.parent, k.cut, k.seed)); }
    };
    struct Known {
        uint64_t id = 0;
        size_t n = 0;
    };
    std::unordered_map<Key, Known, Hash> parts_;
};

/// What serving one request took.
struct Served {
    size_t n_prompt = 0, needed = 0;
    auspex::SyncReport sync;
    uint64_t held_bytes = 0;         ///< for checkpoints and parked rows, after it
    double sync_s = 0, first_s = 0;  ///< first_s: until the first token; 0 without a model
};
/// The sums over a replay, and its requests one by one where they are wanted.
struct Totals {
    size_t requests = 0;
    uint64_t prompt = 0, needed = 0, computed = 0, reused = 0;
    double worst = 1;  ///< computed over needed of one request
    std::map<std::string, size_t> reasons;
    nlohmann::ordered_json each = nlohmann::ordered_json::array();

    /// verbose: prints a line, or keeps the request for the JSON object.
    void add(const Served& served, const BenchOptions& o);
    /// requests, rows_*, worst_ratio.
    void write(nlohmann::ordered_json* out) const;
    void print(const RequestTrace& trace) const;
};

/// How much is kept, and where. errors: bad_argument: --policy, --context.
Result<auspex::detail::PrefixPolicy> replay_policy(const BenchOptions& o);
Result<size_t> replay_context(const BenchOptions& o, size_t longest);
/// The index of a name in a list. errors: bad_argument: lists the names.
Result<size_t> index_of(const std::string& option, const std::string& found, const std::vector<std::string>& names);

Status bench_trace(const BenchOptions& o);  ///< --replay --dry
Status bench_trace_model(Bench& b);         ///< --replay

}  // namespace cli
