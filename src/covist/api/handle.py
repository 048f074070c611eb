"""The handle that `covist.compress` returns."""

from __future__ import annotations

from html import escape
from weakref import ReferenceType, WeakKeyDictionary, ref

from torch import nn

from covist.api.report import Report, build_report
from covist.contract.family import Family, unwrap
from covist.engine.hooks import Hooks
from covist.engine.prefill import Prefill, Settings
from covist.errors import CovistError

# Weak on both sides: a model that is dropped while it is compressed is freed with its handle.
_ACTIVE: WeakKeyDictionary[nn.Module, ReferenceType[Compression]] = WeakKeyDictionary()


class Compression:
    """Visual token compression on one model, active from construction until `remove()` or the end of a `with` block.

    >>> model, processor, clip = covist.tiny.load()
    >>> handle = covist.compress(model, processor, budget=64, clip=clip)
    >>> handle
    Compression of LlavaForConditionalGeneration by covist-fixed, budget 64 (active)
      no image seen yet
    >>> handle.remove()
    """

    def __init__(self, family: Family, settings: Settings):
        if Compression.of(family.model) is not None:
            raise CovistError(
                "this model is compressed already; to replace that, call .remove() on its handle first "
                "(covist.Compression.of(model) finds it)"
            )
        self.settings = settings
        self.report: Report | None = None
        """What the last prefill with images did."""
        self._model = family.model
        self._hooks = Hooks(family, settings, self._write_report)
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

    def refresh(self) -> None:
        """Read head gains and distance tables again after the model's weights changed.

        A prefill does this by itself when adapters were switched, merged or disabled, and when weights were trained,
        loaded or replaced. Writes through `.data` leave no trace that could be seen without reading the weights: call
        this after them. Hooks and report stay as they are.

        >>> import covist
        >>> model, processor, clip = covist.tiny.load()
        >>> with covist.compress(model, processor, clip=clip) as handle:
        ...     model.model.language_model.layers[0].self_attn.q_proj.weight.data *= 0.5
        ...     handle.refresh()
        """
        if not self.is_active:
            raise CovistError("this handle has been removed; compress the model again")
        self._hooks.refresh()

    def remove(self) -> None:
        """Take every hook off; the model is bit for bit what it was. A second call does nothing."""
        self._hooks.remove()
        if self.is_active:
            del _ACTIVE[self._model]

    def __repr__(self) -> str:
        how = f"{self.settings.method.name}, budget {self.settings.budget}"
        state = "active" if self.is_active else "removed, the model is as it was"
        last = "no image seen yet" if self.report is None else f"last call: {self.report.summary}"
        return f"Compression of {type(self._model).__name__} by {how} ({state})\n  {last}"

    def _repr_html_(self) -> str | None:
        """The report of the last call under the handle's own line; a notebook prints text where there is none."""
        if self.report is None:
            return None
        return f"<p>{escape(repr(self).splitlines()[0])}</p>{self.report._repr_html_()}"

    def __enter__(self) -> Compression:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def _write_report(self, prefill: Prefill) -> None:
        self.report = build_report(prefill, self.settings.decoder)
