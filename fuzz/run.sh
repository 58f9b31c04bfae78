#!/usr/bin/env bash
# Fuzzes, with stable Rust and a C++ compiler:
#   run.sh                     every target for 20 s, two at a time
#   run.sh all|TARGET SECONDS  longer; what is found goes to target/fuzz/found, what failed beside it
#   run.sh TARGET FILE...      runs inputs, each once: is it mended?
#   run.sh keep [TARGET]       takes what was found into the corpus, as far as it reaches something new
set -euo pipefail
cd "$(dirname "$0")"
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/../target}/fuzz
export CARGO_TARGET_DIR
host=$(rustc -vV | sed -n 's/^host: //p')
found=$CARGO_TARGET_DIR/found
# What libFuzzer watches: edges, and what is compared with what. Only with --target it is kept out of build scripts.
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
coverage+=" -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
RUSTFLAGS=$coverage cargo build --release --locked --quiet --target "$host" --bins
bin=$CARGO_TARGET_DIR/$host/release
targets=$(cd fuzz_targets && ls ./*.rs | sed 's|^\./||; s|\.rs$||')

fuzz() { # target, seconds
    local target=$1 seconds=$2 dictionary=dictionaries/$1.dict log=$found/$1.log
    mkdir -p "$found/$target" "corpus/$target"
    [ -e "$dictionary" ] && set -- -dict="$dictionary" || set --
    if "$bin/$target" "$@" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=4096 -print_final_stats=1 \
        -artifact_prefix="$found/$target-" "$found/$target" "corpus/$target" >"$log" 2>&1; then
        local runs edges
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        edges=$(sed -n 's/.* cov: \([0-9]*\).*/\1/p' "$log" | tail -1)
        printf '%-12s %6s s %12s runs %7s edges  clean\n' "$target" "$seconds" "$runs" "$edges"
    else
        tail -40 "$log"
        echo "$target FAILED: see $log and the input that it names"
        return 1
    fi
}

case ${1:-all} in
    keep)
        for target in ${2:-$targets}; do
            mkdir -p "$found/$target" "corpus/$target"
            "$bin/$target" -merge=1 -max_len=4096 "corpus/$target" "$found/$target" 2>&1 | tail -1
        done
        ;;
    all)
        export -f fuzz
        export bin found
        # shellcheck disable=SC2086
        printf '%s\n' $targets | xargs -P 2 -I{} bash -c 'fuzz {} "$0"' "${2:-20}"
        ;;
    *)
        [ -x "$bin/$1" ] || { echo "no such target; there are:" $targets >&2; exit 2; }
        if [[ ${2:-20} =~ ^[0-9]+$ ]]; then fuzz "$1" "${2:-20}"; else "$bin/$1" "${@:2}"; fi
        ;;
esac
