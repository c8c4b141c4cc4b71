"""Clients from npm against the server. Skipped by name where node or the registry is away. See server_clients.mjs.

The packages are pinned and kept in a cache folder, so that only the first run needs the registry.
"""
import os
import shutil
import subprocess
import tempfile
import unittest

from server_rig import BaseServer, call

PACKAGES = {
    "openai": ["openai@7.55.0"],
    "anthropic": ["@anthropic-ai/sdk@1.10.0"],
    "langchain": ["@langchain/openai@1.6.0"],
    "ai": ["ai@7.0.173", "@ai-sdk/openai-compatible@3.0.92"],
    "agents": ["@openai/agents@0.20.0"],
    "page": ["puppeteer-core@24.43.1", "axe-core@4.14.1"],
}
HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "auspex", "npm")


def install(client):
    """The folder with the client's packages; raises SkipTest if there is no way to get them."""
    if not shutil.which("node") or not shutil.which("npm"):
        raise unittest.SkipTest("needs node and npm")
    folder = os.path.join(CACHE, "-".join(PACKAGES[client]).replace("/", "_"))
    done = os.path.join(folder, "done")
    if not os.path.exists(done):
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "package.json"), "w") as f:
            f.write('{"private": true, "type": "module"}')
        try:
            r = subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES[client]],
                               cwd=folder, capture_output=True, timeout=120)
        except subprocess.TimeoutExpired:
            raise unittest.SkipTest("the npm registry does not answer in 120 s")
        if r.returncode:
            raise unittest.SkipTest("npm cannot install " + " ".join(PACKAGES[client]))
        open(done, "w").close()
    return folder


class Clients(BaseServer):
    OPTIONS = ("--ctx", "4096", "--temp", "0")
    SCRIPT = {
        "plain": "Short thought.\n</think>\n\nHello, world.",
        "two calls": "</think>\n\n" + call("bash", command='ls "a"', n="3") + "\n" + call("bash", command="pwd"),
        "run it": "I run it.\n</think>\n\n" + call("bash", command="echo hi"),
        "the output": "</think>\n\nIt printed the output.",
    }

    def check(self, client):
        folder = install(client)
        # node looks for packages from where the script lies.
        script = os.path.join(folder, "server_clients.mjs")
        shutil.copy(os.path.join(HERE, "server_clients.mjs"), script)
        r = subprocess.run(["node", script, self.server.url, client], capture_output=True, text=True, timeout=120)
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
        "more": "</think>\n\nA table:\n```python\nfor row in rows:\n    print(row)\n```\nThat was it.",
        "endless": "</think>\n\n" + "on and " * 3000,
    }

    def test_a_conversation_with_edit_branches_and_stop(self):
        chromium = shutil.which("chromium")
        if not chromium:
            self.skipTest("needs chromium")
        script = os.path.join(install("page"), "server_page.mjs")
        shutil.copy(os.path.join(HERE, "server_page.mjs"), script)
        with tempfile.TemporaryDirectory() as folder:
            folder = os.environ.get("AUSPEX_SCREENSHOTS", folder)
            r = subprocess.run(["node", script, self.server.url, chromium, folder], capture_output=True, text=True,
                               timeout=120)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)


if __name__ == "__main__":
    unittest.main()
