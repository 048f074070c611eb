"""The interactive page: what is under the pointer, what it says, how large it is."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image
from support.families import smooth_image
from support.reports import SQUARE, TALL_TILES, TILED, WIDE, image_report, stage

from covist.grid import Grid
from covist.report.stages import ImageReport
from covist.viz import DARK, LIGHT, draw_html, save_page, seen_views
from covist.viz.maps import evidence_maps
from covist.viz.svg import VIEW_GAP


def page(report, title="", facts=None, image=None):
    return draw_html([report], [seen_views(report, image)], title, facts)


def parsed(html: str) -> ElementTree.Element:
    """Pages are written as well-formed XML, so that a strict parser can read them."""
    return ElementTree.fromstring(html)


def panels(html: str) -> list[ElementTree.Element]:
    return [figure.find("svg") for figure in parsed(html).iter("figure")]


def representatives(panel: ElementTree.Element) -> list[ElementTree.Element]:
    return [group for group in panel.iter("g") if group.get("class") == "one"]


def cells(group: ElementTree.Element) -> set[tuple[int, int]]:
    """The cells that the path of a group covers, by the even-odd rule, from its right-angled sides."""
    uprights = []
    for loop in re.findall(r"M(\d+) (\d+)((?:[hv]-?\d+)+)z", group.find("path").get("d")):
        x, y = start = int(loop[0]), int(loop[1])
        for letter, length in re.findall(r"([hv])(-?\d+)", loop[2]):
            step = (int(length), 0) if letter == "h" else (0, int(length))
            if letter == "v":
                uprights.append((x, *sorted((y, y + step[1]))))
            x, y = x + step[0], y + step[1]
        if x == start[0]:
            uprights.append((x, *sorted((y, start[1]))))
    height, width = max(low for *_, low in uprights), max(x for x, *_ in uprights)
    inside = ((x, y) for x in range(width) for y in range(height))
    return {(x, y) for x, y in inside if sum(at <= x and top <= y < low for at, top, low in uprights) % 2}


def panel_cells(grid: Grid) -> dict[int, tuple[int, int]]:
    """Where each token lies in a panel: views below each other."""
    places, token, top = {}, 0, 0
    for rows, columns in grid.views:
        for number in range(rows * columns):
            places[token + number] = (number % columns, top + number // columns)
        token, top = token + rows * columns, top + rows + VIEW_GAP
    return places


@pytest.mark.parametrize("grid", [SQUARE, WIDE, TILED, TALL_TILES])
@pytest.mark.parametrize("counts", [(8,), (12, 6, 2)])
def test_every_token_is_under_exactly_one_representative_of_each_stage(grid, counts):
    report = image_report(grid, counts)
    drawn = panels(page(report))
    places = panel_cells(grid)
    assert len(drawn) == len(counts)
    for number, panel in enumerate(drawn):
        groups = representatives(panel)
        assert len(groups) == counts[number]
        covered = [cell for group in groups for cell in cells(group)]
        assert sorted(covered) == sorted(places.values())
        assignment = report.assignment_at(number).tolist()
        for place, group in enumerate(groups):
            assert cells(group) == {places[token] for token, owner in enumerate(assignment) if owner == place}


def test_a_representative_says_weight_position_and_what_it_stands_for():
    made = stage(0, [1, 4], [0, 0, 0, 1, 1, 1], weights=torch.tensor([2.5, 3.0]), positions=torch.tensor([7, 10]))
    report = ImageReport(0, Grid(((2, 3),)), 6, 0, 2, (2, 2), (2, 2), (made,))
    (panel,) = panels(page(report))
    titles = [group.find("title").text for group in representatives(panel)]
    assert titles == [
        "token 1: row 0, column 1, position 7\nweight 2.5, stands for 3 tokens",
        "token 4: row 1, column 1, position 10\nweight 3, stands for 3 tokens",
    ]


def test_positions_of_several_axes_and_views_are_named():
    positions = torch.tensor([[3, 0, 0], [3, 1, 2]])
    made = stage(0, [0, 5], [0, 0, 0, 0, 1, 1], positions=positions)
    report = ImageReport(0, Grid(((2, 2), (1, 2))), 6, 0, 2, (2,), (2,), (made,))
    (panel,) = panels(page(report))
    last = representatives(panel)[-1].find("title").text
    assert last.startswith("token 5: view 1, row 0, column 1, position (3, 1, 2)")


def test_discarded_tokens_are_marked_and_no_representative_claims_them():
    report = image_report(SQUARE, (8,), composed=False)
    (panel,) = panels(page(report))
    (gone,) = [group for group in panel.iter("g") if group.get("class") == "gone"]
    assert gone.find("title").text == "discarded: no representative stands for these 28 tokens"
    own = [cells(group) for group in representatives(panel)]
    assert all(len(one) == 1 for one in own)
    assert cells(gone) == set(panel_cells(SQUARE).values()) - set.union(*own)


def test_discs_stay_inside_their_token_and_grow_with_the_weight():
    report = image_report(SQUARE, (8,))
    (panel,) = panels(page(report))
    radii = [float(circle.get("r")) for circle in panel.iter("circle")]
    order = report.weights.argsort().tolist()
    assert [radii[place] for place in order] == sorted(radii) and radii[order[0]] < radii[order[-1]] < 0.5


def test_all_stages_share_one_copy_of_the_image():
    html = page(image_report(SQUARE, (12, 6, 2)), image=smooth_image(80, 80))
    assert html.count("data:image/jpeg") == 1 and html.count("<use ") == 3
    names = {element.get("id") for element in parsed(html).iter() if element.get("id")}
    assert {use.get("href").lstrip("#") for use in parsed(html).iter("use")} <= names


def test_different_images_on_one_page_do_not_share_names():
    reports = [image_report(SQUARE, (8,))] * 2
    views = [seen_views(reports[0], smooth_image(80, 80, seed)) for seed in (0, 1)]
    names = [element.get("id") for element in parsed(draw_html(reports, views)).iter() if element.get("id")]
    assert len(names) == len(set(names))


def test_text_is_escaped():
    html = page(image_report(SQUARE, (8,)), "<script>alert(1)</script> & co", {"<b>name</b>": "a < b"})
    assert "<script" not in html and "<b>" not in html
    root = parsed(html)
    assert root.find("h3").text == "<script>alert(1)</script> & co" and root.find("dl/dd").text == "a < b"


@pytest.mark.parametrize("counts", [(8,), (12, 6, 2)])
@pytest.mark.parametrize("composed", [True, False])
def test_evidence_shows_the_image_its_maps_and_what_can_be_rebuilt(counts, composed):
    report = image_report(SQUARE, counts, composed=composed)
    html = draw_html([report], [seen_views(report)], evidence=True)
    captions = ["".join(caption.itertext()) for caption in parsed(html).iter("figcaption")]
    assert captions[0] == "what the encoder sees"
    assert [caption for caption in captions if caption.startswith("rebuilt")] == [
        f"rebuilt from {count} representatives" for count in counts
    ]
    maps = [image.get("alt") for image in parsed(html).iter("img")]
    assert (
        len(maps) == len(evidence_maps(report))
        and bool(maps) is composed
        and all(alt.startswith("Map of ") for alt in maps)
    )
    gone = [group for group in parsed(html).iter("g") if group.get("class") == "gone"]
    assert len(gone) == (0 if composed else 2 * len(counts))  # over the image, and over what is rebuilt


def test_a_video_has_no_maps():
    film = image_report(Grid(((4, 6),) * 3, "frames"), (8,))
    assert draw_html([film], [seen_views(film)], evidence=True) == page(film)


@pytest.mark.parametrize(("theme", "scheme"), [(LIGHT, "light"), (DARK, "dark")])
def test_a_page_has_the_colours_of_its_theme(theme, scheme, tmp_path):
    report = image_report(SQUARE, (8,))
    save_page(draw_html([report], [seen_views(report)], theme=theme), tmp_path / "page.html", theme=theme)
    text = (tmp_path / "page.html").read_text()
    assert f'name="color-scheme" content="{scheme}"' in text
    assert f"background: {theme.background}; color: {theme.ink}" in text
    assert ", ".join(theme.weights) in text


def test_no_script_and_nothing_from_elsewhere(tmp_path):
    save_page(page(image_report(SQUARE, (8,))), tmp_path / "page.html", "<title> & co")
    text = (tmp_path / "page.html").read_text()
    assert "<script" not in text and "http" not in text and " onmouse" not in text
    assert "&lt;title&gt; &amp; co" in text and 'content="light dark"' in text


@pytest.mark.parametrize(("counts", "limit"), [((64,), 120_000), ((96, 48, 16), 150_000), ((576,), 300_000)])
def test_a_page_of_576_tokens_fits_into_a_notebook(counts, limit):
    detailed = Image.effect_noise((336, 336), 60).convert("RGB")  # the worst that a JPEG can meet
    html = page(image_report(Grid(((24, 24),)), counts), image=detailed)
    assert len(html) - len(re.search(r"base64,([^\"]+)", html)[1]) < limit
    assert len(page(image_report(Grid(((24, 24),)), counts), image=smooth_image(336, 336))) < limit + 60_000


def test_only_pages_are_written_as_pages(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.html$"):
        save_page("", tmp_path / "page.htm.txt")


def test_a_missing_directory_is_one_clear_line(tmp_path):
    with pytest.raises(ValueError, match="no such file or directory"):
        save_page("", tmp_path / "nowhere" / "page.html")


def test_small_weights_beside_a_giant_one_can_be_seen():
    report = image_report(SQUARE, (8,))
    heavy = replace(report.stages[0], weights=torch.tensor([400.0, *[1.0] * 7]))
    (panel,) = panels(page(replace(report, stages=(heavy,))))
    assert min(float(circle.get("r")) for circle in panel.iter("circle")) >= 0.1
