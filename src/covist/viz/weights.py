"""How weights look, in figures and on pages."""

from __future__ import annotations

import numpy as np

from covist.viz.theme import LIGHT, Theme, blend

WIDEST_DISC = 24.0  # points, so that it fits into the line of the legend
NARROWEST_DISC = 1.7  # points


class WeightScale:
    """The colours of the weights, from 1 (a token stands for itself) to the largest."""

    def __init__(self, largest: float, theme: Theme = LIGHT):
        self._plain = largest <= 1
        self.largest, self.theme = max(largest, 2.0), theme

    @property
    def examples(self) -> list[float]:
        """Round weights for a legend; only 1 if no token stands for another."""
        if self._plain:
            return [1.0]
        return [1.0, *sorted({float(round((1 + self.largest) / 2)), float(round(self.largest))} - {1.0})]

    def colours(self, weights: np.ndarray) -> np.ndarray:
        """[n] -> [n, 3], from 0 to 1."""
        return blend(self.theme.weights, (weights - 1) / (self.largest - 1))

    def areas(self, weights: np.ndarray, cell_points: float) -> np.ndarray:
        """Areas of discs in square points, proportional to the weight: half a cell wide for a weight of one, or less if
        the largest would otherwise hide its neighbours or the legend, but never too small to be seen."""
        widest = min(0.55 * cell_points * self.largest**0.5, 2.5 * cell_points, WIDEST_DISC)
        return np.maximum(widest**2 * weights / self.largest, NARROWEST_DISC**2)
