"""What the words of a question or a statement mean in a crowded scene, read from the list of its things."""

import re

from covist.tiny.hd.scenes import HD_SIDE
from covist.tiny.questions import QUADRANTS
from covist.tiny.scenes import COLORS, SHAPES, SIZES, Scene, Thing


def place(thing: Thing) -> str:
    return f"{'top' if thing.y < HD_SIDE / 2 else 'bottom'}-{'left' if thing.x < HD_SIDE / 2 else 'right'}"


def fits(thing: Thing, word: str) -> bool:
    if word in ("object", "objects"):
        return True
    if word in QUADRANTS:
        return place(thing) == word
    singular = re.sub(r"(?<=cross)es$|(?<!s)s$", "", word)
    return word in (thing.color, thing.size) or thing.shape in (word, singular)


def meant(scene: Scene, phrase: str) -> list[Thing]:
    known = {*COLORS, *SIZES, *QUADRANTS, "object", "objects"}
    assert all(word in known or any(word.startswith(shape) for shape in SHAPES) for word in phrase.split()), phrase
    return [thing for thing in scene.objects if all(fits(thing, word) for word in phrase.split())]


def the(scene: Scene, phrase: str) -> Thing:
    (thing,) = meant(scene, phrase)  # a definite reference fits exactly one object
    return thing


def read(scene: Scene, color: str, text: str) -> list[str]:
    kind = {"number": "digit", "word": "letter"}[text]
    glyphs = sorted((glyph for glyph in scene.of(kind) if glyph.color == color), key=lambda glyph: glyph.x)
    return [glyph.char for glyph in glyphs]
