"""The page in a real browser, as visitors use it."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from support.serving import CONCENTRATION, said, serving, shown

from covist import tiny
from covist.api.setup import Setup
from covist.eval.suite import load_suite
from covist.request.loading import load_model
from covist.serve.keys import Keys
from covist.serve.service import Service

pytestmark = pytest.mark.page


def test_the_first_visit_shows_an_answered_example(visit):
    visitor = visit()
    assert visitor.answers == ["top-right", "top-right"]
    assert visitor.discs == 64
    assert visitor.page.locator("#cv-maps figure").count() == 4
    bars = visitor.page.locator("#cv-bars .cv-bar").all_inner_texts()
    assert [text.splitlines()[0] for text in bars] == [
        "tokens per layer",
        "KV cache",
        "prefill FLOPs",
        "first token",
        "whole answer",
    ]


def test_an_uploaded_image_is_asked_about(visit, tmp_path):
    item = load_suite("scenes").items(3)[2]
    question = next(one for one in item.questions if one.question == "what shape is the large blue object?")
    item.image.save(tmp_path / "scene.png")
    visitor = visit()
    visitor.upload(tmp_path / "scene.png")
    visitor.page.wait_for_function("document.querySelector('.cv-link small') !== null")
    visitor.ask(question.question)
    visitor.page.wait_for_function(
        "answer => document.querySelectorAll('.cv-text')[1]?.textContent == answer", arg=question.answer
    )
    assert "example" not in visitor.page.locator(".cv-link a").get_attribute("href")


def test_with_keys_the_browser_gives_one_and_everything_works(mount_page, visit, tmp_path):
    tiny.demo()[0].save(tmp_path / "scene.png")
    service = Service(load_model("tiny", device="cpu"), Setup(concentration=CONCENTRATION), keys=Keys(["open-sesame"]))
    with serving(service, mount_page) as running:
        visitor = visit(at=running, key="open-sesame")
        visitor.upload(tmp_path / "scene.png")
        visitor.page.wait_for_function("document.querySelector('.cv-link small') !== null")
        visitor.wait_for_answers()
        assert visitor.answers[1] == "top-right"


def test_moving_the_budget_changes_answer_and_drawing(visit):
    visitor = visit()
    slider = visitor.page.locator("#cv-budget input[type=range]")
    box = slider.bounding_box()
    visitor.page.mouse.click(box["x"] + 3, box["y"] + box["height"] / 2)
    visitor.page.wait_for_function(
        "[...document.querySelectorAll('.cv-tokens')].every(one => /^(?!64)\\d/.test(one.textContent))"
    )
    few = int(visitor.page.locator(".cv-tokens").first.inner_text().split()[0])
    visitor.page.wait_for_function("few => document.querySelectorAll('#cv-drawing .one').length == few", arg=few)
    assert few < 20
    assert f"budget={few}" in visitor.page.locator(".cv-link a").get_attribute("href")


def test_pointing_at_a_representative_shows_what_it_stands_for(visit):
    visitor = visit()
    one = visitor.page.locator("#cv-drawing .one").nth(5)
    assert one.locator("text").evaluate("text => getComputedStyle(text).visibility") == "hidden"
    one.locator("circle").hover(force=True)
    assert one.locator("text").evaluate("text => getComputedStyle(text).visibility") == "visible"
    assert "weight" in one.locator("text").text_content() and "stands for" in one.locator("text").text_content()


def test_pro_is_stepped_through_stage_by_stage(visit):
    visitor = visit()
    assert not visitor.page.locator("#cv-stage").is_visible()
    visitor.page.locator("#cv-strategy").get_by_text("pro").click()
    visitor.page.wait_for_selector("#cv-stage input[type=range]")
    visitor.page.wait_for_function("document.querySelectorAll('#cv-drawing figure').length == 3")
    seen = [visitor.page.locator("#cv-drawing figcaption:visible").inner_text()]
    visitor.page.locator("#cv-stage input[type=range]").focus()
    for stage in ("2", "3"):
        visitor.page.keyboard.press("ArrowRight")
        visitor.page.wait_for_selector(f"#cv-drawing[data-stage='{stage}']")
        seen.append(visitor.page.locator("#cv-drawing figcaption:visible").inner_text())
    first, second, third = (int(caption.split(": ")[1].split()[0]) for caption in seen)
    assert first > second > third == visitor.discs


def test_methods_are_compared_on_one_image(visit):
    visitor = visit()
    visitor.compare()
    names = visitor.page.locator("#cv-grid .cv-card").evaluate_all("cards => cards.map(card => card.ariaLabel)")
    assert names == ["uncompressed", "covist-fixed", "covist-max", "divprune", "visionzip", "uniform"]
    assert len(visitor.page.locator("#cv-grid .cv-text").all_inner_texts()) == 6
    certified = visitor.page.locator("#cv-grid .cv-card", has=visitor.page.locator(".cv-note"))
    assert certified.evaluate_all("cards => cards.map(card => card.ariaLabel)") == ["covist-fixed", "covist-max"]
    drawn = visitor.page.locator("#cv-grid .cv-card").nth(3)
    assert drawn.locator(".one").count() == 64 and drawn.locator(".gone").count() == 1


def test_a_link_restores_the_settings(visit):
    visitor = visit("?example=3&question=is+there+a+green+object%3F&budget=48&method=divprune")
    assert visitor.page.locator("#cv-answers .cv-card").first.get_attribute("aria-label") == "divprune"
    assert visitor.discs == 48 and visitor.answers[1] == "yes"
    visitor.page.wait_for_function("location.search.includes('method=divprune')")
    again = visit(visitor.page.locator(".cv-link a").get_attribute("href"))
    assert again.answers == visitor.answers and again.discs == 48


def test_a_link_of_nonsense_shows_the_first_example(visit):
    assert visit("?example=99&budget=-3&method=%3Cscript%3E&strategy=9").answers[1] == "top-right"


def test_dark_mode_follows_the_system(visit):
    brightness = (
        "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => +a + +b)"
    )
    assert visit(dark=True).page.evaluate(brightness) < 150 < 600 < visit().page.evaluate(brightness)


def test_nothing_overflows_at_phone_width(visit):
    visitor = visit(width=390)
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390
    visitor.compare()
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_question_is_asked_by_keyboard_alone(visit):
    visitor = visit()
    for _ in range(30):
        visitor.page.keyboard.press("Tab")
        if visitor.page.evaluate("document.activeElement.closest('#cv-question') !== null"):
            break
    visitor.page.keyboard.press("Control+a")
    visitor.page.keyboard.type("what shape is the yellow object?")
    visitor.page.keyboard.press("Enter")
    visitor.page.wait_for_function("document.querySelectorAll('.cv-text')[1]?.textContent == 'diamond'")


def test_an_image_that_cannot_be_read_is_a_sentence_and_the_next_question_is_answered(visit, tmp_path):
    visitor = visit()
    (tmp_path / "broken.png").write_bytes(b"\x89PNG and nothing else")
    visitor.upload(tmp_path / "broken.png")
    visitor.page.wait_for_function(
        "document.querySelector('#cv-answers .cv-refusal') && !document.querySelector('#cv-answers .cv-card')"
    )
    refusals = visitor.page.locator(".cv-refusal").all_inner_texts()
    assert len(refusals) == 1 and refusals[0].startswith("The image is not an image in PNG")
    assert visitor.page.locator("#cv-drawing .covist").count() == 0
    visitor.page.locator("#cv-examples button, #cv-examples [role=button]").first.click()
    visitor.wait_for_answers("64")
    assert visitor.answers[1] == "top-right"


def test_text_is_shown_as_text(visit):
    visitor = visit()
    visitor.ask("<image> ${window.hit = 1} {{window.hit = 1}} <img src=x onerror='window.hit = 1'>")
    visitor.page.wait_for_selector(".cv-refusal")
    assert visitor.page.locator(".cv-refusal").first.inner_text() == "The question contains '<image>', a special token."
    assert visitor.page.evaluate("window.hit") is None


def test_no_request_leaves_the_server(visit, paged):
    visitor = visit()
    hosts = {urlsplit(url).netloc for url in visitor.requested if urlsplit(url).scheme not in ("data", "blob")}
    assert hosts == {urlsplit(paged.url).netloc}


def test_two_visitors_see_their_own_answers(visit):
    first, second = visit(), visit("?example=1&budget=32")
    second.ask("what color is the circle?")
    first.ask("what shape is the yellow object?")
    for visitor, answer in ((first, "diamond"), (second, "yellow")):
        visitor.page.wait_for_function(
            "answer => document.querySelectorAll('.cv-text')[1]?.textContent == answer", arg=answer
        )
        visitor.wait_for_answers()
    assert (first.discs, second.discs) == (64, 32)


def test_the_same_process_answers_the_client(paged):
    image, question, answer = tiny.demo()
    told = paged.ask([shown(image), said(question)], extra_body={"covist": {"budget": 64}})
    assert told.choices[0].message.content == answer
