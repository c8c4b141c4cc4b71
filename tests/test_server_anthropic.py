"""Anthropic's protocol: messages, their stream, tokens counted. See server_rig.py."""
import json
import unittest

from server_rig import BaseServer, call

MESSAGES = "/v1/messages"
TOOLS = [{"name": "bash", "description": "Runs a command", "input_schema": {
    "type": "object", "properties": {"command": {"type": "string"}, "n": {"type": "integer"}}}},
    {"type": "web_search_20250305", "name": "web_search"}]
SYSTEM = "You help. " * 80


def ask(text, **more):
    return {"model": "any", "max_tokens": 200, "messages": [{"role": "user", "content": text}], **more}


def assembled(events):
    """The message that the events build, as a client does it, checking their order."""
    assert events[0][0] == "message_start" and events[-1][0] == "message_stop", events
    message, opened = dict(events[0][1]["message"]), None
    assert message["usage"]["input_tokens"] > 0 and message["content"] == []
    for name, data in events[1:-1]:
        assert data["type"] == name
        if name == "content_block_start":
            assert opened is None and data["index"] == len(message["content"])
            opened = data["index"]
            message["content"].append(dict(data["content_block"], partial=""))
        elif name == "content_block_delta":
            assert data["index"] == opened
            block, delta = message["content"][opened], data["delta"]
            kind = {"thinking_delta": "thinking", "text_delta": "text", "input_json_delta": "partial",
                    "signature_delta": "signature"}[delta["type"]]
            block[kind] += delta["partial_json" if kind == "partial" else kind]
        elif name == "content_block_stop":
            block = message["content"][opened]
            if block["type"] == "tool_use":
                block["input"] = json.loads(block["partial"])
            del block["partial"]
            opened = None
        else:
            assert name == "message_delta" and opened is None
            message.update(data["delta"])
            message["usage"] = data["usage"]
    return message


class Golden(BaseServer):
    def test_stream(self):
        """Byte for byte, but for the id."""
        data = self.server.post(MESSAGES, {**ask("Hello", max_tokens=1), "stream": True}).body
        first = json.loads(data.split("\n")[1][6:])
        usage = '"usage":{"input_tokens":15,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,' \
                '"output_tokens":'
        delta = '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":'
        wanted = [
            '{"type":"message_start","message":{"id":"ID","type":"message","role":"assistant","model":"auspex-demo",'
            '"content":[],"stop_reason":null,"stop_sequence":null,' + usage + "0}}}",
            '{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}',
            delta + '"```"}}', '{"type":"content_block_stop","index":0}',
            '{"type":"message_delta","delta":{"stop_reason":"max_tokens","stop_sequence":null},' + usage + "1}}",
            '{"type":"message_stop"}']
        events = [f"event: {json.loads(line)['type']}\ndata: {line}\n\n" for line in wanted]
        self.assertEqual(data.replace(first["message"]["id"], "ID"), "".join(events))


class Messages(BaseServer):
    SCRIPT = {
        "two calls": "I think.\n</think>\n\nBoth.\n\n" + call("bash", command="ls\n", n="3") + "\n" + call("bash"),
        "plain": "Short.\n</think>\n\nHello, END of it.",
        "text between": call("bash") + "\n\nBetween.\n\n" + call("bash", n="3") + "\nAfter.",
        "result": "</think>\n\nDone.",
        "The level is": " 42 m.",
    }

    def refused(self, status, kind, answer, *words):
        """An error in Anthropic's form."""
        self.assertEqual(answer.status, status, answer.body)
        self.assertEqual((answer.json["type"], answer.json["error"]["type"]), ("error", kind))
        for word in words:
            self.assertIn(str(word), answer.json["error"]["message"])

    def both(self, body):
        """The answer, after checking that a stream builds the same."""
        answer = self.ok(self.server.post(MESSAGES, body))
        streamed = assembled(self.server.stream(MESSAGES, body))

        def comparable(message):
            content = [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
            return content, message["stop_reason"], message["stop_sequence"], message["usage"]["output_tokens"]
        self.assertEqual(comparable(streamed), comparable(answer))
        return answer

    def test_thinking_text_and_two_calls(self):
        message = self.both(ask("two calls", tools=TOOLS))
        self.assertEqual([b["type"] for b in message["content"]], ["thinking", "text", "tool_use", "tool_use"])
        self.assertEqual(message["content"][0], {"type": "thinking", "thinking": "I think.", "signature": ""})
        self.assertEqual([b["input"] for b in message["content"][2:]], [{"command": "ls\n", "n": 3}, {}])
        self.assertEqual(message["stop_reason"], "tool_use")

    def test_blocks_come_in_the_order_of_the_reply(self):
        message = self.both(ask("text between", tools=TOOLS, thinking={"type": "disabled"}))
        self.assertEqual([b.get("text", b["type"]).strip() for b in message["content"]],
                         ["tool_use", "Between.", "tool_use", "After."])
        self.assertEqual([b["input"] for b in message["content"][::2]], [{}, {"n": 3}])

    def test_stop_sequences_and_lengths(self):
        message = self.both(ask("plain", stop_sequences=["never", "END"]))
        self.assertEqual((message["stop_reason"], message["stop_sequence"]), ("stop_sequence", "END"))
        message = self.both(ask("two calls", tools=TOOLS, stop_sequences=["think", "ls", "</parameter>"]))
        self.assertEqual([b["input"] for b in message["content"][2:]], [{"command": "ls\n", "n": 3}, {}])
        self.assertEqual((message["stop_reason"], message["stop_sequence"]), ("tool_use", None))
        self.assertEqual(self.both(ask("plain", max_tokens=3))["stop_reason"], "max_tokens")
        self.assertEqual(self.both(ask("plain"))["stop_reason"], "end_turn")

    def test_a_tool_round_continues_the_prompt(self):
        body = ask("two calls", tools=TOOLS, system=[{"type": "text", "text": SYSTEM,
                                                      "cache_control": {"type": "ephemeral"}}])
        first = self.ok(self.server.post(MESSAGES, body))
        results = [{"type": "tool_result", "tool_use_id": b["id"], "content": c}
                   for b, c in zip(first["content"][2:], ["result one", [{"type": "text", "text": "result two"}]])]
        body["messages"] += [{"role": "assistant", "content": first["content"]},
                             {"role": "user", "content": [*results, {"type": "text", "text": "go on"}]}]
        second = self.ok(self.server.post(MESSAGES, body))
        self.assertEqual(second["content"][-1]["text"], "Done.")
        self.assertGreater(second["usage"]["cache_read_input_tokens"], 150)
        self.assertLess(second["usage"]["input_tokens"], 150)

    def test_all_thinking_of_a_message_is_kept(self):
        def rows(*blocks):
            body = ask("two calls", tools=TOOLS)
            body["messages"] += [{"role": "assistant", "content": [
                *({"type": "thinking", "thinking": b, "signature": ""} for b in blocks),
                {"type": "tool_use", "id": "toolu_1", "name": "shell", "input": {"command": "ls"}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a"}]}]
            return self.ok(self.server.post(MESSAGES + "/count_tokens", body))["input_tokens"]
        self.assertEqual(rows("first " * 50, "second " * 50), rows("first " * 50 + "\n\n" + "second " * 50))

    def test_the_billing_header_does_not_change_the_prompt(self):
        usages = []
        for i in range(2):
            header = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={i}{i}{i};"}
            body = ask("Say hello", max_tokens=2, system=[header, {"type": "text", "text": SYSTEM + "Be kind."}])
            usages.append(self.ok(self.server.post(MESSAGES, body))["usage"])
        self.assertGreater(usages[0]["input_tokens"], 150)
        self.assertLess(usages[1]["input_tokens"], 30)

    def test_count_tokens_and_overflow(self):
        body = ask("word " * 3000)
        del body["max_tokens"]
        counted = self.ok(self.server.post(MESSAGES + "/count_tokens?beta=true", body))["input_tokens"]
        self.refused(400, "invalid_request_error", self.server.post(MESSAGES, body),
                     f"prompt is too long: {counted} tokens > 2048 maximum")

    def test_a_reply_that_is_begun_is_continued(self):
        body = ask("How much?")
        body["messages"].append({"role": "assistant", "content": [{"type": "text", "text": "The level is"}]})
        self.assertEqual(self.both(body)["content"], [{"type": "text", "text": " 42 m."}])
        no_think = {"chat_template_kwargs": {"enable_thinking": False}}
        prompt = self.ok(self.server.post("/apply-template", {"messages": body["messages"][:1], **no_think}))["prompt"]
        n = len(self.ok(self.server.post("/tokenize", {"content": prompt + "The level is"}))["tokens"])
        self.assertEqual(self.ok(self.server.post(MESSAGES + "/count_tokens", body))["input_tokens"], n)
        form = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
        self.refused(400, "invalid_request_error", self.server.post(MESSAGES, {**body, "output_config": form}),
                     "the last message is the assistant's")

    def test_an_empty_reply_that_is_begun_is_continued(self):
        """It was closed, and another one was begun after it."""
        no_think = {"chat_template_kwargs": {"enable_thinking": False}}
        user = ask("plain")["messages"]
        prompt = self.ok(self.server.post("/apply-template", {"messages": user, **no_think}))["prompt"]
        n = len(self.ok(self.server.post("/tokenize", {"content": prompt}))["tokens"])
        for content in ("", [], [{"type": "text", "text": ""}],
                        [{"type": "thinking", "thinking": "I think.", "signature": ""}]):
            body = {**ask("plain"), "messages": [*user, {"role": "assistant", "content": content}]}
            self.assertEqual(self.ok(self.server.post(MESSAGES + "/count_tokens", body))["input_tokens"], n, content)
        open_thinking = {**body, "chat_template_kwargs": {"enable_thinking": True}}
        self.assertEqual(self.ok(self.server.post(MESSAGES + "/count_tokens", open_thinking))["input_tokens"], n)
        form = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
        self.ok(self.server.post(MESSAGES + "/count_tokens", {**body, "output_config": form}))

    def test_a_system_message_in_the_middle(self):
        body = ask("one")
        body["messages"] += [{"role": "system", "content": "Remember."}, {"role": "user", "content": "plain"}]
        self.assertEqual(self.ok(self.server.post(MESSAGES, body))["content"][-1]["text"], "Hello, END of it.")

    def test_bad_requests(self):
        for more in ({"messages": 3}, {"messages": [3]}, {"messages": [{"role": "robot", "content": "x"}]},
                     {"messages": [{"role": "user"}]}, {"messages": [{"role": "user", "content": [3]}]},
                     {"messages": [{"role": "user", "content": [{"text": "x"}]}]}, {"system": 3}, {"system": [3]},
                     {"tools": [3]}, {"tools": 3}, {"tools": [{"input_schema": 3}]}, {"tool_choice": {"type": "x"}},
                     {"max_tokens": "x"}, {"stop_sequences": [3]}, {"thinking": 3}, {"thinking": {"type": 3}},
                     {"tools": TOOLS, "tool_choice": "any"}, {"tools": TOOLS, "tool_choice": "none"},
                     {"tools": TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": "yes"}},
                     {"output_config": "x"}, {"output_config": {"format": "x"}},
                     {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {}}]}]}):
            self.refused(400, "invalid_request_error", self.server.post(MESSAGES, {**ask("x"), **more}))
        self.refused(400, "invalid_request_error", self.server.post(MESSAGES, "{"), "not JSON")
        blocks = [{"type": "tool_use", "id": "1", "name": "bash", "input": {}},
                  {"type": "tool_result", "tool_use_id": "1"}]
        answer = self.server.post(MESSAGES, {**ask("x"), "messages": [{"role": "assistant", "content": blocks}]})
        self.refused(400, "invalid_request_error", answer, "messages[0].content[1] is a tool_result", "of the user")
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
        answer = self.server.post(MESSAGES, {**ask("x"), "messages": [{"role": "user", "content": [image]}]})
        self.refused(400, "invalid_request_error", answer, "image", "text only")
        # Clients go on without a thread if they are told so in these words, and lose the conversation if they are not.
        for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
            answer = self.server.post(MESSAGES, ask("x", thread=thread))
            self.refused(400, "invalid_request_error", answer, "thread", "whole conversation")
            self.assertEqual(answer.json["error"]["details"],
                             {"error_code": "thread_unsupported_request", "unsupported": ["thread"]})
        self.ok(self.server.post(MESSAGES, ask("plain", thread=None)))


if __name__ == "__main__":
    unittest.main()
