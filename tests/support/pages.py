"""The code on the pages of the documentation, and what each block says about itself in a mark above its fence.

<!-- runnable -->                       run by `make test`
<!-- runnable: slow -->                 run by `make test-slow`; likewise lmms, page, ray and vllm
<!-- runnable with --limit 2 -->        run with these words after each command, where all of it would take too long
<!-- not run: needs a GPU -->           or a network; there is no other reason
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (".github", "deploy", "docs", "examples", "src", "tests")
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])
}
"""Every Markdown file of the project."""
FENCE = re.compile(r"(?:^ *<!-- ([^\n]+) -->\n)?^( *)```([^\n]*)\n(.*?)^\2```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"runnable(?:: (?P<kind>slow|lmms|page|ray|vllm))?(?: with (?P<more>--.+))?")
EXCUSE = re.compile(r"not run: .*\b(GPU|network)\b.*")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and the comment above it."""

    mark: str
    language: str
    code: str

    @property
    def kind(self) -> str | None:
        """The tests that run it: "" for those of `make test`; None if it does not run."""
        mark = MARK.fullmatch(self.mark)
        return (mark["kind"] or "") if mark else None

    @property
    def is_excused(self) -> bool:
        return EXCUSE.fullmatch(self.mark) is not None

    @property
    def commands(self) -> Iterator[str]:
        """The commands of a block of shell, which end where their quotes are closed."""
        mark = MARK.fullmatch(self.mark)
        command = ""
        for line in self.code.replace("\\\n", " ").splitlines():
            command += line
            try:
                words = shlex.split(command, comments=True)
            except ValueError:  # a quote is open
                command += "\n"
                continue
            if words:
                yield f"{shlex.join(words)} {mark['more']}" if mark and mark["more"] else command
            command = ""
        assert not command, f"a quote is not closed: {command}"


def blocks_of(page: str) -> list[Block]:
    return [Block(mark, language, textwrap.dedent(code)) for mark, _, language, code in FENCE.findall(PAGES[page])]


def pages_with(kind: str) -> list[str]:
    return [page for page in PAGES if any(block.kind == kind for block in blocks_of(page))]


def prose_of(page: str) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", PAGES[page])
