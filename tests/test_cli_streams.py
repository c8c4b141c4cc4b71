"""What reaches the terminal and the standard streams: quoted names, write errors, closed streams, bad numbers."""
import json
import os
import shutil
import struct
import subprocess
import unittest

from test_cli import BINARY, DEMO, HAS_BENCH, LOG, BaseCli, auspex, built, gguf

ESCAPE = "\x1b]0;title\x07\x1b[31mred\u009b1m\x7f\n"
TINY_MODEL = os.path.join(os.path.dirname(BINARY), "tiny_model")
TOOL_CALL = b'<tool_call>{"name":"f","arguments":{}}</tool_call>'


class ControlCharacters(BaseCli):
    def assert_quoted(self, output):
        text = output.decode("utf-8")
        bad = [c for c in text if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0]
        self.assertEqual(bad, [], text)

    def test_an_architecture_in_an_error(self):
        path = self.file("bad.gguf", gguf([("general.architecture", "str", "qwen35" + ESCAPE)]))
        r = auspex("run", "-m", path, "-p", "x")
        self.assertEqual(r.returncode, 2)
        self.assertIn(b"title", r.stderr)
        self.assert_quoted(r.stderr)

    def test_names_and_values_in_inspect(self):
        keys = [("general.architecture", "str", "x"), ("general.name", "str", "value" + ESCAPE)]
        path = self.file("bad.gguf", gguf(keys, tensors=[("tensor" + ESCAPE, [8])]))
        for more in (["--tensors"], ["--json"]):
            r = auspex("inspect", path, *more)
            self.assert_quoted(r.stdout + r.stderr)
            for word in (b"tensor", b"value"):
                self.assertIn(word, r.stdout)
        self.assertEqual(json.loads(r.stdout)["tensors"][0]["name"], "tensor" + ESCAPE)  # JSON keeps the name itself

    def test_generated_text_as_json(self):
        for command, said in (["run", "-p", "x"], b""), (["chat", "--no-think"], b"x\n"):
            r = auspex(*command, "--json", "--regex", "\x7f\u009b", "--device", "cpu", stdin=said)
            self.assert_quoted(r.stdout)
            self.assertEqual(json.loads(r.stdout)["text"], "\x7f\u009b")

    def test_a_name_on_the_command_line(self):
        r = auspex("inspect", "nowhere" + ESCAPE)
        self.assertEqual(r.returncode, 2)
        self.assert_quoted(r.stderr)

    def test_the_banner_of_a_chat(self):
        try:
            import pty
        except ImportError:
            self.skipTest("needs a pseudo-terminal")
        with open(DEMO, "rb") as f:
            data = bytearray(f.read())
        at = data.index(b"general.name") + len(b"general.name") + 4 + 8
        data[at:at + 5] = b"\x1b[31m"
        path = self.file("name.gguf", data)
        master, slave = pty.openpty()
        p = subprocess.Popen([BINARY, "chat", "-m", path, "--device", "cpu"], stdin=slave, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
        os.write(master, b"/quit\n")
        errors = p.communicate(timeout=120)[1]
        os.close(master)
        os.close(slave)
        self.assertEqual(p.returncode, 0, errors)
        self.assertIn(b"\\x1b[31m", errors)
        self.assert_quoted(errors)


@unittest.skipUnless(os.name == "posix" and os.path.exists("/dev/full"), "needs /dev/full")
class StandardStreams(BaseCli):
    def run_shell(self, redirections, *arguments):
        """Exit code and errors of the program with redirections such as '>&-', which closes standard output."""
        errors = os.path.join(self.folder, "errors.txt")
        command = f'"$0" "$@" {redirections} 2>"{errors}"'
        r = subprocess.run(["sh", "-c", command, BINARY, *map(str, arguments)], stdin=subprocess.DEVNULL, timeout=120)
        with open(errors, "rb") as f:
            return r.returncode, f.read()

    def test_the_help_says_that_standard_input_is_the_default(self):
        self.assertIn(b"-, or neither of the two, is standard input", self.done("run", "--help"))

    def test_output_that_cannot_be_written_is_an_error(self):
        for arguments in built(["--help"], ["--version"], ["run", "--help"], ["bench", "--help"], ["inspect", DEMO],
                               ["inspect", "--device", "cpu"], ["tokenize", "-p", "x"], ["run", "-p", "x", "-n", "1"],
                               ["bench", "--device", "cpu", "--prefill", "4", "--repeat", "1"]):
            with self.subTest(arguments):
                code, errors = self.run_shell(">/dev/full", *arguments)
                self.assertEqual(code, 1, errors)
                self.assertIn(b"auspex: io_error: standard output", errors)

    def test_a_closed_output_is_an_error_and_stays_out_of_files(self):
        trace = os.path.join(self.folder, "trace.jsonl")
        code, errors = self.run_shell(">&-", "run", "-p", LOG, "-n", 12, "--device", "cpu", "--trace", trace)
        self.assertEqual(code, 1, errors)
        self.assertIn(b"auspex: io_error: standard output", errors)
        with open(trace, encoding="ascii") as f:
            for line in f:
                json.loads(line)  # cycles alone, no text of the model between them
        rows = os.path.join(self.folder, "rows.f32")
        code, errors = self.run_shell(">&-", "logits", "--ids", "1,2", "--out", rows, "--device", "cpu")
        self.assertEqual((code, os.path.getsize(rows)), (0, 2 * 8192 * 4), errors)

    def test_a_closed_input_is_an_error_and_a_file_does_not_take_its_place(self):
        rows = os.path.join(self.folder, "rows.f32")
        code, errors = self.run_shell("<&-", "logits", "--ids", "1,2", "--out", rows, "--device", "cpu")
        self.assertEqual((code, os.path.getsize(rows)), (0, 2 * 8192 * 4), errors)
        code, errors = self.run_shell("<&-", "tokenize")
        self.assertEqual(code, 1)
        self.assertIn(b"auspex: io_error: standard input", errors)


class Arguments(BaseCli):
    def test_whole_numbers_beyond_64_bits(self):
        for option, value in (("-n", "99999999999999999999"), ("-n", "-99999999999999999999"),
                              ("--ctx", "9223372036854775808"), ("--seed", "18446744073709551616"),
                              ("--threads", "99999999999999999999")):
            self.refused(2, "bad_argument", value, run=["run", "-p", "x", option, value])
        if HAS_BENCH:
            self.refused(2, "bad_argument", "99999999999999999999", run=["bench", "--repeat", "99999999999999999999"])
        self.run_json("-p", "x", "-n", 1, "--seed", 18446744073709551615)

    def test_a_limit_that_is_too_small_is_named_as_the_option(self):
        run = ["run", "-p", "x", "--memory-limit"]
        text = self.refused(1, "out_of_memory", "--memory-limit is 1024", run=[*run, "1K"])
        self.assertNotIn("memory_limit_bytes", text)
        self.refused(1, "out_of_memory", "--memory-limit is 512", run=[*run, "0.5K"])
        for size in ("0.5", "0.0001K", "0K", "-1K", "nan"):
            self.refused(2, "bad_argument", f"--memory-limit {size}: expected", run=["run", "-p", "x",
                                                                                   f"--memory-limit={size}"])

    def test_a_text_that_the_context_cuts_says_so(self):
        n = len(json.loads(self.done("tokenize", "-p", "x")))
        for more, words in ((0, b"the context is full after 0 tokens; give a larger --ctx"),
                            (2, b"the context is full after 2 tokens; give a larger --ctx"), (3, None)):
            r = auspex("run", "-p", "x", "-n", 3, "--ignore-end", "--ctx", n + more)
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertEqual(b"is full" in r.stderr, words is not None, r.stderr)
            self.assertIn(words or b"", r.stderr)

    def test_whole_numbers_are_decimal(self):
        o = self.run_json("-p", LOG, "-n", "010", "--threads", "01", "--top-k", "08", "--seed", "00", "--ctx", "0100")
        self.assertEqual(o["tokens"], 10)
        self.refused(2, "bad_argument", "--tokens 08x: expected a whole number", run=["run", "-p", "x", "-n", "08x"])

    def test_what_is_wrong_is_named_and_where_help_is(self):
        for run, words in (([], "no command was given (auspex --help"),
                           (["help"], "'help' is no command (auspex --help"),
                           (["run", "Hello"], "not expected: Hello (auspex run --help"),
                           (["run", "-v", "-v", "-n", 3, "-n", 4], "--tokens is given 2 times, expected once"),
                           (["run", "-p", "x", "--seed", -1], "--seed -1: expected a whole number of 0 or more"),
                           (["run", "-p", "x", "--penalty-window", -1], "--penalty-window -1: expected a whole number"),
                           (["run", "--threads", 3000000000], "--threads = 3000000000: expected a smaller number"),
                           (["run", "--json=maybe"], "--json = maybe: expected true, false, or no value"),
                           (["chat", "--think=maybe"], "--think = maybe: expected true, false, or no value"),
                           (["run", "-p", "x", "--kv-budget", "1K"], "--kv-budget is 1024, but keys and values take"),
                           (["run", "-p", "x", "--kv-budget", "1K"], "take a smaller --ubatch"),
                           (["run", "-p", "x", "-f", "y"], "--prompt and --file contradict each other"),
                           (["chat", "--regex", "x", "--ignore-end"], "--regex and --ignore-end contradict each other"),
                           (["inspect", "--plan", "--devices"], "--devices and --plan contradict each other"),
                           (["inspect", "--devices", "--device"], "--device and --devices contradict each other"),
                           (["inspect", "--window", "all:64"], "--window has no meaning here, expected --plan or"),
                           (["inspect", "--devices", "--ctx", 5], "--ctx has no meaning here"),
                           (["inspect", "--plan", "--no-mtp", "--mtp-file", "x"], "--no-mtp contradict each other"),
                           (["inspect", "--plan", "--ctx", 3000000000], "--ctx 3000000000: expected 1 .. 16777216"),
                           (["logits", "--ids", 1, "--mtp", 1, "--out", "x", "--mtp-out", "x"], "both name 'x'")):
            self.refused(2, "bad_argument", words, run=run)

    def test_inspect_refuses_an_option_that_nobody_reads(self):
        cpu, nowhere = ["--device", "cpu"], "/no/such.gguf"
        session = "expected --plan or --device with a file beside it"
        for arguments, option, reader in ((["--devices", nowhere], "--model", "expected --plan, --device, or neither"),
                                          ([*cpu, "--mtp-file", DEMO], "--mtp-file", "expected --plan, --device with"),
                                          ([*cpu, "--ctx", 99999999999], "--ctx", session),
                                          ([*cpu, "--draft-window", -5], "--draft-window", session),
                                          ([*cpu, "--memory-limit", "1G"], "--memory-limit", session),
                                          ([*cpu, "--no-mtp"], "--no-mtp", session),
                                          (["--devices", "--threads", 2], "--threads", "expected --plan or --device"),
                                          (["--plan", "--tensors"], "--tensors", "expected neither --plan"),
                                          ([*cpu, "--tensors"], "--tensors", "expected neither --plan"),
                                          (["--devices", "--tensors"], "--tensors", "expected neither --plan")):
            self.refused(2, "bad_argument", f"{option} has no meaning here, {reader}", run=["inspect", *arguments])
        self.done("inspect", "--device", "cpu", "--threads", 1, "--cpu-path", "reference")
        # A file beside a device is read, whatever the device.
        self.refused(2, "not_found", nowhere, run=["inspect", *cpu, nowhere])
        self.refused(2, "bad_argument", "--ctx 99999999999", run=["inspect", *cpu, DEMO, "--ctx", 99999999999])
        self.done("inspect", *cpu, DEMO, "--ctx", 256)

    def test_standard_output_is_no_file(self):
        for options in (["logits", "--ids", "1,2", "--out"], ["logits", "--ids", "1,2", "--mtp", 1, "--mtp-out"],
                        ["run", "-p", LOG, "--trace"], ["run", "-p", LOG, "--session"], ["eval", "--plot"],
                        ["run", "-p", LOG, "--packed-file"]):
            r = auspex(*options, "-", cwd=self.folder)
            self.assertEqual((r.returncode, r.stdout), (2, b""), r.stderr)
            self.assertIn(options[-1].encode() + b" -: ", r.stderr)
        self.assertEqual(os.listdir(self.folder), [])

    def test_an_empty_value_is_refused_by_name(self):
        for option in ("--json-schema", "--grammar", "--tools", "--tool-choice", "--session", "--mtp-file",
                       "--memory-limit", "--kv-budget", "--window", "--draft-vocab", "--packed-file", "--trace",
                       "--ubatch", "--temp", "--stop", "--model"):
            self.refused(2, "bad_argument", f"{option} is empty", run=["run", "-p", "x", option, ""])
        self.refused(2, "bad_argument", "--json-schema is empty", run=["run", "--json-schema=", "-p", "x"])
        self.refused(2, "bad_argument", "--model is empty", run=["run", "-p", "x", "-m", ""])
        for run in built(["eval", "--file"], ["bench", "--masks"], ["bench", "--replay"], ["inspect", "--model"],
                         ["tokenize", "--file"], ["logits", "--ids", "1", "--out"]):
            self.refused(2, "bad_argument", f"{run[-1]} is empty", run=[*run, ""])

    def test_an_empty_value_that_means_something_is_taken(self):
        self.assertEqual(self.done("run", "-p", "x", "-n", 4, "--device", "cpu", "--regex", ""), b"")
        self.assertEqual(self.done("run", "-p", "x", "-n", 4, "--regex=", "--device", "cpu"), b"")
        self.assertEqual(self.done("tokenize", "-p", ""), b"[]\n")
        self.assertEqual(self.done("tokenize", "--decode", ""), b"")
        self.assertRegex(self.done("inspect", "--device"), b"\nkind     (cpu\nthreads|vulkan\n)")

    def test_a_value_may_look_like_an_option_without_one(self):
        """It was taken for one, and what follows for a command or an option without a name."""
        tokens = self.done("tokenize", "--prompt=--foo=")
        for run in (["-p", "--foo="], ["--prompt", "--foo="], ["-p--foo="]):
            self.assertEqual(self.done("tokenize", *run), tokens)
        o = self.run_json("-p", "--prompt=", "--regex", "--[a]=", "--stop", "--stop=", "--device", "cpu")
        self.assertEqual(o["text"], "--a=")
        self.assertEqual(self.done("run", "-p", "--x=", "-n", 4, "--regex=", "--device=cpu"), b"")
        self.refused(2, "bad_argument", "--json-schema is empty", run=["run", "-p", "--x=", "--json-schema="])

    def test_a_directory_is_no_model(self):
        for command in built(["run", "-p", "x", "-m"], ["inspect"], ["tokenize", "-p", "x", "-m"],
                             ["inspect", "--plan", "-m"],
                             ["logits", "--ids", "1", "--out", "x", "-m"], ["run", "-p", "x", "--mtp-file"],
                             ["chat", "-m"], ["eval", "-m"], ["bench", "-m"], ["run", "-f"]):
            with self.subTest(command):
                self.refused(2, "bad_argument", "is a directory", self.folder, run=[*command, self.folder])

    @unittest.skipIf(os.name == "nt", "names of programs on Unix")
    def test_bench_without_its_program_says_what_is_missing(self):
        alone = shutil.copy(BINARY, self.folder)
        r = subprocess.run([alone, "bench"], capture_output=True, timeout=60)
        self.assertEqual(r.returncode, 2)
        self.assertIn(b"auspex: not_found: ", r.stderr)
        self.assertIn(b"auspex_bench", r.stderr)

    @unittest.skipUnless(hasattr(os, "mkfifo"), "needs named pipes")
    def test_a_pipe_is_no_model(self):
        path = os.path.join(self.folder, "pipe")
        os.mkfifo(path)
        self.refused(2, "bad_argument", "is a pipe", run=["run", "-p", "x", "-m", path])
        self.refused(2, "bad_argument", "is a pipe", run=["inspect", path])

    @unittest.skipIf(os.name == "nt", "folders of the XDG specification")
    def test_cache_folders_that_are_not_absolute_are_ignored(self):
        def run(*more, **folders):
            environment = {k: v for k, v in os.environ.items() if k not in ("XDG_CACHE_HOME", "HOME")}
            command = [BINARY, "run", "-p", LOG, "-n", "40", "--device", "cpu", *more]
            r = subprocess.run(command, capture_output=True, cwd=self.folder, env={**environment, **folders},
                               timeout=600)
            self.assertEqual(r.returncode, 0, r.stderr)
            return r
        run(XDG_CACHE_HOME="relative", HOME="home")
        self.assertEqual(os.listdir(self.folder), [])
        run(XDG_CACHE_HOME="relative", HOME=os.path.join(self.folder, "home"))
        self.assertEqual(os.listdir(self.folder), ["home"])
        self.assertTrue(os.listdir(os.path.join(self.folder, "home", ".cache", "auspex")))
        run(XDG_CACHE_HOME=os.path.join(self.folder, "cache"))
        self.assertTrue(os.listdir(os.path.join(self.folder, "cache", "auspex")))
        r = run("--packed-file", "auto")
        self.assertIn(b"--packed-file auto: there is no cache folder", r.stderr)


@unittest.skipUnless(os.path.exists(TINY_MODEL), "needs tiny_model beside the program")
class PlainChatml(BaseCli):
    """A template that cannot render tool calls, and a model whose answer reads like one."""

    def first_answer(self, model, message):
        """The ids of the prompt, and the token that the model answers first."""
        messages = self.file("m.json", json.dumps({"messages": [{"role": "user", "content": message}]}))
        prompt = self.done("render", "-m", model, "--messages", messages).decode()
        made = self.run_json("-m", model, "--device", "cpu", "-p", prompt, "--special", "-n", 1, "--draft",
                             "off")["ids"]
        return json.loads(self.done("tokenize", "-m", model, "--special", "-p", prompt)), made[0]

    def test_a_chat_goes_on_after_an_answer_that_reads_like_a_tool_call(self):
        model = os.path.join(self.folder, "tiny.gguf")
        subprocess.run([TINY_MODEL, "--family", "qwen35", model], check=True, capture_output=True)
        for i in range(300):
            prompt, answer = self.first_answer(model, f"hi{i}")
            if answer >= 268 and answer not in prompt:
                break
        with open(model, "rb") as f:
            data = f.read()
        patched = self.file("call.gguf", with_token(data, answer, TOOL_CALL))
        said = f"hi{i}\nhello\n"
        r = auspex("chat", "-m", patched, "--device", "cpu", "-n", 1, "--draft", "off", stdin=said)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn(TOOL_CALL, r.stdout)
        self.assertEqual(r.stdout.count(b"\n"), 2)


def with_token(data, id, text):
    """The GGUF file with the text of one token replaced; the token becomes a user-defined one."""
    width = {0: 1, 1: 1, 7: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 10: 8, 11: 8, 12: 8}
    at, out = 24, data[:24]
    n_tensor, n_key = struct.unpack("<QQ", data[8:24])

    def string(at):
        n, = struct.unpack_from("<Q", data, at)
        return data[at + 8:at + 8 + n], at + 8 + n

    def packed(s):
        return struct.pack("<Q", len(s)) + s

    for _ in range(n_key):
        key, at = string(at)
        kind, = struct.unpack_from("<I", data, at)
        out += packed(key) + data[at:at + 4]
        at += 4
        if kind == 8:
            value, at = string(at)
            out += packed(value)
        elif kind != 9:
            out += data[at:at + width[kind]]
            at += width[kind]
        else:
            element, n = struct.unpack_from("<IQ", data, at)
            out += data[at:at + 12]
            at += 12
            for i in range(n):
                chosen = i == id and element in (5, 8)
                if element == 8:
                    value, at = string(at)
                    out += packed(text if chosen and key == b"tokenizer.ggml.tokens" else value)
                else:
                    value = data[at:at + width[element]]
                    out += struct.pack("<i", 4) if chosen and key == b"tokenizer.ggml.token_type" else value
                    at += width[element]
    for _ in range(n_tensor):
        start = at
        _, at = string(at)
        n_dim, = struct.unpack_from("<I", data, at)
        at += 4 + 8 * n_dim + 12
        out += data[start:at]
    return out + bytes(-len(out) % 32) + data[at + -at % 32:]


if __name__ == "__main__":
    unittest.main()
