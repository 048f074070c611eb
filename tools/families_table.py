"""Write docs/families-matrix.md from the figures of a run of `make test-families`.

    make test-families
    python tools/families_table.py build/families.xml

Figures change in their last digit with the CPU, so no test compares the page; the tests check the limits themselves.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from xml.etree import ElementTree

import torch
import transformers

PAGE = Path(__file__).resolve().parents[1] / "docs" / "families-matrix.md"
COLUMNS = {
    "full budget": "full",
    "reference": "reference",
    "two images": "two images",
    "video": "video",
    "batch": "batch",
    "no cache": "no cache",
    "turn": "turn",
    "beams": "beams",
    "undone": "undone",
    "fixed": "Fixed",
    "pro": "Pro",
    "fastv": "FastV",
    "bfloat16": "bf16",
    "tower": "tower",
}
"""Check -> heading."""
INTRODUCTION = """\
# Every type of transformers: measured

Tiny random models of the real classes, one or more for every vision-language type of transformers whose decoder has
visual tokens: windows of 8 tokens, chunks of 12, alternating kinds of layers, weights of standard deviation 0.08. A
figure is the largest difference of logits over six generated tokens, as a share of the largest logit, in float32 with
covist-max unless the column names another method; limits are 0 for *full* and *undone*, 1e-5 otherwise. Random weights
show that the mechanism is exact. They say nothing about quality. `fast_vlm`, `gemma3n` and `perception_lm` have
towers of timm, which is not installed for the tests: other towers stand in, and that of timm is not read.

| Column | Compressed model, compared with |
|---|---|
| full | the plain model, at a budget of all tokens |
| reference | the plain text model on the tokens that are left (4), with its masks and log m by hand |
| two images, video | the same reference, for a prompt with two images, and with a video |
| batch | each prompt of a left-padded batch alone |
| no cache | generation with a cache |
| turn | one call without a cache, after a later turn of text on the kept cache |
| beams | scores of the same tokens in one call |
| undone | the plain model before compression, also everything that hangs on its modules |
| Fixed | the reference, for covist-fixed |
| Pro, FastV | the reference, for covist-pro and fastv, which reduce inside the decoder |
| bf16 | nothing: whether a padded batch in bfloat16 gives finite logits |
| tower | nothing: whether the attention of the vision tower is read, or taken as uniform |
"""


def figures_of(results: Path) -> dict[str, dict[str, str]]:
    """Type -> check -> figure, of a report in JUnit's format."""
    found: dict[str, dict[str, str]] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        noted = {one.attrib["name"]: one.attrib["value"] for one in case.iter("property")}
        if "figure" in noted:
            failed = case.find("failure") is not None
            found.setdefault(noted["name"], {})[noted["check"]] = noted["figure"] + (" FAILED" if failed else "")
    return found


def page(figures: dict[str, dict[str, str]]) -> str:
    notes: dict[str, int] = {}
    heading = ["| Type |", *(f" {title} |" for title in COLUMNS.values())]
    rows = ["".join(heading), "|---" * (len(COLUMNS) + 1) + "|"]
    for name in sorted(figures):
        cells = [_cell(figures[name].get(check, ""), notes) for check in COLUMNS]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    measured = (
        f"{len({name.split(' (')[0] for name in figures})} types, with transformers {transformers.__version__} and "
        f"torch {torch.__version__.split('+')[0]} on a CPU (`make test-families`, `python tools/families_table.py`)."
    )
    legend = "\n".join(f"{number}. {note}" for note, number in notes.items())
    return "\n\n".join([INTRODUCTION.rstrip(), measured, "\n".join(rows), legend]) + "\n"


def _cell(figure: str, notes: dict[str, int]) -> str:
    """A number in short, a word as it is, and a longer note by its number."""
    value, _, note = figure.partition("; ")
    try:
        number = float(value)
        short = f"{number:.0e}".replace("e-0", "e-") if number else "0"
    except ValueError:
        word, separator, reason = value.partition(": ")
        short, note = (word if word == "uniform" else "–", value) if separator else (value, note)
    return short + (f" ({notes.setdefault(note, len(notes) + 1)})" if note else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="the report that `make test-families` writes")
    PAGE.write_text(page(figures_of(parser.parse_args().results)), encoding="utf-8")


if __name__ == "__main__":
    main()
