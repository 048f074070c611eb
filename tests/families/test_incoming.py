"""Incoming attention: exact in chunks, bounded in memory, and on large images for queries of a checkerboard."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from covist.families import incoming
from covist.families.incoming import choose_query_patches, incoming_attention, rows_at_a_time

MERGE, HEADS, WIDTH = 2, 4, 8
CPU = torch.device("cpu")


def block(patches, seed=0):
    """Queries and keys [n, heads, w], cos and sin [n, w] together, with attention far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    queries, keys = 3 * torch.randn(2, patches, HEADS, WIDTH, generator=generator)
    angles = torch.rand(patches, WIDTH // 2, generator=generator).repeat(1, 2)
    return queries, keys, (angles.cos(), angles.sin())


def dense(queries, keys, rotary):
    """Attention [heads, n, n] as the textbook has it: each pair of components turned by its angle."""
    cos, sin = rotary

    def turned(states):
        first, second = states[..., : WIDTH // 2], states[..., WIDTH // 2 :]
        c, s = cos[:, None, : WIDTH // 2], sin[:, None, : WIDTH // 2]
        return torch.cat([first * c - second * s, second * c + first * s], dim=-1)

    return torch.einsum("qhw,khw->hqk", turned(queries), turned(keys)).div(WIDTH**0.5).softmax(-1)


def all_of(patches):
    return choose_query_patches(patches, MERGE, exact=True, device=CPU)


def test_an_encoder_without_rotary_positions_compares_queries_and_keys_as_they_are():
    queries, keys, _ = block(37)
    still = (torch.ones(37, WIDTH), torch.zeros(37, WIDTH))
    expected = dense(queries, keys, still).mean((0, 1))
    torch.testing.assert_close(incoming_attention(queries, keys, None, all_of(37)), expected)


@pytest.mark.parametrize(("least", "logits", "rows"), [(1, 1, 1), (5, 1, 5), (5, 7 * 37, 7), (5, 100 * 37, 100)])
def test_chunked_incoming_attention_equals_the_dense_one(least, logits, rows, monkeypatch):
    monkeypatch.setattr(incoming, "LEAST_ROWS", least)
    monkeypatch.setattr(incoming, "CACHED_LOGITS", logits)
    assert rows_at_a_time(torch.empty(37, HEADS, WIDTH)) == rows
    expected = dense(*block(37)).mean((0, 1))
    assert expected.max() / expected.min() > 1.5  # far from uniform, so that the comparison says something
    torch.testing.assert_close(incoming_attention(*block(37), all_of(37)), expected)


@pytest.mark.parametrize("patches", [900, 3600])
def test_memory_grows_with_the_patches_and_not_with_their_square(patches, monkeypatch):
    monkeypatch.setattr(incoming, "CACHED_LOGITS", 1 << 16)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            output = function(*args, **(kwargs or {}))
            is_new = isinstance(output, torch.Tensor) and not output._is_view()
            largest = max(largest, output.numel() if is_new else 0)
            return output

    arguments, query_patches = block(patches), all_of(patches)
    with Watch():
        incoming_attention(*arguments, query_patches)
    assert 0 < largest <= max(1 << 16, incoming.LEAST_ROWS * patches)


@given(groups=st.integers(1, 12), seed=st.integers(0, 99))
def test_black_and_white_patches_take_turns_over_the_heads(groups, seed):
    patches = groups * MERGE**2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incoming, "ALL_QUERY_UP_TO", 0)
        query_patches = choose_query_patches(patches, MERGE, exact=False, device=CPU)
    probabilities = dense(*block(patches, seed))
    expected = torch.zeros(patches)
    for head in range(HEADS):
        for patch_number in range(patches):
            row, column = divmod(patch_number % MERGE**2, MERGE)
            if (row + column) % 2 == head % 2:
                expected += probabilities[head, patch_number] / (HEADS * patches / 2)
    torch.testing.assert_close(incoming_attention(*block(patches, seed), query_patches), expected)


def test_both_colours_together_are_exact(monkeypatch):
    monkeypatch.setattr(incoming, "ALL_QUERY_UP_TO", 0)
    arguments = block(48)
    black, white = choose_query_patches(48, MERGE, exact=False, device=CPU)
    one, other = incoming_attention(*arguments, [black, white]), incoming_attention(*arguments, [white, black])
    assert not torch.allclose(one, other, rtol=0.01)
    torch.testing.assert_close((one + other) / 2, incoming_attention(*arguments, all_of(48)))


def test_all_patches_ask_in_small_images_and_on_request():
    few, many = incoming.ALL_QUERY_UP_TO, incoming.ALL_QUERY_UP_TO + MERGE**2
    for count, exact in ((few, False), (many, True)):
        (query_patches,) = choose_query_patches(count, MERGE, exact, CPU)
        assert query_patches.tolist() == list(range(count))
    halves = choose_query_patches(many, MERGE, exact=False, device=CPU)
    assert [len(half) for half in halves] == [many // 2] * 2
    assert sorted(torch.cat(halves).tolist()) == list(range(many))
