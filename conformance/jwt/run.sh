#!/usr/bin/env bash
# Tokens that must not be taken, made by another library, on every way into the real binary (see ../README.md).
source "$(dirname "$0")/../common.sh"
command -v node >/dev/null || skip "Node.js is not here"
[ -e "$root/sdk/node_modules/jose" ] || skip "sdk/node_modules is not there: \`make sdk\` first"

# Keys of every kind, and a configuration that knows the public ones; what else the vectors need is in keys.json.
node "$conformance/jwt/keys.mjs" "$work"
serve --config "$work/millrace.toml"
timeout "${LIMIT_S:-120}" node "$conformance/jwt/run.mjs" "$work" "$authority"
check_alive
! grep -q 'eyJ' "$work/log" "$work/output" || { echo "FAILED: a token is in the log" >&2; exit 1; }
