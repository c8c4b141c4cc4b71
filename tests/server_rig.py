"""What the tests of the server share: starting it, requests, streams, and a model that writes tool calls.

Python's standard library only. AUSPEX_SERVER names the program.
"""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest
from unittest import mock

from chat_templates import ELEMENTS, with_template
from test_cli import DEMO, REPO

SERVER = os.environ.get("AUSPEX_SERVER") or os.path.join(REPO, "build", "auspex-server")


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)


def parse_events(text):
    """[(event or None, data)] of a stream; data is JSON, or "[DONE]"."""
    events = []
    for block in text.split("\n\n"):
        name, data = None, None
        for line in block.split("\n"):
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = line[6:] if line == "data: [DONE]" else json.loads(line[6:])
        if data is not None:
            events.append((name, data))
    return events


class Server:
    """A running server. Ends with stop(), which returns exit code and stderr."""

    def __init__(self, *options, model=DEMO, wait=True, stderr=None):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [SERVER, "--port", "0", "--device", "cpu", "--threads", "1", "-m", model, *map(str, options)],
            stdout=subprocess.PIPE, stderr=stderr or self.log)
        self.url = self.process.stdout.readline().decode().strip()
        if not self.url:
            raise AssertionError("the server did not start: " + self.stop()[1])
        self.port = int(self.url.rsplit(":", 1)[1])
        while wait and self.get("/health").status == 503:
            time.sleep(0.02)

    def request(self, method, path, body=None, headers=None, timeout=60):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode("utf-8", "surrogatepass")
        try:
            connection.request(method, path, body, headers or {})
            r = connection.getresponse()
            return Answer(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read().decode())
        finally:
            connection.close()

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def stream(self, path, body, **more):
        """The events of a request with stream = true."""
        answer = self.post(path, {**body, "stream": True}, **more)
        assert answer.status == 200, answer.body
        assert answer.headers["content-type"] == "text/event-stream"
        return parse_events(answer.body)

    def open_stream(self, path, body):
        """The socket of a request whose answer is still being written."""
        data = json.dumps({**body, "stream": True}).encode()
        s = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        return s

    def raw(self, data, shut=False, timeout=30):
        """Everything that is answered to these bytes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as s:
            s.sendall(data)
            if shut:
                s.shutdown(socket.SHUT_WR)
            out = b""
            while part := s.recv(65536):
                out += part
            return out

    def resident_kib(self):
        with open(f"/proc/{self.process.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024

    def peak_kib(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"VmHWM:\s+(\d+)", f.read())[1])

    def metric(self, name):
        return int(re.search(rf"^{name} (\d+)", self.get("/metrics").body, re.M)[1])

    def wait_idle(self):
        """Until no request waits or runs. Asked in this order, since one that no longer waits may run."""
        start = time.time()
        while self.metric("llamacpp:requests_deferred") or self.get("/slots").json[0]["is_processing"]:
            assert time.time() - start < 30, "the slot stays busy, or requests wait for it"
            time.sleep(0.005)

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        if self.process.stderr:
            self.process.stderr.close()
        self.log.seek(0)
        text = self.log.read().decode("utf-8", "replace")
        self.log.close()
        return code, text


def serve_with(test, code, name, *options):
    """A server with this code in place of the system's, and the path that the code finds in the variable `name`."""
    with open(SERVER, "rb") as f:
        if b"AddressSanitizer" in f.read():
            test.skipTest("sanitizers must be loaded before all other libraries")
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    source, library, path = (os.path.join(folder.name, part) for part in ("code.c", "code.so", "file"))
    with open(source, "w") as f:
        f.write(code)
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True, timeout=60)
    with mock.patch.dict(os.environ, {"LD_PRELOAD": library, name: path}):
        server = Server(*options)
    test.addCleanup(server.process.kill)  # where the test fails
    return server, path


def tool_model():
    """The path of the demo model with a template that can show tools and thinking."""
    f = tempfile.NamedTemporaryFile(suffix=".gguf", delete=False)
    f.write(with_template(ELEMENTS))
    f.close()
    return f.name


def script_file(entries):
    """A file for --script from {when: reply}; a reply may be {"reply": TEXT, ...} with further members."""
    f = tempfile.NamedTemporaryFile("w", suffix=".json", delete=False)
    json.dump([{"when": when, **(reply if isinstance(reply, dict) else {"reply": reply})}
               for when, reply in entries.items()], f)
    f.close()
    return f.name


def call(name, **arguments):
    """A tool call as the model writes it."""
    parameters = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


class BaseServer(unittest.TestCase):
    """One server for all tests of a class, on the demo model. With SCRIPT on the model with tools."""
    OPTIONS = ("--ctx", "2048", "--temp", "0")
    MODEL = DEMO
    SCRIPT = None

    @classmethod
    def setUpClass(cls):
        cls.files = []
        options = list(cls.OPTIONS)
        model = cls.MODEL
        if cls.SCRIPT is not None:
            model = tool_model()
            cls.files = [model, script_file(cls.SCRIPT)]
            options += ["--script", cls.files[1]]
        cls.server = Server(*options, model=model)

    @classmethod
    def tearDownClass(cls):
        code, log = cls.server.stop()
        for name in cls.files:
            os.remove(name)
        assert code == 0, f"exit code {code}\n{log}"
        assert "Sanitizer" not in log, log

    def ok(self, answer):
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json

    def refused(self, status, kind, answer, *words):
        """An error in OpenAI's form."""
        self.assertEqual(answer.status, status, answer.body)
        error = answer.json["error"]
        self.assertEqual(set(error) >= {"code", "message", "type"}, True, error)
        self.assertEqual((error["code"], error["type"]), (status, kind), error)
        for word in words:
            self.assertIn(str(word), error["message"])
        return error
