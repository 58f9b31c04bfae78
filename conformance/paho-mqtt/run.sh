#!/usr/bin/env bash
# Runs Eclipse Paho's MQTT client for Python against the real binary, over TCP, TLS and WebSocket (see ../README.md).
source "$(dirname "$0")/../common.sh"
version=2.1.0
# SHA-256 of the package, which is pure Python.
hash=6db9ba9b34ed5bc6b6e3812718c7e06e2fd7444540df2455d2c51bd58808feee
library=$cache_root/millrace-paho-mqtt/$version

command -v python3 >/dev/null || skip "Python 3 is not here"
# `installed` is written last, so an interrupted installation is not taken for a complete one.
if [ ! -e "$library/installed" ]; then
    python3 -m pip --version >/dev/null 2>&1 || skip "paho-mqtt is installed with pip, which is not here"
    echo "installing paho-mqtt $version into $library"
    rm -rf "$library" && mkdir -p "$library"
    echo "paho-mqtt==$version --hash=sha256:$hash" >"$work/requirements"
    python3 -m pip install -q --disable-pip-version-check --no-deps --require-hashes --target "$library" \
        -r "$work/requirements" 2>"$work/pip.log" ||
        { cat "$work/pip.log" >&2; skip "paho-mqtt could not be installed"; }
    touch "$library/installed"
fi

serve --set mqtt.listen=127.0.0.1:0
find_mqtt_port
plain="$mqtt_port $port"
servers=("$server")
"$binary" cert dev --dir "$work/tls" >"$work/made"
serve --set mqtt.listen=127.0.0.1:0 --set "tls.cert=$work/tls/cert.pem" --set "tls.key=$work/tls/key.pem"
find_mqtt_port
servers+=("$server")
# shellcheck disable=SC2086
PYTHONPATH=$library timeout "${LIMIT_S:-180}" python3 "$conformance/paho-mqtt/run.py" $plain "$mqtt_port" "$port" "$work/tls/ca.pem"
for server in "${servers[@]}"; do check_alive; done
