#!/usr/bin/env bash
# The quick form of each suite, one after the other; all of them on demand: README.md.
set -uo pipefail
cd "$(dirname "$0")"
source ../scripts/steps.sh
failed=0

suite() { # name, command..
    local name=$1 start=$SECONDS
    shift
    printf -- '--- %s\n' "$name"
    rerun "conformance, $name" "$@" || { failed=$((failed + 1)); echo "FAILED: $name"; }
    echo "$((SECONDS - start)) s"
}

# Without the limits (9.*), and of compression one set of parameters and its shortest cases.
suite "Autobahn" autobahn/run.sh '1.*' '2.*' '3.*' '4.*' '5.*' '6.1.*' '6.2.*' '7.*' '10.*' '12.1.1' '12.2.1' '13.1.1' '13.3.1' '13.7.1'
suite "h2spec" h2spec/run.sh
suite "h2spec, TLS" h2spec/run.sh --tls
suite "TLS" tls/run.sh
suite "event streams" eventstream/run.sh
suite "tokens" jwt/run.sh
suite "slowhttptest" slowhttptest/run.sh --quick
[ "$failed" -eq 0 ]
