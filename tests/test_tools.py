"""tools/: what they refuse, and that a check which checked nothing is no success. Their other tests:
test_make_shaders.py, test_server_bench.py, test_cli_masks.py."""
import glob
import os
import shutil
import subprocess
import sys
import unittest

from base_rig import BaseFolder

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.dirname(os.environ.get("AUSPEX_DEMO_TEXT") or os.path.join(REPO, "build", "demo_text"))


class Tools(BaseFolder):
    def run_tool(self, *command, **more):
        r = subprocess.run(command, capture_output=True, text=True, timeout=120, **more)
        return r.returncode, r.stdout, r.stderr

    def program(self, name):
        path = os.path.join(BUILD, name)
        if not os.path.exists(path):
            self.skipTest(f"needs {name}")
        return path

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

    @unittest.skipUnless(glob.glob("/usr/share/vulkan/icd.d/lvp_icd.*.json"), "needs the software Vulkan device")
    def test_a_gpu_that_is_required_is_not_skipped(self):
        program = self.file("demo_text", "#!/bin/sh\necho no_device >&2\nexit 77\n")
        os.chmod(program, 0o755)
        gpu, reference = "Here.test_vulkan_with_subgroups_of_4", "Here.test_reference"
        for name, value, counts in ((gpu, "yes", "0 passed, 1 failed, 0 skipped"),
                                    (gpu, "0", "0 passed, 0 failed, 1 skipped"),
                                    (reference, "", "0 passed, 1 failed, 0 skipped")):
            code, out, _ = self.run_tool(sys.executable, os.path.join(REPO, "tests", "run_python.py"),
                                         os.path.join(REPO, "tests", "test_platforms.py"), name,
                                         env={**os.environ, "AUSPEX_DEMO_TEXT": program, "AUSPEX_REQUIRE_GPU": value})
            self.assertEqual((code, out.splitlines()[-1]), (int("1 failed" in counts), "auspex-tests: " + counts))

    def test_scripts_of_calls_refuse_options_that_they_would_read_as_others(self):
        program = self.program("sync_scripts")
        for options in (["--count", "0"], ["--count", "x"], ["--count", "2x"], ["--steps", "0"], ["--device", "vulcan"],
                        ["--seed", "-1"], ["--gpu", "first"], ["--count"], ["--seed", "99999999999999999999999"]):
            code, out, said = self.run_tool(program, *options)
            self.assertEqual((code, out, said[:20]), (2, "", "usage: sync_scripts "), options)

    def test_samples_of_constraints_refuse_options_that_they_would_read_as_others(self):
        program, lines = self.program("constraint_samples"), self.file("lines.jsonl", '{"gbnf": "root ::= \\"a\\""}\n')
        for options in (["--count", "abc"], ["--length", "0"], ["--depth", "9"], ["--device", "gpu"], ["--gpu", "-2"]):
            code, out, said = self.run_tool(program, *options, lines)
            self.assertEqual((code, out, said[:26]), (2, "", "usage: constraint_samples "), options)
        self.assertEqual(self.run_tool(program, lines + "x"),
                         (2, "", f"constraint_samples: not_found: {lines}x cannot be opened\n"))


if __name__ == "__main__":
    unittest.main()
