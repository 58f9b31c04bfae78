#!/usr/bin/env bash
# Runs the quick form of each suite, one after the other. README.md describes the full forms.
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

# Without the limit cases (9.*). Of the compression cases only the shortest, with few sets of parameters.
suite "Autobahn" autobahn/run.sh '1.*' '2.*' '3.*' '4.*' '5.*' '6.1.*' '6.2.*' '7.*' '10.*' '12.1.1' '12.2.1' '13.1.1' '13.3.1' '13.7.1'
suite "h2spec" h2spec/run.sh
suite "h2spec, TLS" h2spec/run.sh --tls
suite "TLS" tls/run.sh
suite "event streams" eventstream/run.sh
suite "tokens" jwt/run.sh
suite "Web Push" webpush/run.sh
suite "MQTT, paho-mqtt" paho-mqtt/run.sh
suite "MQTT, tests of Eclipse Paho" paho-testing/run.sh
suite "slowhttptest" slowhttptest/run.sh --quick
suite "calls" calls/run.sh --quick
[ "$failed" -eq 0 ]
