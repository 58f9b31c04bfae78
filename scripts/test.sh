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

# What mostly waits runs beside something else; `idle` takes only what that leaves of the processors.
declare -A beside=()
logs=$(mktemp -d)
trap 'kill "${beside[@]}" 2>/dev/null; rm -rf "$logs"' EXIT
idle=(nice -n 19 chrt --idle 0)
beside() { # name, command...
    local name=$1
    shift
    "$@" >"$logs/$name" 2>&1 &
    beside[$name]=$!
}
done_beside() { # name
    wait "${beside[$1]}"
    local result=$?
    unset "beside[$1]"
    cat "$logs/$1"
    return $result
}

step "build the client, the pages and the binary" make --no-print-directory build
beside fuzzing "${idle[@]}" fuzz/run.sh
step "build the tests" cargo test --workspace --locked --quiet --no-run
# Nodes that are killed, and clients that come back: most of it is waiting.
beside cluster cargo test --workspace --locked --quiet --no-fail-fast --test cluster
step "Rust tests" cargo test --workspace --locked --quiet --no-fail-fast --lib --bins --test it --test abuse
step "Rust examples in the documentation" cargo test --workspace --locked --quiet --doc
step "nodes of a cluster" done_beside cluster
beside client npm --prefix sdk test --silent
beside clippy "${idle[@]}" cargo clippy --workspace --all-targets --locked
step "conformance, quick" conformance/quick.sh
step "client tests in Node, Chromium and a worker" done_beside client
# What clippy has to say comes again, from its cache.
done_beside clippy >/dev/null
step "formatting and lints" make --no-print-directory check
step "page tests in Chromium" npm --prefix web test --silent
step "fuzzing, each target for 10 s" done_beside fuzzing
# Instructions are counted, not timed: it does not matter what else goes on.
beside instructions "${idle[@]}" scripts/instructions.sh
step "quick scenarios of the lab" scripts/lab-quick.sh "$MILLRACE_BIN"
step "instructions of the hot paths" done_beside instructions
step "licences, advisories, bill of materials" scripts/supply-chain.sh

printf '\n%s\n%d s in all\n%d passed, %d failed\n' "$summary" "$SECONDS" "$passed" "$failed"
[ "$failed" -eq 0 ]
