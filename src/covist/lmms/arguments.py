"""`--model_args` of lmms-eval, checked before a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from covist.api.choose import PLAIN, check_budget_of, choose_budget, choose_method
from covist.api.setup import Setup
from covist.contract.method import Method
from covist.errors import CovistError
from covist.methods.grammar import is_vanilla
from covist.request.videos import FRAMES

RUNNING = "running"
"""The paper's concentration reference: a running mean over the images in the order of the task."""


@dataclass(frozen=True)
class Arguments:
    """The arguments in `--model_args`.

    pretrained:          "tiny", "tiny-next", a folder or a hub id
    budget:              visual tokens per image, as in `covist.compress`, or "none"
    strategy, method:    CoViST's strategy, or another method; settings of a method follow a colon and are separated by
                         semicolons, because lmms-eval splits at commas
    config:              a file of `covist tune` or `covist calibrate`, or one with constants of CoViST; other arguments
                         override it
    clip:                the CLIP checkpoint of the model's vision tower
    min_coverage:        an image of which the budget would cover less runs uncompressed
    concentration:       CoViST's frozen reference, or "running"; by default every task measures its own
    frames:              evenly spaced frames to take from a video
    device, batch_size:  passed on by lmms-eval from its own options of these names
    """

    pretrained: str
    budget: int | float | str | None = None
    strategy: str | None = None
    method: str | None = None
    config: str | None = None
    clip: str | None = None
    min_coverage: float | None = None
    concentration: float | str | None = None
    frames: int = FRAMES
    dtype: str = "auto"
    attn_implementation: str | None = None
    device: str | None = None
    batch_size: int = 1

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Arguments:
        """Check everything that can be checked without a model.

        >>> Arguments.of({"pretrained": "tiny", "method": "vispruner:important=0.75;positions=keep"}).method
        'vispruner:important=0.75,positions=keep'
        """
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise CovistError(f"covist has no model argument {name!r}; it takes {', '.join(known)}")
        if "pretrained" not in given:
            raise CovistError("no model named; give --model_args pretrained=FOLDER_OR_ID")
        values = dict(given)
        for name in _COUNTS & values.keys():
            values[name] = _count(name, values[name])
        if "method" in values:
            values["method"] = str(values["method"]).replace(";", ",")
        made = cls(**{**values, "pretrained": str(values["pretrained"])})  # lmms-eval turns digits into numbers
        made._check()
        return made

    @cached_property
    def setup(self) -> Setup:
        """The settings of the file."""
        return Setup.of(self.config)

    @property
    def wanted_budget(self) -> int | float | str:
        return choose_budget(self.budget, self.setup)

    @property
    def least_coverage(self) -> float | None:
        return self.setup.min_coverage if self.min_coverage is None else self.min_coverage

    @property
    def is_plain(self) -> bool:
        """Whether the model runs uncompressed."""
        name = self.setup.method if self.method is self.strategy is None else self.method
        return self.budget == PLAIN or (name is not None and is_vanilla(name))

    @property
    def is_running(self) -> bool:
        """Whether the concentration reference is a running mean over the images."""
        return self.concentration == RUNNING

    def make_method(self) -> Method:
        """A new method object, with a frozen concentration reference if the arguments or the file give one."""
        number = None if isinstance(self.concentration, str) else self.concentration
        setup = replace(self.setup, concentration=None) if self.is_running else self.setup
        return choose_method(self.strategy, self.method, setup, number, {})

    def _check(self) -> None:
        if isinstance(self.concentration, str) and not self.is_running:
            raise CovistError(f"concentration must be a number in [0, 1] or {RUNNING!r}, got {self.concentration!r}")
        if not self.is_plain:
            check_budget_of(self.make_method(), self.wanted_budget, self.least_coverage)


_COUNTS = {"batch_size", "frames"}


def _count(name: str, value: Any) -> int:
    """A whole number of at least 1, which lmms-eval passes as text or as a number."""
    if not str(value).isdecimal() or int(value) < 1:
        raise CovistError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)
