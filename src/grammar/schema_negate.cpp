// grammar/schema_negate: what is valid where a schema is not. Declared in grammar/schema.h.
//
// A keyword that is violated is written as a schema of its own; keywords that begin with an exclamation mark are known
// to this compiler only.
#include "schema.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace negate_impl {

/// With the digits that numbers were given.
std::string written(const Json& json) { return json.dump(Json::Numbers::written); }
/// What is not valid against the schema that make_around() is given.
constexpr const char* kNotReference = "{\"not\":{\"$ref\":\"\"}}";
/// A schema of one type and one more keyword, in parts.
template <class... A>
std::string typed(const char* type, const A&... keyword) {
    return say("{\"type\":\"", type, "\",", keyword..., "}");
}

}  // namespace negate_impl

bool SchemaCompiler::negate(Branch& branch, const Json& schema, size_t link) {
    Alternatives ways;
    // Without one of its ways the rest would refuse what violates the schema in that way only.
    for (size_t key = 0; key < schema.keys().size(); ++key)
        if (!negate_keyword(ways, schema, key, link)) return status_.ok();
    if (ways.empty()) return false;  // everything is valid against the schema
    branch.divide_by(schema, "not", std::move(ways));
    return true;
}

/// Keywords about objects. False: no such keyword.
bool SchemaCompiler::negate_object(Alternatives& out, const Json& schema, size_t index, size_t link) {
    using namespace negate_impl;
    const std::string& key = schema.keys()[index];
    const Json& value = schema.items()[index];
    const auto way = [&](std::string_view text) { out.push_back({{make(text, schema), false, link}}); };
    const auto way_around = [&](const std::string& text, const Json& inner) {
        out.push_back({{make_around(text, schema, inner), false, link}});
    };
    if (key == "required") {
        for (const Json& name : value.items()) way(typed("object", "\"properties\":{", written(name), ":false}"));
    } else if (key == "properties") {
        for (size_t i = 0; i < value.keys().size(); ++i) {
            if (value.items()[i].is(Json::Kind::boolean) && value.items()[i].boolean()) continue;
            const std::string name = json_quoted(value.keys()[i]);
            way_around(typed("object", "\"required\":[", name, "],\"properties\":{", name, ":", kNotReference, "}"),
                       value.items()[i]);
        }
    } else if (key == "dependentRequired") {
        for (size_t i = 0; i < value.keys().size(); ++i)
            for (const Json& name : value.items()[i].items())
                way(typed("object", "\"required\":[", json_quoted(value.keys()[i]), "],\"properties\":{", written(name),
                          ":false}"));
    } else if (key == "propertyNames" || (key == "patternProperties" && !value.items().empty()) ||
               (key == "additionalProperties" && !(value.is(Json::Kind::boolean) && value.boolean()))) {
        way(typed("object", "\"!members\":true"));  // refused where it is written
    } else {
        return false;
    }
    return true;
}

/// Adds the ways in which the keyword is violated. False: it is ignored or refused.
bool SchemaCompiler::negate_keyword(Alternatives& out, const Json& schema, size_t index, size_t link) {
    using namespace negate_impl;
    const std::string& key = schema.keys()[index];
    const Json& value = schema.items()[index];
    const auto way = [&](std::string_view text) { out.push_back({{make(text, schema), false, link}}); };
    const auto way_around = [&](const std::string& text, const Json& inner) {
        out.push_back({{make_around(text, schema, inner), false, link}});
    };
    const auto both_ways = [&](const Json& a, bool not_a, const Json* b, bool not_b) {
        std::vector<Item> items{{&a, not_a, link}};
        if (b) items.push_back({b, not_b, link});
        out.push_back(std::move(items));
    };
    if (key == "type") {
        way(say("{\"!type\":", written(value), "}"));
    } else if (key == "enum" || key == "const") {
        way("{\"!enum\":" + (key == "enum" ? written(value) : "[" + written(value) + "]") + "}");
    } else if (key == "allOf") {
        for (const Json& s : value.items()) both_ways(s, true, nullptr, false);
    } else if (key == "anyOf") {
        std::vector<Item> none;
        for (const Json& s : value.items()) none.push_back({&s, true, link});
        out.push_back(std::move(none));
    } else if (key == "oneOf" && value.items().size() <= 8) {
        std::vector<Item> none;
        for (size_t i = 0; i < value.items().size(); ++i) {
            none.push_back({&value.items()[i], true, link});
            for (size_t k = 0; k < i; ++k) both_ways(value.items()[i], false, &value.items()[k], false);
        }
        out.push_back(std::move(none));
    } else if (key == "not") {
        both_ways(value, false, nullptr, false);
    } else if (key == "if") {
        if (const Json* then = schema.find("then")) both_ways(value, false, then, true);
        if (const Json* other = schema.find("else")) both_ways(value, true, other, true);
    } else if (key == "minimum" || key == "maximum" || key == "exclusiveMinimum" || key == "exclusiveMaximum") {
        const Json* flag = schema.find(key == "minimum" ? "exclusiveMinimum" : "exclusiveMaximum");
        if (!value.is(Json::Kind::number) || (flag && flag->is(Json::Kind::boolean)))
            return unsupported(schema, "not", "of a bound in the form of draft 4"), false;
        const char* opposite = key == "minimum"            ? "exclusiveMaximum"
                               : key == "maximum"          ? "exclusiveMinimum"
                               : key == "exclusiveMinimum" ? "maximum"
                                                           : "minimum";
        way(typed("number", "\"", opposite, "\":", value.text()));
    } else if (key == "multipleOf") {
        way(typed("number", "\"!multipleOf\":", value.text()));
    } else if (key == "pattern" || key == "format") {
        if (key == "format") return unsupported(schema, "not", "of a format"), false;
        way(typed("string", "\"!pattern\":", written(value)));
    } else if (key == "minLength" || key == "minItems" || key == "minProperties") {
        const std::string what = key.substr(3);
        if (count_of(value) > 0)
            way(typed(what == "Length"  ? "string"
                      : what == "Items" ? "array"
                                        : "object",
                      "\"max", what, "\":", count_of(value) - 1));
    } else if (key == "maxLength" || key == "maxItems" || key == "maxProperties") {
        const std::string what = key.substr(3);
        way(typed(what == "Length"  ? "string"
                  : what == "Items" ? "array"
                                    : "object",
                  "\"min", what, "\":", count_of(value) + 1));
    } else if (key == "items" && !value.is(Json::Kind::array) && !schema.find("prefixItems")) {
        way_around(typed("array", "\"contains\":", kNotReference), value);
    } else if (key == "contains" && !schema.find("minContains") && !schema.find("maxContains")) {
        way_around(typed("array", "\"items\":", kNotReference), value);
    } else if (!negate_object(out, schema, index, link)) {
        for (const char* known :
             {"oneOf", "items", "prefixItems", "additionalItems", "contains", "uniqueItems", "dependencies",
              "dependentSchemas", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"})
            if (key == known && !(key == "uniqueItems" && !(value.is(Json::Kind::boolean) && value.boolean())))
                return unsupported(schema, "not", "of " + key), false;
    }
    return status_.ok();
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
