// constraint_samples: texts of a model under constraints, with drafts, for another program to check.
// usage: constraint_samples [options] LINES.jsonl > SAMPLES.jsonl
//
//   LINES     {"schema": {..}}, {"gbnf": ".."} or {"tools": [{..}, ..], "style": "qwen" or "chatml"}, whose calls are
//             required; sample i is one of line i modulo their number
//   SAMPLES   {"line": I, "text": ".."} of each text that ended, or for tools {"line": I, "calls": [{"name",
//             "arguments"}]}; those cut off by their length are only counted. The last line:
//             {"samples": N, "ended": N, "drafted": N, "accepted": N, "wrong": N, "device": ".."}
//
// A text is wrong if its bytes are no text of the grammar, or for one that was cut off, no beginning of one; or if it
// ended and its calls cannot be read. Then the exit code is 1.
#include <climits>
#include <cstdio>
#include <cstring>

#include "../src/base/json.h"
#include "../src/engine/constraint.h"
#include "../src/grammar/automaton.h"
#include "../src/grammar/interface.h"
#include "../tests/support.h"
#include "../tests/tiny.h"
#include "read_option.h"

namespace {

using namespace auspex;
using namespace auspex::detail;

struct Options {
    uint64_t count = 1000, seed = 1, n_token = 120;
    int depth = 3;
    DeviceOptions device;
    const char *model = nullptr, *lines = nullptr;
};

/// One line: its constraint, and a second reader of its texts.
struct Line {
    Constraint constraint;
    std::unique_ptr<Automaton> reader;
    std::vector<std::string> tools;
};

Result<Grammar> read_grammar(const Json& json, std::vector<std::string>& tools) {
    if (const Json* schema = json.find("schema")) return Grammar::from_json_schema(schema->dump());
    if (const Json* gbnf = json.find("gbnf")) return Grammar::from_gbnf(gbnf->text());
    const Json *list = json.find("tools"), *style = json.find("style");
    if (!list) return Status(Code::bad_argument, "expected \"schema\", \"gbnf\" or \"tools\"");
    for (const Json& t : list->items()) tools.push_back(t.dump());
    ToolOptions options;
    options.choice = ToolChoice::required;
    options.parallel = false;  // the demo model would go on with calls
    if (style && style->text() == "chatml") options.chat_template = ChatStyle::chatml_no_think;
    return Grammar::from_tools(tools, options);
}

Status read_lines(const std::string& all, const Model& model, std::vector<Line>& lines) {
    for (size_t from = 0; from < all.size();) {
        const size_t end = std::min(all.find('\n', from), all.size());
        const std::string_view text = std::string_view(all).substr(from, end - from);
        from = end + 1;
        if (text.empty()) continue;
        Json json;
        Line line;
        Grammar grammar;
        AUSPEX_TRY(Json::parse(text).get(json));
        if (const Status s = read_grammar(json, line.tools).get(grammar); !s.ok())
            return Status(s.code, say("line ", lines.size() + 1, ": ", s.text));
        AUSPEX_TRY(Constraint::create(model, grammar).get(line.constraint));
        line.reader = std::make_unique<Automaton>(grammar.impl()->rules);
        lines.push_back(std::move(line));
    }
    return lines.empty() ? Status(Code::bad_argument, "no line") : Status();
}

std::string calls_of(const ChatReply& reply) {
    std::string out;
    for (const ToolCall& call : reply.tool_calls) {
        std::string arguments;
        for (const ToolArgument& a : call.arguments)
            arguments += (arguments.empty() ? "" : ", ") + Json::of_string(a.name).dump() + ": " +
                         (a.json ? a.value : Json::of_string(a.value).dump());
        out += (out.empty() ? "" : ", ") + std::string("{\"name\": ") + Json::of_string(call.name).dump() +
               ", \"arguments\": {" + arguments + "}}";
    }
    return out;
}

class Samples {
  public:
    Samples(const Options& o, const Model& model) : o_(o), model_(model) {}

    Status run(std::vector<Line>& lines) {
        SessionOptions options;
        options.n_context = static_cast<uint32_t>(o_.n_token) + 64;
        options.n_ubatch = 64;
        options.draft.source = Draft::mtp;
        options.draft.depth = o_.depth;
        AUSPEX_TRY(Session::create(model_, options).get(session_));
        for (uint64_t i = 0; i < o_.count; ++i) AUSPEX_TRY(sample(lines, i));
        return {};
    }
    size_t n_ended = 0, n_wrong = 0;
    Stats stats() const { return session_.stats(); }

  private:
    Status sample(std::vector<Line>& lines, uint64_t i) {
        const size_t i_line = i % lines.size();
        Line& line = lines[i_line];
        Sampling sampling;
        sampling.constraint = line.constraint;
        sampling.seed = o_.seed + i;
        sampling.temperature = i / lines.size() % 2 == 0 ? 1.0f : 2.0f;
        std::vector<Token> ids;
        AUSPEX_TRY(session_.sync({}).status());
        AUSPEX_TRY(session_.sync(test::tiny_ids(8, o_.seed + i)).status());
        while (ids.size() < o_.n_token && (ids.empty() || !model_.is_end(ids.back()))) {
            const auto next = session_.next(sampling);
            if (!next.ok()) return Status(next.status().code, say("sample ", i, ": ", next.status().text));
            ids.insert(ids.end(), next.value().begin(), next.value().end());
        }
        std::string text;
        AUSPEX_TRY(model_.decode(ids, {}).get(text));
        const bool ended = model_.is_end(ids.back());
        StateId s = line.reader->start();
        for (const char b : text) s = line.reader->step(s, static_cast<unsigned char>(b));
        bool good = ended ? line.reader->accepting(s) : s != kDead;
        if (ended) good = print(line, i_line, text) && good;
        n_ended += ended;
        n_wrong += !good;
        if (!good) std::fprintf(stderr, "line %zu, sample %llu is wrong\n", i_line + 1, (unsigned long long)i);
        return {};
    }

    static bool print(const Line& line, size_t i_line, const std::string& text) {
        std::string member = "\"text\": " + Json::of_string(text).dump();
        bool good = true;
        if (!line.tools.empty()) {
            const auto reply = parse_reply(text, false, line.tools);
            good = reply.ok() && !reply.value().tool_calls.empty() && reply.value().content.empty();
            if (good) member = "\"calls\": [" + calls_of(reply.value()) + "]";
        }
        std::printf("{\"line\": %zu, %s}\n", i_line, member.c_str());
        return good;
    }

    const Options& o_;
    const Model& model_;
    Session session_;
};

bool read_options(int argc, char** argv, Options& o) {
    o.device.kind = Kind::cpu;
    o.device.n_thread = 1;
    for (int i = 1; i < argc; ++i) {
        const auto is = [&](const char* name) { return std::strcmp(argv[i], name) == 0 && i + 1 < argc; };
        bool good = true;
        if (is("--count"))
            good = tools::read_number<uint64_t>(argv[++i], o.count, 0, UINT64_MAX);
        else if (is("--seed"))
            good = tools::read_number<uint64_t>(argv[++i], o.seed, 0, UINT64_MAX);
        else if (is("--length"))
            good = tools::read_number<uint64_t>(argv[++i], o.n_token, 1, 99999);
        else if (is("--depth"))
            good = tools::read_number<int>(argv[++i], o.depth, 0, kMaxDraft);
        else if (is("--device"))
            good = tools::read_device(argv[++i], o.device.kind);
        else if (is("--gpu"))
            good = tools::read_number<int>(argv[++i], o.device.vulkan_index, 0, INT_MAX);
        else if (is("--model"))
            o.model = argv[++i];
        else if (argv[i][0] != '-' && !o.lines)
            o.lines = argv[i];
        else
            good = false;
        if (!good) return false;
    }
    return o.lines != nullptr;
}

int fail_with(const Status& s) { return std::fprintf(stderr, "constraint_samples: %s\n", s.message().c_str()), 2; }

}  // namespace

int main(int argc, char** argv) {
    Options o;
    if (!read_options(argc, argv, o))
        return std::fprintf(stderr,
                            "usage: constraint_samples [--count N] [--seed S] [--length TOKENS] [--depth D] "
                            "[--device cpu|vulkan] [--gpu INDEX] [--model FILE] LINES.jsonl\n"),
               2;
    test::TinyOptions tiny;
    tiny.scale = 0.3f;  // nearly uniform: the constraint decides
    if (o.device.kind == Kind::vulkan) tiny.n_head_k = 1, tiny.n_head_v = 2;
    const std::vector<std::byte> bytes = o.model ? std::vector<std::byte>() : test::tiny_model(tiny);
    Device device;
    Model model;
    Status s = Device::open(o.device).get(device);
    if (s.ok()) s = (o.model ? Model::load(device, o.model) : Model::load(device, bytes)).get(model);
    std::string text;
    if (s.ok()) {
        std::FILE* f = std::fopen(o.lines, "rb");
        if (!f) return fail_with(Status(Code::not_found, std::string(o.lines) + " cannot be opened"));
        char part[1 << 16];
        for (size_t n; (n = std::fread(part, 1, sizeof part, f)) > 0;) text.append(part, n);
        std::fclose(f);
    }
    std::vector<Line> lines;
    if (s.ok()) s = read_lines(text, model, lines);
    if (!s.ok()) return fail_with(s);
    Samples samples(o, model);
    s = samples.run(lines);
    if (!s.ok()) return fail_with(s);
    const Stats stats = samples.stats();
    std::printf(
        "{\"samples\": %llu, \"ended\": %zu, \"drafted\": %llu, \"accepted\": %llu, \"wrong\": %zu, \"device\": %s}\n",
        static_cast<unsigned long long>(o.count), samples.n_ended,
        static_cast<unsigned long long>(test::sum(stats.drafted, kMaxDraft)),
        static_cast<unsigned long long>(test::sum(stats.accepted, kMaxDraft)), samples.n_wrong,
        Json::of_string(device.name()).dump().c_str());
    return samples.n_wrong == 0 ? 0 : 1;
}
