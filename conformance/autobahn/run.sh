#!/usr/bin/env bash
# Runs Autobahn's fuzzing client against the real binary: run.sh [CASES...], for example "9.*" or "12.1.*" (see
# ../README.md).
source "$(dirname "$0")/../common.sh"
source "$conformance/autobahn/install.sh"
[ $# -gt 0 ] || set -- '*'

# Section 9 sends messages of 16 MiB. They must also fit into the history, or a bare reader receives a gap.
serve --set limits.message_bytes_max=33554432 --set history.bytes_max=67108864 --set limits.compression=true
# A bare channel delivers each message back to its publisher. Each case has its own connection, which starts at `now`.
patterns=$(printf '"%s",' "$@")
cat >"$work/spec.json" <<JSON
{"outdir": "$work/reports", "cases": [${patterns%,}], "exclude-cases": [], "exclude-agent-cases": {},
 "servers": [{"agent": "millrace", "url": "ws://$authority/v1/channels/autobahn"}]}
JSON
(cd "$work" && timeout "$limit_s" "$suite/bin/wstest" -m fuzzingclient -s spec.json) >"$work/wstest" 2>&1 ||
    { tail -20 "$work/wstest" >&2; echo "the fuzzing client failed, or was not done within $limit_s s" >&2; exit 1; }
check_alive
if [ -n "${REPORTS:-}" ]; then mkdir -p "$REPORTS" && cp -r "$work/reports/." "$REPORTS"; fi
"$suite/bin/python" -W ignore "$conformance/autobahn/verdict.py" "$work/spec.json"
