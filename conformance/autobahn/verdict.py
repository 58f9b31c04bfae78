"""Counts the results of the cases of a run by section. Runs with Python 2.7 in the suite's environment.

The fuzzing client always exits with 0, even if no server listens. Therefore this script also counts missing cases.
"""

import collections
import json
import os
import sys

from autobahntestsuite import case
from autobahntestsuite.caseset import CaseSet

GOOD = ("OK", "NON-STRICT", "INFORMATIONAL")
GOOD_CLOSE = ("OK", "INFORMATIONAL")


def number(name):
    return [int(part) for part in name.split(".")]


def main():
    with open(sys.argv[1]) as spec:
        spec = json.load(spec)
    cases = CaseSet(case.CaseSetname, case.CaseBasename, case.Cases, case.CaseCategories, case.CaseSubCategories)
    wanted = cases.parseSpecCases(spec)
    results = {}
    index = os.path.join(spec["outdir"], "index.json")
    if os.path.exists(index):
        with open(index) as index:
            results = json.load(index).get("millrace", {})
    table, bad = collections.defaultdict(collections.Counter), []
    for name in wanted:
        result = results.get(name, {"behavior": "NOT RUN", "behaviorClose": "NOT RUN"})
        behaviour, close = result["behavior"], result["behaviorClose"]
        table[int(name.split(".")[0])][behaviour] += 1
        if behaviour not in GOOD or close not in GOOD_CLOSE:
            bad.append((name, behaviour, close, result.get("remoteCloseCode")))
    behaviours = list(GOOD) + sorted(set(b for row in table.values() for b in row) - set(GOOD))
    print("section  cases  " + "  ".join(behaviours))
    for section, row in sorted(table.items()):
        cells = [str(row[b] or "-").rjust(len(b)) for b in behaviours]
        print("%7d  %5d  %s" % (section, sum(row.values()), "  ".join(cells)))
    for name, behaviour, close, code in sorted(bad, key=lambda row: number(row[0])):
        print("%s: %s, closing: %s, our close code: %s" % (name, behaviour, close, code))
    if not wanted:
        print("no case has such a number")
    print("%d of %d cases passed" % (len(wanted) - len(bad), len(wanted)))
    return 1 if bad or not wanted else 0


sys.exit(main())
