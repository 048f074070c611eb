"""The handle that `covist.compress` returns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from torch import nn

from covist.api.choose import CallSettings, check_budget_of
from covist.api.report import Report, build_report
from covist.api.setup import Setup
from covist.budget import Budget, Written
from covist.config import CovistConfig
from covist.contract.encoder import EncoderRequest
from covist.contract.family import Family, unwrap
from covist.contract.method import Method
from covist.contract.reading import check_method
from covist.contract.signals import ImageSignals
from covist.engine.hooks import Hooks
from covist.engine.prefill import Prefill
from covist.engine.settings import CompressionSettings
from covist.errors import CovistError

REMEMBERED = 32
"""Methods that `using` keeps with what they remember, such as a running concentration reference."""

# Weak on both sides: a model that is dropped while it is compressed is freed with its handle.
_ACTIVE: WeakKeyDictionary[nn.Module, ReferenceType[Compression]] = WeakKeyDictionary()


@dataclass
class UsingBlock:
    """The result of a `Compression.using` block."""

    report: Report | None = None
    """What the last prefill with images in this block did; None for the plain model."""


class Compression:
    """Visual token compression of one model, active from construction until `remove()` or the end of a `with` block.

    >>> model, processor, clip = covist.tiny.load()
    >>> handle = covist.compress(model, processor, budget=64, clip=clip)
    >>> handle
    Compression of LlavaForConditionalGeneration by covist-fixed, budget 64 (active)
      no image seen yet
    >>> handle.remove()
    """

    def __init__(
        self,
        family: Family,
        settings: CompressionSettings,
        setup: Setup,
        key: Any,
        encoder_requests: Sequence[EncoderRequest],
    ):
        """`key` is what the method depends on."""
        if Compression.of(family.model) is not None:
            raise CovistError(
                "this model is already compressed; call .remove() on its handle first "
                "(covist.Compression.of(model) finds it)"
            )
        self.settings = settings = replace(settings, finished=self._write_report)
        self.setup = setup
        """How calls are compressed, unless `using` says otherwise."""
        self.report: Report | None = None
        """What the last prefill with images did."""
        self._model = family.model
        self._encoder_requests, self._own_key = frozenset(encoder_requests), key
        self._hooks = Hooks(settings, encoder_requests)
        self._methods: OrderedDict[Hashable, Method] = OrderedDict()  # those that `using` has built, latest last
        self._building = Lock()
        _ACTIVE[family.model] = ref(self)

    @staticmethod
    def of(model: nn.Module) -> Compression | None:
        """The handle that compresses `model` now, if any."""
        handle = _ACTIVE.get(unwrap(model))
        return None if handle is None else handle()

    @property
    def is_active(self) -> bool:
        """Whether the model is compressed; False after `remove()`."""
        return Compression.of(self._model) is self

    @contextmanager
    def using(
        self,
        *,
        budget: Budget | Written | None = None,
        strategy: str | None = None,
        method: str | Method | None = None,
        config: CovistConfig | Setup | str | Path | None = None,
        concentration: float | None = None,
        min_coverage: float | None = None,
        max_visual_tokens: int | None = None,
        **options: Any,
    ) -> Iterator[UsingBlock]:
        """Run this thread's calls with other settings for the duration of a `with` block.

        The arguments are those of `compress`; what is not given keeps the handle's value, as far as the method reads
        it. `budget="none"` runs the plain model, to which `max_visual_tokens` does not apply. Other threads are not
        affected, so a server can give each request its own settings on one model. `report` of the object that the
        block yields is the report of its last call.

        >>> import covist
        >>> model, processor, clip = covist.tiny.load()
        >>> image, question, answer = covist.tiny.demo()
        >>> inputs = processor(images=image, text=covist.tiny.prompt_for(question), return_tensors="pt")
        >>> with covist.compress(model, processor, budget=64, clip=clip, per_call=True) as handle:
        ...     with handle.using(budget=32, method="divprune") as run:
        ...         output = model.generate(**inputs, max_new_tokens=8)
        >>> run.report.method, run.report.mean_tokens
        ('divprune', 32.0)
        """
        self._require_active()
        call = CallSettings.of(
            strategy, method, budget, config, concentration, min_coverage, options, max_visual_tokens
        )
        run, setup, settings = UsingBlock(), call.over(self.setup), None
        if not setup.is_plain:
            chosen = self._method(call, setup) if call.concerns_method else self.settings.method
            check_budget_of(chosen, setup)
            settings = replace(
                self.settings,
                method=chosen,
                budget=setup.budget or self.settings.budget,
                min_coverage=setup.min_coverage,
                max_visual_tokens=setup.max_visual_tokens,
                finished=partial(self._write, run),
            )
        with self._hooks.using(settings):
            yield run

    def _method(self, call: CallSettings, setup: Setup) -> Method:
        """A method for `using`; one that was used before is used again, with what it remembers."""
        key = call.key(setup)
        if key == self._own_key:
            return self.settings.method
        if not _is_hashable(key):
            call.build_method(setup)  # says which option is wrong
            raise CovistError("using() takes options that are numbers, texts or tuples")
        with self._building:
            if key not in self._methods:
                chosen = call.build_method(setup)
                self._admit(chosen)
                self._methods[key] = chosen
            self._methods.move_to_end(key)
            while len(self._methods) > REMEMBERED:
                self._methods.popitem(last=False)
            return self._methods[key]

    def _admit(self, method: Method) -> None:
        """Prepare the hooks for another method; refuse one that reads what they do not record."""
        if not self._encoder_requests.issuperset(method.encoder_requests):
            raise CovistError(
                f"{method.name} reads encoder layers that this handle does not record; pass per_call=True to compress()"
            )
        check_method(method, self.settings.decoder)
        self._hooks.watch_blocks(method)
        self._hooks.gate_patches(method)

    def encoding(self) -> AbstractContextManager[list[ImageSignals]]:
        """What this thread encodes in a `with` block, as signals: states that are made before there is a prompt."""
        self._require_active()
        return self._hooks.encoded.apart()

    def expect(self, signals: ImageSignals) -> None:
        """The next prompt of this thread brings these features already encoded (`mm_encoder_outputs`)."""
        self._hooks.encoded.add([signals])

    def refresh(self) -> None:
        """Compute head gains and distance tables again after the model's weights have changed.

        A prefill does this automatically after adapters were switched, merged or disabled, and after weights were
        trained, loaded or replaced. Writes through `.data` cannot be detected without reading the weights, so call
        this after them. Hooks and report stay as they are.

        >>> import covist
        >>> model, processor, clip = covist.tiny.load()
        >>> with covist.compress(model, processor, clip=clip) as handle:
        ...     model.model.language_model.layers[0].self_attn.q_proj.weight.data *= 0.5
        ...     handle.refresh()
        """
        self._require_active()
        self.settings.rules.refresh()

    def _require_active(self) -> None:
        if not self.is_active:
            raise CovistError("this handle has been removed; compress the model again")

    def remove(self) -> None:
        """Remove every hook; the model is then bit for bit what it was before. A second call does nothing."""
        self._hooks.remove()
        if self.is_active:
            del _ACTIVE[self._model]

    def __repr__(self) -> str:
        how = f"{self.settings.method.name}, budget {self.setup.budget}"
        state = "active" if self.is_active else "removed, the model is as it was"
        last = "no image seen yet" if self.report is None else f"last call: {self.report.summary}"
        return f"Compression of {type(self._model).__name__} by {how} ({state})\n  {last}"

    def _repr_html_(self) -> str | None:
        """The handle's first line and the report of the last call; without a report, notebooks print the text."""
        if self.report is None:
            return None
        return f"<p>{escape(repr(self).splitlines()[0])}</p>{self.report._repr_html_()}"

    def __enter__(self) -> Compression:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def _write_report(self, prefill: Prefill) -> None:
        self.report = build_report(prefill, self.settings.decoder)

    def _write(self, run: UsingBlock, prefill: Prefill) -> None:
        run.report = build_report(prefill, self.settings.decoder)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
