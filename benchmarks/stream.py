"""A stream of 10,000 frames: what is held, the memory of the process, and the work for one more frame.

    python benchmarks/stream.py
    python benchmarks/stream.py --frames 1000 --budget 128

Frames of rendered films, one film after the other, on the embedded video model. Exits with 1 if the stream holds more
bytes after the last frame than after 100, or if another frame takes more than 1.2 times as many operators.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from copy import copy
from pathlib import Path

from common import interleaved, verdict
from launches import counted
from PIL import Image

import covist
from covist.tiny.films import film_frames, sample_film

EARLY, FILMS = 100, 32
LIMIT = 1.2
MIB = 2**20


def frames(count: int) -> Iterator[Image.Image]:
    """Films one after the other; the same ones again after a while, so that drawing them takes no memory."""
    films = [film_frames(sample_film(seed)) for seed in range(FILMS)]
    length = len(films[0])
    for number in range(count):
        film, frame = divmod(number, length)
        yield films[film % FILMS][frame]


def resident() -> int:
    """Bytes of memory that the process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--budget", type=int, default=64)
    given = parser.parse_args()
    model, processor, _ = covist.load_model("tiny-video")
    marks, held, taken, kept = {EARLY, 1_000, given.frames}, {}, {}, {}
    with covist.Stream(model, processor, budget=given.budget) as stream:
        for number, frame in enumerate(frames(given.frames), start=1):
            stream.add(frame)
            if number in marks:
                held[number], taken[number], kept[number] = stream.nbytes, resident(), copy(stream)
                shown = f"{held[number] / 1024:.1f} KiB held, the process has {taken[number] / MIB:.1f} MiB"
                print(f"{number:>7,} frames: {shown}; {stream.ask('what is the last digit?', 1)!r}", flush=True)
        early, late = kept[EARLY], kept[given.frames]
        operators = {name: counted(lambda one=one: copy(one).add(frame)).operators for name, one in kept.items()}
        seconds = interleaved({"early": lambda: copy(early).add(frame), "late": lambda: copy(late).add(frame)}, 41)
    print(f"operators for one more frame: {operators}")
    more, bytes_more = operators[given.frames] / operators[EARLY], held[given.frames] / held[EARLY]
    print(verdict("bytes held, last frame / frame 100", bytes_more, 1.0))
    print(verdict("operators for one more frame, last / frame 100", more, LIMIT))
    print(verdict("seconds for one more frame, last / frame 100", seconds["late"] / seconds["early"], None))
    return 0 if bytes_more <= 1 and more <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
