# Sourced by each run.sh: sets the binary and a working folder, starts a server on a free port, and cleans up on exit.
# shellcheck shell=bash
set -euo pipefail
conformance=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$conformance")
cache_root=${XDG_CACHE_HOME:-$HOME/.cache}
binary=${MILLRACE_BIN:-${CARGO_TARGET_DIR:-$root/target}/debug/millrace}
limit_s=${LIMIT_S:-3600}
work=$(mktemp -d)
children=()

[ -x "$binary" ] || { echo "no $binary: \`cargo build -p millrace-cli\` first, or say MILLRACE_BIN=.." >&2; exit 1; }

stop_all() {
    local child
    for child in "${children[@]}"; do kill "$child" 2>/dev/null || true; done
    for child in "${children[@]}"; do wait "$child" 2>/dev/null || true; done
    rm -rf "$work"
}
trap stop_all EXIT

# Ends a suite that cannot run on this machine. The message makes clear that nothing was checked.
skip() { echo "skipped: $*; nothing was checked"; exit 0; }

# Starts the server with these arguments and MILLRACE_ARGS. Sets `server`, `authority` (HOST:PORT), `host` and `port`.
serve() {
    : >"$work/output"
    "$binary" serve --listen 127.0.0.1:0 "$@" ${MILLRACE_ARGS:-} >"$work/output" 2>"$work/log" &
    server=$!
    children+=("$server")
    authority=
    for _ in $(seq 200); do
        authority=$(sed -nE 's|^listening on https?://([^/ ]+).*|\1|p' "$work/output" | head -1)
        [ -n "$authority" ] && break
        kill -0 "$server" 2>/dev/null || break
        sleep 0.05
    done
    [ -n "$authority" ] || { cat "$work/log" >&2; echo "the server did not start within 10 s" >&2; exit 1; }
    host=${authority%:*} port=${authority##*:}
}

# Sets `mqtt_port`, the port of MQTT of the server that `serve --set mqtt.listen=127.0.0.1:0` has started last.
find_mqtt_port() {
    mqtt_port=$(sed -nE 's/.*serving MQTT.*address=[^ ]*:([0-9]+).*/\1/p' "$work/log" | head -1)
    [ -n "$mqtt_port" ] || { cat "$work/log" >&2; echo "the server does not serve MQTT" >&2; exit 1; }
}

# Fails if the server has ended, even if the suite passed.
check_alive() { kill -0 "$server" 2>/dev/null || { cat "$work/log" >&2; echo "the server has ended" >&2; exit 1; }; }
