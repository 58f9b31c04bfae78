#!/usr/bin/env bash
# Autobahn's fuzzing client against the real binary: run.sh [CASES...], such as "9.*" or "12.1.*" (see README.md).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/millrace-autobahn
target=${CARGO_TARGET_DIR:-$here/../../target}
binary=${MILLRACE_BIN:-$target/debug/millrace}
limit_s=${LIMIT_S:-3600}
[ $# -gt 0 ] || set -- '1.*' '2.*' '3.*' '4.*' '5.*' '6.*' '7.*' '9.*' '10.*'

[ -x "$binary" ] || { echo "no $binary: \`cargo build -p millrace-cli\` first, or say MILLRACE_BIN=.." >&2; exit 1; }

# The suite is frozen at Python 2.
python2=
for candidate in "${PYTHON2:-}" python2.7 python2 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/2.7*/bin/python; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (2, 7))' 2>/dev/null; then
        python2=$candidate
        break
    fi
done
if [ -z "$python2" ]; then
    echo "skipped: Autobahn needs Python 2.7, which is not here (PYTHON2=.. names one); nothing was checked"
    exit 0
fi

# `installed` is written last, so a cut installation is never taken for a whole one.
if [ ! -e "$cache/installed" ]; then
    echo "installing autobahntestsuite 0.8.2 into $cache"
    rm -rf "$cache" && mkdir -p "$cache"
    "$python2" -m pip install -q --disable-pip-version-check --target "$cache/virtualenv" 'virtualenv==20.15.1' 2>"$cache/log" &&
        PYTHONPATH=$cache/virtualenv "$python2" -m virtualenv -q "$cache/suite" 2>>"$cache/log" &&
        "$cache/suite/bin/pip" install -q --disable-pip-version-check 'autobahntestsuite==0.8.2' 2>>"$cache/log" ||
        { cat "$cache/log" >&2; echo "the suite could not be installed" >&2; exit 1; }
    touch "$cache/installed"
fi

work=$(mktemp -d)
server=
stop() {
    [ -z "$server" ] || { kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; }
    rm -rf "$work"
}
trap stop EXIT

# Section 9 sends messages of 16 MiB: they must fit the history, too, or a bare reader is told that it missed one.
"$binary" serve --listen 127.0.0.1:0 --set limits.message_bytes_max=33554432 --set history.bytes_max=67108864 \
    ${MILLRACE_ARGS:-} >"$work/output" 2>"$work/log" &
server=$!
url=
for _ in $(seq 200); do
    url=$(sed -n 's|^listening on http://||p' "$work/output")
    [ -n "$url" ] && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.05
done
[ -n "$url" ] || { cat "$work/log" >&2; echo "the server did not start within 10 s" >&2; exit 1; }

# What is sent to a bare channel comes back. Each case has its own connection, which starts at `now`.
patterns=$(printf '"%s",' "$@")
cat >"$work/spec.json" <<JSON
{"outdir": "$work/reports", "cases": [${patterns%,}], "exclude-cases": [], "exclude-agent-cases": {},
 "servers": [{"agent": "millrace", "url": "ws://${url%/}/v1/channels/autobahn"}]}
JSON
(cd "$work" && timeout "$limit_s" "$cache/suite/bin/wstest" -m fuzzingclient -s spec.json) >"$work/wstest" 2>&1 ||
    { tail -20 "$work/wstest" >&2; echo "the fuzzing client failed, or was not done within $limit_s s" >&2; exit 1; }
kill -0 "$server" 2>/dev/null || { cat "$work/log" >&2; echo "the server has ended" >&2; exit 1; }

if [ -n "${REPORTS:-}" ]; then mkdir -p "$REPORTS" && cp -r "$work/reports/." "$REPORTS"; fi
"$cache/suite/bin/python" -W ignore "$here/verdict.py" "$work/spec.json"
