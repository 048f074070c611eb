"""Hooks that run a method inside an unmodified model. They register and delegate: a pass does the work."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from covist.compiled import Parts, is_compiled, uncompiled
from covist.contract.encoder import EncoderRequest
from covist.contract.family import Removable
from covist.contract.method import Method
from covist.contract.views import PixelView
from covist.engine.attention.interface import AttentionSwitch, Indexer, bias_at_rows, distance_biases
from covist.engine.continuation import Continuation
from covist.engine.fixed_step import FixedStep
from covist.engine.passes import Pass
from covist.engine.prefill import Prefill
from covist.engine.running import current, running
from covist.engine.sequence.cache import Book, book_of, check_rule, prepares_no_mask
from covist.engine.sequence.encoded import EncodedImages
from covist.engine.sequence.host import HostCopies
from covist.engine.sequence.prompts import padding_mask, tokens_given
from covist.engine.settings import CompressionSettings, ThreadSettings
from covist.engine.watching import BlockWatch, DraftWatch
from covist.errors import CovistError
from covist.undo import ReplacedMethod, all_or_nothing

EAGER_PREFILL = (
    "a prompt is compressed in an uncompiled call: compile the model without fullgraph=True, or assign "
    "`model.forward = torch.compile(model.forward, ...)`"
)
EAGER_STEP = "under compression, torch.compile supports steps of one token over a static cache: {reason}"
NOT_STATIC = "pass cache_implementation='static' or a StaticCache"
CHUNKED = "image tokens came without their features: a chunked prefill cannot be compressed; omit `prefill_chunk_size`"
OTHER_SETTINGS = "this cache holds compressed images; continue it with the settings that filled it"


class Hooks:
    """Runs a method inside an unmodified model, from construction until `remove()`."""

    def __init__(self, settings: CompressionSettings, encoder_requests: Sequence[EncoderRequest]):
        """`encoder_requests` is all that methods may request besides the encoder layer that feeds the projector."""
        family = settings.family
        self._family, self._choice = family, ThreadSettings(settings)
        self.encoded, self._drafting = EncodedImages(), threading.local()
        self._calls, self._parts = _Calls(), Parts(family.base)
        self._installed = ExitStack()
        settings.decoder.check_backend()
        self._switch = self._put_on(AttentionSwitch(family.decoder))
        try:
            with all_or_nothing(family.model):
                self.watch_blocks(settings.method)
                for hook in self._hooks(encoder_requests):
                    self._put_on(hook)
                self.gate_patches(settings.method)
        except BaseException:
            self._installed.close()
            raise

    def _put_on(self, hook: Any) -> Any:
        self._installed.callback(hook.remove)
        return hook

    def _hooks(self, encoder_requests: Sequence[EncoderRequest]) -> Iterator[Removable]:
        family, decoder = self._family, self._family.decoder
        yield family.model.register_forward_pre_hook(self._refuse_copies)
        yield from family.capture(self.encoded.add, encoder_requests, self._requested)
        yield DraftWatch(family.model, self._note_draft)
        yield ReplacedMethod(family.model, "prepare_inputs_for_generation", partial(partial, self._prepare_inputs))
        yield ReplacedMethod(family.model, "_call_impl", partial(partial, self._call_model))
        yield ReplacedMethod(family.base, "forward", partial(partial, self._call_base))
        yield ReplacedMethod(decoder, "forward", partial(partial, self._call_decoder))
        for name, module in decoder.named_children():
            if "rotary" in name:
                yield module.register_forward_hook(_see_rotation, with_kwargs=True)
        for index, layer in enumerate(decoder.layers):
            yield layer.register_forward_pre_hook(partial(self._enter_layer, index), with_kwargs=True)
            if (indexer := Indexer.of(layer)) is not None:
                yield layer.register_forward_pre_hook(partial(_show_keys, index, indexer), with_kwargs=True)
            for part in distance_biases(layer):
                yield ReplacedMethod(part, "forward", partial(partial, _count_rows, index))

    def watch_blocks(self, method: Method) -> None:
        """Watch the blocks once a method needs it, so that other methods do not pay for hooks inside the layers."""
        if method.watches_blocks and not hasattr(self, "_blocks"):
            with all_or_nothing(self._family.decoder):
                self._blocks = self._put_on(BlockWatch(self._family.decoder.layers, method.name))

    def gate_patches(self, method: Method) -> None:
        """Put a gate in front of the vision tower once a method needs it."""
        if method.rates_patches and not hasattr(self, "_gate"):
            with all_or_nothing(self._family.base):
                self._gate = self._put_on(self._family.gate(self._rate, method.name))

    def using(self, settings: CompressionSettings | None) -> AbstractContextManager[None]:
        """Run this thread's calls with other settings in a `with` block; None leaves them uncompressed."""
        return self._choice.using(settings)

    def remove(self) -> None:
        """Take every hook off, after the calls of other threads have returned; a second call does nothing."""
        self._calls.wait()
        self._installed.close()
        self.encoded = EncodedImages()

    def __getstate__(self) -> None:
        # A copy of the hooks would still compress the original. Saving only the weights works at any time.
        raise CovistError(
            "a model cannot be copied or pickled while it is compressed; call .remove() on its handle first"
        )

    def _refuse_copies(self, module: nn.Module, args: tuple) -> None:
        """Does nothing in a call: whoever copies the model meets this hook before any other, and its refusal."""

    def _follow_backend(self) -> None:
        """Whoever chose another attention implementation since the last call did not know of covist's."""
        if self._choice.settings is not None:
            self._choice.settings.decoder.check_backend()
        self._switch.turn_on()

    # -- while images are encoded --------------------------------------------------------------------------------------

    def _requested(self) -> Sequence[EncoderRequest]:
        settings = self._choice.settings
        return () if settings is None else settings.method.encoder_requests

    def _rate(self, cells: Tensor) -> Tensor | None:
        """What the running method says of an image's tokens [frames, rows, columns, 3, values]; None if nothing."""
        settings = self._choice.settings
        if settings is None or not settings.method.rates_patches:
            return None
        shown = settings.preprocessing.in_range(cells)
        return settings.method.rate_patches(
            PixelView((cells if shown is None else shown).flatten(3), shown is not None)
        )

    def _note_draft(self, drafting: bool) -> None:
        self._drafting.now = drafting

    def _prepare_inputs(self, prepare: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What `generate` gives the next call. For a static cache it would prepare a mask of the tokens without covist.

        The text model makes its masks itself. After a compressed prompt they need no padding mask, whose length would
        change from step to step: the cache knows its keys.
        """
        cache: Any = kwargs.get("past_key_values")
        book = book_of(cache)
        is_static = cache is not None and cache.is_compileable and self._choice.settings is not None
        if not is_static or book is None and not self._family.brings_images(kwargs):
            return prepare(*args, **kwargs)
        with prepares_no_mask(cache):
            inputs = prepare(*args, **kwargs)
        if book is not None and _takes_step(book, inputs):
            inputs.pop("attention_mask", None)
        return inputs

    # -- forward calls, from the outside to the inside -----------------------------------------------------------------

    def _call_model(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The outermost call: a compiled `model.forward` takes steps, but runs prompts uncompiled."""
        model = self._family.model
        if torch.compiler.is_compiling() or not is_compiled(model) or self._choice.settings is None:
            return call(*args, **kwargs)
        with uncompiled(model) if self._is_prompt(_named(model.forward, args, kwargs)) else nullcontext():
            return call(*args, **kwargs)

    def _is_prompt(self, given: dict[str, Any]) -> bool:
        """Whether a call brings images, or several tokens after compressed ones."""
        continues = book_of(given.get("past_key_values")) is not None
        return self._family.brings_images(given) or continues and tokens_given(given) > 1

    def _call_base(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The call that sees the prompt: it decides which form of pass this is."""
        given = _named(forward, args, kwargs)
        if torch.compiler.is_compiling():
            if self._is_prompt(given):
                return _outside(self._call_base, forward, given)
            with running(_compiled_step(given)):
                return forward(**given)
        features, brings = self._family.encoded(given), self._family.brings_images(given)
        one = self._pass_for(given, brings)
        if one is not None:
            self._follow_backend()
        if isinstance(one, Pass):
            one.ids, one.mask = given.get("input_ids"), given.get("attention_mask")
        try:
            with self._calls.one(), self._uncompiled_for(one), running(one):
                return forward(*args, **kwargs)
        finally:
            if brings:
                self.encoded.brought(one.signals if isinstance(one, Prefill) else (), features)

    def _pass_for(self, given: dict[str, Any], brings_images: bool) -> Pass | FixedStep | None:
        """A prefill if there are images, a continuation after compressed images, else None: the plain model."""
        settings, book = self._choice.settings, book_of(given.get("past_key_values"))
        if settings is None:
            if book is not None:
                raise CovistError(OTHER_SETTINGS)
            return None
        # Decoding steps bring no image; not searching for image tokens avoids waiting for the device.
        # In transformers a draft sees no image, so it runs through the plain model.
        drafting = getattr(self._drafting, "now", False)
        if brings_images or self.encoded.awaited and not drafting:
            host = HostCopies()
            ids, _ = host.read(given.get("input_ids"), padding_mask(given))
            is_image = self._family.image_mask(ids, given.get("inputs_embeds")).cpu()
            if bool(is_image.any()):
                if not brings_images:
                    raise CovistError(CHUNKED)
                return Prefill(settings, is_image, host)
        return None if book is None else _continuation(settings, book, given)

    def _call_decoder(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The call of the text model, with the tokens that are left."""
        given = _named(forward, args, kwargs)
        one = current()
        if torch.compiler.is_compiling():
            if one is None and self._is_prompt(given):
                return _outside(self._call_decoder, forward, given)
            one = _compiled_step(given) if one is None else one
            if one is None or one.entered:
                return forward(**given)
            with running(one):
                return one.leave(forward(**one.enter(self._family.decoder, given)))
        if one is not None and (one.entered or one.family is not self._family):
            one = None
        book = book_of(given.get("past_key_values"))
        if one is None and book is not None:  # the text model was called by itself
            settings = self._choice.settings
            if settings is None:
                raise CovistError(OTHER_SETTINGS)
            one = _continuation(settings, book, given)
            self._follow_backend()
        with self._calls.one(), self._uncompiled_for(one), running(one):
            if one is None:
                return forward(*args, **kwargs)
            if isinstance(one, Prefill):
                one.signals = self.encoded.all()
            output = forward(**one.enter(self._family.decoder, given))
            return one.leave(output)

    def _uncompiled_for(self, one: Pass | FixedStep | None) -> AbstractContextManager[None]:
        """A pass over tokens whose number changes on the way, or from call to call, is not compiled.

        One that is running already began so. The modules are listed anew for every prompt, and not for every step.
        """
        if not isinstance(one, Pass) or one is current():
            return nullcontext()
        if isinstance(one, Prefill):
            self._parts = Parts(self._family.base)
        return uncompiled(self._family.base, self._parts)

    def _enter_layer(
        self, index: int, module: nn.Module, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[tuple, dict] | None:
        one = current()
        return None if one is None or not one.entered else one.enter_layer(index, args, kwargs)


def _see_rotation(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
    one = current()
    if one is not None and one.entered:
        one.turn(module, args, kwargs, output)


def _show_keys(
    index: int, indexer: Indexer, module: nn.Module, args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict] | None:
    """Give a layer that chooses among its keys the masks of those that it holds."""
    one = current()
    if not isinstance(one, Pass) or not one.inside:
        return None
    hidden = args[0] if args else kwargs["hidden_states"]
    return args, one.show_keys(index, indexer, hidden, kwargs)


def _count_rows(index: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Let a bias of distances count the tokens that the model was given."""
    one = current()
    if not isinstance(one, Pass) or not one.inside:
        return forward(*args, **kwargs)
    return bias_at_rows(forward, one.stage(index).ledger, _named(forward, args, kwargs))


def _named(forward: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    if not args:
        return kwargs
    bound = inspect.signature(forward).bind_partial(*args).arguments
    return {**bound.pop("kwargs", {}), **bound, **kwargs}


class _Calls:
    """Counts running calls, so that nobody takes hooks off under them."""

    def __init__(self) -> None:
        self._none = threading.Condition()
        self._running: dict[int, int] = {}  # thread -> nested calls

    @contextmanager
    def one(self) -> Iterator[None]:
        here = threading.get_ident()
        with self._none:
            self._running[here] = self._running.get(here, 0) + 1
        try:
            yield
        finally:
            with self._none:
                self._running[here] -= 1
                if not self._running[here]:
                    del self._running[here]
                    self._none.notify_all()

    def wait(self) -> None:
        """Until no other thread is in a call."""
        here = threading.get_ident()
        with self._none:
            if here in self._running:
                raise CovistError("remove() was called from within a call of the model; remove the handle after it")
            self._none.wait_for(lambda: not self._running)


def _compiled_step(given: dict[str, Any]) -> FixedStep | None:
    """What a call that is being compiled is: a step over a static cache, or None, the plain model."""
    book = book_of(given.get("past_key_values"))
    if book is None:
        return None
    if book.fixed is None or book.fixed.only_eager:
        _refuse(EAGER_STEP.format(reason=NOT_STATIC if book.fixed is None else book.fixed.only_eager))
    assert book.fixed is not None, "refused above"
    return FixedStep(book.fixed)


def _continuation(settings: CompressionSettings, book: Book, given: dict[str, Any]) -> Continuation | FixedStep:
    """Text after a compressed prompt. A static cache takes single tokens as a compiled call does."""
    if book.fixed is None or not _takes_step(book, given):
        return Continuation(settings)
    check_rule(book, settings.rule)
    return FixedStep(book.fixed, settings.family)


def _takes_step(book: Book, given: dict[str, Any]) -> bool:
    return book.fixed is not None and not book.fixed.only_eager and tokens_given(given) == 1


@torch.compiler.disable(reason=EAGER_PREFILL)
def _outside(call: Callable[..., Any], forward: Callable[..., Any], given: dict[str, Any]) -> Any:
    return call(forward, **given)


@torch.compiler.assume_constant_result
def _refuse(line: str) -> None:
    """Runs while a call is traced: an error raised by the traced code itself would only make it run uncompiled."""
    raise CovistError(line)
