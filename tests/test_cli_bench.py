"""`auspex bench`: every measurement, with the demo model on the CPU, and what it refuses."""
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BINARY = os.environ.get("AUSPEX_BINARY") or os.path.join(REPO, "build", "auspex")


@unittest.skipUnless(os.path.exists(BINARY), "needs the auspex program")
class BaseBench(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def auspex(self, *arguments):
        place = [] if "--device" in arguments else ["--device", "cpu", "--threads", 1]
        return subprocess.run([BINARY, "bench", *map(str, [*arguments, *place])], input=b"", capture_output=True,
                              timeout=600)

    def done(self, *arguments):
        r = self.auspex(*arguments)
        self.assertEqual(r.returncode, 0, r.stderr.decode())
        return r.stdout.decode()

    def json(self, *arguments):
        out = self.done(*arguments, "--json")
        self.assertEqual(out.count("\n"), 1)
        return json.loads(out)

    def refused(self, words, *arguments, code="bad_argument"):
        r = self.auspex(*arguments)
        text = r.stderr.decode()
        self.assertEqual(r.returncode, 1 if code == "io_error" else 2, text)
        self.assertEqual(r.stdout, b"")
        self.assertIn(f"auspex: {code}: ", text)
        for word in words:
            self.assertIn(word, text)

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def is_png(self, path):
        with open(path, "rb") as f:
            self.assertEqual(f.read(8), b"\x89PNG\r\n\x1a\n")


class BenchRows(BaseBench):
    def test_json_holds_every_measurement_asked_for_and_no_other(self):
        o = self.json("--prefill", "16", "--depth", "0,8", "--rows", "1,4", "-n", 4, "--repeat", 2)
        self.assertEqual([r["tokens"] for r in o["prefill"]], [16])
        self.assertEqual([r["depth"] for r in o["decode"]], [0, 8])
        self.assertEqual([(r["depth"], r["rows"]) for r in o["step"]], [(0, 1), (0, 4), (8, 1), (8, 4)])
        self.assertNotIn("mtp", o)
        for r in o["prefill"] + o["decode"]:
            self.assertTrue(0 < r["tps_least"] <= r["tps"] <= r["tps_most"])
        self.assertEqual([o["step"][i]["relative"] for i in (0, 2)], [1.0, 1.0])
        self.assertGreater(o["read_gbps"], 0)
        # All Q4_K and Q6_K matrices of the trunk, one row of the embedding more: known from the file.
        self.assertTrue(15e6 < o["bytes_per_token"] < 24138240)
        self.assertNotIn("decode", self.json("--rows", "1", "--repeat", 1))

    def test_the_table_names_units(self):
        out = self.done("--prefill", "8,16", "--depth", "0", "--rows", "1,2", "-n", 2, "--repeat", 1)
        for word in ("tokens/s", "GB/s", "ms", "of one row", "of the fastest"):
            self.assertIn(word, out)

    def test_several_prompt_lengths_report_slowest_over_fastest(self):
        o = self.json("--prefill", "32,64", "--repeat", 1, "--window", "all:16", "--kv", "q8_0")
        tps = [r["tps"] for r in o["prefill"]]
        self.assertAlmostEqual(o["prefill_slowest_over_fastest"], min(tps) / max(tps))

    def test_a_long_text_with_windows_takes_constant_memory(self):
        o = self.json("--long", 3000, "--window", "all:64+4", "-n", 4)
        self.assertEqual([r["tokens"] for r in o["long"]], [1000, 3000])
        self.assertEqual(len({r["session_bytes"] for r in o["long"]}), 1)
        self.assertTrue(all(r["read_tps"] > 0 and r["decode_tps"] > 0 for r in o["long"]))
        self.assertEqual(o["windows"], "3:64+4,7:64+4")
        self.assertEqual([r["tokens"] for r in self.json("--long", 1000, "-n", 4)["long"]], [1000])
        self.refused(["layer 7 sees everything", "--window all:"], "--long", 3000, "--window", "3:64", "--json")
        self.refused(["layer 3 sees everything", "fewer than 2066 rows", "--window all:516+4"],
                     "--long", 2000, "--window", "all:4096+4", "--json")

    def test_a_long_text_is_not_decoded_past_its_next_stop(self):
        self.assertEqual([r["tokens"] for r in self.json("--long", 1010)["long"]], [1010])
        self.assertEqual([r["tokens"] for r in self.json("--long", 1010, "-n", 9)["long"]], [1000, 1010])

    def test_steps_of_rows_have_the_windows_and_formats_asked_for(self):
        for words, *options in ((["a window for layer 99", "3, 7"], "--window", "99:64"),
                                (["--kv-budget is 1000, but keys and values take at least"], "--kv-budget", 1000),
                                (["--kv-type q9"], "--kv-type", "q9"), (["--ubatch 0"], "--ubatch", 0)):
            self.refused(words, "--rows", "1", *options, "--json")
        o = self.json("--rows", "1,2", "--repeat", 1, "--depth", 300, "--window", "all:64+4", "--kv-type", "q8_0",
                      "--ubatch", 100)
        self.assertEqual([r["rows"] for r in o["step"]], [1, 2])

    def test_the_cpu_has_no_profile_and_says_so(self):
        self.refused(["Vulkan"], "--profile", "--json", code="unsupported")


class BenchDrafting(BaseBench):
    def test_whole_cycles_with_synthetic_acceptance_of_1(self):
        o = self.json("--mtp", "1,3", "--synth-accept", 1, "-n", 32, "--repeat", 2, "--draft-vocab", 1024)
        self.assertEqual([r["depth"] for r in o["mtp"]], [0, 1, 3])
        self.assertNotIn("prefill", o)
        for r in o["mtp"][1:]:
            self.assertEqual(r["accepted_share"], 1)
            self.assertAlmostEqual(r["tokens_per_cycle"], r["depth"] + 1)
            self.assertAlmostEqual(r["break_even_ratio"], (r["relative_cost"] - 1) / r["depth"])
            self.assertGreater(r["draft_head_bytes"], 0)
        self.assertEqual(o["mtp"][0]["relative_cost"], 1)

    def test_cycles_under_a_grammar_beside_free_ones(self):
        any_text = self.file("any.gbnf", "root ::= !<[0]>* \"the end\"")
        o = self.json("--mtp", "3", "--synth-accept", 0.8, "-n", 40, "--repeat", 1, "--grammar", any_text)
        self.assertEqual([(r["depth"], r.get("constrained", False)) for r in o["mtp"]],
                         [(0, False), (3, False), (0, True), (3, True)])
        self.assertEqual(o["mtp"][1]["accepted_share"], o["mtp"][3]["accepted_share"])
        self.refused(["--mtp"], "--rows", "1", "--grammar", any_text)
        short = self.file("short.json", '{"type": "array", "maxItems": 0}')
        self.refused(["this one ended after", "an array with minItems"], "--mtp", "1", "-n", 40,
                     "--json-schema", short, "--json")

    def test_synthetic_acceptance_is_as_frequent_as_asked(self):
        o = self.json("--mtp", "1", "--synth-accept", 0.5, "-n", 240, "--repeat", 1)
        self.assertTrue(0.35 < o["mtp"][1]["accepted_share"] < 0.65)

    def test_the_controller_against_hindsight(self):
        png = os.path.join(self.folder, "c.png")
        c = self.json("--controller", "--repeat", 2, "--rounds", 1, "--phase", 32, "--draft-max", 2, "--plot",
                      png)["controller"]
        self.assertTrue(c["same_text"])
        self.assertEqual([p["name"] for p in c["phases"]], ["log", "story", "code", "json"])
        self.assertEqual([p["policy"] for p in c["policies"]], ["off", "depth 1", "depth 2", "controller"])
        for p in c["phases"]:
            self.assertEqual(len(p["fixed_tps"]), 3)
            self.assertTrue(0 < p["score"]["least"] <= p["score"]["mean"] <= p["score"]["most"])
        self.assertTrue(0 < c["worst_phase"] <= min(p["score"]["mean"] for p in c["phases"]) + 1e-9)
        self.is_png(png)

    def test_the_controller_on_given_texts_and_on_synthetic_acceptance(self):
        c = self.json("--controller", "--repeat", 1, "--rounds", 2, "--phase", 16, "--draft-max", 1, "--text",
                      "mine=" + self.file("t.txt", "Once upon a time"))["controller"]
        self.assertEqual([p["name"] for p in c["phases"]], ["mine", "mine"])
        c = self.json("--controller", "--repeat", 1, "--rounds", 1, "--phase", 64, "--draft-max", 1, "--synth-phases",
                      "1,0.1")["controller"]
        self.assertTrue(c["synthetic"])
        self.assertEqual([p["name"] for p in c["phases"]], ["accept 1.00", "accept 0.10"])
        self.assertTrue(0.3 < c["policies"][1]["accepted_share"] < 0.9)

    def test_windows_and_drafting_alone_and_together(self):
        png = os.path.join(self.folder, "s.png")
        o = self.json("--stack", "--depth", "64,128", "-n", 24, "--repeat", 2, "--draft", 2, "--window", "all:32",
                      "--plot", png)["stack"]
        self.assertEqual(len(o["cells"]), 2 * 2 * 4)
        self.assertEqual({c["text"] for c in o["cells"]}, {"log", "story"})
        for c in o["cells"]:
            self.assertTrue(0 < c["distinct_4grams"] <= 1)
            if "drafting" in c["cell"]:
                self.assertTrue(c["same_text"])
                self.assertTrue(c["accepted_low"] <= c["accepted"] / c["drafted"] <= c["accepted_high"])
            if c["cell"] == "dense":
                self.assertEqual(c["over_dense"], 1)
        self.is_png(png)
        table = self.done("--stack", "--depth", "64", "-n", 8, "--repeat", 1, "--draft", 2)
        self.assertIn("| story | 64 | window + drafting |", table)

    def test_the_virtual_clock_scores_the_controller_and_the_baselines(self):
        o = self.json("--controller", "--virtual", "--repeat", 2)
        for t in (o, *o["baselines"].values()):
            self.assertTrue({"mean", "worst_phase", "min_over_off"} <= set(t))
        self.assertEqual(set(o["baselines"]), {"off", "fixed_3", "toggle_0.80", "toggle_measured"})
        self.assertEqual(len(o["scores"]), 8 * 4)
        self.assertGreaterEqual(o["mean"], 0.95)
        self.assertGreaterEqual(o["min_over_off"], 0.98)
        for t in o["baselines"].values():
            self.assertGreater(o["worst_phase"], t["worst_phase"])
        self.assertEqual(o, self.json("--controller", "--virtual", "--repeat", 2))  # exact and repeatable


class BenchRefuses(BaseBench):
    def test_lengths_out_of_range(self):
        for arguments in (["--prefill", "0"], ["--rows", "9"], ["--rows", "0"], ["-n", "0"], ["--repeat", "0"],
                          ["--depth", "x"], ["--mtp", "9"], ["--mtp", "1,,2"], ["--long", "5"], ["--long", "-1"],
                          ["--controller", "--phase", "1"], ["--controller", "--rounds", "0"],
                          ["--controller", "--draft-max", "0"], ["--controller", "--draft-max", "9"],
                          ["--mtp", "1", "--context", "0"],
                          ["--stack", "--depth", "0"], ["--controller", "--temp", "-1"]):
            with self.subTest(arguments):
                self.refused([], *arguments, "--json")
        self.refused(["the list of rows has 9, expected 1 .. 8"], "--rows", "1,9")

    def test_more_rows_of_context_than_a_session_has(self):
        for words, *options in ((["--depth, and -n for each of --repeat: in all 4294967307 rows", "at most 16777216"],
                                 "--depth", 9, "-n", 1 << 24, "--repeat", 256),
                                (["--context and, for each depth of --mtp, -n for each of --repeat: in all "],
                                 "--mtp", 1, "-n", 1 << 24, "--repeat", 127),
                                (["--long, and -n at each power of ten: in all 67108899 rows"], "--long", (1 << 26) - 1,
                                 "-n", 5),
                                (["the longest request of --replay: in all 8673"], "--replay", "loop", "--prefix", 9,
                                 "--steps", 512, "--append", 1 << 24)):
            self.refused(words, *options, "--json")

    def test_probabilities_out_of_range(self):
        self.refused(["--synth-accept is 0.000000", "and not 0"], "--mtp", "1", "--synth-accept", 0)
        self.refused(["0 .. 1"], "--mtp", "1", "--synth-accept", "1.5")
        for chances in ("0.5,", "x", "0", "1.2", "0.5 0.6"):
            self.refused(["--synth-phases has", "0.95,0.35"], "--controller", "--synth-phases", chances)

    def test_options_that_contradict_each_other(self):
        self.refused(["one of them at a time"], "--stack", "--controller")
        self.refused(["one of them at a time"], "--profile", "--long", "3000")
        self.refused(["--controller --virtual"], "--virtual")
        self.refused(["--plot"], "--rows", "1", "--plot", "x.png")
        self.refused(["--plot -: ", "standard output"], "--stack", "--plot", "-")
        self.refused(["--trace -: ", "standard output"], "--controller", "--trace", "-")
        self.refused(["--session-file -: ", "standard output"], "--replay", "loop", "--session-file", "-")
        self.refused(["--plot"], "--controller", "--virtual", "--plot", "x.png")
        self.refused(["--text"], "--rows", "1", "--text", "a=b")
        for mode in (["--rows", "1"], ["--controller", "--virtual"], []):
            self.refused(["--draft-vocab has no meaning", "--mtp"], *mode, "--draft-vocab", "nonsense")
        self.refused(["--synth-phases"], "--mtp", "1", "--synth-phases", "0.5")
        self.refused(["no text of their own"], "--controller", "--synth-phases", "0.5", "--text", "a=b")
        self.refused(["half of the 2 x 2 drafts"], "--stack", "--draft", "off", "--json")
        self.refused(["--draft fast"], "--stack", "--draft", "fast", "--json")

    def test_options_that_nothing_asked_for_reads(self):
        with open(os.path.join(REPO, "tools", "bench", "main.cpp"), encoding="utf-8") as f:
            tied = re.findall(r'add_option\(\s*"(--[a-z-]+)", o\.[\w.]+,\s*"With --', f.read())
        self.assertGreater(len(tied), 20)
        for option in tied:
            if option == "--context":
                continue
            with self.subTest(option):
                self.refused([f"{option} has no meaning here, expected --"], "--prefill", 8, option, 1)
        for mode, option, expected in ((["--controller", "--virtual"], "--phase", "--controller on a model"),
                                       (["--replay", "agent", "--dry"], "--steps", "--replay loop"),
                                       (["--replay", "loop", "--dry"], "--branches", "--replay chat"),
                                       (["--replay", "loop"], "--geometry", "--replay with --dry"),
                                       (["--replay", "chat", "--dry"], "--order", "a CSV file"),
                                       (["--stack"], "--rounds", "--controller on a model"),
                                       (["--mtp", "1"], "--draft", "--stack"),
                                       (["--masks", "F"], "--mtp", "a measurement on a model"),
                                       (["--masks", "F"], "--rows", "--profile or no other measurement"),
                                       (["--masks", "F"], "--kv-type", "a measurement on a model"),
                                       (["--stack"], "--prefill", "--mtp or no other measurement"),
                                       (["--stack"], "--rows", "--profile or no other measurement"),
                                       (["--controller"], "--depth", "--stack, --profile or no other"),
                                       (["--controller"], "--tokens", "--mtp, --stack, --long or --replay loop"),
                                       (["--controller", "--virtual"], "--depth", "--stack, --profile or no other"),
                                       (["--controller", "--virtual"], "--model", "a measurement on a model"),
                                       (["--controller", "--virtual"], "--kv-type", "a measurement on a model"),
                                       (["--replay", "agent", "--dry"], "--model", "a measurement on a model"),
                                       (["--replay", "agent"], "--repeat", "--mtp, --stack or --controller"),
                                       (["--rows", "1"], "--context", "--mtp")):
            with self.subTest(mode + [option]):
                self.refused([f"{option} has no meaning here", expected], *mode, option, 1)

    def test_texts_that_do_not_exist(self):
        self.refused(["NAME=FILE"], "--controller", "--text", "nofile")
        self.refused(["NAME=FILE"], "--controller", "--text", "=x")
        self.refused(["nowhere"], "--controller", "--text", "a=" + os.path.join(self.folder, "nowhere"),
                     code="not_found")
        one = self.file("one.txt", "one")
        self.refused(["twice"], "--stack", "--text", "a=" + one, "--text", "a=" + one)
        self.refused(["empty"], "--stack", "--text", "a=" + self.file("none.txt", ""))
        self.refused(["--depth asks for 512"], "--stack", "--depth", 512, "--text", "a=" + one, "--json")

    def test_windows_vocabularies_and_models_that_do_not_exist(self):
        self.refused(["--kv-type q9"], "--rows", "1", "--kv", "q9", "--prefill", "8", "--json")
        self.refused(["--draft-vocab"], "--mtp", "1", "--draft-vocab", "999999", "--json")
        self.refused(["nowhere.gguf"], "--stack", "-m", os.path.join(self.folder, "nowhere.gguf"), code="not_found")

    def test_a_plot_or_trace_that_cannot_be_written_is_refused_before_anything_is_measured(self):
        no = os.path.join(self.folder, "no", "such")
        for options in (["--stack", "--plot"], ["--controller", "--plot"], ["--controller", "--trace"]):
            self.refused([f"{options[1]} '{no}' cannot be written: "], *options, no, code="io_error")
            self.refused([f"{options[1]} {self.folder}: this is a folder"], *options, self.folder)

    @unittest.skipUnless(os.path.exists("/dev/full"), "needs a device that is always full")
    def test_a_plot_that_cannot_be_written_exits_with_1_after_what_was_measured(self):
        r = self.auspex("--stack", "--depth", "32", "-n", 8, "--repeat", 1, "--draft", 1, "--json", "--plot",
                        "/dev/full")
        self.assertEqual(r.returncode, 1)
        self.assertIn("cannot be written", r.stderr.decode())
        self.assertIn("stack", json.loads(r.stdout))


if __name__ == "__main__":
    unittest.main()
