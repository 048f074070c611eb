"""Pages of the site from the root of the repository: the changelog, how to contribute, and security."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def add_root_pages(root: Path, docs: Path) -> None:
    """Put the pages into a copy of docs/, and let those that are there already link to them."""
    for page in docs.glob("*.md"):
        page.write_text(beside_root_pages(page.read_text(encoding="utf-8")), encoding="utf-8")
    known = {path.relative_to(docs).as_posix() for path in docs.rglob("*")} | {name.lower() for name in PAGES}
    for name in PAGES:
        text = inside_the_site((root / name).read_text(encoding="utf-8"), known)
        (docs / name.lower()).write_text(text, encoding="utf-8")


def beside_root_pages(markdown: str) -> str:
    """Pages in docs/ link to these files where they are in the repository; the site has them beside the pages."""
    return re.sub(rf"\]\(\.\./({'|'.join(map(re.escape, PAGES))})", lambda link: f"]({link[1].lower()}", markdown)


def inside_the_site(text: str, known: set[str]) -> str:
    """Rewrite links for the site; a target that the site does not have becomes plain text."""

    def moved(link: re.Match[str]) -> str:
        words, target = link.groups()
        if "://" in target or target.startswith("#"):
            return link[0]
        page = target.lower() if target in PAGES else target.removeprefix("docs/")
        return f"[{words}]({page})" if page.partition("#")[0] in known else f"{words} (`{target}`)"

    return LINK.sub(moved, text)
