"""The slot of the server: saving it to a file, restoring and erasing it. See server_rig.py."""
import os
import shutil
import subprocess
import tempfile
import unittest

from server_rig import Server, call, script_file, tool_model
from test_cli import BINARY, DEMO


class Slots(unittest.TestCase):
    def test_a_slot_is_saved_and_restored(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        prompt = {"prompt": "pump valve sensor " * 50, "max_tokens": 4, "temperature": 0}
        for turn in range(2):
            server = Server("--ctx", 1024, "--slot-save-path", folder)
            try:
                if turn:
                    answer = server.post("/slots/0?action=restore", {"filename": "a.bin"})
                    self.assertEqual((answer.status, answer.json["n_restored"]), (200, saved["n_saved"]), answer.body)
                usage = server.post("/v1/completions", prompt).json["usage"]
                n_cached = usage["prompt_tokens_details"]["cached_tokens"]
                self.assertGreater(n_cached, 100) if turn else self.assertEqual(n_cached, 0)
                saved = server.post("/slots/0?action=save", {"filename": "a.bin"}).json
                self.assertGreater(saved["n_written"], 0)
                self.assertIn("expected 1 to 128 letters", server.post("/slots/0?action=save", {
                    "filename": "x" * 129}).json["error"]["message"])
                for name in ("../a", "/etc/passwd", "", ".hidden", "a/b", "a\0b", 3, None, "x" * 200):
                    self.assertEqual(server.post("/slots/0?action=save", {"filename": name}).status, 400, name)
                self.assertEqual(server.post("/slots/0?action=restore", {"filename": "missing"}).status, 404)
                self.assertEqual(server.post("/slots/1?action=save", {"filename": "a"}).status, 404)
                self.assertEqual(server.post("/slots/0?action=burn", {}).status, 400)
                self.assertGreater(server.request("POST", "/slots/0?action=erase").json["n_erased"], 0)
            finally:
                self.assertEqual(server.stop()[0], 0)
        self.assertEqual(os.listdir(folder), ["a.bin"])

    def test_a_tool_loop_goes_on_after_a_restart(self):
        """Its client sends no thinking back. It once was computed again from its first call."""
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        model, script = tool_model(), script_file({
            "begin": "I think about the step.\n</think>\n\n" + call("bash", command="step"),
            "other": "Nobody may read this.\n</think>\n\n" + call("bash", command="other")})
        self.addCleanup(os.remove, model)
        self.addCleanup(os.remove, script)
        tools = [{"type": "function", "function": {"name": "bash", "parameters": {
            "type": "object", "properties": {"command": {"type": "string"}}}}}]
        messages = [{"role": "user", "content": "begin"}]

        def reply(server, messages):
            answer = server.post("/v1/chat/completions", {"messages": messages, "tools": tools})
            self.assertEqual(answer.status, 200, answer.body)
            return answer.json

        for turn in range(2):
            server = Server("--ctx", 2048, "--temp", 0, "--cache", "64M", "--script", script,
                            "--slot-save-path", folder, model=model)
            try:
                if turn:
                    for _ in range(2):  # the second time its thinking is known
                        answer = server.post("/slots/0?action=restore", {"filename": "a.bin"})
                        self.assertEqual(answer.status, 200, answer.body)
                    usage = reply(server, messages)["usage"]
                    n_computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
                    self.assertLessEqual(n_computed, usage["prompt_tokens"] - n_before + 3)
                    continue
                reply(server, [{"role": "user", "content": "other"}])
                for i in range(3):
                    answer = reply(server, messages)
                    message = answer["choices"][0]["message"]
                    self.assertEqual(message.pop("reasoning_content"), "I think about the step.")
                    messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"],
                                           "content": f"begin {i}"}]
                n_before = answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
                self.assertEqual(server.post("/slots/0?action=save", {"filename": "a.bin"}).status, 200)
            finally:
                self.assertEqual(server.stop()[0], 0)
        self.assertEqual(os.listdir(folder), ["a.bin"])
        with open(os.path.join(folder, "a.bin"), "rb") as f:
            saved = f.read()
        self.assertEqual((saved.count(b"I think about the step."), saved.count(b"Nobody may read this.")), (3, 0))
        # The command line goes on with the text.
        done = subprocess.run([BINARY, "run", "-m", model, "--device", "cpu", "--ctx", "2048", "--session",
                               os.path.join(folder, "a.bin"), "-n", "2", "-p", "x"], capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_does_not_fit_is_refused_by_the_option(self):
        """The error told its reader to change a field of the library."""
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        for n_context in (1024, 64):
            server = Server("--ctx", n_context, "--slot-save-path", folder)
            try:
                if n_context == 1024:
                    server.post("/v1/completions", {"prompt": "pump valve sensor " * 50, "max_tokens": 4})
                    self.assertEqual(server.post("/slots/0?action=save", {"filename": "a"}).status, 200)
                    continue
                answer = server.post("/slots/0?action=restore", {"filename": "a"})
                self.assertEqual(answer.status, 400, answer.body)
                self.assertIn("a larger --ctx", answer.json["error"]["message"])
            finally:
                self.assertEqual(server.stop()[0], 0)

    def test_saving_needs_a_folder(self):
        server = Server("--ctx", 256)
        answer = server.post("/slots/0?action=save", {"filename": "a"})
        self.assertEqual(server.stop()[0], 0)
        self.assertEqual((answer.status, answer.json["error"]["type"]), (400, "not_supported_error"))
        self.assertIn("--slot-save-path", answer.body)

    def test_saving_replaces_no_other_file(self):
        """It once replaced any, even the model that is served."""
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        model, notes, damaged = (os.path.join(folder, name) for name in ("m.gguf", "notes.txt", "damaged"))
        shutil.copy(DEMO, model)
        for path, content in ((notes, b"mine\n"), (damaged, b"auspexL1 and no more")):
            with open(path, "wb") as f:
                f.write(content)
        server = Server("--ctx", 512, "--slot-save-path", folder, model=model)
        try:
            for name in ("m.gguf", "notes.txt"):
                answer = server.post("/slots/0?action=save", {"filename": name})
                self.assertEqual((answer.status, answer.json["error"]["message"]),
                                 (400, f"'{name}' is no saved conversation; choose another name"))
            for name in ("new", "new", "damaged"):
                answer = server.post("/slots/0?action=save", {"filename": name})
                self.assertEqual(answer.status, 200, answer.body)
        finally:
            self.assertEqual(server.stop()[0], 0)
        with open(model, "rb") as f, open(DEMO, "rb") as demo:
            self.assertEqual(f.read(), demo.read())
        with open(notes, "rb") as f:
            self.assertEqual(f.read(), b"mine\n")


if __name__ == "__main__":
    unittest.main()
