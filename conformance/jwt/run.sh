#!/usr/bin/env bash
# Sends invalid tokens, made by a third-party library, to every endpoint of the real binary (see ../README.md).
source "$(dirname "$0")/../common.sh"
command -v node >/dev/null || skip "Node.js is not here"
[ -e "$root/sdk/typescript/node_modules/jose" ] || skip "sdk/typescript/node_modules is not there: \`make sdk\` first"

# Creates keys of every type, a configuration with the public keys, and keys.json with the private keys and the secret.
node "$conformance/jwt/keys.mjs" "$work"
serve --config "$work/millrace.toml"
timeout "${LIMIT_S:-120}" node "$conformance/jwt/run.mjs" "$work" "$authority"
check_alive
! grep -q 'eyJ' "$work/log" "$work/output" || { echo "FAILED: a token is in the log" >&2; exit 1; }
