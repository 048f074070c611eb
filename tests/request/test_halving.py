"""A batch that fails is halved until only what fails alone has failed."""

import pytest
import torch

from covist.faults import is_broken
from covist.request.halving import in_halves

SHORTAGE = torch.OutOfMemoryError("CUDA out of memory")


def failing(bad: set[int], error: Exception):
    def run(batch):
        if bad & set(batch):
            raise error
        return [-one for one in batch]

    return run


@pytest.mark.parametrize("bad", [set(), {0}, {4}, {1, 2}, {0, 1, 2, 3, 4}])
def test_every_item_has_its_result_or_its_own_failure(bad):
    outcomes = list(in_halves(list(range(5)), failing(bad, IndexError("out of\nrange"))))
    assert [one for outcome in outcomes for one in outcome.items] == list(range(5))
    for outcome in outcomes:
        if bad & set(outcome.items):
            assert len(outcome.items) == 1 and outcome.error == "IndexError: out of range"
        else:
            assert outcome.result == [-one for one in outcome.items] and outcome.error is None


def test_every_part_that_failed_is_noted():
    noted = []
    list(in_halves([1, 2, 3, 4], failing({3}, SHORTAGE), lambda error, part: noted.append((type(error), list(part)))))
    assert noted == [(torch.OutOfMemoryError, part) for part in ([1, 2, 3, 4], [3, 4], [3])]


def test_a_broken_accelerator_is_not_tried_again():
    tried = []

    def run(batch):
        tried.append(batch)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="CUDA error"):
        list(in_halves([1, 2], run))
    assert tried == [[1, 2]]


@pytest.mark.parametrize("error", [SHORTAGE, RuntimeError("shape mismatch"), ValueError("CUDA error: no")])
def test_other_errors_leave_the_accelerator_usable(error):
    assert not is_broken(error)
