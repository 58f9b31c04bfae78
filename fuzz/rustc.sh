#!/bin/sh
# rustc wrapper for `run.sh`. Packages that read untrusted bytes are built with the coverage that libFuzzer uses:
# edges and comparisons. All other packages are built without it, which makes building and running faster.
rustc=$1
shift
case " $* " in
    *" --target "*) package=$CARGO_PKG_NAME ;;
    # Build scripts and procedural macros run only while building.
    *) package= ;;
esac
case $package in
    millrace-* | csv* | dimpl | flate2 | is | sctp-proto | str0m* | form_urlencoded | h2 | http | httparse | humantime | hyper | miniz_oxide | percent-encoding | \
        serde_json | toml* | winnow)
        set -- "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
            -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
            -Cllvm-args=-sanitizer-coverage-trace-compares
        ;;
esac
exec "$rustc" "$@"
