#!/usr/bin/env bash
# Runs h2spec against the real binary: run.sh [--tls] [SECTIONS...], for example "http2/6.5" or "hpack" (see
# ../README.md).
source "$(dirname "$0")/../common.sh"
version=v2.2.1+incompatible
tool=$cache_root/millrace-h2spec/h2spec-$version

if [ ! -x "$tool" ]; then
    go=$(PATH=$PATH:/usr/local/go/bin command -v go) || skip "h2spec is built with Go, which is not here"
    echo "installing h2spec $version into ${tool%/*}"
    GOBIN=$work/go "$go" install "github.com/summerwind/h2spec/cmd/h2spec@$version" 2>"$work/go.log" ||
        { cat "$work/go.log" >&2; skip "h2spec could not be installed"; }
    mkdir -p "${tool%/*}" && mv "$work/go/h2spec" "$tool"
fi

if [ "${1:-}" = --tls ]; then
    shift
    "$binary" cert dev --dir "$work/tls" >"$work/made"
    serve --set "tls.cert=$work/tls/cert.pem" --set "tls.key=$work/tls/key.pem"
    scheme=https tls=(-t -k)
else
    serve
    scheme=http tls=()
fi

# Writes the report of one run to FILE: h2spec FILE PATH [SECTIONS...]. The tool exits with 1 if a case failed;
# verdict.py decides which failures are allowed.
h2spec() {
    local report=$1 path=$2
    shift 2
    timeout "$limit_s" "$tool" "${tls[@]}" -h "$host" -p "$port" -P "$path" -S -o "${TIMEOUT_S:-2}" -j "$report" "$@" >"${report%.xml}.txt" 2>&1 || true
    check_alive
    [ -s "$report" ] || { cat "${report%.xml}.txt" >&2; echo "h2spec made no report" >&2; exit 1; }
}

# This path answers GET and POST with 200 and a body, which most cases require.
path=/v1/channels/h2spec
curl -fsSk -o "$work/answer" -d '"h2spec"' "$scheme://$authority$path"
h2spec "$work/report.xml" "$path" "$@"
# Some cases violate the protocol within an open request and fail if the answer arrives before the error. The failed
# cases run again on a path that delays the answer.
failed=$(python3 "$conformance/h2spec/verdict.py" --failed "$work/report.xml")
reports=("$work/report.xml")
if [ -n "$failed" ]; then
    # shellcheck disable=SC2086
    h2spec "$work/again.xml" "$path?wait=200ms" $failed
    reports+=("$work/again.xml")
fi
if [ -n "${REPORTS:-}" ]; then mkdir -p "$REPORTS" && cp "${reports[@]}" "$work"/*.txt "$REPORTS"; fi
python3 "$conformance/h2spec/verdict.py" "${reports[@]}"
