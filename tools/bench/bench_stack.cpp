// bench_stack: windows and drafting, alone and together: the 2 x 2 on a predictable and an open-ended text.
//
// Drafting leaves the text alone, so within a column of the 2 x 2 the work is the same. A window changes the text,
// and a text that falls into a loop is easy to draft: the share of distinct 4-grams tells whether both sides did
// comparably hard work.
#include <cmath>

#include "bench_texts.h"
#include "examples/cli/draft.h"
#include "examples/cli/plot.h"

namespace cli {
namespace {

constexpr size_t kGram = 4;
constexpr double kAlike = 0.15;  ///< shares of distinct 4-grams that differ by more are told

struct Cell {
    std::vector<double> tps;  ///< by run
    uint64_t drafted = 0, accepted = 0;
    double n_token = 0, n_cycle = 0;
    std::vector<Token> text;
    bool same_text = true;  ///< as in the cell without drafting, in every run
};
struct Row {
    std::string text;
    size_t depth = 0;
    Cell cell[4];  ///< dense, window, drafting, both
    double diversity(size_t i) const { return distinct_share(cell[i].text, kGram); }
    bool alike() const { return std::fabs(diversity(0) - diversity(1)) <= kAlike; }
};
constexpr const char* kCells[4] = {"dense", "window", "drafting", "window + drafting"};
bool windowed(size_t cell) { return cell % 2 == 1; }
bool drafts(size_t cell) { return cell >= 2; }

class Stack {
  public:
    explicit Stack(Bench& b) : b_(b), o_(b.o) {}

    Status run() {
        Status s = read_openings(o_, {"log", "story"}, &openings_);
        window_ = o_.window;
        if (window_.window.empty() && window_.budget.empty()) window_.window = "all:512+4";
        auspex::SessionOptions unused;
        if (s.ok()) s = choose_window(window_, &unused);
        depths_ = o_.depths.empty() ? std::vector<Token>{1024, 4096} : o_.depths;
        if (s.ok() && *std::min_element(depths_.begin(), depths_.end()) < 1)
            s = Status(Code::bad_argument, "--depth has 0, expected 1 or more: a text needs something to go on from");
        DraftFlags flags;
        flags.draft = o_.draft;
        flags.vocab = o_.draft_vocab;
        if (s.ok()) s = b_.open();
        if (s.ok()) s = choose_draft(flags, b_.on.model.info(), false, &draft_);
        if (s.ok() && draft_.source == auspex::Draft::off)
            s = Status(Code::bad_argument, "--draft " + o_.draft +
                                               " drafts nothing here, but half of the 2 x 2 drafts; expected auto or a "
                                               "depth, and a model with an MTP block");
        if (s.ok()) s = b_.warm_up();
        if (s.ok()) s = fill();
        for (size_t run = 0; s.ok() && run < static_cast<size_t>(o_.repeat); ++run)
            for (Row& row : rows_)
                for (size_t i = 0; s.ok() && i < 4; ++i) s = play(row, (i + run) % 4);
        clear_progress_line();
        if (!s.ok()) return s;
        report();
        if (!o_.plot.empty()) b_.files = plot();
        return {};
    }

  private:
    /// The openings at every depth: exactly so many tokens, the latest of them if there are more.
    Status fill() {
        for (const Opening& opening : openings_)
            for (const Token depth : depths_) {
                const size_t n = static_cast<size_t>(depth);
                std::vector<Token> ids = tokens_of(b_.on.model, opening, n * 6, 1);
                if (ids.size() < n)
                    return Status(Code::bad_argument, "the text '" + opening.name + "' has " +
                                                          std::to_string(ids.size()) + " tokens, --depth asks for " +
                                                          std::to_string(n) + "; give a longer one");
                ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(n));
                prompts_.push_back(std::move(ids));
                rows_.emplace_back();
                rows_.back().text = opening.name, rows_.back().depth = n;
            }
        return {};
    }

    Status play(Row& row, size_t i) {
        const std::vector<Token>& prompt = prompts_[static_cast<size_t>(&row - rows_.data())];
        const size_t n = static_cast<size_t>(o_.n);
        WindowFlags window = window_;
        if (!windowed(i)) window.window.clear(), window.budget.clear();
        std::vector<auspex::DraftCycle> cycles;
        auspex::Session on;
        Status s = b_.session(window, prompt.size() + n + auspex::kMaxDraft * 5 + 16, "--depth and -n",
                              drafts(i) ? draft_ : Bench::no_draft(), &cycles)
                       .get(on);
        if (s.ok() && windowed(i)) spec_ = auspex::print_windows(on.stats().windows);
        if (s.ok()) s = on.sync(prompt).status();
        if (s.ok()) s = on.next(o_.sampling).status();  // the first sample needs no row
        double seconds = 0;
        if (s.ok()) s = generate_timed(on, o_.sampling, prompt.size() + 1 + n, &seconds);
        if (!s.ok()) return s;
        Cell& cell = row.cell[i];
        const auspex::Span<const Token> all = on.history();
        if (cell.tps.empty())  // later runs repeat the same draws: they say more about time, not about acceptance
            for (const auspex::DraftCycle& c : cycles) {
                cell.n_token += c.accepted + 1, cell.n_cycle += 1;
                cell.drafted += c.depth, cell.accepted += c.accepted;
            }
        cell.tps.push_back(double(all.size() - prompt.size() - 1) / seconds);
        cell.text.assign(all.begin() + prompt.size(), all.begin() + prompt.size() + n);
        const Cell& plain = row.cell[i % 2];
        if (!plain.text.empty()) cell.same_text = cell.same_text && plain.text == cell.text;
        return {};
    }

    void report() {
        nlohmann::ordered_json& out = b_.out["stack"];
        out["windows"] = spec_;
        out["draft"] = o_.draft;
        out["tokens"] = o_.n;
        out["runs"] = o_.repeat;
        b_.say("\nwindows %s; drafting %s; %lld tokens, medians of %lld runs; acceptance with its 95 %% interval\n\n",
               spec_.c_str(), o_.draft.c_str(), static_cast<long long>(o_.n), static_cast<long long>(o_.repeat));
        b_.say(
            "| text | depth | | tokens/s | over dense | tokens a pass | accepted/drafted | distinct 4-grams "
            "|\n|---|---|---|---|---|---|---|---|\n");
        for (const Row& row : rows_)
            for (size_t i = 0; i < 4; ++i) {
                const Cell& c = row.cell[i];
                const double tps = median(c.tps), low = *std::min_element(c.tps.begin(), c.tps.end()),
                             high = *std::max_element(c.tps.begin(), c.tps.end());
                const double over = tps / median(row.cell[0].tps);
                const Interval a = wilson(c.accepted, c.drafted);
                nlohmann::ordered_json cell = {{"text", row.text},
                                               {"depth", row.depth},
                                               {"cell", kCells[i]},
                                               {"tps", tps},
                                               {"tps_least", low},
                                               {"tps_most", high},
                                               {"over_dense", over},
                                               {"tokens_per_cycle", c.n_token / c.n_cycle},
                                               {"distinct_4grams", row.diversity(i)}};
                b_.say("| %s | %zu | %s | %.1f (%.1f .. %.1f) | %.2f | %.2f | ", row.text.c_str(), row.depth, kCells[i],
                       tps, low, high, over, c.n_token / c.n_cycle);
                if (drafts(i)) {
                    cell["drafted"] = c.drafted, cell["accepted"] = c.accepted, cell["accepted_low"] = a.low,
                    cell["accepted_high"] = a.high, cell["same_text"] = c.same_text;
                    if (c.drafted > 0)
                        b_.say("%.1f %% (%.1f .. %.1f)", 100 * double(c.accepted) / double(c.drafted), 100 * a.low,
                               100 * a.high);
                    else
                        b_.say("nothing drafted");
                }
                b_.say(" | %.2f |\n", row.diversity(i));
                out["cells"].push_back(cell);
            }
        for (const Row& row : rows_) {
            if (!row.alike())
                b_.say(
                    "\n%s at %zu: the window changed how varied the text is (%.2f against %.2f distinct 4-grams), so "
                    "its acceptance is not comparable\n",
                    row.text.c_str(), row.depth, row.diversity(1), row.diversity(0));
            for (size_t i = 2; i < 4; ++i)
                if (!row.cell[i].same_text)
                    b_.say("\n%s at %zu, %s: NOT the text that decoding without drafts gives\n", row.text.c_str(),
                           row.depth, kCells[i]);
        }
    }

    Status plot() const {
        std::vector<Plot> plots;
        for (const Opening& opening : openings_) {
            Plot plot{opening.name, "tokens in the history", "tokens / s", {}};
            plot.from_zero = true;
            for (size_t i = 0; i < 4; ++i) {
                PlotLine line{kCells[i], {}, {}};
                for (const Row& row : rows_)
                    if (row.text == opening.name)
                        line.x.push_back(double(row.depth)), line.y.push_back(median(row.cell[i].tps));
                plot.lines.push_back(std::move(line));
            }
            plots.push_back(std::move(plot));
        }
        return write_plots(o_.plot, plots);
    }

    Bench& b_;
    const BenchOptions& o_;
    WindowFlags window_;
    auspex::DraftOptions draft_;
    std::vector<Opening> openings_;
    std::vector<Token> depths_;
    std::vector<std::vector<Token>> prompts_;  ///< of rows_
    std::vector<Row> rows_;
    std::string spec_;
};

}  // namespace

Status bench_stack(Bench& b) { return Stack(b).run(); }

}  // namespace cli
