"""Turn the arguments of a call into its settings, and settings into a method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from covist.api.setup import DEFAULT_METHOD, Setup
from covist.budget import Budget, Coverage, Plain, Written, refusal
from covist.config import CovistConfig
from covist.contract.method import Method
from covist.errors import CovistError
from covist.files import as_tuples
from covist.methods.create import create_method
from covist.methods.grammar import is_vanilla


@dataclass(frozen=True)
class CallSettings:
    """What one call of `compress` or `using` asks for; what it leaves open comes from a setup.

    asked: the arguments that are part of a setup
    config: the setup of `config=`, which they override
    options: of the method, by name
    method: a `Method` object, which brings its own options
    """

    asked: Setup = Setup()
    config: Setup = Setup()
    options: Mapping[str, Any] = field(default_factory=dict)
    method: Method | None = None

    @classmethod
    def of(
        cls,
        strategy: str | None = None,
        method: str | Method | None = None,
        budget: Budget | Written | None = None,
        config: CovistConfig | Setup | str | Path | None = None,
        concentration: float | None = None,
        min_coverage: float | None = None,
        options: Mapping[str, Any] | None = None,
        max_visual_tokens: int | None = None,
    ) -> CallSettings:
        """Check the arguments against each other."""
        if strategy not in (None, "fixed", "pro"):
            raise CovistError(f"strategy={strategy!r}: choose 'fixed' or 'pro'")
        if method is not None and strategy is not None:
            raise CovistError("give either strategy= (CoViST) or method=, not both")
        made = method if isinstance(method, Method) else None
        name = method.name if isinstance(method, Method) else method
        asked = Setup(
            f"covist-{strategy}" if strategy else name,
            budget,
            concentration,
            min_coverage=min_coverage,
            max_visual_tokens=max_visual_tokens,
        )
        call = cls(asked, Setup.of(config), options or {}, made)
        if made is not None and (call.config != Setup() or concentration is not None or options):
            raise CovistError(
                "a Method object already has its options: pass them to its constructor, and call tracker.freeze() "
                "instead of passing concentration="
            )
        return call

    def over(self, base: Setup) -> Setup:
        """The settings of the call, with those of `base` for what it leaves open."""
        return self.asked.over(self.config).over(base)

    @property
    def concerns_method(self) -> bool:
        """Whether it asks for more than another budget, coverage or cap."""
        return bool(self.options) or _method_part(self.over(Setup())) != Setup()

    def key(self, setup: Setup) -> Any:
        """What the method of a call depends on, `setup` being its settings."""
        options = tuple(sorted((name, as_tuples(value)) for name, value in self.options.items()))
        return self.method or _method_part(setup), options

    def build_method(self, setup: Setup) -> Method:
        """The method of the call, its reference frozen, `setup` being its settings.

        A reference that is asked for, and constants that are given without a method, must suit the method; others
        apply if it reads them.
        """
        if self.method is not None:
            return self.method
        name, given = setup.method or DEFAULT_METHOD, self.config
        alone = {"config": given.constants} if given.method is None and given.constants is not None else {}
        made = create_method(name, **{**alone, **setup.options_for(name), **self.options})
        if made.tracker is not None:
            made.tracker.freeze(setup.concentration)
        elif self.asked.concentration is not None:
            raise CovistError(f"{made.name} has no concentration reference to freeze; omit concentration=")
        return made


def check_budget_of(method: Method, setup: Setup) -> None:
    """Refuse a budget or a minimum coverage that the method cannot honour."""
    if isinstance(setup.budget, Plain):
        raise CovistError(refusal(str(setup.budget)))
    follows = isinstance(setup.budget, Coverage)
    needs = "min_coverage" if setup.min_coverage is not None else "budget='auto'" if follows else None
    if needs is not None and not method.measures_coverage:
        raise CovistError(
            f"{method.name} does not measure coverage, which {needs} needs; choose one of CoViST's own methods"
        )
    shared = setup.budget is not None and setup.budget.of_prompt
    if setup.min_coverage is not None and (shared or setup.max_visual_tokens is not None):
        limit = f"budget={str(setup.budget)!r}" if shared else f"max_visual_tokens={setup.max_visual_tokens}"
        raise CovistError(f"min_coverage may run images uncompressed, which {limit} rules out; give one of them")
    if setup.max_visual_tokens is not None and _sees_everything(method):
        raise CovistError(
            f"max_visual_tokens={setup.max_visual_tokens}: the first layers see all tokens with {method.name}, at any "
            "budget; choose a method that acts before the decoder (`covist methods --acts before`)"
        )


def _sees_everything(method: Method) -> bool:
    """Whether some layer sees every token of an image, however small the budget."""
    return max(method.schedule(layers=32, budget=1, tokens=576).tokens_per_layer) == 576


def check_setup(setup: Setup) -> None:
    """Refuse, before anything is loaded, a setup that cannot be run; the uncompressed model accepts any budget."""
    if setup.is_plain and setup.max_visual_tokens is not None:
        raise CovistError("max_visual_tokens needs compression, which the plain model has not; leave one of them out")
    name = setup.method or DEFAULT_METHOD
    if not is_vanilla(name):
        check_budget_of(create_method(name, **setup.options_for(name)), setup)


def _method_part(setup: Setup) -> Setup:
    return replace(setup, budget=None, min_coverage=None, max_visual_tokens=None)
