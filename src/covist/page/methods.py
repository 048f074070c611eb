"""The methods to choose from, with descriptions."""

from __future__ import annotations

from covist.methods.catalogue import WHERE, describe
from covist.methods.registry import available_methods
from covist.page.choice import COVIST, STRATEGIES

COMPARED = ("covist-fixed", "covist-max", "divprune", "visionzip", "uniform")
"""The methods that are compared at first."""


def method_names() -> tuple[str, ...]:
    """The methods of the page: CoViST, whose strategy is chosen separately, and every other method by name."""
    ours = {f"{COVIST}-{strategy}" for strategy in STRATEGIES}
    return (COVIST, *(name for name in available_methods() if name not in ours))


def describe_method(name: str) -> str:
    """Where a method removes tokens, and the paper it comes from, in one line.

    >>> describe_method("uniform")
    'Removes tokens before the decoder.'
    """
    entry = describe(name)
    paper = f" {entry['paper']}." if entry["paper"] not in ("", "none") else ""
    return f"Removes tokens {WHERE[entry['where']]}.{paper}"
