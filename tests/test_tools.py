"""tools/: what they refuse, and that a check which checked nothing is no success. Their other tests:
test_make_shaders.py, test_server_bench.py, test_cli_masks.py."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Tools(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def run_tool(self, *command, **more):
        r = subprocess.run(command, capture_output=True, text=True, timeout=120, **more)
        return r.returncode, r.stdout, r.stderr

    def test_a_run_of_ctest_that_did_not_end_is_a_failure(self):
        entry = "1: auspex-tests: 3 passed, 0 failed, 0 skipped\n1/2 Test #1: unit.a ......   Passed    0.50 sec\n"
        end = "100% tests passed, 0 tests failed out of 2\n"
        steps = self.file("steps.txt", "step: passed: build\n")
        for log, counts in ((entry + end, "4 passed, 0 failed, 0 skipped"),
                            (entry + "Killed\n", "4 passed, 1 failed, 0 skipped"),
                            ("No tests were found!!!\n", "1 passed, 1 failed, 0 skipped"),
                            ("", "1 passed, 1 failed, 0 skipped")):
            code, out, _ = self.run_tool(sys.executable, os.path.join(REPO, "tools", "count_tests.py"), steps,
                                         self.file("suite.log", log))
            self.assertEqual((code, out.splitlines()[-1]), (int(log != entry + end), counts))
            self.assertEqual("suite.log: ctest did not run to its end" in out, log != entry + end)

    @unittest.skipUnless(shutil.which("ctags") and shutil.which("git"), "needs universal-ctags and git")
    def test_style_is_not_checked_by_a_clang_format_that_fails(self):
        tool = self.file("clang-format-14", "#!/bin/sh\necho 'Error reading .clang-format' >&2\nexit 1\n")
        os.chmod(tool, 0o755)
        environment = {**os.environ, "PATH": self.folder + ":" + os.environ["PATH"]}
        code, _, said = self.run_tool(sys.executable, os.path.join("tools", "check_style.py"), "src/base/base.cpp",
                                      env=environment, cwd=REPO)
        self.assertEqual((code, said), (1, f"check_style: {tool} failed: Error reading .clang-format\n"))


if __name__ == "__main__":
    unittest.main()
