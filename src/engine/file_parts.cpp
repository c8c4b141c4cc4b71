#include "file_parts.h"

#include <algorithm>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace file_parts_impl {

constexpr char kMagic[8] = {'a', 'u', 's', 'p', 'e', 'x', 'F', '6'};

uint64_t hash_of(const std::string& text) {
    Fnv h;
    h.bytes(text.data(), text.size());
    return h.value;
}

template <size_t N>
void set_name(char (&to)[N], const std::string& from) {
    std::memset(to, 0, N);
    std::memcpy(to, from.data(), std::min(from.size(), N - 1));
}
template <size_t N>
std::string name_of(const char (&from)[N]) {
    return quote(std::string_view(from, static_cast<size_t>(std::find(from, from + N, '\0') - from)), N);
}

/// The key of a CPU ends before its number of threads, within a parenthesis.
template <size_t N>
std::string device_name_of(const char (&from)[N]) {
    std::string name(from, std::find(from, from + N, '\0'));
    const size_t open = name.rfind('(');
    if (open != std::string::npos && name.find(')', open) == std::string::npos) name += ')';
    return quote(name, N + 1);
}

std::string kv_name(Session::Impl& s) {
    static constexpr const char* kNames[] = {"f16", "q8_0", "q4_0", "q4_1", "f32"};
    std::vector<LayerWindow> windows;
    for (const LayerWindow& w : s.stats.windows)
        if (w.window != 0 && w.layer < s.model->plan.n_layer) windows.push_back(w);
    return say("keys ", kNames[static_cast<size_t>(s.options.kv_k)], ", values ",
               kNames[static_cast<size_t>(s.options.kv_v)], ", ",
               windows.empty() ? std::string("no windows") : "windows " + print_windows(windows));
}

Status bad(const FileContent& c, const std::string& what) {
    return fail(Code::bad_file, "'", c.log.path(), "' contradicts itself: ", what,
                ". Use a copy of it if there is one, or delete it and start again.");
}

/// Sorts the parts by kind; each block of rows must be there once, in order.
Status sort_parts(FileContent* c) {
    uint32_t n_text = 0, n_live = 0, n_note = 0;
    for (const LogPart& p : c->log.parts()) {
        switch (static_cast<PartKind>(p.kind)) {
            case PartKind::text: ++n_text; break;
            case PartKind::note: ++n_note; break;
            case PartKind::rows: c->rows.push_back(p); break;
            case PartKind::draft_rows: c->draft_rows.push_back(p); break;
            case PartKind::kept_state: c->kept.push_back(p); break;
            case PartKind::live_state: c->live = p, ++n_live; break;
            default: return bad(*c, say("it has a part of kind ", p.kind));
        }
    }
    if (n_text == 1 && n_live == 1 && n_note <= 1) return {};
    return bad(*c, say("it has ", n_text, " texts, ", n_live, " live states and ", n_note, " notes"));
}

/// row_bytes: 0 if it is not known, as of draft blocks that this session does not have.
Status check_rows(const FileContent& c, const std::vector<LogPart>& parts, uint64_t row_bytes, const char* what) {
    const uint64_t n_row = c.text.n_row;
    if (parts.size() != ceil_div(n_row, uint64_t{kFileRows}))
        return bad(c, say(parts.size(), " blocks of ", what, " for ", n_row, " rows"));
    for (size_t i = 0; i < parts.size(); ++i) {
        const LogPart& p = parts[i];
        const uint64_t n = std::min<uint64_t>(kFileRows, n_row - i * kFileRows);
        if (p.first != i * kFileRows)
            return bad(c, say("block ", i, " of ", what, " begins at row ", p.first, ", expected ", i * kFileRows));
        if (p.n != n || (row_bytes != 0 && p.bytes != n * row_bytes))
            return bad(c, say("block ", i, " of ", what, " has ", p.n, " rows in ", p.bytes, " bytes, expected ", n,
                              row_bytes == 0 ? std::string() : say(" in ", n * row_bytes)));
    }
    return {};
}

Status bad_text(const FileContent& c, const LogPart& p) {
    return bad(c, say("a text of ", c.text.n_token, " tokens, ", c.text.n_row, " rows and ", c.text.n_logit,
                      " logits in ", p.bytes, " bytes"));
}

Status read_text(Session::Impl& s, FileContent* c) {
    for (const LogPart& p : c->log.parts()) {
        if (p.kind != static_cast<uint32_t>(PartKind::text)) continue;
        PartReader from(c->log, p);
        AUSPEX_TRY(from.skip(sizeof(TextHead)));
        const TextHead& t = c->text;
        if (t.n_token > s.options.n_context)
            return fail(Code::bad_argument, "'", c->log.path(), "' holds ", t.n_token, " tokens, the session ",
                        s.options.n_context, "; create it with a larger n_context");
        if (!is_possible(t, s.model->plan.n_vocab)) return bad_text(*c, p);
        c->tokens.resize(static_cast<size_t>(t.n_token));
        c->logits.resize(static_cast<size_t>(t.n_logit));
        AUSPEX_TRY(from.read(c->tokens.data(), c->tokens.size() * sizeof(Token)));
        AUSPEX_TRY(from.read(c->logits.data(), c->logits.size() * sizeof(float)));
    }
    return s.check_ids(c->tokens);
}

}  // namespace file_parts_impl

FileIdentity identity_of(Session::Impl& s) {
    using namespace file_parts_impl;
    FileIdentity id{};
    std::memcpy(id.magic, kMagic, sizeof kMagic);
    if (s.weights_id == 0) {
        s.weights_id = weights_id(*s.model).value;
        s.draft_weights_id = draft_weights_id(*s.model).value;
    }
    id.weights = s.weights_id;
    id.device = hash_of(device_key(*s.model));
    id.kv = hash_of(kv_key(s.kv, false));
    id.draft = s.cache.on() ? hash_of(say(kv_key(s.kv, true), s.draft_weights_id)) : 0;
    set_name(id.device_name, device_key(*s.model));
    set_name(id.kv_name, kv_name(s));
    return id;
}

Status check_identity(const FileIdentity& found, const FileIdentity& own, const std::string& path) {
    using namespace file_parts_impl;
    if (found.weights != own.weights)
        return fail(Code::bad_argument, "'", path,
                    "' belongs to another model, or to other weights or hyperparameters; load the model that it was "
                    "saved with");
    if (found.device != own.device)
        return fail(Code::bad_argument, "'", path, "' was saved on ", device_name_of(found.device_name),
                    ", this session is on ", device_name_of(own.device_name),
                    "; open that kind of device, or compute the history again with sync()");
    if (found.kv != own.kv)
        return fail(
            Code::bad_argument, "'", path, "' was saved with ", name_of(found.kv_name), ", this session has ",
            name_of(own.kv_name),
            "; create it with the same KV formats and windows (give them instead of kv_budget_bytes, which chooses "
            "others for another n_context), and with an n_context larger than the windows: one of n_context rows or "
            "more counts as none");
    return {};
}

uint64_t state_part_bytes(const StateHead& h) {
    return sizeof h + h.n_span * sizeof(SpanBytes) + h.trunk_bytes + h.draft_bytes + h.n_hidden * sizeof(float);
}

Status write_state_head(const StatePartHead& state, bool exact, StateWriter& to) {
    AUSPEX_TRY(to.write(&state.head, sizeof state.head));
    const std::vector<SpanBytes> spans = span_bytes(state.facts.spans, exact);
    return to.write(spans.data(), spans.size() * sizeof(SpanBytes));
}

Status read_state_head(Session::Impl& s, const FileContent& c, const LogPart& part, PartReader& from,
                       StatePartHead* to) {
    using namespace file_parts_impl;
    StateHead& h = to->head;
    AUSPEX_TRY(from.read(&h, sizeof h));
    if (h.row > c.text.n_row || h.row != part.first || h.n_span > h.row)
        return bad(c, say("a state at row ", h.row, " of ", c.text.n_row, " with ", h.n_span, " spans"));
    if ((part.flags & 255u) >= kStateKinds || h.first_key > h.row || h.n_mtp_row > h.row + 1 ||
        (h.n_hidden != 0 && h.n_hidden != s.model->plan.d_model))
        return bad(c, say("the state at row ", h.row, " has values out of range"));
    const size_t row = static_cast<size_t>(h.row);
    const uint64_t spans = h.n_span * sizeof(SpanBytes), hidden = h.n_hidden * sizeof(float);
    const bool fits = from.left() >= spans + hidden && h.trunk_bytes == s.store->part_bytes(StatePart::trunk, row) &&
                      from.left() - spans - hidden >= h.trunk_bytes &&
                      from.left() - spans - hidden - h.trunk_bytes == h.draft_bytes &&
                      (!c.with_draft || h.draft_bytes == s.store->part_bytes(StatePart::draft, row));
    if (!fits) return bad(c, say("the state at row ", h.row, " has ", part.bytes, " bytes, which is not what it says"));
    std::vector<SpanBytes> bytes(static_cast<size_t>(h.n_span));
    AUSPEX_TRY(from.read(bytes.data(), spans));
    if (!read_spans(bytes, h.row, s.options, &to->facts.spans))
        return bad(c, say("the spans of the state at row ", h.row, " do not cover its rows one after the other"));
    if (!c.with_draft) return {};
    to->facts.mtp.first_key = static_cast<size_t>(h.first_key);
    to->facts.mtp.n_row = static_cast<size_t>(h.n_mtp_row);
    to->facts.mtp.has_hidden = h.n_hidden != 0;
    return {};
}

Status open_content(const char* path, FileContent* c) {
    using namespace file_parts_impl;
    AUSPEX_TRY(c->log.open(path));
    const Span<const std::byte> identity = c->log.identity();
    if (identity.size() == sizeof c->identity) std::memcpy(&c->identity, identity.data(), sizeof c->identity);
    const Status other_version =
        fail(Code::bad_file, "'", path, "' was written by another version; save it again with this one");
    if (std::memcmp(c->identity.magic, kMagic, sizeof kMagic) != 0) return other_version;
    AUSPEX_TRY(sort_parts(c));
    for (const LogPart& p : c->log.parts()) {
        PartReader from(c->log, p);
        if (p.kind == static_cast<uint32_t>(PartKind::text)) {
            AUSPEX_TRY(from.read(&c->text, sizeof c->text));
            if (c->text.sampling_bytes != kSamplingBytes) return other_version;
            const uint64_t left = from.left(), n_word = left / 4;  // tokens and logits have 4 bytes each
            AUSPEX_TRY(from.finish());
            if (left % 4 != 0 || c->text.n_token > n_word || c->text.n_logit != n_word - c->text.n_token)
                return bad_text(*c, p);
        }
        if (p.kind != static_cast<uint32_t>(PartKind::note)) continue;
        if (p.bytes > kMaxNoteBytes) return bad(*c, say("a note of ", p.bytes, " bytes"));
        c->note.resize(static_cast<size_t>(p.bytes));
        AUSPEX_TRY(from.read(c->note.data(), p.bytes));
        AUSPEX_TRY(from.finish());
    }
    return {};
}

Status check_content(Session::Impl& s, FileContent* c) {
    using namespace file_parts_impl;
    const FileIdentity own = identity_of(s);
    AUSPEX_TRY(check_identity(c->identity, own, c->log.path()));
    c->same_draft = c->identity.draft == own.draft;
    c->with_draft = c->same_draft && own.draft != 0;
    AUSPEX_TRY(read_text(s, c));
    const uint64_t draft_bytes = c->with_draft ? s.context->kv_row_bytes(StatePart::draft) : 0;
    const uint64_t trunk_bytes = s.context->kv_row_bytes(StatePart::trunk);
    if (trunk_bytes != 0 || !c->rows.empty()) AUSPEX_TRY(check_rows(*c, c->rows, trunk_bytes, "rows"));
    if (draft_bytes != 0 || !c->draft_rows.empty())
        AUSPEX_TRY(check_rows(*c, c->draft_rows, draft_bytes, "draft rows"));
    AUSPEX_TRY(c->log.verify(!s.model->device->options.jobs.run));  // else the application gives the threads
    std::vector<LogPart> states = c->kept;
    states.push_back(c->live);
    for (const LogPart& p : states) {
        PartReader from(c->log, p);
        StatePartHead head;
        AUSPEX_TRY(read_state_head(s, *c, p, from, &head));
    }
    return c->live.first == c->text.n_row ? Status() : bad(*c, "the live state is not that of the last row");
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
