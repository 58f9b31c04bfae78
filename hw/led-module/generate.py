#!/usr/bin/env python3
"""Writes every file of the LED module that is made from netlist.py.

    ./generate.py            writes the files, and the tables in README.md
    ./generate.py --check    writes nothing; lists the files that differ from what it would write, and exits with 1
"""
import csv
import io
import json
import re
import sys
from pathlib import Path

import board
import currents
import render
import schematic
from netlist import PARTS, nets, unconnected

FOLDER = Path(__file__).resolve().parent

# Rules of the board in millimeters. Any board house makes them; the thesis milled its board.
RULES = {"min_clearance": 0.2, "min_track_width": 0.25, "min_copper_edge_clearance": 0.4, "min_hole_clearance": 0.25,
         "min_hole_to_hole": 0.5, "min_through_hole_diameter": 0.3, "min_via_diameter": 0.6, "min_via_annular_width": 0.15,
         "min_silk_clearance": 0.0}


def project():
    """Returns led-module.kicad_pro, from which KiCad takes the rules of the design-rule check."""
    net_class = {"name": "Default", "clearance": 0.2, "track_width": 0.3, "via_diameter": 0.8, "via_drill": 0.4}
    return json.dumps({
        "board": {"design_settings": {"meta": {"version": 2}, "rules": RULES}},
        "meta": {"filename": "led-module.kicad_pro", "version": 1},
        "net_settings": {"classes": [net_class], "meta": {"version": 2}},
    }, indent=2) + "\n"


def rows_of_parts():
    """Groups equal parts, in the order of table 4.1: references, value, footprint, description, order number."""
    groups = {}
    for part in PARTS:
        groups.setdefault((part.value, part.footprint, part.description, part.order), []).append(part.ref)
    ordered = sorted(groups.items(), key=lambda g: ["U", "L", "R", "J"].index(g[1][0][0]))
    return [(" ".join(sorted(refs)), *key) for key, refs in ordered]


def bill():
    """Returns the bill of materials."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["quantity", "references", "value", "footprint", "description", "order number"])
    for references, *rest in rows_of_parts():
        writer.writerow([len(references.split()), references, *rest])
    return text.getvalue()


def tables():
    """Returns the tables of README.md by name."""
    net_rows = [f"| `{net}` | {' '.join(pins)} |" for net, pins in nets().items()]
    net_rows.append(f"| not connected | {' '.join(unconnected())} |")
    part_rows = [f"| {refs} | {value} | {description} | {order} | `{footprint}` |"
                 for refs, value, footprint, description, order in rows_of_parts()]
    return {
        "nets": ["| net | pins |", "|---|---|"] + net_rows,
        "parts": ["| part | value | description | order number | KiCad footprint |", "|---|---|---|---|---|"] + part_rows,
        "currents": ["| port | diode | resistor | typical, mA | largest, mA |", "|---|---|---|---:|---:|"]
        + currents.table(),
    }


def readme(text):
    """Returns README.md with its tables replaced. A table stands between two comments that name it."""
    for name, rows in tables().items():
        pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(pattern, lambda m: m[1] + "\n".join(rows) + "\n" + m[2], text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"README.md: expected the table {name} once, found it {count} times")
    return text


def outputs():
    """Returns the text of every generated file by its path."""
    sheet, layout = schematic.schematic(), board.board()
    files = {
        "led-module.kicad_sch": sheet,
        "led-module.kicad_pcb": layout,
        "led-module.kicad_pro": project(),
        "led-module.kicad_sym": schematic.symbol_library(),
        "sym-lib-table": '(sym_lib_table\n  (lib (name "led-module")(type "KiCad")(uri "${KIPRJMOD}/led-module.kicad_sym")'
                         '(options "")(descr "Symbols of the LED module"))\n)\n',
        "bom.csv": bill(),
        "currents.cir": currents.circuit(),
        "images/schematic.svg": render.schematic_svg(sheet),
        "images/front.svg": render.board_svg(layout, "front"),
        "images/back.svg": render.board_svg(layout, "back"),
    }
    files["README.md"] = readme((FOLDER / "README.md").read_text(encoding="utf-8"))
    return files


def main(arguments):
    if arguments not in ([], ["--check"]):
        print(f"generate.py: {' '.join(arguments)}: expected no argument, or --check", file=sys.stderr)
        return 2
    different = []
    for name, text in outputs().items():
        path = FOLDER / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        different.append(name)
        if not arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for name in different:
        print(f"{name}: {'differs from what generate.py writes; run ./generate.py' if arguments else 'written'}")
    return 1 if arguments and different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
