"""Questions about films with answers of one word, in nine families; all but one need more than a single frame.

The odds below keep the answers balanced, so that little can be guessed from the question alone.
"""

from collections.abc import Callable, Mapping
from itertools import product
from typing import NamedTuple

import numpy as np

from covist.tiny.films.scenes import FILM_SIDE, FRAMES, Actor, Film
from covist.tiny.questions import QUADRANTS, Asked, Question, ask, pick

QUADRANT_MARGIN = 4  # pixels from the middle lines
EVENT_GAP = 2  # frames between two events whose order is asked
MOST_COUNTED = 3
VERBS = {"appear": "appeared", "disappear": "disappeared", "change": "changed"}

FilmFamily = Callable[[Film, np.random.Generator], Asked]


class Glimpse(NamedTuple):
    """An actor in some of its frames."""

    actor: Actor
    frames: tuple[int, ...]


def _whole(actor: Actor) -> Glimpse:
    return Glimpse(actor, tuple(actor.frames))


def _name(actor: Actor, rng: np.random.Generator) -> str:
    """A name that fits no other actor; the color is no name of an object that changes it."""
    if actor.char:
        return f"digit {actor.char}"
    ways = [actor.shape]
    if not actor.later_color:
        ways += [f"{actor.color} object", f"{actor.color} {actor.shape}"]
    return pick(rng, ways)


def _direction(film: Film, rng: np.random.Generator) -> Asked:
    movers = [one for one in film.objects if one.direction]
    if not movers:
        return None
    one = pick(rng, movers)
    return f"which way does the {_name(one, rng)} move?", one.direction, [_whole(one)]


def quadrant(spot: tuple[float, float]) -> str | None:
    """The quadrant in which a spot lies; None near the middle lines."""
    middle = FILM_SIDE / 2
    if min(abs(spot[0] - middle), abs(spot[1] - middle)) < QUADRANT_MARGIN:
        return None
    return QUADRANTS[2 * (spot[1] > middle) + (spot[0] > middle)]


def _place(film: Film, rng: np.random.Generator) -> Asked:
    """Only of objects that end elsewhere than they began: for the others, any frame would do."""
    options = []
    for one in film.objects:
        start, end = (one.path[frame] for frame in (0, FRAMES - 1))
        if start and end and quadrant(start) and quadrant(end) and quadrant(start) != quadrant(end):
            options.append((one, (quadrant(start), quadrant(end))))
    if not options:
        return None
    one, quadrants = pick(rng, options)
    last = int(rng.integers(2))
    moment = ("start", "end")[last]
    answer, frame = str(quadrants[last]), (0, FRAMES - 1)[last]
    return f"where is the {_name(one, rng)} at the {moment}?", answer, [Glimpse(one, (frame,))]


def _event(film: Film, rng: np.random.Generator) -> Asked:
    """What the only object that appears, disappears, changes or moves looks like."""
    done = {past: [one for _, one in film.events(verb)] for verb, past in VERBS.items()}
    done["moved"] = [one for one in film.objects if one.direction]
    verb, actors = pick(rng, list(done.items()))
    if len(actors) != 1:
        return None
    (one,) = actors
    asks_color = bool(rng.integers(2)) and not one.later_color
    return f"what {'color' if asks_color else 'shape'} {verb}?", one.color if asks_color else one.shape, [_whole(one)]


def _change(film: Film, rng: np.random.Generator) -> Asked:
    changed = film.events("change")
    if not changed:
        return None
    frame, one = pick(rng, changed)
    if rng.integers(2):
        return f"what color is the {one.shape} at the start?", one.color, [Glimpse(one, tuple(range(frame)))]
    return f"what color is the {one.shape} at the end?", one.later_color, [Glimpse(one, tuple(range(frame, FRAMES)))]


def _digit(film: Film, rng: np.random.Generator) -> Asked:
    number = int(rng.integers(len(film.digits)))
    one = film.digits[number]
    return f"what is the {('first', 'last')[number]} digit?", one.char, [_whole(one)]


def _events(film: Film) -> list[tuple[int, str, Actor]]:
    """All events: when, the verb, whose. A digit in the first frame has not appeared."""
    found = [(frame, verb, one) for verb in VERBS for frame, one in film.events(verb)]
    return found + [(one.frames[0], "appear", one) for one in film.digits if one.frames[0] > 0]


def _order(film: Film, rng: np.random.Generator) -> Asked:
    events = _events(film)
    pairs = [(a, b) for a in events for b in events if a[2] is not b[2] and abs(a[0] - b[0]) >= EVENT_GAP]
    if not pairs:
        return None
    (frame, verb, one), (other_frame, other_verb, other) = pick(rng, pairs)
    first, second = _name(one, rng), _name(other, rng)
    question = f"did the {first} {verb} before or after the {second} {VERBS[other_verb]}?"
    return question, "before" if frame < other_frame else "after", [_whole(one), _whole(other)]


def _before(film: Film, rng: np.random.Generator) -> Asked:
    """What came before or after an event, if another object did the same on the other side of it."""
    options = []
    for verb, (frame, own, anchor) in product(VERBS, _events(film)):
        others = [(at, one) for at, one in film.events(verb) if one is not anchor and abs(at - frame) >= EVENT_GAP]
        sides = {
            "before": [one for at, one in others if at < frame],
            "after": [one for at, one in others if at > frame],
        }
        if all(sides.values()):
            options += [(verb, side[0], when, anchor, own) for when, side in sides.items() if len(side) == 1]
    if not options:
        return None
    verb, one, when, anchor, own = pick(rng, options)
    asks_color = bool(rng.integers(2)) and not one.later_color
    question = f"what {'color' if asks_color else 'shape'} {VERBS[verb]} {when} the {_name(anchor, rng)} {VERBS[own]}?"
    return question, one.color if asks_color else one.shape, [_whole(one), _whole(anchor)]


def _duration(film: Film, rng: np.random.Generator) -> Asked:
    passing = [one for one in film.objects if len(one.frames) < FRAMES]
    if not passing:
        return None
    length = pick(rng, sorted({len(one.frames) for one in passing}))
    one = pick(rng, [one for one in passing if len(one.frames) == length])
    return f"for how many frames is the {_name(one, rng)} there?", str(length), [_whole(one)]


def _look(film: Film, rng: np.random.Generator) -> Asked:
    """For training only: a question that any frame with the object answers."""
    one = pick(rng, [one for one in film.objects if not one.later_color])
    way, spot = int(rng.integers(3)), one.path[one.frames[0]]
    if way == 0 and spot and not one.direction and (where := quadrant(spot)):
        return f"where is the {_name(one, rng)}?", where, [_whole(one)]
    if way == 1:
        return f"what color is the {one.shape}?", one.color, [_whole(one)]
    return f"what shape is the {one.color} object?", one.shape, [_whole(one)]


def _counting(film: Film, rng: np.random.Generator) -> Asked:
    verb = pick(rng, ["appear", "disappear"])
    actors = [one for _, one in film.events(verb)]
    count = len(actors)
    odds = {0: 0.5, 1: 0.3, 2: 0.4, 3: 1.0}  # inverse to how often a film has so many
    if count > MOST_COUNTED or rng.random() > odds[count]:
        return None
    return f"how many objects {verb}?", str(count), list(map(_whole, actors))


FILM_FAMILIES: dict[str, FilmFamily] = {
    "direction": _direction,
    "place": _place,
    "event": _event,
    "change": _change,
    "digit": _digit,
    "order": _order,
    "before": _before,
    "duration": _duration,
    "counting": _counting,
}

LESSONS: dict[str, FilmFamily] = {**FILM_FAMILIES, "look": _look}


def film_questions_for(film: Film, seed: int = 0, per_family: int | Mapping[str, int] = 1) -> list[Question]:
    """Ask up to `per_family` different questions of every family about a film.

    per_family: a number, or a mapping from family to number, which may also name "look": how and where an object is
    seed: the same film and seed give the same questions

    >>> film = covist.tiny.films.sample_film(covist.tiny.HELD_OUT_SEEDS[0])
    >>> covist.tiny.films.film_questions_for(film, per_family={"digit": 1})[0].family
    'digit'
    """
    wanted = dict.fromkeys(FILM_FAMILIES, per_family) if isinstance(per_family, int) else per_family
    return ask(film, LESSONS, seed, wanted)
