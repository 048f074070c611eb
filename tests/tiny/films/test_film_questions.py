"""Answers are those of a reader who looks only at what the frames show, frame by frame, and at the words."""

import re

import pytest

from covist.tiny.films import FILM_FAMILIES, film_questions_for, sample_film
from covist.tiny.films.questions import quadrant
from covist.tiny.films.scenes import FRAMES
from covist.tiny.scenes import COLORS, SHAPES

VERBS = {"appeared": "appear", "disappeared": "disappear", "changed": "change"}


class Reader:
    """What is seen in each frame, as tuples (color, shape or digit, x, y); objects are told apart by their shape."""

    def __init__(self, film):
        things = [[one.thing(frame) for one in film.actors] for frame in range(FRAMES)]
        self.seen = [[(t.color, t.shape or t.char, t.x, t.y) for t in frame if t] for frame in things]
        self.shapes = {what for frame in self.seen for _, what, *_ in frame if what in SHAPES}

    def story(self, what):
        """Frame -> (color, x, y) of one shape or digit."""
        return {n: (color, x, y) for n, frame in enumerate(self.seen) for color, own, x, y in frame if own == what}

    def find(self, name):
        """The shape or digit that a name means."""
        words = name.split()
        if words[-1] != "object":
            return words[-1]
        owners = {what for frame in self.seen for color, what, *_ in frame if color == words[0]}
        (owner,) = owners
        return owner

    def when(self, what, verb):
        story = self.story(what)
        if verb == "change":
            return next((n for n in range(1, FRAMES) if story.get(n, " ")[0] != story.get(n - 1, " ")[0]), None)
        if verb == "appear":
            return min(story) or None
        return max(story) + 1 if max(story) < FRAMES - 1 else None

    def did(self, verb):
        if verb == "move":
            return {s for s in self.shapes if len({place[1:] for place in self.story(s).values()}) > 1}
        if verb == "change":
            return {s for s in self.shapes if len({color for color, *_ in self.story(s).values()}) > 1}
        return {shape for shape in self.shapes if self.when(shape, verb) is not None}

    def looks(self, attribute, shape):
        return shape if attribute == "shape" else next(iter(self.story(shape).values()))[0]

    def answer(self, question):
        for pattern, reply in REPLIES.items():
            if found := re.fullmatch(pattern, question):
                return reply(self, *found.groups())
        raise AssertionError(question)


def direction(reader, name):
    story = reader.story(reader.find(name))
    across, down = (story[FRAMES - 1][axis] - story[0][axis] for axis in (1, 2))
    return ("right" if across > 0 else "left") if across else ("down" if down > 0 else "up")


def place(reader, name, moment):
    return quadrant(reader.story(reader.find(name))[0 if moment == "start" else FRAMES - 1][1:])


def event(reader, attribute, verb):
    (shape,) = reader.did(VERBS.get(verb, "move"))
    return reader.looks(attribute, shape)


def change(reader, shape, moment):
    return reader.story(shape)[0 if moment == "start" else FRAMES - 1][0]


def digit(reader, which):
    digits = sorted((min(reader.story(what)), what) for frame in reader.seen for _, what, *_ in frame if what.isdigit())
    return digits[0 if which == "first" else -1][1]


def order(reader, one, verb, other, other_verb):
    first, second = reader.when(reader.find(one), verb), reader.when(reader.find(other), VERBS[other_verb])
    assert abs(first - second) >= 2
    return "before" if first < second else "after"


def before(reader, attribute, verb, when, anchor, own):
    anchor = reader.find(anchor)
    frame = reader.when(anchor, VERBS[own])
    others = {shape: reader.when(shape, VERBS[verb]) for shape in reader.did(VERBS[verb]) - {anchor}}
    sides = {"before": {s for s, at in others.items() if at <= frame - 2},
             "after": {s for s, at in others.items() if at >= frame + 2}}  # fmt: skip
    assert all(sides.values())
    (shape,) = sides[when]
    return reader.looks(attribute, shape)


REPLIES = {
    r"which way does the (.+) move\?": direction,
    r"what color is the (\w+) at the (start|end)\?": change,
    r"where is the (.+) at the (start|end)\?": place,
    r"what (color|shape) (\w+)\?": event,
    r"what is the (first|last) digit\?": digit,
    r"did the (.+) (appear|disappear|change) before or after the (.+) (\w+)\?": order,
    r"what (color|shape) (\w+) (before|after) the (.+) (\w+)\?": before,
    r"for how many frames is the (.+) there\?": lambda reader, name: str(len(reader.story(reader.find(name)))),
    r"how many objects (appear|disappear)\?": lambda reader, verb: str(len(reader.did(verb))),
}


@pytest.fixture(scope="module")
def asked():
    return [(film, item) for film in map(sample_film, range(250)) for item in film_questions_for(film, per_family=2)]


def test_a_reader_of_the_frames_gives_the_same_answers(asked):
    readers = {film.seed: Reader(film) for film, _ in asked}
    assert {item.family for _, item in asked} == set(FILM_FAMILIES)
    for film, item in asked:
        assert readers[film.seed].answer(item.question) == item.answer, item


def test_answers_are_single_words_and_name_nothing_that_is_asked(asked):
    for _, item in asked:
        assert len(item.answer.split()) == 1
        if item.answer in (*COLORS, *SHAPES):
            assert item.answer not in item.question.split()


def test_questions_follow_from_film_and_seed():
    film = sample_film(11)
    assert film_questions_for(film, 3) == film_questions_for(film, 3) != film_questions_for(film, 4)


def test_what_a_question_is_about_is_shown(asked):
    for _, item in asked:
        assert all(set(frames) <= set(actor.frames) and frames for actor, frames in item.about)
