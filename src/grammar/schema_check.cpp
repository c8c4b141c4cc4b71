// grammar/schema_check: validates a value that a schema itself contains (enum, const). Declared in grammar/schema.h.
#include "schema.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace schema_check_impl {

constexpr int kMaxCheckDepth = 64;
constexpr size_t kMaxSteps = 2000000;

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

SchemaCompiler::Verdict SchemaCompiler::check(const Json& value, const Json& schema, int depth) {
    if (!spend(1)) return Verdict::unknown;
    if (schema.is(Json::Kind::boolean)) return schema.boolean() ? Verdict::yes : Verdict::no;
    if (!schema.is(Json::Kind::object) || depth > schema_check_impl::kMaxCheckDepth) return Verdict::unknown;
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
    for (const char* k : {"$ref", "not", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependencies",
                          "dependentRequired", "dependentSchemas", "additionalItems"})
        if (key == k) return Verdict::yes;
    for (const char* k : {"uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems",
                          "unevaluatedProperties", "prefixItems", "$dynamicRef", "$recursiveRef"})
        if (key == k)
            return value.is(Json::Kind::array) || value.is(Json::Kind::object) ? Verdict::unknown : Verdict::yes;
    const Json::Kind kind = value.kind();
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
