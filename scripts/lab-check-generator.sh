#!/usr/bin/env bash
# Compares the lab's request figures with those of a second generator: `wrk` sends the same requests to the same server.
#
#   scripts/lab-check-generator.sh [-c CONNECTIONS] [-n TURNS] [-s SECONDS] MILLRACE [REQUESTS]
#
# MILLRACE runs on CPU 0. The lab and wrk send requests in turns from CPU 1, the next request after each response.
# REQUESTS is the lab's client; without it, crates/lab/examples/requests.rs is built. The lab reads the server's CPU
# time in its turns; this script reads it from /proc/PID/task/*/schedstat in the turns of wrk.
#
# Turns are many and short, and each turn of the lab is compared with the adjacent turn of wrk, because the speed of
# some machines halves within seconds. Takes 50 seconds. Exits with 1 if the median of these ratios is more than 5 %
# off, and with 2 if other processes needed the machine.
set -euo pipefail

connections=64 turns=20 seconds=1
while getopts c:n:s: option; do
    case $option in
    c) connections=$OPTARG ;;
    n) turns=$OPTARG ;;
    s) seconds=$OPTARG ;;
    *) exit 3 ;;
    esac
done
shift $((OPTIND - 1))
millrace=${1:?which program? Such as target/release/millrace}
requests=${2:-}

skip() { echo "SKIPPED: $1, so the figures of the lab were held against nothing"; exit 0; }
[ "$(nproc)" -ge 2 ] || skip "one CPU is not enough for a server and a generator"
if ! command -v wrk >/dev/null; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || skip "wrk is not installed (Debian: apt-get install wrk)"
    apt-get install -y --no-install-recommends wrk >/dev/null 2>&1 || skip "apt-get install wrk fails"
fi
if [ -z "$requests" ]; then
    requests=$(cargo build --release --locked -p millrace-lab --example requests --message-format=json |
        sed -n 's/.*"executable":"\([^"]*\/requests\)".*/\1/p' | tail -n 1)
fi

work=$(mktemp -d)
taskset -c 0 "$millrace" serve --listen 127.0.0.1:0 --shards 1 >"$work/log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
for _ in $(seq 100); do
    url=$(sed -n 's/.*listening on \(http:[^ ]*\).*/\1/p' "$work/log")
    [ -z "$url" ] || break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
done
[ -n "$url" ] || { cat "$work/log" >&2; exit 3; }
address=${url#http://} address=${address%/}
path=/v1/channels/check?since=earliest
curl -sSf -o "$work/published" -H 'Content-Type: application/json' --data "[\"$(printf 'x%.0s' $(seq 169))\"]" "http://$address/v1/channels/check"

# Sums over the server's threads, in us. Field 1: CPU time used. Field 2: time spent waiting for a CPU that other
# processes used.
sched_us() { cat "/proc/$server/task/"*/schedstat | awk -v field="$1" '{ sum += $field } END { printf "%.0f", sum / 1000 }'; }

# Each function prints: requests per second, CPU us of the server per request, median response time in ms, the
# server's share of a CPU.
by_lab() {
    timeout $((seconds + 20)) "$requests" "$address" "$path" "$server" "$connections" "$seconds"
}
by_wrk() {
    local before after
    before=$(sched_us 1)
    # Sends the headers of the lab, so that requests are equal to the byte.
    timeout $((seconds + 20)) taskset -c 1 wrk -t 1 -c "$connections" -d "${seconds}s" --latency -H 'Host: lab' -H 'Accept: application/json' \
        "http://$address$path" >"$work/said"
    after=$(sched_us 1)
    ! grep -E 'Non-2xx|Socket errors' "$work/said" >&2 || exit 3
    awk -v cpu_us=$((after - before)) -v seconds="$seconds" '
        $1 == "50%" { ms = $2 + 0; if ($2 ~ /us$/) ms /= 1000; else if ($2 !~ /ms$/) ms *= 1000 }
        $2 == "requests" { answered = $1 }
        $1 == "Requests/sec:" { rate = $2 }
        END { printf "%.0f %.3f %.3f %.3f\n", rate, cpu_us / answered, ms, cpu_us / 1e6 / (answered / rate) }' "$work/said"
}

echo "        requests/s  server us/request  p50 ms  server's CPU"
for turn in $(seq "$turns"); do
    # The first side alternates, so that a machine that slows down affects both sides equally.
    crowded= sides="lab wrk"
    [ $((turn % 2)) = 1 ] || sides="wrk lab"
    for side in $sides; do
        waited=$(sched_us 2)
        by_$side >"$work/$side.now"
        # shellcheck disable=SC2046 # four words
        printf '%-6s %11s %18s %7s %13s\n' $side $(cat "$work/$side.now")
        [ $(($(sched_us 2) - waited)) -le $((seconds * 50000)) ] || crowded=1
    done
    if [ -n "$crowded" ]; then
        echo "left out: others had the server's CPU for more than 5 % of the time"
    else
        paste -d' ' "$work/lab.now" "$work/wrk.now" >>"$work/pairs"
    fi
done
pairs=$(cat "$work/pairs" 2>/dev/null | wc -l)
[ $((pairs * 2)) -ge "$turns" ] || { echo "the machine is busy; run it again" >&2; exit 2; }

# Prints the median of an expression over all pairs. Fields 1 to 4 belong to the lab, 5 to 8 to wrk.
median() { awk "{ print $1 }" "$work/pairs" | sort -g | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }
failed=0
compare() { # COLUMN NAME JUDGED
    awk -v name="$2" -v lab="$(median "\$$1")" -v wrk="$(median "\$$(($1 + 4))")" -v ratio="$(median "\$$1 / \$$(($1 + 4))")" -v judged="$3" 'BEGIN {
        off = judged && (ratio > 1.05 || ratio < 1 / 1.05)
        printf "%-18s lab %10.3f, wrk %10.3f; in a pair %+.1f %%%s\n", name, lab, wrk, (ratio - 1) * 100, off ? "  MORE THAN 5 %" : judged ? "" : "  (not judged)"
        exit off
    }' || failed=1
}
# Request rates measure the server only where the server was the limit on both sides.
limit=$(awk -v lab="$(median '$4')" -v wrk="$(median '$8')" 'BEGIN { print (lab > 0.95 && wrk > 0.95) }')
echo "medians of $pairs pairs, $connections connections:"
compare 2 "server us/request" 1
compare 1 "requests/s" "$limit"
compare 3 "p50 ms" 0
[ "$limit" = 1 ] || echo "the server was not the limit in both, so their requests/s say nothing about it"
exit "$failed"
