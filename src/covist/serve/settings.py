"""How a request is compressed: the client's choice, checked, as arguments of `handle.using`."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from covist.api.choose import PLAIN
from covist.api.handle import Compression
from covist.api.setup import Setup
from covist.errors import CovistError
from covist.methods.create import create_method
from covist.methods.grammar import VANILLA, is_vanilla, parse_name
from covist.schedule import check_budget
from covist.serve.schema import CompressionChoice


@dataclass(frozen=True)
class Setting:
    """How a request is compressed; requests with the same setting can share a batch."""

    method: str
    budget: int | float | str
    arguments: tuple[tuple[str, Any], ...] = field(default=(), repr=False)  # of `handle.using`

    @property
    def is_plain(self) -> bool:
        return self.budget == PLAIN


class SettingBook:
    """Knows the server's default setting and checks those of clients.

    concentration: the frozen reference of every method that has one, so that an answer does not depend on earlier
        images
    setup: constants and calibration for the methods that read them
    """

    def __init__(self, handle: Compression, concentration: float | None, setup: Setup):
        self._handle, self._concentration, self._setup = handle, concentration, setup
        self._checking = threading.Lock()
        self.default = Setting(handle.settings.method.name, handle.settings.budget)

    def resolve(self, choice: CompressionChoice | None) -> Setting:
        """The setting of a request; an impossible one raises a `CovistError` of one line."""
        if choice is None:
            return self.default
        if choice.budget == PLAIN or (choice.method is not None and is_vanilla(choice.method)):
            return Setting(VANILLA, PLAIN, (("budget", PLAIN),))
        arguments: dict[str, Any] = {}
        name = self.default.method
        if choice.budget is not None:
            check_budget(choice.budget)
            arguments["budget"] = choice.budget
        if choice.min_coverage is not None:
            arguments["min_coverage"] = choice.min_coverage
        if choice.strategy is not None or choice.method is not None:
            name, own = self._method(choice)
            arguments |= own
        with self._checking, self._handle.using(**arguments):
            pass  # builds the method, once for each name, and refuses impossible settings
        budget = self.default.budget if choice.budget is None else choice.budget
        return Setting(name, budget, tuple(sorted(arguments.items())))

    def _method(self, choice: CompressionChoice) -> tuple[str, dict[str, Any]]:
        if choice.strategy not in (None, "fixed", "pro"):
            raise CovistError("strategy: choose 'fixed' or 'pro'")
        if choice.strategy is not None and choice.method is not None:
            raise CovistError("give either strategy (CoViST) or method, not both")
        name = f"covist-{choice.strategy}" if choice.method is None else _finite(choice.method)
        arguments: dict[str, Any] = {"method": name}
        if create_method(name).tracker is not None and self._concentration is not None:
            arguments["concentration"] = self._concentration
        return name, arguments | self._setup.options_for(name)


def _finite(name: str) -> str:
    """A method's name in its usual spelling. Each name is cached, so clients may choose only from finitely many."""
    parsed = parse_name(name)
    if parsed.settings:
        raise CovistError("method: a request cannot give settings after a colon; they are set when the server starts")
    return "+".join([parsed.base, *sorted(set(parsed.parts))])
