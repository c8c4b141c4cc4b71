"""tests/data/jinja_cases.json is what Jinja prints. Skipped where Python's jinja2 is missing."""
import json
import os
import unittest

try:
    import jinja2.ext
    import jinja2.sandbox
except ImportError:
    jinja2 = None

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "jinja_cases.json")


@unittest.skipIf(jinja2 is None, "jinja2 is not installed")
class Cases(unittest.TestCase):
    def test_jinja_prints_the_same(self):
        class Generation(jinja2.ext.Extension):
            tags = {"generation"}

            def parse(self, parser):
                line = next(parser.stream).lineno
                body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
                return jinja2.nodes.CallBlock(self.call_method("shown"), [], [], body).set_lineno(line)

            def shown(self, caller):
                return caller()

        # As transformers sets it up.
        env = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
        env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        with open(DATA, encoding="utf-8") as file:
            data = json.load(file)
        for source, text in data["printed"]:
            with self.subTest(source):
                self.assertEqual(env.from_string(source).render(**data["variables"]), text)
