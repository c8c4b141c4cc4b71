"""Schemas, grammars and tools beside other readers of them: Python's jsonschema, Ajv, and rules written here.

Instances go through `auspex bench --masks`; constraint_samples writes texts of a random model and of the demo model,
with drafts. At their full lengths with AUSPEX_TEST_DEEP=1.
"""
import json
import os
import random
import re
import subprocess
import unittest

try:
    import jsonschema
except ImportError:
    jsonschema = None

from npm_packages import install, run_script
from test_cli_bench import BINARY, REPO, BaseBench

DEEP = os.environ.get("AUSPEX_TEST_DEEP") == "1"
SAMPLES = os.path.join(os.path.dirname(BINARY), "constraint_samples")
AJV = ["ajv@8.20.0"]

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "n": {"type": "integer"}},
        "required": ["city"], "additionalProperties": False}


WORDS = ["", "a", "ab", "abc", "b1", "12", "x y", "\u00e9", "a\"b", "long text here"]


class Pairs:
    """Random schemas of supported keywords, and random instances that are mostly near them."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def some(self, schema, **keywords):
        for key, make in keywords.items():
            if self.r.random() < 0.4:
                schema[key] = make()
        return schema

    def schema(self, depth=0):
        r = self.r
        kinds = ["string", "number", "integer", "enum", "any", "array", "object", "object"]
        kind = r.choice(kinds if depth < 3 else kinds[:5])
        if kind == "enum":
            return {"enum": r.sample([None, True, 0, 1, -3, 2.5, "a", "ab", "x y"], r.randint(1, 4))}
        if kind == "any":
            return {"anyOf": [self.schema(depth + 1), self.schema(depth + 1)]} if depth < 3 else {}
        if kind == "string":
            low = r.randint(0, 3)
            return self.some({"type": kind}, minLength=lambda: low, maxLength=lambda: low + r.randint(0, 4),
                             pattern=lambda: r.choice(["^a", "b$", "[0-9]", "^[a-z ]*$"]))
        if kind in ("number", "integer"):
            low = r.choice([-10, -1, 0, 2, 2.5])
            return self.some({"type": kind}, minimum=lambda: low, maximum=lambda: low + r.randint(1, 20),
                             exclusiveMinimum=lambda: low - r.randint(0, 2))
        if kind == "array":
            low = r.randint(0, 2)
            return self.some({"type": kind, "items": self.schema(depth + 1)}, minItems=lambda: low,
                             maxItems=lambda: low + r.randint(0, 3),
                             prefixItems=lambda: [self.schema(depth + 1) for _ in range(r.randint(1, 2))])
        names = r.sample(["a", "b", "name", "na"], r.randint(1, 3))
        return self.some({"type": kind, "properties": {n: self.schema(depth + 1) for n in names}},
                         required=lambda: r.sample(names, r.randint(0, len(names))),
                         additionalProperties=lambda: r.choice([False, {"type": "integer"}]))

    def value(self, schema, depth=0):
        """Any value, or one of the type that the schema asks for."""
        r = self.r
        if r.random() < 0.08 or not schema:
            schema = {"type": r.choice(["string", "integer", "number", "array" if depth < 3 else "null"])}
        if "enum" in schema:
            return r.choice(schema["enum"])
        if "anyOf" in schema:
            return self.value(r.choice(schema["anyOf"]), depth)
        kind = schema["type"]
        if kind == "string":
            return r.choice(WORDS)
        if kind in ("number", "integer"):
            return r.choice([r.randint(-12, 24), r.choice([-0.5, 2.5, 3.0, 7.25])])
        if kind == "array":
            items = schema.get("prefixItems", []) + [schema.get("items", {})] * 4
            return [self.value(s, depth + 1) for s in items[:r.randint(0, 4)]]
        if kind == "null":
            return None
        out = {n: self.value(s, depth + 1) for n, s in schema["properties"].items()
               if n in schema.get("required", []) or r.random() < 0.6}
        if r.random() < 0.2:
            out["other"] = r.choice([1, "a"])
        return out


def balanced(text):
    depth = 0
    for c in text:
        depth += 1 if c == "(" else -1
        if depth < 0:
            return False
    return depth == 0


def as_often(text):
    """a^n b^n or a^n b^2n."""
    n = text.count("a")
    return text in ("a" * n + "b" * n, "a" * n + "b" * 2 * n)


def arithmetic(text):
    inner = re.compile(r"\((\d+([-+*/]\d+)*)\)")
    while inner.search(text):
        text = inner.sub("1", text)
    return re.fullmatch(r"\d+([-+*/]\d+)*", text) is not None


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


# Grammars, and the texts that each allows: a regular expression or a function.
GRAMMARS = [
    ('root ::= "yes" | "no" | "maybe"', "yes|no|maybe"),
    ('root ::= [0-9]{3} "-" [0-9]{4}', r"[0-9]{3}-[0-9]{4}"),
    ('root ::= [a-z]+ ("," [a-z]+)*', "[a-z]+(,[a-z]+)*"),
    ('root ::= [12] [0-9]{3} "-" month "-" day\n'
     'month ::= "0" [1-9] | "1" [0-2]\nday ::= "0" [1-9] | [12] [0-9] | "3" [01]',
     r"[12]\d{3}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"),
    ('root ::= "#" [0-9a-fA-F]{6}', "#[0-9a-fA-F]{6}"),
    ('root ::= ([01] [0-9] | "2" [0-3]) (":" [0-5] [0-9]){1,2}', r"([01]\d|2[0-3])(:[0-5]\d){1,2}"),
    ('root ::= ("(" root ")"){0,2}', balanced),
    ('root ::= term ([-+*/] term)*\nterm ::= [0-9]+ | "(" root ")"', arithmetic),
    ("""root ::= object
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}"
value ::= object | "[" ws (value ("," ws value)*)? "]" | string | number | "true" | "false" | "null"
string ::= "\\"" ([^"\\\\\\x7F\\x00-\\x1F] | "\\\\" (["\\\\bfnrt] | "u" [0-9a-fA-F]{4})){0,9} "\\""
number ::= "-"? ([0-9] | [1-9] [0-9]{1,5}) ("." [0-9]{1,4})?
ws ::= " "?""", is_json),
    ('root ::= [\\u00e0-\\u017f]{2,5} "!"', "[\u00e0-\u017f]{2,5}!"),
    ('root ::= [^x\\n]{1,12} "x"', r"[^x\n]{1,12}x"),
    ('root ::= .{3} "\\n"', r"(?s).{3}\n"),
    ('root ::= ("ab" | "a"){2,6} "c"?', "(ab|a){2,6}c?"),
    ('root ::= x | y\nx ::= "a" x "b" | ""\ny ::= "a" y "bb" | ""', as_often),
    ('root ::= ("- " [a-z ]{1,12} "\\n"){1,4}', r"(- [a-z ]{1,12}\n){1,4}"),
    ('root ::= [a-z0-9.]{1,10} "@" [a-z]{2,8} "." ("com" | "org" | "net")',
     r"[a-z0-9.]{1,10}@[a-z]{2,8}\.(com|org|net)"),
    ('root ::= part ("." part){3}\npart ::= "25" [0-5] | "2" [0-4] [0-9] | "1" [0-9]{2} | [1-9]? [0-9]',
     lambda text: text.count(".") == 3 and all(str(int(p)) == p and int(p) < 256 for p in text.split("."))),
    ('root ::= pair ("&" pair)*\npair ::= [a-z]{1,4} "=" [^&=]{0,6}',
     "[a-z]{1,4}=[^&=]{0,6}(&[a-z]{1,4}=[^&=]{0,6})*"),
    ('root ::= "a" root "a" | "b" root "b" | "a" | "b" | ""',
     lambda text: set(text) <= {"a", "b"} and text == text[::-1]),
    ('root ::= "M"{0,3} ("CM" | "CD" | "D"? "C"{0,3}) ("XC" | "XL" | "L"? "X"{0,3}) ("IX" | "IV" | "V"? "I"{1,3})',
     "M{0,3}(CM|CD|D?C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{1,3})"),
]

TOOLS = [
    {"name": "set", "parameters": {"type": "object", "required": ["on", "mode"], "additionalProperties": False,
                                   "properties": {"on": {"type": "boolean"}, "mode": {"enum": ["a", "b", "5"]},
                                                  "level": {"type": "integer", "minimum": 0, "maximum": 99}}}},
    {"name": "note", "parameters": {"type": "object", "required": ["text"], "additionalProperties": False,
                                    "properties": {"text": {"type": "string", "maxLength": 12},
                                                   "tags": {"type": "array", "items": {"enum": ["x", "y"]},
                                                            "maxItems": 2}}}},
    {"name": "stop", "parameters": {"type": "object", "additionalProperties": False, "properties": {}}},
]


@unittest.skipIf(jsonschema is None, "the Python package jsonschema is missing")
class Samples(BaseBench):
    def sample(self, lines, count, *arguments):
        """What constraint_samples says of each text that ended, and its counts. A count of 1 or more of wrong texts
        is an error of its own."""
        path = self.file("lines.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        r = subprocess.run([SAMPLES, "--count", str(count), *map(str, arguments), path], capture_output=True,
                           timeout=3000)
        self.assertEqual(r.returncode, 0, r.stderr.decode())
        out = [json.loads(line) for line in r.stdout.decode().split("\n")[:-1]]
        self.assertEqual(len(out) - 1, out[-1]["ended"])
        if DEEP:
            print(self.id().split(".")[-1], out[-1])
        return out[:-1], out[-1]

    def check_texts(self, count, *arguments):
        pairs = Pairs(7)
        schemas = [pairs.schema() for _ in range(50)]
        while True:
            try:
                self.sample([{"schema": schema} for schema in schemas], 0)
                break
            except AssertionError as e:  # one that allows nothing gives way to another
                found = re.search(r"line (\d+): #.*no value is valid", str(e))
                self.assertIsNotNone(found, str(e))
                schemas[int(found[1]) - 1] = pairs.schema()
        validators = [jsonschema.Draft202012Validator(schema) for schema in schemas]
        lines = [{"schema": schema} for schema in schemas] + [{"gbnf": gbnf} for gbnf, _ in GRAMMARS]
        texts, counts = self.sample(lines, count, *arguments)
        for t in texts:
            with self.subTest(lines[t["line"]], text=t["text"]):
                if t["line"] < 50:
                    validators[t["line"]].validate(json.loads(t["text"]))
                else:
                    judge = GRAMMARS[t["line"] - 50][1]
                    self.assertTrue(re.fullmatch(judge, t["text"]) if isinstance(judge, str) else judge(t["text"]))
        self.assertGreater(counts["ended"], count // 2)
        self.assertGreater(counts["accepted"], 0)

    def check_calls(self, count, *arguments):
        lines = [{"tools": TOOLS, "style": style} for style in ("qwen", "chatml")]
        validators = {t["name"]: jsonschema.Draft202012Validator(t["parameters"]) for t in TOOLS}
        replies, counts = self.sample(lines, count, "--length", 600, *arguments)
        for reply in replies:
            with self.subTest(reply):
                self.assertGreater(len(reply["calls"]), 0)
                for call in reply["calls"]:
                    validators[call["name"]].validate(call["arguments"])
        self.assertEqual(counts["ended"], count)

    def test_every_text_of_50_schemas_and_20_grammars_is_valid(self):
        self.check_texts(10000 if DEEP else 140)

    def test_every_required_call_is_read_and_valid(self):
        count = 1000 if DEEP else 6
        self.check_calls(count)
        self.check_calls(count, "--model", os.path.join(REPO, "examples", "models", "auspex-demo.gguf"))


class Masks(BaseBench):
    def lines(self, *entries):
        return self.file("schemas.jsonl", "".join(json.dumps(e) + "\n" for e in entries))

    def test_it_counts_schemas_and_instances(self):
        tests = [{"valid": True, "data": {"n": 3, "city": "Oslo"}}, {"valid": False, "data": {"n": 3}},
                 {"valid": False, "data": {"city": "a city with a long name"}}, {"valid": True, "data": {"city": ""}}]
        unique = {"type": "array", "uniqueItems": True}
        path = self.lines({"schema": CITY, "tests": tests}, {"schema": unique, "tests": []})
        o = self.json("--masks", path)
        self.assertEqual((o["schemas"], o["compiled"], o["refused_by_keyword"]), (2, 1, {"uniqueItems": 1}))
        self.assertEqual((o["valid"], o["invalid"]), (2, 2))
        self.assertEqual((o["valid_rejected"], o["invalid_accepted"]), (0, 0))
        self.assertGreater(o["masks"], 8)
        self.assertGreaterEqual(o["mask_us_p99"], o["mask_us_p50"])
        self.assertGreater(o["first_mask_ms_mean"], 0)
        table = self.done("--masks", path)
        self.assertIn("2 schemas, 1 compiled; 2 valid instances, 0 rejected; 2 invalid ones, 0 accepted", table)
        self.assertIn("refused: 1 for uniqueItems", table)

    def test_percentiles_are_times_of_the_nearest_rank(self):
        o = self.json("--masks", self.lines({"schema": {"type": "integer"}, "tests": [{"valid": True, "data": 7}] * 2}))
        self.assertEqual(o["masks"], 2)
        self.assertAlmostEqual(o["mask_us_p50"], 2 * o["mask_us_mean"] - o["mask_us_p99"])  # the lower and the upper

    @unittest.skipIf(jsonschema is None, "the Python package jsonschema is missing")
    def test_instances_are_accepted_as_other_validators_do(self):
        pairs, entries = Pairs(19), []
        for _ in range(500):
            schema = pairs.schema()
            judge = jsonschema.Draft202012Validator(schema)
            values = [pairs.value(schema) for _ in range(20)]
            entries.append({"schema": schema, "tests": [{"valid": judge.is_valid(v), "data": v} for v in values]})
        path = self.lines(*entries)
        o = self.json("--masks", path)
        self.assertGreater(o["compiled"], 450, o["refused_by_keyword"])
        self.assertGreater(o["valid"], 2000)
        self.assertGreater(o["invalid"], 2000)
        self.assertEqual((o["valid_rejected"], o["invalid_accepted"]), (0, 0))
        r = run_script(install(AJV), os.path.join(REPO, "tests", "schema_ajv.mjs"), path)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(json.loads(r.stdout)["differ"], [])
        self.assertEqual(json.loads(r.stdout)["instances"], 10000)

    def test_it_refuses_other_files_and_other_measurements(self):
        self.refused("line 1: expected", "--masks", self.file("bad.jsonl", '{"schema": {}}\n'))
        for tests in ({}, [{"valid": 1, "data": 2}], [{"data": 2}], [{"valid": True}], [3]):
            self.refused(["line 1: expected", "true or false"], "--masks", self.lines({"schema": CITY, "tests": tests}))
        self.refused("no line with a schema", "--masks", self.file("empty.jsonl", "\n"))
        self.refused("one of them at a time", "--masks", self.lines(), "--stack")


if __name__ == "__main__":
    unittest.main()
