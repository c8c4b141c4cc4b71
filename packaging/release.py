#!/usr/bin/env python3
"""Makes the source archive of a release and the recipes that fetch it.

    python3 packaging/release.py OUT --url https://example.org/auspex-0.1.0.tar.gz

OUT/auspex-VERSION.tar.gz holds the library and its documents: no tests, no command line, no model. The same files give
the same bytes.
OUT/vcpkg, OUT/conan and OUT/meson are the folders beside this file with @VERSION@, @ABI@, @URL@, @SHA256@ and @SHA512@ filled in.
--url is where the archive will be; without it, the file as it lies in OUT.
"""
import argparse
import gzip
import hashlib
import io
import os
import pathlib
import re
import shutil
import sys
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
REPO = os.path.dirname(HERE)
CONTENTS = ("CMakeLists.txt", "LICENSE", "README.md", "CHANGELOG.md", "cmake", "docs", "shaders", "single_include", "src",
            # What README and docs refer to
            "examples/minimal/main.cpp", "examples/models/README.md", "tools/bench_peers.md")
RECIPES = ("vcpkg", "conan", "meson")
TIME = 315532800  # 1980-01-01, the first day that every archive format knows


def defined(header, pattern):
    with open(os.path.join(REPO, "src", header), encoding="ascii") as f:
        return re.search(pattern, f.read(), re.MULTILINE).group(1)


def version():
    return defined("auspex.hpp", r'^#define AUSPEX_VERSION "([0-9.]+)"')


def abi_major():
    return str(int(defined("auspex.h", r"^#define AUSPEX_ABI_VERSION ([0-9]+)")) // 1000)


def files():
    """Paths of the archive's files below the repository, sorted."""
    found = []
    for name in CONTENTS:
        path = os.path.join(REPO, name)
        if os.path.isfile(path):
            found.append(name)
        for folder, _, names in os.walk(path):
            found += [os.path.relpath(os.path.join(folder, n), REPO) for n in names if not n.endswith((".pyc", "~"))]
    return sorted(found)


def make_archive(path, top):
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=TIME, filename="") as zipped:
        with tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for name in files():
                with open(os.path.join(REPO, name), "rb") as f:
                    data = f.read()
                member = tarfile.TarInfo(f"{top}/{name}")
                member.size, member.mtime, member.mode = len(data), TIME, 0o644
                archive.addfile(member, io.BytesIO(data))
    with open(path, "wb") as f:
        f.write(packed.getvalue())
    return packed.getvalue()


def fill_recipes(out, values):
    for recipe in RECIPES:
        target = os.path.join(out, recipe)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(os.path.join(HERE, recipe), target, ignore=shutil.ignore_patterns("__pycache__"))
        for folder, _, names in os.walk(target):
            for name in names:
                path = pathlib.Path(folder, name)
                text = path.read_text(encoding="ascii")
                for key, value in values.items():
                    text = text.replace(f"@{key}@", value)
                path.write_text(text, encoding="ascii")


def main():
    parser = argparse.ArgumentParser(description="makes the source archive of a release and the recipes that fetch it")
    parser.add_argument("out", help="folder to write to")
    parser.add_argument("--url", help="where the archive will be; default: file:// and its path in OUT")
    arguments = parser.parse_args()
    out = os.path.abspath(arguments.out)
    os.makedirs(out, exist_ok=True)
    top = f"auspex-{version()}"
    path = os.path.join(out, top + ".tar.gz")
    data = make_archive(path, top)
    values = {"VERSION": version(), "ABI": abi_major(), "URL": arguments.url or pathlib.Path(path).as_uri(),
              "SHA256": hashlib.sha256(data).hexdigest(), "SHA512": hashlib.sha512(data).hexdigest()}
    fill_recipes(out, values)
    print(f"{path}\nsha256 {values['SHA256']}\nsha512 {values['SHA512']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
