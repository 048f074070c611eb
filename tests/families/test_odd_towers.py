"""Vision towers that cannot give the evidence are refused when compression begins, not at the first image."""

import pytest
from support.llava import build_llava
from support.matrix.llava_next import llava_next
from support.matrix.qwen2_5_vl import qwen

import covist
from covist.errors import CovistError


@pytest.mark.parametrize("layer", [0, -5, 5, [-2, 0]])
def test_a_projector_that_reads_no_encoder_layer_is_refused(layer):
    model = build_llava()
    model.config.vision_feature_layer = layer
    with pytest.raises(
        CovistError, match=r"the vision tower has 4 encoder layers, whose outputs are 1 to 4 or -4 to -1"
    ):
        covist.compress(model)


@pytest.mark.parametrize("layer", [1, 3, -1, -3, [1, -2]])
def test_every_layer_that_the_tower_has_is_accepted(layer):
    model = llava_next()
    model.config.vision_feature_layer = layer
    covist.compress(model, method="fastervlm").remove()


@pytest.mark.parametrize("blocks", [[1, 4], [-1], [7]])
def test_full_attention_in_a_block_that_is_not_there_is_refused(blocks):
    model = qwen()
    model.model.visual.fullatt_block_indexes = blocks
    with pytest.raises(CovistError, match=r"fullatt_block_indexes=.*: the vision tower has blocks 0 to 3"):
        covist.compress(model)


def test_a_tower_without_full_attention_is_refused():
    with pytest.raises(CovistError, match="must see the whole image"):
        covist.compress(qwen(vision={"fullatt_block_indexes": []}))
