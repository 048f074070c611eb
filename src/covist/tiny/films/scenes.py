"""Films: four objects and two digits on a still ground, in 16 frames. Everything follows from the seed.

An object stands still, moves, appears, disappears, visits (appears and disappears again) or changes its color; each
digit is shown for a few frames. No two objects share a shape, and none has a color that another one ever has, so a
shape or a color is a name.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image

from covist.tiny import glyphs
from covist.tiny.scenes import COLORS, SHAPES, Layout, Look, Thing, background, put

FRAMES, FILM_SIDE = 16, 64
FILM_LOOK = Look(FILM_SIDE, small=6.0, large=6.0, glyph_width=9, glyph_height=12)
OBJECTS, DIGITS_SHOWN = 4, 2
DIGIT_FRAMES = 3
LENGTHS = (4, 8, 12)  # frames for which an object that comes or goes is there
TRAVEL = (24, 40)  # pixels between the ends of a path
FLICKER = 3.0  # deviation of the noise that every frame has of its own

# an object's behaviours, how likely each is, and how many objects of a film may have it
BEHAVIOURS = {
    "still": (0.10, 4),
    "move": (0.22, 2),
    "appear": (0.19, 4),
    "disappear": (0.19, 4),
    "visit": (0.14, 4),
    "change": (0.16, 2),
}
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}

Spot = tuple[float, float]


@dataclass(frozen=True)
class Actor:
    """An object or a digit: what it looks like, what it does, and where its centre is in each frame (None: absent)."""

    behaviour: str
    path: tuple[Spot | None, ...]
    color: str = ""
    shape: str = ""
    char: str = ""
    direction: str = ""  # of one that moves
    later_color: str = ""  # of one that changes
    change: int = FRAMES  # the first frame that shows the later color

    @property
    def frames(self) -> list[int]:
        """The frames that show it, which follow one another."""
        return [number for number, spot in enumerate(self.path) if spot]

    def color_in(self, frame: int) -> str:
        return self.color if frame < self.change else self.later_color

    def thing(self, frame: int) -> Thing | None:
        """What a frame shows of it."""
        spot = self.path[frame]
        if spot is None:
            return None
        if self.char:
            return Thing("digit", *spot, char=self.char)
        return Thing("object", *spot, color=self.color_in(frame), shape=self.shape, size="large")


@dataclass(frozen=True)
class Film:
    """What a film shows: its objects and its digits, the digits in their order. Everything follows from the seed."""

    seed: int
    objects: tuple[Actor, ...]
    digits: tuple[Actor, ...]

    @property
    def actors(self) -> tuple[Actor, ...]:
        return self.objects + self.digits

    def events(self, verb: str) -> list[tuple[int, Actor]]:
        """When objects begin to "appear", "disappear" or "change", as frames and actors in the order of the actors."""
        if verb == "change":
            return [(one.change, one) for one in self.objects if one.later_color]
        if verb == "appear":
            return [(one.frames[0], one) for one in self.objects if one.frames[0] > 0]
        return [(one.frames[-1] + 1, one) for one in self.objects if one.frames[-1] < FRAMES - 1]


class _Crowded(Exception):
    """Not everything fits; another draw may."""


def _behaviours(rng: np.random.Generator) -> list[str]:
    odds = [odds for odds, _ in BEHAVIOURS.values()]
    while True:
        drawn = [str(name) for name in rng.choice(list(BEHAVIOURS), OBJECTS, p=odds)]
        if all(drawn.count(name) <= most for name, (_, most) in BEHAVIOURS.items()):
            return sorted(drawn, key=lambda name: name != "move")  # those that move need most room: placed first


def _place(layout: Layout, half_width: float, half_height: float) -> Spot:
    spot = layout.place(half_width, half_height, tries=80)
    if spot is None:
        raise _Crowded
    return spot


def _walk(layout: Layout, rng: np.random.Generator) -> tuple[str, tuple[Spot | None, ...]]:
    """A direction and an even straight path in it, of which nothing else touches any part."""
    direction = str(rng.choice(list(DIRECTIONS)))
    across, down = DIRECTIONS[direction]
    radius, half = FILM_LOOK.large, int(rng.integers(TRAVEL[0], TRAVEL[1] + 1)) / 2
    x, y = _place(layout, radius + half * abs(across), radius + half * abs(down))
    steps = np.linspace(-half, half, FRAMES)
    return direction, tuple((round(x + across * step), round(y + down * step)) for step in steps)


def _presence(behaviour: str, rng: np.random.Generator) -> range:
    """The frames in which an object of a behaviour is there."""
    length = int(rng.choice(LENGTHS))
    if behaviour == "appear":
        return range(FRAMES - length, FRAMES)
    if behaviour == "disappear":
        return range(length)
    if behaviour == "visit":
        start = int(rng.integers(1, FRAMES - length))
        return range(start, start + length)
    return range(FRAMES)


def _shown(spot: Spot, frames: range) -> tuple[Spot | None, ...]:
    return tuple(spot if number in frames else None for number in range(FRAMES))


def _digits(layout: Layout, rng: np.random.Generator) -> tuple[Actor, ...]:
    chars = rng.choice(list(glyphs.DIGITS), DIGITS_SHOWN, replace=False)
    first = int(rng.integers(0, FRAMES - 2 * DIGIT_FRAMES))
    second = int(rng.integers(first + DIGIT_FRAMES + 1, FRAMES - DIGIT_FRAMES + 1))
    actors = []
    for char, start in zip(chars, (first, second), strict=True):
        spot = _place(layout, FILM_LOOK.glyph_width / 2, FILM_LOOK.glyph_height / 2)
        actors.append(Actor("digit", _shown(spot, range(start, start + DIGIT_FRAMES)), char=str(char)))
    return tuple(actors)


def _objects(layout: Layout, rng: np.random.Generator) -> tuple[Actor, ...]:
    behaviours, radius = _behaviours(rng), FILM_LOOK.large
    colors, shapes = (rng.permutation(list(values)).tolist() for values in (COLORS, SHAPES))
    spare, actors = colors[OBJECTS:], []
    for behaviour, color, shape in zip(behaviours, colors, shapes, strict=False):
        if behaviour == "move":
            direction, path = _walk(layout, rng)
            actors.append(Actor(behaviour, path, color, shape, direction=direction))
            continue
        path = _shown(_place(layout, radius, radius), _presence(behaviour, rng))
        changes = behaviour == "change"
        later, frame = (spare.pop(), int(rng.integers(3, FRAMES - 2))) if changes else ("", FRAMES)
        actors.append(Actor(behaviour, path, color, shape, later_color=later, change=frame))
    return tuple(actors)


@lru_cache(maxsize=8192)
def sample_film(seed: int) -> Film:
    """Make the film of a seed: four objects and two digits.

    >>> len(covist.tiny.films.sample_film(7).objects)
    4
    """
    rng = np.random.default_rng([seed, 20])
    while True:
        layout = Layout(rng, FILM_SIDE)
        try:
            objects = _objects(layout, rng)
            return Film(seed, objects, _digits(layout, rng))
        except _Crowded:
            continue


def render_film(film: Film) -> np.ndarray:
    """Draw a film as an array, uint8 [frames, side, side, 3].

    >>> covist.tiny.films.render_film(covist.tiny.films.sample_film(7)).shape
    (16, 64, 64, 3)
    """
    rng = np.random.default_rng([film.seed, 21])
    ground = background(rng, FILM_SIDE)
    shade = rng.normal(0, 10, (len(film.actors), 3))  # of its own for every actor, the same in all frames
    frames = ground + FLICKER * rng.standard_normal((FRAMES, FILM_SIDE, FILM_SIDE, 3), dtype=np.float32)
    for number, image in enumerate(frames):
        for actor, own in zip(film.actors, shade, strict=True):
            if thing := actor.thing(number):
                put(thing, image, FILM_LOOK, _bright(thing) + own)
    return np.clip(frames + 0.5, 0, 255).astype(np.uint8)


def _bright(thing: Thing) -> np.ndarray:
    return np.full(3, 235.0) if thing.char else 255 * np.array(COLORS[thing.color])


def film_frames(film: Film) -> list[Image.Image]:
    """Draw a film as Pillow images, one per frame.

    >>> covist.tiny.films.film_frames(covist.tiny.films.sample_film(7))[0].size
    (64, 64)
    """
    return [Image.fromarray(frame) for frame in render_film(film)]
