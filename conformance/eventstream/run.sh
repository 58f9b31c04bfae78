#!/usr/bin/env bash
# Event streams: the vectors in a real Chromium, and what the real binary sends in Chromium and in another parser (see ../README.md).
source "$(dirname "$0")/../common.sh"
command -v node >/dev/null || skip "Node.js is not here"
[ -e "$root/sdk/node_modules/eventsource-parser" ] || skip "sdk/node_modules is not there: \`make sdk\` first"
chromium=${CHROMIUM:-/usr/bin/chromium}
[ -x "$chromium" ] || skip "Chromium is not at $chromium (CHROMIUM=.. names one)"
CHROMIUM=$chromium timeout "${LIMIT_S:-300}" node "$conformance/eventstream/run.mjs" "$binary"
