"""Pages of the site from the root of the repository: the changelog, how to contribute, and security."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs when it has collected docs/."""
    for name in PAGES:
        path = Path(config.config_file_path).parent / name
        text = inside_the_site(path.read_text(encoding="utf-8"), files)
        files.append(File.generated(config, name.lower(), content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Pages in docs/ link to these files where they are in the repository; the site has them beside the pages."""
    return re.sub(rf"\]\(\.\./({'|'.join(map(re.escape, PAGES))})", lambda link: f"]({link[1].lower()}", markdown)


def inside_the_site(text: str, files: Files) -> str:
    """Rewrite links for the site; a target that the site does not have becomes plain text."""

    def moved(link: re.Match[str]) -> str:
        words, target = link.groups()
        page = target.removeprefix("docs/")
        if "://" in target or target.startswith("#"):
            return link[0]
        return f"[{words}]({page})" if files.get_file_from_path(page.partition("#")[0]) else f"{words} (`{target}`)"

    return re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", moved, text)
