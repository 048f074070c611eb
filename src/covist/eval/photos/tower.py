"""Remember what a vision tower has computed for each image.

Every method and budget runs the tower on the same images. A layer into which nobody looks is not computed again; one
that a method reads still runs, but the results of its projections and of its MLP, which take most of its time, are
looked up. They are the same numbers.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from covist.families.registry import family_for
from covist.undo import ReplacedMethod

Results = dict[nn.Module, list[Tensor]]
MOST_BYTES = 4 * 2**30  # of results; those of further images are computed each time


@contextmanager
def remembered_tower(model: Any) -> Iterator[None]:
    """Within the block, most of the model's vision tower is computed once per image, if its family names its layers."""
    memory, family = _Memory(), family_for(model)
    with ExitStack() as installed:
        for name in ("get_image_features", "get_video_features"):
            if hasattr(family.base, name):
                replaced = ReplacedMethod(family.base, name, partial(partial, memory.encode))
                installed.callback(replaced.remove)
        for layer in getattr(family, "encoder_layers", ()):
            for module in (layer, *_heavy(layer)):
                remembered = partial(partial, partial(memory.result, module))
                installed.callback(ReplacedMethod(module, "forward", remembered).remove)
        yield


def _heavy(layer: nn.Module) -> Iterator[nn.Module]:
    """The projections of a layer's attention, which methods read one by one, and its MLP as a whole."""
    for name, child in layer.named_children():
        linears = [module for module in child.modules() if isinstance(module, nn.Linear)]
        yield from linears if "att" in name else [child] if linears else []


def _is_read_inside(module: nn.Module) -> bool:
    """Whether a part of the module has a hook; those of the module itself are called whatever its result comes from."""
    parts = (part for part in module.modules() if part is not module)
    return any(part._forward_hooks or part._forward_pre_hooks for part in parts)


class _Memory:
    """Results by image and module, in the order in which the tower asks for them."""

    def __init__(self) -> None:
        self._known: dict[bytes, Results] = {}
        self._bytes = 0
        self._recorded: Results | None = None  # while a new image is encoded
        self._recalled: dict[nn.Module, Iterator[Tensor]] | None = None  # while a known one is

    def encode(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        pixels = next((one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), None)
        if pixels is None or self._recorded is not None or self._recalled is not None:
            return original(*args, **kwargs)
        image = _digest(pixels)
        try:
            if image in self._known:
                self._recalled = {module: iter(results) for module, results in self._known[image].items()}
            else:
                self._recorded = defaultdict(list)
            output = original(*args, **kwargs)
            self._keep(image)
            return output
        finally:
            self._recorded = self._recalled = None

    def result(self, module: nn.Module, original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        """What a module makes of its input; outside of `encode`, a method runs parts of the tower by itself."""
        known = self._recalled
        if known is not None and module in known and not _is_read_inside(module):
            return next(known[module])
        made = original(*args, **kwargs)
        if self._recorded is not None and isinstance(made, Tensor):  # some layers also return their attention
            self._recorded[module].append(made)
        return made

    def _keep(self, image: bytes) -> None:
        if self._recorded is None:
            return
        size = sum(result.nbytes for results in self._recorded.values() for result in results)
        if self._bytes + size <= MOST_BYTES:
            self._known[image] = self._recorded
            self._bytes += size


def _digest(pixels: Tensor) -> bytes:
    values = pixels.detach().float().cpu().contiguous().numpy()
    return hashlib.blake2b(values.tobytes() + str(values.shape).encode(), digest_size=16).digest()
