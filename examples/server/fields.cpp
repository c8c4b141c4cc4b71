#include "fields.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <iterator>
#include <limits>
#include <map>
#include <random>

namespace server {

namespace {

constexpr size_t kMaxDepth = 256;
constexpr const char* kNotSupported = "not_supported_error";
constexpr const char* kContextExceeded = "exceed_context_size_error";

const char* type_of(int status) {
    switch (status) {
        case 401: return "authentication_error";
        case 403: return "permission_error";
        case 404: return "not_found_error";
        case 500: return "server_error";
        case 501: return kNotSupported;
        case 503: return "unavailable_error";
        default: return "invalid_request_error";
    }
}

/// The offset at which `text` is nested too deeply, or its size. What is no JSON may have any result.
size_t find_too_deep(const std::string& text) {
    size_t depth = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (c == '"') {
            for (++i; i < text.size() && text[i] != '"'; ++i)
                if (text[i] == '\\') ++i;
        } else if (c == '{' || c == '[') {
            if (++depth > kMaxDepth) return i;
        } else if ((c == '}' || c == ']') && depth > 0) {
            --depth;
        }
    }
    return text.size();
}

/// One line of a value that keeps no number as text.
std::string plain(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// Sign and digits of a number without zeros at their ends, and the power of ten by which they are multiplied.
std::pair<std::string, int64_t> decimal(const std::string& number) {
    constexpr int64_t kMaxExponent = INT64_C(1000000000000);  // far beyond any double's
    const size_t end = std::min(number.find_first_of("eE"), number.size());
    std::string digits;
    int64_t exponent = end == number.size() ? 0
                                            : std::clamp<int64_t>(std::strtoll(number.c_str() + end + 1, nullptr, 10),
                                                                  -kMaxExponent, kMaxExponent);
    bool in_fraction = false;
    for (size_t i = 0; i < end; ++i) {
        const char c = number[i];
        in_fraction = in_fraction || c == '.';
        if (c < '0' || c > '9') continue;
        exponent -= in_fraction;
        if (c != '0' || !digits.empty()) digits += c;
    }
    for (; !digits.empty() && digits.back() == '0'; digits.pop_back()) ++exponent;
    if (digits.empty()) exponent = 0;
    return {(number[0] == '-' ? "-" : "+") + digits, exponent};
}

/// Whether `value` is written as the same number as `text`, from which it was read.
bool holds(double value, const std::string& text) {
    const bool is_short = text.size() <= std::numeric_limits<double>::digits10;
    if (is_short && text.find_first_of("eE") == std::string::npos) return true;
    return decimal(plain(value)) == decimal(text);
}

bool keeps_text(const Json& json) {
    return json.is_binary() || (json.is_structured() && std::any_of(json.begin(), json.end(), keeps_text));
}

void write(const Json& json, std::string* to) {
    if (json.is_binary()) return void(to->append(json.get_binary().begin(), json.get_binary().end()));
    if (!json.is_structured()) return void(*to += plain(json));
    *to += json.is_array() ? '[' : '{';
    for (auto at = json.begin(); at != json.end(); ++at) {
        if (at != json.begin()) *to += ',';
        if (json.is_object()) *to += plain(at.key()) + ':';
        write(*at, to);
    }
    *to += json.is_array() ? ']' : '}';
}

/// Builds a value from what nlohmann/json reads. Its own way looks for each key among all keys before it, and copies an
/// object's members whenever the object grows: a request of a megabyte could take minutes.
class Builder final : public nlohmann::json_sax<Json> {
  public:
    explicit Builder(Json* to) : to_(to) {}
    size_t error_at() const { return error_at_; }
    const std::string& error() const { return error_; }

    bool null() override { return put(nullptr); }
    bool boolean(bool v) override { return put(v); }
    bool number_integer(Json::number_integer_t v) override { return put(v); }
    bool number_unsigned(Json::number_unsigned_t v) override { return put(v); }
    bool number_float(Json::number_float_t v, const std::string& text) override {
        return holds(v, text) ? put(v) : put(Json::binary(std::vector<uint8_t>(text.begin(), text.end())));
    }
    bool string(std::string& v) override { return put(std::move(v)); }
    bool binary(Json::binary_t&) override { return false; }  // no part of JSON
    bool start_object(size_t) override { return put(Json::object(), true); }
    bool start_array(size_t) override { return put(Json::array(), true); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }
    bool key(std::string& name) override {
        Open& o = open_.back();
        Members& all = o.value->get_ref<Json::object_t&>();
        const size_t i = o.find(all, name);
        if (i == all.size()) append(&all, std::move(name));
        o.member = &all[i].second;
        return true;
    }
    bool parse_error(size_t at, const std::string&, const Json::exception& e) override {
        error_at_ = at;
        error_ = e.what();
        return false;
    }

  private:
    /// An object or a list whose end was not read yet.
    struct Open {
        explicit Open(Json* v) : value(v) {}
        Json* value;
        Json* member = nullptr;               ///< whose value comes next
        std::map<std::string, size_t> index;  ///< of the members, once they are many

        /// Of a key that is given twice, the last value counts.
        size_t find(const Members& all, const std::string& name) {
            if (all.size() < 32)
                return static_cast<size_t>(
                    std::find_if(all.begin(), all.end(), [&](const auto& m) { return m.first == name; }) - all.begin());
            for (size_t i = index.size(); i < all.size(); ++i) index.emplace(all[i].first, i);
            const auto found = index.find(name);
            return found == index.end() ? all.size() : found->second;
        }
    };

    static void append(Members* all, std::string name) {
        if (all->size() == all->capacity()) {
            Members more;
            more.reserve(2 * all->size() + 1);
            for (auto& m : *all) more.emplace_back(m.first, std::move(m.second));
            all->swap(more);
        }
        all->emplace_back(std::move(name), Json());
    }
    bool put(Json value, bool opens = false) {
        Json* at = open_.empty() ? to_ : open_.back().member;
        if (!open_.empty() && open_.back().value->is_array()) {
            open_.back().value->push_back(nullptr);
            at = &open_.back().value->back();
        }
        *at = std::move(value);
        if (opens) open_.emplace_back(at);
        return true;
    }
    bool close() {
        open_.pop_back();
        return true;
    }

    Json* const to_;
    std::vector<Open> open_;
    size_t error_at_ = 0;
    std::string error_;
};

/// Without going through double, in which large numbers lose their last digits. Some clients write 128.0.
bool read_whole(const Json& number, int64_t* to) {
    if (number.is_number_float()) {
        const double value = number.get<double>();
        if (value != std::floor(value) || !(std::fabs(value) < 9e18)) return false;
        *to = static_cast<int64_t>(value);
        return true;
    }
    if (!number.is_number() || (number.is_number_unsigned() && number.get<uint64_t>() > INT64_MAX)) return false;
    *to = number.get<int64_t>();
    return true;
}

/// What nlohmann/json says about a mistake, without its own prefix "[json.exception.parse_error.101] ".
std::string reason(const std::string& what) {
    const size_t at = what.find("] ");
    return at == std::string::npos ? what : what.substr(at + 2);
}

}  // namespace

// --------------------------------------------------------------------------------------------- failures

Failure http_failure(int status, const std::string& message) {
    Failure f;
    f.status = status;
    f.type = type_of(status);
    f.message = message;
    return f;
}

Failure bad_request(const std::string& message) { return http_failure(400, message); }
Failure not_found(const std::string& message) { return http_failure(404, message); }
Failure not_supported(const std::string& message) {
    Failure f = bad_request(message);
    f.type = kNotSupported;
    return f;
}
Failure unavailable(const std::string& message) { return http_failure(503, message); }

Failure context_exceeded(size_t n_prompt, size_t n_context) {
    Failure f = bad_request("the request exceeds the available context size: the prompt has " +
                            std::to_string(n_prompt) + " tokens, the context holds " + std::to_string(n_context) +
                            "; shorten the conversation, or start the server with a larger --ctx");
    f.type = kContextExceeded;
    f.extra["n_prompt_tokens"] = n_prompt;
    f.extra["n_ctx"] = n_context;
    return f;
}

bool is_context_exceeded(const Failure& failure) { return failure.type == kContextExceeded; }

Failure from_status(const Status& status) {
    switch (status.code) {
        case cli::Code::bad_argument: return bad_request(status.text);
        case cli::Code::not_found: return not_found(status.text);
        case cli::Code::unsupported: return not_supported(status.text);
        case cli::Code::bad_file: return bad_request(status.text);
        // Or the client has left, and reads nothing of this.
        case cli::Code::cancelled: return unavailable("the server is stopping");
        default: return http_failure(500, status.message());
    }
}

Json openai_error(const Failure& f) {
    Json error = {{"code", f.status}, {"message", f.message}, {"type", f.type}};
    for (const auto& item : f.extra.items()) error[item.key()] = item.value();
    return {{"error", error}};
}

Json anthropic_error(const Failure& f) {
    const bool too_long = is_context_exceeded(f);
    const char* type = too_long                        ? "invalid_request_error"
                       : f.type == "server_error"      ? "api_error"
                       : f.type == "unavailable_error" ? "overloaded_error"
                       : f.type == kNotSupported       ? "invalid_request_error"
                                                       : f.type.c_str();
    Json error = {{"type", type}, {"message", f.message}};
    if (too_long)  // the words by which agents know that they have to shorten the conversation
        error["message"] = "prompt is too long: " + dump(f.extra["n_prompt_tokens"]) + " tokens > " +
                           dump(f.extra["n_ctx"]) + " maximum";
    for (const auto& item : f.extra.items()) error[item.key()] = item.value();
    return {{"type", "error"}, {"error", error}};
}

// --------------------------------------------------------------------------------------------- JSON

std::string dump(const Json& json) {
    if (!keeps_text(json)) return plain(json);
    std::string text;
    write(json, &text);
    return text;
}

bool read_number(const Json& json, double* to) {
    if (json.is_binary())
        *to = Json::parse(json.get_binary()).get<double>();
    else if (json.is_number())
        *to = json.get<double>();
    return json.is_binary() || json.is_number();
}

size_t depth_of(const Json& json) {
    if (!json.is_structured() || json.empty()) return 0;
    size_t deepest = 0;
    for (const Json& one : json) deepest = std::max(deepest, depth_of(one));
    return 1 + deepest;
}

bool is_utf8(const std::string& bytes) {
    Json back;
    return parse_json(dump(bytes), &back) && back == bytes;
}

bool parse_json(const std::string& text, Json* to) {
    if (find_too_deep(text) != text.size()) return false;
    Builder builder(to);
    return Json::sax_parse(text, &builder);
}

Failure parse_body(const std::string& body, Json* to) {
    if (body.empty()) return bad_request("the body is empty, expected a JSON object");
    const size_t deep = find_too_deep(body);
    if (deep != body.size())
        return bad_request("the body is nested more than " + std::to_string(kMaxDepth) + " levels deep at byte " +
                           std::to_string(deep));
    Builder builder(to);
    if (!Json::sax_parse(body, &builder))
        return bad_request("the body is not JSON, byte " + std::to_string(builder.error_at()) + ": " +
                           reason(builder.error()));
    if (!to->is_object()) return bad_request("the body is " + describe(*to) + ", expected an object");
    return {};
}

std::string describe(const Json& json) {
    if (json.is_object()) return "an object";
    if (json.is_array()) return "a list";
    if (json.is_string()) return "a string";
    return dump(json);
}

const Json* Fields::find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void Fields::fail(const std::string& key, const std::string& what) const {
    keep(bad_request(path_ + key + " " + what));
}

void Fields::refuse(const char* key, const std::string& expected) const {
    const Json* found = find(key);
    fail(key, "is " + (found ? describe(*found) : "missing") + ", expected " + expected);
}

bool Fields::asks(const char* key) const {
    const Json* found = find(key);
    return found && *found != false && *found != 0 && *found != "" && *found != Json::array();
}

void Fields::refuse_wish(const char* key, const std::string& instead) const {
    if (asks(key)) keep(not_supported(path_ + key + " is not available here; " + instead));
}

void Fields::keep(const Failure& failure) const {
    if (failure_->ok()) *failure_ = failure;
}

bool Fields::number(const char* key, double low, double high, double* to) const {
    const Json* found = find(key);
    if (!found) return false;
    double value = 0;
    if (!read_number(*found, &value) || !(value >= low && value <= high)) {
        char range[80];
        std::snprintf(range, sizeof range, "a number from %g to %g", low, high);
        refuse(key, range);
        return false;
    }
    *to = value;
    return true;
}

bool Fields::number(const char* key, double low, double high, float* to) const {
    double value = 0;
    if (!number(key, low, high, &value)) return false;
    *to = static_cast<float>(value);
    return true;
}

bool Fields::integer(const char* key, int64_t low, int64_t high, int64_t* to) const {
    const Json* found = find(key);
    if (!found) return false;
    int64_t exact = 0;
    const bool whole = read_whole(*found, &exact);
    if (!whole || exact < low || exact > high) {
        refuse(key, "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
        return false;
    }
    *to = exact;
    return true;
}

const Json* Fields::typed(const char* key, bool (Json::*is)() const noexcept, const char* expected) const {
    const Json* found = find(key);
    if (!found || (found->*is)()) return found;
    refuse(key, expected);
    return nullptr;
}

bool Fields::boolean(const char* key, bool* to) const {
    const Json* found = typed(key, &Json::is_boolean, "true or false");
    if (found) *to = found->get<bool>();
    return found != nullptr;
}

bool Fields::text(const char* key, std::string* to) const {
    const Json* found = typed(key, &Json::is_string, "a string");
    if (found) *to = found->get<std::string>();
    return found != nullptr;
}

bool Fields::texts(const char* key, std::vector<std::string>* to) const {
    const Json* found = find(key);
    if (!found) return false;
    if (found->is_string()) {
        to->push_back(found->get<std::string>());
        return true;
    }
    if (!found->is_array()) {
        refuse(key, "a string or a list of strings");
        return false;
    }
    for (size_t i = 0; i < found->size(); ++i) {
        const Json& one = (*found)[i];
        if (!one.is_string()) {
            fail(std::string(key) + "[" + std::to_string(i) + "]", "is " + describe(one) + ", expected a string");
            return false;
        }
        to->push_back(one.get<std::string>());
    }
    return true;
}

const Json* Fields::object(const char* key) const { return typed(key, &Json::is_object, "an object"); }
const Json* Fields::list(const char* key) const { return typed(key, &Json::is_array, "a list"); }

std::string part_text(const Json& part, const std::string& path, Failure* failure) {
    if (part.is_string()) return part.get<std::string>();
    const auto member = [&](const char* key) {
        const auto found = part.is_object() ? part.find(key) : part.end();
        return found != part.end() && found->is_string() ? found->get_ptr<const std::string*>() : nullptr;
    };
    const std::string name = member("type") ? *member("type") : "";
    const char* const kinds[] = {"image", "audio", "video", "file", "document"};
    const bool media = std::any_of(std::begin(kinds), std::end(kinds),
                                   [&](const char* kind) { return name.find(kind) != std::string::npos; });
    for (const char* key : {"text", "refusal"})  // a picture may have a text beside it, which is not all that it says
        if (const std::string* text = media ? nullptr : member(key)) return *text;
    *failure = media ? not_supported(path + " is of type " + name + "; this server takes text only")
                     : bad_request(path + " is " + (name.empty() ? describe(part) : "of type " + name) +
                                   ", expected a part with a text");
    return {};
}

std::string content_text(const Json& content, const std::string& path, Failure* failure) {
    if (content.is_null()) return {};
    if (content.is_string()) return content.get<std::string>();
    if (!content.is_array()) {
        *failure = bad_request(path + " is " + describe(content) + ", expected a string or a list of parts");
        return {};
    }
    std::string all;
    for (size_t i = 0; i < content.size() && failure->ok(); ++i)
        all += part_text(content[i], path + "[" + std::to_string(i) + "]", failure);
    return all;
}

// --------------------------------------------------------------------------------------------- values of answers

std::string random_id(const char* prefix) {
    static const char kLetters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    std::random_device device;
    std::string id = prefix;
    for (int i = 0; i < 24; ++i) id += kLetters[device() % (sizeof kLetters - 1)];
    return id;
}

int64_t unix_seconds() { return static_cast<int64_t>(std::time(nullptr)); }

}  // namespace server
