"""The handle that `covist.compress` returns: hooks that run a method inside an unmodified model."""

from __future__ import annotations

import threading
import warnings
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from covist.engine.cache import StageLayer, adopt, stage_layers
from covist.engine.decoder import Rotary
from covist.engine.ledger import Ledger
from covist.engine.mask import StageMask
from covist.engine.prefill import Prefill, Prompt, Settings
from covist.engine.report import Report, build_report
from covist.methods.base import AttentionRule
from covist.models.base import Family, Removable
from covist.models.signals import ImageSignals

_ACTIVE: WeakKeyDictionary[nn.Module, Compression] = WeakKeyDictionary()


class _Stage:
    """What the layers of one stage need in the current call."""

    def __init__(self, ledger: Ledger, mask: StageMask, rotary: Rotary):
        self.ledger, self.mask, self.rotary = ledger, mask, rotary


class _Call(threading.local):
    """State of the call that is running in this thread."""

    input_ids: Tensor | None = None
    is_image: Tensor | None = None
    signals: list[ImageSignals] = []
    prefill: Prefill | None = None
    stages: dict[int, _Stage] = {}  # first layer of a stage -> the stage, in order of depth
    cache_layers: list[StageLayer] = []
    past: list[Ledger | None] = []  # per layer, what its cache held before this call
    length: int = 0


class Compression:
    """Visual token compression on one model, active from construction until `remove()` or the end of a `with` block."""

    def __init__(self, family: Family, settings: Settings):
        if family.model in _ACTIVE:
            raise ValueError("this model is compressed already; call .remove() on the first handle to replace it")
        settings.decoder.check_backend()
        self.settings = settings
        self.report: Report | None = None
        """What the last prefill with images did."""
        self._family = family
        self._rule: AttentionRule | None = settings.method.attention_rule(settings.decoder)
        self._warned: set[str] = set()
        self._call = _Call()
        self._hooks: list[Removable] = self._install()
        _ACTIVE[family.model] = self

    # -- life of the handle ------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Take every hook off; the model is bit for bit what it was. A second call does nothing."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if _ACTIVE.get(self._family.model) is self:
            del _ACTIVE[self._family.model]

    def __enter__(self) -> Compression:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def _install(self) -> list[Removable]:
        decoder = self._family.decoder
        return [
            *self._family.capture(self._keep_signals, self.settings.method.encoder_layers),
            self._family.base.register_forward_pre_hook(self._see_prompt, with_kwargs=True),
            decoder.register_forward_pre_hook(self._enter_decoder, with_kwargs=True),
            *(
                layer.register_forward_pre_hook(self._enter_layer(index), with_kwargs=True)
                for index, layer in enumerate(decoder.layers)
            ),
            decoder.register_forward_hook(self._leave_decoder),
        ]

    # -- hooks, in the order in which a call meets them ---------------------------------------------------------------

    def _keep_signals(self, signals: list[ImageSignals]) -> None:
        self._call.signals = signals

    def _see_prompt(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        call = self._call
        input_ids = kwargs.get("input_ids", args[0] if args else None)
        call.input_ids = input_ids
        call.is_image = self._family.image_mask(input_ids, kwargs.get("inputs_embeds"))
        reason = self._family.passthrough_reason(input_ids, kwargs)
        if reason is not None:
            call.is_image = torch.zeros_like(call.is_image)
            if reason not in self._warned:
                self._warned.add(reason)
                warnings.warn(reason, stacklevel=2)

    def _enter_decoder(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict] | None:
        call = self._call
        call.prefill, call.stages, call.cache_layers = None, {}, []
        cache = kwargs.get("past_key_values")
        has_images = call.is_image is not None and bool(call.is_image.any())
        if not has_images and not stage_layers(cache):
            return None  # no image so far: the plain model
        prompt = self._prompt(kwargs)
        call.length = prompt.embeddings.shape[1]
        use_cache = kwargs.get("use_cache")
        if cache is not None or (module.config.use_cache if use_cache is None else use_cache):
            kwargs["past_key_values"] = cache = adopt(cache, module)
            call.cache_layers = list(cache.layers)
        kwargs = self._begin_prefill(prompt, kwargs) if has_images else self._continue(prompt, kwargs)
        return args, kwargs

    def _enter_layer(self, index: int) -> Any:
        def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict] | None:
            call = self._call
            if not call.stages:
                return None
            hidden = args[0] if args else kwargs["hidden_states"]
            stage = call.stages[max(depth for depth in call.stages if depth <= index)]
            if call.prefill is not None and index > 0:
                if index in call.prefill.depths:
                    hidden = call.prefill.reduce(index, hidden, stage.rotary)
                if index in call.prefill.depths or self._past_changes(index):
                    stage = self._open_stage(index, call.prefill.ledger, hidden)
            if call.prefill is not None:
                call.prefill.observe(index, hidden)
            kwargs = {**kwargs, **stage.mask.for_layer(index, hidden), "position_embeddings": stage.rotary}
            kwargs.pop("hidden_states", None)
            return (hidden, *args[1:]), kwargs

        return hook

    def _leave_decoder(self, module: nn.Module, args: tuple, output: Any) -> Any:
        call = self._call
        for layer in call.cache_layers if call.stages else []:
            layer.tokens_seen += call.length
        if call.prefill is not None:
            if self.settings.method.prunes_earlier_layers and call.cache_layers:
                self._prune_earlier_layers()
            output.last_hidden_state = call.prefill.batch.restore_rows(output.last_hidden_state, call.length)
            self.report = build_report(call.prefill, self.settings.decoder)
        call.prefill, call.stages, call.cache_layers, call.is_image = None, {}, [], None
        return output

    # -- what the hooks do --------------------------------------------------------------------------------------------

    def _prompt(self, kwargs: dict[str, Any]) -> Prompt:
        embeddings = kwargs["inputs_embeds"]
        batch, length = embeddings.shape[:2]
        positions = kwargs.get("position_ids")
        if positions is None:
            cache = kwargs.get("past_key_values")
            seen = cache.get_seq_length() if cache is not None else 0
            positions = torch.arange(seen, seen + length, device=embeddings.device)[None]
        positions = self.settings.decoder.per_axis(positions)
        mask = kwargs.get("attention_mask")
        if mask is not None and mask.ndim != 2:
            raise ValueError(f"compression derives its own masks: pass a 2-D attention_mask, not {mask.ndim}-D")
        valid = torch.ones(batch, length, dtype=torch.bool, device=embeddings.device)
        if mask is not None:
            valid = mask[:, -length:].to(embeddings.device) != 0
        is_image = self._call.is_image
        return Prompt(
            ids=self._call.input_ids,
            is_image=torch.zeros_like(valid) if is_image is None else is_image.to(embeddings.device),
            embeddings=embeddings,
            positions=positions.to(embeddings.device).expand(batch, *positions.shape[1:]),
            valid=valid,
        )

    def _begin_prefill(self, prompt: Prompt, kwargs: dict[str, Any]) -> dict[str, Any]:
        call = self._call
        if call.cache_layers and not bool(prompt.valid[:, -1].all()):
            raise ValueError("a prompt is padded on the right; set tokenizer.padding_side = 'left' to use a cache")
        with torch.no_grad():
            call.prefill, embeddings = Prefill.begin(self.settings, prompt, call.signals)
        call.past = [self._past_ledger(layer, prompt, kwargs.get("attention_mask")) for layer in call.cache_layers]
        return self._decoder_kwargs(kwargs, embeddings, self._open_stage(0, call.prefill.ledger, embeddings))

    def _continue(self, prompt: Prompt, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Decoding, or a further turn of text: every stage's ledger grows by the new tokens."""
        for depth, layer in enumerate(self._call.cache_layers):
            if layer.owns_ledger:
                if layer.ledger.length != layer.kept:
                    raise ValueError(
                        "the cache was changed elsewhere; continue with the cache that this model returned"
                    )
                layer.ledger.append(prompt.positions, prompt.valid)
                self._prepare_stage(depth, layer.ledger, prompt.embeddings, prefill=False)
        return self._decoder_kwargs(kwargs, prompt.embeddings, self._call.stages[0])

    def _decoder_kwargs(self, kwargs: dict[str, Any], embeddings: Tensor, stage: _Stage) -> dict[str, Any]:
        positions = stage.ledger.positions[:, -embeddings.shape[1] :]
        positions = positions if positions.ndim == 2 else positions.permute(2, 0, 1)
        # A 4-D mask makes the text model skip building its own; every layer gets the mask of its stage instead.
        placeholder = embeddings.new_zeros(1, 1, 1, 1)
        return {**kwargs, "inputs_embeds": embeddings, "position_ids": positions, "attention_mask": placeholder}

    def _past_ledger(self, layer: StageLayer, prompt: Prompt, mask: Tensor | None) -> Ledger | None:
        """What a layer's cache holds before this prefill: its ledger, or plain text cached without compression."""
        if layer.ledger is not None or layer.kept == 0:
            return layer.ledger
        batch = len(prompt.embeddings)
        positions = torch.arange(layer.kept, device=prompt.positions.device).expand(batch, -1)
        valid = torch.ones_like(positions, dtype=torch.bool) if mask is None else mask[:, : layer.kept] != 0
        if prompt.positions.ndim == 3:
            positions = positions[..., None].expand(-1, -1, prompt.positions.shape[-1])
        return Ledger.of_text(positions, valid)

    def _past_changes(self, index: int) -> bool:
        """Whether the cache held another stage from layer `index` on when this prefill began."""
        past = self._call.past
        return bool(past) and past[index] is not None and past[index] is not past[index - 1]

    def _open_stage(self, depth: int, ledger: Ledger, hidden: Tensor) -> _Stage:
        """Begin a stage of a prefill: the cache layers from `depth` on share its ledger, behind what they held."""
        call = self._call
        if call.cache_layers:
            past = call.past[depth]
            ledger = ledger.copy() if past is None else past.concat(ledger)
            for layer in call.cache_layers[depth:]:
                layer.ledger, layer.owns_ledger = ledger, False
            call.cache_layers[depth].owns_ledger = True
        return self._prepare_stage(depth, ledger, hidden, prefill=True)

    def _prepare_stage(self, depth: int, ledger: Ledger, hidden: Tensor, prefill: bool) -> _Stage:
        """Mask and rotary embeddings of the layers from `depth` on, for the last tokens of the ledger."""
        queries = hidden.shape[1]
        decoder = self.settings.decoder
        mask = StageMask(ledger, queries, self._rule, decoder.check_backend(), prefill)
        rotary = decoder.rotary(hidden, ledger.positions[:, -queries:])
        self._call.stages[depth] = stage = _Stage(ledger, mask, rotary)
        return stage

    def _prune_earlier_layers(self) -> None:
        """Apply the last selection to the cache of every layer before it."""
        call = self._call
        *earlier, last = sorted(call.stages)
        ledger = call.stages[last].ledger
        for stage, depth in enumerate(earlier):
            for layer in call.cache_layers[depth : [*earlier, last][stage + 1]]:
                columns = call.prefill.columns_of_survivors(stage, layer.kept)  # [batch, kept]
                index = columns[:, None, :, None].expand(-1, layer.keys.shape[1], -1, layer.keys.shape[3])
                layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)
        for layer in call.cache_layers:
            layer.ledger, layer.owns_ledger = ledger, layer is call.cache_layers[0]
