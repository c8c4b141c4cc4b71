"""auspex.h and libauspex.so: what compiles, what is exported, what may never change, and a client in Python."""
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

from ctypes import byref, c_char, c_char_p, c_float, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

from base_rig import BaseFolder
from chat_templates import ELEMENTS, with_template

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARY = os.environ.get("AUSPEX_LIBRARY") or os.path.join(REPO, "build", "libauspex.so")
TINY_MODEL = os.path.join(os.path.dirname(LIBRARY), "tiny_model")
DEMO = os.path.join(REPO, "examples", "models", "auspex-demo.gguf")
HEADER = os.path.join(REPO, "src", "auspex.h")
TABLE = os.path.join(REPO, "tests", "data", "capi_abi.txt")
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")


def header_text():
    with open(HEADER, encoding="ascii") as f:
        return re.sub(r"/\*.*?\*/", "", f.read(), flags=re.DOTALL)


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, **more)


class Abi(BaseFolder):
    def test_the_header_compiles_in_every_language_and_compiler_twice_in_a_file(self):
        twice = '#include "auspex.h"\n#include "auspex.h"\nint main(void) { return (int)sizeof(auspex_error) == 0; }\n'
        for compiler, standard in (("gcc", "c99"), ("gcc", "c11"), ("clang", "c99"), ("clang", "c17"), ("g++", "c++17"),
                                   ("clang++", "c++20")):
            name = "a.cpp" if "++" in compiler else "a.c"
            if shutil.which(compiler):
                for include in ("src", "single_include"):
                    r = run(compiler, f"-std={standard}", *STRICT, "-I", os.path.join(REPO, include), "-fsyntax-only",
                            self.file(name, twice))
                    self.assertEqual(r.returncode, 0, r.stderr)

    def test_the_client_compiles_as_c99_with_gcc_and_clang_and_runs_on_the_shared_library(self):
        for compiler in ("gcc", "clang"):
            program = os.path.join(self.folder, compiler)
            r = run(compiler, "-std=c99", *STRICT, "-DAUSPEX_C_SHARED", "-I", os.path.join(REPO, "src"),
                    os.path.join(REPO, "tests", "capi_client.c"), LIBRARY, "-pthread", "-o", program)
            self.assertEqual(r.returncode, 0, r.stderr)
        r = run(program, DEMO, env={**os.environ, "LD_LIBRARY_PATH": os.path.dirname(LIBRARY)}, timeout=120)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)

    def test_the_example_of_the_documentation_compiles_by_its_first_line_and_answers(self):
        with open(os.path.join(REPO, "docs", "EMBEDDING.md"), encoding="ascii") as f:
            source = re.search(r"```c\n(.*?)```", f.read(), re.DOTALL)[1]
        self.file("chat.c", source)
        os.symlink(os.path.join(REPO, "src"), os.path.join(self.folder, "src"))
        os.symlink(os.path.dirname(os.path.abspath(LIBRARY)), os.path.join(self.folder, "build"))
        command = re.match(r"/\* Compile: (cc .*) \*/\n", source)[1]
        r = run("sh", "-c", f"{command} {' '.join(STRICT)}", cwd=self.folder)
        self.assertEqual(r.returncode, 0, r.stderr)
        environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
        r = run(os.path.join(self.folder, "chat"), DEMO, env={**environment, "VK_ICD_FILENAMES": ""}, timeout=120)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("return", r.stdout)

    def test_the_library_has_a_soname_and_exports_the_functions_of_the_header_alone(self):
        abi = int(re.search(r"AUSPEX_ABI_VERSION (\d+)", header_text())[1])
        self.assertIn(f"[libauspex.so.{abi // 1000}]", run("readelf", "-dW", LIBRARY).stdout)
        exported = {line.split()[-1] for line in run("nm", "-D", "--defined-only", LIBRARY).stdout.splitlines()}
        declared = set(re.findall(r"AUSPEX_C_API [\w* ]+?\b(auspex_\w+)\(", header_text()))
        self.assertGreater(len(declared), 50)
        self.assertEqual(exported, declared)

    def layout(self):
        """Every constant, function, callback, struct and field of the header, with values, types, offsets and sizes."""
        text = header_text()
        lines = ["function " + " ".join(f.split()) for f in re.findall(r"AUSPEX_C_API (.*?\));", text, re.DOTALL)]
        lines += [" ".join(t.split()) for t in re.findall(r"typedef [^{}]*?(?=;)", text)]
        prints = []
        for body in re.findall(r"enum \{(.*?)\}", text, re.DOTALL):
            prints += [f'printf("constant {n} %d\\n", (int){n});' for n in re.findall(r"(AUSPEX_\w+) =", body)]
        for body, name in re.findall(r"typedef struct \w+ \{(.*?)\}\s*(\w+);", text, re.DOTALL):
            prints.append(f'printf("size {name} %d\\n", (int)sizeof({name}));')
            for declaration in body.split(";")[:-1]:
                pointer = re.search(r"\(\*(\w+)\)", declaration)
                plain = [re.search(r"(\w+)(\[\w+\])?\s*$", d) for d in declaration.split(",")]
                names = [m[1] for m in ([pointer] if pointer else plain)]
                kind = " ".join((declaration if pointer else declaration[:plain[0].start()]).split())
                lines += [f"type {name}.{n} {kind}" for n in names]
                prints += [f'printf("field {name}.{n} at %d of %d\\n", (int)offsetof({name}, {n}), '
                           f'(int)sizeof((({name}*)0)->{n}));' for n in names]
        source = '#include "auspex.h"\n#include <stdio.h>\nint main(void) {\n' + "\n".join(prints) + "\nreturn 0;\n}\n"
        program = os.path.join(self.folder, "layout")
        r = run("gcc", "-I", os.path.join(REPO, "src"), self.file("layout.c", source), "-o", program)
        self.assertEqual(r.returncode, 0, r.stderr)
        return lines + run(program).stdout.splitlines()

    @unittest.skipUnless(ctypes.sizeof(c_void_p) == 8, "the table is of 64-bit machines")
    def test_nothing_that_the_table_lists_has_changed_and_everything_is_listed(self):
        # A program built with an earlier header relies on every line. Only a size may grow, by fields at the end.
        now = self.layout()
        if os.environ.get("AUSPEX_WRITE_TABLE"):  # after adding something: adds it to the table
            with open(TABLE, "w", encoding="ascii") as f:
                f.write("\n".join(now) + "\n")
        with open(TABLE, encoding="ascii") as f:
            table = f.read().splitlines()
        sizes = {line.split()[1]: int(line.split()[2]) for line in now if line.startswith("size ")}
        for line in table:
            if line.startswith("size "):
                self.assertGreaterEqual(sizes.get(line.split()[1], 0), int(line.split()[2]), line)
            else:
                self.assertIn(line, now)
        self.assertEqual([line for line in now if line not in table], [], "new: run with AUSPEX_WRITE_TABLE=1")


# ------------------------------------------------------------------------------------- a client

class Error(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("code", c_int32), ("text", c_char * 512)]


class Event(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("type", c_int32), ("text", c_char_p), ("n_text", c_size_t),
                ("call", c_int32), ("finish", c_int32), ("n_prompt", c_uint64), ("n_reused", c_uint64),
                ("n_generated", c_uint64)]


class Sampling(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("top_k", c_int32), ("temperature", c_float), ("top_p", c_float)]


class LogitBias(ctypes.Structure):
    _fields_ = [("id", c_int32), ("bias", c_float)]


class WholeSampling(ctypes.Structure):
    _fields_ = Sampling._fields_ + [("others", c_float * 4), ("penalty_window", c_uint32), ("reserved", c_uint32),
                                    ("seed", c_uint64), ("grammar", c_void_p), ("constrained_from", c_uint64),
                                    ("logit_bias", ctypes.POINTER(LogitBias)), ("n_logit_bias", c_size_t)]


class ChatOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("max_tokens", c_uint32), ("sampling", ctypes.POINTER(WholeSampling)),
                ("stops", c_void_p), ("n_stops", c_size_t), ("free_thinking", c_int32),
                ("max_thinking_tokens", c_uint32)]


class AuspexError(Exception):
    pass


class Client:
    """What a binding needs: ten lines and the calls themselves."""

    def __init__(self, path):
        self.c, self.made = ctypes.CDLL(LIBRARY), []
        self.c.auspex_code_name.restype = c_char_p
        self.device, self.model, self.session = c_void_p(), c_void_p(), c_void_p()
        for name, arguments, handle in (("device_open", (None,), self.device),
                                        ("model_load", (self.device, path.encode(), None), self.model),
                                        ("session_create", (self.model, None), self.session)):
            self.call("auspex_" + name, *arguments, byref(handle))

    def call(self, name, *arguments):
        error = Error(struct_size=ctypes.sizeof(Error))
        if getattr(self.c, name)(*arguments, byref(error)):
            raise AuspexError(self.c.auspex_code_name(error.code).decode() + ": " + error.text.decode())

    def ids(self, text, special=False):
        data, n, ids = text.encode(), c_size_t(), (c_int32 * 1000)()
        self.call("auspex_encode", self.model, data, c_size_t(len(data)), int(special), ids, c_size_t(1000), byref(n))
        return ids, n

    def tokens(self, text, sampling=None):
        ids, n = self.ids(text)
        self.call("auspex_session_sync", self.session, ids, n, None, c_size_t(0), None)
        while True:
            self.call("auspex_session_next", self.session, sampling, ids, c_size_t(9), byref(n))
            yield from ids[:n.value]

    def text(self, ids):
        buffer, n = ctypes.create_string_buffer(4000), c_size_t()
        self.call("auspex_decode", self.model, (c_int32 * len(ids))(*ids), c_size_t(len(ids)), 0, buffer,
                  c_size_t(4000), byref(n))
        return buffer.value.decode()

    def chat(self, request, on_event, options=None):
        function = ctypes.CFUNCTYPE(c_int32, ctypes.POINTER(Event), c_void_p)(lambda e, _: on_event(e[0]) or 0)
        self.call("auspex_chat", self.session, request, c_size_t(len(request)), options, function, None)

    def close(self):
        for free, handle in (("device", self.device), ("session", self.session), ("model", self.model)):
            getattr(self.c, f"auspex_{free}_free")(handle)


@unittest.skipUnless(os.path.exists(LIBRARY), "needs libauspex.so")
class Python(unittest.TestCase):
    REQUEST = (b'{"messages": [{"role": "user", "content": '
               b'"Write a Python function that returns the double of a number."}]}')

    def setUp(self):
        self.client = Client(DEMO)
        self.addCleanup(self.client.close)

    def test_streams_32_tokens_greedily_and_with_a_struct_that_ends_early(self):
        log = "2026-03-14 08:00 Pump-3 status=nominal temp=61C"
        greedy = [t for t, _ in zip(self.client.tokens(log), range(32))]
        self.assertIn("vibration=", self.client.text(greedy))
        hot = Sampling(struct_size=ctypes.sizeof(Sampling), temperature=0.0)
        self.assertEqual([t for t, _ in zip(self.client.tokens(log, byref(hot)), range(32))], greedy)

    def test_chats_in_events_and_is_cancelled_from_another_thread(self):
        events = []
        self.client.chat(self.REQUEST, lambda e: events.append((e.type, e.text.decode())))
        self.assertIn("return", "".join(text for kind, text in events if kind == 1))
        self.assertEqual([kind for kind, _ in events[-2:]], [6, 7])
        began = threading.Event()
        cancel = self.client.c.auspex_session_cancel
        other = threading.Thread(target=lambda: (began.wait(), cancel(self.client.session)))
        other.start()
        with self.assertRaisesRegex(AuspexError, "^cancelled: "):
            self.client.chat(self.REQUEST, lambda e: (began.set(), other.join(), None)[2])

    def test_reads_errors(self):
        with self.assertRaisesRegex(AuspexError, "^not_found: .*no-such-file"):
            Client("no-such-file.gguf")
        with self.assertRaisesRegex(AuspexError, "^bad_argument: JSON: expected"):
            self.client.chat(b"[", lambda e: None)

    def reply(self, client, grammar, free_thinking, budget=0, liked=None, **more):
        """The message of a reply of at most 40 tokens. liked: a text whose last token is preferred to any other."""
        sampling = WholeSampling(struct_size=ctypes.sizeof(WholeSampling), grammar=grammar)
        if liked:
            ids, n = client.ids(liked, special=True)
            sampling.logit_bias, sampling.n_logit_bias = (LogitBias * 1)(LogitBias(ids[n.value - 1], 900)), 1
        options = ChatOptions(struct_size=ctypes.sizeof(ChatOptions), max_tokens=40, sampling=ctypes.pointer(sampling),
                              free_thinking=free_thinking, max_thinking_tokens=budget)
        events = []
        client.chat(json.dumps({"messages": [{"role": "user", "content": "Say yes."}], **more}).encode(),
                    lambda e: events.append((e.type, e.text)), byref(options))
        return json.loads(events[-1][1])

    def thinking_client(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as f:
            f.write(with_template(ELEMENTS))
            f.flush()
            client = Client(f.name)
            self.addCleanup(client.close)
        return client

    def test_a_required_call_comes_at_once_where_the_request_closes_the_thinking(self):
        client, grammar = self.thinking_client(), c_void_p()
        more = {"enable_thinking": False, "tools": [{"name": "f"}]}
        text = json.dumps({"messages": [{"role": "user", "content": "Say yes."}], **more}).encode()
        client.call("auspex_constraint_from_tools", client.model, text, c_size_t(len(text)), 1, None, 0, byref(grammar))
        self.addCleanup(client.c.auspex_constraint_free, grammar)
        message = self.reply(client, grammar, 0, liked=" ", **more)  # what may stand before thinking, but not a call
        self.assertEqual(message["tool_calls"][0]["function"]["name"], "f")
        self.assertNotIn("reasoning_content", message)

    def test_thinking_is_free_of_the_grammar_and_closed_after_its_budget(self):
        client = self.thinking_client()
        grammar, text = c_void_p(), b'{"enum": ["yes", "no"]}'
        client.call("auspex_constraint_create", client.model, 0, text, c_size_t(len(text)), byref(grammar))
        self.addCleanup(client.c.auspex_constraint_free, grammar)
        message = self.reply(client, grammar, 0)
        self.assertEqual(message["content"], "")  # all of it is thinking
        self.assertIn(message["reasoning_content"], ('"yes"', '"no"'))
        long = self.reply(client, grammar, 1)
        self.assertEqual(long["content"], "")
        message = self.reply(client, grammar, 1, 5)
        self.assertIn(message["content"], ('"yes"', '"no"'))
        self.assertTrue(long["reasoning_content"].startswith(message["reasoning_content"]))
        for liked in ("</think>", "<|im_end|>"):  # the model closes it, or ends within it
            message = self.reply(client, grammar, 1, 0, liked)
            self.assertIn(message["content"], ('"yes"', '"no"'))
            self.assertNotIn("reasoning_content", message)
        self.assertNotEqual(self.reply(client, None, 0, 5)["content"], "")
        with self.assertRaisesRegex(AuspexError, "^bad_argument: free_thinking is 2, expected 0..1"):
            self.reply(client, None, 2)
        with self.assertRaisesRegex(AuspexError, "does not allow the text that closes the thinking"):
            self.reply(client, grammar, 0, 1)
        self.assertIn(self.reply(client, grammar, 1, 5)["content"], ('"yes"', '"no"'))

    def test_a_thinking_that_the_model_opens_itself_is_closed_after_its_budget(self):
        client = self.client
        grammar, text = c_void_p(), b'root ::= <think> [a-z]+ "\\n" </think> "\\n\\n" [a-z]+'
        client.call("auspex_constraint_create", client.model, 1, text, c_size_t(len(text)), byref(grammar))
        self.addCleanup(client.c.auspex_constraint_free, grammar)
        long, short = (self.reply(client, grammar, 0, budget, liked="a", enable_thinking=False) for budget in (0, 12))
        self.assertEqual(long["content"], "")
        self.assertRegex(long["reasoning_content"], "^a{20,}$")
        self.assertRegex(short["reasoning_content"], "^a{1,11}$")
        self.assertRegex(short["content"], "^a{10,}$")

    def loaded_twice(self, path):
        """What /proc says of a model's file in each of two processes that have it loaded and have used it."""
        load = ("import sys; sys.path.insert(0, sys.argv[1]); import test_capi as t;"
                "c = t.Client(sys.argv[2]); n = [i for i, _ in zip(c.tokens('a log line'), range(4))];"
                "print('ready', flush=True); sys.stdin.read()")
        environment = {**os.environ, "VK_ICD_FILENAMES": "", "VK_DRIVER_FILES": ""}
        pair = [subprocess.Popen([sys.executable, "-c", load, os.path.dirname(os.path.abspath(__file__)), path],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) for _ in range(2)]
        try:
            for process in pair:
                self.assertEqual(process.stdout.readline(), b"ready\n")
            return [self.mapped(process.pid, path) for process in pair]
        finally:
            for process in pair:
                process.communicate()

    @unittest.skipUnless(sys.platform == "linux", "reads /proc")
    @unittest.skipUnless(os.path.exists(TINY_MODEL), "needs tiny_model")
    def test_two_processes_share_weights_that_are_used_in_place(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(os.path.realpath(folder), "f16.gguf")
            subprocess.run([TINY_MODEL, "--type", "f16", "--layers", "8", path], check=True)
            with open(path, "rb+") as f:
                os.fsync(f.fileno())  # what was just written counts as changed
            for sizes in self.loaded_twice(path):
                self.assertGreater(sizes["Rss"], 0.5 * os.path.getsize(path) / 1024)
                self.assertEqual(sizes["Private_Dirty"] + sizes["Shared_Dirty"], 0)
                self.assertLess(sizes["Pss"], 0.6 * sizes["Rss"])  # at least two have each page

    @unittest.skipUnless(sys.platform == "linux", "reads /proc")
    def test_pages_of_the_file_go_once_weights_are_packed(self):
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
            if not re.search(r"^flags.* avx2 ", f.read(), re.MULTILINE):
                self.skipTest("needs AVX2: weights are used in place without")
        with open(DEMO, "rb") as f:  # a page that was read with others in one large piece is mapped with them
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for sizes in self.loaded_twice(DEMO):
            self.assertEqual(sizes["Private_Dirty"] + sizes["Shared_Dirty"], 0)
            # What is left: names, the vocabulary, vectors, and what the system maps around them.
            self.assertLess(sizes["Rss"], 0.4 * os.path.getsize(DEMO) / 1024)

    @staticmethod
    def mapped(pid, path):
        """What /proc says of the pages of a file in a process, in KiB."""
        sizes, inside = {}, False
        with open(f"/proc/{pid}/smaps") as lines:
            for line in lines:
                words = line.split()
                if not words[0].endswith(":"):
                    inside = words[-1] == os.path.realpath(path)
                elif inside and words[-1] == "kB":
                    sizes[words[0][:-1]] = sizes.get(words[0][:-1], 0) + int(words[1])
        return sizes


if __name__ == "__main__":
    unittest.main()
