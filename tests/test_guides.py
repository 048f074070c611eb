"""The code in the documentation: what can run here runs, page by page, and the rest says why it does not."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import huggingface_hub.constants
import pytest

import covist
from covist.cli import main
from covist.methods import registry

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"(?:^<!-- (runnable|not run: [^>]+) -->\n)?^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = {path.name: BLOCK.findall(path.read_text(encoding="utf-8")) for path in sorted(DOCS.glob("*.md"))}


@pytest.mark.parametrize("page", BLOCKS)
def test_code_runs_or_says_why_not(page):
    assert [code for mark, _, code in BLOCKS[page] if not mark] == []


@pytest.mark.filterwarnings("ignore:no clip= given")
@pytest.mark.parametrize("page", [page for page, blocks in BLOCKS.items() if any("runnable" in one for one in blocks)])
def test_the_code_of_a_page_runs_in_order_in_one_folder(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(registry, "_METHODS", dict(covist.available_methods()))  # a page may register one
    names: dict[str, object] = {"__name__": "__main__"}
    for mark, language, code in BLOCKS[page]:
        if mark == "runnable" and language == "python":
            exec(compile(code, page, "exec"), names)
        elif mark == "runnable":
            for line in code.replace("\\\n", " ").splitlines():
                run(line)


def run(line: str) -> None:
    """A line of the shell, inside this process; other programs than covist are not for pages that are run."""
    words = shlex.split(line, comments=True)
    if not words:
        return
    assert words[0] == "covist", line
    with pytest.raises(SystemExit) as exit_:
        main(words[1:])
    assert not exit_.value.code, line
