// cli/generate: the loop that turns a history into streamed text; run and chat share it.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>

#include "common.h"

namespace cli {

struct GenerateOptions {
    int64_t n = 128;
    std::vector<std::string> stops;
    bool ignore_end = false;
};
void add_generate(CLI::App& command, GenerateOptions& o);
Status check_generate(const GenerateOptions& o);

/// Rows of context: `given` if the user gave --ctx, else those of prompt and answer, at most what the model was trained
/// for.
/// n_before: tokens of the conversation before the prompt. n_min: the least, where --ctx is not given.
Status choose_context(const auspex::Model& model, size_t n_before, size_t n_prompt, int64_t n,
                      const std::optional<int64_t>& given, int64_t n_min, uint32_t* to);

struct Generated {
    std::string text;
    std::vector<Token> ids;     ///< of the text, without the token that ended it; may end inside a character
    std::string stop_reason;    ///< end, length, stop, context or interrupted
    auspex::SyncReport synced;  ///< which rows of the prompt were computed, and why
    double prefill_s = 0;
    double decode_s = 0;  ///< from the first token to the last
    double prefill_tps() const { return prefill_s > 0 ? double(synced.rows_computed) / prefill_s : 0; }
    /// No value where the first pass gave all tokens.
    std::optional<double> decode_tps() const {
        return decode_s > 0 ? std::optional<double>(double(n_step) / decode_s) : std::nullopt;
    }
    size_t n_step = 0;  ///< tokens sampled within decode_s
};

/// rows_computed, rows_reused, diverged_at, checkpoint_row, reason (a name) and text (a sentence).
nlohmann::ordered_json sync_json(const auspex::SyncReport& report);

/// Drops the bytes of a character that the tokens end inside, which were never shown.
Status cut_unfinished(const auspex::Model& model, std::vector<Token>* ids);

/// Brings the session to `history` and generates. With `stream` the text goes to standard output as TextStream releases
/// it. Ctrl-C ends the generation; the text so far is kept.
/// marks: of the prompt, as Model::encode gives them.
Status generate(const auspex::Model& model, auspex::Session& session, const std::vector<Token>& history,
                const std::vector<auspex::Mark>& marks, const auspex::Sampling& sampling,
                const GenerateOptions& options, bool stream, Generated* to);

}  // namespace cli
