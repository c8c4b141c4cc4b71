"""Conversations on disk as a user meets them: `run --session` and `chat --session` go on where they stopped."""
import json
import os
import resource
import shutil
import signal
import subprocess
import unittest

from chat_templates import CLOSED, ELEMENTS, with_template
from test_cli import BINARY, LOG, BaseCli, auspex

DOUBLE = "Write a Python function that returns the double of a number.\n"
SQUARE = "Write a Python function that returns the square of a number.\n"

PARTY = "\U0001f389"  # three tokens of the demo model
PARTY_PROMPT = "\u65e5\u672c" + f" {PARTY} \u65e5\u672c" * 4


class BaseSession(BaseCli):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.folder, "a.session")

    def names(self):
        return sorted(os.listdir(self.folder))

    def text(self, n, *arguments, **more):
        return self.run_json("--device", "cpu", "-n", n, *arguments, **more)

    def chat(self, said, *arguments, n=24, **more):
        r = auspex("chat", "--device", "cpu", "--json", "-n", n, "--session", self.path, *arguments, stdin=said, **more)
        self.assertEqual(r.returncode, 0, r.stderr)
        return [json.loads(line) for line in r.stdout.splitlines()]


class RunSession(BaseSession):
    def test_a_text_in_pieces_is_the_text_in_one_whatever_the_pieces_and_the_drafts(self):
        for sampling in (("--draft", "off"), ("--draft", 3), ("--temp", 1, "--seed", 5)):
            whole = self.text(41, "-p", LOG, *sampling)["ids"]
            path = os.path.join(self.folder, "-".join(map(str, sampling)))
            ids, n_token = [], 0
            for i, n in enumerate((7, 1, 13, 20)):
                o = self.text(n, *(("-p", LOG) if i == 0 else ()), "--session", path, *sampling)
                ids += o["ids"]
                self.assertEqual(o["session"]["tokens_before"], n_token)
                self.assertEqual(o["session"]["appended"], i > 0 and o["session"]["written_bytes"] <
                                 o["session"]["file_bytes"])
                n_token = o["session"]["tokens"]
                if i > 0:
                    self.assertEqual(o["sync"]["rows_computed"], 0)
            self.assertEqual(ids, whole)
            self.assertEqual(os.path.getsize(path), o["session"]["file_bytes"])

    def test_a_second_prompt_goes_after_the_text_and_only_its_rows_are_computed(self):
        first = self.text(10, "-p", LOG, "--session", self.path)
        again = self.text(5, "-p", " and then", "--session", self.path)
        self.assertLessEqual(again["sync"]["rows_computed"], again["prompt_tokens"] + 1)
        self.assertEqual(again["sync"]["reason"], "appended")
        text = LOG + first["text"] + " and then"
        self.assertEqual(again["session"]["tokens"], len(json.loads(self.done("tokenize", "-p", text))) + 5)
        self.assertEqual(self.names(), ["a.session"])

    @unittest.skipUnless(hasattr(os, "mkfifo"), "needs named pipes")
    def test_what_another_process_saves_while_the_prompt_is_awaited_is_continued(self):
        self.text(3, "-p", LOG, "--session", self.path)
        other, prompt = os.path.join(self.folder, "b.session"), os.path.join(self.folder, "prompt")
        shutil.copy(self.path, other)
        saved = self.text(300, "--session", other)["session"]["tokens"]
        os.mkfifo(prompt)
        command = [BINARY, "run", "--device", "cpu", "--json", "-n", "5", "--session", self.path, "-f", prompt]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
            with open(prompt, "wb") as f:  # waits until it reads the prompt: it has seen the file by then
                os.replace(other, self.path)
                f.write(b" and then")
            out, err = p.communicate(timeout=600)
        self.assertEqual(p.returncode, 0, err)
        o = json.loads(out)
        self.assertEqual(o["session"]["tokens_before"], saved)
        self.assertEqual(o["session"]["tokens"], saved + o["prompt_tokens"] + 5)
        self.assertNotIn(b"another program", err)

    def test_it_goes_on_with_another_number_of_threads(self):
        whole = self.text(24, "-p", LOG)["ids"]
        ids = self.text(12, "-p", LOG, "--session", self.path, "--threads", 2)["ids"]
        ids += self.text(12, "--session", self.path, "--threads", 4)["ids"]
        self.assertEqual(ids, whole)

    def decoded(self, ids):
        return self.done("tokenize", "--decode", ",".join(map(str, ids)))

    def test_a_stop_inside_a_token_leaves_the_text_that_was_shown(self):
        whole = self.text(10, "-p", "hi")
        self.assertTrue(whole["text"].startswith("ps) if "))
        self.assertEqual(self.decoded(whole["ids"][2:3]), b" if")
        first = self.text(40, "-p", "hi", "--stop", "i", "--session", self.path)
        self.assertEqual(first["text"], "ps) ")
        self.assertEqual(self.decoded(first["ids"]), b"ps) ")
        self.assertEqual(first["ids"][:2], whole["ids"][:2])
        self.assertEqual((first["tokens"], first["session"]["tokens"]), (3, 4))
        self.assertEqual(self.text(40, "-p", "hi", "--stop", "i")["ids"], first["ids"])
        self.assertEqual(self.text(3, "--session", self.path)["session"]["tokens"], 7)

    def test_a_character_that_n_cuts_is_shown_whole_by_the_next_run(self):
        whole = self.text(8, "-p", PARTY_PROMPT)
        self.assertEqual(whole["text"], f" {PARTY} {PARTY}")
        for n, shown in ((1, " "), (2, " "), (3, " "), (4, f" {PARTY}")):
            path = os.path.join(self.folder, str(n))
            first = self.text(n, "-p", PARTY_PROMPT, "--session", path)
            self.assertEqual(first["text"], shown)
            # A stop in the rest of it leaves the history as it is, so the text goes on from there afterwards.
            if shown == " ":
                self.assertEqual(self.text(8, "--stop", PARTY, "--session", path)["ids"], [])
            rest = self.text(8 - n, "--session", path)
            self.assertEqual(first["text"] + rest["text"], whole["text"])
            self.assertEqual(first["ids"] + rest["ids"], whole["ids"])

    def test_a_prompt_after_a_character_that_was_cut_goes_after_the_text_that_was_shown(self):
        self.assertEqual(self.text(3, "-p", PARTY_PROMPT, "--session", self.path)["text"], " ")
        again = self.text(2, "-p", "x", "--session", self.path)
        n_shown = len(json.loads(self.done("tokenize", "-p", PARTY_PROMPT + " ")))
        self.assertEqual(again["session"]["tokens"], n_shown + again["prompt_tokens"] + 2)

    def test_what_does_not_fit_is_refused_and_the_file_stays(self):
        saved = self.text(5, "-p", LOG, "--session", self.path)
        with open(self.path, "rb") as f:
            before = f.read()
        run = ["run", "--device", "cpu", "-n", 2, "-p", "x", "--session"]
        self.refused(2, "bad_argument", "keys q8_0", "keys f16", run=run + [self.path, "--kv", "q8_0"])
        self.refused(2, "bad_argument", "holds no chat", run=["chat", "--device", "cpu", "--session", self.path])
        self.refused(2, "bad_argument", "larger --ctx", run=run + [self.path, "--ctx", 10])
        if "reference" not in saved["device"]:  # this build has another path
            self.refused(2, "bad_argument", "was saved on", run=run + [self.path, "--cpu-path", "reference"])
        self.refused(2, "not_found", "does not exist", run=run + [os.path.join(self.folder, "none", "x")])
        self.refused(2, "bad_argument", "a folder, a device", run=run + [self.folder])
        self.refused(2, "bad_file", "no saved session", run=run + [self.file("text", "hello " * 20)])
        self.refused(2, "bad_file", "cut short", run=run + [self.file("cut", before[:-1])])
        self.refused(2, "bad_argument", "the prompt is empty", run=["run", "--session", self.path + "2"])
        text = self.refused(2, "bad_argument", "the conversation has", run=["run", "--session", self.path, "--ctx", 5])
        self.assertNotIn("prompt", text)
        with open(self.path, "rb") as f:
            self.assertEqual(f.read(), before)
        self.assertEqual(self.names(), ["a.session", "cut", "text"])

    def test_the_windows_stay_those_of_the_file_however_long_the_text_gets(self):
        n_token = 0
        for _ in range(4):
            o = self.text(20, "-p", "The pump", "--window", "all:64", "--session", self.path)
            self.assertEqual(o["session"]["tokens_before"], n_token)
            n_token = o["session"]["tokens"]
        self.assertGreater(n_token, 64)

    def test_a_budget_needs_the_context_that_it_is_for(self):
        run = ["run", "--device", "cpu", "-n", "2", "-p", LOG, "--session", self.path, "--kv-budget", "5M"]
        text = self.refused(2, "bad_argument", "--kv-budget chooses windows", "give --ctx", run=run)
        self.assertNotIn("kv_budget_bytes", text)
        self.assertEqual(self.names(), [])
        for n in (2, 4):
            self.assertEqual(auspex(*run, "--ctx", 4096).returncode, 0)
        self.refused(2, "bad_argument", "windows 3:1024+4,7:1024+4", "instead of --kv-budget", "larger than",
                     run=run + ["--ctx", 300])
        self.text(2, "-p", LOG, "--window", "all:1024+4", "--session", self.path)

    def test_a_file_that_cannot_be_created_is_refused_before_the_text(self):
        for name, words in (("x" * 250, b"File name too long"), ("x" * 300, b"File name too long")):
            r = auspex("run", "--device", "cpu", "-n", 3, "-p", LOG, "--session", os.path.join(self.folder, name))
            self.assertEqual((r.returncode, r.stdout), (1, b""), r.stderr)
            self.assertIn(words, r.stderr)
        self.assertEqual(self.names(), [])

    def test_a_file_in_a_folder_that_takes_none_is_refused_before_the_text(self):
        self.text(3, "-p", LOG, "--session", self.path)
        os.chmod(self.folder, 0o555)
        command = [BINARY, "run", "--device", "cpu", "-n", "3", "-p", LOG, "--session", self.path]
        user = {"user": 65534} if os.geteuid() == 0 else {}  # root may write everywhere
        r = subprocess.run(command, capture_output=True, timeout=600, **user)
        os.chmod(self.folder, 0o755)
        self.assertEqual((r.returncode, r.stdout), (1, b""), r.stderr)
        self.assertIn(b"--session", r.stderr)
        self.assertIn(b"cannot be written: Permission denied", r.stderr)

    def test_a_full_disk_is_an_error_after_the_text_and_leaves_nothing(self):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        r = subprocess.run([BINARY, "run", "--device", "cpu", "-n", "3", "-p", LOG, "--session", self.path],
                           capture_output=True, preexec_fn=limit, timeout=600)
        self.assertEqual(r.returncode, 1, r.stderr)
        self.assertIn(b"io_error: cannot write", r.stderr)
        self.assertEqual(r.stdout.decode(), self.text(3, "-p", LOG)["text"])
        self.assertEqual(self.names(), [])


    @unittest.skipUnless(os.path.exists("/dev/full"), "needs a device that is always full")
    def test_a_trace_that_cannot_be_written_does_not_lose_the_text(self):
        r = auspex("run", "--device", "cpu", "-n", 5, "-p", LOG, "--json", "--session", self.path,
                   "--trace", "/dev/full")
        self.assertEqual(r.returncode, 1, r.stderr)
        self.assertIn(b"io_error: --trace '/dev/full' could not be written", r.stderr)
        self.assertEqual(json.loads(r.stdout)["tokens"], 5)
        self.assertEqual(self.text(5, "--session", self.path)["session"]["tokens_before"],
                         json.loads(r.stdout)["session"]["tokens"])


class ChatSession(BaseSession):
    def test_a_chat_with_tools_goes_on_and_arguments_stay_as_they_were_written(self):
        model, n = self.file("tools.gguf", with_template(ELEMENTS)), "12345678901234567890123"
        tools = self.file("tools.json", (
            '[{"type": "function", "function": {"name": "pay", "parameters": {"type": "object", "properties": '
            '{"to": {"const": "Bob"}, "id": {"const": ' + n + '}}, "required": ["to", "id"], '
            '"additionalProperties": false}}}]').encode())
        options = ("-m", model, "--no-think", "--tools", tools, "--tool-choice", "required")
        self.chat("pay\n/edit 1 pay now\n", *options, n=100)
        # What is read back is written again, with the two branches the other way round.
        again = self.chat("/branches 1\n", *options, n=100) + self.chat("and again\n", *options, n=100)
        self.assertIn(n, again[-1]["text"])
        with open(self.path, "rb") as f:
            note = f.read()
        for text in ("pay", "pay now", "and again"):
            self.assertIn(b'"content":"' + text.encode() + b'"', note)
        written = b'"arguments":"{\\"to\\": \\"Bob\\", \\"id\\": ' + n.encode() + b'}"'
        self.assertGreaterEqual(note[note.rindex(b'"auspex_chat"'):].count(written), 3)

    def test_a_chat_that_was_left_goes_on_with_the_same_answers(self):
        path, self.path = self.path, os.path.join(self.folder, "b.session")
        whole = self.chat(DOUBLE + "Hello\n" + SQUARE)
        self.path = path
        parts = [self.chat(said)[0] for said in (DOUBLE, "Hello\n", SQUARE)]
        self.assertEqual([a["text"] for a in parts], [a["text"] for a in whole])
        self.assertEqual([a["prompt_tokens"] for a in parts], [a["prompt_tokens"] for a in whole])
        self.assertEqual([a["sync"] for a in parts][1:], [a["sync"] for a in whole][1:])
        self.assertEqual(self.names(), ["a.session", "b.session"])

    def test_a_save_over_that_of_another_chat_is_told(self):
        command = [BINARY, "chat", "--device", "cpu", "--json", "-n", "4", "--session", self.path]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as first:
            first.stdin.write("Hello\n")
            first.stdin.flush()
            first.stdout.readline()
            self.chat("Hello\n", n=4)
            _, errors = first.communicate("Hello\n", timeout=600)
        self.assertEqual(first.returncode, 0)
        self.assertEqual(errors.count("another program has saved to"), 1)
        r = auspex("chat", "--device", "cpu", "--json", "-n", 4, "--session", self.path, stdin="Hello\nHello\n")
        self.assertNotIn("another program", r.stderr.decode())

    def test_thinking_is_as_the_template_says_until_the_user_does_and_that_is_saved(self):
        model = self.file("closed.gguf", with_template(CLOSED))
        n_prompt = []
        for options in ((), ("--no-think",), ("--think",), ()):
            n_prompt.append(self.chat("/reset\nHi\n", "-m", model, *options)[0]["prompt_tokens"])
        self.assertEqual(n_prompt[0], n_prompt[1])
        self.assertLess(n_prompt[2], n_prompt[0])  # no empty thinking part
        self.assertEqual(n_prompt[2], n_prompt[3])

    def test_a_switch_of_thinking_may_have_a_value(self):
        model = self.file("closed.gguf", with_template(CLOSED))

        def n_prompt(*options):
            return self.chat("/reset\nHi\n", "-m", model, *options, n=1)[0]["prompt_tokens"]
        with_thinking, without = n_prompt("--think"), n_prompt("--no-think")
        self.assertLess(with_thinking, without)
        for option, expected in (("--think=false", without), ("--no-think=false", with_thinking),
                                 ("--think=true", with_thinking), ("--no-think=true", without)):
            self.assertEqual(n_prompt(option), expected, option)

    def test_an_answer_without_thinking_is_saved_as_one(self):
        self.chat(DOUBLE)
        with open(self.path, "rb") as f:
            self.assertIn(b'"reasoning_content":""', f.read())  # else a template looks for </think> in the text

    def test_commands_that_change_the_conversation_are_saved_too(self):
        self.chat("Hello\n" + DOUBLE)
        self.chat("/undo\n")
        r = auspex("chat", "--device", "cpu", "--session", self.path, stdin="/edit\n")
        self.assertIn(b"  1  Hello\n", r.stderr)
        self.assertNotIn(b"double", r.stderr)
        r = auspex("chat", "--device", "cpu", "--session", self.path, stdin="/branches\n/branches 1\n/edit\n")
        self.assertIn(b"  1  2 messages: Write a Python", r.stderr)  # what /undo left
        self.assertIn(b"  2  Write a Python", r.stderr)
        plain = self.chat("/system You are a helpful assistant.\n" + DOUBLE)
        self.assertEqual(self.chat("/retry\n")[0]["text"], plain[0]["text"])
        for system, code in (("You are a helpful assistant.", 0), ("Be brief.", 2)):
            r = auspex("chat", "--device", "cpu", "--session", self.path, "--system", system)
            self.assertEqual(r.returncode, code, r.stderr)
        self.assertIn(b"bad_argument: --system differs", r.stderr)
        self.refused(2, "bad_argument", "holds a chat", run=["run", "-p", "x", "--session", self.path])

    def test_a_save_that_was_cut_short_is_told_and_the_turn_before_goes_on(self):
        self.chat("Hello\n")
        size = os.path.getsize(self.path)
        self.chat(DOUBLE)
        self.assertGreater(os.path.getsize(self.path), size)
        os.truncate(self.path, os.path.getsize(self.path) - 100)
        r = auspex("chat", "--device", "cpu", "-n", 4, "--session", self.path, stdin="/edit\n" + SQUARE)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn(b"was cut short; the conversation goes on from the save before", r.stderr)
        self.assertIn(b"  1  Hello\n", r.stderr)
        self.assertNotIn(b"double", r.stderr)
        r = auspex("chat", "--device", "cpu", "--session", self.path, stdin="/edit\n")
        self.assertNotIn(b"cut short", r.stderr)
        self.assertIn(b"  2  Write a Python function that returns the square", r.stderr)

    def test_a_window_beyond_the_default_context_is_one_from_the_beginning(self):
        for _ in range(2):
            r = auspex("chat", "--device", "cpu", "-n", 1, "-v", "--window", "all:5000", "--session", self.path,
                       stdin="Hello\n")
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertIn(b"windows: 3:5000,7:5000", r.stderr)

    def test_a_conversation_longer_than_the_default_context_is_given_room(self):
        self.chat("word " * 150 + "\n", "--ctx", 8000, n=1)
        self.refused(2, "bad_argument", "larger --ctx",
                     run=["chat", "--device", "cpu", "--ctx", 64, "--session", self.path])
        self.assertEqual(len(self.chat("Hello\n", n=1)), 1)


if __name__ == "__main__":
    unittest.main()
