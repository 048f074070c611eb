"""The images of a prompt share a number of tokens: the literal version, and what is promised."""

import pytest
import reference.allocation as literal
import torch
from hypothesis import given
from hypothesis import strategies as st

from covist.errors import CovistError
from covist.formulas.allocation import allocate
from covist.formulas.content import ContentCoverage

CURVES = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8), min_size=1, max_size=5).map(
    lambda curves: [[gain / 64 for gain in sorted(own, reverse=True)] for own in curves]
)


def sizes(gains):
    return [len(own) for own in gains]


@given(CURVES, st.integers(0, 45), st.integers(1, 4))
def test_it_shares_as_the_literal_version_does(gains, total, floor):
    assert allocate(gains, sizes(gains), total, floor) == literal.allocate(gains, sizes(gains), total, floor)


@given(CURVES, st.integers(1, 45), st.integers(1, 4))
def test_all_tokens_are_given_and_none_beyond_the_total_or_an_image(gains, total, floor):
    most = sizes(gains)
    counts = allocate(gains, most, total, floor)
    assert sum(counts) == min(total, sum(most))
    assert all(count <= upper for count, upper in zip(counts, most, strict=True))
    if total >= floor * len(most):
        assert all(count >= min(floor, upper) for count, upper in zip(counts, most, strict=True))
    else:
        assert all(count >= min(total // len(most), upper) for count, upper in zip(counts, most, strict=True))


@given(CURVES, st.integers(1, 45), st.integers(1, 3))
def test_no_other_sharing_covers_more(gains, total, floor):
    most = sizes(gains)
    if total < floor * len(most):
        return
    counts = allocate(gains, most, total, floor)
    found = sum(sum(own[:count]) for own, count in zip(gains, counts, strict=True))
    assert found == pytest.approx(literal.best_sum(gains, most, total, floor))


@given(CURVES, st.integers(1, 45), st.integers(1, 4))
def test_a_larger_total_takes_nothing_from_an_image(gains, total, floor):
    fewer, more = (allocate(gains, sizes(gains), one, floor) for one in (total, total + 1))
    assert all(low <= high for low, high in zip(fewer, more, strict=True))


@given(CURVES, st.integers(1, 45), st.integers(1, 4), st.randoms())
def test_the_order_of_the_images_does_not_matter_up_to_one_token_of_a_tie(gains, total, floor, random):
    order = list(range(len(gains)))
    random.shuffle(order)
    counts = allocate(gains, sizes(gains), total, floor)
    shuffled = [gains[place] for place in order]
    others = allocate(shuffled, sizes(shuffled), total, floor)
    for place, count in zip(order, others, strict=True):
        assert abs(counts[place] - count) <= 1


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 5), st.integers(1, 45), st.integers(1, 4))
def test_equal_images_have_equal_shares_up_to_one_token(curve, images, total, floor):
    gains = [sorted(curve, reverse=True)] * images
    counts = allocate(gains, sizes(gains), total, floor)
    assert max(counts) - min(counts) <= 1


def test_gains_that_differ_by_rounding_are_equal():
    almost = [[0.5 + 1e-9, 0.25 - 1e-9, 0.1], [0.5, 0.25, 0.1 + 1e-9]]
    assert allocate(almost, [3, 3], 4) == [2, 2]


def test_gains_are_read_only_as_far_as_they_are_needed():
    read = []

    def endless():
        while True:
            read.append(None)
            yield 1.0

    assert allocate([endless(), iter([0.5] * 9)], [100, 9], 12, floor=2) == [10, 2]
    assert len(read) == 11


def test_gains_and_maxima_belong_together():
    with pytest.raises(CovistError, match="2 images have gains, 1 a maximum"):
        allocate([[1.0], [1.0]], [1], 1)


def test_a_blank_image_has_fewer_tokens_than_a_simple_one_and_a_rich_one_has_most():
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randn(24, 16, generator=generator)
    images = [kinds[torch.arange(64) % shown] + 0.1 * torch.randn(64, 16, generator=generator) for shown in (1, 3, 24)]
    gains = [[gain for _, gain in ContentCoverage.of(image).growth()] for image in images]
    counts = allocate(gains, [64] * 3, 45)
    assert counts == sorted(counts) and counts[0] < counts[1] < counts[2]


def test_gains_sum_up_to_the_spread_of_the_content():
    coverage = ContentCoverage.of(torch.randn(20, 8, generator=torch.Generator().manual_seed(1)))
    tokens, gains = zip(*coverage.growth(), strict=True)
    assert sorted(tokens) == list(range(20))
    assert sum(gains) == pytest.approx(float(coverage.spread))
    assert list(gains[1:]) == pytest.approx(sorted(gains[1:], reverse=True), abs=1e-6)
