// grammar/schema_types: what a branch says about each type, and strings and numbers as expressions. Declared in
// grammar/schema.h.
#include "schema.h"

#include "../base/unicode.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace schema_types_impl {

constexpr uint64_t kMaxCount = 1000000000;
constexpr size_t kMaxPatterns = 500;  // that one string must match, or must not

struct Format {
    const char *name, *pattern;
    uint32_t max_length = kUnbounded;
};
// Dates are checked to the number of days a month has in that year; leap seconds are left out.
#define AUSPEX_FOURTH "(?:[02468][048]|[13579][26])"
#define AUSPEX_DATE                                                                                          \
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-" \
    "(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|" AUSPEX_FOURTH "00)-02-29)"
#define AUSPEX_TIME \
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define AUSPEX_LABEL "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define AUSPEX_OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define AUSPEX_IPV4 AUSPEX_OCTET "(?:\\." AUSPEX_OCTET "){3}"
#define AUSPEX_H16 "[0-9a-fA-F]{1,4}"
#define AUSPEX_LS32 "(?:" AUSPEX_H16 ":" AUSPEX_H16 "|" AUSPEX_IPV4 ")"
#define AUSPEX_IPV6                                                                                        \
    "(?:" AUSPEX_H16 ":){6}" AUSPEX_LS32 "|::(?:" AUSPEX_H16 ":){5}" AUSPEX_LS32 "|(?:" AUSPEX_H16         \
    ")?::(?:" AUSPEX_H16 ":){4}" AUSPEX_LS32 "|(?:(?:" AUSPEX_H16 ":)?" AUSPEX_H16 ")?::(?:" AUSPEX_H16    \
    ":){3}" AUSPEX_LS32 "|(?:(?:" AUSPEX_H16 ":){0,2}" AUSPEX_H16 ")?::(?:" AUSPEX_H16 ":){2}" AUSPEX_LS32 \
    "|(?:(?:" AUSPEX_H16 ":){0,3}" AUSPEX_H16 ")?::" AUSPEX_H16 ":" AUSPEX_LS32 "|(?:(?:" AUSPEX_H16       \
    ":){0,4}" AUSPEX_H16 ")?::" AUSPEX_LS32 "|(?:(?:" AUSPEX_H16 ":){0,5}" AUSPEX_H16 ")?::" AUSPEX_H16    \
    "|(?:(?:" AUSPEX_H16 ":){0,6}" AUSPEX_H16 ")?::"
#define AUSPEX_REG_NAME "(?:[a-zA-Z0-9._~!$&'()*+,;=-]|%[0-9a-fA-F]{2})"
#define AUSPEX_PATH_CHAR "(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
const Format kFormats[] = {
    {"date", AUSPEX_DATE},
    {"time", AUSPEX_TIME},
    {"date-time", AUSPEX_DATE "[Tt]" AUSPEX_TIME},
    {"duration",
     "P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?"
     "|"
     "[0-9]+M(?:[0-9]+S)?|[0-9]+S))?|T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))"},
    {"email",
     "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+(?:\\.[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+)*@" AUSPEX_LABEL "(?:\\." AUSPEX_LABEL ")*"},
    {"hostname", AUSPEX_LABEL "(?:\\." AUSPEX_LABEL ")*", 253},
    {"ipv4", AUSPEX_IPV4},
    {"ipv6", AUSPEX_IPV6},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"uri", "[a-zA-Z][a-zA-Z0-9+.-]*:(?://(?:(?:" AUSPEX_REG_NAME "|:)*@)?(?:" AUSPEX_REG_NAME "*|\\[(?:" AUSPEX_IPV6
            ")\\])(?::[0-9]*)?(?:/(?:" AUSPEX_PATH_CHAR "|/)*)?|/|/?" AUSPEX_PATH_CHAR "(?:" AUSPEX_PATH_CHAR
            "|/)*)(?:\\?(?:" AUSPEX_PATH_CHAR "|[/?])*)?(?:#(?:" AUSPEX_PATH_CHAR "|[/?])*)?"},
};
#undef AUSPEX_FOURTH
#undef AUSPEX_DATE
#undef AUSPEX_TIME
#undef AUSPEX_LABEL
#undef AUSPEX_OCTET
#undef AUSPEX_IPV4
#undef AUSPEX_H16
#undef AUSPEX_LS32
#undef AUSPEX_IPV6
#undef AUSPEX_REG_NAME
#undef AUSPEX_PATH_CHAR

}  // namespace schema_types_impl

uint64_t count_chars(std::string_view text) {
    uint64_t n = 0;
    for (const char c : text) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
    return n;
}

// --------------------------------------------------------------------------------------------- facts

uint64_t count_of(const Json& number) {
    Decimal d;
    Decimal::parse(number.text(), d);
    return d.exponent > 9 ? schema_types_impl::kMaxCount : std::strtoull(d.whole().c_str(), nullptr, 10);
}

bool SchemaCompiler::gather_type(const Json& schema, const Json& value, TypeFacts& facts) {
    unsigned types = 0;
    const Span<const Json> names = value.is(Json::Kind::array) ? value.items() : Span<const Json>(&value, 1);
    for (const Json& v : names) {
        const unsigned type = v.is(Json::Kind::string) ? JsonTypes::named(v.text()) : 0;
        if (type == 0)
            return fail_at(Code::bad_argument, schema, "type",
                           say("expected the name of a type, found ", quote(v.dump())));
        types |= type;
    }
    facts.types &= types;
    return true;
}

bool SchemaCompiler::gather_values(const std::string& key, const Json& value, TypeFacts& facts) {
    std::vector<const Json*> values;
    if (key == "const")
        values.push_back(&value);
    else
        for (const Json& v : value.items()) values.push_back(&v);
    if (key == "!enum") {
        for (const Json& v : value.items()) {
            Decimal d;
            if (v.is(Json::Kind::string)) facts.excluded.push_back(v.text());
            if (v.is(Json::Kind::number) && Decimal::parse(v.text(), d)) facts.number.excluded.push_back(d);
            if (v.is(Json::Kind::null)) facts.types &= ~TypeFacts::kNull;
            if (v.is(Json::Kind::array) || v.is(Json::Kind::object) || v.is(Json::Kind::boolean)) return false;
        }
        return true;
    }
    if (!std::exchange(facts.has_values, true)) {
        facts.values = std::move(values);
        return true;
    }
    if (!may_compare(values.size(), facts.values.size(), value, "")) return false;
    const auto lacks = [&](const Json* v) {
        return std::none_of(values.begin(), values.end(), [v](const Json* o) { return equal_json(*v, *o); });
    };
    facts.values.erase(std::remove_if(facts.values.begin(), facts.values.end(), lacks), facts.values.end());
    return true;
}

bool SchemaCompiler::gather_number(const Json& schema, const std::string& key, const Json& value, TypeFacts& facts) {
    if (value.is(Json::Kind::boolean) && key.compare(0, 9, "exclusive") == 0) return true;  // draft 4
    Decimal d;
    if (!Decimal::parse(value.text(), d)) return unsupported(schema, key, "a number of this size");
    const auto open = [&schema](const char* flag) {
        const Json* f = schema.find(flag);
        return f && f->is(Json::Kind::boolean) && f->boolean();
    };
    if (key == "minimum") facts.number.not_below(d, open("exclusiveMinimum"));
    if (key == "maximum") facts.number.not_above(d, open("exclusiveMaximum"));
    if (key == "exclusiveMinimum") facts.number.not_below(d, true);
    if (key == "exclusiveMaximum") facts.number.not_above(d, true);
    if (key == "multipleOf") facts.number.multiples.push_back(d);
    if (key == "!multipleOf") facts.number.not_multiples.push_back(d);
    return true;
}

bool SchemaCompiler::gather_keyword(const Json& schema, const std::string& key, const Json& value, TypeFacts& facts) {
    const auto not_below = [&](unsigned type, uint64_t& to) {
        const uint64_t n = count_of(value);
        if (n > kMaxRepeat && (facts.types & type) != 0) return unsupported(schema, key, say("above ", kMaxRepeat));
        to = std::max(to, n);
        return true;
    };
    const auto not_above = [&value](uint64_t& to) {
        to = std::min(to, count_of(value));
        return true;
    };
    if (key == "type") return gather_type(schema, value, facts);
    if (key == "!type") {
        TypeFacts inner;
        if (!gather_type(schema, value, inner)) return false;
        facts.types &= ~inner.types;
        return true;
    }
    if (key == "enum" || key == "const" || key == "!enum")
        return gather_values(key, value, facts) || unsupported(schema, "not", "of a list, an object or a boolean");
    for (const char* k : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "!multipleOf"})
        if (key == k) return gather_number(schema, key, value, facts);
    if (key == "minLength") return not_below(TypeFacts::kString, facts.min_length);
    if (key == "maxLength") return not_above(facts.max_length);
    if (key == "pattern") return facts.patterns.push_back(value.text()), true;
    if (key == "!pattern") return facts.not_patterns.push_back(value.text()), true;
    if (key == "format" && value.is(Json::Kind::string)) return facts.formats.push_back(value.text()), true;
    if (key == "minItems") return not_below(TypeFacts::kArray, facts.min_items);
    if (key == "maxItems") return not_above(facts.max_items);
    if (key == "minProperties") return not_below(TypeFacts::kObject, facts.min_members);
    if (key == "maxProperties") return not_above(facts.max_members);
    if (key == "required") {
        // Draft 3 has a boolean here, which says nothing in later ones.
        for (const Json& name : value.items()) facts.required.push_back(name.text());
        return true;
    }
    if (key == "propertyNames") return facts.names.push_back(&value), true;
    if (key == "contains") {
        const Json *low = schema.find("minContains"), *high = schema.find("maxContains");
        if (high && high->is(Json::Kind::number)) return unsupported(schema, "maxContains");
        const uint64_t n = low && low->is(Json::Kind::number) ? count_of(*low) : 1;
        if (n == 0) return true;
        if (n != 1) return unsupported(schema, "minContains");
        return facts.contains.push_back(&value), true;
    }
    if (key == "uniqueItems" && value.is(Json::Kind::boolean) && value.boolean()) facts.unique = &schema;
    for (const char* k : {"unevaluatedProperties", "unevaluatedItems"})
        if (key == k && !(value.is(Json::Kind::boolean) && value.boolean())) return unsupported(schema, key);
    for (const char* k : {"$dynamicRef", "$recursiveRef", "!members"})
        if (key == k) return unsupported(schema, key[0] == '!' ? "not" : key, key[0] == '!' ? "of this keyword" : "");
    return true;
}

bool SchemaCompiler::gather(const Json& schema, TypeFacts& facts) {
    // Types first: what concerns another type need not be supported.
    if (const Json* type = schema.find("type"))
        if (!gather_type(schema, *type, facts)) return false;
    bool array = false, object = false;
    for (size_t i = 0; i < schema.keys().size(); ++i) {
        const std::string& key = schema.keys()[i];
        if (key == "$ref" && schema.items()[i].is(Json::Kind::string)) continue;
        if (!gather_keyword(schema, key, schema.items()[i], facts)) return false;
        array = array || key == "items" || key == "prefixItems";
        object = object || key == "properties" || key == "patternProperties" || key == "additionalProperties";
    }
    if (array) facts.arrays.push_back(&schema);
    if (object) facts.objects.push_back(&schema);
    return true;
}

// ------------------------------------------------------------------------------------------ expressions

AUSPEX_SMALL_CODE_BEGIN

ExprId SchemaCompiler::write(const Schemas& flat, ValuePlace place) {
    TypeFacts f;
    if (place == ValuePlace::name) f.types = TypeFacts::kString;
    if (place == ValuePlace::text) f.types = TypeFacts::kString;
    if (place == ValuePlace::nullable_text) f.types = TypeFacts::kString | TypeFacts::kNull;
    if (place == ValuePlace::arguments || place == ValuePlace::object) f.types = TypeFacts::kObject;
    // The types of all schemas are known before anything else is looked at.
    for (const Json* s : flat)
        if (const Json* type = s->find("type"))
            if (!gather_type(*s, *type, f)) return kNoMatch;
    for (const Json* s : flat)
        if (!gather(*s, f)) return kNoMatch;
    const Json& where = flat.empty() ? root_ : *flat[0];
    note_intersection(f, where);
    if (place == ValuePlace::arguments)
        return (f.types & TypeFacts::kObject) != 0 ? write_arguments(f, where) : kNoMatch;
    if (f.has_values) return write_values(flat, f, place);
    std::vector<ExprId> ways;
    if (f.types == TypeFacts::kAll && flat.empty() && place == ValuePlace::json) return any_value();
    if (f.types & TypeFacts::kNull) ways.push_back(write_literal("null", place));
    if (f.types & TypeFacts::kBoolean)
        ways.push_back(pool_.choice(write_literal("true", place), write_literal("false", place)));
    if (f.types & TypeFacts::kNumber) ways.push_back(write_number(f, where));
    if (f.types & TypeFacts::kString) ways.push_back(write_string(f, where, place));
    if ((f.types & TypeFacts::kString) != 0 && is_typed(place))
        ways.push_back(write_string(f, where, ValuePlace::json));
    if (f.types & TypeFacts::kArray) ways.push_back(write_array(f, where));
    if (f.types & TypeFacts::kObject) ways.push_back(write_object(f, where));
    return status_.ok() ? pool_.choice(std::move(ways)) : kNoMatch;
}

/// Several patterns together, or several divisors, may be more than a search can decide.
void SchemaCompiler::note_intersection(const TypeFacts& f, const Json& where) {
    const bool number =
        (f.types & TypeFacts::kNumber) != 0 && !(f.number.multiples.empty() && f.number.not_multiples.empty());
    const bool text = (f.types & TypeFacts::kString) != 0 && !(f.patterns.empty() && f.not_patterns.empty());
    if (number || text) intersections_.emplace(rule_, Intersection{&where, number ? "multipleOf" : "pattern"});
}

ExprId SchemaCompiler::write_number(TypeFacts& f, const Json& where) {
    f.number.integers = (f.types & TypeFacts::kInteger) != 0;
    f.number.others = (f.types & TypeFacts::kOther) != 0;
    f.number.bare_integers = bare_integers_;
    const Result<ExprId> number = number_expr(pool_, f.number);
    if (number.ok()) return number.value();
    const bool multiple = number.status().text.find("multipleOf") != std::string::npos;
    const char* key = multiple ? "multipleOf" : "minimum";
    if (number.status().code != Code::unsupported || !options_.ignore_unsupported)
        return fail_at(number.status().code, where, key, number.status().text), kNoMatch;
    unsupported(where, key);
    return number_expr(pool_, NumberFacts()).value();
}

/// Texts in which a reader finds the end of an argument that is written as they are, or another call: closing tags and
/// calls at the beginning of a line, and closing tags that end one before the next tag of the call. A reader also takes
/// a carriage return before the last line break for a part of it.
ExprId SchemaCompiler::ending_text() {
    const ExprId any = pool_.any_text();
    ByteSet white;
    for (const char c : std::string_view(" \t\r\n")) white.add(static_cast<unsigned char>(c));
    const ExprId space = pool_.repeat(pool_.bytes(white), 0, kUnbounded), newline = pool_.text("\n");
    const ExprId line = pool_.optional(pool_.concat(any, newline));
    return pool_.choice({pool_.concat({line, pool_.one_of({"</parameter>", "<tool_call>"}), any}),
                         pool_.concat({any, pool_.text("</parameter>"), space, newline, space,
                                       pool_.one_of({"<parameter=", "</function>", "</tool_call>"}), any}),
                         pool_.concat(any, pool_.text("\r"))});
}

/// Of a text that is not written as it is.
bool SchemaCompiler::has_end(std::string_view text) const {
    return std::any_of(ends_.begin(), ends_.end(),
                       [text](const std::string& end) { return text.find(end) != std::string_view::npos; });
}

/// Adds the text as it is written, unless that is impossible; it may still end its argument.
void SchemaCompiler::add_literal(const std::string& text, ValuePlace place, std::vector<std::string>& out) const {
    const bool raw = is_raw(place);
    const std::string_view bare = trim_space(text);
    if (place == ValuePlace::nullable_text && (bare == "null" || bare == "None")) return;
    if (place == ValuePlace::typed && (bare == "True" || bare == "False" || bare == "None")) return;
    Json json;
    if (is_typed(place) && Json::parse(bare).get(json).ok()) return;
    if (!raw && has_end(text)) return;
    const std::string written = raw ? text : write_text(text, Writing::canonical);
    out.push_back(place == ValuePlace::json ? "\"" + written + "\"" : written);
}

ExprId SchemaCompiler::write_values(const Schemas& flat, const TypeFacts& facts, ValuePlace place) {
    std::vector<ExprId> ways;
    std::vector<std::string> strings;
    for (const Json* v : facts.values) {
        const bool is_string = v->is(Json::Kind::string);
        const bool is_other = !is_string && !(place == ValuePlace::nullable_text && v->is(Json::Kind::null));
        if (is_other && (place == ValuePlace::name || place == ValuePlace::text || place == ValuePlace::nullable_text))
            continue;
        bool fits = true;
        for (const Json* s : flat) {
            // Branches have divided what combines schemas; what is left are the schema's own keywords.
            for (size_t key = 0; key < s->keys().size() && fits; ++key) {
                if (s->keys()[key] == "enum" || s->keys()[key] == "const") continue;  // facts.values are in all of them
                const Verdict verdict = check_keyword(*v, *s, key, 0);
                if (verdict == Verdict::unknown && !unsupported(*s, s->keys()[key], "beside enum or const"))
                    return kNoMatch;
                fits = verdict != Verdict::no;
            }
        }
        if (!status_.ok()) return kNoMatch;
        if (!fits) continue;
        if (is_string)
            add_literal(v->text(), is_typed(place) ? ValuePlace::json : place, strings);
        else if (v->is(Json::Kind::null) || v->is(Json::Kind::boolean))
            ways.push_back(write_literal(v->dump(), place));
        else if (bare_integers_ && (facts.types & TypeFacts::kOther) == 0 && v->is(Json::Kind::number))
            ways.push_back(write_bare(*v));
        else if (!has_end(v->dump()))
            ways.push_back(write_value(*v));
        if (is_string && is_typed(place)) add_literal(v->text(), place, strings);
    }
    // What ends an argument has one of these characters.
    const bool may_end = is_raw(place) && std::any_of(strings.begin(), strings.end(), [](const std::string& text) {
                             return text.find_first_of("<\r") != std::string::npos;
                         });
    const ExprId texts = pool_.one_of(std::move(strings));
    ways.push_back(may_end ? pool_.both(texts, no_raw_end_) : texts);
    return pool_.choice(std::move(ways));
}

/// An argument is written as the template will show it: the next prompt then begins with the reply as it is.
ExprId SchemaCompiler::write_literal(const std::string& json, ValuePlace place) {
    if (json_values_ || (place != ValuePlace::typed && place != ValuePlace::nullable_text)) return pool_.text(json);
    return pool_.text(json == "null" ? "None" : json == "true" ? "True" : "False");
}

/// An integer of draft 4: without a point.
ExprId SchemaCompiler::write_bare(const Json& number) {
    Decimal d;
    if (!Decimal::parse(number.text(), d) || !d.is_integer() || d.whole().size() >= 400) return write_value(number);
    return pool_.text((d.negative ? "-" : "") + d.whole());
}

ExprId SchemaCompiler::write_value(const Json& value) {
    Decimal d;
    switch (value.kind()) {
        case Json::Kind::null: return pool_.text("null");
        case Json::Kind::boolean: return pool_.text(value.boolean() ? "true" : "false");
        case Json::Kind::number:
            return Decimal::parse(value.text(), d) && d.whole().size() < 400 && d.fraction().size() < 400
                       ? pool_.choice(number_literal(pool_, d), pool_.text(value.text()))
                       : pool_.text(value.text());
        case Json::Kind::string: return pool_.text("\"" + write_text(value.text(), Writing::canonical) + "\"");
        case Json::Kind::array: {
            ExprId e = kEmptyText;
            for (size_t i = value.items().size(); i-- > 0;)
                e = pool_.concat({i > 0 ? comma_ : kEmptyText, write_value(value.items()[i]), e});
            return pool_.concat({pool_.text("["), space_, e, space_, pool_.text("]")});
        }
        default: break;
    }
    ObjectRule object;
    object.any_order = options_.any_order;
    object.separator = comma_;
    for (size_t i = 0; i < value.keys().size(); ++i) {
        ObjectRule::Member m;
        m.key = key_expr(pool_.text(write_text(value.keys()[i], Writing::canonical)));
        m.value = write_value(value.items()[i]);
        m.required = true;
        object.listed.push_back(m);
    }
    rules_.objects.push_back(std::move(object));
    const ExprId members = rules_.begin_members(static_cast<uint32_t>(rules_.objects.size() - 1));
    return pool_.concat({pool_.text("{"), space_, members, space_, pool_.text("}")});
}

std::optional<ExprId> SchemaCompiler::pattern_expr(const std::string& pattern, const Json& where, const char* key,
                                                   Writing writing) {
    Result<ExprId> e = compile_regex(pool_, pattern, Extent::search, writing);
    if (e.ok()) return e.value();
    if (e.status().code == Code::unsupported && options_.ignore_unsupported)
        unsupported(where, key);
    else
        fail_at(e.status().code, where, key, e.status().text);
    return std::nullopt;
}

/// Whether a text that the schema lists is of this format. Also true where that is not known, and of texts that are
/// valid and left out of what format_expr() writes: leap seconds, and rare forms of addresses.
bool SchemaCompiler::may_be_of_format(const std::string& format, std::string text) {
    const bool timed = format == "time" || format == "date-time";
    const size_t seconds = format == "date-time" ? 16 : 5;
    if (timed && text.size() > seconds && text.compare(seconds, 3, ":60") == 0) text.replace(seconds, 3, ":59");
    if ((format == "email" || format == "uri") && text.find_first_of("\"[") != std::string::npos) return true;
    for (const schema_types_impl::Format& f : schema_types_impl::kFormats) {
        if (format != f.name) continue;
        bool known = false;
        const bool match = matches(say("^(?:", f.pattern, ")$"), text, known);
        return !known || (match && count_chars(text) <= f.max_length);
    }
    return true;
}

std::optional<ExprId> SchemaCompiler::format_expr(const std::string& format, const Json& where, Writing writing) {
    for (const schema_types_impl::Format& f : schema_types_impl::kFormats) {
        if (format != f.name) continue;
        const Result<ExprId> e = compile_regex(pool_, f.pattern, Extent::whole, writing);
        if (!e.ok())
            fail_at(e.status().code, where, "format", e.status().text);
        else if (f.max_length == kUnbounded)
            return e.value();
        else
            return pool_.both(e.value(), pool_.repeat(write_set(pool_, CharSet::all(), writing), 0, f.max_length));
    }
    return std::nullopt;
}

ExprId SchemaCompiler::write_string(const TypeFacts& f, const Json& where, ValuePlace place) {
    if (f.min_length > f.max_length) return kNoMatch;
    if (f.patterns.size() + f.not_patterns.size() > schema_types_impl::kMaxPatterns) {
        fail_at(Code::unsupported, where, "pattern",
                say("one string has more than ", schema_types_impl::kMaxPatterns, " patterns; join them"));
        return kNoMatch;
    }
    const bool raw = is_raw(place);
    const Writing writing = raw ? Writing::plain : Writing::canonical;
    std::vector<ExprId> parts;
    const auto add = [&](std::optional<ExprId> e, bool negated) {
        if (e) parts.push_back(negated ? pool_.except(*e) : *e);
    };
    for (const std::string& p : f.patterns) add(pattern_expr(p, where, "pattern", writing), false);
    for (const std::string& p : f.not_patterns) add(pattern_expr(p, where, "not", writing), true);
    for (const std::string& name : f.formats) {
        const std::optional<ExprId> e = format_expr(name, where, writing);
        if (!e && status_.ok()) ignored_.emplace(&where, "format " + quote(name, 40));
        add(e, false);
    }
    std::vector<std::string> excluded;
    for (const std::string& text : f.excluded) excluded.push_back(write_text(text, writing));
    if (!excluded.empty()) parts.push_back(pool_.except(pool_.one_of(std::move(excluded))));
    if (!status_.ok()) return kNoMatch;
    uint32_t low = static_cast<uint32_t>(std::min<uint64_t>(f.min_length, kMaxRepeat));
    // A pattern that needs a character needs no length for that.
    if (low == 1 && std::any_of(parts.begin(), parts.end(),
                                [this](ExprId e) { return !pool_[e].nullable && pool_[e].kind != ExprKind::except; }))
        low = 0;
    const uint32_t high = f.max_length > kMaxRepeat ? kUnbounded : static_cast<uint32_t>(f.max_length);
    const bool simple = parts.empty() && place == ValuePlace::json;
    // A pattern lets only characters of strings through; complements let everything through.
    const bool bounded =
        low > 0 || high != kUnbounded || f.patterns.size() + f.formats.size() == 0 || parts.empty() ||
        std::all_of(parts.begin(), parts.end(), [this](ExprId e) { return pool_[e].kind == ExprKind::except; });
    if (bounded) parts.push_back(pool_.repeat(raw ? text_char_ : simple ? json_char_ : name_char_, low, high));
    if (!raw && no_end_ != kNoMatch) parts.push_back(no_end_);
    if (raw) parts.push_back(no_raw_end_);
    if (is_typed(place)) parts.push_back(not_json_);
    if (place == ValuePlace::typed) parts.push_back(pool_.except(python_text_));
    if (place == ValuePlace::nullable_text) parts.push_back(pool_.except(null_text_));
    const ExprId body = parts.size() == 1 ? parts[0] : pool_.both(std::move(parts));
    return place == ValuePlace::json ? pool_.concat({pool_.text("\""), body, pool_.text("\"")}) : body;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
