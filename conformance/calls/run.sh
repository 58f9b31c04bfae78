#!/usr/bin/env bash
# Calls between Chromium and Chromium, Firefox, aiortc and Pion, over mesh, relay and SFU: run.sh [--quick]
# [PEER-PATH ..], for example pion-mesh (see ../README.md).
source "$(dirname "$0")/../common.sh"
here=$conformance/calls
tools=$cache_root/millrace-calls
export PATH=$PATH:/usr/sbin:/usr/local/go/bin PYTHONDONTWRITEBYTECODE=1

command -v node >/dev/null || skip "Node.js is not here"
[ -e "$root/sdk/typescript/node_modules/puppeteer-core" ] || skip "sdk/typescript/node_modules is not there: \`make sdk\` first"
[ -x "${CHROMIUM:-/usr/bin/chromium}" ] || skip "Chromium is not here (scripts/setup.sh installs it)"
[ -x "${FIREFOX:-/usr/bin/firefox-esr}" ] || skip "firefox-esr is not here (scripts/setup.sh installs it)"
command -v tc >/dev/null || skip "the network needs \`ip\` and \`tc\` (iproute2)"
namespace=(unshare --net)
[ "$(id -u)" -eq 0 ] || namespace=(unshare --user --map-root-user --net)
"${namespace[@]}" tc qdisc add dev lo root tbf rate 1mbit burst 6000 latency 300ms 2>"$work/tc.log" ||
    skip "no network namespace with a token bucket filter: $(head -1 "$work/tc.log")"

# A tool is named after everything that it is made from.
version() { cat "$@" | sha256sum | cut -c1-16; }

python_peer=$tools/python-$(version "$here/requirements.txt" "$here/peers/film.py")
if [ ! -e "$python_peer/films" ]; then
    echo "installing aiortc into $python_peer"
    rm -rf "$python_peer" && mkdir -p "$python_peer"
    { python3 -m venv "$python_peer/venv" &&
        "$python_peer/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt" &&
        "$python_peer/venv/bin/python" "$here/peers/film.py" "$work/films" &&
        mv "$work/films" "$python_peer/films"; } 2>"$work/pip.log" ||
        { cat "$work/pip.log" >&2; skip "aiortc could not be installed"; }
fi
pion_peer=$tools/pion-$(version "$here"/peers/pion/*.go "$here"/peers/pion/go.*)
if [ ! -x "$pion_peer" ]; then
    go=$(command -v go) || skip "the Pion peer is built with Go, which is not here"
    echo "building the Pion peer into $pion_peer"
    (cd "$here/peers/pion" && "$go" build -o "$work/pion" .) 2>"$work/go.log" ||
        { cat "$work/go.log" >&2; skip "the Pion peer could not be built"; }
    mkdir -p "$tools" && mv "$work/pion" "$pion_peer"
fi
mkdir "$work/run"
ln -s "$python_peer/venv" "$python_peer/films" "$work/run/"
ln -s "$pion_peer" "$work/run/pion"

status=0
timeout "$limit_s" "${namespace[@]}" node "$here/run.mjs" "$binary" "$work/run" "$@" || status=$?
if [ -n "${REPORTS:-}" ]; then mkdir -p "$REPORTS" && cp "$work"/run/*.json "$work"/run/*.log "$REPORTS"; fi
[ "$status" -eq 0 ] || tail -n 40 "$work/run/calls.log" >&2
exit "$status"
