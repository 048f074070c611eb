"""What is not compressed is what vLLM's own model class computes: text, whole images, videos."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from support.case import SIZES
from support.cases import first_of
from support.families import smooth_image
from support.matrix.qwen2_5_vl import qwen
from support.vllm_engines import Ask
from support.vllm_families import NARROW, a_video, folder_of

from covist.vllm.settings import BY_EMBEDDINGS

pytestmark = pytest.mark.vllm

SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
FRAMES = 4


def test_uncompressed_requests_equal_the_plain_engine(engine, tmp_path):
    # heads of 32, which the CPU's attention has as they are
    wide = partial(qwen, layers=3, hidden_size=128, rope_parameters=SECTIONS)
    case = replace(first_of("qwen2.5-vl"), name="qwen2.5-vl with wide heads", build=wide)
    folder, options = folder_of(case, tmp_path), {**NARROW, "limit_mm_per_prompt": {"video": 1}}
    image = (smooth_image(*SIZES[1]),)
    film = a_video(FRAMES, 84, 56)
    whole = {"covist_budget": "100%"}
    shown = case.image, case.image.replace("image", "video")
    about = [case.turn.replace("{}", what + " what is this ?") for what in (*shown, "".join(shown))]
    asks = [
        Ask(case.turn.replace("{}", "what is that ?")),
        Ask(about[0], image, whole),
        Ask(about[1], options=whole, videos=(film,)),
        Ask(about[2], image, whole, videos=(film,)),
    ]
    engine.serve(folder, f"Covist{case.model_class}", {"method": BY_EMBEDDINGS, "budget": 10}, **options)
    ours = engine.generate(asks, 6, endless=True)
    engine.serve(folder, **options)
    plain = engine.generate([replace(ask, options={}) for ask in asks], 6, endless=True)
    for own, theirs in zip(ours, plain, strict=True):
        assert (own.prompt, own.ids) == (theirs.prompt, theirs.ids)
        assert (own.log_probs - theirs.log_probs).abs().max() < 1e-4
