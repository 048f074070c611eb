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
    """The same tokens, and the same logits at every step."""
    assert torch.equal(actual.sequences, expected.sequences)
    torch.testing.assert_close(step_logits(actual), step_logits(expected), atol=tolerance, rtol=tolerance)


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
