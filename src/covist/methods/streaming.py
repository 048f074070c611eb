"""What is left of a stream of frames: a state of bounded size, by CoViST-Max's composition over time.

The state is shown to a model as a short video of `moments`. A moment is one frame at first. When there are too many of
them, two neighbours become one, those whose length is least for their age: so the length of a moment is about a fixed
share of its age, and time is told the more coarsely the longer ago it is. Positions number moments, and stay as small
as those of a video of so many frames.

Every place of the video as it is shown, a cell of a moment, has a representative (`owner`); the weight of a
representative is the number of its places. Weights therefore sum to the size of that video, whatever the number of
frames: a background seen for hours does not outweigh everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from covist.contract.signals import ImageSignals
from covist.formulas.content import ContentCoverage
from covist.formulas.greedy import greedy_coverage
from covist.formulas.ops import partition
from covist.grid import Grid
from covist.methods.shared import cluster_means, joined

HIDDEN, EMBEDDING = "hidden", "embedding"
"""Names of contents; companions have the number of their decoder layer."""


@dataclass(frozen=True, eq=False)
class StreamState:
    """Representatives of a stream, and the video that they make.

    contents: what the representatives hold, [K, *] each: encoder features, embeddings, and companions
    home:     the place of each representative in the video, [K], increasing
    owner:    the representative of every place, [moments x cells]
    lengths:  how many frames each moment stands for, the oldest first
    shape:    rows and columns of a moment
    """

    contents: Mapping[str | int, Tensor]
    home: Tensor
    owner: Tensor
    lengths: tuple[int, ...]
    shape: tuple[int, int]

    @classmethod
    def of(cls, frame: ImageSignals) -> StreamState:
        """One frame, or as many as the model sees as one."""
        places = torch.arange(frame.grid.size, device=frame.span.device)
        contents: list[tuple[str | int, Tensor]] = [(HIDDEN, frame.hidden), (EMBEDDING, frame.embeddings)]
        contents += frame.companions.items()
        # float32, because the many small steps of a mean would be lost in half precision
        held = {name: values.detach().float() for name, values in contents}
        return cls(held, places, places, (1,), frame.grid.views[0])

    @property
    def count(self) -> int:
        """K, the number of representatives."""
        return self.home.shape[0]

    @property
    def cells(self) -> int:
        """Places of a moment."""
        return self.shape[0] * self.shape[1]

    @property
    def grid(self) -> Grid:
        return Grid((self.shape,) * len(self.lengths), "frames")

    @property
    def weights(self) -> Tensor:
        """How many places each representative stands for, [K]."""
        return self.owner.bincount(minlength=self.count).float()

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for values in (*self.contents.values(), self.home, self.owner))

    def followed_by(self, later: StreamState) -> StreamState:
        """The moments of both."""
        return replace(
            self,
            contents={name: torch.cat([values, later.contents[name]]) for name, values in self.contents.items()},
            home=torch.cat([self.home, later.home + self.owner.shape[0]]),
            owner=torch.cat([self.owner, later.owner + self.count]),
            lengths=self.lengths + later.lengths,
        )

    def within(self, moments: int) -> StreamState:
        """The same in at most so many moments."""
        return self if len(self.lengths) <= moments else self._merged(shortest_pair(self.lengths)).within(moments)

    def reduced(self, count: int, half_life: float) -> StreamState:
        """At most `count` representatives, chosen by coverage; it counts half as much after `half_life` moments."""
        if self.count <= count:
            return self
        coverage = self._coverage
        kept = self.chosen(coverage, count, half_life)
        cluster = joined(coverage.affinity.index_select(1, kept), kept)
        return self._composed(cluster, self.home[kept], cluster[self.owner], self.lengths)

    def chosen(self, coverage: ContentCoverage, count: int, half_life: float) -> Tensor:
        """The representatives that stay, [count], increasing."""
        age = len(self.lengths) - 1 - self.home // self.cells
        omega = coverage.omega * torch.exp2(-age / half_life)
        chosen = greedy_coverage(coverage.affinity, omega, self.home.new_empty(0), count)
        return partition(chosen, count)[1]

    def _merged(self, first: int) -> StreamState:
        """Two moments as one. It shows at each place what the longer one did, or the later of equally long ones."""
        after, lengths, moments = first + 1, self.lengths, self.owner.view(-1, self.cells)
        homes = self.home - self.cells * (self.home >= after * self.cells)
        affinity = self._coverage.affinity
        kept = _one_at_a_place(homes, affinity)
        cluster, home = joined(affinity.index_select(1, kept), kept), homes[kept]
        shown = first if lengths[first] > lengths[after] else after
        owner = cluster[torch.cat([moments[:first], moments[shown, None], moments[after + 1 :]]).flatten()]
        owner[home] = torch.arange(len(home), device=home.device)
        together = (*lengths[:first], lengths[first] + lengths[after], *lengths[after + 1 :])
        return self._composed(cluster, home, owner, together)

    @property
    def _coverage(self) -> ContentCoverage:
        return ContentCoverage.of(self.contents[HIDDEN], sizes=self.weights)

    def _composed(self, cluster: Tensor, home: Tensor, owner: Tensor, lengths: tuple[int, ...]) -> StreamState:
        """Representatives whose contents are means over the clusters [K] of those before, by their weights."""
        weights = self.weights
        contents = {
            name: cluster_means(values, cluster, len(home), weights)[0] for name, values in self.contents.items()
        }
        return replace(self, contents=contents, home=home, owner=owner, lengths=lengths)

    # -- as a video in a prompt ----------------------------------------------------------------------------------------

    def placed(self, name: str | int) -> Tensor:
        """A content at its places [moments x cells, *], zero at all others."""
        values = self.contents[name]
        return values.new_zeros(self.owner.shape[0], values.shape[1]).index_copy_(0, self.home, values)

    def signals(self, markers: Tensor) -> ImageSignals:
        """The video as the engine finds it in a prompt; `markers` [n, d] end every video of the model."""
        span = torch.cat([self.placed(EMBEDDING).to(markers), markers])
        count = self.owner.shape[0]
        return ImageSignals(
            grid=self.grid,
            span=span,
            content=torch.arange(len(span), device=span.device) < count,
            read_attention=lambda: torch.full((1, 1, count), 1 / count, device=span.device),
            read_keys=lambda: self.placed(HIDDEN),
            read_hidden=lambda: self.placed(HIDDEN),
            pack=torch.arange(count, device=span.device),
            project=lambda features: features,
            companions={layer: self.placed(layer) for layer in self.contents if isinstance(layer, int)},
            owner=self.home[self.owner],
        )


def _one_at_a_place(homes: Tensor, affinity: Tensor) -> Tensor:
    """Of two representatives [K] that have come to one place, the one less like any other, in the order of places.

    Their mean would be like neither: a word on the screen would fade into the wall that was there before and after it.
    """
    order = homes.argsort(stable=True)
    again = (homes[order].diff() == 0).nonzero()[:, 0]
    earlier, later = order[again], order[again + 1]
    likeness = affinity.clone().fill_diagonal_(0).amax(1)
    dropped = torch.where(likeness[earlier] >= likeness[later], earlier, later)
    return order[~torch.isin(order, dropped)]


def shortest_pair(lengths: Sequence[int]) -> int:
    """The first of the two neighbouring moments that are shortest together for their age, the older of equal ones.

    >>> shortest_pair([1, 1, 1, 1]), shortest_pair([2, 1, 1, 1]), shortest_pair([4, 2, 1, 1])
    (0, 1, 1)
    """
    ends = list(accumulate(lengths))
    pairs = range(len(lengths) - 1)
    together = [lengths[first] + lengths[first + 1] for first in pairs]
    ages = [ends[-1] - ends[first + 1] + together[first] / 2 for first in pairs]  # of their middle
    return min(pairs, key=lambda first: together[first] / ages[first])
