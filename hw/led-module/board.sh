#!/usr/bin/env bash
# Checks the LED module with KiCad and ngspice, and writes the files for its manufacture into target/board.
# Usage: board.sh
# Fails if the design-rule check finds anything, or if ngspice finds a branch current of 40 mA or more.
set -euo pipefail
cd "$(dirname "$0")"
export PYTHONDONTWRITEBYTECODE=1
root=$(git rev-parse --show-toplevel)
out=${CARGO_TARGET_DIR:-$root/target}/board

# KiCad's module belongs to Debian's python3, which may not be the first one on the PATH.
missing=()
/usr/bin/python3 -c 'import pcbnew' 2>/dev/null || missing+=(kicad)
[ -d /usr/share/kicad/footprints ] || missing+=(kicad-footprints)
command -v ngspice >/dev/null || missing+=(ngspice)
command -v rsvg-convert >/dev/null || missing+=(librsvg2-bin)
if [ ${#missing[@]} -gt 0 ]; then
    echo "board.sh: these Debian packages are missing: ${missing[*]}" >&2
    echo "board.sh: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
fi

./generate.py --check
rm -rf "$out"
mkdir -p "$out/gerber"

# KiCad writes caches beside a board, so it gets a copy.
cp led-module.kicad_pcb led-module.kicad_pro "$out"
/usr/bin/python3 fabricate.py "$out/led-module.kicad_pcb" "$out" 2>"$out/kicad.log" || { cat "$out/kicad.log" >&2; exit 1; }
mv "$out"/*.g?? "$out"/*.drl "$out/gerber"

ngspice -b currents.cir >"$out/currents.txt" 2>&1 || { cat "$out/currents.txt" >&2; exit 1; }
python3 currents.py --spice "$out/currents.txt"

cp bom.csv "$out"
for name in schematic front back; do
    rsvg-convert --width 1600 "images/$name.svg" --output "$out/$name.png"
done
for side in front back; do
    rsvg-convert --width 1200 "$out/led-module-kicad-$side-copper.svg" --output "$out/kicad-$side-copper.png" 2>>"$out/kicad.log"
done
echo "written to $out:"
(cd "$out" && find . -type f | sort | sed 's|^\./|  |')
