"""Whole agents from npm against the server: each runs a task of five tool rounds in an empty folder. See server_rig.py.

They send prompts of 2000 to 26 000 tokens, so the model is a narrow one. Skipped by name where node or the registry is
away.
"""
import concurrent.futures
import json
import os
import re
import subprocess
import tempfile
import unittest

from npm_packages import install
from narrow_model import narrow_model
from server_rig import Server, call, script_file
from chat_templates import ELEMENTS

N_ROUND = 5
TASK = "Count the rounds."
PACKAGES = {  # program: package, in the order in which the tests run
    "claude": "@anthropic-ai/claude-code@2.1.197",
    "codex": "@openai/codex@0.169.0",
    "cn": "@continuedev/cli@1.5.47",
    "opencode": "opencode-ai@1.18.33",
    "pi": "@mariozechner/pi-coding-agent@0.73.1",
    "qwen": "@qwen-code/qwen-code@0.15.10",
}


def rounds(tool, name, **more):
    """A script of five calls, each of which follows the output of the one before."""
    def reply(i):
        return f"Round {i}.\n</think>\n\n" + call(tool, **{name: f"echo round $(({i} + 1)) done"}, **more)
    script = {TASK: reply(0)}
    script.update({f"round {i} done": reply(i) for i in range(1, N_ROUND)})
    script[f"round {N_ROUND} done"] = "Done.\n</think>\n\nThe five rounds are over."
    return script


class Agents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = narrow_model(ELEMENTS)
        cls.addClassCleanup(os.remove, cls.model)
        installer = concurrent.futures.ThreadPoolExecutor(1)  # installs the next packages while an agent runs
        cls.addClassCleanup(installer.shutdown, cancel_futures=True)
        cls.folders = {program: installer.submit(install, [package], scripts=True)
                       for program, package in PACKAGES.items()}

    def run_agent(self, script, arguments, files=(), **environment):
        """files: {path in the home folder: text}; $URL stands for the server's in them and in the environment."""
        program = os.path.join(self.folders[arguments[0]].result(), "node_modules", ".bin", arguments[0])
        replies = script_file(script)
        server = Server("-v", "--temp", 0, "--script", replies, model=self.model)
        try:
            with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as work:
                for path, text in dict(files).items():
                    os.makedirs(os.path.dirname(os.path.join(home, path)), exist_ok=True)
                    with open(os.path.join(home, path), "w") as f:
                        f.write(text.replace("$URL", server.url))
                r = subprocess.run(
                    [program, *arguments[1:]], cwd=work, capture_output=True, text=True, timeout=120,
                    stdin=subprocess.DEVNULL,
                    env={"PATH": os.environ["PATH"], "HOME": home, "TERM": "dumb", "NO_PROXY": "127.0.0.1",
                         **{k: v.replace("$URL", server.url) for k, v in environment.items()}})
        finally:
            code, log = server.stop()
            os.remove(replies)
        self.assertEqual(code, 0, log)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr + log)
        self.assertIn("The five rounds are over.", r.stdout, r.stderr + log)
        self.assertEqual(re.findall(r"POST \S+ [345]\d\d", log), [])

        replies = [tuple(map(int, m)) for m in re.findall(
            r"(\d+) rows of prompt, (\d+) computed .*, (\d+) tokens of reply", log)]
        n_last = max(n for n, _, _ in replies)
        loop = [r for r in replies if r[0] > n_last / 2]  # not the requests for titles and the like
        appended = [n - before - reply for (before, _, reply), (n, _, _) in zip(loop, loop[1:])]
        print(f"{arguments[0]}: {len(replies)} requests, rows of the loop's prompts {[n for n, _, _ in loop]}, "
              f"appended {appended}, computed {[n for _, n, _ in loop]}", flush=True)
        self.assertEqual(len(loop), N_ROUND + 1, log)
        for n_appended, (_, n_computed, _) in zip(appended, loop[1:]):
            self.assertLessEqual(n_computed, 1.01 * n_appended + 1, log)

    def test_pi(self):
        models = {"providers": {"local": {"baseUrl": "$URL/v1", "api": "openai-completions", "apiKey": "x",
                                          "models": [{"id": "demo"}]}}}
        self.run_agent(rounds("bash", "command"), ["pi", "--provider", "local", "--model", "demo", "-p", TASK],
                       {".pi/agent/models.json": json.dumps(models)})

    def test_codex(self):
        config = ('model = "demo"\nmodel_provider = "local"\n[model_providers.local]\nname = "local"\n'
                  'base_url = "$URL/v1"\nwire_api = "responses"\nenv_key = "K"\n')
        self.run_agent(rounds("exec_command", "cmd"),
                       ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK],
                       {".codex/config.toml": config}, K="x")

    def test_opencode(self):
        config = {"provider": {"local": {"npm": "@ai-sdk/openai-compatible", "name": "local",
                                         "options": {"baseURL": "$URL/v1", "apiKey": "x"},
                                         "models": {"demo": {"name": "demo"}}}}}
        self.run_agent(rounds("bash", "command", description="Counts"), ["opencode", "run", "-m", "local/demo", TASK],
                       {".config/opencode/opencode.json": json.dumps(config)})

    def test_qwen_code(self):
        self.run_agent(rounds("run_shell_command", "command", description="Counts", is_background="false"),
                       ["qwen", "--yolo", "-p", TASK],
                       OPENAI_API_KEY="x", OPENAI_BASE_URL="$URL/v1", OPENAI_MODEL="demo")

    def test_continue(self):
        config = ('name: local\nversion: 1.0.0\nschema: v1\nmodels:\n  - name: demo\n    provider: openai\n'
                  '    model: any\n    apiBase: $URL/v1\n    apiKey: x\n    roles: [chat]\n')
        self.run_agent(rounds("Bash", "command"), ["cn", "--auto", "-p", TASK], {".continue/config.yaml": config},
                       CONTINUE_TELEMETRY_ENABLED="0", CONTINUE_ALLOW_ANONYMOUS_TELEMETRY="0")

    def test_claude_code(self):
        self.run_agent(rounds("Bash", "command", description="Counts"),
                       ["claude", "-p", TASK, "--model", "demo", "--allowedTools", "Bash"],
                       ANTHROPIC_BASE_URL="$URL", ANTHROPIC_API_KEY="x", DISABLE_TELEMETRY="1",
                       CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", IS_SANDBOX="1")


if __name__ == "__main__":
    unittest.main()
