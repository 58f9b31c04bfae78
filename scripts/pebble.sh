#!/usr/bin/env bash
# Prints the path of Pebble, the ACME server of the tests (crates/cli/tests/it/acme.rs). Builds it with Go if it is
# missing.
set -euo pipefail
version=v2.10.1
tool=${XDG_CACHE_HOME:-$HOME/.cache}/millrace-pebble/pebble-$version

if [ ! -x "$tool" ]; then
    go=$(PATH=$PATH:/usr/local/go/bin command -v go) || { echo "Pebble is built with Go, which is not here" >&2; exit 1; }
    echo "installing Pebble $version into ${tool%/*}" >&2
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    GOBIN=$work timeout 300 "$go" install "github.com/letsencrypt/pebble/v2/cmd/pebble@$version" >&2
    mkdir -p "${tool%/*}"
    mv "$work/pebble" "$tool"
fi
echo "$tool"
