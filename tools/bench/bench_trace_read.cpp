// Traces from files: the CSV form of coding-agent sessions and the JSONL form with hashes of 512-token blocks.
#include "bench_trace.h"

#include <charconv>
#include <queue>

namespace cli {
namespace {

constexpr int64_t kMaxLength = int64_t{1} << 24;  // tokens of a prompt
constexpr size_t kBlock = 512;

struct Line {
    const std::string& file;
    size_t number;
    std::string_view text;

    Status bad(const std::string& expected, const std::string& found) const {
        return Status(Code::bad_argument,
                      "'" + file + "', line " + std::to_string(number) + ": expected " + expected + ", found " + found);
    }
};

std::string in_quotes(std::string_view text) { return auspex::detail::quote(text, 40); }

std::vector<std::string_view> split(std::string_view text, char at) {
    std::vector<std::string_view> parts;
    for (size_t begin = 0;;) {
        const size_t end = std::min(text.find(at, begin), text.size());
        parts.push_back(text.substr(begin, end - begin));
        if (end == text.size()) return parts;
        begin = end + 1;
    }
}

/// The lines of a file without those that are empty, with their numbers from 1.
std::vector<std::pair<size_t, std::string_view>> lines_of(std::string_view text) {
    std::vector<std::pair<size_t, std::string_view>> lines;
    size_t number = 0;
    for (std::string_view line : split(text, '\n')) {
        ++number;
        if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
        if (!line.empty()) lines.push_back({number, line});
    }
    return lines;
}

// ---------------------------------------------------------------------------------------------- CSV

/// A round of a session: `prefix` tokens of what the session holds, then `input` new ones.
struct Round {
    int64_t session = 0, arrival = 0, round = 0, prefix = 0, input = 0, output = 0, wait = 0;
};
struct Column {
    const char* name;
    int64_t Round::*to;
    int64_t low, high;
    bool required;
};
constexpr int64_t kMaxTime = int64_t{1} << 50;
constexpr Column kColumns[] = {
    {"session_id", &Round::session, 0, kMaxTime, true},     {"arrival_time", &Round::arrival, 0, kMaxTime, false},
    {"round_idx", &Round::round, 0, kMaxTime, true},        {"prefix_len", &Round::prefix, 0, kMaxLength, true},
    {"input_len", &Round::input, 0, kMaxLength, true},      {"output_len", &Round::output, 0, kMaxLength, true},
    {"tool_wait_after_ms", &Round::wait, 0, kMaxTime, true}};

/// For each column of the file, the one of kColumns that it is, or null.
Status read_header(const Line& line, std::vector<const Column*>* columns) {
    const std::vector<std::string_view> names = split(line.text, ',');
    for (const std::string_view name : names) {
        const auto at =
            std::find_if(std::begin(kColumns), std::end(kColumns), [name](const Column& c) { return name == c.name; });
        columns->push_back(at == std::end(kColumns) ? nullptr : &*at);
        if (columns->back() && std::count(columns->begin(), columns->end(), columns->back()) > 1)
            return line.bad("each column once", in_quotes(name) + " twice");
    }
    for (const Column& c : kColumns)
        if (c.required && std::count(columns->begin(), columns->end(), &c) == 0)
            return line.bad("a column '" + std::string(c.name) + "'", in_quotes(line.text));
    return {};
}

Status read_round(const Line& line, const std::vector<const Column*>& columns, Round* round) {
    const std::vector<std::string_view> values = split(line.text, ',');
    if (values.size() != columns.size())
        return line.bad(std::to_string(columns.size()) + " values", std::to_string(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
        if (!columns[i]) continue;
        int64_t value = 0;
        const std::string_view text = values[i];
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc() || end != text.data() + text.size() || value < columns[i]->low ||
            value > columns[i]->high)
            return line.bad(std::string(columns[i]->name) + " as a number of 0 .. " + std::to_string(columns[i]->high),
                            in_quotes(text));
        round->*columns[i]->to = value;
    }
    const int64_t n = round->prefix + round->input;
    if (n < 1 || n > kMaxLength)
        return line.bad("a prompt of 1 .. " + std::to_string(kMaxLength) + " tokens (prefix_len + input_len)",
                        std::to_string(n));
    return {};
}

/// Sorts the rounds by when each can be served.
void order_rounds(TraceOrder order, std::vector<Round>* rounds) {
    std::map<int64_t, std::queue<Round>> sessions;
    for (const Round& r : *rounds) sessions[r.session].push(r);
    using Next = std::pair<int64_t, int64_t>;  // time, session
    std::priority_queue<Next, std::vector<Next>, std::greater<Next>> next;
    for (const auto& [id, queue] : sessions) next.push({queue.front().arrival, id});
    rounds->clear();
    for (int64_t now = 0; !next.empty();) {
        const auto [time, id] = next.top();
        next.pop();
        std::queue<Round>& queue = sessions[id];
        const Round r = queue.front();
        queue.pop();
        rounds->push_back(r);
        int64_t end = time;
        if (order == TraceOrder::queue) end = now = std::max(now, time) + r.input / 2 + r.output * 20;  // milliseconds
        if (!queue.empty()) next.push({end + r.wait, id});
    }
}

RequestTrace make_rounds(const std::vector<Round>& rounds) {
    RequestTrace trace;
    std::map<int64_t, std::vector<TextPart>> sessions;
    for (const Round& round : rounds) {
        std::vector<TextPart>& text = sessions[round.session];
        const uint64_t session = seed_of(20, static_cast<uint64_t>(round.session));
        TraceRequest r;
        size_t left = static_cast<size_t>(round.prefix);
        for (const TextPart& part : text) {
            const size_t n = std::min(part.n, left);
            r.add(part.seed, n);
            left -= n;
        }
        const uint64_t i = static_cast<uint64_t>(round.round);
        r.add(seed_of(session, 3 * i), left);  // a prefix that the trace does not show
        r.add(seed_of(session, 3 * i + 1), static_cast<size_t>(round.input));
        r.answer = {seed_of(session, 3 * i + 2), static_cast<size_t>(round.output)};
        text = r.prompt;
        if (r.answer.n != 0) text.push_back(r.answer);
        trace.requests.push_back(std::move(r));
    }
    return trace;
}

Result<RequestTrace> read_csv(const std::string& file, const std::vector<std::pair<size_t, std::string_view>>& lines,
                              TraceOrder order) {
    std::vector<const Column*> columns;
    Status s = read_header({file, lines[0].first, lines[0].second}, &columns);
    if (!s.ok()) return s;
    std::vector<Round> rounds;
    for (size_t i = 1; i < lines.size(); ++i) {
        Round round;
        s = read_round({file, lines[i].first, lines[i].second}, columns, &round);
        if (!s.ok()) return s;
        rounds.push_back(round);
    }
    const bool timed = std::any_of(columns.begin(), columns.end(),
                                   [](const Column* c) { return c && std::string(c->name) == "arrival_time"; });
    if (timed && order != TraceOrder::sessions) order_rounds(order, &rounds);
    return make_rounds(rounds);
}

// -------------------------------------------------------------------------------------------- JSONL

Status read_length(const Line& line, const nlohmann::json& object, const char* key, int64_t low, int64_t* to) {
    const std::string expected =
        "\"" + std::string(key) + "\" as a number of " + std::to_string(low) + " .. " + std::to_string(kMaxLength);
    if (!object.contains(key)) return line.bad(expected, "no such member");
    const nlohmann::json& value = object[key];
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{1} << 62) ||
        value.get<int64_t>() < low || value.get<int64_t>() > kMaxLength)
        return line.bad(expected, in_quotes(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)));
    *to = value.get<int64_t>();
    return {};
}

Status read_hashes(const Line& line, TraceRequest* r) {
    const nlohmann::json object = nlohmann::json::parse(line.text, nullptr, false);
    if (!object.is_object()) return line.bad("one JSON object", in_quotes(line.text));
    int64_t input = 0, output = 0;
    Status s = read_length(line, object, "input_length", 1, &input);
    if (s.ok()) s = read_length(line, object, "output_length", 0, &output);
    if (!s.ok()) return s;
    const size_t n = static_cast<size_t>(input), n_block = (n + kBlock - 1) / kBlock;
    if (!object.contains("hash_ids") || !object["hash_ids"].is_array())
        return line.bad("\"hash_ids\" as an array", object.contains("hash_ids") ? "another type" : "no such member");
    const nlohmann::json& ids = object["hash_ids"];
    if (ids.size() != n_block)
        return line.bad(std::to_string(n_block) + " hash_ids for " + std::to_string(n) + " tokens in blocks of 512",
                        std::to_string(ids.size()));
    for (size_t i = 0; i < n_block; ++i) {
        if (!ids[i].is_number_integer())
            return line.bad("integers in \"hash_ids\"", "element " + std::to_string(i) + " of another type");
        r->add(seed_of(21, ids[i].get<uint64_t>()), std::min(kBlock, n - i * kBlock));
    }
    // The last block changes with whatever follows it, so a later prompt shares the whole blocks alone.
    const size_t whole = (n - 1) / kBlock * kBlock;
    if (whole != 0) r->marks.push_back({whole, false});
    r->answer = {seed_of(22, line.number), static_cast<size_t>(output)};
    return {};
}

}  // namespace

Result<RequestTrace> read_trace(const std::string& path, TraceOrder order) {
    std::string text;
    Status s = read_bytes(path).get(text);
    if (!s.ok()) return s;
    const auto lines = lines_of(text);
    if (lines.empty()) return Status(Code::bad_argument, "'" + path + "': expected a trace, found an empty file");
    RequestTrace trace;
    if (lines[0].second[0] == '{') {
        for (const auto& [number, line] : lines) {
            trace.requests.emplace_back();
            s = read_hashes({path, number, line}, &trace.requests.back());
            if (!s.ok()) return s;
        }
    } else {
        s = read_csv(path, lines, order).get(trace);
        if (!s.ok()) return s;
        if (trace.requests.empty()) return Line{path, lines[0].first, {}}.bad("rounds after the header", "none");
    }
    trace.name = path;
    return trace;
}

}  // namespace cli
