"""Qwen3-VL: DeepStack, interleaved 3-D positions, norms of queries and keys, experts."""

import numpy as np
import pytest
import torch
from support.captures import captured
from support.families import smooth_image
from support.matrix.qwen3_vl import CASES, SlowQwen3, qwen3_vl, qwen3_vl_inputs, qwen3_vl_moe
from support.requests import assert_same, greedy, step_logits
from support.slow_llava import _Image
from support.slow_text_model import Watched
from support.videos import ask_about

import covist
from covist.api import handle
from covist.contract.text_config import geometry_of
from covist.engine.decoder import FrozenDecoder
from covist.engine.rotation import rotary_axes
from covist.errors import CovistError
from covist.families.registry import family_for
from covist.methods.create import create_method
from covist.methods.published import sparsevlm
from covist.methods.registry import available_methods
from covist.schedule import decoder_flops

PROMPT = "<|im_start|>user{image}what is the colour of this ?<|im_end|><|im_start|>assistant"
DENSE, EXPERTS = CASES
BUDGET = 16


@pytest.fixture(params=[DENSE, EXPERTS], ids=lambda case: case.name)
def case(request):
    return request.param


# -- reductions in the layers that DeepStack feeds ---------------------------------------------------------------------


class Dropped(_Image):
    """An image whose tokens are dropped and nothing else."""

    def reduce(self, depth, features):
        survivors = set(self.stages[depth].indices.tolist())
        kept = [place for place, token in enumerate(self.tokens) if token in survivors]
        self.tokens = [self.tokens[place] for place in kept]
        self.companions = {layer: own[kept] for layer, own in self.companions.items()}
        return features[kept]


class SlowDropping(SlowQwen3):
    """The model's own layers over fewer and fewer tokens; no weights, so no bias."""

    between_stages = Dropped

    def __init__(self, model):
        super().__init__(model, pro=False)
        self.gains = np.zeros_like(self.gains)


@pytest.fixture(params=["fastv", "dart", "sparsevlm"])
def method(request, monkeypatch):
    """Methods that cut in the first layers; SparseVLM without its recycled means, which are its own tests' matter."""
    monkeypatch.setattr(sparsevlm, "split_places", lambda tokens, count: (count, 0))
    return request.param


@pytest.fixture(params=[1, 2, 4])
def cut(request, method, monkeypatch):
    """The layer before which a method reduces for the first time, of eight."""
    later = (request.param * 4, 24, 28)  # as published for 32 layers
    monkeypatch.setattr(available_methods()[method], "cuts", later if method == "sparsevlm" else later[:1])
    monkeypatch.setattr(available_methods()[method], "untouched_share", 10.0)
    return request.param


def test_a_cut_in_the_first_layers_keeps_the_features_that_are_still_to_come(case, method, cut, compress):
    inputs = case.ask("this {image}and {image}what is that ?")
    handle = compress(case, budget=BUDGET, method=method, concentration=None)
    output = greedy(case.model, inputs, 1)
    handle.remove()
    images = list(handle.report.images)
    assert all(image.stages[1].depth == cut and len(image.kept) < image.tokens for image in images)
    expected = SlowDropping(case.model).logits(inputs["input_ids"][0].tolist(), inputs, images)
    torch.testing.assert_close(output.logits[0][0], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method, layer", [("fastv", 1), ("pyramiddrop", 2)])
def test_choices_follow_the_attention_that_the_model_itself_has(case, compress, monkeypatch, method, layer):
    """FastV reads the layer before its cut, PyramidDrop the one after it, whose input holds the features due there."""
    monkeypatch.setattr(available_methods()[method], "cuts", (8,))
    monkeypatch.setattr(available_methods()[method], "shape", (1.0,))
    monkeypatch.setattr(available_methods()[method], "untouched_share", 10.0)
    inputs = case.ask("{image}what is the colour of this ?")
    monkeypatch.setattr(case.model.model.language_model.config, "_attn_implementation", "eager")
    attention = case.model(**inputs, output_attentions=True).attentions[layer][0].mean(0)[-1]  # [n]
    handle = compress(case, budget=BUDGET, method=method, concentration=None)
    case.model(**inputs)
    stage = handle.report.images[0].stages[1]
    assert stage.depth == 2
    to_image = attention[inputs["input_ids"][0] == case.model.config.image_token_id]
    assert stage.indices.tolist() == to_image.topk(len(stage.indices)).indices.sort().values.tolist()


def test_a_padded_batch_under_an_early_cut_equals_the_prompts_alone(method, cut, compress):
    questions = ("{image}what is the colour of this ?", "what is this ?", "this {image}and {image}what ?")
    compress(DENSE, budget=BUDGET, method=method, concentration=None)
    together = step_logits(greedy(DENSE.model, DENSE.ask(*questions), 2))
    for index, (question, images) in enumerate(zip(questions, ((0,), (), (1, 2)), strict=True)):
        alone = step_logits(greedy(DENSE.model, DENSE.ask(question, images=images), 2))
        torch.testing.assert_close(together[:, index], alone[:, 0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(available_methods()))
def test_full_budget_of_every_method_is_the_plain_model(name, compress):
    inputs = DENSE.ask("this {image}and {image}what is that ?")
    plain = greedy(DENSE.model, inputs, 2)
    tracks = create_method(name).tracker is not None
    compress(DENSE, budget=1.0, method=name, **({} if tracks else {"concentration": None}))
    assert_same(greedy(DENSE.model, inputs, 2), plain)


def test_nothing_is_left_of_deepstack_when_an_image_is_reduced_after_it(compress, monkeypatch):
    """States carry no features that have been added."""
    seen = []
    monkeypatch.setattr(handle, "build_report", lambda prefill, decoder: seen.extend(prefill.images))
    compress(DENSE, budget=BUDGET, strategy="pro")
    DENSE.model(**DENSE.ask("{image}what ?"))
    ((_, entered), (_, later), (_, last)) = seen[0].reductions
    assert set(entered.state.companions) == {1, 2, 3}
    assert later.state.companions == last.state.companions == {}


@pytest.mark.parametrize("budget", [1.0, 8])
def test_masked_tokens_receive_nothing(case, strategy, compress, budget):
    inputs = case.ask("{image}what is this ?")
    first = inputs["input_ids"][0].tolist().index(case.model.config.image_token_id)
    positions, _ = case.model.model.get_rope_index(
        inputs.input_ids, inputs.mm_token_type_ids, image_grid_thw=inputs.image_grid_thw
    )
    mask = inputs["attention_mask"].clone()
    mask[0, first + 3 : first + 11] = 0
    given = {**inputs, "attention_mask": mask, "position_ids": positions}
    plain = case.model(**given).logits[0, -1]
    handle = compress(case, budget=budget, strategy=strategy)
    ours = case.model(**given).logits[0, -1]
    if budget == 1.0:
        torch.testing.assert_close(ours, plain, atol=1e-4, rtol=1e-4)
    else:
        assert handle.report.images[0].tokens == case.tokens(inputs) - 8
        uncached = case.model(**given, use_cache=False).logits[0, -1]
        torch.testing.assert_close(ours, uncached, atol=1e-4, rtol=1e-4)


def test_more_levels_than_layers_to_receive_them_are_refused():
    with pytest.raises(CovistError, match="3 DeepStack levels for 3 decoder layers"):
        covist.compress(qwen3_vl(layers=3))


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(33, 33), (131, 170), (300, 61), (64, 640)])
def test_signals_are_those_of_the_last_block_in_reading_order(size):
    inputs = qwen3_vl_inputs([PROMPT], [smooth_image(*size)])
    tower, seen = DENSE.model.model.visual, {}
    block = tower.blocks[-1].attn
    hook = block.register_forward_pre_hook(
        lambda module, args, given: seen.update(rotary=given["position_embeddings"]), with_kwargs=True
    )
    hook2 = block.qkv.register_forward_hook(lambda module, args, output: seen.update(qkv=output))
    (signals,) = captured(DENSE.model, inputs)
    hook.remove(), hook2.remove()
    queries, keys, _ = seen["qkv"].view(len(seen["qkv"]), 3, 2, 16).unbind(1)  # [patches, heads, w]
    cos, sin = seen["rotary"]
    turned = [
        part * cos[:, None] + torch.cat([-part[..., 8:], part[..., :8]], -1) * sin[:, None] for part in (queries, keys)
    ]
    probabilities = torch.einsum("qhw,khw->hqk", *turned).div(4).softmax(-1)
    expected = probabilities.mean((0, 1)).view(-1, 4).sum(1)
    torch.testing.assert_close(signals.attention[0, 0], expected, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(signals.keys, keys.flatten(1).view(-1, 4, 32).mean(1), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(signals.project(signals.hidden), signals.embeddings)
    rows, columns = inputs.image_grid_thw[0, 1:].tolist()
    assert signals.grid.views == ((rows // 2, columns // 2),)


@pytest.mark.parametrize("return_dict", [True, False])
def test_companions_are_the_levels_of_each_image(return_dict):
    inputs = qwen3_vl_inputs([PROMPT, PROMPT], [smooth_image(131, 170), smooth_image(60, 200, 2)])
    seen = []
    hooks = family_for(DENSE.model).capture(seen.extend)
    DENSE.model.model.get_image_features(inputs.pixel_values, inputs.image_grid_thw, return_dict=return_dict)
    for hook in hooks:
        hook.remove()
    levels = DENSE.model.model.get_image_features(inputs.pixel_values, inputs.image_grid_thw).deepstack_features
    for number, signals in enumerate(seen):
        assert list(signals.companions) == [1, 2, 3]
        assert all(torch.equal(signals.companions[level + 1], own[number]) for level, own in enumerate(levels))
        assert signals.companions[1].shape == signals.span.shape


def test_an_image_of_1024_pixels_is_1024_tokens():
    (signals,) = captured(DENSE.model, qwen3_vl_inputs([PROMPT], [smooth_image(1024, 1024)]))
    assert signals.grid.views == ((32, 32),) and len(signals.span) == 1024


# -- the decoder -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sections", [[4, 2, 2], [2, 3, 3], [8, 0, 0], [3, 3, 2]])
def test_rotary_axes_are_those_of_the_models_own_frequencies(sections):
    """Moving one position component must turn exactly the frequencies of its axis, in both halves of a head."""
    model = qwen3_vl(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections})
    rotary, axes = model.model.language_model.rotary_emb, rotary_axes(model.model.language_model).of_frequencies
    for axis in range(3):
        moved = torch.zeros(3, 1, 1)
        moved[axis] = 1.0
        turned = (rotary(torch.zeros(1), moved)[0] != rotary(torch.zeros(1), torch.zeros(3, 1, 1))[0])[0, 0]
        assert turned.tolist() == [own == axis for own in axes] * 2


def test_reads_are_what_the_attention_function_receives(case):
    module = case.model.model.language_model
    embeddings = torch.randn(7, 32)
    watched, decoder = Watched(module, embeddings), FrozenDecoder(module)
    cos, sin = decoder.rotary(embeddings[None], torch.arange(7)[None, :, None].expand(-1, -1, 3))
    for layer, hidden in enumerate(watched.hidden):
        for read, received in ((decoder.queries, watched.queries), (decoder.keys, watched.keys)):
            torch.testing.assert_close(read(layer, hidden, (cos[0], sin[0])), received[layer], atol=1e-4, rtol=1e-4)
        assert decoder.scale(layer) == pytest.approx(watched.scale[layer]) == pytest.approx(16**-0.5)


def test_flops_count_the_experts_that_a_token_meets():
    config = qwen3_vl_moe(layers=5).model.language_model.config
    assert geometry_of(config).flops([100] * 5) == decoder_flops([100] * 5, 32, 2 * 24)
    del config.intermediate_size
    assert geometry_of(config).flops([100] * 5) == decoder_flops([100] * 5, 32, 2 * 24)
    dense = qwen3_vl(layers=5).model.language_model.config
    assert geometry_of(dense).flops([100] * 5) == decoder_flops([100] * 5, 32, 64)


def test_the_frames_of_a_video_do_not_pose_as_images(case):
    """The tower encodes a video by asking for the features of images."""
    inputs, seen = ask_about(case, "image", 3), []
    hooks = family_for(case.model).capture(seen.append)
    case.model.get_video_features(inputs["pixel_values_videos"], inputs["video_grid_thw"])
    case.model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
    for hook in hooks:
        hook.remove()
    assert [[signals.modality for signals in call] for call in seen] == [["video"], ["image"]]
