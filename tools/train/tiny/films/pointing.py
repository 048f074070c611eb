"""Losses that teach where and when to look, and what has happened so far.

Nothing of them is part of the exported model.

`Pointer`: from the words of a question to the tokens of the actors they name, and to the frames of these.
`Chronicle`: from every visual token to its frame and to the history of what it shows. A decoder that reads frames one
after another has no other reason to keep track of them before a question comes.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covist.tiny.films.questions import Glimpse
from covist.tiny.films.scenes import FRAMES, Actor, Film
from covist.tiny.questions import Question
from train.tiny.films.bank import ACTORS, COLUMNS, HISTORY
from train.tiny.packing import IGNORED, PREFIX, Packed

FRAME_LAYER, HISTORY_LAYER, POINTING_LAYER, TIMING_LAYER = 2, 3, 4, 5
NAMED = 2  # actors of a question whose times are predicted


@dataclass(frozen=True)
class FilmTarget:
    """What the words of one film's questions should attend to; p words point, q questions have times."""

    tokens: Tensor  # [p], places in the text
    visual: Tensor  # [p, t], 1 if a shown token shows what the word is about
    ends: Tensor  # [q], the last word of each question
    times: Tensor  # [q, 2 * NAMED], first and last frame of its actors, from 0 to 1; NaN if there are fewer


def name_end(words: list[str], actor: Actor) -> int | None:
    """The place of the last word of an actor's name in a question."""
    for place, (before, word) in enumerate(zip(["", *words], words, strict=False)):
        if word in (actor.shape, actor.char) and word or (word == "object" and before == actor.color):
            return place
    return None


def _shown(film: Film, glimpses: list[Glimpse], shows: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Which of the shown tokens show the glimpses, [t]; `shows` [t, actors + 1] of them are in `frames` [t]."""
    mask = np.zeros(len(frames), dtype=np.float32)
    for glimpse in glimpses:
        number = film.actors.index(glimpse.actor) + 1
        mask[(shows[:, number] > 0) & np.isin(frames, glimpse.frames)] = 1
    return mask


def film_target(
    film: Film, asked: list[Question], labels: Tensor, blocks: Tensor, shows: np.ndarray, frames: np.ndarray
) -> FilmTarget:
    """The targets of one film, from its row of `Packed`."""
    tokens, visual, ends, times = [], [], [], []
    for block, item in enumerate(asked):
        places = (blocks == block).nonzero()[:, 0]
        first = int(places[0])
        end = int(places[(labels[places] != IGNORED)][0])
        words = item.question.replace("?", " ?").split()
        pointed = [(end, list(item.about)), (end - 1, list(item.about))]
        pointed += [
            (first + place, [glimpse])
            for glimpse in item.about
            if (place := name_end(words, glimpse.actor)) is not None
        ]
        for token, glimpses in pointed:
            tokens.append(token)
            visual.append(_shown(film, glimpses, shows, frames))
        spans = [value / FRAMES for glimpse in item.about[:NAMED] for value in (glimpse.frames[0], glimpse.frames[-1])]
        ends.append(end)
        times.append(spans + [np.nan] * (2 * NAMED - len(spans)))
    return FilmTarget(
        torch.tensor(tokens), torch.from_numpy(np.stack(visual)), torch.tensor(ends), torch.tensor(times).float()
    )


class FilmPointer(nn.Module):
    """The read-outs of tokens and times from the hidden states of words."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.times = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * NAMED))

    def forward(self, states: tuple[Tensor, ...], targets: list[FilmTarget]) -> Tensor:
        pointing, timing = [], []
        for row, late, target in zip(self.norm(states[POINTING_LAYER]), states[TIMING_LAYER], targets, strict=True):
            text = len(PREFIX) + target.visual.shape[1] + 1  # after the newline
            query, key = self.query(row[text:][target.tokens]), self.key(row[len(PREFIX) : text - 1])
            scores = (query @ key.T / row.shape[1] ** 0.5).log_softmax(dim=1)
            share = target.visual / target.visual.sum(1, keepdim=True).clamp(min=1)
            pointing.append(-(share * scores).sum(1)[target.visual.any(1)])
            known = target.times.isfinite()
            timing.append(F.smooth_l1_loss(self.times(late[text:][target.ends])[known], target.times[known], beta=0.05))
        return torch.cat(pointing).mean() + 4 * torch.stack(timing).mean()


class Chronicle(nn.Module):
    """The read-outs of frame and history from the hidden states of visual tokens."""

    def __init__(self, width: int):
        super().__init__()
        self.frame = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, FRAMES))
        self.split = [count + 1 for count in HISTORY.values()]
        self.history = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, sum(self.split)))

    def forward(
        self, states: tuple[Tensor, ...], frames: Tensor, rows: Tensor, shown: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """Losses for tokens in `frames` [n, t] that show actors (`shown` [n, t]) with `rows` [n, t, columns]."""
        inside = slice(len(PREFIX), len(PREFIX) + frames.shape[1])
        guess = self.frame(states[FRAME_LAYER][:, inside])
        loss = F.cross_entropy(guess.flatten(0, 1), frames.flatten())
        figures = {"frame": float((guess.argmax(-1) == frames).float().mean())}
        parts = self.history(states[HISTORY_LAYER][:, inside][shown]).split(self.split, dim=-1)
        for name, part in zip(HISTORY, parts, strict=True):
            target = rows[..., COLUMNS.index(name)][shown]
            loss = loss + F.cross_entropy(part, target)
            figures[name] = float((part.argmax(-1) == target).float().mean())
        return loss, figures


def dominant(shows: np.ndarray) -> np.ndarray:
    """The actor that most of each token shows, 0 if it shows none: [..., actors + 1] -> [...]."""
    assert shows.shape[-1] == ACTORS + 1
    most = shows[..., 1:].argmax(-1) + 1
    return np.where(shows[..., 1:].any(-1), most, 0)


def film_targets(
    films: list[Film], asked: list[list[Question]], packed: Packed, shows: np.ndarray, frames: np.ndarray
) -> list[FilmTarget]:
    """The targets of a batch; `shows` [n, t, actors + 1] and `frames` [n, t] describe the shown tokens."""
    rows = zip(films, asked, packed.labels, packed.blocks, shows, frames, strict=True)
    return [film_target(*row) for row in rows]
