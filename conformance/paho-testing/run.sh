#!/usr/bin/env bash
# Runs the interoperability tests of Eclipse Paho for MQTT 3.1.1 and MQTT 5 against the real binary (see ../README.md).
# PAHO_TESTING names a clone of the suite for machines that cannot reach its repository.
source "$(dirname "$0")/../common.sh"
repository=https://github.com/eclipse-paho/paho.mqtt.testing
# The hash of the commit covers all files.
commit=9d7bb80bb8b9d9cfc0b52f8cb4c1916401281103
suite=$cache_root/millrace-paho-testing/$commit

command -v python3 >/dev/null || skip "Python 3 is not here"
if [ ! -e "$suite/installed" ]; then
    command -v git >/dev/null || skip "the suite is fetched with git, which is not here"
    from=${PAHO_TESTING:-$repository}
    echo "installing the suite into $suite"
    rm -rf "$suite" && mkdir -p "$suite"
    git init --quiet --bare "$work/suite.git"
    # A repository of this machine may have no branch that ends with the commit; then all of it is fetched.
    timeout 120 git -C "$work/suite.git" fetch --quiet --depth 1 "$from" "$commit" 2>"$work/git.log" ||
        timeout 120 git -C "$work/suite.git" fetch --quiet "$from" 2>>"$work/git.log" ||
        { cat "$work/git.log" >&2; skip "$from could not be fetched; PAHO_TESTING=.. names a clone"; }
    git -C "$work/suite.git" archive "$commit" interoperability | tar -x -C "$suite" ||
        skip "$from has no commit $commit"
    touch "$suite/installed"
fi

# Each version has a server of its own, because both use the same client identifiers. `test_server_keep_alive` expects
# that the server has a shorter keep alive than the client.
declare -A running
servers=()
for version in client_test client_test5; do
    serve --set mqtt.listen=127.0.0.1:0 --set mqtt.keep_alive_max=60s
    find_mqtt_port
    servers+=("$server")
    mapfile -t explained < <(awk -v version="$version" '$1 == version { print $2 }' "$conformance/paho-testing/explained.txt")
    timeout "$limit_s" python3 "$conformance/paho-testing/suite.py" "$suite/interoperability" "$version" "$mqtt_port" \
        "$work/$version.json" "${explained[@]}" >"$work/$version.txt" 2>&1 &
    running[$version]=$!
done
for version in "${!running[@]}"; do
    wait "${running[$version]}" || { tail -20 "$work/$version.txt" >&2; echo "$version did not end in time" >&2; exit 1; }
done
for server in "${servers[@]}"; do check_alive; done
if [ -n "${REPORTS:-}" ]; then mkdir -p "$REPORTS" && cp "$work"/client_test*.{json,txt} "$REPORTS"; fi
python3 "$conformance/paho-testing/verdict.py" "$work/client_test.json" "$work/client_test5.json"
