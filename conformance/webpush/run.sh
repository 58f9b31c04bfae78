#!/usr/bin/env bash
# Receives Web Push messages of the real binary, decrypts them with a third-party library, and shows one in Chromium
# (see ../README.md).
source "$(dirname "$0")/../common.sh"
command -v node >/dev/null || skip "Node.js is not here"
[ -e "$root/sdk/typescript/node_modules/http_ece" ] || skip "sdk/typescript/node_modules is not there: \`make sdk\` first"

"$binary" token key --alg ES256 --out "$work/key.pem" >/dev/null
# The push service of the suite needs a port before the server starts; the suite starts both.
timeout "${LIMIT_S:-120}" node "$conformance/webpush/run.mjs" "$binary" "$work"
