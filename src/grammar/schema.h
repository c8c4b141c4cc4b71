// grammar/schema: JSON Schema as a grammar of JSON texts.
//
// Owns    the compiler. A place in the text is described by a set of schemas that hold there together; each different
//         set becomes one rule, so that references, recursion and allOf need nothing else. Alternatives (anyOf, oneOf,
//         if, dependencies, not) divide a set into branches without any; what a branch says about each type becomes an
//         expression. schema_flatten.cpp divides, schema_types.cpp writes the types, schema_objects.cpp objects and
//         arrays, schema_check.cpp checks the kinds of keywords and validates the values of enum and const.
// Thread  no shared state.
// Tests   tests/test_schema.cpp, tests/test_schema_limits.cpp
#pragma once
#include "../base/chat.h"
#include "automaton.h"
#include "json_number.h"
#include "regex.h"

#include <deque>
#include <optional>
#include <set>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// The JSON texts that a schema allows.
///
/// errors    bad_argument: no JSON, no schema, or nothing is valid; unsupported: a keyword that is left out. The text
///           names the JSON pointer and the keyword.
Result<std::shared_ptr<const Rules>> rules_from_json_schema(std::string_view schema, const SchemaOptions& options);

/// Where in a text the values of a schema are written.
enum class ValuePlace : uint8_t {
    json,           ///< as JSON
    object,         ///< as JSON, objects only
    name,           ///< a member's name: a JSON string without its quotes
    text,           ///< an argument of ArgumentForm::text, and so on: a string as it is
    nullable_text,  ///< a string as it is, if it is not read as null; null
    typed,          ///< as JSON, or a string as it is if it is not read as something else
    argument,       ///< of ArgumentForm::any: as JSON, or a string as it is if it is no JSON
    arguments,      ///< an object as <parameter=NAME> elements
};
/// Whether a value may be written as JSON and a string as it is.
inline bool is_typed(ValuePlace place) { return place == ValuePlace::typed || place == ValuePlace::argument; }
/// Whether strings are written without quotes and escapes.
inline bool is_raw(ValuePlace place) {
    return is_typed(place) || place == ValuePlace::text || place == ValuePlace::nullable_text;
}

/// What a set of schemas without alternatives says.
struct TypeFacts : JsonTypes {
    unsigned types = kAll;
    NumberFacts number;
    uint64_t min_length = 0, max_length = UINT64_MAX;
    std::vector<std::string> patterns, not_patterns, formats, excluded;
    uint64_t min_items = 0, max_items = UINT64_MAX;
    std::vector<const Json*> arrays;  ///< schemas with prefixItems or items
    std::vector<const Json*> contains;
    const Json* unique = nullptr;  ///< a schema with uniqueItems
    uint64_t min_members = 0, max_members = UINT64_MAX;
    std::vector<const Json*> objects;  ///< schemas with properties, patternProperties or additionalProperties
    std::vector<std::string> required;
    std::vector<const Json*> names;  ///< propertyNames
    bool has_values = false;
    std::vector<const Json*> values;  ///< of enum or const: nothing else is allowed
};

class SchemaCompiler {
  public:
    SchemaCompiler(Rules& rules, const Json& root, const SchemaOptions& options);
    /// The whole grammar: a JSON text.
    Status run();
    /// The rule of the arguments of a tool, whose schema is the root: object or arguments. No JSON string within has
    /// one of these texts, and no string that is written as it is ends its argument. json_values:
    /// ChatTemplate::json_values.
    Result<uint32_t> run_arguments(ValuePlace place, const std::vector<std::string>& ends, bool json_values);
    /// What was left out so far.
    std::set<std::string> ignored() const;

  private:
    using Schemas = std::vector<const Json*>;
    struct Item {
        const Json* schema;
        bool negative;
        size_t parent;  ///< in chain_, which holds every item that was looked at
    };
    using Alternatives = std::vector<std::vector<Item>>;
    /// Alternatives, and the keyword that they are of.
    struct Division {
        const Json* where;
        const char* key;
        Alternatives ways;
    };
    /// A set of schemas while it is divided.
    struct Branch {
        std::vector<Item> open;
        std::set<std::pair<const Json*, bool>> seen;
        Schemas flat;
        std::vector<std::shared_ptr<const Division>> pending;

        void divide_by(const Json& where, const char* key, Alternatives ways) {
            pending.push_back(std::make_shared<const Division>(Division{&where, key, std::move(ways)}));
        }
    };

    // schema_flatten.cpp
    Status compile_rules();
    uint32_t rule_of(Schemas schemas, ValuePlace place);
    ExprId compile(const Schemas& schemas, ValuePlace place);
    ExprId divide(Branch branch, ValuePlace place, const Division* from = nullptr);
    bool flatten(Branch& branch);
    bool flatten_item(Branch& branch, const Item& item);
    bool add_alternatives(Branch& branch, const Json& schema, size_t link);
    bool add_dependencies(Branch& branch, const Json& schema, size_t link);
    bool add_one_of(Branch& branch, const Json& schema, const std::vector<Json>& all, size_t link);
    bool may_compare(size_t n_a, size_t n_b, const Json& where, const char* key);
    bool negate(Branch& branch, const Json& schema, size_t link);
    bool negate_keyword(Alternatives& out, const Json& schema, size_t key, size_t link);
    bool negate_object(Alternatives& out, const Json& schema, size_t key, size_t link);
    bool apart(const Json& a, const Json& b, int depth);
    unsigned types_of(const Json& schema, int depth);
    const Json* resolve(const Json& schema, const std::string& ref);
    void index_ids();
    const Json* find_id(const Json* resource, const std::string& id) const;
    bool has_name_like(const std::string& id) const;
    const Json* resource_of(const Json& schema) const;
    const Json* make(std::string_view text, const Json& origin);
    const Json* make_around(std::string_view text, const Json& origin, const Json& inner);
    bool in_chain(const Json* schema, bool negative, size_t link) const;

    // schema_types.cpp
    bool gather(const Json& schema, TypeFacts& facts);
    bool gather_keyword(const Json& schema, const std::string& key, const Json& value, TypeFacts& facts);
    bool gather_number(const Json& schema, const std::string& key, const Json& value, TypeFacts& facts);
    bool gather_type(const Json& schema, const Json& value, TypeFacts& facts);
    bool gather_values(const std::string& key, const Json& value, TypeFacts& facts);
    ExprId write(const Schemas& flat, ValuePlace place);
    void note_intersection(const TypeFacts& facts, const Json& where);
    ExprId write_number(TypeFacts& facts, const Json& where);
    ExprId write_values(const Schemas& flat, const TypeFacts& facts, ValuePlace place);
    ExprId write_bare(const Json& number);
    ExprId write_value(const Json& value);
    ExprId write_literal(const std::string& json, ValuePlace place);
    ExprId write_string(const TypeFacts& facts, const Json& where, ValuePlace place);
    void add_literal(const std::string& text, ValuePlace place, std::vector<std::string>& out) const;
    ExprId ending_text();
    bool has_end(std::string_view text) const;
    /// Of a format that is not known, or a pattern that is ignored or refused: nothing.
    bool may_be_of_format(const std::string& format, std::string text);
    std::optional<ExprId> format_expr(const std::string& format, const Json& where, Writing writing);
    std::optional<ExprId> pattern_expr(const std::string& pattern, const Json& where, const char* key, Writing writing);

    // schema_objects.cpp
    ExprId write_array(const TypeFacts& facts, const Json& where);
    ExprId write_contains(const TypeFacts& facts, ExprId element, const Schemas& schemas);
    ObjectRule empty_object(const TypeFacts& f, ExprId separator) const;
    ExprId members_of(ObjectRule object);
    ExprId write_object(const TypeFacts& facts, const Json& where);
    ExprId write_arguments(const TypeFacts& facts, const Json& where);
    void add_listed(const TypeFacts& facts, ObjectRule& object, std::vector<std::string>& listed, ValuePlace place);
    ObjectRule::Member argument_member(const std::string& name, Schemas schemas);
    bool add_extra(const TypeFacts& facts, ObjectRule& object, const std::vector<std::string>& listed,
                   const Json& where);
    Schemas schemas_of_member(const TypeFacts& facts, const std::string& name);
    bool name_allowed(const TypeFacts& facts, const std::string& name);
    ExprId any_value();
    ExprId value_expr(Schemas schemas);
    ExprId any_string();
    ExprId key_expr(ExprId name);

    // schema_check.cpp
    bool is_schema(const Json& schema);
    bool is_well_formed(const Json& schema);
    enum class Verdict { no, yes, unknown };
    Verdict check(const Json& value, const Json& schema, int depth);
    Verdict check_keyword(const Json& value, const Json& schema, size_t key, int depth);
    Verdict check_applicator(const Json& value, const Json& schema, const std::string& key, const Json& argument,
                             int depth);
    Verdict check_members(const Json& value, const Json& schema, int depth);
    bool matches(const std::string& pattern, const std::string& text, bool& known);
    /// Counts steps of comparing. False: there were too many, and the schema is refused.
    bool spend(size_t n_step);

    // errors
    bool fail_at(Code code, const Json& where, std::string_view key, std::string_view what);
    /// Refuses a keyword, or lists it where that is allowed: then true.
    bool unsupported(const Json& where, std::string_view key, std::string_view what = {});
    std::string pointer_of(const Json& where) const;
    const Json* written_as(const Json& made) const;
    template <class F>
    void each_pointer(F visit) const;
    /// Status of Rules::finish() with the place in the schema.
    Status finished(const Status& status);

    Rules& rules_;
    ExprPool& pool_;
    const Json& root_;
    SchemaOptions options_;
    bool old_draft_ = false;      ///< draft 4 to 7: a schema with $ref has no other keyword
    bool bare_integers_ = false;  ///< draft 3 and 4: 1.0 is no integer
    Status status_;
    std::set<const Json*> well_formed_;  ///< schemas whose keywords were checked
    std::vector<Item> chain_;
    std::deque<Json> made_;
    std::map<const Json*, const Json*> origin_;
    struct Waiting {
        Schemas schemas;
        ValuePlace place = ValuePlace::json;
    };
    std::map<std::pair<ValuePlace, Schemas>, uint32_t> index_;
    std::map<uint32_t, Waiting> queue_;  ///< rules without a body: in the order of their numbers
    uint32_t rule_ = 0;                  ///< the one whose body is written
    struct Intersection {
        const Json* where;
        const char* key;
    };
    std::map<uint32_t, Intersection> intersections_;  ///< of rules, the first: named where it cannot be decided
    std::map<std::pair<const Json*, std::string>, const Json*> ids_;  ///< of no resource: of resources themselves
    std::map<const Json*, const Json*> resources_;  ///< of what is within a schema with an identifier: that schema
    std::map<const Json*, const Json*> targets_;    ///< of schemas with $ref
    struct Pattern {
        std::shared_ptr<const Rules> rules;  ///< null: cannot be decided
        std::unique_ptr<Automaton> automaton;
    };
    std::map<std::string, Pattern> patterns_;
    size_t n_match_bytes_ = 0;                               ///< that patterns were run over
    std::set<std::pair<const Json*, std::string>> ignored_;  ///< where, and what
    size_t n_branch_ = 0;
    size_t n_pair_ = 0;  ///< of alternatives and of listed values that were compared
    size_t n_step_ = 0;  ///< of comparing them and of validating values
    ExprId space_ = kEmptyText, comma_ = kNoMatch, colon_ = kNoMatch, json_char_ = kNoMatch, name_char_ = kNoMatch;
    // Of a tool's arguments.
    std::vector<std::string> ends_;
    bool json_values_ = true;        ///< an argument is written as true, false or null; else as True, False or None
    ExprId text_char_ = kNoMatch;    ///< a character that is written as it is
    ExprId no_end_ = kNoMatch;       ///< texts without one of ends_; kNoMatch: whatever they are
    ExprId no_raw_end_ = kNoMatch;   ///< texts that end no argument where they are written as they are
    ExprId not_json_ = kNoMatch;     ///< texts that no reader takes for JSON
    ExprId python_text_ = kNoMatch;  ///< texts that a reader may take for True, False or None
    ExprId null_text_ = kNoMatch;    ///< texts that a reader takes for null
    uint32_t any_rule_ = 0;
};

/// Equal as JSON values: numbers by value, members in any order.
bool equal_json(const Json& a, const Json& b);
/// Whether `what`, a tool or an argument, may have this name: calls write it as it is into <function=NAME> and
/// <parameter=NAME>, and a reader trims it. errors: unsupported.
Status check_call_name(const char* what, const std::string& name);
uint64_t count_chars(std::string_view text);
/// The value of minLength and so on, which is an integer from 0 on: at most 10^9, more than any limit that is kept.
uint64_t count_of(const Json& number);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
