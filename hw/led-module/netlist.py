"""The LED module as one table: parts, pins, nets and the place of each part.

The schematic, the board, the tables of README.md, the bill of materials and the circuit for ngspice are all made from
this file (generate.py). Sources: Karadogan's thesis, table 4.1 and section 4.4, with the corrections E-K14 and E-K15
(P0 is unused, LED1 is on P1 to P3, LED2 is on P4 to P6, one output per color).
"""
from dataclasses import dataclass, field

BOARD_WIDTH_MM = 30.0
BOARD_HEIGHT_MM = 25.0
SUPPLY_V = 3.3
SINK_MAX_MA = 40.0  # recommended maximum of a TCA6507 output, SCPS164D section 6.3


@dataclass(frozen=True)
class Part:
    """One part. `pins` maps a pin number to its name and its net; the net None means that the pin is not connected."""
    ref: str
    value: str
    symbol: str
    footprint: str
    at: tuple  # x, y in millimeters from the upper left corner of the board; the rotation is always 0
    description: str
    order: str  # the distributor's part number in table 4.1
    pins: dict = field(hash=False)


# The pin order of JP1. A plug that is turned around meets EN with VCC and GND with GND: it cannot reverse the supply.
HEADER = {"1": ("VCC", "VCC"), "2": ("SCL", "SCL"), "3": ("GND", "GND"), "4": ("SDA", "SDA"), "5": ("EN", "EN")}

# TCA6507PW, TSSOP-14: SCPS164D, "Pin Configuration and Functions". The table of the data sheet has no pins 6 and 7.
DRIVER = {
    "1": ("VCC", "VCC"), "2": ("SCL", "SCL"), "3": ("SDA", "SDA"), "4": ("EN", "EN"), "5": ("GND", "GND"),
    "6": ("NC", None), "7": ("NC", None), "8": ("P0", None),
    "9": ("P1", "P1"), "10": ("P2", "P2"), "11": ("P3", "P3"), "12": ("P4", "P4"), "13": ("P5", "P5"),
    "14": ("P6", "P6"),
}


def led(name):
    """Pins of an LRTB G6TG, three independent diodes. README.md, "Sources", names where the pin order is from."""
    return {
        "1": ("AR", "VCC"), "2": ("KG", f"{name}_GREEN"), "3": ("AG", "VCC"),
        "4": ("AB", "VCC"), "5": ("KB", f"{name}_BLUE"), "6": ("KR", f"{name}_RED"),
    }


def resistor(port, net):
    return {"1": ("1", port), "2": ("2", net)}


PORTS = [  # port, resistor, value in ohms, LED, color
    ("P1", "R1", 10, "LED1", "BLUE"),
    ("P2", "R2", 10, "LED1", "GREEN"),
    ("P3", "R3", 68, "LED1", "RED"),
    ("P4", "R4", 68, "LED2", "RED"),
    ("P5", "R5", 10, "LED2", "GREEN"),
    ("P6", "R6", 10, "LED2", "BLUE"),
]

RESISTOR_FOOTPRINT = "Resistor_SMD:R_0402_1005Metric"
LED_FOOTPRINT = "LED_SMD:LED_RGB_PLCC-6"

PARTS = [
    Part("JP1", "5-pin header", "Header_5", "Connector_PinHeader_2.54mm:PinHeader_1x05_P2.54mm_Vertical",
         (2.5, 7.42), "2.54 mm pitch, 11.5 mm pins", "SparkFun PRT-00116", HEADER),
    Part("U1", "TCA6507PW", "TCA6507PW", "Package_SO:TSSOP-14_4.4x5mm_P0.65mm",
         (12.5, 12.8), "7-channel I2C LED driver, TSSOP-14", "Farnell 1647813", DRIVER),
    Part("LED1", "LRTB G6TG", "LRTB_G6TG", LED_FOOTPRINT,
         (25.0, 17.0), "RGB LED, PLCC-6, 120 degrees", "Farnell 1244114RL", led("LED1")),
    Part("LED2", "LRTB G6TG", "LRTB_G6TG", LED_FOOTPRINT,
         (25.0, 8.0), "RGB LED, PLCC-6, 120 degrees", "Farnell 1244114RL", led("LED2")),
] + [
    Part(ref, str(ohms), "R", RESISTOR_FOOTPRINT, (19.6, y), f"{ohms} ohm, 0402",
         "Farnell 2078941" if ohms == 10 else "Farnell 2078947", resistor(port, f"{name}_{color}"))
    for (port, ref, ohms, name, color), y in zip(PORTS, (16.5, 14.9, 13.3, 11.7, 10.1, 8.5))
]

# Holes for M2 screws: x, y of the center. They are not parts of table 4.1.
HOLES = {"H1": (2.5, 2.5), "H2": (27.5, 2.5), "H3": (2.5, 22.5), "H4": (27.5, 22.5)}

BY_REF = {part.ref: part for part in PARTS}


def nets():
    """Returns the net list: net name to the sorted list of its pins, each written as `JP1.1`."""
    result = {}
    for part in PARTS:
        for number, (_, net) in part.pins.items():
            if net:
                result.setdefault(net, []).append(f"{part.ref}.{number}")
    return {net: sorted(pins, key=pin_key) for net, pins in sorted(result.items(), key=lambda item: net_key(item[0]))}


def unconnected():
    """Returns the pins without a net."""
    return sorted((f"{p.ref}.{n}" for p in PARTS for n, (_, net) in p.pins.items() if net is None), key=pin_key)


def pin_key(pin):
    ref, number = pin.split(".")
    letters = ref.rstrip("0123456789")
    return (letters, int(ref[len(letters):]), int(number))


def net_key(net):
    order = ["VCC", "GND", "SCL", "SDA", "EN"]
    return (0, order.index(net), "") if net in order else (1, 0 if net[0] == "P" else 1, net)
