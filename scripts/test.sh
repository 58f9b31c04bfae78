#!/usr/bin/env bash
# Runs all tests; a failed step does not stop the next ones. Steps that mostly wait run in the background beside steps
# that need the processors. Builds, fuzzing and other work that may take its time run with idle priority.
# scripts/steps.sh describes the final output and how failed tests run once more.
set -uo pipefail
cd "$(dirname "$0")/.."
source scripts/steps.sh
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
export MILLRACE_BIN=$CARGO_TARGET_DIR/debug/millrace
# Most tests wait for sockets, timers and other processes. With fewer threads the processors would be idle.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) * 4))}
# The message of a panic names its line. Backtraces hide it.
export RUST_BACKTRACE=0
# The scripts' own tests.
test_scripts() { scripts/steps-test.sh && node --test scripts/prose/test.mjs scripts/docs/test.mjs; }
begin_steps
trap end_steps EXIT
idle=(chrt --idle 0)

step "build the client and the pages" make --no-print-directory web
step "build the binary" make --no-print-directory build
# A copy, because building the tests may replace the binary while other steps run it.
cp "$MILLRACE_BIN" "$logs/millrace"
beside "quick scenarios of the lab" scripts/lab-quick.sh "$logs/millrace"
beside "conformance, quick" env MILLRACE_BIN="$logs/millrace" conformance/quick.sh
beside "code blocks of the documents" env MILLRACE_BIN="$logs/millrace" node scripts/docs/run.mjs
step "build the tests" cargo test --workspace --locked --quiet --no-run
beside "fuzzing, each target for 4 s" "${idle[@]}" fuzz/run.sh all 4
beside "nodes of a cluster" cargo_tests --test cluster
beside "client tests in Node, Chromium and Firefox" npm --prefix sdk/typescript test --silent
step "Rust tests" cargo_tests --lib --bins --test it --test abuse --test memory
step "Rust examples in the documentation" cargo_tests --doc
# Only the server is built once more, with the feature.
step "spans of publications (feature otlp)" cargo test --locked --quiet -p millrace-server --features otlp --test it traces
# From here on, only this step needs cargo's lock on the folder of debug builds.
beside "clippy" "${idle[@]}" cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
# Instructions are counted, not timed, so other load does not affect the result.
beside "instructions of the hot paths" "${idle[@]}" scripts/instructions.sh
beside "firmware of the LED module" "${idle[@]}" firmware/test.sh
beside "licences, advisories, bill of materials" scripts/supply-chain.sh
# Beside the Rust tests, the page tests would take twice as long, and tests with video would miss their limits.
step "page tests in Chromium and Firefox" env MILLRACE_BIN="$logs/millrace" npm --prefix web test --silent
finish "client tests in Node, Chromium and Firefox"
finish "clippy"
# The results of clippy are in its cache.
step "formatting and lints" make --no-print-directory check
step "board of the LED module" hw/test.sh
step "these scripts" test_scripts
for name in "licences, advisories, bill of materials" "code blocks of the documents" "conformance, quick" "quick scenarios of the lab" "nodes of a cluster" \
    "firmware of the LED module" "fuzzing, each target for 4 s" "instructions of the hot paths"; do
    finish "$name"
done
summary
