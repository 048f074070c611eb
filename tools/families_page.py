"""Write docs/families.md: what the families say about themselves, as in `covist models --all`.

    python tools/families_page.py

A test says when the page is out of date. Nothing is typed here:
the profiles of the families hold the facts, `families/refusals.py` the reasons. Which models are
refused hangs on the release of transformers; the page is that of constraints.txt.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from covist.families.catalogue import catalogue, refused
from covist.families.registry import families
from covist.plan import Geometry

PAGE = Path(__file__).resolve().parents[1] / "docs" / "families.md"
COMMAND = "python tools/families_page.py"
FACTS = {"signal": "Encoder signal", "tokens": "Visual tokens of an image", "video": "Videos"}
INTRODUCTION = """\
# Families

A family is a kind of model that covist can compress, whatever the sizes of its checkpoints. `covist models` lists the
same, and [Your own method or family](extending.md) says how to add one. *Presets* are published sizes that
`covist plan --preset` and `covist bench --geometry` know, with decoder layers and visual tokens.

The embedded models need no download: `tiny` is of the family llava-1.5, `tiny-next` of the family llava-next."""
REFUSED = """\
## Not supported

Every other image-text model of transformers, with the reason that `covist.compress` gives. A checkpoint is judged by
its own configuration, so one of an unlisted shape may get another reason."""


def page() -> str:
    """The whole page. Families of other packages are left out, so that it is the same wherever it is written."""
    ours = {family.name: family for family in families() if family.__module__.startswith("covist.")}
    parts = [f"<!-- Written by `{COMMAND}`, from what the families say about themselves. -->", INTRODUCTION]
    for entry in catalogue():
        if entry["family"] in ours:
            parts += _section(entry, ours[entry["family"]].presets)
    parts += [REFUSED, "\n".join(f"- **{entry['model_type']}**: {entry['reason']}" for entry in refused())]
    return "\n\n".join(parts) + "\n"


def _section(entry: dict[str, Any], presets: tuple[Geometry, ...]) -> Iterator[str]:
    yield f"## {entry['family']}"
    facts = [("Classes", ", ".join(f"`{name}`" for name in entry["classes"]))]
    facts += [(label, entry[fact]) for fact, label in FACTS.items() if entry[fact]]
    sizes = [f"`{preset.name}` ({preset.layers} layers, {preset.tokens:,} tokens)" for preset in presets]
    facts += [("Presets", ", ".join(sizes))] if sizes else []
    yield "\n".join(f"- **{label}.** {fact}" for label, fact in facts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
