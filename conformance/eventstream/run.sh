#!/usr/bin/env bash
# Tests event streams: the vectors in a real Chromium, and the output of the real binary in Chromium and in another
# parser (see ../README.md).
source "$(dirname "$0")/../common.sh"
command -v node >/dev/null || skip "Node.js is not here"
[ -e "$root/sdk/typescript/node_modules/eventsource-parser" ] || skip "sdk/typescript/node_modules is not there: \`make sdk\` first"
chromium=${CHROMIUM:-/usr/bin/chromium}
[ -x "$chromium" ] || skip "Chromium is not at $chromium (CHROMIUM=.. names one)"
CHROMIUM=$chromium timeout "${LIMIT_S:-300}" node "$conformance/eventstream/run.mjs" "$binary"
