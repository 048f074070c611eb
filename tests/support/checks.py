"""How far a compressed model is from what it should be: the largest difference of logits, as a share of the largest."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from covist.methods.create import create_method
from support.leftovers import changed, fingerprint
from support.literal import Chosen, Literal
from support.requests import greedy, step_logits

Compress = Callable[..., Any]
STEPS, TOLERANCE = 6, 1e-5


class Subject(ABC):
    """A model and prompts for it."""

    model: Any
    tokens: int
    """Visual tokens of its largest image."""
    budget: int
    suppressed: list[int]
    """Tokens that are never generated: placeholders, and padding, which a later turn would take for its own."""

    @abstractmethod
    def prompt(self, images: int = 1) -> dict[str, Tensor]:
        """Inputs of one prompt."""

    @abstractmethod
    def batch(self) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
        """Inputs of prompts of different lengths and numbers of images, padded on the left; and of each alone."""

    @abstractmethod
    def question(self) -> Tensor:
        """[1, n] ids of a later turn."""

    @abstractmethod
    def longer(self, inputs: dict[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
        """The same prompt with the ids [1, n] that it and what followed have together."""

    @abstractmethod
    def is_image(self, ids: Tensor) -> Tensor:
        """Which of the ids [n] are visual tokens."""

    def steps(self, inputs: dict[str, Tensor], steps: int = STEPS, **options: Any) -> tuple[Tensor, Tensor]:
        """Generated tokens [batch, steps] and their logits [steps, batch, vocabulary]."""
        output = greedy(self.model, inputs, steps, suppress_tokens=self.suppressed, **options)
        return output.sequences[:, -steps:], step_logits(output)


def apart(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> float:
    """Of the generated tokens and logits of two runs, until their tokens differ: after a tie, each goes its own way."""
    differ = (one[0] != other[0]).int()  # [batch, steps]
    same_before = (differ.cumsum(1) - differ == 0).T[..., None]  # [steps, batch, 1]
    return largest(one[1] * same_before, other[1] * same_before)


def largest(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


def from_the_plain_model(compress: Compress, subject: Subject, method: str) -> float:
    inputs = subject.prompt()
    plain = subject.steps(inputs)
    compress(subject.model, budget=subject.tokens, method=method)
    return apart(subject.steps(inputs), plain)


def from_the_literal_reference(
    compress: Compress,
    subject: Subject,
    method: str,
    images: int = 1,
    budget: int | None = None,
    inputs: dict[str, Tensor] | None = None,
) -> float:
    """For a prompt with so many images, or for the given one."""
    inputs, chosen_method = inputs or subject.prompt(images), create_method(method)
    if chosen_method.tracker is not None:
        chosen_method.tracker.freeze(0.05)
    handle = compress(subject.model, budget=budget or subject.budget, method=chosen_method)
    family, rule = handle.settings.family, handle.settings.rule
    with Chosen.by(chosen_method) as chosen:
        tokens, logits = subject.steps(inputs)
    last = max(chosen.states)
    assert all(
        state.count < len(one.content_rows) for one, state in zip(chosen.signals, chosen.states[last], strict=True)
    )
    handle.remove()
    renumbered = chosen_method.positions == "reindex"
    literal = Literal(subject.model, family.decoder, rule, renumbered, family.companion_arguments)
    differences = []
    for step, found in enumerate(logits):
        ids = torch.cat([inputs["input_ids"], tokens[:, :step]], dim=1)
        expected = literal.logits(subject.longer(inputs, ids), subject.is_image(ids[0]), chosen)
        differences.append(largest(found[0], expected))
    return max(differences)


def from_generation_without_a_cache(compress: Compress, subject: Subject, method: str) -> float:
    compress(subject.model, budget=subject.budget, method=method)
    return of_the_cache(subject)


def of_the_cache(subject: Subject) -> float:
    inputs = subject.prompt()
    return apart(subject.steps(inputs), subject.steps(inputs, use_cache=False))


def from_the_prompts_alone(compress: Compress, subject: Subject, method: str) -> float:
    compress(subject.model, budget=subject.budget, method=method)
    return of_the_batch(subject)


def of_the_batch(subject: Subject) -> float:
    together, alone = subject.batch()
    tokens, logits = subject.steps(together)
    return max(
        apart((tokens[index : index + 1], logits[:, index : index + 1]), subject.steps(inputs))
        for index, inputs in enumerate(alone)
    )


def from_one_conversation(compress: Compress, subject: Subject, method: str) -> float:
    """A turn of text on the kept cache, against the same tokens in one call without a cache."""
    compress(subject.model, budget=subject.budget, method=method)
    return of_the_turn(subject)


def of_the_turn(subject: Subject) -> float:
    inputs = subject.prompt()
    first = greedy(subject.model, inputs, 3, suppress_tokens=subject.suppressed)
    ids = torch.cat([first.sequences, subject.question()], dim=1)
    later = _continued(subject, ids, first.past_key_values)
    whole = subject.longer(inputs, later.sequences[:, :-1])
    return largest(step_logits(later)[:, 0], subject.model(**whole, use_cache=False).logits[0, -3:])


def _continued(subject: Subject, ids: Tensor, cache: Any) -> Any:
    return greedy(subject.model, {"input_ids": ids}, 3, past_key_values=cache, suppress_tokens=subject.suppressed)


def scores_of_beams(compress: Compress, subject: Subject, method: str) -> float:
    """Scores of beams, against the same tokens in one call without a cache."""
    compress(subject.model, budget=subject.budget, method=method)
    return of_the_beams(subject)


def of_the_beams(subject: Subject) -> float:
    inputs = subject.prompt()
    length, options = inputs["input_ids"].shape[1], {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.0}
    beams = greedy(subject.model, inputs, 4, output_scores=True, suppress_tokens=subject.suppressed, **options)
    differences = []
    for sequence, score in zip(beams.sequences, beams.sequences_scores, strict=True):
        logits = subject.model(**subject.longer(inputs, sequence[None]), use_cache=False).logits[0, length - 1 : -1]
        own = logits.log_softmax(-1).gather(1, sequence[length:, None]).sum()
        differences.append(float((score - own).abs()))
    return max(differences)


def from_itself_before(compress: Compress, subject: Subject, method: str) -> float:
    inputs, before = subject.prompt(), fingerprint(subject.model)
    plain, used = subject.steps(inputs), fingerprint(subject.model)
    handle = compress(subject.model, budget=subject.budget, method=method)
    subject.steps(inputs)
    handle.remove()
    # Plain calls leave something too, such as the last shift of positions.
    assert changed(used, fingerprint(subject.model)) <= changed(before, used)
    return apart(subject.steps(inputs), plain)


def in_bfloat16(compress: Compress, subject: Subject, method: str) -> Tensor:
    """Logits of a padded batch of a model in half precision."""
    half = copy.copy(subject)
    half.model = copy.deepcopy(subject.model).to(torch.bfloat16)
    compress(half.model, budget=subject.budget, method=method)
    inputs = {
        name: value.to(torch.bfloat16) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in subject.batch()[0].items()
    }
    return half.steps(inputs, 3)[1]
