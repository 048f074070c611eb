"""The study of streams: which questions count as recent or old, and the rule for age that it compares."""

import numpy as np
import pytest
import torch
from studies import streams

from covist.eval.suite import FILM_SEEDS
from covist.methods.streaming import EMBEDDING, HIDDEN
from covist.tiny.films import film_questions_for, sample_film
from covist.tiny.films.questions import Glimpse
from covist.tiny.questions import Question


@pytest.mark.parametrize(
    ("family", "frames", "expected"),
    [
        ("digit", (12, 13, 14), "recent"),
        ("digit", (11, 12, 13), "across"),
        ("digit", (2, 3, 4), "old"),
        ("place", (15,), "recent"),
        ("place", (0,), "old"),
        ("change", tuple(range(5, 16)), "recent"),
        ("change", tuple(range(5)), "old"),
        ("direction", tuple(range(16)), "across"),
        ("duration", (12, 13, 14, 15), "across"),
    ],
)
def test_a_question_is_recent_or_old_by_what_it_is_about(family, frames, expected):
    actor = sample_film(FILM_SEEDS[0]).objects[0]
    assert streams.group(Question(family, "?", "!", (Glimpse(actor, frames),)), window=4) == expected


def test_every_question_has_a_group_and_films_after_films_show_the_empty_ground():
    film = sample_film(FILM_SEEDS[0])
    assert {streams.group(one, 4) for one in film_questions_for(film)} <= set(streams.GROUPS)
    shown = streams.shown_of(film, after=20)
    assert len(shown) == 36 and not np.array_equal(shown[15], shown[16])


def test_the_newest_moments_have_half_of_the_budget_where_they_need_it():
    rng = np.random.default_rng(0)
    state = None
    for _ in range(8):
        places, hidden = torch.arange(6), torch.from_numpy(rng.normal(size=(6, 8))).float()
        frame = streams.RecentShare({HIDDEN: hidden, EMBEDDING: hidden}, places, places, (1,), (2, 3))
        state = frame if state is None else state.followed_by(frame).reduced(16, 2)
    assert state.count == 16 and int((state.home >= 6 * 6).sum()) == 8


@pytest.mark.slow
def test_it_writes_a_table(capsys):
    streams.main(["--limit", "1", "--half-lives", "inf", "--recent", "4", "--budget", "32"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("|  | recent, ") and len(lines) == 8
    assert sum("stream, " in line for line in lines) == 2
