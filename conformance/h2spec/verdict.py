"""Counts the results of h2spec's cases: verdict.py REPORT [AGAIN], two JUnit reports.

AGAIN is the report of the second run of the cases that failed in the first run.

`explained.txt` in this folder names the failures that the standard allows, one per line: CASE, then the citation.
With `--failed REPORT` the script only lists the failed cases of that report.
"""

import os
import sys
import xml.etree.ElementTree as xml


def results(path):
    """Returns {(section, title): (number in its section, failure or None)}. A partial report numbers cases from 1."""
    # The report quotes frames verbatim, control bytes included.
    with open(path, errors="replace") as report:
        text = "".join(char if char.isprintable() or char == "\n" else "?" for char in report.read())
    found = {}
    for suite in xml.fromstring(text).iter("testsuite"):
        for number, case in enumerate(suite.iter("testcase"), 1):
            wrong = [case.find("failure"), case.find("error"), case.find("skipped")]
            wrong = [(part.text or "not run").strip() for part in wrong if part is not None]
            found[case.get("package"), case.get("classname")] = (number, wrong[0] if wrong else None)
    return found


def main(arguments):
    if arguments[0] == "--failed":
        print(" ".join("%s/%d" % (section, number) for (section, _), (number, wrong) in results(arguments[1]).items() if wrong))
        return 0
    first = results(arguments[0])
    again = results(arguments[1]) if len(arguments) > 1 else {}
    explained = {}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "explained.txt")) as lines:
        for line in lines:
            case, _, citation = line.strip().partition(" ")
            explained[case] = citation.strip()
    raced, allowed, failed = [], [], []
    for (section, title), (number, wrong) in first.items():
        case = "%s/%d" % (section, number)
        if wrong and not again.get((section, title), (0, wrong))[1]:
            raced.append((case, title, "passed with its answer held back: the answer had left before the frame arrived"))
        elif wrong and case in explained:
            allowed.append((case, title, explained[case]))
        elif wrong:
            failed.append((case, title, " ".join(wrong.split())))
    for word, cases in [("raced", raced), ("explained", allowed), ("FAILED", failed)]:
        for case, title, why in cases:
            print("%s: %s: %s\n    %s" % (word, case, title, why))
    good = len(first) - len(failed) - len(allowed)
    print("%d cases: %d passed, %d explained, %d failed" % (len(first), good, len(allowed), len(failed)))
    return 1 if failed or not first else 0


sys.exit(main(sys.argv[1:]))
