#include "session_options.h"

#include "draft.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace session_options_impl {
namespace {

/// Why there is no MTP block to draft with.
Status no_mtp(const Model::Impl& m) {
    Result<uint32_t> n = m.gguf.get_u32((m.plan.architecture + ".nextn_predict_layers").c_str(), 0u);
    if (!n.ok() || n.value() == 0)
        return Status(Code::unsupported,
                      "drafting with an MTP block was asked for, but this file has none ('" + m.plan.architecture +
                          ".nextn_predict_layers' is absent or 0); draft by lookup, or use a file that was converted "
                          "with its MTP block, or one beside it (mtp_file)");
    const std::string name = "blk." + std::to_string(m.plan.n_layer) + ".nextn.eh_proj.weight";
    if (!m.gguf.tensor(name))
        return Status(Code::unsupported,
                      "drafting with an MTP block was asked for; the file's metadata names " +
                          std::to_string(n.value()) + ", but tensor '" + name +
                          "' is missing: the block was dropped when the file was made, or is in one of its own "
                          "(mtp_file); draft by lookup, or convert it again");
    return Status(Code::unsupported,
                  "drafting with an MTP block was asked for, but the Model was loaded without it (LoadOptions::mtp)");
}

Status check_draft(const Model::Impl& model, const DraftOptions& d) {
    if (d.source < Draft::off || d.source > Draft::best)
        return fail(Code::bad_argument, "draft.source is ", static_cast<int>(d.source),
                    ", expected a value of Draft, 0..", static_cast<int>(Draft::best));
    if (d.depth < -1 || d.depth > static_cast<int>(kMaxDraft))
        return fail(Code::bad_argument, "draft.depth is ", d.depth, ", expected 0..", kMaxDraft,
                    ", or -1 for a choice of its own");
    if (!(d.min_probability >= 0 && d.min_probability <= 1))
        return fail(Code::bad_argument, "draft.min_probability is ", d.min_probability, ", expected 0..1");
    if (d.max_depth == 0 || d.max_depth > kMaxDraft)
        return fail(Code::bad_argument, "draft.max_depth is ", d.max_depth, ", expected 1..", kMaxDraft);
    if (!d.vocab.empty() && d.vocab_by_use)
        return Status(
            Code::bad_argument,
            "draft.vocab and draft.vocab_by_use were both given; one names the ids of the draft-only head, the "
            "other chooses them at each sync(), so give one of them");
    return drafts_with_block(d.source) && model.plan.mtp.empty() ? no_mtp(model) : Status();
}

}  // namespace
}  // namespace session_options_impl

Status check_session_options(const Model::Impl& model, const SessionOptions& o) {
    if (o.run_ahead >= kMaxQueued)
        return fail(Code::bad_argument, "run_ahead is ", o.run_ahead, ", expected 0..", kMaxQueued - 1);
    for (const KvType type : {o.kv_k, o.kv_v})
        if (type < KvType::f16 || type > KvType::f32)
            return fail(Code::bad_argument, "a KV format is ", static_cast<int>(type),
                        ", expected a value of KvType, 0..", static_cast<int>(KvType::f32));
    return session_options_impl::check_draft(model, o.draft);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
