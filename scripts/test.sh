#!/usr/bin/env bash
# Runs everything; a step that fails does not hide the next. What mostly waits runs beside what needs the processors, and what nothing
# waits for takes only what the others leave. scripts/steps.sh says what is printed at the end, and how failed tests run once more.
set -uo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
export MILLRACE_BIN=$CARGO_TARGET_DIR/debug/millrace
# Most tests wait for sockets, timers and other processes: twice as many threads as processors would leave both idle.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) * 4))}
begin_steps
trap end_steps EXIT
idle=(chrt --idle 0)

step "build the client and the pages" make --no-print-directory web
beside "fuzzing, each target for 10 s" "${idle[@]}" fuzz/run.sh
step "build the binary" make --no-print-directory build
# Building the tests may replace the binary while others run it.
cp "$MILLRACE_BIN" "$logs/millrace"
beside "quick scenarios of the lab" scripts/lab-quick.sh "$logs/millrace"
beside "conformance, quick" env MILLRACE_BIN="$logs/millrace" conformance/quick.sh
step "build the tests" cargo test --workspace --locked --quiet --no-run
beside "nodes of a cluster" cargo_tests --test cluster
beside "client tests in Node, Chromium and a worker" npm --prefix sdk test --silent
step "Rust tests" cargo_tests --lib --bins --test it --test abuse --test memory
step "Rust examples in the documentation" cargo_tests --doc
# From here on no step but this one needs cargo's lock on the folder of debug builds.
beside "clippy" "${idle[@]}" cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
# Instructions are counted, not timed: it does not matter what else goes on.
beside "instructions of the hot paths" "${idle[@]}" scripts/instructions.sh
beside "licences, advisories, bill of materials" scripts/supply-chain.sh
step "page tests in Chromium" npm --prefix web test --silent
finish "client tests in Node, Chromium and a worker"
finish "clippy"
# What clippy has said is in its cache.
step "formatting and lints" make --no-print-directory check
step "these scripts" scripts/steps-test.sh
for name in "licences, advisories, bill of materials" "conformance, quick" "quick scenarios of the lab" "nodes of a cluster" \
    "fuzzing, each target for 10 s" "instructions of the hot paths"; do
    finish "$name"
done
summary
