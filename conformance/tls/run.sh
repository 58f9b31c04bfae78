#!/usr/bin/env bash
# Tests the real binary with TLS clients of all kinds, outdated and invalid ones included, with OpenSSL and curl
# (see ../README.md).
source "$(dirname "$0")/../common.sh"
command -v openssl >/dev/null || skip "openssl is not here"

"$binary" cert dev --dir "$work/tls" >"$work/made"
serve --set "tls.cert=$work/tls/cert.pem" --set "tls.key=$work/tls/key.pem"
passed=0 failed=0

judge() { # name, result (0 passed, 1 failed), output
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED: %s\n%s\n' "$1" "$(tail -n 12 <<<"$3" | sed 's/^/    /')"
    fi
}
# Prints the output of `openssl s_client` with these arguments. Standard input is sent to the server.
client() { timeout 10 openssl s_client -connect "$authority" -CAfile "$work/tls/ca.pem" -verify_return_error "$@" 2>&1 || true; }
# NAME PATTERN ARGUMENTS..: the handshake succeeds, and the output matches the pattern.
takes() {
    local name=$1 pattern=$2 heard
    shift 2
    heard=$(client "$@" </dev/null)
    if grep -q 'Verify return code: 0 (ok)' <<<"$heard" && grep -qE "$pattern" <<<"$heard"; then judge "$name" 0; else judge "$name" 1 "$heard"; fi
}
# NAME PATTERN ARGUMENTS..: the handshake fails, and the output matches the pattern, such as the server's alert.
refuses() {
    local name=$1 pattern=$2 heard
    shift 2
    heard=$(client "$@" </dev/null)
    if grep -qE 'Cipher is \(NONE\)|Cipher    : 0000' <<<"$heard" && grep -qE "$pattern" <<<"$heard"; then judge "$name" 0; else judge "$name" 1 "$heard"; fi
}

# Versions. Source: RFC 8996 (TLS 1.0 and 1.1 must not be used).
old='DEFAULT:@SECLEVEL=0'
refuses 'TLS 1.0' 'alert (protocol version|handshake failure)' -tls1 -cipher "$old"
refuses 'TLS 1.1' 'alert (protocol version|handshake failure)' -tls1_1 -cipher "$old"
takes 'TLS 1.2' 'Protocol  : TLSv1.2' -tls1_2
takes 'TLS 1.3' 'New, TLSv1.3' -tls1_3

# Ciphers. Source: RFC 9325, section 4: forward secrecy and authenticated encryption only.
for cipher in ECDHE-ECDSA-AES128-GCM-SHA256 ECDHE-ECDSA-AES256-GCM-SHA384 ECDHE-ECDSA-CHACHA20-POLY1305; do
    takes "TLS 1.2, $cipher" "Cipher is $cipher" -tls1_2 -cipher "$cipher"
done
for suite in TLS_AES_128_GCM_SHA256 TLS_AES_256_GCM_SHA384 TLS_CHACHA20_POLY1305_SHA256; do
    takes "TLS 1.3, $suite" "Cipher is $suite" -tls1_3 -ciphersuites "$suite"
done
for weak in ECDHE-ECDSA-AES128-SHA ECDHE-ECDSA-AES256-SHA384 AES128-SHA AES128-GCM-SHA256 DHE-RSA-AES128-GCM-SHA256 CAMELLIA128-SHA NULL-SHA256 \
    ECDHE-ECDSA-NULL-SHA aNULL ECDHE-ECDSA-AES128-CCM; do
    refuses "TLS 1.2, $weak" 'alert handshake failure' -tls1_2 -cipher "$weak:@SECLEVEL=0"
done
# Weak signatures and curves.
refuses 'signatures with SHA-1 only' 'alert (handshake failure|decrypt error|illegal parameter)' -tls1_2 -sigalgs ECDSA+SHA1 -cipher "$old"
refuses 'a small curve only' 'alert (handshake failure|illegal parameter)' -tls1_2 -curves secp224r1

# Source: RFC 7301, section 3.2: the server refuses an unsupported protocol with an alert and does not ignore it.
takes 'ALPN h2' 'ALPN protocol: h2' -alpn h2,http/1.1
takes 'ALPN http/1.1' 'ALPN protocol: http/1.1' -alpn http/1.1
takes 'no ALPN' 'No ALPN negotiated' -servername localhost
refuses 'ALPN of something else' 'alert no application protocol' -tls1_2 -alpn smtp

# Known attacks on TLS: compression (RFC 7457, section 2.6), renegotiation (2.10), early data (RFC 8446, section 8).
takes 'no compression' 'Compression: NONE' -tls1_2 -comp
takes 'secure renegotiation is known' 'Secure Renegotiation IS supported' -tls1_2
heard=$( (echo R; sleep 1) | client -tls1_2)
if grep -q RENEGOTIATING <<<"$heard" && [ "$(grep -c 'verify return:1' <<<"$heard")" -le 4 ] && ! grep -q 'HTTP/1.1 200' <<<"$heard"; then
    judge 'a client may not renegotiate' 0
else
    judge 'a client may not renegotiate' 1 "$heard"
fi
heard=$( (printf 'GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n'; sleep 1) | client -tls1_3 -sess_out "$work/session")
if grep -q 'Max Early Data: 0' <<<"$heard"; then judge 'no early data' 0; else judge 'no early data' 1 "$heard"; fi
takes 'TLS 1.3 resumes' 'Reused, TLSv1.3' -tls1_3 -sess_in "$work/session"
client -tls1_2 -sess_out "$work/session12" </dev/null >"$work/heard"
takes 'TLS 1.2 resumes' 'Reused, TLSv1.2' -tls1_2 -sess_in "$work/session12"

# HTTP over TLS, with certificate verification.
for version in 1.1 2; do
    heard=$(curl -sS --max-time 10 --http$version --cacert "$work/tls/ca.pem" -w '%{http_version} %{http_code}' -o "$work/answer" "https://localhost:$port/healthz" 2>&1) || true
    if [ "$heard" = "$version 200" ]; then judge "HTTP/$version" 0; else judge "HTTP/$version" 1 "$heard"; fi
done
# The server closes connections that do not use TLS, and continues to serve other clients.
for what in 'GET / HTTP/1.1\r\nHost: x\r\n\r\n' '\x16\x03\x01\xff\xff' '\x80\x2e\x01\x00\x02' '\x16\x03\x01\x00\x05\x01\xff\xff\xff\xff'; do
    exec 3<>"/dev/tcp/$host/$port"
    # shellcheck disable=SC2059
    printf "$what" >&3
    heard=$(timeout 15 cat <&3 | tr -d '\0') && ended=0 || ended=1
    exec 3>&-
    judge "not TLS: $(printf '%q' "$what")" "$ended" "$heard"
done
check_alive
takes 'and afterwards' 'New, TLSv1.3' -tls1_3

echo "$((passed + failed)) checks with $(openssl version | cut -d' ' -f1,2): $passed passed, $failed failed"
[ "$failed" -eq 0 ]
