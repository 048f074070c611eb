"""The overhead of `covist batch`, as ratios within one run.

rows per second   of a job, compared with a plain loop over `generate` on the embedded model: one row after another,
                  loaded, prepared and answered, with the same compression and with none
driver            processor time per row of everything but the model: reading, ids, journals, parts
memory            of the driver at 100,000 rows, compared with 1,000, each in its own process

python benchmarks/batch.py [--rows 96] [--repetitions 3]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import process_time

from covist.api.setup import PLAIN, Setup
from covist.batch.answers import RowAnswer
from covist.batch.drivers import LocalDriver, Result
from covist.batch.job import run
from covist.batch.manifest import Order
from covist.batch.rows import Block
from covist.batch.spec import Facts, WorkerSpec

SMALL, LARGE = 1_000, 100_000
MEMORY_GROWTH = 1.25  # lists of 100,000 rows would take several times as much
SEEDS = 16


class Instant:
    """A driver whose answers cost nothing, so that only the cost of the job itself remains."""

    def inspect(self, spec: WorkerSpec) -> Facts:
        return Facts({"model": "none"}, None, 1.0)

    def run(self, spec: WorkerSpec, blocks: Iterable[Block]) -> Iterator[Result]:
        for block in blocks:
            yield Result(block.index, [RowAnswer(row.id, "yes", "stop", 576, 64.0, 0.1) for row in block.rows])


def write_input(folder: Path, rows: int) -> Path:
    """Questions about a few images, with different lengths."""
    from covist import tiny

    asked = [item.question for seed in range(SEEDS) for item in tiny.questions_for(tiny.sample_scene(seed))]
    path = folder / f"{rows}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            row = {"id": f"row-{number}", "image": f"{number % SEEDS}.png", "prompt": asked[number % len(asked)]}
            file.write(json.dumps(row) + "\n")
    return path


def driver_seconds(path: Path) -> float:
    """Processor seconds of a whole job without a model; other programs on the machine do not count."""
    started = process_time()
    run(Order(path, WorkerSpec()), Path(tempfile.mkdtemp(dir=path.parent)), Instant())
    return process_time() - started


def resident_peak() -> int:
    """Peak memory of this process in bytes; `ru_maxrss` of a child would start with that of its parent."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def peak_bytes(path: Path) -> int:
    """Peak memory of a process that only drives such a job; it never imports torch, which would hide the growth."""
    command = [sys.executable, __file__, "--memory", str(path)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def throughput(rows: int, repetitions: int, folder: Path) -> dict[str, float]:
    """Median seconds of a job and of two plain loops over the same rows."""
    from common import interleaved

    from covist import tiny
    from covist.batch.worker import load
    from covist.request.answer import compressed
    from covist.request.images import load_image
    from covist.request.inputs import prepare
    from covist.request.timing import generate

    for seed in range(SEEDS):
        tiny.scene_image(tiny.sample_scene(seed)).save(folder / f"{seed}.png")
    path = write_input(folder, rows)
    spec = WorkerSpec(setup=Setup(concentration=0.1), max_new_tokens=8)
    loaded = load(spec)

    def job() -> None:
        driver = LocalDriver()
        driver._loaded = loaded  # loading is not part of the comparison
        driver.inspect = lambda spec: Facts({}, spec.setup.concentration, 1.0)  # type: ignore[method-assign]
        run(Order(path, spec), Path(tempfile.mkdtemp(dir=folder)), driver)

    def loop(setup: Setup) -> None:
        with compressed(loaded, setup), path.open() as file:
            for row in map(json.loads, file):
                request = prepare(loaded, [load_image(folder / row["image"])], row["prompt"])
                loaded.processor.batch_decode(generate(loaded.model, request, spec.max_new_tokens))

    variants = {"job": job, "compressed loop": lambda: loop(spec.setup), "plain loop": lambda: loop(PLAIN)}
    return interleaved(variants, repetitions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--memory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory is not None:
        driver_seconds(options.memory)
        print(resident_peak())
        return
    from common import verdict

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        small, large = (peak_bytes(write_input(folder, rows)) for rows in (SMALL, LARGE))
        print(f"driver: {small / 2**20:.0f} MiB at {SMALL:,} rows, {large / 2**20:.0f} MiB at {LARGE:,}")
        print(verdict("memory of the driver, 100,000 rows against 1,000", large / small, MEMORY_GROWTH))
        seconds = throughput(options.rows, options.repetitions, folder)
        overhead = driver_seconds(write_input(folder, 20_000)) / 20_000
        for name, took in seconds.items():
            print(f"{name}: {options.rows / took:.2f} rows/s")
        compressed, plain = (seconds[name] / seconds["job"] for name in ("compressed loop", "plain loop"))
        print(verdict("rows/s of a job against a loop, same compression", compressed, 1.0, at_least=True))
        print(verdict("rows/s of a job against a loop of the plain model", plain, None))
        print(f"driver: {1e6 * overhead:.0f} microseconds of the processor per row")
        print(verdict("share of the driver in a job", overhead * options.rows / seconds["job"], 0.05))


if __name__ == "__main__":
    main()
