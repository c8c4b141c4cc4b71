"""`auspex bench --masks`: schemas and instances, what it counts, and what it refuses."""
import json
import random
import unittest

try:
    import jsonschema
except ImportError:
    jsonschema = None

from test_cli_bench import BaseBench

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

    @unittest.skipIf(jsonschema is None, "the Python package jsonschema is missing")
    def test_instances_are_accepted_as_another_validator_does(self):
        pairs, entries = Pairs(19), []
        for _ in range(500):
            schema = pairs.schema()
            judge = jsonschema.Draft202012Validator(schema)
            values = [pairs.value(schema) for _ in range(20)]
            entries.append({"schema": schema, "tests": [{"valid": judge.is_valid(v), "data": v} for v in values]})
        o = self.json("--masks", self.lines(*entries))
        self.assertGreater(o["compiled"], 450, o["refused_by_keyword"])
        self.assertGreater(o["valid"], 2000)
        self.assertGreater(o["invalid"], 2000)
        self.assertEqual((o["valid_rejected"], o["invalid_accepted"]), (0, 0))

    def test_it_refuses_other_files_and_other_measurements(self):
        self.refused("line 1: expected", "--masks", self.file("bad.jsonl", '{"schema": {}}\n'))
        self.refused("no line with a schema", "--masks", self.file("empty.jsonl", "\n"))
        self.refused("one of them at a time", "--masks", self.lines(), "--stack")


if __name__ == "__main__":
    unittest.main()
