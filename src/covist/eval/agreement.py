"""How far two answers of a model say the same: what can be measured where no right answer is known.

Greedy decoding writes token after token, each from all before it. Once two answers differ, what follows answers
different texts, and tokens that happen to be equal there mean little. So the share of tokens counts up to the first
difference and not beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence


def token_agreement(one: Sequence[int], other: Sequence[int]) -> float:
    """Tokens before the first difference / tokens of the longer answer, end token included; 1 if they are the same.

    >>> token_agreement([7, 8, 9, 2], [7, 8, 5, 5, 2])
    0.4
    """
    longer = max(len(one), len(other))
    same = next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    return (min(len(one), len(other)) if same is None else same) / longer if longer else 1.0


def same_answer(one: str, other: str) -> bool:
    """Whether two answers say the same, letter by letter but for outer space."""
    return one.strip() == other.strip()
