"""What a model answers, through the stock `generate`."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image

from covist.tiny import prompt_for


@torch.no_grad()
def answers(model: Any, processor: Any, image: Image.Image, questions: list[str], tokens: int) -> list[str]:
    """Greedy answers of at most `tokens` tokens to questions about one image."""
    prompts = [prompt_for(question) for question in questions]
    inputs = processor(images=[image] * len(prompts), text=prompts, padding=True, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
    return processor.batch_decode(output[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
