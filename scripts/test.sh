#!/usr/bin/env bash
# Everything, one step after the other; a step that fails does not hide the next. Ends with "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
export MILLRACE_BIN=$CARGO_TARGET_DIR/debug/millrace
passed=0 failed=0 summary=

step() { # name, command...
    local name=$1 start=$SECONDS
    shift
    printf '\n=== %s\n' "$name"
    if "$@"; then
        passed=$((passed + 1)) result=passed
    else
        failed=$((failed + 1)) result=FAILED
    fi
    summary+=$(printf '%-44s %-7s %4d s' "$name" "$result" $((SECONDS - start)))$'\n'
}

step "build the client, the pages and the binary" make --no-print-directory build
step "Rust tests" cargo test --workspace --locked --quiet
step "client tests in Node, Chromium and a worker" npm --prefix sdk test --silent
step "page tests in Chromium" npm --prefix web test --silent
step "conformance, quick" conformance/quick.sh
step "quick scenarios of the lab" scripts/lab-quick.sh "$MILLRACE_BIN"
step "instructions of the hot paths" scripts/instructions.sh
step "licences, advisories, bill of materials" scripts/supply-chain.sh
step "formatting and lints" make --no-print-directory check

printf '\n%s\n%d s in all\n%d passed, %d failed\n' "$summary" "$SECONDS" "$passed" "$failed"
[ "$failed" -eq 0 ]
