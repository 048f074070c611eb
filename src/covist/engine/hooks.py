"""Hooks that run a method inside an unmodified model."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from covist.contract.encoder import EncoderWish
from covist.contract.family import Family, Removable
from covist.contract.signals import ImageSignals
from covist.engine.attention import BiasedAttention
from covist.engine.blocks import BlockWatch
from covist.engine.cache import adopt, adopted_layers, check_rule, stage_layers
from covist.engine.call import Call, Stage
from covist.engine.choice import Choice, Variant
from covist.engine.conversation import Conversation
from covist.engine.drafts import DraftWatch
from covist.engine.ledger import Ledger
from covist.engine.prefill import Prefill
from covist.engine.prompt import Prompt, packed_prompts, text_ledger
from covist.engine.settings import Settings
from covist.errors import CovistError

COMPILED = (
    "torch.compile does not support a prompt whose length changes between layers: compress a model that is not "
    "compiled, and call it without torch.compile"
)


class Hooks:
    """Runs a method inside an unmodified model, from construction until `remove()`."""

    def __init__(self, family: Family, variant: Variant, encoder_layers: Sequence[EncoderWish]):
        """`encoder_layers` is all that methods may request besides the encoder layer that feeds the projector."""
        if any(module._compiled_call_impl is not None for module in family.model.modules()):
            raise CovistError(COMPILED)
        self._family = family
        self._variants = [variant]
        self.choice = Choice(variant)
        self._warned: set[str] = set()
        self.call = Call()
        self._installed: list[Removable] = self._install(encoder_layers)
        self._follow_blocks(variant)

    @property
    def _settings(self) -> Settings:
        return self.choice.variant.settings

    @property
    def _attention(self) -> BiasedAttention:
        return self.choice.variant.attention

    @property
    def default(self) -> Variant:
        """The variant of calls whose thread has chosen no other."""
        return self._variants[0]

    def add(self, variant: Variant) -> Variant:
        """Register a variant, so that it follows changes of the weights from now on."""
        self._variants.append(variant)
        self._follow_blocks(variant)
        return variant

    def refresh(self) -> None:
        """Compute everything that depends on the decoder's weights again."""
        self.default.settings.decoder.refresh()
        self._follow_rules()

    def _follow_rules(self) -> None:
        for variant in self._variants:
            variant.attention.follow(variant.settings.method.attention_rule(variant.settings.decoder))

    def remove(self) -> None:
        """Remove every hook; a second call does nothing."""
        for hook in self._installed:
            hook.remove()
        self._installed, self.call = [], Call()

    def __getstate__(self) -> None:
        # A copy of the hooks would still compress the original. Saving only the weights works at any time.
        raise CovistError(
            "a model cannot be copied or pickled while it is compressed; call .remove() on its handle first"
        )

    def _install(self, encoder_layers: Sequence[EncoderWish]) -> list[Removable]:
        decoder = self._family.decoder
        return [
            self._attention,
            *self._family.capture(self._keep_signals, encoder_layers, self._wanted),
            DraftWatch(self._family.model, self._note_draft),
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

    def _follow_blocks(self, variant: Variant) -> None:
        """Watch the blocks once a method needs it, so that other methods do not pay for hooks inside the layers."""
        if variant.settings.method.follows_blocks and not any(isinstance(one, BlockWatch) for one in self._installed):
            self._installed.append(BlockWatch(self._family.decoder.layers, lambda: self.call.prefill))

    # -- hooks, in the order in which a call reaches them -------------------------------------------------------------

    def _wanted(self) -> Sequence[EncoderWish]:
        return self._settings.method.encoder_layers if self.choice.is_on else ()

    def _keep_signals(self, signals: list[ImageSignals]) -> None:
        self.call.encoded.add(signals)

    def _note_draft(self, drafting: bool) -> None:
        self.call.drafting = drafting

    def _see_prompt(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            _refuse_compilation()
        call, family = self.call, self._family
        if args:
            kwargs = {**inspect.signature(module.forward).bind_partial(*args).arguments, **kwargs}
        input_ids = kwargs.get("input_ids")
        call.input_ids = input_ids
        call.brings_images = family.brings_images(kwargs)
        call.features = family.encoded(kwargs)
        if not self.choice.is_on:
            return
        # Decoding steps bring no image; not searching for image tokens avoids waiting for the device.
        # In transformers a draft sees no image, so it runs through the plain model.
        if not call.brings_images and (call.drafting or not call.encoded.awaited):
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
                "image tokens came without their features: a chunked prefill cannot be compressed; "
                "omit `prefill_chunk_size`"
            )
        call.is_image = is_image

    def _enter_decoder(self, module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict] | None:
        if torch.compiler.is_compiling():
            _refuse_compilation()
        call = self.call
        cache = kwargs.get("past_key_values")
        has_images = call.is_image is not None
        if not has_images and not stage_layers(cache):
            return None  # no image so far: the plain model
        if not self.choice.is_on:
            raise CovistError("this cache holds compressed images; continue it with the settings that filled it")
        if module.training and any(getattr(layer, "gradient_checkpointing", False) for layer in module.layers):
            raise CovistError(
                "gradient checkpointing runs layers again after the states of the call are gone; "
                "call model.gradient_checkpointing_disable()"
            )
        use_cache = kwargs.get("use_cache")
        if cache is not None or (module.config.use_cache if use_cache is None else use_cache):
            kwargs["past_key_values"] = cache = adopt(cache, module)
            call.cache_layers, call.seen = adopted_layers(cache), cache.get_seq_length()
            check_rule(call.cache_layers, self._attention.rule)
            if call.cache_layers[0].right_padded:  # `generate` gives tokens after the padding wrong positions
                raise CovistError("a prompt was padded on the right; set tokenizer.padding_side = 'left' to generate")
        mask = kwargs.get("attention_mask")
        if mask is not None and getattr(mask, "ndim", None) != 2:
            raise CovistError("compression builds its own masks; pass a 2-D attention_mask or none")
        call.length = kwargs["inputs_embeds"].shape[1]
        if has_images:
            return args, self._begin_prefill(kwargs, self._prompt(kwargs), call.encoded.all())
        known = call.cache_layers[0].conversation
        if known is not None and known.is_asked_again(self._settings.reader, call.input_ids, call.seen):
            return args, self._choose_again(kwargs, known)
        return args, self._continue(kwargs)

    def _enter_layer(
        self, index: int, module: nn.Module, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[tuple, dict] | None:
        call = self.call
        if not call.stages:
            return None
        hidden = args[0] if args else kwargs["hidden_states"]
        stage = call.stages[max(depth for depth in call.stages if depth <= index)]
        if call.prefill is not None and index > 0:
            hidden = call.prefill.add_companions(index, hidden)
            if index in call.prefill.depths:
                assert stage.rotary is not None, "every stage of a prefill has its own"
                with _without_autocast(hidden):
                    hidden = call.prefill.reduce(index, hidden, stage.rotary)
            if index in call.prefill.depths or self._past_changes(index):
                stage = self._open_stage(index, call.prefill.ledger, hidden)
        if call.prefill is not None:
            call.prefill.observe(index, hidden)
        kwargs = {**kwargs, **stage.attention.for_layer(index, hidden)}
        if stage.rotary is not None:
            kwargs["position_embeddings"] = stage.rotary
        if stage.positions is not None and kwargs.get("position_ids") is not None:
            kwargs["position_ids"] = stage.positions
        kwargs.pop("hidden_states", None)
        return (hidden, *args[1:]), kwargs

    def _leave_decoder(self, module: nn.Module, args: tuple, output: Any) -> Any:
        call = self.call
        if call.prefill is not None:
            if call.prefill.cache_cut_from is not None and call.cache_layers:
                self._cut_caches(call.prefill, call.prefill.cache_cut_from)
            for layer in call.cache_layers:
                layer.removed = call.seen + call.length - layer.kept
                layer.right_padded, layer.rule = call.prefill.right_padded, self._attention.rule
            restored = call.prefill.batch.restore_rows(output.last_hidden_state, call.length)
            output.last_hidden_state = restored[:, -call.shown :]  # all of them if it is 0
            if self._settings.reselect and call.cache_layers and call.prompt is not None:
                self._remember(call.prompt, call.prefill)
            if call.prefill.images:
                self.choice.variant.finished(call.prefill)
        return output

    def _forget_call(self, module: nn.Module, args: tuple, output: Any) -> None:
        """Runs after errors too, so that no state of a call is left for the next one."""
        call = self.call
        if call.brings_images:
            call.encoded.brought(call.features)
        call.brings_images, call.features = False, {}
        call.input_ids = call.is_image = call.prefill = call.prompt = None
        call.shown = 0
        call.stages, call.cache_layers, call.past, call.seen = {}, [], [], 0

    # -- what the hooks do --------------------------------------------------------------------------------------------

    def _positions(self, kwargs: dict[str, Any]) -> Tensor:
        """Uncompressed positions of the call's tokens [batch, n] or [batch, n, axes]."""
        embeddings, positions = kwargs["inputs_embeds"], kwargs.get("position_ids")
        batch, length = embeddings.shape[:2]
        if positions is None:
            positions = torch.arange(self.call.seen, self.call.seen + length, device=embeddings.device)[None]
        positions = self._settings.decoder.per_axis(positions).to(embeddings.device)
        return positions if len(positions) == batch else positions.expand(batch, *positions.shape[1:])

    def _prompt(self, kwargs: dict[str, Any]) -> Prompt:
        embeddings, mask, is_image = kwargs["inputs_embeds"], kwargs.get("attention_mask"), self.call.is_image
        assert is_image is not None, "a prompt is read only if an image came with it"
        valid = torch.ones(embeddings.shape[:2], dtype=torch.bool, device=embeddings.device)
        if mask is not None:
            valid = mask[:, -embeddings.shape[1] :].to(embeddings.device) != 0
        return Prompt(
            ids=self.call.input_ids,
            is_image=is_image.to(embeddings.device),
            embeddings=embeddings,
            positions=self._positions(kwargs),
            valid=valid,
            blocks=packed_prompts(kwargs),
        )

    def _choose_again(self, kwargs: dict[str, Any], known: Conversation) -> dict[str, Any]:
        """A new question about earlier images: empty the cache and run the conversation again."""
        call, mask = self.call, kwargs.get("attention_mask")
        assert call.input_ids is not None, "a question has tokens"
        embed = self._family.base.get_input_embeddings()
        new = (call.input_ids, kwargs["inputs_embeds"], self._positions(kwargs))
        prompt, signals = known.continued(*new, mask, embed)
        for layer in call.cache_layers:
            layer.reset()
        call.shown, call.seen, call.length = call.length, 0, prompt.embeddings.shape[1]
        return self._begin_prefill(kwargs, prompt, signals)

    def _remember(self, prompt: Prompt, prefill: Prefill) -> None:
        """Keep what a later question needs in the cache."""
        signals = list({id(image.signals): image.signals for image in prefill.images}.values())
        known = Conversation.of(prompt, signals, self.call.seen)
        self.call.cache_layers[0].conversation = known
        prefill.host_bytes, prefill.asked_again = 0 if known is None else known.host_bytes, self.call.shown > 0

    def _begin_prefill(self, kwargs: dict[str, Any], prompt: Prompt, signals: list[ImageSignals]) -> dict[str, Any]:
        call = self.call
        call.prompt = prompt if self._settings.reselect else None
        if self._settings.decoder.weights_changed():
            self.refresh()
        with torch.no_grad(), _without_autocast(prompt.embeddings):
            call.prefill, embeddings = Prefill.begin(self._settings, prompt, signals)
        text = text_ledger(call.seen, prompt, kwargs.get("attention_mask"))
        call.past = [layer.ledger or text for layer in call.cache_layers]
        stage = self._open_stage(0, call.prefill.ledger, embeddings)
        taken = dict.fromkeys(self._family.companion_arguments)
        return self._decoder_kwargs({**kwargs, **taken}, embeddings, stage.positions)

    def _continue(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Decoding, or a further turn of text: add the new tokens to every stage's ledger."""
        call, embeddings, positions = self.call, kwargs["inputs_embeds"], self._positions(kwargs)
        if (known := call.cache_layers[0].conversation) is not None:
            known.feed(call.input_ids, positions)
        depths = [depth for depth, layer in enumerate(call.cache_layers) if layer.owns_ledger]
        placed = None
        for depth, end in zip(depths, [*depths[1:], len(call.cache_layers)], strict=True):
            layer = call.cache_layers[depth]
            ledger = layer.ledger
            assert ledger is not None, "a layer that owns a ledger has one"
            if ledger.length != layer.kept:
                raise CovistError("the cache was modified; continue with the cache that this model returned")
            bound = max(ledger.reach + call.length, call.seen + call.length - 1)
            ledger.feed(positions, kwargs.get("attention_mask"), bound, self._attention.is_masked(ledger))
            own = ledger.placed(positions) if ledger.shifted else None
            if depth == 0:
                placed = own
            self._continue_stage(range(depth, end), ledger, embeddings, positions, own)
        return self._decoder_kwargs(kwargs, embeddings, placed)

    def _decoder_kwargs(self, kwargs: dict[str, Any], embeddings: Tensor, positions: Tensor | None) -> dict[str, Any]:
        """Arguments of the text model, with `positions` instead of the original ones unless None."""
        if positions is not None:
            kwargs["position_ids"] = positions if positions.ndim == 2 else positions.permute(2, 0, 1)
        # A 4-D mask makes the text model skip building its own; every layer gets the mask of its stage instead.
        placeholder = embeddings.new_zeros(1, 1, 1, 1)
        return {**kwargs, "inputs_embeds": embeddings, "attention_mask": placeholder}

    def _past_changes(self, index: int) -> bool:
        """Whether the cache held another stage from layer `index` on when this prefill began."""
        past = self.call.past
        return bool(past) and past[index] is not None and past[index] is not past[index - 1]

    def _open_stage(self, depth: int, ledger: Ledger, hidden: Tensor) -> Stage:
        """Begin a stage of a prefill: the cache layers from `depth` on share its ledger, after their earlier keys."""
        if self.call.cache_layers:
            ledger = self._after_past(depth, ledger)
            self._share_ledger(range(depth, len(self.call.cache_layers)), ledger)
        return self._prepare_stage(depth, ledger, hidden, prefill=True)

    def _after_past(self, depth: int, ledger: Ledger) -> Ledger:
        """A ledger of this prefill's keys, appended to those that the cache of a layer held before."""
        past = self.call.past[depth]
        return ledger.copy() if past is None else past.concat(ledger)

    def _share_ledger(self, layers: range, ledger: Ledger) -> None:
        """Give several cache layers one ledger; the first of them owns it."""
        for depth in layers:
            layer = self.call.cache_layers[depth]
            layer.ledger, layer.owns_ledger = ledger, depth == layers.start

    def _prepare_stage(self, depth: int, ledger: Ledger, hidden: Tensor, prefill: bool) -> Stage:
        """Attention and rotary embeddings of the layers from `depth` on, for the last tokens of the ledger."""
        queries = hidden.shape[1]
        decoder = self._settings.decoder
        positions = ledger.positions[:, -queries:]
        rotary = decoder.rotary(hidden, positions)
        self._follow_rotation()
        attention = self._attention.of_stage(ledger, queries, prefill)
        self.call.stages[depth] = stage = Stage(attention, rotary, positions)
        return stage

    def _follow_rotation(self) -> None:
        """Dynamic RoPE may have replaced its frequencies: distances and gains follow, also for keys in the cache."""
        if self._settings.decoder.rotation_changed():
            self._follow_rules()
            for layer in self.call.cache_layers:
                if layer.rule is not None:
                    layer.rule = self._attention.rule

    def _continue_stage(
        self, layers: range, ledger: Ledger, hidden: Tensor, positions: Tensor, placed: Tensor | None
    ) -> None:
        """The stage of some layers after the ledger has grown; `placed` are the positions if they are shifted."""
        attention = None
        if hidden.shape[1] == 1:
            query = positions if placed is None else placed
            attention = self._attention.of_step(ledger, query, layers, hidden.dtype)
        if attention is None:
            self._prepare_stage(layers.start, ledger, hidden, prefill=False)
            return
        rotary = None if placed is None else self._settings.decoder.rotary(hidden, placed)
        self.call.stages[layers.start] = Stage(attention, rotary, placed)

    def _cut_caches(self, prefill: Prefill, first: int) -> None:
        """Remove what the last reduction dropped from the caches of the layers before it, from layer `first` on.

        Layers that shared a ledger still share one.
        """
        layers = self.call.cache_layers
        owners = [depth for depth in range(first, prefill.last_cut) if layers[depth].owns_ledger or depth == first]
        for start, end in pairwise([*owners, prefill.last_cut]):
            columns = prefill.columns_of_survivors(start, layers[start].kept)  # [batch, kept]
            for depth in range(start, end):
                layers[depth].take(columns)
            seen = layers[start].ledger
            assert seen is not None, "a prefill gives every layer a ledger"
            self._share_ledger(range(start, end), self._after_past(start, prefill.ledger).rotated_as(seen, columns))


@torch.compiler.assume_constant_result
def _refuse_compilation() -> None:
    """Runs while a call is traced: an error raised by the traced code itself would only make it run uncompiled."""
    raise CovistError(COMPILED)


def _without_autocast(states: Tensor) -> torch.autocast:
    """The method's own arithmetic runs without autocast, whatever the model around it does."""
    return torch.autocast(states.device.type, enabled=False)
