"""Runs test classes of one script and reports as the C++ test programs do, for tools/count_tests.py:

    python3 tests/run_python.py tests/test_cli.py Run Chat

    auspex-skip: NAME: WHY                       one line for each skipped test
    auspex-tests: N passed, N failed, N skipped
"""
import importlib.util
import os
import sys
import unittest


def main():
    path, classes = sys.argv[1], sys.argv[2:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    suite = unittest.defaultTestLoader.loadTestsFromNames(classes, module)
    result = unittest.TextTestRunner().run(suite)
    bad = {test.id().split(" ")[0] for test, _ in result.failures + result.errors}
    n_failed = max(len(bad), 0 if result.wasSuccessful() else 1)
    for test, why in result.skipped:
        print(f"auspex-skip: {test.id()}: {why}")
    n_passed = max(result.testsRun - n_failed - len(result.skipped), 0)
    print(f"auspex-tests: {n_passed} passed, {n_failed} failed, {len(result.skipped)} skipped")
    return 0 if result.wasSuccessful() and result.testsRun else 1


if __name__ == "__main__":
    sys.exit(main())
