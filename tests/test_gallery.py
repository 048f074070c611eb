"""The gallery: complete, and each kind of its figures can be drawn."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.reports import image_report
from support.tools import tool

from covist.families.registry import families
from covist.grid import Grid
from covist.methods.registry import methods_for_any_model
from covist.viz.theme import DARK, LIGHT

DOCS = Path(__file__).parents[1] / "docs"
FIGURE = re.compile(r"\(((?:gallery|front)/\S+)-(light|dark)\.webp#only-(light|dark)\)")
PAGES = ("gallery.md", "gallery-before.md", "gallery-inside.md", "gallery-families.md", "gallery-film.md")
LARGEST = 450_000  # bytes


@pytest.fixture(scope="module")
def gallery():
    return tool("gallery.py")


def of_this_package(registered) -> bool:
    return registered.__module__.startswith("covist.")


def words(figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


def text_of(*pages: str) -> str:
    return "\n".join((DOCS / page).read_text(encoding="utf-8") for page in pages)


def test_the_pages_name_every_method_and_every_family():
    page = text_of(*PAGES)
    names = [name for name, method in methods_for_any_model().items() if of_this_package(method)]
    names += [family.name for family in families() if of_this_package(family) and family.presets]
    assert [name for name in names if f"`{name}`" not in page] == [], "run python tools/gallery.py"


def test_the_overview_leads_to_every_page_under_the_headings_that_it_had_alone():
    overview = text_of("gallery.md")
    sections = dict(re.findall(r"^## (.+)\n\n.+ \[Look at them\]\((.+)\)\.$", overview, re.M))
    assert list(sections) == ["Before the decoder", "Inside the decoder", "Every family", "A film"]
    assert tuple(sections.values()) == PAGES[1:]
    assert [text_of(page).split("\n# ")[1].splitlines()[0] for page in sections.values()] == list(sections)


def test_a_page_of_the_gallery_has_few_figures():
    assert [len(FIGURE.findall(text_of(page))) // 2 for page in PAGES] == [0, 4, 4, 1, 2]


@pytest.mark.parametrize("page", ["gallery.md", "index.md", "../README.md"])
def test_a_photograph_is_shown_with_its_licence_and_what_it_does_not_show(page):
    text = " ".join(text_of(page).split())
    assert re.search(r"photograph\S*-(?:light|dark)\.webp", text)
    assert "Rachel Michetti, CC0, from the data of scikit-image" in text
    assert "cannot answer about photographs" in text or "what it answers about them means nothing" in text
    assert "grids" in text or "was measured" in text


def test_every_figure_is_there_for_light_and_dark_pages_and_none_is_left_over():
    found = FIGURE.findall(text_of(*PAGES, "index.md"))
    assert all(drawn == shown for _, drawn, shown in found)
    named = {f"{name}-{theme}.webp" for name, theme, _ in found}
    assert named == {f"{name}-{theme}.webp" for name, _, _ in found for theme in ("light", "dark")}
    drawn = [path for folder in ("gallery", "front") for path in (DOCS / folder).glob("*-*.webp")]
    written = {path.relative_to(DOCS).as_posix(): path.stat().st_size for path in drawn}
    assert set(written) == named
    assert {name: size for name, size in written.items() if size > LARGEST} == {}


def test_the_figures_of_the_front_pages_can_be_drawn(gallery):
    show, still = gallery.show, gallery.images.stills()["photograph"]
    kept, _ = show.kept_of(still)
    assert len(kept.kept) == show.BUDGET
    assert words(show.draw_unanswered(still, kept, LIGHT))[:2] == [
        "A photograph",
        "covist-fixed: 64 of 576 visual tokens per layer",
    ]
    (axes,) = show.draw_square(still, kept, DARK).axes
    assert len(axes.collections[-1].get_offsets()) == show.BUDGET


def test_methods_are_drawn_in_the_groups_of_what_decides(gallery):
    names, still = ["divprune", "covist-pro", "uniform"], gallery.images.stills()["landscape"]
    reports = gallery.methods.kept_by(names, still)
    before = gallery.methods.by_what_decides(names, ("before",))
    assert before == {"diversity": ["divprune"], "nothing": ["uniform"]}
    said = words(gallery.methods.draw(still, reports, before, DARK))
    assert {"A landscape", "diversity", "divprune", "nothing", "uniform", "128"} <= set(
        said
    ) and "covist-pro" not in said
    inside = gallery.methods.by_what_decides(names, ("inside", "both"))
    said = words(gallery.methods.draw(still, reports, inside, LIGHT))
    assert inside == {"coverage": ["covist-pro"]} and str(len(reports["covist-pro"].kept)) in said


@pytest.mark.parametrize(
    "sizes, starts", [((11, 10, 5, 3, 1, 3), [0, 12, 24, 29, 32, 33]), ((4, 4), [0, 4]), ((6, 2, 3), [0, 6, 8])]
)
def test_a_group_shares_a_row_only_where_all_of_it_fits(gallery, sizes, starts):
    assert gallery.methods.packed(sizes) == starts


def test_families_are_drawn_on_their_own_grids(gallery):
    image = gallery.images.landscape(256)
    kept = gallery.families.kept_by_family(image, ("internvl", "llava-1.5"))
    assert [one.facts for one in kept] == ["24 × 24: 58 of 576", "10 × 16 × 16: 256 of 2,560"]
    figure = gallery.families.draw(image, kept, DARK)
    assert {"llava-1.5", "internvl"} <= set(words(figure))
    assert len(figure.axes) == 1 + 1 + 10  # the image, and every view


@pytest.mark.parametrize(
    "views, places",
    [
        ([(24, 24)], [(0, 0)]),
        ([(24, 24), (48, 36)], [(0, 0), (25, 0)]),
        ([(16, 16)] * 5, [(0, 0), (17, 0), (0, 17), (17, 17), (34, 0)]),
    ],
)
def test_views_of_a_family_stand_beside_each_other(gallery, views, places):
    assert gallery.families.beside(views) == places


def test_the_film_is_drawn_frame_by_frame(gallery):
    frames, moves = gallery.images.film()
    assert moves.any(axis=(1, 2)).all() and not moves.all(axis=0).any()
    reports = gallery.film.kept_by(("divprune",), frames)
    facts = {"divprune": gallery.film.describe(reports["divprune"], moves)}
    figure = gallery.film.draw(frames, reports, facts, LIGHT)
    counts = [f"{count} kept" for count in reports["divprune"].kept_per_frame().tolist()]
    assert [word for word in words(figure) if word.endswith(" kept")] == counts
    assert len(figure.axes) == 2 * len(frames) and facts["divprune"] in words(figure)


def test_moving_and_resting_tokens_are_counted_separately(gallery):
    """Three frames of 2 x 2 tokens; something covers the upper left of the first and the upper right of the second."""
    moves = np.zeros((3, 4, 4), dtype=bool)
    moves[0, :2, :2] = moves[1, :2, 2:] = True
    film = image_report(Grid(((2, 2),) * 3, "frames"), (6,))
    kept = torch.tensor([0, 1, 2, 4, 6, 11])  # the mover in frame 1, and the lower left in frames 1 and 2
    film = replace(film, stages=(replace(film.stages[0], kept=kept),))
    assert gallery.film.describe(film, moves) == (
        "keeps 1 of 2 tokens on the ball and 2 of 2 still places, 1 of them in several frames"
    )
