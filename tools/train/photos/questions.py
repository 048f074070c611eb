"""Short questions about photographs, made by fixed rules from captions and from lists of objects.

    python -m train.photos.questions --data DIR [--splits test] --out FILE

Three kinds: whether an object is there, which colour it has, how many of it there are. `captions.txt` gives all three,
`objects.json` ({"image.jpg": ["dog", "car"]}, every object of a fixed set that the image shows) gives the first.
The lines of the file are those that `covist eval --suite photos --data FILE` reads.

About every object, as many images are asked where it is as where it is not, so that nothing can be known without
looking.
"""

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from covist.eval.photos.data import DEVELOPMENT, IMAGES, TEST, TRAIN, name_hash, read_photos, split_of
from covist.eval.photos.words import words_of
from covist.files import parse_json
from covist.outputs import write_text

OBJECTS = "objects.json"
PRESENCE, COLOURS, COUNTS = "presence", "colors", "counts"
AGREEING = 2  # captions that must mention an object before it counts as there

# Objects that captions mention whenever they are there, more or less; clothes and trees are often passed over.
_MENTIONED = """
    dog dogs puppy puppies | man men guy guys | woman women lady ladies | boy boys | girl girls
    child children kid kids boy boys girl girls toddler toddlers baby | ball balls football basketball soccer tennis
    bike bikes bicycle bicycles | car cars | boat boats kayak canoe raft | horse horses | bird birds
    skateboard skateboards skateboarder skateboarding | surfboard surfboards surfer surfing | snow snowy
    grass grassy | beach | water ocean sea pool lake river wave waves | rock rocks cliff | fence | bench
    helmet helmets | mountain mountains | street road sidewalk | motorcycle motorbike motorcycles | frisbee frisbees
    crowd | toy toys | rope | stick | table | hat hats cap | camera | swing | snowboard snowboarder snowboarding
"""  # fmt: skip
WORDS_OF = {
    words.split()[0]: frozenset(words.split())
    for line in _MENTIONED.splitlines()
    for words in line.split("|")
    if words.split()
}
_MASSES = ("grass", "snow", "water")
_COLOURS = "red orange yellow green blue purple pink brown black white gray tan"
_COLOURED = "dog dogs shirt dress jacket hat ball car bike helmet horse coat pants shorts bird boat collar"
_COUNTED = "dogs men women boys girls children people horses birds players kids"
_NUMBERS = "two three four five six"
_COLOUR = re.compile(rf"\b({'|'.join(_COLOURS.split())}) ({'|'.join(_COLOURED.split())})\b")
_COUNT = re.compile(rf"\b({'|'.join(_NUMBERS.split())}) (?:\w+ )?({'|'.join(_COUNTED.split())})\b")


@dataclass(frozen=True)
class Asked:
    """A line of the file; the image is relative to its folder."""

    image: str
    question: str
    answer: str
    family: str


def presence(there: Mapping[str, Collection[str]], absent: Mapping[str, Collection[str]], seed: int) -> Iterator[Asked]:
    """Whether an object is there: of every object, the same number of images that have and that lack it.

    there, absent: the images that surely have and that surely lack each object
    """
    for number, name in enumerate(sorted(there)):
        rng = np.random.default_rng([seed, number])
        sides = sorted(there[name]), sorted(absent[name])
        fewest = min(map(len, sides))
        article = "" if name in _MASSES else "an " if name[0] in "aeiou" else "a "
        for answer, images in zip(("yes", "no"), sides, strict=True):
            for place in sorted(rng.choice(len(images), fewest, replace=False)) if fewest else ():
                yield Asked(images[place], f"Is there {article}{name} in the image?", answer, PRESENCE)


def mentioned(captions: Mapping[str, Sequence[str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """For `presence`: the images whose captions mention each object at least twice, and never."""
    there: dict[str, list[str]] = {name: [] for name in WORDS_OF}
    absent: dict[str, list[str]] = {name: [] for name in WORDS_OF}
    for image, written in captions.items():
        texts = [{word.text for word in words_of(caption)} for caption in written]
        for name, words in WORDS_OF.items():
            times = sum(not words.isdisjoint(text) for text in texts)
            if times == 0:
                absent[name].append(image)
            elif times >= AGREEING:
                there[name].append(image)
    return there, absent


def listed(objects: Mapping[str, Collection[str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """For `presence`: the images that show each object, and the others."""
    names = sorted(set(chain.from_iterable(objects.values())))
    return (
        {name: [image for image, own in objects.items() if name in own] for name in names},
        {name: [image for image, own in objects.items() if name not in own] for name in names},
    )


def attributes(captions: Mapping[str, Sequence[str]]) -> Iterator[Asked]:
    """Colours and numbers that captions give, where no caption of the image says otherwise."""
    for image, written in captions.items():
        text = " . ".join(" ".join(word.text for word in words_of(caption)) for caption in written)
        for thing, colour in _unanimous(_COLOUR.findall(text)):
            verb = "are" if thing.endswith("s") and thing != "dress" else "is"
            yield Asked(image, f"What color {verb} the {thing}?", colour, COLOURS)
        for thing, number in _unanimous(_COUNT.findall(text)):
            yield Asked(image, f"How many {thing} are there?", number, COUNTS)


def _unanimous(pairs: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Things with what is said about them, if it is one thing only."""
    said: dict[str, set[str]] = defaultdict(set)
    for value, thing in pairs:
        said[thing].add(value)
    for thing, values in said.items():
        if len(values) == 1:
            yield thing, values.pop()


def questions(folder: Path, split: str, seed: int = 0) -> list[Asked]:
    """Every question about the images of a split, image by image, in the order of `read_photos`."""
    captions = {photo.path.name: photo.captions for photo in read_photos(folder, split)}
    made = [*presence(*mentioned(captions), seed), *attributes(captions)]
    if (folder / OBJECTS).is_file():
        objects = parse_json((folder / OBJECTS).read_text(encoding="utf-8"))
        own = {image: names for image, names in objects.items() if split_of(image) == split}
        made += presence(*listed(own), seed)
    return sorted(made, key=lambda asked: name_hash(asked.image))


def write(asked: Sequence[Asked], path: Path) -> None:
    lines = (json.dumps({**asdict(one), "image": f"{IMAGES}/{one.image}"}) for one in asked)
    write_text(path, "".join(f"{line}\n" for line in lines))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m train.photos.questions", description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help=f"folder with captions.txt, images and maybe {OBJECTS}"
    )
    splits = (TRAIN, DEVELOPMENT, TEST)
    parser.add_argument("--splits", nargs="+", choices=splits, default=splits[:2], help="what the images are for")
    parser.add_argument("--out", type=Path, help="the file; by default questions.jsonl in the folder")
    options = parser.parse_args(arguments)
    made = [one for split in options.splits for one in questions(options.data, split)]
    write(made, options.out or options.data / "questions.jsonl")
    print(", ".join(f"{count} {name}" for name, count in Counter(one.family for one in made).items()))


if __name__ == "__main__":
    main()
