// cli/eval: what a window or a KV format costs in quality, measured against the same model without it.
//
//   NLL         mean negative log likelihood of the text, in total and by position
//   KL          from the full model's next-token distribution to this one's, and how often the first choice agrees
//   greedy      tokens that agree with the full model's greedy text, after half of the text
//   recall      a fact stands at some depth of a longer text, whose end asks for it: does greedy text repeat it?
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "common.h"
#include "platform.h"
#include "plot.h"
#include "printable.h"
#include "texts.h"
#include "window.h"

namespace cli {
namespace {

struct EvalOptions {
    PlaceOptions place;
    std::string file, windows = "full;all:512;all:256;all:128;all:64;all:32", type = "f16", plot;
    int64_t n = 1024, greedy = 48, needle = 768, ubatch = 128;
    bool json = false;
};

constexpr size_t kMaxKept = size_t{1} << 26;  // logits of the full model that are kept for comparing, 256 MiB

std::string built_in_text(size_t bytes) {
    Dice dice{11};
    std::string text;
    for (uint32_t minute = 480; text.size() < bytes; minute += 1 + dice.below(7)) text += plant_log_line(dice, minute);
    return text;
}

/// ln of the sum of exponentials.
double log_sum(Span<const float> logits) {
    double top = -INFINITY, sum = 0;
    for (float x : logits) top = std::fmax(top, double{x});
    for (float x : logits) sum += std::exp(double{x} - top);
    return top + std::log(sum);
}

size_t best_of(Span<const float> logits) {
    return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

struct Scores {
    std::string spec;
    uint64_t kv_bytes = 0;
    std::vector<double> nll;     ///< [n - 1] of each position's next token
    double kl = 0, agree = 0;    ///< means over the rows kept
    size_t n_greedy = 0;         ///< tokens that agree, of EvalOptions::greedy
    std::vector<double> recall;  ///< by depth: share of needles repeated
    std::vector<Token> greedy;
    double mean() const { return mean(0, nll.size()); }
    double mean(size_t from, size_t to) const {
        double sum = 0;
        to = std::min(to, nll.size());
        for (size_t i = from; i < to; ++i) sum += nll[i];
        return to > from ? sum / double(to - from) : NAN;
    }
};

class Eval {
  public:
    explicit Eval(const EvalOptions& o) : o_(o) {}

    Status run() {
        Status s = prepare();
        if (!s.ok()) return s;
        for (size_t i = 0; i < specs_.size(); ++i) {
            s = measure(specs_[i], &all_[i]);
            clear_progress_line();
            if (!s.ok()) return s;
        }
        s = print(o_.json ? json() : table());  // first, so that it is not lost with a plot that cannot be written
        return s.ok() && !o_.plot.empty() ? plot() : s;
    }

  private:
    static constexpr double kDepths[] = {0.1, 0.3, 0.5, 0.7, 0.9};
    static constexpr size_t kNeedles = 3;  ///< at each depth

    /// Reads the options and refuses what is wrong with them, before anything is loaded.
    Status check() {
        const auto within = [](const char* name, int64_t value, int64_t low, int64_t high) {
            if (value >= low && value <= high) return Status();
            return Status(Code::bad_argument, std::string(name) + " " + std::to_string(value) + ": expected " +
                                                  std::to_string(low) + " .. " + std::to_string(high));
        };
        Status s = check_late_output(o_.plot, "--plot");
        if (s.ok()) s = within("-n", o_.n, 32, 1 << 22);
        if (s.ok()) s = within("--greedy", o_.greedy, 0, 100000);
        if (s.ok()) s = within("--needle", o_.needle, 0, 1 << 22);
        if (!s.ok()) return s;
        for (size_t from = 0; from <= o_.windows.size();) {
            const size_t end = std::min(o_.windows.find(';', from), o_.windows.size());
            specs_.push_back(o_.windows.substr(from, end - from));
            from = end + 1;
        }
        specs_.erase(std::remove(specs_.begin(), specs_.end(), std::string("full")), specs_.end());
        specs_.insert(specs_.begin(), "full");  // what the others are measured against
        all_.resize(specs_.size());
        auspex::SessionOptions options;
        if (s.ok()) s = choose("all:full", &options);  // --kv-type, also where nothing is compared
        if (s.ok() && specs_.size() == 1 && o_.type != "f16")
            s = Status(Code::bad_argument, "--kv-type " + o_.type +
                                               " is for what is compared with the full model in f16, but --windows "
                                               "names nothing else; expected all:full for all rows in that format");
        for (const std::string& spec : specs_) {
            if (s.ok() && spec != "full") s = auspex::parse_windows(spec).status();
            if (s.ok()) s = choose(spec, &options);
        }
        return s;
    }

    Status prepare() {
        Status s = check();
        if (s.ok()) s = load(o_.place, &on_);
        if (!s.ok()) return s;
        const size_t n = static_cast<size_t>(o_.n);
        std::string text = built_in_text(n * 8);
        if (!o_.file.empty()) {
            s = read_bytes(o_.file).get(text);
            if (s.ok()) s = check_utf8(text, "the text");
            if (!s.ok()) return s;
        }
        s = on_.model.encode(text, {false, true}).get(ids_);
        if (!s.ok()) return s;
        if (ids_.size() < 32)
            return Status(Code::bad_argument,
                          "the text has " + std::to_string(ids_.size()) + " tokens, expected at least 32");
        if (ids_.size() > n) ids_.resize(n);
        const size_t n_vocab = on_.model.info().n_vocab;
        every_ = std::max<size_t>(1, (ids_.size() * n_vocab + kMaxKept - 1) / kMaxKept);
        kept_.resize((ids_.size() - 1 + every_ - 1) / every_ * n_vocab);
        if (o_.needle != 0) s = make_needles();
        longest_ = ids_.size() + static_cast<size_t>(o_.greedy) + 1;
        for (const Needle& one : needles_) longest_ = std::max(longest_, one.prompt.size() + one.answer.size() + 1);
        for (size_t i = 0; s.ok() && i < specs_.size(); ++i) s = plan(specs_[i], &all_[i].kv_bytes);
        return s;
    }

    /// The options of a session with the windows of `spec`.
    Status choose(const std::string& spec, auspex::SessionOptions* to) const {
        const bool full = spec == "full";  // the model as it is
        WindowFlags flags;
        flags.ubatch = o_.ubatch;
        flags.window = full ? "" : spec;
        flags.type = full ? "f16" : o_.type;
        *to = {};
        to->n_context = static_cast<uint32_t>(longest_);
        to->draft.source = auspex::Draft::off;
        to->progress = [line = progress_line(), what = "reading with " + spec](const char*, float fraction) {
            return line(what.c_str(), fraction);
        };
        return choose_window(flags, to);
    }

    /// Bytes of keys and values; an error where the model cannot have these windows.
    Status plan(const std::string& spec, uint64_t* kv_bytes) const {
        auspex::SessionOptions options;
        auspex::MemoryPlan plan;
        Status s = choose(spec, &options);
        if (s.ok()) s = auspex::Session::plan(on_.model, options).get(plan);
        for (const auspex::MemoryItem& item : plan.items)
            if (item.what == "keys" || item.what == "values" || item.what == "sinks") *kv_bytes += item.bytes;
        return s.code == Code::unsupported ? Status() : s;
    }

    /// Texts of about o_.needle tokens, each with a fact at its depth and, at its end, the beginning of the fact.
    Status make_needles() {
        Dice dice{5};
        for (const double depth : kDepths)
            for (size_t k = 0; k < kNeedles; ++k) {
                const std::string name = std::string(1, static_cast<char>('A' + dice.below(26))) +
                                         static_cast<char>('A' + dice.below(26)) + std::to_string(10 + dice.below(90));
                const std::string asked = "note: the key of cabinet " + name + " is",
                                  answer = " " + std::to_string(1000 + dice.below(9000));
                const auto size = [&](const std::string& text) { return on_.model.encode(text).value().size(); };
                std::string hay;
                size_t n_token = 0;
                for (uint32_t minute = 0; n_token < static_cast<size_t>(o_.needle); ++minute) {
                    if (interrupted()) return Status(Code::cancelled, "interrupted");
                    std::string lines;
                    for (int i = 0; i < 8; ++i)
                        lines += plant_log_line(dice, 480 + minute * 8 + static_cast<uint32_t>(i));
                    n_token += size(lines);  // a token of a log does not cross the end of a line
                    hay += lines;
                }
                size_t at = hay.find('\n', static_cast<size_t>(depth * double(hay.size())));
                at = at == std::string::npos ? 0 : at + 1;
                Needle needle;
                hay = hay.substr(0, at) + asked + answer + "\n" + hay.substr(at) + asked;
                needle.prompt = on_.model.encode(hay, {false, true}).value();
                needle.answer = on_.model.encode(answer).value();
                needles_.push_back(std::move(needle));
            }
        return {};
    }

    Status measure(const std::string& spec, Scores* to) {
        to->spec = spec;
        auspex::SessionOptions options;
        auspex::Session session;
        Status s = choose(spec, &options);
        if (s.ok()) s = auspex::Session::create(on_.model, options).get(session);
        if (!s.ok()) return s;
        const bool full = spec == "full";
        const size_t n_vocab = on_.model.info().n_vocab;
        size_t n_compared = 0;
        s = session.score(ids_, [&](size_t row, Span<const float> logits) {
            if (row + 1 >= ids_.size()) return;
            const double z = log_sum(logits);
            to->nll.push_back(z - double{logits[static_cast<size_t>(ids_[row + 1])]});
            if (row % every_ != 0) return;
            float* kept = &kept_[row / every_ * n_vocab];
            if (full) std::copy(logits.begin(), logits.end(), kept);
            const Span<const float> want(kept, n_vocab);
            const double want_z = log_sum(want);
            double kl = 0;
            for (size_t i = 0; i < n_vocab; ++i)
                kl += std::exp(double{want[i]} - want_z) * (double{want[i]} - want_z - (double{logits[i]} - z));
            to->kl += kl;
            to->agree += best_of(want) == best_of(logits) ? 1 : 0;
            ++n_compared;
        });
        if (!s.ok()) return s;
        to->kl /= double(n_compared);
        to->agree /= double(n_compared);

        const auto continue_text = [&](const std::vector<Token>& prompt, size_t n, std::vector<Token>* made) {
            Status t = session.sync(prompt).status();
            while (t.ok() && made->size() < n) {
                Span<const Token> tokens;
                t = interrupted() ? Status(Code::cancelled, "interrupted") : session.next().get(tokens);
                made->insert(made->end(), tokens.begin(), tokens.end());
            }
            return t;
        };
        const std::vector<Token> half(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(ids_.size() / 2));
        s = continue_text(half, static_cast<size_t>(o_.greedy), &to->greedy);
        if (!s.ok()) return s;
        while (to->n_greedy < to->greedy.size() && to->greedy[to->n_greedy] == all_[0].greedy[to->n_greedy])
            ++to->n_greedy;

        for (size_t i = 0; i < needles_.size(); ++i) {
            std::vector<Token> made;
            s = continue_text(needles_[i].prompt, needles_[i].answer.size(), &made);
            if (!s.ok()) return s;
            if (i % kNeedles == 0) to->recall.push_back(0);
            if (made == needles_[i].answer) to->recall.back() += 1.0 / double(kNeedles);
        }
        return s;
    }

    /// Borders of the position buckets: 0, 64, 128, 256 and so on.
    std::vector<size_t> borders() const {
        std::vector<size_t> b = {0};
        for (size_t at = 64; at < ids_.size() - 1; at *= 2) b.push_back(at);
        b.push_back(ids_.size() - 1);
        return b;
    }

    std::string table() const {
        const std::vector<size_t> b = borders();
        char cell[160];
        std::string out = "| window | KV bytes | NLL | KL | same choice | greedy |";
        for (size_t i = 0; i + 1 < b.size(); ++i) out += " NLL " + std::to_string(b[i]) + ".. |";
        for (size_t i = 0; i < (needles_.empty() ? 0 : std::size(kDepths)); ++i)
            std::snprintf(cell, sizeof cell, " recall %.0f %% |", kDepths[i] * 100), out += cell;
        out += "\n|";
        for (size_t i = 0; i < 6 + b.size() - 1 + (needles_.empty() ? 0 : std::size(kDepths)); ++i) out += "---|";
        out += "\n";
        for (const Scores& s : all_) {
            std::snprintf(cell, sizeof cell, " | %llu | %.4f | %.5f | %.1f %% | %zu/%zu |",
                          static_cast<unsigned long long>(s.kv_bytes), s.mean(), s.kl, s.agree * 100, s.n_greedy,
                          s.greedy.size());
            out += "| " + s.spec + cell;
            for (size_t i = 0; i + 1 < b.size(); ++i)
                std::snprintf(cell, sizeof cell, " %.4f |", s.mean(b[i], b[i + 1])), out += cell;
            for (const double r : s.recall) std::snprintf(cell, sizeof cell, " %.0f %% |", r * 100), out += cell;
            out += "\n";
        }
        return out + "\n" + std::to_string(ids_.size()) + " tokens; KL and choices on one row in " +
               std::to_string(every_) + "; keys and values in " + o_.type + "; on " + printable(on_.device.name()) +
               "\n";
    }

    std::string json() const {
        nlohmann::ordered_json j;
        const std::vector<size_t> b = borders();
        j["tokens"] = ids_.size();
        j["device"] = on_.device.name();
        j["kv_type"] = o_.type;
        j["position_borders"] = b;
        if (!needles_.empty()) j["needle_depths"] = kDepths;
        for (const Scores& s : all_) {
            nlohmann::ordered_json row = {{"window", s.spec},       {"kv_bytes", s.kv_bytes},
                                          {"nll", s.mean()},        {"kl", s.kl},
                                          {"same_choice", s.agree}, {"greedy_agreement", s.n_greedy}};
            for (size_t i = 0; i + 1 < b.size(); ++i) row["nll_by_position"].push_back(s.mean(b[i], b[i + 1]));
            row["recall"] = s.recall;
            j["windows"].push_back(row);
        }
        return json_line(j) + "\n";
    }

    Status plot() const {
        const std::vector<size_t> b = borders();
        Plot by_position{"NLL by position", "position", "NLL, nats a token", {}};
        for (const Scores& s : all_) {
            PlotLine line{s.spec, {}, {}};
            for (size_t i = 0; i + 1 < b.size(); ++i)
                line.x.push_back(double(b[i + 1])), line.y.push_back(s.mean(b[i], b[i + 1]));
            by_position.lines.push_back(std::move(line));
        }
        // One point for each window of the form all:N; the full model stands at the length of the text.
        std::vector<std::pair<double, const Scores*>> points;
        for (const Scores& s : all_) {
            auspex::Result<std::vector<auspex::LayerWindow>> w =
                auspex::parse_windows(s.spec == "full" ? "all:full" : s.spec);
            if (w.ok() && w.value().size() == 1 && w.value()[0].layer == auspex::kAllLayers)
                points.push_back({w.value()[0].window ? double(w.value()[0].window) : double(ids_.size()), &s});
        }
        std::sort(points.begin(), points.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
        Plot by_window{
            "NLL by window of every layer", "window (right end: full)", "NLL, nats a token", {{"NLL", {}, {}}}};
        for (const auto& p : points)
            by_window.lines[0].x.push_back(p.first), by_window.lines[0].y.push_back(p.second->mean());
        std::vector<Plot> plots = {by_position};
        if (points.size() > 1) plots.push_back(by_window);
        return write_plots(o_.plot, plots);
    }

    struct Needle {
        std::vector<Token> prompt, answer;
    };
    const EvalOptions& o_;
    Loaded on_;
    std::vector<std::string> specs_;
    std::vector<Scores> all_;
    std::vector<Token> ids_;
    size_t longest_ = 0;  ///< rows of context
    size_t every_ = 1;
    std::vector<float> kept_;  ///< every so many of the full model's logit rows
    std::vector<Needle> needles_;
};

}  // namespace

void add_eval(CLI::App& app, Chosen& chosen) {
    CLI::App* command =
        app.add_subcommand("eval", "Measure what windows and KV formats cost in quality, against the full model");
    auto o = std::make_shared<EvalOptions>();
    add_place(*command, o->place);
    command->add_option("-f,--file", o->file, "Text to measure on (default: a built-in log)");
    command->add_option("-n,--tokens", o->n, "Tokens of it")->capture_default_str();
    command
        ->add_option("--windows", o->windows,
                     "What to compare, as for --window, separated by ; (`full` is always included)")
        ->capture_default_str();
    command
        ->add_option("--kv-type", o->type,
                     "Keys and values of all but the full model: f16, q8_0, q4_0, q4_1, f32, or K,V")
        ->capture_default_str();
    command->add_option("--greedy", o->greedy, "Greedy tokens to compare")->capture_default_str();
    command->add_option("--needle", o->needle, "Tokens of the texts that hide a fact; 0: no recall")
        ->capture_default_str();
    command->add_option("--ubatch", o->ubatch, "Rows computed at once")->capture_default_str();
    command->add_option("--plot", o->plot, "PNG file for the curves");
    command->add_flag("--json", o->json, "One JSON object instead of a table");
    command->callback([o, &chosen] { chosen = [o] { return report(Eval(*o).run()); }; });
}

}  // namespace cli
