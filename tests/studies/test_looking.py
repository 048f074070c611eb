import numpy as np
import pytest
from studies.looking import _figures, looking_by_layer, shown_things, table

from covist.eval.suite import load_suite
from covist.tiny.hd.scenes import HD_SIDE
from covist.tiny.scenes import IMAGE_SIZE, PATCH
from train.tiny.hd.views import IMAGE_TOKENS, NEWLINE, prompt_order


def test_the_tokens_of_a_thing_lie_where_it_is():
    question = next(q for q in load_suite("scenes").item(0).questions if q.family == "color")
    (thing,) = question.about
    rows, columns = np.nonzero(shown_things(question, "scenes").reshape(IMAGE_SIZE // PATCH, -1))
    assert abs((columns.mean() + 0.5) * PATCH - thing.x) < PATCH
    assert abs((rows.mean() + 0.5) * PATCH - thing.y) < PATCH


def test_a_thing_is_shown_by_the_base_view_and_by_the_tiles():
    question = next(q for q in load_suite("scenes-hd").item(0).questions if q.family == "quadrant")
    (thing,) = question.about
    shown = shown_things(question, "scenes-hd")
    assert len(shown) == IMAGE_TOKENS and np.array_equal(shown == NEWLINE, prompt_order() == NEWLINE)
    base, tiles = shown[:256].reshape(16, 16), shown[256:].reshape(32, 33)[:, :32]
    for view in (base, tiles):
        rows, columns = np.nonzero(view)
        patch = HD_SIDE / len(view)
        assert abs((columns.mean() + 0.5) * patch - thing.x) < patch
        assert abs((rows.mean() + 0.5) * patch - thing.y) < patch


@pytest.mark.parametrize(("keep", "found"), [(1, False), (2, True)])
def test_markers_count_for_nothing_and_every_thing_must_be_among_the_best(keep, found):
    attention = np.array([0.5, 0.2, 0.05, 0.25, 0.0])
    shown = np.array([NEWLINE, 1, 0, 2, 2])
    share, seen = _figures(attention, shown, keep)
    assert share == pytest.approx(0.45 / 0.5)
    assert seen is found


def test_there_is_an_entry_per_layer(untrained):
    looks = looking_by_layer("scenes", keep=64, limit=1, model=untrained)
    assert [look.layer for look in looks] == [0, 1, 2, 3]
    assert all(0 < look.share < 100 and 0 <= look.found <= 100 for look in looks)
    assert len(table(looks).splitlines()) == 2 + 4


def test_all_tokens_show_all_that_is_asked_for(untrained):
    assert {look.found for look in looking_by_layer("scenes", keep=576, limit=1, model=untrained)} == {100.0}
