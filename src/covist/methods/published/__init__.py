"""Methods of other authors: a file of code for each, and what `covist methods NAME` says about it in `info.ini`."""

from __future__ import annotations

from configparser import ConfigParser, ExtendedInterpolation
from functools import cache
from pathlib import Path

from covist.contract.method import Method, MethodInfo
from covist.methods.registry import register_method


def register_published(method: type[Method]) -> type[Method]:
    """Class decorator: register a method with the section of `info.ini` that has its name."""
    facts = {field: " ".join(text.split()) for field, text in _sections()[method.name].items()}
    needs = tuple(filter(None, facts.pop("needs").split(", ")))
    method.info = MethodInfo(**facts, needs=needs)
    return register_method(method)


@cache
def _sections() -> ConfigParser:
    sections = ConfigParser(interpolation=ExtendedInterpolation())
    sections.read_string((Path(__file__).parent / "info.ini").read_text(encoding="utf-8"))
    return sections
