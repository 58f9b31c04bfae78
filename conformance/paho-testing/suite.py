"""Runs one file of the suite without changing it: suite.py FOLDER NAME PORT RESULTS [EXPLAINED..].

The file reads HOST and PORT from its arguments, and then calls `unittest.main()`, which refuses the same arguments.
Here `unittest.main` runs the tests without arguments, and writes {test: reason of the failure or ""} as JSON.

The tests wait for fixed times, some of them 0.2 s, so that a busy machine fails them. A failed test therefore runs
again, at most twice; the results name it as `raced` if it passes then. The tests EXPLAINED do not run again.
"""

import json
import os
import runpy
import sys
import unittest

folder, name, port, results, *explained = sys.argv[1:]
AGAIN = 2


def run(tests):
    """Runs tests. Returns {name: (test, reason of the failure or "")}."""
    outcome = unittest.TextTestRunner(stream=sys.stderr, verbosity=2).run(unittest.TestSuite(tests))
    wrong = {test.id(): reason.strip().splitlines()[-1] for test, reason in outcome.failures + outcome.errors}
    return {test.id().rsplit(".", 1)[-1]: (test, wrong.get(test.id(), "")) for test in tests}


def main():
    case = sys.modules["__main__"].Test
    names = unittest.defaultTestLoader.getTestCaseNames(case)
    found = run([case(one) for one in names])
    raced = []
    for _ in range(AGAIN):
        failed = [one for one, (_, reason) in found.items() if reason and one not in explained]
        again = run([case(one) for one in failed])
        raced += [one for one in failed if not again[one][1]]
        found.update(again)
    with open(results, "w") as file:
        json.dump({"tests": {one: reason for one, (_, reason) in found.items()}, "raced": raced}, file)


unittest.main = main
os.chdir(folder)
sys.path.insert(0, folder)
# The file takes `-h` for `--help`.
sys.argv = [name + ".py", "--hostname", "127.0.0.1", "-p", port]
runpy.run_path(name + ".py", run_name="__main__")
