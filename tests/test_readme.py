"""Every code block of the README that can run here does run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from covist.cli import main

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^<!-- runnable -->\n```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPETS = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
COMMANDS = [line for language, code in SNIPPETS if language == "bash" for line in code.splitlines() if line.strip()]


def test_the_readme_has_runnable_python_and_shell():
    assert {language for language, _ in SNIPPETS} == {"python", "bash"}


def test_the_python_snippets_run(tmp_path):
    """In one process, which is mostly busy importing, but without each other's names."""
    program = "".join(f"exec({code!r}, {{}})\n" for language, code in SNIPPETS if language == "python")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_run(line, tmp_path, monkeypatch):
    """In this process; tests/test_package.py starts the program itself."""
    monkeypatch.chdir(tmp_path)
    name, *arguments = shlex.split(line, comments=True)
    assert name == "covist"
    with pytest.raises(SystemExit, match="^0$"):
        main(arguments)
