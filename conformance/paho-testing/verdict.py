"""Counts the results of the suite: verdict.py RESULTS.., files that suite.py has written.

`explained.txt` in this folder names the failures that are expected, one per line: FILE TEST, then the reason. A test
that is listed there and passes is a failure, too, so that the list stays true.
"""

import json
import os
import sys

# Tests of each file. The runner reports no error if a file has fewer.
EXPECTED = {"client_test": 10, "client_test5": 27}


def main(paths):
    explained = {}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "explained.txt")) as lines:
        for line in lines:
            name, test, reason = line.strip().split(" ", 2)
            explained[name, test] = reason
    total = allowed = failed = 0
    for path in paths:
        name = os.path.splitext(os.path.basename(path))[0]
        with open(path) as file:
            results = json.load(file)
        tests = results["tests"]
        total += len(tests)
        for test in results["raced"]:
            print("raced: %s %s: passed when it ran again" % (name, test))
        if len(tests) != EXPECTED[name]:
            failed += 1
            print("FAILED: %s has %d tests instead of %d" % (name, len(tests), EXPECTED[name]))
        for test, wrong in tests.items():
            reason = explained.pop((name, test), None)
            if wrong and reason:
                allowed += 1
                print("explained: %s %s: %s\n    %s" % (name, test, wrong, reason))
            elif wrong:
                failed += 1
                print("FAILED: %s %s: %s" % (name, test, wrong))
            elif reason:
                failed += 1
                print("FAILED: %s %s: passed, but explained.txt expects a failure" % (name, test))
    for name, test in explained:
        failed += 1
        print("FAILED: %s %s: explained.txt names a test that did not run" % (name, test))
    print("%d tests: %d passed, %d explained, %d failed" % (total, total - allowed - failed, allowed, failed))
    return 1 if failed else 0


sys.exit(main(sys.argv[1:]))
