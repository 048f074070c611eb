"""What covist says in transformers, to compare engines of vLLM with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import covist
from support.flash import put_series_into_masks
from support.vllm_engines import Ask, Completion

Expected = tuple[list[int], Tensor]
"""Generated tokens, and log-probabilities of the whole vocabulary at each step."""


@torch.no_grad()
def expected(model: Any, processor: Any, asks: list[Ask], tokens: int = 8, endless: bool = False) -> list[Expected]:
    """Greedy completions by transformers, of prompts one at a time."""
    stop = {"eos_token_id": None} if endless else {}
    found = []
    for ask in asks:
        shown = {"images": list(ask.images) or None}
        if ask.videos:
            frames, metadata = zip(*ask.videos, strict=True)
            told = [{name: one[name] for name in one if name != "do_sample_frames"} for one in metadata]
            shown |= {"videos": list(frames), "video_metadata": told, "do_sample_frames": False}
        inputs = processor(**shown, text=ask.prompt, return_tensors="pt")
        output = model.generate(
            **inputs, max_new_tokens=tokens, do_sample=False, output_logits=True, return_dict_in_generate=True, **stop
        )
        ids = output.sequences[0, inputs.input_ids.shape[1] :].tolist()
        found.append((ids, torch.cat(output.logits).float().log_softmax(-1)))
    return found


def compressed(
    model: Any,
    processor: Any,
    asks: list[Ask],
    tokens: int = 8,
    columns: int | None = None,
    endless: bool = False,
    **settings: Any,
) -> list[Expected]:
    """The same under compression, without the instruction unless `settings` say otherwise.

    columns: let the cosine series of this many further head dimensions stand in for the distance factor.
    """
    with pytest.MonkeyPatch.context() as patch:
        if columns is not None:
            put_series_into_masks(patch, columns)
        with covist.compress(model, processor, **{"instruction": "", **settings}):
            return expected(model, processor, asks, tokens, endless)


def largest_difference(completions: list[Completion], references: list[Expected]) -> float:
    """Of log-probabilities, if the tokens are the same."""
    assert [one.ids for one in completions] == [ids for ids, _ in references]
    pairs = zip(completions, references, strict=True)
    largest = max(float((one.log_probs - log_probs).abs().max()) for one, (_, log_probs) in pairs)
    print(f"{len(completions)} completions, log-probabilities differ by {largest:.1e} at most")
    return largest
