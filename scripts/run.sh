#!/usr/bin/env bash
# Serves with a simulated fleet and a simulated ticker until Ctrl-C: run.sh BINARY LISTEN CARS SEED [FLAG ..]
set -euo pipefail
binary=$1 listen=$2 cars=$3 seed=$4
shift 4
case $listen in *:*) ;; *) listen=127.0.0.1:$listen ;; esac

output=$(mktemp)
"$binary" serve --listen "$listen" --udp "$listen" "$@" >"$output" &
server=$!
fleet= ticker=
stop() {
    trap - EXIT INT TERM
    [ -z "$fleet" ] || kill "$fleet" "$ticker" 2>/dev/null || true
    kill "$server" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -f "$output"
}
trap stop EXIT
trap 'exit 0' INT TERM

for _ in $(seq 100); do
    url=$(sed -n 's/^listening on //p' "$output")
    [ -n "$url" ] && break
    kill -0 "$server" 2>/dev/null || exit 1
    sleep 0.05
done
[ -n "$url" ] || { echo "the server did not start within 5 s" >&2; exit 1; }
port=${url##*:}

"$binary" simulate fleet --cars "$cars" --seed "$seed" --to "http://127.0.0.1:$port" &
fleet=$!
"$binary" simulate ticker --to "http://127.0.0.1:$port" 2>/dev/null &
ticker=$!

cat <<TXT

  Millrace is running with $cars simulated cars and six simulated prices.

    start here    http://127.0.0.1:$port/
    the fleet     http://127.0.0.1:$port/carcare
    the prices    http://127.0.0.1:$port/ticker
    transports    http://127.0.0.1:$port/race
    read more     http://127.0.0.1:$port/docs
    in a shell    make install, then: millrace sub 'cars/+/telemetry' --to http://127.0.0.1:$port
TXT
sed -n 's/^reachable at /    on the phone  /p' "$output" | grep -v localhost || true
case $listen in 127.*|localhost*) echo "    on the phone  see the README, \"For the phones in this network\"" ;; esac
printf '\n  Ctrl-C stops both.\n\n'
wait "$server"
