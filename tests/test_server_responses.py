"""/v1/responses: items, events, and conversations continued by id. See server_rig.py."""
import json
import unittest

from server_rig import BaseServer, Server, call, parse_events

RESPONSES = "/v1/responses"
TOOLS = [{"type": "function", "name": "exec", "description": "Runs", "strict": False, "parameters": {
    "type": "object", "properties": {"cmd": {"type": "string"}}}}, {"type": "web_search"},
    {"type": "namespace", "name": "more", "tools": []}]


def items_of(events):
    """The items that the events build, checking their order."""
    assert [name for name, _ in events[:2]] == ["response.created", "response.in_progress"]
    items, text = [], None
    for i, (name, data) in enumerate(events):
        assert data["type"] == name and data["sequence_number"] == i
        if name == "response.output_item.added":
            assert text is None and data["output_index"] == len(items)
            text = ""
            item_id = data["item"]["id"]
        elif name.endswith(".delta"):
            assert data["item_id"] == item_id
            text += data["delta"]
        elif name.endswith("_text.done") or name.endswith("arguments.done"):
            assert text == data.get("text", data.get("arguments"))
        elif name == "response.output_item.done":
            items.append(data["item"])
            text = None
    return items


class Golden(BaseServer):
    OPTIONS = ("--ctx", "2048", "--temp", "0")

    def test_stream(self):
        """Byte for byte, but for ids and the whole responses at the beginning and at the end."""
        data = self.server.post(RESPONSES, {"input": "Hello", "max_output_tokens": 1, "stream": True}).body
        blocks = data.split("\n\n")
        item_id = json.loads(blocks[2].split("\n")[1][6:])["item"]["id"]
        place = '"item_id":"ID","output_index":0,"content_index":0,'
        text = '{"type":"output_text","text":"```","annotations":[],"logprobs":[]}'
        wanted = [("output_item.added", '"output_index":0,"item":{"id":"ID","type":"message","role":"assistant",'
                                        '"status":"in_progress","content":[]}'),
                  ("content_part.added", place + '"part":' + text.replace("```", "")),
                  ("output_text.delta", place + '"delta":"```","logprobs":[]'),
                  ("output_text.done", place + '"text":"```","logprobs":[]'),
                  ("content_part.done", place + '"part":' + text),
                  ("output_item.done", '"output_index":0,"item":{"id":"ID","type":"message","role":"assistant",'
                                       '"status":"incomplete","content":[' + text + "]}")]
        for i, (block, (name, members)) in enumerate(zip(blocks[2:], wanted), 2):
            self.assertEqual(block.replace(item_id, "ID"), f"event: response.{name}\ndata: "
                             f'{{"type":"response.{name}",{members},"sequence_number":{i}}}')
        self.assertEqual([b.split("\n")[0] for b in blocks[:2] + blocks[8:]],
                         ["event: response.created", "event: response.in_progress", "event: response.incomplete", ""])


class Responses(BaseServer):
    SCRIPT = {
        "two calls": "I think.\n</think>\n\nBoth.\n\n" + call("exec", cmd="ls") + "\n" + call("exec", cmd="pwd"),
        "plain": "Short.\n</think>\n\nHello.",
        "output one": "</think>\n\nDone.",
        "and then": "</think>\n\nNothing more.",
    }

    def both(self, **body):
        """The response, after checking that a stream builds the same."""
        answer = self.ok(self.server.post(RESPONSES, body))
        events = self.server.stream(RESPONSES, body)
        last = events[-1][1]["response"]
        self.assertEqual(events[-1][0], "response." + answer["status"])
        self.assertEqual(items_of(events), last["output"])

        def plain(items):
            return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]
        self.assertEqual(plain(last["output"]), plain(answer["output"]))
        self.assertEqual(last["usage"]["output_tokens"], answer["usage"]["output_tokens"])
        return answer

    def test_items(self):
        answer = self.both(input="two calls", tools=TOOLS)
        self.assertEqual([i["type"] for i in answer["output"]],
                         ["reasoning", "message", "function_call", "function_call"])
        self.assertEqual(answer["output"][0]["content"], [{"type": "reasoning_text", "text": "I think."}])
        self.assertEqual(answer["output"][1]["content"][0]["text"], "Both.")
        self.assertEqual([json.loads(i["arguments"]) for i in answer["output"][2:]], [{"cmd": "ls"}, {"cmd": "pwd"}])
        self.assertGreater(answer["usage"]["output_tokens_details"]["reasoning_tokens"], 0)

    def test_a_cut_response_is_incomplete(self):
        answer = self.both(input="plain", max_output_tokens=2)
        self.assertEqual((answer["status"], answer["incomplete_details"]),
                         ("incomplete", {"reason": "max_output_tokens"}))
        whole = self.both(input="plain")
        self.assertEqual(whole["output"][-1]["status"], "completed")
        answer = self.both(input="plain", max_output_tokens=whole["usage"]["output_tokens"] - 1)
        self.assertEqual((answer["output"][-1]["type"], answer["output"][-1]["status"]), ("message", "incomplete"))

    def test_a_tool_round_with_all_items(self):
        first = self.ok(self.server.post(RESPONSES, {"input": "two calls", "tools": TOOLS, "store": False}))
        items = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
                 {"role": "user", "content": "two calls"}, *first["output"],
                 {"type": "local_shell_call", "status": "completed"},
                 *({"type": "function_call_output", "call_id": i["call_id"], "output": "output one"}
                   for i in first["output"] if i["type"] == "function_call")]
        second = self.ok(self.server.post(RESPONSES, {"input": items, "tools": TOOLS, "instructions": "Help."}))
        self.assertEqual(second["output"][-1]["content"][0]["text"], "Done.")
        self.refused(400, "invalid_request_error", self.server.post(
            RESPONSES, {"input": "x", "previous_response_id": first["id"]}), first["id"])

    def test_reasoning_comes_back_from_either_place(self):
        counts = []
        for content in ({"content": [{"type": "reasoning_text", "text": "I think."}]},
                        {"content": None, "encrypted_content": "I think."}, {}):
            items = [{"role": "user", "content": "two calls"}, {"type": "reasoning", "summary": [], **content},
                     {"type": "function_call", "name": "exec", "arguments": "{}", "call_id": "c"},
                     {"type": "function_call_output", "call_id": "c", "output": "output one"}]
            counts.append(self.ok(self.server.post(RESPONSES + "/input_tokens", {"input": items}))["input_tokens"])
        self.assertEqual(counts[0], counts[1])
        self.assertGreater(counts[0], counts[2])

    def test_all_reasoning_of_a_turn_is_kept(self):
        def rows(*texts):
            items = [{"role": "user", "content": "two calls"},
                     *({"type": "reasoning", "summary": [], "encrypted_content": t} for t in texts),
                     {"type": "function_call", "name": "exec", "arguments": "{}", "call_id": "c"},
                     {"type": "function_call_output", "call_id": "c", "output": "output one"}]
            return self.ok(self.server.post(RESPONSES + "/input_tokens", {"input": items}))["input_tokens"]
        self.assertEqual(rows("first " * 50, "second " * 50), rows("first " * 50 + "\n\n" + "second " * 50))

    def test_a_refusal_that_comes_back_is_text(self):
        refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]}
        body = {"messages": [{"role": "user", "content": "x"}, refusal, {"role": "user", "content": "y"}]}
        self.assertIn("I will not.<|im_end|>", self.ok(self.server.post("/apply-template", body))["prompt"])
        answer = self.server.post(RESPONSES + "/input_tokens", {"input": body["messages"]})
        self.assertGreater(self.ok(answer)["input_tokens"], 10)

    def test_a_conversation_is_continued_by_id(self):
        first = self.ok(self.server.post(RESPONSES, {"input": "plain " * 100, "instructions": "Help."}))
        body = {"input": "and then", "previous_response_id": first["id"]}
        second = self.ok(self.server.post(RESPONSES, body))
        self.assertEqual(second["output"][-1]["content"][0]["text"], "Nothing more.")
        self.assertGreater(second["usage"]["input_tokens"], 100)
        body = {"input": "and then", "previous_response_id": second["id"]}
        self.assertGreater(self.ok(self.server.post(RESPONSES, body))["usage"]["input_tokens"],
                           second["usage"]["input_tokens"])

    def test_a_stream_that_fails_before_its_prompt_begins_with_the_response(self):
        """openai-node told its users that response.created was missing, not why the response failed."""
        server = Server("--ctx", 16384, "--turn-ms", 0)
        endless = server.open_stream("/v1/completions", {"prompt": "Hello", "max_tokens": -1, "temperature": 2})
        endless.recv(1)
        waiting = server.open_stream(RESPONSES, {"input": "x"})
        while server.metric("llamacpp:requests_deferred") == 0:
            pass
        self.assertEqual(server.stop()[0], 0)
        said = b""
        while part := waiting.recv(65536):
            said += part
        endless.close()
        waiting.close()
        text = said.decode()
        events = parse_events("event: response." + text.split("event: response.", 1)[1])
        self.assertEqual([(name, data["sequence_number"]) for name, data in events],
                         [("response.created", 0), ("response.in_progress", 1), ("response.failed", 2)])
        self.assertEqual([data["response"]["status"] for _, data in events], ["in_progress", "in_progress", "failed"])
        self.assertTrue(events[2][1]["response"]["error"]["message"])

    def test_bad_requests(self):
        for more in ({"input": 3}, {"input": [3]}, {"input": None}, {"input": [{"role": "robot", "content": "x"}]},
                     {"input": [{"type": "function_call"}]}, {"previous_response_id": "resp_none"}, {"tools": 3},
                     {"input": [{"type": "message"}]}, {"max_output_tokens": -1}, {"reasoning": 3}, {"store": "yes"},
                     {"instructions": 3}, {"input": []}, {"text": {"format": 3}}, {"tool_choice": "required"},
                     {"parallel_tool_calls": "false"}, {"text": 3}, {"reasoning": {"effort": 3}}):
            self.refused(400, "invalid_request_error", self.server.post(RESPONSES, {"input": "x", **more}))
        image = {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}
        self.refused(400, "not_supported_error", self.server.post(RESPONSES, image), "input_image")


if __name__ == "__main__":
    unittest.main()
