"""Draws the schematic and both sides of the board as SVG, from the KiCad files. It needs neither KiCad nor a screen."""
from html import escape

from read_board import Board
from read_schematic import Schematic, field, place
from sexpr import child, children, numbers

FONT = "font-family=\"'DejaVu Sans', Verdana, sans-serif\""
WIRE, BODY, INK, PAPER, LABEL, MARK = "#1b7f3b", "#fdf6d8", "#7a1f1f", "#ffffff", "#222222", "#1f3f9f"


def number(value):
    return f"{value:.3f}".rstrip("0").rstrip(".")


def svg_text(text, x, y, size, color, anchor="start", middle=True, angle=0, extra="", weight=""):
    """KiCad's size of a text is the height of a capital letter, about 0.72 of the size of an SVG font."""
    dy = size / 2 if middle else 0
    transform = f' transform="rotate({number(angle)} {number(x)} {number(y)})"' if angle else ""
    return (f'<text x="{number(x)}" y="{number(y + dy)}" font-size="{number(size / 0.73)}" fill="{color}" '
            f'text-anchor="{anchor}"{weight}{transform}{extra}>{escape(text)}</text>')


def line(points, color, width, fill="none"):
    path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    return (f'<polyline points="{path}" fill="{fill}" stroke="{color}" stroke-width="{number(width)}" '
            'stroke-linecap="round" stroke-linejoin="round"/>')


def document(x, y, width, height, scale, items, title):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{number(x)} {number(y)} {number(width)} '
            f'{number(height)}" width="{number(width * scale)}" height="{number(height * scale)}" {FONT}>\n'
            f"<title>{escape(title)}</title>\n" + "\n".join(items) + "\n</svg>\n")


def is_hidden(item):
    return any(part == "hide" for part in item) or "hide" in child(item, "effects")


def draw_symbol(symbol, library):
    """Draws one symbol: its graphics, its pins with their names and numbers, and its visible fields."""
    shapes, texts = [], []
    names, numbers_ = child(library, "pin_names"), child(library, "pin_numbers")
    for unit in children(library, "symbol"):
        for box in children(unit, "rectangle"):
            (x1, y1), (x2, y2) = (place(symbol, *numbers(child(box, end))) for end in ("start", "end"))
            shapes.append(f'<rect x="{number(min(x1, x2))}" y="{number(min(y1, y2))}" width="{number(abs(x2 - x1))}" '
                          f'height="{number(abs(y2 - y1))}" fill="{BODY}" stroke="{INK}" stroke-width="0.25"/>')
        for poly in children(unit, "polyline"):
            points = [place(symbol, *numbers(xy)) for xy in children(child(poly, "pts"), "xy")]
            filled = child(child(poly, "fill"), "type")[1] == "outline"
            shapes.append(line(points, INK, 0.25, INK if filled else "none"))
        for text in children(unit, "text"):
            x, y, _ = numbers(child(text, "at"))
            texts.append(svg_text(text[1], *place(symbol, x, y), 1.27, INK, "middle"))
        for pin in children(unit, "pin"):
            draw_pin(symbol, pin, names, numbers_, shapes, texts)
    for prop in children(symbol, "property"):
        if not is_hidden(prop):
            x, y, _ = numbers(child(prop, "at"))
            bold = ' font-weight="bold"' if prop[1] == "Reference" else ""
            texts.append(svg_text(prop[2], x, y, 1.27, LABEL, "middle", weight=bold))
    return shapes, texts


def draw_pin(symbol, pin, names, numbers_, shapes, texts):
    if is_hidden(pin) if child(pin, "effects") else "hide" in pin:
        return
    x, y, angle = numbers(child(pin, "at"))
    length, offset = numbers(child(pin, "length"))[0], numbers(child(names, "offset"))[0]
    dx, dy = {0: (1, 0), 90: (0, 1), 180: (-1, 0), 270: (0, -1)}[int(angle)]
    outer, inner = place(symbol, x, y), place(symbol, x + dx * length, y + dy * length)
    shapes.append(line([outer, inner], INK, 0.2))
    at = place(symbol, x + dx * (length + offset), y + dy * (length + offset))
    upright = dx == 0
    if not (len(names) > 2 and names[-1] == "hide") and child(pin, "name")[1] != "~":
        anchor = "start" if dx > 0 or upright else "end"
        texts.append(svg_text(child(pin, "name")[1], *at, 1.27, MARK, anchor, angle=-90 if upright else 0))
    if not numbers_:
        mx, my = (outer[0] + inner[0]) / 2, (outer[1] + inner[1]) / 2
        where = (mx - 0.9, my) if upright else (mx, my - 0.9)
        texts.append(svg_text(child(pin, "number")[1], *where, 0.95, INK, "middle"))


def schematic_svg(text):
    """Returns the picture of a schematic, cropped to its content."""
    sheet = Schematic(text)
    shapes, texts = [], []
    for wire in sheet.wires:
        shapes.append(line([(x / 10000, y / 10000) for x, y in wire], WIRE, 0.3))
    for junction in children(sheet.tree, "junction"):
        x, y = numbers(child(junction, "at"))[:2]
        shapes.append(f'<circle cx="{number(x)}" cy="{number(y)}" r="0.55" fill="{WIRE}"/>')
    for symbol in sheet.symbols:
        library = sheet.libraries[child(symbol, "lib_id")[1]]
        more, words = draw_symbol(symbol, library)
        shapes += more
        texts += words
    for mark in children(sheet.tree, "no_connect"):
        x, y = numbers(child(mark, "at"))[:2]
        for s in (1, -1):
            shapes.append(line([(x - 0.65, y - 0.65 * s), (x + 0.65, y + 0.65 * s)], MARK, 0.3))
    for label in children(sheet.tree, "label"):
        x, y, _ = numbers(child(label, "at"))
        texts.append(svg_text(label[1], x, y - 0.5, 1.27, LABEL, middle=False))
    for note in children(sheet.tree, "text"):
        x, y, _ = numbers(child(note, "at"))
        texts.append(svg_text(note[1], x, y, 1.6, LABEL, middle=False))
    title = child(child(sheet.tree, "title_block"), "title")[1]
    texts.append(svg_text(title, 50.8, 76.2, 2.2, LABEL, middle=False, weight=' font-weight="bold"'))
    paper = f'<rect x="45" y="70" width="180" height="82" fill="{PAPER}"/>'
    return document(45, 70, 180, 82, 6, [paper] + shapes + texts, title)


MASK, COPPER, GOLD, SILK, DRILL, EDGE = "#14532d", "#1f7a45", "#d9b24c", "#f4f4ee", "#2a2a2a", "#0b3019"


def outline_of(copper, color, more=0.0):
    """Draws a piece of copper, `more` millimeters larger on each side."""
    radius = copper.radius + more
    if len(copper.core) == 1:
        x, y = copper.core[0]
        return f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}" fill="{color}"/>'
    closed = copper.core + copper.core[:1] if len(copper.core) > 2 else copper.core
    return line(closed, color, 2 * radius, color if len(copper.core) > 2 else "none")


def board_svg(text, side):
    """Returns the picture of one side, "front" or "back", as one sees it. The back is drawn with its ground plane."""
    board = Board(text)
    width, height, _ = board.size()
    (left, top), front = board.corner, side == "front"
    layer, silk = ("F.Cu", "F.SilkS") if front else ("B.Cu", "B.SilkS")
    items = [f'<rect x="{number(left)}" y="{number(top)}" width="{number(width)}" height="{number(height)}" '
             f'fill="{MASK}" stroke="{EDGE}" stroke-width="0.15"/>']
    here = [c for c in board.copper if layer in c.layers]
    for zone in children(board.tree, "zone"):
        if child(zone, "layer")[1] == layer:
            points = [numbers(xy) for xy in children(child(child(zone, "polygon"), "pts"), "xy")]
            items.append(line(points + points[:1], COPPER, 0.25, COPPER))
            margin, net = numbers(child(child(zone, "connect_pads"), "clearance"))[0], child(zone, "net_name")[1]
            items += [outline_of(c, MASK, margin) for c in here if c.net != net]
            items += [f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(d / 2 + margin)}" fill="{MASK}"/>'
                      for (x, y), d in board.holes if d > 2]
    items += [outline_of(c, COPPER) for c in here if c.kind != "pad"]
    items += [outline_of(c, GOLD) for c in here if c.kind == "pad"]
    for footprint in children(board.tree, "footprint"):
        fx, fy = numbers(child(footprint, "at"))[:2]
        for l in children(footprint, "fp_line"):
            if child(l, "layer")[1] == silk:
                ends = [numbers(child(l, end)) for end in ("start", "end")]
                items.append(line([(x + fx, y + fy) for x, y in ends], SILK, numbers(child(l, "width"))[0]))
        for t in children(footprint, "fp_text"):
            if child(t, "layer")[1] == silk:
                x, y = numbers(child(t, "at"))[:2]
                items.append(silk_text(t[2], x + fx, y + fy, t))
    for t in children(board.tree, "gr_text"):
        if child(t, "layer")[1] == silk:
            items.append(silk_text(t[1], *numbers(child(t, "at"))[:2], t))
    items += [f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(d / 2)}" fill="{DRILL if d > 0.5 else MASK}"/>'
              for (x, y), d in board.holes]
    if not front:
        items = [f'<g transform="translate({number(2 * left + width)} 0) scale(-1 1)">'] + items + ["</g>"]
    title = f"LED module, {side}, {width:g} x {height:g} mm"
    background = f'<rect x="{number(left - 1)}" y="{number(top - 1)}" width="{number(width + 2)}" ' \
                 f'height="{number(height + 2)}" fill="#ffffff"/>'
    return document(left - 1, top - 1, width + 2, height + 2, 20, [background] + items, title)


def silk_text(text, x, y, item):
    size = numbers(child(child(child(item, "effects"), "font"), "size"))[0]
    justify = child(child(item, "effects"), "justify") or []
    anchor = "start" if "left" in justify else "end" if "right" in justify else "middle"
    mirror = f' transform="translate({number(2 * x)} 0) scale(-1 1)"' if "mirror" in justify else ""
    return svg_text(text, x, y, size, SILK, anchor, extra=mirror)
