"""Outputs that name a file which a command reads, or another output: they are refused, the file stays as it is."""
import json
import os
import shutil
import struct
import subprocess
import sys
import unittest

from test_cli import BINARY, DEMO, LOG, REPO, BaseCli, built, gguf_string
from test_cli_streams import TINY_MODEL

IDS = "1,2,3"


def content(path):
    with open(path, "rb") as f:
        return f.read()


def no_large_files():
    """As on a full disk, writing fails midway."""
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


class BaseFiles(BaseCli):
    def keeps(self, path, *words, run, **more):
        """The command is refused before it has written anything: the file and the folder stay as they are."""
        before, names = content(path), sorted(os.listdir(self.folder))
        self.refused(2, "bad_argument", *words, run=run, **more)
        self.assertEqual((content(path) == before, sorted(os.listdir(self.folder))), (True, names), run)

    def model(self):
        return shutil.copy(DEMO, os.path.join(self.folder, "m.gguf"))

    def link(self, path, name="link"):
        if os.name != "posix":
            self.skipTest("needs links")
        link = os.path.join(self.folder, name)
        os.symlink(path, link)
        return link


class OutputIsInput(BaseFiles):
    def test_a_model(self):
        m = self.model()
        for run in built(["logits", "--ids", IDS, "--out"], ["logits", "--ids", IDS, "--mtp", 1, "--mtp-out"],
                         ["run", "-p", "x", "--trace"], ["chat", "--trace"], ["run", "-p", "x", "--session"],
                         ["run", "-p", "x", "--packed-file"], ["eval", "--plot"], ["bench", "--controller", "--trace"],
                         ["bench", "--controller", "--plot"], ["bench", "--stack", "--plot"],
                         ["bench", "--replay", "loop", "--session-file"]):
            with self.subTest(run):
                self.keeps(m, f"{run[-1]} {m}: this would overwrite '{m}', the file of --model", run=[*run, m, "-m", m])

    def test_the_file_of_the_mtp_block(self):
        m = self.model()
        self.keeps(m, "--trace ", "the file of --mtp-file", run=["run", "-p", "x", "--mtp-file", m, "--trace", m])

    def test_a_model_by_another_name(self):
        m = self.model()
        hard = os.path.join(self.folder, "hard")
        os.link(m, hard)
        names = [os.path.join(self.folder, ".", "m.gguf"), hard, self.link(m), self.link("link", "second")]
        for name in names:
            with self.subTest(name):
                self.keeps(m, f"--out {name}: ", m, run=["logits", "--ids", IDS, "--out", name, "-m", m])
                self.keeps(m, f"--out {m}: ", name, run=["logits", "--ids", IDS, "--out", m, "-m", name])

    def test_the_demo_model_where_none_is_named(self):
        models = os.path.join(self.folder, "examples", "models")  # the first place where it is looked for
        os.makedirs(models)
        m = shutil.copy(DEMO, os.path.join(models, "auspex-demo.gguf"))
        self.keeps(m, "the file of --model", run=["logits", "--ids", IDS, "--out", m], cwd=self.folder)

    @unittest.skipUnless(os.path.exists(TINY_MODEL), "needs tiny_model beside the program")
    def test_a_shard_of_a_model(self):
        subprocess.run([TINY_MODEL, "--split", "3", "m.gguf"], check=True, capture_output=True, cwd=self.folder)
        first, second, third = [os.path.join(self.folder, f"m-0000{i}-of-00003.gguf") for i in (1, 2, 3)]
        for shard in (second, third):
            self.keeps(shard, f"--out {shard}: ", "--model", run=["logits", "--ids", IDS, "--out", shard, "-m", first])

    def test_a_text(self):
        text, ids = self.file("text", LOG), self.file("ids", IDS)
        for run, of in ((["run", "-f", text, "--trace", text], "--file"),
                        (["eval", "-f", text, "--plot", text], "--file"),
                        (["run", "-p", "x", "--grammar", text, "--trace", text], "--grammar"),
                        (["run", "-p", "x", "--json-schema", text, "--trace", text], "--json-schema"),
                        (["chat", "--tools", text, "--trace", text], "--tools"),
                        (["run", "-p", "x", "--draft-vocab", text, "--trace", text], "--draft-vocab"),
                        (["logits", "--ids", "@" + ids, "--out", ids], "--ids"),
                        (["logits", "--ids", IDS, "--rows", "@" + ids, "--out", ids], "--rows"),
                        *((run, "--text") for run in
                          built(["bench", "--stack", "--text", "a=" + text, "--plot", text]))):
            with self.subTest(run):
                self.keeps(run[-1], run[-2], f"this would overwrite '{run[-1]}', the file of {of};", run=run)

    @unittest.skipUnless(os.path.exists("/dev/stdin"), "needs a name of standard input")
    def test_standard_input(self):
        text = self.file("text", LOG)
        with open(text, "rb") as f:
            r = subprocess.run([BINARY, "chat", "--trace", text], stdin=f, capture_output=True, timeout=120)
        self.assertEqual((r.returncode, content(text)), (2, LOG.encode()), r.stderr)
        self.assertIn(b"the file of standard input", r.stderr)

    def test_what_is_no_file_may_be_read_and_written(self):
        self.file("12", IDS)
        self.done("logits", "--ids", "@12", "--out", "@12", cwd=self.folder)
        self.assertEqual(content(os.path.join(self.folder, "12")), IDS.encode())
        self.done("logits", "--ids", "12", "--out", "12", cwd=self.folder)  # an id, no file
        self.assertEqual(os.path.getsize(os.path.join(self.folder, "12")), 8192 * 4)
        if os.name == "posix":
            self.done("run", "-p", LOG, "-n", 2, "--device", "cpu", "--trace", "/dev/null", "--packed-file", "auto",
                      "--draft-vocab", "auto")
            self.done("logits", "--ids", IDS, "--mtp", 1, "--out", "/dev/null", "--mtp-out", "/dev/null")


class TwoOutputs(BaseFiles):
    def test_of_the_same_file(self):
        new = os.path.join(self.folder, "new")
        for name in (new, os.path.join(self.folder, ".", "new"), self.link("new")):
            r = self.refused(2, "bad_argument", "--out", "--mtp-out", new, "expected two files",
                             run=["logits", "--ids", IDS, "--mtp", 1, "--out", name, "--mtp-out", new])
            self.assertIn("both name" if name == new else f"'{name}' and --mtp-out '{new}' are the same file", r)
        self.assertFalse(os.path.exists(new))

    def test_of_which_one_is_a_conversation(self):
        session = os.path.join(self.folder, "session")
        self.done("run", "-p", LOG, "-n", 2, "--device", "cpu", "--session", session)
        for command in (["run", "-p", "x"], ["chat"]):
            self.keeps(session, "--trace and --session both name", session,
                       run=[*command, "--session", session, "--trace", session])
        link = self.link(session)
        self.keeps(session, "--trace", "--session", "the same file",
                   run=["run", "-p", "x", "--session", session, "--trace", link])


class WrongReasons(BaseCli):
    def test_what_is_expected_has_both_ends(self):
        for option, value, expected in (("--ctx", 4294967297, "expected 1 .. 16777216;"),
                                        ("--ctx", 16777217, "expected 1 .. 16777216;"),
                                        ("--ctx", 0, "expected 1 .. 16777216;"),
                                        ("--draft-window", 4294967296, "expected 0 .. 2147483647"),
                                        ("--kv-type", "f16,f16,f16", "expected f16, "),
                                        ("--kv-type", "f16,q9", "expected f16, ")):
            self.refused(2, "bad_argument", f"{option} {value}: {expected}",
                         run=["run", "-p", "x", "--device", "cpu", option, value])

    def test_no_tools(self):
        tools = self.file("tools.json", "[]")
        self.refused(2, "bad_argument", "is an empty JSON array of tools, expected [{",
                     run=["run", "-p", "x", "--device", "cpu", "--tools", tools])

    def test_a_long_text_of_no_tokens(self):
        for n in built(["bench", "--long", 0], ["bench", "--long", -5]):
            self.refused(2, "bad_argument", f"--long is {n[-1]}, expected 1000 .. 67108864",
                         run=[*n, "--device", "cpu", "--json"])


class GgufTemplate(BaseFiles):
    """tools/gguf_template.py"""

    def tool(self, *arguments, **more):
        return subprocess.run([sys.executable, os.path.join(REPO, "tools", "gguf_template.py"), *arguments],
                              capture_output=True, timeout=60, **more)

    def test_a_file_that_is_read_is_not_overwritten(self):
        m, template = self.model(), self.file("template", "{{ messages }}")
        link = self.link(m)
        for out, name, path in ((m, "MODEL", m), (link, "MODEL", m), (template, "TEMPLATE", template)):
            r = self.tool(m, out, template)
            self.assertEqual((r.returncode, content(m) == content(DEMO), content(template)),
                             (1, True, b"{{ messages }}"), r.stderr)
            self.assertIn(f"OUT '{out}' is {name} '{path}'", r.stderr.decode())

    def test_a_file_appears_when_it_is_complete(self):
        template = self.file("template", "{{ messages }}")
        old = self.file("old.gguf", "old")
        link = self.link("old.gguf")
        r = self.tool(DEMO, link, template, preexec_fn=no_large_files)
        self.assertEqual((r.returncode, content(old)), (1, b"old"), r.stderr)
        self.assertEqual(self.tool(DEMO, link, template).returncode, 0)
        self.assertTrue(os.path.islink(link))
        self.assertEqual(sorted(os.listdir(self.folder)), ["link", "old.gguf", "template"])
        values = json.loads(self.done("inspect", old, "--json"))["metadata"]
        self.assertIn("{{ messages }}", json.dumps(values))

    def test_a_damaged_file_is_refused_by_what_is_wrong(self):
        def key(name, kind, rest):
            return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_string(name) + struct.pack("<I", kind) + rest

        u32, u64 = struct.Struct("<I"), struct.Struct("<Q")
        ends, kind = "ends within its head", "a value has the type"
        for data, words in ((b"", "no GGUF file"), (b"GGUF\3\0\0", ends), (key("k", 8, u64.pack(1 << 40)), ends),
                            (key("k", 8, u64.pack((1 << 64) - 4)), ends), (key("k", 5, b""), ends),
                            (key("k", 9, u32.pack(4) + u64.pack(1 << 62)), ends), (key("k", 13, b""), f"{kind} 13"),
                            (key("k", 9, u32.pack(77) + u64.pack(0)), f"{kind} 77"),
                            (key("k", 9, (u32.pack(9) + u64.pack(1)) * 3000), f"{kind} 9"),
                            (key("general.alignment", 4, u32.pack(0)), "general.alignment is 0, expected a power"),
                            (key("general.alignment", 4, u32.pack(1 << 31)), "general.alignment is 2147483648"),
                            (key("general.alignment", 10, u64.pack(32)), "general.alignment is None"),
                            (b"GGUF" + struct.pack("<IQQ", 3, 0, (1 << 64) - 1), ends),
                            (b"GGUF" + struct.pack("<IQQI", 3, 1, 0, 0) + bytes(4) + b"\xff" * 4, ends)):
            with self.subTest(words, data=data[:80]):
                out = os.path.join(self.folder, "out.gguf")
                r = self.tool(self.file("bad.gguf", data), out, self.file("template", "x"))
                self.assertEqual((r.returncode, r.stderr.count(b"\n"), os.path.exists(out)), (1, 1, False), r.stderr)
                self.assertTrue(r.stderr.startswith(b"gguf_template: "), r.stderr)
                self.assertIn(words, r.stderr.decode())

    def test_what_would_make_no_working_file_is_refused(self):
        out = os.path.join(self.folder, "out.gguf")
        template = self.file("template", "{{ messages }}")
        shard = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_string("split.no")
        for model, to, text, words in (
                (DEMO, out, self.file("latin", b"{{ '\xe9' }}"), "is not UTF-8 at byte 4"),
                (self.file("late.gguf", shard + struct.pack("<IH", 2, 1)), out, template, "this is shard 2 of a model"),
                (DEMO, os.path.join(self.folder, "no", "out.gguf"), template, "out.gguf' is in a folder that does")):
            r = self.tool(model, to, text)
            self.assertEqual((r.returncode, r.stderr.count(b"\n"), os.path.exists(to)), (1, 1, False), r.stderr)
            self.assertTrue(r.stderr.startswith(b"gguf_template: "), r.stderr)
            self.assertIn(words, r.stderr.decode())
        first = self.file("first.gguf", shard + struct.pack("<IH", 2, 0))
        self.assertEqual(self.tool(first, out, template).returncode, 0)

    @unittest.skipUnless(os.path.exists("/dev/full"), "needs /dev/full")
    def test_a_device_is_not_replaced(self):
        r = self.tool(DEMO, "/dev/full", self.file("template", "{{ messages }}"))
        self.assertEqual(r.returncode, 1)
        self.assertIn(b"a folder, a pipe or a device", r.stderr)


class OtherTools(BaseFiles):
    def test_a_file_that_does_not_exist_is_named_on_one_line(self):
        for tool in ("count_tests", "make_unicode"):
            r = subprocess.run([sys.executable, os.path.join(REPO, "tools", tool + ".py"),
                                os.path.join(self.folder, "nowhere")], capture_output=True, timeout=60)
            self.assertEqual((r.returncode, r.stdout, r.stderr.count(b"\n")), (1, b"", 1), r.stderr)
            self.assertTrue(r.stderr.startswith(tool.encode() + b": "), r.stderr)
            self.assertIn(b"nowhere", r.stderr)


if __name__ == "__main__":
    unittest.main()
