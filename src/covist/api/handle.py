"""The handle that `covist.compress` returns."""

from __future__ import annotations

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
    """Visual token compression on one model, active from construction until `remove()` or the end of a `with` block."""

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

    def remove(self) -> None:
        """Take every hook off; the model is bit for bit what it was. A second call does nothing."""
        self._hooks.remove()
        if self.is_active:
            del _ACTIVE[self._model]

    def __enter__(self) -> Compression:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def _write_report(self, prefill: Prefill) -> None:
        self.report = build_report(prefill, self.settings.decoder)
