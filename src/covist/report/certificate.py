"""How well the kept tokens represent an image, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Certificate:
    """How well the first reduction of an image represents it.

    kept, tokens: number of tokens after and before the reduction
    coverage:     share of the evidence that the kept tokens cover (Eq. 5 over that of all tokens)
    withheld:     share of the evidence that the limit on weights keeps out of attention (Eq. 15)
    missed:       the insufficient coverage of a reduction that was rejected, so that all tokens were kept; else None

    >>> print(Certificate(kept=41, tokens=576, coverage=0.979, withheld=0.0))
    kept 41 of 576 tokens; what they leave out carries 2.1 % of the evidence
    """

    kept: int
    tokens: int
    coverage: float
    withheld: float
    missed: float | None = None

    def __str__(self) -> str:
        if self.missed is not None:
            left_out = _percent(1 - self.missed)
            return f"kept all {self.tokens} tokens; compressed, {left_out} of the evidence would be left out"
        if self.kept == self.tokens:
            return f"kept all {self.tokens} tokens"
        kept = f"kept {self.kept} of {self.tokens} tokens"
        left_out, withheld = _percent(1 - self.coverage), _percent(self.withheld)
        limited = f", and the limit on weights withholds {withheld}" if self.withheld > 0 else ""
        return f"{kept}; what they leave out carries {left_out} of the evidence{limited}"

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON, and the sentence."""
        return {
            "kept": self.kept,
            "tokens": self.tokens,
            "coverage": self.coverage,
            "withheld": self.withheld,
            "missed": self.missed,
            "words": str(self),
        }


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
