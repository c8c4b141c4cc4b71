"""run and chat with --json-schema, --grammar, --regex and --tools, on the demo model."""
import json
import re
import unittest

from chat_templates import ELEMENTS, with_template
from test_cli import BaseCli

SCHEMA = {"type": "object", "properties": {"pump": {"type": "integer", "minimum": 1, "maximum": 9},
                                           "status": {"enum": ["nominal", "hot"]}},
          "required": ["pump", "status"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "stop_pump", "parameters": {
    "type": "object", "properties": {"pump": {"type": "integer", "minimum": 1, "maximum": 9},
                                     "now": {"type": "boolean"}}, "required": ["pump", "now"]}}}
TOOL_TEXT = json.dumps(TOOL, indent=1)
CPU = ["--device", "cpu", "--threads", "1"]


class Constraint(BaseCli):
    def run_json(self, *arguments):
        return json.loads(self.done("run", *CPU, "--json", "-p", "Pump-3 is", "-n", "200", *arguments))

    def test_a_schema_gives_valid_json_and_then_ends(self):
        schema = self.file("schema.json", json.dumps(SCHEMA))
        texts = set()
        for seed, draft in ((1, ["--draft", "off"]), (1, []), (2, [])):
            line = self.run_json("--json-schema", schema, "--temp", 2, "--seed", seed, *draft)
            self.assertEqual(line["stop_reason"], "end")
            value = json.loads(line["text"])
            self.assertEqual(set(value), {"pump", "status"})
            self.assertIn(value["status"], ("nominal", "hot"))
            self.assertIn(value["pump"], range(1, 10))
            texts.add((seed, line["text"]))
        self.assertEqual(len(texts), 2)  # the same with and without drafts

    def test_grammars_and_expressions(self):
        grammar = self.file("g.gbnf", 'root ::= "temp=" [0-9]{2} ("C" | "F")')
        self.assertRegex(self.run_json("--grammar", grammar)["text"], r"\Atemp=[0-9]{2}[CF]\Z")
        self.assertTrue(re.fullmatch("[a-d]{5}-[0-9]+", self.run_json("--regex", "[a-d]{5}-[0-9]{1,9}")["text"]))

    def test_files_may_begin_with_the_mark_of_utf8(self):
        tool = '[{"name": "x", "parameters": {}}]'
        for option, text, reply in (("--grammar", 'root ::= "abc"', "abc"), ("--json-schema", '{"const": 12}', "12"),
                                    ("--tools", tool, "")):
            line = self.run_json(option, self.file("marked", "\ufeff" + text))
            self.assertTrue(line["text"].startswith(reply), line)

    def test_a_reply_under_tools_ends_with_a_call_or_by_its_length(self):
        tools = self.file("tools.json", json.dumps([TOOL]))
        chosen = ["--tools", tools, "--tool-choice", "stop_pump"]
        for seed in (1, 2):
            line = self.run_json(*chosen, "--temp", 3, "--seed", seed)
            self.assertIn(line["stop_reason"], ("end", "length"))
            if line["stop_reason"] == "end":
                self.assertIn('"name": "stop_pump"', line["text"])
        # The demo model's template shows no tools.
        self.refused(2, "bad_argument", "cannot show tools", run=["chat", *CPU, *chosen], stdin="Stop it\n")

    def test_a_required_call_comes_at_once_where_the_prompt_has_closed_the_thinking(self):
        model = self.file("thinks.gguf", "")
        with open(model, "wb") as f:
            f.write(with_template(ELEMENTS))
        chosen = ["-m", model, "--tools", self.file("tools.json", json.dumps([TOOL])), "--tool-choice", "required"]
        for seed in range(1, 5):
            answer = json.loads(self.done("chat", *CPU, *chosen, "--no-think", "--temp", 1, "--seed", seed, "-n", 40,
                                          "--json", stdin="hi\n"))
            self.assertRegex(answer["text"], r"\A\n{0,2}<tool_call>\n<function=stop_pump>\n")

    def test_numbers_of_tools_stay_as_they_are_written(self):
        tool = ('{"name": "a ] \\" }", "parameters": {"type": "object", "properties": {"x": {"enum": [NUMBER]}},'
                ' "required": ["x"], "additionalProperties": false}}')
        number = "12345678901234567890123"
        tools = self.file("numbers.json", f" [ {TOOL_TEXT} ,\n{tool.replace('NUMBER', number)}\n]\n")
        for seed in range(1, 4):
            line = self.run_json("--tools", tools, "--tool-choice", 'a ] " }', "--temp", 2, "--seed", seed)
            self.assertRegex(line["text"], number + r"(\.0+)?(\D|\Z)")

    def test_what_does_not_fit_is_refused(self):
        bad = self.file("bad.json", '{"type": "array", "uniqueItems": true}')
        tools = self.file("tools.json", json.dumps([TOOL]))
        run = ["run", *CPU, "-p", "a"]
        self.refused(2, "unsupported", "bad.json", "uniqueItems", run=[*run, "--json-schema", bad])
        self.refused(2, "bad_argument", "--regex", run=[*run, "--regex", "("])
        self.refused(2, "bad_argument", "--tools FILE", run=[*run, "--tool-choice", "required"])
        self.refused(2, "bad_argument", "JSON array", run=[*run, "--tools", bad])
        self.refused(2, "bad_argument", "is not UTF-8: byte 0xff at offset 10",
                     run=[*run, "--tools", self.file("byte.json", b'[{"type": \xff}]')])
        self.refused(2, "bad_argument", "nobody", run=[*run, "--tools", tools, "--tool-choice", "nobody"])
        for code, schema, words in (
                ("unsupported", {"properties": {"a/b": {"type": "array", "uniqueItems": True}}},
                 "#/properties/a~1b: uniqueItems: "),
                ("bad_argument", {"properties": {"n": {"minimum": "3"}}}, "#/properties/n: minimum: expected a number"),
                ("bad_argument", {"type": "array"}, "#: type: expected \"object\"")):
            tool = {"type": "function", "function": {"name": "set_level", "parameters": schema}}
            wrong = self.file("wrong.json", json.dumps([TOOL, tool]))
            self.refused(2, code, "wrong.json", "tool 'set_level': " + words, run=[*run, "--tools", wrong])
        self.refused(2, "not_found", "none.gbnf", run=[*run, "--grammar", "none.gbnf"])


if __name__ == "__main__":
    unittest.main()
