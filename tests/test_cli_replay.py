"""`auspex bench --replay`, dry and on the demo model: what it counts, the workloads it makes, and what it refuses."""
import os
import unittest

from test_cli_bench import BaseBench

HEADER = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"


class BaseReplay(BaseBench):
    def auspex(self, *arguments):
        return super().auspex("--device", "cpu", *arguments)

    def replay(self, source, *arguments):
        return self.json("--replay", source, "--dry", *arguments)

    def csv(self, *rounds, header=HEADER):
        return self.file("trace.csv", header + "".join(r + "\n" for r in rounds))

    def jsonl(self, *lines):
        return self.file("trace.jsonl", "".join(line + "\n" for line in lines))


class ReplayCounts(BaseReplay):
    def test_one_session_computes_its_new_rows_only(self):
        o = self.replay(self.csv("0,10,0,0,1000,100,50", "0,10,1,1100,50,10,0"))
        self.assertEqual((o["requests"], o["rows_prompt"]), (2, 1000 + 1150))
        # The last token of an answer is sampled and not computed: it comes with the next prompt.
        self.assertEqual(o["rows_needed"], 1000 + 51)
        self.assertEqual(o["rows_computed"], 1051)
        self.assertEqual(o["rows_reused"], 1099)
        self.assertEqual(o["reasons"], {"new_text": 1, "appended": 1})
        self.assertEqual((o["policy"], o["budget"]), ("default", 512 << 20))

    def test_two_sessions_take_turns_unless_they_are_served_one_after_the_other(self):
        rounds = ("0,0,0,0,900,9,100", "0,0,1,909,90,9,0", "1,50,0,0,900,9,100", "1,50,1,909,90,9,0")
        path = self.csv(*rounds)
        self.assertEqual(self.replay(path)["reasons"], {"new_text": 2, "resumed": 2})
        self.assertEqual(self.replay(path, "--order", "sessions")["reasons"], {"new_text": 2, "appended": 2})
        none = self.replay(path, "--policy", "none")
        self.assertEqual(none["rows_computed"], none["rows_prompt"])
        self.assertEqual(none["peak_bytes"], 0)

    def test_a_file_without_times_is_served_in_its_order(self):
        header = HEADER.replace("arrival_time,", "")
        o = self.replay(self.csv("3,0,400,100,20,0", "3,1,520,80,20,0", header=header))
        self.assertEqual(o["rows_needed"], 500 + 81)
        self.assertEqual(o["rows_computed"], 581)

    def test_hashes_name_blocks_of_512_tokens(self):
        o = self.replay(self.jsonl('{"input_length": 1200, "output_length": 5, "hash_ids": [0, 1, 2]}',
                                   '{"input_length": 1500, "output_length": 5, "hash_ids": [0, 1, 3]}'))
        self.assertEqual(o["rows_needed"], 1200 + 476)
        self.assertEqual(o["rows_computed"], 1676)
        self.assertEqual(o["rows_restored"], 0)

    def test_the_budget_holds_and_geometries_differ(self):
        for geometry, state, row in (("0.8b", 20201472, 12), ("9b", 52690944, 32), ("27b", 156893184, 64),
                                     ("35b-a3b", 65863680, 20)):
            o = self.replay("agent", "--geometry", geometry, "--checkpoint-bytes", "300M")
            self.assertEqual((o["checkpoint_bytes"], o["row_bytes"]), (state, row << 10))
            self.assertTrue(0 < o["peak_bytes"] <= 300 << 20)
            self.assertEqual(o["rows_prompt"], o["rows_computed"] + o["rows_reused"])

    def test_the_table_lists_requests_and_reasons(self):
        path = self.csv("0,10,0,0,1000,100,50", "0,10,1,1100,50,10,0")
        out = self.done("--replay", path, "--dry", "-v")
        for words in ("needed      51, computed      51", "appended 51 to 1099 rows", "computed / needed 1.0000",
                      "checkpoint 50.25 MiB", "new_text   1"):
            self.assertIn(words, out)
        self.assertNotIn("appended 51 to", self.done("--replay", path, "--dry"))


class ReplayOnAModel(BaseReplay):
    """The same requests through sessions of the demo model compute the rows that the dry replay counts."""

    def auspex(self, *arguments):
        return super().auspex("--threads", 1, *arguments)

    LOOP = ("--prefix", "300", "--steps", "3", "--append", "70", "--title", "40", "-n", "4")

    def test_a_loop_computes_what_it_appends(self):
        path = os.path.join(self.folder, "session")
        o = self.json("--replay", "loop", *self.LOOP, "-v", "--session-file", path)
        self.assertFalse(os.path.exists(path))
        dry = self.replay("loop", *self.LOOP)
        for name in ("requests", "rows_needed", "rows_computed", "rows_reused", "reasons", "rows_parked"):
            self.assertEqual(o[name], dry[name], name)
        self.assertEqual(o["rows_computed"], o["rows_needed"])
        loop = o["loop"]
        self.assertEqual((loop["rows_appended"], loop["rows_computed"]), (3 * 71, 3 * 71))
        self.assertEqual(len(loop["steps"]), 3)
        for name in ("first_token_ms", "own_rows_ms", "switch_back_ms", "save_gbps", "restore_gbps", "file_save_gbps",
                     "file_load_gbps"):
            self.assertGreater(loop[name], 0)
        self.assertEqual([e["sync"]["rows_computed"] for e in o["each"]], [300, 40, 71, 30, 71, 30, 71])
        self.assertEqual(o["each"][2]["sync"]["reason"], "resumed")
        self.assertGreater(o["peak_bytes"], 0)
        first = o["first_token_ms"]
        self.assertEqual((len(o["each"]), first["p90"]), (7, first["most"]))  # nearest rank
        self.assertGreater(o["decode_tps"], 0)

    def test_a_file_of_the_session_is_checked_first_and_written_without_a_step_too(self):
        there = self.file("there", "mine")
        self.refused(["'" + there + "' exists"], "--replay", "loop", *self.LOOP, "--session-file", there, "-m",
                     os.path.join(self.folder, "no-model"))
        with open(there, encoding="utf-8") as f:
            self.assertEqual(f.read(), "mine")
        for bad, code in ((self.folder, "bad_argument"), (os.path.join(self.folder, "no", "such"), "io_error")):
            self.refused(["--session-file", bad], "--replay", "loop", "--session-file", bad, code=code)
        path = os.path.join(self.folder, "session")
        o = self.json("--replay", "loop", *self.LOOP, "--requests", 1, "--session-file", path)
        self.assertGreater(o["loop"]["file_bytes"], 0)
        self.assertIsNone(self.json("--replay", "loop", *self.LOOP[:-1], 1, "--requests", 1)["decode_tps"])
        self.assertFalse(os.path.exists(path))

    def test_policies_compute_what_the_dry_replay_says(self):
        path = self.csv("0,0,0,0,200,5,9", "1,1,0,0,150,5,9", "0,2,1,205,70,5,9", "1,3,1,100,90,5,9",
                        "0,4,2,205,60,5,0")
        for policy in ("none", "stride", "default"):
            trace = (path, "--policy", policy)
            o, dry = self.json("--replay", *trace), self.replay(*trace, "--checkpoint-bytes", "4G")
            for name in ("requests", "rows_prompt", "rows_needed", "rows_computed", "reasons"):
                self.assertEqual(o[name], dry[name], (policy, name))
            self.assertEqual(o["peak_bytes"] == 0, policy == "none")
            self.assertGreater(o["first_token_ms"]["median"], 0)

    def test_files_and_the_table(self):
        path = self.csv("0,10,0,0,100,10,50", "0,10,1,110,50,10,0")
        out = self.done("--replay", path, "-v")
        for words in ("computed     100", "appended 51 to 109 rows", "first token", "computed / needed 1.0000"):
            self.assertIn(words, out)


class ReplayTargets(BaseReplay):
    """What the default policy promises for the workloads of docs/TIMELINES.md, with 8 checkpoints of the 9B size."""

    def ratio(self, *arguments):
        o = self.replay(*arguments, "--checkpoint-bytes", "402M")
        return o["rows_computed"] / o["rows_needed"]

    def test_an_agent_with_title_requests_is_within_a_percent_of_the_ideal(self):
        for thinking in ("dropped", "kept"):
            self.assertLessEqual(self.ratio("agent", "--thinking", thinking), 1.01)
            self.assertGreater(self.ratio("agent", "--thinking", thinking, "--policy", "none"), 2)

    def test_a_chat_with_edits_is_within_half_of_the_ideal(self):
        for thinking in ("dropped", "kept"):
            self.assertLessEqual(self.ratio("chat", "--thinking", thinking), 1.5)
            self.assertGreater(self.ratio("chat", "--thinking", thinking, "--policy", "none"), 10)

    def test_three_branches_need_room_for_their_rows(self):
        o = self.replay("chat", "--branches", "3", "--checkpoint-bytes", "4G")
        self.assertLessEqual(o["rows_computed"] / o["rows_needed"], 1.5)


class ReplayRefuses(BaseReplay):
    def refused_file(self, path, *words):
        self.refused([f"'{path}'", *words], "--replay", path, "--dry", "--json")

    def test_csv_files_that_are_wrong(self):
        self.refused_file(self.csv("0,1,0,0,5,5,0", header=HEADER.replace("input_len", "input")), "line 1",
                          "a column 'input_len'", "session_id,arrival_time")
        self.refused_file(self.csv("0,1,0,0,5,5,0", header=HEADER.replace("round_idx", "input_len")), "line 1", "twice")
        self.refused_file(self.csv("0,1,0,0,100,5,0", "0,1,1,0,-5,5,0"), "line 3", "input_len as a number of 0 ..",
                          "'-5'")
        self.refused_file(self.csv("0,1,0,0,100,5"), "line 2", "7 values", "found 6")
        self.refused_file(self.csv("0,1,0,0,99999999999,5,0"), "line 2", "99999999999")
        self.refused_file(self.csv("0,1,0,0,999999999999999999999999,5,0"), "line 2")
        self.refused_file(self.csv("0,1,0,0,1.5,5,0"), "line 2", "'1.5'")
        self.refused_file(self.csv("0,1,0,0,0,5,0"), "line 2", "a prompt of 1 ..", "found 0")
        self.refused_file(self.csv("0,1,0,16777216,16777216,5,0"), "line 2", "33554432")
        self.refused_file(self.csv(), "line 1", "rounds after the header", "none")
        self.refused_file(self.file("none.csv", ""), "an empty file")

    def test_jsonl_files_that_are_wrong(self):
        good = '{"input_length": 600, "output_length": 5, "hash_ids": [0, 1]}'
        for bad, words in ((good[:30], ["one JSON object"]),
                           (good.replace("600", "-600"), ['"input_length" as a number of 1 ..', "-600"]),
                           (good.replace("600", "1e99"), ["1e+99"]),
                           (good.replace("600", "18446744073709551615"), ["18446744073709551615"]),
                           (good.replace("[0, 1]", "[0]"), ["2 hash_ids for 600 tokens", "found 1"]),
                           (good.replace("[0, 1]", '[0, "x"]'), ["integers", "element 1"]),
                           (good.replace("[0, 1]", "7"), ['"hash_ids" as an array']),
                           (good.replace("output_length", "out"), ['"output_length"', "no such member"])):
            with self.subTest(bad):
                self.refused_file(self.jsonl(good, bad), "line 2", *words)

    def test_options_that_do_not_exist(self):
        self.refused(["--requests is 0, expected 1 .."], "--replay", "agent", "--dry", "--requests", "0")
        self.refused(["--geometry '5b'", "0.8b, 4b, 9b, 27b or 35b-a3b"], "--replay", "agent", "--dry", "--geometry",
                     "5b")
        self.refused(["--policy 'lru'", "none, stride or default"], "--replay", "agent", "--dry", "--policy", "lru")
        self.refused(["--order", "arrival, queue or sessions"], "--replay", self.csv("0,1,0,0,5,5,0"), "--dry",
                     "--order", "x")
        self.refused(["--thinking", "dropped or kept"], "--replay", "chat", "--dry", "--thinking", "x")
        self.refused(["--branches is 0"], "--replay", "chat", "--dry", "--branches", "0")
        self.refused(["--checkpoint-bytes 1Q"], "--replay", "chat", "--dry", "--checkpoint-bytes", "1Q")
        self.refused(["--context is 100", "105 tokens"], "--replay", self.csv("0,1,0,0,100,5,0"), "--dry", "--context",
                     "100")
        self.refused(["--steps is 0"], "--replay", "loop", "--dry", "--steps", "0")
        self.refused(["--title is -1"], "--replay", "loop", "--dry", "--title", "-1")
        self.refused(["--policy 'lru'"], "--replay", "loop", "--policy", "lru")
        self.refused(["--replay FILE --dry"], "--dry")
        self.refused(["one of them at a time"], "--replay", "agent", "--dry", "--stack")
        self.refused(["nowhere"], "--replay", os.path.join(self.folder, "nowhere"), "--dry", code="not_found")


if __name__ == "__main__":
    unittest.main()
