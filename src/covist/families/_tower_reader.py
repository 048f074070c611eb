"""Queries, keys and values of any vision tower, read where it calls transformers' attention interface.

Towers hand their queries and keys to the same interface as decoders do, after norms and rotation. A function of
covist's, registered around the backend, sees them there, whatever the class of the tower is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from covist.backends import Attended, Renamed, attention_of, register
from covist.contract.family import Removable
from covist.families.hooks import Scratch
from covist.families.patch_attention import PatchAttention

PREFIX = "covist-tower:"
_TAPS: WeakKeyDictionary[nn.Module, list[TowerTap]] = WeakKeyDictionary()
"""Attention module -> the taps that read it."""

KEY_SOURCES = ("k_norm", "norm_k", "key_norm", "k_proj", "key", "wk", "k", "qkv", "wqkv", "qkv_proj", "in_proj")
"""Names of the modules of a tower's attention that may make its keys, the one nearest to the attention first."""


@dataclass(frozen=True)
class _Seen:
    """One call of the attention function: [entries, heads, patches, width] each."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    shown: Tensor | None  # [entries, patches] bool, False for padding
    lengths: tuple[int, ...] | None  # of the images that a kernel was given as one row


class AttentionReader(Renamed):
    """Routes the attention of the modules that taps read through a function that shows it to them."""

    def __init__(self, taps: Sequence[TowerTap]):
        self._taps = taps
        for tap in taps:
            _TAPS.setdefault(tap.attention, []).append(tap)
        super().__init__((tap.attention.config for tap in taps), PREFIX, _register)

    def remove(self) -> None:
        super().remove()
        for tap in self._taps:
            if tap in _TAPS.get(tap.attention, ()):
                _TAPS[tap.attention].remove(tap)


def _register(backend: str) -> None:
    register(PREFIX + backend, partial(_attend, backend), ALL_MASK_ATTENTION_FUNCTIONS.get(backend))


def _attend(
    backend: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    **options: Any,
) -> Attended:
    for tap in _TAPS.get(module, ()):
        tap.see(query, key, value, attention_mask, options)
    return attention_of(module, backend)(query, key, value, attention_mask, **options)


class TowerTap:
    """Keeps what one attention module of a tower computes until it is taken; nothing while it is not requested."""

    def __init__(self, attention: Any, is_requested: Callable[[], bool] | None = None):
        self.attention = attention
        self._scratch = Scratch(is_requested)
        sources = (getattr(attention, name, None) for name in KEY_SOURCES)
        self.handles: list[Removable] = [
            source.register_forward_hook(partial(self._keep_projection, place))
            for place, source in enumerate(sources)
            if isinstance(source, nn.Module)
        ]

    def _keep_projection(self, place: int, module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            self._scratch.leave(f"projection {place}", output.detach())

    def see(self, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: dict[str, Any]) -> None:
        """One call of the attention function."""
        if query.shape[2] != key.shape[2]:
            return  # learned queries that read an image, not its patches
        if key.shape[1] != query.shape[1]:
            group = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        scale = options.get("scaling")
        adapted = query if scale is None else query * (float(scale) * query.shape[-1] ** 0.5)
        self._scratch.add(
            "calls",
            _Seen(adapted.detach(), key.detach(), value.detach(), _shown(mask), _lengths(mask, options)),
        )

    def take(self) -> list[PatchAttention]:
        """One for each entry of the tower's batch, or for each image of a packed row; empty if nothing was seen."""
        left = self._scratch.take()
        calls: list[_Seen] = left.pop("calls", [])
        if not calls:
            return []
        before = _before_rotation(calls, [left[name] for name in sorted(left, key=_place)])
        return [entry for call, plain in zip(calls, before, strict=True) for entry in _entries(call, plain)]


def _place(name: str) -> int:
    return int(name.rsplit(" ", 1)[1])


def _shown(mask: Any) -> Tensor | None:
    """[entries, patches] bool: the patches that any other one sees; None without a mask of tensor form."""
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        return None
    visible = mask if mask.dtype == torch.bool else mask >= 0
    shown = visible.any(dim=1).any(dim=1)
    return None if bool(shown.all()) else shown


def _lengths(mask: Any, options: dict[str, Any]) -> tuple[int, ...] | None:
    """Of images in one row that do not see each other, as a kernel was told or as the mask shows."""
    ends = options.get("cu_seq_lens_q")
    if ends is not None:
        return tuple(ends.diff().tolist())
    if not isinstance(mask, Tensor) or mask.ndim != 4 or len(mask) != 1:
        return None
    seen = mask[0, 0]  # [patches, patches]; patches of one image see the same
    starts = (seen[1:] != seen[:-1]).any(-1).nonzero().squeeze(1) + 1
    bounds = [0, *starts.tolist(), len(seen)]
    return tuple(end - start for start, end in pairwise(bounds)) if len(starts) else None


def _entries(call: _Seen, keys: Tensor) -> Iterable[PatchAttention]:
    """`keys` [entries, patches, heads, width] before rotation."""
    for number in range(len(call.queries)):
        turned_queries, turned_keys, values = (
            states[number].transpose(0, 1) for states in (call.queries, call.keys, call.values)
        )  # [patches, heads, width]
        shown = None if call.shown is None or bool(call.shown[number].all()) else call.shown[number]
        entry = PatchAttention(turned_queries, keys[number], None, values, turned_keys, shown)
        lengths = call.lengths or (len(turned_keys),)
        yield from (
            entry.of(slice(end - length, end)) for end, length in zip(accumulate(lengths), lengths, strict=True)
        )


def _before_rotation(calls: list[_Seen], projections: list[Tensor]) -> list[Tensor]:
    """The keys of each call before rotation, [entries, patches, heads, width].

    A rotation changes no length, so a projection with the lengths of the keys holds the keys before rotation. Without
    one, the rotated keys stand in.
    """
    turned = [call.keys.transpose(1, 2) for call in calls]
    sizes = [keys.shape[0] * keys.shape[1] for keys in turned]
    heads, width = turned[0].shape[2:]
    lengths = torch.cat([keys.reshape(-1, heads, width) for keys in turned]).float().norm(dim=-1)
    for projection in projections:
        for found in _candidates(projection, sum(sizes), heads, width):
            if torch.allclose(found.float().norm(dim=-1), lengths, rtol=1e-2, atol=1e-3 * float(lengths.max())):
                parts = found.split(sizes)
                return [part.reshape(keys.shape) for part, keys in zip(parts, turned, strict=True)]
    return turned


def _candidates(projection: Tensor, patches: int, heads: int, width: int) -> Iterable[Tensor]:
    """What may be the keys [patches, heads, width] of a projection of any common form."""
    if projection.numel() == patches * heads * width:
        yield projection.reshape(patches, heads, width)
        if projection.ndim == 4 and projection.shape[1] == heads:
            yield projection.transpose(1, 2).reshape(patches, heads, width)
    elif projection.numel() == 3 * patches * heads * width:
        yield projection.reshape(patches, 3, heads, width)[:, 1]
        yield projection.reshape(patches, heads, 3, width)[:, :, 1]
