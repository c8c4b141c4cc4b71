#include "reply_parser.h"
#include "guard.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace chat_parse_impl {

constexpr int kMaxDepth = 8;         // of combined schemas
constexpr size_t kMaxSteps = 20000;  // for the types of one argument: schemas, their values and members

/// False: there are not so many steps left.
bool spend(size_t n, size_t& n_left) {
    n_left -= std::min(n, n_left);
    return n_left > 0;
}

/// Of a schema's "type", a name or a list of names.
unsigned stated_types(const Json& type) {
    unsigned all = type.is(Json::Kind::string) ? JsonTypes::named(type.text()) : 0;
    for (const Json& t : type.items()) all |= t.is(Json::Kind::string) ? JsonTypes::named(t.text()) : 0;
    return all;
}

/// The schema that "#/..." leads to; null: it is not that simple.
const Json* follow(const Json& root, std::string_view ref, size_t& n_left) {
    if (ref.substr(0, 2) != "#/" || ref.find_first_of("~%") != std::string_view::npos) return nullptr;
    const Json* at = &root;
    for (size_t from = 2; at != nullptr && from <= ref.size();) {
        const size_t end = std::min(ref.find('/', from), ref.size());
        if (!spend(1 + at->keys().size() / 4, n_left)) return nullptr;
        at = at->find(ref.substr(from, end - from));
        from = end + 1;
    }
    return at;
}

/// The types that a schema allows, as far as they follow from type, enum, const, $ref, allOf, anyOf and oneOf.
unsigned allowed_types(const Json& schema, const Json& root, int depth, size_t& n_left) {
    unsigned types = JsonTypes::kAll;
    if (!schema.is(Json::Kind::object) || depth > kMaxDepth || !spend(1 + schema.keys().size() / 4, n_left))
        return types;
    const Json* type = schema.find("type");
    if (type != nullptr && spend(type->items().size(), n_left)) types &= stated_types(*type);
    if (const Json* value = schema.find("const")) types &= JsonTypes::of(*value);
    const Json* ref = schema.find("$ref");
    const Json* target = ref != nullptr && ref->is(Json::Kind::string) ? follow(root, ref->text(), n_left) : nullptr;
    if (target != nullptr) types &= allowed_types(*target, root, depth + 1, n_left);
    for (const char* key : {"allOf", "anyOf", "oneOf", "enum"}) {
        const Json* list = schema.find(key);
        if (list == nullptr) continue;
        const bool all = std::string_view(key) == "allOf", values = std::string_view(key) == "enum";
        unsigned some = all ? JsonTypes::kAll : 0;
        for (const Json& s : list->items()) {
            if (!spend(1, n_left)) return JsonTypes::kAll;
            const unsigned one = values ? JsonTypes::of(s) : allowed_types(s, root, depth + 1, n_left);
            some = all ? some & one : some | one;
        }
        types &= some;
    }
    return types;
}

}  // namespace chat_parse_impl

unsigned JsonTypes::named(std::string_view name) {
    static constexpr std::pair<std::string_view, unsigned> kNames[] = {
        {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kNumber},
        {"string", kString}, {"array", kArray},     {"object", kObject},   {"any", kAll}};
    for (const auto& n : kNames)
        if (name == n.first) return n.second;
    return 0;
}

unsigned JsonTypes::of(const Json& value) {
    switch (value.kind()) {
        case Json::Kind::null: return kNull;
        case Json::Kind::boolean: return kBoolean;
        case Json::Kind::number: return kNumber;
        case Json::Kind::string: return kString;
        case Json::Kind::array: return kArray;
        case Json::Kind::object: break;
    }
    return kObject;
}

AUSPEX_SMALL_CODE_BEGIN

ArgumentType argument_type(const Json* schema, const Json& parameters) {
    ArgumentType out;
    if (schema == nullptr) return out;
    size_t n_left = chat_parse_impl::kMaxSteps;
    out.types = chat_parse_impl::allowed_types(*schema, parameters, 0, n_left);
    if (out.types == JsonTypes::kAll) return out;
    // A list of types with string among them declares a string. Other alternatives to a string are told apart as JSON.
    const Json* type = schema->find("type");
    const unsigned stated = type != nullptr ? chat_parse_impl::stated_types(*type) : 0;
    const unsigned others = out.types & ~(JsonTypes::kString | JsonTypes::kNull);
    const bool is_text = (out.types & JsonTypes::kString) != 0 && (others == 0 || (stated & JsonTypes::kString) != 0);
    out.form = !is_text                              ? ArgumentForm::typed
               : (out.types & JsonTypes::kNull) != 0 ? ArgumentForm::nullable_text
                                                     : ArgumentForm::text;
    return out;
}

ToolSchemas::ToolSchemas(const std::vector<std::string>& tools) {
    for (const std::string& tool : tools) {
        Json json;
        if (Json::parse(tool).get(json).ok()) tools_.push_back(std::move(json));
    }
}

const Json* ToolSchemas::function(std::string_view name) const {
    for (const Json& tool : tools_) {
        const Json* inner = tool.find("function");
        const Json& f = inner != nullptr ? *inner : tool;
        const Json* n = f.find("name");
        if (n != nullptr && n->is(Json::Kind::string) && n->text() == name) return &f;
    }
    return nullptr;
}

ArgumentType ToolSchemas::type_of(std::string_view tool, std::string_view name) const {
    const Json* f = function(tool);
    const Json* parameters = f != nullptr ? f->find("parameters") : nullptr;
    const Json* properties = parameters != nullptr ? parameters->find("properties") : nullptr;
    return properties != nullptr ? argument_type(properties->find(name), *parameters) : ArgumentType();
}

ToolArgument ToolSchemas::typed(std::string_view tool, std::string name, std::string_view text) const {
    const auto [form, types] = type_of(tool, name);
    const std::string_view bare = trim_space(text);
    const auto may_be = [allowed = types](unsigned type) { return (allowed & type) != 0; };
    Json value;
    if (form == ArgumentForm::text || (form == ArgumentForm::nullable_text && bare != "null" && bare != "None"))
        return ToolArgument{std::move(name), std::string(text), false};
    // Some templates show null, true and false as None, True and False, and models write what they see.
    const bool is_none = bare == "None" && (may_be(JsonTypes::kNull) || !may_be(JsonTypes::kString));
    if (form != ArgumentForm::any && is_none) return ToolArgument{std::move(name), "null", true};
    if (form == ArgumentForm::typed && may_be(JsonTypes::kBoolean) && (bare == "True" || bare == "False"))
        return ToolArgument{std::move(name), bare == "True" ? "true" : "false", true};
    const bool is_json =
        Json::parse(bare).get(value).ok() && (may_be(JsonTypes::of(value)) || !may_be(JsonTypes::kString));
    return is_json ? argument_of(std::move(name), value) : ToolArgument{std::move(name), std::string(text), false};
}

}  // namespace detail
AUSPEX_SMALL_CODE_END

Result<ChatReply> parse_reply(std::string_view text, bool inside_thinking,
                              const std::vector<std::string>& tools) AUSPEX_BOUNDARY {
    const detail::ToolSchemas schemas(tools);
    detail::ReplyParser parser(schemas, inside_thinking, nullptr);
    parser.push(text);
    parser.finish();
    return std::move(parser.reply);
}
AUSPEX_CATCH

struct ReplyStream::Impl {
    Impl(bool inside_thinking, const std::vector<std::string>& tools)
        : schemas(tools), parser(schemas, inside_thinking, &events) {}

    detail::ToolSchemas schemas;
    std::vector<ReplyEvent> events;
    detail::ReplyParser parser;
};

ReplyStream::ReplyStream() noexcept = default;
ReplyStream::~ReplyStream() = default;
ReplyStream::ReplyStream(ReplyStream&&) noexcept = default;
ReplyStream& ReplyStream::operator=(ReplyStream&&) noexcept = default;

ReplyStream::ReplyStream(bool inside_thinking, const std::vector<std::string>& tools)
    : impl_(detail::made_or_empty([&] { return std::make_unique<Impl>(inside_thinking, tools); })) {}

Result<std::vector<ReplyEvent>> ReplyStream::push(std::string_view text) AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("ReplyStream", "its constructor with arguments");
    if (impl_->parser.finished())
        return Status(Code::bad_argument, "the reply is finished; make another ReplyStream for the next one");
    impl_->parser.push(text);
    return std::exchange(impl_->events, {});
}
AUSPEX_CATCH

Result<std::vector<ReplyEvent>> ReplyStream::finish() AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("ReplyStream", "its constructor with arguments");
    if (!impl_->parser.finished()) impl_->parser.finish();
    return std::exchange(impl_->events, {});
}
AUSPEX_CATCH

const ChatReply& ReplyStream::reply() const {
    static const ChatReply empty;
    return impl_ ? impl_->parser.reply : empty;
}

bool ReplyStream::in_thinking() const { return impl_ && impl_->parser.in_thinking(); }

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
