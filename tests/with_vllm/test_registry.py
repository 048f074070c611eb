"""Every model class that vLLM registers: ours is made of it, and nothing that we rely on is overridden in it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

pytestmark = pytest.mark.vllm

NOT_HERE = {"DeepseekV4ForConditionalGeneration", "Dots3NoteForCausalLM", "KananaVForConditionalGeneration"}
"""Classes for images that cannot be imported without a GPU or a further package."""
POINTS = ("_get_mm_prompt_updates", "_bind_and_group_updates")


@pytest.fixture(scope="module")
def walked():
    from vllm_models import FILE, walk

    built, failed = walk()
    return built, failed, json.loads(FILE.read_text(encoding="utf-8"))


def test_nothing_that_the_classes_build_on_has_moved():
    from covist.vllm.seams import SEAMS, moved_seams

    assert moved_seams() == [] and len(SEAMS) > 20
    altered = {"vllm.multimodal.inputs:PlaceholderRange": ["offset"], "vllm.multimodal:Nothing": None}
    assert moved_seams(altered) == [
        "vllm.multimodal.inputs:PlaceholderRange takes offset, length, is_embed",
        "vllm.multimodal:Nothing is missing",
    ]


def test_the_file_of_models_is_what_a_walk_over_the_registry_finds(walked):
    built, failed, written = walked
    assert {name: modalities for name, modalities in built.items() if modalities} == written
    assert len(written) >= 95 and sum("video" in one for one in written.values()) > 40
    assert {name for name in failed if "Asr" not in name and "ASR" not in name} - {"MiDashengLMModel"} == NOT_HERE


def test_no_processor_overrides_the_points_where_counts_are_changed(walked):
    from vllm.multimodal.processing import BaseMultiModalProcessor

    from covist.vllm import classes

    for name in walked[2]:
        made = getattr(classes, f"Covist{name}")
        assert made.__mro__[1] is classes.CompressedModel and callable(made.embed_multimodal)
        for one in vars(sys.modules[made.__mro__[2].__module__]).values():
            is_processor = isinstance(one, type) and issubclass(one, BaseMultiModalProcessor)
            if is_processor and one is not BaseMultiModalProcessor:
                assert not {*POINTS} & {*vars(one)}, f"{name}: {one.__name__}"
