"""The server over HTTP: what it answers to whom, limits, and bad input. See server_rig.py."""
import gzip
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import zlib

from server_rig import SERVER, BaseServer, Server, parse_events
from chat_templates import CLOSED, ELEMENTS, with_template
from test_cli import BINARY, DEMO, REPO

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
CHAT = "/v1/chat/completions"


def raw_post(body, head=""):
    return f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{head}Connection: close\r\n\r\n".encode() + body


class Information(BaseServer):
    def test_health_and_models(self):
        for path in ("/health", "/v1/health"):
            self.assertEqual(self.ok(self.server.get(path)), {"status": "ok"})
        for path in ("/models", "/v1/models"):
            models = self.ok(self.server.get(path))
            self.assertEqual([m["id"] for m in models["data"]], ["auspex-demo"])
            self.assertEqual(models["data"][0]["meta"]["n_vocab"], 8192)
            self.assertEqual(models["models"][0]["slug"], "auspex-demo")
        self.assertEqual(self.ok(self.server.get("/v1/models/auspex-demo"))["object"], "model")
        self.refused(404, "not_found_error", self.server.get("/v1/models/gpt"), "gpt", "auspex-demo")

    def test_props_slots_and_metrics(self):
        self.ok(self.server.post(CHAT, HELLO))
        self.server.wait_idle()
        props = self.ok(self.server.get("/props"))
        self.assertEqual(props["default_generation_settings"]["n_ctx"], 2048)
        self.assertIn("<|im_start|>", props["chat_template"])
        slot = self.ok(self.server.get("/slots?fail_on_no_slot=1"))[0]
        self.assertEqual((slot["id"], slot["is_processing"]), (0, False))
        metrics = self.server.get("/metrics")
        self.assertIn("version=0.0.4", metrics.headers["content-type"])
        values = dict(line.rsplit(" ", 1) for line in metrics.body.splitlines() if line[0] != "#")
        self.assertGreaterEqual(float(values["llamacpp:tokens_predicted_total"]), 4)
        self.assertIn('llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"}', values)

    def test_tokenize_and_back(self):
        text = "Pump-3 \u20ac <|im_end|>"
        tokens = self.ok(self.server.post("/tokenize", {"content": text}))["tokens"]
        self.assertEqual(self.ok(self.server.post("/detokenize", {"tokens": tokens}))["content"], text)
        plain = self.ok(self.server.post("/tokenize", {"content": text, "parse_special": False}))["tokens"]
        self.assertGreater(len(plain), len(tokens))
        pieces = self.ok(self.server.post("/tokenize", {"content": "\u20ac", "with_pieces": True}))["tokens"]
        whole = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
        self.assertEqual(whole, "\u20ac".encode())
        self.refused(400, "invalid_request_error", self.server.post("/detokenize", {"tokens": [8192]}), 8191)

    def test_tokens_of_a_long_text_take_little_memory(self):
        if b"Sanitizer" in subprocess.run(["strings", "-n", "9", SERVER], capture_output=True).stdout:
            self.skipTest("sanitizers keep freed memory")
        text = "a b " * (1 << 20)
        before = self.server.peak_kib()
        tokens = self.ok(self.server.post("/tokenize", {"content": text}))["tokens"]
        self.assertLess(self.server.peak_kib() - before, 25 * len(text) // 1024)
        self.assertEqual(self.ok(self.server.post("/detokenize", {"tokens": tokens[:4000]}))["content"], text[:7999])

    def test_apply_template(self):
        prompt = self.ok(self.server.post("/apply-template", HELLO))["prompt"]
        self.assertTrue(prompt.startswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"), prompt)

    def test_without_a_word_about_thinking_the_template_decides_or_the_option(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "closed.gguf")
            with open(path, "wb") as f:
                f.write(with_template(CLOSED))
            for options, end in (((), "\n</think>\n\n"), (("--think",), "assistant\n<think>\n")):
                server = Server(*options, model=path)
                prompt = self.ok(server.post("/apply-template", HELLO))["prompt"]
                asked = {**HELLO, "chat_template_kwargs": {"enable_thinking": True}}
                open_prompt = self.ok(server.post("/apply-template", asked))["prompt"]
                self.assertEqual(server.stop()[0], 0)
                self.assertTrue(prompt.endswith(end), prompt)
                self.assertTrue(open_prompt.endswith("assistant\n<think>\n"), open_prompt)

    def test_a_template_that_shows_names_is_given_them(self):
        shown = ELEMENTS.replace("'<|im_start|>user\\n' + text", "'<|im_start|>user\\n' + message.name ~ text")
        self.assertNotEqual(shown, ELEMENTS)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "names.gguf")
            with open(path, "wb") as f:
                f.write(with_template(shown))
            server = Server(model=path)
            prompt = self.ok(server.post("/apply-template", {"messages": [
                {"role": "user", "name": "Ada: ", "content": "Hello"}]}))["prompt"]
            self.assertEqual(server.stop()[0], 0)
        self.assertTrue(prompt.startswith("<|im_start|>user\nAda: Hello<|im_end|>\n"), prompt)

    def test_trace_writes_a_line_for_each_cycle(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.jsonl")
            server = Server("--trace", path, "--draft", 2)
            self.ok(server.post("/v1/chat/completions", {**HELLO, "max_tokens": 12}))
            self.assertEqual(server.stop()[0], 0)
            with open(path, encoding="ascii") as f:
                cycles = [json.loads(line) for line in f]
            self.assertTrue(any(c["accepted"] > 0 for c in cycles), cycles)

    def test_a_trace_that_cannot_be_written_ends_in_an_error(self):
        server = Server("--trace", "/dev/full", "--draft", 2)
        self.ok(server.post("/v1/chat/completions", {**HELLO, "max_tokens": 4}))
        code, text = server.stop()
        self.assertEqual(code, 1, text)
        self.assertIn("--trace '/dev/full' could not be written", text)

    def test_page_head_and_options(self):
        page = self.server.get("/")
        self.assertIn("text/html", page.headers["content-type"])
        self.assertIn("frame-ancestors 'none'", page.headers["content-security-policy"])
        head = self.server.request("HEAD", "/")
        self.assertEqual((head.status, head.body), (200, ""))
        self.assertNotIn("accept-ranges", head.headers)
        self.assertEqual(self.server.request("OPTIONS", CHAT).status, 200)

    def test_unknown_paths_and_methods(self):
        self.refused(404, "not_found_error", self.server.get("/v1/nothing"), "/v1/nothing")
        self.assertEqual(self.server.request("PUT", CHAT, b"").headers["allow"], "POST")
        self.refused(404, "not_found_error", self.server.get("/api/tags"), "Ollama", "/v1")
        self.refused(400, "not_supported_error", self.server.post("/v1/embeddings", {}))
        for path in ("/../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/v1/models/../../x", "/%00",
                     "/index.html%00.js", "/v1/models/%0d%0aX:y", "/" + "a" * 1000, "/%ff%fe", "/slots/0/../1"):
            answer = self.server.get(path)
            self.assertIn(answer.status, (404, 405), path)
            self.assertNotIn("x", answer.headers)
        self.assertEqual(self.server.get("/" + "a" * 5000).status, 414)

    def test_a_target_may_name_the_host(self):
        def status(method, target, host="localhost", body=b""):
            head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
            return int(self.server.raw(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body).split()[1])
        port = self.server.port
        self.assertEqual(status("GET", f"http://127.0.0.1:{port}/v1/models"), 200)
        self.assertEqual(status("GET", f"HTTP://LocalHost:{port}/health?x=http://a/b"), 200)
        self.assertEqual(status("GET", "http://localhost?x=1"), 200)
        self.assertEqual(status("POST", "http://[::1]/tokenize", body=b'{"content": "a"}'), 200)
        self.assertEqual(status("GET", "http://localhost/no/such"), 404)
        # The host of the target counts, not that of the header.
        self.assertEqual(status("GET", "http://localhost/health", host="evil.example"), 200)
        self.assertEqual(status("GET", "http://evil.example/health"), 403)
        for target in ("http:///health", "http://local%68ost/health", "ftp://localhost/health"):
            self.assertEqual(status("GET", target), 404, target)

    def test_several_requests_on_one_connection(self):
        with socket.create_connection(("127.0.0.1", self.server.port)) as s:
            for _ in range(3):
                s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = b""
                while b"ok" not in answer:
                    answer += s.recv(4096)
                self.assertEqual(answer.count(b"200 OK"), 1)


    def test_a_client_that_leaves_after_further_bytes_is_missed(self):
        no_end = {"8187": -100, "8189": -100}  # <|endoftext|>, <|im_end|>
        body = {"prompt": "word", "max_tokens": 1500, "temperature": 2, "seed": 1, "logit_bias": no_end}
        n_before = self.server.metric("llamacpp:tokens_predicted_total")
        with self.server.open_stream("/v1/completions", body) as s:
            s.recv(1)
            s.sendall(b"\r\n")
            time.sleep(0.05)
        self.server.wait_idle()
        self.assertLess(self.server.metric("llamacpp:tokens_predicted_total") - n_before, 1500)

    def test_a_connection_closes_where_a_list_says_so(self):
        for options, n_answer in ((b"keep-alive, close", 1), (b"Close", 1), (b"keep-alive, closed", 2)):
            data = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: %s\r\n\r\n" % options
            answer = self.server.raw(2 * data, shut=n_answer > 1, timeout=30)
            self.assertEqual(answer.count(b"HTTP/1.1 200"), n_answer, answer)

    def test_http_1_0_has_no_chunks(self):
        body = json.dumps({**HELLO, "stream": True}).encode()
        for head in (b"", b"Connection: Keep-Alive\r\n"):
            head = b"POST %s HTTP/1.0\r\n%sContent-Length: %d\r\n\r\n" % (CHAT.encode(), head, len(body))
            head, events = self.server.raw(head + body, timeout=10).decode().split("\r\n\r\n", 1)
            self.assertNotIn("Transfer-Encoding", head)
            self.assertIn("Connection: close", head)
            self.assertEqual(parse_events(events)[-1][1], "[DONE]")
            self.assertEqual((events[:6], events[-2:]), ("data: ", "\n\n"))


class Access(unittest.TestCase):
    def test_key(self):
        server = Server("--ctx", 256, "--api-key", "sesame", "--api-key", "second")
        try:
            for headers, status in (({}, 401), ({"Authorization": "Bearer sesam"}, 401), ({"X-Api-Key": "x"}, 401),
                                    ({"Authorization": "Bearer "}, 401),
                                    ({"Authorization": "Bearer sesamesesame"}, 401),
                                    ({"Authorization": "Bearersesame"}, 401), ({"Authorization": "Basic sesame"}, 401),
                                    ({"Authorization": "Bearer SESAME"}, 401),
                                    ({"Authorization": "Bearer sesame"}, 200), ({"X-Api-Key": "second"}, 200),
                                    ({"Authorization": "bearer sesame"}, 200),
                                    ({"Authorization": "Bearer none", "X-Api-Key": "second"}, 200),
                                    ({"Authorization": "Bearer sesame", "X-Api-Key": "none"}, 200),
                                    ({"Authorization": "Bearer none", "X-Api-Key": "none"}, 401)):
                self.assertEqual(server.post(CHAT, HELLO, headers=headers).status, status, headers)
            for path in ("/health", "/v1/models", "/"):
                self.assertEqual(server.get(path).status, 200)
            for path in ("/props", "/slots", "/metrics"):
                self.assertEqual(server.get(path).status, 401)
            error = server.post("/v1/messages", {}).json
            self.assertEqual((error["type"], error["error"]["type"]), ("error", "authentication_error"))
        finally:
            self.assertEqual(server.stop()[0], 0)

    def test_origins_and_hosts(self):
        server = Server("--ctx", 256, "--cors-origin", "HTTPS://Good.example:443", "--cors-origin",
                        "http://good.example:8080")
        try:
            for origin, allowed in (("http://localhost:3000", True), ("http://LOCALHOST", True),
                                    ("https://127.0.0.1", True), ("null", False),
                                    ("http://[::1]:8", True), ("vscode-webview://abc", True),
                                    ("https://good.example", True), ("https://evil.example", False),
                                    ("http://good.example:8080", True), ("http://good.example", False),
                                    ("http://localhost.evil.example", False), ("http://localhost@evil.example", False),
                                    ("https://good.example.evil", False), ("evil", False)):
                for method, path in (("OPTIONS", CHAT), ("GET", "/health")):
                    answer = server.request(method, path, headers={"Origin": origin})
                    self.assertEqual(answer.status, 200 if allowed else 403, origin)
                    self.assertEqual(answer.headers.get("access-control-allow-origin"), origin if allowed else None)
            for host, status in (("localhost:1", 200), ("LocalHost:1", 200), ("127.0.0.1", 200),
                                 ("[::1]:80", 200), ("evil.example", 403),
                                 ("127.0.0.1.evil.example", 403)):
                self.assertEqual(server.get("/health", headers={"Host": host}).status, status, host)
            asked = server.request("OPTIONS", CHAT, headers={"Origin": "http://localhost",
                                                             "Access-Control-Request-Headers": "x-a%0d%0aset: y"})
            self.assertNotIn("set", asked.headers)
        finally:
            self.assertEqual(server.stop()[0], 0)

    def test_other_addresses_of_this_machine_need_no_key(self):
        for host, shown in (("127.0.0.2", "127.0.0.2"), ("[::1]", "[::1]"), ("::1", "[::1]")):
            try:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                socket.create_server((host.strip("[]"), 0), family=family).close()
            except OSError:
                continue  # a machine without IPv6
            r = subprocess.Popen([SERVER, "--port", "0", "--device", "cpu", "--host", host], stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL)
            self.addCleanup(lambda r=r: (r.terminate(), r.communicate()))
            url = r.stdout.readline().decode().strip()
            self.assertRegex(url, rf"^http://{re.escape(shown)}:\d+$")
            for name, status in ((shown, 200), ("localhost", 200), ("evil.example", 403), ("127.0.0.2.example", 403)):
                with socket.create_connection((host.strip("[]"), int(url.rsplit(":", 1)[1])), timeout=30) as s:
                    s.sendall(f"GET / HTTP/1.0\r\nHost: {name}\r\nOrigin: http://{name}\r\n\r\n".encode())
                    self.assertIn(f"HTTP/1.1 {status}".encode(), s.recv(4096), name)

    def test_no_memory_for_checkpoints(self):
        server = Server("--ctx", 256, "--cache", 0)
        try:
            self.assertEqual(server.post(CHAT, HELLO).status, 200)
        finally:
            self.assertEqual(server.stop()[0], 0)

    def test_refused_options(self):
        for options, words in ((["--host", "0.0.0.0"], "--api-key"),
                               (["--host", "nope.invalid"], "--host nope.invalid: no address of this name"),
                               (["--host", "127.0.0.1.evil.invalid"], "no address of this name"),
                               (["--port", "70000"], "65535"),
                               (["--api-key", "a%b"], "--api-key"), (["--api-key", ""], "--api-key"),
                               (["--api-key-file", os.devnull], "the file holds no key"),
                               (["--cors-origin", "example.org"], "--cors-origin example.org: expected a scheme"),
                               (["--cors-origin", "https://example.org/"], "without a path"),
                               (["--cors-origin", "https://*.example.org"], "expected a scheme"),
                               (["--cors-origin", "https://m\u00fcnchen.example"], "xn--"),
                               (["--queue", "-1"], "--queue -1: expected 0"), (["--head-seconds", "0"], "expected 1"),
                               (["--turn-ms", "-1"], "--turn-ms -1: expected 0 .. 3600000"),
                               (["--temp", "-1"], "--temp -1"), (["--top-p", "5"], "--top-p 5"),
                               (["--host", "192.0.2.1", "--api-key", "k"], "listen"),
                               (["--slot-save-path", "/no/such"], "/no/such"), (["--ctx", "-1"], "--ctx"),
                               (["--ctx", "0"], "--ctx 0: expected 1 .. 16777216"),
                               (["--trace", "/no/such/x"], "/no/such/x"),
                               (["--cache", "1K"], "--cache is 1024, but one checkpoint takes"),
                               (["-m", "/no/such.gguf"], "/no/such.gguf"), (["--script", DEMO], "script")):
            free = [] if "--port" in options else ["--port", "0"]
            r = subprocess.run([SERVER, *free, "--device", "cpu", *options], capture_output=True, timeout=60)
            self.assertNotEqual(r.returncode, 0, options)
            self.assertIn(words, r.stderr.decode(), options)

    def test_a_bad_key_is_named_by_its_line(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
            f.write("good\r\n\nwith space\n")
            f.flush()
            r = subprocess.run([SERVER, "--port", "0", "--device", "cpu", "--api-key-file", f.name],
                               capture_output=True, text=True, timeout=60)
        self.assertEqual((r.returncode, r.stdout), (2, ""), r.stderr)
        self.assertIn(f"--api-key-file {f.name}, line 3: expected letters", r.stderr)
        self.assertIn("found a blank at character 5", r.stderr)

    def test_a_file_that_cannot_be_served_is_refused_before_the_url(self):
        for model, words in (("/no/such.gguf", "/no/such.gguf"), (os.path.join(REPO, "README.md"), "expected 'GGUF'")):
            r = subprocess.run([SERVER, "--port", "0", "--device", "cpu", "-m", model], capture_output=True, text=True,
                               timeout=60)
            self.assertEqual((r.returncode, r.stdout), (2, ""), r.stderr)
            self.assertIn(words, r.stderr)

    def test_options_that_do_not_fit_the_model_are_refused_before_the_url(self):
        for options in (["--ctx", "0"], ["--cache", "x"], ["--script", os.path.join(REPO, "README.md")],
                        ["--draft", "9"], ["--draft-vocab", "8193"], ["--kv", "x"], ["--window", "x"]):
            r = subprocess.run([SERVER, "--port", "0", "--device", "cpu", *options], capture_output=True, text=True,
                               timeout=60)
            self.assertEqual((r.returncode, r.stdout), (2, ""), options)

    def test_the_command_line_starts_it(self):
        r = subprocess.run([BINARY, "serve", "--version"], capture_output=True, timeout=60)
        self.assertEqual((r.returncode, r.stdout[:13]), (0, b"auspex-server"))

    def test_it_says_what_it_serves(self):
        for options in ([], ["-m", DEMO, "--alias", "mine"]):
            r = subprocess.Popen([SERVER, "--port", "0", "--device", "cpu", *options], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
            self.assertIn("http://127.0.0.1:", r.stdout.readline())
            said = r.stderr.readline()
            if not options:
                self.assertIn("no model was named", said)
                said = r.stderr.readline()
            name = "mine" if options else "auspex-demo"
            self.assertRegex(said, rf"'{name}' is ready: \d+ rows of context on cpu")
            r.terminate()
            self.assertEqual((r.communicate(timeout=60), r.returncode), (("", ""), 0))

    def test_a_request_is_one_line_of_the_log(self):
        server = Server("--ctx", 256, "--verbose")
        try:
            path = "/slots/7%0aauspex:%20note:%20forged%1b[2J"
            for body in (None, "{}"):
                answer = server.post(path, body)
                self.assertEqual((answer.status, answer.json["error"]["message"][:16]), (404, "there is no slot"))
        finally:
            code, log = server.stop()
        self.assertEqual(code, 0)
        self.assertEqual(log.count("note: POST /slots/7\\x0aauspex: note: forged\\x1b[2J 404\n"), 2, log)

    def test_port_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            r = subprocess.run([SERVER, "--port", str(port), "--device", "cpu"], capture_output=True, timeout=60)
        self.assertEqual(r.returncode, 1)
        self.assertIn(str(port), r.stderr.decode())


class Template(BaseServer):
    """tools/gguf_template.py"""

    def test_a_model_with_another_template(self):
        tool = [sys.executable, os.path.join(REPO, "tools", "gguf_template.py")]
        with tempfile.TemporaryDirectory() as folder:
            model, template = os.path.join(folder, "other.gguf"), os.path.join(folder, "template")
            with open(template, "w") as f:
                f.write(ELEMENTS)
            subprocess.run([*tool, DEMO, model, template], check=True, timeout=60)
            other = Server("--ctx", 2048, "--temp", 0, model=model)
            try:
                self.assertEqual(other.get("/props").json["chat_template"], ELEMENTS)
                text = {"prompt": "2026-03-14 08:00 Pump-3", "max_tokens": 20}
                self.assertEqual(other.post("/v1/completions", text).json["choices"],
                                 self.ok(self.server.post("/v1/completions", text))["choices"])
            finally:
                self.assertEqual(other.stop()[0], 0)
            r = subprocess.run([*tool, template, model, template], capture_output=True, timeout=60)
            self.assertEqual((r.returncode, b"no GGUF" in r.stderr), (1, True), r.stderr)


class BadInput(BaseServer):
    OPTIONS = ("--ctx", "256", "--temp", "0", "--max-body", "1M")

    def no_objects(self):
        """What no endpoint can take for a request: nothing that is JSON, or no object."""
        good = json.dumps(HELLO)
        yield from (good[:n] for n in range(0, len(good), 3))  # cut short
        yield from ("[" * 100000, '{"a":' * 100000, '{"messages":' + "[" * 100000 + "]" * 100000 + "}", "null", "[]",
                    "3", '"text"', "NaN", '{"temperature": NaN}', '{"messages": Infinity}', "{'a': 1}", "\x00",
                    '{"messages": "\\ud800"}', '{"messages": "\\udc00\\ud800"}', '{"a": 1}{"b": 2}',
                    '{"n": 1e999, "messages": []}', "\ufeff\ufeff{}", "{\"a\": \"\x01\"}", '{"a": 1,}', '{"a" 1}',
                    "{a: 1}", '{"a": 01}', '{"a": .5}', '{"a": +1}', '{"a": "\\x41"}', '{"a": "\\u12"}', "<html>",
                    "a=1&b=2", "// x\n{}", '{"a": tru}', '{"a": "b}', good + "]", '"\ud800"')

    def bodies(self):
        yield from self.no_objects()
        message = [{"role": "user", "content": "x"}]
        for wrong in ("x", 3, {}, None, [3], [None], [{}], [{"role": 3}], [{"role": "user", "content": 3}],
                      [{"role": "robot", "content": "x"}], [{"role": "user", "content": [3]}], [[]],
                      [{"role": "user", "content": [{"type": "text", "text": 3}]}], [],
                      [{"role": "assistant", "content": "x", "tool_calls": 3}]):
            yield json.dumps({"messages": wrong})
        for key, wrong in (("temperature", "hot"), ("temperature", -1), ("top_p", 2), ("top_k", 1.5), ("seed", "a"),
                           ("max_tokens", "4"), ("max_tokens", 1e30), ("n", 0), ("n", 1000), ("stop", 3), ("stop", [3]),
                           ("stop", ""), ("stream", "yes"), ("stream_options", 3), ("tools", "x"), ("tools", [3]),
                           ("tool_choice", 3), ("response_format", {"type": "xml"}), ("response_format", "json"),
                           ("chat_template_kwargs", 3), ("chat_template_kwargs", {"enable_thinking": 3}),
                           ("presence_penalty", []), ("logit_bias", [3]), ("logit_bias", {"8192": 1}),
                           ("logit_bias", {"a": 1}), ("logit_bias", {"1": 1000}), ("logit_bias", {"1": None}),
                           ("min_p", -1), ("repeat_penalty", 0), ("grammar", ['root ::= "a"']),
                           ("parallel_tool_calls", "false")):
            yield json.dumps({"messages": message, "max_tokens": 1, key: wrong})

    def test_malformed_bodies(self):
        bodies = list(self.bodies())
        self.assertGreaterEqual(len(bodies), 100)
        for body in bodies:
            self.refused(400, "invalid_request_error", self.server.post(CHAT, body))
        self.ok(self.server.post(CHAT, HELLO))

    def test_malformed_bodies_elsewhere(self):
        for path in ("/v1/completions", "/completion", "/v1/responses", "/v1/responses/input_tokens", "/v1/messages",
                     "/v1/messages/count_tokens", CHAT + "/input_tokens", "/tokenize", "/detokenize",
                     "/apply-template"):
            for body in self.no_objects():
                answer = self.server.post(path, body)
                self.assertEqual(answer.status, 400, (path, body[:60], answer.body))
                self.assertEqual(answer.json["error"]["type"], "invalid_request_error")
        for path in ("/v1/completions", "/completion"):
            self.refused(400, "invalid_request_error", self.server.post(path, {"prompt": "x", "grammar": ["x"]}),
                         "grammar is a list, expected a string")
        self.ok(self.server.post(CHAT, HELLO))

    def test_the_error_names_the_place(self):
        for body, words in (('{"messages": [}', ("not JSON", "byte 15")), ("", ("body is empty",)),
                            ('{"messages": []}', ("no message",)),
                            ('{"messages": 3}', ("messages is 3", "a list")),
                            (json.dumps({**HELLO, "temperature": "hot"}), ("temperature is a string", "number")),
                            ('{"messages": [{"role": "user", "content": 5}]}', ("messages[0].content is 5",))):
            self.refused(400, "invalid_request_error", self.server.post(CHAT, body), *words)

    def test_what_cannot_be_enforced_is_refused(self):
        image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
        for path, body in ((CHAT, {"messages": image}), ("/completion", {"prompt": "x", "logprobs": 2}),
                           ("/completion", {"prompt": "x", "n_probs": 1}),
                           ("/v1/responses", {"input": "x", "top_logprobs": 2}),
                           ("/v1/responses", {"input": "x", "include": ["message.output_text.logprobs"]}),
                           ("/v1/responses", {"input": "x", "conversation": "conv_1"}),
                           ("/v1/responses", {"input": [{"type": "item_reference", "id": "msg_1"}]})):
            self.refused(400, "not_supported_error", self.server.post(path, body))

    def test_many_members_of_an_object(self):
        """Neither their number nor their depth may cost more than reading them; 40 000 once took ten seconds."""
        many = {f"{i:05}": 0 for i in range(40000)}
        self.ok(self.server.post(CHAT, {**HELLO, "chat_template_kwargs": many}, timeout=8))
        wide = {f"{i:x}": 0 for i in range(100000)}
        message = {"messages": [{**HELLO["messages"][0], **wide}], "max_tokens": 1}
        self.ok(self.server.post(CHAT, json.dumps(message, separators=(",", ":")), timeout=20))
        nested = "[" + "0," * 300000 + "0]"
        for _ in range(250):
            nested = '{"a":' + nested + ',"b":0}'
        self.ok(self.server.post(CHAT, json.dumps(HELLO)[:-1] + ',"user":' + nested + "}", timeout=8))

    def test_the_last_value_of_a_member_counts(self):
        others = "".join(f'"key {i}": {i}, ' for i in range(40))
        for more in ("", others):
            head = '{"max_tokens": "x", ' + more + '"max_tokens": 2, "messages": '
            answer = self.ok(self.server.post(CHAT, head + json.dumps(HELLO["messages"]) + "}"))
            self.assertEqual(answer["usage"]["completion_tokens"], 2)

    def test_invalid_utf8(self):
        answer = self.server.raw(raw_post(b'{"messages": "\xff\xfe"}', "Content-Length: 17\r\n"))
        self.assertIn(b"400", answer.split(b"\r\n")[0])

    def test_sizes(self):
        big = json.dumps({**HELLO, "user": "x" * (1 << 20)}).encode()
        self.refused(413, "invalid_request_error", self.server.post(CHAT, big), 1 << 20)
        answer = self.server.raw(raw_post(b"", "Content-Length: 99999999999\r\n"))
        self.assertIn(b"413", answer.split(b"\r\n")[0])
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        answer = self.server.raw(raw_post(chunk * 17 + b"0\r\n\r\n", "Transfer-Encoding: chunked\r\n"))
        self.assertIn(b"413", answer.split(b"\r\n")[0])
        for head, status in ((b"X: " + b"y" * 9000, b"431"), (b"X: y\r\n" * 20000, b"431"),
                             (b"Content-Length: -5", b"400"), (b"Content-Length: 3x", b"400"),
                             (b"Transfer-Encoding: gzip", b"501"),
                             (b"Transfer-Encoding:", b"400"), (b"Content-Length:", b"400"),
                             (b"Content-Length: 3\r\nTransfer-Encoding: chunked", b"400"),
                             (b"Content-Length: 3\r\nContent-Length: 30", b"400"),
                             (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", b"400")):
            answer = self.server.raw(b"POST " + CHAT.encode() + b" HTTP/1.1\r\n" + head + b"\r\n\r\n", shut=True)
            self.assertIn(status, answer.split(b"\r\n")[0], head[:40])
        self.assertEqual(self.server.get("/health").status, 200)

    def test_a_form_is_refused(self):
        form = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--x--\r\n'
        for kind in ("multipart/form-data; boundary=x", "multipart/form-data", "Multipart/Form-Data; boundary=x"):
            self.refused(415, "invalid_request_error", self.server.post(CHAT, form, headers={"Content-Type": kind}),
                         "application/json")

    def test_pages_may_read_what_http_refuses(self):
        page = {"Origin": "http://localhost:3000"}
        form = {"Content-Type": "multipart/form-data; boundary=x"}
        for status, body, headers in ((413, b"x" * (2 << 20), {}), (415, b"x", form),
                                      (400, b"", {"Content-Length": "x"}), (501, b"", {"Transfer-Encoding": "gzip"})):
            answer = self.server.post(CHAT, body, headers={**headers, **page})
            self.assertEqual(answer.status, status)
            self.assertEqual(answer.headers.get("access-control-allow-origin"), page["Origin"])
            answer = self.server.post(CHAT, body, headers={**headers, "Origin": "https://other.example"})
            self.assertNotIn("access-control-allow-origin", answer.headers)

    def test_ranges_are_ignored(self):
        whole = self.server.get("/").body
        for ranges in ("bytes=0-9", "bytes=0-9,20-29", "bytes=0-" + ",0-" * 2600, "bytes=5-", "items=0-5", "bytes=abc",
                       "bytes=5-2", "bytes=99999999999999999999999-", "x", ""):
            for name in ("Range", "rANGE"):
                answer = self.server.get("/", headers={name: ranges})
                self.assertEqual((answer.status, answer.body), (200, whole), ranges[:20])
                self.assertNotIn("content-range", answer.headers)
            self.ok(self.server.post("/tokenize", {"content": "a"}, headers={"Range": ranges}))

    def test_what_follows_a_refused_head_is_no_request(self):
        for head in (b"X: " + b"y" * 9000, b"X: y\r\n" * 12000):
            data = b"GET /health HTTP/1.1\r\n" + head + b"\r\n\r\nGET /health HTTP/1.1\r\n\r\n"
            answer = self.server.raw(data, timeout=5)
            self.assertEqual(answer.count(b"Content-Length"), 1, answer)
            self.assertNotIn(b"HTTP/1.1 200", answer)

    def test_a_body_that_is_not_read_is_no_request(self):
        hidden = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        framed = {b"Content-Length: %d" % len(hidden): hidden,
                  b"Transfer-Encoding: chunked": b"%x\r\n%s\r\n0\r\n\r\n" % (len(hidden), hidden)}
        for method in (b"GET", b"HEAD", b"OPTIONS", b"PUT"):
            for head, body in framed.items():
                start = method + b" /health HTTP/1.1\r\nHost: localhost\r\n"
                answer = self.server.raw(start + head + b"\r\n\r\n" + body, timeout=5)
                self.assertEqual(answer.count(b"HTTP/1.1 "), 1, answer)
                self.assertIn(b"\r\nConnection: close\r\n", answer)
        empty = b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        self.assertEqual(self.server.raw(empty * 2, shut=True).count(b"200 OK"), 2)

    def chunked(self, body):
        """The answers to a request with this body and to one that follows it."""
        head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        return self.server.raw(head + body + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                               timeout=10)

    def test_chunks(self):
        for body in (b'11\r\n{"content": "ab"}\r\n0\r\n\r\n', b'a;x="y"\r\n{"content"\r\n006\r\n:"ab"}\r\n0\r\n\r\n',
                     b'0010\r\n{"content":"ab"}\r\n0\r\nA: b\r\nHost: c\r\n\r\n'):
            self.assertEqual(self.chunked(body).count(b"200 OK"), 2, body)

    def test_what_is_no_chunk_ends_the_connection(self):
        data = b'{"content":"ab"}'
        for size in (b"0x10\r\n", b"-10\r\n", b" 10\r\n", b"+10\r\n", b"10\n", b"\r\n", b"10x\r\n", b"f" * 16 + b"\r\n",
                     b"0" * 9000, b"10;" + b"x" * 9000 + b"\r\n"):
            answer = self.chunked(size + data + b"\r\n0\r\n\r\n")
            self.assertEqual((answer.count(b"HTTP/1.1 "), answer[:12]), (1, b"HTTP/1.1 400"), size[:20])
        answer = self.chunked(b"10\r\n" + data + b"XY0\r\n\r\n")
        self.assertEqual((answer.count(b"HTTP/1.1 "), answer[:12]), (1, b"HTTP/1.1 400"))

    def test_no_http(self):
        for data in (b"\x00" * 100, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"hello\r\n\r\n",
                     b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n"):
            self.server.raw(data, shut=True)
        self.assertEqual(self.server.get("/health").status, 200)

    def test_an_empty_line_after_a_body_is_no_request(self):
        text = b'POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n{"content":"ab"}\r\n'
        answer = self.server.raw(2 * text + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        self.assertEqual((answer.count(b"HTTP/1.1 "), answer.count(b"HTTP/1.1 200 OK")), (3, 3))

    def test_an_encoding_that_is_not_known_is_named(self):
        for name in ("zstd", "x-gzip", "gzip, gzip"):
            self.refused(415, "invalid_request_error", self.server.post(
                "/tokenize", b"(\xb5/\xfd", headers={"Content-Encoding": name}), f"'{name}'")

    def test_compressed_bodies(self):
        text = json.dumps({"content": "ab " * 30000}).encode()
        n_token = len(self.ok(self.server.post("/tokenize", text))["tokens"])
        brotli = bytes.fromhex("8b07807b22636f6e74656e74223a226162227d03")  # {"content":"ab"}
        for name, body, n in (("gzip", gzip.compress(text), n_token), ("GZIP", gzip.compress(text), n_token),
                              ("Deflate", zlib.compress(text), n_token), ("br", brotli, 1)):
            with self.subTest(name):
                def post(body):
                    return self.server.request("POST", "/tokenize", body, {"Content-Encoding": name})
                self.assertEqual(len(self.ok(post(body))["tokens"]), n)
                for wrong in (*(body[:-k] for k in (1, 4, 8, 9, 10, len(body) // 2) if k < len(body)), body + b"\0",
                              b"not compressed"):
                    self.refused(400, "invalid_request_error", post(wrong), "the body ended early")
        self.refused(413, "invalid_request_error", self.server.request(
            "POST", "/tokenize", gzip.compress(b" " * (2 << 20)), {"Content-Encoding": "gzip"}))

    def test_half_closed_and_cut_connections(self):
        self.assertIn(b"200", self.server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", shut=True))
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", self.server.port)) as s:
                s.sendall(raw_post(b'{"messages"', "Content-Length: 500\r\n"))
        self.assertEqual(self.server.get("/health").status, 200)

    def test_a_client_that_closes_its_sending_side_is_answered(self):
        body = json.dumps({**HELLO, "max_tokens": 20}).encode()
        whole = self.ok(self.server.post(CHAT, body.decode()))["choices"][0]
        answer = self.server.raw(raw_post(body, f"Content-Length: {len(body)}\r\n"), shut=True)
        asked, answer = answer.split(b"\r\n\r\n", 1)
        self.assertEqual(asked, b"HTTP/1.1 100 Continue")
        self.assertEqual(json.loads(answer.split(b"\r\n\r\n", 1)[1])["choices"][0], whole)
        body = json.dumps({**HELLO, "max_tokens": 20, "stream": True}).encode()
        answer = self.server.raw(raw_post(body, f"Content-Length: {len(body)}\r\n"), shut=True)
        self.assertTrue(answer.startswith(b"HTTP/1.1 200 OK"))
        self.assertIn(b"data: [DONE]\n\n", answer)
        old = b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body)
        self.assertIn(b"data: [DONE]\n\n", self.server.raw(old, shut=True))
        old = old.replace(b'"stream": true', b'"stream": null')
        self.assertIn(b"use HTTP/1.1", self.server.raw(old, shut=True))

    def test_a_client_that_leaves_without_a_stream_ends_its_request(self):
        no_end = {"8187": -100, "8189": -100}  # <|endoftext|>, <|im_end|>
        body = json.dumps({"prompt": "word", "max_tokens": 1500, "logit_bias": no_end}).encode()
        n_before = self.server.metric("llamacpp:tokens_predicted_total")
        with socket.create_connection(("127.0.0.1", self.server.port)) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body))
            s.sendall(body)
            time.sleep(0.1)
        self.server.wait_idle()
        self.assertLess(self.server.metric("llamacpp:tokens_predicted_total") - n_before, 1500)

    def idle_connections(self, n):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[1], 4096), limits[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        idle = []
        for _ in range(n):
            idle.append(socket.create_connection(("127.0.0.1", self.server.port)))
            self.addCleanup(idle[-1].close)
        return idle

    def test_many_idle_connections(self):
        for s in self.idle_connections(1000)[::2]:
            s.sendall(b"GET /health HT")
        self.ok(self.server.post(CHAT, HELLO))
        self.doCleanups()
        self.assertEqual(self.server.get("/health").status, 200)

    def test_more_idle_connections_than_threads(self):
        self.idle_connections(1100)
        for _ in range(3):
            self.assertEqual(self.server.get("/health", timeout=5).status, 200)
        self.doCleanups()
        self.assertEqual(self.server.get("/health").status, 200)


if __name__ == "__main__":
    unittest.main()
