"""Hooks that run a method inside an unmodified model."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from covist.contract.decoder import Rotary
from covist.contract.family import Family, Removable
from covist.contract.signals import ImageSignals
from covist.engine.attention import BiasedAttention, StageAttention
from covist.engine.cache import StageLayer, adopt, stage_layers
from covist.engine.ledger import Ledger
from covist.engine.prefill import Prefill, Prompt, Settings
from covist.errors import CovistError


class _Stage:
    """What the layers of one stage need in the current call."""

    def __init__(self, ledger: Ledger, attention: StageAttention, rotary: Rotary):
        self.ledger, self.attention, self.rotary = ledger, attention, rotary


class _Call(threading.local):
    """State of the call that is running in this thread. `__init__` runs once per thread, so nothing is shared."""

    def __init__(self) -> None:
        self.input_ids: Tensor | None = None
        self.is_image: Tensor | None = None
        self.signals: list[ImageSignals] = []  # of the images encoded last, until others are encoded
        self.awaited = False  # whether their features have yet to come with a prompt
        self.brings_images = False
        self.prefill: Prefill | None = None
        self.stages: dict[int, _Stage] = {}  # first layer of a stage -> the stage, in order of depth
        self.cache_layers: list[StageLayer] = []
        self.past: list[Ledger | None] = []  # per layer, what its cache held before this call
        self.seen = 0  # tokens of earlier calls in the cache
        self.length = 0  # tokens of this call


class Hooks:
    """Runs a method inside an unmodified model, from construction until `remove()`."""

    def __init__(self, family: Family, settings: Settings, finished: Callable[[Prefill], None]):
        """`finished` is called after every prefill with images."""
        self._family, self._settings, self._finished = family, settings, finished
        self._attention = BiasedAttention(settings.decoder, settings.method.attention_rule(settings.decoder))
        self._warned: set[str] = set()
        self.call = _Call()
        self._installed: list[Removable] = self._install()

    def refresh(self) -> None:
        """Read again what depends on the weights of the decoder."""
        self._settings.decoder.refresh()
        self._attention.follow(self._settings.method.attention_rule(self._settings.decoder))

    def remove(self) -> None:
        """Take every hook off; a second call does nothing."""
        for hook in self._installed:
            hook.remove()
        self._installed, self.call = [], _Call()

    def __getstate__(self) -> None:
        # A copy of the hooks would go on compressing the original; the weights alone can be saved at any time.
        raise CovistError(
            "a model cannot be copied or pickled while it is compressed; call .remove() on its handle first"
        )

    def _install(self) -> list[Removable]:
        decoder = self._family.decoder
        return [
            self._attention,
            *self._family.capture(self._keep_signals, self._settings.method.encoder_layers),
            self._family.base.register_forward_pre_hook(self._see_prompt, with_kwargs=True),
            decoder.register_forward_pre_hook(self._enter_decoder, with_kwargs=True),
            *(
                layer.register_forward_pre_hook(partial(self._enter_layer, index), with_kwargs=True)
                for index, layer in enumerate(decoder.layers)
            ),
            decoder.register_forward_hook(self._leave_decoder),
            decoder.register_forward_hook(self._forget_call, always_call=True),
            self._family.base.register_forward_hook(self._forget_call, always_call=True),
        ]

    # -- hooks, in the order in which a call meets them ---------------------------------------------------------------

    def _keep_signals(self, signals: list[ImageSignals]) -> None:
        self.call.signals, self.call.awaited = signals, True

    def _see_prompt(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        call, family = self.call, self._family
        if args:
            kwargs = {**inspect.signature(module.forward).bind_partial(*args).arguments, **kwargs}
        input_ids = kwargs.get("input_ids")
        call.input_ids = input_ids
        call.brings_images = family.brings_images(kwargs)
        # While decoding there is nothing to see; not asking the device for image tokens keeps the steps free of waits.
        if not (call.brings_images or call.awaited):
            return
        reason = family.passthrough_reason(input_ids, kwargs)
        if reason is not None:
            if reason not in self._warned:
                self._warned.add(reason)
                warnings.warn(reason, stacklevel=2)
            return
        is_image = family.image_mask(input_ids, kwargs.get("inputs_embeds"))
        if not bool(is_image.any()):
            return
        if not call.brings_images:
            raise CovistError(
                "image tokens came without their features: a prefill in chunks cannot be compressed; "
                "drop `prefill_chunk_size`"
            )
        call.is_image = is_image

    def _enter_decoder(self, module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict] | None:
        call = self.call
        cache = kwargs.get("past_key_values")
        has_images = call.is_image is not None
        if not has_images and not stage_layers(cache):
            return None  # no image so far: the plain model
        if module.training and any(getattr(layer, "gradient_checkpointing", False) for layer in module.layers):
            raise CovistError(
                "gradient checkpointing runs layers a second time, when the states are gone; "
                "call model.gradient_checkpointing_disable()"
            )
        use_cache = kwargs.get("use_cache")
        if cache is not None or (module.config.use_cache if use_cache is None else use_cache):
            kwargs["past_key_values"] = cache = adopt(cache, module)
            call.cache_layers, call.seen = list(cache.layers), cache.get_seq_length()
            if cache.layers[0].right_padded:  # `generate` numbers what follows the padding wrongly
                raise CovistError("a prompt was padded on the right; set tokenizer.padding_side = 'left' to generate")
        prompt = self._prompt(kwargs)
        call.length = prompt.embeddings.shape[1]
        kwargs = self._begin_prefill(prompt, kwargs) if has_images else self._continue(prompt, kwargs)
        return args, kwargs

    def _enter_layer(
        self, index: int, module: nn.Module, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[tuple, dict] | None:
        call = self.call
        if not call.stages:
            return None
        hidden = args[0] if args else kwargs["hidden_states"]
        stage = call.stages[max(depth for depth in call.stages if depth <= index)]
        if call.prefill is not None and index > 0:
            if index in call.prefill.depths:
                with _without_autocast(hidden):
                    hidden = call.prefill.reduce(index, hidden, stage.rotary)
            if index in call.prefill.depths or self._past_changes(index):
                stage = self._open_stage(index, call.prefill.ledger, hidden)
        if call.prefill is not None:
            call.prefill.observe(index, hidden)
        kwargs = {**kwargs, **stage.attention.for_layer(index, hidden), "position_embeddings": stage.rotary}
        kwargs.pop("hidden_states", None)
        return (hidden, *args[1:]), kwargs

    def _leave_decoder(self, module: nn.Module, args: tuple, output: Any) -> Any:
        call = self.call
        if call.prefill is not None:
            if self._settings.method.prunes_earlier_layers and call.cache_layers:
                self._prune_earlier_layers()
            for layer in call.cache_layers:
                layer.removed = call.seen + call.length - layer.kept
                layer.right_padded = call.prefill.right_padded
            output.last_hidden_state = call.prefill.batch.restore_rows(output.last_hidden_state, call.length)
            self._finished(call.prefill)
        return output

    def _forget_call(self, module: nn.Module, args: tuple, output: Any) -> None:
        """Runs after errors too, so that nothing of a call is left for the next one."""
        call = self.call
        call.awaited &= not call.brings_images
        call.input_ids = call.is_image = call.prefill = None
        call.stages, call.cache_layers, call.past = {}, [], []

    # -- what the hooks do --------------------------------------------------------------------------------------------

    def _prompt(self, kwargs: dict[str, Any]) -> Prompt:
        embeddings = kwargs["inputs_embeds"]
        batch, length = embeddings.shape[:2]
        positions = kwargs.get("position_ids")
        if positions is None:
            cache = kwargs.get("past_key_values")
            seen = cache.get_seq_length() if cache is not None else 0
            positions = torch.arange(seen, seen + length, device=embeddings.device)[None]
        positions = self._settings.decoder.per_axis(positions)
        mask = kwargs.get("attention_mask")
        if mask is not None and getattr(mask, "ndim", None) != 2:
            raise CovistError("compression derives its own masks: pass a 2-D attention_mask or none")
        valid = torch.ones(batch, length, dtype=torch.bool, device=embeddings.device)
        if mask is not None:
            valid = mask[:, -length:].to(embeddings.device) != 0
        is_image = self.call.is_image
        return Prompt(
            ids=self.call.input_ids,
            is_image=torch.zeros_like(valid) if is_image is None else is_image.to(embeddings.device),
            embeddings=embeddings,
            positions=positions.to(embeddings.device).expand(batch, *positions.shape[1:]),
            valid=valid,
        )

    def _begin_prefill(self, prompt: Prompt, kwargs: dict[str, Any]) -> dict[str, Any]:
        call = self.call
        if self._settings.decoder.weights_changed():
            self.refresh()
        with torch.no_grad(), _without_autocast(prompt.embeddings):
            call.prefill, embeddings = Prefill.begin(self._settings, prompt, call.signals)
        text = _text_ledger(call.seen, prompt, kwargs.get("attention_mask"))
        call.past = [layer.ledger or text for layer in call.cache_layers]
        return self._decoder_kwargs(kwargs, embeddings, self._open_stage(0, call.prefill.ledger, embeddings))

    def _continue(self, prompt: Prompt, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Decoding, or a further turn of text: every stage's ledger grows by the new tokens."""
        text = Ledger.of_text(prompt.positions, prompt.valid)
        for depth, layer in enumerate(self.call.cache_layers):
            if layer.owns_ledger:
                if layer.ledger.length != layer.kept:
                    raise CovistError(
                        "the cache was changed elsewhere; continue with the cache that this model returned"
                    )
                layer.ledger.append(text)
                self._prepare_stage(depth, layer.ledger, prompt.embeddings, prefill=False)
        return self._decoder_kwargs(kwargs, prompt.embeddings, self.call.stages[0])

    def _decoder_kwargs(self, kwargs: dict[str, Any], embeddings: Tensor, stage: _Stage) -> dict[str, Any]:
        positions = stage.ledger.positions[:, -embeddings.shape[1] :]
        positions = positions if positions.ndim == 2 else positions.permute(2, 0, 1)
        # A 4-D mask makes the text model skip building its own; every layer gets the mask of its stage instead.
        placeholder = embeddings.new_zeros(1, 1, 1, 1)
        return {**kwargs, "inputs_embeds": embeddings, "position_ids": positions, "attention_mask": placeholder}

    def _past_changes(self, index: int) -> bool:
        """Whether the cache held another stage from layer `index` on when this prefill began."""
        past = self.call.past
        return bool(past) and past[index] is not None and past[index] is not past[index - 1]

    def _open_stage(self, depth: int, ledger: Ledger, hidden: Tensor) -> _Stage:
        """Begin a stage of a prefill: the cache layers from `depth` on share its ledger, behind what they held."""
        call = self.call
        if call.cache_layers:
            past = call.past[depth]
            ledger = ledger.copy() if past is None else past.concat(ledger)
            for layer in call.cache_layers[depth:]:
                layer.ledger, layer.owns_ledger = ledger, False
            call.cache_layers[depth].owns_ledger = True
        return self._prepare_stage(depth, ledger, hidden, prefill=True)

    def _prepare_stage(self, depth: int, ledger: Ledger, hidden: Tensor, prefill: bool) -> _Stage:
        """Attention and rotary embeddings of the layers from `depth` on, for the last tokens of the ledger."""
        queries = hidden.shape[1]
        decoder = self._settings.decoder
        attention = self._attention.of_stage(ledger, queries, prefill)
        rotary = decoder.rotary(hidden, ledger.positions[:, -queries:])
        self.call.stages[depth] = stage = _Stage(ledger, attention, rotary)
        return stage

    def _prune_earlier_layers(self) -> None:
        """Apply the last selection to the cache of every layer before it."""
        call = self.call
        last = max(call.stages)
        for depth, layer in enumerate(call.cache_layers[:last]):
            columns = call.prefill.columns_of_survivors(depth, layer.kept).to(layer.keys.device)  # [batch, kept]
            index = columns[:, None, :, None].expand(-1, layer.keys.shape[1], -1, layer.keys.shape[3])
            layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)
        for layer in call.cache_layers:
            layer.ledger, layer.owns_ledger = call.stages[last].ledger, layer is call.cache_layers[0]


def _without_autocast(states: Tensor) -> torch.autocast:
    """The method's own arithmetic runs in float32, whatever the model around it does."""
    return torch.autocast(states.device.type, enabled=False)


def _text_ledger(length: int, prompt: Prompt, mask: Tensor | None) -> Ledger | None:
    """What a cache holds that was filled without compression: `length` text tokens before the prompt."""
    if length == 0:
        return None
    batch, device = len(prompt.embeddings), prompt.positions.device
    valid = torch.ones(batch, length, dtype=torch.bool, device=device)
    if mask is not None:
        valid = mask[:, :length].to(device) != 0
    positions = (valid.cumsum(1) - 1).clamp(min=0)
    if prompt.positions.ndim == 3:
        positions = positions[..., None].expand(-1, -1, prompt.positions.shape[-1])
    return Ledger.of_text(positions, valid)
