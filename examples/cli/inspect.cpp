// cli/inspect: what is in a file, and what this library would run of it.
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "common.h"
#include "draft.h"
#include "model_file.h"
#include "plan/arch.h"
#include "window.h"

namespace cli {
namespace {

using nlohmann::ordered_json;
namespace detail = auspex::detail;

struct InspectOptions {
    PlaceOptions place;
    CLI::Option* device_given = nullptr;
    bool json = false, tensors = false, plan = false;
    WindowFlags window;
    DraftFlags draft;
    uint32_t ctx = 0, ubatch = 512;
    bool no_mtp = false;
};

const char* meta_type_name(detail::MetaType t) {
    static const char* const names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
    return names[static_cast<size_t>(t)];
}

ordered_json element(const detail::Meta& m, uint64_t i) {
    if (m.type == detail::MetaType::string) return std::string(m.strings[static_cast<size_t>(i)]);
    if (m.type == detail::MetaType::boolean) {
        int64_t v = 0;
        m.get_int(i, &v);
        return v != 0;
    }
    int64_t n = 0;
    if (m.is_integer() && m.get_int(i, &n)) return n;
    if (m.type == detail::MetaType::u64) return auspex::detail::load<uint64_t>(m.data + i * 8);
    double d = 0;
    m.get_float(i, &d);
    return d;
}

/// A scalar as itself; an array as its type, its length and its first elements.
ordered_json value(const detail::Meta& m) {
    if (!m.is_array) return element(m, 0);
    constexpr uint64_t kShown = 8;
    ordered_json list = ordered_json::array();
    for (uint64_t i = 0; i < std::min(m.n, kShown); ++i) list.push_back(element(m, i));
    if (m.n <= kShown) return list;
    return {{"type", meta_type_name(m.type)}, {"n", m.n}, {"first", list}};
}

struct Share {
    uint64_t n_tensor = 0, n_value = 0, bytes = 0;
};

uint64_t n_value(const detail::Tensor& t) { return t.ne[0] * t.ne[1] * t.ne[2] * t.ne[3]; }

std::map<std::string, Share> by_type(const detail::Gguf& g) {
    std::map<std::string, Share> types;
    for (const detail::Tensor& t : g.tensors()) {
        Share& s = types[detail::type_info(t.type).name];
        s.n_tensor += 1;
        s.n_value += n_value(t);
        s.bytes += t.bytes;
    }
    return types;
}

std::string dump(const ordered_json& j, int indent) {
    return j.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

/// "[4096, 1024]", slowest dimension first as everywhere in this project.
ordered_json shape(const detail::Tensor& t) {
    ordered_json s = ordered_json::array();
    for (uint32_t i = t.n_dim; i-- > 0;) s.push_back(t.ne[i]);
    return s;
}

std::vector<std::string> lines(const std::string& text) {
    std::vector<std::string> out;
    for (size_t from = 0; from < text.size();) {
        const size_t end = std::min(text.find('\n', from), text.size());
        out.push_back(text.substr(from, end - from));
        from = end + 1;
    }
    return out;
}

ordered_json as_json(const ModelFile& file, const detail::Plan* plan, const Status& why_not) {
    const detail::Gguf& g = file.gguf;
    ordered_json j;
    j["file"] = file.path;
    j["parts"] = file.files.size();
    j["gguf_version"] = g.version();
    j["bytes"] = g.file_bytes();
    for (const detail::Meta& m : g.meta()) j["metadata"][std::string(m.key)] = value(m);
    j["types"] = ordered_json::array();
    for (const auto& t : by_type(g))
        j["types"].push_back({{"type", t.first},
                              {"tensors", t.second.n_tensor},
                              {"values", t.second.n_value},
                              {"bytes", t.second.bytes}});
    j["tensors"] = ordered_json::array();
    for (const detail::Tensor& t : g.tensors())
        j["tensors"].push_back({{"name", std::string(t.name)},
                                {"type", detail::type_info(t.type).name},
                                {"shape", shape(t)},
                                {"bytes", t.bytes}});
    if (!plan) {
        j["plan"] = nullptr;
        j["plan_error"] = why_not.message();
        return j;
    }
    ordered_json p;
    p["architecture"] = plan->architecture;
    p["n_layer"] = plan->n_layer;
    p["n_mtp"] = plan->mtp.size();
    p["d_model"] = plan->d_model;
    p["n_vocab"] = plan->n_vocab;
    p["n_context"] = plan->n_context;
    p["trunk"] = lines(print_tape(*plan, plan->trunk));
    p["mtp"] = ordered_json::array();
    for (const detail::Tape& t : plan->mtp) p["mtp"].push_back(lines(print_tape(*plan, t)));
    j["plan"] = p;
    return j;
}

std::string mib(uint64_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f MiB", double(bytes) / (1 << 20));
    return text;
}

std::string as_text(const ModelFile& file, const detail::Plan* plan, bool all_tensors) {
    const detail::Gguf& g = file.gguf;
    std::string out = file.path + ": GGUF v" + std::to_string(g.version()) + ", " + mib(g.file_bytes()) + ", " +
                      std::to_string(g.meta().size()) + " keys, " + std::to_string(g.tensors().size()) + " tensors";
    if (file.files.size() > 1) out += " in " + std::to_string(file.files.size()) + " parts";
    out += "\n\nmetadata\n";
    constexpr size_t kWidth = 160;  // a chat template would fill pages; --json has it whole
    for (const detail::Meta& m : g.meta()) {
        std::string v = dump(value(m), -1);
        if (v.size() > kWidth) {
            size_t cut = kWidth;
            while (cut > 0 && (static_cast<unsigned char>(v[cut]) & 0xC0) == 0x80) --cut;
            v = v.substr(0, cut) + " ...";
        }
        out += "  " + std::string(m.key) + " = " + v + "\n";
    }
    out += "\ntensors by type\n";
    for (const auto& t : by_type(g)) {
        char row[128];
        std::snprintf(row, sizeof row, "  %-8s %5llu tensors %14llu values %12s\n", t.first.c_str(),
                      static_cast<unsigned long long>(t.second.n_tensor),
                      static_cast<unsigned long long>(t.second.n_value), mib(t.second.bytes).c_str());
        out += row;
    }
    if (all_tensors) {
        out += "\ntensors\n";
        for (const detail::Tensor& t : g.tensors())
            out += "  " + std::string(t.name) + "  " + detail::type_info(t.type).name + " " + dump(shape(t), -1) +
                   "  " + std::to_string(t.bytes) + " bytes\n";
    }
    if (!plan) return out;
    out += "\nplan: " + plan->architecture + ", " + std::to_string(plan->n_layer) + " layers, d_model " +
           std::to_string(plan->d_model) + ", " + std::to_string(plan->n_vocab) + " tokens, context " +
           std::to_string(plan->n_context) + "\n" + print_tape(*plan, plan->trunk);
    for (size_t i = 0; i < plan->mtp.size(); ++i)
        out += "\nmtp block " + std::to_string(i) + "\n" + print_tape(*plan, plan->mtp[i]);
    return out;
}

/// Every byte, from the header alone.
Status show_plan(const InspectOptions& o) {
    ModelFile file;
    Status s = file.open(o.place.model, o.no_mtp ? std::string() : o.place.mtp_file);
    if (!s.ok()) return s;
    detail::PlanOptions tapes;
    tapes.mtp = !o.no_mtp;
    detail::Plan model;
    s = make_plan(file.gguf, tapes).get(model);
    if (!s.ok()) return s;
    auspex::Device device;
    s = open_device(o.place).get(device);
    if (!s.ok()) return s;
    auspex::SessionOptions options;
    options.n_context = o.ctx;
    options.n_ubatch = o.ubatch;
    s = choose_window(o.window, &options);
    if (!s.ok()) return s;
    auspex::ModelInfo info;
    info.n_mtp = static_cast<uint32_t>(model.mtp.size());
    info.n_vocab = model.n_vocab;
    s = choose_draft(o.draft, info, false, &options.draft);
    if (!s.ok()) return s;
    auspex::LoadOptions load;
    load.mtp = !o.no_mtp;
    load.mtp_file = o.place.mtp_file;
    auspex::MemoryPlan plan;
    s = auspex::Session::plan(device, file.path.c_str(), options, load).get(plan);
    if (!s.ok()) return s;
    return print(o.json ? plan_json(plan) : file.path + " on " + device.name() + "\n" + plan_text(plan));
}

Status inspect(const InspectOptions& o) {
    if (o.plan) return show_plan(o);
    if (o.device_given->count() > 0) {
        auspex::Device device;
        Status s = open_device(o.place).get(device);
        if (!s.ok()) return s;
        if (!o.json)
            return print(device.name() + "\n" + device.report() +
                         (device.report().empty() || device.report().back() == '\n' ? "" : "\n"));
        return print(dump({{"device", device.name()}, {"report", lines(device.report())}}, -1) + "\n");
    }
    ModelFile file;
    Status s = file.open(o.place.model, o.place.mtp_file);
    if (!s.ok()) return s;
    detail::Plan plan;
    const Status planned = make_plan(file.gguf, detail::PlanOptions()).get(plan);
    const detail::Plan* p = planned.ok() ? &plan : nullptr;
    s = print(o.json ? dump(as_json(file, p, planned), -1) + "\n" : as_text(file, p, o.tensors));
    return s.ok() ? planned : s;  // what could be read was shown; that it cannot run is still an error
}

}  // namespace

void add_inspect(CLI::App& app, Chosen& chosen) {
    CLI::App* command = app.add_subcommand("inspect", "What is in a model file: metadata, tensors by type, plan");
    auto o = std::make_shared<InspectOptions>();
    command->add_option("file,-m,--model", o->place.model, "GGUF file (default: the demo model)");
    add_mtp_file(*command, o->place);
    o->device_given =
        command->add_option("--device", o->place.device, "Instead: what was found on this device and chosen for it")
            ->expected(0, 1)
            ->default_str("auto");
    command->add_option_function<int>(
        "--threads", [o = o.get()](int n) { o->place.threads = n, o->place.threads_given = true; },
        "With --device: CPU threads");
    command->add_option("--cpu-path", o->place.cpu_path, "With --device: best, reference, avx2, avx512 or neon");
    command->add_flag("--tensors", o->tensors, "List every tensor");
    command->add_flag("--plan", o->plan,
                      "Instead: every byte that the model and a session would take, from the file's header alone");
    add_window(*command, o->window);
    add_draft_memory(*command, o->draft);
    command->add_option("--ctx", o->ctx, "With --plan: rows of history (default: the smaller of 4096 and the model's)");
    command->add_option("--ubatch", o->ubatch, "With --plan: rows computed at once in a prefill")
        ->capture_default_str();
    command->add_option("--memory-limit", o->place.memory_limit,
                        "With --plan: what there is, as in 8G; says what would fit");
    command->add_flag("--no-mtp", o->no_mtp, "With --plan: leave the draft block out");
    command->add_flag("--json", o->json, "One JSON object, with every tensor");
    command->callback([o, &chosen] { chosen = [o] { return report(inspect(*o)); }; });
}

}  // namespace cli
