"""The gate in front of a packed tower: only some patches enter, and the rest of the model sees what was encoded."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from reference.pixels import pixelprune
from support.cases import first_of
from support.requests import assert_same, greedy, step_logits
from support.screens import PACKED, PROMPT, run_on, show
from support.videos import CASES_WITH_VIDEO, ask_about, frame_tokens
from support.zoo.animal import animal

import covist
from covist.errors import CovistError
from covist.families import video
from covist.families.gate import PatchGate, packed_tower
from covist.families.hooks import Running
from covist.families.registry import family_for

SHAPES = ((6, 7), (5, 9), (8, 4))


@pytest.fixture(params=PACKED, ids=lambda case: case.name)
def packed(request):
    return request.param


@pytest.fixture
def prune(compress):
    return lambda case, **options: compress(
        case, **{"method": "pixelprune", "budget": "100%", "concentration": None, **options}
    )


def scores_of(case, inputs):
    """What is encoded [N] bool, by the literal rule."""
    kept, merge = [], case.model.config.vision_config.spatial_merge_size
    parts = inputs["pixel_values"].split(inputs["image_grid_thw"].prod(1).tolist())
    for (_, height, width), patches in zip(inputs["image_grid_thw"].tolist(), parts, strict=True):
        shown = patches.view(1, height // merge, width // merge, -1).numpy()
        mask = torch.zeros(shown.shape[:3], dtype=torch.bool)
        mask[tuple(zip(*pixelprune(shown, 0, "max")[0], strict=True))] = True
        kept.append(mask.flatten())
    return torch.cat(kept)


def features(case, inputs):
    """Embeddings of all images [N, d], and DeepStack features."""
    made = case.model.model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
    return torch.cat(list(made.pooler_output)), list(map(_joined, getattr(made, "deepstack_features", None) or []))


def _joined(level):
    return level if isinstance(level, torch.Tensor) else torch.cat(list(level))


def positions_of(case, inputs):
    """[3, batch, n] of the whole prompt."""
    given = {name: inputs[name] for name in ("image_grid_thw", "attention_mask")}
    return case.model.model.get_rope_index(inputs["input_ids"], inputs["mm_token_type_ids"], **given)[0]


def literal_logits(case, inputs, kept, chosen=None):
    """Logits of one prompt whose image consists of the kept tokens, or of those `chosen` among them."""
    model, ids = case.model, inputs["input_ids"]
    made, levels = run_on(model.model.visual, inputs["pixel_values"], inputs["image_grid_thw"], kept)
    is_image = ids[0] == model.config.image_token_id
    embeddings = model.get_input_embeddings()(ids)[0]
    embeddings[is_image.nonzero()[:, 0][kept]] = made
    left = ~is_image
    left[is_image.nonzero()[:, 0][kept if chosen is None else chosen]] = True
    among = slice(None) if chosen is None else torch.isin(kept.nonzero()[:, 0], chosen)
    positions = positions_of(case, inputs)
    deep = {"visual_pos_masks": is_image[left][None], "deepstack_visual_embeds": [level[among] for level in levels]}
    states = model.model.language_model(
        inputs_embeds=embeddings[left][None],
        position_ids=positions[:, :, left],
        attention_mask=torch.ones(1, int(left.sum())),
        **(deep if levels else {}),
    ).last_hidden_state
    return model.lm_head(states)[0, -1]


def test_the_tower_computes_what_its_blocks_make_of_the_kept_patches(packed, prune):
    inputs = show(packed, *SHAPES)
    kept = scores_of(packed, inputs)
    assert 0.2 < kept.float().mean() < 0.8
    expected, levels = run_on(packed.model.model.visual, inputs["pixel_values"], inputs["image_grid_thw"], kept)
    prune(packed)
    made, deep = features(packed, inputs)
    torch.testing.assert_close(made[kept], expected, atol=1e-4, rtol=1e-3)
    assert not made[~kept].any()
    assert len(deep) == len(levels)
    for ours, theirs in zip(deep, levels, strict=True):
        torch.testing.assert_close(ours[kept], theirs, atol=1e-4, rtol=1e-3)


def test_the_decoder_sees_what_was_encoded_at_its_places_in_the_whole_grid(packed, prune):
    inputs = show(packed, SHAPES[0])
    kept = scores_of(packed, inputs)
    expected = literal_logits(packed, inputs, kept)
    handle = prune(packed)
    torch.testing.assert_close(packed.model(**inputs).logits[0, -1], expected, atol=2e-3, rtol=1e-3)
    (image,) = handle.report.images
    assert image.kept.tolist() == kept.nonzero()[:, 0].tolist()
    assert (image.tokens, image.encoded, image.tokens_per_layer[0]) == (len(kept), kept.sum(), kept.sum())
    assert f"the patches of {int(kept.sum())} of {len(kept)} tokens" in repr(handle.report)
    assert handle.report.to_dict()["images"][0]["encoded_tokens"] == kept.sum()


def test_a_smaller_budget_chooses_among_what_was_encoded(packed, prune):
    inputs = show(packed, SHAPES[0])
    kept = scores_of(packed, inputs)
    handle = prune(packed, budget=7)
    logits = packed.model(**inputs).logits[0, -1]
    (image,) = handle.report.images
    assert len(image.kept) == 7 and image.encoded == kept.sum() and bool(kept[image.kept].all()) and 0 in image.kept
    handle.remove()
    expected = literal_logits(packed, inputs, kept, image.kept)
    torch.testing.assert_close(logits, expected, atol=2e-3, rtol=1e-3)


def test_a_share_is_one_of_the_whole_image(packed, prune):
    handle = prune(packed, budget="10%")
    packed.model(**show(packed, SHAPES[0]))
    assert handle.report.images[0].tokens_per_layer[0] == 4  # of 42


def test_images_of_a_batch_and_of_a_prompt_are_encoded_as_each_alone(packed, prune):
    prompts = [PROMPT.replace("{image}", "{image} and {image}"), PROMPT]
    together = show(packed, *SHAPES, prompts=prompts)
    kept = scores_of(packed, together)
    handle = prune(packed)
    packed.model(**together)
    assert [image.sample for image in handle.report.images] == [0, 0, 1]
    sizes = [rows * columns for rows, columns in SHAPES]
    for image, own in zip(handle.report.images, kept.split(sizes), strict=True):
        assert image.kept.tolist() == own.nonzero()[:, 0].tolist()
    logits = step_logits(greedy(packed.model, together, 3))[:, 1]
    grid, first = together["image_grid_thw"], int(together["image_grid_thw"][:2].prod(1).sum())
    valid = together["attention_mask"][1].bool()
    rows = {name: together[name][1:, valid] for name in ("input_ids", "attention_mask", "mm_token_type_ids")}
    alone = {**rows, "pixel_values": together["pixel_values"][first:], "image_grid_thw": grid[2:]}
    torch.testing.assert_close(logits, step_logits(greedy(packed.model, alone, 3))[:, 0], atol=1e-3, rtol=1e-3)


def test_cached_decoding_equals_a_fresh_prefill(packed, prune):
    inputs = show(packed, SHAPES[1])
    prune(packed)
    output = greedy(packed.model, inputs, 3)
    longer = {**inputs, "input_ids": output.sequences[:, :-1]}
    longer["attention_mask"] = torch.ones_like(longer["input_ids"])
    types = inputs["mm_token_type_ids"]
    longer["mm_token_type_ids"] = torch.cat(
        [types, types.new_zeros(1, longer["input_ids"].shape[1] - types.shape[1])], 1
    )
    fresh = packed.model(**longer).logits[0, -1]
    torch.testing.assert_close(output.logits[-1][0], fresh, atol=1e-3, rtol=1e-3)


def test_an_image_that_nothing_predicts_is_the_plain_model(packed, prune):
    inputs = packed.ask("{image} what is this ?")
    plain = greedy(packed.model, inputs)
    handle = prune(packed)
    assert_same(greedy(packed.model, inputs), plain)
    assert handle.report.images[0].encoded is None
    handle.remove()
    after = greedy(packed.model, inputs)
    assert all(torch.equal(one, other) for one, other in zip(after.logits, plain.logits, strict=True))


def test_removal_leaves_no_hook(packed, prune):
    modules = list(packed.model.modules())
    before = [{name: dict(value) for name, value in vars(one).items() if name.endswith("_hooks")} for one in modules]
    prune(packed).remove()
    assert before == [
        {name: dict(value) for name, value in vars(one).items() if name.endswith("_hooks")} for one in modules
    ]


@pytest.mark.parametrize("block", [0, 2])
def test_an_interrupted_call_leaves_nothing_to_the_next(packed, prune, block):
    inputs = show(packed, SHAPES[0])
    tower = packed.model.model.visual
    prune(packed)
    expected = packed.model(**inputs).logits

    def interrupt(*_):
        raise KeyboardInterrupt

    hook = tower.blocks[block].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        packed.model(**inputs)
    hook.remove()
    assert torch.equal(packed.model(**inputs).logits, expected)


def test_only_calls_that_the_method_runs_in_leave_patches_out(packed, compress):
    inputs = show(packed, SHAPES[0])
    plain, _ = features(packed, inputs)
    handle = compress(packed, budget="50%", method="divprune", concentration=None)
    assert torch.equal(features(packed, inputs)[0], plain)
    with handle.using(method="pixelprune"):
        assert not torch.equal(features(packed, inputs)[0], plain)
    assert torch.equal(features(packed, inputs)[0], plain)
    with handle.using(method="pixelprune"), handle.using(budget="none"):
        assert torch.equal(features(packed, inputs)[0], plain)
    whole = packed.model.model.visual(inputs["pixel_values"], grid_thw=inputs["image_grid_thw"]).pooler_output
    assert torch.equal(whole, plain)


def test_threads_do_not_share_what_they_leave_out(packed, compress):
    inputs = show(packed, SHAPES[0])
    handle = compress(packed, budget="50%", method="divprune", concentration=None)
    whole, _ = features(packed, inputs)

    def encoded(method):
        with handle.using(method=method):
            return [features(packed, inputs)[0] for _ in range(4)]

    part = encoded("pixelprune")[0]
    with ThreadPoolExecutor(2) as threads:
        parts, wholes = threads.map(encoded, ["pixelprune", "divprune"])
    assert all(torch.equal(one, part) for one in parts) and all(torch.equal(one, whole) for one in wholes)


def test_tokens_that_the_attention_mask_hides_are_left_out_besides(packed, prune):
    inputs = show(packed, SHAPES[0])
    kept, hidden = scores_of(packed, inputs), torch.arange(42) % 4 == 3
    rows = (inputs["input_ids"][0] == packed.model.config.image_token_id).nonzero()[:, 0]
    positions = positions_of(packed, inputs)  # the plain model does not find them under such a mask
    inputs["attention_mask"][0, rows[hidden]] = 0
    handle = prune(packed)
    assert packed.model(**inputs, position_ids=positions).logits.isfinite().all()
    (image,) = handle.report.images
    assert image.kept.tolist() == (kept & ~hidden).nonzero()[:, 0].tolist() and image.tokens == 42


def test_features_are_used_again_with_what_is_known_about_them(packed, compress):
    inputs = show(packed, SHAPES[0])
    prompt = {name: value for name, value in inputs.items() if name != "pixel_values"}

    def encode():
        return packed.model.model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])

    handle = compress(packed, budget=7, method="divprune", concentration=None)
    whole = encode()
    with handle.using(method="pixelprune"):
        with pytest.raises(CovistError, match="encoded whole, without the method that chooses its patches"):
            packed.model(**prompt, mm_encoder_outputs={"image": whole})
        expected, part = packed.model(**inputs).logits, encode()
        for _ in range(2):
            assert torch.equal(packed.model(**prompt, mm_encoder_outputs={"image": part}).logits, expected)


@pytest.mark.parametrize("options", [{"budget": "total:12"}, {"max_visual_tokens": 12}], ids=str)
def test_images_share_what_all_of_them_may_keep(packed, prune, options):
    inputs = show(packed, *SHAPES[:2], prompts=[PROMPT.replace("{image}", "{image} and {image}")])
    kept = scores_of(packed, inputs).split([42, 45])
    handle = prune(packed, **options)
    packed.model(**inputs)
    counts = [image.tokens_per_layer[0] for image in handle.report.images]
    assert sum(counts) == 12 and min(counts) > 0
    assert all(bool(own[image.kept].all()) for own, image in zip(kept, handle.report.images, strict=True))


FILMED = [case for case in PACKED if case in CASES_WITH_VIDEO]


@pytest.mark.parametrize("most", [4096, 40], ids=["whole", "in segments"])
@pytest.mark.parametrize("case", FILMED, ids=lambda case: case.name)
def test_of_a_video_only_what_changes_is_encoded(case, prune, most, monkeypatch):
    monkeypatch.setattr(video, "SEGMENT_TOKENS", most)
    inputs = ask_about(case, 3)
    (frames, height, width), each = inputs.video_grid_thw[0].tolist(), frame_tokens(case)
    pixels = inputs["pixel_values_videos"].view(frames, height * width, -1)
    pixels[1:] = pixels[0]
    pixels[2, 4 * 5] += 0.5  # a patch of token 5
    kept = [*range(each), each, 2 * each, 2 * each + 5]
    mask = torch.zeros(3 * each, dtype=torch.bool).index_fill_(0, torch.tensor(kept), True)
    expected, _ = run_on(case.model.model.visual, inputs["pixel_values_videos"], inputs["video_grid_thw"], mask)
    handle = prune(case)
    made = case.model.model.get_video_features(inputs["pixel_values_videos"], inputs["video_grid_thw"]).pooler_output
    torch.testing.assert_close(torch.cat(list(made))[mask], expected, atol=1e-4, rtol=1e-3)
    output = greedy(case.model, inputs, 2)
    assert torch.stack(output.logits).isfinite().all()
    (whole,) = handle.report.visuals
    assert (len(handle.report.images) > 1) == (most < 4096)
    assert (
        whole.kept.tolist() == kept and whole.encoded == len(kept) and whole.kept_per_frame().tolist() == [each, 1, 2]
    )


class EncodedHalf(covist.Method):
    """Encodes every second token, and lets another method choose among these."""

    name, rates_patches = "encoded-half", True

    def __init__(self, chooser, **options):
        super().__init__(**options)
        self.chooser = covist.create_method(chooser)

    def rate_patches(self, pixels):
        scores = torch.ones(pixels.cells.shape[:3])
        scores.flatten()[1::2] = 0
        return scores

    def select(self, image, count):
        self.seen = image.signals
        return self.chooser.select(image, count)


def test_other_methods_find_the_signals_of_what_was_encoded(packed, prune):
    """Keys, features and attention are those of the subset, and features project to the embeddings."""
    inputs = show(packed, SHAPES[0])
    method = EncodedHalf("divprune")
    handle = prune(packed, method=method, budget=6)
    packed.model(**inputs)
    signals = method.seen
    kept = torch.arange(42) % 2 == 0
    assert (
        len(signals.keys) == len(signals.hidden) == signals.attention.numel() == int(kept.sum()) and not signals.uniform
    )
    assert torch.equal(signals.embeddings, features(packed, inputs)[0][kept])
    torch.testing.assert_close(signals.project(signals.hidden), signals.embeddings, atol=1e-4, rtol=1e-3)
    assert handle.report.images[0].kept.tolist() == [token for token in handle.report.images[0].kept if not token % 2]


def test_scores_of_another_package_are_checked(packed, prune):
    class Wrong(covist.Method):
        name, rates_patches = "wrong", True

        def rate_patches(self, pixels):
            return self.scores

    method = Wrong()
    prune(packed, method=method)
    for scores, line in ((torch.ones(4), "return a tensor"), (torch.zeros(1, 6, 7), "above zero"), (None, "NoneType")):
        method.scores = scores
        with pytest.raises(CovistError, match=f"method 'wrong' failed in rate_patches.*{line}"):
            packed.model(**show(packed, SHAPES[0]))


@pytest.mark.parametrize("family", ["llava-1.5", "llava-onevision", "internvl", "idefics3", "pixtral"])
def test_towers_that_take_whole_images_only_are_refused(family, prune):
    case = first_of(family)
    hooks = [len(module._forward_pre_hooks) for module in case.model.modules()]
    with pytest.raises(
        CovistError, match="pixelprune leaves patches out before the vision tower.*choose another method"
    ):
        prune(case)
    assert hooks == [len(module._forward_pre_hooks) for module in case.model.modules()]


def test_a_threshold_needs_the_processor(packed):
    inputs, line = show(packed, SHAPES[0]), "known only with the processor"
    with (
        covist.compress(packed.model, method="pixelprune", threshold=0.1, budget="100%"),
        pytest.raises(CovistError, match=line),
    ):
        packed.model(**inputs)


@pytest.mark.parametrize("kind", ["qwen3_omni_moe_thinker", "glm4v", "glm_ocr"])
def test_other_packed_towers_are_found_by_their_structure(kind, monkeypatch):
    """As if kept patches saw only each other in the whole image; with learned positions, or a convolution last."""
    model, inputs = animal(kind).model, animal(kind).ask([0], [1])
    family = family_for(model)
    tower = packed_tower(family.base, family.towers[0])
    pixels, grid, merge = inputs["pixel_values"], inputs["image_grid_thw"], tower.config.spatial_merge_size
    sizes = grid.prod(1)
    kept = torch.arange(int(sizes.sum()) // merge**2) % 3 != 1
    shown = kept.repeat_interleave(merge**2).split(sizes.tolist())
    attend, images = torch.nn.functional.scaled_dot_product_attention, itertools.cycle(shown)

    def among_kept(*states, **options):
        own = next(images).expand(1, 1, states[0].shape[2], -1)
        return attend(*states, **{**options, "attn_mask": own, "is_causal": False})

    with monkeypatch.context() as patched:
        patched.setattr(torch.nn.functional, "scaled_dot_product_attention", among_kept)
        expected = tower(pixels, grid_thw=grid).pooler_output[kept]
    running, scores = Running(), iter(kept.float().split((sizes // merge**2).tolist()))
    running.calls = 1
    gate = PatchGate(tower, running, lambda cells: next(scores).view(cells.shape[:3]))
    made = tower(pixels, grid_thw=grid).pooler_output
    gate.remove()
    torch.testing.assert_close(made[kept], expected, atol=1e-5, rtol=1e-4)
    assert not made[~kept].any()
