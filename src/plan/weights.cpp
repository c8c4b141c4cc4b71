#include "weights.h"

namespace auspex {
namespace detail {

Result<Weights> find_weights(const Plan& plan, const Gguf& file) {
    Weights found;
    found.data.resize(plan.slots.size(), nullptr);
    for (SlotId id = 0; id < plan.slots.size(); ++id) {
        const Slot& s = plan.slots[id];
        if (s.role != SlotRole::weight) continue;
        const Tensor* t = file.tensor(s.name);
        if (!t) return fail(Code::bad_file, "tensor '", s.name, "' vanished between planning and loading");
        found.data[id] = t->data;
    }
    return found;
}

}  // namespace detail
}  // namespace auspex
