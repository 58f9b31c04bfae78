#!/usr/bin/env bash
# Does `millrace lab compare` call the same the same? Measures pairs of short runs and counts the verdicts.
#
#   scripts/lab-aa.sh [-n PAIRS] [-o DIR] [-w WRAPPER] MILLRACE [OTHER]
#
# MILLRACE measures, and is measured, twice per pair. With OTHER, the second half of each pair is of that program instead: a build that
# was slowed down on purpose must be found. WRAPPER runs each pair, such as a lock that keeps others away.
# A pair takes about half a minute. Ends with 1 if more than one pair in twenty has the wrong verdict.
set -euo pipefail

pairs=20 out=$(mktemp -d) wrapper=
while getopts n:o:w: option; do
    case $option in
    n) pairs=$OPTARG ;;
    o) out=$OPTARG ;;
    w) wrapper=$OPTARG ;;
    *) exit 3 ;;
    esac
done
shift $((OPTIND - 1))
lab=${1:?which program?}
other=${2:-$lab}
wanted=$([ "$other" = "$lab" ] && echo "within noise" || echo regressed)

run() { # FOLDER PROGRAM
    "$lab" lab run thorsen-broadcast --quick --repeats 5 --transports websocket --targets "millrace=$2" \
        --set clients=100 --set idle=0s --set test=1500ms --set after=0s --out "$1" >"$1.log" 2>&1
}
export -f run
export lab

mkdir -p "$out"
# A copy measures: a lab that starts its own file shares pages with the server, and their memory would be halved on one side only.
program=$lab lab=$out/lab
cp "$program" "$lab"
wrong=0
for pair in $(seq "$pairs"); do
    a=$out/$pair-a b=$out/$pair-b
    $wrapper timeout 120 bash -c 'run "$1" "$2"; run "$3" "$4"' - "$a" "$program" "$b" "$other" || true
    # One program measures both; only its source tree may have moved on meanwhile.
    "$lab" lab compare --despite generator "$a" "$b" >"$out/$pair.txt" || true
    verdict=$(tail -n 1 "$out/$pair.txt")
    [ "${verdict#"$wanted"}" != "$verdict" ] || wrong=$((wrong + 1))
    echo "$pair: $verdict"
done
echo "$wrong of $pairs pairs have the wrong verdict (wanted: $wanted); all is in $out"
[ $((wrong * 20)) -le "$pairs" ]
