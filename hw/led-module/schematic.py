"""Writes the schematic as a KiCad 6 file. The parts and the nets come from netlist.py; this file only places them."""
import uuid

from netlist import BY_REF, PARTS, PORTS
from sexpr import node, write

LIBRARY = "led-module"
NAMESPACE = uuid.UUID("6f0e6f3c-3f3e-5b8e-9d6e-2a6507000045")

# Places on the sheet, in millimeters: x, y and whether the symbol is mirrored upside down.
PLACES = {"JP1": (55.88, 101.6, False), "U1": (127.0, 101.6, False), "LED1": (195.58, 111.76, False),
          "LED2": (195.58, 91.44, True)}
RESISTOR_X = 160.02
ROW_Y = {"P6": 86.36, "P5": 91.44, "P4": 96.52, "P3": 106.68, "P2": 111.76, "P1": 116.84}
PLACES.update({ref: (RESISTOR_X, ROW_Y[port], False) for port, ref, *_ in PORTS})

# Power symbols: net, x, y.
POWER = [("VCC", 68.58, 86.36), ("GND", 68.58, 101.6), ("VCC", 109.22, 81.28), ("GND", 109.22, 121.92),
         ("VCC", 215.9, 81.28)]

# Places of reference and value, relative to the symbol. Those of the resistors are in schematic().
FIELDS = {"JP1": ((0, -15.24), (0, 15.24)), "U1": ((0, -20.32), (16.51, 24.13)), "LED1": ((0, 10.668), (0, 13.208)),
          "LED2": ((0, -10.668), (0, -13.208))}

NOTES = [
    (50.8, 137.16, "The pull-up resistors of SCL and SDA are on the kit. The kit also drives EN; a low level resets U1."),
    (50.8, 142.24, "U1 is at the I2C address 0x45. Its outputs are open drains: a low level lights a color."),
    (50.8, 147.32, "P0 is not used. U1 has no capacitor at its supply, as in table 4.1 of the thesis."),
]


def identifier(*names):
    """Returns an identifier that only depends on `names`, so that the files are the same on every machine."""
    return "=" + str(uuid.uuid5(NAMESPACE, "/".join(map(str, names))))


def font(size=1.27, justify=None, hide=False):
    items = [node("font", node("size", size, size))]
    if justify:
        items.append(node("justify", *("=" + word for word in justify.split())))
    return node("effects", *items, *(["=hide"] if hide else []))


def stroke(width=0.254):
    return node("stroke", node("width", width), node("type", "=default"), node("color", 0, 0, 0, 0))


def fill(kind="none"):
    return node("fill", node("type", "=" + kind))


def pin(kind, x, y, angle, length, name, number, hide=False):
    items = ["=" + kind, "=line", node("at", x, y, angle), node("length", length)] + (["=hide"] if hide else [])
    return node("pin", *items, node("name", name, font()), node("number", number, font()))


def rectangle(x1, y1, x2, y2):
    return node("rectangle", node("start", x1, y1), node("end", x2, y2), stroke(), fill("background"))


def polyline(*points, filled=False):
    return node("polyline", node("pts", *(node("xy", x, y) for x, y in points)), stroke(),
                fill("outline" if filled else "none"))


def symbol(name, prefix, graphics, pins, power=False, hide_numbers=False, hide_names=False, offset=1.016):
    head = [node("power")] if power else []
    if hide_numbers:
        head.append(node("pin_numbers", "=hide"))
    head.append(node("pin_names", node("offset", offset), *(["=hide"] if hide_names else [])))
    properties = [node("property", key, value, node("id", index), node("at", 0, 0, 0), font(hide=index > 1))
                  for index, (key, value) in enumerate([("Reference", prefix), ("Value", name), ("Footprint", ""),
                                                        ("Datasheet", "")])]
    return node("symbol", name, *head, node("in_bom", "=yes"), node("on_board", "=yes"), *properties,
                node("symbol", f"{name}_0_1", *graphics), node("symbol", f"{name}_1_1", *pins))


def diode(name, y):
    """Draws one diode of the RGB LED: cathode at the left, anode at the right, two arrows for the light."""
    text = node("text", name, node("at", -6.604, y + 1.016, 0), font(1.27))
    return [text, polyline((-10.16, y), (-1.27, y)), polyline((1.27, y), (10.16, y)),
            polyline((-1.27, y + 1.27), (-1.27, y - 1.27)),
            polyline((1.27, y + 1.27), (1.27, y - 1.27), (-1.27, y), (1.27, y + 1.27)),
            polyline((-0.762, y + 1.524), (-2.032, y + 2.286)), polyline((0.508, y + 1.524), (-0.762, y + 2.286))]


def library():
    """Returns the symbols of this module. KiCad has none for the driver, and its resistor stands upright."""
    driver = BY_REF["U1"].pins
    left = {"1": 15.24, "2": 5.08, "3": -5.08, "4": -10.16, "5": -15.24}
    right = {"14": 15.24, "13": 10.16, "12": 5.08, "11": -5.08, "10": -10.16, "9": -15.24, "8": -20.32}
    kinds = {"1": "power_in", "2": "input", "3": "bidirectional", "4": "input", "5": "power_in"}
    u1 = [pin(kinds[n], -12.7, y, 0, 2.54, driver[n][0], n) for n, y in left.items()]
    u1 += [pin("open_collector", 12.7, y, 180, 2.54, driver[n][0], n) for n, y in right.items()]
    u1 += [pin("no_connect", x, -25.4, 90, 2.54, driver[n][0], n) for n, x in (("6", -2.54), ("7", 2.54))]
    header = [pin("power_out" if name in ("VCC", "GND") else "passive", 7.62, 10.16 - 5.08 * index, 180, 2.54, name, n)
              for index, (n, (name, _)) in enumerate(BY_REF["JP1"].pins.items())]
    names = BY_REF["LED1"].pins
    led = [pin("passive", -12.7, y, 0, 2.54, names[n][0], n) for n, y in (("6", 5.08), ("2", 0), ("5", -5.08))]
    led += [pin("passive", 12.7, y, 180, 2.54, names[n][0], n) for n, y in (("1", 5.08), ("3", 0), ("4", -5.08))]
    r = [pin("passive", -3.81, 0, 0, 1.27, "~", "1"), pin("passive", 3.81, 0, 180, 1.27, "~", "2")]
    return [
        symbol("TCA6507PW", "U", [rectangle(-10.16, 17.78, 10.16, -22.86)], u1),
        symbol("LRTB_G6TG", "LED", [rectangle(-10.16, 8.89, 10.16, -8.89)] + diode("red", 5.08) + diode("green", 0)
               + diode("blue", -5.08), led, hide_names=True),
        symbol("R", "R", [rectangle(-2.54, 1.016, 2.54, -1.016)], r, hide_numbers=True, hide_names=True, offset=0),
        symbol("Header_5", "JP", [rectangle(-5.08, 12.7, 5.08, -12.7)], header),
        symbol("VCC", "#PWR", [polyline((-0.762, 1.27), (0, 2.54)), polyline((0, 2.54), (0.762, 1.27)),
                               polyline((0, 0), (0, 2.54))],
               [pin("power_in", 0, 0, 90, 0, "VCC", "1", hide=True)], True, True, True, 0),
        symbol("GND", "#PWR", [polyline((0, 0), (0, -1.27), (1.27, -1.27), (0, -2.54), (-1.27, -1.27), (0, -1.27))],
               [pin("power_in", 0, 0, 270, 0, "GND", "1", hide=True)], True, True, True, 0),
    ]


def property_(key, value, index, x, y, justify=None, hide=False):
    return node("property", key, value, node("id", index), node("at", x, y, 0), font(justify=justify, hide=hide))


def instance(name, ref, value, footprint, x, y, mirrored, pins, fields):
    """Places a symbol. `fields` are the places of reference and value: x, y, or None to hide the field."""
    (rx, ry), v = fields[0] or (x, y), fields[1]
    properties = [property_("Reference", ref, 0, rx, ry, hide=fields[0] is None),
                  property_("Value", value, 1, *(v or (x, y)), hide=v is None),
                  property_("Footprint", footprint, 2, x, y, hide=True),
                  property_("Datasheet", "", 3, x, y, hide=True)]
    return node("symbol", node("lib_id", f"{LIBRARY}:{name}"), node("at", x, y, 0),
                *([node("mirror", "=x")] if mirrored else []), node("unit", 1), node("in_bom", "=yes"),
                node("on_board", "=yes"), node("uuid", identifier("symbol", ref)), *properties,
                *(node("pin", number, node("uuid", identifier("pin", ref, number))) for number in pins))


def wires():
    """Returns the wires as lists of points, and the places of the junctions."""
    lines = [[(63.5, 91.44), (68.58, 91.44), (68.58, 86.36)], [(63.5, 101.6), (68.58, 101.6)],
             [(114.3, 86.36), (109.22, 86.36), (109.22, 81.28)], [(114.3, 116.84), (109.22, 116.84), (109.22, 121.92)]]
    lines += [[(63.5, y), (114.3, y)] for y in (96.52, 106.68, 111.76)]
    lines += [[(139.7, y), (156.21, y)] for y in ROW_Y.values()] + [[(163.83, y), (182.88, y)] for y in ROW_Y.values()]
    ys = list(ROW_Y.values())
    lines += [[(208.28, y), (215.9, y)] for y in ys]
    lines += [[(215.9, a), (215.9, b)] for a, b in zip([81.28] + ys, ys)]
    return lines, [(215.9, y) for y in ys[:-1]]


def labels():
    """Returns the labels: net, x, y."""
    result = [("SCL", 83.82, 96.52), ("SDA", 83.82, 106.68), ("EN", 83.82, 111.76)]
    for port, _, _, led, color in PORTS:
        result += [(port, 144.78, ROW_Y[port]), (f"{led}_{color}", 167.64, ROW_Y[port])]
    return result


def schematic():
    """Returns the text of led-module.kicad_sch."""
    symbols = [node("symbol", f"{LIBRARY}:{s[1]}", *s[2:]) for s in library()]
    lines, junctions = wires()
    items = [node("junction", node("at", x, y), node("diameter", 0), node("color", 0, 0, 0, 0),
                  node("uuid", identifier("junction", x, y))) for x, y in junctions]
    unused = [(139.7, 121.92), (124.46, 127.0), (129.54, 127.0)]
    items += [node("no_connect", node("at", x, y), node("uuid", identifier("nc", x, y))) for x, y in unused]
    for line in lines:
        for (x1, y1), (x2, y2) in zip(line, line[1:]):
            items.append(node("wire", node("pts", node("xy", x1, y1), node("xy", x2, y2)), stroke(0),
                              node("uuid", identifier("wire", x1, y1, x2, y2))))
    items += [node("text", text, node("at", x, y, 0), font(1.778, "left bottom"), node("uuid", identifier("text", y)))
              for x, y, text in NOTES]
    items += [node("label", net, node("at", x, y, 0), font(justify="left bottom"),
                   node("uuid", identifier("label", net))) for net, x, y in labels()]
    paths = []
    for part in PARTS:
        x, y, mirrored = PLACES[part.ref]
        ref_at, value_at = FIELDS.get(part.ref, ((-2.032, -2.286), (2.032, -2.286)))
        items.append(instance(part.symbol, part.ref, part.value, part.footprint, x, y, mirrored, part.pins,
                              [(x + ref_at[0], y + ref_at[1]), (x + value_at[0], y + value_at[1])]))
        paths.append((part.ref, part.value, part.footprint))
    for index, (net, x, y) in enumerate(POWER, 1):
        ref = f"#PWR{index:02}"
        items.append(instance(net, ref, net, "", x, y, False, ["1"],
                              [None, (x, y - 3.81) if net == "VCC" else (x + 3.81, y + 1.27)]))
        paths.append((ref, net, ""))
    block = node("title_block", node("title", "LED module for the Earl kit"), node("rev", "1.0"),
                 node("company", "Millrace"), node("comment", 1, "Made by generate.py from netlist.py; do not edit."),
                 node("comment", 2, "After Karadogan's thesis, section 4.4, with the corrections E-K14 and E-K15."))
    instances = [node("path", "/" + identifier("symbol", ref)[1:], node("reference", ref), node("unit", 1),
                      node("value", value), node("footprint", footprint)) for ref, value, footprint in paths]
    return write(node("kicad_sch", node("version", 20211123), node("generator", "=millrace"),
                      node("uuid", identifier("sheet")), node("paper", "A4"), block, node("lib_symbols", *symbols), *items,
                      node("sheet_instances", node("path", "/", node("page", "1"))),
                      node("symbol_instances", *instances))) + "\n"


def symbol_library():
    """Returns the text of led-module.kicad_sym, the same symbols as a library."""
    return write(node("kicad_symbol_lib", node("version", 20211014), node("generator", "=millrace"), *library())) + "\n"
