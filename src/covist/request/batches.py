"""Several requests as one batch, padded on the left, so that every prompt ends where its answer begins."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from covist.request.inputs import Request


def collate(requests: Sequence[Request], padding: int) -> dict[str, Tensor]:
    """Inputs of `generate` for requests of one prompt each, which may show different images, or none.

    padding: the token that fills shorter prompts.
    """
    length = max(request.length for request in requests)
    inputs = {}
    for name in dict.fromkeys(name for request in requests for name in request.prompts):
        filling = padding if name == "input_ids" else 0
        inputs[name] = torch.cat([_left(_values(request, name), length, filling) for request in requests])
    for name in dict.fromkeys(name for request in requests for name in request.images):
        inputs[name] = _stacked([request.images[name] for request in requests if name in request.images])
    return inputs


def pad_token(tokenizer: Any) -> int:
    """The id that pads prompts; the end token if a tokenizer has no padding token."""
    known = tokenizer.pad_token_id
    return int(tokenizer.eos_token_id or 0) if known is None else int(known)


def end_tokens(model: Any) -> Collection[int]:
    """The ids with which a model ends an answer."""
    known = model.generation_config.eos_token_id
    return frozenset() if known is None else frozenset([known] if isinstance(known, int) else known)


def until_end(row: list[int], ends: Collection[int]) -> list[int]:
    """The tokens of an answer up to its end token, without the padding of its batch.

    >>> until_end([5, 6, 2, 0, 0], ends={2})
    [5, 6, 2]
    """
    last = next((place for place, token in enumerate(row) if token in ends), len(row))
    return row[: last + 1]


def _values(request: Request, name: str) -> Tensor:
    """Token-level values [1, n]; zeros if a processor gives them only to prompts with images."""
    given = request.prompts
    return given[name] if name in given else torch.zeros_like(given["input_ids"])


def _left(values: Tensor, length: int, filling: int) -> Tensor:
    """Token-level values [1, n] padded on the left to [1, length]."""
    return torch.nn.functional.pad(values, (length - values.shape[1], 0), value=filling)


def _stacked(values: Sequence[Tensor]) -> Tensor:
    """Values of all images in one tensor, padded with zeros if images have different numbers of tiles."""
    widest = [max(sizes) for sizes in zip(*(value.shape[1:] for value in values), strict=True)]
    padded = []
    for value in values:
        missing = [size for have, want in zip(value.shape[1:], widest, strict=True) for size in (want - have, 0)]
        padded.append(torch.nn.functional.pad(value, missing[::-1]))
    return torch.cat(padded)
