"""Where the tokens of a compressed prompt stand, against a loop that walks the uncompressed prompt token by token."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from covist.vllm.item import Item, Part, remaining_positions, runs_of

IMAGE, MARK = 1, 7


def image(length: int, count: int, positions: int) -> Item:
    """So many tokens, of which `count` remain at so many positions, between two marks."""
    ids = [MARK, *[IMAGE] * length, MARK]
    return Item("image", runs_of(ids, torch.tensor(ids) == IMAGE), [Part(length, length, count, positions)])


def walked(whole: torch.Tensor, delta: int, placed: list[tuple[int, Item]]) -> tuple[list[list[int]], int]:
    """Positions of each token that remains, and the shift of what is generated."""
    starts = {start + 1: item for start, item in placed}
    positions, token, closed = [], 0, 0
    while token < whole.shape[1]:
        own = (whole[:, token] - closed).tolist()
        if (item := starts.get(token)) is None:
            positions.append(own)
            token += 1
            continue
        (part,) = item.parts
        positions += [own] * part.count
        token, closed = token + part.length, closed + part.length - part.positions
    return positions, whole.shape[1] + delta - closed - len(positions)


@st.composite
def prompts(draw):
    """Images of any size with text before, between and after them, or none; positions as any model may have them."""
    placed, place = [], 0
    for _ in range(draw(st.integers(0, 4))):
        start = place + draw(st.integers(0, 5))
        length = draw(st.integers(1, 9))
        placed.append((start, image(length, draw(st.integers(1, length)), draw(st.integers(1, length)))))
        place = start + length + 2
    length = place + draw(st.integers(0, 5))
    whole = draw(st.lists(st.integers(0, 99), min_size=3 * length, max_size=3 * length))
    return torch.tensor(whole, dtype=torch.long).view(3, length), draw(st.integers(-20, 20)), placed


@given(prompts())
def test_every_token_stands_where_the_loop_puts_it(prompt):
    expected, shift = walked(*prompt)
    positions, delta = remaining_positions(*prompt, one_axis=True)
    assert positions.T.tolist() == expected and delta == shift


def test_text_after_a_compressed_image_stands_where_it_would_have_stood():
    whole = torch.arange(582).expand(3, -1)
    positions, delta = remaining_positions(whole, 0, [(1, image(576, 3, 576))], one_axis=True)
    assert positions[0].tolist() == [0, 1, 2, 2, 2, 578, 579, 580, 581]
    assert delta == 573  # the next token, number 9, stands at 582


def test_on_a_grid_text_stays_where_the_model_puts_it():
    whole = torch.tensor([[0, 1, 2, 2, 2, 2, 4, 5]] * 3)
    positions, delta = remaining_positions(whole, -2, [(1, image(4, 2, 1))], one_axis=False)
    assert positions[0].tolist() == [0, 1, 2, 2, 4, 5] and delta == 0
