"""Writes the board as a KiCad 6 file. Parts, nets and places come from netlist.py; this file has the tracks."""
from footprints import FOOTPRINTS, HOLE
from netlist import BOARD_HEIGHT_MM, BOARD_WIDTH_MM, HOLES, PARTS, nets
from schematic import identifier
from sexpr import node, write

# The upper left corner of the board on KiCad's sheet. All other coordinates of this file are relative to it.
ORIGIN = (120.0, 80.0)

TOP, BOTTOM = "F.Cu", "B.Cu"

# net, layer, width, points. Where a track crosses another one, it changes the layer at a via or at a pin of JP1.
TRACKS = [
    # From JP1 to U1.
    ("VCC", TOP, 0.4, [(2.5, 7.42), (5.5, 7.42), (8.93, 10.85), (9.6375, 10.85)]),
    ("SCL", TOP, 0.3, [(2.5, 9.96), (6.5, 9.96), (8.04, 11.5), (9.6375, 11.5)]),
    ("SDA", TOP, 0.3, [(2.5, 15.04), (5.0, 15.04), (7.89, 12.15), (9.6375, 12.15)]),
    ("EN", TOP, 0.3, [(2.5, 17.58), (4.0, 17.58), (8.78, 12.8), (9.6375, 12.8)]),
    ("GND", TOP, 0.4, [(9.6375, 13.45), (11.6, 13.45)]),
    ("GND", BOTTOM, 0.8, [(11.6, 13.45), (10.65, 12.5), (2.5, 12.5)]),
    # From U1 to the resistors.
    ("P6", TOP, 0.3, [(15.3625, 10.85), (16.5, 10.85), (18.85, 8.5), (19.09, 8.5)]),
    ("P5", TOP, 0.3, [(15.3625, 11.5), (16.9, 11.5), (18.3, 10.1), (19.09, 10.1)]),
    ("P4", TOP, 0.3, [(15.3625, 12.15), (17.3, 12.15), (17.75, 11.7), (19.09, 11.7)]),
    ("P3", TOP, 0.3, [(15.3625, 12.8), (17.3, 12.8), (17.8, 13.3), (19.09, 13.3)]),
    ("P2", TOP, 0.3, [(15.3625, 13.45), (16.9, 13.45), (18.35, 14.9), (19.09, 14.9)]),
    ("P1", TOP, 0.3, [(15.3625, 14.1), (16.5, 14.1), (18.9, 16.5), (19.09, 16.5)]),
    # From the resistors to LED2. The blue track reaches its pad through the gap between the two rows of pads.
    ("LED2_BLUE", TOP, 0.3, [(20.11, 8.5), (20.2, 8.5), (23.7, 5.0), (24.3, 5.0), (25.3, 6.0), (25.3, 8.0), (26.55, 8.0)]),
    ("LED2_GREEN", TOP, 0.3, [(20.11, 10.1), (20.3, 10.1), (22.4, 8.0), (23.45, 8.0)]),
    ("LED2_RED", TOP, 0.3, [(20.11, 11.7), (27.2, 11.7), (28.2, 10.7), (28.2, 7.8), (27.3, 6.9), (26.55, 6.9)]),
    # From the resistors to LED1.
    ("LED1_RED", TOP, 0.3, [(20.11, 13.3), (25.25, 13.3), (26.55, 14.6), (26.55, 15.9)]),
    ("LED1_GREEN", TOP, 0.3, [(20.11, 14.9), (20.3, 14.9), (22.4, 17.0), (23.45, 17.0)]),
    ("LED1_BLUE", TOP, 0.3, [(20.11, 16.5), (20.2, 16.5), (23.7, 20.0), (27.2, 20.0), (28.2, 19.0), (28.2, 17.9),
                             (27.3, 17.0), (26.55, 17.0)]),
    # The supply of the LEDs: from JP1 on the back, and through one via below each LED to its three anodes.
    ("VCC", BOTTOM, 0.8, [(2.5, 7.42), (23.32, 7.42), (25.0, 9.1), (25.0, 18.1)]),
    ("VCC", TOP, 0.4, [(23.45, 9.1), (26.55, 9.1)]),
    ("VCC", TOP, 0.4, [(23.45, 6.9), (24.6, 6.9), (24.6, 9.1)]),
    ("VCC", TOP, 0.4, [(23.45, 18.1), (26.55, 18.1)]),
    ("VCC", TOP, 0.4, [(23.45, 15.9), (24.6, 15.9), (24.6, 18.1)]),
]

VIAS = [("GND", 11.6, 13.45), ("VCC", 25.0, 9.1), ("VCC", 25.0, 18.1)]
VIA_MM, VIA_DRILL_MM = 0.8, 0.4

# Texts on the silkscreen: text, layer, x, y, size, justification.
FRONT, BACK = "F.SilkS", "B.SilkS"
TEXTS = [("Millrace LED module 1.0", FRONT, 15.0, 22.6, 1.0, ""), ("3.3 V   I2C 0x45", FRONT, 13.5, 2.6, 1.0, "")]
TEXTS += [("SCL, SDA: pull-ups on the kit", BACK, 15.0, 22.6, 0.8, "mirror")]
for index, (name, mark) in enumerate((("VCC", "1"), ("SCL", "2"), ("GND", "3"), ("SDA", "4"), ("EN", "5"))):
    TEXTS.append((f"{mark} {name}", FRONT, 4.3, 7.42 + 2.54 * index, 0.8, "left"))
    TEXTS.append((f"{mark} {name}", BACK, 4.3, 7.42 + 2.54 * index, 0.8, "right mirror"))

# Places of the reference names, relative to the part: x, y.
REFERENCES = {"JP1": (0, -2.4), "U1": (0, -3.6), "LED1": (0, -2.7), "LED2": (0, 2.8)}
RESISTOR_REFERENCE = (1.75, 0)

GROUND_MARGIN_MM = 0.5

LAYERS = [(0, "F.Cu", "signal"), (31, "B.Cu", "signal"), (34, "B.Paste", "user"), (35, "F.Paste", "user"),
          (36, "B.SilkS", "user"), (37, "F.SilkS", "user"), (38, "B.Mask", "user"), (39, "F.Mask", "user"),
          (40, "Dwgs.User", "user"), (44, "Edge.Cuts", "user"), (45, "Margin", "user"), (46, "B.CrtYd", "user"),
          (47, "F.CrtYd", "user"), (48, "B.Fab", "user"), (49, "F.Fab", "user")]


def kicad_net(net):
    """Returns KiCad's name of a net: one that a label of the first sheet names starts with a slash."""
    return net if net in ("VCC", "GND") else "/" + net


def at(x, y):
    return [x + ORIGIN[0], y + ORIGIN[1]]


def tstamp(*names):
    return node("tstamp", identifier("board", *names))


def effects(size, justify=""):
    items = [node("font", node("size", size, size), node("thickness", round(size * 0.15, 3)))]
    if justify:
        items.append(node("justify", *("=" + word for word in justify.split())))
    return node("effects", *items)


def pad(ref, land, pins):
    layers = {"smd": ["F.Cu", "F.Paste", "F.Mask"]}.get(land.kind, ["*.Cu", "*.Mask"])
    items = [node("at", land.x, land.y), node("size", land.width, land.height)]
    if land.drill:
        items.append(node("drill", land.drill))
    items.append(node("layers", *layers))
    if land.shape == "roundrect":
        items.append(node("roundrect_rratio", land.corner))
    if land.number in pins:
        name, net = pins[land.number]
        if net:
            items.append(node("net", INDEX[net], kicad_net(net)))
        items.append(node("pinfunction", name))
    return node("pad", land.number, "=" + land.kind, "=" + land.shape, *items, tstamp("pad", ref, land.number))


def footprint(ref, value, name, x, y, pins, reference_at, reference_layer):
    shape = FOOTPRINTS[name]
    items = [node("layer", "F.Cu"), tstamp(ref), node("at", *at(x, y))]
    if pins:
        items.append(node("path", "/" + identifier("symbol", ref)[1:]))
    items.append(node("attr", *("=" + word for word in shape.attributes)))
    size = 0.7 if ref.startswith("R") else 0.8
    items.append(node("fp_text", "=reference", ref, node("at", *reference_at), node("layer", reference_layer),
                      effects(size), tstamp(ref, "reference")))
    items.append(node("fp_text", "=value", value, node("at", 0, 0), node("layer", "F.Fab"), effects(0.4),
                      tstamp(ref, "value")))
    for layer, lines, width in (("F.SilkS", shape.silk, 0.12), ("F.Fab", shape.fab, 0.1), ("F.CrtYd", shape.courtyard, 0.05)):
        for x1, y1, x2, y2 in lines:
            items.append(node("fp_line", node("start", x1, y1), node("end", x2, y2), node("layer", layer),
                              node("width", width), tstamp(ref, layer, x1, y1, x2, y2)))
    return node("footprint", name, *items, *(pad(ref, p, pins) for p in shape.pads))


INDEX = {net: index for index, net in enumerate(nets(), 1)}


def outline():
    w, h = BOARD_WIDTH_MM, BOARD_HEIGHT_MM
    corners = [(0, 0), (w, 0), (w, h), (0, h)]
    return [node("gr_line", node("start", *at(*a)), node("end", *at(*b)), node("layer", "Edge.Cuts"),
                 node("width", 0.1), tstamp("edge", *a)) for a, b in zip(corners, corners[1:] + corners[:1])]


def ground_plane():
    """Returns the plane of GND on the back. KiCad fills it; the connections do not depend on it."""
    m, w, h = GROUND_MARGIN_MM, BOARD_WIDTH_MM, BOARD_HEIGHT_MM
    corners = [(m, m), (w - m, m), (w - m, h - m), (m, h - m)]
    return node("zone", node("net", INDEX["GND"]), node("net_name", "GND"), node("layer", "B.Cu"), tstamp("plane"),
                node("hatch", "=edge", 0.508), node("connect_pads", node("clearance", 0.3)), node("min_thickness", 0.25),
                node("fill", "=yes", node("thermal_gap", 0.3), node("thermal_bridge_width", 0.5)),
                node("polygon", node("pts", *(node("xy", *at(*c)) for c in corners))))


def board():
    """Returns the text of led-module.kicad_pcb."""
    items = [node("net", 0, "")] + [node("net", index, kicad_net(net)) for net, index in INDEX.items()]
    for part in PARTS:
        place = REFERENCES.get(part.ref, RESISTOR_REFERENCE)
        items.append(footprint(part.ref, part.value, part.footprint, *part.at, part.pins, place, "F.SilkS"))
    for ref, (x, y) in HOLES.items():
        items.append(footprint(ref, "M2", HOLE, x, y, {}, (0, 0), "F.Fab"))
    items += outline()
    for text, layer, x, y, size, justify in TEXTS:
        items.append(node("gr_text", text, node("at", *at(x, y)), node("layer", layer), tstamp("text", layer, text),
                          effects(size, justify)))
    for net, layer, width, points in TRACKS:
        for a, b in zip(points, points[1:]):
            items.append(node("segment", node("start", *at(*a)), node("end", *at(*b)), node("width", width),
                              node("layer", layer), node("net", INDEX[net]), tstamp("track", layer, *a, *b)))
    for net, x, y in VIAS:
        items.append(node("via", node("at", *at(x, y)), node("size", VIA_MM), node("drill", VIA_DRILL_MM),
                          node("layers", "F.Cu", "B.Cu"), node("net", INDEX[net]), tstamp("via", x, y)))
    items.append(ground_plane())
    block = node("title_block", node("title", "LED module for the Earl kit"), node("rev", "1.0"),
                 node("company", "Millrace"), node("comment", 1, "Made by generate.py from netlist.py; do not edit."))
    return write(node("kicad_pcb", node("version", 20211014), node("generator", "=millrace"),
                      node("general", node("thickness", 1.6)), node("paper", "A4"), block,
                      node("layers", *(node(str(n), name, "=" + kind) for n, name, kind in LAYERS)),
                      node("setup", node("pad_to_mask_clearance", 0.05)), *items)) + "\n"
