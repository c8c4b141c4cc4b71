"""`auspex bench --masks`: schemas and instances, what it counts, and what it refuses."""
import json
import unittest

from test_cli_bench import BaseBench

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "n": {"type": "integer"}},
        "required": ["city"], "additionalProperties": False}


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

    def test_it_refuses_other_files_and_other_measurements(self):
        self.refused("line 1: expected", "--masks", self.file("bad.jsonl", '{"schema": {}}\n'))
        self.refused("no line with a schema", "--masks", self.file("empty.jsonl", "\n"))
        self.refused("one of them at a time", "--masks", self.lines(), "--stack")


if __name__ == "__main__":
    unittest.main()
