"""Turn a caller's choice into a method: a strategy, a name with settings, or an existing `Method` object."""

from __future__ import annotations

from typing import Any

from covist.api.setup import Setup
from covist.contract.method import Method
from covist.errors import CovistError
from covist.methods.create import create_method
from covist.methods.grammar import is_vanilla
from covist.schedule import CoverageBudget, check_budget, check_coverage

DEFAULT_METHOD, DEFAULT_BUDGET = "covist-fixed", 64
PLAIN = "none"
"""The budget that runs the plain model, where a budget can be chosen for single calls or runs."""


def choose_method(
    strategy: str | None,
    method: str | Method | None,
    setup: Setup,
    concentration: float | None,
    options: dict[str, Any],
) -> Method:
    """The method for the arguments of `compress()`. Arguments take precedence over the setup."""
    if strategy not in (None, "fixed", "pro"):
        raise CovistError(f"strategy={strategy!r}: choose 'fixed' or 'pro'")
    if method is not None and strategy is not None:
        raise CovistError("give either strategy= (CoViST) or method=, not both")
    if isinstance(method, Method):
        if setup != Setup() or concentration is not None or options:
            raise CovistError(
                "a Method object already has its options: pass them to its constructor, and call tracker.freeze() "
                "instead of passing concentration="
            )
        return method
    named = None if strategy is None else f"covist-{strategy}"
    name = method or named or setup.method or DEFAULT_METHOD
    chosen = create_method(name, **_options(setup, name), **options)
    if concentration is None and chosen.tracker is not None:
        concentration = setup.concentration
    if concentration is not None:
        if chosen.tracker is None:
            raise CovistError(f"{chosen.name} has no concentration reference to freeze; omit concentration=")
        chosen.tracker.freeze(concentration)
    return chosen


def choose_budget(given: int | float | str | None, setup: Setup) -> int | float | str:
    """The given budget, else the setup's, else the default."""
    return next(one for one in (given, setup.budget, DEFAULT_BUDGET) if one is not None)


def check_budget_of(method: Method, budget: int | float | str, min_coverage: float | None) -> None:
    """Refuse an invalid budget or minimum coverage, and one that the method cannot honour."""
    check_budget(budget)
    check_coverage(min_coverage)
    needs = "min_coverage" if min_coverage is not None else "budget='auto'" if CoverageBudget.read(budget) else None
    if needs is not None and not method.measures_coverage:
        raise CovistError(
            f"{method.name} does not measure coverage, which {needs} needs; choose one of CoViST's own methods"
        )


def check_run(name: str, budget: int | float | str, min_coverage: float | None = None) -> None:
    """`check_budget_of` for a method's name, before anything is loaded; the plain model accepts any budget."""
    if is_vanilla(name):
        check_budget(budget)
    else:
        check_budget_of(create_method(name), budget, min_coverage)


def _options(setup: Setup, name: str) -> dict[str, Any]:
    """The setup's options for a method. Constants given without a method must suit it; others apply if it reads any."""
    alone = {"config": setup.constants} if setup.method is None and setup.constants is not None else {}
    return alone | setup.options_for(name)
