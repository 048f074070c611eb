"""From the patches of a vision tower to the tokens of a prompt, for any model: found by trying, and checked.

A projector turns patches into tokens: one by one, several neighbours at a time, or not in a way that can be repeated
for single tokens. Nothing here is assumed of a class. A guess counts only if the projector gives, for a few tokens,
the embeddings that it gave before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from covist.families.hooks import Running, Scratch

PROBES = 3
"""Tokens for which a guess is checked."""

Shape = tuple[int, int]
Layout = Callable[[Sequence[Shape], int], Tensor]
"""(rows and columns of tokens of each view, patches of a token) -> the patches of each token [N, patches]."""


def consecutive(views: Sequence[Shape], patches: int) -> Tensor:
    """The patches of a token follow each other."""
    tokens = sum(rows * columns for rows, columns in views)
    return torch.arange(tokens * patches).view(tokens, patches)


def blocks(views: Sequence[Shape], patches: int) -> Tensor:
    """Patches lie row by row over a view; a token is a square of them."""
    side, parts, first = isqrt(patches), [], 0
    for rows, columns in views:
        places = torch.arange(rows * columns * patches).view(rows, side, columns, side) + first
        parts.append(places.permute(0, 2, 1, 3).reshape(-1, patches))
        first += rows * columns * patches
    return torch.cat(parts)


@dataclass(frozen=True)
class ModuleCall:
    """A call of a module between a tower's layers and the prompt."""

    module: Any
    args: tuple
    options: dict[str, Any]
    given: Tensor  # its first tensor
    made: Tensor

    def again(self, given: Tensor) -> Tensor:
        """The output for another first tensor."""
        args = tuple(given if value is self.given else value for value in self.args)
        options = {name: given if value is self.given else value for name, value in self.options.items()}
        made = self.module.forward(*args, **options)
        tensor: Tensor = made[0] if isinstance(made, tuple) else getattr(made, "last_hidden_state", made)
        return tensor


class CallTap:
    """Keeps the calls of all modules that may make tokens of patches, while images are encoded."""

    def __init__(self, modules: Sequence[Any], running: Running):
        self._running, self._scratch = running, Scratch()
        self.handles = [module.register_forward_hook(self._keep, with_kwargs=True) for module in modules]

    def _keep(self, module: Any, args: tuple, options: dict[str, Any], output: Any) -> None:
        given = next((value for value in (*args, *options.values()) if isinstance(value, Tensor)), None)
        made = output[0] if isinstance(output, tuple) and output else getattr(output, "last_hidden_state", output)
        if self._running.calls and given is not None and isinstance(made, Tensor) and made.ndim >= 2:
            self._scratch.add("calls", ModuleCall(module, args, options, given, made))

    def take(self) -> list[ModuleCall]:
        calls: list[ModuleCall] = self._scratch.take().get("calls", [])
        return calls


@dataclass(frozen=True)
class Projector:
    """How a model turns the patches of a token into its embedding."""

    module: Any
    layout: Layout
    form: Callable[[Tensor, int], Tensor]
    patches: int  # of a token
    patch_side: int | None = None  # in pixels, if the projector must be told the sizes of images

    def __call__(self, features: Tensor) -> Tensor:
        """Token features [*, patches x v] -> embeddings [*, d]."""
        rows = features.reshape(-1, features.shape[-1])
        height = isqrt(self.patches) * (self.patch_side or 0)
        sizes = () if self.patch_side is None else ([(height, height * len(rows))],)
        made = self.module.forward(self.form(rows, self.patches), *sizes)
        return made.reshape(*features.shape[:-1], made.shape[-1])


def _as_rows(tokens: Tensor, patches: int) -> Tensor:
    return tokens.reshape(len(tokens) * patches, -1)


def _as_views(tokens: Tensor, patches: int) -> Tensor:
    return tokens.reshape(len(tokens), patches, -1)


def _as_squares(tokens: Tensor, patches: int) -> Tensor:
    return tokens.reshape(len(tokens), isqrt(patches), isqrt(patches), -1)


def _as_one_row(tokens: Tensor, patches: int) -> Tensor:
    """The patches, row by row, of an image with one row of tokens."""
    return _as_squares(tokens, patches).transpose(0, 1).flatten(0, 2)


FORMS = (_as_rows, _as_views, _as_squares)
"""How a projector may take the patches of some tokens: as rows, as small views, as small squares."""


@dataclass
class Known:
    """What was found out about a model: it is tried only until it is found."""

    projectors: dict[int, Projector] = field(default_factory=dict)  # by patches of a token
    layouts: dict[tuple[int, int], Layout] = field(default_factory=dict)  # by patches of a token: all, the projector's
    class_is_last: bool = False  # whether a tower's class token comes after its patches


@dataclass
class Folding:
    """How the patches of one call of an encoder became its tokens."""

    embeddings: Tensor  # [N, d] of all images, in the order of the prompt
    views: Sequence[Shape]  # rows and columns of tokens of every view
    calls: Sequence[ModuleCall]  # between the layers of the tower and the prompt, in order
    known: Known = field(default_factory=Known)

    @cached_property
    def _projection(self) -> tuple[list[ModuleCall], Tensor, int]:
        """The calls of the module whose outputs are the embeddings; where each is among its rows [N]; all its rows."""
        width = self.embeddings.shape[-1]
        for last in reversed(self.calls):  # a module ends after its parts
            if last.made.shape[-1] == width:
                of_module = [call for call in self.calls if _alike(call, last)]
                for calls in (of_module, [last]):  # it may also have made something else
                    made = torch.cat([call.made.reshape(-1, call.made.shape[-1]) for call in calls])
                    order = self._order(made.to(self.embeddings))
                    if order is not None:
                        return calls, order, len(made)
        return [], self.embeddings.new_empty(0, dtype=torch.long), 0

    def _order(self, made: Tensor) -> Tensor | None:
        """Where each embedding is among the rows `made`, view by view: two images may be the same."""
        sizes = [rows * columns for rows, columns in self.views]
        if len(made) < len(self.embeddings) or len(made) != len(self.embeddings) and len(made) % len(sizes):
            return None
        # with padding, every view has as many rows as the largest
        rows = sizes if len(made) == len(self.embeddings) else [len(made) // len(sizes)] * len(sizes)
        first, places = 0, []
        for part, own in zip(made.split(rows), self.embeddings.split(sizes), strict=True):
            found = places_among(part, own)
            if found is None:
                return None
            places.append(found + first)
            first += len(part)
        return torch.cat(places)

    @cached_property
    def given(self) -> Tensor:
        """All that the projector was given, as rows [patches, v]."""
        rows = [call.given.reshape(-1, call.given.shape[-1]) for call in self._projection[0]]
        return torch.cat(rows).detach() if rows else self.embeddings[:0]

    @cached_property
    def probes(self) -> list[int]:
        count = len(self.embeddings)
        return torch.linspace(0, count - 1, min(PROBES, count)).long().tolist()

    @cached_property
    def projector(self) -> Projector | None:
        """The projector, if it can be applied to single tokens."""
        patches, left = divmod(len(self.given), max(1, self._projection[2]))
        if left or not patches:
            return None
        if patches not in self.known.projectors:
            found = self._find_projector(patches)
            if found is None:
                return None
            self.known.projectors[patches] = found
        return self.known.projectors[patches]

    @property
    def class_is_last(self) -> bool:
        return self.known.class_is_last

    @cached_property
    def features(self) -> Tensor:
        """[N, patches x v]: what the projector turned into tokens."""
        assert self.projector is not None, "features are of use with a projector only"
        return self.given[self._at(self.projector.layout, self.projector.patches)].flatten(1)

    def patches_of(self, count: int) -> Tensor | None:
        """The patches of each token [N, count], in the order of the tower; None if it is not known which they are."""
        if self.projector is not None and self.projector.patches == count:
            return self._at(self.projector.layout, count)
        joined, left = divmod(len(self.given), max(1, self._projection[2]))
        if left or joined not in (1, count):
            return None
        layout = self.known.layouts.get((count, joined))
        if layout is None:
            layout = self._find_layout(count, joined)
            if layout is None:
                return None
            self.known.layouts[count, joined] = layout
        return self._at(layout, count)

    def _find_layout(self, count: int, joined: int) -> Layout | None:
        """Where the patches of a token lie, if its projector is given `joined` of them at a time."""
        if joined < count:
            return self._before_projector(count)
        return consecutive if count == 1 else self._of_whole_views(count)

    def _at(self, layout: Layout, count: int) -> Tensor:
        _, order, rows = self._projection
        views = self.views if rows == len(self.embeddings) else [(1, rows)]  # with padding, rows are not those of views
        return layout(views, count).to(self.embeddings.device)[order]

    @torch.no_grad()
    def _find_projector(self, patches: int) -> Projector | None:
        (calls, order, rows), expected = self._projection, self.embeddings[self.probes]
        module = calls[0].module
        for layout in layouts(patches) if rows == len(order) else [consecutive]:
            tokens = self.given[self._at(layout, patches)[self.probes]].flatten(1)
            told = [Projector(module, layout, _as_one_row, patches, side) for side in _patch_sides(calls, self.given)]
            for found in (*(Projector(module, layout, form, patches) for form in FORMS), *told):
                if _gives(found, tokens, expected):
                    return found
        return None

    @torch.no_grad()
    def _of_whole_views(self, count: int) -> Layout | None:
        """The layout of a projector that runs on whole views only: patches of other tokens must not matter."""
        (calls, order, made_rows), rows = self._projection, self.given
        if len(calls) != 1 or made_rows != len(order):
            return None
        for layout in layouts(count):
            kept = self._at(layout, count)[self.probes].flatten()
            changed = (rows.roll(1, 0) + 1).index_copy(0, kept, rows[kept]).view(calls[0].given.shape)
            made = calls[0].again(changed).reshape(self.embeddings.shape).to(self.embeddings)[order]
            if near(made[self.probes], self.embeddings[self.probes]) and not near(made, self.embeddings):
                return layout
        return None

    def _before_projector(self, count: int) -> Layout | None:
        """The layout of patches that are joined before the projector, where some module is given them token by token.

        Whatever the order of a token's numbers is, the sum of their cubes is that of its patches. (Norms make plain
        sums and sums of squares the same for all.)
        """
        tokens = len(self.embeddings)
        given = [call.given for call in self.calls]
        joined = [_cubes(one.reshape(tokens, -1)) for one in given if tokens in (len(one), one.shape[:2].numel())]
        for patches in (call.made for call in reversed(self.calls)):
            for class_is_last, rows in _rows_of_patches(patches, tokens * count, len(self.views)):
                sums = _cubes(rows)
                for layout in layouts(count):
                    expected = sums[layout(self.views, count).to(sums.device)].sum(1)
                    if any(near(one, expected) and not near(one, one.flip(0)) for one in joined):
                        self.known.class_is_last = class_is_last
                        return layout
        return None


def _cubes(rows: Tensor) -> Tensor:
    return rows.detach().float().pow(3).sum(-1)


def _rows_of_patches(states: Tensor, count: int, views: int) -> Iterator[tuple[bool, Tensor]]:
    """States as rows [count, v], without the class tokens of every view; and whether these come last."""
    width, each = states.shape[-1], count // views
    if states.numel() == count * width:
        yield False, states.reshape(count, width)
    elif states.ndim == 3 and len(states) == views and states.shape[1] > each and count % views == 0:
        yield False, states[:, -each:].reshape(count, width)
        yield True, states[:, :each].reshape(count, width)


def places_among(made: Tensor, embeddings: Tensor) -> Tensor | None:
    """Where each of the embeddings [N, d] is among the rows `made` [M, d]; None if some are not there."""
    if torch.equal(made, embeddings):
        return torch.arange(len(made), device=made.device)
    if not 1 < len(made) >= len(embeddings):
        return None
    weights = torch.linspace(1, 2, made.shape[1], dtype=torch.float64, device=made.device)
    theirs, places = (made.double() @ weights).sort(stable=True)
    ours, order = (embeddings.double() @ weights).sort(stable=True)
    if len(made) > len(embeddings):  # the nearest: a product may round a row differently at another place
        after = torch.searchsorted(theirs, ours).clamp(1, len(made) - 1)
        places = places[torch.where(ours - theirs[after - 1] < theirs[after] - ours, after - 1, after)]
    found = torch.empty_like(order).index_copy_(0, order, places)
    return found if torch.equal(made[found], embeddings) else None


def layouts(patches: int) -> Iterator[Layout]:
    """Where the patches of a token may lie."""
    yield consecutive
    if patches > 1 and isqrt(patches) ** 2 == patches:
        yield blocks


def _patch_sides(calls: Sequence[ModuleCall], given: Tensor) -> Iterator[int]:
    """The side of a patch in pixels, if the one call of a projector was told the sizes of its images."""
    for value in (*calls[0].args, *calls[0].options.values()) if len(calls) == 1 else ():
        sizes = torch.as_tensor(value) if isinstance(value, (Tensor, list)) and value is not calls[0].given else given
        if sizes.ndim == 2 and sizes.shape[1] == 2 and not sizes.is_floating_point():
            yield isqrt(int(sizes.long().prod(1).sum()) // len(given))


def _gives(projector: Projector, tokens: Tensor, expected: Tensor) -> bool:
    try:
        made = projector(tokens)
    except Exception:  # a form that the module does not take may raise anything
        return False
    return made.shape == expected.shape and near(made.to(expected), expected)


def near(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal but for rounding."""
    if one.shape != other.shape:
        return False
    scale = max(1e-6, float(other.detach().abs().max()))
    tolerance = max(1e-4, 32 * torch.finfo(other.dtype).eps)
    return bool((one.float() - other.float()).abs().max() <= tolerance * scale)


def _alike(one: ModuleCall, other: ModuleCall) -> bool:
    """Whether two calls are of one module and for features of one kind."""
    same_widths = one.given.shape[-1] == other.given.shape[-1] and one.made.shape[-1] == other.made.shape[-1]
    return one.module is other.module and same_widths
