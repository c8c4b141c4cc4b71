// base/jinja: chat templates in the language Jinja, as far as templates of models use it.
//
// Owns    the program that a template's text becomes (jinja_lex.cpp, jinja_parse.cpp), and the names of the
//         language (jinja_names.cpp). jinja_run.h runs it.
// Thread  a program is immutable: any thread, at the same time.
// Tests   tests/test_jinja.cpp, tests/fuzz_chat.cpp
//
// Source: the template designer documentation of Jinja 3.1, with the settings that chat templates are written for:
// trim_blocks, lstrip_blocks, break and continue, {% generation %}, tojson that writes as Python's json.dumps, and
// strftime_now, which knows UTC alone (%Y %m %d %B %b %A %a %H %M %S).
// Left out: inheritance, include, import, autoescape blocks, targets within targets, * and ** before arguments, break
// and continue in the text of {% set %} and {% filter %}, filters for HTML and for paragraphs of text, the filters attr
// and pprint, joiner and cycler, formatting of strings beyond %s %d %i %f %x and {}, integers beyond 62 bits, int() of
// a text in another base than 10, slices of none, numbers and booleans that the template writes, keys of maps that are
// no string, integer, boolean or none, indices behind indices with dots (a.0.1), `not` behind an operator, the methods
// casefold, expandtabs and swapcase. Letters change case in ASCII alone, and isnumeric() knows no ideographs.
#pragma once
#include "marked.h"

#include <initializer_list>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace jinja {

enum class Filter : uint8_t {
    abs,
    batch,
    capitalize,
    default_,
    dictsort,
    first,
    float_,
    format,
    fromjson,
    groupby,
    indent,
    int_,
    items,
    join,
    last,
    length,
    list,
    lower,
    map,
    max,
    min,
    reject,
    rejectattr,
    replace,
    reverse,
    round,
    safe,
    select,
    selectattr,
    slice,
    sort,
    string,
    sum,
    title,
    tojson,
    trim,
    unique,
    upper
};
enum class Test : uint8_t {
    boolean,
    callable,
    defined,
    divisibleby,
    equal,
    even,
    false_,
    filter,
    float_,
    greater,
    greater_equal,
    in,
    integer,
    iterable,
    less,
    less_equal,
    lower,
    mapping,
    none,
    not_equal,
    number,
    odd,
    sameas,
    sequence,
    string,
    test,
    true_,
    undefined,
    upper
};
enum class Function : uint8_t {
    dict,
    method,  ///< of a map, not called
    namespace_,
    raise_exception,
    range,
    strftime_now
};

/// A filter, test or function by the name that templates use, aliases included; false: there is none.
bool find_filter(std::string_view name, Filter* to);
bool find_test(std::string_view name, Test* to);
bool find_function(std::string_view name, Function* to);
/// Whether the test needs an argument after its name.
bool takes_argument(Test test);

/// The kind of a node, and what its fields hold: a, b and c are indices of nodes (0: none), parts a list of them.
enum class Op : uint8_t {
    // Statements
    body,        ///< parts, one after the other
    text,        ///< prints text
    print,       ///< prints a
    if_,         ///< parts: condition, body, condition, body ... ; b: else
    for_,        ///< names: targets; a: values; b: body; c: else; parts[0]: condition, or 0; code: 1 if recursive
    set,         ///< names: targets; a: value
    set_member,  ///< names[0] of namespace text; a: value
    scope,       ///< names: variables of its own; parts: their values; a: body
    macro,       ///< text: name; names: parameters; parts: their defaults, or 0; a: body; code: MacroUse
    call_block,  ///< a: macro `caller`; b: call
    break_,
    continue_,
    // Expressions
    none,
    true_,
    false_,
    integer,
    real,
    string,  ///< text
    block,   ///< what a prints
    name,    ///< text
    list,    ///< parts; code: ListForm
    map,     ///< parts: key, value, key, value ...
    member,  ///< a.text
    item,    ///< a[b]
    slice,   ///< a[parts[0]:parts[1]:parts[2]], each may be 0
    call,    ///< a(parts); names: of parts, empty for those without one
    filter,  ///< a | code(parts)
    test,    ///< a is code(parts)
    not_,    ///< of a
    negate,  ///< of a
    and_,    ///< a, b
    or_,     ///< a, b
    choose,  ///< a if b else c; c may be 0
    binary,  ///< a code b
};
enum class Binary : uint8_t {
    add,
    subtract,
    multiply,
    divide,
    floor_divide,
    modulo,
    power,
    concat,
    equal,
    not_equal,
    less,
    less_equal,
    greater,
    greater_equal,
    in,
    not_in
};

/// What the body of a macro names beside its parameters, as bits of a set.
enum MacroUse : uint8_t { kUsesCaller = 1, kUsesVarargs = 2, kUsesKwargs = 4 };

struct Node {
    AUSPEX_NOINLINE Node();
    AUSPEX_NOINLINE Node(Node&&) noexcept;
    AUSPEX_NOINLINE ~Node();
    Op op = Op::none;
    uint8_t code = 0;  ///< Filter, Test or Binary
    uint32_t line = 0;
    uint32_t a = 0, b = 0, c = 0;
    std::vector<uint32_t> parts;
    std::vector<std::string> names;
    std::string text;
    union {
        int64_t integer = 0;
        double real;
    };
};

/// One lexical unit of a template: text outside of tags, or a word within one.
struct Lexeme {
    enum class Kind : uint8_t {
        text,
        name,
        string,
        integer,
        real,
        symbol,
        begin_block,
        end_block,
        begin_print,
        end_print,
        end
    };
    Kind kind = Kind::end;
    uint32_t line = 0;
    std::string text;  ///< of a string without its quotes and escapes
};
Result<std::vector<Lexeme>> lex(std::string_view source);

struct Program {
    std::vector<Node> nodes;  ///< nodes[0] is no node
    uint32_t body = 0;
};
/// errors    unsupported: a part of the language that is left out; bad_argument: no template. Both name the line.
/// cost      linear.
Result<Program> parse(std::string_view source);

}  // namespace jinja
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
