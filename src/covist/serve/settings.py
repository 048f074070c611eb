"""How a request is compressed: the client's choice over the server's own setup."""

from __future__ import annotations

from covist.api.choose import CallSettings
from covist.api.handle import Compression
from covist.api.setup import Setup
from covist.errors import CovistError
from covist.methods.grammar import parse_name
from covist.serve.schema import CompressionChoice


def setup_of(handle: Compression, choice: CompressionChoice | None) -> Setup:
    """The resolved setup of a request; an impossible one raises a `CovistError` of one line.

    Requests whose setups are equal can share a batch, however their clients wrote them.
    """
    if choice is None:
        return handle.setup.resolved()
    if choice.method is not None and parse_name(choice.method).settings:
        # Methods are remembered by name, so clients may choose only from finitely many.
        raise CovistError("method: a request cannot give settings after a colon; they are set when the server starts")
    caps = [one for one in (choice.max_visual_tokens, handle.setup.max_visual_tokens) if one is not None]
    call = CallSettings.of(
        choice.strategy,
        choice.method,
        choice.budget,
        min_coverage=choice.min_coverage,
        max_visual_tokens=min(caps, default=None),  # a client may lower the server's cap, not raise it
    )
    setup = call.over(handle.setup).resolved()
    with handle.using(config=setup):
        pass  # builds the method, once for each name, and refuses impossible settings
    return setup
