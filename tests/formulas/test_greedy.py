import sys
import warnings
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import coverage as reference
from state_building import Launches, naive_greedy

from covist.formulas import dense_greedy, greedy
from covist.formulas.coverage import affinity
from covist.formulas.dense_greedy import grow_on_device
from covist.formulas.greedy import fill_reserve, greedy_coverage, greedy_tokens
from formulas.inputs import STRUCTURED, array, generator


def kernel_inputs(size, seed, clusters=4):
    """Affinity with clusters, so that coverage rises in many columns at once, and random weights."""
    g = generator(seed)
    centres = torch.randn(clusters, 6, generator=g)
    features = centres[torch.randint(clusters, (size,), generator=g)] + 0.4 * torch.randn(size, 6, generator=g)
    omega = torch.rand(size, generator=g)
    return affinity(features, features + 0.1), omega / omega.sum()


def covering(s, omega, start, count, dense):
    """The tokens that one of the loops chooses, [N] bool."""
    with patch.object(greedy, "DENSE", dense):
        return greedy_coverage(s, omega, start, count)


def indices(chosen):
    return chosen.nonzero()[:, 0].tolist()


@given(st.integers(1, 12), st.integers(0, 10_000), st.data())
def test_greedy_equals_the_literal_loop(size, seed, data):
    s, omega = kernel_inputs(size, seed)
    count = data.draw(st.integers(1, size))
    start = data.draw(st.lists(st.integers(0, size - 1), max_size=count, unique=True))
    chosen = greedy_coverage(s, omega, torch.tensor(start, dtype=torch.long), count)
    kernel = torch.tensor(array(s)).float()
    assert indices(chosen) == sorted(reference.greedy(array(kernel), array(omega), start, count, tolerance=1e-9))


@pytest.mark.parametrize("size, count, start", [(300, 120, 0), (300, 299, 40), (300, 300, 0), (600, 30, 10)])
@pytest.mark.parametrize("dense", [False, True])
def test_both_loops_equal_the_naive_loop_on_clustered_features(size, count, start, dense):
    s, omega = kernel_inputs(size, 1, clusters=12)
    chosen = covering(s, omega, torch.arange(start), count, dense)
    assert torch.equal(chosen, naive_greedy(s.double(), omega.double(), torch.arange(start), count))


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("name", STRUCTURED)
def test_both_loops_cover_as_much_as_the_literal_loop(name, dense):
    made = STRUCTURED[name]()
    s, omega = affinity(made.keys, made.embeddings), torch.full((made.size,), 1 / made.size)
    for count in {1, (made.size + 1) // 2, made.size}:
        chosen = covering(s, omega, torch.arange(0), count, dense)
        assert int(chosen.sum()) == count
        expected = reference.objective(array(s), array(omega), reference.greedy(array(s), array(omega), [], count))
        assert reference.objective(array(s), array(omega), indices(chosen)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("dense", [False, True])
def test_ties_go_to_the_lowest_index(dense):
    """Three copies of the same five tokens, on features whose products are exact."""
    copies = torch.eye(8)[:5].repeat(3, 1)
    chosen = covering(affinity(copies, copies), torch.full((15,), 1 / 15), torch.arange(0), 7, dense)
    assert indices(chosen) == [0, 1, 2, 3, 4, 5, 6]


@given(st.booleans(), st.integers(0, 10_000))
def test_ties_go_to_the_lowest_index_from_any_start(dense, seed):
    """Two copies of ten tokens: once each is covered, nothing is left to gain, and no rounding may say otherwise."""
    g, copies = generator(seed), torch.arange(10).repeat(2)
    s = 0.9 * torch.rand(10, 10, generator=g)
    s = torch.maximum(s, s.T).fill_diagonal_(1)[copies][:, copies].contiguous()
    chosen = covering(s, torch.rand(10, generator=g).softmax(0)[copies] / 2, torch.tensor([3, 5]), 15, dense)
    assert indices(chosen) == list(range(15))


def test_the_reserve_takes_the_largest_gaps():
    s, _ = kernel_inputs(14, 5)
    chosen = torch.zeros(14, dtype=torch.bool)
    chosen[[2, 7]] = True
    before = chosen.clone()
    found = fill_reserve(s, chosen, 4)
    assert indices(found) == sorted(reference.reserve(array(s), [2, 7], 4))
    assert torch.equal(chosen, before)


def test_the_reserve_never_takes_a_token_twice():
    assert indices(fill_reserve(torch.zeros(4, 4), torch.zeros(4, dtype=torch.bool), 4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [20, 40, 80])
def test_the_device_loop_never_waits_for_the_device(count):
    s, omega = kernel_inputs(300, 2, clusters=10)
    with Launches() as launches:
        chosen = covering(s, omega, torch.arange(5), count + 5, dense=True)
    assert int(chosen.sum()) == count + 5
    assert launches.waits == 0
    assert launches.total <= 6 * count + 25  # four operators per step, and two views, which launch nothing


@pytest.mark.parametrize("dense", [False, True])
def test_several_images_choose_as_each_alone(dense):
    images = [kernel_inputs(80, seed) for seed in range(4)]
    s, omega = (torch.stack(parts) for parts in zip(*images, strict=True))
    start = torch.tensor([[3, 70], [1, 2], [0, 79], [5, 4]])
    with patch.object(greedy, "DENSE", dense):
        together = greedy_tokens(s, omega, start, 30)
        alone = [greedy_tokens(*one, first, 30) for one, first in zip(images, start, strict=True)]
    assert torch.equal(together, torch.stack(alone)) and torch.equal(together[:, :2], start)


def test_without_weights_the_first_tokens_win():
    s, omega = kernel_inputs(50, 3)
    assert indices(covering(s, 0 * omega, torch.arange(1), 12, dense=True)) == list(range(12))


def hidden_ties():
    """Gains that are equal on paper but summed in another order: rings of the same affinities, turned."""
    size, g = 24, generator(3)
    profile = torch.rand(size // 2 + 1, generator=g)
    place = torch.arange(size)
    apart = (place[:, None] - place).abs()
    return profile[torch.minimum(apart, size - apart)].fill_diagonal_(1), torch.full((size,), 1 / size)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("count", [1, 6, 20])
def test_ties_that_rounding_hides_go_to_the_lowest_index(dense, count):
    s, omega = hidden_ties()
    chosen = covering(s, omega, torch.arange(0), count, dense)
    assert indices(chosen) == sorted(reference.greedy(array(s.square()) ** 0.5, array(omega), [], count))


def test_the_counter_sees_host_reads():
    s, omega = kernel_inputs(60, 2)
    with Launches() as launches:
        covering(s, omega, torch.arange(0), 11, dense=False)
    assert launches.waits >= 10


@pytest.mark.parametrize(
    "count, start, message",
    [(0, [], "count must be between 1 and 5"), (6, [], "got 6"), (2, [0, 1, 2], "start has more than 2")],
)
def test_impossible_counts_are_refused(count, start, message):
    s, omega = kernel_inputs(5, 0)
    with pytest.raises(ValueError, match=f"greedy_coverage: .*{message}"):
        greedy_coverage(s, omega, torch.tensor(start, dtype=torch.long), count)


def test_a_kernel_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"affinity must have shape \[5, 5\]"):
        greedy_coverage(torch.rand(4, 4), torch.rand(5), torch.arange(0), 2)


class Elsewhere(torch.Tensor):
    """A tensor of the CPU that says it is on a GPU."""

    is_cuda = True


def test_without_triton_or_where_it_cannot_compile_the_loop_runs(monkeypatch):
    s, omega = kernel_inputs(30, 1)
    expected = grow_on_device(s, omega, torch.arange(2), 8)

    def fail(*given):
        raise RuntimeError("failed to find a C compiler")

    for found, warns in ((None, False), (SimpleNamespace(grow_in_kernel=fail), True)):
        monkeypatch.setattr(dense_greedy, "_KERNEL", dense_greedy._Kernel())
        monkeypatch.setitem(sys.modules, "covist.formulas.greedy_kernel", found)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(2):
                assert torch.equal(grow_on_device(s.as_subclass(Elsewhere), omega, torch.arange(2), 8), expected)
        assert len(seen) == warns
        assert not warns or "without its Triton kernel: failed to find" in str(seen[0].message)


def test_the_kernel_is_used_where_there_is_one(monkeypatch):
    chosen = SimpleNamespace(grow_in_kernel=lambda s, units, start, steps: torch.arange(steps))
    monkeypatch.setitem(sys.modules, "covist.formulas.greedy_kernel", chosen)
    monkeypatch.setattr(dense_greedy, "_KERNEL", dense_greedy._Kernel())
    s, omega = kernel_inputs(30, 1)
    assert grow_on_device(s.as_subclass(Elsewhere), omega, torch.arange(0), 4).tolist() == [0, 1, 2, 3]
    assert not torch.equal(grow_on_device(s, omega, torch.arange(0), 4), torch.arange(4))
