#include "branches.h"

#include <algorithm>
#include <charconv>

#include "printable.h"

namespace cli {
namespace {

bool same_argument(const auspex::ToolArgument& a, const auspex::ToolArgument& b) {
    return a.name == b.name && a.value == b.value && a.json == b.json;
}

bool same_call(const auspex::ToolCall& a, const auspex::ToolCall& b) {
    return a.name == b.name &&
           std::equal(a.arguments.begin(), a.arguments.end(), b.arguments.begin(), b.arguments.end(), same_argument);
}

bool same(const auspex::ChatMessage& a, const auspex::ChatMessage& b) {
    return a.role == b.role && a.content == b.content && a.reasoning == b.reasoning &&
           std::equal(a.tool_calls.begin(), a.tool_calls.end(), b.tool_calls.begin(), b.tool_calls.end(), same_call);
}

bool is_prefix(const Messages& part, const Messages& all) {
    return part.size() <= all.size() && std::equal(part.begin(), part.end(), all.begin(), same);
}

/// A line of at most 60 characters.
std::string shortened(const std::string& text) {
    constexpr size_t kMax = 60;
    size_t n = std::min(text.find('\n'), text.size());
    if (n > kMax)
        for (n = kMax; n > 0 && (static_cast<unsigned char>(text[n]) & 0xC0) == 0x80;) --n;
    return printable(text.substr(0, n)) + (n < text.size() ? " ..." : "");
}

/// A number of 1 .. n.
Result<size_t> read_number(const std::string& text, size_t n, const std::string& what) {
    size_t i = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), i);
    if (error == std::errc() && end == text.data() + text.size() && i >= 1 && i <= n) return i;
    if (n == 0) return Status(Code::bad_argument, "there is no " + what + " yet, so '" + text + "' names none");
    return Status(Code::bad_argument,
                  "'" + text + "': expected the number of a " + what + ", 1 .. " + std::to_string(n));
}

}  // namespace

size_t n_said(const Messages& messages) {
    return static_cast<size_t>(
        std::count_if(messages.begin(), messages.end(), [](const auto& m) { return m.role == "user"; }));
}

Result<size_t> find_said(const Messages& messages, const std::string& i) {
    size_t left = 0;
    const Status s = read_number(i, n_said(messages), "message of yours").get(left);
    if (!s.ok()) return s;
    size_t at = 0;
    while (messages[at].role != "user" || --left != 0) ++at;
    return at;
}

std::string list_said(const Messages& messages) {
    std::string text;
    size_t i = 0;
    for (const auspex::ChatMessage& m : messages)
        if (m.role == "user") text += "  " + std::to_string(++i) + "  " + shortened(m.content) + "\n";
    return text;
}

/// Leaves all_[now_] empty if another branch begins with all of the conversation.
void Branches::store(const Messages& live) {
    all_[now_].clear();
    for (const Messages& other : all_)
        if (is_prefix(live, other)) return;
    all_[now_] = live;
}

void Branches::leave(const Messages& live) {
    store(live);
    if (all_[now_].empty()) return;
    now_ = all_.size();
    all_.emplace_back();
}

Status Branches::go_to(const std::string& i, Messages* live) {
    size_t to = 0;
    const Status s = read_number(i, all_.size(), "branch").get(to);
    if (!s.ok() || --to == now_) return s;
    store(*live);
    *live = all_[to];
    if (all_[now_].empty()) {
        all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(now_));
        if (to > now_) --to;
    }
    now_ = to;
    return {};
}

std::vector<Messages> Branches::others() const {
    std::vector<Messages> others = all_;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(now_));
    return others;
}

void Branches::set_others(std::vector<Messages> others) {
    all_ = std::move(others);
    now_ = all_.size();
    all_.emplace_back();
}

std::string Branches::list(const Messages& live) {
    std::string text;
    for (size_t i = 0; i < all_.size(); ++i) {
        const Messages& messages = i == now_ ? live : all_[i];
        const size_t n = n_said(messages);
        size_t last = messages.size();
        while (last > 0 && messages[last - 1].role != "user") --last;
        text += (i == now_ ? "* " : "  ") + std::to_string(i + 1) + "  " + std::to_string(n) +
                (n == 1 ? " message" : " messages") + (last > 0 ? ": " + shortened(messages[last - 1].content) : "") +
                "\n";
    }
    return text;
}

}  // namespace cli
