"""A sheet as Markdown, LaTeX, JSON or an image; in each of them every line says where its figures come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from covist.errors import CovistError
from covist.eval.tables import markdown_table
from covist.outputs import write_json
from covist.reproduce.sheet import PAPER, ResultSheet, SheetLine
from covist.viz import save_figure
from covist.viz.files import FIGURES, writable_drawing
from covist.viz.theme import LIGHT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, SOFT, FAINT = LIGHT.ink, LIGHT.soft, LIGHT.faint
TEXTS = (".md", ".tex", ".json")
ENDINGS = TEXTS + FIGURES
LETTER, LINE, MARGIN = 0.078, 0.205, 0.3  # inches of a letter and a line, and around the table
GAP = 0.22  # inches between columns
_ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "†": r"$^{\dagger}$", "‡": r"$^{\ddagger}$", "²": r"$^2$",
}  # fmt: skip


def check_destination(path: Path) -> Path:
    """Refuse a file that cannot be written or has an unknown ending."""
    if path.suffix.lower() not in ENDINGS:
        raise CovistError(f"cannot write {path}: its name must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    return writable_drawing(path, ENDINGS)


def save(sheet: ResultSheet, content: dict[str, Any], path: Path) -> None:
    """Write a table in the format of the file's ending; `content` is the content of a JSON file."""
    ending = path.suffix.lower()
    texts: dict[str, Callable[[ResultSheet], str]] = {".md": markdown, ".tex": latex}
    if ending in texts:
        path.write_text(texts[ending](sheet), encoding="utf-8")
    elif ending == ".json":
        write_json(path, content)
    else:
        save_figure(draw(sheet), path)


def markdown(sheet: ResultSheet) -> str:
    """Markdown, with your own results in bold."""
    lines = zip(sheet.lines, sheet.rows, strict=True)
    rows = [row if line.origin == PAPER else [f"**{cell}**" for cell in row] for line, row in lines]
    notes = "\n".join(f"- {note}" for note in sheet.notes)
    parts = [f"# {sheet.title}", sheet.legend, markdown_table(sheet.head, rows), notes]
    return "\n\n".join(part for part in parts if part) + "\n"


def latex(sheet: ResultSheet) -> str:
    """LaTeX for the packages booktabs and graphicx, with a rule between budgets."""
    columns = "ll" + "r" * (1 + len(sheet.headings))
    lines = [_tex_row(sheet.head)]
    for number, (line, row) in enumerate(zip(sheet.lines, sheet.rows, strict=True)):
        lines += [r"\midrule"] if number in _breaks(sheet) else []
        lines.append(_tex_row(row, bold=line.origin != PAPER))
    notes = "".join(f" {_tex(note[0].upper() + note[1:])}." for note in sheet.notes)
    return "\n".join(
        [
            r"% needs \usepackage{booktabs,graphicx}",
            r"\begin{table}\centering",
            rf"\caption{{{_tex(sheet.title)}. {_tex(sheet.legend)}{notes}}}",
            rf"\resizebox{{\linewidth}}{{!}}{{\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
            r"\toprule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table}",
            "",
        ]
    )


def draw(sheet: ResultSheet) -> Figure:
    """An image: the paper's lines in grey, yours in black, CoViST's name in its colour."""
    from matplotlib.figure import Figure

    rows = [sheet.head, *sheet.rows]
    widths = [max(LETTER * len(cell) for cell in column) + GAP for column in zip(*rows, strict=True)]
    width = max(sum(widths) + 2 * MARGIN, 7.0)
    below = [line for text in (sheet.legend, *sheet.notes) for line in wrap(text, int((width - 2 * MARGIN) / 0.066))]
    top, bottom = 0.75, 0.35 + 0.17 * len(below)
    height = top + LINE * len(rows) + bottom
    figure = Figure(figsize=(width, height), facecolor=LIGHT.background)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    axes.text(MARGIN, 0.32, sheet.title, fontsize=13, weight="bold", color=INK, va="center", parse_math=False)
    places = _places(widths)
    for number, row in enumerate(rows):
        line = sheet.lines[number - 1] if number else None
        for column, (cell, place) in enumerate(zip(row, places, strict=True)):
            side = "left" if column < 2 else "right"
            style = _style(line, column)
            axes.text(place, top + LINE * number, cell, fontsize=8.5, ha=side, va="center", parse_math=False, **style)
    for number in _breaks(sheet):
        axes.axhline(top + LINE * (number + 0.5), MARGIN / width, 1 - MARGIN / width, color=FAINT, linewidth=0.7)
    foot = "\n".join(below)
    axes.text(MARGIN, height - bottom + 0.12, foot, fontsize=8, color=SOFT, va="top", linespacing=1.3, parse_math=False)
    return figure


def _places(widths: Sequence[float]) -> list[float]:
    """Where the cells of each column begin (the first two) or end (the others)."""
    starts = [MARGIN + sum(widths[:number]) for number in range(len(widths))]
    return [start if number < 2 else start + widths[number] - GAP / 2 for number, start in enumerate(starts)]


def _style(line: SheetLine | None, column: int) -> dict[str, Any]:
    if line is None:
        return {"color": INK, "weight": "bold"}
    if column == 0 and line.is_covist:
        return {"color": LIGHT.lines[0], "weight": "bold"}
    return {"color": SOFT} if line.origin == PAPER else {"color": INK, "weight": "bold"}


def _breaks(sheet: ResultSheet) -> list[int]:
    """Numbers of the lines that begin a block."""
    return [0, *(n for n, (above, line) in enumerate(pairwise(sheet.lines), 1) if above.block != line.block)]


def _tex_row(row: Sequence[str], bold: bool = False) -> str:
    return " & ".join(rf"\textbf{{{_tex(cell)}}}" if bold else _tex(cell) for cell in row) + r" \\"


def _tex(text: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) for letter in text)
