"""The land patterns of the module: pads, courtyards and outlines, in millimeters, y downward.

The pads have the sizes and places of KiCad's library, whose license allows their use in designs without conditions
(https://www.kicad.org/libraries/license/). `board.sh` compares every pad with the installed library.
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Pad:
    """`kind` is smd, thru_hole or np_thru_hole; `drill` is 0 for smd. `corner` is the ratio of a rounded corner."""
    number: str
    kind: str
    shape: str
    x: float
    y: float
    width: float
    height: float
    drill: float = 0.0
    corner: float = 0.0


@dataclass(frozen=True)
class Footprint:
    """`silk`, `fab` and `courtyard` are lines: x1, y1, x2, y2."""
    attributes: tuple
    pads: tuple
    silk: tuple
    fab: tuple
    courtyard: tuple


def box(x1, y1, x2, y2):
    return ((x1, y1, x2, y1), (x2, y1, x2, y2), (x2, y2, x1, y2), (x1, y2, x1, y1))


def tssop14():
    left = [Pad(str(n), "smd", "roundrect", -2.8625, (n - 4) * 0.65, 1.475, 0.4, corner=0.25) for n in range(1, 8)]
    right = [Pad(str(n), "smd", "roundrect", 2.8625, (11 - n) * 0.65, 1.475, 0.4, corner=0.25) for n in range(8, 15)]
    silk = ((-3.6, -2.61, 2.2, -2.61), (-2.2, 2.61, 2.2, 2.61))
    fab = ((-1.2, -2.5, 2.2, -2.5), (2.2, -2.5, 2.2, 2.5), (2.2, 2.5, -2.2, 2.5), (-2.2, 2.5, -2.2, -1.5),
           (-2.2, -1.5, -1.2, -2.5))
    return Footprint(("smd",), tuple(left + right), silk, fab, box(-3.85, -2.75, 3.85, 2.75))


def plcc6():
    places = {"1": (-1.55, -1.1), "2": (-1.55, 0), "3": (-1.55, 1.1), "4": (1.55, 1.1), "5": (1.55, 0), "6": (1.55, -1.1)}
    pads = tuple(Pad(n, "smd", "rect", x, y, 1.3, 0.7) for n, (x, y) in places.items())
    silk = ((-2.55, -1.85, 2.2, -1.85), (-2.55, -1.85, -2.55, -0.8), (-2.2, 1.85, 2.2, 1.85))
    fab = box(-1.7, -1.7, 1.7, 1.7) + ((-1.7, -1.1, -1.1, -1.7),)
    return Footprint(("smd",), pads, silk, fab, box(-2.75, -2.05, 2.65, 2.05))


def r0402():
    pads = tuple(Pad(n, "smd", "roundrect", x, 0, 0.54, 0.64, corner=0.25) for n, x in (("1", -0.51), ("2", 0.51)))
    silk = ((-0.15, -0.38, 0.15, -0.38), (-0.15, 0.38, 0.15, 0.38))
    return Footprint(("smd",), pads, silk, box(-0.525, -0.27, 0.525, 0.27), box(-0.93, -0.47, 0.93, 0.47))


def header5():
    pads = tuple(Pad(str(n + 1), "thru_hole", "oval" if n else "rect", 0, 2.54 * n, 1.7, 1.7, 1.0) for n in range(5))
    silk = box(-1.33, 1.27, 1.33, 11.49) + ((-1.33, 0, -1.33, -1.33), (-1.33, -1.33, 0, -1.33))
    fab = box(-1.27, -1.27, 1.27, 11.43)
    return Footprint(("through_hole",), pads, silk, fab, box(-1.8, -1.8, 1.8, 11.95))


def hole_m2():
    pad = Pad("", "np_thru_hole", "circle", 0, 0, 2.2, 2.2, 2.2)
    return Footprint(("board_only", "exclude_from_pos_files", "exclude_from_bom"), (pad,), (), (),
                     box(-2.45, -2.45, 2.45, 2.45))


HOLE = "MountingHole:MountingHole_2.2mm_M2"
FOOTPRINTS = {
    "Package_SO:TSSOP-14_4.4x5mm_P0.65mm": tssop14(),
    "LED_SMD:LED_RGB_PLCC-6": plcc6(),
    "Resistor_SMD:R_0402_1005Metric": r0402(),
    "Connector_PinHeader_2.54mm:PinHeader_1x05_P2.54mm_Vertical": header5(),
    HOLE: hole_m2(),
}
