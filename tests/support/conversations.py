"""Requests of several turns to the small LLaVA models, through which every shape of mask passes."""

from typing import Any

import torch
from torch import Tensor

from support.llava import ask
from support.requests import greedy, step_logits

ONE = "USER: where <image> what color is this ? ASSISTANT:"
PROMPTS = (ONE, "USER: is there a word ? ASSISTANT:", "<image> what")


def padded_conversation(model: Any) -> Tensor:
    """Prefill of a padded batch, decoding, and a second turn of text: the logits of every step."""
    first = greedy(model, ask(*PROMPTS), 2)
    ids = torch.cat([first.sequences, torch.tensor([[5, 13, 14]]).expand(3, -1)], 1)
    mask = torch.cat([ask(*PROMPTS)["attention_mask"], torch.ones(3, 5, dtype=torch.long)], 1)
    second = greedy(model, {"input_ids": ids, "attention_mask": mask}, 2, past_key_values=first.past_key_values)
    return torch.cat([step_logits(first), step_logits(second)])


def single_conversation(model: Any) -> Tensor:
    """One prompt, decoding, and a second turn with an image: the logits of every step.

    The positions of the later turn have gaps, which are not the borders of packed sequences.
    """
    first = greedy(model, ask(ONE), 2)
    later = ask("<image> where", seeds=(9,))
    inputs = {"input_ids": torch.cat([first.sequences, later["input_ids"]], 1), "pixel_values": later["pixel_values"]}
    second = greedy(model, inputs, 2, past_key_values=first.past_key_values)
    return torch.cat([step_logits(first), step_logits(second)])
