"""Where the attention of a text model meets covist: functions registered with transformers, and what they are given.

While a call is compressed, the mask function returns a rule instead of a mask, and the pass of the call computes every
attention. In any other call both functions hand everything on to the model's, beside which they are registered.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function

from covist.backends import Attended, Renamed, attention_of, register
from covist.engine.running import current
from covist.engine.sequence.ledger import Ledger
from covist.errors import CovistError

PREFIX = "covist:"
EARLIER = "prev_topk_indices"
"""The argument of a layer that holds what an earlier layer has chosen."""
CHOICES = ("indices", "block_indices")
"""Options of an attention function: chosen keys [batch, queries, count], or blocks of keys for each group of heads."""
PLACES = {"query_positions", "key_positions"}
"""Arguments of a module that makes a bias of distances between tokens: places [queries] and [keys]."""
Visible = Callable[..., Any]
"""(batch, head, query row, key row) -> bool. Arguments broadcast; rows count the tokens that the model was given."""


def backend_of(module: Any) -> str:
    """The attention implementation that the user chose for a decoder, whether or not covist's function wraps it."""
    return str(module.config._attn_implementation).removeprefix(PREFIX)


class AttentionSwitch(Renamed):
    """Routes masks and attention of a decoder through covist's functions until `remove()`."""

    def __init__(self, *modules: nn.Module):
        parts = (part for module in modules for part in module.modules())
        super().__init__((part.config for part in parts if hasattr(part, "config")), PREFIX, _register)


def _register(backend: str) -> None:
    """Register covist's functions around `backend` under their own name."""
    mask = partial(_mask, backend) if backend in ALL_MASK_ATTENTION_FUNCTIONS else None
    register(PREFIX + backend, partial(_attend, backend), mask)


def _mask(backend: str, **arguments: Any) -> Any:
    if current() is None:
        return ALL_MASK_ATTENTION_FUNCTIONS[backend](**arguments)
    given = arguments.get("attention_mask")  # a model may build masks, hand them on and build them again
    return given if isinstance(given, MaskRule) else MaskRule(arguments["mask_function"])


def _attend(
    backend: str, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> Attended:
    one = current()
    if one is None or not one.inside:
        return attention_of(module, backend)(query, key, value, mask, **options)
    if not isinstance(mask, MaskRule):
        mask = MaskRule.of_mask(of_chosen_keys(mask, module, query, key, options))
    return one.attend(AttentionCall(module, backend, query, key, value, mask, options))


# -- what a layer asks for ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MaskRule:
    """What stands in for a mask while a call is compressed. It has no size until it is evaluated.

    transformers builds every mask from a function of token indices. Sliding windows, chunks, bidirectional images,
    prefixes and packing are such functions, so what a kept token sees is what it would have seen, minus what was
    removed.
    """

    visible: Visible = causal_mask_function
    mask: Tensor | None = None  # [batch, heads or 1, queries, keys] bool, if a layer has made one of the keys it holds

    ndim, shape = 4, torch.Size((0, 0, 0, 0))
    """Of a mask that is already prepared: a model that builds masks twice must not take it for a 2-D one."""

    def __getitem__(self, part: object) -> None:
        raise CovistError(
            "this text model lets later layers see only some tokens of a prompt (Gemma 4 in transformers 5.23), which "
            "compression does not support; use transformers 5.22"
        )

    @classmethod
    def of_mask(cls, mask: Tensor | None) -> MaskRule:
        """For a layer that was given no rule: no mask, or one that it has made itself, of the keys that it holds."""
        return cls() if mask is None else cls(mask=mask if mask.dtype == torch.bool else mask == 0)

    @property
    def is_causal(self) -> bool:
        """Whether a token sees all tokens before it."""
        return self.visible is causal_mask_function and self.mask is None

    def at(self, samples: Tensor, queries: Tensor, keys: Tensor, part: slice) -> Tensor:
        """[batch, heads or 1, queries, keys] bool, for rows [batch, queries] and [batch, keys] of prompts `samples`.

        The queries are this `part` of those of the call.
        """
        if self.mask is not None:
            return self.mask[:, :, part].to(queries.device)
        head = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=queries.device)
        seen = self.visible(samples[:, None, None, None], head, queries[:, None, :, None], keys[:, None, None])
        shape = (len(queries), 1, queries.shape[1], keys.shape[1])
        return torch.as_tensor(seen, device=queries.device).expand(shape)


class AttentionCall(NamedTuple):
    """One call of the attention function by a layer, with the model's mask as a rule."""

    module: nn.Module
    backend: str
    query: Tensor  # [batch, heads, queries, width]
    key: Tensor  # [batch, kv heads, keys, width]
    value: Tensor
    rule: MaskRule
    options: dict[str, Any]

    @property
    def layer(self) -> int:
        layer: Any = self.module.layer_idx
        return layer

    def under(self, mask: Tensor | None, backend: str | None = None) -> Attended:
        """The model's attention under a mask [batch, heads or 1, queries, keys], in the form that the backend takes."""
        backend, options = backend or self.backend, self.options
        if backend == "flex_attention" and mask is not None:
            # It does not broadcast the heads of a bias, and crashes on float masks on the CPU.
            own = options.get("position_bias")
            bias = mask.expand(-1, self.query.shape[1], -1, -1)
            options = {**options, "position_bias": bias if own is None else bias + own}
            mask = None
        return attention_of(self.module, backend)(self.query, self.key, self.value, mask, **options)


# -- layers that choose some of their keys with an indexer -------------------------------------------------------------
#
# An indexer reads the mask, so such a layer is given one as a tensor of the keys that it holds, without any bias: it
# chooses among the keys that are left as it would among all keys. Under a name of an attention function that it does
# not know, the layer leaves it to that function to hide the other keys, and hands over its choice as an option.


@dataclass(frozen=True)
class Indexer:
    """What is known of the indexer of a layer."""

    is_own: bool  # if not, the layer attends to all keys, or to those that an earlier layer has chosen
    counts_columns: bool  # whether it takes the positions of queries for the numbers of their keys

    @classmethod
    def of(cls, layer: nn.Module) -> Indexer | None:
        """None: layers of its kind have none."""
        for part in layer.modules():
            if hasattr(part, "indexer"):
                return cls(part.indexer is not None, hasattr(part.indexer, "build_block_mask"))
        return None


def of_chosen_keys(mask: Any, module: Any, query: Tensor, key: Tensor, options: dict[str, Any]) -> Any:
    """The mask of a layer without the keys that it has not chosen."""
    indices, blocks = (options.get(name) for name in CHOICES)
    count = key.shape[2]
    if blocks is not None:
        return module.indexer.build_block_mask(blocks, mask, count, query.dtype, query.device, options["position_ids"])
    if indices is None:
        return mask
    places = torch.where(indices >= 0, indices, count).long()  # a place after the last key for what is no choice
    chosen = torch.zeros(*places.shape[:2], count + 1, dtype=torch.bool, device=places.device)
    return mask & chosen.scatter_(-1, places, True)[:, None, :, :count]


# -- layers that count tokens where others read positions --------------------------------------------------------------
#
# Such a layer knows only the tokens that are left, so it would take a token after a reduced image for an earlier one.
# Here it counts the tokens that the model was given.


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
    if growth_of(call.module) is None:
        return call
    rows = ledger.last(call.query.shape[2])[0].to(call.query.device)
    return grown_to(call, rows, torch.arange(ledger.length - rows.shape[1], ledger.length, device=rows.device))


def grown_to(call: AttentionCall, rows: Tensor, columns: Tensor) -> AttentionCall:
    """The call of a layer that took its queries for tokens `columns` [queries]; they are `rows` [batch, queries]."""
    growth = growth_of(call.module)
    if growth is None:
        return call
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
