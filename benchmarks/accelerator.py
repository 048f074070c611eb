"""An accelerator that is not there: tensors that behave as if they were on a device, and what they would cost.

Tensors of a real accelerator differ from those of the host in three ways that matter here. Work on them is launched
and not waited for; whoever needs one of their values waits for all of it; and they do not mix with tensors of the
host. `OnDevice` is a tensor of the CPU that says it is elsewhere, and `Accelerator`, while it is active, gives every
function what a device would give: results on the device where an argument is, tensors on the device where one is
asked for by `device=`, an error where both kinds meet. So code that is written for accelerators runs unchanged, takes
the paths that it takes there, and everything it does on the device, and nothing that it does on the host, is counted:

- operators: what launches work, transfers in both directions included. Views and allocations launch nothing.
- reads: what makes the host wait: a value, a size that depends on values, or a transfer that is not `non_blocking`
  (torch waits for the stream in both directions).

What it cannot know is time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cuda", 0)
HOST = torch.device("cpu")
FREE = {"detach", "lift_fresh", "alias", "_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "resize_"}
"""Operators that launch nothing, although they are not declared as views: they name or allocate memory."""
WAITING = {
    "_local_scalar_dense",
    "nonzero",
    "is_nonzero",
    "masked_select",
    "equal",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
}
"""Operators whose result, or its size, is needed on the host."""
READING = {"tolist", "numpy", "__array__", "item", "__bool__", "__int__", "__float__", "__index__"}
"""Functions that read values and dispatch no operator if the tensor is on the CPU."""
MAKING = {"tensor", "as_tensor", "asarray", "from_numpy"}
"""Functions that make tensors from values of the host."""


class OnDevice(Tensor):
    """A tensor of the CPU that says it is on `DEVICE`."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func == Tensor.device.__get__:
            return DEVICE
        return super().__torch_function__(func, types, args, kwargs)


def on_device(value: Any) -> Any:
    """A tensor, or the tensors in a container, on the device."""
    if isinstance(value, Tensor):
        return value.as_subclass(OnDevice)
    if isinstance(value, (tuple, list)):
        made = [on_device(one) for one in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    return value


def move(module: nn.Module, back: bool = False) -> None:
    """Move a model to the device, or back to the host."""
    kind = Tensor if back else OnDevice
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            held.update({name: one.detach().as_subclass(kind) for name, one in held.items() if one is not None})


class Accelerator(TorchFunctionMode):
    """Counts what is done on the device while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.seen: Callable[[str, str], None] = lambda kind, name: None  # called with everything that is counted
        self._dispatched = _Dispatched(self)
        self._counting = self._paused = False

    def __enter__(self) -> Accelerator:
        self._patched = ExitStack()
        for name in ("get_rng_state", "set_rng_state"):  # the device has no random numbers of its own
            self._patched.enter_context(patch.object(torch.cuda, name, lambda *_: None))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patched.close()

    def count(self, kind: str, name: str) -> None:
        """Count an "operators" or "reads" of this name."""
        if not self._paused:
            getattr(self, kind)[name] += 1
            self.seen(kind, name)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing in this block: it stands in for something else."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name == "__get__":  # a property
            return func(*args, **kwargs)
        if name in ("to", "cpu", "cuda", "copy_"):
            return self._transfer(name, func, args, kwargs)
        asked = kwargs.get("device")
        if asked is not None and torch.device(asked).type == DEVICE.type:
            return self._made(name, func, args, {**kwargs, "device": HOST})
        given = list(_tensors((args, kwargs)))
        is_here = any(isinstance(one, OnDevice) for one in given)
        if is_here:
            self._check(name, given)
        if is_here and name in READING:
            self.count("reads", name)
        with self._watch(is_here and name not in READING):
            return func(*args, **kwargs)

    def _made(self, name: str, func: Any, args: tuple, kwargs: dict[str, Any]) -> Tensor:
        """A new tensor, made by work on the device or from values of the host."""
        is_copied = name in MAKING and not any(isinstance(one, OnDevice) for one in _tensors(args))
        with self._watch(not is_copied):
            made = on_device(func(*args, **kwargs))
        if is_copied and made.numel():
            self.count("operators", "upload")
            self.count("reads", "upload")
        return made

    def _transfer(self, name: str, func: Any, args: tuple, kwargs: dict[str, Any]) -> Tensor:
        """A tensor that may go from one side to the other."""
        tensor, goes_there = args[0], _goal(name, args, kwargs) == DEVICE.type
        crosses = goes_there != isinstance(args[1] if name == "copy_" else tensor, OnDevice)
        if crosses:
            direction = "upload" if goes_there else "download"
            self.count("operators", direction)
            if not kwargs.get("non_blocking", False):
                self.count("reads", direction)
        others = [HOST if isinstance(one, (torch.device, str)) else one for one in args[1:]]
        if name == "to":  # like another tensor, whose device would be asked for
            others = [one.as_subclass(Tensor) if isinstance(one, OnDevice) else one for one in others]
        named = {key: HOST if key == "device" else value for key, value in kwargs.items()}
        with self._watch(goes_there and name != "copy_" or isinstance(tensor, OnDevice) and not crosses):
            result = func(tensor, *others, **named)
        if name == "copy_":
            return result
        if crosses and result is tensor:
            result = tensor.view_as(tensor)
        return on_device(result) if goes_there else result.as_subclass(Tensor)

    def _check(self, name: str, given: list[Tensor]) -> None:
        """Refuse what a device refuses: tensors of both sides, unless one of them is a single value or an index."""
        strangers = [one for one in given if not isinstance(one, OnDevice) and one.dim() > 0]
        if not strangers:
            return
        if name in ("__getitem__", "__setitem__", "index_put_"):
            for _ in strangers:
                self.count("operators", "upload")
                self.count("reads", "upload")
            return
        raise RuntimeError(f"{name}: tensors on {DEVICE} and on the host, {[list(one.shape) for one in strangers]}")

    @contextmanager
    def _watch(self, counting: bool) -> Iterator[None]:
        before, self._counting = self._counting, counting
        try:
            with self._dispatched:
                yield
        finally:
            self._counting = before


class _Dispatched(TorchDispatchMode):
    """The operators that one function comes to."""

    def __init__(self, accelerator: Accelerator):
        super().__init__()
        self._accelerator = accelerator

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if self._accelerator._counting:
            name = func.overloadpacket.__name__
            by_mask = name in ("index", "index_put_", "index_put") and any(
                one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1]
            )
            if name in WAITING or by_mask:
                self._accelerator.count("reads", name)
            if not func.is_view and name not in FREE and name != "_local_scalar_dense":
                self._accelerator.count("operators", name)
        return func(*args, **(kwargs or {}))


def _goal(name: str, args: tuple, kwargs: dict[str, Any]) -> str:
    """The type of the device on which `to`, `cpu`, `cuda` or `copy_` leaves its result."""
    if name in ("cpu", "cuda"):
        return name
    others = [] if name == "copy_" else [*args[1:], *kwargs.values()]
    named = [one for one in others if isinstance(one, (torch.device, str))]
    like = [one.device for one in (*others, args[0]) if isinstance(one, Tensor)]
    return torch.device((named + like)[0]).type


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
