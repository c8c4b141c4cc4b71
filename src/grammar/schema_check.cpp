// grammar/schema_check: checks what the keywords of a schema are given, and validates a value that a schema itself
// contains (enum, const). Declared in grammar/schema.h.
#include "schema.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace schema_check_impl {

constexpr int kMaxCheckDepth = 64;
constexpr size_t kMaxSteps = 2000000;

constexpr unsigned bit(Json::Kind kind) { return 1u << static_cast<unsigned>(kind); }
constexpr unsigned kNull = bit(Json::Kind::null), kBoolean = bit(Json::Kind::boolean),
                   kNumber = bit(Json::Kind::number), kString = bit(Json::Kind::string),
                   kArray = bit(Json::Kind::array), kObject = bit(Json::Kind::object), kSchema = kObject | kBoolean;

/// What is within the value of a keyword, as far as it is checked with the keyword.
enum class Content : uint8_t { any, count, schema, schemas, names, lists_of_names, lists_of_names_or_schemas };
struct Keyword {
    const char* name;
    unsigned kinds;
    Content content;
    const char* expected;
};
/// All but type, which gather_type() checks, and const, which may be anything. Some generators write null for a keyword
/// that they do not set: with kNull it is taken as absent, or refused only where the keyword is used.
const Keyword kKeywords[] = {
    {"$ref", kString | kNull, Content::any, "a string"},
    {"additionalItems", kSchema | kNull, Content::schema, ""},
    {"additionalProperties", kSchema | kNull, Content::schema, ""},
    {"allOf", kArray, Content::schemas, "a list of schemas that is not empty"},
    {"anyOf", kArray, Content::schemas, "a list of schemas that is not empty"},
    {"contains", kSchema | kNull, Content::schema, ""},
    {"dependencies", kObject, Content::lists_of_names_or_schemas, "an object"},
    {"dependentRequired", kObject, Content::lists_of_names, "an object"},
    {"dependentSchemas", kObject, Content::any, "an object"},
    {"else", kSchema | kNull, Content::schema, ""},
    {"enum", kArray, Content::any, "a list of values"},
    {"exclusiveMaximum", kNumber | kBoolean, Content::any, "a number"},  // up to draft 4: a boolean
    {"exclusiveMinimum", kNumber | kBoolean, Content::any, "a number"},
    {"format", kString | kNull, Content::any, "a string"},
    {"if", kSchema | kNull, Content::schema, ""},
    {"items", kSchema | kArray | kNull, Content::schema, ""},
    {"maxContains", kNumber | kNull, Content::count, "an integer from 0 on"},
    {"maxItems", kNumber, Content::count, "an integer from 0 on"},
    {"maxLength", kNumber, Content::count, "an integer from 0 on"},
    {"maxProperties", kNumber, Content::count, "an integer from 0 on"},
    {"maximum", kNumber, Content::any, "a number"},
    {"minContains", kNumber | kNull, Content::count, "an integer from 0 on"},
    {"minItems", kNumber, Content::count, "an integer from 0 on"},
    {"minLength", kNumber, Content::count, "an integer from 0 on"},
    {"minProperties", kNumber, Content::count, "an integer from 0 on"},
    {"minimum", kNumber, Content::any, "a number"},
    {"multipleOf", kNumber, Content::any, "a number"},
    {"not", kSchema, Content::schema, ""},
    {"oneOf", kArray, Content::schemas, "a list of schemas that is not empty"},
    {"pattern", kString, Content::any, "a string"},
    {"patternProperties", kObject | kNull, Content::any, "an object"},
    {"prefixItems", kArray | kNull, Content::any, "a list of schemas"},
    {"properties", kObject | kNull, Content::any, "an object"},
    {"propertyNames", kSchema | kNull, Content::schema, ""},
    {"required", kArray | kBoolean | kNull, Content::names, "a list of names"},  // draft 3: a boolean
    {"then", kSchema | kNull, Content::schema, ""},
    {"unevaluatedItems", kSchema | kNull, Content::schema, ""},
    {"unevaluatedProperties", kSchema | kNull, Content::schema, ""},
    {"uniqueItems", kBoolean | kNull, Content::any, "true or false"},
};

}  // namespace schema_check_impl

bool equal_json(const Json& a, const Json& b) {
    if (a.kind() != b.kind()) return false;
    Decimal x, y;
    switch (a.kind()) {
        case Json::Kind::null: return true;
        case Json::Kind::boolean: return a.boolean() == b.boolean();
        case Json::Kind::string: return a.text() == b.text();
        case Json::Kind::number:
            return Decimal::parse(a.text(), x) && Decimal::parse(b.text(), y) ? x == y : a.text() == b.text();
        default: break;
    }
    if (a.items().size() != b.items().size()) return false;
    for (size_t i = 0; i < a.items().size(); ++i) {
        const Json* other = a.is(Json::Kind::array) ? &b.items()[i] : b.find(a.keys()[i]);
        if (!other || !equal_json(a.items()[i], *other)) return false;
    }
    return true;
}

bool SchemaCompiler::spend(size_t n_step) {
    n_step_ += n_step;
    if (n_step_ <= schema_check_impl::kMaxSteps) return true;
    return fail_at(Code::unsupported, root_, "",
                   say("to compare its alternatives, names and listed values takes more than ",
                       schema_check_impl::kMaxSteps, " steps; make the schema smaller"));
}

bool SchemaCompiler::is_schema(const Json& schema) {
    if (schema.is(Json::Kind::object) || schema.is(Json::Kind::boolean)) return true;
    return fail_at(Code::bad_argument, schema, "",
                   say("expected a schema (an object or a boolean), found ", schema.kind_name()));
}

/// Whether the keywords of a schema have values of the right kind. Schemas within it are checked when they are used.
bool SchemaCompiler::is_well_formed(const Json& schema) {
    using namespace schema_check_impl;
    if (!well_formed_.insert(&schema).second) return status_.ok();
    const auto refuse = [this](const Json& where, std::string_view key, const char* expected, const Json& found) {
        return fail_at(Code::bad_argument, where, key,
                       say("expected ", expected, ", found ", quote(found.dump(Json::Numbers::written))));
    };
    const auto are_names = [&refuse](const Json& list) {
        for (const Json& name : list.items())
            if (!name.is(Json::Kind::string)) return refuse(name, "", "the name of a member", name);
        return true;
    };
    const auto fits = [&](const Keyword& k, const Json& value) {
        bool good = (k.kinds & bit(value.kind())) != 0;
        if (k.content == Content::schema) return good || is_schema(value);
        Decimal d;
        if (k.content == Content::count && value.is(Json::Kind::number))
            good = Decimal::parse(value.text(), d) && !d.negative && d.is_integer();
        if (k.content == Content::schemas) good = good && !value.items().empty();
        if (!good) return refuse(schema, k.name, k.expected, value);
        if (k.content == Content::names) return are_names(value);
        if (k.content != Content::lists_of_names && k.content != Content::lists_of_names_or_schemas) return true;
        for (const Json& list : value.items()) {
            const bool is_list = list.is(Json::Kind::array);
            if (!is_list && k.content == Content::lists_of_names) return refuse(list, "", "a list of names", list);
            if (is_list && !are_names(list)) return false;
        }
        return true;
    };
    const Json* ref = schema.find("$ref");
    const bool only_reference = old_draft_ && ref && ref->is(Json::Kind::string);
    for (size_t i = 0; i < schema.keys().size() && !only_reference; ++i)
        for (const Keyword& k : kKeywords)
            if (schema.keys()[i] == k.name && !fits(k, schema.items()[i])) return false;
    return true;
}

SchemaCompiler::Verdict SchemaCompiler::check(const Json& value, const Json& schema, int depth) {
    if (!spend(1)) return Verdict::unknown;
    if (schema.is(Json::Kind::boolean)) return schema.boolean() ? Verdict::yes : Verdict::no;
    if (!is_schema(schema) || !is_well_formed(schema) || depth > schema_check_impl::kMaxCheckDepth)
        return Verdict::unknown;
    Verdict result = Verdict::yes;
    const bool only_reference = old_draft_ && schema.find("$ref");
    for (size_t key = 0; key < schema.keys().size(); ++key) {
        const std::string& name = schema.keys()[key];
        if (only_reference && name != "$ref") continue;
        Verdict one = check_applicator(value, schema, name, schema.items()[key], depth + 1);
        if (one == Verdict::yes) one = check_keyword(value, schema, key, depth + 1);
        if (one == Verdict::no) return one;
        if (one == Verdict::unknown) result = one;
    }
    return result;
}

/// Keywords that combine schemas.
SchemaCompiler::Verdict SchemaCompiler::check_applicator(const Json& value, const Json& schema, const std::string& key,
                                                         const Json& argument, int depth) {
    if (key == "$ref" && argument.is(Json::Kind::string)) {
        const Json* target = resolve(schema, argument.text());
        return target ? check(value, *target, depth) : Verdict::unknown;
    }
    if (key == "not") {
        const Verdict inner = check(value, argument, depth);
        return inner == Verdict::yes ? Verdict::no : inner == Verdict::no ? Verdict::yes : inner;
    }
    if (key == "allOf" || key == "anyOf" || key == "oneOf") {
        size_t n_yes = 0, n_no = 0;
        for (const Json& s : argument.items()) {
            const Verdict one = check(value, s, depth);
            n_yes += one == Verdict::yes ? 1 : 0;
            n_no += one == Verdict::no ? 1 : 0;
        }
        const size_t n = argument.items().size();
        if (key == "allOf") return n_no > 0 ? Verdict::no : n_yes == n ? Verdict::yes : Verdict::unknown;
        if (key == "anyOf") return n_yes > 0 ? Verdict::yes : n_no == n ? Verdict::no : Verdict::unknown;
        return n_yes > 1 || n_no == n ? Verdict::no : n_yes + n_no == n ? Verdict::yes : Verdict::unknown;
    }
    for (const char* k : {"if", "dependencies", "dependentRequired", "dependentSchemas"})
        if (key == k) return Verdict::unknown;
    return Verdict::yes;
}

/// Keywords about the value itself.
SchemaCompiler::Verdict SchemaCompiler::check_keyword(const Json& value, const Json& schema, size_t index, int depth) {
    const std::string& key = schema.keys()[index];
    const Json& argument = schema.items()[index];
    if (!spend(1 + argument.items().size() / 16)) return Verdict::unknown;
    TypeFacts f;
    const auto verdict = [](bool good) { return good ? Verdict::yes : Verdict::no; };
    const Json::Kind kind = value.kind();
    // Combined elsewhere, or only a part of `contains` and of a list in `items`, which are unknown for an array.
    for (const char* k : {"$ref", "not", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependencies",
                          "dependentRequired", "dependentSchemas", "additionalItems", "minContains", "maxContains"})
        if (key == k) return Verdict::yes;
    const bool is_true = argument.is(Json::Kind::boolean) && argument.boolean();
    if (key == "uniqueItems") return kind == Json::Kind::array && is_true ? Verdict::unknown : Verdict::yes;
    if (key == "unevaluatedItems") return kind == Json::Kind::array && !is_true ? Verdict::unknown : Verdict::yes;
    if (key == "unevaluatedProperties") return kind == Json::Kind::object && !is_true ? Verdict::unknown : Verdict::yes;
    if (key == "contains" || key == "prefixItems") return kind == Json::Kind::array ? Verdict::unknown : Verdict::yes;
    if (key == "$dynamicRef" || key == "$recursiveRef") return Verdict::unknown;
    if (key == "items" && kind == Json::Kind::array) {
        if (argument.is(Json::Kind::array) || schema.find("prefixItems")) return Verdict::unknown;
        Verdict all = Verdict::yes;
        for (const Json& item : value.items()) {
            const Verdict one = check(item, argument, depth + 1);
            if (one == Verdict::no) return one;
            if (one == Verdict::unknown) all = one;
        }
        return all;
    }
    if (kind == Json::Kind::object) {
        if (key == "properties" || key == "patternProperties" || key == "additionalProperties")
            return check_members(value, schema, depth + 1);
        if (key == "required") {
            for (const Json& name : argument.items())
                if (name.is(Json::Kind::string) && !value.find(name.text())) return Verdict::no;
            return Verdict::yes;
        }
        if (key == "propertyNames") {
            for (const std::string& name : value.keys())
                if (const Verdict one = check(Json::of_string(name), argument, depth + 1); one != Verdict::yes)
                    return one;
            return Verdict::yes;
        }
    }
    if (key == "properties" || key == "patternProperties" || key == "additionalProperties" || key == "required" ||
        key == "items" || key == "propertyNames")
        return Verdict::yes;
    if (key == "format" && argument.is(Json::Kind::string) && kind == Json::Kind::string)
        return verdict(may_be_of_format(argument.text(), value.text()));
    if (!gather_keyword(schema, key, argument, f)) return Verdict::unknown;
    unsigned type = 0;
    Decimal d;
    const uint64_t n = value.items().size();
    switch (kind) {
        case Json::Kind::null: type = TypeFacts::kNull; break;
        case Json::Kind::boolean: type = TypeFacts::kBoolean; break;
        case Json::Kind::number:
            if (!Decimal::parse(value.text(), d)) return Verdict::unknown;
            type = d.is_integer() ? TypeFacts::kInteger : TypeFacts::kOther;
            if (!f.number.holds(d)) return Verdict::no;
            break;
        case Json::Kind::string: {
            type = TypeFacts::kString;
            const uint64_t chars = count_chars(value.text());
            if (chars < f.min_length || chars > f.max_length) return Verdict::no;
            for (const auto* list : {&f.patterns, &f.not_patterns})
                for (const std::string& p : *list) {
                    bool known = false;
                    const bool match = matches(p, value.text(), known);
                    if (!known) return Verdict::unknown;
                    if (match != (list == &f.patterns)) return Verdict::no;
                }
            break;
        }
        case Json::Kind::array:
            type = TypeFacts::kArray;
            if (n < f.min_items || n > f.max_items) return Verdict::no;
            break;
        default:
            type = TypeFacts::kObject;
            if (n < f.min_members || n > f.max_members) return Verdict::no;
    }
    if ((f.types & type) == 0) return Verdict::no;
    const auto equals = [&value](const Json* v) { return equal_json(value, *v); };
    if (f.has_values && std::none_of(f.values.begin(), f.values.end(), equals)) return Verdict::no;
    return verdict(std::find(f.excluded.begin(), f.excluded.end(), value.text()) == f.excluded.end() ||
                   kind != Json::Kind::string);
}

SchemaCompiler::Verdict SchemaCompiler::check_members(const Json& value, const Json& schema, int depth) {
    TypeFacts f;
    f.objects.push_back(&schema);
    Verdict all = Verdict::yes;
    const Json* properties = schema.find("properties");
    for (size_t i = 0; i < value.keys().size(); ++i) {
        if (!spend(properties ? properties->keys().size() / 16 : 0)) return Verdict::unknown;
        for (const Json* s : schemas_of_member(f, value.keys()[i])) {
            const Verdict one = check(value.items()[i], *s, depth);
            if (one == Verdict::no) return one;
            if (one == Verdict::unknown) all = one;
        }
    }
    return all;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
