#!/usr/bin/env python3
"""Tests the files of the LED module. It needs Python 3.9 and nothing else.

    ./test_module.py [FOLDER]    tests the files of FOLDER; without it, the files beside this one
    ./test_module.py --broken    breaks a copy in many ways, and checks that the right tests fail

The schematic and the board are read by their geometry (read_schematic.py, read_board.py) and compared with the table
of README.md. What the data sheets and the thesis say stands here once more, as a second opinion on netlist.py.
"""
import csv
import math
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] != "--broken" else __file__).resolve()
FOLDER = FOLDER if FOLDER.is_dir() else FOLDER.parent
sys.path.insert(0, str(FOLDER))

from read_board import Board, gap  # noqa: E402
from read_schematic import Schematic  # noqa: E402
from sexpr import child, children, numbers  # noqa: E402

DRIVER_PINS = {"1": "VCC", "2": "SCL", "3": "SDA", "4": "EN", "5": "GND", "6": "NC", "7": "NC", "8": "P0", "9": "P1",
               "10": "P2", "11": "P3", "12": "P4", "13": "P5", "14": "P6"}
LED_PINS = {"1": "AR", "2": "KG", "3": "AG", "4": "AB", "5": "KB", "6": "KR"}
HEADER_PINS = {"1": "VCC", "2": "SCL", "3": "GND", "4": "SDA", "5": "EN"}
OHMS = {"R1": "10", "R2": "10", "R3": "68", "R4": "68", "R5": "10", "R6": "10"}
LEDS = {"LED1": ("P1", "P2", "P3"), "LED2": ("P4", "P5", "P6")}
RED = {"P3": "LED1.6", "P4": "LED2.6"}
BALL_MM = 50.0
IMAGE_BYTES_MAX = 150_000


def read(name):
    return (FOLDER / name).read_text(encoding="utf-8")


def readme_nets():
    """Returns the net list that README.md states, and its pins that are not connected."""
    table = re.search(r"<!-- table: nets -->\n(.*?)<!-- end -->", read("README.md"), re.DOTALL)[1]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
    nets = {name.strip("`"): set(pins.split()) for name, pins in rows}
    return nets, nets.pop("not connected")


def same(found, expected, what):
    wrong = [f"{what} {name}: found {' '.join(sorted(found.get(name, ['none'])))}, expected "
             f"{' '.join(sorted(expected.get(name, ['none'])))}"
             for name in sorted(set(found) | set(expected)) if found.get(name) != expected.get(name)]
    assert not wrong, "; ".join(wrong)


def sheet():
    return Schematic(read("led-module.kicad_sch"))


def layout():
    return Board(read("led-module.kicad_pcb"))


def test_generated_files_are_current():
    run = subprocess.run([sys.executable, "generate.py", "--check"], cwd=FOLDER, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout.strip() or run.stderr.strip()[-300:]


def test_schematic_has_no_loose_end():
    assert not sheet().problems, "; ".join(sheet().problems)


def test_schematic_nets_equal_readme():
    nets, unconnected = readme_nets()
    same(sheet().nets, nets, "net")
    assert sheet().open_pins == unconnected, f"not connected: {sorted(sheet().open_pins)}"


def test_board_pad_nets_equal_readme():
    nets, unconnected = readme_nets()
    same(layout().pad_nets, nets, "net")
    assert layout().open_pads == unconnected, f"not connected: {sorted(layout().open_pads)}"


def test_board_copper_joins_the_nets_of_readme():
    nets, unconnected = readme_nets()
    expected = {frozenset(pins) for pins in nets.values()} | {frozenset([pin]) for pin in unconnected}
    found = {frozenset(pads) for pads, _ in layout().copper_nets()}
    wrong = [" ".join(sorted(pads)) or "copper without a pad" for pads in found - expected]
    assert not wrong, "these pads are joined, and nothing else: " + "; ".join(sorted(wrong))


def test_copper_is_marked_with_its_own_net():
    wrong = [nets for _, nets in layout().copper_nets() if len(nets) > 1]
    assert not wrong, f"copper of several nets touches: {wrong}"


def test_copper_of_different_nets_keeps_its_distance():
    distance, one, other = layout().closest()
    assert distance >= 0.2 - 1e-6, f"{distance:.3f} mm between {one} and {other}, expected 0.2 mm"


def test_every_track_ends_on_copper():
    board = layout()
    for track in (c for c in board.copper if c.kind == "track"):
        for end in track.core:
            point = type(track)("end", "end", track.net, track.layers, (end,), 0.001)
            others = [c for c in board.copper if c != track and c.layers & track.layers and gap(point, c) <= 0]
            assert others, f"{track.name} ends at {end} on nothing"


def test_board_measures_30_by_25_mm():
    width, height, is_closed = layout().size()
    assert (width, height) == (30.0, 25.0) and is_closed, f"{width} x {height} mm, closed outline: {is_closed}"


def test_board_has_two_copper_layers():
    assert layout().layers == ["F.Cu", "B.Cu"], layout().layers


def test_board_fits_the_ball():
    width, height, _ = layout().size()
    assert math.hypot(width, height) < BALL_MM, f"its diagonal is {math.hypot(width, height):.1f} mm"


def test_copper_and_holes_keep_clear_of_the_edge():
    board = layout()
    width, height, _ = board.size()
    left, top = board.corner
    for copper in board.copper:
        for x, y in copper.core:
            margin = min(x - left, y - top, left + width - x, top + height - y) - copper.radius
            assert margin >= 0.4 - 1e-6, f"{copper.name} is {margin:.2f} mm from the edge, expected 0.4 mm"
    for (x, y), drill in board.holes:
        margin = min(x - left, y - top, left + width - x, top + height - y) - drill / 2
        assert margin >= 0.5, f"the hole at {x}, {y} is {margin:.2f} mm from the edge"


def test_parts_do_not_overlap():
    boxes = sorted(layout().courtyards.items())
    for index, (ref, (x1, y1, x2, y2)) in enumerate(boxes):
        for other, (u1, v1, u2, v2) in boxes[index + 1:]:
            assert not (x1 < u2 and u1 < x2 and y1 < v2 and v1 < y2), f"{ref} overlaps {other}"


def test_no_copper_crosses_a_screw_hole():
    board = layout()
    for (x, y), drill in board.holes:
        for copper in board.copper if drill > 2 else []:
            hole = type(copper)("hole", "hole", "", copper.layers, ((x, y),), drill / 2)
            assert gap(hole, copper) >= 0.3, f"{copper.name} is too close to the hole at {x}, {y}"


def test_schematic_and_board_have_the_same_parts():
    assert sheet().values == layout().values, f"{sheet().values} and {layout().values}"
    assert sheet().footprints == layout().footprints


def test_parts_are_those_of_table_4_1():
    expected = {"U1": "TCA6507PW", "LED1": "LRTB G6TG", "LED2": "LRTB G6TG", "JP1": "5-pin header", **OHMS}
    assert layout().values == expected, f"{layout().values}"


def test_bill_of_materials_lists_every_part():
    with open(FOLDER / "bom.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {ref: row["value"] for row in rows for ref in row["references"].split()}
    assert found == layout().values, f"{found}"
    assert all(int(row["quantity"]) == len(row["references"].split()) for row in rows)


def test_resistors_have_10_and_68_ohm():
    for values in (sheet().values, layout().values):
        found = {ref: value for ref, value in values.items() if ref.startswith("R")}
        assert found == OHMS, f"{found}"


def test_symbols_have_the_pins_of_the_data_sheets():
    names = {s[1].split(":")[1]: {child(p, "number")[1]: child(p, "name")[1] for unit in children(s, "symbol")
                                  for p in children(unit, "pin")} for s in sheet().libraries.values()}
    assert names["TCA6507PW"] == DRIVER_PINS, f"{names['TCA6507PW']}"
    assert names["LRTB_G6TG"] == LED_PINS, f"{names['LRTB_G6TG']}"
    assert names["Header_5"] == HEADER_PINS, f"{names['Header_5']}"


def test_pads_of_the_driver_have_the_nets_of_its_pins():
    pads = {pad: net for net, pads in layout().pad_nets.items() for pad in pads}
    for number, name in DRIVER_PINS.items():
        expected = None if name in ("NC", "P0") else name
        assert pads.get(f"U1.{number}") == expected, f"U1.{number}: {pads.get(f'U1.{number}')}, expected {expected}"


def test_header_has_five_pins_in_a_row():
    places = [(name, x, y) for name, (x, y), _ in layout().pads if name.startswith("JP1.")]
    assert [name for name, *_ in places] == [f"JP1.{n}" for n in range(1, 6)], places
    for (_, x1, y1), (_, x2, y2) in zip(places, places[1:]):
        assert x1 == x2 and abs(y2 - y1 - 2.54) < 1e-6, places


def test_silkscreen_names_every_pin_of_the_header():
    board = layout()
    pins = {name: place for name, place, _ in board.pads}
    for layer in ("F.SilkS", "B.SilkS"):
        texts = {t[1]: numbers(child(t, "at"))[:2] for t in children(board.tree, "gr_text")
                 if child(t, "layer")[1] == layer}
        for number, name in HEADER_PINS.items():
            x, y = texts.get(f"{number} {name}", (math.inf, math.inf))
            px, py = pins[f"JP1.{number}"]
            assert abs(y - py) < 0.5 and 0 < x - px < 3, f"{layer} has no text {number} {name} beside its pin"


def test_reversed_plug_cannot_reverse_the_supply():
    for nets in (sheet().nets, layout().pad_nets):
        net_of = {pin: net for net, pins in nets.items() for pin in pins}
        met = {net_of[f"JP1.{n}"]: net_of[f"JP1.{6 - n}"] for n in range(1, 6)}
        assert met["GND"] == "GND" and met["VCC"] == "EN", f"turned around, VCC meets {met['VCC']}"


def test_port_p0_is_not_connected():
    _, unconnected = readme_nets()
    assert "U1.8" in sheet().open_pins & layout().open_pads & unconnected
    assert any(pads == {"U1.8"} for pads, _ in layout().copper_nets()), "copper touches U1.8"


def test_bus_has_no_pull_up():
    for nets in (sheet().nets, layout().pad_nets):
        for net in ("SCL", "SDA"):
            assert {pin.split(".")[0] for pin in nets[net]} == {"JP1", "U1"}, f"{net}: {sorted(nets[net])}"


def test_each_color_has_one_port_and_one_resistor():
    for nets in (sheet().nets, layout().pad_nets):
        net_of = {pin: net for net, pins in nets.items() for pin in pins}
        number_of = {name: number for number, name in DRIVER_PINS.items()}
        used = set()
        for led, ports in LEDS.items():
            for port in ports:
                resistors = [p for p in nets[port] if p.startswith("R")]
                assert nets[port] == {f"U1.{number_of[port]}", *resistors} and len(resistors) == 1, sorted(nets[port])
                far = resistors[0][:-1] + ("2" if resistors[0].endswith("1") else "1")
                cathode = [p for p in nets[net_of[far]] if p.startswith(led + ".")]
                assert len(cathode) == 1 and len(nets[net_of[far]]) == 2, sorted(nets[net_of[far]])
                assert cathode[0].split(".")[1] in ("2", "5", "6"), f"{port} drives {cathode[0]}, which is no cathode"
                is_red = cathode[0].endswith(".6")
                assert OHMS[far.split(".")[0]] == ("68" if is_red else "10"), f"{cathode[0]} has {far}"
                assert RED.get(port) == (cathode[0] if is_red else None), f"{port} drives {cathode[0]}"
                used.add(cathode[0])
            assert {f"{led}.1", f"{led}.3", f"{led}.4"} <= nets["VCC"], f"an anode of {led} is not at VCC"
        assert len(used) == 6


def test_currents_stay_below_40_ma():
    import currents
    for branch, ma in currents.branches().items():
        assert 1 < ma < 40, f"{branch}: {ma:.1f} mA"
    red_at_10, green_at_68 = (1000 * currents.current(currents.FORWARD_V[color][1], ohms, 5.0)
                              for color, ohms in (("RED", 10), ("GREEN", 68)))
    assert red_at_10 > 40 and green_at_68 < 5, f"{red_at_10:.1f} mA and {green_at_68:.1f} mA: 68 ohm is not for red"


def test_pictures_are_small_and_shown():
    images = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", read("README.md"))
    assert len(images) >= 3, images
    for image in images:
        assert (FOLDER / image).stat().st_size < IMAGE_BYTES_MAX, image


# How to break a copy: the file, the text, its replacement, and the tests that must fail. The tests with GENERATED
# fail for every change of a generated file, so they are not listed.
PCB, SCH = "led-module.kicad_pcb", "led-module.kicad_sch"
BROKEN = [
    ("a longer board", PCB, "(end 150 80)", "(end 151 80)", ["board_measures_30_by_25_mm"]),
    ("a missing track", PCB, r"\(segment(?=\n\s*\(start 137\.75 91\.7\))", "(gone",
     ["board_copper_joins_the_nets_of_readme", "every_track_ends_on_copper"]),
    ("a track of another net", PCB, r"\(start 122\.5 89\.96\)(\s*)\(end 126\.5 89\.96\)", "(start 122.5 92.5) (end 126.5 89.96)",
     ["copper_is_marked_with_its_own_net", "board_copper_joins_the_nets_of_readme"]),
    ("tracks too close", PCB, r"\(end 128\.78 92\.8\)", "(end 128.78 92.4)",
     ["copper_of_different_nets_keeps_its_distance"]),
    ("a pad of another net", PCB, r'\(net 2 "GND"\)(?=\s*\(pinfunction "GND"\))', '(net 1 "VCC")', ["board_pad_nets_equal_readme"]),
    ("R3 with 10 ohm on the board", PCB, r'fp_text value "68"', 'fp_text value "10"', ["resistors_have_10_and_68_ohm"]),
    ("R3 with 10 ohm in the schematic", SCH, r'"Value" "68"', '"Value" "10"', ["resistors_have_10_and_68_ohm"]),
    ("a header with a missing pin", PCB, r'pad "5" thru_hole', 'pad "6" thru_hole', ["header_has_five_pins_in_a_row"]),
    ("a header with another pitch", PCB, r"\(at 0 10\.16\)", "(at 0 10.0)", ["header_has_five_pins_in_a_row"]),
    ("P0 with a net", PCB, r'\(pinfunction "P0"\)', '(net 6 "/P1") (pinfunction "P0")', ["port_p0_is_not_connected"]),
    ("a pull-up on the board", PCB, r'\(net 11 "/P6"\)(?=\s*\(pinfunction "1"\))', '(net 3 "/SCL")',
     ["bus_has_no_pull_up", "copper_is_marked_with_its_own_net"]),
    ("a pull-up in the schematic", SCH, r'label "P6"', 'label "SCL"', ["bus_has_no_pull_up", "schematic_nets_equal_readme"]),
    ("a missing wire", SCH, r"\(wire(?=\s*\(pts \(xy 63\.5 96\.52\))", "(gone", ["schematic_nets_equal_readme"]),
    ("a wire that misses its bus", SCH, r"\(xy 208\.28 96\.52\) \(xy 215\.9 96\.52\)", "(xy 208.28 96.52) (xy 214.63 96.52)",
     ["schematic_nets_equal_readme", "schematic_has_no_loose_end"]),
    ("a pin without a mark", SCH, r"\(no_connect (?=\(at 139\.7)", "(gone ", ["schematic_has_no_loose_end"]),
    ("a wrong pin number", SCH, r'\(name "P1" (.*)\n(\s*)\(number "9"', r'(name "P1" \1\n\2(number "8"',
     ["symbols_have_the_pins_of_the_data_sheets"]),
    ("another net in README.md", "README.md", r"`SDA` \| JP1\.4", "`SDA` | JP1.2",
     ["schematic_nets_equal_readme", "board_pad_nets_equal_readme", "board_copper_joins_the_nets_of_readme"]),
    ("a copper layer too many", PCB, r'\(31 "B\.Cu" signal\)', '(1 "In1.Cu" signal) (31 "B.Cu" signal)',
     ["board_has_two_copper_layers"]),
    ("a part on another part", PCB, r"\(at 139\.6 90\.1\)", "(at 139.6 91.5)", ["parts_do_not_overlap"]),
    ("a hole in a track", PCB, r"\(at 122\.5 82\.5\)", "(at 125 88)", ["no_copper_crosses_a_screw_hole"]),
    ("copper at the edge", PCB, r"\(start 148\.2 99\)", "(start 149.9 99)", ["copper_and_holes_keep_clear_of_the_edge"]),
    ("a missing text", PCB, r'gr_text "4 SDA"', 'gr_text "4 SCL"', ["silkscreen_names_every_pin_of_the_header"]),
    ("a resistor of 10 ohm for red", "netlist.py", r'\("P3", "R3", 68', '("P3", "R3", 10', ["currents_stay_below_40_ma"]),
    ("a part missing in the bill", "bom.csv", r"R3 R4", "R3", ["bill_of_materials_lists_every_part"]),
    ("colors exchanged", "netlist.py", r'68, "LED2", "RED"\),\n    \("P5", "R5", 10, "LED2", "GREEN"',
     '68, "LED2", "GREEN"),\n    ("P5", "R5", 10, "LED2", "RED"', ["currents_stay_below_40_ma"]),
    ("a picture missing in README.md", "README.md", r"!\[[^\]]*\]\(images/back\.svg\)", "", ["pictures_are_small_and_shown"]),
]


def run_all():
    """Runs every test, prints one line for each, and returns the numbers of passed and failed tests."""
    passed = failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_"):
            continue
        try:
            test()
        except Exception as error:  # a broken file may also stop a reader
            failed += 1
            print(f"FAILED: {name[5:]}: {type(error).__name__ if not isinstance(error, AssertionError) else ''}{error}")
        else:
            passed += 1
            print(f"ok: {name[5:]}")
    print(f"{passed} passed, {failed} failed")
    return failed


def run_broken():
    """Breaks a copy in every way of BROKEN. A way passes if all of its tests fail."""
    passed = failed = 0
    for what, file, pattern, replacement, expected in BROKEN:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "led-module"
            shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
            text, count = re.subn(pattern, replacement, (copy / file).read_text(encoding="utf-8"))
            (copy / file).write_text(text, encoding="utf-8")
            run = subprocess.run([sys.executable, __file__, str(copy)], capture_output=True, text=True)
        fallen = re.findall(r"^FAILED: (\w+)", run.stdout, re.MULTILINE)
        missing = [name for name in expected if name not in fallen]
        is_right = count > 0 and not missing
        passed, failed = passed + is_right, failed + (not is_right)
        note = f"the text was not found in {file}" if not count else f"still passed: {' '.join(missing)}" if missing else ""
        print(f"{'ok' if is_right else 'FAILED'}: {what}: {note or ' '.join(fallen)}")
    print(f"{passed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(1 if (run_broken() if sys.argv[1:] == ["--broken"] else run_all()) else 0)
