#!/usr/bin/env bash
# Prints the path of durable-streams-server, a rival of `make bench` and of the lab. Builds it with cargo if it is
# missing.
set -euo pipefail
version=0.1.5
root=${XDG_CACHE_HOME:-$HOME/.cache}/millrace/lab/durable-streams/$version
tool=$root/bin/durable-streams-server

if [ ! -x "$tool" ]; then
    echo "building durable-streams $version into $root" >&2
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    CARGO_TARGET_DIR=$work/target timeout 900 cargo install durable-streams --version "$version" --locked --root "$work/root" >&2
    mkdir -p "${root%/*}"
    mv "$work/root" "$root"
fi
echo "$tool"
