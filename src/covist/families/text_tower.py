"""The CLIP text tower that belongs to a vision tower: instruction tokens and patches in one space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoTokenizer, CLIPModel, CLIPTextModelWithProjection
from transformers.utils.hub import cached_file

from covist.errors import CovistError

CONTEXT_LENGTH = 77  # CLIP's native limit


class TextTower:
    """Text model, text projection and visual projection of a CLIP checkpoint (its vision tower stays unloaded)."""

    def __init__(self, text_model: nn.Module, text_projection: nn.Module, visual_projection: nn.Module, tokenizer: Any):
        self.text_model, self.text_projection = text_model, text_projection
        self.visual_projection = visual_projection
        self.tokenizer = tokenizer

    @classmethod
    def resolve(cls, clip: Any) -> TextTower | None:
        """From a model id, a local directory, a `(CLIPModel, tokenizer)` pair, a `TextTower`, or None."""
        if clip is None or isinstance(clip, TextTower):
            return clip
        if isinstance(clip, (str, Path)):
            return cls.load(str(clip))
        if isinstance(clip, tuple) and len(clip) == 2 and isinstance(clip[0], CLIPModel):
            model, tokenizer = clip
            return cls(
                model.text_model,
                model.text_projection,
                model.visual_projection,
                getattr(tokenizer, "tokenizer", tokenizer),
            )
        raise CovistError(
            f"clip={type(clip).__name__}: give a CLIP checkpoint (id or directory) or a pair (CLIPModel, tokenizer)"
        )

    @classmethod
    def load(cls, name: str) -> TextTower:
        """Load the text side of a checkpoint and, of the vision side, only the projection matrix."""
        try:
            text = CLIPTextModelWithProjection.from_pretrained(name)
        except (OSError, ValueError) as error:
            raise CovistError(
                f"clip={name!r}: neither a directory with a CLIP checkpoint nor an id that the hub has an answer for"
            ) from error
        weight = _read_tensor(name, "visual_projection.weight")
        projection = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        projection.weight = nn.Parameter(weight.to(text.dtype), requires_grad=False)
        return cls(text.text_model, text.text_projection, projection, AutoTokenizer.from_pretrained(name))

    def encode(self, text: str) -> Tensor:
        """Projected token features [T, p] of an instruction cut to CLIP's context, BOS dropped and EOS last."""
        return self._project(self.tokenizer(text, truncation=True, max_length=self._context).input_ids)

    def encode_segments(self, text: str) -> Tensor:
        """Projected pooled features [M, p] of a text of any length, one for each part that fits into CLIP's context."""
        begin, *words, end = self.tokenizer(text).input_ids
        fit = self._context - 2
        parts = [words[start : start + fit] for start in range(0, max(1, len(words)), fit)]
        return torch.stack([self._project([begin, *part, end])[-1] for part in parts])

    @property
    def _context(self) -> int:
        return min(CONTEXT_LENGTH, self.text_model.config.max_position_embeddings)

    @torch.no_grad()
    def _project(self, tokens: list[int]) -> Tensor:
        """Features of all tokens but the first in the text space [T, p]."""
        ids = torch.tensor([tokens], device=self.text_projection.weight.device)
        return self.text_projection(self.text_model(input_ids=ids).last_hidden_state)[0, 1:].float()

    @torch.no_grad()
    def project_patches(self, features: Tensor) -> Tensor:
        """Patch features [N, v] (after the vision tower's last norm) in the text space [N, p]."""
        weight = self.visual_projection.weight
        return nn.functional.linear(features.to(weight.device, weight.dtype), weight).float()


def _read_tensor(name: str, key: str) -> Tensor:
    """One tensor of a checkpoint, without loading the rest."""
    path = cached_file(name, "model.safetensors", _raise_exceptions_for_missing_entries=False)
    if path is None:
        return CLIPModel.from_pretrained(name).get_parameter(key).detach()
    with safe_open(path, framework="pt") as file:
        return file.get_tensor(key)
