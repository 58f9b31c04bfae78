# shellcheck shell=bash
# Functions for scripts that run tests in steps. Source this file from bash with `set -o pipefail`.
#
# A failed test runs once more, alone. If it passes then, its step stays green and prints "FLAKY: name". If it fails
# again, its step is red. `summary` repeats all lines "FLAKY: name" and "skipped: reason", and ends with "N passed, N
# failed".

passed=0 failed=0 table='' failures='' begun=$SECONDS
declare -A besides=()

# Creates the folder for logs. The caller's EXIT trap must call `end_steps`.
begin_steps() { logs=$(mktemp -d); }

# Ends all background steps that still run, each with its child processes, and removes the logs.
end_steps() {
    local pid
    for pid in "${besides[@]}"; do kill -- "-$pid" 2>/dev/null || true; done
    rm -rf "$logs"
}

count_step() { # name, exit code, seconds, file with the output of `times`, log
    local result=passed cpu
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1)) result=FAILED
        # Test runners print the names of failed tests last, and where they failed before.
        failures+=$(printf '\n--- the last lines of: %s\n' "$1"; grep -A 3 ' panicked at ' "$5" | tail -n 8; grep -vE '^((FLAKY|skipped): .*)?$' "$5" | tail -n 10)$'\n'
    fi
    cpu=$(awk -F '[ms ]' '{ sum += $1 * 60 + $2 + $4 * 60 + $5 } END { printf "%.0f", sum }' "$4" 2>/dev/null) || true
    table+=$(printf '%-44s %-7s %4d s, ended after %4d s, CPU %5s s' "$1" "$result" "$3" $((SECONDS - begun)) "${cpu:-?}")$'\n'
}

# Runs a step in the foreground.
step() { # name, command...
    local name=$1 start=$SECONDS code=0 log
    log=$(mktemp "$logs/step.XXXX")
    shift
    printf '\n=== %s\n' "$name"
    # `times` reports this subshell and its children.
    (
        ended=0
        "$@" || ended=$?
        times >"$logs/$name.times"
        exit "$ended"
    ) 2>&1 | tee "$log" || code=$?
    count_step "$name" "$code" $((SECONDS - start)) "$logs/$name.times" "$log"
}

# Starts a background step in its own process group. `finish` prints its output.
beside() { # name, command...
    local name=$1
    shift
    set -m
    (
        code=0
        "$@" || code=$?
        times >"$logs/$name.times"
        echo "$code $SECONDS" >"$logs/$name.code"
    ) >"$logs/$name" 2>&1 </dev/null &
    besides[$name]=$!
    set +m
    echo $SECONDS >"$logs/$name.start"
}

# Gives processes started by `chrt --idle` a full share of the processors. On a busy machine they would never finish
# otherwise.
run_fully() { # process group
    local pid pass
    # The second pass finds processes that were started during the first.
    for pass in 1 2; do
        for pid in $(pgrep -g "$1"); do chrt --all-tasks --other --pid 0 "$pid" >/dev/null 2>&1 || true; done
    done
}

# Waits for a step that was started by `beside`. No foreground step runs meanwhile, so all background steps get normal
# priority.
finish() { # name
    local name=$1 code=1 start ended=$SECONDS pid
    printf '\n=== %s\n' "$name"
    for pid in "${besides[@]}"; do run_fully "$pid"; done
    read -r start <"$logs/$name.start"
    wait "${besides[$name]}" || true
    unset "besides[$name]"
    [ ! -e "$logs/$name.code" ] || read -r code ended <"$logs/$name.code"
    cat "$logs/$name"
    count_step "$name" "$code" $((ended - start)) "$logs/$name.times" "$logs/$name"
}

# Prints the table of steps, and last the end of each failed step and the result, because records of CI keep only the
# last lines. Returns 1 if a step has failed.
summary() {
    printf '\n%s\n%d s in all\n' "$table" $((SECONDS - begun))
    grep -hE '^(FLAKY|skipped): ' "$logs"/* | sort -u || true
    printf '%s' "$failures"
    printf '%d passed, %d failed\n' "$passed" "$failed"
    [ "$failed" -eq 0 ]
}

# Runs a command, and runs it once more if it fails.
rerun() { # name, command...
    local name=$1
    shift
    "$@" && return
    printf '\n--- %s failed; it runs once more\n' "$name"
    "$@" && printf 'FLAKY: %s\n' "$name"
}

# Reads the output of `cargo test --no-fail-fast` and prints one line for each failed test: the flags that select its
# binary, a tab, and its name. The name is empty if a binary ended without a list of failures.
failed_tests() {
    awk '
        /^failures:$/ { listing = 1; count = 0; next }
        listing && /^    [^ ]/ { names[++count] = substr($0, 5); next }
        # The list of names is the second block with this heading. The first block holds the output of the tests.
        listing && !/^$/ { listing = 0 }
        # The progress dots of a killed binary may precede this text.
        /error: (doc)?test failed, to rerun pass `/ {
            match($0, /`.*`/)
            flags = substr($0, RSTART + 1, RLENGTH - 2)
            if (!count) print flags "\t"
            for (i = 1; i <= count; i++) print flags "\t" names[i]
            count = 0
        }
    '
}

# Runs `cargo test` on the whole workspace with these arguments. Each failed test runs once more, by name.
cargo_tests() { # arguments...
    local log code=0 failed=0 flags name
    log=$(mktemp)
    cargo test --workspace --locked --quiet --no-fail-fast "$@" 2>&1 | tee "$log" || code=$?
    [ "$code" -eq 0 ] || mapfile -t failed_tests < <(failed_tests <"$log")
    rm -f "$log"
    [ "$code" -ne 0 ] || return 0
    # More than 20 failures have a common cause and are not flaky.
    [ ${#failed_tests[@]} -gt 0 ] && [ ${#failed_tests[@]} -le 20 ] || return 1
    for test in "${failed_tests[@]}"; do
        IFS=$'\t' read -r flags name <<<"$test"
        printf '\n--- %s failed; it runs once more\n' "$flags $name"
        if run_test "$flags" "$name"; then printf 'FLAKY: %s\n' "${name:-$flags}"; else failed=1; fi
    done
    return $failed
}

# Runs one test. Selects the whole workspace instead of the test's package: the dependencies' features differ between
# the two, and cargo would rebuild them.
# Binaries without a test of this name pass with no test run, so at least one test must have passed.
run_test() { # flags, name
    local -a flags only=()
    local log code=0
    read -ra flags <<<"$1"
    # rustdoc splits test names at spaces, so all examples of the package run.
    if [[ " $1 " != *" --doc "* ]]; then
        [ "${flags[0]}" != -p ] || flags=(--workspace "${flags[@]:2}")
        [ -z "$2" ] || only=(-- --exact "$2")
    fi
    log=$(mktemp)
    cargo test --locked --quiet "${flags[@]}" "${only[@]}" 2>&1 | tee "$log" || code=$?
    grep -q '^test result: ok. [1-9]' "$log" || code=1
    rm -f "$log"
    return "$code"
}
