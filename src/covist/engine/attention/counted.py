"""Layers that count tokens where others read positions: here they count the tokens that the model was given.

Such a layer knows only the tokens that are left, so it would take a token after a reduced image for an earlier one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from covist.engine.attention.interface import AttentionCall
from covist.engine.sequence.ledger import Ledger

PLACES = {"query_positions", "key_positions"}
"""Arguments of a module that makes a bias of distances between tokens: places [queries] and [keys]."""


def distance_biases(layer: nn.Module) -> Iterator[nn.Module]:
    """The modules of a layer that make a bias of distances between counted tokens."""
    return (part for part in layer.modules() if set(inspect.signature(part.forward).parameters) >= PLACES)


def bias_at_rows(forward: Callable[..., Tensor], ledger: Ledger, given: dict[str, Any]) -> Tensor:
    """The bias [batch, heads, queries, keys] for `given`, at the rows of each sample."""
    queries, keys = (len(given[name]) for name in ("query_positions", "key_positions"))
    rows = ledger.last(keys)[0].to(given["key_positions"].device)
    states = {name: value for name, value in given.items() if name not in PLACES}
    return torch.cat(
        [
            forward(
                **{name: value[sample : sample + 1] for name, value in states.items()},
                query_positions=rows[sample, keys - queries :],
                key_positions=rows[sample],
            )
            for sample in range(len(rows))
        ]
    )


def recounted(call: AttentionCall, ledger: Ledger) -> AttentionCall:
    """The call of a layer whose queries grow with their number, as if no token had been removed."""
    growth = growth_of(call.module)
    if growth is None:
        return call
    rows = ledger.last(call.query.shape[2])[0].to(call.query.device)
    columns = torch.arange(ledger.length - rows.shape[1], ledger.length, device=rows.device)
    factor = (growth(rows) / growth(columns))[:, None, :, None]  # [batch, 1, queries, 1], 1 where all tokens are left
    options, bias = call.options, call.options.get("position_bias")
    if bias is not None:
        options = {**options, "position_bias": (bias * factor).to(bias.dtype)}
    return call._replace(query=(call.query * factor).to(call.query.dtype), options=options)


def growth_of(module: Any) -> Callable[[Tensor], Tensor] | None:
    """What a layer multiplies queries by, as a function of their places; None: it does not count."""
    if getattr(module, "attn_temperature_tuning", False) and not module.use_rope:
        return lambda places: (
            1 + module.attn_scale * torch.log1p(torch.floor((places.float() + 1) / module.floor_scale))
        )
    config: Any = getattr(module, "config", None)
    floor = getattr(config, "log_scaling_n_floor", None)
    if floor is not None and not module.is_sliding:
        return lambda places: 1 + config.log_scaling_alpha * torch.log(((places.float() + 1) / floor).clamp(min=1))
    return None
