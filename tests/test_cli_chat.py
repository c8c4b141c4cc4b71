"""Turns of a chat: another answer on /retry, tool calls in branches, the context without --ctx, Ctrl-C."""
import json
import os
import re
import signal
import subprocess
import time
import unittest

from chat_templates import ELEMENTS, with_template
from test_cli import BINARY, BaseCli, auspex

DOUBLE = "Write a Python function that returns the double of a number.\n"
SQUARE = "Write a Python function that returns the square of a number.\n"
TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather", "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Paris", "London", "Rome", "Oslo", "Bern", "Cairo"]}},
        "required": ["city"]}}}


class Turns(BaseCli):
    def chat(self, said, *arguments):
        r = auspex("chat", "--device", "cpu", "--json", *arguments, stdin=said)
        self.assertEqual(r.returncode, 0, r.stderr)
        return [json.loads(line)["text"] for line in r.stdout.splitlines()], r.stderr.decode()

    def test_retry_gives_another_answer_where_one_is_drawn_and_the_same_ones_in_each_run(self):
        said = "Hi\n/retry\n/retry\n"
        answers, _ = self.chat(said, "--temp", 1.5, "-n", 16)
        self.assertEqual(len(set(answers)), 3)
        self.assertEqual(self.chat(said, "--temp", 1.5, "-n", 16)[0], answers)
        self.assertEqual(len(set(self.chat(said, "-n", 16)[0])), 1)
        path = os.path.join(self.folder, "a.session")
        parts = [self.chat(line, "--temp", 1.5, "-n", 16, "--session", path)[0][0] for line in
                 ("Hi\n", "/retry\n", "/retry\n")]
        self.assertEqual(parts, answers)

    def test_answers_that_differ_in_their_tool_calls_alone_stay_as_branches(self):
        model = self.file("tools.gguf", with_template(ELEMENTS))
        tools = self.file("tools.json", json.dumps([TOOL]))
        answers, text = self.chat("Weather?\n/retry\n/branches 1\n", "-m", model, "--tools", tools, "--tool-choice",
                                  "required", "--no-think", "--temp", 3, "--stop", "</tool_call>\n", "-n", 80)
        self.assertNotEqual(*answers)
        self.assertEqual(text.count("1 message: Weather?"), 2, text)

    def test_without_ctx_the_context_is_never_longer_than_the_model_was_trained_for(self):
        for n in (20000, 9223372036854775807):
            r = auspex("chat", "--device", "cpu", "-n", n, stdin="/stats\n")
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertIn(b" of 32768 tokens", r.stderr)
            self.assertNotIn(b"trained for", r.stderr)

    def test_a_conversation_that_was_forgotten_takes_no_tokens(self):
        said = auspex("chat", "--device", "cpu", "-n", 4,
                      stdin="/system x\nhi\n/stats\n/reset\n/stats\nhi\n/undo\n/stats\n").stderr.decode()
        counts = [int(n) for n in re.findall(r"^(\d+) of 4096 tokens", said, re.MULTILINE)]
        self.assertGreater(counts[0], 4)
        self.assertEqual(counts[1:], [0, 0])

    def test_stats_count_the_conversation_as_it_is(self):
        said = DOUBLE + "/stats\n" + SQUARE + "/stats\n/undo\n/stats\n/branches 1\n/stats\n/reset\n/stats\n"
        counts = [int(n) for n in re.findall(r"(\d+) of \d+ tokens", self.chat(said, "-n", 24)[1])]
        one, two, undone, back, none = counts
        self.assertGreater(two, one + 20)
        self.assertAlmostEqual(undone, one, delta=3)  # the end of the answer's turn
        self.assertAlmostEqual(back, two, delta=3)
        self.assertEqual(none, 0)

    def test_verbose_says_which_windows_a_budget_chose(self):
        _, text = self.chat("Hi\n", "-v", "--kv-budget", "3M", "-n", 2)
        self.assertIn("note: kv budget of 3145728 bytes", text)
        self.assertIn("note: windows: ", text)

    def test_commands_without_what_they_need_say_what_that_is(self):
        for line, words in (("/think", b"expected /think on or /think off"), ("/think x", b"expected /think on"),
                            ("/edit 1 ", b"/edit has no text")):
            r = auspex("chat", "--device", "cpu", "-n", 2, stdin="Hi\n" + line + "\n")
            self.assertEqual(r.returncode, 2, line)
            self.assertIn(words, r.stderr)
        self.refused(2, "bad_argument", "contradict each other", run=["chat", "--think", "--no-think"])


@unittest.skipIf(os.name == "nt", "signals as on Unix")
class Interrupt(BaseCli):
    def test_ctrl_c_ends_a_chat_that_reads_a_pipe_and_the_answer_so_far_is_saved(self):
        path = os.path.join(self.folder, "a.session")
        p = subprocess.Popen([BINARY, "chat", "--device", "cpu", "-n", "30000", "--ctx", "31000", "--ignore-end",
                              "--session", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        p.stdin.write(b"Hi\nnever said\n")
        p.stdin.flush()
        first = p.stdout.read(1)
        p.send_signal(signal.SIGINT)
        rest, errors = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 130, errors)
        self.assertIn(b"auspex: interrupted", errors)
        self.assertTrue((first + rest).endswith(b"\n"))
        r = auspex("chat", "--device", "cpu", "--session", path, stdin="/edit\n")
        self.assertIn(b"  1  Hi\n", r.stderr)
        self.assertNotIn(b"never said", r.stderr)

    def test_ctrl_c_that_also_ends_the_writer_of_a_pipe_gives_no_result_of_half_a_text(self):
        for command in (["tokenize"], ["render", "--messages", "-"], ["run", "--device", "cpu"]):
            p = subprocess.Popen([BINARY, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
            p.stdin.write(b'{"messages": []}')
            p.stdin.flush()
            time.sleep(2)  # until it reads
            p.send_signal(signal.SIGINT)
            out, errors = p.communicate(timeout=120)  # closes the pipe at once
            self.assertEqual((p.returncode, out, errors), (130, b"", b"auspex: interrupted\n"))

    def test_ctrl_c_at_the_prompt_leaves_also_in_a_message_of_several_lines(self):
        try:
            import pty
        except ImportError:
            self.skipTest("needs a pseudo-terminal")
        for said, prompt in ((b"", b"> "), (b"one\\\n", b". ")):
            master, slave = pty.openpty()
            p = subprocess.Popen([BINARY, "chat", "--device", "cpu"], stdin=slave, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
            os.write(master, said)
            seen = b""
            while not seen.endswith(prompt):
                seen += p.stderr.read(1)
            time.sleep(0.2)  # until it reads
            p.send_signal(signal.SIGINT)
            out, errors = p.communicate(timeout=120)
            os.close(master)
            os.close(slave)
            self.assertEqual((p.returncode, out), (130, b""), errors)


if __name__ == "__main__":
    unittest.main()
