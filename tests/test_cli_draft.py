"""Drafting on the command line: the same text under every option, statistics, traces, cached costs."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BINARY = os.environ.get("AUSPEX_BINARY") or os.path.join(REPO, "build", "auspex")
LOG = "2026-03-14 08:00 Pump-3 status=nominal temp=61C vibration=0.2 note: bearing inspected\n" * 3


@unittest.skipUnless(os.path.exists(BINARY), "needs the auspex program")
class BaseDraft(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def auspex(self, *arguments, prompt=LOG):
        return subprocess.run([BINARY, "run", "--device", "cpu", "--threads", "1", "-p", prompt, *map(str, arguments)],
                              input=b"", capture_output=True, timeout=600,
                              env={**os.environ, "XDG_CACHE_HOME": self.folder, "LOCALAPPDATA": self.folder})

    def run_json(self, *arguments, **more):
        r = self.auspex("--json", "--ignore-end", *arguments, **more)
        self.assertEqual(r.returncode, 0, r.stderr.decode())
        return json.loads(r.stdout)

    def refused(self, words, *arguments):
        r = self.auspex(*arguments)
        self.assertEqual(r.returncode, 2, r.stderr.decode())
        self.assertEqual(r.stdout, b"")
        for word in words:
            self.assertIn(word, r.stderr.decode())

    def kept(self):
        return [os.path.join(d, f) for d, _, files in os.walk(self.folder) for f in files if f.startswith("costs-")]


class DraftRun(BaseDraft):
    def test_the_text_is_the_same_under_every_option(self):
        for sampling in ([], ["--temp", "0.8", "--seed", "5"]):
            plain = self.run_json("-n", 96, "--draft", "off", *sampling)
            self.assertNotIn("draft", plain)
            for draft in (["auto"], ["auto", "--draft-max", "2"], ["3"], ["auto", "--draft-vocab", "2048"], ["mtp"],
                          ["mtp:4"], ["lookup"], ["mtp+lookup:4"]):
                with self.subTest([draft, sampling]):
                    self.assertEqual(self.run_json("-n", 96, *sampling, "--draft", *draft)["ids"], plain["ids"])
            self.assertEqual(self.run_json("-n", 96, *sampling)["draft"]["depth"], "auto")  # the default

    def test_the_mtp_block_may_come_from_another_file(self):
        demo = os.path.join(REPO, "examples", "models", "auspex-demo.gguf")  # with its own in both: the second counts
        plain = self.run_json("-n", 40, "--draft", "2")
        pair = self.run_json("-n", 40, "--draft", "2", "--mtp-file", demo)
        self.assertEqual(pair["ids"], plain["ids"])
        self.assertEqual(pair["draft"]["accepted"], plain["draft"]["accepted"])
        self.refused(["draft file 'nowhere.gguf'"], "-n", 4, "--mtp-file", "nowhere.gguf")
        r = subprocess.run([BINARY, "inspect", demo, "--mtp-file", demo, "--json"], capture_output=True, timeout=60)
        self.assertEqual(json.loads(r.stdout)["plan"]["n_mtp"], 1)

    def test_statistics_add_up(self):
        o = self.run_json("-n", 200)
        d = o["draft"]
        self.assertEqual((d["source"], d["depth"], d["max_depth"]), ("mtp+lookup", "auto", 6))
        self.assertEqual(len(d["tokens"]), len(d["cycles"]))
        # The first token is sampled from the prompt's last row; the last cycle may go beyond what was asked for.
        self.assertTrue(o["tokens"] - 1 <= sum(d["tokens"]) <= o["tokens"] + 8)
        self.assertEqual(sum(d["tokens"]), sum(d["cycles"]) + sum(d["accepted"]))
        for drafted, evaluated, accepted in zip(d["drafted"], d["evaluated"], d["accepted"]):
            self.assertTrue(drafted >= evaluated >= accepted)
        self.assertEqual(d["cost"][0]["relative_cost"], 1)
        for row in d["cost"][1:]:
            self.assertAlmostEqual(row["break_even_ratio"], (row["relative_cost"] - 1) / row["depth"], places=6)
            self.assertTrue({"break_even_acceptance", "acceptance", "expected_tokens", "n_sample",
                             "cycle_seconds"} <= set(row))
        self.assertGreaterEqual(d["n_depth_change"], len(d["depth_changes"]))
        reasons = {"cold start", "drafting pays", "off pays", "better depth", "probe", "unprofitable", "costs changed"}
        self.assertEqual({s["reason"] for s in d["depth_changes"]} - reasons, set())
        self.assertGreater(d["speedup"], 0)

    def test_with_a_fixed_depth_no_gain_is_claimed_that_was_not_measured(self):
        n_unknown = 0
        for n in (40, 41):  # where one token is left for the last cycle, that is a plain step
            fixed = ("--draft", "mtp:2", "-n", n, "--ctx", 400)
            d = self.run_json(*fixed)["draft"]
            unknown = d["cycles"][0] == 0
            self.assertEqual((d["baseline_seconds"] is None, d["speedup"] is None), (unknown, unknown))
            r = self.auspex("-v", *fixed)
            self.assertIn(b"drafts accepted]\n" if unknown else b"as fast as without drafting]\n", r.stderr)
            n_unknown += unknown
        self.assertGreater(n_unknown, 0)

    def test_a_trace_has_a_line_for_each_cycle(self):
        path = os.path.join(self.folder, "trace.jsonl")
        o = self.run_json("-n", 80, "--trace", path)
        with open(path, encoding="ascii") as f:
            lines = [json.loads(line) for line in f]
        self.assertEqual(len(lines), sum(o["draft"]["cycles"]))
        for a, b in zip(lines, lines[1:]):
            self.assertEqual(b["n_token"], a["n_token"] + a["accepted"] + 1)
        for line in lines:
            self.assertTrue(line["accepted"] <= line["depth"] <= line["chosen"])
            self.assertGreater(line["us"], 0)
        self.assertTrue(any("reason" in line for line in lines))

    def test_costs_are_cached_for_the_next_run_and_damage_is_harmless(self):
        def starts_with_costs(o):  # samples of more cycles than it ran itself; what it tries depends on the clock
            return sum(row["n_sample"] for row in o["draft"]["cost"]) > sum(o["draft"]["cycles"])

        first = self.run_json("-n", 64)
        self.assertFalse(starts_with_costs(first))
        self.assertEqual(len(self.kept()), 1)
        second = self.run_json("-n", 64)
        self.assertTrue(starts_with_costs(second))
        self.assertEqual(second["ids"], first["ids"])
        with open(self.kept()[0], "wb") as f:
            f.write(b"not costs at all")
        third = self.run_json("-n", 64)
        self.assertEqual(third["ids"], first["ids"])
        self.assertFalse(starts_with_costs(third))
        self.assertGreater(os.path.getsize(self.kept()[0]), 100)  # written anew
        self.run_json("-n", 8, "--window", "all:64")  # another combination, another file
        self.assertEqual(len(self.kept()), 2)
        self.run_json("-n", 8, "--draft", "2")  # nothing to choose, nothing to keep
        self.assertEqual(len(self.kept()), 2)


class DraftRefuses(BaseDraft):
    def test_values_that_are_not_understood(self):
        for draft in ("sideways", "9", "-1", "auto:3", "lookup:9", "lookup:x", "mtp:9", "3:3"):
            with self.subTest(draft):
                self.refused(["expected auto, off, 0 .. 8"], "--draft=" + draft)
        self.refused(["--draft-max 0", "1 .. 8"], "--draft-max", 0)
        self.refused(["--draft-max 9", "1 .. 8"], "--draft-max", 9)
        self.refused(["--draft-window -1"], "--draft-window", -1)
        self.refused(["--draft-min-p is 2, expected 0..1"], "--draft-min-p", 2)
        self.refused(["neither a number nor auto", "nowhere.txt"], "--draft-vocab",
                     os.path.join(self.folder, "nowhere.txt"))
        self.refused(["1 .. 8192"], "--draft-vocab", 9000)

    def test_options_that_contradict_each_other(self):
        self.refused(["leaves nothing to choose"], "--draft", 3, "--draft-max", 4)
        for off in ("off", 0):
            self.refused(["leaves nothing to choose"], "--draft", off, "--draft-max", 4)
        self.refused(["does not use it"], "--draft", "off", "--draft-vocab", 100)
        self.refused(["does not use it"], "--draft", "lookup", "--draft-vocab", 100)
        for draft in ("off", 0, "lookup"):
            self.refused(["--draft-min-p", "does not use it"], "--draft", draft, "--draft-min-p", 0.5)
            self.refused(["--draft-window", "does not use it"], "--draft", draft, "--draft-window", 7)

    def test_a_trace_that_cannot_be_written(self):
        r = self.auspex("--trace", os.path.join(self.folder, "no", "such.jsonl"))
        self.assertEqual(r.returncode, 1)
        self.assertIn("auspex: io_error: --trace", r.stderr.decode())
        self.assertEqual(r.stdout, b"")


if __name__ == "__main__":
    unittest.main()
