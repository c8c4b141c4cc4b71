#include "bench_texts.h"

#include "../synthetic_acceptance.h"
#include "examples/cli/platform.h"
#include "examples/cli/texts.h"

namespace cli {

Status read_openings(const BenchOptions& o, const std::vector<std::string>& kinds, std::vector<Opening>* to) {
    for (const std::string& given : o.texts) {
        const size_t at = given.find('=');
        Opening opening;
        opening.name = given.substr(0, at);
        opening.built_in = false;
        if (at == std::string::npos || at == 0 || at + 1 == given.size())
            return Status(Code::bad_argument, "--text " + given + ": expected NAME=FILE, as in prose=novel.txt");
        for (const Opening& other : *to)
            if (other.name == opening.name)
                return Status(Code::bad_argument,
                              "--text names '" + opening.name + "' twice; give each text a name of its own");
        Status s = read_bytes(given.substr(at + 1)).get(opening.text);
        if (s.ok()) s = check_utf8(opening.text, "the text '" + opening.name + "'");
        if (!s.ok()) return s;
        if (opening.text.empty())
            return Status(
                Code::bad_argument,
                "--text " + given + ": the file is empty; a model continues text, so give it at least one character");
        to->push_back(opening);
    }
    if (to->empty())
        for (const std::string& kind : kinds) to->push_back({kind, {}, true});
    return {};
}

std::vector<Token> tokens_of(const auspex::Model& model, const Opening& opening, size_t bytes, uint64_t seed) {
    return model.encode(opening.built_in ? text_of(opening.name, bytes, seed) : opening.text, {false, true}).value();
}

Status generate_timed(auspex::Session& on, const auspex::Sampling& sampling, size_t n, double* seconds) {
    const double start = now();
    Status s;
    while (s.ok() && on.history().size() < n)
        s = interrupted() ? Status(Code::cancelled, "interrupted") : on.next(sampling).status();
    if (s.ok()) s = tools::wait_for_queued(on);
    *seconds += now() - start;
    return s;
}

}  // namespace cli
