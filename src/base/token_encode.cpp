// Encoding: special tokens first, then pieces, then merges within each piece.
#include "token.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace token_encode_impl {

constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kMaxPieceBytes = size_t{1} << 30;  ///< longer pieces are cut, so that positions fit in 32 bits
constexpr size_t kShort = 32;                       ///< up to this many bytes, scanning is faster than a queue

}  // namespace token_encode_impl

struct Tokenizer::Scratch {
    EncodeWork& work;
    std::string_view piece;
    // merge_long(), by byte. A token has its id at its first byte and its length at its first and last; at the first
    // byte of a token that became part of another, id is kNone.
    std::vector<uint32_t> id, length;
    std::vector<uint64_t> queue;
};

std::vector<Token> Tokenizer::encode(std::string_view text, bool special, EncodeWork* work, bool begin) const {
    EncodeWork unused;
    std::string repaired;
    if (find_bad_utf8(text) < text.size()) {
        append_repaired(repaired, text);
        text = repaired;
    }
    std::vector<Range> control;
    if (special) control.push_back(Range{0, text.size()});
    return encode_ranges(text, control, begin, work != nullptr ? *work : unused);
}

std::vector<Token> Tokenizer::encode(const ChatPrompt& prompt, std::vector<Mark>* marks) const {
    EncodeWork unused;
    std::string text;
    std::vector<Range> control;
    std::vector<Mark> stops;  // as bytes of `text`
    for (size_t i = 0; i < prompt.pieces.size(); ++i) {
        const ChatPrompt::Piece& piece = prompt.pieces[i];
        const size_t from = text.size();
        for (const ChatPrompt::Stop& stop : prompt.stops) {
            if (stop.piece != i || stop.at > piece.text.size()) continue;
            std::string before;
            append_repaired(before, piece.text.substr(0, stop.at));
            stops.push_back({from + before.size(), stop.pinned});
        }
        append_repaired(text, piece.text);
        if (!piece.from_template || text.size() == from) continue;
        if (!control.empty() && control.back().to == from)
            control.back().to = text.size();
        else
            control.push_back(Range{from, text.size()});
    }
    if (marks != nullptr) marks->clear();
    return encode_ranges(text, control, true, unused, stops, marks);
}

std::vector<Token> Tokenizer::encode_ranges(std::string_view text, const std::vector<Range>& control, bool begin,
                                            EncodeWork& work, const std::vector<Mark>& stops,
                                            std::vector<Mark>* marks) const {
    std::vector<Token> ids;
    if (kind_.empty()) return ids;
    Scratch scratch{work, {}, {}, {}, {}};
    size_t plain_from = 0;
    const std::vector<SpecialMatcher::Match> matches = matcher_.find(text, control, &work.n_special);
    const bool has_bos = !matches.empty() && matches[0].at == 0 && static_cast<Token>(matches[0].id) == bos_;
    if (begin && bos_ >= 0 && !has_bos) ids.push_back(bos_);
    for (const SpecialMatcher::Match& m : matches) {
        encode_plain(text.substr(plain_from, m.at - plain_from), scratch, ids);
        for (const Mark& stop : stops)
            if (marks != nullptr && stop.row == m.at) marks->push_back({ids.size(), stop.pinned});
        ids.push_back(static_cast<Token>(m.id));
        plain_from = m.at + m.length;
    }
    encode_plain(text.substr(plain_from), scratch, ids);
    return ids;
}

void Tokenizer::encode_plain(std::string_view text, Scratch& scratch, std::vector<Token>& ids) const {
    for (size_t at = 0; at < text.size();) {
        const size_t end = split_piece(text, at, split_, &scratch.work.n_look);
        while (at < end) {
            scratch.piece = text.substr(at, std::min(end - at, token_encode_impl::kMaxPieceBytes));
            at += scratch.piece.size();
            if (scratch.piece.size() <= token_encode_impl::kShort)
                merge_short(scratch, ids);
            else
                merge_long(scratch, ids);
        }
    }
}

/// Merges the leftmost pair of lowest rank until none is left, by scanning.
void Tokenizer::merge_short(Scratch& scratch, std::vector<Token>& ids) const {
    using token_encode_impl::kNone;
    uint32_t id[token_encode_impl::kShort];
    const Merge* merge[token_encode_impl::kShort];  // of i and i + 1
    size_t n = scratch.piece.size();
    for (size_t i = 0; i < n; ++i) id[i] = byte_id_[static_cast<unsigned char>(scratch.piece[i])];
    for (size_t i = 0; i + 1 < n; ++i) merge[i] = find_merge(id[i], id[i + 1]);
    scratch.work.n_pair += n - 1;
    while (n > 1) {
        size_t best = n;
        uint32_t rank = kNone;
        for (size_t i = 0; i + 1 < n; ++i) {
            if (merge[i] != nullptr && merge[i]->rank < rank) {
                best = i;
                rank = merge[i]->rank;
            }
        }
        scratch.work.n_queue += n;
        if (best == n) break;
        id[best] = merge[best]->merged;
        for (size_t i = best + 1; i + 1 < n; ++i) id[i] = id[i + 1];
        for (size_t i = best + 1; i + 2 < n; ++i) merge[i] = merge[i + 1];
        --n;
        if (best > 0) merge[best - 1] = find_merge(id[best - 1], id[best]);
        if (best + 1 < n) merge[best] = find_merge(id[best], id[best + 1]);
        scratch.work.n_pair += 2;
    }
    for (size_t i = 0; i < n; ++i) ids.push_back(static_cast<Token>(id[i]));
}

/// The same with a queue of (rank, position). An entry is out of date if the pair that now begins at its position has
/// another rank.
void Tokenizer::merge_long(Scratch& scratch, std::vector<Token>& ids) const {
    using token_encode_impl::kNone;
    const uint32_t n = static_cast<uint32_t>(scratch.piece.size());
    std::vector<uint32_t>&id = scratch.id, &length = scratch.length;
    id.resize(n);
    length.assign(n, 1);
    for (uint32_t i = 0; i < n; ++i) id[i] = byte_id_[static_cast<unsigned char>(scratch.piece[i])];
    const auto merge_at = [&](uint32_t i) {
        const uint32_t j = i + length[i];
        ++scratch.work.n_pair;
        return j < n ? find_merge(id[i], id[j]) : nullptr;
    };
    const auto entry_of = [](const Merge& m, uint32_t i) { return uint64_t{m.rank} << 32 | i; };
    const auto later = [](uint64_t a, uint64_t b) { return a > b; };
    scratch.queue.clear();
    scratch.queue.reserve(n);
    for (uint32_t i = 0; i < n; ++i)
        if (const Merge* m = merge_at(i)) scratch.queue.push_back(entry_of(*m, i));
    std::make_heap(scratch.queue.begin(), scratch.queue.end(), later);
    const auto push = [&](uint32_t i) {
        const Merge* m = merge_at(i);
        if (m == nullptr) return;
        scratch.queue.push_back(entry_of(*m, i));
        std::push_heap(scratch.queue.begin(), scratch.queue.end(), later);
    };
    while (!scratch.queue.empty()) {
        const uint64_t entry = scratch.queue.front();
        std::pop_heap(scratch.queue.begin(), scratch.queue.end(), later);
        scratch.queue.pop_back();
        ++scratch.work.n_queue;
        const uint32_t i = static_cast<uint32_t>(entry);
        if (id[i] == kNone) continue;
        const Merge* m = merge_at(i);
        if (m == nullptr || entry_of(*m, i) != entry) continue;
        const uint32_t gone = i + length[i], joined = length[i] + length[gone];
        id[i] = m->merged;
        id[gone] = kNone;
        length[i] = length[i + joined - 1] = joined;
        push(i);
        if (i > 0) push(i - length[i - 1]);
    }
    for (uint32_t i = 0; i < n; i += length[i]) ids.push_back(static_cast<Token>(id[i]));
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
