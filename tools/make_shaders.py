#!/usr/bin/env python3
"""Compiles shaders/*.comp to SPIR-V and writes src/machine/vulkan/spirv.inc and, beside it, shader_contract.h.

  make_shaders.py                 compile what changed and write spirv.inc
  make_shaders.py --all           compile everything and write spirv.inc
  make_shaders.py --check         compare both files with a new run; on a difference, say what to run
  make_shaders.py --list          the modules, their sizes and where they come from
  make_shaders.py --skip-broken   leave out sources that do not compile (while working on them)
  make_shaders.py --out FILE      write elsewhere (shader_contract.h goes to the same folder)
  make_shaders.py --prebuild NAME --glslc PATH   renew shaders/prebuilt/NAME.spv with a newer glslc

Needs Python's standard library and glslc (Debian: glslc; checked with spirv-val where it is there).

A source says in comment lines what is made of it. Without such a line: one module of the file's name.
  // variant: NAME [-DKEY=VALUE ...] [@khr] [@nv] [@prebuilt] [@product]
  // lint: exact          every float add, subtract and multiply must be `precise` or an fma
A name that ends in <layout> makes a module for each layout of weights. A file in shaders/quant lists its layouts:
  // layout: NAME UNITS [-DKEY=VALUE ...] [@product]
UNITS      16-byte units of a tile. The modules of a layout are compiled with its defines and with TILE = UNITS, and
           their `#include "layout.glsl"` is the file with that line. shader_contract.h gets the list as
           AUSPEX_LAYOUTS, from which the host takes names and sizes.
@product   the layout has a product(). A variant with this word is made for such layouts only.
@khr       the source uses GL_NV_cooperative_matrix with M, N and K as three different specialization
           constants; the module is rewritten to SPV_KHR_cooperative_matrix, which glslc of Debian 12
           cannot write by itself.
@nv        the source uses GL_NV_cooperative_matrix as it is.
           Modules with @khr or @nv are SPIR-V 1.5, of Vulkan 1.2; all others SPIR-V 1.3, of Vulkan 1.1.
@prebuilt  the source needs a newer glslc than Debian 12's. Its module is committed as
           shaders/prebuilt/NAME.spv, with the hash of the source beside it in NAME.source; --check
           finds a stale one without the compiler, and --prebuild renews it.
"""
import argparse, hashlib, os, re, shutil, struct, subprocess, sys, tempfile, zlib
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import shader_contract

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHADERS = os.path.join(ROOT, "shaders")
PREBUILT = os.path.join(SHADERS, "prebuilt")
OUT = os.path.join(ROOT, "src", "machine", "vulkan", "spirv.inc")
FLAGS = ["-fshader-stage=compute", "-O"]
INCLUDES = [SHADERS, os.path.join(SHADERS, "quant")]
MAGIC = 0x50535841
MEND = "run: python3 tools/make_shaders.py"

# Capabilities that src/machine/vulkan/shader.cpp knows how to ask a device for.
CAPABILITIES = {0, 1, 9, 11, 22, 39, 61, 62, 63, 64, 65, 66, 67, 68, 4433, 4448, 4466, 4467, 5345, 5346, 5347, 5357,
                6016, 6017, 6018, 6019, 6022}


class Broken(Exception):
    pass


class Layout:
    """How a matrix of weights lies on the device: a `// layout:` line of a file in shaders/quant."""

    def __init__(self, line, source):
        words = line.split()
        odd = [w for w in words[2:] if not w.startswith("-D") and w != "@product"]
        if len(words) < 2 or odd or not re.fullmatch(r"[a-z0-9_]+", words[0]) or not words[1].isdecimal():
            raise Broken(f"{os.path.relpath(source, ROOT)}: the layout line '{line}' has an odd name, size or word")
        self.name, self.units, self.source = words[0], int(words[1]), source
        self.product = "@product" in words
        self.defines = [w for w in words if w.startswith("-D")] + [f"-DTILE={self.units}u"]


class Module:
    def __init__(self, name, source, words, exact, layout=None):
        self.name, self.source, self.exact, self.layout = name, source, exact, layout
        self.khr, self.prebuilt = "@khr" in words, "@prebuilt" in words
        self.target = "vulkan1.2" if self.khr or "@nv" in words else "vulkan1.1"
        self.flags = FLAGS + [f"--target-env={self.target}"]
        self.defines = [w for w in words if w.startswith("-D")] + (layout.defines if layout else [])
        self.family = os.path.basename(source)[:-5]  # variants of one source share their specialization constants
        self.words, self.origin, self.contract = None, None, None
        self.hash = source_hash(source, self.flags + self.defines + (["@khr"] if self.khr else []), layout)


def read_text(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def read_for_shaders(path):
    """A file without what only C++ reads: #ifdef __cplusplus, without conditions inside, up to #else or #endif."""
    lines = r"(?:(?!#(?:if|el|endif)).*\n)*"
    return re.sub(rf"^#ifdef __cplusplus\n{lines}(?:#else\n({lines}))?#endif\n", r"\1", read_text(path), flags=re.M)


def closure(path, seen, layout):
    """The file and everything it includes, in order of first use."""
    if path in seen:
        return seen
    seen.append(path)
    for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', read_for_shaders(path), re.M):
        inner = [os.path.normpath(os.path.join(folder, name)) for folder in [os.path.dirname(path)] + INCLUDES]
        if layout and name == "layout.glsl":
            inner = [layout.source]
        found = next((i for i in inner if os.path.exists(i)), None)
        if found is None:
            raise Broken(f"{os.path.relpath(path, ROOT)} includes \"{name}\", which is nowhere")
        closure(found, seen, layout)
    return seen


def source_hash(path, flags, layout):
    """Of the flags and of the code with everything it includes; comments and white space do not count."""
    h = hashlib.sha256("\0".join(flags).encode())
    for part in closure(path, [], layout):
        lines = shader_contract.strip_comments(read_for_shaders(part)).split("\n")
        code = "\n".join(" ".join(l.split()) for l in lines if l.strip())
        h.update(os.path.basename(part).encode() + b"\0" + code.encode() + b"\0")
    return h.hexdigest()[:16]


def find_layouts():
    layouts, folder = {}, os.path.join(SHADERS, "quant")
    for file in sorted(os.listdir(folder)):
        path = os.path.join(folder, file)
        for line in re.findall(r"^//\s*layout:[ \t]*(.*)$", read_text(path), re.M):
            layout = Layout(line, path)
            if layout.name in layouts:
                raise Broken(f"shaders/quant/{file}: layout '{layout.name}' is one of "
                             f"{os.path.basename(layouts[layout.name].source)}, too")
            layouts[layout.name] = layout
    return [layouts[name] for name in sorted(layouts)]


def expand(variants, layouts):
    """[(name, words, layout or None)] of variant lines: one for each layout where the name asks for that."""
    out = []
    for name, *words in variants:
        if not name.endswith("_<layout>"):
            out.append((name, words, None))
            continue
        out += [(name.replace("<layout>", layout.name), words, layout) for layout in layouts
                if layout.product or "@product" not in words]
    return out


def find_modules(layouts, skip_broken=False):
    modules, names = [], {}
    for file in sorted(os.listdir(SHADERS)):
        if not file.endswith(".comp"):
            continue
        path = os.path.join(SHADERS, file)
        text = read_text(path)
        exact = re.search(r"^//\s*lint:\s*exact\b", text, re.M) is not None
        variants = [v.split() for v in re.findall(r"^//\s*variant:[ \t]*(\S.*)$", text, re.M)] or [[file[:-5]]]
        for name, words, layout in expand(variants, layouts):
            known = ("@khr", "@nv", "@prebuilt") + (("@product",) if layout else ())
            unknown = [w for w in words if not w.startswith("-D") and w not in known]
            if unknown or not re.fullmatch(r"[a-z0-9_]+", name):
                raise Broken(f"shaders/{file}: the variant line '{' '.join([name] + words)}' has an odd name or word")
            if name in names:
                raise Broken(f"shaders/{file}: module '{name}' is made by {names[name]}, too")
            names[name] = file
            try:
                modules.append(Module(name, path, words, exact, layout))
            except Broken as e:
                if not skip_broken:
                    raise
                print(f"skipped: {name}: {e}", file=sys.stderr)
    return sorted(modules, key=lambda m: m.name)


def glslc_version(glslc):
    try:
        r = subprocess.run([glslc, "--version"], capture_output=True, text=True)
    except OSError:
        return None
    return ", ".join(l.strip() for l in r.stdout.splitlines()[:3]) if r.returncode == 0 else None


def call_glslc(glslc, m, words, what):
    """Runs the compiler on a module's source, with its layout as layout.glsl; returns what it wrote, as bytes."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        if m.layout:
            with open(os.path.join(folder, "layout.glsl"), "w") as f:
                f.write(f'#include "quant/{os.path.basename(m.layout.source)}"\n')
        folders = [f"-I{i}" for i in INCLUDES + [folder]]
        command = [glslc] + words + m.flags + folders + m.defines + [m.source, "-o", out]
        r = subprocess.run(command, capture_output=True, text=True)
        if r.returncode != 0:
            raise Broken(f"{m.name} ({os.path.relpath(m.source, ROOT)}) does not {what}:\n{r.stderr.strip()}")
        with open(out, "rb") as f:
            return f.read()


def preprocess(glslc, m):
    return call_glslc(glslc, m, ["-E"], "preprocess").decode()


def run_glslc(glslc, m):
    data = call_glslc(glslc, m, [], "compile")
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def instructions(words):
    at = 5
    while at < len(words):
        n, op = words[at] >> 16, words[at] & 0xFFFF
        if n == 0 or at + n > len(words):
            raise Broken("the module is cut short")
        yield op, words[at:at + n]
        at += n


def text_words(s):
    b = s.encode() + b"\0"
    b += b"\0" * (-len(b) % 4)
    return list(struct.unpack(f"<{len(b) // 4}I", b))


def to_khr(words):
    """SPV_NV_cooperative_matrix to SPV_KHR_cooperative_matrix.

    NV matrix types carry no Use; it follows from their two sizes, because M, N and K are different
    specialization constants: A is M x K, B is K x N, an accumulator M x N. The muladd instructions
    tell which type is which. Load, store and muladd change their operand forms.
    """
    code = list(instructions(words))
    type_of, types, uint, booleans, signed = {}, {}, None, {}, set()
    for op, w in code:
        if op == 5358:                                # OpTypeCooperativeMatrixNV: result component scope rows cols
            types[w[1]] = w[2]
        elif op == 21:                                # OpTypeInt: result width signedness
            if w[2:] == [32, 0]:
                uint = w[1]
            if w[3] == 1:
                signed.add(w[1])
        elif op in (41, 42):                          # OpConstantTrue, OpConstantFalse
            booleans[w[2]] = op == 41
    # Types of all results, by walking instructions that begin with a result type.
    for op, w in code:
        if len(w) > 2 and w[1] in types:
            type_of[w[2]] = w[1]
    use = {}
    for op, w in code:
        if op == 5361:                                # result type, result, A, B, C
            for operand, kind in ((w[3], 0), (w[4], 1), (w[5], 2)):
                t = type_of.get(operand)
                if t is None or use.setdefault(t, kind) != kind:
                    raise Broken("@khr: one matrix type is used in two roles: "
                                 "make M, N and K three different constants")
    for t in types:
        use.setdefault(t, 2)
    bound = words[3]
    constants = {}

    def constant(v):                                  # always a new one: an old one may come too late
        nonlocal bound
        if v not in constants:
            constants[v] = bound
            bound += 1
        return constants[v]

    if uint is None:
        raise Broken("@khr: the module has no uint type")
    body = []
    for op, w in code:
        w = list(w)
        if op == 17 and w[1] == 5357:                 # OpCapability
            w[1] = 6022
        elif op == 10 and w[1:] == text_words("SPV_NV_cooperative_matrix"):
            w = [0] + text_words("SPV_KHR_cooperative_matrix")
        elif op == 5358:
            op, w = 4456, w + [constant(use[w[1]])]
        elif op == 5359:                              # result type, result, pointer, stride, column major, [access]
            op, w = 4457, w[:4] + [constant(int(booleans[w[5]])), w[4]] + w[6:]
        elif op == 5360:                              # pointer, object, stride, column major, [access]
            op, w = 4458, w[:3] + [constant(int(booleans[w[4]])), w[3]] + w[5:]
        elif op == 5361:
            op = 4459
            roles = [type_of[w[3]], type_of[w[4]], type_of[w[5]], w[1]]
            mask = sum(1 << i for i, t in enumerate(roles) if types[t] in signed)
            if mask:                                  # NV reads the sign off the type, KHR wants to be told
                w.append(mask)
        elif op == 5362:
            op = 4460
        elif op == 52 and w[3] == 5362:               # OpSpecConstantOp
            w[3] = 4460
        w[0] = len(w) << 16 | op
        body.append((op, w))
    # New constants go right before the first matrix type, which comes after uint (it uses its constants).
    out = []
    added = False
    for op, w in body:
        if op == 4456 and not added:
            for v, i in sorted(constants.items()):
                out.extend([4 << 16 | 43, uint, i, v])
            added = True
        out.extend(w)
    return words[:3] + [bound, words[4]] + out


def shared_with_stride(words):
    """True if a shared variable has a type with strides or offsets: VUID-StandaloneSpirv-None-10684, which only newer
    validation checks. glslc takes one type for arrays of the same length in a buffer, in arguments and in shared
    memory."""
    laid_out, parts, shared = set(), {}, []
    for op, w in instructions(words):
        if op == 71 and w[2] == 6:                   # OpDecorate ArrayStride
            laid_out.add(w[1])
        elif op == 72 and w[3] == 35:                # OpMemberDecorate Offset
            laid_out.add(w[1])
        elif op in (28, 29):                         # OpTypeArray, OpTypeRuntimeArray
            parts[w[1]] = [w[2]]
        elif op == 30:                               # OpTypeStruct
            parts[w[1]] = w[2:]
        elif op == 32 and w[2] == 4:                 # OpTypePointer Workgroup
            shared.append(w[3])
    while shared:
        t = shared.pop()
        if t in laid_out:
            return True
        shared += parts.get(t, [])
    return False


def lint(m):
    """Refuses what breaks on some driver or makes bits depend on it."""
    precise, wrong = set(), []
    for op, w in instructions(m.words):
        if op == 17 and w[1] not in CAPABILITIES:
            wrong.append(f"capability {w[1]} is unknown to module_fits() in src/machine/vulkan/shader.cpp")
        elif op == 71 and w[2] == 42:                # OpDecorate NoContraction
            precise.add(w[1])
        elif op == 350:                              # OpGroupNonUniformFAdd: its order is the driver's choice
            wrong.append("subgroupAdd on floats: sum with xor shuffles, whose order is fixed")
    if m.exact:
        loose = sum(1 for op, w in instructions(m.words) if op in (129, 131, 133, 142, 148) and w[2] not in precise)
        if loose:
            wrong.append(f"{loose} float operations may be contracted: mark them precise or use fma")
    if shared_with_stride(m.words):
        wrong.append("a shared array has the stride of an array in a buffer or in the arguments, whose type it shares: "
                     "give it another length")
    if wrong:
        raise Broken(f"{m.name}: " + "; ".join(sorted(set(wrong))))


def validate(m, spirv_val):
    if not spirv_val or m.khr or m.prebuilt:         # Debian 12's spirv-val knows no KHR matrices
        return
    with tempfile.NamedTemporaryFile(suffix=".spv") as f:
        f.write(struct.pack(f"<{len(m.words)}I", *m.words))
        f.flush()
        r = subprocess.run([spirv_val, "--target-env", m.target, f.name], capture_output=True, text=True)
    if r.returncode != 0:
        raise Broken(f"{m.name}: spirv-val says: {(r.stdout + r.stderr).strip()}")


def load_prebuilt(m):
    path = os.path.join(PREBUILT, m.name)
    how = f"run: python3 tools/make_shaders.py --prebuild {m.name} --glslc PATH (glslc 2025.2 or newer)"
    if not os.path.exists(path + ".spv") or not os.path.exists(path + ".source"):
        raise Broken(f"shaders/prebuilt/{m.name}.spv or .source is missing; {how}")
    if read_text(path + ".source").split()[0] != m.hash:
        raise Broken(f"shaders/prebuilt/{m.name}.spv is older than its source; {how}")
    with open(path + ".spv", "rb") as f:
        data = f.read()
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def compile_module(m, glslc, spirv_val, held=None):
    """Fills words, origin and contract. `held`: (hash, origin, bytes) in spirv.inc, taken if up to date."""
    if held and held[0] == m.hash:
        m.words, m.origin = list(struct.unpack(f"<{len(held[2]) // 4}I", held[2])), held[1]
    elif m.prebuilt:
        m.words, m.origin = load_prebuilt(m), "prebuilt"
    else:
        m.words, m.origin = run_glslc(glslc, m), "glslc"
        if m.khr:
            try:
                m.words, m.origin = to_khr(m.words), "glslc+khr"
            except (Broken, KeyError) as e:
                raise Broken(f"{m.name}: rewriting to KHR matrices failed: {e}")
    lint(m)
    validate(m, spirv_val)
    try:
        m.contract = shader_contract.reflect(list(instructions(m.words)), preprocess(glslc, m))
    except shader_contract.Mismatch as e:
        raise Broken(f"{m.name} ({os.path.relpath(m.source, ROOT)}): {e}")


def contract_path(path):
    return os.path.join(os.path.dirname(os.path.abspath(path)), "shader_contract.h")


def render_contract(modules, layouts):
    try:
        return shader_contract.render(modules, layouts, [f for f in os.listdir(SHADERS) if f.endswith(".h")])
    except shader_contract.Mismatch as e:
        raise Broken(str(e))


def text_hash(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def pack(modules):
    names, words, index = b"", [], []
    n_head = 2 + 4 * len(modules)
    for m in modules:
        index.append([4 * n_head + len(names), len(m.name), len(words), len(m.words)])
        names += m.name.encode()
        words += m.words
    names += b"\0" * (-len(names) % 4)
    first = n_head + len(names) // 4
    head = [MAGIC, len(modules)] + [v for e in index for v in (e[0], e[1], e[2] + first, e[3])]
    return struct.pack(f"<{len(head)}I", *head) + names + struct.pack(f"<{len(words)}I", *words)


# Base 85, five characters for four bytes: what stands between '#' and 'y' but for the two that a literal
# would have to escape. A third of the size of octal escapes.
DIGITS = "".join(chr(c) for c in range(35, 122) if chr(c) not in "\\?")


def to_text(data):
    text = []
    for (word,) in struct.iter_unpack(">I", data + b"\0" * (-len(data) % 4)):
        text.append("".join(DIGITS[word // 85**k % 85] for k in (4, 3, 2, 1, 0)))
    return "".join(text)


def from_text(text):
    out = bytearray()
    for at in range(0, len(text), 5):
        word = 0
        for c in text[at:at + 5]:
            word = word * 85 + DIGITS.index(c)
        out += struct.pack(">I", word)
    return bytes(out)


def render(modules, version, contract):
    """The text of spirv.inc; `contract` is that of shader_contract.h."""
    raw = pack(modules)
    packed = zlib.compress(raw, 9)
    out = ["// Generated by tools/make_shaders.py from shaders/*.comp: do not edit; --check proves it fresh.",
           f"// compiler: {version}", f"// contract: {text_hash(contract)}",
           "// module: name, hash of its source, words, origin"]
    out += [f"// module: {m.name} {m.hash} {len(m.words)} {m.origin}" for m in modules]
    out += ["", "// A zlib stream in base 85, in pieces, because compilers limit the length of one literal.",
            f"constexpr uint64_t kSpirvRawBytes = {len(raw)};",
            f"constexpr uint64_t kSpirvPackedBytes = {len(packed)};",
            "constexpr const char* kSpirvChunks[] = {"]
    text = to_text(packed)
    for at in range(0, len(text), 12000):
        chunk = text[at:at + 12000]
        out += ["    " + "\n    ".join(f'"{chunk[i:i + 120]}"' for i in range(0, len(chunk), 120)) + ","]
    out += ["};", ""]
    return "\n".join(out)


def parse(text):
    """spirv.inc back to (compiler, {name: (hash, origin, words)})."""
    version = re.search(r"^// compiler: (.*)$", text, re.M)
    listed = {n: (h, o) for n, h, w, o in re.findall(r"^// module: (\w+) ([0-9a-f]{16}) (\d+) (\S+)$", text, re.M)}
    size = int(re.search(r"kSpirvPackedBytes = (\d+);", text).group(1))
    raw = zlib.decompress(from_text("".join(re.findall(r'"([^"\n]*)"', text.split("kSpirvChunks[]", 1)[1])))[:size])
    magic, n = struct.unpack_from("<2I", raw)
    if magic != MAGIC:
        raise Broken("no magic")
    modules = {}
    for i in range(n):
        name_at, name_n, word_at, word_n = struct.unpack_from("<4I", raw, 8 + 16 * i)
        name = raw[name_at:name_at + name_n].decode()
        modules[name] = listed.get(name, ("", "")) + (raw[4 * word_at:4 * (word_at + word_n)],)
    return version.group(1) if version else "", modules


def up_to_date(path, version):
    """The modules of spirv.inc if this compiler wrote it; none if it is missing or damaged."""
    try:
        held_version, held = parse(read_text(path))
    except (OSError, Broken, zlib.error, struct.error, ValueError, IndexError, AttributeError):
        return {}
    return held if held_version == version else {}


def check(modules, layouts, glslc, spirv_val, path):
    for p in (path, contract_path(path)):
        if not os.path.exists(p):
            raise Broken(f"{os.path.relpath(p, ROOT)} is missing; {MEND}")
    try:
        version, held = parse(read_text(path))
    except (Broken, zlib.error, struct.error, ValueError, IndexError, AttributeError) as e:
        raise Broken(f"{os.path.relpath(path, ROOT)} is damaged ({e}); {MEND}")
    wrong = []
    wanted = {m.name: m for m in modules}
    wrong += [f"module '{n}' has no source any more" for n in sorted(set(held) - set(wanted))]
    wrong += [f"module '{n}' ({os.path.relpath(wanted[n].source, ROOT)}) is missing"
              for n in sorted(set(wanted) - set(held))]
    wrong += [f"module '{n}' is older than {os.path.relpath(m.source, ROOT)} or what it includes"
              for n, m in sorted(wanted.items()) if n in held and held[n][0] != m.hash]
    if wrong:
        raise Broken("spirv.inc is stale:\n  " + "\n  ".join(wrong) + f"\n{MEND}")
    if f"// contract: {text_hash(read_text(contract_path(path)))}\n" not in read_text(path):
        raise Broken(f"shader_contract.h is not the one that was written with spirv.inc; {MEND}")
    here = glslc_version(glslc)
    if here is None:
        print(f"spirv.inc: {len(held)} modules, sources unchanged. glslc is not installed: nothing was compiled.")
        return
    compile_all(modules, glslc, spirv_val, False)
    same = [m for m in modules if struct.pack(f"<{len(m.words)}I", *m.words) == held[m.name][2]]
    if here == version and len(same) != len(modules):
        names = ", ".join(m.name for m in modules if m not in same)
        raise Broken(f"spirv.inc differs from a fresh compilation with the same compiler ({names}); {MEND}")
    contract = render_contract(modules, layouts)
    if contract != read_text(contract_path(path)):
        raise Broken(f"shader_contract.h differs from what the modules of a new compilation say; {MEND}")
    if here == version and read_text(path) != render(modules, version, contract):
        raise Broken(f"spirv.inc was edited by hand; {MEND}")
    if here == version:
        print(f"spirv.inc is fresh: {len(modules)} modules, byte for byte.")
    else:
        print(f"spirv.inc: {len(modules)} modules, sources unchanged, all compile here; {len(same)} byte for byte.\n"
              f"  written with {version}\n  checked with {here}")


def compile_all(modules, glslc, spirv_val, skip_broken, held={}):
    broken = []

    def one(m):
        try:
            compile_module(m, glslc, spirv_val, held.get(m.name))
        except Broken as e:
            broken.append((m, e))
    with ThreadPoolExecutor(max_workers=max(1, min(4, os.cpu_count() or 1))) as pool:
        list(pool.map(one, modules))
    if broken and not skip_broken:
        raise Broken("\n".join(str(e) for m, e in sorted(broken, key=lambda b: b[0].name)))
    for m, e in sorted(broken, key=lambda b: b[0].name):
        print(f"skipped: {e}", file=sys.stderr)
        modules.remove(m)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--check", action="store_true", help="prove that spirv.inc is fresh")
    p.add_argument("--all", action="store_true", help="compile modules whose source did not change, too")
    p.add_argument("--list", action="store_true", help="list the modules in spirv.inc")
    p.add_argument("--skip-broken", action="store_true", help="leave out what does not compile")
    p.add_argument("--out", default=OUT, help="the file to write or check")
    p.add_argument("--glslc", default="glslc", help="the compiler")
    p.add_argument("--prebuild", metavar="NAME", help="compile a @prebuilt module with a newer glslc")
    a = p.parse_args()
    try:
        if a.list:
            version, held = parse(read_text(a.out))
            print(version)
            for name, (h, origin, words) in sorted(held.items()):
                print(f"{len(words):8d} bytes  {origin:10s} {name}")
            return 0
        layouts = find_layouts()
        modules = find_modules(layouts, a.skip_broken)
        spirv_val = shutil.which("spirv-val")
        if a.prebuild:
            m = next((m for m in modules if m.name == a.prebuild and m.prebuilt), None)
            if m is None:
                raise Broken(f"no source has the line '// variant: {a.prebuild} @prebuilt'")
            words = run_glslc(a.glslc, m)
            os.makedirs(PREBUILT, exist_ok=True)
            with open(os.path.join(PREBUILT, m.name + ".spv"), "wb") as f:
                f.write(struct.pack(f"<{len(words)}I", *words))
            with open(os.path.join(PREBUILT, m.name + ".source"), "w") as f:
                f.write(f"{m.hash} {glslc_version(a.glslc)}\n")
            print(f"wrote shaders/prebuilt/{m.name}.spv, {4 * len(words)} bytes; now {MEND}")
            return 0
        if a.check:
            check(modules, layouts, a.glslc, spirv_val, a.out)
            return 0
        version = glslc_version(a.glslc)
        if version is None:
            raise Broken("glslc was not found: install it (Debian: apt install glslc), or give its path with --glslc")
        compile_all(modules, a.glslc, spirv_val, a.skip_broken, {} if a.all else up_to_date(a.out, version))
        contract = render_contract(modules, layouts)
        text = render(modules, version, contract)
        for path, content in ((contract_path(a.out), contract), (a.out, text)):
            with open(path + ".new", "w", encoding="ascii") as f:
                f.write(content)
            os.replace(path + ".new", path)
        raw = sum(4 * len(m.words) for m in modules)
        print(f"{os.path.relpath(a.out)}: {len(modules)} modules, {raw} bytes of SPIR-V, {len(text)} characters")
        return 0
    except Broken as e:
        print(f"make_shaders: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
