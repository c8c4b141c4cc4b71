"""Windows, KV formats, memory plans and `eval` on the command line, with the demo model on the CPU."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BINARY = os.environ.get("AUSPEX_BINARY") or os.path.join(REPO, "build", "auspex")
LOG = "2026-03-14 08:00 Pump-3 status=nominal temp=61C vibration=0.2 note: bearing inspected\n" * 4


@unittest.skipUnless(os.path.exists(BINARY), "needs the auspex program")
class BaseMemory(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def auspex(self, *arguments):
        return subprocess.run([BINARY, *map(str, arguments)], input=b"", capture_output=True, timeout=600)

    def done(self, *arguments):
        r = self.auspex(*arguments)
        self.assertEqual(r.returncode, 0, r.stderr.decode())
        return r.stdout.decode()

    def refused(self, words, *arguments):
        r = self.auspex(*arguments)
        self.assertEqual(r.returncode, 2, r.stderr.decode())
        self.assertEqual(r.stdout, b"")
        for word in words:
            self.assertIn(word, r.stderr.decode())


class PackedFile(BaseMemory):
    def test_the_second_start_reads_what_the_first_one_wrote_and_the_text_is_the_same(self):
        def run(*more):
            r = subprocess.run([BINARY, "run", "--device", "cpu", "-p", LOG, "-n", "12", "--ctx", "512", *more],
                               capture_output=True, timeout=600,
                               env={**os.environ, "XDG_CACHE_HOME": self.folder, "LOCALAPPDATA": self.folder})
            self.assertEqual(r.returncode, 0, r.stderr.decode())
            return r.stdout

        def kept():
            found = [os.path.join(folder, f) for folder, _, files in os.walk(self.folder) for f in files
                     if f.endswith(".packed")]
            return {f: (os.path.getsize(f), os.stat(f).st_mtime_ns) for f in found}

        plain = run()
        self.assertEqual(kept(), {})
        self.assertEqual(run("--packed-file", "auto"), plain)
        first = kept()
        self.assertEqual(len(first), 1)
        self.assertGreater(next(iter(first.values()))[0], 1 << 20)
        self.assertEqual(run("--packed-file", "auto"), plain)
        self.assertEqual(kept(), first)
        own = os.path.join(self.folder, "own.packed")
        self.assertEqual(run("--packed-file", own), plain)
        self.assertIn(own, kept())

    def test_a_file_of_another_kind_stays_as_it_is(self):
        other = os.path.join(self.folder, "letter.txt")
        with open(other, "w") as file:
            file.write("Dear reader")
        self.refused(["letter.txt' is no file of packed weights"], "run", "--device", "cpu", "-p", "x", "-n", 1,
                     "--packed-file", other)
        with open(other) as file:
            self.assertEqual(file.read(), "Dear reader")


class Windows(BaseMemory):
    def text(self, *more):
        return self.done("run", "--device", "cpu", "-p", LOG, "-n", 12, "--ctx", 512, *more)

    def test_a_window_beyond_the_text_changes_nothing_and_a_narrow_one_is_reported(self):
        self.assertEqual(self.text("--window", "all:512"), self.text())
        r = self.auspex("run", "--device", "cpu", "-v", "-p", LOG, "-n", 4, "--ctx", 512, "--window", "3:16+4")
        self.assertIn("windows: 3:16+4,7:full", r.stderr.decode())

    def test_formats_and_budgets_run(self):
        self.text("--kv-type", "q8_0")
        self.text("--kv-type", "q8_0,q4_0")
        self.text("--kv-type", "f32")
        self.text("--ubatch", 1, "--kv-budget", "1.5G")
        r = self.auspex("run", "--device", "cpu", "-v", "-p", LOG, "-n", 4, "--ctx", 4096, "--kv-budget", "5M")
        self.assertEqual(r.returncode, 0, r.stderr.decode())
        self.assertIn("kv budget of 5242880 bytes", r.stderr.decode())

    def test_errors_name_the_wrong_part(self):
        self.refused(["'3'", "expected LAYER:ROWS"], "run", "--device", "cpu", "-p", "x", "--window", "3")
        self.refused(["layer 2", "3, 7"], "run", "--device", "cpu", "-p", "x", "--window", "2:64")
        self.refused(["q5_0", "q4_1"], "run", "--device", "cpu", "-p", "x", "--kv-type", "q5_0")
        for size in ("many", "1.5", "0x10", "0x10K", "-1", "5T"):
            self.refused([f"--kv-budget {size}: expected a whole number of bytes"], "run", "--device", "cpu", "-p", "x",
                         "--kv-budget", size)
        self.refused(["--kv-budget 0: expected a whole number of bytes above 0"], "run", "--device", "cpu", "-p", "x",
                     "--kv-budget", 0)
        for n in (-1, 0, 4097):
            self.refused([f"--ubatch {n}: expected 1 .. 4096"], "run", "--device", "cpu", "-p", "x", "--ubatch", n)
        for n in (-1, 0):
            self.refused([f"--ctx {n}: expected 1 .. 16777216"], "inspect", "--plan", "--device", "cpu", "--ctx", n)


class Plans(BaseMemory):
    def plan(self, *more):
        # A limit of its own: without one the plan carries what the system has free, which changes all the time.
        limit = [] if "--memory-limit" in more else ["--memory-limit", "64G"]
        return json.loads(self.done("inspect", "--device", "cpu", *limit, "--plan", "--json", *more))

    def test_items_add_up_and_a_token_costs_what_it_says(self):
        small, large = self.plan("--ctx", 4096, "--draft", "off"), self.plan("--ctx", 8192, "--draft", "off")
        for p in (small, large):
            taken = sum(i["bytes"] for i in p["items"] if i["place"] != "mapped file")
            self.assertEqual(taken, p["total_bytes"])
            self.assertEqual(p["total_bytes"], p["weight_bytes"] + p["session_bytes"])
        kv = [sum(i["bytes"] for i in p["items"] if i["what"] in ("keys", "values")) for p in (small, large)]
        self.assertEqual(kv[1] - kv[0], 4096 * small["kv_token_bytes"])
        windowed = self.plan("--ctx", 1000000, "--window", "all:1024")
        self.assertEqual(windowed["kv_token_bytes"], 0)
        text = self.done("inspect", "--device", "cpu", "--plan")
        self.assertIn("session, taken when it is created; later only the tokens of earlier prompts (", text)

    def test_the_memory_of_drafting_is_listed_apart(self):
        off, on = self.plan("--draft", "off"), self.plan()
        lookup, bare = self.plan("--draft", "lookup"), self.plan("--no-mtp")
        self.assertEqual(self.plan("--draft", "mtp+lookup:8"), on)  # at any depth the same
        self.assertEqual(off["draft_session_bytes"], 0)
        bytes_of = lambda p: p["session_bytes"] - p["checkpoint_bytes"]
        index = sum(i["bytes"] for i in on["items"] if i["what"] == "index for lookup")
        self.assertGreater(index, 0)
        for p in (lookup, bare):
            self.assertEqual(p["draft_session_bytes"], index)
            self.assertEqual(bytes_of(p), bytes_of(off) + index)
        self.assertEqual(on["draft_session_bytes"], bytes_of(on) - bytes_of(off))
        self.assertGreater(on["draft_session_bytes"], 0)
        self.assertEqual(on["draft_weight_bytes"], sum(on[k] - bare[k] for k in ("weight_bytes", "file_bytes")))
        self.assertAlmostEqual(on["draft_share"], on["draft_session_bytes"] / (on["weight_bytes"] + on["file_bytes"]))
        self.assertGreater(self.plan("--draft-vocab", 2048)["draft_session_bytes"], on["draft_session_bytes"])
        self.assertLess(self.plan("--draft-window", 256)["draft_session_bytes"], on["draft_session_bytes"])
        text = self.done("inspect", "--device", "cpu", "--plan")
        self.assertIn("of the weights: the MTP block", text)
        self.assertIn("of the session: drafting, at any depth", text)

    def test_what_does_not_fit_comes_with_alternatives(self):
        p = self.plan("--ctx", 100000, "--memory-limit", "120M")
        self.assertFalse(p["fits"])
        self.assertTrue(any(other["fits"] for other in p["alternatives"]))
        text = self.done("inspect", "--device", "cpu", "--plan", "--ctx", 100000, "--memory-limit", "120M")
        self.assertIn("what would take less", text)


class Quality(BaseMemory):
    def test_eval_measures_windows_beside_the_full_model_and_plots(self):
        png = os.path.join(self.folder, "curves.png")
        e = json.loads(self.done("eval", "--device", "cpu", "-n", 160, "--needle", 200, "--greedy", 8, "--windows",
                                 "all:512;all:16", "--plot", png, "--json"))
        full, wide, narrow = e["windows"]
        self.assertEqual((full["window"], wide["window"], narrow["window"]), ("full", "all:512", "all:16"))
        self.assertEqual(wide["nll"], full["nll"])
        self.assertLess(abs(wide["kl"]), 1e-9)
        self.assertEqual(wide["recall"], full["recall"])
        self.assertGreater(narrow["kl"], 0.001)
        self.assertGreater(narrow["nll"], full["nll"])
        self.assertLess(sum(narrow["recall"]), sum(full["recall"]))
        with open(png, "rb") as f:
            self.assertEqual(f.read(8), b"\x89PNG\r\n\x1a\n")

    def test_eval_refuses_bad_options_before_it_measures(self):
        start = time.monotonic()
        for arguments, words in ((["-n", 5], "-n 5: expected 32 .. "),
                                 (["--greedy", -1], "--greedy -1: expected 0 .. "),
                                 (["--needle", -1], "--needle -1: expected 0 .. "), (["--ubatch", 0], "--ubatch 0"),
                                 (["-n", 32000, "--kv-type", "foo"], "--kv-type foo"),
                                 (["--windows", "full", "--kv-type", "foo"], "--kv-type foo"),
                                 (["--windows", "full", "--kv-type", "q4_0"], "--kv-type q4_0 is for what is compared"),
                                 (["-n", 32000, "--windows", "full;99:64"], "layer 99")):
            self.refused(["bad_argument", words], "eval", "--device", "cpu", *arguments)
        self.assertLess(time.monotonic() - start, 60)  # seconds; reading 32000 tokens takes longer

    def test_eval_refuses_a_plot_that_cannot_be_written_before_it_measures(self):
        for plot, words in ((os.path.join(self.folder, "none", "x.png"), "cannot be written"),
                            (self.folder, "this is a folder")):
            r = self.auspex("eval", "--device", "cpu", "-n", 32000, "--plot", plot)
            self.assertNotEqual(r.returncode, 0)
            self.assertEqual(r.stdout, b"")
            self.assertIn(f"{plot}", r.stderr.decode())
            self.assertIn(words, r.stderr.decode())
        png = os.path.join(self.folder, "x.png")
        self.refused(["bad_argument", "-n 5"], "eval", "--device", "cpu", "-n", 5, "--plot", png)
        self.assertFalse(os.path.exists(png))

    def test_eval_shows_every_column_also_of_long_windows_and_where_the_plot_cannot_be_written(self):
        spec = ",".join(["3:64"] * 40)
        for plot in ["/dev/full"] if os.path.exists("/dev/full") else []:
            r = self.auspex("eval", "--device", "cpu", "-n", 64, "--needle", 0, "--greedy", 0, "--windows", spec,
                            "--plot", plot)
            self.assertEqual(r.returncode, 1)
            self.assertIn(f"auspex: io_error: '{plot}' cannot be written: ".encode(), r.stderr)
            rows = [line for line in r.stdout.decode().splitlines() if line.startswith("|")]
            self.assertEqual(len(rows), 4)
            self.assertEqual(len({row.count("|") for row in rows}), 1, rows)

    @unittest.skipIf(os.name == "nt", "signals as on Unix")
    def test_ctrl_c_ends_what_reads_a_long_text(self):
        ids = "@" + os.path.join(self.folder, "ids")
        with open(ids[1:], "w", encoding="ascii") as f:
            f.write(",".join(str(i % 8000) for i in range(100000)))
        for command in (["logits", "--ids", ids, "--out", os.devnull],
                        ["logits", "--ids", ids, "--mtp", "1", "--mtp-out", os.devnull],
                        ["eval", "-n", "30000", "--needle", "0"],
                        ["eval", "-n", "32", "--needle", "4000000"],
                        ["eval", "-n", "32", "--needle", "0", "--greedy", "30000"]):
            with self.subTest(command):
                p = subprocess.Popen([BINARY, *command, "--device", "cpu"], stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                time.sleep(1.5)  # it would go on for much longer
                p.send_signal(signal.SIGINT)
                start = time.monotonic()
                out, errors = p.communicate(timeout=120)
                self.assertEqual((p.returncode, out), (130, b""), errors)
                self.assertLess(time.monotonic() - start, 10)  # seconds; generous for sanitized builds


if __name__ == "__main__":
    unittest.main()
