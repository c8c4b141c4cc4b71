#!/usr/bin/env python3
"""Copies a GGUF file with another chat template: for models whose file has none, and for trying a template.

  tools/gguf_template.py MODEL.gguf OUT.gguf TEMPLATE.jinja

Python's standard library only.
"""
import argparse
import os
import shutil
import struct
import sys

KEY = b"tokenizer.chat_template"
MAGIC = b"GGUF"
STRING, ARRAY = 8, 9
ALIGNMENTS = [1 << bit for bit in range(3, 21)]  # 8 bytes .. 1 MiB
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of the types with a fixed one


class Reader:
    """Reads the head of a file and knows which bytes it has read."""

    def __init__(self, file):
        self.file = file
        self.size = file.seek(0, os.SEEK_END)
        file.seek(0)

    def check(self, n):
        """n bytes follow."""
        if n > self.size - self.file.tell():
            raise ValueError("the file ends within its head; it is damaged or not complete")

    def read(self, n):
        self.check(n)
        return self.file.read(n)

    def pass_over(self, n):
        self.check(n)
        self.file.seek(n, os.SEEK_CUR)

    def number(self, form):
        return struct.unpack("<" + form, self.read(struct.calcsize(form)))[0]

    def text(self):
        return self.read(self.number("Q"))

    def value(self, kind):
        """A value of this type. Returns it if it is a number of four bytes."""
        if kind == STRING:
            self.pass_over(self.number("Q"))
        elif kind == ARRAY:
            inner, n = self.number("I"), self.number("Q")
            if inner == STRING:
                for _ in range(n):
                    self.value(inner)
            else:
                self.pass_over(n * self.width(inner))
        elif self.width(kind) == 4:
            return self.number("I")
        else:
            self.pass_over(self.width(kind))
        return None

    @staticmethod
    def width(kind):
        if kind not in SIZES:
            raise ValueError(f"a value has the type {kind}, expected one of GGUF's 0 .. 12, and no array in an array")
        return SIZES[kind]


def split(file):
    """(number of tensors, [entry], tensor infos, alignment) of a file; an entry is (key, its bytes)."""
    reader = Reader(file)
    if file.read(len(MAGIC)) != MAGIC or reader.number("I") not in (2, 3):
        raise ValueError("this is no GGUF file of version 2 or 3")
    n_tensor, n_entry = reader.number("Q"), reader.number("Q")
    alignment, entries = 32, []
    for _ in range(n_entry):
        start = file.tell()
        key = reader.text()
        value = reader.value(reader.number("I"))
        if key == b"general.alignment":
            if value not in ALIGNMENTS:
                raise ValueError(f"general.alignment is {value}, expected a power of two up to {ALIGNMENTS[-1]}")
            alignment = value
        end = file.tell()
        file.seek(start)
        entries.append((key, file.read(end - start)))
    start = file.tell()
    for _ in range(n_tensor):
        reader.text()
        reader.pass_over(8 * reader.number("I") + 4 + 8)
    end = file.tell()
    file.seek(start)
    return n_tensor, entries, file.read(end - start), alignment


def head_with(file, template):
    """Everything before the tensors' data, with this template; the file then stands at that data."""
    return head_of(file, {KEY: struct.pack("<IQ", STRING, len(template)) + template})


def head_of(file, changed):
    """The same with other values for these keys: {key: type and value as in the file}."""
    n_tensor, entries, tensors, alignment = split(file)
    # An entry is a length, the key, a type and the value, here a number.
    number = next((int.from_bytes(e[12 + len(k):], "little") for k, e in entries if k == b"split.no"), 0)
    if number != 0:
        raise ValueError(f"this is shard {number + 1} of a model; its metadata is in the first one, expected that")
    data = -(-file.tell() // alignment) * alignment
    entries = [e for k, e in entries if k not in changed]
    entries += [struct.pack("<Q", len(key)) + key + value for key, value in changed.items()]
    head = MAGIC + struct.pack("<IQQ", 3, n_tensor, len(entries)) + b"".join(entries) + tensors
    file.seek(data)
    return head + b"\0" * (-len(head) % alignment)


def check_out(out, inputs):
    """Refuses a file that is read, also by a link, and what is no file: it would be replaced."""
    for name, path in inputs.items():
        if os.path.exists(out) and os.path.samefile(path, out):
            raise ValueError(f"OUT '{out}' is {name} '{path}', which would be overwritten; expected another file")
    if os.path.exists(out) and not os.path.isfile(out):
        raise ValueError(f"OUT '{out}' is a folder, a pipe or a device, expected a file")
    if not os.path.isdir(os.path.dirname(os.path.realpath(out))):
        raise ValueError(f"OUT '{out}' is in a folder that does not exist; create it first")


def write(out, head, data):
    """The file appears when it is complete."""
    out = os.path.realpath(out)  # a link stays one
    beside = f"{out}.{os.getpid()}.tmp"
    try:
        with open(beside, "wb") as f:
            f.write(head)
            shutil.copyfileobj(data, f, 16 << 20)
        os.replace(beside, out)
    except BaseException:  # Ctrl-C too
        if os.path.exists(beside):
            os.remove(beside)
        raise


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("template")
    o = p.parse_args()
    check_out(o.out, {"MODEL": o.model, "TEMPLATE": o.template})
    with open(o.template, "rb") as f:
        template = f.read()
    try:
        template.decode("utf-8")
    except UnicodeDecodeError as e:
        raise ValueError(f"TEMPLATE '{o.template}' is not UTF-8 at byte {e.start}; save it as UTF-8") from e
    with open(o.model, "rb") as f:
        write(o.out, head_with(f, template), f)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as e:
        sys.exit(f"gguf_template: {e}")
