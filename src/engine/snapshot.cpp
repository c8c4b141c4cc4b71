#include "snapshot.h"

#include "../base/checksum.h"
#include "../plan/pair.h"

#include <algorithm>
#include <cstring>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace snapshot_impl {

struct SnapshotHead {
    char magic[8];
    TextHead text;
    uint64_t n_span;
    uint64_t id;
    uint64_t checksum;  ///< of all other bytes
};
constexpr char kMagic[8] = {'a', 'u', 's', 'p', 'e', 'x', 'S', '7'};

uint64_t checksum_of_snapshot(Span<const std::byte> snapshot) {
    SnapshotHead head;
    std::memcpy(&head, snapshot.data(), sizeof head);
    head.checksum = 0;
    Fnv h;
    h.bytes(&head, sizeof head);
    h.mix(checksum_of(snapshot.data() + sizeof head, snapshot.size() - sizeof head));
    return h.value;
}

/// Eight pieces of 64 bytes, evenly spread over a tensor's data.
void mix_tensor(const Tensor& tensor, Fnv* h) {
    constexpr uint64_t kPieces = 8, kBytes = 64;
    h->bytes(tensor.name.data(), tensor.name.size());
    const Span<const std::byte> data(tensor.data, tensor.data ? static_cast<size_t>(tensor.bytes) : 0);
    for (uint64_t i = 0; i < kPieces; ++i) {
        const uint64_t n = std::min<uint64_t>(kBytes, data.size());
        h->bytes(data.data() + (data.size() - n) * i / (kPieces - 1), static_cast<size_t>(n));
    }
}

/// A hyperparameter: the values decide, not the type in which a converter wrote them. n: the values that count.
void mix_meta(const Meta& meta, uint64_t n, Fnv* h) {
    h->bytes(meta.key.data(), meta.key.size());
    h->mix(n);
    for (const std::string_view s : meta.strings) h->bytes(s.data(), s.size());
    double value = 0;
    int64_t integer = 0;
    for (uint64_t i = 0; meta.strings.empty() && i < n; ++i) {
        if (!meta.get_float(i, &value) && meta.get_int(i, &integer)) value = static_cast<double>(integer);
        h->bytes(&value, sizeof value);
    }
}

/// The hyperparameters of the trunk: not the number of MTP blocks, nor the values of each.
void mix_trunk_metas(const Model::Impl& m, Fnv* h) {
    const std::string prefix = m.plan.architecture + ".", n_block_key = prefix + "block_count";
    const uint64_t n_layer = m.plan.n_layer;
    uint32_t n_block = 0;
    (void)m.gguf.get_u32(n_block_key).get(n_block);
    for (const Meta& meta : m.gguf.meta()) {
        if (meta.key.substr(0, prefix.size()) != prefix) continue;
        if (meta.key == n_block_key || meta.key == prefix + "nextn_predict_layers") continue;
        mix_meta(meta, meta.is_array && meta.n == n_block ? std::min(meta.n, n_layer) : meta.n, h);
    }
}

/// Weights and caches of the trunk, or those of the MTP blocks alone.
void mix_weights(const Model::Impl& m, bool draft, Fnv* h) {
    std::vector<bool> in_trunk = m.plan.weights_of_trunk();
    for (const Op& op : m.plan.trunk.ops)
        for (const SlotId id : {op.state, op.state2})
            if (id != kNoSlot) in_trunk[id] = true;
    for (SlotId id = 0; id < m.plan.slots.size(); ++id) {
        const Slot& s = m.plan.slot(id);
        if (in_trunk[id] == draft || s.role == SlotRole::activation || s.role == SlotRole::kept) continue;
        const std::string text = say(s.name, static_cast<uint32_t>(s.type), ":", s.shape[0], ",", s.shape[1], ";");
        h->bytes(text.data(), text.size());
    }
    for (const Tensor& t : m.gguf.tensors())
        if ((block_of(t.name) >= int64_t{m.plan.n_layer} || is_of_draft_head(t.name)) == draft) mix_tensor(t, h);
}

template <class T>
void append_bytes(std::vector<std::byte>* to, Span<const T> values) {
    const size_t at = to->size(), n = values.size() * sizeof(T);
    to->resize(at + n);
    if (n != 0) std::memcpy(to->data() + at, values.data(), n);
}

}  // namespace snapshot_impl

Fnv weights_id(const Model::Impl& m) {
    Fnv h;
    h.bytes(m.plan.architecture.data(), m.plan.architecture.size());
    snapshot_impl::mix_trunk_metas(m, &h);
    snapshot_impl::mix_weights(m, false, &h);
    return h;
}

Fnv draft_weights_id(const Model::Impl& m) {
    Fnv h;
    if (!m.plan.mtp.empty()) snapshot_impl::mix_weights(m, true, &h);
    return h;
}

std::string device_key(const Model::Impl& m) {
    const std::string device = m.device->machine->name();
    return m.device->machine->kind() == Kind::cpu ? device.substr(0, device.find(',')) : device;  // without the threads
}

std::string kv_key(const std::vector<KvShape>& kv, bool draft) {
    std::string key;
    for (const KvShape& k : kv)
        if (k.n_ring != 0 && k.draft == draft)
            key += say(static_cast<uint32_t>(k.k), ",", static_cast<uint32_t>(k.v), ",", k.window, "+", k.sinks, ";");
    return key;
}

uint64_t state_id(const Model::Impl& m, const std::vector<KvShape>& kv) {
    Fnv h = weights_id(m);
    for (const std::string& key : {device_key(m), kv_key(kv, false)}) h.bytes(key.data(), key.size());
    return h.value;
}

bool is_possible(const TextHead& t, uint32_t n_vocab) {
    const uint64_t n = t.n_token;
    return t.n_row <= n && t.n_given <= n && t.n_prompt <= n && t.n_asked <= n && t.n_for_logits <= n &&
           (t.n_given != 0 || n == 0) && (t.n_logit == 0 || t.n_logit == n_vocab);
}

std::vector<SpanBytes> span_bytes(const std::vector<RowSpan>& spans, bool exact) {
    std::vector<SpanBytes> bytes;
    bytes.reserve(spans.size());
    for (const RowSpan& span : spans) {
        const bool as_exact = exact && span.origin == RowOrigin::prefilled;
        bytes.push_back({span.first, span.n, as_exact ? kPrefilledExact : static_cast<uint64_t>(span.origin)});
    }
    return bytes;
}

bool read_spans(Span<const SpanBytes> bytes, uint64_t n_row, const SessionOptions& options,
                std::vector<RowSpan>* spans) {
    constexpr uint64_t kPrefilled = static_cast<uint64_t>(RowOrigin::prefilled);
    const uint64_t own = options.exact_prompts ? kPrefilledExact : kPrefilled;
    uint64_t at = 0;
    spans->clear();
    spans->reserve(bytes.size());
    for (const SpanBytes& b : bytes) {
        if (b.first != at || b.n == 0 || b.n > n_row - at || b.origin > kPrefilledExact) return false;
        at += b.n;
        RowSpan span{static_cast<size_t>(b.first), static_cast<size_t>(b.n), RowOrigin::restored};
        if (b.origin == static_cast<uint64_t>(RowOrigin::decoded)) span.origin = RowOrigin::decoded;
        if (b.origin == own && b.n <= options.n_ubatch) span.origin = RowOrigin::prefilled;
        spans->push_back(span);
    }
    return at == n_row;
}

std::vector<std::byte> begin_snapshot(uint64_t id, const TextHead& text, Span<const Token> tokens,
                                      Span<const float> logits, Span<const SpanBytes> spans) {
    using namespace snapshot_impl;
    SnapshotHead head{};
    std::memcpy(head.magic, kMagic, sizeof kMagic);
    head.text = text;
    head.n_span = spans.size();
    head.id = id;
    std::vector<std::byte> bytes;
    append_bytes(&bytes, Span<const SnapshotHead>(&head, 1));
    append_bytes(&bytes, tokens);
    append_bytes(&bytes, logits);
    append_bytes(&bytes, spans);
    return bytes;
}

void finish_snapshot(std::vector<std::byte>* bytes) {
    using namespace snapshot_impl;
    const uint64_t sum = checksum_of_snapshot(*bytes);
    std::memcpy(bytes->data() + offsetof(SnapshotHead, checksum), &sum, sizeof sum);
}

Result<SnapshotParts> read_snapshot(Span<const std::byte> bytes, uint64_t id, const SessionOptions& options,
                                    uint32_t n_vocab) {
    using namespace snapshot_impl;
    SnapshotHead head{};
    if (bytes.size() >= sizeof head) std::memcpy(&head, bytes.data(), sizeof head);
    const TextHead& text = head.text;
    if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0 || text.sampling_bytes != kSamplingBytes)
        return Status(Code::bad_argument, "this is no snapshot of a session, or one of another version; save it again");
    if (head.id != id)
        return Status(
            Code::bad_argument,
            "this snapshot belongs to another model, other weights or hyperparameters, another kind of device, "
            "or other windows or KV formats; save it again with this session's. A window of n_context rows or more "
            "counts as none, so n_context must be larger than the windows that it was saved with");
    if (text.n_token > options.n_context)
        return fail(Code::bad_argument, "the snapshot holds ", text.n_token, " tokens, the session ", options.n_context,
                    "; create it with a larger n_context");
    const Status damaged(Code::bad_argument,
                         "this snapshot is damaged or cut short: its checksum does not fit; save it again");
    if (!is_possible(text, n_vocab) || head.n_span > text.n_row) return damaged;
    const size_t n = static_cast<size_t>(text.n_token), n_logit = static_cast<size_t>(text.n_logit),
                 n_span = static_cast<size_t>(head.n_span);
    const size_t logits_at = sizeof head + n * sizeof(Token), spans_at = logits_at + n_logit * sizeof(float),
                 state_at = spans_at + n_span * sizeof(SpanBytes);
    if (bytes.size() < state_at || checksum_of_snapshot(bytes) != head.checksum) return damaged;
    SnapshotParts parts;
    parts.text = text;
    parts.tokens.resize(n);
    parts.logits.resize(n_logit);
    std::vector<SpanBytes> spans(n_span);
    if (n) std::memcpy(parts.tokens.data(), bytes.data() + sizeof head, n * sizeof(Token));
    if (n_logit) std::memcpy(parts.logits.data(), bytes.data() + logits_at, n_logit * sizeof(float));
    if (n_span) std::memcpy(spans.data(), bytes.data() + spans_at, n_span * sizeof(SpanBytes));
    if (!read_spans(spans, text.n_row, options, &parts.spans)) return damaged;
    parts.state = bytes.subspan(state_at, bytes.size() - state_at);
    return parts;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
