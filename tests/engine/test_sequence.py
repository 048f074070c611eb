"""Ledgers and sequences on their own: small enough to check by hand."""

import torch

from covist.config import CovistConfig
from covist.engine.sequence.batch import Batch
from covist.engine.sequence.images import ImageInPrompt, Sample
from covist.engine.sequence.ledger import Keys, Ledger
from covist.grid import Grid
from covist.methods.covist import CovistFixed
from covist.reduction import Reduction
from covist.state import VisualState


def ledger(positions, image, shift=0, images=1, valid=None):
    positions, image = torch.tensor(positions), torch.tensor(image)
    keys = Keys(
        rows=torch.arange(image.shape[1]).expand_as(image),
        positions=positions,
        valid=torch.ones_like(positions, dtype=torch.bool) if valid is None else torch.tensor(valid),
        image=image,
        log_weight=torch.where(image >= 0, 1.0, 0.0),
    )
    return Ledger(
        joined=keys,
        shift=torch.full((len(positions),), shift),
        shifted=shift != 0,
        padded=valid is not None,
        reduced=True,
        reach=int(positions.max()),
        given=image.shape[1],
        images=images,
    )


def test_later_keys_are_shifted_and_their_images_numbered_on():
    earlier = ledger([[0, 1, 4, 6]], [[-1, 0, 0, -1]], shift=3)
    joined = earlier.concat(ledger([[10, 12, 15]], [[-1, 0, -1]], shift=2))
    assert joined.keys.positions.tolist() == [[0, 1, 4, 6, 7, 9, 12]]
    assert joined.keys.image.tolist() == [[-1, 0, 0, -1, -1, 1, -1]]
    assert joined.shift.tolist() == [5] and joined.images == 2
    assert joined.reach >= 12
    assert earlier.length == 4  # the earlier ledger did not grow


def test_appended_padding_is_remembered():
    grown = ledger([[0, 1]], [[-1, 0]]).grown(torch.tensor([[2, 2]]), torch.tensor([[1, 1, 1, 1, 1, 0, 1]]), bound=2)
    assert grown.keys.valid.tolist() == [[True, True, False, True]]
    assert grown.reduced and grown.keys.log_weight.tolist() == [[0, 1, 0, 0]]
    assert grown.keys.rows.tolist() == [[0, 1, 2, 3]] and grown.given == 4


def test_an_interrupted_call_leaves_the_ledger_as_it_was():
    before = ledger([[0, 1]], [[-1, 0]]).grown(torch.tensor([[2]]), None, bound=2)
    before.grown(torch.tensor([[7]]), None, bound=7)  # the call that never ended
    assert before.keys.positions.tolist() == [[0, 1, 2]]
    assert before.grown(torch.tensor([[3]]), None, bound=3).keys.positions.tolist() == [[0, 1, 2, 3]]


def test_the_last_keys_are_known_without_joining_them():
    grown = ledger([[0, 1, 4]], [[-1, 0, 0]])
    for position in (5, 6):
        grown = grown.grown(torch.tensor([[position]]), torch.tensor([[1, 1, 1, 1, 1]]), bound=position)
    for count in (1, 2, 3, 5):
        rows, valid = grown.last(count)
        assert torch.equal(rows, grown.keys.rows[:, -count:]) and torch.equal(valid, grown.keys.valid[:, -count:])


def test_no_two_keys_are_farther_apart_than_the_reach():
    """Padding of a later turn may stand before the shift of the earlier ones."""
    grown = ledger([[0, 1, 9]], [[-1, 0, -1]], shift=5)
    grown = grown.grown(torch.tensor([[1, 15, 16]]), torch.tensor([[0, 1, 1]]), bound=16)
    assert grown.keys.positions.tolist() == [[0, 1, 9, 0, 10, 11]] and 11 <= grown.reach <= 16


def test_ledger_follows_the_samples():
    both = ledger([[0, 1], [5, 6]], [[-1, 0], [0, -1]])
    three = both.select(torch.tensor([1, 1, 0]))
    assert three.keys.positions.tolist() == [[5, 6], [5, 6], [0, 1]] and len(three.shift) == 3
    assert three.repeat(2).keys.image.tolist() == [[0, -1]] * 4 + [[-1, 0]] * 2


def image(start, tokens, kept, markers=(), budget=2):
    """An image of `tokens` rows, some of them markers, of which the content tokens `kept` survive."""
    rows = torch.tensor([start + place for place in range(tokens) if place not in markers])
    grid = Grid(((1, len(rows)),))
    state = VisualState.initial(torch.zeros(len(rows), 1), rows.clone(), None, grid).restrict(torch.tensor(kept))
    entry = ImageInPrompt(
        None, None, None, budget, start, start + tokens, rows, torch.tensor([start + m for m in markers]).long()
    )
    entry.reductions.append((0, Reduction(state)))
    return entry


def sample(length, *images, padding=0, source=0, end=None):
    rows = torch.arange(padding, length if end is None else end)
    positions = (torch.arange(length) - padding).clamp(min=0)
    return Sample(rows, positions, torch.zeros(length, 2), list(images), source=source)


def keys_of(sequence, method):
    """The rows of a sequence, its positions, and the shift of later tokens."""
    made = Batch([sequence], method).ledger()
    return made.keys.rows[0].tolist(), made.keys.positions[0].tolist(), int(made.shift)


def test_markers_survive_and_keep_their_positions():
    sequence = sample(12, image(2, 6, [0, 3], markers=(2, 5)))
    rows, positions, shift = keys_of(sequence, CovistFixed())
    assert rows == positions == [0, 1, 2, 4, 6, 7, 8, 9, 10, 11] and shift == 0


def test_shortened_spans_of_images_with_markers():
    """Two images of six rows with a marker each, on three positions each: text moves up by three per image."""
    method = CovistFixed(CovistConfig(position_span=3))
    sequence = sample(16, image(1, 6, [0, 4], markers=(5,)), image(9, 6, [0, 4], markers=(5,)))
    rows, positions, shift = keys_of(sequence, method)
    assert rows == [0, 1, 5, 6, 7, 8, 9, 13, 14, 15]
    assert positions == [0, 1, 3, 3, 4, 5, 6, 8, 8, 9]
    assert shift == 6


def test_removed_rows_show_the_row_before_them():
    batch = Batch([sample(6, image(1, 4, [1, 3])), sample(6, padding=3, source=1)], CovistFixed())
    hidden = torch.tensor([[10.0, 12.0, 14.0, 15.0], [0.0, 23.0, 24.0, 25.0]])[..., None]
    restored = batch.restore_rows(hidden, 6)[..., 0]
    assert restored[0].tolist() == [10, 10, 12, 12, 14, 15]
    assert restored[1].tolist() == [23, 23, 23, 23, 24, 25]


def test_packed_prompts_return_to_their_row():
    batch = Batch([sample(6, image(0, 2, [1]), end=3), sample(6, padding=3)], CovistFixed())
    hidden = torch.tensor([[0.0, 11.0, 12.0], [23.0, 24.0, 25.0]])[..., None]
    assert batch.restore_rows(hidden, 6)[..., 0].tolist() == [[11, 11, 12, 23, 24, 25]]


def test_text_tail_begins_after_the_last_reduced_image():
    whole = image(6, 2, [0, 1])
    sequences = Batch([sample(10, image(1, 4, [0, 2]), whole), sample(10, whole)], CovistFixed())
    assert sequences.text_tail(0) == 5  # of 0 1 3 5 6 7 8 9, those after 3
    assert sequences.text_tail(1) == 10
