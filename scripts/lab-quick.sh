#!/usr/bin/env bash
# Runs every scenario of the lab in its quick form on Millrace: lab-quick.sh BINARY [FOLDER]. Ends with "N passed, N
# failed".
set -uo pipefail
source "$(dirname "$0")/steps.sh"
binary=$(realpath "$1")
folder=${2:-$(mktemp -d)}
export MILLRACE_BIN=$binary
passed=0 failed=0 summary=

# A quick form should take less than a minute. The limit is 120 s because some machines are slow.
scenario() { # name
    rm -rf "${folder:?}/$1"
    timeout --signal=INT --kill-after=10 120 "$binary" lab run "$1" --quick --out "$folder/$1"
}

scenarios=$("$binary" lab list | sed -n '/^scenarios/,/^$/s/^  \([a-z-]*\) .*/\1/p')
[ -n "$scenarios" ] || { echo "there are no scenarios" >&2; exit 1; }
for name in $scenarios; do
    start=$SECONDS code=0
    printf '\n=== %s\n' "$name"
    rerun "scenario $name" scenario "$name" || code=$?
    if [ "$code" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    summary+=$(printf '%-24s code %-3d %4d s' "$name" "$code" $((SECONDS - start)))$'\n'
done
printf '\n%s\n%d s in all; recordings are in %s\n%d passed, %d failed\n' "$summary" "$SECONDS" "$folder" "$passed" "$failed"
[ "$failed" -eq 0 ]
