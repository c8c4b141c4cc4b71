// Fuzz target: any text, any split into pieces, any vocabulary made of the input. Built with -DAUSPEX_FUZZ=ON.
#include "../src/base/text_stream.h"
#include "../src/base/token.h"
#include "gguf_writer.h"

#include <cstdlib>

namespace {

using auspex::Span;
using auspex::Token;
namespace detail = auspex::detail;

void demand(bool promise) {
    if (!promise) std::abort();
}

/// Takes numbers and strings from the front of the input.
struct Input {
    const uint8_t* data;
    size_t size;
    uint8_t byte() {
        if (size == 0) return 0;
        --size;
        return *data++;
    }
    std::string text(size_t n) {
        if (n > size) n = size;
        std::string s(reinterpret_cast<const char*>(data), n);
        data += n;
        size -= n;
        return s;
    }
};

std::string alphabet(unsigned b) {
    std::string out;
    detail::append_utf8(out, b <= 0x20                ? 0x100 + b
                             : b >= 0x7F && b <= 0xA0 ? 0x121 + (b - 0x7F)
                             : b == 0xAD              ? 0x143
                                                      : b);
    return out;
}

std::vector<std::byte> make_file(Input& in) {
    const uint8_t flags = in.byte();
    test::GgufWriter w;
    w.add("general.architecture", "none");
    w.add("tokenizer.ggml.model", "gpt2");
    w.add("tokenizer.ggml.pre", (flags & 4) != 0 ? "deepseek-v3" : (flags & 1) != 0 ? "qwen2" : "qwen35");
    std::vector<std::string> tokens, merges;
    std::vector<int32_t> types;
    for (unsigned b = 0; b < 256; ++b) {
        tokens.push_back(alphabet(b));
        types.push_back(1);
    }
    for (unsigned n = in.byte() % 32; n > 0; --n) {
        const uint8_t kind = in.byte();
        if (kind < 200) {  // a pair of tokens that exist
            const std::string a = tokens[in.byte() % tokens.size()], b = tokens[(256 + in.byte()) % tokens.size()];
            merges.push_back(a + " " + b);
            tokens.push_back(a + b);
            types.push_back(1);
        } else {  // anything
            tokens.push_back(in.text(in.byte() % 8));
            types.push_back(kind % 8);
            if (kind > 250) merges.push_back(in.text(in.byte() % 8));
        }
    }
    if ((flags & 2) != 0) w.add("tokenizer.ggml.eos_token_id", uint32_t{in.byte()} * 2);
    if ((flags & 8) != 0) {
        w.add("tokenizer.ggml.bos_token_id", uint32_t{in.byte()} + 8);
        w.add("tokenizer.ggml.add_bos_token", true);
    }
    w.add("tokenizer.ggml.tokens", tokens);
    w.add("tokenizer.ggml.token_type", types);
    w.add("tokenizer.ggml.merges", merges);
    return w.finish();
}

void check(const detail::Tokenizer& t, const std::string& text, Input in) {
    std::string want;
    detail::append_repaired(want, text);
    detail::EncodeWork work;
    for (const bool special : {false, true}) {
        const std::vector<Token> ids = t.encode(text, special, &work);
        demand(t.decode(Span<const Token>(ids), true) == want);
        std::string bytes, shown;
        for (const Token id : ids) {
            demand(id >= 0 && static_cast<uint32_t>(id) < t.n_vocab());
            demand(special || t.kind(id) != detail::TokenKind::control);
            bytes += t.piece_bytes(id);
            shown += detail::take_characters(bytes, false);
            demand(bytes.size() <= 3);
        }
        demand(shown + detail::take_characters(bytes, true) == want);
    }
    demand(work.n_look <= 12 * (want.size() + 1));
    demand(work.n_special <= 8 * (want.size() + 1));

    // Cut at borders of characters, the pieces of a template encode as the whole.
    auspex::ChatPrompt prompt;
    for (size_t at = 0, n = 0; at < want.size(); at += n) {
        for (n = 1 + in.byte() % 9; at + n < want.size() && (static_cast<unsigned char>(want[at + n]) & 0xC0) == 0x80;
             ++n) {
        }
        prompt.pieces.push_back({want.substr(at, n), true});
    }
    demand(t.encode(prompt) == t.encode(want, true, nullptr, true));
    for (auspex::ChatPrompt::Piece& p : prompt.pieces) p.from_template = false;
    demand(t.encode(prompt) == t.encode(want, false, nullptr, true));
}

void check_stops(const std::string& text, Input in) {
    const std::vector<std::string> stops = {in.text(in.byte() % 4), in.text(in.byte() % 6)};
    detail::StopFilter all(stops), cut(stops);
    const std::string whole = all.push(text);
    std::string shown;
    for (size_t at = 0; at < text.size() && !cut.stopped(); ++at)
        shown += cut.push(std::string_view(text).substr(at, 1));
    demand(shown == whole && cut.stopped() == all.stopped() && cut.n_held() == all.n_held());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Input in{data, size};
    const std::vector<std::byte> file = make_file(in);
    detail::Gguf gguf;
    if (!detail::Gguf::parse(Span<const std::byte>(file.data(), file.size())).get(gguf).ok()) return 0;
    const Input rest = in;
    const std::string text = in.text(in.size);
    check_stops(text, rest);
    detail::Tokenizer t;
    if (detail::Tokenizer::load(gguf).get(t).ok()) check(t, text, rest);
    return 0;
}
