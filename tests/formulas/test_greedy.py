import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import coverage as reference
from state_building import Launches, naive_greedy

from covist.formulas import greedy
from covist.formulas.coverage import affinity
from covist.formulas.greedy import Search, fill_reserve, greedy_coverage
from formulas.inputs import STRUCTURED, array, generator


def kernel_inputs(size, seed, clusters=4):
    """Affinity with clusters, so that coverage rises in many columns at once, and random weights."""
    g = generator(seed)
    centres = torch.randn(clusters, 6, generator=g)
    features = centres[torch.randint(clusters, (size,), generator=g)] + 0.4 * torch.randn(size, 6, generator=g)
    omega = torch.rand(size, generator=g)
    return affinity(features, features + 0.1), omega / omega.sum()


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
@pytest.mark.parametrize("loop", ["grow", "grow_on_device"])
def test_both_loops_equal_the_naive_loop_on_clustered_features(size, count, start, loop):
    s, omega = kernel_inputs(size, 1, clusters=12)
    search = Search(s, omega, torch.arange(start))
    getattr(search, loop)(count - start)
    assert torch.equal(search.chosen, naive_greedy(s.double(), omega.double(), torch.arange(start), count))


@pytest.mark.parametrize("loop", ["grow", "grow_on_device"])
@pytest.mark.parametrize("name", STRUCTURED)
def test_both_loops_cover_as_much_as_the_literal_loop(name, loop):
    made = STRUCTURED[name]()
    s, omega = affinity(made.keys, made.embeddings), torch.full((made.size,), 1 / made.size)
    for count in {1, (made.size + 1) // 2, made.size}:
        search = Search(s, omega, torch.arange(0))
        getattr(search, loop)(count)
        assert int(search.chosen.sum()) == count
        expected = reference.objective(array(s), array(omega), reference.greedy(array(s), array(omega), [], count))
        assert reference.objective(array(s), array(omega), indices(search.chosen)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("loop", ["grow", "grow_on_device"])
def test_ties_go_to_the_lowest_index(loop):
    """Three copies of the same five tokens, on features whose products are exact."""
    copies = torch.eye(8)[:5].repeat(3, 1)
    search = Search(affinity(copies, copies), torch.full((15,), 1 / 15), torch.arange(0))
    getattr(search, loop)(7)
    assert indices(search.chosen) == [0, 1, 2, 3, 4, 5, 6]


@given(st.sampled_from(["grow", "grow_on_device"]), st.integers(0, 10_000))
def test_ties_go_to_the_lowest_index_from_any_start(loop, seed):
    """Two copies of ten tokens: once each is covered, nothing is left to gain, and no rounding may say otherwise."""
    g, copies = generator(seed), torch.arange(10).repeat(2)
    s = 0.9 * torch.rand(10, 10, generator=g)
    s = torch.maximum(s, s.T).fill_diagonal_(1)[copies][:, copies].contiguous()
    search = Search(s, torch.rand(10, generator=g).softmax(0)[copies] / 2, torch.tensor([3, 5]))
    getattr(search, loop)(13)
    assert indices(search.chosen) == list(range(15))


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
def test_the_device_loop_waits_for_the_device_a_few_times_not_once_per_step(count):
    s, omega = kernel_inputs(300, 2, clusters=10)
    search = Search(s, omega, torch.arange(5))
    with Launches() as launches:
        search.grow_on_device(count)
    assert int(search.chosen.sum()) == count + 5
    assert launches.waits <= 1
    assert launches.total <= 4 * count + 20


def hidden_ties():
    """Gains that are equal on paper but summed in another order: rings of the same affinities, turned."""
    size, g = 24, generator(3)
    profile = torch.rand(size // 2 + 1, generator=g)
    place = torch.arange(size)
    apart = (place[:, None] - place).abs()
    return profile[torch.minimum(apart, size - apart)].fill_diagonal_(1), torch.full((size,), 1 / size)


@pytest.mark.parametrize("loop", ["grow", "grow_on_device"])
@pytest.mark.parametrize("count", [1, 6, 20])
def test_ties_that_rounding_hides_go_to_the_lowest_index(loop, count):
    s, omega = hidden_ties()
    search = Search(s, omega, torch.arange(0))
    getattr(search, loop)(count)
    assert indices(search.chosen) == sorted(reference.greedy(array(s.square()) ** 0.5, array(omega), [], count))


def test_the_device_loop_looks_for_ties_step_by_step_only_where_rounding_hid_one(monkeypatch):
    walks = []
    walk = Search._walk
    monkeypatch.setattr(Search, "_walk", lambda *args: walks.append(args) or walk(*args))
    s, omega = kernel_inputs(100, 4)
    Search(s, omega, torch.arange(3)).grow_on_device(20)
    assert len(walks) == 1
    s, omega = hidden_ties()
    Search(s, omega, torch.arange(0)).grow_on_device(12)
    assert len(walks) == 3


@pytest.mark.parametrize("dense", [True, False])
def test_the_switch_decides_which_loop_runs(dense, monkeypatch):
    monkeypatch.setattr(greedy, "DENSE", dense)
    ran = []
    for loop in ("grow", "grow_on_device"):
        monkeypatch.setattr(Search, loop, lambda self, steps, loop=loop: ran.append(loop))
    s, omega = kernel_inputs(10, 0)
    greedy_coverage(s, omega, torch.arange(0), 4)
    assert ran == ["grow_on_device" if dense else "grow"]


def test_the_counter_sees_host_reads():
    s, omega = kernel_inputs(60, 2)
    search = Search(s, omega, torch.arange(0))
    with Launches() as launches:
        search.grow(11)
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
