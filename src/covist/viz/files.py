"""Writing figures and pages; the file name's ending chooses the format."""

from __future__ import annotations

import warnings
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covist.errors import CovistError
from covist.extras import require_extra
from covist.outputs import replace_file, writable_file, write_text
from covist.viz.theme import Theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = (".png", ".svg", ".pdf")
PAGES = (".html",)
_UNDATED = {".png": None, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="{scheme}">
<title>{title}</title>
<style>body {{ margin: 2rem auto; max-width: 75rem; padding: 0 1rem{colours} }}</style>
</head>
<body>
{content}
</body>
</html>
"""


def writable_drawing(path: str | Path, endings: tuple[str, ...] = FIGURES + PAGES) -> Path:
    """A file that a drawing can be written to, and that it can be drawn for: refused before the work begins."""
    path = writable_file(path, endings)
    if path.suffix.lower() in FIGURES:
        require_extra(f"a figure ({path})", "figures")
    return path


def check_ending(path: str | Path, endings: tuple[str, ...] = PAGES + FIGURES) -> str:
    """The ending of a file's name, in lower case, if it is one of `endings`."""
    ending = Path(path).suffix.lower()
    if ending not in endings:
        allowed = " or ".join(filter(None, (", ".join(endings[:-1]), endings[-1])))
        raise CovistError(f"cannot write {path}: its name must end in {allowed}")
    return ending


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG, SVG or PDF; the file name's ending chooses the format.

    >>> import covist, tempfile
    >>> from matplotlib.figure import Figure
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     covist.viz.save_figure(Figure(), f"{folder}/empty.png")
    """
    from matplotlib import rc_context

    ending = check_ending(path, FIGURES)
    # Equal figures make equal files: no date, and no random names inside an SVG.
    options: dict[str, Any] = {"format": ending[1:], "dpi": 150, "facecolor": "auto", "metadata": _UNDATED[ending]}
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "covist"}):
        # Letters that the font lacks become boxes; a warning for each of them is of no use.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        replace_file(Path(path), lambda file: figure.savefig(file, **options))


def save_page(content: str, path: str | Path, title: str = "covist", theme: Theme | None = None) -> None:
    """Write an HTML fragment, such as that of `draw_html`, as a complete page.

    theme: `covist.viz.LIGHT` or `covist.viz.DARK`; by default the page is light or dark as the browser is

    >>> import covist, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     covist.viz.save_page("<p>nothing kept</p>", f"{folder}/kept.html")
    """
    check_ending(path, PAGES)
    scheme = "light dark" if theme is None else theme.scheme
    colours = "" if theme is None else f"; background: {theme.background}; color: {theme.ink}"
    write_text(Path(path), _PAGE.format(scheme=scheme, colours=colours, title=escape(title), content=content))
