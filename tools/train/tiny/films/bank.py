"""Rendered films as memory maps: the patches of all frames, and what each patch shows."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from covist.tiny.films.scenes import (
    DIGITS_SHOWN,
    DIRECTIONS,
    FILM_LOOK,
    FILM_SIDE,
    FRAMES,
    OBJECTS,
    Film,
    render_film,
    sample_film,
)
from covist.tiny.glyphs import DIGITS
from covist.tiny.scenes import COLORS, SHAPES, Layout, Scene, Thing, render
from train.tiny.data import memory_maps
from train.tiny.films.model import GRID, PATCH, PATCHES, SIDE, TOKENS
from train.tiny.owners import patch_owners

ACTORS = OBJECTS + DIGITS_SHOWN
PATCH_VALUES = 3 * PATCH * PATCH
# what a frame shows of an actor, as classes from 1 (0: none); x and y are the centre in pixels
CLASSES = {"color": tuple(COLORS), "shape": SHAPES, "char": tuple(DIGITS)}
# what has happened to an actor until a frame: the frames that have shown it, its first color, where it moves
HISTORY = {"seen": FRAMES, "origin": len(COLORS), "motion": len(DIRECTIONS)}
COLUMNS = (*CLASSES, "x", "y", *HISTORY)
CROWD = 6  # objects, and as many digits, that a crowded frame tries to show
MOVED_FROM = 3  # the first frame in which a movement is plain


def classes_of(thing: Thing) -> list[int]:
    return [values.index(value) + 1 if (value := getattr(thing, name)) else 0 for name, values in CLASSES.items()]


def describe(film: Film) -> np.ndarray:
    """Columns of every actor in every frame [frames, actors + 1, columns]; row 0 is the background."""
    table = np.zeros((FRAMES, ACTORS + 1, len(COLUMNS)), dtype=np.int16)
    for number, actor in enumerate(film.actors, 1):
        for seen, frame in enumerate(actor.frames, 1):
            thing = actor.thing(frame)
            assert thing is not None
            moved = bool(actor.direction) and frame >= MOVED_FROM
            motion = list(DIRECTIONS).index(actor.direction) + 1 if moved else 0
            origin = list(COLORS).index(actor.color) + 1 if actor.color else 0
            table[frame, number] = *classes_of(thing), round(thing.x), round(thing.y), seen, origin, motion
    return table


def owners_of(film: Film) -> np.ndarray:
    """The actor (from 1) that every patch shows, 0 for background, [frames, patches]."""
    frames = []
    for frame in range(FRAMES):
        shown = [(number, thing) for number, one in enumerate(film.actors, 1) if (thing := one.thing(frame))]
        numbers = np.array([0, *(number for number, _ in shown)], dtype=np.uint8)
        scene = Scene(film.seed, tuple(thing for _, thing in shown), FILM_LOOK)
        frames.append(numbers[patch_owners(scene, PATCH)].reshape(-1))
    return np.stack(frames)


def to_patches(frames: np.ndarray) -> np.ndarray:
    """[frames, side, side, 3] -> [frames, patches, values], in the channel, row, column order of the tower's kernel."""
    cells = frames.reshape(len(frames), GRID, PATCH, GRID, PATCH, 3)
    return cells.transpose(0, 1, 3, 5, 2, 4).reshape(len(frames), PATCHES, PATCH_VALUES)


def scaled(patches: np.ndarray) -> Tensor:
    """Patches scaled as by the processor."""
    return torch.tensor(patches).float().div_(255).sub_(0.5).div_(0.25)


def token_shows(owners: np.ndarray) -> np.ndarray:
    """How many of the four patches behind each token show each actor: [..., patches] -> [..., tokens, actors + 1]."""
    cells = owners.reshape(*owners.shape[:-1], SIDE, 2, SIDE, 2)
    cells = np.moveaxis(cells, -3, -2).reshape(*owners.shape[:-1], TOKENS, 4)
    return (cells[..., None] == np.arange(ACTORS + 1)).sum(-2)


def crowded_frame(seed: int) -> Scene:
    """A single frame with more objects and digits than a film shows at once: the tower learns more from each."""
    rng = np.random.default_rng([seed, 22])
    layout, look, things = Layout(rng, FILM_SIDE), FILM_LOOK, []
    for kind in ("object", "digit") * CROWD:
        width, height = (look.large,) * 2 if kind == "object" else (look.glyph_width / 2, look.glyph_height / 2)
        spot = layout.place(width, height, tries=30)
        if spot and kind == "digit":
            things.append(Thing(kind, *spot, char=str(rng.choice(list(DIGITS)))))
        elif spot:
            color, shape = str(rng.choice(list(COLORS))), str(rng.choice(SHAPES))
            things.append(Thing(kind, *spot, color=color, shape=shape, size="large"))
    return Scene(seed, tuple(things), look)


class FrameBank:
    """`count` crowded frames from consecutive seeds, kept in memory."""

    def __init__(self, first_seed: int, count: int):
        scenes = [crowded_frame(seed) for seed in range(first_seed, first_seed + count)]
        self.patches = np.concatenate([to_patches(render(scene)[None]) for scene in scenes])
        self.owners = np.stack([patch_owners(scene, PATCH).reshape(-1) for scene in scenes])
        self.tables = np.zeros((count, 2 * CROWD + 1, len(CLASSES) + 2), dtype=np.int16)
        for table, scene in zip(self.tables, scenes, strict=True):
            for row, thing in zip(table[1:], scene.things, strict=False):
                row[:] = *classes_of(thing), round(thing.x), round(thing.y)

    def __len__(self) -> int:
        return len(self.patches)


class FilmBank:
    """`count` films from consecutive seeds; rendered on first use, then read from `folder`."""

    name = "films"

    def __init__(self, folder: Path, first_seed: int, count: int):
        self.seeds = range(first_seed, first_seed + count)
        shapes = {
            "patches": ((count, FRAMES, PATCHES, PATCH_VALUES), np.uint8),
            "owners": ((count, FRAMES, PATCHES), np.uint8),
            "tables": ((count, FRAMES, ACTORS + 1, len(COLUMNS)), np.int16),
        }
        with memory_maps(folder / f"{self.name}-{first_seed}-{count}", shapes) as (maps, empty):
            self.patches, self.owners, self.tables = maps["patches"], maps["owners"], maps["tables"]
            if empty:
                self._render()

    def __len__(self) -> int:
        return len(self.seeds)

    def film(self, index: int) -> Film:
        return sample_film(self.seeds[index])

    def _render(self) -> None:
        for index in range(len(self)):
            film = self.film(index)
            self.patches[index] = to_patches(render_film(film))
            self.owners[index], self.tables[index] = owners_of(film), describe(film)

    def pixels(self, index: int) -> Tensor:
        """The patches of a film as the tower takes them, [frames, patches, values]."""
        return scaled(self.patches[index])
