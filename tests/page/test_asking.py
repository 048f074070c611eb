"""Questions of the page through the service."""

import asyncio

import pytest
import torch
from PIL import Image
from support.serving import CONCENTRATION

import covist
from covist import tiny
from covist.api.setup import Setup
from covist.budget import Count
from covist.errors import CovistError
from covist.page.asking import UNCOMPRESSED, Reply, as_sentence, ask_together, data_url, make_request
from covist.page.drawings import count_stages, draw_evidence, draw_kept
from covist.page.examples import fitting_examples, write_examples
from covist.request.data_urls import decode_base64, split_data_url
from covist.request.images import decode_image
from covist.serve.errors import Refusal
from covist.serve.limits import Limits
from covist.serve.service import Service


@pytest.fixture(scope="module")
def demo_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "demo.png"
    tiny.demo()[0].save(path)
    return str(path)


def ask(service, *requests) -> list[list[Reply]]:
    """Everything that a visitor would see, one after the other."""

    async def collect():
        return [replies async for replies in ask_together(service, requests)]

    return asyncio.run(collect())


def request(service, image, compression=UNCOMPRESSED, question=None):
    return make_request(service.name, image, question or tiny.demo()[1], compression)


def test_both_answers_grow_until_they_are_complete(service, demo_file):
    seen = ask(
        service, request(service, demo_file, {"budget": 64, "method": "covist-pro"}), request(service, demo_file)
    )
    for place in (0, 1):
        texts = [replies[place].text for replies in seen]
        assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:], strict=False))
        assert texts[-1] == tiny.demo()[2]
    assert len(seen) > 2 and all(reply.is_done for reply in seen[-1])


def test_a_slow_reader_gets_the_complete_answers_too(monkeypatch):
    """Everything may be written while the page still draws what it was given before."""
    looking, written = asyncio.Event(), asyncio.Event()

    async def answer(service, request):
        yield Reply("top")
        await looking.wait()
        yield Reply("top-right", refusal="the end")
        written.set()

    async def read_slowly():
        seen = []
        async for replies in ask_together(None, ["a question"]):
            seen.append(replies)
            looking.set()
            await written.wait()
        return seen

    monkeypatch.setattr("covist.page.asking._ask", answer)
    assert asyncio.run(read_slowly())[-1][0].is_done


def test_an_answer_carries_the_report_of_its_own_row(service, demo_file, loaded):
    budgets = (64, 64, 32)
    seen = ask(service, *(request(service, demo_file, {"budget": budget}) for budget in budgets))[-1]
    for reply, budget in zip(seen, budgets, strict=True):
        (image,) = reply.end.cost.images
        assert len(image.kept) == reply.end.cost.visual_tokens_kept == budget
        assert count_stages(reply.end) == 1
        assert draw_kept(reply.end, "ask").count('<g class="one">') == budget
        assert draw_evidence(reply.end).count("<figure>") == 4
    assert torch.equal(seen[0].end.cost.images[0].kept, seen[1].end.cost.images[0].kept)


def test_costs_are_those_of_the_librarys_report(loaded, demo_file):
    service = Service(loaded, Setup(concentration=CONCENTRATION))
    (reply,) = ask(service, request(service, demo_file, {"budget": 48, "method": "covist-pro"}))[-1]
    service.close()
    image, question, _ = tiny.demo()
    inputs = loaded.processor(images=image, text=tiny.prompt_for(question), return_tensors="pt")
    options = {"budget": 48, "strategy": "pro", "clip": loaded.clip, "concentration": CONCENTRATION}
    with covist.compress(loaded.model, loaded.processor, **options) as handle:
        loaded.model.generate(**inputs, max_new_tokens=2)
    report, cost = handle.report, reply.end.cost
    assert (cost.flops, cost.flops_uncompressed) == (report.flops, report.flops_uncompressed)
    assert (cost.cache_bytes, cost.cache_bytes_uncompressed) == (report.kv_bytes, report.kv_bytes_uncompressed)


def test_times_are_those_that_a_batch_had_the_model(service, demo_file):
    (reply,) = ask(service, request(service, demo_file))[-1]
    end = reply.end
    assert 0 < end.prefill <= end.computed
    assert end.prefill <= end.first_token - end.waited + 1e-3


def test_a_refused_request_leaves_the_other_answer_alone(service, demo_file):
    good, bad = request(service, demo_file), request(service, demo_file, {"method": "no-such-method"})
    answered, refused = ask(service, good, bad)[-1]
    assert answered.text == tiny.demo()[2]
    assert refused.end is None and "no-such-method" in refused.refusal


def test_a_file_that_only_begins_like_an_image_is_refused_in_one_sentence(service, tmp_path):
    (tmp_path / "file").write_bytes(b"\x89PNG and nothing else")
    (reply,) = ask(service, request(service, str(tmp_path / "file")))[-1]
    assert reply.refusal.startswith("The image is not an image in ")


READABLE = "PNG, JPEG, WEBP or GIF"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0", "HEIC"),
        (b"\0\0\0\x20ftypavif\0\0\0\0", "AVIF"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>\n<!DOCTYPE svg>\n<!-- a drawing -->\n<svg/>", "SVG"),
        (b"II*\0\x08\0\0\0", "TIFF"),
        (b"BM\x46\0\0\0\0\0\0\0", "BMP"),
        (b"%PDF-1.7", "PDF"),
        (b"RIFF\x24\0\0\0WAVEfmt ", ""),
        (b"<!doctype html><p>no image", ""),
        (b"BM is how this text begins", ""),
        (b"no image at all", ""),
        (b"", ""),
    ],
)
def test_a_file_is_refused_as_what_it_is(data, kind):
    problem = f"a file in {kind} format; save it as {READABLE}" if kind else f"not an image in {READABLE} format"
    with pytest.raises(Refusal) as refused:
        data_url(data)
    assert as_sentence(refused.value) == f"The image is {problem}."


def test_no_beginning_of_a_file_takes_long_to_recognise():
    for data in (b"<?" * 10**6, b" " * 10**6, b"<!--" * 10**6, b"\xef\xbb\xbf" + b"<?xml" * 10**6):
        with pytest.raises(Refusal, match="not an image in"):
            data_url(data)


def test_the_limits_of_the_server_are_those_of_the_page(loaded, demo_file):
    service = Service(loaded, Setup(concentration=CONCENTRATION), limits=Limits(image_pixels=100, prompt_characters=30))
    try:
        small, long = request(service, demo_file), request(service, demo_file, question="is it " * 10)
        large, wordy = ask(service, small, long)[-1]
    finally:
        service.close()
    assert "pixels" in large.refusal
    assert wordy.refusal == "More than 30 characters of text."


def test_a_visitor_who_stops_listening_frees_the_place(service, demo_file):
    async def leave():
        answers = ask_together(service, [request(service, demo_file)])
        await anext(answers)
        await answers.aclose()

    asyncio.run(leave())
    assert ask(service, request(service, demo_file))[-1][0].text == tiny.demo()[2]


def test_an_unexpected_error_is_a_sentence_without_its_text(service, demo_file, monkeypatch):
    async def broken(wanted):
        raise RuntimeError("secret")

    monkeypatch.setattr(service, "admit", broken)
    (reply,) = ask(service, request(service, demo_file))[-1]
    assert reply.refusal == "Unexpected error in the server; see its log."


def test_sentences_do_not_speak_of_fields():
    refusal = Refusal(400, "special_token", "messages.0 contains '<image>', a special token")
    assert as_sentence(refusal) == "The question contains '<image>', a special token."


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "gif"])
def test_a_file_is_sent_as_what_it_is(tmp_path, kind):
    tiny.demo()[0].save(tmp_path / "image", kind)
    assert data_url((tmp_path / "image").read_bytes()).startswith(f"data:image/{kind};base64,")


@pytest.mark.parametrize("model", ["tiny", "tiny-next", "some/checkpoint"])
def test_every_model_has_examples(tmp_path, model):
    examples = write_examples(model, tmp_path)
    assert len(examples) == 7 and all(example.question.endswith("?") for example in examples)


class Counting:
    """A service whose model sees a token in every 32 x 32 pixels, up to a limit, or always the same number."""

    name = "some/checkpoint"

    def __init__(self, most: int = 10**9, fixed: int = 0, largest: int = 10**9):
        self.most, self.fixed, self.largest = most, fixed, largest

    def visual_tokens(self, wanted) -> int:
        url = wanted.messages[0].content[0].image_url.url
        image = decode_image(decode_base64(split_data_url(url, "image")[1], "image"))
        if image.width > self.largest:
            raise Refusal(400, "image_too_large", "image 1 is too large")
        return self.fixed or min(self.most, (image.width // 32) ** 2)


@pytest.mark.parametrize(
    ("service", "budget", "side", "tokens"),
    [
        (Counting(), 64, 768, 576),  # 96 pixels are 9 tokens: a budget of 64 would compress nothing
        (Counting(), 2, 96, 9),
        (Counting(), 10**4, 768, 576),  # never enough: the largest
        (Counting(most=36), 64, 192, 36),
        (Counting(largest=400), 64, 384, 144),
        (Counting(fixed=576), 64, 96, 576),
        (Counting(fixed=576), 300, 96, 576),
    ],
)
def test_examples_are_larger_than_the_budget_of_the_model_at_hand(tmp_path, service, budget, side, tokens):
    examples, counted = fitting_examples(service, Count(budget), tmp_path)
    assert counted == tokens
    sizes = [Image.open(example.path).size for example in examples]
    assert set(sizes[:-1]) == {(side, side)} and sizes[-1] == (max(side, 336),) * 2


def test_a_limit_that_refuses_every_example_is_one_line(tmp_path):
    with pytest.raises(CovistError, match=r"^--page: the limits refuse the page's own example \(image 1 is too large"):
        fitting_examples(Counting(largest=50), Count(64), tmp_path)
