// cli/inspect: what a file holds, and what this library would run of it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "common.h"
#include "draft.h"
#include "printable.h"
#include "window.h"

namespace cli {
namespace {

using auspex::FileInfo;
using nlohmann::ordered_json;

struct InspectOptions {
    PlaceOptions place;
    const CLI::App* command = nullptr;
    bool json = false, tensors = false, plan = false, devices = false;
    WindowFlags window;
    DraftFlags draft;
    std::optional<int64_t> ctx;
    bool no_mtp = false;
};

/// What is shown; steps: a device and a file, with what its model dispatches if that is a GPU.
enum Mode : unsigned { kFile = 1, kPlan = 2, kDevice = 4, kSteps = 8, kDevices = 16 };

/// Names an option that was given and that this mode does not read.
Status check_read(const InspectOptions& o, Mode mode) {
    static const struct {
        unsigned modes;
        const char* expected;
        std::vector<const char*> options;
    } kReadBy[] = {
        {kFile, "neither --plan nor --device nor --devices", {"--tensors"}},
        {kFile | kPlan | kSteps, "--plan, --device, or neither", {"--model"}},
        {kFile | kPlan | kSteps, "--plan, --device with a file, or neither", {"--mtp-file"}},
        {kPlan | kDevice | kSteps, "--plan or --device beside it", {"--threads", "--cpu-path"}},
        {kPlan | kSteps,
         "--plan or --device with a file beside it",
         {"--window", "--kv-budget", "--kv-type", "--ubatch", "--exact-prompts", "--draft", "--draft-vocab",
          "--draft-window", "--ctx", "--memory-limit", "--no-mtp"}},
    };
    for (const auto& read : kReadBy)
        for (const char* option : read.options)
            if ((read.modes & mode) == 0 && o.command->count(option) > 0)
                return Status(Code::bad_argument,
                              std::string(option) + " has no meaning here, expected " + read.expected);
    return {};
}

ordered_json element(const std::string& type, const std::string& text) {
    if (type == "string") return text;
    if (type == "bool") return text == "true";
    if (type == "f32" || type == "f64") return std::strtod(text.c_str(), nullptr);
    if (type == "u64") return std::strtoull(text.c_str(), nullptr, 10);
    return std::strtoll(text.c_str(), nullptr, 10);
}

/// A scalar as itself; a long array as its type, its length and its first elements.
ordered_json value(const auspex::FileValue& v) {
    if (!v.is_array) return element(v.type, v.elements[0]);
    ordered_json list = ordered_json::array();
    for (const std::string& e : v.elements) list.push_back(element(v.type, e));
    if (v.n <= v.elements.size()) return list;
    return {{"type", v.type}, {"n", v.n}, {"first", list}};
}

struct Share {
    uint64_t n_tensor = 0, n_value = 0, bytes = 0;
};

std::map<std::string, Share> by_type(const FileInfo& file) {
    std::map<std::string, Share> types;
    for (const auspex::FileTensor& t : file.tensors) {
        Share& s = types[t.type];
        uint64_t n_value = 1;
        for (const uint64_t n : t.shape) n_value *= n;
        s.n_tensor += 1;
        s.n_value += n_value;
        s.bytes += t.bytes;
    }
    return types;
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

ordered_json as_json(const std::string& path, const FileInfo& file) {
    ordered_json j;
    j["file"] = path;
    j["parts"] = file.n_file;
    j["gguf_version"] = file.gguf_version;
    j["bytes"] = file.bytes;
    for (const auspex::FileValue& v : file.metadata) j["metadata"][v.key] = value(v);
    j["types"] = ordered_json::array();
    for (const auto& t : by_type(file))
        j["types"].push_back({{"type", t.first},
                              {"tensors", t.second.n_tensor},
                              {"values", t.second.n_value},
                              {"bytes", t.second.bytes}});
    j["tensors"] = ordered_json::array();
    for (const auspex::FileTensor& t : file.tensors)
        j["tensors"].push_back({{"name", t.name}, {"type", t.type}, {"shape", t.shape}, {"bytes", t.bytes}});
    if (!file.plan_status.ok()) {
        j["plan"] = nullptr;
        j["plan_error"] = file.plan_status.message();
        return j;
    }
    ordered_json p;
    p["architecture"] = file.model.architecture;
    p["n_layer"] = file.model.n_layer;
    p["n_mtp"] = file.mtp.size();
    p["d_model"] = file.model.d_model;
    p["n_vocab"] = file.model.n_vocab;
    p["n_context"] = file.model.n_context;
    p["trunk"] = lines(file.trunk);
    p["mtp"] = ordered_json::array();
    for (const std::string& block : file.mtp) p["mtp"].push_back(lines(block));
    j["plan"] = p;
    return j;
}

std::string mib(uint64_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f MiB", double(bytes) / (1 << 20));
    return text;
}

std::string as_text(const std::string& path, const FileInfo& file, bool all_tensors) {
    std::string out = printable(path) + ": GGUF v" + std::to_string(file.gguf_version) + ", " + mib(file.bytes) + ", " +
                      std::to_string(file.metadata.size()) + " keys, " + std::to_string(file.tensors.size()) +
                      " tensors";
    if (file.n_file > 1) out += " in " + std::to_string(file.n_file) + " parts";
    out += "\n\nmetadata\n";
    constexpr size_t kWidth = 160;  // a chat template would fill pages; --json has it whole
    for (const auspex::FileValue& m : file.metadata) {
        std::string v = printable(json_line(value(m)));
        if (v.size() > kWidth) {
            size_t cut = kWidth;
            while (cut > 0 && (static_cast<unsigned char>(v[cut]) & 0xC0) == 0x80) --cut;
            v = v.substr(0, cut) + " ...";
        }
        out += "  " + printable(m.key) + " = " + v + "\n";
    }
    out += "\ntensors by type\n";
    for (const auto& t : by_type(file)) {
        char row[128];
        std::snprintf(row, sizeof row, "  %-8s %5llu tensors %14llu values %12s\n", t.first.c_str(),
                      static_cast<unsigned long long>(t.second.n_tensor),
                      static_cast<unsigned long long>(t.second.n_value), mib(t.second.bytes).c_str());
        out += row;
    }
    if (all_tensors) {
        out += "\ntensors\n";
        for (const auspex::FileTensor& t : file.tensors)
            out += "  " + printable(t.name) + "  " + t.type + " " + json_line(t.shape) + "  " +
                   std::to_string(t.bytes) + " bytes\n";
    }
    if (!file.plan_status.ok()) return out;
    const auspex::ModelInfo& m = file.model;
    out += "\nplan: " + m.architecture + ", " + std::to_string(m.n_layer) + " layers, d_model " +
           std::to_string(m.d_model) + ", " + std::to_string(m.n_vocab) + " tokens, context " +
           std::to_string(m.n_context) + "\n" + printable(file.trunk, true);
    for (size_t i = 0; i < file.mtp.size(); ++i)
        out += "\nmtp block " + std::to_string(i) + "\n" + printable(file.mtp[i], true);
    return out;
}

Status session_options(const InspectOptions& o, const auspex::ModelInfo& model, auspex::SessionOptions* to) {
    Status s = o.ctx ? check_ctx(*o.ctx, model) : Status();
    to->n_context = static_cast<uint32_t>(o.ctx.value_or(0));
    if (s.ok()) s = choose_window(o.window, to);
    return s.ok() ? choose_draft(o.draft, model, false, &to->draft) : s;
}

/// What a session would be made of, from the header alone.
Status read_choice(const InspectOptions& o, std::string* path, auspex::LoadOptions* load,
                   auspex::SessionOptions* options) {
    Status s = find_model(o.place.model).get(*path);
    load->mtp = !o.no_mtp;
    load->mtp_file = o.place.mtp_file;
    FileInfo file;
    if (s.ok()) s = auspex::read_file_info(path->c_str(), *load).get(file);
    if (s.ok()) s = file.plan_status;
    return s.ok() ? session_options(o, file.model, options) : s;
}

/// --plan: every byte, from the header alone.
Status show_plan(const InspectOptions& o) {
    std::string path;
    auspex::LoadOptions load;
    auspex::SessionOptions options;
    Status s = check_read(o, kPlan);
    if (s.ok()) s = read_choice(o, &path, &load, &options);
    auspex::Device device;
    if (s.ok()) s = open_device(o.place).get(device);
    auspex::MemoryPlan plan;
    if (s.ok()) s = auspex::Session::plan(device, path.c_str(), options, load).get(plan);
    if (!s.ok()) return s;
    return print(o.json ? plan_json(plan) : printable(path + " on " + device.name()) + "\n" + plan_text(plan));
}

/// The work of a one-row step, a four-row step and a prefill step of the model on a GPU; none on the CPU, where the
/// file and the options are checked alone.
Status count_steps(const InspectOptions& o, const auspex::Device& device, std::vector<auspex::StepCounts>* to) {
    std::string path;
    auspex::LoadOptions load;
    auspex::SessionOptions options;
    Status s = read_choice(o, &path, &load, &options);
    if (!s.ok() || device.kind() != auspex::Kind::vulkan) return s;
    load.progress = progress_line();
    auspex::Model model;
    s = auspex::Model::load(device, path.c_str(), load).get(model);
    clear_progress_line();
    auspex::Session session;
    if (s.ok()) s = auspex::Session::create(model, options).get(session);
    for (const uint32_t n_row : {1u, 4u, 0u}) {
        auspex::StepCounts counts;
        if (s.ok()) s = session.count_step(n_row).get(counts);
        to->push_back(counts);
    }
    return s;
}

/// --device: what was found on it; with a model, also the work of its steps.
Status show_device(const InspectOptions& o) {
    auspex::Device device;
    const bool with_file = !o.place.model.empty();
    Status s = check_read(o, with_file ? kSteps : kDevice);
    if (s.ok()) s = open_device(o.place).get(device);
    std::vector<auspex::StepCounts> steps;
    if (s.ok() && with_file) s = count_steps(o, device, &steps);
    if (!s.ok()) return s;
    const std::string report = device.report();
    if (o.json) {
        ordered_json j = {{"device", device.name()}, {"report", lines(report)}};
        for (const auspex::StepCounts& c : steps)
            j["steps"].push_back({{"rows", c.n_row},
                                  {"dispatches", c.n_dispatch},
                                  {"barriers", c.n_barrier},
                                  {"pipelines", c.n_pipeline}});
        return print(json_line(j) + "\n");
    }
    std::string out = printable(device.name() + "\n" + report, true);
    if (out.back() != '\n') out += "\n";
    if (!steps.empty()) out += "\nsteps         rows  dispatches    barriers   pipelines\n";
    for (size_t i = 0; i < steps.size(); ++i) {
        char row[96];
        std::snprintf(row, sizeof row, "  %-8s %7u %11u %11u %11u\n", i < 2 ? "decode" : "prefill", steps[i].n_row,
                      steps[i].n_dispatch, steps[i].n_barrier, steps[i].n_pipeline);
        out += row;
    }
    return print(out);
}

/// --devices: every device, and why one cannot be used.
Status show_devices(const InspectOptions& o) {
    std::vector<auspex::DeviceEntry> all;
    Status s = check_read(o, kDevices);
    if (s.ok()) s = auspex::Device::list().get(all);
    if (!s.ok()) return s;
    ordered_json list = ordered_json::array();
    std::string out;
    for (const auspex::DeviceEntry& d : all) {
        const bool numbered = d.vulkan_index >= 0;
        const std::string kind = d.kind == auspex::Kind::cpu ? "cpu" : "vulkan",
                          which = numbered ? kind + ":" + std::to_string(d.vulkan_index) : kind;
        out += which + "  " + printable(d.name) + (d.name.empty() ? "" : "  ") +
               (d.status.ok() ? "ok" : printable(d.status.message())) + "\n";
        list.push_back({{"device", which}, {"name", d.name}, {"status", d.status.message()}});
    }
    return print(o.json ? json_line({{"devices", list}}) + "\n" : out);
}

Status inspect(const InspectOptions& o) {
    if (o.plan) return show_plan(o);
    if (o.devices) return show_devices(o);
    if (o.command->count("--device") > 0) return show_device(o);
    std::string path;
    Status s = check_read(o, kFile);
    if (s.ok()) s = find_model(o.place.model).get(path);
    auspex::LoadOptions load;
    load.mtp_file = o.place.mtp_file;
    FileInfo file;
    if (s.ok()) s = auspex::read_file_info(path.c_str(), load).get(file);
    if (s.ok()) s = print(o.json ? json_line(as_json(path, file)) + "\n" : as_text(path, file, o.tensors));
    return s.ok() ? file.plan_status : s;  // what could be read was shown; that it cannot run is still an error
}

}  // namespace

void add_inspect(CLI::App& app, Chosen& chosen) {
    CLI::App* command =
        app.add_subcommand("inspect", "Show what a model file holds: metadata, tensors by type, operations");
    auto o = std::make_shared<InspectOptions>();
    command->add_option("file,-m,--model", o->place.model, "GGUF file (default: the demo model)");
    add_mtp_file(*command, o->place);
    o->command = command;
    CLI::Option* const device =
        command
            ->add_option("--device", o->place.device,
                         "Instead: what was found on a device and chosen for it; with a file, on a GPU, "
                         "also what its steps dispatch")
            ->expected(0, 1)
            ->default_str("auto");
    command->add_flag("--devices", o->devices, "Instead: every device, and why one cannot be used")->excludes(device);
    command->add_option("--threads", o->place.threads, "With --plan or --device: CPU threads");
    command->add_option("--cpu-path", o->place.cpu_path,
                        "With --plan or --device: best, reference, avx2, avx512 or neon");
    command->add_flag("--tensors", o->tensors, "List every tensor");
    command
        ->add_flag("--plan", o->plan,
                   "Instead: every byte that the model and a session take, from the file's header alone")
        ->excludes("--devices");
    add_window(*command, o->window);
    add_draft_memory(*command, o->draft);
    command->add_option("--ctx", o->ctx,
                        "With --plan or --device: rows of history (default: the smaller of 4096 and the model's)");
    command->add_option(
        "--memory-limit", o->place.memory_limit,
        "With --plan: available memory, as in 8G; lists what would fit. With --device and a file: its limit");
    command->add_flag("--no-mtp", o->no_mtp, "With --plan or --device: without the MTP block")->excludes("--mtp-file");
    command->add_flag("--json", o->json, "Print one JSON object, with every tensor");
    command->callback([o, &chosen] { chosen = [o] { return report(inspect(*o)); }; });
}

}  // namespace cli
