// machine/vulkan/context: one sequence on the GPU.
//
// What    VulkanContext: steps, the device decode loop (device_loop.cpp), recordings (recordings.cpp), its state
//         as bytes (context_state.cpp), kernel times and counts (profile.cpp).
// Owns    the buffers of the sequence, its recordings, and what is submitted and not yet finished.
// Thread  one thread at a time; contexts of one device may run in several threads.
// Tests   row invariance, commit equivalence, chunk invariance, hot path: tests/test_vulkan_model.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../../base/clock.h"
#include "../background.h"
#include "clock.h"
#include "list_builder.h"

#include <map>
#include <tuple>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

class VulkanContext : public Context, public DeviceLoop, public KernelProfiler, public StateCopier, public StateSaver {
  public:
    /// Takes all memory. errors: out_of_memory, unsupported, device_lost.
    static Result<std::unique_ptr<Context>> open(std::shared_ptr<const VulkanModel> model,
                                                 const ContextOptions& options);
    ~VulkanContext() override;

    Status run(const Step& step) override;
    void commit(uint32_t k) override { n_pending_ = k; }
    void reset() override;
    Status head(const Tape& tape, uint32_t first, uint32_t n) override;
    Result<Span<const float>> read_row(SlotId slot, uint32_t row) override;
    std::vector<uint64_t> row_pieces(StatePart part) const override;
    uint64_t state_bytes(StatePart part, uint32_t n_row) const override;
    Status save_rows(Span<const PartRows> rows, StateWriter& to) override;
    Status save_state(StatePart part, uint32_t n_row, StateWriter& to) override;
    Status restore_rows(Span<const PartRows> rows, StateReader& from) override;
    Status restore_state(StatePart part, uint32_t n_row, StateReader& from) override;
    uint64_t memory_bytes() const override;
    Status draft_head(Span<const Token> ids) override;

    DeviceLoop* device_loop() override { return this; }
    Status start(const LoopStart& loop) override;
    Status prepare(uint32_t max_drafts) override;
    Result<Span<const Token>> guess(const Step& step) override;
    bool ready(uint32_t n_draft) override;
    Status queue(uint32_t n_draft, const Token* given) override;
    Result<Cycle> wait() override;
    Result<Cycle> resample(uint32_t row, Span<const uint32_t> allowed) override;

    KernelProfiler* profiler() override { return this; }
    Result<std::vector<KernelTime>> profile(uint32_t n_row, uint32_t first_row) override;
    Status may_profile(uint32_t n_row, uint32_t first_row) const override;
    Result<StepCounts> count(const Step& step) const override;

    StateCopier* state_copier() override { return this; }
    Status copy(Context& from, uint32_t n_row, uint32_t n_kept) override;

    StateSaver* state_saver() override { return buffers_.saved_state.bytes != 0 ? this : nullptr; }
    Status begin_save(uint32_t n_row, StateWriter& to) override;
    Status finish_save() override;

  private:
    using Clock = std::chrono::steady_clock;
    /// What a recording does; append() turns it into dispatches. Members that a kind does not name are 0.
    struct RecordingKey {
        enum class Kind : uint8_t {
            open,     ///< opens the step of host request n
            narrow,   ///< n rows of a tentative step, or of an MTP block: tape, fill_only, logits
            wide,     ///< n rows of a committed step, a part for each layer: tape, fill_only
            head,     ///< logits of n rows: tape, few
            apply,    ///< applies the records of n committed rows
            cycle,    ///< the next cycle without an MTP block: n rows, mode
            draft,    ///< the MTP block takes up n rows and drafts n_draft: mode, next, open
            verify,   ///< n rows of the trunk, sampled and accepted: mode, keep
            guess,    ///< n rows of the MTP block, sampled: mode
            resample  ///< row n of the trunk pass before, sampled again: mode
        };
        Kind kind = Kind::open;
        uint32_t n = 0, tape = 0, n_draft = 0, mode = 0;
        bool fill_only = false;
        bool logits = false;  ///< of all rows, to the host
        bool keep = false;    ///< copies the hidden rows to the pending ones
        bool few = false;     ///< of a pass of few rows
        bool next = false;    ///< follows a queued cycle
        bool open = false;    ///< opens the trunk's next pass
        bool operator<(const RecordingKey& o) const {
            const auto all = [](const RecordingKey& k) {
                return std::make_tuple(k.kind, k.n, k.tape, k.n_draft, k.mode, k.fill_only, k.logits, k.keep, k.few,
                                       k.next, k.open);
            };
            return all(*this) < all(o);
        }
    };
    /// Command buffers that are submitted one after the other, in as many submissions as time allows.
    struct Recording {
        std::vector<Commands> parts;
        double part_us = 0;  ///< measured mean of a part; 0: not yet
    };

    explicit VulkanContext(std::shared_ptr<const VulkanModel> model) : model_(std::move(model)) {}
    Status take_memory(const ContextOptions& options);
    // recordings.cpp
    SampleMode draft_mode(uint32_t bits) const;
    void append(ListBuilder& b, const RecordingKey& key) const;
    void append_drafts(ListBuilder& b, const RecordingKey& key) const;
    void append_verify(ListBuilder& b, const RecordingKey& key) const;
    void append_guesses(ListBuilder& b, const RecordingKey& key) const;
    /// The lists of a recording, one for each part.
    Result<std::vector<DispatchList>> build(const RecordingKey& key) const;
    /// A recording, made on first use.
    Result<Recording*> recording(const RecordingKey& key);
    Result<Recording*> open_recording(uint32_t request);
    Result<Recording*> body_recording(const Step& step, uint32_t n_row);
    Result<Recording*> wide_recording(const Tape& tape, uint32_t n_row, bool fill_only);
    Result<Recording*> head_recording(const Tape& tape, uint32_t n, bool few);
    Result<Recording*> draft_recording(uint32_t n_row, uint32_t n_draft, bool next, bool open);
    Result<Recording*> verify_recording(uint32_t n_row, bool keep);
    const Tape& tape_of(const RecordingKey& key) const;
    /// Builds a list ahead of its recording and starts making its pipelines, which cycles of n_draft drafts need.
    Status prepare_list(uint32_t n_draft, const RecordingKey& key);
    Status check(const Step& step) const;
    /// errors    bad_argument: cycles are queued.
    Status check_idle() const;
    Status send_bias(const std::vector<LogitBias>& bias);
    /// The next host request, zeroed; its tokens follow it in memory. Waits until the device is done with its last use.
    /// What reset() could not clear is cleared first.
    Result<args::StepRequest*> take_request(uint32_t* index);
    Status submit(std::initializer_list<const Recording*> list);
    /// The cycle that takes the next place in flight, with the marks of its time: what the draft block does, then the
    /// trunk. `apart`: the two are timed apart.
    Status submit_cycle(std::initializer_list<const Recording*> block, std::initializer_list<const Recording*> trunk,
                        bool apart);
    void gather(std::initializer_list<const Recording*> list);
    Status write_draft_head(Span<const Token> ids, const Slot& s, const Tiling& tiling, const Region& rows,
                            const Region& table);
    Status submit_wide(Recording* body, uint32_t n_row);
    Status finish_wide();
    /// Waits for everything submitted. errors: device_lost, also when another context noticed the loss.
    Status barrier();
    /// Submits the clearing of state that reset() could not submit.
    Status finish_reset();
    Status run_trunk(const Step& step);
    Status run_mtp(const Step& step);
    /// Opens an MTP pass and runs `body` and `head` after it.
    Status submit_mtp(const Step& step, const Recording* body, const Recording* head);
    Status keep_raw_rows(uint32_t n_row, uint32_t at, uint32_t n);
    // context_state.cpp
    Status submit_pending();
    Status apply_pending();
    std::vector<Region> row_regions(Span<const PartRows> rows) const;
    std::vector<Region> state_regions(StatePart part, uint32_t n_row) const;
    Status begin_restore();
    Status write_saved();
    void forget_rows();

    Status queue_first(uint32_t n_draft, const Token* given);
    Status queue_next(uint32_t n_draft);
    Status queue_given(uint32_t n_draft, const Token* given);
    /// The tokens that the ring has beyond what was read, up to the end of a pass.
    void read_ring(Cycle* c);
    Status gave_no_token();
    /// Makes what kernels wrote to host memory visible to the host.
    Status invalidate(const Region& r) const;

    std::shared_ptr<const VulkanModel> model_;
    Buffers buffers_;
    Timeline timeline_;
    Transfer transfer_;
    std::shared_ptr<CommandPool> pool_;
    std::map<RecordingKey, Recording> recordings_;
    std::map<RecordingKey, DispatchList> prepared_;  ///< built, not yet recorded
    Commands reset_;
    bool must_reset_ = false;                 ///< reset_ has not been submitted yet
    std::vector<VkCommandBuffer> list_;       ///< of one submission
    uint64_t request_value_[kRequests] = {};  ///< when the device is done with a request
    uint32_t next_request_ = 0;
    ContextOptions options_;
    uint32_t n_chunk_max_ = 0;  ///< rows of a committed step that can run at once
    uint32_t n_chunk_ = 0;      ///< of those, how many do: finish_wide() decides
    /// The body of many rows that was submitted last, until somebody waits for it.
    struct Wide {
        Recording* body = nullptr;
        uint32_t n_row = 0;
        uint64_t value = 0;
        std::chrono::steady_clock::time_point begin;  ///< when the device began with it
    };
    Wide wide_;

    uint32_t n_pending_ = 0;        ///< committed rows of the last tentative step
    uint32_t n_last_row_ = 0;       ///< rows of the last step
    bool few_rows_ = false;         ///< the trunk's last pass was one of few rows
    SlotId logits_slot_ = kNoSlot;  ///< whose rows logits_host holds
    std::vector<float> read_back_;  ///< rows of a kept slot, on the host
    SlotId read_slot_ = kNoSlot;
    uint32_t read_first_ = 0, read_n_ = 0;

    // A state that is being saved; the background thread works with these until finish_save().
    StateWriter* save_to_ = nullptr;
    uint64_t save_value_ = 0, save_bytes_ = 0;
    Status save_status_;

    // The device decode loop.
    struct InFlight {
        uint64_t value = 0;
        uint32_t clock_slot = 0;
        bool had_begin = false;   ///< a mark of its own: no cycle ran right before it
        bool had_middle = false;  ///< a mark where the trunk begins
        bool cold = false;        ///< something was recorded while it was in flight
    };
    bool loop_started_ = false, first_ = false;
    SampleMode mode_;                 ///< of its cycles
    uint32_t first_request_[2] = {};  ///< of the first cycle: MTP pass, trunk pass
    uint32_t position_ = 0, limit_ = 0, n_mtp_row_ = 0;
    uint32_t n_before_ = 0;        ///< rows of the trunk pass queued last
    InFlight flight_[kMaxQueued];  ///< oldest at flight_begin_
    uint32_t flight_begin_ = 0, n_flight_ = 0;
    uint32_t ring_read_ = 0;
    bool done_ = false;
    bool recorded_ = false;  ///< something, since the last cycle was queued
    /// [n]: pipelines that a cycle of n drafts needs and that may not be ready yet; [0]: those of the draft block too.
    std::vector<Pipelines::Id> needs_[kMaxTentative];
    uint32_t max_drafts_ = 0;      ///< as prepare() was asked for
    uint32_t prepared_modes_ = 0;  ///< bit b: for samples of SampleMode::bits() b
    std::vector<Token> tokens_;    ///< of the last cycle waited for
    CycleClock clock_;
    Background background_;  ///< ends first
};

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
