"""The README keeps its promises: its program is the one that is built, its links lead somewhere."""
import os
import re
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read(name):
    with open(os.path.join(REPO, name), encoding="utf-8") as f:
        return f.read()


class Readme(unittest.TestCase):
    def test_its_program_is_the_minimal_example(self):
        self.assertIn("```cpp\n" + read("examples/minimal/main.cpp").rstrip("\n") + "\n```", read("README.md"))

    def test_its_links_lead_to_files(self):
        for page in ("README.md", "docs/MODEL.md", "docs/SPEED.md", "docs/MEMORY.md", "docs/DRAFTING.md",
                     "examples/models/README.md"):
            for link in re.findall(r"\]\(([^)#:]+)\)", read(page)):
                path = os.path.join(REPO, os.path.dirname(page), link)
                self.assertTrue(os.path.exists(path), f"{page}: {link}")

    def test_the_changelog_knows_the_version(self):
        version = re.search(r'#define AUSPEX_VERSION "([^"]+)"', read("src/auspex.hpp")).group(1)
        self.assertIn(f"## {version}", read("CHANGELOG.md"))


if __name__ == "__main__":
    unittest.main()
