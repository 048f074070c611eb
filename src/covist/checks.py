"""Input checks of the public functions: each failure is a `CovistError` of one line that says what is wrong where."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from covist.errors import CovistError

MOST_TOKENS = 16_384
"""Most tokens of one image for which pairwise affinities are computed: a float32 matrix of that size is 1 GiB."""


def require(condition: bool, where: str, message: str) -> None:
    if not condition:
        raise CovistError(f"{where}: {message}")


def require_count(where: str, count: int, available: int) -> None:
    """A selection must keep at least one token and no more than there are."""
    require(
        1 <= count <= available, where, f"count must be between 1 and {available} (the number of tokens), got {count}"
    )


def require_affordable(where: str, tokens: int) -> None:
    """Refuse an image whose pairwise affinities, which grow with the square of its tokens, would exhaust the memory."""
    require(
        tokens <= MOST_TOKENS,
        where,
        f"{tokens} tokens are too many for pairwise affinities ({4 * tokens**2 / 2**30:.1f} GiB per matrix; "
        f"the limit is {MOST_TOKENS} tokens); lower the image's resolution or pass it as several images",
    )


def require_shape(where: str, name: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    """Require a shape in which `None` stands for any size."""
    fits = tensor.dim() == len(shape) and all(e is None or e == a for e, a in zip(shape, tensor.shape, strict=True))
    expected = "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"
    require(fits, where, f"{name} must have shape {expected}, got {list(tensor.shape)}")


def require_finite(where: str, **tensors: Tensor) -> None:
    require_sound(where, {}, None, **tensors)


def require_evidence(where: str, name: str, evidence: Tensor) -> None:
    """Evidence must be finite and non-negative."""
    require_sound(where, {name: evidence})


def require_sound(
    where: str, evidence: dict[str, Tensor], holds: dict[str, Tensor] | None = None, **features: Tensor
) -> None:
    """Require finite values and non-negative `evidence`, with one pass and one read from the device for all of them.

    holds: message -> condition, [] bool; the message is raised if its condition is false.
    An element that is not finite makes its sum not finite, so elements are examined only if a sum is not finite.
    """
    conditions = holds or {}
    sums = [tensor.sum(dtype=torch.float32) for tensor in features.values()]
    ends = [end for tensor in evidence.values() for end in tensor.float().aminmax()]  # lowest, highest
    values = [*(held.float() for held in conditions.values()), *sums, *ends]
    judge = partial(_judge, where, list(conditions), evidence, features)
    if _SCOPE.later is None or values[0].device.type == "cpu":
        judge(torch.stack(values).tolist())
    else:
        _SCOPE.later.append(_Later(values, judge))


def _judge(
    where: str, conditions: list[str], evidence: dict[str, Tensor], features: dict[str, Tensor], found: list[float]
) -> None:
    """Raise what the numbers of `require_sound` say, in their order."""
    for complaint, fulfilled in zip(conditions, found, strict=False):
        require(bool(fulfilled), where, complaint)
    if not all(map(math.isfinite, found)):
        for name, tensor in {**features, **evidence}.items():
            require(bool(tensor.isfinite().all()), where, f"{name} contains NaN or infinite values")
    for name, low in zip(evidence, found[len(conditions) + len(features) :: 2], strict=True):
        require(low >= 0, where, f"{name} must not be negative, its minimum is {low:.3g}")


@dataclass(frozen=True)
class _Later:
    """A check whose numbers [] are still on a device."""

    values: list[Tensor]
    judge: Callable[[list[float]], None]


class _Scope(threading.local):
    later: list[_Later] | None = None


_SCOPE = _Scope()


@contextmanager
def checked_together() -> Iterator[None]:
    """Read what the checks in this block need from a device once, at its end, since every read makes the host wait.

    Whatever else goes wrong in the block, a failed check is the cause.
    """
    if _SCOPE.later is not None:
        yield
        return
    later = _SCOPE.later = []
    try:
        yield
    finally:
        _SCOPE.later = None
        numbers = iter(torch.stack([value for one in later for value in one.values]).tolist() if later else ())
        for one in later:
            one.judge([next(numbers) for _ in one.values])
