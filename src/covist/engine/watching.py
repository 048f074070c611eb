"""What the engine watches besides forward calls: drafts of `generate`, and the blocks of decoder layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from covist.engine.prefill import Prefill
from covist.engine.running import current
from covist.errors import CovistError
from covist.undo import ReplacedMethod


class DraftWatch(ReplacedMethod):
    """Calls `drafting(True)` and `drafting(False)` when a drafting call of `model.generate` begins and ends.

    transformers passes the prompt to an assistant without image features, and marks such a call only in its
    generation settings.
    """

    def __init__(self, model: Any, drafting: Callable[[bool], None]):
        def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
            def generate(*args: Any, **kwargs: Any) -> Any:
                if not getattr(kwargs.get("generation_config"), "is_assistant", False):
                    return original(*args, **kwargs)
                drafting(True)
                try:
                    return original(*args, **kwargs)
                finally:
                    drafting(False)

            return generate

        super().__init__(model, "generate", wrapper)


class BlockWatch:
    """Shows every block that runs to the prefill of its thread, from construction until `remove()`."""

    def __init__(self, layers: Iterable[nn.Module], method: str):
        # All blocks are found before the first hook, so that a refusal leaves nothing on the model.
        found = [(index, block) for index, layer in enumerate(layers) for block in _blocks(layer, method)]
        self._hooks = [block.register_forward_hook(partial(_show, index), with_kwargs=True) for index, block in found]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _blocks(layer: nn.Module, method: str) -> list[nn.Module]:
    """Whatever their names, blocks are the children with parts of their own; norms and activations have none."""
    found = [child for child in layer.children() if next(child.children(), None) is not None]
    if len(found) < 2:
        raise CovistError(
            f"{method} watches the attention and the feed-forward block of every layer, but {type(layer).__name__} "
            "does not have both as modules; choose another method"
        )
    return found


def _show(layer: int, module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
    prefill = current()
    given = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
    made = output[0] if isinstance(output, tuple) else output
    if not isinstance(prefill, Prefill) or given is None or made.shape != given.shape:  # a router, for example
        return
    with torch.no_grad(), torch.autocast(made.device.type, enabled=False):
        prefill.show_block(layer, given, made)
