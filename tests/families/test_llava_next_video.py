"""LLaVA-NeXT-Video: images are LLaVA-NeXT's, with the class token's attention; videos run uncompressed."""

import torch
from support.captures import captured
from support.cases import first_of

CASE, NEXT = first_of("llava-next-video"), first_of("llava-next")


def test_an_image_has_the_layout_and_signals_of_llava_next():
    own = CASE.build()
    own.load_state_dict(NEXT.model.state_dict(), strict=False)
    (ours,), (theirs,) = (captured(model, NEXT.ask("{image}what ?")) for model in (own, NEXT.model))
    assert ours.grid == theirs.grid and torch.equal(ours.content, theirs.content)
    for name in ("attention", "keys", "hidden", "embeddings", "class_features"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
