"""Clients from npm against the server. Skipped by name where node or the registry is away. See server_clients.mjs.
"""
import os
import shutil
import tempfile
import unittest

from npm_packages import install, run_script
from server_rig import BaseServer, Server, call

PACKAGES = {
    "openai": ["openai@7.55.0"],
    "anthropic": ["@anthropic-ai/sdk@1.10.0"],
    "langchain": ["@langchain/openai@1.6.0"],
    "ai": ["ai@7.0.173", "@ai-sdk/openai-compatible@3.0.92"],
    "agents": ["@openai/agents@0.20.0"],
    "page": ["puppeteer-core@24.43.1", "axe-core@4.14.1"],
}
HERE = os.path.dirname(os.path.abspath(__file__))


class Clients(BaseServer):
    OPTIONS = ("--ctx", "4096", "--temp", "0")
    SCRIPT = {
        "plain": "Short thought.\n</think>\n\nHello, world.",
        "two calls": "</think>\n\n" + call("bash", command='ls "a"', n="3") + "\n" + call("bash", command="pwd"),
        "no arguments": "</think>\n\n" + call("bash"),
        "run it": "I run it.\n</think>\n\n" + call("bash", command="echo hi"),
        "the output": "</think>\n\nIt printed the output.",
    }

    def check(self, client):
        folder = install(PACKAGES[client])
        r = run_script(folder, os.path.join(HERE, "server_clients.mjs"), self.server.url, client)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        self.assertGreater(r.stdout.count("ok "), 1, r.stdout)

    def test_openai(self):
        self.check("openai")

    def test_anthropic(self):
        self.check("anthropic")

    def test_langchain(self):
        self.check("langchain")

    def test_ai_sdk(self):
        self.check("ai")

    def test_openai_agents(self):
        self.check("agents")


class Page(BaseServer):
    """The page at "/", in Debian's Chromium. AUSPEX_SCREENSHOTS names a folder to keep the screenshots in."""
    OPTIONS = ("--ctx", "8192", "--temp", "0")
    SCRIPT = {
        "plain": "Short thought.\n</think>\n\nHello, world.",
        "more": "</think>\n\n## Rows\n- **bold**, `code` and 2 * 3 * 4\n\nA table:\n"
                "```python\nfor row in rows:\n    print(row)\n```\nThat was it.",
        "stars": "</think>\n\n    f(**kwargs, **opts)\nsrc/** and test/**, 2**3**4, **bold** and **two words**.",
        "ponder": "on and " * 300 + "</think>\n\nDone.",
        "endless": "</think>\n\n" + "on and " * 3000,
    }

    def test_a_conversation_with_edit_branches_and_stop(self):
        chromium = shutil.which("chromium")
        if not chromium:
            self.skipTest("needs chromium")
        packages = install(PACKAGES["page"])
        other = Server("--no-think", "--ctx", 512)
        with tempfile.TemporaryDirectory() as folder:
            folder = os.environ.get("AUSPEX_SCREENSHOTS", folder)
            os.makedirs(folder, exist_ok=True)
            r = run_script(packages, os.path.join(HERE, "server_page.mjs"), self.server.url, chromium, folder,
                           other.url)
        self.assertEqual(other.stop()[0], 0)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)


if __name__ == "__main__":
    unittest.main()
