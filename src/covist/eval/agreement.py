"""How closely two answers of a model agree: what can be measured without a known right answer.

Greedy decoding derives each token from all tokens before it. After the first difference, two answers continue
different texts, and equal tokens mean little. So only tokens before the first difference count as agreement.
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
    """Whether two answers are equal, apart from leading and trailing spaces."""
    return one.strip() == other.strip()
