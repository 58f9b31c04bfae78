#!/usr/bin/env bash
# Counts the instructions of the core's hot paths with callgrind. A count more than 3 % above the recorded one fails.
#   scripts/instructions.sh           compares with the recorded counts
#   scripts/instructions.sh --write   records the new counts
set -euo pipefail
cd "$(dirname "$0")/.."
expected=crates/delivery/benches/instructions.txt
compiler=$(rustc --version | cut -d' ' -f1-2)
command -v valgrind >/dev/null || { echo "skipped: valgrind is not installed, so no instruction was counted"; exit 0; }

bench=$(cargo bench -p millrace-delivery --bench core --no-run --locked --message-format=json 2>/dev/null |
    sed -n 's/.*"executable":"\([^"]*\/core-[^"]*\)".*/\1/p' | tail -n 1)
[ -n "$bench" ] || { echo "the benchmark does not build: cargo bench -p millrace-delivery --bench core --no-run" >&2; exit 1; }
if [ "${1:-}" = --write ]; then
    "$bench" | sed 's/$/ 0/' >"$expected"
elif ! grep -qx "# $compiler" "$expected"; then
    # Another compiler generates other instructions, which is not a regression of this code.
    echo "skipped: $(sed -n 's/^# //p' "$expected") was counted, this is $compiler; scripts/instructions.sh --write counts anew"
    exit 0
fi

failed=0 measured=$(mktemp)
trap 'rm -f "$measured"' EXIT
echo "# $compiler" >"$measured"
while read -r name before; do
    [ "$name" != "#" ] || continue
    now=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no --toggle-collect='*measured*' \
        "$bench" "$name" 2>&1 | sed -n 's/.*Collected : \([0-9]*\).*/\1/p')
    [ -n "$now" ] || { echo "$name: nothing was counted" >&2; exit 1; }
    echo "$name $now" >>"$measured"
    awk -v name="$name" -v now="$now" -v before="$before" 'BEGIN {
        if (before == 0) { printf "%-16s %12d instructions\n", name, now; exit 0 }
        printf "%-16s %12d instructions, %+.2f %%%s\n", name, now, (now / before - 1) * 100, (now > before * 1.03 ? "  TOO MANY" : "")
        exit (now > before * 1.03)
    }' || failed=$((failed + 1))
done <"$expected"
if [ "${1:-}" = --write ]; then
    cp "$measured" "$expected"
    exit 0
fi
[ "$failed" -eq 0 ] || { echo "$failed hot paths cost more than before; if that is right, scripts/instructions.sh --write says so" >&2; exit 1; }
