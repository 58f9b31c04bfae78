"""Checks the board with KiCad and writes the files for its manufacture. Needs KiCad 6's Python; board.sh calls it.

    fabricate.py BOARD FOLDER    BOARD.kicad_pcb with its .kicad_pro beside it; FOLDER receives the files
"""
import os
import re
import sys

import pcbnew

MM = pcbnew.FromMM
LIBRARIES = os.environ.get("KICAD6_FOOTPRINT_DIR", "/usr/share/kicad/footprints")
GERBERS = [("F_Cu", "F.Cu"), ("B_Cu", "B.Cu"), ("F_Mask", "F.Mask"), ("B_Mask", "B.Mask"), ("F_Paste", "F.Paste"),
           ("F_Silkscreen", "F.SilkS"), ("B_Silkscreen", "B.SilkS"), ("Edge_Cuts", "Edge.Cuts")]
SIDES = [("kicad-front-copper", "F.Cu"), ("kicad-back-copper", "B.Cu")]


def pads_of(footprint):
    """Returns place, size, drill and shape of the pads, without the place of the footprint."""
    origin = footprint.GetPosition()
    result = []
    for pad in footprint.Pads():
        place, size = pad.GetPosition() - origin, pad.GetSize()
        turned = round(pad.GetOrientation() / 10) % 180 == 90
        width, height = (size.y, size.x) if turned else (size.x, size.y)
        result.append((pad.GetNumber(), place.x, place.y, width, height, pad.GetDrillSize().x, pad.GetShape()))
    return sorted(result)


def different_footprints(board):
    """Returns the parts whose pads differ from KiCad's library."""
    wrong = []
    for footprint in board.GetFootprints():
        name = footprint.GetFPID()
        folder = os.path.join(LIBRARIES, str(name.GetLibNickname()) + ".pretty")
        library = pcbnew.FootprintLoad(folder, str(name.GetLibItemName()))
        if library is None or pads_of(library) != pads_of(footprint):
            wrong.append(footprint.GetReference())
    return wrong


def check(board, report):
    """Runs the design-rule check. Returns the numbers of violations, unconnected pads and footprint errors."""
    pcbnew.WriteDRCReport(board, report, pcbnew.EDA_UNITS_MILLIMETRES, True)
    with open(report, encoding="utf-8") as file:
        text = file.read()
    found = re.findall(r"^\*\* Found (\d+) (DRC violations|unconnected pads|Footprint errors)", text, re.MULTILINE)
    if len(found) != 3:
        raise ValueError(f"{report}: expected three counts, found {len(found)}")
    return [int(count) for count, _ in found], text


def plot(board, folder):
    """Writes Gerber files, drill files, and KiCad's own picture of the copper of each side."""
    controller = pcbnew.PLOT_CONTROLLER(board)
    options = controller.GetPlotOptions()
    options.SetOutputDirectory(folder)
    options.SetUseGerberX2format(True)
    options.SetIncludeGerberNetlistInfo(True)
    options.SetCreateGerberJobFile(False)
    options.SetSubtractMaskFromSilk(True)
    options.SetPlotFrameRef(False)
    for suffix, name in GERBERS:
        layer = board.GetLayerID(name)
        controller.SetLayer(layer)
        controller.OpenPlotfile(suffix, pcbnew.PLOT_FORMAT_GERBER, name)
        controller.PlotLayer()
    controller.ClosePlot()
    drill = pcbnew.EXCELLON_WRITER(board)
    drill.SetOptions(False, False, pcbnew.wxPoint(0, 0), False)
    drill.SetFormat(True)
    drill.CreateDrillandMapFilesSet(folder, True, False)
    for suffix, name in SIDES:
        controller.OpenPlotfile(suffix, pcbnew.PLOT_FORMAT_SVG, suffix)
        for layer in (name, "Edge.Cuts"):
            controller.SetLayer(board.GetLayerID(layer))
            controller.PlotLayer()
        controller.ClosePlot()
        crop(controller.GetPlotFileName(), board.GetBoardEdgesBoundingBox())


def crop(path, box):
    """Crops KiCad's picture of a whole sheet to the board. The picture's unit is a nanometer, as KiCad's."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    margin = MM(1)
    x, y, w, h = box.GetX() - margin, box.GetY() - margin, box.GetWidth() + 2 * margin, box.GetHeight() + 2 * margin
    text, count = re.subn(r'width="[\d.]+cm" height="[\d.]+cm" viewBox="[^"]+"',
                          f'width="{w // 50000}" height="{h // 50000}" viewBox="{x} {y} {w} {h}"', text, count=1)
    if count != 1:
        raise ValueError(f"{path}: expected KiCad's size of the sheet")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main(path, folder):
    board = pcbnew.LoadBoard(path)
    rules = board.GetDesignSettings()
    if rules.m_MinClearance != MM(0.2) or rules.m_CopperEdgeClearance != MM(0.4):
        print("the rules of led-module.kicad_pro were not loaded", file=sys.stderr)
        return 1
    wrong = different_footprints(board)
    print(f"footprints: {len(board.GetFootprints()) - len(wrong)} have the pads of KiCad's library, {len(wrong)} differ")
    failed = bool(wrong)
    for step in ("tracks only", "with the ground plane"):
        if step != "tracks only":
            pcbnew.ZONE_FILLER(board).Fill(board.Zones())
        counts, text = check(board, os.path.join(folder, f"drc-{step.split()[-1]}.txt"))
        print(f"design-rule check, {step}: {counts[0]} violations, {counts[1]} unconnected pads, {counts[2]} footprint errors")
        if any(counts):
            failed = True
            print(text)
    box = board.GetBoardEdgesBoundingBox()
    print(f"board: {pcbnew.ToMM(box.GetWidth()) - 0.1:.1f} x {pcbnew.ToMM(box.GetHeight()) - 0.1:.1f} mm, "
          f"{board.GetCopperLayerCount()} copper layers, {len(board.GetTracks())} tracks and vias")
    if failed:
        return 1
    plot(board, folder)
    pcbnew.SaveBoard(os.path.join(folder, "led-module-filled.kicad_pcb"), board)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
