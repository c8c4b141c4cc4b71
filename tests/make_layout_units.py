#!/usr/bin/env python3
"""Turns the layouts of shaders/quant into C++ for layout_units.cpp: make_layout_units.py OUT

What only devices with matrix units run, store_x() and product() of matvec_mma.comp and the functions of
gemm_share.glsl, is tested nowhere else where there is no such device. Each layout that has a product() becomes two
namespaces, NAME_matrix and NAME_shares, and a line AUSPEX_LAYOUT(NAME).
"""
import os
import re
import sys

SHADERS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "shaders")
MACROS = ("MATRIX", "SHARES", "HAS_TABLE", "SUMS_OF_32", "MINS", "HEAD", "QUANT", "CODES", "ZERO", "WEIGHT_FACTOR")


def read(path):
    with open(os.path.join(SHADERS, path), encoding="utf-8") as f:
        return f.read()


def to_cpp(text):
    text = text.replace('#include "gemm_share.glsl"', read("gemm_share.glsl"))
    text = text.replace('#include "block_scales.glsl"', read(os.path.join("quant", "block_scales.glsl")))
    text = re.sub(r"^layout\(.*$", "", text, flags=re.M)
    text = re.sub(r"\[\[(dont_)?unroll\]\]|\bprecise\b|\bshared\b", "", text)
    text = re.sub(r"\.(xy|zw)\b", r".\1()", text)
    text = re.sub(r"\bout (\w+) (\w+)\[", r"\1 \2[", text)
    text = re.sub(r"\bout (\w+) ", r"\1& ", text)
    return re.sub(r"(?<![\w.])(\d+\.\d+)", r"\1f", text)


def namespace(name, source, defines, part):
    lines = [f"#define {d}" for d in defines + [part]] + [f"namespace {name} {{", to_cpp(source)]
    if part == "MATRIX":
        lines.append(to_cpp(re.search(r"^void store_x\(.*?^}\n", read("matvec_mma.comp"), re.M | re.S)[0]))
    else:
        lines += ["const float kFactor = WEIGHT_FACTOR;", "#ifdef HAS_TABLE",
                  "void open_table(uint me) { open_layout(me); }", "#else", "void open_table(uint) {}", "#endif"]
    return lines + ["}"] + [f"#undef {m}" for m in sorted({d.split()[0] for d in defines} | set(MACROS))]


def main():
    out, names = ["#pragma GCC system_header"], []
    for file in sorted(os.listdir(os.path.join(SHADERS, "quant"))):
        source = read(os.path.join("quant", file))
        for line in re.findall(r"^// layout: (.*@product.*)$", source, re.M):
            name, *words = line.split()
            defines = [w[2:].replace("=", " ") for w in words if w.startswith("-D")]
            for part in ("MATRIX", "SHARES"):
                out += namespace(f"{name}_{part.lower()}", source, defines, part)
            names.append(name)
    out += ["#define AUSPEX_PRODUCT_LAYOUTS \\"] + [f"    AUSPEX_LAYOUT({n}) \\" for n in names] + [""]
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        f.write("\n".join(out))


if __name__ == "__main__":
    main()
