"""The driver alone, in a Ray of this process: how rows reach the workers."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from covist.api.setup import Setup
from covist.batch.rows import Block, Row
from covist.batch.spec import WorkerSpec
from covist.errors import CovistError

pytest.importorskip("ray", reason="Ray is not installed; make test-ray has it")
pytestmark = pytest.mark.ray

from covist.cluster.driver import CALLS, PIECE_ROWS, RayDriver, pieces  # noqa: E402
from covist.cluster.start import ray_running, reservation_of  # noqa: E402


def rows(start: int, count: int) -> list[Row]:
    """That no worker has to think about."""
    return [Row(number, f"row-{number}", error=f"bad {number}") for number in range(start, start + count)]


def test_pieces_hold_the_same_rows_in_the_same_order():
    blocks = [Block(0, rows(0, PIECE_ROWS + 1)), Block(3, rows(500, 2))]
    found = list(pieces(blocks, []))
    assert [(one.index, len(one.rows)) for one in found] == [(0, PIECE_ROWS), (0, 1), (3, 2)]
    assert [row for one in found for row in one.rows] == [row for one in blocks for row in one.rows]


@pytest.fixture(scope="module")
def running() -> Iterator[RayDriver]:
    with ray_running():
        yield RayDriver(1, reservation_of(2, cpus=2, gpus=0))


@pytest.fixture(scope="module")
def spec(small_model) -> WorkerSpec:
    return WorkerSpec(model=small_model, setup=Setup(concentration=0.05), max_new_tokens=1)


def test_blocks_are_taken_as_they_are_answered_and_all_are(running, spec):
    taken, most = 0, 0

    def blocks() -> Iterator[Block]:
        nonlocal taken
        for index in range(100):
            taken += 1
            yield Block(index, rows(3 * index, 3))

    found = []
    for answered, result in enumerate(running.run(spec, blocks()), 1):
        most = max(most, taken - answered)
        found += [(result.index, answer.id, answer.error) for answer in result.answers]
    assert sorted(found) == sorted((n // 3, f"row-{n}", f"bad {n}") for n in range(300))
    assert most <= CALLS


def test_a_piece_goes_to_the_worker_that_replaces_a_dead_one(running, spec):
    found = []
    for result in running.run(spec, [Block(index, rows(2 * index, 2)) for index in range(8)]):
        found.append(result.index)
        if len(found) == 1:
            worker_process().kill()
    assert sorted(found) == list(range(8))


def worker_process() -> psutil.Process:
    family = psutil.Process().children(recursive=True)
    (found,) = [one for one in family if "BatchWorker" in " ".join(one.cmdline())]
    return found


def test_an_input_that_breaks_off_is_reported_after_what_was_read(running, spec):
    def blocks() -> Iterator[Block]:
        yield Block(0, rows(0, 1))
        raise OSError("the disk is gone")

    results = running.run(spec, blocks())
    assert next(results).index == 0
    with pytest.raises(OSError, match="the disk is gone"):
        next(results)


def test_a_worker_that_cannot_begin_ends_the_job_with_its_reason(running, spec, tmp_path):
    missing = WorkerSpec(model=str(tmp_path / "nowhere"), setup=Setup(concentration=0.05))
    with pytest.raises(CovistError, match="the workers of --ray stopped: unknown model") as refusal:
        list(running.run(missing, [Block(0, rows(0, 1))]))
    assert "\n" not in str(refusal.value)
