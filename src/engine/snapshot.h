// engine/snapshot: a timeline as bytes.
//
// Layout  SnapshotHead | tokens | logits of the last row, if known | spans | state, as Context::save writes it. A token
//         that was sampled and not run has no row yet, and a device may have run rows of tokens that next() has not
//         returned: TextHead has all three counts.
// Thread  pure functions.
// Tests   tests/test_snapshot.cpp: what is damaged, cut short or of another model is refused.
#pragma once
#include "../machine/kv.h"
#include "model.h"
#include "sampler.h"
#include "timeline.h"

#include <type_traits>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// Equal for models whose trunks have the same weights and hyperparameters, however they are loaded and whatever MTP
/// blocks they have. A few bytes of every tensor stand for the weights.
/// cost      reads some 500 bytes of each tensor's data.
Fnv weights_id(const Model::Impl& model);
/// The same for the MTP blocks that are loaded, if any.
Fnv draft_weights_id(const Model::Impl& model);

/// What must be equal for a state to mean the same: the weights, the kind of device and its code path, windows and KV
/// formats. Not the number of threads. cost: of weights_id().
uint64_t state_id(const Model::Impl& model, const std::vector<KvShape>& kv);
/// The kind of device, with its code path and without the number of threads.
std::string device_key(const Model::Impl& model);
/// Formats and windows of the caches of the trunk, or of the draft blocks.
std::string kv_key(const std::vector<KvShape>& kv, bool draft);

/// The text of a snapshot or file.
struct TextHead {
    uint64_t n_token, n_given, n_row, n_logit;
    uint64_t sampling_bytes;          ///< kSamplingBytes: a version with another field refuses it
    uint64_t n_prompt;                ///< PrefixTree::n_prompt()
    uint64_t n_asked, n_for_logits;   ///< Timeline::Asked
    std::byte ahead[kSamplingBytes];  ///< how tokens beyond n_given were sampled: without a constraint
};
static_assert(std::is_trivially_copyable<TextHead>::value && sizeof(TextHead) == 64 + kSamplingBytes,
              "part of the file format");
/// Whether the counts can be: n_logit is n_vocab, or 0 where the logits of the last row are not known.
bool is_possible(const TextHead& text, uint32_t n_vocab);

/// A RowSpan as snapshots and files hold it. origin: a RowOrigin, or kPrefilledExact.
struct SpanBytes {
    uint64_t first, n, origin;
};
static_assert(sizeof(SpanBytes) == 24, "part of the file format");
constexpr uint64_t kPrefilledExact = 3;  ///< prefilled with SessionOptions::exact_prompts
/// exact: the session's SessionOptions::exact_prompts.
std::vector<SpanBytes> span_bytes(const std::vector<RowSpan>& spans, bool exact);
/// False unless the spans cover rows 0 .. n_row-1 without gaps. Prefilled rows beyond n_ubatch, or with another
/// exact_prompts, become restored ones: this session cannot compute them again with the same bits.
bool read_spans(Span<const SpanBytes> bytes, uint64_t n_row, const SessionOptions& options,
                std::vector<RowSpan>* spans);

/// Everything before the state; the caller appends that, then calls finish_snapshot().
std::vector<std::byte> begin_snapshot(uint64_t id, const TextHead& text, Span<const Token> tokens,
                                      Span<const float> logits, Span<const SpanBytes> spans);
/// Fills in the checksum.
void finish_snapshot(std::vector<std::byte>* bytes);

struct SnapshotParts {
    TextHead text{};
    std::vector<Token> tokens;
    std::vector<float> logits;   ///< of the last row, or empty
    std::vector<RowSpan> spans;  ///< how the rows were computed
    Span<const std::byte> state;
};
/// errors    bad_argument: no snapshot, of another version or state_id, damaged, cut short, or longer than n_context.
Result<SnapshotParts> read_snapshot(Span<const std::byte> bytes, uint64_t id, const SessionOptions& options,
                                    uint32_t n_vocab);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
