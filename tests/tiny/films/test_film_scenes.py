"""Films: everything follows from the seed, nothing covers anything else, and objects do what they are said to do."""

import numpy as np
import pytest

from covist.tiny.films import film_frames, render_film, sample_film
from covist.tiny.films.scenes import DIGIT_FRAMES, DIRECTIONS, FILM_LOOK, FRAMES, LENGTHS
from covist.tiny.scenes import cover_of

SEEDS = range(150)


@pytest.fixture(scope="module")
def films():
    return [sample_film(seed) for seed in SEEDS]


def test_a_seed_is_one_film_and_another_seed_another(films):
    again = sample_film.__wrapped__(7)
    assert again == films[7] and again != films[8]
    assert np.array_equal(render_film(again), render_film(films[7]))
    assert [image.size for image in film_frames(again)] == [(64, 64)] * FRAMES


def test_a_shape_or_a_color_is_a_name(films):
    for film in films:
        assert len({one.shape for one in film.objects}) == len(film.objects) == 4
        colors = [color for one in film.objects for color in (one.color, one.later_color) if color]
        assert len(set(colors)) == len(colors)
        assert len({one.char for one in film.digits}) == 2


def test_nothing_touches_anything_else(films):
    for film in films[:40]:
        for frame in range(FRAMES):
            covered = np.zeros((64, 64))
            for thing in filter(None, (one.thing(frame) for one in film.actors)):
                rows, columns, cover = cover_of(thing, FILM_LOOK)
                covered[rows, columns] += cover > 0
            assert covered.max() <= 1


def test_objects_do_what_they_are_said_to_do(films):
    for one in (one for film in films for one in film.objects):
        first, last = one.path[0], one.path[-1]
        assert one.frames == list(range(one.frames[0], one.frames[-1] + 1))
        comes, goes = first is None, last is None
        assert (comes, goes) == {"appear": (True, False), "disappear": (False, True), "visit": (True, True)}.get(
            one.behaviour, (False, False)
        )
        assert len(one.frames) in (LENGTHS if comes or goes else (FRAMES,))
        assert (one.color_in(0) != one.color_in(FRAMES - 1)) == (one.behaviour == "change")
        if one.behaviour == "move":
            way = np.sign(np.subtract(last, first)).tolist()
            assert way == list(DIRECTIONS[one.direction]) and np.abs(np.subtract(last, first)).max() >= 23
        else:
            assert len(set(filter(None, one.path))) == 1


def test_digits_come_one_after_the_other(films):
    for film in films:
        first, second = (one.frames for one in film.digits)
        assert len(first) == len(second) == DIGIT_FRAMES and first[-1] + 1 < second[0]


def test_every_behaviour_occurs(films):
    counts = {name: sum(one.behaviour == name for film in films for one in film.objects) for name in
              ("still", "move", "appear", "disappear", "visit", "change")}  # fmt: skip
    assert min(counts.values()) > 0.05 * 4 * len(films)


def test_the_ground_stays_and_flickers():
    film = sample_film(2)
    frames = render_film(film).astype(float)
    spots = [one.thing(frame) for one in film.actors for frame in range(FRAMES)]
    free = np.ones((64, 64), dtype=bool)
    for thing in filter(None, spots):
        rows, columns, _ = cover_of(thing, FILM_LOOK)
        free[rows, columns] = False
    ground = frames[:, free]
    assert 0 < ground.std(0).mean() < 4 < ground.mean(0).std()
