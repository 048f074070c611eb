"""The report says what the model really did."""

import gc
import json
from dataclasses import replace
from weakref import ref

import pytest
import torch
from PIL import Image
from support.llava import LAYERS, TOKENS, WIDTH, ask, processor
from support.reports import SQUARE, TILED, WIDE, image_report
from support.requests import greedy

import covist
from covist.api.report import Report
from covist.methods.covist import CovistFixed
from covist.methods.published.divprune import DivPrune
from covist.report.pixels import Preprocessing
from covist.report.stages import StageReport

PROMPT = "USER: <image> what color is this ? ASSISTANT:"


@pytest.fixture
def lengths(multi_head):
    """Sequence length that each decoder layer received in the last call."""
    seen = {}
    hooks = [
        layer.mlp.register_forward_hook(lambda _, args, __, n=n: seen.__setitem__(n, args[0].shape[1]))
        for n, layer in enumerate(multi_head.model.language_model.layers)
    ]
    yield seen
    for hook in hooks:
        hook.remove()


def test_tokens_per_layer_are_those_the_layers_received(multi_head, strategy, compress, lengths):
    inputs = ask(PROMPT)
    handle = compress(multi_head, budget=24, strategy=strategy)
    multi_head(**inputs)
    text = inputs["input_ids"].shape[1] - TOKENS
    report = handle.report
    assert [count + text for count in report.images[0].tokens_per_layer] == [lengths[n] for n in range(LAYERS)]
    assert report.text_tokens == (text,) and report.mean_tokens == 24
    assert report.flops == pytest.approx(sum(_flops(lengths[layer]) for layer in range(LAYERS)))
    assert report.flops < report.flops_uncompressed / 3


def test_stages_are_closed_and_serialisable(multi_head, strategy, compress):
    handle = compress(multi_head, budget=24, strategy=strategy)
    greedy(multi_head, ask(PROMPT), 2)
    stages = handle.report.images[0].stages
    assert [stage.depth for stage in stages] == ([0] if strategy == "fixed" else [0, 4, 6])
    for earlier, later in zip(stages, stages[1:], strict=False):
        assert set(later.indices.tolist()) <= set(earlier.indices.tolist())
        assert len(later.assignment) == len(earlier.indices)
    for stage in stages:
        assert stage.weights.min() >= 1 and stage.weights.max() <= 8 and stage.withheld >= 0
        assert torch.equal(stage.positions, stage.indices + 2)
    assert json.loads(json.dumps(handle.report.to_dict()))["mean_tokens"] == 24
    assert set(handle.report.seconds) == {"selection", "composition", "rest"}
    assert all(value >= 0 for value in handle.report.seconds.values())


def test_decoding_and_text_keep_the_report_of_the_last_image(multi_head, compress):
    handle = compress(multi_head, budget=24)
    greedy(multi_head, ask(PROMPT), 3)
    report = handle.report
    greedy(multi_head, ask("USER: what ? ASSISTANT:"), 2)
    assert handle.report is report


@pytest.mark.parametrize("budget", [0, -3, 1.5, "x", True])
def test_impossible_budgets_are_refused_at_once(multi_head, compress, budget):
    with pytest.raises(ValueError, match="budget must be"):
        compress(multi_head, budget=budget)
    assert covist.Compression.of(multi_head) is None


def test_contradictory_choices_are_refused(multi_head, compress):
    for options, message in (
        ({"strategy": "medium"}, "choose 'fixed' or 'pro'"),
        ({"strategy": "pro", "method": "covist-fixed"}, "not both"),
        ({"method": "nonsense"}, "unknown method 'nonsense'"),
        ({"processor": "llava"}, "processor=str: pass the model's processor or its tokenizer"),
        ({"processor": processor().image_processor}, "pass the model's processor or its tokenizer"),
        ({"config": {"beta": 2}}, "config must be a CovistConfig, a Setup or the path of a file, got dict"),
        ({"positions": "drop"}, "choose 'keep' or 'reindex'"),
        ({"method": CovistFixed(), "concentration": 0.1}, "already has its options"),
    ):
        with pytest.raises(ValueError, match=message):
            compress(multi_head, **options)


def test_a_handle_says_what_it_is_doing(multi_head, compress):
    handle = compress(multi_head, budget=24)
    kind = "Compression of LlavaForConditionalGeneration by covist-fixed, budget 24"
    assert repr(handle) == f"{kind} (active)\n  no image seen yet"
    assert handle._repr_html_() is None
    greedy(multi_head, ask(PROMPT), 2)
    assert repr(handle) == f"{kind} (active)\n  last call: 1 image, 24 of 144 visual tokens per layer (16.7 %)"
    handle.remove()
    assert repr(handle).startswith(f"{kind} (removed, the model is as it was)\n  last call: 1 image")
    assert kind in handle._repr_html_() and "<svg" in handle._repr_html_()


def test_a_report_prints_what_was_saved(multi_head, strategy, compress):
    handle = compress(multi_head, budget=24, strategy=strategy)
    multi_head(**ask(PROMPT))
    lines = repr(handle.report).splitlines()
    assert lines[0] == f"Report of covist-{strategy}: 1 image, 24 of 144 visual tokens per layer (16.7 %)"
    stages = {
        "fixed": "layers 0-7: 24 tokens",
        "pro": "layers 0-3: 36 tokens, layers 4-5: 18 tokens, layers 6-7: 6 tokens",
    }
    assert lines[1].split(maxsplit=1) == ["stages", stages[strategy]]
    names = ["certificate", "KV cache", "prefill FLOPs", "time spent"]
    assert [line.split("  ")[1] for line in lines[2:]] == names
    assert lines[2].endswith(str(handle.report.images[0].certificate))
    report = handle.report
    share = 100 * report.kv_bytes / report.kv_bytes_uncompressed
    assert lines[3].endswith(f"({share:.1f} %)")


def test_a_report_of_many_images_stays_short(multi_head, compress):
    handle = compress(multi_head, budget=24)
    multi_head(**ask(*["USER: <image> what color is this ? ASSISTANT:"] * 6))
    lines = repr(handle.report).splitlines()
    assert "6 images, 24 of 144 visual tokens each per layer" in lines[0]
    assert len(lines) == 9 and lines[5].split() == ["images", "2", "more", "in", ".visuals"]


def test_tokens_are_averaged_over_images_of_different_grids_and_budgets():
    images = image_report(SQUARE, (20, 6)), image_report(TILED, (11,)), image_report(WIDE, (9, 9))
    report = Report(images, (5,), 1.0, 2.0, 3.0, 4.0, {})
    assert report.tokens == (36 + 84 + 27) / 3
    assert report.mean_tokens == report.to_dict()["mean_tokens"] == pytest.approx((13 + 11 + 9) / 3)
    assert report.summary == "3 images, 11 of 49 visual tokens each per layer (22.4 %)"


def test_costs_are_summed_over_the_samples_of_a_batch(multi_head, strategy, compress):
    handle = compress(multi_head, budget=24, strategy=strategy)
    multi_head(**ask("USER: <image> what color is this ? ASSISTANT:", "USER: <image> and <image> ? ASSISTANT:"))
    report = handle.report
    assert [image.sample for image in report.images] == [0, 1, 1] and len(set(report.text_tokens)) == 2
    flops = before = 0.0
    for sample, text in enumerate(report.text_tokens):
        own = [image for image in report.images if image.sample == sample]
        for layer in range(LAYERS):
            flops += _flops(text + sum(image.tokens_per_layer[layer] for image in own))
            before += _flops(text + sum(image.tokens for image in own))
    assert (report.flops, report.flops_uncompressed) == (pytest.approx(flops), pytest.approx(before))
    kept = sum(report.text_tokens) * LAYERS + sum(sum(image.tokens_per_layer) for image in report.images)
    whole = (sum(report.text_tokens) + sum(image.tokens for image in report.images)) * LAYERS
    assert report.kv_bytes / report.kv_bytes_uncompressed == pytest.approx(kept / whole)


def _flops(length: int) -> float:
    return 8.0 * length * WIDTH**2 + 4 * length**2 * WIDTH + 6 * length * WIDTH * 64


def test_a_report_counts_the_tokens_that_a_method_really_kept(multi_head, compress, monkeypatch):
    monkeypatch.setattr(DivPrune, "select", lambda self, image, count: torch.arange(count - 4))
    handle = compress(multi_head, budget=24, method="divprune", concentration=None)
    multi_head(**ask(PROMPT))
    assert handle.report.images[0].tokens_per_layer == (20,) * LAYERS and handle.report.mean_tokens == 20


def test_means_run_over_all_images():
    """Images of one call may keep different counts."""
    large, small = image_report(SQUARE, (20,)), image_report(SQUARE, (6,))
    cut = replace(small, cached_tokens_per_layer=(6, 2))
    report = Report((large, cut), (5,), 1, 2, 3, 4, {})
    assert report.tokens == 36 and report.mean_tokens == 13 and report.mean_cached_tokens == 12
    assert report.summary == "2 images, 13 of 36 visual tokens each per layer (36.1 %), 12 cached (33.3 %)"


def test_images_name_what_was_kept(multi_head, strategy, compress):
    handle = compress(multi_head, budget=24, strategy=strategy)
    multi_head(**ask(PROMPT))
    (image,) = handle.report.images
    last = image.stages[-1]
    assert torch.equal(image.kept, last.kept) and torch.equal(image.kept, last.indices)
    assert torch.equal(image.weights, last.weights) and torch.equal(image.positions, last.positions)
    standing = torch.arange(TOKENS)
    for stage in image.stages:
        standing = stage.assignment[standing]
    assert torch.equal(image.assignment, standing)
    assert torch.equal(image.assignment[image.kept], torch.arange(len(image.kept)))
    assert [len(image.layers_of(number)) for number in range(len(image.stages))] == (
        [8] if strategy == "fixed" else [4, 2, 2]
    )


def test_methods_that_drop_tokens_have_no_assignment(multi_head, compress):
    handle = compress(multi_head, budget=24, method="divprune", concentration=None)
    multi_head(**ask(PROMPT))
    (image,) = handle.report.images
    assert image.assignment is None and len(image.discarded_at(-1)) == TOKENS - 24


class Elsewhere(torch.Tensor):
    """A tensor that counts how often it is copied to the CPU."""

    moves = 0

    def detach(self):
        return self

    def cpu(self):
        Elsewhere.moves += 1
        return self.as_subclass(torch.Tensor)


def test_tensors_move_to_the_cpu_once_and_only_when_they_are_read():
    Elsewhere.moves = 0
    there = torch.arange(3).as_subclass(Elsewhere)
    stage = StageReport(
        depth=0, withheld=0.0, kept=there, positions=there, weights=there, assignment=there, maps={"combined": there}
    )
    assert Elsewhere.moves == 0
    assert type(stage.weights) is torch.Tensor and stage.weights is stage.weights
    assert Elsewhere.moves == 1
    assert type(stage.maps["combined"]) is torch.Tensor
    assert Elsewhere.moves == 2


def test_a_report_keeps_the_pixels_but_not_the_signals(multi_head, compress, monkeypatch):
    seen, reads = [], []
    begin = CovistFixed.begin
    monkeypatch.setattr(
        CovistFixed, "begin", lambda self, image, count: seen.append(ref(image.signals)) or begin(self, image, count)
    )
    undo = Preprocessing.undo
    monkeypatch.setattr(Preprocessing, "undo", lambda self, pixels: reads.append(1) or undo(self, pixels))
    handle = compress(multi_head, budget=24)
    inputs = ask(PROMPT)
    multi_head(**inputs)
    report = handle.report
    handle.remove()  # until then the hooks may hold what was encoded last
    del handle
    gc.collect()
    assert seen[0]() is None
    assert not reads, "nothing is computed until somebody looks"
    (view,) = report.images[0].read_pixels()
    assert view.untyped_storage().data_ptr() != inputs["pixel_values"].untyped_storage().data_ptr(), "not the batch"
    assert report.images[0].pixels[0].shape == (48, 48, 3) and reads


@pytest.mark.parametrize("ending", ["html", "png", "svg", "pdf"])
def test_a_report_is_written_in_the_format_of_its_name(multi_head, compress, tmp_path, ending):
    handle = compress(multi_head, budget=24)
    multi_head(**ask(PROMPT))
    path = tmp_path / f"kept.{ending.upper()}"
    handle.report.save(path)
    starts = {"html": b"<!doctype html>", "png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    assert path.read_bytes().startswith(starts[ending])
    alone = path.read_bytes()
    handle.report.save(path, image=Image.new("RGB", (90, 90), "teal"))
    assert path.read_bytes() != alone


def test_a_report_that_cannot_be_written_fails_with_one_clear_line(multi_head, compress, tmp_path):
    handle = compress(multi_head, budget=24)
    multi_head(**ask(PROMPT))
    image = Image.new("RGB", (9, 9))
    for name, options, message in (
        ("kept.gif", {}, r"must end in \.html, \.png, \.svg or \.pdf"),
        ("kept", {}, "must end in"),
        ("kept.png", {"which": 1}, "which=1: the report has 1 image, counted from 0"),
        ("kept.html", {"image": [image, image]}, "the report has 1 image, got 2; pass one for each"),
    ):
        with pytest.raises(covist.CovistError, match=message):
            handle.report.save(tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []
