#include "bench_masks.h"

#include "engine/model.h"
#include "examples/cli/platform.h"
#include "grammar/matcher.h"
#include "grammar/schema.h"

namespace cli {
namespace {

namespace detail = auspex::detail;

/// Reads lines {"schema", "tests": [{"valid", "data"}]} and follows each instance with a matcher.
class Masks {
  public:
    explicit Masks(const BenchOptions& o) : o_(o) {}

    Status run() {
        std::string path, lines;
        Status s = find_model(o_.place.model).get(path);
        if (s.ok()) s = open(path);
        if (s.ok()) s = read_bytes(o_.masks).get(lines);
        size_t n_line = 0;
        for (size_t from = 0; s.ok() && from < lines.size(); ++n_line) {
            if (interrupted()) return Status(Code::cancelled, "interrupted");
            const size_t end = std::min(lines.find('\n', from), lines.size());
            if (end > from) s = line(std::string_view(lines).substr(from, end - from), n_line + 1);
            from = end + 1;
        }
        if (s.ok() && n_schema_ == 0) s = Status(Code::bad_argument, o_.masks + " has no line with a schema");
        if (!s.ok()) return s;
        return o_.json ? print_json() : print_table();
    }

  private:
    Status open(const std::string& path) {
        auspex::Model::Impl file;
        Status s = detail::open_files(path.c_str(), auspex::LoadOptions(), false, &file);
        if (s.ok()) s = detail::Tokenizer::load(file.gguf).get(tokenizer_);
        if (!s.ok()) return s;
        const double start = now();
        vocab_ = detail::VocabTrie::build(tokenizer_);
        build_ms_ = (now() - start) * 1e3;
        return s;
    }

    static bool is_test(const detail::Json& test) {
        const detail::Json* valid = test.find("valid");
        return valid && valid->is(detail::Json::Kind::boolean) && test.find("data");
    }

    Status line(std::string_view text, size_t number) {
        detail::Json entry;
        const Status parsed = detail::Json::parse(text).get(entry);
        const detail::Json* schema = entry.find("schema");
        const detail::Json* tests = entry.find("tests");
        const bool is_pair = schema && tests && tests->is(detail::Json::Kind::array) &&
                             std::all_of(tests->items().begin(), tests->items().end(), is_test);
        if (!parsed.ok() || !is_pair)
            return Status(Code::bad_argument, o_.masks + ", line " + std::to_string(number) +
                                                  ": expected {\"schema\", \"tests\": [{\"valid\": true or false, "
                                                  "\"data\"}]}" +
                                                  (parsed.ok() ? "" : ", found: " + parsed.text));
        ++n_schema_;
        auspex::SchemaOptions options;
        options.any_order = true;  // instances were not written by a model that follows the schema
        const std::string schema_text = schema->dump();
        std::shared_ptr<const detail::Rules> rules;
        std::unique_ptr<detail::Matcher> matcher;
        const double start = now();
        Status s = detail::rules_from_json_schema(schema_text, options).get(rules);
        if (s.ok()) s = detail::Matcher::create(rules, vocab_).get(matcher);
        if (!s.ok()) {
            ++refused_[keyword(s.text)];
            return {};
        }
        bits_.assign(matcher->n_word(), 0);
        matcher->mask(Span<uint32_t>(bits_));
        first_ms_.push_back((now() - start) * 1e3);
        for (const detail::Json& test : tests->items()) {
            const bool valid = test.find("valid")->boolean(), taken = follow(*matcher, test.find("data")->dump());
            matcher->rollback(matcher->n_step());
            ++(valid ? n_valid_ : n_invalid_);
            if (valid && !taken) ++n_valid_rejected_;
            if (!valid && taken) ++n_invalid_accepted_;
        }
        return {};
    }

    bool follow(detail::Matcher& matcher, const std::string& text) {
        for (const Token token : tokenizer_.encode(text, false)) {
            const double start = now();
            matcher.mask(Span<uint32_t>(bits_));
            mask_us_.push_back((now() - start) * 1e6);
            const size_t t = static_cast<size_t>(token);
            if ((bits_[t / 32] >> (t % 32) & 1) == 0 || !matcher.accept(token)) return false;
        }
        return matcher.is_accepting();
    }

    /// "#/properties/a: uniqueItems: is not supported" begins with the pointer and the keyword.
    static std::string keyword(const std::string& text) {
        const size_t from = text.find(": ");
        if (from == std::string::npos) return "other";
        const std::string key = text.substr(from + 2, text.find(": ", from + 2) - from - 2);
        return key.empty() || key.find(' ') != std::string::npos ? "other" : key;
    }

    static double mean(const std::vector<double>& v) {
        double sum = 0;
        for (const double x : v) sum += x;
        return v.empty() ? 0 : sum / static_cast<double>(v.size());
    }
    double percentile(size_t per_mille) {  // the nearest rank
        if (mask_us_.empty()) return 0;
        std::sort(mask_us_.begin(), mask_us_.end());
        return mask_us_[(mask_us_.size() * per_mille - 1) / 1000];
    }

    Status print_json() {
        nlohmann::ordered_json out;
        out["schemas"] = n_schema_;
        out["compiled"] = first_ms_.size();
        out["refused_by_keyword"] = nlohmann::ordered_json::object();
        for (const auto& r : refused_) out["refused_by_keyword"][r.first] = r.second;
        out["valid"] = n_valid_;
        out["invalid"] = n_invalid_;
        out["valid_rejected"] = n_valid_rejected_;
        out["invalid_accepted"] = n_invalid_accepted_;
        out["masks"] = mask_us_.size();
        out["mask_us_mean"] = mean(mask_us_);
        out["mask_us_p50"] = percentile(500);
        out["mask_us_p99"] = percentile(990);
        out["first_mask_ms_mean"] = mean(first_ms_);
        out["n_vocab"] = vocab_->n_vocab();
        out["vocab_ms"] = build_ms_;
        return print(json_line(out) + "\n");
    }

    Status print_table() {
        char text[512];
        std::snprintf(text, sizeof text,
                      "%zu schemas, %zu compiled; %zu valid instances, %zu rejected; %zu invalid ones, %zu accepted\n"
                      "%zu masks over %zu tokens: mean %.1f us, p50 %.1f, p90 %.1f, p99 %.1f, p99.9 %.1f us\n"
                      "first mask: mean %.2f ms; the vocabulary once: %.0f ms\n",
                      n_schema_, first_ms_.size(), n_valid_, n_valid_rejected_, n_invalid_, n_invalid_accepted_,
                      mask_us_.size(), vocab_->n_vocab(), mean(mask_us_), percentile(500), percentile(900),
                      percentile(990), percentile(999), mean(first_ms_), build_ms_);
        std::string all = text;
        for (const auto& r : refused_) all += "refused: " + std::to_string(r.second) + " for " + r.first + "\n";
        return print(all);
    }

    const BenchOptions& o_;
    detail::Tokenizer tokenizer_;
    std::shared_ptr<const detail::VocabTrie> vocab_;
    std::vector<uint32_t> bits_;
    std::vector<double> mask_us_, first_ms_;
    std::map<std::string, size_t> refused_;
    size_t n_schema_ = 0, n_valid_ = 0, n_invalid_ = 0, n_valid_rejected_ = 0, n_invalid_accepted_ = 0;
    double build_ms_ = 0;
};

}  // namespace

Status bench_masks(const BenchOptions& o) { return Masks(o).run(); }

}  // namespace cli
