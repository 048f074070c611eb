"""What the tests use so that no choice hangs on rounding: comparisons up to ties, and other rounding to find them."""

from types import SimpleNamespace

import pytest
import torch
from support.requests import assert_same
from support.rounding import OtherRounding
from support.ties import contents, nearest_tie


def generated(tokens, *steps):
    """What `greedy` returns for one prompt of one token."""
    return SimpleNamespace(sequences=torch.tensor([[7, *tokens]]), logits=[torch.tensor([step]) for step in steps])


def test_tokens_that_tie_are_the_same_answer_and_end_the_comparison():
    tie, after, other = [1.0, 1.0 + 1e-6], [0.0, 2.0], [3.0, 1.0]
    assert_same(generated([0, 1], tie, after), generated([1, 0], tie, other))
    with pytest.raises(AssertionError):
        assert_same(generated([0, 1], tie, after), generated([0, 1], tie, other))


def test_tokens_that_do_not_tie_are_another_answer():
    with pytest.raises(AssertionError):
        assert_same(generated([0], [1.0, 1.1]), generated([1], [1.0, 1.1]))
    with pytest.raises(AssertionError):
        assert_same(generated([0], [1.0, 1.0 + 1e-6]), generated([1], [1.0, 1.0 + 1e-6]), 0)


def test_a_prompt_is_compared_exactly():
    one, other = generated([0], [1.0, 1.0]), generated([0], [1.0, 1.0])
    other.sequences[0, 0] = 8
    with pytest.raises(AssertionError):
        assert_same(one, other)


def test_the_nearest_tie_is_that_of_the_closest_row():
    assert nearest_tie(torch.tensor([[4.0, 1.0, 3.0], [2.0, 1.0, 1.5]]), 1) == pytest.approx(0.125)
    assert nearest_tie(torch.tensor([[4.0, 4.0, 3.0]]), 1) == 0


def test_copies_show_the_same():
    assert contents([0, 2, 3, 8], 3) == contents([1, 2, 4, 7], 3) == [0, 0, 1, 2]


@pytest.fixture
def rows():
    """Copies of one row, whose products are not exact."""
    return torch.rand(1, 50, generator=torch.Generator().manual_seed(0)).repeat(9, 1)


def test_other_rounding_moves_copies_apart_by_their_last_bits(rows):
    with OtherRounding(seed=1):
        products = rows @ rows.T
    assert len(products.unique()) > 1
    torch.testing.assert_close(products, rows @ rows.T, rtol=5e-7, atol=0)


def test_other_rounding_is_the_same_in_every_run_and_another_for_every_seed(rows):
    found = []
    for seed in (1, 1, 2):
        with OtherRounding(seed):
            found.append((rows.softmax(-1) @ rows.T).exp())
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@pytest.mark.own_rounding
def test_other_rounding_leaves_alone_what_every_cpu_agrees_on(rows):
    whole = torch.arange(12.0).view(3, 4)
    with OtherRounding(seed=1):
        assert torch.equal(whole @ whole.T, (whole.long() @ whole.long().T).float())
        assert whole.mean(0).tolist() == [4, 5, 6, 7] and torch.equal(rows.square(), rows * rows)
        assert torch.equal(rows[:1].sum(0), rows[0]) and torch.equal(torch.addcmul(rows, torch.zeros(()), rows), rows)
