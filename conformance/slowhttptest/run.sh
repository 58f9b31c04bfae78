#!/usr/bin/env bash
# Runs slowhttptest's four attacks concurrently against the real binary: run.sh [--quick] (see ../README.md).
source "$(dirname "$0")/../common.sh"
command -v slowhttptest >/dev/null || skip "slowhttptest is not here (Debian: apt-get install slowhttptest)"
# Connections per attack, new connections per second, duration of the test in seconds, and the server's timeouts. The
# quick form uses smaller values.
connections=1000 rate=100 seconds=60 header_s=10 body_s=30 write_s=30
if [ "${1:-}" = --quick ]; then
    connections=100 rate=50 seconds=10 header_s=3 body_s=3 write_s=3
fi

serve --set limits.header_timeout=${header_s}s --set limits.body_timeout=${body_s}s --set limits.write_timeout=${write_s}s
url=http://$authority/v1/channels/slow
# The answer is too large for a socket to accept in one write.
head -c 1000000 /dev/zero | tr '\0' x | curl -fsS -o "$work/answer" -H 'content-type: text/plain' --data-binary @- "$url"

attack() { # name, arguments of slowhttptest..
    local name=$1
    shift
    timeout $((seconds + 30)) slowhttptest "$@" -c $connections -r $rate -l $seconds -p 3 -u "$url" -g -o "$work/$name" -v 1 \
        </dev/null >"$work/$name.txt" 2>&1 &
    attacks+=($!)
}
attacks=()
attack headers -H -i 1 -x 24
attack body -B -i 1 -x 10 -s 8192 -f text/plain
attack range -R -a 1 -b 3000 -t GET
attack read -X -w 512 -y 1024 -n 2 -z 32 -k 3
children+=("${attacks[@]}")
# Counts the server's established connections once a second. A slow reader cannot detect that the server has closed its
# connection, because the kernel continues to send buffered data.
{
    while sleep 1; do awk -v at=":$(printf %04X "$port")\$" '$2 ~ at && $4 == "01"' /proc/net/tcp | wc -l; done >"$work/held"
} &
children+=($!)
# slowhttptest exits with 0 regardless of its findings.
for pid in "${attacks[@]}"; do wait "$pid" || true; done
check_alive
if [ -n "${REPORTS:-}" ]; then mkdir -p "$REPORTS" && cp "$work/held" "$work"/*.csv "$work"/*.html "$work"/*.txt "$REPORTS"; fi
python3 "$conformance/slowhttptest/verdict.py" "$work" headers=$header_s body=$body_s read=$write_s range=
