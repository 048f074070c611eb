"""How many tokens an image needs: the smallest count whose coverage (Eq. 5) reaches a level.

The selections of two counts are not nested, because core, anchors and reserve get places in proportion to the count.
So the tokens are ordered such that, for every k, the first k tokens contain as many core, anchor and reserve tokens as
a selection of k. One walk along this order gives the coverage of all counts.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor

from covist.checks import require
from covist.formulas.anchors import anchor_places, core_size, free_places
from covist.formulas.greedy import Claim, Search
from covist.formulas.ops import ranking, round_half_up
from covist.formulas.selection import Selection, WeighedImage

PATIENCE = 4
"""After this many counts beyond the one that the order suggests, check whether the largest count reaches the level."""


@torch.no_grad()
def smallest_selection(image: WeighedImage, level: float, least: int, most: int) -> Selection:
    """The selection of the smallest count from `least` to `most` whose coverage reaches `level`, else that of `most`.

    The order suggests a count. Its selection hardly differs from the order; if it misses the level nevertheless, the
    next counts are tried.
    """
    start = len(smallest_prefix(order(image, most), level, least, most))
    chosen = image.select(start)
    if start == most or _reaches(chosen, level):
        return chosen
    for count in range(start + 1, most):
        if count == start + PATIENCE and not _reaches(image.select(most), level):
            break
        chosen = image.select(count)
        if _reaches(chosen, level):
            return chosen
    return image.select(most)


def smallest_prefix(growing: Iterable[tuple[int, float]], level: float, least: int, most: int) -> list[int]:
    """The first `least` to `most` tokens of an order of (token, coverage up to it), as few as reach `level`."""
    require(1 <= least <= most, "smallest_prefix", f"1 <= {least} <= {most} must hold")
    tokens: list[int] = []
    for token, coverage in islice(growing, most):
        tokens.append(token)
        if len(tokens) >= least and coverage >= level:
            break
    return tokens


def order(image: WeighedImage, most: int) -> Iterator[tuple[int, float]]:
    """Tokens one by one, each with the coverage of the tokens up to it, as a share of what all tokens cover.

    If the next length gives core, anchors or reserve (in this order) a further place, that place is filled; otherwise
    the token that adds most coverage comes next. Weights and anchors are those of a selection of `most`.
    """
    places = _Places(image, most)
    for token, coverage in greedy_order(image.affinity, image.omega(most), places.claim):
        places.taken.add(token)
        yield token, coverage


def greedy_order(affinity: Tensor, omega: Tensor, claim: Claim | None = None) -> Iterator[tuple[int, float]]:
    """Tokens in the order in which greedy coverage takes them, each with the coverage (share) of those up to it.

    The walk runs on the host, which decides where it ends, so affinities [N, N] and weights [N] are moved there.
    """
    affinity, omega = affinity.cpu(), omega.cpu().double()
    whole = float(torch.dot(omega, affinity.diagonal().double().square()))
    for token, largest in Search(affinity, omega, torch.empty(0, dtype=torch.long)).walk(claim):
        covered = float(torch.dot(omega, largest.double().square()))
        yield token, min(covered / whole, 1.0) if whole > 0 else 1.0


class _Places:
    """Decides which core, anchor or reserve token must fill the next place of the order."""

    def __init__(self, image: WeighedImage, most: int):
        self._concentration, self._config = image.concentration, image.config
        self._core: list[int] = ranking(image.maps["attention"]).tolist()
        self._anchors: list[int] = image.anchors(most).tolist()
        self._reserved = 0
        self.taken: set[int] = set()

    def claim(self, before: int, largest: Tensor) -> int | None:
        """The token that must come after `before` others, or None; `largest` [N]: largest affinity to those."""
        length = before + 1
        protected = next((token for token in self._protected(length) if token not in self.taken), None)
        if protected is not None or self._reserved == round_half_up(self._config.reserve * length):
            return protected
        self._reserved += 1
        return int(largest.index_fill(0, torch.tensor([*self.taken], dtype=torch.long), torch.inf).argmin())

    def _protected(self, length: int) -> list[int]:
        core = self._core[: core_size(length, self._concentration, self._config)]
        anchors = self._anchors[: anchor_places(length, self._config)]
        protected = {**dict.fromkeys(core), **dict.fromkeys(anchors)}  # core first, each token once
        return [*protected][: max(0, length - free_places(length))]


def _reaches(selection: Selection, level: float) -> bool:
    return selection.coverage is not None and float(selection.coverage) >= level
