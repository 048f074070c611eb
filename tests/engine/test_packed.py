"""Prompts packed into one row without padding: positions that restart begin a new prompt, as they do without us."""

import pytest
import torch
from support.cases import first_of
from support.llava import ask

TEXTS = (
    "USER: <image> what color is this ? ASSISTANT:",
    "USER: is there a word ? ASSISTANT:",
    "USER: where <image> and <image> what color is the left object ? ASSISTANT:",
)


def packed(prompts):
    """Prompts side by side in one row, with positions that restart."""
    ids = torch.cat([prompt["input_ids"] for prompt in prompts], 1)
    positions = torch.cat([torch.arange(prompt["input_ids"].shape[1]) for prompt in prompts])[None]
    pixels = torch.cat([prompt["pixel_values"] for prompt in prompts if "pixel_values" in prompt])
    return {"input_ids": ids, "position_ids": positions, "pixel_values": pixels}


@pytest.mark.parametrize("budget", [1.0, 24])
def test_packed_prompts_equal_the_prompts_alone(model, strategy, compress, budget):
    prompts = [ask(TEXTS[0], seeds=(0,)), ask(TEXTS[1]), ask(TEXTS[2], seeds=(1, 2))]
    compress(model, budget=budget, strategy=strategy)
    together = model(**packed(prompts), use_cache=False).logits[0]
    place = 0
    for prompt in prompts:
        alone = model(**prompt, use_cache=False).logits[0]
        torch.testing.assert_close(together[place : place + len(alone)], alone, atol=1e-4, rtol=1e-4)
        place += len(alone)
    assert place == len(together)


def test_full_budget_is_the_plain_model(model, strategy, compress):
    given = packed([ask(TEXTS[0], seeds=(0,)), ask(TEXTS[2], seeds=(1, 2))])
    plain = model(**given, use_cache=False).logits
    compress(model, budget=1.0, strategy=strategy)
    torch.testing.assert_close(model(**given, use_cache=False).logits, plain, atol=1e-4, rtol=1e-4)


def test_positions_do_not_pack_where_they_do_not_in_the_plain_model(multi_head, strategy, compress):
    """With a mask or a cache, transformers does not look for restarts."""
    given = packed([ask(TEXTS[0], seeds=(0,)), ask(TEXTS[1])])
    mask = torch.ones_like(given["input_ids"])
    plain = [multi_head(**given).logits, multi_head(**given, attention_mask=mask, use_cache=False).logits]
    compress(multi_head, budget=1.0, strategy=strategy)
    ours = [multi_head(**given).logits, multi_head(**given, attention_mask=mask, use_cache=False).logits]
    torch.testing.assert_close(ours, plain, atol=1e-4, rtol=1e-4)


def test_report_counts_packed_prompts_as_samples(multi_head, compress):
    handle = compress(multi_head, budget=24)
    multi_head(**packed([ask(TEXTS[0], seeds=(0,)), ask(TEXTS[2], seeds=(1, 2))]), use_cache=False)
    assert [image.sample for image in handle.report.images] == [0, 1, 1]


@pytest.mark.parametrize("case", [first_of("qwen2.5-vl"), first_of("qwen3-vl")], ids=lambda case: case.name)
@pytest.mark.parametrize("budget", [1.0, 8])
def test_packed_prompts_with_text_positions_before_the_axes(case, compress, strategy, budget):
    """Multidimensional RoPE: the restarts are read from the text positions, which come as one axis more."""
    prompts = [case.ask("{image}what is this ?", images=(0,)), case.ask("{image}what colour ?", images=(1,))]
    rope = case.model.model.get_rope_index
    axes = [rope(p.input_ids, p.mm_token_type_ids, image_grid_thw=p.image_grid_thw)[0] for p in prompts]
    text = torch.cat([torch.arange(p.input_ids.shape[1]) for p in prompts])[None, None]
    given = {
        "input_ids": torch.cat([p.input_ids for p in prompts], 1),
        "position_ids": torch.cat([text, torch.cat(axes, 2)]),
        "pixel_values": torch.cat([p.pixel_values for p in prompts]),
        "image_grid_thw": torch.cat([p.image_grid_thw for p in prompts]),
    }
    compress(case.model, processor=case.processor(), budget=budget, strategy=strategy)
    together = case.model(**given, use_cache=False).logits[0]
    alone = [case.model(**p, use_cache=False).logits[0] for p in prompts]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-4, rtol=1e-4)
