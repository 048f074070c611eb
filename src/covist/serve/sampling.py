"""The next token of every row of a batch, drawn as the row's request says."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LogitsProcessor

SEEDS = 2**64


@dataclass(frozen=True)
class Sampling:
    """How one answer is sampled; temperature 0 takes the likeliest token."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    def generator(self) -> torch.Generator:
        seed = secrets.randbits(63) if self.seed is None else self.seed % SEEDS
        return torch.Generator().manual_seed(seed)


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """A token from logits [vocabulary], by temperature and nucleus (the fewest tokens with a mass of `top_p`).

    Of equally likely tokens, which are common in half precision, the nucleus takes the first, as greedy decoding does;
    transformers' `TopPLogitsWarper` takes the last.
    """
    scaled = logits.double().cpu() / sampling.temperature
    probabilities, tokens = torch.softmax(scaled, -1).sort(descending=True, stable=True)  # both [vocabulary]
    mass = probabilities.cumsum(-1)
    kept = int((mass < sampling.top_p).sum()) + 1
    mass = mass[:kept]
    point = torch.rand(1, generator=generator, dtype=torch.float64) * mass[-1]
    place = int(torch.searchsorted(mass, point, right=True))
    return int(tokens[min(place, len(mass) - 1)])


class Drawing:
    """The tokens of one answer: those that it has, and the generator of the next ones."""

    def __init__(self, sampling: Sampling):
        self.sampling = sampling
        self.generator = sampling.generator()
        self.tokens: list[int] = []


class RowSampler(LogitsProcessor):
    """Leaves each sampled row only the token drawn for it, so that a greedy `generate` takes that token.

    Each row has its own generator: its tokens depend on its seed and on no other row. A row that has tokens from an
    earlier attempt, whose batch failed, gets them again first.
    """

    def __init__(self, rows: Sequence[Drawing]):
        self._rows = [(index, row, tuple(row.tokens)) for index, row in enumerate(rows)]
        self._rows = [one for one in self._rows if one[2] or not one[1].sampling.is_greedy]
        self._step = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step, self._step = self._step, self._step + 1
        if not self._rows:
            return scores
        scores = scores.clone()  # [batch, vocabulary]
        for index, row, known in self._rows:
            if step < len(known):
                token = known[step]
            elif row.sampling.is_greedy:
                continue
            else:
                token = draw(scores[index], row.sampling, row.generator)
            scores[index] = -torch.inf
            scores[index, token] = 0.0
        return scores
