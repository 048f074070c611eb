"""A file named like a photograph that is a program: Pillow would give it to Ghostscript."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import EpsImagePlugin

PROGRAM = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 32 32
%%EndComments
(/tmp/written-by-postscript) (w) file closefile
showpage
%%EOF
"""


@dataclass(frozen=True)
class FakeGhostscript:
    """A program `gs` that comes first in the search path and leaves a file when it runs."""

    trace: Path

    @classmethod
    def install(cls, folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGhostscript:
        folder.mkdir()
        made = cls(folder / "it-ran")
        program = folder / "gs"
        program.write_text(f"#!/bin/sh\ntouch {made.trace}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # what Pillow has found earlier
        return made

    @property
    def has_run(self) -> bool:
        return self.trace.exists()
