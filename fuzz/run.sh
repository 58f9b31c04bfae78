#!/usr/bin/env bash
# Fuzzes, with stable Rust and a C++ compiler:
#   run.sh                     every target for 10 s, two at a time
#   run.sh all|TARGET SECONDS  longer; new inputs go to target/fuzz/found/TARGET, failing inputs, logs and a summary
#                              (results) to target/fuzz/found
#   run.sh TARGET FILE...      runs each input once, to check a fix
#   run.sh keep [TARGET]       adds found inputs to the corpus if they increase its coverage
set -euo pipefail
cd "$(dirname "$0")"
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/../target}/fuzz
export CARGO_TARGET_DIR
host=$(rustc -vV | sed -n 's/^host: //p')
found=$CARGO_TARGET_DIR/found
results=$found/results
RUSTC_WRAPPER=$PWD/rustc.sh cargo build --release --quiet --target "$host" --bins
bin=$CARGO_TARGET_DIR/$host/release
targets=$(cd fuzz_targets && ls ./*.rs | sed 's|^\./||; s|\.rs$||')
mkdir -p "$found"

fuzz() { # target, seconds
    local target=$1 seconds=$2 dictionary=dictionaries/$1.dict log=$found/$1.log verdict=clean
    mkdir -p "$found/$target" "corpus/$target"
    [ -e "$dictionary" ] && set -- -dict="$dictionary" || set --
    # An input is slow if it takes 30 s: on a busy machine, a background process may wait this long for the CPU.
    "$bin/$target" "$@" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=1024 -max_len=4096 -print_final_stats=1 \
        -artifact_prefix="$found/$target-" "$found/$target" "corpus/$target" >"$log" 2>&1 || verdict=FAILED
    awk -v target="$target" -v seconds="$seconds" -v verdict=$verdict '
        match($0, / cov: [0-9]+/) { edges = substr($0, RSTART + 6, RLENGTH - 6) }
        /^#[0-9]+/ { runs = substr($1, 2) }
        /^stat::number_of_executed_units:/ { runs = $2 }
        END { printf "%-10s %6d s %12d runs %7d edges  %s\n", target, seconds, runs, edges, verdict }' "$log" | tee -a "$results"
    [ $verdict = clean ] && return
    tail -30 "$log"
    # An input that timed out on a busy machine may pass when it runs alone. A panic is never attributed to the
    # machine.
    local input
    input=$(sed -n "s|.*Test unit written to \($found/$target-timeout-.*\)|\1|p" "$log")
    if [ -n "$input" ] && "$bin/$target" -timeout=30 -rss_limit_mb=1024 "$input" >>"$log" 2>&1; then
        sed -i "s/^\($target .*\)FAILED$/\1clean/" "$results"
        echo "FLAKY: fuzz target $target with $input"
        return
    fi
    echo "$target FAILED: see $log and the input that it names"
    return 1
}

case ${1:-all} in
    keep)
        for target in ${2:-$targets}; do
            mkdir -p "$found/$target" "corpus/$target"
            "$bin/$target" -set_cover_merge=1 -max_len=4096 "corpus/$target" "$found/$target" 2>&1 | tail -1
        done
        ;;
    all)
        : >"$results"
        export -f fuzz
        export bin found results
        failed=0
        # shellcheck disable=SC2086
        printf '%s\n' $targets | xargs -P 2 -I{} bash -c 'fuzz {} "$0"' "${2:-10}" || failed=$?
        awk '{ runs += $4; failed += $NF != "clean" } END { printf "%d targets, %d runs, %d failed\n", NR, runs, failed }' "$results" |
            tee -a "$results"
        exit $failed
        ;;
    *)
        [ -x "$bin/$1" ] || { echo "no such target; there are:" $targets >&2; exit 2; }
        if [[ ${2:-10} =~ ^[0-9]+$ ]]; then fuzz "$1" "${2:-10}"; else "$bin/$1" "${@:2}"; fi
        ;;
esac
