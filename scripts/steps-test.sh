#!/usr/bin/env bash
# Tests steps.sh with tests that pass, fail once, and always fail: commands, steps, and a temporary crate.
set -euo pipefail
cd "$(dirname "$0")"
source ./steps.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
wrong=0

check() { # what, expected exit code, expected lines "FLAKY: ...", command...
    local what=$1 code=$2 flaky=$3 got=0 log=$folder/log
    shift 3
    ("$@") >"$log" 2>&1 || got=$?
    if [ "$got" -eq "$code" ] && [ "$(grep '^FLAKY: ' "$log" | sort || true)" = "$flaky" ]; then return; fi
    wrong=$((wrong + 1))
    printf 'FAILED: %s: code %s, expected %s with "%s"\n' "$what" "$got" "$code" "$flaky"
    cat "$log"
}

# A step with idle priority ends only if `finish` raises its priority.
makes_way() {
    begin_steps
    trap end_steps EXIT
    beside "makes way" chrt --idle 0 bash -c 'for _ in $(seq 100); do chrt --pid $$ | grep -q SCHED_OTHER && exit; sleep 0.1; done; exit 1'
    sleep 0.5
    finish "makes way"
    summary
}
check "a step that makes way until it is waited for" 0 "" makes_way

fails_once() { [ -e "$folder/once" ] || { touch "$folder/once"; return 1; }; }
check "a command that passes" 0 "" rerun "steady" true
check "a command that fails once" 0 "FLAKY: once" rerun "once" fails_once
check "a command that fails always" 1 "" rerun "always" false

# Runs a script with a steady step, a flaky step and a last step that may fail on request.
fake() { # command of the last step
    bash -c 'set -uo pipefail
        source ./steps.sh
        begin_steps
        trap end_steps EXIT
        fails_once() { [ -e "$1" ] || { touch "$1"; return 1; }; }
        beside "waits" rerun "second" fails_once "$0/second"
        step "steady" true
        step "flaky" rerun "first" fails_once "$0/first"
        finish "waits"
        step "last" $1
        summary' "$folder" "$1"
}
check_end() { # exit code, last lines without the table
    local code=$1 got=0
    fake "$3" >"$folder/log" 2>&1 || got=$?
    [ "$got" -eq "$code" ] && [ "$(grep -vE '^$| s in all$| CPU ' "$folder/log" | tail -n 3)" = "$2" ] && return
    wrong=$((wrong + 1))
    printf 'FAILED: a script in steps: code %s, expected %s with these last lines:\n%s\n' "$got" "$code" "$2"
    cat "$folder/log"
}
check_end 0 "FLAKY: first
FLAKY: second
4 passed, 0 failed" true
rm -f "$folder/first" "$folder/second"
check_end 1 "FLAKY: second
--- the last lines of: last
3 passed, 1 failed" false
check_end 1 "--- the last lines of: last
the name of a test
3 passed, 1 failed" "eval echo the name of a test; false"

mkdir -p "$folder/crate/src"
cat >"$folder/crate/Cargo.toml" <<'TOML'
[package]
name = "rerun-test"
version = "0.0.0"
edition = "2024"
[workspace]
TOML
cat >"$folder/crate/src/lib.rs" <<'RUST'
//! ```
//! assert!(rerun_test::happens_again("example"));
//! ```
/// Returns whether it was called with this name before.
pub fn happens_again(name: &str) -> bool {
    std::fs::OpenOptions::new().write(true).create_new(true).open(name).is_err()
}
#[cfg(test)]
mod tests {
    #[test]
    fn passes() {}
    #[test]
    fn fails_once() {
        println!("failures:\n    tests::passes");
        assert!(super::happens_again("once"));
    }
    #[test]
    fn fails_once_more() {
        assert!(super::happens_again("once more"));
    }
    #[test]
    fn fails_always() {
        assert!(std::env::var_os("ALWAYS").is_none());
    }
    #[test]
    fn ends_the_process_once() {
        if !super::happens_again("abort") && std::env::var_os("ABORT").is_some() {
            std::process::abort();
        }
    }
}
RUST
cd "$folder/crate"
export CARGO_TARGET_DIR=$folder/target CARGO_INCREMENTAL=0
cargo generate-lockfile --quiet --offline
again() { rm -f once "once more" example abort; }
check "two tests fail once" 0 "FLAKY: tests::fails_once
FLAKY: tests::fails_once_more" cargo_tests --lib
check "no test fails" 0 "" cargo_tests --lib
again
ALWAYS=1 check "one of three fails always" 1 "FLAKY: tests::fails_once
FLAKY: tests::fails_once_more" cargo_tests --lib
check "an example fails once" 0 "FLAKY: src/lib.rs - (line 1)" cargo_tests --doc
again
touch once "once more"
ABORT=1 check "a binary ends without a list" 0 "FLAKY: --lib" cargo_tests --lib
echo 'this is no Rust' >>src/lib.rs
check "a crate does not build" 1 "" cargo_tests --lib

[ "$wrong" -eq 0 ] && echo "a failed test runs once more: all as expected"
