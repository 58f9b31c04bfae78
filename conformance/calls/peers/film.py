"""Encodes the films that the Pion peer sends: film.py FOLDER

Writes `film-RATE.ivf`, the same VP8 video at several rates in kbit/s, with a keyframe per second.
"""

import random
import sys
from fractions import Fraction
from pathlib import Path

import av

WIDTH, HEIGHT, FPS, SECONDS = 320, 240, 15, 6
RATES = (100, 200, 400, 800)


def picture(number):
    """Returns one frame of blocks. A quarter of the blocks changes in every frame, so that every rate is used."""
    frame = av.VideoFrame(WIDTH, HEIGHT, "yuv420p")
    for plane, size, seed in zip(frame.planes, (8, 16, 16), range(3)):
        line, height = plane.line_size, HEIGHT if seed == 0 else HEIGHT // 2
        rows = []
        for y in range(0, height, size):
            blocks = []
            for x in range(0, line, size):
                age = (number + x // size * 7 + y // size * 3) // 4
                blocks.append(random.Random(f"{seed} {x} {y} {age}").randrange(40, 220))
            rows.append(b"".join(bytes([block]) * size for block in blocks)[:line] * size)
        plane.update(b"".join(rows)[: line * height])
    return frame


def encode(path, kbps, frames):
    with av.open(str(path), "w", format="ivf") as file:
        stream = file.add_stream("libvpx", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.bit_rate = kbps * 1000
        rate = str(kbps * 1000)
        stream.options = {"deadline": "realtime", "cpu-used": "8", "g": str(FPS), "keyint_min": str(FPS)}
        stream.options |= {"minrate": rate, "maxrate": rate, "bufsize": rate, "error-resilient": "1", "auto-alt-ref": "0"}
        for number, frame in enumerate(frames):
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            # The encoder of one film must not leave its choice of frame types to the next one.
            frame.pict_type = av.video.frame.PictureType.NONE
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
pictures = [picture(number) for number in range(FPS * SECONDS)]
for kbps in RATES:
    encode(folder / f"film-{kbps}.ivf", kbps, pictures)
