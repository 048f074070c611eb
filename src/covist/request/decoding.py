"""How answers are decoded, the same in all commands: a budget is tuned on the decoder that serves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import CompileConfig

from covist.engine.capture import execution_device

_GREEDY: dict[str, Any] = {
    # One answer, the likeliest token at every step. Unset what a greedy search does not read, or transformers warns.
    "do_sample": False,
    "num_beams": 1,
    "num_return_sequences": 1,
    "temperature": None,
    "top_p": None,
    "top_k": None,
    "use_cache": True,
    # Settings that look back at the prompt or at its length also see the padding: an answer would depend on its batch.
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "forced_eos_token_id": None,
    # What a batch of prompts does not allow, or what depends on the clock.
    "guidance_scale": None,
    "prompt_lookup_num_tokens": None,
    "stop_strings": None,
    "max_time": None,
    "return_dict_in_generate": False,
}


def greedy(max_new_tokens: int, **explicit: Any) -> dict[str, Any]:
    """Arguments of `generate` for answers that depend on nothing but the prompt; `explicit` ones win.

    They replace what a checkpoint's generation settings say about sampling, repetition and length. Its end tokens, and
    the tokens that it never writes (`bad_words_ids`, `suppress_tokens`), stay as they are.

    >>> greedy(8)["repetition_penalty"], greedy(8, repetition_penalty=1.05)["repetition_penalty"]
    (1.0, 1.05)
    """
    return {**_GREEDY, "max_new_tokens": max_new_tokens, **explicit}


def static_cache(compiled: bool) -> dict[str, Any]:
    """Arguments of `generate` for a cache of fixed size, with steps that are compiled on any device, or on none."""
    if not compiled:
        return {"cache_implementation": "static", "disable_compile": True}
    config: Any = CompileConfig(fullgraph=True)
    config._compile_all_devices = True
    return {"cache_implementation": "static", "compile_config": config}


@torch.no_grad()
def generate(model: Any, inputs: Mapping[str, Any], max_new_tokens: int, **explicit: Any) -> Tensor:
    """Answers that end by themselves, [prompts, new tokens]: the only place where covist lets a model write.

    inputs: of the prompts, on any device
    explicit: what a caller adds to the greedy search or puts in its place (see `greedy`), such as a streamer

    Compression, if any, is up to the caller.
    """
    place = execution_device(model)
    on_device = {name: value.to(place) if isinstance(value, Tensor) else value for name, value in inputs.items()}
    written = model.generate(**on_device, **greedy(max_new_tokens, **explicit))
    return written[:, inputs["input_ids"].shape[1] :]
