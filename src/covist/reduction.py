"""One reduction of a state: what every method returns, and what reports show."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from covist.state import VisualState


@dataclass(frozen=True, eq=False)
class Reduction:
    """The new state, and what became of the tokens of the state before it.

    state:      the representatives
    assignment: for each token before, the place of its representative in the new state, [tokens before]; None if tokens
                were dropped without one
    withheld:   evidence-weighted contribution withheld by the weight limit, Eq. 15
    coverage:   of all tokens by the kept ones, Eq. 5; None if the method does not measure it
    covered:    how well the kept tokens cover each token before, from 0 to 1, [tokens before]; None if not measured
    maps:       evidence over the tokens before, by name
    captions:   what bright means in a map, by the map's name
    seconds:    time for "selection" and "composition"

    >>> class HalfOfThem(covist.Method):
    ...     name = "half-of-them"
    ...     def reduce(self, state, view: covist.DecoderView, count):
    ...         half = view.visual.argsort()[: state.count // 2]
    ...         return covist.Reduction(state.restrict(half))
    """

    state: VisualState
    assignment: Tensor | None = None
    withheld: float | Tensor = 0.0  # [], on the device until somebody reads it
    coverage: float | Tensor | None = None
    covered: Tensor | None = None
    maps: dict[str, Tensor] = field(default_factory=dict)
    captions: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
