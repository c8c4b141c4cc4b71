// capi/capi_model: devices, models, plans and streams of auspex.h.
#include "capi.h"

using auspex::capi::Answer;
using auspex::capi::bad;
using auspex::capi::call;
using auspex::capi::need;

uint32_t auspex_abi_version(void) { return AUSPEX_ABI_VERSION; }

const char* auspex_version_string(void) { return AUSPEX_VERSION; }

const char* auspex_code_name(auspex_code code) {
    static const char* const names[] = {"ok",          "bad_argument", "bad_file",      "unsupported",
                                        "not_found",   "io_error",     "out_of_memory", "no_device",
                                        "device_lost", "cancelled",    "context_full",  "buffer_too_small"};
    return code >= 0 && code <= AUSPEX_BUFFER_TOO_SMALL ? names[code] : "unknown";
}

// ------------------------------------------------------------------------------------------ devices

auspex_code auspex_device_options_init(auspex_device_options* options, uint32_t struct_size) {
    return auspex::capi::init(options, struct_size);
}

auspex_code auspex_device_open(const auspex_device_options* given, auspex_device** device, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(device, "device"));
        auspex_device_options from;
        AUSPEX_C_TRY(auspex::capi::read(given, &from, "auspex_device_options"));
        auto made = std::make_unique<auspex_device>();
        made->host = std::make_shared<auspex::capi::Host>();
        auspex::DeviceOptions options;
        AUSPEX_C_TRY(auspex::capi::device_options(from, made->host, &options));
        auspex_vulkan_handles borrow;
        AUSPEX_C_TRY(auspex::capi::read(from.borrow, &borrow, "auspex_vulkan_handles"));
        auspex::VulkanHandles handles;
        if (from.borrow != nullptr) {
            handles.instance = borrow.instance;
            handles.physical_device = borrow.physical_device;
            handles.device = borrow.device;
            handles.queue = borrow.queue;
            handles.queue_family = borrow.queue_family;
            handles.get_instance_proc_addr = borrow.get_instance_proc_addr;
            if ((borrow.lock_queue == nullptr) != (borrow.unlock_queue == nullptr))
                return bad("one of lock_queue and unlock_queue is null; expected both, or neither");
            if (borrow.lock_queue != nullptr) {
                handles.lock_queue = [f = borrow.lock_queue, user = borrow.user] { f(user); };
                handles.unlock_queue = [f = borrow.unlock_queue, user = borrow.user] { f(user); };
            }
            handles.enabled_features = borrow.enabled_features;
            AUSPEX_C_TRY(auspex::capi::view(borrow.enabled_extensions, borrow.n_enabled_extensions,
                                            &handles.enabled_extensions, "enabled_extensions"));
            options.borrow = &handles;
        }
        AUSPEX_C_TRY(auspex::Device::open(options).get(made->device));
        *device = made.release();
        return Answer();
    });
}

auspex_code auspex_device_list(const auspex_device_options* given, auspex_on_device on_device, void* user,
                               auspex_error* error) {
    return call(error, [&]() -> Answer {
        if (on_device == nullptr) return bad("on_device is null; expected a function");
        auspex_device_options from;
        AUSPEX_C_TRY(auspex::capi::read(given, &from, "auspex_device_options"));
        const auto host = std::make_shared<auspex::capi::Host>();
        auspex::DeviceOptions options;
        AUSPEX_C_TRY(auspex::capi::device_options(from, host, &options));
        std::vector<auspex::DeviceEntry> all;
        AUSPEX_C_TRY(auspex::Device::list(options).get(all));
        for (const auspex::DeviceEntry& one : all) {
            const Answer status = one.status;
            auspex_device_entry entry = {};
            entry.struct_size = sizeof entry;
            entry.kind = static_cast<int32_t>(one.kind);
            entry.gpu = one.vulkan_index + 1;
            entry.code = status.code;
            entry.name = one.name.c_str();
            entry.text = status.text.c_str();
            if (on_device(&entry, user) != 0) return Answer(AUSPEX_CANCELLED, "cancelled by on_device");
        }
        return Answer();
    });
}

void auspex_device_free(auspex_device* device) {
    if (auspex::capi::is(device)) delete device;
}

int32_t auspex_device_kind(const auspex_device* device) {
    return auspex::capi::is(device) ? static_cast<int32_t>(device->device.kind()) : int32_t{AUSPEX_KIND_BEST};
}

auspex_code auspex_device_name(const auspex_device* device, char* text, size_t capacity, size_t* length,
                               auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(device, "device"));
        AUSPEX_C_TRY(auspex::capi::need_output(length, "length"));
        const std::string name = device->device.name();
        AUSPEX_C_TRY(auspex::capi::need_memory(!name.empty()));
        return auspex::capi::fill_text(name, text, capacity, length);
    });
}

auspex_code auspex_device_report(const auspex_device* device, char* text, size_t capacity, size_t* length,
                                 auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(device, "device"));
        AUSPEX_C_TRY(auspex::capi::need_output(length, "length"));
        const std::string report = device->device.report();
        AUSPEX_C_TRY(auspex::capi::need_memory(!report.empty()));
        return auspex::capi::fill_text(report, text, capacity, length);
    });
}

auspex_code auspex_device_pipeline_cache(const auspex_device* device, void* bytes, size_t capacity, size_t* length,
                                         auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(device, "device"));
        AUSPEX_C_TRY(auspex::capi::need_output(length, "length"));
        const std::vector<std::byte> cache = device->device.pipeline_cache();
        return auspex::capi::fill(cache.data(), cache.size(), static_cast<std::byte*>(bytes), capacity, length, 0,
                                  "the buffer");
    });
}

// ------------------------------------------------------------------------------------------- models

auspex_code auspex_load_options_init(auspex_load_options* options, uint32_t struct_size) {
    return auspex::capi::init(options, struct_size);
}

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {
namespace {

/// load: loads the model with these options. model: passed need_output().
template <class F>
Answer load_model(const auspex_device* device, const auspex_load_options* given, auspex_model** model, F load) {
    AUSPEX_C_TRY(need(device, "device"));
    LoadOptions options;
    AUSPEX_C_TRY(load_options(given, &options));
    auto made = std::make_unique<auspex_model>();
    made->host = device->host;
    AUSPEX_C_TRY(load(options).get(made->model));
    *model = made.release();
    return Answer();
}

}  // namespace
}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

auspex_code auspex_model_load(const auspex_device* device, const char* path, const auspex_load_options* options,
                              auspex_model** model, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(model, "model"));
        AUSPEX_C_TRY(auspex::capi::need_path(path));
        return auspex::capi::load_model(device, options, model, [&](const auspex::LoadOptions& o) {
            return auspex::Model::load(device->device, path, o);
        });
    });
}

auspex_code auspex_model_load_memory(const auspex_device* device, const void* bytes, size_t n_bytes,
                                     const auspex_load_options* options, auspex_model** model, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(model, "model"));
        auspex::Span<const std::byte> file;
        AUSPEX_C_TRY(auspex::capi::view(static_cast<const std::byte*>(bytes), n_bytes, &file, "bytes"));
        return auspex::capi::load_model(device, options, model, [&](const auspex::LoadOptions& o) {
            return auspex::Model::load(device->device, file, o);
        });
    });
}

auspex_code auspex_model_load_file(const auspex_device* device, intptr_t file, uint64_t offset, uint64_t n_bytes,
                                   const auspex_load_options* options, auspex_model** model, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(model, "model"));
        return auspex::capi::load_model(device, options, model, [&](const auspex::LoadOptions& o) {
            return auspex::Model::load(device->device, auspex::FileRange{file, offset, n_bytes}, o);
        });
    });
}

auspex_code auspex_model_load_reader(const auspex_device* device, const auspex_reader* given,
                                     const auspex_load_options* options, auspex_model** model, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(model, "model"));
        if (given == nullptr) return auspex::capi::bad("reader is null; expected an auspex_reader");
        auspex_reader from;
        AUSPEX_C_TRY(auspex::capi::read(given, &from, "auspex_reader"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.reserved, 0, 0, "auspex_reader.reserved"));
        auspex::FileReader reader;
        reader.bytes = from.n_bytes;
        if (from.read != nullptr)
            reader.read = [&from](uint64_t at, void* to, size_t n) { return from.read(at, to, n, from.user); };
        return auspex::capi::load_model(device, options, model, [&](const auspex::LoadOptions& o) {
            return auspex::Model::load(device->device, reader, o);
        });
    });
}

void auspex_model_free(auspex_model* model) {
    if (auspex::capi::is(model)) delete model;
}

auspex_code auspex_model_get_info(const auspex_model* model, auspex_model_info* info, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(model, "model"));
        AUSPEX_C_TRY(auspex::capi::check_output(info, "auspex_model_info", true));
        const auspex::ModelInfo& from = model->model.info();
        auspex_model_info to = {};
        to.n_layer = from.n_layer;
        to.n_attention = from.n_attention;
        to.n_mtp = from.n_mtp;
        to.d_model = from.d_model;
        to.n_vocab = from.n_vocab;
        to.n_context = from.n_context;
        to.n_parameter = from.n_parameter;
        to.file_bytes = from.file_bytes;
        to.weight_bytes = from.weight_bytes;
        to.architecture = from.architecture.c_str();
        to.name = from.name.c_str();
        to.chat_note = from.chat_note.c_str();
        auspex::capi::write(info, to);
        return Answer();
    });
}

auspex_code auspex_encode(const auspex_model* model, const char* text, size_t n_text, uint32_t flags, int32_t* ids,
                          size_t capacity, size_t* n_ids, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(model, "model"));
        AUSPEX_C_TRY(auspex::capi::need_output(n_ids, "n_ids"));
        AUSPEX_C_TRY(auspex::capi::check_range(flags, 0, AUSPEX_SPECIAL | AUSPEX_BEGIN, "flags"));
        std::string_view all;
        AUSPEX_C_TRY(auspex::capi::view_text(text, n_text, &all, "text"));
        auspex::EncodeOptions options;
        options.special = (flags & AUSPEX_SPECIAL) != 0;
        options.begin = (flags & AUSPEX_BEGIN) != 0;
        std::vector<auspex::Token> found;
        AUSPEX_C_TRY(model->model.encode(all, options).get(found));
        return auspex::capi::fill(found.data(), found.size(), ids, capacity, n_ids, 0, "ids");
    });
}

auspex_code auspex_decode(const auspex_model* model, const int32_t* ids, size_t n_ids, uint32_t flags, char* text,
                          size_t capacity, size_t* length, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(model, "model"));
        AUSPEX_C_TRY(auspex::capi::need_output(length, "length"));
        AUSPEX_C_TRY(auspex::capi::check_range(flags, 0, AUSPEX_SPECIAL, "flags"));
        auspex::Span<const auspex::Token> all;
        AUSPEX_C_TRY(auspex::capi::view(ids, n_ids, &all, "ids"));
        auspex::DecodeOptions options;
        options.special = (flags & AUSPEX_SPECIAL) != 0;
        std::string found;
        AUSPEX_C_TRY(model->model.decode(all, options).get(found));
        return auspex::capi::fill_text(found, text, capacity, length);
    });
}

int32_t auspex_is_end(const auspex_model* model, int32_t id) {
    return auspex::capi::is(model) && model->model.is_end(id) ? 1 : 0;
}

// -------------------------------------------------------------------------------------------- plans

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {
namespace {

/// make: the plan for these options.
template <class F>
Answer make_plan(const auspex_session_options* given, auspex_plan** plan, F make) {
    SessionOptions options;
    AUSPEX_C_TRY(session_options(given, &options));
    auto made = std::make_unique<auspex_plan>();
    AUSPEX_C_TRY(make(options).get(made->plan));
    *plan = made.release();
    return Answer();
}

}  // namespace
}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

auspex_code auspex_plan_model(const auspex_model* model, const auspex_session_options* options, auspex_plan** plan,
                              auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(plan, "plan"));
        AUSPEX_C_TRY(need(model, "model"));
        return auspex::capi::make_plan(
            options, plan, [&](const auspex::SessionOptions& o) { return auspex::Session::plan(model->model, o); });
    });
}

auspex_code auspex_plan_file(const auspex_device* device, const char* path, const auspex_session_options* options,
                             const auspex_load_options* load, auspex_plan** plan, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(plan, "plan"));
        AUSPEX_C_TRY(need(device, "device"));
        AUSPEX_C_TRY(auspex::capi::need_path(path));
        auspex::LoadOptions load_options;
        AUSPEX_C_TRY(auspex::capi::load_options(load, &load_options));
        return auspex::capi::make_plan(options, plan, [&](const auspex::SessionOptions& o) {
            return auspex::Session::plan(device->device, path, o, load_options);
        });
    });
}

auspex_code auspex_plan_get_totals(const auspex_plan* plan, auspex_plan_totals* totals, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(plan, "plan"));
        AUSPEX_C_TRY(auspex::capi::check_output(totals, "auspex_plan_totals", true));
        const auspex::MemoryPlan& from = plan->plan;
        auspex_plan_totals to = {};
        to.fits = from.fits ? 1 : 0;
        to.n_item = static_cast<uint32_t>(from.items.size());
        to.n_alternative = static_cast<uint32_t>(from.alternatives.size());
        to.weight_bytes = from.weight_bytes;
        to.session_bytes = from.session_bytes;
        to.file_bytes = from.file_bytes;
        to.total_bytes = from.total_bytes;
        to.pinned_bytes = from.pinned_bytes;
        to.checkpoint_bytes = from.checkpoint_bytes;
        to.kv_token_bytes = from.kv_token_bytes;
        to.limit_bytes = from.limit_bytes;
        auspex::capi::write(totals, to);
        return Answer();
    });
}

auspex_code auspex_plan_get_item(const auspex_plan* plan, uint32_t index, auspex_plan_item* item, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(plan, "plan"));
        AUSPEX_C_TRY(auspex::capi::check_output(item, "auspex_plan_item", true));
        const std::vector<auspex::MemoryItem>& items = plan->plan.items;
        if (index >= items.size())
            return Answer(AUSPEX_NOT_FOUND, "item " + std::to_string(index) + " of " + std::to_string(items.size()));
        auspex_plan_item to = {};
        to.layer = items[index].layer;
        to.place = static_cast<int32_t>(items[index].place);
        to.bytes = items[index].bytes;
        to.what = items[index].what.c_str();
        auspex::capi::write(item, to);
        return Answer();
    });
}

auspex_code auspex_plan_get_alternative(const auspex_plan* plan, uint32_t index, auspex_plan_item* item,
                                        auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(plan, "plan"));
        AUSPEX_C_TRY(auspex::capi::check_output(item, "auspex_plan_item", true));
        const std::vector<auspex::MemoryAlternative>& all = plan->plan.alternatives;
        if (index >= all.size())
            return Answer(AUSPEX_NOT_FOUND,
                          "alternative " + std::to_string(index) + " of " + std::to_string(all.size()));
        auspex_plan_item to = {};
        to.layer = -1;
        to.fits = all[index].fits ? 1 : 0;
        to.bytes = all[index].total_bytes;
        to.what = all[index].what.c_str();
        auspex::capi::write(item, to);
        return Answer();
    });
}

void auspex_plan_free(auspex_plan* plan) {
    if (auspex::capi::is(plan)) delete plan;
}
