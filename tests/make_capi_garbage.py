"""Writes a C program that calls every function of auspex.h with null and garbage, from the header's declarations:

    python3 tests/make_capi_garbage.py src/auspex.h OUTPUT.c

Each argument in turn is null, or garbage of its type, while the others are as they should be; then all are null, and
all are garbage. Garbage is what a program can pass by mistake: handles of another kind, freed ones and cleared memory,
structs with a wrong size or any bytes in their numbers, numbers out of range, text that is no JSON and no UTF-8. Every
call must return; the program ends with 0. Sanitizers see the rest.
"""
import os
import re
import sys

N_WHOLE = 6  # ways to spoil a whole struct: four wrong sizes, all numbers of bytes FF, of bytes 7B
HANDLES = ("device", "model", "session", "plan", "snapshot", "stream", "reply", "constraint")
NUMBERS = {
    "uint32_t": ["0u", "1u", "9u", "0x7FFFFFFFu", "0xFFFFFFFFu"],
    "uint64_t": ["0u", "1u", "UINT64_MAX"],
    "intptr_t": ["-1", "1000000", "INTPTR_MIN"],
    "int32_t": ["0", "-1", "1", "1000000", "(-2147483647 - 1)"],
    "auspex_code": ["0", "-1", "99", "(-2147483647 - 1)"],
}


def without_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


class Argument:
    def __init__(self, text):
        text = " ".join(text.replace("*", " * ").split())
        match = re.match(r"(.*?)\s*(\w+)$", text)
        self.type, self.name = re.sub(r" \*", "*", match[1]).strip(), match[2]

    def values(self, known):
        """(right, [null and garbage]) as C expressions. known: the structs."""
        t, bare = self.type, self.type.replace("const ", "").rstrip("*").strip()
        for handle in HANDLES:
            if bare == "auspex_" + handle and t.count("*") == 1:
                others = [f"({t})garbage_{h}()" for h in ("zeros", "bytes", "other_" + handle)]
                return f"right_{handle}()", ["NULL", *others]
        if t.count("*") == 1 and bare in NUMBERS or t in ("size_t*", "uint64_t*", "const void**", "const char**",
                                                                         "const float**"):
            return f"({t})room()", ["NULL"]
        if re.fullmatch(r"auspex_\w+\*\*", t):
            return "&made", ["NULL"]  # freed after the call
        if t == "auspex_error*":
            return "&error", ["NULL", "(auspex_error*)garbage_zeros()", "(auspex_error*)garbage_bytes()"]
        if t in ("auspex_on_event", "auspex_on_device", "auspex_on_row"):
            return t[7:], ["NULL"]
        if re.fullmatch(r"(const )?auspex_\w+\*", t):
            if self.name == "marks":
                return "NULL", [f"({t})room()"]
            n_garbage = N_WHOLE + 2 * sum(kind != "pointer" for kind, _, _ in known[bare][1:])
            garbage = [f"({t})garbage_{bare}({i})" for i in range(n_garbage)]
            return f"({t})right_{bare}()", ["NULL", f"({t})garbage_zeros()", *garbage]
        if t == "const char*":
            if self.name == "path":
                return "path", ["NULL", '""', '"no/such"', "noise"]
            return "text", ["NULL", "noise"]
        if t == "const char* const*":
            return "NULL", ["stops"]
        if "*" in t:
            return f"({t})room()", ["NULL"]
        if t == "size_t":
            return ("sizeof text - 1" if self.name in ("n_text", "n_json") else "0" if self.name in
                    ("n_stops", "n_marks") else "N_ROOM"), ["0", "1"]
        return ("16" if self.name == "struct_size" else "0"), NUMBERS[t]


def structs(header):
    """{name: [(type, field, count)]} of every struct with a struct_size."""
    found = {}
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\}\s*(\w+);", header, re.DOTALL):
        fields = []
        for line in body.split(";"):
            line = " ".join(line.split())
            if not line:
                continue
            if "(" in line or "*" in line:
                fields.append(("pointer", re.search(r"\(\*(\w+)\)|(\w+)$", line)[0].strip("(*)"), 1))
                continue
            kind, rest = line.split(" ", 1)
            for one in rest.split(","):
                count = re.search(r"\[(\d+)\]", one)
                fields.append((kind, one.split("[")[0].strip(), int(count[1]) if count else 1))
        found[name] = fields
    return found


def functions(header):
    found = re.findall(r"AUSPEX_C_API ([\w* ]+?)\b(auspex_\w+)\((.*?)\);", header, re.DOTALL)
    return [(kind.strip(), name, [Argument(a) for a in arguments.split(",") if a.strip() != "void"])
            for kind, name, arguments in found]


def struct_makers(name, fields):
    """right_X(): cleared; garbage_X(i): a wrong size, or any bytes in all of its numbers, or in one. Pointers stay
    null: following them is what they are for."""
    lines = [f"static void* right_{name}(void) {{", f"    {name}* s = ({name}*)clear();",
             "    s->struct_size = sizeof *s;", "    return s;", "}",
             f"static void* garbage_{name}(int i) {{", f"    {name}* s = ({name}*)clear();",
             "    static const uint32_t sizes[] = {0, 8, 9, 0xFFFFFFFFu};",
             "    s->struct_size = i < 4 ? sizes[i] : (uint32_t)sizeof *s;"]
    numbers = [field for kind, field, _ in fields if kind != "pointer" and field != "struct_size"]
    for at, field in enumerate(numbers):
        one = N_WHOLE + 2 * at
        lines.append(f"    if (i == 4 || i == {one}) memset((void*)&s->{field}, 0xFF, sizeof s->{field});")
        lines.append(f"    if (i == 5 || i == {one + 1}) memset((void*)&s->{field}, 0x7B, sizeof s->{field});")
    return "\n".join(lines + ["    return s;", "}", ""])


def calls(name, arguments, known):
    values = [a.values(known) for a in arguments]
    rights = [right for right, _ in values]
    rows = [rights]
    for i, (_, wrong) in enumerate(values):
        rows += [rights[:i] + [w] + rights[i + 1:] for w in wrong]
    if arguments:
        rows.append([wrong[0] for _, wrong in values])
        rows.append([wrong[-1] for _, wrong in values])
    return [f"{name}({', '.join(row)})" for row in rows]


HEAD = """/* Made by tests/make_capi_garbage.py. */
#include "auspex.h"
#include <stdio.h>
#include <string.h>

enum { N_ROOM = 64 };
static const char text[] = "{\\"messages\\": [{\\"role\\": \\"user\\", \\"content\\": \\"hi\\"}]}";
static const char noise[128] = "\\xff\\xfe{\\"a\\": \\xc3 \\x01 [[[[";
static const char* const stops[] = {NULL};
static const char* path = "no-such-file";
static auspex_error error = AUSPEX_ERROR_INIT;
static auspex_device* device;
static auspex_model* model;
static auspex_session* session;
static auspex_plan* plan;
static auspex_snapshot* snapshot;
static auspex_stream* stream;
static auspex_reply* reply;
static auspex_constraint* constraint;
static long n_call, n_ok;

/* Memory of 4096 bytes, aligned: the next of a few, so that arguments of one call do not share it. */
static void* clear(void) {
    static union {
        uint64_t words[512];
        void* pointers[512];
    } rooms[32];
    static unsigned i;
    i = (i + 1) % 32;
    return memset(&rooms[i], 0, sizeof rooms[i]);
}
static void* room(void) { return clear(); }
static void* garbage_zeros(void) { return clear(); }
static void* garbage_bytes(void) { return memset(clear(), 0x5A, 4096); }
static int32_t on_device(const auspex_device_entry* entry, void* user) {
    (void)user;
    return entry == NULL;
}
static int32_t on_event(const auspex_event* event, void* user) {
    (void)user;
    return event == NULL;
}
static int32_t on_row(uint64_t row, const float* logits, size_t n_logits, void* user) {
    (void)user;
    return logits == NULL || n_logits == 0 || row >= N_ROOM;
}
"""


def write(header):
    known = structs(header)
    out = [HEAD]
    taken = {a.type.replace("const ", "") for _, name, arguments in functions(header) if not name.endswith("_free")
             for a in arguments}
    for handle in HANDLES:
        other = "device" if handle != "device" else "model"
        if f"auspex_{handle}*" in taken:
            out.append(f"static auspex_{handle}* right_{handle}(void) {{ return {handle}; }}")
        out.append(f"static void* garbage_other_{handle}(void) {{ return {other}; }}")
    used = {a.type.replace("const ", "").rstrip("*") for _, _, arguments in functions(header) for a in arguments}
    out += [struct_makers(name, fields) for name, fields in known.items()
            if name in used and name not in ("auspex_error", "auspex_mark") and fields[0][1] == "struct_size"]
    bodies, names = [], []
    for kind, name, arguments in functions(header):
        makes = [a.type[:-1] for a in arguments if re.fullmatch(r"auspex_\w+\*\*", a.type)]
        body = [f"static void try_{name}(void) {{"]
        for line in calls(name, arguments, known):
            if name.endswith("_free"):  # the right one is freed at the end
                line = line.replace(f"right_{name[7:-5]}()", "NULL")
            if makes:
                body.append("    {")
                body.append(f"        {makes[0]} made = NULL;")
                body.append(f"        ++n_call;\n        n_ok += {line} == AUSPEX_OK;")
                body.append(f"        {makes[0].rstrip('*')}_free(made);\n    }}")
            elif kind == "auspex_code":
                body.append(f"    ++n_call;\n    n_ok += {line} == AUSPEX_OK;")
            else:
                body.append(f"    ++n_call;\n    (void){line};" if kind != "void" else f"    ++n_call;\n    {line};")
        bodies.append("\n".join(body + ["}", ""]))
        names.append(name)
    out += bodies
    out.append("""int main(int argc, char** argv) {
    static const int32_t ids[] = {1, 2, 3};
    auspex_session_options options;
    auspex_device_options cpu;
    if (argc != 2) return 2;
    (void)auspex_device_options_init(&cpu, sizeof cpu);
    cpu.kind = AUSPEX_KIND_CPU;
    cpu.n_thread = 1;
    (void)auspex_session_options_init(&options, sizeof options);
    options.n_context = 128;
    if (auspex_device_open(&cpu, &device, &error) || auspex_model_load(device, argv[1], NULL, &model, &error) ||
        auspex_session_create(model, &options, &session, &error) || auspex_plan_model(model, NULL, &plan, &error) ||
        auspex_session_sync(session, ids, 3, NULL, 0, NULL, &error) ||
        auspex_snapshot_take(session, &snapshot, &error) || auspex_stream_create(model, NULL, 0, 0, &stream, &error) ||
        auspex_reply_create(0, NULL, 0, &reply, &error) ||
        auspex_constraint_create(model, AUSPEX_CONSTRAINT_REGEX, "a+", 2, &constraint, &error)) {
        printf("%s\\n", error.text);
        return 1;
    }""")
    out += [f"    try_{name}();" for name in names]
    out += [f"    auspex_{handle}_free({handle});" for handle in reversed(HANDLES)]
    out.append(f"""    remove(path);
    remove(noise);
    printf("{len(names)} functions, %ld calls, %ld accepted\\n", n_call, n_ok);
    return n_call < {len(names)} || n_ok == 0 || n_ok > n_call / 2;
}}""")
    return "\n".join(out) + "\n"


def main():
    with open(sys.argv[1], encoding="ascii") as f:
        header = without_comments(f.read())
    os.makedirs(os.path.dirname(os.path.abspath(sys.argv[2])), exist_ok=True)
    with open(sys.argv[2], "w", encoding="ascii") as f:
        f.write(write(header))


if __name__ == "__main__":
    main()
