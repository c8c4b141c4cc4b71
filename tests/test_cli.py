"""The command line as a user meets it: what it prints, where, and with which exit code.

Python's standard library only. AUSPEX_BINARY names the program; the demo model comes from the
repository. Small broken files are made here, byte by byte.
"""
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

from base_rig import GPU_REQUIRED, BaseFolder
from chat_templates import ELEMENTS, with_template

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BINARY = os.environ.get("AUSPEX_BINARY") or os.path.join(REPO, "build", "auspex")
DEMO = os.path.join(REPO, "examples", "models", "auspex-demo.gguf")
HAS_BENCH = os.path.exists(os.path.join(os.path.dirname(BINARY), "auspex-bench"))  # see AUSPEX_BENCH in CMakeLists.txt
LOG = ("2026-03-14 08:00 Pump-3 status=nominal temp=61C vibration=0.2 note: bearing inspected, no further action\n"
       "2026-03-14 08:15 Pump-3 status=nominal temp=61C vibration=0.2 note: bearing inspected, no further action\n")


def built(*commands):
    """Those of the commands whose program this build has."""
    return [c for c in commands if HAS_BENCH or c[:1] != ["bench"]]


def auspex(*arguments, stdin=b"", cwd=None):
    if isinstance(stdin, str):
        stdin = stdin.encode()
    return subprocess.run([BINARY, *map(str, arguments)], input=stdin, capture_output=True, cwd=cwd, timeout=600)


class BaseCli(BaseFolder):
    def done(self, *arguments, **more):
        r = auspex(*arguments, **more)
        self.assertEqual(r.returncode, 0, r.stderr.decode())
        return r.stdout

    def refused(self, exit_code, code, *words, run, **more):
        """The command fails as promised: nothing on stdout, one clear message, no sanitizer report."""
        r = auspex(*run, **more)
        text = r.stderr.decode("utf-8", "replace")
        self.assertEqual(r.returncode, exit_code, text)
        self.assertEqual(r.stdout, b"")
        self.assertIn(f"auspex: {code}: ", text)
        for word in words:
            self.assertIn(str(word), text)
        self.assertNotIn("Sanitizer", text)
        return text

    def run_json(self, *arguments, **more):
        out = self.done("run", "--json", *arguments, **more)
        self.assertEqual(out.count(b"\n"), 1)
        self.assertTrue(out.endswith(b"\n"))
        return json.loads(out)


# ---------------------------------------------------------------------------------- GGUF, by hand

def gguf_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_key(name, kind, value):
    packed = {"str": (8, lambda: gguf_string(value)), "u32": (4, lambda: struct.pack("<I", value)),
              "f32": (6, lambda: struct.pack("<f", value))}[kind]
    return gguf_string(name) + struct.pack("<I", packed[0]) + packed[1]()


def gguf(keys, tensors=(), version=3, magic=b"GGUF", order="<"):
    """A file with these keys and F32 tensors [(name, ne)], all zero."""
    out = magic + struct.pack(order + "IQQ", version, len(tensors), len(keys)) + b"".join(gguf_key(*k) for k in keys)
    offset, data = 0, b""
    for name, ne, *kind in tensors:
        n = 1
        for d in ne:
            n *= d
        shape = struct.pack("<I", len(ne)) + b"".join(struct.pack("<Q", d) for d in ne)
        out += gguf_string(name) + shape + struct.pack("<IQ", kind[0] if kind else 0, offset)
        data += bytes(4 * n + (-4 * n) % 32)
        offset = len(data)
    return out + bytes(-len(out) % 32) + data


def edited_demo(edit):
    with open(DEMO, "rb") as f:
        data = bytearray(f.read())
    edit(data)
    return bytes(data)


def replace_once(data, old, new):
    assert len(old) == len(new) and data.count(old) >= 1, old
    at = data.index(old)
    data[at:at + len(old)] = new


# ------------------------------------------------------------------------------------------ tests

class Run(BaseCli):
    def test_json_is_one_line_with_exactly_these_members(self):
        o = self.run_json("-p", LOG, "-n", 12)
        self.assertEqual(list(o), ["text", "ids", "prompt_tokens", "tokens", "prefill_tps", "decode_tps", "device",
                                   "stop_reason", "sync", "draft"])
        self.assertEqual(o["sync"]["rows_computed"], o["prompt_tokens"])
        self.assertEqual((o["sync"]["reason"], o["sync"]["rows_reused"]), ("new_text", 0))
        self.assertIsInstance(o["text"], str)
        self.assertTrue(o["text"])
        self.assertEqual(len(o["ids"]), 12)
        self.assertTrue(all(isinstance(i, int) and i >= 0 for i in o["ids"]))
        self.assertEqual(o["tokens"], 12)
        self.assertEqual(o["stop_reason"], "length")
        self.assertEqual(o["prompt_tokens"], len(json.loads(self.done("tokenize", "-p", LOG))))
        self.assertGreater(o["prefill_tps"], 0)
        self.assertGreater(o["decode_tps"], 0)
        self.assertIsNone(self.run_json("-p", LOG, "-n", 1)["decode_tps"])  # nothing to measure
        self.assertIsInstance(o["device"], str)

    def test_the_demo_model_continues_a_log_sensibly(self):
        text = self.run_json("-p", LOG, "-n", 60)["text"]
        self.assertRegex(text, r"2026-03-14 08:\d\d Pump-3 status=\w+ temp=\d+C vibration=0\.\d note: ")

    def test_the_streamed_text_is_the_text_of_the_json_and_nothing_else(self):
        streamed = self.done("run", "-p", LOG, "-n", 20)
        self.assertEqual(streamed.decode(), self.run_json("-p", LOG, "-n", 20)["text"])

    def test_text_is_what_the_ids_decode_to(self):
        o = self.run_json("-p", LOG, "-n", 24)
        self.assertEqual(self.done("tokenize", "--decode", json.dumps(o["ids"])).decode(), o["text"])

    def test_option_file_and_pipe_give_the_same_text(self):
        by_option = self.run_json("-p", LOG, "-n", 8)["ids"]
        path = self.file("prompt.txt", LOG)
        self.assertEqual(self.run_json("-f", path, "-n", 8)["ids"], by_option)
        self.assertEqual(self.run_json("-f", "-", "-n", 8, stdin=LOG)["ids"], by_option)
        self.assertEqual(self.run_json("-n", 8, stdin=LOG)["ids"], by_option)

    def test_a_prompt_may_begin_with_a_dash_and_hold_any_character(self):
        for prompt in ("--help me", "-1", "{\"a\": [1, 2]}\n", "\u00e9\u4e2d\U0001f600 \t x"):
            o = self.run_json("-p", prompt, "-n", 2)
            self.assertEqual(o["prompt_tokens"], len(json.loads(self.done("tokenize", "-p", prompt))), prompt)

    def test_the_same_seed_gives_the_same_text_and_another_seed_another(self):
        a, b, c = (self.run_json("-p", "Once", "-n", 24, "--temp", 1, "--seed", seed)["ids"] for seed in (7, 7, 8))
        self.assertEqual(a, b)
        self.assertNotEqual(a, c)

    def test_the_number_of_threads_does_not_change_the_text(self):
        a, b = (self.run_json("-p", LOG, "-n", 24, "--device", "cpu", "--threads", n)["ids"] for n in (1, 3))
        self.assertEqual(a, b)

    def test_barriers_alone_do_not_change_the_text(self):
        a, b = (self.run_json("-p", LOG, "-n", 24, *more)["ids"] for more in ((), ("--barriers-only",)))
        self.assertEqual(a, b)

    def test_a_stop_text_is_never_shown(self):
        whole = self.run_json("-p", LOG, "-n", 60)["text"]
        stop = "status="
        self.assertIn(stop, whole)
        o = self.run_json("-p", LOG, "-n", 60, "--stop", "never seen", "--stop", stop)
        self.assertEqual(o["text"], whole[:whole.index(stop)])
        self.assertEqual(o["stop_reason"], "stop")

    def test_the_context_ends_the_text_where_it_is_full(self):
        n = len(json.loads(self.done("tokenize", "-p", LOG)))
        o = self.run_json("-p", LOG, "-n", -1, "--ctx", n + 5)
        self.assertEqual((o["tokens"], o["stop_reason"]), (5, "context"))
        o = self.run_json("-p", LOG, "-n", 5, "--ctx", n + 5)
        self.assertEqual((o["tokens"], o["stop_reason"]), (5, "length"))

    def test_the_model_may_end_its_answer_itself(self):
        turn = ("<|im_start|>user\nWrite a Python function that returns the double of a number.<|im_end|>\n"
                "<|im_start|>assistant\n<think>\n\n</think>\n\n")
        o = self.run_json("-p", turn, "--special", "-n", 200)
        self.assertEqual(o["stop_reason"], "end")
        self.assertIn("def double", o["text"])
        self.assertNotIn("<|im_end|>", o["text"])
        self.assertEqual(self.done("tokenize", "--decode", json.dumps(o["ids"])).decode(), o["text"])

    def test_without_a_name_the_demo_model_is_found_from_anywhere(self):
        self.assertEqual(self.run_json("-p", LOG, "-n", 2, cwd=self.folder)["ids"],
                         self.run_json("-m", DEMO, "-p", LOG, "-n", 2)["ids"])

    def test_every_path_of_this_processor_gives_text(self):
        ran = []
        for path in ("reference", "avx2", "avx512", "neon"):
            r = auspex("run", "--json", "-p", LOG, "-n", 4, "--device", "cpu", "--cpu-path", path)
            if r.returncode == 0:
                ran.append(path)
                self.assertIn(path, json.loads(r.stdout)["device"])
            else:
                self.assertEqual(r.returncode, 2)
                self.assertIn(b"auspex: unsupported: ", r.stderr)
        self.assertIn("reference", ran)

    @unittest.skipIf(os.name == "nt", "signals as on Unix")
    def test_interrupt_ends_cleanly_with_the_text_so_far(self):
        p = subprocess.Popen([BINARY, "run", "-p", LOG, "-n", "30000", "--ignore-end"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        first = p.stdout.read(1)
        p.send_signal(signal.SIGINT)
        rest, errors = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 130, errors)
        self.assertTrue(first)
        (first + rest).decode("utf-8")
        self.assertNotIn(b"Sanitizer", errors)


class BadInput(BaseCli):
    def test_usage(self):
        for arguments in ([], ["fly"], ["run", "--no-such-option"], ["run", "-n", "many", "-p", "x"], ["logits"],
                          ["render"]):
            self.refused(2, "bad_argument", run=arguments)

    def test_help_and_version_are_no_errors(self):
        for arguments in built(["--help"], ["--version"], ["run", "--help"], ["bench", "--help"]):
            self.assertTrue(self.done(*arguments))

    def test_numbers(self):
        for option, value, word in (("--ctx", "1.5", "whole number"), ("--tokens", "many", "whole number"),
                                    ("--temp", "hot", "number")):
            words = f"{option} {value}: expected a {word}"
            self.refused(2, "bad_argument", words, run=["run", "-p", "x", option, value])
        self.refused(2, "bad_argument", "--threads 0", run=["run", "-p", "x", "--threads", 0])
        self.refused(2, "bad_argument", "--threads -2", run=["run", "-p", "x", "--threads", -2])
        self.refused(2, "bad_argument", "expected 1 .. 256", run=["run", "-p", "x", "--threads", 257])
        self.refused(2, "bad_argument", "-n 0", run=["run", "-p", "x", "-n", 0])
        self.refused(2, "bad_argument", "-n -5", run=["run", "-p", "x", "-n", -5])
        self.refused(2, "bad_argument", "--ctx 0", run=["run", "-p", "x", "--ctx", 0])
        for option, value in (("--temp", -1), ("--temp", "nan"), ("--top-p", 2), ("--top-k", -1), ("--min-p", -1),
                              ("--repeat-penalty", 0)):
            self.refused(2, "bad_argument", option + " is ", run=["run", "-p", "x", "-n", 1, option, value])

    def test_devices_that_do_not_exist(self):
        self.refused(2, "bad_argument", "toaster", run=["run", "-p", "x", "--device", "toaster"])
        self.refused(2, "bad_argument", "vulkan:x", run=["run", "-p", "x", "--device", "vulkan:x"])
        self.refused(2, "bad_argument", "sse1", run=["run", "-p", "x", "--cpu-path", "sse1"])
        r = auspex("run", "-p", "x", "-n", "1", "--device", "vulkan:99")
        self.assertIn(r.returncode, (1, 2))
        self.assertRegex(r.stderr.decode(), "auspex: (no_device|not_found|unsupported|bad_argument): ")

    def test_prompts(self):
        self.refused(2, "bad_argument", "empty", run=["run", "-p", ""])
        self.refused(2, "bad_argument", "empty", run=["run"], stdin="")
        self.refused(2, "bad_argument", "UTF-8", "0xff", "offset 2", run=["run"], stdin=b"ab\xffc")
        self.refused(2, "not_found", "nowhere.txt", run=["run", "-f", os.path.join(self.folder, "nowhere.txt")])
        self.refused(2, "bad_argument", "directory", run=["run", "-f", self.folder])
        self.refused(2, "bad_argument", run=["run", "-p", "x", "-f", "y"])

    def test_a_prompt_longer_than_the_context(self):
        n = len(json.loads(self.done("tokenize", "-p", LOG)))
        self.refused(2, "bad_argument", n, 16, "--ctx", run=["run", "-p", LOG, "--ctx", 16])
        self.refused(2, "bad_argument", 32768, run=["run"], stdin="a b c d e f g h " * 5000)

    def test_files_that_do_not_exist_and_directories(self):
        for command in (["run", "-p", "x", "-m"], ["inspect"], ["tokenize", "-p", "x", "-m"],
                        ["logits", "--ids", "1", "--out", "x", "-m"]):
            self.refused(2, "not_found", "nowhere.gguf", run=[*command, os.path.join(self.folder, "nowhere.gguf")])
            self.refused(2, "bad_argument", "directory", run=[*command, self.folder])

    def test_files_that_are_not_models(self):
        with open(DEMO, "rb") as f:
            head = f.read(300000)
        size = os.path.getsize(DEMO)
        big_endian = b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
        cases = {
            "empty": (b"", "bad_file", []),
            "four": (b"GGUF", "bad_file", []),
            "text": (b"once upon a time, there was a file", "bad_file", []),
            "magic": (gguf([], magic=b"GGML"), "bad_file", []),
            "version": (gguf([], version=1), "unsupported", ["1"]),
            "endian": (big_endian, "unsupported", ["endian"]),
            "in the metadata": (head[:1000], "bad_file", []),
            "in the data": (head, "bad_file", []),
            "nothing": (gguf([]), "bad_file", ["general.architecture"]),
            "architecture": (gguf([("general.architecture", "str", "bert")]), "unsupported", ["bert", "qwen35"]),
            "no hyperparameters": (gguf([("general.architecture", "str", "qwen35")]), "bad_file", ["qwen35."]),
        }
        self.assertGreater(size, len(head))
        for name, (data, code, words) in cases.items():
            with self.subTest(name):
                path = self.file("bad.gguf", data)
                self.refused(2, code, *words, run=["run", "-m", path, "-p", "x"])

    def test_every_truncation_of_the_demo_model_is_refused(self):
        with open(DEMO, "rb") as f:
            data = f.read()
        for cut in (1, 23, 24, 40, 4096, 200000, 270970, 270976, 1 << 20, len(data) // 2, len(data) - 1):
            with self.subTest(cut):
                self.refused(2, "bad_file", run=["inspect", self.file("cut.gguf", data[:cut])])

    def test_tensors_that_contradict_the_metadata(self):
        def misshapen(data):  # 512 x 1536 becomes 1536 x 512
            at = data.index(b"blk.0.ffn_gate.weight") + len(b"blk.0.ffn_gate.weight") + 4
            data[at:at + 16] = data[at + 8:at + 16] + data[at:at + 8]
        path = self.file("shape.gguf", edited_demo(misshapen))
        text = self.refused(2, "bad_file", "blk.0.ffn_gate.weight", "[512, 1536]", "[1536, 512]",
                            run=["run", "-m", path, "-p", "x"])
        self.assertNotIn("Sanitizer", text)
        def renamed(data):
            replace_once(data, b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight")
        path = self.file("missing.gguf", edited_demo(renamed))
        self.refused(2, "bad_file", "blk.1.ffn_up.weight", run=["run", "-m", path, "-p", "x"])

    def test_types_that_are_not_supported_are_named_with_those_that_are(self):
        def other_type(data):
            at = data.index(b"blk.0.ffn_gate.weight") + len(b"blk.0.ffn_gate.weight") + 4 + 16
            data[at:at + 4] = struct.pack("<I", 16)  # IQ2_XXS
        path = self.file("type.gguf", edited_demo(other_type))
        self.refused(2, "unsupported", "IQ2_XXS", "Q4_K", run=["inspect", path])

    def test_ids(self):
        for ids, words in (("8192", ["8192", "8191"]), ("-1", ["-1"]), ("1,,2", []), ("1,2,", []), ("[1,2", []),
                           ("1;2", []), ("99999999999999999999", [])):
            self.refused(2, "bad_argument", *words, run=["tokenize", "--decode", ids])
            self.refused(2, "bad_argument", *words, run=["logits", "--out", os.path.join(self.folder, "x.f32"), "--ids",
                                                         ids])
        self.refused(2, "bad_argument", "empty", run=["logits", "--out", os.path.join(self.folder, "x.f32"), "--ids",
                                                      "[]"])
        self.refused(2, "bad_argument", run=["logits", "--out", os.path.join(self.folder, "x.f32"), "--ids", "1,2",
                                             "--rows", "2"])
        self.refused(2, "bad_argument", run=["logits", "--ids", "1,2"])
        self.refused(2, "bad_argument", run=["logits", "--ids", "1,2", "--mtp", 1])
        self.refused(2, "bad_argument", run=["logits", "--ids", "1,2", "--mtp", 9, "--mtp-out",
                                             os.path.join(self.folder, "x.f32")])
        self.refused(2, "bad_argument", run=["logits", "--ids", "1,2", "--mtp", 2, "--mtp-out",
                                             os.path.join(self.folder, "x.f32")])
        self.refused(1, "io_error", "nowhere", run=["logits", "--ids", "1,2", "--out",
                                                    os.path.join(self.folder, "nowhere", "x.f32")])

    def test_conversations(self):
        for text in ("", "{", "[]", "{\"messages\": 3}", "{\"messages\": [{\"role\": 1}]}",
                     "{\"messages\": []} trailing"):
            self.refused(2, "bad_argument", run=["render", "--messages", self.file("m.json", text)])
        self.refused(2, "bad_argument", "UTF-8", run=["render", "--messages",
                                                      self.file("m.json", b"{\"messages\": \"\xff\"}")])
        self.refused(2, "not_found", run=["render", "--messages", os.path.join(self.folder, "nowhere.json")])

    @unittest.skipUnless(os.name == "posix" and os.path.exists("/dev/full"), "needs /dev/full")
    def test_a_full_disk_is_an_error(self):
        with open("/dev/full", "wb") as full:
            r = subprocess.run([BINARY, "tokenize", "-p", "x"], stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(r.returncode, 1)
        self.assertIn(b"auspex: io_error: ", r.stderr)
        self.refused(1, "io_error", "/dev/full", run=["logits", "--ids", "1,2,3", "--out", "/dev/full"])

    @unittest.skipUnless(sys.platform == "linux", "limits as on Linux")
    def test_too_little_memory_is_an_error(self):
        if not shutil.which("strings"):
            self.skipTest("needs strings")
        if b"Sanitizer" in subprocess.run(["strings", "-n", "9", BINARY], capture_output=True).stdout:
            self.skipTest("sanitizers need address space of their own")
        import resource
        limit = 160 << 20
        r = subprocess.run([BINARY, "run", "-p", LOG, "-n", "2", "--ctx", "16000000", "--threads", "1"],
                           capture_output=True, timeout=120,
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assertEqual(r.returncode, 1, r.stderr)
        self.assertIn(b"auspex: out_of_memory: ", r.stderr)


class Tokenize(BaseCli):
    TEXTS = ["", "Hello world", " leading and trailing ", "\n\n\t mixed \r\n", "caf\u00e9 na\u00efve",
             "\u4e2d\u6587 \u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4",
             "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f600",
             "x" * 3000, "def f(x):\n    return x + 1\n", "1234567890 3.14 1e-5", "don't we'll I'D", "e\u0301 a\u0308",
             "\u0000 zero", "<|im_end|> is text"]

    def test_ids_are_one_json_list_on_one_line(self):
        out = self.done("tokenize", "-p", "Hello world")
        self.assertEqual(out.count(b"\n"), 1)
        self.assertIsInstance(json.loads(out), list)

    def test_text_survives_encode_and_decode(self):
        for text in self.TEXTS:
            with self.subTest(text=text[:20]):
                ids = self.done("tokenize", "-f", self.file("text.txt", text)).decode()
                self.assertEqual(self.done("tokenize", "--decode", ids), text.encode())

    def test_decode_takes_lists_in_every_form(self):
        ids = json.loads(self.done("tokenize", "-p", "Hello world, again"))
        plain = ",".join(map(str, ids))
        for form in (plain, json.dumps(ids), " ".join(map(str, ids)),
                     "@" + self.file("ids.json", "\ufeff" + json.dumps(ids) + "\r\n"), " [ " + plain + " ] "):
            self.assertEqual(self.done("tokenize", "--decode", form), b"Hello world, again", form)
        self.assertEqual(self.done("tokenize", "--decode", "[]"), b"")

    def test_control_tokens_are_parsed_only_when_asked(self):
        text = "<|im_start|>user\nhi<|im_end|>"
        as_text, parsed = (json.loads(self.done("tokenize", "-p", text, *more)) for more in ([], ["--special"]))
        self.assertGreater(len(as_text), len(parsed))
        self.assertNotIn(8189, as_text)
        for ids in (as_text, parsed):
            self.assertEqual(self.done("tokenize", "--decode", json.dumps(ids)).decode(), text)

    def test_text_that_is_not_utf8_is_refused_with_its_place(self):
        self.refused(2, "bad_argument", "0xc3", "offset 4", run=["tokenize"], stdin=b"abcd\xc3(")

    def test_a_megabyte_without_line_breaks_is_quick(self):
        path = self.file("long.txt", ("the quick brown fox jumps over " * 40000)[:1 << 20])
        start = time.monotonic()
        ids = json.loads(self.done("tokenize", "-f", path))
        self.assertGreater(len(ids), 100000)
        self.assertLess(time.monotonic() - start, 20)  # seconds; generous for sanitized builds


class Render(BaseCli):
    MESSAGES = {"messages": [{"role": "system", "content": "Be brief."},
                             {"role": "user", "content": "Hi <|im_end|>\nthere"}]}

    def test_the_demo_models_own_template(self):
        out = self.done("render", "--messages", self.file("m.json", json.dumps(self.MESSAGES))).decode()
        expected = ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|>\nthere<|im_end|>\n"
                    "<|im_start|>assistant\n")
        self.assertTrue(out.startswith(expected), out)

    def test_standard_input_gives_the_same(self):
        text = json.dumps(self.MESSAGES)
        self.assertEqual(self.done("render", "--messages", "-", stdin=text),
                         self.done("render", "--messages", self.file("m.json", "\ufeff" + text)))

    def test_the_switch_for_the_generation_prompt(self):
        request = {**self.MESSAGES, "add_generation_prompt": False}
        out = self.done("render", "--messages", self.file("m.json", json.dumps(request))).decode()
        self.assertTrue(out.endswith("there<|im_end|>\n"), out)

    def test_any_template_is_run_and_one_that_cannot_be_says_so(self):
        messages = self.file("m.json", json.dumps(self.MESSAGES))
        odd = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
        r = auspex("render", "--messages", messages, "--template", self.file("odd.jinja", odd))
        self.assertEqual((r.returncode, r.stdout[:9], r.stderr), (0, b"[system] ", b""))
        r = auspex("render", "--messages", messages, "--template", self.file("odd.jinja", odd + "{{ 1 | nope }}"))
        self.assertEqual((r.returncode, r.stdout[:19]), (0, b"<|im_start|>system\n"), r.stderr)
        self.assertIn(b"auspex: note: the chat template cannot be run (the chat template, line 1: there is no filter "
                      b"'nope'); plain ChatML is used", r.stderr)

    def test_no_model_is_needed_where_a_template_is_given(self):
        template = self.file("odd.jinja", "{{ messages }}")
        self.done("render", "--messages", self.file("m.json", json.dumps(self.MESSAGES)), "--template", template, "-m",
                  "nowhere.gguf")


class Inspect(BaseCli):
    def test_text_names_keys_types_and_ops(self):
        out = self.done("inspect", DEMO).decode()
        for word in ("general.architecture = \"qwen35\"", "Q4_K", "Q6_K", "plan: qwen35, 8 layers",
                     "blk.0.ffn_gate.weight", "mtp block 0"):
            self.assertIn(word, out)

    def test_json_is_one_object_with_every_tensor(self):
        o = json.loads(self.done("inspect", DEMO, "--json"))
        self.assertEqual(o["bytes"], os.path.getsize(DEMO))
        self.assertEqual(o["metadata"]["qwen35.block_count"], 9)
        self.assertEqual(o["metadata"]["tokenizer.ggml.tokens"]["n"], 8192)
        self.assertEqual(len(o["tensors"]), 123)
        self.assertEqual({t["type"]: t["tensors"] for t in o["types"]}, {"F32": 52, "Q4_K": 60, "Q6_K": 11})
        self.assertEqual(next(t["shape"] for t in o["tensors"] if t["name"] == "blk.0.ffn_gate.weight"), [1536, 512])
        self.assertEqual((o["plan"]["architecture"], o["plan"]["n_layer"], o["plan"]["n_mtp"]), ("qwen35", 8, 1))

    def test_a_file_that_cannot_run_is_still_shown(self):
        path = self.file("bert.gguf", gguf([("general.architecture", "str", "bert"), ("general.name", "str", "other")]))
        r = auspex("inspect", path, "--json")
        self.assertEqual(r.returncode, 2)
        self.assertEqual(json.loads(r.stdout)["metadata"]["general.name"], "other")
        self.assertIn(b"auspex: unsupported: ", r.stderr)

    def test_the_device_report(self):
        out = self.done("inspect", "--device", "cpu").decode()
        self.assertIn("cpu", out)
        o = json.loads(self.done("inspect", "--device", "cpu", "--json"))
        self.assertIn("cpu", o["device"])
        self.assertNotIn("steps", json.loads(self.done("inspect", DEMO, "--device", "cpu", "--json")))

    def test_the_steps_of_a_model_on_a_gpu(self):
        gpu = ["inspect", "-m", DEMO, "--device", "vulkan", "--ctx", 256, "--ubatch", 128]
        r = auspex(*gpu, "--json")
        left_out = b"AUSPEX_NO_VULKAN" in r.stderr
        if r.returncode != 0 and (left_out or not GPU_REQUIRED):
            self.assertIn(b"auspex: no_device: ", r.stderr)
            self.skipTest("this build leaves Vulkan out" if left_out else "no Vulkan device")
        self.assertEqual(r.returncode, 0, r.stderr)
        steps = json.loads(r.stdout)["steps"]
        self.assertEqual([s["rows"] for s in steps], [1, 4, 128])
        for s in steps:
            self.assertEqual(list(s), ["rows", "dispatches", "barriers", "pipelines"])
            self.assertGreater(s["dispatches"], s["barriers"])
            self.assertGreater(s["barriers"], s["pipelines"])
            self.assertGreater(s["pipelines"], 0)
        text = self.done(*gpu).decode()
        for s in steps:
            self.assertRegex(text, r"\n  (decode|prefill) +" + " +".join(str(n) for n in s.values()) + r"\n")


class Logits(BaseCli):
    IDS = "17,15,17,21,12,16,17,12,15,22"

    def rows(self, path):
        with open(path, "rb") as f:
            data = f.read()
        self.assertEqual(len(data) % (4 * 8192), 0)
        n = len(data) // 4
        return [struct.unpack_from("<8192f", data, 4 * i) for i in range(0, n, 8192)]

    def logits(self, *arguments, name="rows.f32"):
        path = os.path.join(self.folder, name)
        self.done("logits", "--out", path, *arguments)
        return self.rows(path)

    def test_a_row_for_every_position(self):
        rows = self.logits("--ids", self.IDS)
        self.assertEqual(len(rows), 10)
        for row in rows:
            self.assertTrue(all(abs(x) < 1e4 for x in row))
        self.assertEqual(self.logits("--ids", "@" + self.file("ids.json", "[" + self.IDS + "]")), rows)

    def test_chosen_rows_in_the_order_asked_for(self):
        rows = self.logits("--ids", self.IDS)
        self.assertEqual(self.logits("--ids", self.IDS, "--rows", "7,0,7"), [rows[7], rows[0], rows[7]])

    def test_the_last_row_predicts_what_run_generates(self):
        ids = json.loads(self.done("tokenize", "-p", LOG))
        last = self.logits("--ids", json.dumps(ids), "--rows", len(ids) - 1)[0]
        made = self.run_json("-p", LOG, "-n", 1)["ids"][0]
        self.assertEqual(max(range(len(last)), key=lambda i: last[i]), made)

    def test_mtp_rows_end_where_their_depth_ends(self):
        for depth in (1, 2, 3):
            path = os.path.join(self.folder, f"mtp{depth}.f32")
            self.done("logits", "--ids", self.IDS, "--mtp", depth, "--mtp-out", path)
            self.assertEqual(len(self.rows(path)), 10 - depth)

    def test_no_chosen_row_is_left_out(self):
        path = os.path.join(self.folder, "mtp.f32")
        run = ["logits", "--ids", self.IDS, "--mtp", 2, "--mtp-out", path, "--rows"]
        self.refused(2, "bad_argument", "--rows has 8, but at --mtp 2 the rows of 10 ids are 0 .. 7", run=[*run, "0,8"])
        self.done(*run, "7,0")
        self.assertEqual(len(self.rows(path)), 2)

    def test_mtp_predicts_a_log_it_knows(self):
        ids = json.loads(self.done("tokenize", "-p", LOG * 3))
        path = os.path.join(self.folder, "mtp.f32")
        self.done("logits", "--ids", json.dumps(ids), "--mtp", 1, "--mtp-out", path)
        rows = self.rows(path)[len(ids) // 2:]
        right = sum(max(range(8192), key=row.__getitem__) == ids[len(ids) // 2 + t + 2] for t,
                    row in enumerate(rows) if len(ids) // 2 + t + 2 < len(ids))
        self.assertGreater(right, 0.8 * (len(rows) - 1))


class Chat(BaseCli):
    def test_a_conversation_through_a_pipe(self):
        said = ("Write a Python function that returns the double of a number.\n"
                "Write a Python function that returns the square of a number.\n")
        out = self.done("chat", "-n", 120, stdin=said).decode()
        self.assertIn("def double", out)
        self.assertIn("def square", out)
        self.assertNotIn("<|im_end|>", out)

    def test_commands(self):
        said = "/help\n/stats\n/reset\n/system You are a helpful assistant.\n/think off\nHi\n/quit\nnever reached\n"
        r = auspex("chat", "-n", 4, stdin=said)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn(b"/reset", r.stderr)
        self.assertIn(b"tokens/s", r.stderr)
        self.assertGreaterEqual(r.stdout.count(b"\n"), 1)
        self.assertEqual(r.stderr.count(b"tokens/s"), 2)  # one line of /stats: prompt and answer

    def chat(self, said, *arguments, model=None):
        """The answers, one JSON object each, and what was said on stderr."""
        r = auspex("chat", *(["-m", model] if model else []), "--device", "cpu", "--json", "-n", 24, *arguments,
                   stdin=said)
        self.assertEqual(r.returncode, 0, r.stderr)
        return [json.loads(line) for line in r.stdout.splitlines()], r.stderr.decode()

    DOUBLE = "Write a Python function that returns the double of a number.\n"
    SQUARE = "Write a Python function that returns the square of a number.\n"

    def test_edit_answers_the_changed_message_and_computes_no_earlier_row(self):
        plain, _ = self.chat(self.DOUBLE + self.SQUARE)
        edited, text = self.chat(self.DOUBLE + "Hello\nAnd then?\n/edit 2 " + self.SQUARE + "/edit\n")
        self.assertEqual(edited[-1]["text"], plain[-1]["text"])
        self.assertEqual(edited[-1]["prompt_tokens"], plain[-1]["prompt_tokens"])
        self.assertGreater(edited[-1]["sync"]["rows_reused"], plain[0]["prompt_tokens"] // 2)
        self.assertEqual(edited[-1]["sync"]["reason"], "checkpoint")
        self.assertIn("nearest checkpoint", edited[-1]["sync"]["text"])
        self.assertIn("  2  Write a Python function that returns the square", text)
        self.assertNotIn("And then?", text)

    def test_branches_are_listed_and_come_back(self):
        answers, text = self.chat("Hello\n" + self.DOUBLE + "/edit 1 Hi\n/branches\n/branches 1\n/retry\n/undo\n")
        self.assertEqual(answers[1]["text"], answers[3]["text"])
        self.assertEqual(answers[1]["prompt_tokens"], answers[3]["prompt_tokens"])
        self.assertLess(answers[3]["sync"]["rows_computed"], answers[3]["prompt_tokens"])
        self.assertIn("* 2  1 message: Hi", text)
        self.assertIn("* 1  2 messages: Write a Python", text)

    def test_edit_and_branches_that_do_not_exist_change_nothing(self):
        for line, words in (("/edit 2 Hi", b"there is no message"), ("/edit x Hi", b"'x'"), ("/branches 2", b"1 .. 1"),
                            ("/branches -1", b"'-1'"), ("/undo", b"nothing was said")):
            r = auspex("chat", "--device", "cpu", stdin=line + "\n")
            self.assertEqual(r.returncode, 2)
            self.assertIn(words, r.stderr)
        r = auspex("chat", "--device", "cpu", "-n", 4, stdin="Hi\n/edit 1\n")
        self.assertIn(b"/edit N TEXT", r.stderr)

    def test_a_template_that_changes_earlier_turns_is_reported_once_with_the_switch_that_avoids_it(self):
        path = self.file("thinks.gguf", with_template(ELEMENTS))
        said = "Hello\n" + self.DOUBLE + self.SQUARE
        for arguments, words in (((), "--preserve-thinking keeps"), (("--no-think",), "--preserve-thinking keeps"),
                                 (("--preserve-thinking", "--no-think"), None)):
            answers, text = self.chat(said, *arguments, model=path)
            self.assertEqual(text.count("wrote earlier turns differently"), 1 if words else 0, text)
            if words:
                self.assertIn(words, text)
            else:
                self.assertEqual([a["sync"]["reason"] for a in answers][1:], ["appended", "appended"])
        _, text = self.chat("Hello\n/edit 1 Hi\n/retry\n/undo\n/branches 1\nHello\n", model=path)
        self.assertNotIn("differently", text)
        _, text = self.chat(said)  # the demo model's own template opens each answer with an empty thinking part
        self.assertIn("no switch that avoids that", text)

    def test_unknown_commands_and_bad_text_are_refused(self):
        for text in (b"/fly\n", b"\xff\xfe\n"):
            r = auspex("chat", stdin=text)
            self.assertEqual(r.returncode, 2)
            self.assertIn(b"auspex: bad_argument: ", r.stderr)

    def test_a_conversation_longer_than_the_context(self):
        r = auspex("chat", "--ctx", 64, stdin="word " * 200 + "\n")
        self.assertEqual(r.returncode, 1)
        self.assertIn(b"auspex: context_full: ", r.stderr)


if __name__ == "__main__":
    unittest.main()
