// tests/lossless_drafting: lossless drafting at length, on any device: the text is the same with every source, at
// every depth, greedy and seeded, with windows, formats, stops and turns. A program of its own, so that it can be
// carried to a machine with a GPU: lossless_drafting --device vulkan --model auspex-demo.gguf
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "../src/engine/session.h"
#include "draft_sources.h"
#include "draft_state.h"
#include "tiny.h"

using namespace auspex;
using namespace test;
using detail::say;

namespace {

constexpr int kPassed = 0, kFailed = 1, kUsage = 2, kSkipped = 77;

const char* const kUsageText =
    "usage: lossless_drafting [options]\n"
    "  --device cpu|vulkan[:N]  where to run (cpu)\n"
    "  --model FILE|tiny        a GGUF file, or a tiny random model made on the spot (the demo model)\n"
    "  --set quick|cover|full   how many combinations: a few, every pair that matters, all (cover)\n"
    "  --part K/N               only the Kth of N parts of these, for processes side by side\n"
    "  --tokens N               of each text (2000)\n"
    "  --fuzz N                 instead of texts: N cycles at random, the whole state compared\n"
    "  --jobs N, --threads N    texts at a time (cpu: 2, else 1), CPU threads of each (1)\n"
    "  --no-formats             leave quantised keys and values out\n"
    "  -v                       a line for each text\n";

struct Args {
    std::string device = "cpu", model = AUSPEX_REPO_DIR "/examples/models/auspex-demo.gguf", set = "cover";
    size_t n_token = 2000, part = 1, n_part = 1;
    uint64_t fuzz = 0;
    int jobs = 0, threads = 1;
    bool formats = true, verbose = false;
};

bool read_args(int argc, char** argv, Args* to) {
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        if (name == "-v")
            to->verbose = true;
        else if (name == "--no-formats")
            to->formats = false;
        else if (i + 1 == argc)
            return false;
        else if (name == "--device")
            to->device = argv[++i];
        else if (name == "--model")
            to->model = argv[++i];
        else if (name == "--set")
            to->set = argv[++i];
        else if (name == "--part") {
            char* slash = nullptr;
            to->part = std::strtoul(argv[++i], &slash, 10);
            to->n_part = *slash == '/' ? std::strtoul(slash + 1, nullptr, 10) : 0;
        } else if (name == "--tokens")
            to->n_token = std::strtoul(argv[++i], nullptr, 10);
        else if (name == "--fuzz")
            to->fuzz = std::strtoul(argv[++i], nullptr, 10);
        else if (name == "--jobs")
            to->jobs = std::atoi(argv[++i]);
        else if (name == "--threads")
            to->threads = std::atoi(argv[++i]);
        else
            return false;
    }
    if (to->jobs == 0) to->jobs = to->device == "cpu" ? 2 : 1;
    return to->n_token > 0 && to->jobs > 0 && to->part > 0 && to->part <= to->n_part &&
           (to->set == "quick" || to->set == "cover" || to->set == "full");
}

// ------------------------------------------------------------------------------------ what is combined

struct Prompt {
    const char* name;
    const char* text;
    const char* turn;  ///< what a caller adds in between
};
const Prompt kPrompts[] = {
    {"log",
     "2026-03-14 08:00 Pump-3 status=nominal temp=61C vibration=0.2 note: bearing inspected, no further action\n"
     "2026-03-14 08:15 Pump-3 status=nominal temp=61C vibration=0.2 note: bearing inspected, no further action\n"
     "2026-03-14 08:30 Pump-3 status=degraded temp=62C vibration=0.3 note: seal replaced, no further action\n",
     "\n2026-05-02 23:45 Crane-7 status=overheated temp=79C vibration=0.3 note: relay"},
    {"json",
     "[\n  {\n    \"id\": 4711,\n    \"unit\": \"Valve-2\",\n    \"status\": \"nominal\",\n    \"temp_c\": 48,\n    "
     "\"part\": \"gasket\",\n    \"action\": \"tightened\",\n"
     "    \"by\": \"Ada\"\n  },\n  {\n    \"id\": 815,",
     "\n{\"id\": 90210, \"unit\": \"Mixer-5\","},
    {"chat",
     "<|im_start|>user\nMake a table of unit, status and temp.\n{\"id\": 31415, \"unit\": \"Fan-4\", \"status\": "
     "\"idle\", \"temp_c\": 37, \"part\": \"belt\", \"action\": \"cleaned\", \"by\": \"Quin\"}\n"
     "{\"id\": 2718, \"unit\": \"Press-1\", \"status\": \"offline\", \"temp_c\": 95, \"part\": \"hose\", \"action\": "
     "\"replaced\", \"by\": \"Rosa\"}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
     "<|im_end|>\n<|im_start|>user\nWrite a short story about Hana.<|im_end|>\n<|im_start|>assistant\n"},
    {"prose",
     "Milo hid a torn map near the old mill. Nobody knew why June repaired a silent radio, least of all Omar. At the "
     "frozen lake, the fog would not lift, and Milo felt "
     "uneasy.\n\n",
     " Years before,"},
    {"code",
     "import os\nimport re\n\n\ndef read_lines(path):\n    \"\"\"Return the lines of a file, without their "
     "ends.\"\"\"\n    with open(path, encoding=\"utf-8\") as f:\n        return "
     "[line.rstrip(\"\\n\") for line in f]\n\n\nclass Table:\n",
     "\n\ndef main(argv=None):\n"},
};
constexpr size_t kPromptCount = sizeof kPrompts / sizeof kPrompts[0];

struct NamedSampling {
    const char* name;
    Sampling sampling;
};
std::vector<NamedSampling> samplings() {
    Sampling cool, hot, strict;
    cool.temperature = 0.7f;
    cool.seed = 3;
    cool.top_k = 40;
    cool.top_p = 0.95f;
    hot.temperature = 1.0f;
    hot.seed = 4;
    strict = cool;
    strict.min_p = 0.02f;
    strict.presence_penalty = 0.7f;
    strict.frequency_penalty = 0.3f;
    strict.repeat_penalty = 1.2f;
    Sampling biased = hot;
    for (Token id = 0; id < 280; id += 3) biased.logit_bias.push_back({id, static_cast<float>(id % 7) - 3});
    biased.logit_bias.insert(biased.logit_bias.end(), {{33, 1.5f}, {11, -100}});
    return {
        {"greedy", {}}, {"temperature 0.7", cool}, {"temperature 1", hot}, {"penalties", strict}, {"biases", biased}};
}

/// What of the past is kept, and how; part of what the text depends on.
struct Memory {
    const char* name;
    std::vector<LayerWindow> windows;
    KvType k = KvType::f16, v = KvType::f16;
};
std::vector<Memory> memories(bool formats) {
    std::vector<Memory> all = {{"full", {}},
                               {"windows 256+4", {{kAllLayers, 256, 4}}},
                               {"windows 64 and full", {{3, 64, 0}, {kDraftLayers, 32, 0}}}};
    if (formats) {
        all.push_back({"q8_0", {}, KvType::q8_0, KvType::q8_0});
        all.push_back({"q4_0", {}, KvType::q4_0, KvType::q4_0});
        all.push_back({"q8_0 and q4_0, windows 100", {{kAllLayers, 100, 0}}, KvType::q8_0, KvType::q4_0});
    }
    return all;
}

/// What a caller does while a text grows: nothing; cuts it where a stop string ends and says something else; cuts it at
/// a length and says something else.
enum class Calls { none, stops, turns };
const char* const kCallNames[] = {"to the end", "stop strings", "turns"};

struct Case {
    size_t prompt = 0;
    NamedSampling sampling;
    Memory memory;
    Calls calls = Calls::none;
    uint32_t n_ubatch = 512;  ///< pieces of a prefill round otherwise, so all texts of a case are read in the same
    std::string name() const {
        return say(kPrompts[prompt].name, ", ", sampling.name, ", ", memory.name, ", ",
                   kCallNames[static_cast<int>(calls)], ", chunks of ", n_ubatch);
    }
};

enum class Hostile { no, noise, teacher, wrong };
struct Drafting {
    std::string name;
    Draft source = Draft::off;
    int depth = 0;
    Hostile hostile = Hostile::no;
    uint32_t n_vocab = 0, window = 4096;
    float min_probability = 0;
    bool roam = false;  ///< another depth each cycle
};
std::vector<Drafting> draftings() {
    std::vector<Drafting> all;
    auto add = [&](const char* name, Draft source, int depth) -> Drafting& {
        Drafting d;
        d.name = say(name, " ", depth);
        d.source = source;
        d.depth = depth;
        all.push_back(d);
        return all.back();
    };
    for (int depth = 1; depth <= 8; ++depth) add("mtp", Draft::mtp, depth);
    add("mtp, its own choice", Draft::mtp, -1);
    add("mtp with 2048 ids", Draft::mtp, 3).n_vocab = 2048;
    add("mtp of at least 0.3", Draft::mtp, 8).min_probability = 0.3f;
    add("mtp with window 16", Draft::mtp, 2).window = 16;
    add("mtp and lookup", Draft::mtp_lookup, 5);
    add("mtp and lookup, roaming", Draft::mtp_lookup, 8).roam = true;
    add("mtp and lookup, its own choice", Draft::mtp_lookup, -1);
    add("lookup", Draft::lookup, 8);
    add("lookup, its own choice", Draft::lookup, -1);
    add("noise", Draft::lookup, 8).hostile = Hostile::noise;
    add("noise and mtp", Draft::mtp_lookup, 4).hostile = Hostile::noise;
    add("teacher", Draft::lookup, 8).hostile = Hostile::teacher;
    add("always wrong", Draft::lookup, 2).hostile = Hostile::wrong;
    return all;
}

struct Job {
    Case what;
    std::vector<Drafting> draftings;
};
std::vector<Job> jobs_of(const std::string& set, bool formats, bool has_mtp) {
    const std::vector<NamedSampling> sampling = samplings();
    const std::vector<Memory> memory = memories(formats);
    std::vector<Drafting> drafting;
    for (const Drafting& d : draftings())
        if (has_mtp || d.source == Draft::lookup) drafting.push_back(d);
    std::vector<Job> jobs;
    const uint32_t chunks[] = {512, 7, 64, 16, 33};
    size_t turn = 0;  // goes round the draftings, so that each meets everything else
    auto add = [&](size_t prompt, size_t s, size_t m, size_t n) {
        Job job{
            {prompt, sampling[s], memory[m], static_cast<Calls>((jobs.size() + prompt) % 3), chunks[jobs.size() % 5]},
            {}};
        for (size_t i = 0; i < n; ++i) job.draftings.push_back(drafting[turn++ % drafting.size()]);
        jobs.push_back(std::move(job));
    };
    for (size_t p = 0; p < kPromptCount; ++p) {
        if (set == "full") {
            for (size_t s = 0; s < sampling.size(); ++s)
                for (size_t m = 0; m < memory.size(); ++m) add(p, s, m, drafting.size());
        } else if (set == "cover") {
            for (size_t s = 0; s < 3; ++s) add(p, s, 0, 4);
            for (size_t m = 1; m < memory.size(); ++m)
                if ((p + m) % 2 == 0) add(p, (p / 2 + m) % sampling.size(), m, 3);
        } else {
            add(p, p % sampling.size(), (p + 3) % memory.size(), drafting.size() / kPromptCount + 1);
        }
    }
    return jobs;
}

/// Of all drafted texts, in order, those of the kth of n parts.
std::vector<Job> part_of(const std::vector<Job>& jobs, size_t k, size_t n) {
    size_t n_text = 0, i = 0;
    for (const Job& job : jobs) n_text += job.draftings.size();
    const size_t begin = n_text * (k - 1) / n, end = n_text * k / n;
    std::vector<Job> part;
    for (const Job& job : jobs) {
        Job some{job.what, {}};
        for (const Drafting& d : job.draftings) {
            if (i >= begin && i < end) some.draftings.push_back(d);
            ++i;
        }
        if (!some.draftings.empty()) part.push_back(std::move(some));
    }
    return part;
}

// --------------------------------------------------------------------------------------------- a text

struct Subject {
    Device device;
    Model model;
    std::vector<std::byte> bytes;  ///< of the tiny model
    bool tiny = false;

    /// The tiny model is given `n_tiny` random ids instead, and up to twice as many.
    std::vector<Token> encode(const char* text, size_t n_tiny) const {
        const size_t size = std::string_view(text).size();
        if (tiny) return tiny_ids(n_tiny + size % n_tiny, size);
        EncodeOptions special;
        special.special = true;
        return model.encode(text, special).value();
    }
    std::vector<std::string> stops() const {
        return tiny ? std::vector<std::string>{"a", "b", "c", "d", "e", "f", "g"}
                    : std::vector<std::string>{"status", "\n\n", "the ", "}"};
    }
};

struct Text {
    Status status;
    std::vector<Token> ids;  ///< from the start, prompt and turns included
    std::string shown;       ///< through TextStream, stop strings cut
    size_t n_stop = 0, n_turn = 0;
    Stats stats;
};

/// The text of a case: until the context is full, which is n_token tokens after the prompt.
Text write(const Subject& on, const Case& c, size_t n_token, const Drafting* drafting,
           const std::vector<Token>& truth) {
    Text text;
    const std::vector<Token> prompt = on.encode(kPrompts[c.prompt].text, 30),
                             turn = on.encode(kPrompts[c.prompt].turn, 4);
    SessionOptions o;
    o.n_context = static_cast<uint32_t>(prompt.size() + n_token);
    o.n_ubatch = c.n_ubatch;
    o.windows = c.memory.windows;
    o.kv_k = c.memory.k;
    o.kv_v = c.memory.v;
    Random random(n_token);
    if (drafting) {
        o.draft.source = drafting->source;
        o.draft.depth = drafting->depth;
        o.draft.n_vocab = on.tiny && drafting->n_vocab != 0 ? 100 : drafting->n_vocab;
        o.draft.window = drafting->window;
        o.draft.min_probability = drafting->min_probability;
    }
    Session session;
    text.status = Session::create(on.model, o).get(session);
    if (!text.status.ok()) return text;
    if (drafting && drafting->hostile != Hostile::no) {
        auto& text_source = session.impl()->sources.text;
        const uint32_t n_vocab = on.model.info().n_vocab;
        if (drafting->hostile == Hostile::noise) text_source.reset(new Noise(n_token + c.prompt, n_vocab));
        if (drafting->hostile == Hostile::teacher) text_source.reset(new Teacher(truth, n_vocab, n_token + c.prompt));
        if (drafting->hostile == Hostile::wrong) text_source.reset(new Wrong(truth, n_vocab));
    }
    text.status = session.sync(prompt).status();

    TextStream stream(on.model, c.calls == Calls::stops ? on.stops() : std::vector<std::string>());
    const size_t quiet = 2 + n_token / 25, apart = 2 + n_token / 7;  // tokens without a stop, and between turns
    size_t seen = prompt.size(), armed = seen + quiet, next_turn = seen + apart;
    std::vector<Token> kept;
    auto go_on = [&](size_t n) {  // keeps n tokens, and says something else
        kept.assign(session.history().begin(), session.history().begin() + static_cast<std::ptrdiff_t>(n));
        kept.insert(kept.end(), turn.begin(), turn.end());
        text.status = session.sync(kept).status();
        seen = kept.size();
    };
    while (text.status.ok()) {
        if (drafting && drafting->roam)
            text.status = session.set_draft_depth(static_cast<int>(random.below(kMaxDraft + 1)));
        const Result<Span<const Token>> next = session.next(c.sampling.sampling);
        if (next.status().code == Code::context_full) break;
        text.status = next.status();
        if (!next.ok()) break;
        if (c.calls == Calls::turns && next_turn + turn.size() < o.n_context && session.history().size() >= next_turn) {
            go_on(next_turn);
            next_turn = seen + apart + ++text.n_turn;
            continue;
        }
        for (; seen < session.history().size(); ++seen) {
            if (c.calls != Calls::stops || seen < armed || seen + 1 + turn.size() >= o.n_context) continue;
            text.shown += stream.push(session.history()[seen]).value();
            if (!stream.stopped()) continue;
            text.shown += stream.finish().value() + "|";
            ++text.n_stop;
            go_on(seen + 1);
            armed = seen + quiet;
            stream = TextStream(on.model, on.stops());
            break;
        }
    }
    text.ids.assign(session.history().begin(), session.history().end());
    text.shown += on.model.decode(text.ids).value();
    text.stats = session.stats();
    return text;
}

// -------------------------------------------------------------------------------------------- comparison

uint64_t sum(const uint64_t* v, size_t n) {
    uint64_t s = 0;
    for (size_t i = 0; i < n; ++i) s += v[i];
    return s;
}

struct Total {
    std::mutex mutex;
    size_t n_text = 0, n_token = 0, n_stop = 0, n_turn = 0;
    uint64_t n_drafted = 0, n_accepted = 0;
    std::vector<std::string> bad;

    void fail(const std::string& what) {
        std::lock_guard<std::mutex> lock(mutex);
        bad.push_back(what);
        std::printf("FAILED   %s\n", what.c_str());
        std::fflush(stdout);
    }
};

/// Nothing, or in which way the texts differ.
std::string difference(const Text& text, const Text& plain) {
    if (!text.status.ok()) return text.status.message();
    size_t i = 0;
    while (i < text.ids.size() && i < plain.ids.size() && text.ids[i] == plain.ids[i]) ++i;
    if (i < plain.ids.size() || i < text.ids.size())
        return say("token ", i, " is ", i < text.ids.size() ? text.ids[i] : -1, ", plain decoding has ",
                   i < plain.ids.size() ? plain.ids[i] : -1, " (", text.ids.size(), " and ", plain.ids.size(),
                   " tokens)");
    if (text.n_stop != plain.n_stop || text.n_turn != plain.n_turn || text.shown != plain.shown)
        return "the same tokens, but another text is shown";
    return {};
}

void run_job(const Subject& on, const Job& job, const Args& args, Total* total) {
    const Case& c = job.what;
    const Text plain = write(on, c, args.n_token, nullptr, {});
    if (!plain.status.ok()) return total->fail(c.name() + ": plain decoding: " + plain.status.message());
    for (const Drafting& drafting : job.draftings) {
        const Text text = write(on, c, args.n_token, &drafting, plain.ids);
        const std::string bad = difference(text, plain);
        if (!bad.empty()) total->fail(c.name() + "; " + drafting.name + ": " + bad);
        const uint64_t n_drafted = sum(text.stats.drafted, kMaxDraft), n_accepted = sum(text.stats.accepted, kMaxDraft);
        const uint64_t n_cycle = sum(text.stats.cycles, kMaxDraft + 1);
        if (drafting.hostile == Hostile::wrong && n_accepted != 0)
            total->fail(c.name() + "; " + drafting.name + ": a wrong guess was accepted");
        if (drafting.min_probability == 0 && drafting.source != Draft::lookup && n_drafted == 0 && text.status.ok())
            total->fail(c.name() + "; " + drafting.name + ": nothing was drafted");
        std::lock_guard<std::mutex> lock(total->mutex);
        total->n_text += 1;
        total->n_token += text.stats.tokens_sampled;
        total->n_stop += text.n_stop;
        total->n_turn += text.n_turn;
        total->n_drafted += n_drafted;
        total->n_accepted += n_accepted;
        if (args.verbose) {
            std::printf("%-8s %s; %s: %.2f tokens a pass, %.0f tokens/s\n", bad.empty() ? "same" : "DIFFERS",
                        c.name().c_str(), drafting.name.c_str(),
                        n_cycle > 0 ? double(text.stats.tokens_sampled) / double(n_cycle) : 0.0,
                        double(text.stats.tokens_sampled) / text.stats.decode_s);
            std::fflush(stdout);
        }
    }
}

Status open(const Args& args, Subject* on) {
    DeviceOptions device;
    device.kind = args.device == "cpu" ? Kind::cpu : Kind::vulkan;
    if (args.device.compare(0, 7, "vulkan:") == 0)
        device.vulkan_index = std::atoi(args.device.c_str() + 7);
    else if (args.device != "cpu" && args.device != "vulkan")
        return Status(Code::bad_argument, "--device " + args.device + ": expected cpu, vulkan or vulkan:N");
    device.n_thread = args.threads;
    AUSPEX_TRY(Device::open(device).get(on->device));
    on->tiny = args.model == "tiny";
    if (!on->tiny) return Model::load(on->device, args.model.c_str()).get(on->model);
    TinyOptions tiny;
    tiny.type = detail::Type::q8_0;
    on->bytes = tiny_qwen35(tiny);
    return Model::load(on->device, on->bytes).get(on->model);
}

int report(const Total& total, const Args& args, double seconds) {
    if (!total.bad.empty()) {
        std::printf("%zu failures\n", total.bad.size());
        return kFailed;
    }
    if (args.n_part == 1 && (total.n_accepted == 0 || total.n_accepted == total.n_drafted || total.n_turn == 0 ||
                             (total.n_stop == 0 && args.set != "quick"))) {
        std::printf(
            "nothing differs, but too little was covered: accepted, rejected, stops and turns must all occur\n");
        return kFailed;
    }
    std::printf("nothing differs, %.1f s\n", seconds);
    return kPassed;
}

int fuzz(const Subject& on, const Args& args) {
    FuzzOptions o;
    o.formats = args.formats;
    o.n_cycle = args.fuzz;
    o.n_rejection = std::max<uint64_t>(20, args.fuzz / 10);
    o.n_text = static_cast<uint32_t>(std::min<uint64_t>(500, 100 + args.fuzz / 10));
    FuzzCounts counts, rejected;
    std::string bad = fuzz_state(on.model, o, &counts);
    if (bad.empty()) bad = reject_all(on.model, o, &rejected);
    std::printf(
        "%llu cycles, %llu of %llu guesses right, %llu cut short, %llu turns, %llu states compared; %llu cycles with "
        "nothing but wrong guesses\n",
        static_cast<unsigned long long>(counts.n_cycle), static_cast<unsigned long long>(counts.n_accepted),
        static_cast<unsigned long long>(counts.n_drafted), static_cast<unsigned long long>(counts.n_stepped_back),
        static_cast<unsigned long long>(counts.n_turn), static_cast<unsigned long long>(counts.n_compared),
        static_cast<unsigned long long>(rejected.n_cycle));
    if (bad.empty() && counts.n_accepted != 0 && counts.n_accepted < counts.n_drafted && counts.n_compared > 1)
        return kPassed;
    std::printf("FAILED   %s\n",
                bad.empty() ? "too little was covered: accepted and rejected drafts must both occur" : bad.c_str());
    return kFailed;
}

}  // namespace

int main(int argc, char** argv) {
    Args args;
    if (!read_args(argc, argv, &args)) {
        std::fputs(kUsageText, stderr);
        return kUsage;
    }
    const auto start = std::chrono::steady_clock::now();
    Subject on;
    const Status opened = open(args, &on);
    if (!opened.ok()) {
        const char* required = std::getenv("AUSPEX_REQUIRE_GPU");
        const bool skip = opened.code == Code::no_device && !(required && *required && std::strcmp(required, "0") != 0);
        if (skip) std::printf("auspex-skip: lossless_drafting: needs a Vulkan device: ");
        std::printf("%s\n", opened.message().c_str());
        return skip ? kSkipped : kFailed;
    }
    if (args.fuzz != 0) return fuzz(on, args);
    const std::vector<Job> jobs =
        part_of(jobs_of(args.set, args.formats, on.model.info().n_mtp != 0), args.part, args.n_part);
    Total total;
    std::atomic<size_t> next{0};
    auto work = [&] {
        for (size_t i; (i = next++) < jobs.size();) run_job(on, jobs[i], args, &total);
    };
    std::vector<std::thread> threads;
    for (int i = 1; i < args.jobs; ++i) threads.emplace_back(work);
    work();
    for (std::thread& t : threads) t.join();
    std::printf("%s: %zu cases, %zu drafted texts, %zu tokens, %zu stops, %zu turns, %llu of %llu guesses right\n",
                on.device.name().c_str(), jobs.size(), total.n_text, total.n_token, total.n_stop, total.n_turn,
                static_cast<unsigned long long>(total.n_accepted), static_cast<unsigned long long>(total.n_drafted));
    return report(total, args, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}
