"""A pass: one forward call of a compressed model. It owns all state of the call and is dropped with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from covist.backends import Attended
from covist.contract.decoder import Rotary
from covist.contract.family import Family
from covist.engine.attention.interface import EARLIER, AttentionCall, Indexer, MaskRule, recounted
from covist.engine.attention.mask import visible
from covist.engine.capture import cos_and_sin
from covist.engine.fixed_step import hold_fixed
from covist.engine.sequence.batch import along_tokens
from covist.engine.sequence.cache import Book, adopt, book_of, check_rule, compressed_layers, room_of
from covist.engine.sequence.ledger import Ledger
from covist.engine.settings import CompressionSettings
from covist.errors import CovistError

PADDING_MASKS = ("attention_mask", "conv_mask")
"""Arguments of layers that are None if nothing is padded."""


@dataclass(frozen=True)
class RotaryCall:
    """A call of a rotary module by the text model, which a stage at other positions repeats."""

    module: Callable[..., Any]
    args: tuple
    kwargs: dict[str, Any]
    output: Any

    @property
    def positions(self) -> Tensor:
        """[batch, n] or [axes, batch, n]"""
        given: Tensor = self.kwargs["position_ids"] if "position_ids" in self.kwargs else self.args[1]
        return given

    def again(self, hidden: Tensor, positions: Tensor) -> Any:
        """The same for tokens [batch, n, d] at positions [batch, n] or [batch, n, axes]."""
        given = self.positions
        placed = positions if positions.ndim == 2 else positions.permute(2, 0, 1)
        if given.ndim == 3 and placed.ndim == 2:
            placed = placed.expand(len(given), -1, -1)
        elif given.ndim == 3:
            placed = placed[-len(given) :]
        placed = placed.to(given.device)
        if "position_ids" in self.kwargs:
            return self.module(hidden, *self.args[1:], **{**self.kwargs, "position_ids": placed})
        return self.module(hidden, placed, *self.args[2:], **self.kwargs)


@dataclass
class Stage:
    """What the layers from one depth on receive in a pass."""

    attend: Callable[[AttentionCall], Attended]
    ledger: Ledger  # of its keys, those of this pass included
    samples: Tensor | None = None  # [batch] which of the model's prompts a sample is, if they are not the same
    positions: Tensor | None = None  # [batch, tokens(, axes)], if they differ from those that entered the decoder
    columns: Tensor | None = None  # [batch, tokens] places among the tokens that entered it, if some were removed since
    valid: Tensor | None = None  # [batch, tokens] bool, of tokens whose 2-D masks no longer fit
    padded: bool = False  # whether any of them is padding
    turned: dict[int, Any] = field(default_factory=dict)  # rotary embeddings at its positions
    shown: dict[MaskRule, Tensor] = field(default_factory=dict)  # masks of layers that choose among their keys

    @property
    def is_plain(self) -> bool:
        """Whether every layer takes what the text model gives it."""
        return self.positions is None and self.columns is None and self.valid is None

    def fit(self, name: str, value: Any, call: Pass, hidden: Tensor) -> Any:
        """An argument of a layer that may hold something for every token, for the tokens of this stage."""
        if value is None:  # of a layer without keys: the model saw no padding to hide
            return self.valid if name in PADDING_MASKS and self.padded else None
        rotation = next((one for one in call.rotations if one.output is value), None)
        if rotation is not None and self.positions is not None:
            if id(rotation) not in self.turned:
                self.turned[id(rotation)] = rotation.again(hidden, self.positions)
            return self.turned[id(rotation)]
        if isinstance(value, Tensor):
            return self._fit_tensor(name, value, call.width)
        if isinstance(value, tuple) and self.columns is not None:
            return tuple(self.fit(name, part, call, hidden) for part in value)
        return value

    def mask(self, rule: MaskRule, queries: int) -> Tensor:
        """[batch, 1, queries, keys] bool: what the last tokens see of all keys, for a layer that chooses among them."""
        if rule not in self.shown:
            self.shown[rule] = visible(self.ledger, rule, self.samples, queries, self.ledger.length)
        return self.shown[rule]

    def turn_keys(self, rotation: RotaryCall, hidden: Tensor) -> Any:
        """Rotary embeddings at the positions of all keys."""
        if id(self) not in self.turned:
            self.turned[id(self)] = rotation.again(hidden, self.ledger.keys.positions)
        return self.turned[id(self)]

    def _fit_tensor(self, name: str, value: Tensor, width: torch.Size) -> Tensor:
        if name.endswith("mask") and value.ndim == 2 and self.valid is not None:
            return self.valid.to(value.device, value.dtype)
        if name == "position_ids" and self.positions is not None:
            return handed(self.positions).to(value.device)
        is_per_token = value.ndim >= 2 and value.shape[:2] == width
        return along_tokens(value, self.columns) if self.columns is not None and is_per_token else value


class Pass(ABC):
    """One forward call under compression, in one of two forms: a prefill with images, or a continuation of its cache.

    inside: whether the call has reached the layers
    """

    def __init__(self, settings: CompressionSettings):
        self.settings = settings
        self.inside = self.entered = False
        self.is_plain = False  # whether every further layer takes what the text model gives it
        self.book: Book | None = None
        self.cache: Any = None
        self.layers: dict[int, Any] = {}  # of the cache, those that hold keys
        self.room: int | None = None  # keys that a static cache can hold
        self.seen = 0  # tokens of earlier calls in the cache
        self.stages: dict[int, Stage] = {}  # first layer -> what the layers from there on receive
        self.rotations: list[RotaryCall] = []
        self.width = torch.Size()  # batch and tokens that entered the decoder
        self.ids: Tensor | None = None  # [batch, n] tokens of the call, if they are known
        self.mask: Any = None  # the padding mask of the call, as the model was given it

    @property
    def family(self) -> Family:
        return self.settings.family

    # -- what the hooks call, in this order ----------------------------------------------------------------------------

    def enter(self, module: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments of the text model."""
        self.entered = True
        _refuse_checkpointing(module)
        mask = arguments.get("attention_mask")
        if isinstance(mask, Tensor) and mask.ndim != 2:
            raise CovistError("compression builds its own masks; pass a 2-D attention_mask or none")
        if arguments.get("inputs_embeds") is None:
            embed = module.get_input_embeddings()
            arguments = {**arguments, "inputs_embeds": embed(arguments["input_ids"]), "input_ids": None}
        arguments = self.prepare(module, self._with_cache(module, arguments))
        self.width = arguments["inputs_embeds"].shape[:2]
        return arguments

    def turn(self, module: Callable[..., Any], args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        """The text model has computed rotary embeddings."""
        if not self.inside:
            self.rotations.append(RotaryCall(module, args, kwargs, output))

    def enter_layer(self, index: int, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        """The arguments of a layer; None if it takes what it was given."""
        if self.is_plain:
            return None
        if not self.inside:
            self.inside = True
            self.settings.rules.follow_rotation()
            self.begin_layers()
        given = args[0] if args else kwargs["hidden_states"]
        hidden = self.before_layer(index, given, kwargs.get("position_embeddings"))
        stage = self.stage(index)
        if hidden is given and stage.is_plain:
            return None
        fitted = {name: stage.fit(name, value, self, hidden) for name, value in kwargs.items()}
        fitted.pop("hidden_states", None)
        return (hidden, *(stage.fit("", value, self, hidden) for value in args[1:])), fitted

    def show_keys(self, index: int, indexer: Indexer, hidden: Tensor, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a layer that chooses among its keys: masks instead of rules, and what else it reads."""
        stage, queries = self.stage(index), hidden.shape[1]
        if not indexer.is_own and given.get(EARLIER) is None:
            return given
        if not indexer.is_own and index and index in self.stages:
            raise CovistError(
                f"layer {index} attends to keys that an earlier layer chose among other tokens; use a method that "
                "reduces images before the decoder"
            )
        fitted = {
            name: stage.mask(value, queries) if isinstance(value, MaskRule) else value for name, value in given.items()
        }
        if indexer.counts_columns and stage.ledger.reduced:
            columns = torch.arange(stage.ledger.length - queries, stage.ledger.length, device=hidden.device)
            fitted["position_ids"] = columns.expand(len(hidden), -1)
        of_keys = (rotation for rotation in self.rotations if rotation.positions.shape[-1] > self.width[1])
        if (rotation := next(of_keys, None)) is not None and stage is not self.stages[0]:
            fitted["position_embeddings"] = stage.turn_keys(rotation, hidden)
        return fitted

    def attend(self, call: AttentionCall) -> Attended:
        """The attention of a layer."""
        stage = self.stage(call.layer)
        if self.room is not None:  # keys of a static cache come with its free room after them
            held = slice(stage.ledger.length)
            call = call._replace(key=call.key[:, :, held], value=call.value[:, :, held])
        return stage.attend(recounted(call, stage.ledger))

    def leave(self, output: Any) -> Any:
        """The output of the text model."""
        self.inside = False
        return self.finish(output)

    # -- what the two forms do -----------------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self, module: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments of the text model for the tokens that enter it."""

    def begin_layers(self) -> None:  # noqa: B027, only one of the forms has something to do
        """Before the first layer, when masks and rotary embeddings are there."""

    def before_layer(self, index: int, hidden: Tensor, rotary: Any) -> Tensor:
        """Hidden states that enter a layer."""
        return hidden

    @abstractmethod
    def finish(self, output: Any) -> Any:
        """Write down what the cache holds now, and give the output the shape that the caller expects."""

    # -- what both need ------------------------------------------------------------------------------------------------

    def stage(self, layer: int) -> Stage:
        return self.stages[max(first for first in self.stages if first <= layer)]

    def rotary(self, index: int, hidden: Tensor, given: Any) -> Rotary | None:
        """cos and sin [batch, n, width] of what a layer was given, for the stage that it belongs to now."""
        return cos_and_sin(self.stage(index).fit("position_embeddings", given, self, hidden))

    def positions(self, given: Tensor | None, width: torch.Size, device: torch.device) -> Tensor:
        """Uncompressed positions of the call's tokens [batch, n] or [batch, n, axes], from those it was given."""
        batch, length = width
        if given is None:
            given = torch.arange(self.seen, self.seen + length, device=device)[None]
        positions = self.settings.decoder.per_axis(given).to(device)
        return positions if len(positions) == batch else positions.expand(batch, *positions.shape[1:])

    def padding_mask(self, arguments: dict[str, Any]) -> Tensor | None:
        """[batch, all tokens] of the call; a model that builds its masks early hands on rules instead."""
        masks = (arguments.get("attention_mask"), self.mask)
        return next((mask for mask in masks if isinstance(mask, Tensor)), None)

    def _with_cache(self, module: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """Take over the cache of the call, or make one if the call wants it."""
        cache, use_cache = arguments.get("past_key_values"), arguments.get("use_cache")
        if cache is None and not (getattr(module.config, "use_cache", True) if use_cache is None else use_cache):
            return arguments
        self.cache = adopt(cache, module)
        self.layers, self.book = compressed_layers(self.cache), book_of(self.cache)
        self.room = room_of(self.layers.values(), module.config)
        if self.book is None:
            self.seen = int(self.cache.get_seq_length()) if self.layers else 0
        else:
            self.book.catch_up()
            self.seen = self.book.given
            check_rule(self.book, self.settings.rule)
            if self.book.right_padded:  # `generate` gives tokens after the padding wrong positions
                raise CovistError("a prompt was padded on the right; set tokenizer.padding_side = 'left' to generate")
        return {**arguments, "past_key_values": self.cache}

    def _write_down(self, book: Book, decoder: Any) -> None:
        """Let the cache know what it holds."""
        if self.room is not None:
            lead = next(iter(self.layers.values()))
            book.fixed = hold_fixed(book.stages[0], self.room, self.settings.rule, decoder, lead.fixed)
        for layer in self.layers.values():
            layer.write(book)


def handed(positions: Tensor) -> Tensor:
    """Positions [batch, n] or [batch, n, axes] in the form that a text model takes."""
    return positions if positions.ndim == 2 else positions.permute(2, 0, 1)


def without_autocast(states: Tensor) -> torch.autocast:
    """The method's own arithmetic runs without autocast, whatever the model around it does."""
    return torch.autocast(states.device.type, enabled=False)


def _refuse_checkpointing(module: nn.Module) -> None:
    layers: Any = module.layers
    if module.training and any(getattr(layer, "gradient_checkpointing", False) for layer in layers):
        raise CovistError(
            "gradient checkpointing runs layers again after the states of the call are gone; "
            "call model.gradient_checkpointing_disable()"
        )
