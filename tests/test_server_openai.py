"""OpenAI's protocols: streams, tool calls, reasoning, reuse of prompts, queue and disconnects. See server_rig.py."""
import json
import math
import os
import re
import resource
import threading
import time
import unittest

from server_rig import BaseServer, Server, call

CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {
    "name": name, "description": "Runs " + name, "parameters": {"type": "object", "properties": {
        "command": {"type": "string"}, "n": {"type": "integer"}, "list": {"type": "array"}}}}}
    for name in ("bash", "read")]
REPLIES = {
    "two at once": "Let me look.\n</think>\n\nI run both.\n\n" +
                   call("bash", command='echo "a\u20ac"\n', n="3") + "\n" + call("read", list='["x", 1]'),
    "no arguments": "</think>\n\n" + call("bash"),
    "plain": "Short thought.\n</think>\n\nHello, world.",
    "broken call": "</think>\n\n<tool_call>\n<function=bash>\n<parameter=command>\nls",
    "opens its thinking": "<think>\nHm.\n</think>\n\nHello.",
    "over the border": "abc STOP</think>\n\nHello",
    "parts of characters": "a \u4e16\u754c \U0001f389 end",
    "in the text": "x</think>\n\nHello world, END of it",
    "signs": "x</think>\n\nif p <r and q < s then END of it",
    "a quoted tag": "x</think>\n\nthe tag <tool_call> is END of it",
}


def user(text, **more):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 200, **more}


def joined(events, i_choice=0):
    """What the chunks of a choice say together: (message, finish_reason), checking their form."""
    message, calls, finish = {"role": None, "content": "", "reasoning_content": ""}, [], None
    for _, chunk in events:
        if chunk == "[DONE]":
            continue
        assert chunk["object"] == "chat.completion.chunk"
        for choice in chunk["choices"]:
            if choice["index"] != i_choice:
                continue
            assert finish is None, "a chunk after the last one"
            finish = choice["finish_reason"]
            for key, value in choice["delta"].items():
                if key == "tool_calls":
                    for one in value:
                        if "id" in one:
                            assert one["index"] == len(calls) and one["type"] == "function"
                            calls.append({**one, "function": dict(one["function"])})
                        else:
                            assert set(one) == {"index", "function"} and set(one["function"]) == {"arguments"}
                            calls[one["index"]]["function"]["arguments"] += one["function"]["arguments"]
                elif key == "role":
                    message[key] = value
                else:
                    message[key] += value or ""
    return message, calls, finish


class Chat(BaseServer):
    def test_an_answer_has_the_members_that_clients_read(self):
        answer = self.ok(self.server.post(CHAT, user("Hello", max_tokens=6)))
        self.assertEqual((answer["object"], answer["model"]), ("chat.completion", "auspex-demo"))
        choice = answer["choices"][0]
        self.assertEqual((choice["index"], choice["finish_reason"]), (0, "length"))
        self.assertEqual(choice["message"]["role"], "assistant")
        usage, timings = answer["usage"], answer["timings"]
        self.assertEqual(usage["completion_tokens"], 6)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 6)
        self.assertEqual(timings["cache_n"] + timings["prompt_n"], usage["prompt_tokens"])

    def test_a_stream_says_what_the_answer_says(self):
        body = user("Hello", max_tokens=12)
        plain = self.ok(self.server.post(CHAT, body))["choices"][0]
        events = self.server.stream(CHAT, {**body, "stream_options": {"include_usage": True}})
        message, calls, finish = joined(events)
        self.assertEqual((message["content"], finish), (plain["message"]["content"], plain["finish_reason"]))
        self.assertEqual(events[0][1]["choices"][0]["delta"], {"role": "assistant", "content": None})
        self.assertEqual(events[-1][1], "[DONE]")
        self.assertEqual(events[-2][1]["choices"], [])
        self.assertEqual(events[-2][1]["usage"]["completion_tokens"], 12)
        self.assertEqual(len({e["id"] for _, e in events[:-1]}), 1)
        self.assertFalse(any("usage" in e for _, e in events[:-2]))

    def test_golden_stream(self):
        # Byte for byte, but for what differs between two requests.
        data = self.server.post(CHAT, {**user("Hello", max_tokens=1), "stream": True}).body
        first = json.loads(data.split("\n\n")[0][6:])
        data = data.replace(first["id"], "ID").replace(str(first["created"]), "0")
        head = '{"id":"ID","object":"chat.completion.chunk","created":0,"model":"auspex-demo",' \
               '"system_fingerprint":"auspex-0.1.0","choices":[{"index":0,"finish_reason":'
        wanted = ['null,"delta":{"role":"assistant","content":null}}]}', 'null,"delta":{"content":"```"}}]}',
                  '"length","delta":{}}],']
        lines = data.split("\n\n")
        self.assertEqual(lines[-2:], ["data: [DONE]", ""])
        for line, end in zip(lines[:-2], wanted, strict=True):
            self.assertEqual(line[:len("data: " + head + end)], "data: " + head + end)

    def test_tokens_of_a_fast_model_are_written_together(self):
        body = {"prompt": "Hello", "max_tokens": 300}
        start = time.time()
        with self.server.open_stream("/v1/completions", body) as s:
            data = b""
            while not data.endswith(b"\r\n0\r\n\r\n"):
                data += s.recv(65536)
        n_gathered = (time.time() - start) / 0.016
        self.assertLessEqual(len(re.findall(rb"\r\n[0-9a-f]+\r\n", data)), n_gathered + 5)
        self.assertLessEqual(data.count(b"data: "), n_gathered + 7)  # one event in each; the end, and [DONE]
        events = self.server.stream("/v1/completions", body)
        self.assertEqual("".join(c["choices"][0]["text"] for _, c in events if c != "[DONE]"),
                         self.ok(self.server.post("/v1/completions", body))["choices"][0]["text"])

    def test_seed_and_several_choices(self):
        body = user("Hello and hello", max_tokens=8, temperature=1.5, seed=7, top_k=0, top_p=1)
        both = self.ok(self.server.post(CHAT, {**body, "n": 2}))
        one, two = (self.ok(self.server.post(CHAT, {**body, "seed": seed}))["choices"][0] for seed in (7, 8))
        self.assertEqual([c["message"]["content"] for c in both["choices"]],
                         [one["message"]["content"], two["message"]["content"]])
        usage, timings = both["usage"], both["timings"]
        self.assertEqual((usage["completion_tokens"], timings["predicted_n"]), (16, 16))
        n_cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.assertGreater(timings["prompt_n"], 1)  # the first choice computes it
        self.assertEqual((timings["cache_n"], timings["prompt_n"]), (n_cached, usage["prompt_tokens"] - n_cached))
        events = self.server.stream(CHAT, {**body, "n": 2})
        self.assertEqual([joined(events, i)[0]["content"] for i in (0, 1)],
                         [c["message"]["content"] for c in both["choices"]])
        for seed in (2**63 - 1, -2**63, 2**53 + 1, 128.0):
            self.ok(self.server.post(CHAT, user("Hello", max_tokens=1, seed=seed)))
        for seed in (2**63, -2**63 - 1, 1e19, 0.5):
            self.refused(400, "invalid_request_error", self.server.post(CHAT, user("Hello", seed=seed)), "seed is")

    def test_a_bias_forbids_and_forces_tokens(self):
        first = self.ok(self.server.post(CHAT, user("Hello", max_tokens=1)))["choices"][0]["message"]["content"]
        token = self.ok(self.server.post("/tokenize", {"content": first}))["tokens"][0]
        other = self.ok(self.server.post(CHAT, user("Hello", max_tokens=1, logit_bias={str(token): -100})))
        self.assertNotEqual(other["choices"][0]["message"]["content"], first)
        letter = self.ok(self.server.post("/tokenize", {"content": "q"}))["tokens"]
        forced = self.ok(self.server.post(CHAT, user("Hello", max_tokens=3, logit_bias={str(letter[0]): 100})))
        self.assertEqual(forced["choices"][0]["message"]["content"], "qqq")

    def test_log_probabilities(self):
        for more in ({"temperature": 0}, {"temperature": 1.5, "seed": 3, "top_k": 0, "top_p": 1}):
            plain = user("Hello", max_tokens=8, **more)
            body = {**plain, "logprobs": True, "top_logprobs": 3}
            said = self.ok(self.server.post(CHAT, plain))["choices"][0]
            choice = self.ok(self.server.post(CHAT, body))["choices"][0]
            self.assertIsNone(said["logprobs"])
            self.assertEqual(choice["message"], said["message"])
            tokens = choice["logprobs"]["content"]
            self.assertEqual(len(tokens), 8)
            self.assertIn(said["message"]["content"].encode(), b"".join(bytes(t["bytes"]) for t in tokens))
            for t in tokens:
                top = [other["logprob"] for other in t["top_logprobs"]]
                self.assertEqual((len(top), top), (3, sorted(top, reverse=True)))
                self.assertLessEqual(sum(math.exp(x) for x in top), 1 + 1e-9)
                self.assertLessEqual(t["logprob"], top[0])
                if t["id"] == t["top_logprobs"][0]["id"]:
                    self.assertEqual(t["logprob"], top[0])
            chunks = [c["choices"][0] for _, c in self.server.stream(CHAT, body) if c != "[DONE]"]
            streamed = [t for c in chunks for t in (c.get("logprobs") or {"content": []})["content"]]
            self.assertEqual(streamed, tokens)
        for wrong in ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": "yes"}):
            self.refused(400, "invalid_request_error", self.server.post(CHAT, {**plain, **wrong}), "logprobs")

    def test_log_probabilities_of_a_text(self):
        body = {"prompt": "2026-03-14 08:00 Pump-3", "max_tokens": 6, "logprobs": 2}
        choice = self.ok(self.server.post("/v1/completions", body))["choices"][0]
        tokens = choice["logprobs"]["tokens"]
        self.assertEqual("".join(tokens), choice["text"])
        self.assertEqual(choice["logprobs"]["text_offset"], [len("".join(tokens[:i])) for i in range(6)])
        for value, top in zip(choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"], strict=True):
            self.assertEqual((len(top), value), (2, max(top.values())))
        more = self.ok(self.server.post("/v1/completions", {**body, "logprobs": 20}))["choices"][0]
        for top in more["logprobs"]["top_logprobs"]:
            whole = sum(math.exp(x) for x in top.values())  # of a log's next token, twenty are nearly all
            self.assertTrue(0.999 < whole <= 1 + 1e-9, whole)
        chunks = [c["choices"][0]["logprobs"] for _, c in self.server.stream("/v1/completions", body) if c != "[DONE]"]
        for key in ("tokens", "token_logprobs", "text_offset"):
            self.assertEqual([x for c in chunks if c for x in c[key]], choice["logprobs"][key])

    def test_the_same_question_again_is_not_computed_again(self):
        system = {"role": "system", "content": "pump valve sensor " * 60}
        body = {"messages": [system, {"role": "user", "content": "one"}], "max_tokens": 2}
        first = self.ok(self.server.post(CHAT, body))["usage"]
        body["messages"][1]["content"] = "two"
        second = self.ok(self.server.post(CHAT, body))["usage"]
        self.assertGreater(first["prompt_tokens"], 180)
        self.assertLess(second["prompt_tokens"] - second["prompt_tokens_details"]["cached_tokens"], 40)

    def test_a_side_request_evicts_nothing(self):
        def ask(system, question):
            messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
            usage = self.ok(self.server.post(CHAT, {"messages": messages, "max_tokens": 2}))["usage"]
            return usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        ask("alpha beta gamma " * 60, "first")
        for i in range(5):
            ask("Write a title.", f"conversation {i}")
        self.assertLess(ask("alpha beta gamma " * 60, "second"), 40)

    def test_context_overflow_says_what_agents_read(self):
        answer = self.server.post(CHAT, user("word " * 3000))
        self.assertEqual(answer.status, 400)
        error = answer.json["error"]
        self.assertEqual((error["type"], error["n_ctx"]), ("exceed_context_size_error", 2048))
        self.assertGreater(error["n_prompt_tokens"], 3000)
        counted = self.ok(self.server.post("/v1/chat/completions/input_tokens", user("word " * 3000)))
        self.assertEqual(counted["input_tokens"], error["n_prompt_tokens"])

    def test_the_context_fills_up(self):
        prompt = "word " * 1950
        answer = self.ok(self.server.post("/v1/completions", {"prompt": prompt, "max_tokens": 500}))
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        self.assertEqual(answer["usage"]["total_tokens"], 2048)

    def test_two_clients_at_once_get_their_own_answers(self):
        bodies = [user(f"Number {i}", max_tokens=20) for i in range(6)]
        alone = [self.ok(self.server.post(CHAT, b))["choices"][0]["message"] for b in bodies]
        together = [None] * len(bodies)

        def ask(i):
            together[i] = joined(self.server.stream(CHAT, bodies[i]))[0]["content"]
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(together, [m["content"] for m in alone])

    def test_timings_while_it_writes(self):
        events = self.server.stream(CHAT, user("Hello", max_tokens=12, timings_per_token=True))
        counts = [e["timings"]["predicted_n"] for _, e in events[1:-1]]
        self.assertEqual((counts, counts[-1]), (sorted(counts), 12))
        self.assertGreater(events[-2][1]["timings"]["predicted_ms"], events[1][1]["timings"]["predicted_ms"])
        self.assertFalse(any("timings" in e for _, e in self.server.stream(CHAT, user("Hello", max_tokens=3))[:-2]))
        events = self.server.stream(CHAT, user("Hello", max_tokens=12, timings_per_token=True,
                                               stream_options={"include_usage": True}))
        self.assertTrue(all("timings" in e for _, e in events[:-1]), events)
        self.assertEqual(events[-3][1]["timings"]["predicted_n"], 12)

    def test_fields_of_old_clients_are_refused_by_name(self):
        self.refused(400, "not_supported_error", self.server.post(CHAT, user("x", functions=[{"name": "f"}])), "tools")

    def test_requests_of_open_webui(self):
        """Those that its source sends: it is in neither of the registries that other clients are tested from."""
        headers = {"Authorization": "Bearer none", "Content-Type": "application/json", "X-OpenWebUI-User-Id": "1",
                   "User-Agent": "Python/3.11 aiohttp/3.12"}
        model = self.ok(self.server.get("/v1/models", headers=headers))["data"][0]
        self.assertNotIn(None, model.values())
        self.assertEqual(self.ok(self.server.post(CHAT, {
            "model": model["id"], "stream": False, "max_completion_tokens": 8, "messages": [
                {"role": "user", "content": "### Task:\nGenerate a concise title."}]}, headers=headers))["object"],
            "chat.completion")
        answered = "<details type=\"reasoning\" done=\"true\" duration=\"1\">\n> Hm.\n</details>\nYes."
        body = {"model": model["id"], "max_tokens": 8, "stream_options": {"include_usage": True}, "messages": [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Are you there?"},
            {"role": "assistant", "content": answered},
            {"role": "user", "content": [{"type": "text", "text": "Good."}]}],
            "chat_id": "c", "session_id": "s", "id": "i", "features": {"web_search": False}, "variables": {},
            "background_tasks": {"title_generation": True}, "params": {}, "tool_ids": [], "tool_servers": []}
        events = self.server.stream(CHAT, body, headers=headers)
        self.assertTrue(joined(events)[0]["content"])
        self.assertEqual(events[-2][1]["usage"]["completion_tokens"], 8)
        for path in ("/api/tags", "/api/version", "/v1/api/tags", "/openai/models"):  # another kind of connection
            self.refused(404, "not_found_error", self.server.get(path, headers=headers), path)
        browser = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST",
                   "Access-Control-Request-Headers": "authorization,content-type"}  # a direct connection
        asked = self.server.request("OPTIONS", CHAT, headers=browser)
        self.assertEqual((asked.status, asked.headers["access-control-allow-headers"]),
                         (200, browser["Access-Control-Request-Headers"]))
        answer = self.server.post(CHAT, body, headers={**headers, "Origin": "http://localhost:3000"})
        self.assertEqual(answer.headers["access-control-allow-origin"], "http://localhost:3000")

    def test_completions(self):
        answer = self.ok(self.server.post("/v1/completions", {"prompt": "2026-03-14 08:00 Pump-3", "max_tokens": 8}))
        text = answer["choices"][0]["text"]
        self.assertTrue(text.startswith(" status=nominal"))
        events = self.server.stream("/v1/completions", {"prompt": "2026-03-14 08:00 Pump-3", "max_tokens": 8})
        self.assertEqual("".join(e["choices"][0]["text"] for _, e in events[:-1]), text)
        ids = self.ok(self.server.post("/tokenize", {"content": "2026-03-14 08:00 Pump-3"}))["tokens"]
        same = self.ok(self.server.post("/completion", {"prompt": ids, "n_predict": 8}))
        self.assertEqual((same["content"], same["stop_type"]), (text, "limit"))
        for limit, n in (({}, 16), ({"max_tokens": None}, 16), ({"max_tokens": -1}, 48), ({"n_predict": -1}, 48)):
            usage = self.ok(self.server.post("/v1/completions", {"prompt": [65] * 2000, **limit}))["usage"]
            self.assertEqual(usage["completion_tokens"], n, limit)
        for prompt in ("", [], [8192], [-1], 3, None, [1, "a"]):
            self.refused(400, "invalid_request_error", self.server.post("/v1/completions", {"prompt": prompt}))
        for prompt in (["a", "b"], [[1], [2]]):
            self.refused(400, "not_supported_error", self.server.post("/v1/completions", {"prompt": prompt}),
                         "a list of 2 prompts, expected one")

    def test_bytes_that_are_part_of_no_character_are_counted_as_shown(self):
        pieces = self.ok(self.server.post("/tokenize", {"content": "\u4e16", "with_pieces": True}))["tokens"]
        last = pieces[-1]
        self.assertEqual(last["piece"], [0x96])
        choice = self.ok(self.server.post("/v1/completions", {
            "prompt": "Hello", "max_tokens": 3, "logprobs": 0, "logit_bias": {str(last["id"]): 100}}))
        choice = choice["choices"][0]
        self.assertEqual(choice["text"], "\ufffd\ufffd\ufffd")
        self.assertEqual(choice["logprobs"]["tokens"], ["bytes:\\x96"] * 3)
        self.assertEqual(choice["logprobs"]["text_offset"], [0, 1, 2])


class Leaving(BaseServer):
    """Clients that close their connection while they are served."""
    OPTIONS = ("--ctx", "4096", "--temp", "0")
    PROMPT = {"prompt": "pump valve sensor " * 800, "max_tokens": 4, "temperature": 0}

    def leave(self, path, body, n_token):
        """Leaves once so many tokens were read, waits until the model is idle, and returns how many were read."""
        data, n_read = b"", 0
        with self.server.open_stream(path, {**body, "timings_per_token": True}) as s:
            while n_read < n_token:
                part = s.recv(65536)
                self.assertTrue(part, "the reply ended early")
                data += part
                n_read = max([0, *map(int, re.findall(rb'"predicted_n":(\d+)', data))])
            for _ in range(500):
                if self.server.get("/slots").json[0]["is_processing"]:
                    break
                time.sleep(0.002)
        self.server.wait_idle()
        return n_read

    def test_in_the_middle_of_a_reply(self):
        question = user("Hello", max_tokens=40)
        before = self.ok(self.server.post(CHAT, question))["choices"]
        n_before = self.server.metric("llamacpp:tokens_predicted_total")
        start = time.monotonic()
        no_end = {"8187": -100, "8189": -100}  # <|endoftext|>, <|im_end|>
        n_read = self.leave(CHAT, user("word", max_tokens=4000, temperature=2, seed=1, logit_bias=no_end), 100)
        per_second = n_read / (time.monotonic() - start)
        n_more = self.server.metric("llamacpp:tokens_predicted_total") - n_before - n_read
        # What is written waits up to 16 ms, and it takes up to 20 until a client is missed.
        self.assertLess(n_more, max(100, per_second), "tokens after the client had left")
        self.assertEqual(self.ok(self.server.post(CHAT, question))["choices"], before)

    def test_in_the_middle_of_a_prompt(self):
        n_before = self.server.metric("llamacpp:prompt_tokens_total")
        self.leave("/v1/completions", self.PROMPT, 0)
        n_left = self.server.metric("llamacpp:prompt_tokens_total") - n_before
        again = self.ok(self.server.post("/v1/completions", self.PROMPT))
        other = Server(*self.OPTIONS)
        try:
            alone = self.ok(other.post("/v1/completions", self.PROMPT))
        finally:
            self.assertEqual(other.stop()[0], 0)
        # What was computed until the client was missed is kept.
        n_prompt = again["usage"]["prompt_tokens"]
        n_cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertLess(n_cached, n_prompt * 3 / 4)
        self.assertGreaterEqual(n_left, n_cached, "rows that were computed for the client that left")
        self.assertEqual(again["choices"], alone["choices"])

    def test_while_it_waits(self):
        with self.server.open_stream("/v1/completions", {**self.PROMPT, "prompt": "x " + self.PROMPT["prompt"]}):
            for _ in range(3):
                self.server.open_stream("/v1/completions", self.PROMPT).close()
        self.server.wait_idle()
        self.ok(self.server.post(CHAT, user("Hello", max_tokens=1)))


class Tools(BaseServer):
    SCRIPT = REPLIES

    def both(self, text, **more):
        """The answer's message and finish_reason, after checking that a stream says the same."""
        body = user(text, tools=TOOLS, **more)
        choice = self.ok(self.server.post(CHAT, body))["choices"][0]
        message = choice["message"]
        said, calls, finish = joined(self.server.stream(CHAT, body))
        self.assertEqual(finish, choice["finish_reason"])
        self.assertEqual(said["content"], message["content"] or "")
        self.assertEqual(said["reasoning_content"], message.get("reasoning_content", ""))
        self.assertEqual([c["function"] for c in calls], [c["function"] for c in message.get("tool_calls", [])])
        return message, finish

    def test_reasoning_text_and_two_parallel_calls(self):
        message, finish = self.both("two at once")
        self.assertEqual(finish, "tool_calls")
        self.assertEqual((message["reasoning_content"], message["content"]), ("Let me look.", "I run both."))
        calls = [c["function"] for c in message["tool_calls"]]
        self.assertEqual([c["name"] for c in calls], ["bash", "read"])
        self.assertEqual([json.loads(c["arguments"]) for c in calls],
                         [{"command": 'echo "a\u20ac"\n', "n": 3}, {"list": ["x", 1]}])
        self.assertEqual(len({c["id"] for c in message["tool_calls"]}), 2)

    def test_a_call_without_arguments_has_an_empty_object(self):
        message, finish = self.both("no arguments")
        self.assertEqual((message["content"], finish), (None, "tool_calls"))
        self.assertEqual(json.loads(message["tool_calls"][0]["function"]["arguments"]), {})

    def test_a_call_that_was_cut_is_text(self):
        message, finish = self.both("broken call")
        self.assertEqual(finish, "stop")
        self.assertNotIn("tool_calls", message)
        self.assertIn("<function=bash>", message["content"])

    def test_a_call_that_the_limit_cut_has_its_beginning(self):
        """Nothing constrains these calls, as where a schema cannot be used. Their tags once were text."""
        whole = [c["function"] for c in self.both("two at once")[0]["tool_calls"]]
        n_call, longest = set(), 0
        for n in range(12, 100, 3):
            message, finish = self.both("two at once", max_tokens=n)
            if finish != "length":
                break
            self.assertNotIn("<", message["content"] or "")
            calls = [c["function"] for c in message.get("tool_calls", [])]
            n_call.add(len(calls))
            for i, one in enumerate(calls):
                self.assertEqual(one["name"], whole[i]["name"])
                self.assertTrue(whole[i]["arguments"].startswith(one["arguments"]), one)
            longest = max(longest, len(calls[0]["arguments"]) if len(calls) == 1 else 0)
        self.assertEqual(n_call, {0, 1, 2})
        self.assertGreater(longest, len('{"command": '))

    def test_text_that_a_stop_string_held_back_is_shown_where_the_limit_cuts(self):
        """All from its first "<" once was lost."""
        for text, stop in (("signs", "<r and q < s then STOP"), ("a quoted tag", "<tool_call> is STOP")):
            whole, shown = REPLIES[text].split("\n\n")[1], []
            for n in range(4, 99):
                message, finish = self.both(text, stop=[stop], max_tokens=n)
                shown.append(message["content"] or "")
                if finish != "length":
                    break
            for before, after in zip(shown, shown[1:]):
                self.assertTrue(whole.startswith(after) and after.startswith(before), shown)
            self.assertEqual(shown[-1], whole)
            self.assertIn(whole[:-len(" END of it")], shown)

    def test_tokens_of_the_thinking(self):
        """Without the tag that closes it, whoever wrote that."""
        for text, thinking in (("plain", "Short thought."), ("no arguments", ""), ("two at once", "Let me look.")):
            usage = self.ok(self.server.post(CHAT, user(text, tools=TOOLS)))["usage"]
            tokens = self.ok(self.server.post("/tokenize", {"content": thinking}))["tokens"]
            self.assertEqual(usage["completion_tokens_details"], {"reasoning_tokens": len(tokens)}, text)
        for n in (1, 5, 9):
            usage = self.ok(self.server.post(CHAT, user("Pump", thinking_budget_tokens=n, max_tokens=n + 20)))["usage"]
            self.assertEqual(usage["completion_tokens_details"], {"reasoning_tokens": n})

    def test_a_call_that_was_cut_is_taken_back(self):
        """Its client sends it as it got it; the conversation must go on all the same."""
        for arguments, shown in (('{"command": "ls', '<parameter=arguments>\n{"command": "ls\n'), ('"x"', '"x"'),
                                 ("", ""), ("[1]", "[1]"), ('{"n": 3}', "<parameter=n>\n3\n")):
            calls = [{"id": "a", "type": "function", "function": {"name": "bash", "arguments": arguments}}]
            messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": calls},
                        {"role": "tool", "tool_call_id": "a", "content": "no JSON"}]
            prompt = self.ok(self.server.post("/apply-template", {"messages": messages, "tools": TOOLS}))["prompt"]
            self.assertIn(shown, prompt.split("<function=bash>")[-1])

    def test_stop_strings_end_the_text_across_tokens(self):
        message, finish = self.both("in the text", stop=["world, E", "END"])
        self.assertEqual((message["content"], finish), ("Hello ", "stop"))
        for stop in ("never", "ENDE", "of it."):
            message, _ = self.both("in the text", stop=[stop])
            self.assertEqual(message["content"], "Hello world, END of it")

    def test_stop_strings_are_not_looked_for_in_thinking_and_calls(self):
        """They would cut the reply before its answer, or leave a call with a part of its arguments."""
        for stop in ("STOP", "STOP</thi", "</think>", "\n\n"):
            message, _ = self.both("over the border", stop=[stop])
            self.assertEqual((message["reasoning_content"], message["content"]), ("abc STOP", "Hello"), stop)
        for stop in ("[", "<parameter", "\n", "bash", "}"):
            message, finish = self.both("two at once", stop=[stop])
            self.assertEqual((message["content"], finish), ("I run both.", "tool_calls"), stop)
            self.assertEqual([json.loads(c["function"]["arguments"]) for c in message["tool_calls"]],
                             [{"command": 'echo "a\u20ac"\n', "n": 3}, {"list": ["x", 1]}], stop)
        message, finish = self.both("two at once", stop=["both"])
        self.assertEqual((message["content"], finish), ("I run ", "stop"))
        self.assertNotIn("tool_calls", message)

    def test_log_probabilities_of_parts_of_characters(self):
        """Their names differ, and places in the text are counted in characters."""
        names = []

        def members(pairs):
            names.append([name for name, _ in pairs])
            return dict(pairs)
        body = {"prompt": "parts of characters", "max_tokens": 50, "logprobs": 20}
        answer = self.server.post("/v1/completions", body).body
        choice = json.loads(answer, object_pairs_hook=members)["choices"][0]
        for one in names:
            self.assertEqual(len(one), len(set(one)), one)
        logprobs, text = choice["logprobs"], b""
        self.assertIn("bytes:\\xe4", logprobs["tokens"])
        for token, at in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
            self.assertEqual(at, len(text.decode(errors="ignore")), logprobs)
            parts = re.fullmatch(r"bytes:((\\x[0-9a-f]{2})+)", token)
            text += bytes.fromhex(parts[1].replace("\\x", "")) if parts else token.encode()
        self.assertEqual(text.decode(), choice["text"])
        self.assertEqual(choice["text"], REPLIES["parts of characters"])
        chunks = [c["choices"][0]["logprobs"] for _, c in self.server.stream("/v1/completions", body) if c != "[DONE]"]
        for key in ("tokens", "text_offset"):
            self.assertEqual([x for c in chunks if c for x in c[key]], logprobs[key])

    def test_stop_strings_of_a_text_are_looked_for_in_all_of_it(self):
        body = {"prompt": "over the border", "stop": ["STOP</thi"]}
        self.assertEqual(self.ok(self.server.post("/completion", body))["stopping_word"], "STOP</thi")
        choice = self.ok(self.server.post("/v1/completions", {**body, "max_tokens": 50}))["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"]), ("abc ", "stop"))

    def test_log_probabilities_are_those_of_the_answer(self):
        """No token of thinking has one, nor that with which the model opens its thinking by itself."""
        body = user("opens its thinking", logprobs=True, chat_template_kwargs={"enable_thinking": False})
        for more in ({}, {"thinking_budget_tokens": 0}):
            choice = self.ok(self.server.post(CHAT, {**body, **more}))["choices"][0]
            self.assertNotIn("<think>", [t["token"] for t in choice["logprobs"]["content"]], more)
            if not more:
                self.assertEqual(choice["message"]["reasoning_content"], "Hm.")
                said = b"".join(bytes(t["bytes"]) for t in choice["logprobs"]["content"])
                self.assertEqual(said.strip(), b"Hello.")

    def test_thinking_can_be_switched_off(self):
        for more in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
            prompt = self.ok(self.server.post("/apply-template", user("x", **more)))["prompt"]
            self.assertTrue(prompt.endswith("<think>\n\n</think>\n\n"), prompt)
        prompt = self.ok(self.server.post("/apply-template", user("x")))["prompt"]
        self.assertTrue(prompt.endswith("<think>\n"), prompt)

    def test_a_thinking_budget_closes_the_thinking(self):
        body = {"messages": [{"role": "user", "content": "Pump"}], "max_tokens": 30, "thinking_budget_tokens": 5}
        message = self.ok(self.server.post(CHAT, body))["choices"][0]["message"]
        tokens = self.ok(self.server.post("/tokenize", {"content": message.get("reasoning_content", "")}))["tokens"]
        self.assertLessEqual(len(tokens), 6)
        self.assertTrue(message["content"])

    def test_system_messages_go_to_the_front(self):
        messages = [{"role": "developer", "content": "one"}, {"role": "system", "content": [{"text": "two"}]},
                    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                    {"role": "system", "content": "later"}]
        prompt = self.ok(self.server.post("/apply-template", {"messages": messages}))["prompt"]
        self.assertIn("<|im_start|>system\none\n\ntwo<|im_end|>\n<|im_start|>user\nab<|im_end|>\n"
                      "<|im_start|>user\n<system>\nlater\n</system><|im_end|>\n", prompt)

    def test_joining_many_messages_takes_linear_time(self):
        """Copying what was joined before each of them once took half a minute here."""
        many, text = 150000, "The pump and the valve"
        body = {"messages": [{"role": "system", "content": text}] * many + user("x")["messages"]}
        prompt = self.ok(self.server.post("/apply-template", body, timeout=20))["prompt"]
        self.assertEqual(prompt.count(text), many)
        body = {"input": user("x")["messages"] + [{"role": "assistant", "content": text}] * many}
        count = self.ok(self.server.post("/v1/responses/input_tokens", body, timeout=20))["input_tokens"]
        self.assertGreater(count, 3 * many)


class ToolLoop(BaseServer):
    """Twenty steps of a tool loop: each computes the rows that were appended, no more."""
    OPTIONS = ("--ctx", "8192", "--temp", "0")
    SCRIPT = {"begin": "First.\n</think>\n\n" + call("bash", command="step 0"),
              **{f"result {i}\n": f"Thought {i}.\n</think>\n\n" + call("bash", command=f"step {i + 1}")
                 for i in range(20)}}

    def test_each_step_computes_what_was_appended(self):
        self.run_loop(lambda message: message)

    def test_a_client_that_drops_the_thinking_costs_no_more(self):
        for dropped in ({}, {"reasoning_content": ""}, {"reasoning_content": None}):
            self.run_loop(lambda m: {**{k: v for k, v in m.items() if k != "reasoning_content"}, **dropped}, 4)

    def test_the_last_piece_of_a_streamed_thinking_is_completed(self):
        """openai-node's stream() replaces fields that it does not know with each chunk."""
        self.run_loop(lambda m: {**m, "reasoning_content": m["reasoning_content"][-2:]}, 4)

    def run_loop(self, sent_back, n_step=20):
        messages = [{"role": "system", "content": "You use tools. " * 30}, {"role": "user", "content": "begin"}]
        n_before = 0
        for i in range(n_step):
            answer = self.ok(self.server.post(CHAT, {"messages": messages, "tools": TOOLS}))
            message, usage = answer["choices"][0]["message"], answer["usage"]
            self.assertEqual(json.loads(message["tool_calls"][0]["function"]["arguments"]), {"command": f"step {i}"})
            n_computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
            if i:
                # The template ends the turn after the reply, which the model did not say; the prompt holds the result.
                n_appended = usage["prompt_tokens"] - n_before
                self.assertLessEqual(n_computed, n_appended + 3, answer["timings"]["reuse"])
            n_before = usage["prompt_tokens"] + usage["completion_tokens"]
            messages += [sent_back(message), {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"],
                                   "content": f"result {i}\n" + "x" * 60}]


class LostDevice(BaseServer):
    """A device that is lost in the middle of a reply. What the model says after it is computed on the new one."""
    TEXT = "The pump was stopped and the valve was closed before the sensor was read again."
    SCRIPT = {"lose it": {"reply": "</think>\n\n" + TEXT, "lose_device": True}, "keep it": "</think>\n\n" + TEXT}

    def ask(self, question):
        events = self.server.stream(CHAT, user(question, logprobs=True, top_logprobs=2))
        chunks = [c["choices"][0] for _, c in events if c != "[DONE]"]
        tokens = [t for c in chunks for t in (c.get("logprobs") or {"content": []})["content"]]
        return joined(events)[0]["content"], tokens

    def check(self):
        text, tokens = self.ask("keep it")
        lost, again = self.ask("lose it")
        self.assertEqual((text, lost), (self.TEXT, self.TEXT))
        self.assertEqual([t["id"] for t in again], [t["id"] for t in tokens])
        self.assertGreater(len(again), 10)
        self.assertEqual(self.ask("keep it"), (text, tokens))
        self.assertEqual(self.ask("lose it"), (lost, again))
        self.ok(self.server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 4}))

    def test_a_reply_goes_on_where_the_device_was_lost(self):
        self.check()

    def test_without_memory_for_two_models_the_history_is_computed_again(self):
        pid = self.server.process.pid
        with open(f"/proc/{pid}/statm") as f:
            in_use = int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.prlimit(pid, resource.RLIMIT_AS, (in_use + (64 << 20), resource.RLIM_INFINITY))
        try:
            self.assertEqual(self.ask("lose it")[0], self.TEXT)
        finally:
            resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self.check()


class Queue(unittest.TestCase):
    def test_a_full_queue_refuses(self):
        body = {"prompt": "Hello", "max_tokens": 1900, "temperature": 2, "seed": 1}
        for n_waiting in (0, 1):
            server = Server("--ctx", 2048, "--queue", n_waiting)
            try:
                streams = [server.open_stream("/v1/completions", body) for _ in range(4)]
                time.sleep(0.2)
                heads = [s.recv(12) for s in streams]
                self.assertEqual(heads.count(b"HTTP/1.1 503"), 3 - n_waiting, heads)
                for s in streams:
                    s.close()
                server.wait_idle()
                self.assertEqual(server.post(CHAT, user("Hello", max_tokens=2)).status, 200)
            finally:
                self.assertEqual(server.stop()[0], 0)


if __name__ == "__main__":
    unittest.main()
