"""The cost of building a state: greedy coverage compared with a naive loop, and the total with an affinity matrix.

    python benchmarks/state_building.py

Every figure is a ratio of two measurements in the same run with the same threads. Exits with 1 if a limit is missed.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from covist.config import CovistConfig
from covist.formulas import composition, selection
from covist.formulas.coverage import affinity
from covist.formulas.dense_greedy import grow_on_device
from covist.formulas.greedy import greedy_coverage
from covist.grid import Grid
from covist.state import VisualState

Result = TypeVar("Result")
KEY_WIDTH, EMBEDDING_WIDTH = 1024, 4096
GREEDY = [(2880, 960, 20.0), (576, 96, 1.0)]  # N, K, least speed-up over the naive loop
BUILDING = [(2880, 160, 2.0), (2880, 640, 3.0), (576, 64, 6.0)]  # N, K, largest cost in affinity matrices
VIEWS = {576: ((24, 24),), 2880: ((24, 24), (48, 48))}
EXTRA_MATRICES = 3.0
PHASES = {
    selection: (
        "unit_rows gram blend_similarities weigh_image mix_evidence instruction_anchors protected_tokens "
        "descriptor_distances assign_regions balance_regions greedy_coverage fill_reserve coverage_share"
    ),
    composition: "correspondence contributions confidence centroids content",
}


def clustered(size: int, width: int, generator: torch.Generator, clusters: int = 40) -> Tensor:
    """Rows around a few centres that share a direction, so that every pair is somewhat similar: [size, width]."""
    centres = torch.randn(clusters, width, generator=generator) + torch.randn(width, generator=generator)
    member = torch.randint(clusters, (size,), generator=generator)
    return centres[member] + 0.6 * torch.randn(size, width, generator=generator)


def best_time(run: Callable[[], Result], repeats: int) -> tuple[float, Result]:
    """Shortest of several runs in seconds, and what the last one returned."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return min(times), result


def naive_greedy(s: Tensor, omega: Tensor, start: Tensor, count: int) -> Tensor:
    """The simplest implementation: every gain from scratch in every step, in the given dtype -> chosen [N] bool."""
    kernel, chosen = s.square(), torch.zeros_like(omega, dtype=torch.bool)
    chosen[start] = True
    covered = kernel[start].amax(0) if len(start) else torch.zeros_like(omega)
    for _ in range(count - len(start)):
        gains = (kernel - covered).clamp_(min=0) @ omega
        pick = gains.masked_fill_(chosen, -1).argmax()
        chosen[pick] = True
        covered = torch.maximum(covered, kernel[pick])
    return chosen


def peak_bytes(run: Callable[[], object]) -> int:
    """Most memory that `run` allocates at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run()
    steps = sorted(
        (e.start_ns(), e.nbytes()) for e in record.profiler.kineto_results.events() if e.name() == "[memory]"
    )
    held = peak = 0
    for _, change in steps:
        held += change
        peak = max(peak, held)
    return peak


class Launches(TorchDispatchMode):
    """Counts dispatched operators, and those that make the host wait for a device."""

    WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "unique", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.total = self.waits = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put_") and any(i is not None and i.dtype == torch.bool for i in args[1])
        self.total += 1
        self.waits += name in self.WAITING or by_mask
        return func(*args, **(kwargs or {}))


@contextmanager
def stopwatch() -> Iterator[dict[str, float]]:
    """Seconds per phase while the block runs."""
    spent: dict[str, float] = {}
    originals = [(module, name, getattr(module, name)) for module, names in PHASES.items() for name in names.split()]

    def timed(name: str, function: Callable) -> Callable:
        def call(*args, **kwargs):
            start = time.perf_counter()
            result = function(*args, **kwargs)
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - start
            return result

        return call

    try:
        for module, name, function in originals:
            setattr(module, name, timed(name, function))
        yield spent
    finally:
        for module, name, function in originals:
            setattr(module, name, function)


def verdict(reached: bool, requirement: str) -> bool:
    print(f"    {'reached' if reached else 'MISSED '}: {requirement}")
    return reached


def compare_greedy(size: int, count: int, least: float) -> bool:
    generator = torch.Generator().manual_seed(size)
    s = affinity(clustered(size, KEY_WIDTH, generator), clustered(size, EMBEDDING_WIDTH, generator))
    omega = torch.rand(size, generator=generator)
    omega /= omega.sum()
    start = torch.arange(0)
    repeats = 9 if size < 1000 else 1
    fast, chosen = best_time(lambda: greedy_coverage(s, omega, start, count), 9)
    slow, expected = best_time(lambda: naive_greedy(s, omega, start, count), repeats)
    print(
        f"greedy coverage N={size} K={count}: {fast * 1e3:.1f} ms, naive loop {slow * 1e3:.1f} ms, {slow / fast:.1f}x"
    )
    matrices = peak_bytes(lambda: greedy_coverage(s, omega, start, count)) / (4 * size**2)
    with Launches() as launches:
        grown = grow_on_device(s, omega, start, count)
    total, waits = launches.total, launches.waits
    print(f"    accelerator loop: {count} steps, {total} operators ({total / count:.1f} per step), {waits} host reads")
    return all(
        [
            verdict(slow / fast >= least, f"at least {least:g}x the naive loop"),
            verdict(torch.equal(chosen, expected), "the set of the naive loop"),
            verdict(torch.equal(chosen.nonzero()[:, 0], grown.sort().values), "the same set from the accelerator loop"),
            verdict(waits < count / 10, "no host read per step in the accelerator loop"),
            verdict(
                matrices <= EXTRA_MATRICES, f"{matrices:.2f} of {EXTRA_MATRICES:g} N x N float32 matrices at the peak"
            ),
        ]
    )


def compare_building(size: int, count: int, most: float) -> bool:
    generator, grid, config = torch.Generator().manual_seed(size), Grid(VIEWS[size]), CovistConfig()
    keys, embeddings = clustered(size, KEY_WIDTH, generator), clustered(size, EMBEDDING_WIDTH, generator)
    attention = torch.rand(size, generator=generator) ** 3
    instruction = selection.InstructionEvidence((3 * torch.rand(size, generator=generator)).softmax(0), True, 0.3)
    positions = torch.arange(size)

    def build() -> composition.Composition:
        chosen, s = selection.initial_selection(attention, keys, embeddings, grid, count, config, instruction, 0.3)
        state = VisualState.initial(embeddings, positions, s, grid, chosen.anchors)
        return composition.compose(state, chosen.kept, chosen.evidence, config)

    build()
    matrix, _ = best_time(lambda: affinity(keys, embeddings), 3)
    whole, _ = best_time(build, 3)
    print(
        f"state building N={size} K={count}: {whole * 1e3:.0f} ms, affinity {matrix * 1e3:.0f} ms, {whole / matrix:.2f}"
    )
    with stopwatch() as spent:
        build()
    shares = sorted(spent.items(), key=lambda item: -item[1])
    print("    " + ", ".join(f"{name} {seconds * 1e3:.1f}" for name, seconds in shares if seconds > 2e-4) + " (ms)")
    return verdict(whole / matrix <= most, f"at most {most:g} affinity matrices")


def main() -> int:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    results = [compare_greedy(*case) for case in GREEDY] + [compare_building(*case) for case in BUILDING]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
