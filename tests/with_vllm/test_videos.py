"""Videos at a share of all frames: vLLM says what covist says in transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.case import SIZES
from support.families import smooth_image
from support.vllm_engines import Ask
from support.vllm_families import NARROW, Served, a_video, serve
from support.vllm_models import MODELS
from support.vllm_reference import largest_difference

from covist.vllm.settings import BY_EMBEDDINGS

pytestmark = pytest.mark.vllm

EXACT = 1e-4
FRAMES = 6
CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
VIDEO: dict[str, dict[str, Any]] = {
    "qwen2.5-vl grouped-query": {},  # one run, positions in time
    "qwen3-vl grouped-query": {"patch_size": 16, **CLIP},  # the time and marks before every frame
    "llava-onevision": {},  # pooled frames, a newline after the last
}
COLUMNS = 16
"""For the distance factor of covist-fixed, in heads of 16."""
CASES = [*((name, BY_EMBEDDINGS) for name in VIDEO), ("qwen3-vl grouped-query", "covist-fixed")]


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def served(request, engine, tmp_path_factory) -> Served:
    name, method = request.param
    case, video = MODELS[name], dict(VIDEO[name])
    if case.family == "llava-onevision":
        side = case.model.config.vision_config.image_size
        video["size"] = {"height": side, "width": side}
    settings: dict[str, Any] = {"method": method, "budget": "25%"}
    options = {**NARROW, "max_num_batched_tokens": 512, "limit_mm_per_prompt": {"video": 2}}
    if method != BY_EMBEDDINGS:
        settings["concentration"], options["columns"] = 0.05, COLUMNS
    return serve(engine, case, tmp_path_factory.mktemp("model"), settings, video=video, **options)


def ask(served: Served, shown: str, **options: Any) -> Ask:
    """About an image for "i", a video for "v"."""
    case = served.case
    video = case.image.replace("image", "video")
    parts = "".join({"i": case.image, "v": video}[one] for one in shown)
    images = tuple(smooth_image(*SIZES[number], seed=number) for number in range(shown.count("i")))
    films = tuple(a_video(FRAMES, 140, 112, seed=9 * number) for number in range(shown.count("v")))
    return Ask(case.turn.replace("{}", parts + " what is the colour of this ?"), images, options, films)


def test_a_share_of_all_frames_as_in_transformers(served):
    asks = [ask(served, shown) for shown in ("v", "i", "iv", "vv")]
    completions = served.generate(asks)
    assert largest_difference(completions, served.compressed(asks)) < EXACT
    whole = served.generate([ask(served, "v", covist_budget="100%")])
    assert len(whole[0].prompt) > len(completions[0].prompt)
    assert largest_difference(whole, served.plain([ask(served, "v")])) < EXACT


def test_a_count_is_per_frame(served):
    (completion,) = served.generate([ask(served, "v", covist_budget=3)])
    (reference,) = served.compressed([ask(served, "v")], budget=3)
    assert largest_difference([completion], [reference]) < EXACT


def test_other_budgets_are_other_videos(served):
    question = ask(served, "v")
    lengths = [
        len(served.generate([replace(question, options={"covist_budget": share})])[0].prompt)
        for share in ("25%", "50%", "25%")
    ]
    assert lengths[0] == lengths[2] < lengths[1]
