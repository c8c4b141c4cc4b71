"""The fields of requests in all protocols: what is not done is refused by name, the rest has its effect. See
server_rig.py.
"""
import json
import os
import re
import tempfile
import unittest

from chat_templates import with_sampling, with_template
from server_rig import BaseServer, Server, call

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
USER = [{"role": "user", "content": "plain"}]
BODIES = {CHAT: {"messages": USER}, TEXT: {"prompt": "plain"}, NATIVE: {"prompt": "plain"},
          RESPONSES: {"input": "plain"}, MESSAGES: {"messages": USER, "max_tokens": 20}}
SCHEMA = {"type": "object", "properties": {"a": {"const": "x"}}, "required": ["a"], "additionalProperties": False}


class Fields(BaseServer):
    SCRIPT = {"plain": "<think>\nHm.\n</think>\n\nHello.",
              "number": "Hm.\n</think>\n\n" + call("f", x="12345678901234567890123")}

    def test_what_is_not_done_is_refused_by_name(self):
        form = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
        both = {"functions": [{"name": "f"}], "function_call": {"name": "f"}}
        of_others = {**both, "guided_json": SCHEMA, "guided_choice": ["a", "b"], "ignore_eos": True, "n_probs": 2}
        output = {"format": {"type": "json_schema", "schema": SCHEMA}}
        included = ["message.output_text.logprobs"]
        refused = {CHAT: {"audio": {"voice": "x"}, "modalities": ["text", "audio"], "web_search_options": {},
                          **of_others,
                          "add_generation_prompt": False, "continue_final_message": True, "text": output,
                          "output_config": output, "output_format": output["format"], "max_output_tokens": 3,
                          "stop_sequences": ["x"], "system": "x", "instructions": "x",
                          "previous_response_id": "resp_1", "include": included, "thinking": {"type": "odd"}},
                   TEXT: {"suffix": "x", "echo": True, "best_of": 2, "top_logprobs": 1, "include": included,
                          "max_output_tokens": 3, "stop_sequences": ["x"], **of_others},
                   NATIVE: {"n": 2, "logprobs": 1, "top_logprobs": 1, "include": included, **of_others},
                   RESPONSES: {"background": True, "prompt": {"id": "pmpt_1"}, "conversation": "conv_1",
                               "response_format": form, "json_schema": SCHEMA, "max_tokens": 3, "stop": "x",
                               "max_completion_tokens": 3, "grammar": "root ::= [a]", "top_logprobs": 1, "n": 2,
                               "messages": USER, "logprobs": True, "n_predict": 3, "tools": [{"type": "function"}],
                               "reasoning_effort": "low", "include": included, "stop_sequences": ["x"],
                               "system": "x", "thinking": {"type": "disabled"}, "output_config": output,
                               "output_format": output["format"], **of_others},
                   MESSAGES: {"container": "c", "mcp_servers": [{"type": "url"}], "response_format": form,
                              "stop": ["x"], "json_schema": SCHEMA, "grammar": "root ::= [a]", "thread": {},
                              "max_completion_tokens": 3, "max_output_tokens": 3, "n_predict": 3, "n": 2,
                              "logprobs": True, "top_logprobs": 1, "thinking": {"type": "odd"},
                              "reasoning_effort": "low", "thinking_budget_tokens": 0, "text": output,
                              "instructions": "x", **of_others}}
        for path, fields in refused.items():
            for name, value in fields.items():
                answer = self.server.post(path, {**BODIES[path], name: value})
                with self.subTest(path=path, name=name):
                    self.assertEqual(answer.status, 400, answer.body)
                    self.assertIn(name, answer.json["error"]["message"])

    def test_media_with_a_text_are_refused(self):
        for part in ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                     {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}):
            content = [{"type": "text", "text": "Look:"}, {**part, "text": "What is this?"}]
            user = [{"role": "user", "content": content}]
            for path, body in ((CHAT, {"messages": user}), (RESPONSES, {"input": user}),
                               (MESSAGES, {"messages": user, "max_tokens": 20})):
                answer = self.server.post(path, body)
                self.assertEqual(answer.status, 400, answer.body)
                self.assertIn("content[1] is of type " + part["type"], answer.json["error"]["message"])

    def test_what_asks_for_nothing_is_taken(self):
        taken = {CHAT: {"audio": None, "modalities": ["text"], "function_call": "auto", "functions": [],
                        "add_generation_prompt": True, "continue_final_message": False, "store": True, "user": "u",
                        "metadata": {}, "service_tier": "auto", "verbosity": "low", "prediction": None,
                        "prompt_cache_key": "k", "reasoning_effort": "high", "stream_options": None,
                        "text": {"format": {"type": "text"}, "verbosity": "low"}, "output_config": {"effort": "low"},
                        "thinking": {"type": "adaptive"}, "reasoning": {"effort": "low", "summary": "auto"},
                        "include": ["reasoning.encrypted_content"]},
                 TEXT: {"suffix": None, "echo": False, "best_of": 1, "n_probs": 0, "ignore_eos": False, "user": "u"},
                 NATIVE: {"n": 1, "cache_prompt": True, "id_slot": 0},
                 RESPONSES: {"background": False, "prompt": None, "include": ["reasoning.encrypted_content"],
                             "truncation": "disabled", "reasoning": {"effort": "low", "summary": "auto"},
                             "text": {"verbosity": "low"}, "max_tool_calls": 3, "service_tier": "auto"},
                 MESSAGES: {"container": None, "mcp_servers": [], "metadata": {"user_id": "u"},
                            "context_management": {"edits": []}, "service_tier": "auto",
                            "thinking_budget_tokens": -1, "output_config": {"effort": "low"}}}
        for path, fields in taken.items():
            for name, value in fields.items():
                with self.subTest(path=path, name=name):
                    self.ok(self.server.post(path, {**BODIES[path], name: value}))
        self.ok(self.server.post(TEXT, {**BODIES[TEXT], "n": 2, "best_of": 2}))
        off = {CHAT: ("audio", "modalities", "web_search_options", "function_call", "functions", "guided_json",
                      "output_format", "max_output_tokens", "stop_sequences", "system", "previous_response_id"),
               TEXT: ("top_logprobs", "suffix", "echo", "functions", "function_call", "n_probs", "ignore_eos"),
               RESPONSES: ("background", "prompt", "conversation", "response_format", "max_tokens", "stop", "messages",
                           "logprobs", "n", "functions"),
               MESSAGES: ("thread", "container", "mcp_servers", "response_format", "stop", "max_output_tokens", "n",
                          "logprobs", "functions")}
        for path, names in off.items():
            for nothing in (None, False, 0, "", []):
                with self.subTest(path=path, nothing=nothing):
                    self.ok(self.server.post(path, {**BODIES[path], **{name: nothing for name in names}}))

    def test_thinking_is_switched_off_in_other_words(self):
        off = [{"reasoning_effort": "none"}, {"reasoning": {"effort": "none"}}, {"thinking": {"type": "disabled"}}]
        rows = [self.ok(self.server.post(CHAT + "/input_tokens", {**BODIES[CHAT], **more}))["input_tokens"]
                for more in (*off, {})]
        self.assertEqual(rows[0:2], rows[1:3])
        self.assertNotEqual(rows[0], rows[3])
        budgets = [{"thinking_budget_tokens": 0}, {"thinking": {"type": "enabled", "budget_tokens": 0}}, {}]
        messages = [self.ok(self.server.post(CHAT, {**BODIES[CHAT], **more}))["choices"][0]["message"]
                    for more in budgets]
        self.assertEqual(messages[0], messages[1])
        self.assertNotEqual(messages[0], messages[2])

    def test_tools_of_responses_may_have_the_form_of_chat(self):
        inner = {"name": "get_weather", "description": "d", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}}}
        rows = [self.ok(self.server.post(RESPONSES + "/input_tokens", {**BODIES[RESPONSES], "tools": tools}))
                for tools in ([{"type": "function", **inner}], [{"type": "function", "function": inner}], [])]
        self.assertEqual(rows[0], rows[1])
        self.assertNotEqual(rows[0], rows[2])
        for tool, place in (({"type": "function"}, "tools[0].name"),
                            ({"type": "function", "function": {}}, "tools[0].function.name")):
            self.refused(400, "invalid_request_error", self.server.post(
                RESPONSES, {**BODIES[RESPONSES], "tools": [tool]}), place + " is missing, expected a string")

    def test_a_tool_has_a_name_of_its_own(self):
        flat = {"type": "function", "name": "f", "parameters": {}}
        tool = {"type": "function", "function": {"name": "f"}}
        for tools, words in (([{"type": "function"}], "tools[0].function.name is missing, expected a string"),
                             ([{"type": "function", "function": {}}], "tools[0].function.name is missing"),
                             ([tool, {"function": {"name": ""}}], "tools[1].function.name is empty"),
                             ([{"function": {"name": 3}}], "tools[0].function.name is 3, expected a string"),
                             ([flat], "tools[0].function.name is missing, because the tool has the form of /v1/resp"),
                             ([tool, tool], "tools[1].function.name is 'f', as that of a tool before it"),
                             ([{**tool, "type": 5}], "tools[0].type is 5, expected a string"),
                             (["f"], "tools[0] is a string, expected an object")):
            self.refused(400, "invalid_request_error", self.server.post(
                CHAT, {**BODIES[CHAT], "tools": tools}), words)
        self.ok(self.server.post(CHAT, {**BODIES[CHAT], "tools": [{"function": {"name": "f"}}]}))
        for path, tool in ((RESPONSES, flat), (MESSAGES, {"name": "f", "input_schema": {"type": "object"}})):
            for tools, words in (([{**tool, "name": ""}], "tools[0].name is empty"),
                                 ([tool, tool], "tools[1].name is 'f', as that of a tool before it")):
                answer = self.server.post(path, {**BODIES[path], "tools": tools})
                self.assertEqual(answer.status, 400, answer.body)
                self.assertIn(words, answer.json["error"]["message"])

    def test_a_tool_of_another_protocol_is_not_passed_over(self):
        no_schema = "tools[0].input_schema is missing"
        for path, tool, words in ((MESSAGES, {"name": "a"}, no_schema),
                                  (MESSAGES, {"name": "a", "parameters": {}}, no_schema),
                                  (MESSAGES, {"type": "function", "function": {"name": "a"}}, no_schema),
                                  (MESSAGES, {"type": "custom", "name": "a", "input_schema": None}, no_schema),
                                  (RESPONSES, 5, "tools[0] is 5, expected an object"),
                                  (RESPONSES, {}, "tools[0].name is missing, expected a string"),
                                  (RESPONSES, {"name": "a", "input_schema": {}}, "tools[0].input_schema")):
            answer = self.server.post(path, {**BODIES[path], "tools": [tool]})
            with self.subTest(path=path, tool=tool):
                self.assertEqual(answer.status, 400, answer.body)
                self.assertIn(words, answer.json["error"]["message"])
        rows = [self.ok(self.server.post(RESPONSES + "/input_tokens", {**BODIES[RESPONSES], "tools": [
            {**more, "name": "a", "parameters": {}}]}))["input_tokens"] for more in ({}, {"type": "function"})]
        self.assertEqual(rows[0], rows[1])
        for path, tool in ((MESSAGES, {"type": "web_search_20250305", "name": "web_search"}),
                           (RESPONSES, {"type": "custom", "name": "patch"})):
            self.ok(self.server.post(path, {**BODIES[path], "tools": [tool]}))

    def test_an_error_names_the_value_that_is_wrong(self):
        for fields, words in (({"stop": [1]}, "stop[0] is 1, expected a string"),
                              ({"stop": ["a", None]}, "stop[1] is null, expected a string"),
                              ({"stop": {}}, "stop is an object, expected a string or a list of strings"),
                              ({"tool_choice": {"type": "auto"}}, 'of type \'auto\', expected the string "auto"'),
                              ({"tool_choice": {"type": "none"}}, 'of type \'none\', expected the string "none"'),
                              ({"tool_choice": {"type": "required"}}, 'expected the string "required"')):
            self.refused(400, "invalid_request_error", self.server.post(CHAT, {**BODIES[CHAT], **fields}), words)

    def test_switches_of_the_template(self):
        """chat_template_kwargs, which /v1/responses and /v1/messages once passed over."""
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        for path in (CHAT + "/input_tokens", RESPONSES + "/input_tokens", MESSAGES + "/count_tokens"):
            body = BODIES[path.rsplit("/", 1)[0]]
            rows = [self.ok(self.server.post(path, {**body, **more}))["input_tokens"] for more in ({}, off)]
            self.assertNotEqual(rows[0], rows[1], path)
            self.assertEqual(self.server.post(path, {**body, "chat_template_kwargs": 3}).status, 400)
            for name in ("messages", "tools", "bos_token", "eos_token"):
                answer = self.server.post(path, {**body, "chat_template_kwargs": {name: []}})
                self.assertEqual(answer.status, 400, answer.body)
                self.assertIn(f"chat_template_kwargs.{name} is what", answer.json["error"]["message"])

    def test_the_beginning_of_a_reply_cannot_be_switched_off(self):
        off = {"chat_template_kwargs": {"add_generation_prompt": False}}
        for path in (CHAT, RESPONSES, MESSAGES):
            answer = self.server.post(path, {**BODIES[path], **off})
            self.assertEqual(answer.status, 400, answer.body)
            self.assertIn("chat_template_kwargs.add_generation_prompt", answer.json["error"]["message"])
            on = {"chat_template_kwargs": {"add_generation_prompt": True}}
            self.ok(self.server.post(path, {**BODIES[path], **on}))

    def call_of(self, arguments, more=""):
        """The prompt of a conversation with a call, whose arguments are JSON text."""
        return self.server.post("/apply-template", (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": '
            '[{"id": "c1", "type": "function", "function": {"name": "f", "arguments": %s}}]}]%s}' % (arguments, more)))

    def test_numbers_of_a_call_are_shown_as_they_are_written(self):
        numbers = '{"x": [12345678901234567890123, -18446744073709551616, 1.5]}'
        for arguments in (numbers, json.dumps(numbers)):
            self.assertIn("[12345678901234567890123, -18446744073709551616, 1.5]",
                          self.ok(self.call_of(arguments))["prompt"])
        answer = self.server.post(MESSAGES, {"messages": [{"role": "user", "content": "number"}], "max_tokens": 99,
                                             "tools": [{"name": "f", "input_schema": {"type": "object"}}]})
        self.assertIn('"input":{"x":12345678901234567890123}', answer.body)

    def test_arguments_may_be_nested_as_deep_as_a_reply_writes_them(self):
        def nested(n):
            return "[" * n + "1" + "]" * n
        for depth in (50, 95, 100):
            for arguments in ('{"x": %s}' % nested(depth), json.dumps('{"x": %s}' % nested(depth))):
                self.assertIn(f"<parameter=x>\n{nested(depth)}\n", self.ok(self.call_of(arguments))["prompt"])
        for depth in (101, 150, 240, 300, 1000):  # as text
            text = '{"x": %s}' % nested(depth)
            for arguments in (text, json.dumps(text))[depth > 240:]:
                prompt = self.ok(self.call_of(arguments))["prompt"]
                self.assertIn("<parameter=arguments>\n" + text.replace(" ", ""), prompt.replace('"x": ', '"x":'))
        tool = '{"type": "function", "function": {"name": "f", "parameters": %s}}'
        for more, name in ((f', "tools": [{tool}]', "tools[0]"),
                           (', "chat_template_kwargs": {"a": %s}', "chat_template_kwargs.a")):
            self.ok(self.call_of("{}", more % '{"x":1}'))
            self.refused(400, "invalid_request_error", self.call_of("{}", more % nested(120)), name, "100 levels")
        self.refused(400, "invalid_request_error", self.server.post("/apply-template", (
            '{"messages": [{"role": "user", "content": "a", "m": %s}]}' % nested(120))), "messages[0].m", "100 levels")
        self.refused(400, "invalid_request_error", self.call_of(nested(255)), "256 levels")

    def test_the_template_sees_other_roles_and_members(self):
        """Ids of calls, members that no protocol has, and roles that the template alone knows."""
        template = ("{% for m in messages %}[{{ m.role }}{% for c in m.tool_calls or [] %} {{ c.id }}"
                    "{% endfor %} {{ m.tool_call_id }} {{ m.metadata }}|{{ m.content }}]{% endfor %}"
                    "{% if messages[-1].role == 'nobody' %}{{ raise_exception('no such role') }}{% endif %}")
        function = {"name": "g", "arguments": "{}"}
        body = {"messages": [{"role": "user", "content": "a", "metadata": "m", "name": None},
                             {"role": "assistant", "content": None, "refusal": None, "tool_calls": [
                                 {"id": "i1", "type": "function", "function": function}]},
                             {"role": "tool", "tool_call_id": "i1", "content": "b"},
                             {"role": "observation", "content": "c"}]}
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "other.gguf")
            with open(model, "wb") as f:
                f.write(with_template(template))
            other = Server("--ctx", 512, "--temp", 0, model=model)
            try:
                self.assertEqual(self.ok(other.post("/apply-template", body))["prompt"],
                                 "[user  m|a][assistant i1  |][tool i1 |b][observation  |c]")
                body["messages"].append({"role": "nobody", "content": "d"})
                self.refused(400, "invalid_request_error", other.post(CHAT, body), "no such role")
            finally:
                self.assertEqual(other.stop()[0], 0)
        wrong = {"messages": [{"role": 3, "content": "x"}]}
        self.refused(400, "invalid_request_error", self.server.post(CHAT, wrong), "messages[0].role")

    def test_old_names_of_anthropic(self):
        body = {**BODIES[MESSAGES], "messages": [{"role": "user", "content": "free"}], "thinking": {"type": "disabled"}}
        form = {"type": "json_schema", "schema": SCHEMA}
        answer = self.ok(self.server.post(MESSAGES, {**body, "output_format": form}))
        self.assertEqual(answer["content"][0]["text"].replace(" ", "").replace("\n", ""), '{"a":"x"}')

    def test_old_messages_of_the_assistant(self):
        def prompt(message, *more):
            return self.ok(self.server.post("/apply-template", {"messages": [*USER, message, *more]}))["prompt"]
        function = {"name": "f", "arguments": '{"x": 1}'}
        result = {"role": "function", "name": "f", "content": "2"}
        calls = [{"type": "function", "function": function}]
        self.assertEqual(prompt({"role": "assistant", "content": None, "function_call": function}, result),
                         prompt({"role": "assistant", "tool_calls": calls}, result))
        self.assertEqual(prompt({"role": "assistant", "content": None, "refusal": "No."}, *USER),
                         prompt({"role": "assistant", "content": "No."}, *USER))
        audio = {"messages": [*USER, {"role": "assistant", "audio": {"id": "audio_1"}}, *USER]}
        self.refused(400, "not_supported_error", self.server.post(CHAT, audio), "messages[1].audio")

    def test_items_of_other_servers(self):
        def rows(*items):
            body = {"input": [*USER, *items, *USER]}
            return self.ok(self.server.post(RESPONSES + "/input_tokens", body))["input_tokens"]
        text = "*** Begin Patch " * 20
        custom = [{"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": text},
                  {"type": "custom_tool_call_output", "call_id": "c", "output": "done " * 20}]
        function = [{"type": "function_call", "call_id": "c", "name": "patch",
                     "arguments": '{"input": "' + text + '"}'},
                    {"type": "function_call_output", "call_id": "c", "output": "done " * 20}]
        self.assertEqual(rows(*custom), rows(*function))
        self.assertEqual(rows({"type": "web_search_call", "status": "completed"}), rows())
        item = {"type": "compaction", "encrypted_content": "gAAAA"}
        self.refused(400, "not_supported_error", self.server.post(RESPONSES, {"input": [item, *USER]}),
                     "input[0]", "compaction")

    def test_results_come_in_the_order_of_their_calls(self):
        """The template shows no ids: results that came back the other way round were taken for each other's."""
        def call(i):
            return {"id": f"c{i}", "type": "function", "function": {"name": f"f{i}", "arguments": "{}"}}

        def chat(*order):
            return {"messages": [*USER, {"role": "assistant", "content": "", "tool_calls": [call(1), call(2)]}, *(
                {"role": "tool", "tool_call_id": f"c{i}", "content": f"result {i}"} for i in order), *USER]}
        prompts = [self.ok(self.server.post("/apply-template", chat(*o)))["prompt"] for o in ((1, 2), (2, 1))]
        self.assertEqual(prompts[0], prompts[1])
        self.assertLess(prompts[0].index("result 1"), prompts[0].index("result 2"))
        for odd in ((2, 7), (2, None)):  # an id of no call: as they are
            prompt = self.ok(self.server.post("/apply-template", chat(*odd)))["prompt"]
            self.assertLess(prompt.index("result 2"), prompt.index(f"result {odd[1]}"))

        def rows(path, body):
            self.ok(self.server.post(path, body))  # once: what it computed is known the next time
            usage = self.ok(self.server.post(path, body))["usage"]
            return usage.get("cache_read_input_tokens", usage.get("input_tokens_details", {}).get("cached_tokens"))

        def responses(*order):
            return {"input": [*USER, *({"type": "function_call", "call_id": f"c{i}", "name": f"f{i}", "arguments": "{}"}
                                       for i in (1, 2)),
                              *({"type": "function_call_output", "call_id": f"c{i}", "output": f"result {i}"}
                                for i in order), *USER]}

        def messages(*order):
            return {"max_tokens": 9, "messages": [*USER, {"role": "assistant", "content": [
                {"type": "tool_use", "id": f"c{i}", "name": f"f{i}", "input": {}} for i in (1, 2)]},
                {"role": "user", "content": [
                    *({"type": "tool_result", "tool_use_id": f"c{i}", "content": f"result {i}"} for i in order),
                    {"type": "text", "text": "plain"}]}]}
        for path, make in ((RESPONSES, responses), (MESSAGES, messages)):
            known = rows(path, make(1, 2))
            self.assertEqual(rows(path, make(2, 1)), known)
            usage = self.ok(self.server.post(path, make(2, 1)))["usage"]
            self.assertGreater(known, 40, usage)

    def test_many_results_come_in_the_order_of_their_calls(self):
        n = 3000
        calls = [{"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in range(n)]
        for id, backwards in (("c%d", False), ("x%d", True)):  # without a call they stay as they are
            results = [{"role": "tool", "tool_call_id": id % i, "content": f"result {i}."} for i in reversed(range(n))]
            body = {"messages": [*USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results]}
            prompt = self.ok(self.server.post("/apply-template", body))["prompt"]
            order = [int(i) for i in re.findall(r"result (\d+)\.", prompt)]
            self.assertEqual(order, sorted(range(n), reverse=backwards))


class Recommended(unittest.TestCase):
    """general.sampling.* of the model's file"""

    def test_what_the_file_recommends_is_the_default(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as model:
            model.write(with_sampling(temp=0.0, top_k=7, min_p=0.25, penalty_repeat=1.5, penalty_last_n=8))
            model.flush()
            server = Server("--ctx", 512, "--min-p", 0.5, model=model.name)
            try:
                params = server.get("/props").json["default_generation_settings"]["params"]
                self.assertEqual({k: params[k] for k in ("temperature", "top_k", "min_p", "repeat_penalty")},
                                 {"temperature": 0, "top_k": 7, "min_p": 0.5, "repeat_penalty": 1.5})
                said = {"prompt": "2026-03-14 08:00 Pump-3", "max_tokens": 40}
                given = {**said, "temperature": 0, "repeat_penalty": 1.5, "repeat_last_n": 8}
                other = {**given, "repeat_last_n": 64}
                text = [server.post("/v1/completions", body).json["choices"][0]["text"]
                        for body in (said, given, other)]
                self.assertEqual(text[0], text[1])
                self.assertNotEqual(text[0], text[2])
            finally:
                self.assertEqual(server.stop()[0], 0)


class Thinking(unittest.TestCase):
    def test_whether_replies_think_by_default_is_told(self):
        for options, told in (((), None), (("--think",), True), (("--no-think",), False)):
            server = Server("--ctx", 512, *options)
            try:
                self.assertIs(server.get("/props").json["enable_thinking"], told)
            finally:
                self.assertEqual(server.stop()[0], 0)


if __name__ == "__main__":
    unittest.main()
