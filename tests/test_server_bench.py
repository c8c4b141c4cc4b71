"""tools/bench_requests.py: what it asks a server, what it prints, and what it refuses. See server_rig.py."""
import http.server
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
import unittest

from server_rig import BaseServer, call
from test_cli import BINARY, DEMO, REPO


class Bench(BaseServer):
    OPTIONS = ("--ctx", "4096")
    SCRIPT = {"report.": "Now.\n</think>\n\n" + call("read_file", path="a.txt"), "A tank is": "</think>\n\nFour",
              "File 0.": "Next.\n</think>\n\nI read on.\n\n" + call("read_file", path="b.txt"),
              "File 1.": "Then.\n</think>\n\n" + call("read_file", path="c.txt")}

    def bench(self, url, *options):
        return subprocess.run([sys.executable, os.path.join(REPO, "tools", "bench_requests.py"), url, *options],
                              capture_output=True, text=True, timeout=120)

    def test_nine_prompts_and_their_sum(self):
        r = self.bench(self.server.url, "--max-tokens", "8")
        self.assertEqual(r.returncode, 0, r.stderr)
        predicted = [int(n) for n in re.findall(r"^[\w+, ]{14} +(\d+) ", r.stdout, re.MULTILINE)]
        self.assertEqual(len(predicted), 10, r.stdout)
        self.assertEqual(sum(predicted[:9]), predicted[9])

    def steps(self, *options):
        """[(prompt, appended, processed, cached)] of a loop of four steps."""
        r = self.bench(self.server.url + "/v1", "--replay", "4", "--prefix", "500", *options)
        self.assertEqual(r.returncode, 0, r.stderr)
        steps = re.findall(r"^ +\d+ +(\d+) +(\d+) +(\d+) +(\d+) ", r.stdout, re.MULTILINE)
        self.assertEqual(len(steps), 4, r.stdout)
        return [[int(n) for n in step] for step in steps]

    def test_a_tool_loop_where_the_model_calls_nothing(self):
        for prompt, appended, processed, cached in self.steps("--max-tokens", "4")[1:]:
            self.assertEqual(prompt, processed + cached)
            self.assertGreater(cached, processed)
            self.assertGreater(appended, 0)

    def test_a_tool_loop_processes_what_it_appends(self):
        for step in self.steps("--titles")[1:]:
            self.assertEqual(step[1], step[2], step)

    def test_beside_the_command_line(self):
        command = f"{BINARY} run -m {DEMO} --device cpu --threads 1 -n 40 -p 'def main():'"
        r = self.bench(self.server.url, "--repeat", "2", "--beside", command)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertRegex(r.stdout, r"server / command: \d\.\d+ \(median of 2, ")
        r = self.bench(self.server.url, "--repeat", "1", "--beside", command + " --temp 2")
        self.assertEqual(r.returncode, 1, r.stdout)
        self.assertIn("different texts", r.stderr)

    def test_a_speed_beside_the_command_line_is_that_of_the_tokens_that_were_made(self):
        slow = "import time; print('</think>\\n', flush=True); time.sleep(0.2); print('Four')"  # as the script
        command = shlex.join([sys.executable, "-c", slow, "-n", "3000", "-p", "A tank is"])
        r = self.bench(self.server.url, "--repeat", "1", "--beside", command)
        self.assertEqual(r.returncode, 0, r.stderr)
        n_token = self.server.post("/v1/completions", {"prompt": "A tank is"}).json["usage"]["completion_tokens"]
        self.assertLess(n_token, 10)
        self.assertLessEqual(float(re.search(r"command +([\d.]+) tokens/s", r.stdout)[1]), (n_token - 1) / 0.2)

    def test_what_cannot_be_measured_is_refused(self):
        run = f"{BINARY} run -m {DEMO} --device cpu --threads 1"
        for options, code, words in ((["--beside", run + " -n 1 -p 'def main():'"], 1, "give a larger -n"),
                                     (["--beside", run + " -p 'def main():' -n"], 1, "has no -n with a value"),
                                     (["--beside", run + " -n 4"], 1, "has no -p with a value"),
                                     (["--beside", ""], 1, "has no -n"),
                                     (["--replay", "-1"], 2, "--replay -1: expected 1 or more"),
                                     (["--replay", "0"], 2, "--replay 0: expected 1 or more"),
                                     (["--repeat", "0"], 2, "--repeat 0: expected 1 or more")):
            r = self.bench(self.server.url, *options)
            self.assertEqual((r.returncode, r.stdout), (code, ""), options)
            self.assertIn(words, r.stderr)
            self.assertNotIn("Traceback", r.stderr)

    def test_a_server_that_is_not_there(self):
        r = self.bench("http://127.0.0.1:1")
        self.assertEqual(r.returncode, 1)
        self.assertIn("bench_requests: http://127.0.0.1:1: ", r.stderr)

    def answered_with(self, *chunks):
        """The tool where a server of another kind answers each request with these chunks, or waits for a number of
        seconds. The last list answers all further requests."""
        left = list(chunks)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.end_headers()
                for chunk in left.pop(0) if len(left) > 1 else left[0]:
                    if isinstance(chunk, float):
                        time.sleep(chunk)
                    else:
                        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

            def log_message(self, *_):
                pass

        with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                r = self.bench(f"http://127.0.0.1:{server.server_port}", "--replay", str(max(3, len(chunks))))
            finally:
                server.shutdown()
        self.assertNotIn("Traceback", r.stderr)
        return r

    def test_the_median_of_an_even_number_of_steps_is_between_the_middle_two(self):
        word = {"choices": [{"delta": {"content": "x"}}]}
        r = self.answered_with([word], [word], [1.0, word])
        median = int(re.search(r"first token (\d+) ms \(median\)", r.stdout)[1])
        steps = [int(ms) for ms in re.findall(r"^ +\d.* (\d+) ms ", r.stdout, re.MULTILINE)]
        self.assertEqual(len(steps), 3, r.stdout)
        self.assertAlmostEqual(median, (steps[1] + steps[2]) / 2, delta=1)
        self.assertGreater(abs(steps[2] - steps[1]), 2)

    def test_answers_that_leave_something_out(self):
        call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
        for chunk in ({"choices": [{"delta": {"tool_calls": [call]}}]}, {"choices": [{"delta": None}]},
                      {"choices": [{"delta": {"tool_calls": [{"index": None, **call}]}}], "error": None},
                      {"choices": None, "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
                      {"usage": {"prompt_tokens": None, "prompt_tokens_details": {"cached_tokens": None}}},
                      {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"strict": True}}]}}]}):
            r = self.answered_with([chunk])
            self.assertEqual((r.returncode, r.stderr), (0, ""), chunk)
        for chunk, said in (({"error": "overloaded"}, "overloaded"), ({"error": {"code": 5}}, "the server failed"),
                            ({"choices": [{"delta": {"tool_calls": [{"index": 3}]}}]}, "a call has index 3")):
            r = self.answered_with([chunk])
            self.assertEqual(r.returncode, 1, chunk)
            self.assertIn(said, r.stderr)


if __name__ == "__main__":
    unittest.main()
