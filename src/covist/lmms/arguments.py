"""`--model_args` of lmms-eval, checked before a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from covist.api.choose import CallSettings, check_budget_of
from covist.api.setup import DEFAULT, Setup
from covist.budget import Ages, refuse_of_prompt
from covist.errors import CovistError
from covist.loading import AS_STORED, Loading
from covist.request.videos import FRAMES

RUNNING = "running"
"""The paper's concentration reference: a running mean over the images in the order of the task."""
_OF_SETUP = ("budget", "strategy", "method", "config", "min_coverage", "max_visual_tokens", "concentration")
_COUNTS = {"batch_size", "frames"}
_OTHER_NAMES = {"attn_implementation": "attention"}


@dataclass(frozen=True)
class Arguments:
    """The arguments in `--model_args`; these make up the setup:

    budget:              visual tokens per image, as in `covist.compress`, or "none"
    strategy, method:    CoViST's strategy, or another method; settings of a method follow a colon and are separated by
                         semicolons, because lmms-eval splits at commas
    config:              a file of `covist tune` or `covist calibrate`, or one with constants of CoViST; other arguments
                         override it
    min_coverage:        an image of which the budget would cover less runs uncompressed
    max_visual_tokens:   most visual tokens of a prompt in any layer
    concentration:       CoViST's frozen reference, or "running"; by default every task measures its own

    and these the model:

    pretrained:          "tiny", "tiny-next", "tiny-video", a folder or a hub id
    clip:                the CLIP checkpoint of the model's vision tower
    dtype, attention, device_map, quantization, adapter, revision, trust_remote_code:
                         how it is loaded, as in `covist.Loading`; attn_implementation is another name of attention
    frames:              evenly spaced frames to take from a video
    device, batch_size:  passed on by lmms-eval from its own options of these names
    """

    pretrained: str
    setup: Setup
    is_running: bool  # whether the concentration reference is a running mean over the images
    clip: str | None = None
    frames: int = FRAMES
    batch_size: int = 1
    loading: Loading = AS_STORED

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Arguments:
        """Check everything that can be checked without a model.

        >>> str(Arguments.of({"pretrained": "tiny", "method": "vispruner:important=0.75;positions=keep"}).setup)
        'vispruner:important=0.75,positions=keep'
        """
        given = {_OTHER_NAMES.get(name, name): value for name, value in given.items()}
        own = [field.name for field in fields(cls) if field.name not in ("setup", "is_running", "loading")]
        of_loading = [field.name for field in fields(Loading)]
        known = (*own, *of_loading, *_OF_SETUP)
        for name in given:
            if name not in known:
                raise CovistError(f"covist has no model argument {name!r}; it takes {', '.join(known)}")
        if "pretrained" not in given:
            raise CovistError("no model named; give --model_args pretrained=FOLDER_OR_ID")
        values = {name: given[name] for name in own if name in given}
        for name in _COUNTS & values.keys():
            values[name] = _count(name, values[name])
        values["pretrained"] = str(values["pretrained"])  # lmms-eval turns digits into numbers
        setup, is_running = _setup(given), given.get("concentration") == RUNNING
        loading = Loading(**{name: _written(given[name]) for name in of_loading if name in given}).over(setup.loading)
        return cls(setup=setup, is_running=is_running, loading=loading, **values)


def _setup(given: Mapping[str, Any]) -> Setup:
    """The setup that the arguments ask for; bad ones are refused."""
    reference = given.get("concentration")
    if isinstance(reference, str) and reference != RUNNING:
        raise CovistError(f"concentration must be a number in [0, 1] or {RUNNING!r}, got {reference!r}")
    is_running, cap = reference == RUNNING, given.get("max_visual_tokens")
    method = None if given.get("method") is None else str(given["method"]).replace(";", ",")
    call = CallSettings.of(
        given.get("strategy"),
        method,
        given.get("budget"),
        given.get("config"),
        None if is_running else reference,
        given.get("min_coverage"),
        max_visual_tokens=None if cap is None else _count("max_visual_tokens", cap),
    )
    setup = call.over(DEFAULT)
    if is_running:
        setup = replace(setup, concentration=None)
    if setup.budget is not None:
        refuse_of_prompt(setup.budget, "ages are those of turns, and each question of a task is one turn", Ages)
    if not setup.is_plain:
        check_budget_of(call.build_method(setup), setup)
    return setup


def _written(value: Any) -> Any:
    """A setting as it was written; lmms-eval turns digits into numbers."""
    return value if value is None or isinstance(value, bool) else str(value)


def _count(name: str, value: Any) -> int:
    """A whole number of at least 1, which lmms-eval passes as text or as a number."""
    if not str(value).isdecimal() or int(value) < 1:
        raise CovistError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)
