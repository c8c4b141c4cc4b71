// engine/cycle_cost: how long a cycle takes, by draft depth and context length, learned from measured cycles.
//
// Owns    the filter over costs, and its form as bytes. Arithmetic alone: no clock, no device.
// Thread  belongs to one Controller.
// Test    tests/test_cycle_cost.cpp.
//
// log T(g) = speed + ratio(g), both in log seconds, kept for each octave of context length. What changes for all depths
// (clock, load, context) moves `speed` after one cycle at any depth; what changes for one depth moves its ratio. A
// scalar Kalman step divides each surprise between the two by how uncertain they are, and a ratio grows uncertain while
// it is not measured. A jump, three surprises in a row, is attributed to the speed; the next cycle at another depth
// tells whether it was that one depth's own. Only sums of speed and ratio are measured, so the ratio of one depth, the
// reference, is fixed: else speed and measured ratios drift apart, and the costs of depths that are not run drift with
// the speed.
#pragma once
#include "acceptance.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

class CycleCost {
  public:
    static constexpr uint32_t kBucket = 12;  ///< octaves from 1K tokens on; the last has no end
    static uint32_t bucket_of(uint32_t context);
    /// Makes the bucket of `context` current; a new one starts from its nearest neighbour.
    void enter(uint32_t context);
    /// A cycle at `depth` took so long. Times that are not positive and finite are ignored.
    void observe(uint32_t depth, double seconds);
    /// Every depth but 0 is unmeasured again in the current bucket.
    void forget_drafts();
    bool knows(uint32_t depth) const { return now().ratio[depth].n > 0; }
    uint32_t n_sample(uint32_t depth) const { return now().ratio[depth].n; }
    /// No depth but 0 was measured since the costs were loaded.
    bool drafts_loaded() const;
    /// T(g). Unmeasured depths are on a line through the measured ones with g >= 1 (the step from 0 to 1 is a jump and
    /// says nothing about the slope). Those not measured for 512 cycles or since another one became cheaper, and those
    /// measured once and far above the line, are at most 12 % above it. 0 before the first observation.
    double seconds(uint32_t depth) const;
    /// Cycles since this depth was last measured.
    uint64_t age(uint32_t depth) const { return n_cycle_ - now().ratio[depth].when; }
    uint64_t cycles_since_jump() const { return jump_when_ > 0 ? n_cycle_ - jump_when_ : UINT64_MAX; }
    /// Standard deviation of log T(g) against the other depths.
    double uncertainty(uint32_t depth) const;
    /// The depth whose last measurement was an outlier; UINT32_MAX: none.
    uint32_t surprised() const { return now().ratio[surprised_].n_surprise > 0 ? surprised_ : UINT32_MAX; }

    /// Appends saved_bytes() to `to`.
    void save(std::vector<std::byte>* to) const;
    static size_t saved_bytes();
    /// from: [saved_bytes()]. errors    bad_file: not what save() wrote, or damaged. Nothing is changed then.
    Status load(Span<const std::byte> from);

  private:
    struct Ratio {
        double log = 0, variance = 0;
        uint64_t when = 0;  // cycle of the last measurement; 0: before the costs were loaded
        uint32_t n = 0;
        bool doubted = false;     // not measured since another depth with drafts became cheaper
        double surprise = 0;      // the last outlier
        uint32_t n_surprise = 0;  // outliers in a row, in one direction
    };
    struct Bucket {
        bool known = false;
        double speed = 0, speed_variance = 0;
        uint32_t reference = 0;  // the depth whose ratio is fixed
        Ratio ratio[kMaxDepth + 1];
    };
    const Bucket& now() const { return bucket_[current_]; }
    double variance(const Ratio& r) const;
    /// exp(speed + ratio); 0: never measured.
    double measured(uint32_t depth) const;
    bool holds(uint32_t depth) const;
    double on_line(uint32_t depth, uint32_t min_n, bool holding) const;
    void filter(uint32_t depth, double seconds);
    void forget_outliers(uint32_t depth);
    void bound_plain(uint32_t depth);
    bool young() const;
    void first_sample(Bucket& b, Ratio& r, double log_t);
    void second_sample(Bucket& b, Ratio& r, double log_t);
    void jump(uint32_t depth, double e);
    void attribute_jump(uint32_t depth, double log_t);

    Bucket bucket_[kBucket];
    uint32_t current_ = 0;
    uint64_t n_cycle_ = 0;  // since the costs were loaded
    bool loaded_ = false;
    double noise_variance_ = 0;
    double jump_ = 0;          // the last jump, until a cycle at another depth shows whose it was
    uint32_t jump_depth_ = 0;  // where it was seen
    uint64_t jump_when_ = 0;   // and in which cycle
    uint32_t surprised_ = 0;   // depth
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
