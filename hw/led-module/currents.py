"""Computes the current of each branch of the module, and writes the same circuit for ngspice.

A branch is: supply, diode of an LED, resistor, output of the driver, ground. README.md, "Currents", states the sources
and the limits of these numbers.

    python3 currents.py                 prints the currents by this file's own solver
    python3 currents.py --spice FILE    prints the currents that ngspice wrote to FILE; fails if one is too large or
                                        differs from this solver
"""
import math
import re
import sys

from netlist import BY_REF, PORTS, SINK_MAX_MA, SUPPLY_V

THERMAL_V = 0.0258649  # k * T / q at 27 degrees, the temperature of ngspice

# Forward voltage at 20 mA: minimum, typical, maximum (ASMT-QTB4-0AA02, an RGB LED of the same class).
FORWARD_V = {"RED": (1.8, 2.1, 2.4), "GREEN": (2.8, 3.2, 3.8), "BLUE": (2.8, 3.2, 3.8)}
TEST_A = 0.020
EMISSION = 2.0  # ideality factor of the diode
SERIES_OHM = 5.0  # series resistance of the diode

# Cases: index into FORWARD_V, and the resistance of a driver output in ohms.
CASES = {"typical": (1, 5.0), "largest": (0, 0.0)}


def saturation(forward_v):
    """Returns the saturation current of a diode that has `forward_v` at 20 mA, in amperes."""
    return TEST_A / (math.exp((forward_v - TEST_A * SERIES_OHM) / (EMISSION * THERMAL_V)) - 1)


def current(forward_v, ohms, output_ohm):
    """Returns the current of a branch in amperes. It is found by bisection: the voltage rises with the current."""
    i_s, low, high = saturation(forward_v), 0.0, SUPPLY_V / (ohms + output_ohm)
    for _ in range(100):
        middle = (low + high) / 2
        voltage = EMISSION * THERMAL_V * math.log(middle / i_s + 1) + middle * (SERIES_OHM + ohms + output_ohm)
        low, high = (middle, high) if voltage < SUPPLY_V else (low, middle)
    return low


def branches():
    """Returns the branches of every case: (case, port, resistor, LED, color) to milliamperes."""
    result = {}
    for case, (index, output_ohm) in CASES.items():
        for port, ref, _, led, color in PORTS:
            ohms = float(BY_REF[ref].value)
            result[case, port, ref, led, color] = 1000 * current(FORWARD_V[color][index], ohms, output_ohm)
    return result


def circuit():
    """Returns the circuit for ngspice. It prints one line per branch, such as `i_p1_typical = 1.2e-02`."""
    lines = ["LED module: branch currents. Made by generate.py from netlist.py; do not edit.",
             "* Run: ngspice -b currents.cir", f"vcc vcc 0 {SUPPLY_V}"]
    names = []
    for case, (index, output_ohm) in CASES.items():
        for color, volts in FORWARD_V.items():
            lines.append(f".model {color.lower()}_{case} d(is={saturation(volts[index]):.6e} n={EMISSION} rs={SERIES_OHM})")
        for port, ref, _, led, color in PORTS:
            p = f"{port.lower()}_{case}"
            lines += [f"* {case}: {led} {color.lower()}, {ref}, {port}", f"v_{p} vcc a_{p} 0",
                      f"d_{p} a_{p} k_{p} {color.lower()}_{case}",
                      f"r_{p} k_{p} o_{p} {BY_REF[ref].value}", f"ro_{p} o_{p} 0 {max(output_ohm, 1e-3)}"]
            names.append(p)
    lines += [".options gmin=1e-15", ".control", "op"]
    for name in names:
        lines += [f"let i_{name} = i(v_{name})", f"print i_{name}"]
    return "\n".join(lines + ["quit", ".endc", ".end"]) + "\n"


def table():
    """Returns the rows of the table in README.md."""
    values = branches()
    rows = []
    for port, ref, ohms, led, color in PORTS:
        typical, largest = (values[case, port, ref, led, color] for case in CASES)
        rows.append(f"| {port} | {led} {color.lower()} | {ref}, {ohms} ohm | {typical:.1f} | {largest:.1f} |")
    sums = [sum(value for key, value in values.items() if key[0] == case) for case in CASES]
    return rows + [f"| sum | | | {sums[0]:.1f} | {sums[1]:.1f} |"]


def check(text):
    """Compares the output of ngspice with this solver and with the limit. Returns the number of wrong branches."""
    printed = {name: 1000 * float(value) for name, value in re.findall(r"^i_(\w+) = (\S+)", text, re.MULTILINE)}
    wrong = 0
    for (case, port, ref, led, color), expected in branches().items():
        ma = printed.get(f"{port.lower()}_{case}", math.nan)
        is_right = 0 < ma < SINK_MAX_MA and abs(ma - expected) <= 0.02 * expected
        wrong += not is_right
        print(f"{case:8} {port} {led} {color.lower():5} {ref} {BY_REF[ref].value:>3} ohm: {ma:6.2f} mA by ngspice, "
              f"{expected:6.2f} mA by currents.py, limit {SINK_MAX_MA:g} mA{'' if is_right else ': WRONG'}")
    return wrong


def main(arguments):
    if arguments[:1] == ["--spice"] and len(arguments) == 2:
        with open(arguments[1], encoding="utf-8") as file:
            return 1 if check(file.read()) else 0
    if arguments:
        print(f"currents.py: {' '.join(arguments)}: expected no argument, or --spice FILE", file=sys.stderr)
        return 2
    print("\n".join(["| port | diode | resistor | typical, mA | largest, mA |", "|---|---|---|---|---|"] + table()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
