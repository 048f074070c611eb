"""The CLIP text tower that belongs to a vision tower: instruction tokens and patches in one space.

transformers is imported where it is needed: plans import the modules of this package too, and need none of it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from covist.errors import CovistError

CONTEXT_LENGTH = 77  # CLIP's native limit


@dataclass(frozen=True)
class Home:
    """Where a text tower computes, and in which precision; None leaves it as it is."""

    device: torch.device | None = None
    dtype: torch.dtype | None = None

    @classmethod
    def of(cls, model: Any) -> Home:
        """That of a model, whose weights may be spread or offloaded."""
        devices = (parameter.device for parameter in model.parameters() if not parameter.is_meta)
        return cls(next(devices, torch.device("cpu")), model.dtype)


ANYWHERE = Home()


class TextTower:
    """Text model, text projection and visual projection of a CLIP checkpoint (its vision tower stays unloaded)."""

    def __init__(self, text_model: Any, text_projection: nn.Linear, visual_projection: nn.Linear, tokenizer: Any):
        self.text_model, self.text_projection = text_model, text_projection
        self.visual_projection = visual_projection
        self.tokenizer = tokenizer

    @classmethod
    def resolve(cls, clip: Any, home: Home = ANYWHERE) -> TextTower | None:
        """From a model id, a local directory, a `(CLIPModel, tokenizer)` pair, a `TextTower`, or None.

        A checkpoint is loaded once per process and home; a pair that lives elsewhere is copied, not moved.
        """
        if clip is None or isinstance(clip, TextTower):
            return clip
        from transformers import CLIPModel

        if isinstance(clip, (str, Path)):
            return cls._load_once(str(clip), _file_times(Path(clip)), home)
        if isinstance(clip, tuple) and len(clip) == 2 and isinstance(clip[0], CLIPModel):
            model, tokenizer = clip
            return cls(
                _at(model.text_model, home),
                _at(model.text_projection, home),
                _at(model.visual_projection, home),
                getattr(tokenizer, "tokenizer", tokenizer),
            )
        raise CovistError(
            f"clip={type(clip).__name__}: give a CLIP checkpoint (id or directory) or a pair (CLIPModel, tokenizer)"
        )

    @classmethod
    @lru_cache(maxsize=4)
    def _load_once(cls, name: str, files: tuple, home: Home) -> TextTower:
        return cls.load(name, home)

    @classmethod
    def load(cls, name: str, home: Home = ANYWHERE) -> TextTower:
        """Load the text side of a checkpoint and, of the vision side, only the projection matrix."""
        from transformers import AutoTokenizer, CLIPTextModelWithProjection

        try:
            text: Any = CLIPTextModelWithProjection.from_pretrained(name, dtype=home.dtype or "auto")
        except (OSError, ValueError) as error:
            raise CovistError(
                f"clip={name!r}: neither a directory with a CLIP checkpoint nor an id that the hub has an answer for"
            ) from error
        weight = _read_tensor(name, "visual_projection.weight")
        projection = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        projection.weight = nn.Parameter(weight.to(text.dtype), requires_grad=False)
        tokenizer = AutoTokenizer.from_pretrained(name)
        text = text.to(home.device)
        return cls(text.text_model, text.text_projection, projection.to(home.device), tokenizer)

    def require_width(self, width: int) -> None:
        """Refuse a tower that belongs to a vision tower of another width."""
        own = self.visual_projection.weight.shape[1]
        if own != width:
            raise CovistError(
                f"clip= projects image features of width {own}, but the model's vision tower has {width}: give the "
                "CLIP checkpoint that this vision tower was taken from"
            )

    def encode(self, text: str) -> Tensor:
        """Projected token features [T, p] of an instruction cut to CLIP's context, BOS dropped and EOS last."""
        return self._project(self.tokenizer(text, truncation=True, max_length=self._context).input_ids)

    def encode_segments(self, text: str) -> Tensor:
        """Projected pooled features [M, p] of a text of any length, one for each part that fits into CLIP's context."""
        return torch.stack([self._project(part)[-1] for part in self._parts(text)])

    def encode_padded(self, text: str) -> Tensor:
        """Projected features [M, context, p] of every place of CLIP's context, for each part of a text that fits into
        it: begin and end tokens count, and the padding after them (token 0, which no token looks at)."""
        return torch.stack([self._states(part, self._context) for part in self._parts(text)])

    def _parts(self, text: str) -> list[list[int]]:
        """The tokens of each part of a text that fits into CLIP's context, with a begin and an end token of its own."""
        begin, *words, end = self.tokenizer(text).input_ids
        fit = self._context - 2
        return [[begin, *words[start : start + fit], end] for start in range(0, max(1, len(words)), fit)]

    @property
    def _context(self) -> int:
        return min(CONTEXT_LENGTH, self.text_model.config.max_position_embeddings)

    def _project(self, tokens: list[int]) -> Tensor:
        """Features of all tokens but the first in the text space [T, p]."""
        return self._states(tokens, len(tokens))[1:]

    @torch.no_grad()
    def _states(self, tokens: list[int], length: int) -> Tensor:
        """Features of tokens, padded to a length, in the text space [length, p]."""
        ids = torch.zeros(1, length, dtype=torch.long, device=self.text_projection.weight.device)
        ids[0, : len(tokens)] = torch.tensor(tokens)
        seen = None if length == len(tokens) else torch.arange(length, device=ids.device)[None] < len(tokens)
        states = self.text_model(input_ids=ids, attention_mask=seen).last_hidden_state
        return self.text_projection(states)[0].float()

    @torch.no_grad()
    def project_patches(self, features: Tensor) -> Tensor:
        """Patch features [N, v] (after the vision tower's last norm) in the text space [N, p]."""
        weight = self.visual_projection.weight
        return nn.functional.linear(features.to(weight.device, weight.dtype), weight).float()


def _at(module: nn.Module, home: Home) -> Any:
    """A module in a home: itself if it lives there, else a copy."""
    weight = next(module.parameters())
    if (home.device or weight.device, home.dtype or weight.dtype) == (weight.device, weight.dtype):
        return module
    return copy.deepcopy(module).to(device=home.device, dtype=home.dtype)


def _file_times(directory: Path) -> tuple:
    """What shows that a local checkpoint was written anew."""
    return tuple(sorted((path.name, path.stat().st_mtime_ns) for path in directory.glob("*")))


def _read_tensor(name: str, key: str) -> Tensor:
    """One tensor of a checkpoint, without loading the rest."""
    from transformers import CLIPModel
    from transformers.utils.hub import cached_file

    path = cached_file(name, "model.safetensors", _raise_exceptions_for_missing_entries=False)
    if path is None:
        return CLIPModel.from_pretrained(name).get_parameter(key).detach()
    with safe_open(path, framework="pt") as file:
        return file.get_tensor(key)
