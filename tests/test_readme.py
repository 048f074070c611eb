"""Every code block of the README that can run here does run, in order, in one directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^<!-- runnable -->\n```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPETS = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))


def test_the_readme_has_runnable_python_and_shell():
    assert {language for language, _ in SNIPPETS} == {"python", "bash"}


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_readme_snippet(number, tmp_path):
    language, code = SNIPPETS[number]
    command = [sys.executable, "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PATH": path})
    assert ran.returncode == 0, ran.stderr
