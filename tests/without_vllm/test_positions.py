"""Where the tokens of a compressed prompt stand, against a loop that walks the prompt token by token."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from covist.vllm.positions import Placed, prompt_positions


def walked(length: int, placed: list[Placed]) -> tuple[list[list[int]], int]:
    """Positions of each token on three axes, one token after the other, and the shift of what is generated."""
    starts = {image.first: image for image in placed}
    positions, token, position = [], 0, 0
    while token < length:
        image = starts.get(token)
        if image is None:
            positions.append([position] * 3)
            token, position = token + 1, position + 1
            continue
        for row in range(image.rows):
            own = [0, 0, 0] if image.offsets is None else image.offsets[:, row].tolist()
            positions.append([position + offset for offset in own])
        token, position = token + image.rows, position + image.positions
    return positions, position - length


@st.composite
def prompts(draw):
    """Images of any size with text before, between and after them, or none."""
    placed, place = [], 0
    for _ in range(draw(st.integers(0, 4))):
        place += draw(st.integers(0, 5))
        rows = draw(st.integers(1, 6))
        offsets = None
        if draw(st.booleans()):
            offsets = torch.tensor(draw(st.lists(st.integers(0, 9), min_size=3 * rows, max_size=3 * rows))).view(
                3, rows
            )
        placed.append(Placed(place, rows, draw(st.integers(1, 30)), offsets))
        place += rows
    return place + draw(st.integers(0, 5)), placed


@given(prompts(), st.randoms())
def test_every_token_stands_where_the_loop_puts_it_whatever_order_the_images_come_in(prompt, random):
    length, placed = prompt
    expected, shift = walked(length, placed)
    random.shuffle(placed)
    positions, delta = prompt_positions(length, placed)
    assert positions.T.tolist() == expected
    assert delta == shift


def test_text_after_a_compressed_image_stands_where_it_would_have_stood():
    positions, delta = prompt_positions(8, [Placed(2, 3, 576)])
    assert positions[0].tolist() == [0, 1, 2, 2, 2, 578, 579, 580]
    assert delta == 573  # the next token, number 8, stands at 581


def test_a_prompt_without_images_counts_from_zero():
    positions, delta = prompt_positions(4, [])
    assert positions.tolist() == [[0, 1, 2, 3]] * 3 and delta == 0
