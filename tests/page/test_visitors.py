"""What visitors stumbled over: stale drawings, jumping layouts, files that are no images, keys, phones, contrasts."""

from __future__ import annotations

import pytest
from support.browsing import serious_findings

pytestmark = pytest.mark.page

HEIC = b"\0\0\0\x1cftypheic\0\0\0\0mif1heic" + bytes(200)
SVG = b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><circle r="3"/></svg>'
PLACES = ("#cv-answers", "#cv-bars", "#cv-drawing", "#cv-maps")
SCREENS = pytest.mark.parametrize("width", [1280, 390])
SCHEMES = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])


def places(visitor) -> list[float]:
    """Where the parts of an answer are, and how wide."""
    boxes = [visitor.page.locator(name).bounding_box() for name in PLACES]
    return [box[side] for box in boxes for side in ("x", "y", "width")]


def refuse(visitor, path) -> str:
    visitor.upload(path)
    visitor.page.wait_for_selector("#cv-answers .cv-refusal")
    return visitor.page.locator("#cv-answers .cv-refusal").inner_text()


def test_a_new_question_clears_what_belongs_to_the_old_one(visit, slow):
    slow.set()
    visitor = visit()
    slow.clear()
    visitor.ask("what shape is the yellow object?")
    visitor.page.wait_for_selector("#cv-drawing .cv-empty")
    for old in ("#cv-drawing .covist", "#cv-maps figure", "#cv-bars b", ".cv-link", "#cv-answers .cv-notes li"):
        assert visitor.page.locator(old).count() == 0
    assert visitor.answers == ["", ""]
    slow.set()
    visitor.wait_for_answers("64")
    assert visitor.answers[1] == "diamond"


def test_an_error_and_a_wait_keep_the_layout(visit, slow, tmp_path):
    slow.set()
    visitor = visit()
    before = places(visitor)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG and nothing else")
    refuse(visitor, tmp_path / "broken.png")
    assert places(visitor) == pytest.approx(before, abs=2)
    assert visitor.page.locator("#cv-drawing").inner_text() == "Nothing was kept, because the question was refused."
    visitor.ask("")
    visitor.page.get_by_text("There is no question yet: type one.").wait_for()
    assert places(visitor) == pytest.approx(before, abs=2)
    slow.clear()
    visitor.page.locator("#cv-examples button").first.click()
    visitor.page.wait_for_selector("#cv-answers .cv-caret")
    assert places(visitor) == pytest.approx(before, abs=2)


@pytest.mark.parametrize(
    ("name", "data", "kind"), [("photo.heic", HEIC, "HEIC"), ("drawing.svg", SVG, "SVG"), ("photo.jpg", HEIC, "HEIC")]
)
def test_a_file_that_the_page_cannot_read_is_called_what_it_is(visit, tmp_path, name, data, kind):
    (tmp_path / name).write_bytes(data)
    said = refuse(visit(), tmp_path / name)
    assert said == f"The image is a file in {kind} format; save it as PNG, JPEG, WEBP or GIF."


def test_unknown_words_and_the_certificate_are_below_the_answers(visit):
    visitor = visit()
    (certificate,) = visitor.page.locator("#cv-answers .cv-notes li").all_inner_texts()
    assert certificate.startswith("Kept 64 of 576 tokens; what they leave out carries ")
    visitor.ask("where is the zebra <b>xyzzy</b>?")
    visitor.page.wait_for_function("document.querySelectorAll('#cv-answers .cv-notes li').length == 2")
    unknown = visitor.page.locator("#cv-answers .cv-notes li").first.inner_text()
    assert unknown == "Not in the model's vocabulary: zebra, <b>xyzzy</b>?."
    assert visitor.page.locator("#cv-answers b").count() == 0


def test_enter_asks(visit):
    visitor = visit()
    visitor.page.fill("#cv-question textarea", "what shape is the yellow object?")
    visitor.page.press("#cv-question textarea", "Enter")
    visitor.page.wait_for_function("document.querySelectorAll('.cv-text')[1]?.textContent == 'diamond'")


def test_enter_compares_while_the_comparison_is_looked_at(visit):
    visitor = visit()
    visitor.page.get_by_role("tab", name="Compare methods").click()
    visitor.page.fill("#cv-question textarea", "what shape is the yellow object?")
    visitor.page.press("#cv-question textarea", "Enter")
    visitor.wait_for_comparison()
    assert visitor.page.locator("#cv-grid .cv-text").first.inner_text() == "diamond"


def test_enter_in_the_budget_asks(visit):
    visitor = visit()
    visitor.page.fill("#cv-budget input[type=number]", "32")
    visitor.page.press("#cv-budget input[type=number]", "Enter")
    visitor.wait_for_answers("32")


def test_asking_does_not_compare_unseen(visit):
    visitor = visit()
    visitor.ask("what shape is the yellow object?")
    visitor.page.wait_for_function("document.querySelectorAll('.cv-text')[1]?.textContent == 'diamond'")
    visitor.page.get_by_role("tab", name="Compare methods").click()
    assert visitor.page.locator("#cv-grid .cv-card").count() == 0


def test_a_comparison_shows_at_once_that_it_has_begun(visit, slow):
    slow.set()
    visitor = visit()
    visitor.compare()
    slow.clear()
    visitor.page.click("#cv-compare")
    visitor.page.wait_for_function("document.querySelectorAll('#cv-grid .cv-caret').length == 6")
    assert visitor.page.locator("#cv-grid .covist").count() == 0


def test_on_a_phone_the_answer_is_above_the_controls_and_on_the_first_screen(visit):
    visitor = visit(width=390)
    answers = visitor.page.locator("#cv-answers .cv-answers").bounding_box()
    assert visitor.top("#cv-ask") < answers["y"] and answers["y"] + 60 < 844
    assert answers["y"] < visitor.top("#cv-budget") < visitor.top("#cv-method")


def test_on_a_desktop_the_controls_are_beside_the_answer(visit):
    visitor = visit()
    results, budget = (visitor.page.locator(name).bounding_box() for name in ("#cv-answers", "#cv-budget"))
    assert budget["x"] + budget["width"] < results["x"] and visitor.top("#cv-ask") < budget["y"] < 900


def test_buttons_and_images_have_names(visit):
    visitor = visit()
    names = visitor.page.locator("#cv-examples button").evaluate_all("all => all.map(one => one.ariaLabel)")
    assert len(names) == 7 and names[0] == "Example 1: where is the blue square?"
    assert names[-1] == "Example 7: what is in the cup?"
    visitor.page.get_by_role("button", name=names[-1]).click()
    visitor.page.wait_for_function("location.search.includes('example=6')")
    alts = visitor.page.locator("#cv-image img, #cv-maps img").evaluate_all("all => all.map(one => one.alt)")
    assert alts[0] == "The image that you ask about"
    assert [alt.split(",")[0] for alt in alts[1:]] == [
        f"Map of {name}" for name in ("attention", "distinctiveness", "instruction", "combined evidence")
    ]
    unnamed = (
        "all => all.filter(one => !one.ariaLabel && !one.textContent.trim() && !one.title).map(one => one.outerHTML)"
    )
    assert visitor.page.locator("button:visible").evaluate_all(unnamed) == []


def test_an_embedded_model_says_that_photographs_mean_nothing_to_it(visit):
    assert visit().page.locator(".cv-head").inner_text().endswith("it knows drawn scenes, and nothing of photographs.")


@SCREENS
@SCHEMES
def test_everybody_can_use_the_page(visit, slow, width, dark):
    visitor = visit(width=width, dark=dark, answered=False)
    visitor.page.wait_for_selector("#cv-answers .cv-caret")
    assert serious_findings(visitor.page) == []
    slow.set()
    visitor.wait_for_answers()
    assert serious_findings(visitor.page) == []
    visitor.page.get_by_role("tab", name="Compare methods").click()
    assert serious_findings(visitor.page) == []
    visitor.compare()
    assert serious_findings(visitor.page) == []


@SCHEMES
def test_everybody_can_read_a_refusal(visit, dark):
    visitor = visit(dark=dark)
    visitor.ask("<image>")
    visitor.page.wait_for_selector("#cv-answers .cv-refusal")
    assert serious_findings(visitor.page) == []
