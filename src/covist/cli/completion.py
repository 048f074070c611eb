"""What the shell proposes after Tab beside commands and options, which typer knows: methods, suites, tables, presets.

Every Tab starts Python anew, so the names are read without the modules that they belong to; a test compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from configparser import ConfigParser
from pathlib import Path

OWN_METHODS = ("covist-fixed", "covist-max", "covist-pro", "downsample", "frames", "random", "uniform")
SUITES = ("scenes", "scenes-hd", "films", "photos")
MODELS = ("tiny", "tiny-next", "tiny-video")
PACKAGE = Path(__file__).parent.parent


def method_names() -> list[str]:
    published = ConfigParser(interpolation=None)
    published.read(PACKAGE / "methods" / "published" / "info.ini", encoding="utf-8")
    return sorted([*OWN_METHODS, *(name for name in published.sections() if "needs" in published[name])])


def preset_names() -> list[str]:
    from covist.families.registry import presets  # families belong to torch: the one Tab that takes seconds

    return list(presets())


def table_names() -> list[str]:
    return [*sorted(path.stem for path in (PACKAGE / "reproduce" / "tables").glob("*.json")), "scenes"]


def proposing(names: Callable[[], Sequence[str]] | Sequence[str], several: bool = False) -> Callable[[str], list[str]]:
    """A function that completes one of some names, or the last of several that commas separate."""

    def propose(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",") if several else ("", "", incomplete)
        known = names() if callable(names) else names
        return [before + comma + name for name in known if name.startswith(begun)]

    return propose


one_method, several_methods = proposing(method_names), proposing(method_names, several=True)
a_preset, a_table = proposing(preset_names), proposing(table_names)
a_suite, a_model = proposing(SUITES), proposing(MODELS)
