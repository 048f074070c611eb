"""What the decoder learns from besides questions: descriptions of whole scenes, and scenes with few things."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from covist.tiny.hd.questions import HD_FAMILIES, group_to_count, quadrants_of, texts_of
from covist.tiny.questions import RELATION_MARGIN, Question, pick, unique
from covist.tiny.scenes import Scene


def _state_object(scene: Scene, rng: np.random.Generator) -> str:
    """The attributes of an object in random order; each must be inferred from the object that those before it name."""
    if not scene.objects:
        return ""
    thing = pick(rng, scene.objects)
    words = [thing.color, thing.shape, thing.size, pick(rng, quadrants_of(thing))]
    return " ".join(words[index] for index in rng.permutation(len(words)))


def _state_count(scene: Scene, rng: np.random.Generator) -> str:
    found = group_to_count(scene, rng)
    return f"{found[0]} {len(found[1])}" if found else ""


def _state_relation(scene: Scene, rng: np.random.Generator) -> str:
    options = unique(scene, "color shape")
    if len(options) < 2:
        return ""
    (one, name), (other, other_name) = pick(rng, options), pick(rng, options)
    words = [name, other_name]
    if abs(one.x - other.x) >= RELATION_MARGIN:
        words.append("left" if one.x < other.x else "right")
    if abs(one.y - other.y) >= RELATION_MARGIN:
        words.append("above" if one.y < other.y else "below")
    return " ".join(words) if len(words) > 2 else ""


def _state_existence(scene: Scene, rng: np.random.Generator) -> str:
    found = HD_FAMILIES["existence"](scene, rng)
    return found[0].removeprefix("is ").replace(" a ", " ").replace(" an ", " ")[:-1] + f" {found[1]}" if found else ""


def _state_text(scene: Scene, rng: np.random.Generator) -> str:
    name, glyphs = pick(rng, texts_of(scene))
    return f"{name} {' '.join(glyph.char for glyph in glyphs)}"


_STATEMENTS: dict[Callable[[Scene, np.random.Generator], str], float] = {
    _state_object: 0.2,
    _state_existence: 0.15,
    _state_count: 0.4,
    _state_relation: 0.1,
    _state_text: 0.15,
}


def statements_about(scene: Scene, rng: np.random.Generator, number: int) -> Question:
    """A description in `number` random statements; every word of it is a target."""
    kinds = rng.choice(len(_STATEMENTS), number, p=list(_STATEMENTS.values()))
    # once each: a statement could be repeated without looking at the image
    made = dict.fromkeys(list(_STATEMENTS)[kind](scene, rng) for kind in kinds)
    return Question("statements", "what is in this picture?", " , ".join(filter(None, made)))


def excerpt(scene: Scene, objects: int, texts: int, rng: np.random.Generator) -> Scene:
    """A scene with only some of the objects and texts of another and no decoys, for the first phases."""
    kept = [scene.objects[index] for index in rng.permutation(len(scene.objects))[:objects]]
    found = texts_of(scene)
    kept += [glyph for index in rng.permutation(len(found))[:texts] for glyph in found[index][1]]
    return replace(scene, things=tuple(thing for thing in scene.things if thing in kept))
