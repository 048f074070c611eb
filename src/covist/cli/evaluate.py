"""`covist eval`."""

from __future__ import annotations

from covist.cli import options


def evaluate(as_json: options.Json = False, verbose: options.Verbose = False) -> None:
    """Score methods on the held-out suite."""
