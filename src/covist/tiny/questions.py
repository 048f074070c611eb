"""Questions with exact answers about a scene, in eight families that mirror the tasks of real benchmarks.

The questions are about coloured objects: the grey decoys of the same shapes are never counted or named.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from covist.errors import CovistError
from covist.tiny.scenes import COLORS, IMAGE_SIZE, SHAPES, Scene, Thing

MOST_COUNTED = 4
RELATION_MARGIN = 10  # pixels between the centres, along the axis in question
QUADRANT_MARGIN = 4  # pixels from the middle lines
QUADRANTS = ("top-left", "top-right", "bottom-left", "bottom-right")


@dataclass(frozen=True)
class Question:
    """A question about a scene or a film, with its exact answer.

    family: the kind of question, such as "counting"
    about: the things on which the answer depends; of a film, glimpses of its actors
    """

    family: str
    question: str
    answer: str
    about: tuple[Any, ...] = ()

    metric = "exact"
    choices = ()

    @property
    def answers(self) -> tuple[str, ...]:
        return (self.answer,)


class Drawn(Protocol):
    """Something to ask about that follows from a seed: a scene or a film."""

    @property
    def seed(self) -> int: ...


Option = TypeVar("Option")
Shown = TypeVar("Shown", bound=Drawn)
Asked = tuple[str, str, Sequence[Any]] | None  # question, answer, what it is about; None if there is nothing to ask

Family = Callable[[Scene, np.random.Generator], Asked]


def pick(rng: np.random.Generator, options: Sequence[Option]) -> Option:
    return options[int(rng.integers(len(options)))]


def plural(shape: str) -> str:
    return shape + ("es" if shape.endswith("s") else "s")


def article(name: str) -> str:
    return "an" if name[0] in "aeiou" else "a"


def _names(thing: Thing) -> dict[str, str]:
    """Ways to refer to an object, from one attribute to two."""
    return {
        "color": f"{thing.color} object",
        "shape": thing.shape,
        "color shape": f"{thing.color} {thing.shape}",
        "size color": f"{thing.size} {thing.color} object",
        "size shape": f"{thing.size} {thing.shape}",
    }


def unique(scene: Scene, *ways: str) -> list[tuple[Thing, str]]:
    """Objects with a name that fits no other object of the scene, for the given ways of naming them."""
    named = [(thing, _names(thing)[way]) for way in ways for thing in scene.objects]
    times = Counter(name for _, name in named)
    return [(thing, name) for thing, name in named if times[name] == 1]


def groups(scene: Scene) -> dict[str, list[Thing]]:
    """The objects of every colour and of every shape, by the name that counting questions use."""
    found = {f"{color} objects": [t for t in scene.objects if t.color == color] for color in COLORS}
    return found | {plural(shape): [t for t in scene.objects if t.shape == shape] for shape in SHAPES}


def _existence(scene: Scene, rng: np.random.Generator) -> Asked:
    present = {name for thing in scene.objects for way, name in _names(thing).items() if "size" not in way}
    colors, shapes = {t.color for t in scene.objects}, {t.shape for t in scene.objects}
    way = ("color shape", "color shape", "color shape", "color", "shape")[int(rng.integers(5))]
    everything = {
        "color": [f"{color} object" for color in COLORS],
        "shape": list(SHAPES),
        # an absent pair consists of a colour and a shape that both occur, so neither alone gives the answer
        "color shape": [f"{color} {shape}" for color in sorted(colors) for shape in sorted(shapes)],
    }[way]
    wanted = bool(rng.integers(2))
    options = [name for name in everything if (name in present) == wanted]
    if not options:
        return None
    name = pick(rng, options)
    about = [thing for thing in scene.objects if name in _names(thing).values()]
    return f"is there {article(name)} {name}?", "yes" if wanted else "no", about


def _color(scene: Scene, rng: np.random.Generator) -> Asked:
    options = unique(scene, "shape", "size shape")
    if not options:
        return None
    thing, name = pick(rng, options)
    return f"what color is the {name}?", thing.color, [thing]


def _shape(scene: Scene, rng: np.random.Generator) -> Asked:
    options = unique(scene, "color", "size color")
    if not options:
        return None
    thing, name = pick(rng, options)
    return f"what shape is the {name}?", thing.shape, [thing]


def _counting(scene: Scene, rng: np.random.Generator) -> Asked:
    named = groups(scene)
    available = sorted({len(group) for group in named.values() if len(group) <= MOST_COUNTED})
    odds = np.array([1, 1, 1.5, 2.5, 4])[available]  # high counts are rare in scenes, so they are asked more often
    count = rng.choice(available, p=odds / odds.sum())
    name = pick(rng, [name for name, group in named.items() if len(group) == count])
    return f"how many {name} are there?", str(count), named[name]


def _relation(scene: Scene, rng: np.random.Generator) -> Asked:
    return relation(unique(scene, "color shape", "color", "shape"), rng)


def relation(options: list[tuple[Thing, str]], rng: np.random.Generator) -> Asked:
    """Ask on which side of another thing a thing lies, for two named things that are far enough apart."""
    horizontal = bool(rng.integers(2))
    for _ in range(20):
        if len(options) < 2:
            return None
        (one, name), (other, other_name) = pick(rng, options), pick(rng, options)
        offset = one.x - other.x if horizontal else one.y - other.y
        if abs(offset) >= RELATION_MARGIN:
            before, after = ("left", "right") if horizontal else ("above", "below")
            phrase = "left or right of" if horizontal else "above or below"
            return f"is the {name} {phrase} the {other_name}?", before if offset < 0 else after, [one, other]
    return None


def _glyph(kind: str) -> Family:
    def ask(scene: Scene, rng: np.random.Generator) -> Asked:
        role = ("first", "last")[int(rng.integers(2))]
        glyph = next(thing for thing in scene.of(kind) if thing.role == role)
        return f"what is the {role} {kind}?", glyph.char, [glyph]

    return ask


def _quadrant(scene: Scene, rng: np.random.Generator) -> Asked:
    middle = IMAGE_SIZE / 2
    options = [
        (thing, name)
        for thing, name in unique(scene, "color shape", "color", "shape")
        if min(abs(thing.x - middle), abs(thing.y - middle)) >= QUADRANT_MARGIN
    ]
    if not options:
        return None
    thing, name = pick(rng, options)
    return f"where is the {name}?", QUADRANTS[2 * (thing.y > middle) + (thing.x > middle)], [thing]


FAMILIES: dict[str, Family] = {
    "existence": _existence,
    "color": _color,
    "shape": _shape,
    "counting": _counting,
    "relation": _relation,
    "digit": _glyph("digit"),
    "letter": _glyph("letter"),
    "quadrant": _quadrant,
}


def questions_for(scene: Scene, seed: int = 0, per_family: int | Mapping[str, int] = 1) -> list[Question]:
    """Ask up to `per_family` different questions of every family about a scene.

    per_family: a number, or a mapping from family to number
    seed: the same scene and seed give the same questions

    >>> scene = covist.tiny.sample_scene(covist.tiny.HELD_OUT_SEEDS[0])
    >>> len({question.family for question in covist.tiny.questions_for(scene)})
    7
    """
    return ask(scene, FAMILIES, seed, per_family)


def ask(
    scene: Shown,
    families: Mapping[str, Callable[[Shown, np.random.Generator], Asked]],
    seed: int,
    per_family: int | Mapping[str, int],
) -> list[Question]:
    """Questions of the given families; otherwise like `questions_for`."""
    wanted = dict.fromkeys(families, per_family) if isinstance(per_family, int) else per_family
    if unknown := set(wanted) - set(families):
        raise CovistError(f"unknown question family {min(unknown)!r}; choose from {', '.join(families)}")
    rng = np.random.default_rng([scene.seed, 2, seed])
    asked: dict[str, Question] = {}
    for family, number in wanted.items():
        for _ in range(number):
            found = families[family](scene, rng)
            if found:
                question, answer, about = found
                asked.setdefault(question, Question(family, question, answer, tuple(about)))
    return list(asked.values())
