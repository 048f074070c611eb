"""Methods of other packages: a mistake in one is reported in one line that names the method and the line of its file.

covist's own methods are not watched: what they return is tested, and checking it would read from the accelerator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from covist.errors import CovistError, MethodFailure
from covist.faults import is_broken, is_out_of_memory
from covist.reduction import Reduction

if TYPE_CHECKING:
    from covist.contract.views import ImageContext, PixelView

_INDICES = "return the indices of the tokens to keep, [count] whole numbers, or a mask, [N] bool"


def is_own(kind: type) -> bool:
    """Whether a class is part of covist."""
    return kind.__module__.partition(".")[0] == "covist"


def is_defined_again(kind: type, known: type) -> bool:
    """Whether a class of another package takes the place of its earlier self, as when a notebook runs a cell twice."""
    return not is_own(known) and not is_own(kind) and kind.__name__ == known.__name__


def guard(kind: type) -> None:
    """Watch the functions that a class defines: what they raise, and what those that choose tokens return."""
    for name, function in list(vars(kind).items()):
        if inspect.isfunction(function) and (name == "__init__" or not name.startswith("__")):
            setattr(kind, name, _guarded(function, _CHECKS.get(name)))


def chosen_tokens(found: Any, image: ImageContext, count: int) -> Tensor:
    """What `Method.select` returned, as indices [count] on the device of the image.

    Indices may be a tensor of any whole numbers on any device, an array or a list; a mask of all tokens is understood.
    """
    values = _as_tensor(found)
    total, device = len(image.positions), image.positions.device
    if values.dtype == torch.bool:
        if values.shape != (total,):
            raise CovistError(f"it returned a mask of shape {list(values.shape)} for {total} tokens; {_INDICES}")
        values = values.nonzero()[:, 0]
    if values.dim() != 1:
        raise CovistError(f"it returned a tensor of shape {list(values.shape)}; {_INDICES}")
    if len(values) != count:
        raise CovistError(f"it returned {len(values)} tokens, but {count} were asked for")
    if values.is_floating_point() or values.is_complex():
        raise CovistError(f"it returned {values.dtype}, such as {values[0].item():g}; {_INDICES}")
    kept = sorted(values.tolist())
    if kept[0] < 0 or kept[-1] >= total:
        wrong = kept[0] if kept[0] < 0 else kept[-1]
        raise CovistError(f"it returned token {wrong}, but the {total} tokens are numbered from 0 to {total - 1}")
    twice = next((one for one, other in zip(kept, kept[1:], strict=False) if one == other), None)
    if twice is not None:
        raise CovistError(f"it returned token {twice} {kept.count(twice)} times; every token may be kept once")
    return values.to(device=device, dtype=torch.long)


def sound_reduction(found: Any, *given: Any, **named: Any) -> Reduction:
    """What `Method.enter` or `Method.reduce` returned: a reduction whose state is one."""
    if not isinstance(found, Reduction):
        raise CovistError(f"it returned a {type(found).__name__}; return a covist.Reduction")
    count = named.get("count", given[-1] if given else 0)
    if count and not found.state.count:
        raise CovistError(f"it returned a state without tokens, but {count} were asked for")
    found.state.validate()
    return found


def patch_scores(found: Any, pixels: PixelView) -> Tensor:
    """What `Method.rate_patches` returned: a number for every token, above zero for some of every frame."""
    shape = pixels.cells.shape[:3]
    if not isinstance(found, Tensor) or found.shape != shape:
        what = f"shape {list(found.shape)}" if isinstance(found, Tensor) else f"type {type(found).__name__}"
        raise CovistError(f"it returned scores of {what}; return a tensor [frames, rows, columns], here {list(shape)}")
    if not bool((found > 0).flatten(1).any(1).all()):
        raise CovistError("it rated no token of a frame above zero; something of every frame must be encoded")
    return found


def sound_reductions(found: Any, *given: Any, **named: Any) -> list[Reduction]:
    """What `Method.begin_together` returned: one for each image."""
    images = named.get("images", given[0] if given else ())
    if not isinstance(found, list) or len(found) != len(images):
        raise CovistError(f"return a list of {len(images)} reductions, one for each image")
    return [sound_reduction(one, *given, **named) for one in found]


_CHECKS: dict[str, Callable[..., Any]] = {
    "rate_patches": patch_scores,
    "select": chosen_tokens,
    "enter": sound_reduction,
    "begin": sound_reduction,
    "begin_together": sound_reductions,
    "reduce": sound_reduction,
}


def _guarded(function: FunctionType, check: Callable[..., Any] | None) -> Callable[..., Any]:
    @wraps(function)
    def call(method: Any, *given: Any, **named: Any) -> Any:
        try:
            found = function(method, *given, **named)
            return found if check is None else check(found, *given, **named)
        except MethodFailure:  # it names its method already
            raise
        except Exception as error:
            if is_out_of_memory(error) or is_broken(error):
                raise
            kind = "" if isinstance(error, CovistError) else f"{type(error).__name__}: "
            name = getattr(method, "name", type(method).__name__)
            problem = " ".join(f"{kind}{error}".split())
            raise MethodFailure(f"method {name!r} failed in {_place(function, error)}: {problem}") from error

    return call


def _place(function: FunctionType, error: Exception) -> str:
    """The function, and the last line of its file that ran; its first line if it returned what is wrong."""
    code, line, trace = function.__code__, function.__code__.co_firstlineno, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == code.co_filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{function.__name__} ({Path(code.co_filename).name} line {line})"


def _as_tensor(found: Any) -> Tensor:
    if found is None:
        raise CovistError(f"it returned nothing; {_INDICES}")
    try:
        return torch.as_tensor(found)
    except (TypeError, ValueError, RuntimeError):
        raise CovistError(f"it returned a {type(found).__name__}; {_INDICES}") from None
