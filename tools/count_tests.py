#!/usr/bin/env python3
"""Adds up what tools/test.sh ran, and prints the slowest entries, the skipped tests, the failed ones and the totals.

  tools/count_tests.py LOG...

A LOG is the output of `ctest -V`, or a list of single steps ("step: passed|failed: NAME"). An entry of ctest counts as
the test cases that it reports itself ("auspex-tests: N passed, N failed, N skipped"), or as one. An entry that fails
without a failed test case (a crash, a time-out, a message of the validation layer) counts as one failure, and so does a
log without the last lines of a ctest that ran all its entries. The exit code is 1 if anything failed.
"""
import re
import sys

ENTRY = re.compile(r"^ *\d+/\d+ Test +#(\d+): (\S+) \.*[ *]*(Passed|Skipped|.*?) +([\d.]+) sec")
CASES = re.compile(r"^(\d+): auspex-tests: (\d+) passed, (\d+) failed, (\d+) skipped")
SKIP = re.compile(r"^(\d+): auspex-skip: (.*)")
STEP = re.compile(r"^step: (passed|failed): (.*)")
END = re.compile(r"^\d+% tests passed, \d+ tests? failed out of \d+")
N_SLOWEST = 12


def read(path):
    """Yields (name, passed, failed, skipped, seconds, skip lines) of each entry in the log."""
    cases, skips, ended = {}, {}, False
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in log:
            if m := STEP.match(line):
                ended = True
                yield m[2], int(m[1] == "passed"), int(m[1] == "failed"), 0, 0.0, []
            elif END.match(line):
                ended = True
            elif m := CASES.match(line):
                cases[m[1]] = [int(n) for n in m.groups()[1:]]
            elif m := SKIP.match(line):
                skips.setdefault(m[1], []).append(m[2])
            elif m := ENTRY.match(line):
                number, name, verdict, seconds = m.groups()
                if number in cases:
                    passed, failed, skipped = cases[number]
                    if verdict != "Passed" and failed == 0:
                        failed = 1
                else:
                    passed, skipped = int(verdict == "Passed"), int(verdict == "Skipped")
                    failed = 1 - passed - skipped
                yield name, passed, failed, skipped, float(seconds), skips.get(number, [])
    if not ended:
        yield f"{path}: ctest did not run to its end", 0, 1, 0, 0.0, []


def main():
    totals, slow, skipped, bad = [0, 0, 0], [], {}, []
    for path in sys.argv[1:]:
        for name, n_passed, n_failed, n_skipped, seconds, why in read(path):
            totals = [totals[0] + n_passed, totals[1] + n_failed, totals[2] + n_skipped]
            slow.append((seconds, name))
            if n_failed:
                bad.append(name)
            for line in why or ([name + ": no reason given"] if n_skipped else []):
                skipped[line] = skipped.get(line, 0) + 1
    slow = [f"{name} {seconds:.0f} s" for seconds, name in sorted(slow, reverse=True)[:N_SLOWEST] if seconds >= 1]
    if slow:
        print("slowest: " + ", ".join(slow))
    for line, n in skipped.items():
        print(f"skipped: {line}" + (f" ({n} times)" if n > 1 else ""))
    if not skipped:
        print("skipped: none")
    for name in bad:
        print(f"failed: {name}")
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped")
    return 1 if totals[1] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as e:
        sys.exit(f"count_tests: {e}")
