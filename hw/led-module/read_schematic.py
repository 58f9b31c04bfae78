"""Extracts the net list of a KiCad schematic from its geometry: pins, wires, junctions, labels and power symbols.

This file knows nothing of netlist.py. It follows KiCad's rules: wires join where their ends meet, a wire that passes
another one joins it only at a junction, and a label names the wire below it.
"""
from collections import defaultdict

from sexpr import child, children, numbers, parse


def point(x, y):
    """Returns a point in units of 0.1 micrometers, so that equal points are equal."""
    return (round(x * 10000), round(y * 10000))


class Sets:
    """Disjoint sets of hashable items."""

    def __init__(self):
        self.parent = {}

    def find(self, item):
        self.parent.setdefault(item, item)
        while self.parent[item] != item:
            self.parent[item] = self.parent[self.parent[item]]
            item = self.parent[item]
        return item

    def join(self, a, b):
        self.parent[self.find(a)] = self.find(b)

    def groups(self):
        result = defaultdict(set)
        for item in list(self.parent):
            result[self.find(item)].add(item)
        return list(result.values())


def place(instance, x, y):
    """Returns the sheet's coordinates of a point of a symbol. In symbols, y points up; on the sheet, it points down."""
    sx, sy, angle = numbers(child(instance, "at"))
    mirror = child(instance, "mirror")
    x, y = x, -y
    for _ in range(int(angle) // 90):
        x, y = y, -x
    if mirror and mirror[1] == "x":
        y = -y
    if mirror and mirror[1] == "y":
        x = -x
    return sx + x, sy + y


def lies_on(at, wire):
    (x, y), ((x1, y1), (x2, y2)) = at, wire
    cross = (x2 - x1) * (y - y1) - (y2 - y1) * (x - x1)
    return cross == 0 and min(x1, x2) <= x <= max(x1, x2) and min(y1, y2) <= y <= max(y1, y2)


def field(symbol, key):
    return next((p[2] for p in children(symbol, "property") if p[1] == key), "")


class Schematic:
    """`values` and `footprints` map references; `nets` maps a net name to its pins; `open_pins` have no wire."""

    def __init__(self, text):
        self.tree = parse(text)
        if self.tree[0] != "kicad_sch":
            raise ValueError("expected a KiCad schematic")
        self.libraries = {s[1]: s for s in children(child(self.tree, "lib_symbols"), "symbol")}
        self.symbols = children(self.tree, "symbol")
        self.values, self.footprints, self.problems = {}, {}, []
        self.pins = {}  # "U1.1" -> point
        self.power = []  # (net, point)
        for symbol in self.symbols:
            self.read_symbol(symbol)
        self.read_wires()

    def read_symbol(self, symbol):
        library = self.libraries[child(symbol, "lib_id")[1]]
        ref = field(symbol, "Reference")
        is_power = child(library, "power") is not None
        if not is_power:
            if ref in self.values:
                self.problems.append(f"{ref} is placed twice")
            self.values[ref] = field(symbol, "Value")
            self.footprints[ref] = field(symbol, "Footprint")
        for unit in children(library, "symbol"):
            for pin in children(unit, "pin"):
                x, y, _ = numbers(child(pin, "at"))
                at = point(*place(symbol, x, y))
                if is_power and pin[1] == "power_in":
                    self.power.append((field(symbol, "Value"), at))
                elif not is_power:
                    self.pins[f"{ref}.{child(pin, 'number')[1]}"] = at

    def read_wires(self):
        sets = Sets()
        ends = [[point(*numbers(xy)) for xy in children(child(w, "pts"), "xy")] for w in children(self.tree, "wire")]
        self.wires = [tuple(pair) for pair in ends]
        for a, b in self.wires:
            sets.join(a, b)
        for junction in children(self.tree, "junction"):
            at = point(*numbers(child(junction, "at"))[:2])
            for wire in self.wires:
                if lies_on(at, wire):
                    sets.join(at, wire[0])
        names = defaultdict(set)
        for kind in ("label", "global_label"):
            for label in children(self.tree, kind):
                at = point(*numbers(child(label, "at"))[:2])
                below = [wire for wire in self.wires if lies_on(at, wire)]
                if not below:
                    self.problems.append(f"label {label[1]} is not on a wire")
                for wire in below:
                    names[sets.find(wire[0])].add(label[1])
        for net, at in self.power:
            names[sets.find(at)].add(net)
        marked = {point(*numbers(child(mark, "at"))[:2]) for mark in children(self.tree, "no_connect")}
        at_root = defaultdict(list)
        for pin, at in self.pins.items():
            at_root[sets.find(at)].append(pin)
        touched = {end for wire in self.wires for end in wire}
        self.nets, self.open_pins = defaultdict(set), set()
        for root, pins in at_root.items():
            found = {name for key, value in names.items() if sets.find(key) == root for name in value}
            if len(found) > 1:
                self.problems.append(f"one wire has the names {', '.join(sorted(found))}")
            if not found and len(pins) == 1:
                self.open_pins.add(pins[0])
                if self.pins[pins[0]] not in marked:
                    self.problems.append(f"{pins[0]} has no wire and no mark that it is not connected")
                continue
            self.nets["+".join(sorted(found)) or "Net-(" + "-".join(sorted(pins)) + ")"] |= set(pins)
        for pin, at in self.pins.items():
            if at in marked and at in touched:
                self.problems.append(f"{pin} is marked as not connected, and a wire ends at it")
        for wire in self.wires:
            for end in wire:
                if sum(end in other for other in self.wires) == 1 and end not in self.pins.values() \
                        and end not in [at for _, at in self.power] \
                        and not any(lies_on(end, other) for other in self.wires if other != wire):
                    self.problems.append(f"a wire ends at {end[0] / 10000:g}, {end[1] / 10000:g} and meets nothing")
