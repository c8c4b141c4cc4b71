#include "memory_limit.h"

#include "memory_plan.h"

#include <algorithm>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

Reservation::~Reservation() {
    if (device_) device_->reserved_bytes -= bytes_;
}

bool Reservation::take(std::shared_ptr<Device::Impl> device, uint64_t bytes) {
    const uint64_t given = device->options.memory_limit_bytes, limit = given != 0 ? given : UINT64_MAX;
    // Not added first and checked then: a request that fails would make others fail that fit.
    uint64_t held = device->reserved_bytes;
    do {
        if (held > limit || bytes > limit - held) return false;
    } while (!device->reserved_bytes.compare_exchange_weak(held, held + bytes));
    bytes_ = bytes;
    device_ = std::move(device);
    return true;
}

uint64_t limited_bytes(const std::vector<MemoryItem>& items) {
    uint64_t bytes = 0;
    for (const MemoryItem& i : items)
        if (i.place != MemoryPlace::file && i.place != MemoryPlace::pinned) bytes += i.bytes;
    return bytes;
}

uint64_t limit_of(const Model::Impl& model) {
    const Device::Impl& device = *model.device;
    const uint64_t given = device.options.memory_limit_bytes, left = device.machine->budget_bytes();
    if (given != 0 && device.machine->kind() == Kind::cpu) return given;
    std::vector<MemoryItem> items;
    if (model.program && !plan_weights(model, model.plan, &items).ok()) return given;
    const uint64_t held = limited_bytes(items), others = device.reserved_bytes - model.reserved.bytes();
    uint64_t limit = left < UINT64_MAX - held ? left + held : UINT64_MAX;
    if (given != 0) limit = std::min(limit, given - std::min(given, others));
    if (limit == UINT64_MAX) return 0;
    return std::max<uint64_t>(limit, 1);  // nothing is left: 0 would say that the limit is not known
}

Status reserve_weights(Model::Impl& model) {
    const Device::Impl& device = *model.device;
    const uint64_t given = device.options.memory_limit_bytes, left = device.machine->budget_bytes();
    const bool cpu = device.machine->kind() == Kind::cpu;
    std::vector<MemoryItem> items;
    AUSPEX_TRY(plan_weights(model, model.plan, &items));
    uint64_t bytes = limited_bytes(items);
    if (!cpu) {
        if (model.reserved.take(model.device, bytes)) return {};
        return fail(Code::out_of_memory, "the weights take ", bytes, " bytes (", mib(bytes),
                    "), memory_limit_bytes is ", given, ", and other models and sessions hold ",
                    device.reserved_bytes.load(), "; end some of them, use a smaller model, or raise the limit");
    }
    if (given != 0) {
        if (bytes <= given) return {};
        return fail(Code::out_of_memory, "the weights take ", bytes, " bytes (", mib(bytes),
                    "), memory_limit_bytes is ", given, "; raise it, or use a smaller model");
    }
    bytes -= std::min(bytes, model.copied_bytes);  // copies are allocated already
    if (bytes <= left) return {};
    return fail(Code::out_of_memory, "the weights take ", bytes, " bytes (", mib(bytes), "), the system has ", left,
                " free; close other programs, use a smaller model, or set memory_limit_bytes "
                "to override this check");
}

Status reserve_context(const Model::Impl& model, const ContextOptions& options, Reservation* to) {
    const Device::Impl& device = *model.device;
    const uint64_t given = device.options.memory_limit_bytes;
    if (given == 0 || device.machine->kind() == Kind::cpu) return {};
    std::vector<MemoryItem> items;
    AUSPEX_TRY(device.machine->plan_context(model.plan, options, &items));
    const uint64_t bytes = limited_bytes(items);
    if (to->take(model.device, bytes)) return {};
    return fail(Code::out_of_memory, "a second context takes ", bytes, " bytes (", mib(bytes),
                "), memory_limit_bytes is ", given, ", and models and sessions hold ", device.reserved_bytes.load(),
                "; end some of them, score in a session of a smaller n_context or n_ubatch, or raise the limit");
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
