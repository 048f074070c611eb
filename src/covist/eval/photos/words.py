"""The words of a caption, and what kind of word each is.

The lists hold the frequent words of captions, not all words of their kind: a rarer word counts as "other". They are
fixed, so that figures stay comparable, and singular and plural are listed separately.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ALL, OTHER = "all words", "other"
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")

_CLASSES = {
    "objects": """
        man men woman women boy boys girl girls child children kid kids baby toddler person people guy lady
        player players crowd team couple biker bicyclist skateboarder surfer climber rider runner swimmer cowboy
        dog dogs puppy puppies cat horse horses bird birds animal animals cow sheep duck
        ball bike bicycle motorcycle car cars truck bus boat train skateboard surfboard snowboard kayak sled
        water snow grass sand beach field street road sidewalk mountain mountains hill rock rocks tree trees river lake
        ocean sea pool wave waves air sky ground dirt mud forest woods park yard playground building buildings house
        wall fence bench chair table window door stairs steps ramp bridge pole rope stick toy frisbee slide swing
        fountain shirt hat jacket dress pants shorts helmet glasses sunglasses coat jeans suit uniform costume collar
        mask bag camera phone guitar flag sign food hair face head hand hands mouth arms back leg legs feet
        """,
    "colors": """
        red orange yellow green blue purple pink brown black white gray grey tan blond blonde golden silver gold
        colorful colored dark bright
        """,
    "numbers": """
        one two three four five six seven eight nine ten several many few group pair both some another lone single
        """,
    "relations": """
        on in at with near by of over under above below behind front through into onto across along around between
        beside against towards toward up down off out outside inside past next while holding wearing from away top
        """,
}  # fmt: skip
WORD_CLASSES = tuple(_CLASSES)
_CLASS_OF = {word: name for name, words in _CLASSES.items() for word in words.split()}


@dataclass(frozen=True)
class Word:
    """A word of a caption: its text in small letters, and where it stands."""

    text: str
    start: int
    end: int


def words_of(caption: str) -> list[Word]:
    """The words of a caption, without punctuation.

    >>> [word.text for word in words_of("A dog's ball .")]
    ['a', "dog's", 'ball']
    """
    return [Word(found[0], *found.span()) for found in _WORD.finditer(caption.lower())]


def word_class(text: str) -> str:
    """ "objects", "colors", "numbers", "relations" or "other"."""
    return _CLASS_OF.get(text.removesuffix("'s"), OTHER)
