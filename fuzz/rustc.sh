#!/bin/sh
# rustc for `run.sh`: what reads bytes from outside gets the coverage that libFuzzer watches, which is edges, and what is compared with
# what. All else is built without: sooner, and it costs nothing while an input runs.
rustc=$1
shift
case " $* " in
    *" --target "*) package=$CARGO_PKG_NAME ;;
    # Runs only while building.
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
