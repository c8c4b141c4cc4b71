#include "window.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace cli {

using auspex::KvType;

constexpr int64_t kMaxUbatch = 4096;

void add_window(CLI::App& command, WindowFlags& o) {
    command.add_option("--window", o.window,
                       "How far attention layers look back: 3:64,7:full or all:4096 or all:16384+4,27:full; +N keeps "
                       "the first N rows visible. Changes the text");
    command.add_option("--kv-budget", o.budget,
                       "Choose windows so that keys and values take at most this: bytes, or 64M, 2G");
    command
        .add_option("--kv-type,--kv", o.type,
                    "Keys and values in f16, q8_0, q4_0, q4_1 or (CPU) f32; K,V to keep them differently")
        ->capture_default_str();
    command.add_option("--ubatch", o.ubatch,
                       "Rows of a prompt computed at once, 1 .. 4096; more take more memory (default: what suits the "
                       "device, 512 or 2048)");
    command.add_flag("--exact-prompts", o.exact_prompts,
                     "On a GPU, read prompts without rounding to halves: slower, closer to the model");
}

Result<uint64_t> read_size(const std::string& text, const char* option) {
    char* end = nullptr;
    const double n = std::strtod(text.c_str(), &end);
    const std::string unit = end ? end : "";
    const double factor = unit.empty()                 ? 1
                          : unit == "K" || unit == "k" ? 1024
                          : unit == "M"                ? 1048576
                          : unit == "G"                ? 1073741824
                                                       : 0;
    const bool plain = text.find_first_of("xX") == std::string::npos && (!unit.empty() || n == std::floor(n));
    if (end == text.c_str() || factor == 0 || !plain || !(n * factor >= 1) || n * factor > 1e15)
        return Status(Code::bad_argument,
                      std::string(option) + " " + text +
                          ": expected a whole number of bytes above 0, or a number followed by K, M or G, as in 512M "
                          "or 1.5G");
    return static_cast<uint64_t>(n * factor);
}

/// One of the names in the value of --kv-type.
static Result<KvType> kv_type(const std::string& name, const std::string& value) {
    if (name == "f16") return KvType::f16;
    if (name == "q8_0") return KvType::q8_0;
    if (name == "q4_0") return KvType::q4_0;
    if (name == "q4_1") return KvType::q4_1;
    if (name == "f32") return KvType::f32;
    return Status(Code::bad_argument,
                  "--kv-type " + value + ": expected f16, q8_0, q4_0, q4_1 or f32, or two of them as in q8_0,q4_0");
}

Status choose_window(const WindowFlags& o, auspex::SessionOptions* to) {
    if (o.ubatch && (*o.ubatch < 1 || *o.ubatch > kMaxUbatch))
        return Status(Code::bad_argument, "--ubatch " + std::to_string(*o.ubatch) + ": expected 1 .. " +
                                              std::to_string(kMaxUbatch) + "; leave it out for what suits the device");
    to->n_ubatch = static_cast<uint32_t>(o.ubatch.value_or(0));
    to->exact_prompts = o.exact_prompts;
    if (!o.window.empty()) {
        const Status s = auspex::parse_windows(o.window).get(to->windows);
        if (!s.ok()) return s;
    }
    if (!o.budget.empty()) {
        const Status s = read_size(o.budget, "--kv-budget").get(to->kv_budget_bytes);
        if (!s.ok()) return s;
    }
    const size_t comma = o.type.find(',');
    Status s = kv_type(o.type.substr(0, comma), o.type).get(to->kv_k);
    if (s.ok()) s = kv_type(comma == std::string::npos ? o.type : o.type.substr(comma + 1), o.type).get(to->kv_v);
    return s;
}

Result<int64_t> min_context(const auspex::Model& model, auspex::SessionOptions options) {
    if (options.kv_budget_bytes != 0)
        return Status(Code::bad_argument,
                      "--kv-budget chooses windows that suit the context, and the file of --session can only be opened "
                      "with the same windows; give --ctx too, as long as the conversation may become, or --window");
    options.n_context = model.info().n_context;
    auspex::MemoryPlan plan;
    int64_t n_min = 0;
    if (!auspex::Session::plan(model, options).get(plan).ok()) return n_min;  // the session will have the same error
    for (const auspex::LayerWindow& w : plan.windows)
        if (w.layer < model.info().n_layer) n_min = std::max(n_min, int64_t{w.window} + 1);
    return n_min;
}

void tell_windows(const auspex::Stats& stats) {
    if (!stats.window_rule.empty()) note(stats.window_rule);
    for (const auspex::LayerWindow& w : stats.windows)
        if (w.window != 0) return note("windows: " + auspex::print_windows(stats.windows));
}

static const char* place_name(auspex::MemoryPlace p) {
    switch (p) {
        case auspex::MemoryPlace::device: return "device";
        case auspex::MemoryPlace::file: return "mapped file";
        case auspex::MemoryPlace::allocator:
        case auspex::MemoryPlace::host: return "host";
        case auspex::MemoryPlace::pinned: return "host, read by the GPU";
    }
    return "";
}

/// Memory of the session for drafting, as a share of the model's bytes.
static double draft_share(const auspex::MemoryPlan& plan) {
    return double(plan.draft_session_bytes) / double(plan.weight_bytes + plan.file_bytes);
}

std::string plan_text(const auspex::MemoryPlan& plan) {
    std::string out;
    char row[200];
    for (const auspex::MemoryItem& i : plan.items) {
        const std::string what = i.layer < 0 ? i.what : "layer " + std::to_string(i.layer) + " " + i.what;
        std::snprintf(row, sizeof row, "%15llu  %-36s %s\n", static_cast<unsigned long long>(i.bytes), what.c_str(),
                      place_name(i.place));
        out += row;
    }
    const auto line = [&](uint64_t bytes, const char* what) {
        std::snprintf(row, sizeof row, "%15llu  %s (%.1f MiB)\n", static_cast<unsigned long long>(bytes), what,
                      double(bytes) / 1048576);
        out += row;
    };
    line(plan.weight_bytes, "weights, taken when the model is loaded");
    line(plan.session_bytes, plan.checkpoint_bytes == 0
                                 ? "session, taken when it is created; nothing for prompts after that"
                                 : "session, taken when it is created; later only the tokens of earlier prompts");
    line(plan.total_bytes, "in all");
    if (plan.pinned_bytes != 0) line(plan.pinned_bytes, "of it in the host's memory, beside the limit");
    if (plan.draft_weight_bytes != 0) line(plan.draft_weight_bytes, "of the weights: the MTP block");
    if (plan.draft_session_bytes != 0) {
        std::snprintf(row, sizeof row, "of the session: drafting, at any depth; %.2f %% of the weights",
                      100 * draft_share(plan));
        line(plan.draft_session_bytes, std::string(row).c_str());
    }
    if (plan.file_bytes != 0) line(plan.file_bytes, "besides, read where the file is mapped");
    if (plan.limit_bytes != 0)
        line(plan.limit_bytes, plan.fits ? "is the limit: it fits" : "is the limit: it does not fit");
    out += "each further token of context: " + std::to_string(plan.kv_token_bytes) +
           " bytes\nwindows: " + auspex::print_windows(plan.windows) + "\n";
    if (!plan.window_rule.empty()) out += plan.window_rule + "\n";
    if (!plan.alternatives.empty()) out += "what would take less:\n";
    for (const auspex::MemoryAlternative& c : plan.alternatives) {
        std::snprintf(row, sizeof row, "%15llu  %-8s ", static_cast<unsigned long long>(c.total_bytes),
                      c.fits ? "fits" : "no");
        out += row + c.what + "\n";
    }
    return out;
}

std::string plan_json(const auspex::MemoryPlan& plan) {
    nlohmann::ordered_json j;
    j["items"] = nlohmann::ordered_json::array();
    for (const auspex::MemoryItem& i : plan.items) {
        nlohmann::ordered_json item = {{"what", i.what}, {"bytes", i.bytes}, {"place", place_name(i.place)}};
        if (i.layer >= 0) item["layer"] = i.layer;
        j["items"].push_back(item);
    }
    j["weight_bytes"] = plan.weight_bytes;
    j["session_bytes"] = plan.session_bytes;
    j["total_bytes"] = plan.total_bytes;
    j["pinned_bytes"] = plan.pinned_bytes;
    j["file_bytes"] = plan.file_bytes;
    j["draft_weight_bytes"] = plan.draft_weight_bytes;
    j["checkpoint_bytes"] = plan.checkpoint_bytes;
    j["draft_session_bytes"] = plan.draft_session_bytes;
    j["draft_share"] = draft_share(plan);
    j["kv_token_bytes"] = plan.kv_token_bytes;
    j["limit_bytes"] = plan.limit_bytes;
    j["fits"] = plan.fits;
    j["windows"] = auspex::print_windows(plan.windows);
    if (!plan.window_rule.empty()) j["window_rule"] = plan.window_rule;
    j["alternatives"] = nlohmann::ordered_json::array();
    for (const auspex::MemoryAlternative& c : plan.alternatives)
        j["alternatives"].push_back({{"what", c.what}, {"total_bytes", c.total_bytes}, {"fits", c.fits}});
    return j.dump() + "\n";
}

}  // namespace cli
