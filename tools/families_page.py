"""Write docs/families.md from the profiles of the families, as in `covist models --all`.

    python tools/families_page.py

A test fails if the page is out of date. The facts come from the profiles of the families, the reasons from
`families/refusals.py`. Which models are refused depends on the release of transformers; the page is for that of
constraints.txt.
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

A family is a kind of model that covist can compress, whatever the sizes of its checkpoints. `covist models` shows the
same list, and [Your own method or family](extending.md) explains how to add one. *Presets* are published sizes for
`covist plan --preset` and `covist bench --geometry`, with decoder layers and visual tokens.

The embedded models need no download: `tiny` belongs to the family llava-1.5, `tiny-next` to llava-next."""
REFUSED = """\
## Not supported

Every other image-text model of transformers, with the reason that `covist.compress` gives. The reason depends on the
configuration of a checkpoint, so one of an unlisted shape may get another reason."""


def page() -> str:
    """The whole page, without families of other packages, so that it is the same on every machine."""
    ours = {family.name: family for family in families() if family.__module__.startswith("covist.")}
    parts = [f"<!-- Written by `{COMMAND}`, from the profiles of the families. -->", INTRODUCTION]
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
