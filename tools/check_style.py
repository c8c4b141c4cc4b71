#!/usr/bin/env python3
"""Checks the style rules that a machine can check, and exits 1 if one is broken.

  tools/check_style.py             everything
  tools/check_style.py PATH...     only files under these paths

Words     no identifier has a retired word as one of its parts (lane_count, kLaneWidth), and no comment or document
          uses the retired jargon. RETIRED and JARGON below list both, with the words to use.
Text      ASCII only; lines of C++, GLSL and Python up to 120 columns, raw strings aside; no trailing blanks or tabs;
          files up to 650 lines, the public header aside.
Public    files under examples/ use the public interface alone: of src/ they include auspex.hpp only.
Version   files under src/ open `inline namespace AUSPEX_VERSION_NAMESPACE` right inside `namespace auspex`, so that two
          versions can be linked into one program.
Functions up to 100 lines outside shaders, measured by universal-ctags; the ten longest are printed.
Format    clang-format --dry-run with the repository's .clang-format.

Python's standard library only. Needs universal-ctags and clang-format 14 in PATH.
"""
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOMS = ("src", "shaders", "tests", "examples", "tools", "docs")
GENERATED = ("src/machine/vulkan/spirv.inc", "src/machine/vulkan/shader_contract.h", "src/base/unicode_table.inc")
ONE_FILE = ("src/auspex.hpp",)  # the public interface and its manual: one file by its purpose, of any length
MAX_COLUMNS, MAX_FUNCTION, MAX_FILE, N_SHOWN = 120, 100, 650, 10

CODE = (".cpp", ".h", ".hpp", ".inl")
SHADER = (".comp", ".glsl")

# A part of an identifier -> what to write instead. Forms of the word are listed one by one.
RETIRED = {
    "lane": "context", "lanes": "contexts",
    "drive": "device_loop", "drives": "device_loop", "driven": "device_loop", "driving": "device_loop",
    "settle": "drain, barrier or flush", "settles": "drain, barrier or flush", "settled": "drained or flushed",
    "fold": "fuse, apply or reduce", "folds": "fuse, apply or reduce", "folded": "fused, applied or reduced",
    "coin": "synthetic acceptance", "coins": "synthetic acceptance", "shadow": "acceptance probe",
    "blindness": "exploration cost", "hopeless": "unprofitable", "receipt": "statistics", "receipts": "statistics",
    "picker": "sampler", "pick": "sample", "picks": "samples", "picked": "sampled", "picking": "sampling",
    "woven": "interleaved", "weave": "interleave", "book": "codebook", "books": "codebooks", "super": "superblock",
    "shelf": "packed constants", "shelves": "packed constants", "reach": "buffer access", "reaches": "buffer access",
    "see": "invalidate", "behind": "pending hidden rows", "ladder": "alternatives", "rung": "alternative",
    "site": "layer builder", "frame": "model header", "most": "max", "least": "min", "otherwise": "fallback",
    "silence": "hot path", "twin": "counterpart", "twins": "counterparts", "fresh": "new, or up_to_date",
    "law": "invariant", "laws": "invariants", "spine": "include order", "door": "entry point", "doors": "entry points",
}
# Identifiers that keep a retired word, with the reason.
ALLOWED = {
    "super": "Python's built-in",
}
# Rooms in which `lane` is the field's word: an element of a SIMD register, an invocation of a subgroup.
LANE_ROOMS = ("src/machine/cpu/", "shaders/", "src/machine/vulkan/tune", "src/machine/vulkan/selftest")

# Jargon that no comment, error text or document uses, as regular expressions over whole words.
JARGON = {
    r"coins?": "synthetic acceptance", r"shadow (pass|row)(es|s)?": "acceptance probe",
    r"blindness": "exploration cost",
    r"hopeless": "unprofitable", r"receipts?": "statistics", r"pickers?": "sampler", r"woven": "interleaved",
    r"shelf|shelves": "packed constants", r"drives? itself|drives? themselves": "device decode loop",
    r"settles?|settled|settling": "drain, barrier or flush", r"tape of time": "timeline", r"the spine": "include order",
    r"floors?": "layer", r"silences?": "hot path", r"the law|laws?": "invariant",
    r"stands later": "later entries override",
    r"folds? (in|into|over|them|it|all)": "fuse, apply or reduce", r"twins?": "counterpart",
}
JARGON_RULE = re.compile("|".join(f"(?P<j{i}>\\b(?:{rule})\\b)" for i, rule in enumerate(JARGON)), re.IGNORECASE)
# Files that name the retired words themselves, or hold texts in which they are ordinary words.
JARGON_FREE = ("tools/check_style.py", "CHANGELOG.md", "examples/cli/texts.cpp", "LICENSE")
JARGON_ALLOWED = {
    "floor": ("std::floor", "floor(", "floorf", "_floor", "floor_"),
    "the law": ("Law of Succession",),
}

TOKEN = re.compile(r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<raw>R"\(.*?\)")|(?P<string>"(?:\\.|[^"\\\n])*")|"""
                   r"""(?P<char>'(?:\\.|[^'\\\n])+')|(?P<number>\b\d[\w.']*)|(?P<name>[A-Za-z_]\w*)""", re.DOTALL)
PY_TOKEN = re.compile(r'''(?P<comment>\#[^\n]*|"""[\s\S]*?""")|(?P<string>[rbf]{0,2}"(?:\\.|[^"\\\n])*"'''
                      r"""|[rbf]{0,2}'(?:\\.|[^'\\\n])*')|(?P<name>[A-Za-z_]\w*)""")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def tracked(paths):
    """Files that git tracks or that are new and not ignored."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    wanted = [os.path.relpath(os.path.abspath(p), ROOT) for p in paths]
    names = []
    for name in sorted(set(out.stdout.splitlines())):
        if wanted and not any(name == w or name.startswith(w + "/") or w == "." for w in wanted):
            continue
        if os.path.isfile(os.path.join(ROOT, name)):
            names.append(name)
    return names


def is_text(name):
    return name.endswith(CODE + SHADER + (".py", ".sh", ".md", ".inc", ".txt")) or name in (".ci/run", ".clang-format")


def is_code(name):
    if name in ("amalgamate.py", "CMakeLists.txt"):
        return True
    return name.endswith(CODE + SHADER + (".py", ".sh")) and name.startswith(ROOMS)


class Report:
    def __init__(self):
        self.count = {}

    def add(self, rule, name, line, text):
        self.count[rule] = self.count.get(rule, 0) + 1
        print(f"{name}:{line}: {rule}: {text}")


def raw_lines(name, text):
    """The numbers of lines that a raw string is on: clang-format does not break them either."""
    found = set()
    for match in re.finditer(r'R"(\w*)\(.*?\)\1"', text, re.DOTALL) if name.endswith(CODE) else ():
        first = text.count("\n", 0, match.start()) + 1
        found.update(range(first, first + match.group(0).count("\n") + 1))
    return found


def check_text(report, name, text):
    lines = text.split("\n")
    raw = raw_lines(name, text)
    for i, line in enumerate(lines, 1):
        bad = next((c for c in line if ord(c) > 126 or (ord(c) < 32 and c != "\t")), None)
        if bad is not None:
            report.add("ascii", name, i, f"character U+{ord(bad):04X}; write it in ASCII or as an escape")
        if is_code(name):
            if len(line) > MAX_COLUMNS and i not in raw and name.endswith(CODE + SHADER + (".py",)):
                report.add("columns", name, i, f"{len(line)} columns, expected at most {MAX_COLUMNS}")
            if "\t" in line:
                report.add("blanks", name, i, "a tab; write spaces or \\t")
        if line != line.rstrip():
            report.add("blanks", name, i, "trailing blanks")
    n = len(lines) - 1
    if is_code(name) and n > MAX_FILE and name not in ONE_FILE:
        report.add("file", name, n, f"{n} lines, expected at most {MAX_FILE}; split it by what its parts do")


def check_name(report, name, line, identifier, seen):
    if identifier in ALLOWED or (identifier, name) in seen:
        return
    for part in PART.findall(identifier):
        word = part.lower()
        if word not in RETIRED or (word in ("lane", "lanes") and name.startswith(LANE_ROOMS)):
            continue
        seen.add((identifier, name))
        report.add("identifier", name, line, f"'{identifier}' has the retired word '{word}'; write {RETIRED[word]}")


def check_prose(report, name, line, text):
    for match in JARGON_RULE.finditer(text):
        word = match.group(0).lower()
        around = text[max(0, match.start() - 5):match.end() + 20]
        if any(a in around for a in JARGON_ALLOWED.get(word, ())):
            continue
        better = list(JARGON.values())[int(match.lastgroup[1:])]
        report.add("jargon", name, line + text.count("\n", 0, match.start()), f"'{match.group(0)}'; write {better}")


def check_words(report, name, text):
    if name in JARGON_FREE:
        return
    if name.endswith((".md", ".txt", ".sh")):
        return check_prose(report, name, 1, text)
    seen = set()
    for match in (PY_TOKEN if name.endswith(".py") else TOKEN).finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match.lastgroup == "name":
            check_name(report, name, line, match.group(0), seen)
        elif match.lastgroup in ("comment", "string", "raw"):
            check_prose(report, name, line, match.group(0))


def blank(match):
    """As many lines, and nothing on them."""
    return "\n" * match.group(0).count("\n")


def check_public(report, name, text):
    """The examples must be possible for any user of the header."""
    if not name.startswith("examples/") or not name.endswith(CODE):
        return
    for i, line in enumerate(text.split("\n"), 1):
        include = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if include and "/" in include.group(1) or re.search(r"\bdetail::|\bimpl\(\)", line):
            report.add("public", name, i, "uses internals; use auspex.hpp alone, or move it to tools/ or tests/")


OPENS_AUSPEX = re.compile(r"\bnamespace\s+auspex\b(?P<nested>\s*::[\w:\s]*)?\s*\{")
OPENS_VERSION = re.compile(r"\s*inline\s+namespace\s+AUSPEX_VERSION_NAMESPACE\s*\{")


def check_version(report, name, text):
    """Names outside the version namespace would collide when two versions are linked into one program."""
    if not name.startswith("src/") or not name.endswith(CODE):
        return
    bare = TOKEN.sub(lambda m: blank(m) if m.lastgroup in ("comment", "string", "raw", "char") else m.group(0), text)
    for match in OPENS_AUSPEX.finditer(bare):
        if match.group("nested") or not OPENS_VERSION.match(bare, match.end()):
            report.add("version", name, bare.count("\n", 0, match.start()) + 1,
                       "opens namespace auspex without 'inline namespace AUSPEX_VERSION_NAMESPACE {' right after it")


def functions(names):
    """(lines, file, first line, name) of every C++ and Python function, longest first."""
    tool = shutil.which("ctags")
    if not tool:
        sys.exit("check_style: ctags is missing; install universal-ctags")
    command = [tool, "--output-format=json", "--fields=+ne", "--kinds-C++=f", "--kinds-Python=fm",
               "--langmap=C++:+.inl",
               "-L", "-", "-f", "-"]
    out = subprocess.run(command, cwd=ROOT, input="\n".join(names), capture_output=True, text=True)
    if out.returncode != 0:
        sys.exit(f"check_style: {tool} failed, expected universal-ctags with JSON output: {out.stderr.strip()}")
    found = []
    for row in out.stdout.splitlines():
        tag = json.loads(row)
        if "end" in tag:
            found.append((tag["end"] - tag["line"] + 1, tag["path"], tag["line"], tag["name"]))
    return sorted(found, reverse=True)


def check_functions(report, names):
    found = functions([n for n in names if n.endswith(CODE + (".py",)) and not n.startswith("shaders/")])
    if found:
        print(f"the {N_SHOWN} longest functions:")
    for n, path, line, name in found[:N_SHOWN]:
        print(f"  {n:4} lines  {path}:{line} {name}")
    for n, path, line, name in found:
        if n > MAX_FUNCTION:
            report.add("function", path, line, f"{name} has {n} lines, expected at most {MAX_FUNCTION}")


def check_format(report, names):
    tool = shutil.which("clang-format-14") or shutil.which("clang-format")
    if not tool:
        sys.exit("check_style: clang-format is missing; install clang-format-14 (or clang-format of that version)")
    files = [n for n in names if n.endswith(CODE) and not n.startswith("shaders/")]
    for at in range(0, len(files), 64):
        out = subprocess.run([tool, "--dry-run", *files[at:at + 64]], cwd=ROOT, capture_output=True, text=True)
        if out.returncode:
            sys.exit(f"check_style: {tool} failed: {out.stderr.strip() or out.returncode}")
        first = {}
        for name, line in re.findall(r"^(\S+?):(\d+):\d+: \w+: code should be clang-formatted", out.stderr,
                                     re.MULTILINE):
            first.setdefault(name, line)
        for name, line in first.items():
            report.add("format", name, line, f"not formatted; run clang-format -i {name}")


def main():
    names = [n for n in tracked(sys.argv[1:]) if is_text(n) and n not in GENERATED
             and not n.startswith("single_include/")]
    if not names:
        sys.exit("check_style: no file to check; expected paths inside the repository")
    report = Report()
    for name in names:
        with open(os.path.join(ROOT, name), "rb") as f:
            text = f.read().decode("utf-8", "replace")
        check_text(report, name, text)
        check_words(report, name, text)
        check_public(report, name, text)
        check_version(report, name, text)
    check_functions(report, names)
    check_format(report, names)
    total = sum(report.count.values())
    print(f"{len(names)} files, {total} findings" + "".join(f", {n} {rule}" for rule,
                                                            n in sorted(report.count.items())))
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    main()
