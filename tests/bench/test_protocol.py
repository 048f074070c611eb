"""The protocol: what is run, in which order, and how it is summed up."""

import pytest
import torch
from torch._dynamo.utils import counters

from covist import tiny
from covist.api.setup import Setup
from covist.bench.protocol import Bench, configurations
from covist.bench.random_models import build_random
from covist.bench.recipes import buildable
from covist.bench.workloads import Volume, geometry_workload, image_workload, scene_workload
from covist.families.registry import geometry_named
from covist.plan import make_plan
from covist.request.decoding import static_cache
from covist.request.inputs import Request
from covist.request.loading import LoadedModel
from covist.request.tokens import visual_tokens

SIZE = tiny.Size(vision_layers=2, text_layers=1, decoder_layers=4)


@pytest.fixture(scope="module")
def loaded():
    return LoadedModel("small", *tiny.build_random(size=SIZE))


@pytest.fixture
def shallow(monkeypatch):
    """Models of few layers, where an input is large and only its tokens are counted."""

    def build(name, scale):
        return build_random(name, scale, decoder={"num_hidden_layers": 4}, vision=buildable()[name][1].shallow)

    monkeypatch.setattr("covist.bench.workloads.build_random", build)


def test_vanilla_comes_first_and_once():
    plan = configurations(["random", "vanilla"], [64, "10%"])
    assert plan == [Setup("vanilla", "none"), Setup("random", 64), Setup("random", "10%")]


def test_warm_up_prompts_are_not_timed_and_not_repeated(loaded):
    workload = scene_workload(loaded, Volume(prompts=2, warmup=1, max_new_tokens=1))
    texts = [request.prompts["input_ids"].tolist() for request in (*workload.warmup, *workload.requests)]
    images = [request.images["pixel_values"].sum().item() for request in (*workload.warmup, *workload.requests)]
    assert len(texts) == 3 and len(set(images)) == 3
    steps = []
    bench = Bench(workload, configurations(["covist-fixed"], [32]), repetitions=2)
    bench.run(steps.append)
    assert len(steps) == bench.steps == 2 * (1 + 2 * 2)
    assert [row["requests"] for row in bench.results()["results"]] == [4, 4]


def test_configurations_take_turns(loaded):
    image, question, _ = tiny.demo()
    workload = image_workload(loaded, [image], question, Volume(prompts=1, warmup=0, max_new_tokens=1))
    steps = []
    Bench(workload, configurations(["random"], [32]), repetitions=2).run(steps.append)
    assert steps == ["vanilla", "random 32", "vanilla", "random 32"]


def test_figures_of_the_rows(loaded):
    image, question, _ = tiny.demo()
    workload = image_workload(loaded, [image], question, Volume(prompts=2, warmup=0, max_new_tokens=2))
    bench = Bench(workload, configurations(["covist-pro"], [32]), repetitions=1)
    bench.run()
    vanilla, pro = bench.results()["results"]
    assert vanilla["speedup"] == {"mean": 1, "median": 1} and vanilla["mean_tokens"] == 576
    for name in ("mean", "median"):
        ratio = vanilla["generation_ms"][name] / pro["generation_ms"][name]
        assert pro["speedup"][name] == pytest.approx(ratio)
    took = bench.records[Setup("covist-pro", 32)].requests
    assert pro["tokens_per_second"] == pytest.approx(4 / sum(item.generation for item in took))
    assert pro["kv_mib"] < vanilla["kv_mib"] and pro["flops"] < vanilla["flops"]
    assert vanilla["selection_ms"] is None and pro["selection_ms"]["mean"] > 0
    assert pro["compression_ms"]["mean"] >= pro["selection_ms"]["mean"]
    assert pro["prefill_over_plain"] > 0


def test_the_plain_decoder_runs_on_the_compressed_length(loaded, monkeypatch):
    lengths = []
    monkeypatch.setattr(
        "covist.bench.protocol.measure_plain_decoder", lambda model, length: lengths.append(length) or 1.0
    )
    image, question, _ = tiny.demo()
    workload = image_workload(loaded, [image], question, Volume(prompts=1, warmup=0, max_new_tokens=1))
    Bench(workload, configurations(["covist-fixed"], [32]), repetitions=1).run()
    prompt = workload.requests[0].length
    assert lengths == [prompt, prompt - 576 + 32]


@pytest.mark.parametrize("name", [name for name, (size, _) in buildable().items() if size.frames == 1])
def test_random_models_have_the_tokens_and_stages_of_their_geometry(name):
    geometry, recipe = buildable()[name]
    random = build_random(name, 0.01, vision=recipe.shallow)
    request = Request.of_inputs(random.request(0, 20))
    (tokens,) = visual_tokens(LoadedModel(name, random.model, random.tokenizer), request)
    assert (tokens.content, tokens.markers) == (geometry.tokens, geometry.markers)
    assert request.length - tokens.content - tokens.markers >= 20  # a family may put markers around the image
    decoder = random.model.config.text_config
    assert decoder.num_hidden_layers == geometry.layers
    assert getattr(decoder, "head_dim", decoder.hidden_size // decoder.num_attention_heads) == geometry.head_width


def test_a_geometry_is_compressed_as_planned():
    workload = geometry_workload("llava-1.5-7b", 0.01, 20, Volume(prompts=1, warmup=0, max_new_tokens=1), "cpu")
    bench = Bench(workload, configurations(["covist-pro"], [64]), repetitions=1)
    bench.run()
    (report,) = bench.records[Setup("covist-pro", 64)].reports
    planned = make_plan(geometry_named("llava-1.5-7b"), 64, "pro")
    assert report.images[0].tokens_per_layer == planned.schedule.tokens_per_layer


def test_too_many_prompts_for_the_suite(loaded):
    with pytest.raises(ValueError, match="too few for"):
        scene_workload(loaded, Volume(prompts=100_000, warmup=1))


def test_newlines_are_counted_apart(shallow):
    """A visual token is a content token; LLaVA-NeXT's newlines are no visual tokens."""
    workload = geometry_workload("llava-next-7b", 0.01, 20, Volume(prompts=1, warmup=0, max_new_tokens=1), "cpu")
    bench = Bench(workload, configurations(["random"], [160]), repetitions=1)
    bench.run()
    vanilla, random = bench.results()["results"]
    assert (vanilla["mean_tokens"], vanilla["markers"]) == (2880, 48)
    assert (random["mean_tokens"], random["markers"]) == (160, 48)


def test_a_video_is_compressed_by_frames(shallow):
    workload = geometry_workload("qwen3-vl-8b-video", 0.01, 20, Volume(prompts=1, warmup=0, max_new_tokens=1), "cpu")
    bench = Bench(workload, configurations(["random"], [32]), repetitions=1)
    bench.run()
    vanilla, random = bench.results()["results"]
    assert (vanilla["mean_tokens"], random["mean_tokens"]) == (16 * 256, 16 * 32)


@pytest.mark.own_rounding
def test_a_static_cache_with_compiled_steps(loaded):
    """Compilation happens once for vanilla and once for the method, in the warm-up."""
    torch.compiler.reset()
    counters.clear()
    workload = scene_workload(loaded, Volume(prompts=1, warmup=1, max_new_tokens=3))
    decoding = static_cache(compiled=True)
    decoding["compile_config"].backend, decoding["compile_config"].mode = "eager", None
    bench = Bench(workload, configurations(["covist-max"], [32]), repetitions=1, decoding=decoding)
    bench.run()
    assert counters["stats"]["unique_graphs"] == 2 and not counters["graph_break"]
    results = bench.results()
    assert (results["protocol"]["cache"], results["protocol"]["compiled"]) == ("static", True)
    assert all(row["requests"] == 1 and row["generation_ms"] for row in results["results"])
    torch.compiler.reset()
