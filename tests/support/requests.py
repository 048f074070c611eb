"""Requests that the engine tests make over and over."""

from typing import Any

import torch
from torch import Tensor


def greedy(model: Any, inputs: Any, tokens: int = 4, **options: Any) -> Any:
    """`generate` without sampling, with everything it can report; `logits` are those of every step."""
    # A random model would generate visual tokens, which are text there but confuse the tests' own bookkeeping.
    ids = (getattr(model.config, f"{kind}_token_id", None) for kind in ("image", "video"))
    never = [token for token in ids if token is not None]
    options = {
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
        "suppress_tokens": never,
        **options,
    }
    return model.generate(**inputs, max_new_tokens=tokens, min_new_tokens=tokens, **options)


def step_logits(output: Any) -> Tensor:
    """[steps, batch, vocabulary]"""
    return torch.stack(output.logits)


def assert_same(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """The same logits at every step, and the same tokens, up to the first tie of two tokens that rounding decided."""
    assert actual.sequences.shape == expected.sequences.shape
    ours, theirs = step_logits(actual), step_logits(expected)  # [steps, batch, vocabulary]
    first = actual.sequences.shape[1] - len(ours)
    assert torch.equal(actual.sequences[:, :first], expected.sequences[:, :first])
    for row, (found, wanted) in enumerate(zip(actual.sequences, expected.sequences, strict=True)):
        differing = (found != wanted).nonzero()[:, 0].tolist()
        same = differing[0] - first + 1 if differing else len(ours)  # steps, that of the tie included
        torch.testing.assert_close(ours[:same, row], theirs[:same, row], atol=tolerance, rtol=tolerance)
        if differing:
            one, other = theirs[same - 1, row, [found[differing[0]], wanted[differing[0]]]]
            torch.testing.assert_close(one, other, atol=2 * tolerance, rtol=2 * tolerance)


def kept_keys(cache: Any) -> list[int]:
    """Keys in the cache of each layer."""
    return [layer.keys.shape[-2] for layer in cache.layers]


def sample_of(inputs: Any, index: int, images: slice) -> dict[str, Tensor]:
    """One sample of a batch alone, without its padding."""
    valid = inputs["attention_mask"][index].bool()
    alone = {name: inputs[name][index : index + 1, valid] for name in ("input_ids", "attention_mask")}
    if images.stop > images.start:
        alone["pixel_values"] = inputs["pixel_values"][images]
    return alone
