"""Many clients that come, go and leave in the middle: nothing may leak, stick or mix. See server_rig.py.

10 000 requests from 50 clients with AUSPEX_TEST_DEEP=1, a few hundred otherwise. AUSPEX_LOAD_MODEL names another model
than the demo model: a tiny one where sanitizers make all of it slow.
"""
import json
import os
import random
import socket
import threading
import time
import unittest

from server_rig import SERVER, BaseServer
from test_cli import DEMO

DEEP = os.environ.get("AUSPEX_TEST_DEEP") == "1"
N_REQUEST, N_CLIENT = (10000, 50) if DEEP else (400, 20)
with open(SERVER, "rb") as program:
    SANITIZED = b"__asan_init" in program.read()
QUESTION = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6}


class Load(BaseServer):
    OPTIONS = ("--ctx", "1024", "--temp", "0", "--queue", "1000", "--cache", "2M")
    MODEL = os.environ.get("AUSPEX_LOAD_MODEL") or DEMO

    def payload(self, rng):
        """The bytes of a request, good or bad."""
        text = " ".join(rng.choice(["pump", "valve", "sensor", "door"]) for _ in range(rng.randrange(1, 60)))
        n = rng.randrange(1, 12)
        path, body = rng.choice([
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": n}),
            ("/v1/completions", {"prompt": text, "max_tokens": n}),
            ("/v1/messages", {"messages": [{"role": "user", "content": text}], "max_tokens": n}),
            ("/v1/responses", {"input": text, "max_output_tokens": n}),
            ("/tokenize", {"content": text}),
            ("/v1/chat/completions", {"messages": text}),
        ])
        if path.startswith("/v1"):
            body["stream"] = rng.random() < 0.5
        data = json.dumps(body).encode()
        if rng.random() < 0.05:
            data = data[:rng.randrange(len(data))]
        return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data

    def one(self, rng):
        """One request; half of the clients leave before its end."""
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=120) as s:
            data = self.payload(rng)
            leave = rng.random()
            if leave < 0.1:
                s.sendall(data[:rng.randrange(len(data))])
                return
            s.sendall(data)
            if leave < 0.3:
                return
            answer = s.recv(4096)
            self.assertIn(answer[:12], (b"HTTP/1.1 200", b"HTTP/1.1 400"))
            if leave < 0.5:
                return
            s.shutdown(socket.SHUT_WR)
            while s.recv(65536):
                pass

    def run_clients(self, n_request):
        failures = []

        def client(seed):
            rng = random.Random(seed)
            try:
                for _ in range(n_request // N_CLIENT):
                    self.one(rng)
            except Exception as e:
                failures.append(repr(e))
        threads = [threading.Thread(target=client, args=(i,)) for i in range(N_CLIENT)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failures, [])

    def count(self, what):
        return len(os.listdir(f"/proc/{self.server.process.pid}/{what}"))

    def heap_bytes(self):
        """What the server has allocated and not freed once no connection is left; 0 where its libc does not tell."""
        self.server.wait_idle()
        for _ in range(100):  # connections linger until their clients have taken everything
            if self.count("task") < 8:
                break
            time.sleep(0.05)
        self.assertLess(self.count("task"), 8)
        self.assertLess(self.count("fd"), 24)
        return self.server.metric("auspex_heap_bytes")

    def test_nothing_leaks_or_sticks(self):
        answer = self.ok(self.server.post("/v1/chat/completions", QUESTION))["choices"][0]["message"]
        self.run_clients(100)
        for _ in range(64):  # the replies that previous_response_id can name, at their longest
            self.ok(self.server.post("/v1/responses", {"input": "sensor " * 60, "max_output_tokens": 12}))
        before, resident = self.heap_bytes(), self.server.resident_kib()
        self.run_clients(N_REQUEST)
        after, resident_after = self.heap_bytes(), self.server.resident_kib()
        print(f"{N_REQUEST} requests, {N_CLIENT} clients: heap {before} -> {after} bytes ({after - before:+}), "
              f"resident {resident} -> {resident_after} KiB{', sanitized' if SANITIZED else ''}")
        # A libc counts what its caches hold as allocated: they fill within some thousand requests, and stay.
        self.assertLess(after - before, (64 if SANITIZED else 128) << 10)
        if not SANITIZED:  # a sanitizer keeps what was freed
            self.assertLess(resident_after - resident, 4 << 10)
        slot = self.ok(self.server.get("/slots"))[0]
        self.assertFalse(slot["is_processing"])
        again = self.ok(self.server.post("/v1/chat/completions", QUESTION))["choices"][0]["message"]
        self.assertEqual(again, answer)


if __name__ == "__main__":
    unittest.main()
