"""The next token of every row of a batch, drawn as the row's request says."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LogitsProcessor

from covist.serve.constraint import Constraint
from covist.serve.errors import Refusal

SEEDS = 2**64


@dataclass(frozen=True)
class Sampling:
    """How one answer is sampled; temperature 0 takes the likeliest token.

    top_k: draw from so many of the likeliest tokens; None for all
    min_p: draw from tokens that are at least so likely, as a share of the likeliest one
    repetition_penalty: divides the scores of tokens in the prompt and in the answer
    frequency_penalty, presence_penalty: subtracted from the scores of tokens in the answer, for every time or once
    logprobs: how many of the likeliest tokens are told beside the one that was taken; None tells nothing
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    top_k: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logprobs: int | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def is_plain(self) -> bool:
        """Whether it is what a greedy `generate` does by itself."""
        penalties = self.repetition_penalty != 1 or self.frequency_penalty or self.presence_penalty
        return self.is_greedy and not penalties and self.logprobs is None

    def generator(self) -> torch.Generator:
        seed = secrets.randbits(63) if self.seed is None else self.seed % SEEDS
        return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Chances:
    """How likely the model found a token, and the likeliest ones in its place, as logarithms."""

    taken: float
    likeliest: tuple[tuple[int, float], ...]


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """A token from logits [vocabulary], by temperature, `top_k`, nucleus and `min_p`, in this order.

    The nucleus is the fewest tokens with a mass of `top_p`. Of equally likely tokens, which are common in half
    precision, it takes the first, as greedy decoding does; transformers' `TopPLogitsWarper` takes the last.
    """
    scaled = logits.double().cpu() / sampling.temperature
    probabilities, tokens = torch.softmax(scaled, -1).sort(descending=True, stable=True)  # both [vocabulary]
    probabilities = probabilities[: sampling.top_k]
    mass = probabilities.cumsum(-1)
    nucleus = int((mass < sampling.top_p * mass[-1]).sum()) + 1
    likely = int((probabilities >= sampling.min_p * probabilities[0]).sum())
    mass = mass[: min(nucleus, likely)]
    point = torch.rand(1, generator=generator, dtype=torch.float64) * mass[-1]
    place = int(torch.searchsorted(mass, point, right=True))
    return int(tokens[min(place, len(mass) - 1)])


def penalised(logits: Tensor, sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    """Logits [vocabulary] with the penalties for the tokens so far."""
    logits = logits.clone()
    if sampling.repetition_penalty != 1:
        seen = torch.tensor(sorted({*prompt, *answer}), dtype=torch.long)
        scores = logits[seen]
        factor = sampling.repetition_penalty
        logits[seen] = torch.where(scores < 0, scores * factor, scores / factor)
    if answer:
        tokens, counts = torch.tensor(answer).unique(return_counts=True)
        logits[tokens] -= sampling.presence_penalty + sampling.frequency_penalty * counts
    return logits


class Drawing:
    """The tokens of one answer: those that it has, and how the next one is drawn.

    prompt: the row's own tokens, without the padding of its batch
    constraint: what the answer must look like
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int] = (), constraint: Constraint | None = None):
        self._sampling, self._prompt, self._constraint = sampling, prompt, constraint
        self._generator = sampling.generator()
        self.tokens: list[int] = []
        self.chances: Chances | None = None
        """Of the token that was drawn last, if the request asks for them."""
        self.refusal: Refusal | None = None
        """Why no token can follow."""

    @property
    def is_plain(self) -> bool:
        return self._sampling.is_plain and self._constraint is None

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow."""
        return self._constraint is not None and self._constraint.is_complete

    def draw(self, logits: Tensor) -> int:
        """The next token, from the model's logits [vocabulary]."""
        logits = logits.double().cpu()
        scores = penalised(logits, self._sampling, self._prompt, self.tokens)
        if self._constraint is not None:
            try:
                scores = self._constraint.allowed(scores)
            except Refusal as refusal:
                self.refusal = refusal  # of this row alone: its neighbours go on
        is_greedy = self._sampling.is_greedy
        token = int(scores.argmax()) if is_greedy else draw(scores, self._sampling, self._generator)
        if self._sampling.logprobs is not None:
            self.chances = _chances(logits, token, self._sampling.logprobs)
        return token

    def add(self, token: int) -> None:
        """Note the token that was taken."""
        self.tokens.append(token)
        if self._constraint is not None:
            self._constraint.add(token)


class RowSampler(LogitsProcessor):
    """Leaves each row only the token drawn for it, so that a greedy `generate` takes that token.

    Each row has its own generator, penalties and constraint: its tokens depend on no other row. A row that has tokens
    from an earlier attempt, whose batch failed, gets them again first.
    """

    def __init__(self, rows: Sequence[Drawing]):
        self._rows = [(index, row, tuple(row.tokens)) for index, row in enumerate(rows)]
        self._rows = [one for one in self._rows if one[2] or not one[1].is_plain]
        self._step = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step, self._step = self._step, self._step + 1
        if not self._rows:
            return scores
        scores = scores.clone()  # [batch, vocabulary]
        for index, row, known in self._rows:
            if step < len(known):
                token = known[step]
            elif row.is_plain:
                continue
            else:
                token = row.draw(scores[index])
            scores[index] = -torch.inf
            scores[index, token] = 0.0
        return scores


def _chances(logits: Tensor, token: int, count: int) -> Chances:
    """From the model's own logits [vocabulary], before temperature, penalties and constraints."""
    logarithms = logits.log_softmax(-1)
    likeliest = logarithms.topk(min(count, len(logarithms)))
    pairs = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    return Chances(float(logarithms[token]), tuple(pairs))
