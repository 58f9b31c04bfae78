#!/usr/bin/env bash
# Builds the AVR firmware and its test on simavr, and runs the test.
#
#   avr-test.sh CLANG AVR_GCC OUT
set -euo pipefail
clang=$1 avr_gcc=$2 out=$3
cd "$(dirname "$0")/.."
if ! command -v "$avr_gcc" >/dev/null; then
    echo "skipped: the AVR firmware was not tested: $avr_gcc is missing; install it with: apt install gcc-avr avr-libc"
    exit 0
fi
if ! [ -e /usr/include/simavr/sim_avr.h ]; then
    echo "skipped: the AVR firmware was not tested: simavr is missing; install it with: apt install libsimavr-dev libelf-dev"
    exit 0
fi
make --no-print-directory avr OUT="$out" AVR_GCC="$avr_gcc"
"$clang" -std=gnu11 -g -O1 -Wall -Wextra -isystem /usr/include/simavr avr/simavr-test.c line.c -lsimavr -lelf -o "$out/simavr-test"
"$out/simavr-test" "$out/led-module-avr.elf"
