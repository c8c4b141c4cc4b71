#include "../src/base/chat_program.h"
#include "jinja_rig.h"
#include "rounding.h"
#include "support.h"

#include <doctest/doctest.h>

#include <ctime>

using auspex::ChatPrompt;
using auspex::ChatRequest;
using auspex::ChatStyle;
using auspex::ChatTemplate;
using auspex::Code;
using auspex::Status;
using auspex::detail::Json;
using test::printed;

namespace {

/// Templates, and what Jinja 3.1 prints for them as transformers sets it up.
const char* const kPrinted[][2] = {
    {"{{ [{'a': 1}] | map('tojson', indent=2) | join }}", "{\n  \"a\": 1\n}"},
    {"{{ 1 + 2 * 3 - 4 // 3 }} {{ 7 % 3 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2.0 * 3 }}\n", "6 1 -4 2 3.5 6.0"},
    {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' == 1 }}\n",
     "True False True True True False"},
    {"{{ not t and z }} {{ e or 'empty' }} {{ n and s }} {{ not (1 in l) }} {{ 4 not in l }}\n",
     "False empty Hello, World False True"},
    {"{{ 'ell' in s }} {{ 'a' in m }} {{ 'c' in m }} {{ missing is defined }} {{ z is none }} {{ missing }}|\n",
     "True True False False True |"},
    {"{{ 'yes' if n > 2 else 'no' }} {{ 'only' if false }}| {{ 1 if false else 2 if false else 3 }}\n", "yes | 3"},
    {"{{ s[0] }} {{ s[-1] }} {{ s[1:4] }} {{ s[::-1] }} {{ s[:-7] }} {{ l[::-1] }} {{ l[1:] }} {{ u[1:3] }} {{ u[3] }} "
     "{{ u | length }}\n",
     "H d ell dlroW ,olleH Hello [2, 1, 3] [1, 2] \303\251\342\202\254 \360\237\230\200 5"},
    {"{{ 'a' ~ 1 ~ none ~ true ~ 1.5 }} {{ [1, 'a', none, true, {'k': 'v'}] }} {{ (1, 2)[1] }} {{ \"it's\" }} {{ "
     "[\"it's\", 'q\"q'] }}\n",
     "a1NoneTrue1.5 [1, 'a', None, True, {'k': 'v'}] 2 it's [\"it's\", 'q\"q']"},
    {"{{ m.a }} {{ m['b'] }} {{ m.missing }}| {{ m.get('a') }} {{ m.get('q', 5) }} {{ m.get('q') }} {{ m.keys() | list "
     "}} {{ m.values() | list }}\n",
     "two 1 | two 5 None ['b', 'a'] [1, 'two']"},
    {"{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in m | items %}{{ loop.index }}{{ k }}{% "
     "endfor %}\n",
     "b=1;a=two;1b2a"},
    {"{% for i in l %}{{ loop.index0 }}{{ i }}{{ ',' if not loop.last }}{% else %}none{% endfor %}{% for i in [] %}x{% "
     "else %}none{% endfor %}\n",
     "03,11,22none"},
    {"{% for i in l if i > 1 %}{{ i }}/{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }} {{ loop.first }}{{ "
     "loop.revindex }}{% endfor %}\n",
     "3/22 True22/23 False1"},
    {"{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% "
     "endfor %} {{ range(3, 0, -1) | list }}\n",
     "023 [3, 2, 1]"},
    {"{% set a = 1 %}{% for i in l %}{% set a = i %}{% endfor %}{{ a }}{% set ns = namespace(c=0, d='x') %}{% for i in "
     "l %}{% set ns.c = ns.c + i %}{% endfor %}{{ ns.c }}{{ ns.d }}\n",
     "16x"},
    {"{% set b %}in {{ n }} block{% endset %}{{ b | upper }} {% set p, q = 1, 2 %}{{ p }}{{ q }}\n", "IN 3 BLOCK 12"},
    {"{% macro f(a, b=2, c='z') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f(b=4, a=5) }}{{ "
     "f() }}\n",
     "[12z][123][54z][2z]"},
    {"{{ s | upper }} {{ s | lower }} {{ s | title }} {{ 'hELLO wORLD' | capitalize }} {{ \"they're bill's\" | title "
     "}} {{ '  pad ' | trim }}| {{ 'xxaxx' | trim('x') }}\n",
     "HELLO, WORLD hello, world Hello, World Hello world They're Bill's pad| a"},
    {"{{ s.split(', ') }} {{ s.split('l', 1) }} {{ 'a b  c '.split() }} {{ 'a-b-c'.rsplit('-', 1) }} {{ "
     "s.startswith('Hell') }} {{ s.endswith(('x', 'ld')) }}\n",
     "['Hello', 'World'] ['He', 'lo, World'] ['a', 'b', 'c'] ['a-b', 'c'] True True"},
    {"{{ '\\n\\nab\\n'.strip('\\n') }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ 'abc'.replace('b', 'x') }} {{ s | "
     "replace('l', 'L', 2) }} {{ s.find('World') }} {{ s.find('q') }} {{ '-'.join(['a', 'b']) }}\n",
     "ab|a | a|axc HeLLo, World 7 -1 a-b"},
    {"{{ m | tojson }} {{ l | tojson(indent=2) }} {{ {'a': [], 'b': {}, 'c': {'d': 1}} | tojson(indent=4) }} {{ u | "
     "tojson }} {{ u | tojson(ensure_ascii=true) }} {{ \"a\\\"\\n\\u0001</b>\" | tojson }} {{ 1.0 | tojson }} {{ none "
     "| tojson }} {{ m | tojson(separators=(',', ':')) }}\n",
     "{\"b\": 1, \"a\": \"two\"} [\n"
     "  3,\n"
     "  1,\n"
     "  2\n"
     "] {\n"
     "    \"a\": [],\n"
     "    \"b\": {},\n"
     "    \"c\": {\n"
     "        \"d\": 1\n"
     "    }\n"
     "} \"a\303\251\342\202\254\360\237\230\200b\" \"a\\u00e9\\u20ac\\ud83d\\ude00b\" \"a\\\"\\n\\u0001</b>\" 1.0 null "
     "{\"b\":1,\"a\":\"two\"}"},
    {"{{ l | join('-') }} {{ msgs | map(attribute='role') | join(',') }} {{ l | map('string') | join }} {{ msgs | "
     "selectattr('role', 'equalto', 'user') | map(attribute='content') | list }} {{ msgs | rejectattr('k') | list | "
     "length }} {{ l | select('odd') | list }} {{ l | reject('gt', 1) | list }}\n",
     "3-1-2 user,bot,user 312 ['hi', 'ok'] 1 [3, 1] [1]"},
    {"{{ l | first }} {{ l | last }} {{ l | sort }} {{ l | sort(reverse=true) | join }} {{ l | reverse | list }} {{ s "
     "| reverse }} {{ ['b', 'A', 'c'] | sort | join }} {{ (m | dictsort)[0][1] }} {{ msgs | sort(attribute='content') "
     "| map(attribute='content') | join }}\n",
     "3 2 [1, 2, 3] 321 [2, 1, 3] dlroW ,olleH Abc two hiokyo"},
    {"{{ missing | default('d') }} {{ e | default('d') }}| {{ e | default('d', true) }} {{ z | d('q') }} {{ '42' | int "
     "+ 1 }} {{ '4x' | int }} {{ '4x' | int(7) }} {{ 3.9 | int }} {{ '1.5' | float }} {{ 3 | string ~ 'x' }}\n",
     "d | d None 43 0 7 3 1.5 3x"},
    {"{{ n is number }} {{ t is number }} {{ n is integer }} {{ x is float }} {{ s is string }} {{ m is mapping }} {{ "
     "l is mapping }} {{ l is sequence }} {{ s is iterable }} {{ n is iterable }} {{ t is boolean }} {{ t is true }} "
     "{{ 1 is true }} {{ 4 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }} {{ n is eq 3 }} {{ n is not none }} {{ "
     "'a' is in s }}\n",
     "True True True True True True False True True False True True False True True True True True False"},
    {"{{ 'line1\\nline2\\n\\nline4' | indent(2) }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent(1, "
     "blank=true) }}\n",
     "line1\n"
     "  line2\n"
     "\n"
     "  line4|  a\n"
     "  b|a\n"
     " \n"
     " b"},
    {"{{- '  left' }}  {{ 'mid' -}}   \n"
     "  end\n",
     "  left  midend"},
    {"{% if n == 3 %}\n"
     "three\n"
     "{% elif n == 4 %}\n"
     "four\n"
     "{% else %}\n"
     "other\n"
     "{% endif %}\n",
     "three\n"},
    {"  {% if true %}\n"
     "  kept\n"
     "  {% endif %}\n"
     "tail {% if true %} inline {% endif %} x\n",
     "  kept\n"
     "tail  inline  x"},
    {"   {%+ if true %}plus{% endif %}\n", "   plus"},
    {"{# a comment #}\n", ""},
    {"after{# inline #} comment\n", "after comment"},
    {"a   {#- strips -#}   b\n", "ab"},
    {"{% raw %}{{ not run }}{% endraw %} {%- raw -%}  x {{ y }}  {%- endraw %}\n", "{{ not run }}x {{ y }}"},
    {"{% generation %}gen{{ n }}{% endgeneration %} {{ {'a': {'b': 1}}['a']['b'] }} {{ {'a': 1}.a }} {{ [[1, 2], "
     "[3]][0][1] }} {{ {'x': {}} }}\n",
     "gen3 1 1 2 {'x': {}}"},
    {"{{ '\303\251' | upper | length }} {{ '\\u00e9\\x41\\t|\\\\|\\'' }} {{ \"tab\\tq\" | tojson }} {{ 'a' 'b' }}\n",
     "1 \303\251A\011|\\|' \"tab\\tq\" ab"},
    {"{% for m in msgs[::-1] %}{% set i = (msgs | length - 1) - loop.index0 %}{{ i }}{{ m.role }} {% endfor %}\n",
     "2user 1bot 0user "},
    {"{% for x in 'abc' %}{{ x }}{% endfor %}{% for k in m %}{{ k }}{% endfor %}\n", "abcba"},
    {"{{ msgs[0]['role'] }}{{ msgs[-1].content }}{{ msgs[9] }}|{{ msgs[2].k is defined }}\n", "userok|False"},
    {"{% set d = {'items': 1, 'k': 2} %}{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %} {{ d['items'] }} {{ "
     "d.items is "
     "defined }} {{ d.get('items') }} {{ d.keys() | list }}\n",
     "items1k2 1 True 1 ['items', 'k']"},
    {"{{ [missing, {'a': missing}] }} {{ 'a1' is lower }} {{ '12' is lower }} {{ 'A1' is upper }} {{ '12' is upper "
     "}}\n",
     "[Undefined, {'a': Undefined}] True False True False"},
    {"{% raw %}\n  x{% endraw %}\ny\n", "\n  xy"},
    {"{% for a in 'ab' %}{% for b in 'c' %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}{% endfor %}\n", "1010"},
    {"{{ 100000 * 100000 }} {{ 0.1 + 0.2 }} {{ 1e20 }} {{ 1e-7 }} {{ 10 / 5 }} {{ 3.0 | string }}\n",
     "10000000000 0.30000000000000004 1e+20 1e-07 2.0 3.0"},
};

/// ChatML with tools and calls as JSON, thinking, and a switch of its own.
const char kJsonCalls[] = R"({%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
{{- '<tools>' }}{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}{{- '\n</tools><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
{{- '<|im_start|>assistant\n' + content }}
{%- for call in message.tool_calls %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
{%- elif message.role != 'system' %}
{{- raise_exception('Unknown role: ' + message.role) }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if reasoning_effort is defined %}{{- '<think>\n[' + reasoning_effort + ']' }}{%- endif %}
{%- endif %})";

const char kCalls[] = R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
    {"role": "assistant", "content": "<think>why</think>\n\nb", "tool_calls": [{"name": "f", "arguments": {"x": 1.50}}]},
    {"role": "tool", "content": "r"}],
    "tools": [{"type": "function", "function": {"name": "f"}}])";

ChatPrompt prompt_of(const std::string& json, const ChatTemplate& shown_by) {
    ChatRequest request;
    REQUIRE(ChatRequest::from_json(json).get(request).ok());
    ChatPrompt prompt;
    const Status s = auspex::render_chat(request, shown_by).get(prompt);
    REQUIRE_MESSAGE(s.ok(), s.message());
    return prompt;
}
std::string error_of(const std::string& json, const ChatTemplate& shown_by) {
    ChatRequest request;
    REQUIRE(ChatRequest::from_json(json).get(request).ok());
    return auspex::render_chat(request, shown_by).status().message();
}
/// The text up to each stop of a prompt.
std::vector<std::string> stopped(const ChatPrompt& prompt) {
    std::vector<std::string> all;
    for (const ChatPrompt::Stop& stop : prompt.stops) {
        std::string text = stop.pinned ? "pinned: " : "";
        for (size_t i = 0; i < stop.piece; ++i) text += prompt.pieces[i].text;
        all.push_back(text + prompt.pieces[stop.piece].text.substr(0, stop.at));
    }
    return all;
}

}  // namespace

TEST_CASE("templates print what Jinja prints") {
    for (const auto& row : kPrinted) {
        CAPTURE(row[0]);
        CHECK(printed(row[0]) == row[1]);
    }
}

TEST_CASE("templates print the same numbers in every rounding mode of the host") {
    const char* const rows[][2] = {
        {"{{ 0.1 }} {{ 0.1 + 0.2 }} {{ 1 / 3 }} {{ 0.1 * 3 }} {{ 1 - 0.9 }} {{ 2 ** 0.5 }}",
         "0.1 0.30000000000000004 0.3333333333333333 0.30000000000000004 0.09999999999999998 1.4142135623730951"},
        {"{{ 2.675 | round(2) }} {{ 1.15 | round(1) }} {{ '%.2f' % 0.1 }} {{ '%.1f' % 0.25 }} {{ '0.1' | float }}",
         "2.67 1.1 0.10 0.2 0.1"},
        {"{{ [0.1, 0.2, 0.3] | sum }} {{ x }} {{ [0.1, 1e-7] | tojson }}", "0.6000000000000001 2.5 [0.1, 1e-07]"}};
    test::each_rounding([&](const std::string& mode) {
        CAPTURE(mode);
        for (const auto& row : rows) CHECK(printed(row[0]) == row[1]);
    });
}

// test_jinja_cases.py compares them with Jinja itself.
TEST_CASE("constructs that few templates use print what Jinja prints") {
    Json data;
    REQUIRE(Json::parse(test::read_text(test::repo_dir() + "/tests/data/jinja_cases.json")).get(data).ok());
    const std::string variables = data.find("variables")->dump(Json::Numbers::written);
    const Json& rows = *data.find("printed");
    CHECK(rows.items().size() > 250);
    for (const Json& row : rows.items()) {
        const std::string &source = row.items()[0].text(), &text = row.items()[1].text();
        CAPTURE(source);
        CHECK(printed(source, variables.c_str()) == text);
    }
}

TEST_CASE("errors of a template name the line and what was expected") {
    const char* const kCases[][2] = {
        {"a\n{{ missing.x }}", "bad_argument: the chat template, line 2: 'missing' is undefined"},
        {"{{ f(1) }}", "bad_argument: the chat template, line 1: 'f' is undefined, expected a function or a macro"},
        {"{{ 1 + 'a' }}",
         "bad_argument: the chat template, line 1: an integer and a string, expected two numbers, strings or lists"},
        {"{{ s.nope() }}", "bad_argument: the chat template, line 1: a string has no method 'nope'"},
        {"\n\n{% for x in n %}{% endfor %}", "bad_argument: the chat template, line 3: an integer cannot be iterated"},
        {"{{ 1 / 0 }}", "bad_argument: the chat template, line 1: division by zero"},
        {"{% set m.x = 1 %}", "bad_argument: the chat template, line 1: 'm' is a map, expected a namespace"},
        {"{% set a, b = l %}", "bad_argument: the chat template, line 1: expected 2 values, found 3"},
        {"{{ '%q' % 1 }}",
         "bad_argument: the chat template, line 1: expected %s, %d, %i, %f or %x, and a value for each, found '%q'"},
        {"{{ '{:.2f}'.format(x) }}",
         "bad_argument: the chat template, line 1: format: expected {}, {0} or {name}, and a value for each, found "
         "'{:.2f}'"},
        {"{{ {1.5: 2} }}",
         "bad_argument: the chat template, line 1: a number is no key of a map, expected a string, an integer or none"},
        {"{{ 2 ** 63 }}", "bad_argument: the chat template, line 1: an integer is too large"},
        {"{{ '\\N{DASH}' }}", "bad_argument: the chat template, line 1: \\N in a string is not supported"},
        {"{% for i in l %}{{ loop(l) }}{% endfor %}",
         "bad_argument: the chat template, line 1: loop() needs a recursive loop and one argument"},
        {"{% call 1 %}{% endcall %}", "bad_argument: the chat template, line 1: expected a call, found %}"},
        {"{% set a b %}{% endset %}", "bad_argument: the chat template, line 1: expected =, found 'b'"},
        {"{% for x in z %}{% endfor %}", "bad_argument: the chat template, line 1: none cannot be iterated"},
        {"{% macro f() %}{% endmacro %}{{ f(1) }}",
         "bad_argument: the chat template, line 1: the macro 'f' was given 1 arguments, it takes 0"},
        {"{% macro f(a) %}{% endmacro %}{{ f(b=1) }}",
         "bad_argument: the chat template, line 1: the macro 'f' has no argument 'b'"},
        {"{% set f = m.items %}{{ f() }}",
         "bad_argument: the chat template, line 1: a method of a map can only be called by its name"},
        {"{{ strftime_now('%j') }}",
         "bad_argument: the chat template, line 1: strftime_now: expected %Y, %m, %d, %B, %b, %A, %a, %H, %M and %S, "
         "found '%j'"},
        {"{{ raise_exception('No.') }}", "bad_argument: No."},
        {"{{ s | nope }}", "unsupported: the chat template, line 1: there is no filter 'nope'"},
        {"{{ s is nope }}", "unsupported: the chat template, line 1: there is no test 'nope'"},
        {"{% include 'x' %}", "unsupported: the chat template, line 1: {% 'include' %} is not supported here"},
        {"{% if t %}a", "bad_argument: the chat template, line 1: expected {% endif %}, found the end of the template"},
        {"{% for x in l %}{% endif %}", "unsupported: the chat template, line 1: {% 'endif' %} is not supported here"},
        {"{% for x in l %}{% set v %}a{% break %}{% endset %}{% endfor %}",
         "unsupported: the chat template, line 1: {% 'break' %} is not supported here"},
        {"{% for x in l %}{% filter upper %}{% continue %}{% endfilter %}{% endfor %}",
         "unsupported: the chat template, line 1: {% 'continue' %} is not supported here"},
        {"{{ s.ljust(20, '--') }}",
         "bad_argument: the chat template, line 1: ljust: expected at most 100000 characters, and one that fills"},
        {"{{ 1", "bad_argument: the chat template, line 1: a tag has no end, expected }}"},
        {"{{ 'a }}", "bad_argument: the chat template, line 1: a string has no end, expected '"},
        {"{# a", "bad_argument: the chat template, line 1: the comment has no end, expected #}"},
        {"{{ a b }}", "bad_argument: the chat template, line 1: expected }}, found 'b'"},
        {"{{ }}", "bad_argument: the chat template, line 1: expected a value, found }}"},
        {"{{ '%d' % s }}", "bad_argument: the chat template, line 1: %d of a string, expected a number"},
        {"{{ '%x' % x }}", "bad_argument: the chat template, line 1: %x of a number, expected an integer"},
        {"{{ 1e19 | int }}", "bad_argument: the chat template, line 1: an integer is too large"},
        {"{{ 4000000000000000000 - -4000000000000000000 }}",
         "bad_argument: the chat template, line 1: an integer is too large"},
        {"{% macro f() %}{{ n }}{% endmacro %}{{ f(1) }}",
         "bad_argument: the chat template, line 1: the macro 'f' was given 1 arguments, it takes 0"},
        {"{% set a, m.b = 1, 2 %}", "bad_argument: the chat template, line 1: expected =, found '.'"},
        {"{{ s | round }}",
         "bad_argument: the chat template, line 1: round: expected a number, 0 to 15 digits, and a method that Jinja "
         "knows"},
        {"{{ x | round(-1) }}",
         "bad_argument: the chat template, line 1: round: expected a number, 0 to 15 digits, and a method that Jinja "
         "knows"},
        {"{{ x | round(16) }}",
         "bad_argument: the chat template, line 1: round: expected a number, 0 to 15 digits, and a method that Jinja "
         "knows"},
        {"{{ x | round(0, 'up') }}",
         "bad_argument: the chat template, line 1: round: expected a number, 0 to 15 digits, and a method that Jinja "
         "knows"},
        {"{{ 4000000000000000000 + 4000000000000000000 }}",
         "bad_argument: the chat template, line 1: an integer is too large"},
        {"{{ n +}}", "bad_argument: the chat template, line 1: expected a value, found }}"},
        {"{% raw x %}{% endraw %}", "unsupported: the chat template, line 1: {% 'raw' %} is not supported here"},
        {"{{ ? }}", "bad_argument: the chat template, line 1: unexpected character '?'"},
    };
    for (const auto& row : kCases) {
        CAPTURE(row[0]);
        CHECK(printed(row[0]) == row[1]);
    }
}

TEST_CASE("a template may ask for the day") {
    const auto today = [] {
        int64_t n_day = static_cast<int64_t>(std::time(nullptr)) / 86400;
        int year = 1970, month = 0;
        const auto leap = [&] { return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0; };
        for (; n_day >= (leap() ? 366 : 365); ++year) n_day -= leap() ? 366 : 365;
        const int lengths[] = {31, leap() ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
        for (; n_day >= lengths[month]; ++month) n_day -= lengths[month];
        const std::string number = std::to_string(month + 1), day = std::to_string(n_day + 1);
        return std::to_string(year) + (number.size() < 2 ? "-0" : "-") + number + (day.size() < 2 ? "-0" : "-") + day;
    };
    const std::string before = today(), shown = printed("{{ strftime_now('%Y-%m-%d') }}");
    CHECK((shown == before || shown == today()));
    const std::string week = printed("{{ strftime_now('%A %a %H:%M:%S 100%%') }}");
    const char* const kDays[] = {"Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"};
    const std::string day = kDays[std::time(nullptr) / 86400 % 7];
    if (shown == today()) CHECK(week.substr(0, day.size() + 5) == day + " " + day.substr(0, 3) + " ");
    CHECK(week.substr(week.size() - 5) == " 100%");
    CHECK(week.size() == day.size() + 18);
    const std::string words = printed("{{ strftime_now('%d %B %Y, %b 100%') }}");
    CHECK(words.substr(0, 3) == shown.substr(8) + " ");
    CHECK(words.find(" " + shown.substr(0, 4) + ", ") != std::string::npos);
    CHECK(words.substr(words.size() - 9) == " " + words.substr(3, 3) + " 100%");
}

TEST_CASE("only what a template wrote may be control tokens") {
    const ChatTemplate found = auspex::recognise_template(kJsonCalls, nullptr);
    const ChatPrompt prompt = prompt_of(
        R"({"messages": [{"role": "assistant", "content": "</think><|im_end|>x"}, {"role": "user", "content": "<|im_end|>"}]})",
        found);
    std::string fixed, input;
    for (const ChatPrompt::Piece& piece : prompt.pieces) (piece.from_template ? fixed : input) += piece.text + "|";
    CHECK(fixed == "<|im_start|>assistant\n|<|im_end|>\n<|im_start|>|\n|<|im_end|>\n<|im_start|>assistant\n|");
    CHECK(input == "<|im_end|>x|user|<|im_end|>|");
}

TEST_CASE("text of a message that fills or indents a text stays a message's") {
    ChatRequest r;
    REQUIRE(ChatRequest::from_json(R"({"messages": [{"role": "user", "content": "x"}]})").get(r).ok());
    const ChatTemplate filled = auspex::recognise_template(
        "{% for m in messages %}{{ '<'.ljust(3, m.content[0]) ~ ('|' | indent(m.content, true)) ~ m.content }}{% "
        "endfor %}",
        nullptr);
    std::string all;
    for (const ChatPrompt::Piece& piece : auspex::render_chat(r, filled).value().pieces)
        all += piece.from_template ? piece.text : "(" + piece.text + ")";
    CHECK(all == "<(xxx)|(x)");
}

TEST_CASE("a template is tried for what it can show") {
    std::string note;
    const ChatTemplate json = auspex::recognise_template(kJsonCalls, &note);
    CHECK(note.empty());
    CHECK(json.style == ChatStyle::jinja);
    CHECK(json.has_tools());
    CHECK_FALSE(json.element_calls);
    CHECK(json.json_values);
    CHECK_FALSE(json.enable_thinking);
    CHECK_FALSE(json.has_preserve_thinking);

    const std::string elements =
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls %}<tool_call>\n<function={{ c.function.name }}>{% for k, v in c.function.arguments | "
        "items %}"
        "{{ k }}={{ v }}{% endfor %}{% endfor %}{% endfor %}{% if preserve_thinking %}{% endif %}<think>";
    const ChatTemplate other = auspex::recognise_template(elements, &note);
    CHECK(note.empty());
    CHECK(other.has_tools());
    CHECK(other.element_calls);
    CHECK_FALSE(other.json_values);
    CHECK(other.enable_thinking);
    CHECK(other.has_preserve_thinking);

    const ChatTemplate hybrid = auspex::recognise_template(
        std::string(kJsonCalls) + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}", &note);
    CHECK(hybrid.enable_thinking);

    const std::string text_only =
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}<tool_call>{\"name\": \""
        "{{ c.function.name + '\", ' + c.function.arguments }}{% endfor %}{% endfor %}{{ tools }}";
    CHECK(auspex::recognise_template(text_only, nullptr).program->text_arguments);
    const std::string text_too =
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}<tool_call>{\"name\": \""
        "{{ c.function.name ~ '\", ' ~ c.function.arguments }}{% endfor %}{% endfor %}{{ tools }}";
    CHECK(auspex::recognise_template(text_too, nullptr).program->text_arguments);
    CHECK_FALSE(auspex::recognise_template(
                    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}<seed:tool_call><function="
                    "{{ c.function.name }}>{% endfor %}{% endfor %}{{ tools }}",
                    nullptr)
                    .has_tools());
    const ChatTemplate plain = auspex::recognise_template(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>", nullptr);
    CHECK_FALSE(
        prompt_of(R"({"messages": [{"role": "user", "content": "What does <think> mean?"}]})", plain).inside_thinking);

    CHECK(auspex::recognise_template("{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}", &note).style ==
          ChatStyle::jinja);
    CHECK(note ==
          "the chat template shows calls of tools in a form that is not known: requests with tools are refused");
    for (const char* jinja :
         {"{{ bos_token }}[INST]", "{{ messages[0]['content'] | nope }}", "{{ messages[5].content.x }}"}) {
        CHECK(auspex::recognise_template(jinja, &note).style == ChatStyle::chatml);
        CHECK(note.find("the chat template cannot be run (") == 0);
        CHECK(note.find("plain ChatML is used") != std::string::npos);
    }
}

TEST_CASE("a conversation with calls is shown as the template says") {
    const ChatTemplate found = auspex::recognise_template(kJsonCalls, nullptr);
    const ChatPrompt prompt = prompt_of(std::string(kCalls) + "}", found);
    const std::string head =
        "<|im_start|>system\nS\n\n<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n"
        "</tools><|im_end|>\n";
    const std::string user = head + "<|im_start|>user\na<|im_end|>\n";
    const std::string all = user +
                            "<|im_start|>assistant\nb\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1.5}}\n"
                            "</tool_call><|im_end|>\n"
                            "<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n";
    CHECK(prompt.text() == all + "<|im_start|>assistant\n");
    CHECK_FALSE(prompt.inside_thinking);
    CHECK(stopped(prompt) == std::vector<std::string>{"pinned: " + head, user, all});

    const ChatPrompt thinks =
        prompt_of(std::string(kCalls) + R"(, "chat_template_kwargs": {"reasoning_effort": "low"}})", found);
    CHECK(thinks.text() == all + "<|im_start|>assistant\n<think>\n[low]");
    CHECK(thinks.inside_thinking);
    CHECK_FALSE((prompt.closed_thinking || thinks.closed_thinking));
    const ChatPrompt whole = prompt_of(std::string(kCalls) + R"(, "add_generation_prompt": false})", found);
    CHECK(whole.text() == all);
    CHECK(stopped(whole) == std::vector<std::string>{"pinned: " + head, user});

    CHECK(error_of(R"({"messages": [{"role": "ipython", "content": ""}]})", found) ==
          "bad_argument: Unknown role: ipython");
    CHECK(error_of(R"({"messages": []})", found) == "bad_argument: No messages provided.");
    const ChatTemplate plain =
        auspex::recognise_template("{% for m in messages %}{{ m.content }}{% endfor %}", nullptr);
    CHECK(error_of(std::string(kCalls) + "}", plain).find("this model's chat template shows none") !=
          std::string::npos);
    CHECK(error_of(R"({"messages": [{"role": "user", "content": ""}]})", ChatStyle::jinja)
              .find("recognise_template() makes one") != std::string::npos);
}

TEST_CASE("a prompt says whether the template has closed the thinking") {
    const std::string turns =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n";
    const auto closes = [&](const std::string& end, const std::string& more = "") {
        return prompt_of("{\"messages\": [{\"role\": \"user\", \"content\": \"a</think>\"}]" + more + "}",
                         auspex::recognise_template(turns + end + "{% endif %}", nullptr))
            .closed_thinking;
    };
    const std::string end = "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}";
    CHECK(closes(end, R"(, "enable_thinking": false)"));
    CHECK_FALSE(closes(end, R"(, "enable_thinking": true)"));
    CHECK_FALSE(closes(end, R"(, "enable_thinking": false, "add_generation_prompt": false)"));
    CHECK(closes("{{ '</think>' }}"));
    CHECK_FALSE(closes("</think>So: {{ '' }}"));
    CHECK_FALSE(closes("{{ messages[0].content }}"));
}

TEST_CASE("a template prints the model's own tokens for the ends of a text") {
    std::string note;
    const ChatTemplate found = auspex::detail::recognise(
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}", {"<s>", "</s>"}, &note);
    REQUIRE(found.style == ChatStyle::jinja);
    CHECK(prompt_of(R"({"messages": [{"role": "user", "content": "a"}]})", found).text() == "<s>a</s>");
}

TEST_CASE("a template that goes through tools without asking for them runs") {
    const char* const kLoops =
        "{% if messages[0].role == 'system' %}{{ tools | length }}{% endif %}{% for t in tools %}{{ t.name }}{% endfor "
        "%}{{ tools is none }}{{ documents is none }}{% for m in messages %}{{ m.content }}{% endfor %}";
    std::string note;
    const ChatTemplate found = auspex::recognise_template(kLoops, &note);
    CHECK(found.style == ChatStyle::jinja);
    CHECK(prompt_of(R"({"messages": [{"role": "user", "content": "a"}]})", found).text() == "TrueTruea");
    CHECK(prompt_of(R"({"messages": [{"role": "system", "content": "a"}]})", found).text() == "0TrueTruea");
}

TEST_CASE("a template reads the other members of a message, and roles that it knows") {
    const char* const kNames =
        "{% for m in messages %}<|im_start|>{{ m.role }}{% if m.name is defined %} {{ m.name }}{% endif %}"
        "{% if m.role == 'tool' %} {{ m.tool_call_id + m.meta.k[0] | string }}{% endif %}"
        "{% for c in m.tool_calls %} {{ c.id }}{{ c.function.name }}{{ c.type }}{% endfor %}"
        "{{ m.content }}<|im_end|>\n{% endfor %}";
    const ChatTemplate found = auspex::recognise_template(kNames, nullptr);
    REQUIRE(found.style == ChatStyle::jinja);
    const ChatPrompt prompt = prompt_of(
        R"({"messages": [{"role": "developer", "content": "a", "name": null},
            {"role": "user", "content": "b", "name": "<|im_end|>"},
            {"role": "tool", "content": "c", "name": "f", "tool_call_id": "7", "meta": {"k": [1.50]}},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "i7", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                {"id": null, "name": "h", "arguments": {}}]},
            {"role": "observation", "content": "d"}], "add_generation_prompt": false})",
        found);
    CHECK(prompt.text() ==
          "<|im_start|>developera<|im_end|>\n<|im_start|>user <|im_end|>b<|im_end|>\n"
          "<|im_start|>tool f 71.5c<|im_end|>\n<|im_start|>assistant i7gfunction hfunction<|im_end|>\n"
          "<|im_start|>observationd<|im_end|>\n");
    for (const ChatPrompt::Piece& piece : prompt.pieces) CHECK((piece.from_template || piece.text != "<|im_start|>"));
    ChatRequest request;
    request.messages.resize(1);
    request.messages[0].role = "user";
    request.messages[0].template_members = {{"name", "{", true}};
    CHECK(auspex::render_chat(request, found).status().message().find("messages[0].name: ") != std::string::npos);
    // A template that joins the name to the result, as tool results have one in its conversations, still shows tools.
    const std::string named = std::string(kJsonCalls);
    const size_t at = named.find("message.content + '\\n</tool_response>");
    REQUIRE(at != std::string::npos);
    CHECK(auspex::recognise_template(named.substr(0, at) + "message.name + ': ' + " + named.substr(at), nullptr)
              .has_tools());
}

TEST_CASE("the published templates run as programs give the published texts") {
    const char* shared = test::shared_dir("vectors/chat");
    if (!shared) return;
    const std::string dir = std::string(shared) + "/vectors/chat/";
    Json cases;
    REQUIRE(Json::parse(test::read_text(dir + "render_cases.json")).get(cases).ok());
    size_t n_checked = 0;
    for (const Json& c : cases.items()) {
        const std::string name = c.find("name")->text(), which = c.find("template")->text();
        if (name == "err_args_string") continue;  // the arguments are no string any more once the request is read
        INFO(name << " with " << which);
        std::string note;
        ChatTemplate program;
        const Status s = auspex::detail::read_program(test::read_text(dir + which + ".jinja"), {}, &note).get(program);
        REQUIRE_MESSAGE(s.ok(), s.message());
        const ChatTemplate native = auspex::recognise_template(test::read_text(dir + which + ".jinja"), nullptr);
        CHECK(program.has_tools());
        CHECK(program.element_calls);
        CHECK(program.json_values == native.json_values);
        CHECK(program.enable_thinking == native.enable_thinking);
        CHECK(program.has_preserve_thinking == native.has_preserve_thinking);
        ChatRequest request;
        REQUIRE(ChatRequest::from_json("{\"messages\": " + c.find("messages")->dump() +
                                       ", \"tools\": " + c.find("tools")->dump() +
                                       ", \"chat_template_kwargs\": " + c.find("kwargs")->dump() + "}")
                    .get(request)
                    .ok());
        ChatPrompt by_program, by_native;
        const Status ran = auspex::render_chat(request, program).get(by_program);
        if (const Json* error = c.find("error")) {
            CHECK(ran.text == error->text().substr(error->text().find(": ") + 2));
            continue;
        }
        REQUIRE_MESSAGE(ran.ok(), ran.message());
        CHECK(by_program.text() == c.find("rendered")->text());
        REQUIRE(auspex::render_chat(request, native).get(by_native).ok());
        CHECK(by_program.inside_thinking == by_native.inside_thinking);
        ++n_checked;
    }
    CHECK(n_checked >= 40);
}
