"""Extracts the net list of a KiCad board twice: from the nets of the pads, and from the copper that touches.

This file knows nothing of netlist.py. The copper is pads, tracks and vias. Filled planes do not count, so a net that
only a plane connects is reported as not routed.
"""
import math
from collections import defaultdict
from dataclasses import dataclass

from read_schematic import Sets
from sexpr import child, children, numbers, parse


@dataclass(frozen=True)
class Copper:
    """A piece of copper: all points within `radius` of a point, a line or a convex polygon."""
    name: str
    kind: str
    net: str
    layers: frozenset
    core: tuple
    radius: float


def to_segment(p, a, b):
    length = (b[0] - a[0]) ** 2 + (b[1] - a[1]) ** 2
    t = 0 if length == 0 else max(0, min(1, ((p[0] - a[0]) * (b[0] - a[0]) + (p[1] - a[1]) * (b[1] - a[1])) / length))
    return math.hypot(p[0] - a[0] - t * (b[0] - a[0]), p[1] - a[1] - t * (b[1] - a[1]))


def side(a, b, p):
    return (b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0])


def crosses(a, b, c, d):
    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0


def edges(core):
    return list(zip(core, core[1:] + core[:1])) if len(core) > 2 else [(core[0], core[-1])]


def is_inside(p, core):
    if len(core) < 3:
        return False
    sides = [side(a, b, p) for a, b in edges(core)]
    return all(s >= 0 for s in sides) or all(s <= 0 for s in sides)


def gap(one, other):
    """Returns the distance between two pieces of copper in millimeters; it is negative if they overlap."""
    if is_inside(one.core[0], other.core) or is_inside(other.core[0], one.core):
        return -one.radius - other.radius - 1e-6
    distance = math.inf
    for a, b in edges(one.core):
        for c, d in edges(other.core):
            if crosses(a, b, c, d):
                return -one.radius - other.radius - 1e-6
            distance = min(distance, to_segment(a, c, d), to_segment(b, c, d), to_segment(c, a, b), to_segment(d, a, b))
    return distance - one.radius - other.radius


def text_of(footprint, kind):
    return next((t[2] for t in children(footprint, "fp_text") if t[1] == kind), "")


def net_name(name):
    """Returns the name without the slash with which KiCad marks a net of the first sheet."""
    return name[1:] if name.startswith("/") else name


class Board:
    """`values` and `footprints` map references; `pad_nets` maps a net to its pads; `copper` has every piece."""

    def __init__(self, text):
        self.tree = parse(text)
        if self.tree[0] != "kicad_pcb":
            raise ValueError("expected a KiCad board")
        self.net_names = {net[1]: net_name(net[2]) for net in children(self.tree, "net")}
        self.values, self.footprints, self.copper, self.holes, self.pads = {}, {}, [], [], []
        self.courtyards = {}
        self.pad_nets, self.open_pads = defaultdict(set), set()
        self.layers = [layer[1] for layer in child(self.tree, "layers")[1:] if layer[1].endswith(".Cu")]
        for footprint in children(self.tree, "footprint"):
            self.read_footprint(footprint)
        self.tracks = children(self.tree, "segment")
        for track in self.tracks:
            a, b = numbers(child(track, "start")), numbers(child(track, "end"))
            net = self.net_names[child(track, "net")[1]]
            self.copper.append(Copper(f"track {a} to {b}", "track", net, frozenset([child(track, "layer")[1]]),
                                      (tuple(a), tuple(b)), numbers(child(track, "width"))[0] / 2))
        for via in children(self.tree, "via"):
            place = tuple(numbers(child(via, "at")))
            net = self.net_names[child(via, "net")[1]]
            self.copper.append(Copper(f"via {place}", "via", net, frozenset(self.layers), (place,),
                                      numbers(child(via, "size"))[0] / 2))
            self.holes.append((place, numbers(child(via, "drill"))[0]))

    def read_footprint(self, footprint):
        ref = text_of(footprint, "reference")
        attributes = child(footprint, "attr")[1:]
        if "board_only" not in attributes:
            self.values[ref] = text_of(footprint, "value")
            self.footprints[ref] = footprint[1]
        place = numbers(child(footprint, "at"))
        fx, fy, angle = (place + [0])[:3]
        if angle:
            raise ValueError(f"{ref}: rotated footprints are not supported")
        lines = [numbers(child(l, e)) for l in children(footprint, "fp_line") if child(l, "layer")[1] == "F.CrtYd"
                 for e in ("start", "end")]
        xs, ys = [x + fx for x, _ in lines], [y + fy for _, y in lines]
        self.courtyards[ref] = (min(xs), min(ys), max(xs), max(ys))
        for pad in children(footprint, "pad"):
            self.read_pad(ref, fx, fy, pad)

    def read_pad(self, ref, fx, fy, pad):
        number, kind, shape = pad[1], pad[2], pad[3]
        x, y = numbers(child(pad, "at"))[:2]
        x, y = x + fx, y + fy
        w, h = numbers(child(pad, "size"))
        if child(pad, "drill"):
            self.holes.append(((x, y), numbers(child(pad, "drill"))[0]))
        if kind == "np_thru_hole":
            return
        radius = {"rect": 0, "circle": w / 2, "oval": min(w, h) / 2}.get(shape)
        if shape == "roundrect":
            radius = min(w, h) * numbers(child(pad, "roundrect_rratio"))[0]
        dx, dy = w / 2 - radius, h / 2 - radius
        core = ((x - dx, y - dy), (x + dx, y - dy), (x + dx, y + dy), (x - dx, y + dy))
        if dx < 1e-9 or dy < 1e-9:
            core = ((x - dx, y - dy), (x + dx, y + dy))
        layers = frozenset(self.layers if kind == "thru_hole" else ["F.Cu"])
        name = f"{ref}.{number}"
        net = child(pad, "net")
        if net and net_name(net[2]) != self.net_names[net[1]]:
            raise ValueError(f"{name}: net {net[1]} is not {net[2]}")
        if net:
            self.pad_nets[net_name(net[2])].add(name)
        else:
            self.open_pads.add(name)
        self.copper.append(Copper(name, "pad", net_name(net[2]) if net else "", layers, core, radius))
        self.pads.append((name, (x, y), (w, h)))

    def size(self):
        """Returns the width and the height of the outline, and whether its lines form one closed rectangle."""
        lines = [l for l in children(self.tree, "gr_line") if child(l, "layer")[1] == "Edge.Cuts"]
        ends = [tuple(numbers(child(l, e))) for l in lines for e in ("start", "end")]
        self.corner = (min(x for x, _ in ends), min(y for _, y in ends))
        far = (max(x for x, _ in ends), max(y for _, y in ends))
        closed = len(lines) == 4 and all(ends.count(end) == 2 for end in ends)
        return round(far[0] - self.corner[0], 4), round(far[1] - self.corner[1], 4), closed

    def copper_nets(self):
        """Returns groups of copper that touches: a list of (pads, nets that the copper is marked with)."""
        sets = Sets()
        for one in self.copper:
            sets.find(one)
        for index, one in enumerate(self.copper):
            for other in self.copper[index + 1:]:
                if one.layers & other.layers and gap(one, other) <= 0:
                    sets.join(one, other)
        return [({c.name for c in group if c.kind == "pad"}, {c.net for c in group}) for group in sets.groups()]

    def closest(self):
        """Returns the smallest gap between copper of different nets: millimeters, and the two pieces."""
        return min((gap(a, b), a.name, b.name) for i, a in enumerate(self.copper) for b in self.copper[i + 1:]
                   if (a.net != b.net or not a.net) and a.layers & b.layers)
