"""Requests that wait take turns with the one that runs: what each gets, and what it is told. See server_rig.py."""
import socket
import threading
import time
import unittest

from server_rig import BaseServer, Server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
#: A reply that does not end by itself.
LONG = {"prompt": "Once upon a time", "max_tokens": 2500}
NO_END = {"8187": -100, "8189": -100}  # <|endoftext|>, <|im_end|>


def together(*calls):
    """What these return, called at the same time."""
    results = [None] * len(calls)

    def run(i):
        results[i] = calls[i]()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results


class Turns(BaseServer):
    OPTIONS = ("--ctx", "4096", "--temp", "0", "--turn-ms", "1")

    def test_replies_are_what_they_are_alone(self):
        requests = [(TEXT, {**LONG, "max_tokens": 500}),
                    (TEXT, {"prompt": "2026-03-14 08:00", "temperature": 1, "seed": 4, "max_tokens": 400, "n": 2}),
                    (TEXT, {"prompt": "a,b\n1,2\n", "temperature": 0.8, "seed": 2, "max_tokens": 400, "stop": ["77"]}),
                    (CHAT, {"messages": [{"role": "user", "content": "A list"}], "max_tokens": 80,
                            "response_format": {"type": "json_object"}}),
                    (CHAT, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50, "logprobs": True}),
                    (TEXT, {"prompt": "def main", "temperature": 1, "seed": 7, "max_tokens": 150, "logprobs": 2})]
        alone = [self.ok(self.server.post(*r)) for r in requests]
        n_turn = self.server.metric("auspex_turns_total")
        mixed = together(*[lambda r=r: self.ok(self.server.post(*r)) for r in requests])
        for one, other in zip(alone, mixed):
            self.assertEqual(one["choices"], other["choices"])
            for key in ("prompt_tokens", "completion_tokens"):
                self.assertEqual(one["usage"][key], other["usage"][key])
        self.assertGreater(self.server.metric("auspex_turns_total"), n_turn)
        streams = together(*[lambda r=r: self.server.stream(*r) for r in requests[:1] * 2])
        for events in streams:
            pieces = [data["choices"][0]["text"] for _, data in events if data != "[DONE]"]
            self.assertEqual("".join(pieces), alone[0]["choices"][0]["text"])

    def test_a_short_request_does_not_wait_for_a_long_one(self):
        s = self.server.open_stream(TEXT, LONG)
        s.recv(1)
        self.ok(self.server.post(CHAT, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}))
        self.assertTrue(self.server.get("/slots").json[0]["is_processing"])
        self.drain(s)

    def test_a_short_request_does_not_wait_for_log_probabilities(self):
        s = self.server.open_stream(TEXT, {**LONG, "logprobs": 1, "logit_bias": NO_END})
        s.recv(1)
        self.ok(self.server.post(CHAT, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}))
        self.assertTrue(self.server.get("/slots").json[0]["is_processing"])
        s.close()
        self.server.wait_idle()

    def drain(self, s):
        rest = b""
        while b"[DONE]" not in rest:
            part = s.recv(65536)
            self.assertTrue(part)
            rest += part
        s.close()

    def test_a_prompt_is_read_in_turns_and_its_rows_count_once(self):
        prompt = " ".join(f"sensor {i * 7919 % 1000}" for i in range(700))
        alone = self.ok(self.server.post("/v1/completions", {"prompt": "a " + prompt, "max_tokens": 5}))
        self.server.wait_idle()
        n_before = self.server.metric("llamacpp:prompt_tokens_total")
        short = [lambda i=i: self.ok(self.server.post("/v1/completions", {"prompt": f"{i} x", "max_tokens": 20}))
                 for i in range(6)]
        long = self.ok(together(lambda: self.server.post("/v1/completions", {"prompt": "b " + prompt, "max_tokens": 5}),
                                *short)[0])
        self.assertEqual(long["usage"]["prompt_tokens"], alone["usage"]["prompt_tokens"])
        self.server.wait_idle()
        n = self.server.metric("llamacpp:prompt_tokens_total") - n_before
        self.assertLessEqual(n, long["usage"]["prompt_tokens"] + 6 * 4)

    def test_one_that_leaves_between_its_turns_is_forgotten(self):
        streams = [self.server.open_stream(TEXT, LONG) for _ in range(3)]
        for s in streams:
            s.recv(1)
        for s in streams:
            s.close()
        self.server.wait_idle()
        self.ok(self.server.post(TEXT, {**LONG, "max_tokens": 3}))

    def wait_for(self, n_waiting):
        start = time.time()
        while self.server.metric("llamacpp:requests_deferred") != n_waiting:
            self.assertLess(time.time(), start + 120)
            time.sleep(0.01)

    def test_a_short_request_does_not_wait_for_work_on_the_slot(self):
        """That work waits for the reply before it, and once made all others wait for that, too."""
        other = {"prompt": "2026-03-14 08:00", "max_tokens": 400}
        alone = self.ok(self.server.post(TEXT, other))["choices"]
        running = self.server.open_stream(TEXT, {**LONG, "logit_bias": NO_END})
        while self.server.get("/slots").json[0]["next_token"][0]["n_decoded"] < 100:
            time.sleep(0.01)
        erased, interrupted = [], []
        slot = threading.Thread(target=lambda: erased.append(self.server.post("/slots/0?action=erase", {})))
        slot.start()
        self.wait_for(1)
        self.ok(self.server.post(CHAT, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}))
        self.assertEqual(erased, [])
        after = threading.Thread(target=lambda: interrupted.append(self.server.post(TEXT, other)))
        after.start()
        self.wait_for(2)
        self.drain(running)
        slot.join()
        after.join()
        self.assertGreater(self.ok(erased[0])["n_erased"], 100)  # rows of the reply that was before it
        self.assertEqual(self.ok(interrupted[0])["choices"], alone)

    def test_work_on_the_slot_is_dropped_when_its_client_leaves(self):
        running = self.server.open_stream(TEXT, {**LONG, "n": 16})
        running.recv(1)
        leaving = [self.server.open_stream("/slots/0?action=erase", {}) for _ in range(2)]
        self.wait_for(2)
        for s in leaving:
            s.close()
        self.wait_for(0)
        self.assertTrue(self.server.get("/slots").json[0]["is_processing"])
        running.close()
        self.server.wait_idle()
        self.assertGreater(self.server.get("/slots").json[0]["n_history"], 0)
        running = self.server.open_stream(TEXT, {**LONG, "n": 16})
        running.recv(1)
        half = self.server.open_stream("/slots/0?action=erase", {})
        half.shutdown(socket.SHUT_WR)
        self.wait_for(1)
        running.close()
        answer = b""
        while part := half.recv(65536):
            answer += part
        self.assertIn(b'"n_erased":', answer)
        half.close()


class Order(unittest.TestCase):
    def test_without_turns_the_first_is_completed_first(self):
        server = Server("--ctx", 4096, "--temp", 0, "--turn-ms", 0)
        try:
            s = server.open_stream(TEXT, LONG)
            s.recv(1)
            done = []
            together(lambda: done.append(server.post(TEXT, {**LONG, "max_tokens": 3}).status),
                     lambda: self.drain(s, done))
            self.assertEqual(done, ["long", 200])
            self.assertEqual(server.metric("auspex_turns_total"), 0)
        finally:
            self.assertEqual(server.stop()[0], 0)

    def drain(self, s, done):
        rest = b""
        while b"[DONE]" not in rest:
            part = s.recv(65536)
            if not part:
                break
            rest += part
        done.append("long")
        s.close()

    def test_without_a_cache_every_request_is_completed(self):
        server = Server("--ctx", 4096, "--temp", 0, "--turn-ms", 1, "--cache", 0)
        try:
            requests = [(TEXT, {"prompt": f"{k} " + " ".join(f"sensor {i * 7919 % 1000}" for i in range(180)),
                                "max_tokens": 20}) for k in range(3)]
            alone = [server.post(*r).json["choices"] for r in requests]
            n_turn = server.metric("auspex_turns_total")
            mixed = together(*[lambda r=r: server.post(*r).json["choices"] for r in requests])
            self.assertEqual(mixed, alone)
            self.assertGreater(server.metric("auspex_turns_total"), n_turn)
        finally:
            self.assertEqual(server.stop()[0], 0)

    def test_several_replies_of_one_request_share_its_turns(self):
        """Each of them began a turn of its own, as long as 20 times the reply before it."""
        server = Server("--ctx", 4096, "--temp", 0, "--turn-ms", 500)
        try:
            s = server.open_stream(TEXT, {**LONG, "max_tokens": 60, "n": 16, "logit_bias": NO_END})
            s.recv(1)
            self.assertEqual(server.post(TEXT, {**LONG, "max_tokens": 3}).status, 200)
            self.assertTrue(server.get("/slots").json[0]["is_processing"])
            s.close()
        finally:
            self.assertEqual(server.stop()[0], 0)

    def test_turns_come_back_after_a_crowd_that_left_no_room_for_them(self):
        server = Server("--ctx", 4096, "--temp", 0, "--turn-ms", 1, "--cache", "8M")
        try:
            crowd = [server.open_stream(TEXT, {**LONG, "prompt": f"x{k}", "logit_bias": NO_END}) for k in range(6)]
            crowd[0].recv(1)
            time.sleep(2)
            for s in crowd:
                s.close()
            server.wait_idle()
            n_turn = server.metric("auspex_turns_total")
            s = server.open_stream(TEXT, {**LONG, "logit_bias": NO_END})
            s.recv(1)
            self.assertEqual(server.post(TEXT, {**LONG, "max_tokens": 3}).status, 200)
            self.assertTrue(server.get("/slots").json[0]["is_processing"])
            self.assertGreater(server.metric("auspex_turns_total"), n_turn)
            s.close()
        finally:
            self.assertEqual(server.stop()[0], 0)

    def test_stopping_fails_what_waits_between_turns(self):
        server = Server("--ctx", 4096, "--temp", 0, "--turn-ms", 1)
        answers = []
        # So long that none is complete after a few turns, however long these are on a busy machine.
        body = {**LONG, "n": 8}
        threads = [threading.Thread(target=lambda: answers.append(server.post(TEXT, body))) for _ in range(3)]
        for t in threads:
            t.start()
        start = time.time()
        while server.metric("auspex_turns_total") < 3:
            self.assertLess(time.time(), start + 30)
            time.sleep(0.01)
        self.assertEqual(server.stop()[0], 0)
        for t in threads:
            t.join()
        self.assertEqual([a.status for a in answers], [503] * 3)


if __name__ == "__main__":
    unittest.main()
