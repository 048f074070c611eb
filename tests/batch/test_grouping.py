"""Batches: every row in one, none above the limit, neighbours in length together."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from covist.batch.grouping import Limit, ReadyRow, first_batch
from covist.request.conversations import Posed
from covist.request.inputs import Request

LENGTHS = st.lists(st.integers(1, 40), max_size=30)
LIMITS = st.builds(Limit, st.none() | st.integers(1, 6), st.none() | st.integers(1, 100))


def rows(lengths: list[int]) -> list[ReadyRow]:
    return [
        ReadyRow(str(number), Posed(Request({"input_ids": torch.zeros(1, length)}, {}), ()))
        for number, length in enumerate(lengths)
    ]


def grouped(prepared: list[ReadyRow], limit: Limit) -> list[list[ReadyRow]]:
    """All batches, as a worker makes them."""
    waiting, batches = sorted(prepared, key=lambda one: one.length), []
    while waiting:
        count = first_batch(waiting, limit)
        batches.append(waiting[:count])
        waiting = waiting[count:]
    return batches


@given(LENGTHS, LIMITS)
def test_every_row_is_in_exactly_one_batch(lengths, limit):
    batches = grouped(rows(lengths), limit)
    assert sorted(int(one.id) for batch in batches for one in batch) == list(range(len(lengths)))


@given(LENGTHS, LIMITS)
def test_no_batch_of_several_rows_is_above_the_limit(lengths, limit):
    for batch in grouped(rows(lengths), limit):
        padded = len(batch) * max(one.length for one in batch)
        if len(batch) > 1:
            assert limit.rows is None or len(batch) <= limit.rows
            assert limit.tokens is None or padded <= limit.tokens


@given(LENGTHS, LIMITS)
def test_no_batch_could_take_the_first_row_of_the_next(lengths, limit):
    batches = grouped(rows(lengths), limit)
    for batch, following in zip(batches, batches[1:], strict=False):
        assert not limit.allows(len(batch) + 1, following[0].length)


@given(st.lists(st.integers(1, 40), min_size=2, max_size=30), LIMITS)
def test_a_limit_below_a_failed_batch_excludes_that_batch(lengths, limit):
    batch = rows(lengths)
    assert not limit.below(batch).allows(len(batch), max(lengths))


def test_auto_counts_tokens_and_a_number_counts_rows():
    assert Limit.of(None, "cpu").tokens and Limit.of(None, "cpu").rows is None
    assert Limit.of(3, "cuda") == Limit(rows=3)
