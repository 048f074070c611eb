"""LLaVA-NeXT-Video: images are LLaVA-NeXT's, with the class token's attention; videos run uncompressed."""

import pytest
import torch
from support.captures import captured
from support.cases import first_of
from support.requests import greedy

CASE, NEXT = first_of("llava-next-video"), first_of("llava-next")


def test_an_image_has_the_layout_and_signals_of_llava_next():
    own = CASE.build()
    own.load_state_dict(NEXT.model.state_dict(), strict=False)
    (ours,), (theirs,) = (captured(model, NEXT.ask("{image}what ?")) for model in (own, NEXT.model))
    assert ours.grid == theirs.grid and torch.equal(ours.content, theirs.content)
    for name in ("attention", "keys", "hidden", "embeddings", "class_features"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


def test_a_video_runs_as_the_plain_model_with_one_warning(compress):
    model, inputs = CASE.model, CASE.ask("what is this ?")
    frames = torch.randn(1, 3, 3, 56, 56, generator=torch.Generator().manual_seed(0))
    video = torch.full((1, 3 * 2 * 2), model.config.video_token_id)
    ids = torch.cat([video, inputs["input_ids"]], 1)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values_videos": frames}
    plain = greedy(model, inputs, 2)
    images = CASE.ask("{image}what ?")
    compress(CASE, budget=8)
    before = model(**images).logits
    with pytest.warns(UserWarning, match="video input is not compressed"):
        assert torch.equal(torch.stack(greedy(model, inputs, 2).logits), torch.stack(plain.logits))
    assert torch.equal(model(**images).logits, before)
