#!/usr/bin/env bash
# Checks that `millrace lab compare` reports no difference between equal programs. Measures two programs in turns, many
# times, and counts the verdicts.
#
#   scripts/lab-aa.sh [-n TIMES] [-o DIR] [-w WRAPPER] MILLRACE [OTHER]
#
# Without OTHER, both programs are MILLRACE. OTHER is a build that was slowed down on purpose; the comparison must
# detect it. WRAPPER runs each comparison, for example under a lock that keeps other load away. A comparison takes about
# half a minute. Exits with 1 if more than one verdict in twenty is wrong.
set -euo pipefail

times=20 out=$(mktemp -d) wrapper=
while getopts n:o:w: option; do
    case $option in
    n) times=$OPTARG ;;
    o) out=$OPTARG ;;
    w) wrapper=$OPTARG ;;
    *) exit 3 ;;
    esac
done
shift $((OPTIND - 1))
program=${1:?which program?}
other=${2:-$program}
wanted=$([ "$other" = "$program" ] && echo "within noise" || echo regressed)

mkdir -p "$out"
# Three copies of the file. Processes of one file share pages, so the memory of one of them would seem smaller.
lab=$out/lab a=$out/a b=$out/b
cp "$program" "$lab" && cp "$program" "$a" && cp "$other" "$b"
wrong=0
for try in $(seq "$times"); do
    $wrapper timeout 120 "$lab" lab run thorsen-broadcast --quick --repeats 10 --transports websocket --seed "$try" \
        --targets "millrace@a=$a,millrace@b=$b" --set clients=100 --set idle=0s --set test=1500ms --set after=0s \
        --out "$out/$try" >"$out/$try.log" 2>&1 || true
    "$lab" lab compare "$out/$try" --targets millrace@a,millrace@b >"$out/$try.txt" || true
    verdict=$(tail -n 1 "$out/$try.txt")
    [ "${verdict#"$wanted"}" != "$verdict" ] || wrong=$((wrong + 1))
    echo "$try: $verdict"
done
echo "$wrong of $times verdicts are wrong (wanted: $wanted); all is in $out"
[ $((wrong * 20)) -le "$times" ]
