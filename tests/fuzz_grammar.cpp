// Fuzz target: any bytes as GBNF, as a pattern, as a JSON schema and as a tool, and any bytes as text under it: masks
// agree with accept, forced text is accepted, steps can be taken back. Built with -DAUSPEX_FUZZ=ON.
#include "../src/grammar/matcher.h"
#include "../src/grammar/schema.h"
#include "../src/grammar/tool_calls.h"

#include <cstdlib>

namespace {

using namespace auspex;
using namespace auspex::detail;

void demand(bool promise) {
    if (!promise) std::abort();
}

std::shared_ptr<const VocabTrie> make_vocab() {
    std::vector<VocabTrie::Piece> pieces;
    const auto add = [&pieces](const std::string& bytes, bool text, bool end) {
        VocabTrie::Piece p;
        p.bytes = bytes;
        p.text = text;
        p.end = end;
        pieces.push_back(p);
    };
    for (unsigned b = 0; b < 256; ++b) add(std::string(1, static_cast<char>(b)), true, false);
    for (const char* p : {"\":", "\",\"", "{\"", "\"}", "}}", "true", "null", "12", "ab", "abc", "\\u00", "\n  ", "a\"",
                          "\xC3\xA9", "\xE2\x82", "]]", "\", \""})
        add(p, true, false);
    add("</think>", false, false);
    add("<|im_end|>", false, true);
    return VocabTrie::build(pieces);
}

void check_rules(const Result<std::shared_ptr<const Rules>>& rules, std::string_view text,
                 const std::shared_ptr<const VocabTrie>& vocab) {
    const Code code = rules.status().code;
    demand(code == Code::ok || code == Code::bad_argument || code == Code::unsupported);
    if (!rules.ok()) {
        demand(!rules.status().text.empty());
        return;
    }
    std::unique_ptr<Matcher> m;
    if (!Matcher::create(rules.value(), vocab).get(m).ok()) return;
    m->set_memory_limit(size_t{4} << 20);
    std::vector<uint32_t> bits(m->n_word()), again(m->n_word());
    for (size_t i = 0; i < text.size() && i < 24; ++i) {
        m->mask(Span<uint32_t>(bits));
        bool any = m->is_finished();
        for (size_t t = 0; t < vocab->n_vocab(); ++t) {
            const bool bit = (bits[t / 32] >> (t % 32) & 1) != 0;
            const bool taken = m->accept(static_cast<Token>(t));
            demand(taken == bit);
            if (taken) m->rollback(1);
            any = any || taken;
        }
        demand(any);
        m->mask(Span<uint32_t>(again));
        demand(bits == again);
        const std::string forced = m->forced(8);
        if (!forced.empty()) {
            demand(m->accept(forced));
            m->rollback(1);
        }
        // The byte as it is, or the token that it chooses among those allowed.
        const uint8_t byte = static_cast<uint8_t>(text[i]);
        if (m->accept(Token{byte})) continue;
        for (size_t n = 0, t = byte; n < vocab->n_vocab(); ++n, t = (t + 1) % vocab->n_vocab())
            if (m->accept(static_cast<Token>(t))) break;
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 1) return 0;
    const std::shared_ptr<const VocabTrie> vocab = make_vocab();
    const unsigned kind = data[0] % 5;
    const std::string_view all(reinterpret_cast<const char*>(data + 1), size - 1);
    // What follows a zero byte is the text.
    const size_t cut = std::min(all.find('\0'), all.size());
    const std::string_view grammar = all.substr(0, cut), text = all.substr(std::min(cut + 1, all.size()));
    if (kind == 0) check_rules(rules_from_gbnf(grammar), text.empty() ? grammar : text, vocab);
    if (kind == 1) check_rules(rules_from_regex(grammar), text.empty() ? grammar : text, vocab);
    if (kind == 4) {
        ToolOptions options;
        options.choice = grammar.size() % 2 == 0 ? ToolChoice::automatic : ToolChoice::required;
        options.chat_template = data[0] % 2 == 0 ? ChatStyle::qwen36 : ChatStyle::chatml;
        options.ignore_unsupported = true;
        const std::string tool = "{\"name\": \"f\", \"parameters\": " + std::string(grammar) + "}";
        check_rules(rules_from_tools({tool}, options), text.empty() ? grammar : text, vocab);
    }
    if (kind == 2 || kind == 3) {
        SchemaOptions options;
        options.any_order = kind == 3;
        options.ignore_unsupported = grammar.size() % 2 == 1;
        check_rules(rules_from_json_schema(grammar, options), text.empty() ? grammar : text, vocab);
    }
    return 0;
}
