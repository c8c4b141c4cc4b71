// grammar/schema_objects: objects and arrays as expressions. Declared in grammar/schema.h.
#include "../base/unicode.h"
#include "schema.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace schema_objects_impl {

constexpr size_t kMaxPatterns = 5;     // of patternProperties in one object: names divide into 2^n kinds
constexpr uint64_t kMaxContains = 64;  // items, where `contains` meets minItems or maxItems
constexpr size_t kMaxMatchText = 4096, kMaxMatchBytes = 500000;  // of names and values that patterns are run over
constexpr size_t kMaxMatchMemory = 1 << 20;                      // of the states of one pattern

bool is_false(const Json* s) { return s->is(Json::Kind::boolean) && !s->boolean(); }
bool is_true(const Json* s) {
    return (s->is(Json::Kind::boolean) && s->boolean()) || (s->is(Json::Kind::object) && s->keys().empty());
}

}  // namespace schema_objects_impl

ExprId SchemaCompiler::value_expr(Schemas schemas) {
    using namespace schema_objects_impl;
    for (const Json* s : schemas)
        if (is_false(s)) return kNoMatch;
    schemas.erase(std::remove_if(schemas.begin(), schemas.end(), is_true), schemas.end());
    return schemas.empty() ? any_value() : pool_.rule(rule_of(std::move(schemas), ValuePlace::json));
}

ExprId SchemaCompiler::any_string() {
    const ExprId chars = pool_.repeat(json_char_, 0, kUnbounded);
    return pool_.concat({pool_.text("\""), no_end_ == kNoMatch ? chars : pool_.both(chars, no_end_), pool_.text("\"")});
}

ExprId SchemaCompiler::key_expr(ExprId name) { return pool_.concat({pool_.text("\""), name, colon_}); }

/// Any JSON value, as one recursive rule.
ExprId SchemaCompiler::any_value() {
    if (any_rule_ != 0) return pool_.rule(any_rule_);
    any_rule_ = rules_.add_rule("value");
    const ExprId self = pool_.rule(any_rule_);
    const ExprId string = any_string();
    const ExprId number = number_expr(pool_, NumberFacts()).value();
    const ExprId items = pool_.optional(pool_.concat(self, pool_.repeat(pool_.concat(comma_, self), 0, kUnbounded)));
    const ExprId member = pool_.concat({string, pool_.text(":"), space_, self});
    const ExprId members =
        pool_.optional(pool_.concat(member, pool_.repeat(pool_.concat(comma_, member), 0, kUnbounded)));
    rules_.body[any_rule_] = pool_.choice({pool_.text("null"), pool_.text("true"), pool_.text("false"), number, string,
                                           pool_.concat({pool_.text("["), space_, items, space_, pool_.text("]")}),
                                           pool_.concat({pool_.text("{"), space_, members, space_, pool_.text("}")})});
    return self;
}

// ---------------------------------------------------------------------------------------------- arrays

ExprId SchemaCompiler::write_array(const TypeFacts& f, const Json& where) {
    using namespace schema_objects_impl;
    if (f.min_items > f.max_items) return kNoMatch;
    if (f.unique && f.max_items > 1 && !unsupported(*f.unique, "uniqueItems")) return kNoMatch;
    // Of each schema: the items that it lists, and what holds for those after them.
    std::vector<std::pair<const Json*, const Json*>> lists;
    size_t n_listed = 0;
    for (const Json* s : f.arrays) {
        const Json *listed = s->find("prefixItems"), *rest = s->find("items");
        if (!listed && rest && rest->is(Json::Kind::array)) {  // up to draft 2019
            listed = rest;
            rest = s->find("additionalItems");
        }
        if (listed && !listed->is(Json::Kind::array))
            return fail_at(Code::bad_argument, *s, "prefixItems", "expected a list of schemas"), kNoMatch;
        lists.push_back({listed, rest});
        if (listed) n_listed = std::max(n_listed, listed->items().size());
    }
    const auto schemas_at = [&](size_t i) {
        Schemas out;
        for (const auto& l : lists) {
            if (l.first && i < l.first->items().size())
                out.push_back(&l.first->items()[i]);
            else if (l.second)
                out.push_back(l.second);
        }
        return out;
    };
    const ExprId rest = value_expr(schemas_at(n_listed));
    ExprId body = kEmptyText;
    if (!f.contains.empty()) {
        const bool bounded = f.max_items != UINT64_MAX;
        const uint64_t n_way = bounded ? f.max_items : f.min_items;
        const std::string why = n_listed > 0            ? "beside prefixItems"
                                : f.contains.size() > 1 ? "twice"
                                : n_way > kMaxContains  ? say("with more than ", kMaxContains, " items")
                                                        : "";
        if (why.empty()) {
            body = write_contains(f, rest, schemas_at(0));
            return pool_.concat({pool_.text("["), space_, body, space_, pool_.text("]")});
        }
        if (!unsupported(where, "contains", why)) return kNoMatch;
    }
    const uint32_t low = static_cast<uint32_t>(std::min<uint64_t>(f.min_items, kMaxRepeat));
    const uint32_t high = f.max_items > kMaxRepeat ? kUnbounded : static_cast<uint32_t>(f.max_items);
    const uint32_t n = static_cast<uint32_t>(n_listed);
    const auto less = [](uint32_t a, uint32_t b) { return a == kUnbounded ? a : a > b ? a - b : 0; };
    if (n == 0) {
        const ExprId more = pool_.repeat(pool_.concat(comma_, rest), less(low, 1), less(high, 1));
        body = high == 0 ? kEmptyText : pool_.concat(rest, more);
        if (low == 0) body = pool_.optional(body);
    } else {
        if (high > n) body = pool_.repeat(pool_.concat(comma_, rest), less(low, n), less(high, n));
        for (size_t i = n_listed; i-- > 0;) {
            if (i >= high) continue;
            body = pool_.concat({i > 0 ? comma_ : kEmptyText, value_expr(schemas_at(i)), body});
            if (i >= low) body = pool_.optional(body);
        }
    }
    return pool_.concat({pool_.text("["), space_, body, space_, pool_.text("]")});
}

/// Items of which one at least is valid against `contains`: some, that one, some more.
ExprId SchemaCompiler::write_contains(const TypeFacts& f, ExprId element, const Schemas& schemas) {
    Schemas wanted = schemas;
    wanted.push_back(f.contains[0]);
    const ExprId one = value_expr(std::move(wanted));
    const ExprId before = pool_.concat(element, comma_), after = pool_.concat(comma_, element);
    const bool bounded = f.max_items != UINT64_MAX;
    const uint64_t n_way = bounded ? f.max_items : f.min_items;
    std::vector<ExprId> ways;
    const uint32_t low = static_cast<uint32_t>(f.min_items);
    for (uint32_t n = 0; n < n_way; ++n) {
        const uint32_t missing = low > n + 1 ? low - n - 1 : 0;
        const uint32_t room = bounded ? static_cast<uint32_t>(f.max_items) - n - 1 : kUnbounded;
        if (missing <= room)
            ways.push_back(pool_.concat({pool_.repeat(before, n, n), one, pool_.repeat(after, missing, room)}));
    }
    if (!bounded)
        ways.push_back(pool_.concat({pool_.repeat(before, low, kUnbounded), one, pool_.repeat(after, 0, kUnbounded)}));
    return pool_.choice(std::move(ways));
}

// --------------------------------------------------------------------------------------------- objects

bool SchemaCompiler::matches(const std::string& pattern, const std::string& text, bool& known) {
    auto found = patterns_.find(pattern);
    if (found == patterns_.end()) {
        auto rules = std::make_shared<Rules>();
        rules->start = rules->add_rule("pattern");
        const Status status = compile_regex(rules->pool, pattern, Extent::search, Writing::plain).get(rules->body[0]);
        const bool ready = status.ok() && (rules->finish().ok() || rules->body[0] == kNoMatch);
        Pattern entry;
        if (ready) entry.rules = std::move(rules);
        found = patterns_.emplace(pattern, std::move(entry)).first;
    }
    Pattern& p = found->second;
    n_match_bytes_ += text.size() + 16;
    if (n_match_bytes_ > schema_objects_impl::kMaxMatchBytes)
        fail_at(Code::unsupported, root_, "", "too many names are matched with patterns; make the schema smaller");
    known = p.rules != nullptr && text.size() <= schema_objects_impl::kMaxMatchText && status_.ok();
    if (!known || p.rules->body[0] == kNoMatch) return false;
    if (!p.automaton || p.automaton->memory() > schema_objects_impl::kMaxMatchMemory)
        p.automaton = std::make_unique<Automaton>(p.rules);
    StateId s = p.automaton->start();
    bool narrowed = false;
    for (const char c : text) {
        s = p.automaton->step(s, static_cast<unsigned char>(c));
        narrowed = narrowed || p.automaton->narrowed(s);
    }
    // Readings that were left out may match what the others do not.
    const bool match = p.automaton->accepting(s);
    known = match || !narrowed;
    return match;
}

SchemaCompiler::Schemas SchemaCompiler::schemas_of_member(const TypeFacts& f, const std::string& name) {
    Schemas out;
    for (const Json* s : f.objects) {
        const size_t before = out.size();
        const Json *properties = s->find("properties"), *patterns = s->find("patternProperties");
        bool all_known = true;
        if (properties)
            if (const Json* own = properties->find(name)) out.push_back(own);
        for (size_t i = 0; patterns && i < patterns->keys().size(); ++i) {
            bool known = false;
            if (matches(patterns->keys()[i], name, known)) out.push_back(&patterns->items()[i]);
            all_known = all_known && known;
            if (!known && pattern_expr(patterns->keys()[i], *patterns, "patternProperties", Writing::canonical))
                unsupported(*patterns, "patternProperties", "for a name like this");
        }
        if (out.size() > before || !all_known) continue;
        if (const Json* extra = s->find("additionalProperties")) out.push_back(extra);
    }
    return out;
}

bool SchemaCompiler::name_allowed(const TypeFacts& f, const std::string& name) {
    const Json value = Json::of_string(name);
    for (const Json* s : f.names) {
        const Verdict verdict = check(value, *s, 0);
        if (verdict == Verdict::no) return false;
        if (verdict == Verdict::unknown) unsupported(*s, "propertyNames", "with this keyword");
    }
    return true;
}

void SchemaCompiler::add_listed(const TypeFacts& f, ObjectRule& object, std::vector<std::string>& listed,
                                ValuePlace place) {
    std::set<std::string> seen, required;
    for (const std::string& name : f.required) required.insert(name);
    const auto add = [&](const std::string& name) {
        if (!seen.insert(name).second) return;
        listed.push_back(name);
        ObjectRule::Member m;
        Schemas schemas = schemas_of_member(f, name);
        if (place == ValuePlace::arguments) {
            m = argument_member(name, std::move(schemas));
        } else {
            m.key = key_expr(pool_.text(write_text(name, Writing::canonical)));
            m.value = has_end(name) ? kNoMatch : value_expr(std::move(schemas));
        }
        if (!name_allowed(f, name)) m.value = kNoMatch;
        m.required = required.count(name) != 0;
        object.listed.push_back(m);
    };
    for (const Json* s : f.objects) {
        const Json* properties = s->find("properties");
        if (!properties) continue;
        if (!properties->is(Json::Kind::object)) {
            fail_at(Code::bad_argument, *s, "properties", "expected an object");
            return;
        }
        for (const std::string& name : properties->keys())
            if (status_.ok()) add(name);
    }
    for (const std::string& name : f.required) add(name);
}

/// Members that no schema lists by name: one entry for each set of patterns that a name may match.
bool SchemaCompiler::add_extra(const TypeFacts& f, ObjectRule& object, const std::vector<std::string>& listed,
                               const Json& where) {
    std::vector<std::string> patterns;
    for (const Json* s : f.objects)
        if (const Json* all = s->find("patternProperties"))
            for (const std::string& p : all->keys())
                if (std::find(patterns.begin(), patterns.end(), p) == patterns.end()) patterns.push_back(p);
    if (patterns.size() > schema_objects_impl::kMaxPatterns) {
        if (!unsupported(where, "patternProperties", say("more than ", schema_objects_impl::kMaxPatterns, " patterns")))
            return false;
        patterns.clear();
    }
    std::vector<ExprId> exprs, common{pool_.repeat(name_char_, 0, kUnbounded)};
    const auto is_ignored = [&](const std::string& p) {
        const std::optional<ExprId> e = pattern_expr(p, where, "patternProperties", Writing::canonical);
        if (e) exprs.push_back(*e);
        return !e;
    };
    patterns.erase(std::remove_if(patterns.begin(), patterns.end(), is_ignored), patterns.end());
    std::vector<std::string> names;
    for (const std::string& name : listed) names.push_back(write_text(name, Writing::canonical));
    if (!names.empty()) common.push_back(pool_.except(pool_.one_of(std::move(names))));
    if (no_end_ != kNoMatch) common.push_back(no_end_);
    if (!f.names.empty()) common.push_back(compile(f.names, ValuePlace::name));
    if (!status_.ok()) return false;
    for (unsigned set = 0; set < 1u << patterns.size(); ++set) {
        std::vector<ExprId> parts = common;
        for (size_t p = 0; p < patterns.size(); ++p)
            parts.push_back((set >> p & 1) != 0 ? exprs[p] : pool_.except(exprs[p]));
        Schemas values;
        for (const Json* s : f.objects) {
            const size_t before = values.size();
            const Json* own = s->find("patternProperties");
            size_t n_ignored = own ? own->keys().size() : 0;
            for (size_t p = 0; p < patterns.size(); ++p) {
                const Json* v = own ? own->find(patterns[p]) : nullptr;
                n_ignored -= v ? 1 : 0;
                if (v && (set >> p & 1) != 0) values.push_back(v);
            }
            // A name may match a pattern that is ignored: then this does not apply to it.
            const Json* extra = s->find("additionalProperties");
            if (values.size() == before && extra && n_ignored == 0) values.push_back(extra);
        }
        ObjectRule::Member m;
        m.value = value_expr(std::move(values));
        if (m.value == kNoMatch) continue;
        m.key = key_expr(parts.size() == 1 ? parts[0] : pool_.both(std::move(parts)));
        object.extra.push_back(m);
    }
    return true;
}

/// An object without members yet.
ObjectRule SchemaCompiler::empty_object(const TypeFacts& f, ExprId separator) const {
    ObjectRule object;
    object.any_order = options_.any_order;
    object.separator = separator;
    object.min_count = static_cast<uint32_t>(std::min<uint64_t>(f.min_members, kMaxRepeat));
    object.max_count = f.max_members > kMaxRepeat ? kUnbounded : static_cast<uint32_t>(f.max_members);
    return object;
}

/// The members of an object from its beginning.
ExprId SchemaCompiler::members_of(ObjectRule object) {
    rules_.objects.push_back(std::move(object));
    return rules_.begin_members(static_cast<uint32_t>(rules_.objects.size() - 1));
}

ExprId SchemaCompiler::write_object(const TypeFacts& f, const Json& where) {
    ObjectRule object = empty_object(f, comma_);
    std::vector<std::string> listed;
    add_listed(f, object, listed, ValuePlace::json);
    if (!status_.ok() || !add_extra(f, object, listed, where)) return kNoMatch;
    size_t n_required = 0;
    for (const ObjectRule::Member& m : object.listed) n_required += m.required ? 1 : 0;
    // A name that is not listed may be written twice; only its first value would count.
    if (object.min_count > 1 && object.min_count > n_required && !object.extra.empty() &&
        !unsupported(where, "minProperties", "above 1 with members that are not listed"))
        return kNoMatch;
    return pool_.concat({pool_.text("{"), space_, members_of(std::move(object)), space_, pool_.text("}")});
}

/// <parameter=NAME>, a line break, the value, a line break and </parameter>.
Status check_call_name(const char* what, const std::string& name) {
    if (!name.empty() && name.find_first_of("<>\n") == std::string::npos && trim_space(name) == name) return {};
    return fail(Code::unsupported, what, " cannot be called ", quote(name, 60),
                ": expected a name without <, > and line breaks, and without white space around it");
}

ObjectRule::Member SchemaCompiler::argument_member(const std::string& name, Schemas schemas) {
    ObjectRule::Member m;
    if (const Status s = check_call_name("an argument", name); !s.ok()) {
        fail_at(s.code, root_, "properties", s.text);
        return m;
    }
    m.key = pool_.text("<parameter=" + name + ">\n");
    // What parse_reply() decides by: what the schema of the argument says itself.
    const Json* properties = root_.find("properties");
    const ArgumentForm form = argument_type(properties ? properties->find(name) : nullptr, root_).form;
    const ValuePlace place = form == ArgumentForm::text            ? ValuePlace::text
                             : form == ArgumentForm::nullable_text ? ValuePlace::nullable_text
                             : form == ArgumentForm::typed         ? ValuePlace::typed
                                                                   : ValuePlace::argument;
    for (const Json* s : schemas)
        if (schema_objects_impl::is_false(s)) return m;
    const ExprId value = pool_.rule(rule_of(std::move(schemas), place));
    m.value = pool_.concat(value, pool_.text("\n</parameter>\n"));
    return m;
}

ExprId SchemaCompiler::write_arguments(const TypeFacts& f, const Json& where) {
    ObjectRule object = empty_object(f, kEmptyText);
    if (f.has_values && !unsupported(where, "enum", "of whole objects for the arguments of a tool")) return kNoMatch;
    std::vector<std::string> listed;
    add_listed(f, object, listed, ValuePlace::arguments);
    // Arguments that are not listed have no type to be read by.
    for (const Json* s : f.objects)
        for (const char* key : {"additionalProperties", "patternProperties"})
            if (const Json* others = s->find(key); others && !schema_objects_impl::is_false(others))
                ignored_.emplace(s, key);
    return status_.ok() ? members_of(std::move(object)) : kNoMatch;
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
