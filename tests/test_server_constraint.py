"""What a request demands of the form of its reply: schemas, grammars, and calls. The demo model knows nothing of these
forms, so that a reply in the form shows that it was enforced. See server_rig.py."""
import json
import re
import unittest
from decimal import Decimal

from server_rig import BaseServer
from test_server_anthropic import assembled
from test_server_openai import joined

CHAT = "/v1/chat/completions"
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["pump", "ok", "level"], "properties": {
    "pump": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}, "level": {"enum": ["low", "high"]}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
PARAMETERS = {"type": "object", "additionalProperties": False, "required": ["n", "unit"],
              "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "unit": {"enum": ["m", "s"]}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("set", "get")]


def user(text, **more):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 300, **more}


class Base(BaseServer):
    def fits(self, text):
        value = json.loads(text)
        self.assertEqual(set(value), {"pump", "ok", "level"})
        self.assertLessEqual(len(value["pump"]), 8)
        self.assertIsInstance(value["ok"], bool)
        self.assertIn(value["level"], ("low", "high"))


class Forms(Base):
    def test_a_schema_in_every_protocol(self):
        for body in (user("Pump-3", response_format=FORMAT), user("Pump-3", json_schema=SCHEMA),
                     user("Pump-3", response_format={"type": "json_object", "schema": SCHEMA}),
                     user("Pump-3", response_format=FORMAT, temperature=1.5, seed=3, top_p=1, top_k=0)):
            choice = self.ok(self.server.post(CHAT, body))["choices"][0]
            self.assertEqual(choice["finish_reason"], "stop")
            self.fits(choice["message"]["content"])
            self.assertEqual(joined(self.server.stream(CHAT, body))[0]["content"], choice["message"]["content"])
        answer = self.ok(self.server.post("/v1/messages", user("x", output_config={"format": {
            "type": "json_schema", "schema": SCHEMA}})))
        self.fits(answer["content"][-1]["text"])
        text = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
        answer = self.ok(self.server.post("/v1/responses", {"input": "x", "text": text}))
        self.fits(answer["output"][-1]["content"][0]["text"])
        self.assertEqual(answer["text"], text)
        answer = self.ok(self.server.post("/v1/completions", {"prompt": "x", "json_schema": SCHEMA, "max_tokens": 99}))
        self.fits(answer["choices"][0]["text"])

    def test_numbers_are_enforced_as_they_are_written(self):
        """Those that no double holds were changed, and the changed schema was enforced."""
        long, near, exact = "12345678901234567890123", "12345678901234567890124", "0.1000000000000000055"
        for schema, texts in ((f'{{"enum": [{long}, {near}]}}', (long, near)), (f'{{"const": {long}}}', (long,)),
                              (f'{{"type": "integer", "minimum": {long}, "maximum": {long}}}', (long,)),
                              (f'{{"const": {exact}}}', (exact,)), ('{"const": 18446744073709551616}', (str(2**64),))):
            for field in ('"json_schema": %s', '"response_format": {"type": "json_schema", "json_schema": '
                          '{"name": "x", "schema": %s}}'):
                body = '{"messages": [{"role": "user", "content": "x"}], "max_tokens": 300, %s}' % (field % schema)
                content = self.ok(self.server.post(CHAT, body))["choices"][0]["message"]["content"]
                self.assertIn(Decimal(content), map(Decimal, texts))
        # Fields of the request itself may have as many digits.
        body = json.dumps(user("x", temperature=7, logit_bias={"1": 7})).replace("7", "0.10000000000000000555")
        self.ok(self.server.post(CHAT, body))
        body = '{"messages": [{"role": "user", "content": "x"}], "seed": %s}' % long
        self.refused(400, "invalid_request_error", self.server.post(CHAT, body), long)

    def test_a_grammar(self):
        body = user("x", grammar='root ::= "yes" | "no " [0-9]{3}', temperature=2, seed=1)
        self.assertRegex(self.ok(self.server.post(CHAT, body))["choices"][0]["message"]["content"], r"^(yes|no \d{3})$")

    def test_forbidden_calls_where_the_template_shows_no_tools(self):
        self.ok(self.server.post(CHAT, user("x", tools=TOOLS, tool_choice="none")))

    def test_any_object(self):
        body = user("x", response_format={"type": "json_object"}, max_tokens=60)
        text = self.ok(self.server.post(CHAT, body))["choices"][0]["message"]["content"]
        self.assertTrue(text.startswith("{"), text)

    def test_what_cannot_be_enforced_is_refused(self):
        for more, words in (({"grammar": "root ::= ("}, "grammar"), ({"json_schema": {"type": "strange"}}, "type"),
                            ({"json_schema": {"uniqueItems": True, "type": "array"}}, "uniqueItems"),
                            ({"grammar": 'root ::= "a"', "json_schema": {}}, "both"),
                            ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
                            ({"response_format": FORMAT, "json_schema": {}}, "both"),
                            ({"tool_choice": "required"}, "tool"), ({"tool_choice": {"function": {}}}, "name")):
            self.refused(400, "invalid_request_error", self.server.post(CHAT, user("x", **more)), words)
        # What shows only in the middle of the reply.
        ambiguous = user("x", grammar='root ::= "a" | "a" root "b" | "a" root "c"')
        self.refused(400, "not_supported_error", self.server.post(CHAT, ambiguous), "more than 512 ways")


class Thinking(Base):
    """The template opens the thinking, which the form leaves free."""
    SCRIPT = {}

    def test_the_form_begins_after_the_thinking(self):
        for more in ({"thinking_budget_tokens": 6}, {"thinking_budget_tokens": 0},
                     {"chat_template_kwargs": {"enable_thinking": False}}):
            body = user("Pump-3", response_format=FORMAT, **more)
            message = self.ok(self.server.post(CHAT, body))["choices"][0]["message"]
            self.fits(message["content"])
            said = joined(self.server.stream(CHAT, body))[0]
            self.assertEqual((said["content"], said["reasoning_content"]),
                             (message["content"], message.get("reasoning_content", "")))

    def test_a_reply_that_ends_inside_the_thinking_is_completed(self):
        # The demo model does not know the tag, and has nothing to say to this.
        text = ("A tank is filled by one pipe in 6 hours and by another in 9 hours. A drain empties it in 18 hours. "
                "How long does it take to fill with all three open? Work step by step.")
        self.assertEqual(self.ok(self.server.post(CHAT, user(text)))["usage"]["completion_tokens"], 1)
        body = user(text, response_format=FORMAT)
        self.fits(self.ok(self.server.post(CHAT, body))["choices"][0]["message"]["content"])

    def test_a_thinking_that_the_model_opens_itself_has_a_budget_too(self):
        [letter] = self.ok(self.server.post("/tokenize", {"content": "a"}))["tokens"]
        body = user("Pump-3", grammar=r'root ::= <think> [a-z]+ "\n" </think> "\n\n" [a-z]+', max_tokens=60,
                    logit_bias={str(letter): 100}, chat_template_kwargs={"enable_thinking": False})
        long, short = (self.ok(self.server.post(CHAT, {**body, **more}))["choices"][0]["message"]
                       for more in ({}, {"thinking_budget_tokens": 12}))
        self.assertRegex(long["reasoning_content"], "^a{40,}$")
        self.assertRegex(short["reasoning_content"], "^a{1,11}$")
        self.assertRegex(short["content"], "^a{20,}$")

    def test_forbidden_calls(self):
        """Biases and a penalty have the model write the pieces of a tag one after the other."""
        for tag in ("<function=", "<tool_call>"):
            pieces = self.ok(self.server.post("/tokenize", {"content": tag}))["tokens"]
            body = user("x", temperature=0, presence_penalty=100, max_tokens=len(pieces),
                        chat_template_kwargs={"enable_thinking": False},
                        logit_bias={str(p): 100 - 20 * i for i, p in enumerate(pieces)})
            free, forbidden = (self.ok(self.server.post(CHAT, {**body, **more}))["choices"][0]["message"]["content"]
                               for more in ({}, {"tools": TOOLS, "tool_choice": "none"}))
            self.assertEqual(free, tag)
            self.assertEqual(forbidden[:len(tag) - 1], tag[:-1])
            self.assertNotIn(tag, forbidden)
        body = user("Pump-3", tools=TOOLS, tool_choice="none", thinking_budget_tokens=4, response_format=FORMAT)
        self.fits(self.ok(self.server.post(CHAT, body))["choices"][0]["message"]["content"])

    def test_forbidden_calls_leave_the_prompt_as_it_is(self):
        body = user("x", tools=TOOLS)
        allowed, forbidden = (self.ok(self.server.post("/apply-template", {**body, **more}))["prompt"]
                              for more in ({}, {"tool_choice": "none"}))
        self.assertIn("get", allowed)
        self.assertEqual(forbidden, allowed)
        one, tools = TOOLS[0]["function"], [{"name": "set", "input_schema": PARAMETERS}]
        for path, body, none in (
                ("/v1/messages/count_tokens", {**user("x"), "tools": tools}, {"type": "none"}),
                ("/v1/responses/input_tokens", {"input": "x", "tools": [{"type": "function", **one}]}, "none")):
            plain, allowed, forbidden = (self.ok(self.server.post(path, {**body, **more}))["input_tokens"]
                                         for more in ({"tools": []}, {}, {"tool_choice": none}))
            self.assertGreater(allowed, plain)
            self.assertEqual(forbidden, allowed)

    def test_demanded_calls(self):
        body = user("Pump-3", tools=TOOLS, thinking_budget_tokens=4)
        for choice, names in (("required", ("set", "get")),
                              ({"type": "function", "function": {"name": "get"}}, ("get",))):
            one = {**body, "tool_choice": choice, **({"parallel_tool_calls": False} if choice == "required" else {})}
            answer = self.ok(self.server.post(CHAT, one))["choices"][0]
            self.assertEqual(answer["finish_reason"], "tool_calls")
            calls = [c["function"] for c in answer["message"]["tool_calls"]]
            self.assertEqual(len(calls), 1)
            self.assertIn(calls[0]["name"], names)
            arguments = json.loads(calls[0]["arguments"])
            self.assertTrue(0 <= arguments["n"] <= 99 and arguments["unit"] in ("m", "s"), arguments)
            _, streamed, finish = joined(self.server.stream(CHAT, one))
            self.assertEqual(([c["function"] for c in streamed], finish), (calls, "tool_calls"))
        self.refused(400, "invalid_request_error", self.server.post(
            CHAT, {**body, "tool_choice": {"type": "function", "function": {"name": "fly"}}}), "fly")
        self.refused(400, "not_supported_error", self.server.post(CHAT, {
            **body, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": TOOLS}}}),
            "'allowed_tools'")
        for schema, words in (({"properties": {"a/b": {"type": "strange"}}}, "#/properties/a~1b: type: expected"),
                              ({"properties": {"n": {"minimum": "3"}}}, "#/properties/n: minimum: expected a number"),
                              ({"type": "array"}, "#: type: expected \"object\"")):
            tool = {"type": "function", "function": {"name": "set_level", "parameters": schema}}
            self.refused(400, "invalid_request_error", self.server.post(CHAT, user(
                "x", tools=[*TOOLS, tool], tool_choice="required")), "tool 'set_level': " + words)

    def test_a_demanded_call_comes_at_once_where_the_thinking_is_closed(self):
        """The template is run as a program, of which nothing but the prompt says whether it closes the thinking."""
        think = self.ok(self.server.post("/tokenize", {"content": "<think>"}))["tokens"]
        likely = {str(id): 100 for id in think}  # the model would like to think
        off = {"chat_template_kwargs": {"enable_thinking": False}, "parallel_tool_calls": False, "logit_bias": likely}
        for body in (user("x", tools=TOOLS, tool_choice="required", **off),
                     user("x", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "get"}}, **off)):
            choice = self.ok(self.server.post(CHAT, body))["choices"][0]
            self.assertEqual(choice["finish_reason"], "tool_calls", choice)
            self.assertNotIn("reasoning_content", choice["message"])
        choice = self.ok(self.server.post(CHAT, user("x", tools=TOOLS, response_format=FORMAT, **off)))["choices"][0]
        self.assertNotIn("reasoning_content", choice["message"])
        tools = [{"name": t["function"]["name"], "input_schema": PARAMETERS} for t in TOOLS]
        answer = self.ok(self.server.post("/v1/messages", user(
            "x", tools=tools, tool_choice={"type": "any", "disable_parallel_tool_use": True}, logit_bias=likely,
            thinking={"type": "disabled"})))
        self.assertEqual([c["type"] for c in answer["content"]], ["tool_use"], answer)

    def test_tools_of_other_types_are_left_out(self):
        body = user("Pump-3", tools=TOOLS, tool_choice="required", max_tokens=1)
        others = [{"type": "custom", "custom": {"name": "patch"}},
                  {"type": "builtin_function", "function": {"name": "$web_search"}}]
        wanted = self.ok(self.server.post(CHAT, body))["usage"]["prompt_tokens"]
        more = {**body, "tools": [*others, *TOOLS]}
        self.assertEqual(self.ok(self.server.post(CHAT, more))["usage"]["prompt_tokens"], wanted)
        self.refused(400, "invalid_request_error", self.server.post(CHAT, {**body, "tools": others}), "no tool")

    def test_demanded_calls_in_the_other_protocols(self):
        tools = [{"name": t["function"]["name"], "input_schema": PARAMETERS} for t in TOOLS]
        body = user("x", tools=tools, thinking={"type": "enabled", "budget_tokens": 4},
                    tool_choice={"type": "tool", "name": "get", "disable_parallel_tool_use": True})
        answer = self.ok(self.server.post("/v1/messages", body))
        self.assertEqual((answer["content"][-1]["name"], answer["stop_reason"]), ("get", "tool_use"))
        self.assertEqual(assembled(self.server.stream("/v1/messages", body))["content"][-1]["input"],
                         answer["content"][-1]["input"])
        tools = [{"type": "function", **t["function"]} for t in TOOLS]
        body = {"input": "Pump-3", "max_output_tokens": 300, "tools": tools,
                "thinking_budget_tokens": 4, "tool_choice": {"type": "function", "name": "set"}}
        answer = self.ok(self.server.post("/v1/responses", body))
        calls = [o["name"] for o in answer["output"] if o["type"] == "function_call"]
        self.assertEqual((calls, answer["status"]), (["set"], "completed"))

    def test_a_call_that_is_cut_says_so(self):
        tools = [{"type": "function", "function": {"name": "set", "parameters": {
            "type": "object", "required": ["text"], "properties": {"text": {"type": "string", "maxLength": 1000}}}}}]
        body = user("Pump-3", tools=tools, tool_choice="required", thinking_budget_tokens=4, max_tokens=60)
        choice = self.ok(self.server.post(CHAT, body))["choices"][0]
        _, streamed, finish = joined(self.server.stream(CHAT, body))
        self.assertEqual((choice["finish_reason"], finish), ("length", "length"))
        self.assertEqual([c["function"] for c in streamed], [c["function"] for c in choice["message"]["tool_calls"]])
        self.assertRegex(streamed[0]["function"]["arguments"], re.compile(r'^\{"text": ?"'))
        for n in range(6, 26):  # in the tags before its arguments
            cut = {**body, "max_tokens": n}
            message = self.ok(self.server.post(CHAT, cut))["choices"][0]["message"]
            said, streamed, finish = joined(self.server.stream(CHAT, cut))
            self.assertEqual((message["content"] or "", said["content"], finish), ("", "", "length"))
            self.assertEqual([c["function"] for c in streamed],
                             [c["function"] for c in message.get("tool_calls", [])])
        choice = self.ok(self.server.post(CHAT, {**body, "stop": ["text", "<"]}))["choices"][0]
        self.assertEqual((choice["finish_reason"], len(choice["message"]["tool_calls"])), ("length", 1))
        function = tools[0]["function"]
        item = self.ok(self.server.post("/v1/responses", {
            "input": "Pump-3", "tools": [{"type": "function", **function}], "tool_choice": "required",
            "thinking_budget_tokens": 4, "max_output_tokens": 60}))["output"][-1]
        self.assertEqual((item["type"], item["status"]), ("function_call", "incomplete"))
        # An input is an object, which this call does not have.
        answer = self.ok(self.server.post("/v1/messages", {
            **user("Pump-3"), "tools": [{"name": "set", "input_schema": function["parameters"]}], "max_tokens": 60,
            "tool_choice": {"type": "any"}, "thinking": {"type": "enabled", "budget_tokens": 4}}))
        self.assertEqual(answer["stop_reason"], "max_tokens")
        self.assertNotIn("tool_use", [b["type"] for b in answer["content"]])

    def test_a_schema_and_tools_together(self):
        # Both are replies: a bias of the tag that opens calls decides.
        body = user("Pump-3", tools=TOOLS, response_format=FORMAT, thinking_budget_tokens=4, parallel_tool_calls=False)
        tag = self.ok(self.server.post("/tokenize", {"content": "<tool_call>"}))["tokens"]
        choice = self.ok(self.server.post(CHAT, {**body, "logit_bias": {str(tag[0]): -100}}))["choices"][0]
        self.assertEqual(choice["finish_reason"], "stop")
        self.fits(choice["message"]["content"])
        choice = self.ok(self.server.post(CHAT, {**body, "logit_bias": {str(tag[0]): 100}}))["choices"][0]
        self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("tool_calls", None))
        self.assertIn(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["unit"], ("m", "s"))
        choice = self.ok(self.server.post(CHAT, {**body, "tool_choice": "required"}))["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        self.refused(400, "invalid_request_error", self.server.post(CHAT, user(
            "x", tools=TOOLS, json_schema={"type": "array", "uniqueItems": True})), "answer: ", "uniqueItems")
        self.refused(400, "not_supported_error", self.server.post(CHAT, user(
            "x", tools=TOOLS, grammar='root ::= "a"')))


if __name__ == "__main__":
    unittest.main()
