#include "token_special.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

inline uint32_t SpecialMatcher::child(uint32_t node, uint8_t byte) const {
    if (node == 0) return root_child_[byte];
    const Node* first = nodes_.data() + nodes_[node].first_child;
    const Node* last = first + nodes_[node].n_child;
    const Node* at = std::lower_bound(first, last, byte, [](const Node& n, uint8_t b) { return n.byte < b; });
    return at != last && at->byte == byte ? static_cast<uint32_t>(at - nodes_.data()) : 0;
}

inline uint32_t SpecialMatcher::step(uint32_t node, uint8_t byte, uint64_t& n_step) const {
    for (;; node = nodes_[node].fail) {
        ++n_step;
        const uint32_t next = child(node, byte);
        if (next != 0 || node == 0) return next;
    }
}

void SpecialMatcher::build(const std::vector<Word>& words) {
    nodes_.clear();
    std::fill(std::begin(root_child_), std::end(root_child_), 0u);
    if (words.empty()) return;
    const auto less_byte = [](char a, char b) { return static_cast<uint8_t>(a) < static_cast<uint8_t>(b); };
    const std::vector<uint32_t> order = sorted_indices(words.size(), [&](uint32_t a, uint32_t b) {
        const std::string_view x = words[a].bytes, y = words[b].bytes;
        if (x == y) return words[a].id < words[b].id;
        return std::lexicographical_compare(x.rbegin(), x.rend(), y.rbegin(), y.rend(), less_byte);
    });

    // Breadth first: nodes_ is the queue, and `below[i]` are the words (in that order) that begin with node i.
    uint64_t steps = 0;
    std::vector<std::pair<uint32_t, uint32_t>> below(1, {0, static_cast<uint32_t>(order.size())});
    nodes_.emplace_back();
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
        const uint32_t depth = nodes_[i].depth, end = below[i].second;
        uint32_t at = below[i].first;
        for (; at < end && words[order[at]].bytes.size() == depth; ++at) {  // words that end in this node
            const Word& word = words[order[at]];
            nodes_[i].id = std::min(nodes_[i].id, word.id);
            if (word.anywhere) nodes_[i].id_any = std::min(nodes_[i].id_any, word.id);
        }
        nodes_[i].out = nodes_[i].id != kNone ? i : nodes_[nodes_[i].fail].out;
        nodes_[i].out_any = nodes_[i].id_any != kNone ? i : nodes_[nodes_[i].fail].out_any;
        nodes_[i].first_child = static_cast<uint32_t>(nodes_.size());
        const auto byte_of = [&](uint32_t k) {
            const std::string_view bytes = words[order[k]].bytes;
            return static_cast<uint8_t>(bytes[bytes.size() - 1 - depth]);
        };
        while (at < end) {
            const uint32_t from = at;
            Node next;
            next.byte = byte_of(from);
            next.depth = depth + 1;
            next.fail = i == 0 ? 0 : step(nodes_[i].fail, next.byte, steps);
            while (at < end && byte_of(at) == next.byte) ++at;
            if (i == 0) root_child_[next.byte] = static_cast<uint32_t>(nodes_.size());
            nodes_.push_back(next);
            below.emplace_back(from, at);
        }
        nodes_[i].n_child = static_cast<uint32_t>(nodes_.size()) - nodes_[i].first_child;
    }
}

std::vector<SpecialMatcher::Match> SpecialMatcher::find(std::string_view text, const std::vector<Range>& control,
                                                        uint64_t* n_step) const {
    std::vector<Match> found;
    if (nodes_.empty()) return found;
    // Two walks from the end to the front: one over all of the text, one that starts anew at the end of each control
    // range and so cannot find a word that reaches beyond it.
    uint32_t open = 0, inside = 0;
    uint64_t steps = 0;
    auto range = control.rbegin();
    for (size_t at = text.size(); at-- > 0;) {
        const uint8_t byte = static_cast<uint8_t>(text[at]);
        if ((open | inside | root_child_[byte]) == 0) continue;  // nearly every byte of real text
        open = step(open, byte, steps);
        uint32_t node = nodes_[open].out_any, id = nodes_[node].id_any;
        while (range != control.rend() && at < range->from) ++range;
        if (range == control.rend() || at >= range->to) {
            inside = 0;
        } else {
            inside = step(at + 1 == range->to ? 0 : inside, byte, steps);
            const uint32_t other = nodes_[inside].out;
            if (other != 0 && nodes_[other].depth >= nodes_[node].depth) {
                node = other;
                id = nodes_[other].id;
            }
        }
        if (node != 0) found.push_back(Match{at, id, nodes_[node].depth});
    }
    if (n_step != nullptr) *n_step += steps;
    std::reverse(found.begin(), found.end());
    size_t end = 0, n = 0;
    for (const Match& m : found) {
        if (m.at < end) continue;
        end = m.at + m.length;
        found[n++] = m;
    }
    found.resize(n);
    return found;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
