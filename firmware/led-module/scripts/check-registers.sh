#!/usr/bin/env bash
# Compares every definition of msp430/registers.h with two files of Debian's package msp430mcu: the header of the
# manufacturer, and the linker script with the addresses of the registers.
#
#   check-registers.sh CLANG OUT
set -euo pipefail
clang=$1 out=$2
folder=$(cd "$(dirname "$0")/.." && pwd)
header=${MSP430_HEADER:-/usr/msp430/include/msp430g2553.h}
periph=${MSP430_PERIPH:-/usr/msp430/lib/ldscripts/msp430g2553/periph.x}
if [ ! -e "$header" ] || [ ! -e "$periph" ]; then
    echo "skipped: registers.h was not compared: $header is missing; install it with: apt install msp430mcu"
    exit 0
fi
mkdir -p "$out"

# The preprocessor prints every macro of the header; the assembler guard keeps it from C declarations.
"$clang" --target=msp430 -E -dM -D__ASSEMBLER__ -I "$(dirname "$header")" -x c "$header" >"$out/registers.macros" 2>"$out/registers.log" || {
    cat "$out/registers.log" >&2
    echo "$header: the preprocessor failed; see the lines above" >&2
    exit 1
}

awk -v periph="$periph" '
    function number(text) {
        gsub(/[()uUlL ]|\/\*.*/, "", text)
        if (text ~ /^0x/) return hex(substr(text, 3))
        return text ~ /^[0-9]+$/ ? text + 0 : -1
    }
    function hex(digits,   i, value) {
        value = 0
        digits = tolower(digits)
        for (i = 1; i <= length(digits); i++) value = value * 16 + index("0123456789abcdef", substr(digits, i, 1)) - 1
        return value
    }
    function compare(name, ours, theirs, where) {
        if (theirs == ours) return 1
        printf "%s: registers.h has 0x%04x, %s has %s\n", name, ours, where, theirs < 0 ? "no number" : sprintf("0x%04x", theirs)
        failed++
        return 0
    }
    BEGIN {
        while ((getline line < periph) > 0)
            if (match(line, /^__[A-Z0-9a-z_]+ = 0x[0-9A-Fa-f]+;/)) {
                split(line, part, / = |;/)
                address[substr(part[1], 3)] = number(part[2])
            }
    }
    FNR == NR { if ($1 == "#define") { name = $2; $1 = $2 = ""; theirs[name] = number($0) } next }
    /^#define [A-Z0-9_]+ +(REGISTER8|REGISTER16|CONSTANT8)\(/ {
        split($0, part, /[()]/)
        ours = number(part[2])
        registers += compare($2, ours, ($2 "_") in theirs ? theirs[$2 "_"] : -1, "the header") && compare($2, ours, $2 in address ? address[$2] : -1, "periph.x")
        next
    }
    /^#define [A-Z0-9_]+ +0x/ { bits += compare($2, number($3), $2 in theirs ? theirs[$2] : -1, "the header") }
    END {
        if (failed || registers < 30 || bits < 30) {
            printf "registers.h: %d definitions differ; %d registers and %d bits are equal\n", failed, registers, bits
            exit 1
        }
        printf "registers.h: %d registers and %d bits are equal to msp430g2553.h and periph.x\n", registers, bits
    }' "$out/registers.macros" "$folder/msp430/registers.h"
