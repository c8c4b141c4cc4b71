// grammar/schema_flatten: divides sets of schemas into branches without alternatives. Declared in grammar/schema.h.
#include "../base/unicode.h"
#include "schema.h"

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace schema_impl {

constexpr size_t kMaxBranches = 8000, kMaxSchemaOptions = 20000, kMaxChain = 400000;
constexpr size_t kMaxPairs = 250000;
constexpr size_t kNoParent = SIZE_MAX;

std::string decode_percent(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        const bool code = text[i] == '%' && i + 2 < text.size();
        const int high = code ? hex_digit(text[i + 1]) : -1, low = code ? hex_digit(text[i + 2]) : -1;
        if (high >= 0 && low >= 0) {
            out += static_cast<char>(high << 4 | low);
            i += 2;
        } else {
            out += text[i];
        }
    }
    return out;
}

std::string unescape_pointer(std::string_view part) {
    std::string out;
    for (size_t i = 0; i < part.size(); ++i) {
        const bool escaped = part[i] == '~' && i + 1 < part.size();
        out += !escaped ? part[i] : part[++i] == '1' ? '/' : '~';
    }
    return out;
}

}  // namespace schema_impl

SchemaCompiler::SchemaCompiler(Rules& rules, const Json& root, const SchemaOptions& options)
    : rules_(rules), pool_(rules.pool), root_(root), options_(options) {
    const Json* draft = root.find("$schema");
    for (const char* name : {"draft-03", "draft-04", "draft-05", "draft-06", "draft-07"})
        old_draft_ = old_draft_ || (draft && draft->text().find(name) != std::string::npos);
    for (const char* name : {"draft-03", "draft-04"})
        bare_integers_ = bare_integers_ || (draft && draft->text().find(name) != std::string::npos);
    if (options.white_space) {
        ByteSet blank;
        blank.add(' ');
        blank.add('\t');
        const ExprId lines =
            pool_.concat(pool_.repeat(pool_.text("\n"), 1, 2), pool_.repeat(pool_.bytes(blank), 0, 20));
        space_ = pool_.choice({kEmptyText, pool_.text(" "), lines});
    }
    comma_ = pool_.concat(pool_.text(","), space_);
    colon_ = pool_.concat(pool_.text("\":"), space_);
    json_char_ = any_json_char(pool_);
    name_char_ = write_set(pool_, CharSet::all(), Writing::canonical);
    index_ids();
}

/// Rules are compiled one after the other, not within each other: a schema's depth needs no stack.
Status SchemaCompiler::compile_rules() {
    while (!queue_.empty() && status_.ok()) {
        const uint32_t r = queue_.begin()->first;
        const Waiting next = std::move(queue_.begin()->second);
        queue_.erase(queue_.begin());
        rule_ = r;
        const ExprId body = compile(next.schemas, next.place);
        rules_.body[r] = body;
    }
    return status_;
}

Result<uint32_t> SchemaCompiler::run_arguments(ValuePlace place, const std::vector<std::string>& ends,
                                               bool json_values) {
    ends_ = ends;
    json_values_ = json_values;
    const uint32_t rule = rule_of({&root_}, place);
    if (!ends.empty()) no_end_ = pool_.without(ends);
    no_raw_end_ = pool_.except(ending_text());
    text_char_ = write_set(pool_, CharSet::all(), Writing::plain);
    // What JSON begins with, and the literals; white space around them does not count.
    CharSet space, first = CharSet::all();
    for (uint32_t c = 0; c <= 0x3000; ++c)
        if (is_python_space(c)) space.add(c);
    space.normalize();
    CharSet json;
    for (const char c : std::string_view("\"[{-0123456789")) json.add(static_cast<unsigned char>(c));
    json.add(space);
    json.normalize();
    first = first.without(json);
    const ExprId spaces = pool_.repeat(write_set(pool_, space, Writing::plain), 0, kUnbounded);
    const ExprId literal = pool_.concat(pool_.one_of({"true", "false", "null"}), spaces);
    null_text_ = pool_.concat({spaces, pool_.one_of({"null", "None"}), spaces});
    python_text_ = pool_.concat({spaces, pool_.one_of({"True", "False", "None"}), spaces});
    const ExprId other = pool_.concat(write_set(pool_, first, Writing::plain), pool_.any_text());
    not_json_ = pool_.both(pool_.optional(other), pool_.except(literal));
    AUSPEX_TRY(compile_rules());
    return rule;
}

Status SchemaCompiler::run() {
    rules_.start = rule_of({&root_}, ValuePlace::json);
    AUSPEX_TRY(compile_rules());
    for (const std::string& note : ignored()) rules_.ignored.push_back(note);
    return finished(rules_.finish());
}

Status SchemaCompiler::finished(const Status& status) {
    if (status.ok()) return status;
    if (status.text.find("matches nothing") != std::string::npos)
        return fail(Code::bad_argument, "#: no value is valid against the schema; check what it requires");
    const auto found = intersections_.find(rules_.refused);
    if (rules_.pool.gave_up() && found != intersections_.end()) {
        fail_at(status.code, *found->second.where, found->second.key, status.text);
        return status_;
    }
    for (const auto& [place, rule] : index_) {
        if (rule != rules_.refused || place.second.empty()) continue;
        fail_at(status.code, *place.second[0], "", status.text);
        return status_;
    }
    return Status(status.code, "#: " + status.text);
}

uint32_t SchemaCompiler::rule_of(Schemas schemas, ValuePlace place) {
    Schemas key;
    for (const Json* s : schemas)
        if (std::find(key.begin(), key.end(), s) == key.end()) key.push_back(s);
    Schemas sorted = key;
    std::sort(sorted.begin(), sorted.end());
    const auto known = index_.find({place, sorted});
    if (known != index_.end()) return known->second;
    const uint32_t r = rules_.add_rule("value");
    queue_[r] = {std::move(key), place};
    index_.emplace(std::make_pair(place, std::move(sorted)), r);
    if (rules_.body.size() > schema_impl::kMaxSchemaOptions)
        fail_at(Code::unsupported, root_, "", "the schema needs more than 20000 rules; make it smaller");
    return r;
}

ExprId SchemaCompiler::compile(const Schemas& schemas, ValuePlace place) {
    Branch branch;
    if (place != ValuePlace::name) chain_.clear();  // names are compiled within a branch of their object
    for (const Json* s : schemas) branch.open.push_back({s, false, schema_impl::kNoParent});
    // The order of the members is that of the schemas: the last one is taken first.
    std::reverse(branch.open.begin(), branch.open.end());
    return divide(std::move(branch), place);
}

ExprId SchemaCompiler::divide(Branch branch, ValuePlace place, const Division* from) {
    n_branch_ += 1 + (branch.seen.size() + branch.pending.size()) / 16;
    if (n_branch_ > schema_impl::kMaxBranches) {
        fail_at(Code::unsupported, from ? *from->where : root_, from ? from->key : "",
                say("the alternatives combine to more than ", schema_impl::kMaxBranches, "; make the schema smaller"));
        return kNoMatch;
    }
    if (!flatten(branch)) return kNoMatch;
    if (branch.pending.empty()) {
        n_branch_ += branch.flat.size() / 4;
        return write(branch.flat, place);
    }
    const std::shared_ptr<const Division> division = branch.pending.back();
    branch.pending.pop_back();
    std::vector<ExprId> ways;
    for (const std::vector<Item>& way : division->ways) {
        Branch next = branch;
        next.open.insert(next.open.end(), way.rbegin(), way.rend());
        ways.push_back(divide(std::move(next), place, division.get()));
        if (!status_.ok()) return kNoMatch;
    }
    return pool_.choice(std::move(ways));
}

bool SchemaCompiler::in_chain(const Json* schema, bool negative, size_t link) const {
    for (; link != schema_impl::kNoParent; link = chain_[link].parent)
        if (chain_[link].schema == schema && chain_[link].negative == negative) return true;
    return false;
}

/// False: nothing is valid, or an error.
bool SchemaCompiler::flatten(Branch& branch) {
    while (!branch.open.empty()) {
        const Item item = branch.open.back();
        branch.open.pop_back();
        if (in_chain(item.schema, item.negative, item.parent))
            return fail_at(Code::bad_argument, *item.schema, "$ref", "references itself without anything between");
        if (!branch.seen.emplace(item.schema, item.negative).second) continue;
        if (!flatten_item(branch, item)) return false;
    }
    return true;
}

bool SchemaCompiler::flatten_item(Branch& branch, const Item& item) {
    const Json& schema = *item.schema;
    if (schema.is(Json::Kind::boolean)) return schema.boolean() != item.negative;
    if (!is_schema(schema) || !is_well_formed(schema)) return false;
    if (chain_.size() > schema_impl::kMaxChain)
        return fail_at(Code::unsupported, schema, "", "too many combinations; make the schema smaller");
    chain_.push_back({item.schema, item.negative, item.parent});
    const size_t link = chain_.size() - 1;
    if (const Json* ref = schema.find("$ref"); ref && ref->is(Json::Kind::string)) {
        const Json* target = resolve(schema, ref->text());
        if (!target) return false;
        if (item.negative && !old_draft_)
            for (const std::string& key : schema.keys())
                if (key != "description" && key != "title" && key[0] != '$')
                    return unsupported(schema, "not", "of a reference with other keywords");
        branch.open.push_back({target, item.negative, link});
        if (old_draft_ || item.negative) return true;
    }
    if (item.negative) return negate(branch, schema, link);
    branch.flat.push_back(&schema);
    return add_alternatives(branch, schema, link);
}

bool SchemaCompiler::add_alternatives(Branch& branch, const Json& schema, size_t link) {
    const Json *all = schema.find("allOf"), *any = schema.find("anyOf"), *one = schema.find("oneOf");
    if (all)
        for (size_t i = all->items().size(); i-- > 0;) branch.open.push_back({&all->items()[i], false, link});
    if (any) {
        Alternatives ways;
        for (const Json& s : any->items()) ways.push_back({{&s, false, link}});
        branch.divide_by(schema, "anyOf", std::move(ways));
    }
    if (one && !add_one_of(branch, schema, one->items(), link)) return false;
    if (const Json* inner = schema.find("not")) branch.open.push_back({inner, true, link});
    if (const Json* test = schema.find("if")) {
        const Json *then = schema.find("then"), *other = schema.find("else");
        if (then || other) {
            Alternatives ways(2);
            ways[0].push_back({test, false, link});
            if (then) ways[0].push_back({then, false, link});
            ways[1].push_back({test, true, link});
            if (other) ways[1].push_back({other, false, link});
            branch.divide_by(schema, "if", std::move(ways));
        }
    }
    return add_dependencies(branch, schema, link);
}

bool SchemaCompiler::add_dependencies(Branch& branch, const Json& schema, size_t link) {
    for (const char* key : {"dependencies", "dependentRequired", "dependentSchemas"}) {
        const Json* all = schema.find(key);
        if (!all) continue;
        for (size_t i = 0; i < all->keys().size(); ++i) {
            const Json& needs = all->items()[i];
            const std::string name = json_quoted(all->keys()[i]);
            Alternatives ways(2);
            ways[0].push_back({make("{\"properties\":{" + name + ":false}}", schema), false, link});
            std::string required = "{\"required\":[" + name;
            if (needs.is(Json::Kind::array))
                for (const Json& n : needs.items()) required += "," + n.dump();
            ways[1].push_back({make(required + "]}", schema), false, link});
            if (!needs.is(Json::Kind::array)) ways[1].push_back({&needs, false, link});
            branch.divide_by(schema, key, std::move(ways));
        }
    }
    return true;
}

bool SchemaCompiler::may_compare(size_t n_a, size_t n_b, const Json& where, const char* key) {
    n_pair_ += n_a * n_b;
    return n_pair_ <= schema_impl::kMaxPairs || fail_at(Code::unsupported, where, key,
                                                        say("has too many alternatives to compare them all: more than ",
                                                            schema_impl::kMaxPairs, " pairs; make the list shorter"));
}

bool SchemaCompiler::add_one_of(Branch& branch, const Json& schema, const std::vector<Json>& all, size_t link) {
    if (!may_compare(all.size(), all.size(), schema, "oneOf")) return false;
    Alternatives ways(all.size());
    for (size_t i = 0; i < all.size(); ++i) {
        ways[i].push_back({&all[i], false, link});
        for (size_t k = 0; k < all.size(); ++k)
            if (k != i && !apart(all[i], all[k], 0)) ways[i].push_back({&all[k], true, link});
    }
    branch.divide_by(schema, "oneOf", std::move(ways));
    return status_.ok();
}

unsigned SchemaCompiler::types_of(const Json& schema, int depth) {
    if (!schema.is(Json::Kind::object) || depth > 8) return TypeFacts::kAll;
    unsigned types = TypeFacts::kAll;
    TypeFacts facts;
    const Json* type = schema.find("type");
    const Json *values = schema.find("enum"), *value = schema.find("const");
    if (!spend(1 + (values ? values->items().size() / 16 : 0))) return types;
    const Json* ref = schema.find("$ref");
    const bool is_reference = ref && ref->is(Json::Kind::string);
    const Json* target = is_reference ? resolve(schema, ref->text()) : nullptr;
    if (target) types &= types_of(*target, depth + 1);
    if (is_reference && old_draft_) return types;
    if (type && gather_type(schema, *type, facts)) types &= facts.types;
    const auto type_of = [](const Json& v) -> unsigned {
        Decimal d;
        if (!v.is(Json::Kind::number)) return JsonTypes::of(v);
        return Decimal::parse(v.text(), d) && d.is_integer() ? TypeFacts::kInteger : TypeFacts::kOther;
    };
    if (value) types &= type_of(*value);
    if (values && values->is(Json::Kind::array)) {
        unsigned some = 0;
        for (const Json& v : values->items()) some |= type_of(v);
        types &= some;
    }
    if (const Json* all = schema.find("allOf"))
        for (const Json& s : all->items()) types &= types_of(s, depth + 1);
    for (const char* key : {"anyOf", "oneOf"})
        if (const Json* any = schema.find(key)) {
            unsigned some = 0;
            for (const Json& s : any->items()) some |= types_of(s, depth + 1);
            types &= some;
        }
    return types;
}

/// Whether no value can be valid against both: by type, by the values they list, or by a required member.
bool SchemaCompiler::apart(const Json& a, const Json& b, int depth) {
    if (depth > 6 || &a == &b || !a.is(Json::Kind::object) || !b.is(Json::Kind::object)) return false;
    for (const bool second : {false, true}) {
        const Json &x = second ? b : a, &y = second ? a : b;
        if (const Json* ref = x.find("$ref"); ref && ref->is(Json::Kind::string)) {
            const Json* target = resolve(x, ref->text());
            return target && apart(*target, y, depth + 1);
        }
    }
    const unsigned types = types_of(a, 0) & types_of(b, 0);
    if (types == 0) return true;
    const auto values = [](const Json& s) {
        std::vector<const Json*> out;
        if (const Json* value = s.find("const"))
            out.push_back(value);
        else if (const Json* list = s.find("enum"))
            for (const Json& v : list->items()) out.push_back(&v);
        return out;
    };
    for (const bool second : {false, true}) {
        const Json &x = second ? b : a, &y = second ? a : b;
        const std::vector<const Json*> listed = values(x);
        bool none = !listed.empty();
        for (const Json* v : listed) none = none && check(*v, y, 0) == Verdict::no;
        if (none) return true;
    }
    if (types != TypeFacts::kObject) return false;
    for (const bool second : {false, true}) {
        const Json &x = second ? b : a, &y = second ? a : b;
        const Json *required = x.find("required"), *mine = x.find("properties"), *others = y.find("properties");
        if (!required || !required->is(Json::Kind::array)) continue;
        const size_t n_member = (mine ? mine->keys().size() : 0) + (others ? others->keys().size() : 0);
        for (const Json& name : required->items()) {
            if (!spend(1 + n_member / 16)) return false;
            const Json* theirs = others ? others->find(name.text()) : nullptr;
            if (!theirs) {
                const Json* extra = y.find("additionalProperties");
                const Json* patterned = y.find("patternProperties");
                if (!patterned && extra && extra->is(Json::Kind::boolean) && !extra->boolean()) return true;
                continue;
            }
            if (theirs->is(Json::Kind::boolean) && !theirs->boolean()) return true;
            const Json* own = mine ? mine->find(name.text()) : nullptr;
            if (own && apart(*own, *theirs, depth + 1)) return true;
        }
    }
    return false;
}

const Json* SchemaCompiler::make(std::string_view text, const Json& origin) {
    Json value;
    if (!Json::parse(text).get(value).ok()) {
        fail_at(Code::unsupported, origin, "not", "cannot be written with this value");
    }
    made_.push_back(std::move(value));
    const Json* made = &made_.back();
    origin_[made] = &origin;
    return made;
}

/// As make(), of a text whose last value is the schema {"$ref": ""}, which then refers to `inner`, wherever that is.
const Json* SchemaCompiler::make_around(std::string_view text, const Json& origin, const Json& inner) {
    const Json* made = make(text, origin);
    const Json* at = made;
    while (status_.ok() && !at->items().back().items().empty()) at = &at->items().back();
    targets_[at] = &inner;
    return made;
}

// -------------------------------------------------------------------------------------------- references

/// Finds the schemas that have identifiers of their own, and what is within those.
void SchemaCompiler::index_ids() {
    std::vector<std::pair<const Json*, const Json*>> open{{&root_, &root_}};
    while (!open.empty()) {
        const Json *const at = open.back().first, *within = open.back().second;
        open.pop_back();
        const auto name = [&](const Json* of, const std::string& text) {
            const auto added = ids_.emplace(std::make_pair(of, text), at);
            if (!added.second && added.first->second != at) added.first->second = nullptr;  // not unique
        };
        for (const char* key : {"$id", "id"}) {
            const Json* id = at->find(key);
            if (!id || !id->is(Json::Kind::string) || id->text().empty() || id->text()[0] == '#') continue;
            std::string text = id->text();
            if (text.back() == '#') text.pop_back();
            name(nullptr, text);
            // Up to draft 7 nothing counts beside $ref; `id` is a keyword up to draft 4.
            if (!(old_draft_ && at->find("$ref")) && (key[0] == '$' || bare_integers_)) within = at;
        }
        if (within != &root_) resources_[at] = within;
        for (const char* key : {"$id", "id", "$anchor"}) {
            const Json* id = at->find(key);
            if (!id || !id->is(Json::Kind::string)) continue;
            const bool is_anchor = key[1] == 'a';
            if (is_anchor || (!id->text().empty() && id->text()[0] == '#'))
                name(within, is_anchor ? id->text() : id->text().substr(1));
        }
        for (const Json& inner : at->items()) open.push_back({&inner, within});
    }
}

const Json* SchemaCompiler::find_id(const Json* resource, const std::string& id) const {
    const auto found = ids_.find({resource, id});
    return found == ids_.end() ? nullptr : found->second;
}

/// Whether an identifier ends alike and one of the two is relative: they may be the same, written from another base.
bool SchemaCompiler::has_name_like(const std::string& id) const {
    const auto last = [](const std::string& uri) { return uri.substr(uri.rfind('/') + 1); };
    const auto is_relative = [](const std::string& uri) { return uri.find(':') == std::string::npos; };
    for (const auto& known : ids_) {
        const std::string& other = known.first.second;
        if (known.first.first == nullptr && other != id && last(other) == last(id) &&
            is_relative(other) != is_relative(id))
            return true;
    }
    return false;
}

/// The nearest schema around that has an identifier of its own, or the root.
const Json* SchemaCompiler::resource_of(const Json& schema) const {
    const auto found = resources_.find(&schema);
    return found == resources_.end() ? &root_ : found->second;
}

const Json* SchemaCompiler::resolve(const Json& schema, const std::string& ref) {
    if (const auto known = targets_.find(&schema); known != targets_.end()) return known->second;
    const size_t hash = ref.find('#');
    const std::string base = ref.substr(0, hash);
    const std::string fragment = hash == std::string::npos ? "" : schema_impl::decode_percent(ref.substr(hash + 1));
    const Json* resource = resource_of(schema);
    const Json* at = base.empty() ? resource : find_id(nullptr, base);
    if (at && !fragment.empty() && fragment[0] != '/') at = find_id(at, fragment);
    size_t from = 1;
    while (at && !fragment.empty() && fragment[0] == '/' && from <= fragment.size()) {
        const size_t end = std::min(fragment.find('/', from), fragment.size());
        const std::string part = schema_impl::unescape_pointer(std::string_view(fragment).substr(from, end - from));
        from = end + 1;
        if (at->is(Json::Kind::array)) {
            const size_t i =
                part.empty() || part.size() > 8 || part.find_first_not_of("0123456789") != std::string::npos
                    ? SIZE_MAX
                    : static_cast<size_t>(std::atol(part.c_str()));
            at = i < at->items().size() ? &at->items()[i] : nullptr;
        } else {
            at = at->find(part);
        }
    }
    if (!at) {
        const bool remote = !base.empty();
        fail_at(remote ? Code::unsupported : Code::bad_argument, schema, "$ref",
                remote && has_name_like(base)
                    ? say(quote(ref), " is no $id of the schema as it is written; relative ones are not resolved: ",
                          "write $ref and $id alike")
                : remote ? say(quote(ref), " is not within the schema; put what it refers to under $defs")
                         : say(quote(ref), " leads nowhere",
                               resource == &root_ ? "" : " within the nearest schema with an $id, where # begins"));
    }
    targets_.emplace(&schema, at);
    return at;
}

// ---------------------------------------------------------------------------------------------- errors

/// The value of the given schema from which `made` was made.
const Json* SchemaCompiler::written_as(const Json& made) const {
    const Json* at = &made;
    for (auto it = origin_.find(at); it != origin_.end(); it = origin_.find(at)) at = it->second;
    return at;
}

/// Calls visit(value, pointer) for each value of the schema until it returns false. The pointer is a function, because
/// few are needed.
template <class F>
void SchemaCompiler::each_pointer(F visit) const {
    struct Step {
        const Json* at;
        size_t next;
    };
    std::vector<Step> path{{&root_, 0}};
    const auto pointer = [&path] {
        std::string out = "#";
        for (size_t i = 0; i + 1 < path.size(); ++i) {
            const size_t k = path[i].next - 1;
            out += '/';
            if (path[i].at->is(Json::Kind::array)) {
                out += std::to_string(k);
                continue;
            }
            for (const char c : path[i].at->keys()[k]) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
        }
        return out;
    };
    bool goes_on = visit(&root_, pointer);
    while (goes_on && !path.empty()) {
        Step& top = path.back();
        if (top.next == top.at->items().size()) {
            path.pop_back();
            continue;
        }
        const Json* item = &top.at->items()[top.next++];
        path.push_back({item, 0});
        goes_on = visit(item, pointer);
    }
}

std::string SchemaCompiler::pointer_of(const Json& where) const {
    const Json* wanted = written_as(where);
    std::string out = "#";
    each_pointer([&](const Json* at, const auto& pointer) {
        if (at == wanted) out = pointer();
        return at != wanted;
    });
    return out;
}

/// In one walk: there may be thousands.
std::set<std::string> SchemaCompiler::ignored() const {
    std::multimap<const Json*, const std::string*> notes;
    for (const auto& [where, what] : ignored_) notes.emplace(written_as(*where), &what);
    std::set<std::string> out;
    if (notes.empty()) return out;
    each_pointer([&](const Json* at, const auto& pointer) {
        const auto here = notes.equal_range(at);
        if (here.first == here.second) return true;
        const std::string where = pointer();
        for (auto it = here.first; it != here.second; ++it) out.insert(where + ": " + *it->second);
        return true;
    });
    return out;
}

bool SchemaCompiler::fail_at(Code code, const Json& where, std::string_view key, std::string_view what) {
    if (!status_.ok()) return false;
    const std::string pointer = quote(pointer_of(where), 200);
    status_ = fail(code, pointer.substr(1, pointer.size() - 2), key.empty() ? "" : ": ", key, ": ", what);
    return false;
}

bool SchemaCompiler::unsupported(const Json& where, std::string_view key, std::string_view what) {
    if (!status_.ok()) return false;
    if (options_.ignore_unsupported) {
        ignored_.emplace(&where, std::string(key));
        return true;
    }
    return fail_at(Code::unsupported, where, key,
                   say(what, what.empty() ? "is" : " is", " not supported; leave it out of the schema"));
}

Result<std::shared_ptr<const Rules>> rules_from_json_schema(std::string_view schema, const SchemaOptions& options) {
    if (schema.size() > 4 * kMaxGrammarBytes)
        return fail(Code::unsupported, "a schema of ", schema.size(), " bytes, at most ", 4 * kMaxGrammarBytes,
                    " are read");
    Json root;
    Json::Limits limits;
    limits.max_values = 200000;
    AUSPEX_TRY(Json::parse(schema, limits).get(root));
    auto rules = std::make_shared<Rules>();
    SchemaCompiler compiler(*rules, root, options);
    AUSPEX_TRY(compiler.run());
    return std::shared_ptr<const Rules>(rules);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
