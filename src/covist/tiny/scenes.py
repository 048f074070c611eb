"""Scenes: what is in the image (`sample_scene`) and how it looks (`render`).

Everything follows from the seed. The seed ranges below do not overlap, so held-out scenes are unseen by construction.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image

from covist.tiny import glyphs

IMAGE_SIZE, PATCH = 96, 4
GRID = IMAGE_SIZE // PATCH

TRAIN_SEEDS = range(0, 1_000_000)
VALIDATION_SEEDS = range(1_000_000, 2_000_000)  # watched during training
HELD_OUT_SEEDS = range(2_000_000, 3_000_000)  # for the evaluation suite only

COLORS = {
    "red": (0.90, 0.12, 0.12),
    "green": (0.15, 0.75, 0.20),
    "blue": (0.15, 0.25, 0.95),
    "yellow": (0.95, 0.90, 0.15),
    "purple": (0.65, 0.15, 0.80),
    "cyan": (0.15, 0.85, 0.90),
    "orange": (1.00, 0.52, 0.08),
}
SHAPES = ("circle", "square", "triangle", "cross", "ring", "diamond")
SIZES = {"small": 5.5, "large": 8.0}  # half the side of the bounding box, in pixels
ROLES = ("first", "middle", "last")  # place of a glyph in its number or word
MOST_OBJECTS = 12


@dataclass(frozen=True)
class Look:
    """Sizes of an image and of the things in it, in pixels."""

    side: int
    small: float  # half the side of the bounding box
    large: float
    glyph_width: int
    glyph_height: int

    def radius(self, thing: "Thing") -> float:
        return self.small if thing.size == "small" else self.large

    def glyph(self, char: str) -> np.ndarray:
        """How much of each pixel a character covers, [glyph_height, glyph_width]."""
        return glyphs.draw(char, self.glyph_width, self.glyph_height)


LOOK = Look(IMAGE_SIZE, **SIZES, glyph_width=glyphs.WIDTH, glyph_height=glyphs.HEIGHT)


@dataclass(frozen=True)
class Thing:
    """One thing in a scene: a coloured object, a grey decoy of the same shapes, or one glyph of the number or word."""

    kind: str  # object, decoy, digit, letter
    x: float  # centre, in pixels from the left
    y: float  # centre, in pixels from the top
    color: str = ""
    shape: str = ""
    size: str = ""
    char: str = ""
    role: str = ""


@dataclass(frozen=True)
class Scene:
    """What an image shows: the things in it, and how large they are drawn. Everything follows from the seed."""

    seed: int
    things: tuple[Thing, ...]
    look: Look = LOOK

    def of(self, kind: str) -> list[Thing]:
        return [thing for thing in self.things if thing.kind == kind]

    @property
    def objects(self) -> list[Thing]:
        return self.of("object")


class Layout:
    """Non-overlapping boxes in a square, placed by rejection."""

    def __init__(self, rng: np.random.Generator, side: int):
        self.rng, self.side = rng, side
        self.boxes: list[tuple[float, float, float, float]] = []  # x, y, half width, half height

    def place(self, half_width: float, half_height: float, tries: int = 60) -> tuple[float, float] | None:
        for u, v in self.rng.random((tries, 2)):
            x = round(half_width + 1 + u * (self.side - 2 * half_width - 2))
            y = round(half_height + 1 + v * (self.side - 2 * half_height - 2))
            if all(
                abs(x - bx) > half_width + bw + 1 or abs(y - by) > half_height + bh + 1 for bx, by, bw, bh in self.boxes
            ):
                self.boxes.append((x, y, half_width, half_height))
                return x, y
        return None


def _text(kind: str, alphabet: str, layout: Layout, rng: np.random.Generator) -> list[Thing]:
    length = int(rng.integers(2, 4))
    pitch = glyphs.WIDTH + 1
    spot = layout.place(length * pitch / 2, glyphs.HEIGHT / 2, tries=400)
    assert spot is not None, "text is placed before anything else"
    left = spot[0] - (length - 1) * pitch / 2
    roles = ("first", "last") if length == 2 else ROLES
    chars = rng.choice(list(alphabet), length)
    return [Thing(kind, left + i * pitch, spot[1], char=str(chars[i]), role=roles[i]) for i in range(length)]


@lru_cache(maxsize=4096)
def sample_scene(seed: int, objects: int | None = None) -> Scene:
    """Make the scene of a seed: a number, a word, `objects` coloured objects (by default 2 to 12) and grey decoys.

    In a very crowded scene, the last objects may not fit and are left out.

    >>> len(covist.tiny.sample_scene(7, objects=3).objects)
    3
    """
    rng = np.random.default_rng([seed, 0])
    layout = Layout(rng, IMAGE_SIZE)
    things = _text("digit", glyphs.DIGITS, layout, rng) + _text("letter", glyphs.LETTERS, layout, rng)
    wanted = int(rng.integers(2, MOST_OBJECTS + 1)) if objects is None else objects
    # uneven palettes, so that several objects of one colour or shape are common
    color_odds, shape_odds = rng.dirichlet(np.ones(len(COLORS))), rng.dirichlet(np.full(len(SHAPES), 1.5))
    kinds = ["object"] * wanted + ["decoy"] * int(rng.integers(1, 5))
    for kind in kinds:
        size = str(rng.choice(list(SIZES)))
        color, shape = str(rng.choice(list(COLORS), p=color_odds)), str(rng.choice(SHAPES, p=shape_odds))
        spot = layout.place(SIZES[size], SIZES[size])
        if spot:
            things.append(Thing(kind, *spot, color=color if kind == "object" else "grey", shape=shape, size=size))
    return Scene(seed, tuple(things))


def _shape_distance(shape: str, dx: np.ndarray, dy: np.ndarray, radius: float) -> np.ndarray:
    """Signed distance to the outline (negative inside), accurate to about a pixel."""
    ax, ay = np.abs(dx), np.abs(dy)
    if shape == "circle":
        return np.hypot(dx, dy) - radius
    if shape == "square":
        return np.maximum(ax, ay) - radius * 0.86
    if shape == "triangle":
        return np.maximum(dy - radius * 0.85, ax * 0.89 - (dy + radius) * 0.45)
    if shape == "cross":
        arm = radius * 0.34
        return np.minimum(np.maximum(ax - radius, ay - arm), np.maximum(ax - arm, ay - radius))
    if shape == "ring":
        return np.abs(np.hypot(dx, dy) - radius * 0.76) - radius * 0.24
    return (ax + ay - radius * 1.05) * 0.71  # diamond


def cover_of(thing: Thing, look: Look) -> tuple[slice, slice, np.ndarray]:
    """Where a thing lies in the image and how much of each pixel it covers."""
    if thing.char:
        top, left = int(thing.y - look.glyph_height / 2), int(thing.x - look.glyph_width / 2)
        return slice(top, top + look.glyph_height), slice(left, left + look.glyph_width), look.glyph(thing.char)
    radius, side = look.radius(thing), look.side
    reach = int(radius + 1)
    rows, columns = slice(int(thing.y) - reach, int(thing.y) + reach), slice(int(thing.x) - reach, int(thing.x) + reach)
    dy, dx = np.mgrid[-reach:reach, -reach:reach] + 0.5
    cover = np.clip(0.5 - _shape_distance(thing.shape, dx, dy, radius), 0, 1).astype(np.float32)
    inside_rows = slice(max(0, -rows.start), 2 * reach - max(0, rows.stop - side))
    inside_columns = slice(max(0, -columns.start), 2 * reach - max(0, columns.stop - side))
    return (
        slice(max(0, rows.start), min(side, rows.stop)),
        slice(max(0, columns.start), min(side, columns.stop)),
        cover[inside_rows, inside_columns],
    )


def background(rng: np.random.Generator, side: int) -> np.ndarray:
    """A dark, slightly tinted, blotchy and striped background with pixel noise, [side, side, 3]."""
    blotch = 16
    cells = side // blotch + 1
    blotches = rng.normal(0, 12, (cells, cells, 3)) + rng.uniform(70, 125) + rng.normal(0, 6, 3)
    ground = np.kron(blotches, np.ones((blotch, blotch, 1)))  # one blotch larger than the image
    for axis in (0, 1):  # a box filter turns the blocks into smooth blotches
        total = np.cumsum(ground, axis=axis)
        ground = (np.take(total, range(blotch, blotch + side), axis) - np.take(total, range(side), axis)) / blotch
    angle, pitch = rng.uniform(0, np.pi), rng.uniform(5, 14)
    y, x = np.mgrid[:side, :side]
    stripes = np.sin((x * np.cos(angle) + y * np.sin(angle)) * (2 * np.pi / pitch))
    noise = rng.standard_normal((side, side, 3), dtype=np.float32)
    return (ground + rng.uniform(0, 14) * stripes[..., None] + 9 * noise).astype(np.float32)


def _paint(thing: Thing, rng: np.random.Generator) -> np.ndarray:
    """The colour in which a thing is drawn, [3]; glyphs are bright, whatever their tint."""
    if thing.char and not thing.color:
        return np.full(3, rng.uniform(225, 250))
    if thing.char:
        return 255 * (0.75 * np.array(COLORS[thing.color]) + 0.25)
    if thing.kind == "decoy":
        return np.full(3, rng.uniform(165, 200))
    return np.array(COLORS[thing.color]) * 255 + rng.normal(0, 10, 3)


def render(scene: Scene) -> np.ndarray:
    """Draw a scene as an array, uint8 [side, side, 3].

    >>> covist.tiny.render(covist.tiny.sample_scene(7)).shape
    (96, 96, 3)
    """
    rng = np.random.default_rng([scene.seed, 1])
    image = background(rng, scene.look.side)
    for thing in scene.things:
        put(thing, image, scene.look, _paint(thing, rng))
    return np.clip(image + 0.5, 0, 255).astype(np.uint8)


def put(thing: Thing, image: np.ndarray, look: Look, color: np.ndarray) -> None:
    """Draw a thing into an image [side, side, 3]; a little of what was there shines through."""
    rows, columns, cover = cover_of(thing, look)
    window = image[rows, columns]
    window += cover[..., None] * (color.astype(np.float32) - window) * 0.94


def scene_image(scene: Scene) -> Image.Image:
    """Draw a scene as a Pillow image.

    >>> covist.tiny.scene_image(covist.tiny.sample_scene(7)).size
    (96, 96)
    """
    return Image.fromarray(render(scene))
