#!/usr/bin/env python3
"""Makes single_include/auspex.hpp and auspex.h from src/, or checks with --check that they are up to date.

    python3 amalgamate.py            write single_include/auspex.hpp and single_include/auspex.h
    python3 amalgamate.py --check    exit 1 if a committed header differs from a new one

src/auspex.cpp is the file list: every file under src/, in the order of the layers. A file may include only files
that are listed above it, so the architecture is checked by every build.

The result has three parts: the public header (src/auspex.hpp), the declarations of the internals, and the code.
Including it gives the public header alone. AUSPEX_IMPLEMENTATION adds the rest, in one source file, whether or not
the header was included before without it; with AUSPEX_IMPLEMENTATION_PART as well, a part of the code in each of
several files (PARTS). AUSPEX_INTERNALS adds the declarations alone; the library's own tests use it.

The C interface is a header of its own: src/auspex.h, and under AUSPEX_C_IMPLEMENTATION the code of src/capi/, which
includes auspex.hpp and may use nothing else of the library.

Files named *.inl or *.inc are pasted wherever they are included (one kernel source, several
instruction sets); every other file is written once. There is no date in the result: the same
sources give the same bytes.
"""
import argparse
import os
import re
import sys

PUBLIC = "src/auspex.hpp"
NAMESPACE = "AUSPEX_VERSION_NAMESPACE"
LIST = "src/auspex.cpp"
RESULT = "single_include/auspex.hpp"
C_PUBLIC = "src/auspex.h"
C_FOLDER = "src/capi/"
C_RESULT = "single_include/auspex.h"
# The folders of each part of the implementation. The first match counts; other folders belong to part 1.
PARTS = (("src/base/", "src/plan/"), ("src/grammar/",), ("src/machine/vulkan/",), ("src/machine/",), ("src/engine/",))
CODE = (".h", ".hpp", ".cpp")
PASTED = (".inl", ".inc")

# Macros that a source file may leave defined, because system headers read them.
LASTING_MACROS = {"NOMINMAX", "WIN32_LEAN_AND_MEAN", "VK_NO_PROTOTYPES", "_FILE_OFFSET_BITS", "_GNU_SOURCE"}

# Names in the code that headers of others define as macros: Xlib `Status`; Apple's AssertMacros.h and Unreal `check`,
# `verify`; windows.h `max`, `min` and `small`; Qt `emit` and `slots`.
SHIELDED = ("Status", "check", "emit", "max", "min", "slots", "small", "verify")
# Files that hold nothing but system includes, which bring such macros: the application gets them as if it had included
# these headers itself.
SYSTEM_HEADERS = "_headers.h"

LOCAL_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
SYSTEM_INCLUDE = re.compile(r"^\s*#\s*include\s*<([^>]+)>")
CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b")
DEFINE = re.compile(r"^\s*#\s*define\s+(\w+)")
UNDEF = re.compile(r"^\s*#\s*undef\s+(\w+)")
PRAGMA_ONCE = re.compile(r"^\s*#\s*pragma\s+once\b")


class Entry:
    """One line of the file list: a file and the conditions around it."""

    def __init__(self, path, line, conditions):
        self.path, self.line, self.conditions = path, line, conditions


def part_of(path):
    """The part of the implementation that has a file's code, counted from 1."""
    return next((i for i, folders in enumerate(PARTS, 1) if path.startswith(folders)), 1)


class Amalgamation:
    def __init__(self, root):
        self.root = root
        self.problems = []
        self.entries = []
        self.rank = {PUBLIC: -1}  # place in the file list; the public header comes first
        self.with_public = {PUBLIC}  # files that include the public header, also by way of others
        self.system_seen = set()
        self.hoisted = None  # while the code is made: its unconditional system includes, which go before all parts

    def refuse(self, where, what, mend):
        self.problems.append(f"{where}: {what}\n    mend: {mend}")

    # ------------------------------------------------------------------------------- reading

    def lines(self, path):
        """The lines of a file; complains about what has no place in a header for everyone."""
        try:
            with open(os.path.join(self.root, path), "rb") as f:
                data = f.read()
        except OSError as e:
            self.refuse(path, f"cannot be read ({e.strerror})", "restore the file")
            return []
        out = []
        for number, raw in enumerate(data.split(b"\n"), 1):
            if raw.endswith(b"\r"):
                raw = raw[:-1]
            column = next((i for i, c in enumerate(raw, 1) if c > 126 or (c < 32 and c != 9)), 0)
            if column:
                self.refuse(f"{path}:{number}", f"byte 0x{raw[column - 1]:02x} in column {column} is not plain ASCII",
                            r"write it as an escape such as \u00e9 or \xc3\xa9, or find an ASCII spelling")
            out.append(raw.decode("latin-1").rstrip())
        while out and not out[-1]:
            out.pop()
        return out

    def resolve(self, path, include):
        return os.path.normpath(os.path.join(os.path.dirname(path), include)).replace(os.sep, "/")

    def read_list(self):
        """Fills entries and rank from src/auspex.cpp."""
        conditions = []
        for number, line in enumerate(self.lines(LIST), 1):
            where = f"{LIST}:{number}"
            text = line.split("//")[0].strip()
            local = LOCAL_INCLUDE.match(text)
            if local:
                path = self.resolve(LIST, local.group(1))
                if path == PUBLIC:
                    continue
                if path in self.rank:
                    self.refuse(where, f"{path} is listed twice", "keep the first of the lines")
                elif not os.path.isfile(os.path.join(self.root, path)):
                    self.refuse(where, f"{path} is listed and does not exist", "add the file, or drop this line")
                else:
                    self.rank[path] = len(self.entries)
                    self.entries.append(Entry(path, number, tuple(conditions)))
                continue
            condition = CONDITION.match(text)
            if condition and condition.group(1) in ("if", "ifdef", "ifndef"):
                conditions.append(text)
            elif condition and condition.group(1) == "endif":
                if not conditions:
                    self.refuse(where, "#endif without #if", "drop it")
                else:
                    conditions.pop()
            elif text:
                self.refuse(where, f"'{text}' has no place in the file list",
                            "the file list holds #include \"...\", #if, #ifdef, #ifndef, #endif and comments only")
        if conditions:
            self.refuse(LIST, f"'{conditions[-1]}' is never closed", "add an #endif")

    def check_listed(self):
        found = []
        for folder, folders, names in os.walk(os.path.join(self.root, "src")):
            folders.sort()
            rel = os.path.relpath(folder, self.root).replace(os.sep, "/")
            found += [f"{rel}/{n}" for n in sorted(names) if n.endswith(CODE)]
        for path in found:
            if path not in self.rank and path != LIST:
                self.refuse(path, f"is under src/ and missing from the file list",
                            f'add  #include "{path[4:]}"  to {LIST}, below everything that it includes')

    # ------------------------------------------------------------------------------- writing

    def body(self, path, rank, conditions, pasting=()):
        """The text of a file with its local includes checked and dropped, pasted files in place."""
        out, depth, defined, in_comment = [], 0, {}, False
        alone = not pasting and not path.startswith(C_FOLDER)
        for number, line in enumerate(self.lines(path), 1):
            where = f"{path}:{number}"
            if in_comment:
                in_comment = "*/" not in line
                out.append(line)
                continue
            code = line.split("//")[0]
            if "/*" in code and "*/" not in code.split("/*", 1)[1]:
                in_comment = True
            if PRAGMA_ONCE.match(code):
                continue
            local = LOCAL_INCLUDE.match(code)
            if local:
                self.include(path, where, self.resolve(path, local.group(1)), local.group(1), rank, conditions, pasting,
                             out)
                continue
            system = SYSTEM_INCLUDE.match(code)
            if system:
                always = depth == 0 and not conditions and not pasting
                if system.group(1) in self.system_seen:
                    continue
                if always:
                    self.system_seen.add(system.group(1))
                    if self.hoisted is not None:
                        self.hoisted.append(line)
                        continue
            if alone and NAMESPACE in code and path not in self.with_public:
                self.refuse(where, f"{NAMESPACE} without {PUBLIC}, which defines it",
                            "include it first, or a header that does: the file is also compiled by itself")
                alone = False
            condition = CONDITION.match(code)
            if condition:
                depth += {"if": 1, "ifdef": 1, "ifndef": 1, "endif": -1}.get(condition.group(1), 0)
            macro = DEFINE.match(code)
            if macro:
                defined[macro.group(1)] = number
            macro = UNDEF.match(code)
            if macro:
                defined.pop(macro.group(1), None)
            out.append(line)
        if depth != 0:
            self.refuse(path, "its #if and #endif do not balance", "close every #if in the file that opens it")
        if not path.endswith(PASTED):
            for name, number in sorted(defined.items()):
                if not name.startswith("AUSPEX_") and name not in LASTING_MACROS:
                    self.refuse(f"{path}:{number}",
                                f"macro {name} leaks into every file below and into the application",
                                f"#undef {name} at the end of the file, or make it a constexpr or a function")
        while out and not out[0]:
            out.pop(0)
        return out

    def include(self, path, where, target, spelled, rank, conditions, pasting, out):
        if path.endswith(SYSTEM_HEADERS):
            self.refuse(where, f'"{spelled}" in a file of system includes',
                        "include it where it is needed: this file comes before all others")
        elif target.endswith(PASTED):
            if target in pasting:
                self.refuse(where, f"{target} includes itself", "break the circle")
            elif not os.path.isfile(os.path.join(self.root, target)):
                self.refuse(where, f'"{spelled}" does not exist', "correct the path; it is relative to this file")
            else:
                out += self.body(target, rank, conditions, pasting + (target,))
        elif target == LIST:
            self.refuse(where, "includes the file list itself", "include the headers that it needs")
        elif path.startswith(C_FOLDER) and target not in (PUBLIC, C_PUBLIC) and not target.startswith(C_FOLDER):
            self.refuse(where, f"the C interface includes {target}",
                        f"it stands on {PUBLIC} alone: add what is missing there")
        elif target not in self.rank:
            if not os.path.isfile(os.path.join(self.root, target)):
                self.refuse(where, f'"{spelled}" does not exist', "correct the path; it is relative to this file")
            else:
                self.refuse(where, f"{target} is not in the file list", f"list it in {LIST}, above {path}")
        elif target.endswith(".cpp"):
            self.refuse(where, f"includes the source file {target}",
                        "move what is shared into a header or an .inl file")
        elif self.rank[target] >= rank:
            self.refuse(where, f"includes a higher layer: {target} is listed below {path}",
                        "a file may include only what is listed above it: move the shared part to a lower layer, pass "
                        "it in "
                        f"as an argument, or, if the order itself is wrong, move the line in {LIST}")
        elif target in self.with_public:
            self.with_public.add(path)

    def section(self, entry):
        bar = "// " + "-" * max(4, 96 - len(entry.path)) + " " + entry.path
        return ["", bar, ""] + self.body(entry.path, self.rank[entry.path], entry.conditions)

    def part(self, entries, around=lambda entry: ()):
        """Sections within the conditions of around() and of the list, which neighbours share."""
        out, open_ = [], ()
        for entry in entries:
            conditions = (*around(entry), *entry.conditions)
            if conditions != open_:
                out += ["", *(f"#endif  // {c}" for c in reversed(open_)), *conditions]
                open_ = conditions
            out += self.section(entry)
        out += ["", *(f"#endif  // {c}" for c in reversed(open_))] if open_ else []
        return out

    def make(self):
        """The text of each result by its path, or None when there are problems."""
        self.read_list()
        self.check_listed()
        if self.problems:
            return None
        public = self.body(PUBLIC, -1, ())
        version = next((m.group(1) for m in (re.match(r'#define AUSPEX_VERSION "([^"]+)"', l) for l in public) if m),
                       None)
        if not version:
            self.refuse(PUBLIC, 'has no line  #define AUSPEX_VERSION "x.y.z"',
                        "add it: the banner takes the version from there")
        library = [e for e in self.entries if e.path != C_PUBLIC and not e.path.startswith(C_FOLDER)]
        system = self.part([e for e in library if e.path.endswith(SYSTEM_HEADERS)])
        library = [e for e in library if not e.path.endswith(SYSTEM_HEADERS)]
        declarations = self.part([e for e in library if not e.path.endswith(".cpp")])
        self.hoisted = []
        code = self.part([e for e in library if e.path.endswith(".cpp")],
                         lambda e: (f"#if AUSPEX_PART({part_of(e.path)})",))
        code = [*self.hoisted, *code]
        self.hoisted = None
        results = {RESULT: self.header(version, public, system, declarations, code)}
        if C_PUBLIC in self.rank:
            results[C_RESULT] = self.c_header(version)
        if self.problems:
            return None
        return {path: "\n".join(lines) + "\n" for path, lines in results.items()}

    def header(self, version, public, system, declarations, code):
        return [
            f"// auspex {version}, the whole library in one header. Made by amalgamate.py: edit src/ and make it "
            f"again.",
            "// SPDX-License-Identifier: Apache-2.0",
            "#ifndef AUSPEX_HPP_INCLUDED",
            "#define AUSPEX_HPP_INCLUDED",
            "",
            *self.shielded(public),
            "",
            "#endif  // AUSPEX_HPP_INCLUDED",
            "",
            "// ==== the internals: declarations " + "=" * 68,
            "#if (defined(AUSPEX_IMPLEMENTATION) || defined(AUSPEX_INTERNALS)) && !defined(AUSPEX_INTERNALS_INCLUDED)",
            "#define AUSPEX_INTERNALS_INCLUDED",
            *system,
            "",
            *self.shielded(declarations),
            "",
            "#endif  // AUSPEX_INTERNALS_INCLUDED",
            "",
            "// ==== the internals: code " + "=" * 76,
            "#if defined(AUSPEX_IMPLEMENTATION) && !defined(AUSPEX_IMPLEMENTATION_INCLUDED)",
            "#define AUSPEX_IMPLEMENTATION_INCLUDED",
            "#ifndef AUSPEX_IMPLEMENTATION_PART",
            "#define AUSPEX_IMPLEMENTATION_PART 0",
            f"#elif AUSPEX_IMPLEMENTATION_PART < 1 || AUSPEX_IMPLEMENTATION_PART > {len(PARTS)}",
            f'#error "AUSPEX_IMPLEMENTATION_PART: expected 1 .. {len(PARTS)}, each in one source file, or nothing"',
            "#endif",
            "#define AUSPEX_PART(n) (AUSPEX_IMPLEMENTATION_PART == 0 || AUSPEX_IMPLEMENTATION_PART == (n))",
            *self.shielded(code),
            "#undef AUSPEX_PART",
            "",
            "#endif  // AUSPEX_IMPLEMENTATION_INCLUDED",
        ]

    def shielded(self, lines):
        """Lines in which the application's macros of these names are not defined; afterwards they are again."""
        hide = [line for name in SHIELDED for line in (f'#pragma push_macro("{name}")', f"#undef {name}")]
        return [*hide, *lines, "", *(f'#pragma pop_macro("{name}")' for name in SHIELDED)]

    def c_header(self, version):
        self.system_seen = set()
        public = self.body(C_PUBLIC, self.rank[C_PUBLIC], ())
        self.system_seen = set()  # those of the code come after auspex.hpp, in C++ alone
        code = self.part([e for e in self.entries if e.path.startswith(C_FOLDER)])
        return [
            f"/* auspex {version}, the C interface in one header. Made by amalgamate.py: edit src/ and make it again.",
            " */",
            "/* SPDX-License-Identifier: Apache-2.0 */",
            *public,
            "",
            "/* ==== the code " + "=" * 84 + " */",
            "#if defined(AUSPEX_C_IMPLEMENTATION) && !defined(AUSPEX_C_IMPLEMENTATION_INCLUDED)",
            "#define AUSPEX_C_IMPLEMENTATION_INCLUDED",
            "#ifndef __cplusplus",
            '#error "AUSPEX_C_IMPLEMENTATION is for one C++17 file; C files include auspex.h without it"',
            "#endif",
            '#include "auspex.hpp"',
            *self.shielded(code),
            "",
            "#endif /* AUSPEX_C_IMPLEMENTATION_INCLUDED */",
        ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed header instead of writing it")
    parser.add_argument("--root", default=os.path.dirname(os.path.abspath(__file__)),
                        help="the repository (default: beside this script)")
    parser.add_argument("--list", action="store_true", help="print the files in order, and stop")
    options = parser.parse_args()

    work = Amalgamation(options.root)
    results = work.make()
    if results is None:
        print(f"amalgamate.py: {len(work.problems)} problem{'s' if len(work.problems) > 1 else ''}\n", file=sys.stderr)
        print("\n".join(work.problems), file=sys.stderr)
        return 1
    if options.list:
        print("\n".join(e.path for e in work.entries))
        return 0

    return max([finish(options, path, text.encode("ascii")) for path, text in results.items()])


def finish(options, name, new):
    """Writes one result, or compares it; returns the exit code."""
    path = os.path.join(options.root, name)
    old = None
    if os.path.isfile(path):
        with open(path, "rb") as f:
            old = f.read()
    if options.check:
        if old == new:
            return 0
        where = "it does not exist"
        if old is not None:
            a, b = old.split(b"\n"), new.split(b"\n")
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            shown = lambda v: v[at].decode("latin-1")[:100] if at < len(v) else "(the end)"
            where = f"first difference in line {at + 1}\n    committed: {shown(a)}\n    new:       {shown(b)}"
        print(f"amalgamate.py: {name} is out of date: {where}\n    mend: python3 amalgamate.py && git add {name}",
              file=sys.stderr)
        return 1
    if old != new:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(new)
    count = new.count(b"\n")
    print(f"{name}: {count} lines, {len(new)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
