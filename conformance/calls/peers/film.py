"""The video of aiortc and Pion. As a program, it encodes the films that the Pion peer sends: film.py FOLDER

Writes `film-RATE.ivf`, the same VP8 video at several rates in kbit/s, with a keyframe per second.
"""

import random
import sys
from fractions import Fraction
from pathlib import Path

import av

WIDTH, HEIGHT, FPS, SECONDS = 320, 240, 15, 6
# Size of a block in pixels, and number of frames for which a row of blocks stays the same. With these, the encoder
# reaches every rate from 250 kbit/s to 1 Mbit/s.
BLOCK, CHANGE_EVERY = 8, 3
RATES = (100, 200, 400, 800)


def picture(number):
    """Returns one frame: rows of blocks, of which a third changes in every frame."""
    frame = av.VideoFrame(WIDTH, HEIGHT, "yuv420p")
    for plane, height in zip(frame.planes, (HEIGHT, HEIGHT // 2, HEIGHT // 2)):
        rows = []
        for row in range(height // BLOCK):
            seed = f"{row} {(number + row) // CHANGE_EVERY}"
            blocks = random.Random(seed).randbytes(-(-plane.line_size // BLOCK))
            rows.append(b"".join(bytes([block]) * BLOCK for block in blocks)[: plane.line_size] * BLOCK)
        plane.update(b"".join(rows))
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


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [picture(number) for number in range(FPS * SECONDS)]
    for kbps in RATES:
        encode(folder / f"film-{kbps}.ivf", kbps, pictures)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
