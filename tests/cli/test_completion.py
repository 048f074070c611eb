"""Tab in a shell: what is proposed, and that the names are those of the registries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from covist import available_methods
from covist.cli import completion
from covist.eval import SUITES
from covist.reproduce.paper import TABLES
from covist.request.checkpoints import EMBEDDED

BASH = """
eval "$(_COVIST_COMPLETE=source_bash covist)"
complete -p covist
tab() {{ COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); _covist_completion covist; echo "${{COMPREPLY[*]}}"; }}
{lines}
"""


@pytest.fixture(scope="module")
def terminal(tmp_path_factory):
    """The environment of a shell that has `covist` on its path, as installed."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "covist"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m covist "$@"\n')
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def test_the_names_are_those_of_the_registries():
    assert set(completion.method_names()) >= {"covist-fixed", "divprune"}
    known = {name for name, method in available_methods().items() if method.__module__.startswith("covist.")}
    assert set(completion.method_names()) == known
    assert set(completion.table_names()) == {*TABLES, "scenes"}
    assert set(completion.SUITES) == {*SUITES, "photos"} and set(completion.MODELS) == set(EMBEDDED)
    assert completion.a_preset("llava-1.5-7") == ["llava-1.5-7b"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_real_bash_completes_commands_options_and_names(terminal):
    words = (
        "covist conc",
        "covist run --strat",
        "covist run --strategy p",
        "covist run --method divp",
        "covist eval --methods random,divp",
        "covist reproduce --table ma",
        "covist methods vispr",
    )
    script = BASH.format(lines="\n".join(f"tab {line}" for line in words))
    bash = ["bash", "--norc", "--noprofile", "-c", script]
    ran = subprocess.run(bash, capture_output=True, text=True, env=terminal, check=True)
    told, *proposed = ran.stdout.splitlines()
    assert "-F _covist_completion covist" in told and ran.stderr == ""
    expected = ["concentration", "--strategy", "pro", "divprune", "random,divprune", "main", "vispruner"]
    assert proposed == expected


@pytest.mark.parametrize(
    ("shell", "more", "answer"),
    [
        ("zsh", {}, '"divprune"'),
        ("fish", {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}, "divprune"),
    ],
)
def test_other_shells_are_answered_too(terminal, shell, more, answer):
    asked = {"_COVIST_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "covist run --method divp"}
    ran = subprocess.run(["covist"], capture_output=True, text=True, env={**terminal, **asked, **more})
    assert answer in ran.stdout, ran.stderr
    source = {"_COVIST_COMPLETE": f"source_{shell}"}
    assert "covist" in subprocess.run(["covist"], capture_output=True, text=True, env={**terminal, **source}).stdout


def test_a_tab_does_not_import_torch(terminal):
    program = (
        "import sys; from covist.cli import app, completion; completion.several_methods('random,d'); "
        "completion.a_table('m'); print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
