"""Checks the statistics of slowhttptest: verdict.py FOLDER ATTACK=TIMEOUT_S..

TIMEOUT_S is the time after which the server closes such a connection, or empty if the server only has to answer.
A row of the statistics is one second: closed, pending, connected, and a value above 0 if the probe was answered.
"""

import csv
import os
import sys

# Tolerance: rows are whole seconds, and the machine may be busy.
SLACK_S = 3


def judge(folder, attack, timeout_s):
    with open(os.path.join(folder, attack + ".csv")) as table:
        rows = [{name: int(value) for name, value in row.items()} for row in csv.DictReader(table)]
    opened = [row["Closed"] + row["Connected"] for row in rows]
    available = sum(row["Service Available"] > 0 for row in rows)
    wrong = []
    if available < len(rows):
        wrong.append("the probe was not always answered")
    if attack == "read":
        # The other attacks have ended by then, so the remaining connections are slow readers.
        with open(os.path.join(folder, "held")) as seconds:
            held = [int(line) for line in seconds][: len(rows) - 1]
        late = held[-1] - (opened[-1] - opened[len(rows) - 1 - int(timeout_s) - SLACK_S])
        rows[-1]["Closed"] = opened[-1] - held[-1]
        if late > 0:
            wrong.append("at the end %d slow readers were held that had taken nothing for %s s" % (late, timeout_s))
    # No connection may stay open much longer than its timeout.
    for second, row in enumerate(rows if attack != "read" else []):
        due = second - int(timeout_s) - SLACK_S if timeout_s else -1
        if due >= 0 and row["Closed"] < opened[due]:
            wrong.append("in second %d only %d of %d connections were closed that had been there for %s s" % (second, row["Closed"], opened[due], timeout_s))
            break
    # slowhttptest ends early when no connection is open.
    with open(os.path.join(folder, attack + ".txt")) as said:
        is_done = "No open connections left" in said.read()
    if not opened[-1] or (timeout_s and not is_done and len(rows) <= int(timeout_s) + SLACK_S):
        wrong.append("it was over too soon to say anything")
    print("%-8s %6d %10d %8d %9d/%d" % (attack, opened[-1], max(row["Connected"] for row in rows), rows[-1]["Closed"], available, len(rows)))
    return wrong


def main(folder, attacks):
    print("attack   opened  most open   closed  available")
    failed = 0
    for attack in attacks:
        name, _, timeout_s = attack.partition("=")
        for wrong in judge(folder, name, timeout_s):
            failed += 1
            print("FAILED: slow %s: %s" % (name, wrong))
    print("%d attacks, %d failures" % (len(attacks), failed))
    return 1 if failed else 0


sys.exit(main(sys.argv[1], sys.argv[2:]))
