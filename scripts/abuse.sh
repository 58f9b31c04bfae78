#!/usr/bin/env bash
# Attacks a release build of the server while a hundred honest clients measure their latency.
# Usage: abuse.sh [full] [NAME...]
# Needs two idle processors. Each attack takes half a minute in the short form and a minute in the full form. Exits
# with 0 if all tests passed.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
if [ "${1:-}" = full ]; then
    export MILLRACE_ABUSE=full
    shift
fi
if [ -z "${MILLRACE_BIN:-}" ]; then
    cargo build --release --locked --quiet -p millrace-cli
    export MILLRACE_BIN=$CARGO_TARGET_DIR/release/millrace
fi
cargo test --workspace --locked --quiet --test abuse -- --ignored --test-threads=1 --nocapture "$@"
