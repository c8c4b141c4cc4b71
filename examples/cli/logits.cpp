// cli/logits: writes logit rows to a file, for comparing with other implementations.
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "commands.h"
#include "common.h"
#include "platform.h"
#include "window.h"

namespace cli {
namespace {

struct LogitsOptions {
    PlaceOptions place;
    WindowFlags window;
    std::string ids, out, rows, mtp_out;
    CLI::Option* rows_given = nullptr;
    CLI::Option* mtp_given = nullptr;
    int mtp = 0;
};

/// A file of float32 rows, each written at every place where the list of rows names it.
class RowFile {
  public:
    ~RowFile() {
        if (file_) std::fclose(file_);
    }
    Status open(const std::string& path) {
        path_ = path;
        file_ = open_stream(path, "wb");
        return file_ ? Status() : broken();
    }
    void write(size_t row, Span<const float> values) {
        if (failed_) return;
        failed_ = std::fseek(file_, 0, SEEK_SET) != 0;
        // Little-endian float32, as every machine that this runs on has it.
        const uint64_t at = static_cast<uint64_t>(row) * values.size() * sizeof(float);
        constexpr uint64_t kStep = 1u << 30;  // fseek takes a long, which has 32 bits in places
        for (uint64_t left = at; left > 0 && !failed_;) {
            const uint64_t step = left < kStep ? left : kStep;
            failed_ = std::fseek(file_, static_cast<long>(step), SEEK_CUR) != 0;
            left -= step;
        }
        failed_ = failed_ || std::fwrite(values.data(), sizeof(float), values.size(), file_) != values.size();
        if (failed_) why_ = errno;
    }
    Status close() {
        if (std::fclose(file_) != 0 && !failed_) failed_ = true, why_ = errno;
        file_ = nullptr;
        return failed_ ? Status(Code::io_error, "'" + path_ + "': " + std::strerror(why_)) : Status();
    }

  private:
    Status broken() const { return Status(Code::io_error, "'" + path_ + "': " + std::strerror(errno)); }
    std::FILE* file_ = nullptr;
    std::string path_;
    bool failed_ = false;
    int why_ = 0;
};

/// The rows of the file that each position fills; without a list all of them, in order.
struct Wanted {
    std::vector<std::vector<size_t>> places;
    void all(size_t n) {
        for (size_t i = 0; i < n; ++i) places.push_back({i});
    }
    void some(const std::vector<Token>& rows, size_t n) {
        places.assign(n, {});
        for (size_t place = 0; place < rows.size(); ++place) places[static_cast<size_t>(rows[place])].push_back(place);
    }
};

Status logits(const LogitsOptions& o) {
    const bool mtp = o.mtp_given->count() > 0;
    if (mtp && (o.mtp < 1 || o.mtp > int{auspex::kMaxDraft}))
        return Status(Code::bad_argument, "--mtp " + std::to_string(o.mtp) + ": expected a depth of 1 .. " +
                                              std::to_string(auspex::kMaxDraft));
    if (mtp == o.mtp_out.empty())
        return Status(Code::bad_argument, "--mtp DEPTH and --mtp-out FILE belong together: give both or neither");
    if (o.out.empty() && !mtp)
        return Status(Code::bad_argument, "no output was named: give --out FILE, or --mtp DEPTH with --mtp-out FILE");
    Status s = check_late_output(o.out, "--out");
    if (s.ok()) s = check_late_output(o.mtp_out, "--mtp-out");
    Loaded on;
    if (s.ok()) s = load(o.place, &on);
    if (!s.ok()) return s;
    std::vector<Token> ids, rows;
    s = read_ids(o.ids, on.model.info().n_vocab).get(ids);
    if (!s.ok()) return s;
    if (ids.empty()) return Status(Code::bad_argument, "the list of ids is empty, expected at least one");
    const size_t depth = static_cast<size_t>(o.mtp);
    const bool some = o.rows_given->count() > 0;
    if (some) {
        s = read_list(o.rows, "rows", static_cast<int64_t>(ids.size()) - 1).get(rows);
        if (!s.ok()) return s;
    }
    if (mtp && ids.size() <= depth)
        return Status(Code::bad_argument, "--mtp " + std::to_string(depth) + " needs at least " +
                                              std::to_string(depth + 1) + " ids, found " + std::to_string(ids.size()));
    for (const Token r : rows)
        if (mtp && static_cast<size_t>(r) >= ids.size() - depth)
            return Status(Code::bad_argument, "--rows has " + std::to_string(r) + ", but at --mtp " +
                                                  std::to_string(depth) + " the rows of " + std::to_string(ids.size()) +
                                                  " ids are 0 .. " + std::to_string(ids.size() - depth - 1));

    auspex::SessionOptions options;
    options.n_context = static_cast<uint32_t>(ids.size());
    options.progress = progress_line();
    s = choose_window(o.window, &options);
    if (!s.ok()) return s;
    auspex::Session session;
    s = auspex::Session::create(on.model, options).get(session);
    if (!s.ok()) return s;
    const auto score = [&](const std::string& path, size_t n_row, const auto& run) {
        RowFile file;
        Status t = file.open(path);
        if (!t.ok()) return t;
        Wanted wanted;
        some ? wanted.some(rows, n_row) : wanted.all(n_row);
        t = run([&](size_t position, Span<const float> values) {
            for (const size_t place : wanted.places[position]) file.write(place, values);
        });
        clear_progress_line();
        const Status closed = file.close();
        return t.ok() ? closed : t;
    };
    if (!o.out.empty()) {
        s = score(o.out, ids.size(), [&](const auspex::Session::RowSink& row) { return session.score(ids, row); });
        if (!s.ok()) return s;
    }
    if (!mtp) return {};
    return score(o.mtp_out, ids.size() - depth, [&](const auspex::Session::RowSink& row) {
        return session.score_mtp(ids, static_cast<uint32_t>(depth), row);
    });
}

}  // namespace

void add_logits(CLI::App& app, Chosen& chosen) {
    CLI::App* command = app.add_subcommand("logits", "Write the logit rows of given ids as raw little-endian float32");
    auto o = std::make_shared<LogitsOptions>();
    add_place(*command, o->place);
    add_window(*command, o->window);
    command->add_option("--ids", o->ids, "Ids: 1,2,3 or [1, 2, 3] or @FILE")->required();
    command->add_option("--out", o->out, "File for the rows; row t holds the logits for token t+1");
    o->rows_given = command->add_option("--rows", o->rows, "Only these positions, in this order: 0,5,63 or @FILE");
    o->mtp_given = command->add_option("--mtp", o->mtp, "Depth D of the MTP block, fed the true tokens");
    command->add_option("--mtp-out", o->mtp_out, "File for its rows; row t holds the logits for token t+D+1");
    command->callback([o, &chosen] { chosen = [o] { return report(logits(*o)); }; });
}

}  // namespace cli
