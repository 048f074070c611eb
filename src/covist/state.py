"""The composable visual state S = (H, P, m, G) of Eq. 1."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from covist.checks import require, require_finite, require_shape
from covist.errors import CovistError
from covist.grid import Grid

VALIDATE = False
"""Check every state when it is built. On in tests and while debugging; off in production, because it costs time."""


@dataclass(frozen=True, eq=False)
class VisualState:
    """The representatives of one image at one depth. All per-token fields share their first dimension K.

    features:  H, [K, d], in the model's dtype
    indices:   original token index inside the image, [K], increasing
    positions: P, original rotary positions, [K] or [K, axes]
    weights:   m >= 1, [K], float32
    affinity:  part of G: pairwise affinities s of Eq. 2 among the survivors, [K, K], float32; None for a method that
               never composes and does not compute them
    anchors:   part of G: surviving instruction anchors, [K], bool
    grid:      layout of the original tokens, which gives their coordinates
    companions: features that later decoder layers add (DeepStack): decoder layer -> [K, d], added to the hidden
               states before that layer; they are selected together with the features

    >>> import torch
    >>> from covist.grid import Grid
    >>> state = covist.VisualState.initial(torch.rand(6, 4), torch.arange(6), None, Grid(((2, 3),)))
    >>> state.restrict(torch.tensor([0, 4])).indices.tolist()
    [0, 4]
    """

    features: Tensor
    indices: Tensor
    positions: Tensor
    weights: Tensor
    affinity: Tensor | None
    anchors: Tensor
    grid: Grid
    companions: Mapping[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if VALIDATE:
            self.validate()

    @classmethod
    def initial(
        cls,
        features: Tensor,
        positions: Tensor,
        affinity: Tensor | None,
        grid: Grid,
        anchors: Tensor | None = None,
        companions: Mapping[int, Tensor] | None = None,
    ) -> "VisualState":
        """The uncompressed state: every token represents itself with weight one."""
        count, device = features.shape[0], features.device
        return cls(
            features=features,
            indices=torch.arange(count, device=device),
            positions=positions,
            weights=torch.ones(count, dtype=torch.float32, device=device),
            affinity=affinity,
            anchors=torch.zeros(count, dtype=torch.bool, device=device) if anchors is None else anchors,
            grid=grid,
            companions=companions or {},
        )

    @property
    def count(self) -> int:
        """K, the number of representatives."""
        return self.features.shape[0]

    @property
    def coordinates(self) -> Tensor:
        """Normalised image coordinates (x, y) of the representatives, [K, 2]; for a video (x, y, time), [K, 3]."""
        return self.grid.coordinates(self.indices.device)[self.indices]

    @property
    def places(self) -> Tensor:
        """Coordinates of the representatives for measuring distances, [K, 2 or 3]."""
        return self.grid.places(self.indices.device)[self.indices]

    def require_affinity(self, where: str) -> Tensor:
        """The affinities [K, K], for functions that cannot work without them."""
        if self.affinity is None:
            raise CovistError(f"{where}: the state has no affinities; build it with those of its selection")
        return self.affinity

    def restrict(self, kept: Tensor) -> "VisualState":
        """The state of the tokens `kept` [K'] only. All fields are indexed here and nowhere else."""
        return VisualState(
            features=self.features.index_select(0, kept),
            indices=self.indices.index_select(0, kept),
            positions=self.positions.index_select(0, kept),
            weights=self.weights.index_select(0, kept),
            affinity=None if self.affinity is None else self.affinity.index_select(0, kept).index_select(1, kept),
            anchors=self.anchors.index_select(0, kept),
            grid=self.grid,
            companions={layer: features.index_select(0, kept) for layer, features in self.companions.items()},
        )

    def with_features(self, features: Tensor) -> "VisualState":
        """The same representatives with the features of another depth."""
        return replace(self, features=features)

    def entering(self, layer: int, hidden: Tensor) -> "VisualState":
        """The same representatives with the hidden states [K, d] that enter a layer, its companions already added."""
        ahead = {later: features for later, features in self.companions.items() if later > layer}
        return replace(self, features=hidden, companions=ahead)

    def replace(self, **changes: Any) -> "VisualState":
        return replace(self, **changes)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "VisualState":
        """Move every tensor to `device`; `dtype` applies to features and companions only."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        moved: dict[str, Any] = {name: v.to(device) for name, v in values.items() if isinstance(v, Tensor)}
        moved["features"] = moved["features"].to(dtype)
        moved["companions"] = {layer: features.to(device, dtype) for layer, features in self.companions.items()}
        return replace(self, **moved)

    def validate(self) -> "VisualState":
        """Raise a `CovistError` unless this is a state in the sense of Eq. 1."""
        where, count = "VisualState", self.count
        require_shape(where, "features", self.features, (count, None))
        for layer, features in self.companions.items():
            require_shape(where, f"companions of layer {layer}", features, tuple(self.features.shape))
        for name in ("indices", "weights", "anchors"):
            require_shape(where, name, getattr(self, name), (count,))
        require_shape(where, "positions", self.positions, (count,) + (None,) * (self.positions.dim() - 1))
        require(self.positions.dim() in (1, 2), where, "positions must be [K] or [K, axes]")
        require(self.anchors.dtype == torch.bool, where, f"anchors must be bool, got {self.anchors.dtype}")
        floats = {"weights": self.weights}
        if self.affinity is not None:
            require_shape(where, "affinity", self.affinity, (count, count))
            floats["affinity"] = self.affinity
        for name, values in floats.items():
            require(values.dtype == torch.float32, where, f"{name} must be float32, got {values.dtype}")
        companions = {f"companions of layer {layer}": features for layer, features in self.companions.items()}
        require_finite(where, features=self.features, **companions, **floats)
        require(bool((self.weights >= 1).all()), where, "weights must be at least 1")
        require(bool((self.indices.diff() > 0).all()), where, "indices must increase strictly")
        inside = bool(((self.indices >= 0) & (self.indices < self.grid.size)).all())
        require(inside, where, f"indices must lie in the grid of {self.grid.size} tokens")
        return self
