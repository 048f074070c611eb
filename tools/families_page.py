"""Write docs/families.md from the facts of `covist models`.

    python tools/families_page.py

A test fails if the page is out of date. The facts come from the profiles of the families, `families/presets.py`,
`families/catalogue.py` and the default configurations of transformers, the reasons from `families/refusals.py`. Which
models there are depends on the release of transformers; the page is for that of constraints.txt.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from covist.contract.family import Family
from covist.families.catalogue import EVIDENCE, ModelType, model_types
from covist.families.registry import families
from covist.plan import Geometry

PAGE = Path(__file__).resolve().parents[1] / "docs" / "families.md"
COMMAND = "python tools/families_page.py"
INTRODUCTION = """\
# Models

{running} of the {all} image-text models of transformers run. A model needs no file of its own: its parts are found by
their structure, its placeholders in the configuration, the layout of its tokens in the arguments of its processor,
and its evidence where the vision tower calls its attention. A *family* is a file about models that have more to say:
tiles that make one image, markers between them, a CLIP text tower. `covist models` prints these tables, `covist
models TYPE` describes one type, and `covist doctor --model DIR` says what a checkpoint of yours would save. [Your own
method or family](extending.md) explains when a file is worth it.

*Presets* are published sizes for `covist plan --preset` and `covist bench --geometry`, with decoder layers and visual
tokens. The embedded models need no download: `tiny` is a LLaVA-1.5, `tiny-next` a LLaVA-NeXT, `tiny-video` a
LLaVA-OneVision.

A vision tower that takes images as rows of patches can be given a part of an image, which `pixelprune` does: those of
Qwen2-VL to Qwen3.5, Qwen Omni, GLM-4V and GLM-OCR, and others that reuse them. `covist.compress` refuses it elsewhere.

*Evidence* is whose attention weighs the tokens of an image:

{evidence}
"""
GROUPS = {
    "Decoders with full attention": {"full"},
    "Decoders with windows or chunks": {"sliding", "chunked"},
    "Decoders with linear attention, convolutions or Mamba": {"linear", "conv", "mamba"},
    "Decoders with latent or indexed attention": {"latent", "indexed"},
}
"""Heading -> kinds of layers; a type belongs to the last group of which it has a layer."""
REFUSED = """\
## Not supported

Models without image tokens in a causal decoder, with the reason that `covist.compress` gives."""


def page() -> str:
    """The whole page, without families of other packages, so that it is the same on every machine."""
    listed = model_types()
    running = [entry for entry in listed if entry.refusal is None]
    evidence = "\n".join(f"- **{word}**: {sentence}" for word, sentence in EVIDENCE.items())
    parts = [
        f"<!-- Written by `{COMMAND}`, from the facts of `covist models`. -->",
        INTRODUCTION.format(running=len(running), all=len(listed), evidence=evidence).rstrip(),
        "## Families",
    ]
    ours = [family for family in families() if family.__module__.startswith("covist.") and family.presets]
    for family in ours:
        parts += _section(family)
    parts.append("## Models without a description of their own")
    described = {name for family in ours for name in family.model_classes}
    others = [entry for entry in running if entry.model_class not in described]
    for heading, group in _grouped(others).items():
        parts += [f"### {heading}", _table(group)]
    refused = [f"- **{entry.model_type}**: {entry.refusal}" for entry in listed if entry.refusal is not None]
    return "\n\n".join([*parts, REFUSED, "\n".join(refused)]) + "\n"


def _section(family: type[Family]) -> Iterator[str]:
    yield f"### {family.name}"
    facts = {
        "Classes": ", ".join(f"`{name}`" for name in family.model_classes),
        "Evidence": family.encoder_signal,
        "Visual tokens of an image": family.token_count,
        "Videos": family.video,
        "Presets": ", ".join(map(_size, family.presets)),
    }
    yield "\n".join(f"- **{label}.** {fact}" for label, fact in facts.items() if fact)


def _size(preset: Geometry) -> str:
    return f"`{preset.name}` ({preset.layers} layers, {preset.tokens:,} tokens)"


def _grouped(entries: list[ModelType]) -> dict[str, list[ModelType]]:
    groups: dict[str, list[ModelType]] = {heading: [] for heading in GROUPS}
    for entry in entries:
        kinds = {kind for kind, _ in entry.layers}
        groups[[heading for heading, own in GROUPS.items() if kinds & own][-1]].append(entry)
    return groups


def _table(entries: list[ModelType]) -> str:
    rows = [
        (
            f"`{entry.model_type}`",
            f"`{entry.model_class}`",
            entry.evidence,
            ", ".join(f"{count} {kind}" for kind, count in entry.layers),
            "yes" if entry.video else "",
            ", ".join(f"`{name}`" for name in entry.presets),
            entry.note,
        )
        for entry in entries
    ]
    header = ("type", "class", "evidence", "layers", "video", "presets", "note")
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
