"""Inputs and outputs of the blocks of decoder layers (attention, feed-forward), for methods that follow them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from covist.engine.prefill import Prefill
from covist.engine.running import current
from covist.errors import CovistError

FEED_FORWARD = ("mlp", "feed_forward", "block_sparse_moe")


class BlockWatch:
    """Reports every block that runs to the prefill of its thread, from construction until `remove()`."""

    def __init__(self, layers: Iterable[nn.Module]):
        self._hooks = [
            block.register_forward_hook(partial(self._show, index), with_kwargs=True)
            for index, layer in enumerate(layers)
            for block in _blocks(layer)
        ]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _show(self, layer: int, module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        prefill = current()
        if not isinstance(prefill, Prefill):
            return
        given: Tensor = args[0] if args else kwargs["hidden_states"]
        made: Tensor = output[0] if isinstance(output, tuple) else output
        with torch.no_grad(), torch.autocast(made.device.type, enabled=False):
            prefill.follow(layer, given, made)


def _blocks(layer: Any) -> list[nn.Module]:
    feed_forward = next((getattr(layer, name) for name in FEED_FORWARD if hasattr(layer, name)), None)
    if feed_forward is None:
        raise CovistError(
            f"{type(layer).__name__} has no feed-forward block under a known name ({', '.join(FEED_FORWARD)}), so this "
            "method cannot follow it; choose another method"
        )
    return [layer.self_attn, feed_forward]
