"""What a compiled shader asks of its caller, as a C++ header: src/machine/vulkan/shader_contract.h.

make_shaders.py calls reflect() for each module and render() once. Names and declared access come from the preprocessed
source, everything else from the SPIR-V, and the two must agree: a module whose SPIR-V uses a binding or constant that
its source does not declare is refused.

  constants   id and name of each specialization constant, by source file (a "family": its variants share them)
  bindings    name, read or written; by descriptor, or by address behind the push constants
  push        bytes of the push constants and the struct that holds them
  group       invocations of a workgroup along x, y, z; x = 0: specialization constant 0 sets it
"""
import re

PUSH_BYTES = 128  # kPushBytes: addresses of buffers, if any, follow the push constants there
MAX_BINDINGS = 12

SPEC_ID, BLOCK, NON_WRITABLE, NON_READABLE, BINDING, OFFSET, BUILT_IN = 1, 2, 24, 25, 33, 35, 11
WORKGROUP_SIZE = 25
PUSH_CONSTANT = 9


BUFFER = (r"layout\s*\(([^)]*)\)\s*((?:(?:readonly|writeonly|coherent|restrict|volatile)\s+)*)"
          r"buffer\s+(\w+)\s*\{([^}]*)\}")


class Mismatch(Exception):
    pass


class Contract:
    """Of one module."""

    def __init__(self):
        self.constants = {}   # id: name, without the one that sets the group
        self.bindings = {}    # binding: [name, read, written]
        self.used = 0         # mask of the bindings that the SPIR-V uses
        self.addresses = False
        self.push_type, self.push_bytes = "", 0
        self.group = (1, 1, 1)


def strip_comments(text):
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", " ", text, flags=re.S))


def declared_access(qualifiers):
    words = qualifiers.split()
    return "writeonly" not in words, "readonly" not in words


def members(body):
    """[(type, name, is at the offset of the addresses or after it)] of a block."""
    out, addresses = [], False
    for part in body.split(";"):
        part = part.strip()
        if not part:
            continue
        offset = re.match(r"layout\s*\(\s*offset\s*=\s*(\w+)\s*\)\s*", part)
        if offset:
            addresses = addresses or offset.group(1) == "kPushBytes"
            part = part[offset.end():]
        words = part.split(None, 1)
        out += [(words[0], n.strip().split("[")[0], addresses) for n in words[1].split(",")]
    return out


def declared(text):
    """What the preprocessed source declares."""
    c = Contract()
    text = strip_comments(text)
    for i, name in re.findall(r"layout\s*\(\s*constant_id\s*=\s*(\d+)\s*\)\s*const\s+\w+\s+(\w+)\s*=", text):
        if int(i) != 0:
            c.constants[int(i)] = name
    references = {}
    for layout, qualifiers, block, body in re.findall(BUFFER, text):
        read, written = declared_access(qualifiers)
        name = members(body)[0][1].rstrip("_")
        binding = re.search(r"\bbinding\s*=\s*(\d+)", layout)
        if binding is None:
            references[block] = (name, read, written)
            continue
        held = c.bindings.setdefault(int(binding.group(1)), [name, False, False])
        held[1], held[2] = held[1] or read, held[2] or written
    push = re.search(r"layout\s*\(\s*push_constant[^)]*\)\s*uniform\s+\w+\s*\{(.*?)\}", text, re.S)
    if push:
        listed = members(push.group(1))
        plain = [m for m in listed if not m[2]]
        if len(plain) == 1 and plain[0][0].endswith("Args"):
            c.push_type = plain[0][0]
        for i, (kind, name, _) in enumerate(m for m in listed if m[2]):
            c.addresses = True
            _, read, written = references[kind]
            c.bindings[i] = [re.sub(r"^at_", "", name), read, written]
    return c


class Types:
    """Sizes in bytes of the types of a module, and what its decorations say."""

    def __init__(self, code):
        self.kind, self.value, self.decorations, self.member_decorations = {}, {}, {}, {}
        self.variables, self.local_size = {}, (1, 1, 1)
        for op, w in code:
            if op == 71:                                      # OpDecorate
                self.decorations.setdefault(w[1], {})[w[2]] = w[3] if len(w) > 3 else 0
            elif op == 72:                                    # OpMemberDecorate
                self.member_decorations.setdefault(w[1], {}).setdefault(w[2], {})[w[3]] = w[4] if len(w) > 4 else 0
            elif op in (20, 21, 22, 23, 24, 28, 29, 30, 32):  # types
                self.kind[w[1]] = (op, w)
            elif op in (43, 50):                              # OpConstant, OpSpecConstant
                self.value[w[2]] = w[3]
            elif op in (44, 51):                              # OpConstantComposite, OpSpecConstantComposite
                self.value[w[2]] = w[3:]
            elif op == 59:                                    # OpVariable
                self.variables[w[2]] = (w[1], w[3])
            elif op == 16 and w[2] == 17:                     # OpExecutionMode LocalSize
                self.local_size = tuple(w[3:6])

    def size(self, t):
        op, w = self.kind[t]
        if op in (21, 22):
            return w[2] // 8
        if op == 23:
            return self.size(w[2]) * w[3]
        if op == 28:
            return self.decorations[t][6] * self.value[w[3]]
        if op == 30:
            return self.block_bytes(t, 1 << 30)
        if op == 32:
            return 8
        raise Mismatch(f"a push constant has a type that is not understood (instruction {op})")

    def block_bytes(self, struct, limit):
        """End of the last member that begins below `limit`."""
        end = 0
        for i, member in enumerate(self.kind[struct][1][2:]):
            offset = self.member_decorations[struct][i][OFFSET]
            if offset < limit:
                end = max(end, offset + self.size(member))
        return end


def reflect(code, text):
    """The contract of a module, from its instructions and its preprocessed source."""
    c, t = declared(text), Types(code)
    c.group = t.local_size
    for target, d in t.decorations.items():
        if d.get(BUILT_IN) == WORKGROUP_SIZE:
            by_id = [t.decorations.get(x, {}).get(SPEC_ID) for x in t.value[target]]
            if by_id[0] not in (None, 0) or by_id[1:] != [None, None]:
                raise Mismatch("only specialization constant 0 may set the size of a workgroup, and only along x")
            c.group = tuple(0 if i == 0 else t.value[x] for i, x in zip(by_id, t.value[target]))
    for target, d in t.decorations.items():
        if SPEC_ID in d and d[SPEC_ID] != 0 and d[SPEC_ID] not in c.constants:
            raise Mismatch(f"specialization constant {d[SPEC_ID]} is used but not declared")
        if BINDING in d:
            b = d[BINDING]
            if b not in c.bindings or c.addresses:
                raise Mismatch(f"binding {b} is used but not declared")
            c.used |= 1 << b
            struct = t.kind[t.variables[target][0]][1][3]
            marks = t.member_decorations[struct].values()
            if not c.bindings[b][2] and not all(NON_WRITABLE in m for m in marks):
                raise Mismatch(f"binding {b} ({c.bindings[b][0]}) is declared readonly, but its module may write it")
    for pointer, storage in t.variables.values():
        if storage == PUSH_CONSTANT:
            c.push_bytes = t.block_bytes(t.kind[pointer][1][3], PUSH_BYTES)
    if c.addresses:
        c.used = (1 << len(c.bindings)) - 1
    if c.push_bytes > PUSH_BYTES:
        raise Mismatch(f"{c.push_bytes} bytes of push constants; {PUSH_BYTES} is the limit")
    if c.bindings and max(c.bindings) >= MAX_BINDINGS:
        raise Mismatch(f"binding {max(c.bindings)}; the layout has 0 to {MAX_BINDINGS - 1}")
    return c


def camel(name):
    return "k" + "".join(w[:1].upper() + w[1:].lower() for w in name.split("_") if w)


def families(modules):
    """{source stem: {constant id: [names]}}, and the size of each push-constant struct."""
    by_source, structs = {}, {}
    for m in modules:
        ids = by_source.setdefault(m.family, {})
        for i, name in m.contract.constants.items():
            if camel(name) not in ids.setdefault(i, []):
                ids[i].append(camel(name))
        c = m.contract
        if c.push_type and c.push_bytes and structs.setdefault(c.push_type, c.push_bytes) != c.push_bytes:
            raise Mismatch(f"{m.name}: {c.push_type} has {c.push_bytes} bytes here "
                           f"and {structs[c.push_type]} in another module")
    for family, ids in by_source.items():
        names = [n for held in ids.values() for n in held]
        if len(names) != len(set(names)):
            raise Mismatch(f"{family}.comp gives one name to two specialization constants")
    return by_source, structs


def layout_list(layouts):
    rows = [f"    X({l.name}, {l.units}, {str(l.product).lower()})" for l in layouts]
    return ["/// Layouts of weights, from shaders/quant: name, which ends the names of its kernels; 16-byte units of a",
            "/// tile; true if matvec_mma.comp has a kernel for it.",
            " \\\n".join(["#define AUSPEX_LAYOUTS(X)"] + rows), ""]


def render(modules, layouts, headers):
    """The text of shader_contract.h. Modules and layouts are sorted by name; `headers` of shaders/ hold the structs."""
    by_source, structs = families(modules)
    out = ["// Generated by tools/make_shaders.py from shaders/*.comp: do not edit; --check compares it with a new",
           "// run.",
           "//",
           "// The contract of each compiled shader: specialization constants by name, bindings with their access,",
           "// bytes of push constants, size of a workgroup. check_key() and check_dispatch() in shader.h compare",
           "// callers with it.",
           "// clang-format off", "#pragma once", "#ifndef AUSPEX_NO_VULKAN",
           '#include "../../auspex.hpp"']
    out += [f'#include "../../../shaders/{h}"' for h in sorted(headers)]
    out += ["#include <cstdint>", "", "namespace auspex {", "inline namespace AUSPEX_VERSION_NAMESPACE {",
            "namespace detail {", "namespace vk {", "",
            "/// A specialization constant of one source file: its number among them << 8 | constant id.",
            "enum class SpecId : uint32_t {};", "",
            "// What make_shaders.py took the layout of every pipeline for.",
            f"constexpr uint32_t kLayoutBindings = {MAX_BINDINGS}, kLayoutPushBytes = {PUSH_BYTES};", "",
            *layout_list(layouts), "// Specialization constants by source file.", "namespace spec {"]
    order = {f: i for i, f in enumerate(sorted(by_source))}
    for f in sorted(by_source):
        if not by_source[f]:
            continue
        out.append(f"namespace {f} {{")
        for i in sorted(by_source[f]):
            out += [f"constexpr SpecId {n}{{{order[f] << 8 | i:#x}}};" for n in by_source[f][i]]
        out.append(f"}}  // namespace {f}")
    out += ["}  // namespace spec", "",
            "/// What a module asks of its caller.", "struct ShaderContract {",
            "    const char* name;          ///< of the module",
            "    const char* constants;     ///< names, by ascending id",
            "    const char* bindings;      ///< names, by binding",
            "    uint32_t family;           ///< SpecId >> 8 of its constants",
            "    uint32_t constant_ids;     ///< mask: bit i for specialization constant i; not 0, the group",
            "    uint32_t n_binding;        ///< buffers that a dispatch gives, used or not",
            "    uint32_t reads, writes;    ///< masks of bindings",
            "    uint32_t push_bytes;       ///< 0: none are read",
            "    uint32_t group[3];         ///< invocations of a workgroup; [0] = 0: PipelineKey::group",
            "    bool addresses;            ///< buffers by address behind the push constants, not by descriptor",
            "};", "", "// Sorted by name.", f"inline constexpr ShaderContract kShaderContracts[{len(modules)}] = {{"]
    for m in modules:
        c = m.contract
        n = max(c.bindings) + 1 if c.bindings else 0
        mask = sum(1 << i for i in c.constants)
        reads = sum(1 << b for b, (_, r, _) in c.bindings.items() if r)
        writes = sum(1 << b for b, (_, _, w) in c.bindings.items() if w)
        names = " ".join(c.bindings[b][0] if b in c.bindings else "-" for b in range(n))
        constants = " ".join(camel(c.constants[i]) for i in sorted(c.constants))
        out += [f'    {{"{m.name}", "{constants}",', f'     "{names}",']
        out.append(f"     {order[m.family]}, {mask:#x}, {n}, {reads:#x}, {writes:#x}, {c.push_bytes}, "
                   f"{{{c.group[0]}, {c.group[1]}, {c.group[2]}}}, {'true' if c.addresses else 'false'}}},")
    out += ["};", "", "// The structs that host and shaders share have one size on both sides."]
    out += [f"static_assert(sizeof(args::{s}) == {n});" for s, n in sorted(structs.items())]
    out += ["", "}  // namespace vk", "}  // namespace detail",
            "}  // namespace AUSPEX_VERSION_NAMESPACE", "}  // namespace auspex", "#endif  // AUSPEX_NO_VULKAN", ""]
    return "\n".join(out)
