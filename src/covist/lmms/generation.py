"""`generation_kwargs` of a task: how its answers are generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covist.errors import CovistError
from covist.request.decoding import greedy

MAX_NEW_TOKENS = 1024
"""If a task does not set it; the same as for lmms-eval's own models."""
_LENGTH = {"until", "max_new_tokens", "max_gen_toks", "repetition_penalty"}
_SAMPLING = {"do_sample", "temperature", "top_p", "top_k", "num_beams"}


@dataclass(frozen=True)
class Generation:
    """How answers are generated: arguments of `generate`, and the texts that end an answer.

    >>> Generation.of({"max_new_tokens": 16, "temperature": 0, "until": ["\\n"]}).cut("yes\\nno")
    'yes'
    """

    options: tuple[tuple[str, Any], ...]
    until: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()  # what a task sets and covist does not read

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Generation:
        if int(given.get("num_return_sequences") or 1) > 1:
            raise CovistError("num_return_sequences: covist gives one answer per request; use --repeats")
        longest = int(given.get("max_new_tokens") or given.get("max_gen_toks") or MAX_NEW_TOKENS)
        penalty = given.get("repetition_penalty")
        own = _sampling(given) if penalty is None else {**_sampling(given), "repetition_penalty": float(penalty)}
        options = greedy(longest, **own)
        return cls(tuple(options.items()), _stops(given.get("until")), tuple(sorted(set(given) - _LENGTH - _SAMPLING)))

    @property
    def beams(self) -> int:
        """Rows that each prompt takes in the batch."""
        return dict(self.options)["num_beams"]

    def cut(self, text: str) -> str:
        """An answer up to the first of the texts that end it."""
        ends = [text.find(stop) for stop in self.until]
        return text[: min((end for end in ends if end >= 0), default=len(text))].strip()


def _sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    """Greedy, unless a task sets a temperature, or sampling without a temperature."""
    named = given.get("temperature")
    temperature = float(named if named is not None else bool(given.get("do_sample")))
    beams = int(given.get("num_beams") or 1)
    if temperature == 0 or given.get("do_sample") is False:
        return {"num_beams": beams}
    limits = {name: given.get(name) for name in ("top_p", "top_k")}
    return {"do_sample": True, "num_beams": beams, "temperature": temperature, **limits}


def _stops(until: str | Sequence[str] | None) -> tuple[str, ...]:
    stops = (until,) if isinstance(until, str) else tuple(until or ())
    return tuple(stop for stop in stops if stop)
