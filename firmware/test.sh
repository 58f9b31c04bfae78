#!/usr/bin/env bash
# Tests the firmware: registers, unit tests on the host, fuzzing, sizes, the MSP430 on mspdebug, the AVR on simavr.
# A part that cannot run prints `skipped: ...`. The last line is `N passed, N failed`.
#
#   test.sh [OUT]     OUT is the folder of all outputs [default: target/firmware]
#   FUZZ_SECONDS=600 test.sh
set -uo pipefail
cd "$(dirname "$0")/led-module" || exit 1
OUT=${1:-$PWD/../../target/firmware}
mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || exit 1
passed=0 failed=0 skipped=0

# Runs one part. It counts the tests of its summary `N passed, N failed`; a part without a summary is one test.
part() { # name, command..
    local name=$1 log summary status=0
    shift
    log=$OUT/test-$name.log
    echo "== $name"
    "$@" >"$log" 2>&1 || status=$?
    grep -E '^skipped: ' "$log" && { skipped=$((skipped + 1)); return; }
    summary=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -1)
    if [ -n "$summary" ]; then
        passed=$((passed + ${summary%% *}))
        summary=${summary#*, }
        failed=$((failed + ${summary%% *}))
        # A sanitizer can end the program after its summary.
        [ $status -ne 0 ] && [ "${summary%% *}" = 0 ] && failed=$((failed + 1))
    elif [ $status -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
    if [ $status -eq 0 ]; then
        grep -E '^(flash|RAM|stack|registers\.h|Done|stat::number|[0-9]+ passed)' "$log"
    else
        tail -40 "$log"
        echo "FAILED: $name; see $log"
    fi
}

# Returns 0, and prints the reason, if a tool is missing.
missing() { # name, package, tool..
    local name=$1 package=$2
    shift 2
    for tool; do
        command -v "$tool" >/dev/null && continue
        echo "skipped: $name: $tool is missing; install it with: apt install $package"
        skipped=$((skipped + 1))
        return 0
    done
    return 1
}

CLANG=${CLANG:-clang-14} LLD=${LLD:-ld.lld-14} OBJDUMP=${OBJDUMP:-llvm-objdump-14}
make=(make --no-print-directory OUT="$OUT" CLANG="$CLANG" LLD="$LLD" OBJDUMP="$OBJDUMP")
if ! missing "everything but the AVR firmware" "clang-14 lld-14 llvm-14 libclang-rt-14-dev" "$CLANG"; then
    part registers "${make[@]}" registers
    part host-test "${make[@]}" host-test
    part fuzz "${make[@]}" fuzz FUZZ_SECONDS="${FUZZ_SECONDS:-10}"
    if ! missing "the MSP430 firmware" "lld-14 llvm-14 nodejs" "$LLD" "$OBJDUMP" node; then
        part size "${make[@]}" size
        missing "the instructions of the MSP430 firmware" "mspdebug" mspdebug || part mspdebug-test "${make[@]}" mspdebug-test
    fi
    part avr-test "${make[@]}" avr-test
fi
[ $skipped -eq 0 ] || echo "$skipped parts skipped"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
