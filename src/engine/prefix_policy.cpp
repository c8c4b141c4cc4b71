#include "prefix_policy.h"

#include <algorithm>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

namespace prefix_policy_impl {

constexpr size_t kStride = 8192;      // of the stride policy, and the prefill from which by_score keeps any
constexpr size_t kNearStride = 4096;  // the first distance from the prompt's end; each further one doubles
constexpr size_t kMinUnmarked = 512;  // rows of a prefill without marks from which a further step is no loss
constexpr size_t kMaxStrideStates = 32;
constexpr double kTipWeight = 4;
constexpr double kReplyWeight = 1.0 / 16;  // short-lived: it must not push out what is then gone for good
constexpr double kRateWindow = 32;         // states of a kind after which older ones count half

size_t grid_floor(size_t row, size_t grid) { return row / grid * grid; }

void stride_stops(const StopsInput& in, std::vector<Stop>* stops) {
    for (size_t row = (in.base / kStride + 1) * kStride; row < in.n_row; row += kStride)
        stops->push_back({row, StateKind::stride, false});
    stops->push_back({grid_floor(in.n_row - 1, in.grid), StateKind::user_end, false});
}

void score_stops(const StopsInput& in, Span<const Mark> marks, std::vector<Stop>* stops) {
    for (const Mark& mark : marks) stops->push_back({mark.row, kind_of(mark), mark.pinned});
    if (marks.empty() && in.n_row - in.base >= kMinUnmarked)
        stops->push_back({grid_floor(in.n_row - 1, in.grid), StateKind::user_end, false});
    if (in.junction != 0) stops->push_back({grid_floor(in.junction, in.grid), StateKind::junction, false});
    if (in.n_row - in.base <= kStride) return;
    for (size_t distance = kNearStride; distance < in.n_row - in.base; distance *= 2)
        stops->push_back({grid_floor(in.n_row - distance, in.grid), StateKind::stride, false});
}

}  // namespace prefix_policy_impl

std::vector<Stop> plan_stops(PrefixPolicy policy, const StopsInput& in, Span<const Mark> marks) {
    using namespace prefix_policy_impl;
    std::vector<Stop> stops;
    if (policy == PrefixPolicy::none || in.n_row <= in.base) return stops;
    if (policy == PrefixPolicy::stride)
        stride_stops(in, &stops);
    else
        score_stops(in, marks, &stops);
    stops.erase(
        std::remove_if(stops.begin(), stops.end(), [&](const Stop& s) { return s.row <= in.base || s.row > in.n_row; }),
        stops.end());
    std::sort(stops.begin(), stops.end(), [](const Stop& a, const Stop& b) {
        return a.row != b.row ? a.row < b.row : a.kind < b.kind;  // the caller's marks win
    });
    stops.erase(std::unique(stops.begin(), stops.end(), [](const Stop& a, const Stop& b) { return a.row == b.row; }),
                stops.end());
    return stops;
}

void UseRates::taken(StateKind kind) {
    using namespace prefix_policy_impl;
    double& n = n_taken_[static_cast<size_t>(kind)];
    n += 1;
    if (n <= kRateWindow) return;
    n /= 2;
    n_used_[static_cast<size_t>(kind)] /= 2;
}

double UseRates::of(StateKind kind) const {
    const size_t i = static_cast<size_t>(kind);
    return (n_used_[i] + 1) / (n_taken_[i] + 1);
}

double state_score(PrefixPolicy policy, const StateWorth& worth) {
    using namespace prefix_policy_impl;
    const double recent = 1.0 / static_cast<double>(1 + worth.age);
    if (policy != PrefixPolicy::by_score) return recent;
    const double weight = is_in_reply(worth.kind) ? kReplyWeight : worth.is_tip ? kTipWeight : 1;
    const double rows = static_cast<double>(worth.gap) * worth.use_rate * weight;
    const double left = 1.0 / static_cast<double>(1 + worth.path_age);
    return rows * recent * left / static_cast<double>(std::max<uint64_t>(worth.bytes, 1));
}

size_t max_states(PrefixPolicy policy) {
    using namespace prefix_policy_impl;
    return policy == PrefixPolicy::stride ? kMaxStrideStates : SIZE_MAX;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
