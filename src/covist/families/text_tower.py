"""The CLIP text tower that belongs to a vision tower: instruction tokens and patches in one space.

transformers is imported inside functions, because plans import the modules of this package too and do not need it.
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
    """The device and precision of a text tower; None leaves them as they are."""

    device: torch.device | None = None
    dtype: torch.dtype | None = None

    @classmethod
    def of(cls, model: Any) -> Home:
        """The home of a model, whose weights may be spread over devices or offloaded."""
        devices = (parameter.device for parameter in model.parameters() if not parameter.is_meta)
        return cls(next(devices, torch.device("cpu")), model.dtype)


ANYWHERE = Home()


class TextTower:
    """Text model, text projection and visual projection of a CLIP checkpoint (its vision tower is not loaded)."""

    def __init__(self, text_model: Any, text_projection: nn.Linear, visual_projection: nn.Linear, tokenizer: Any):
        self.text_model, self.text_projection = text_model, text_projection
        self.visual_projection = visual_projection
        self.tokenizer = tokenizer

    @classmethod
    def resolve(cls, clip: Any, home: Home = ANYWHERE) -> TextTower | None:
        """From a model id, a local directory, a `(CLIPModel, tokenizer)` pair, a `TextTower`, or None.

        A checkpoint is loaded once per process and home; a pair on another device is copied, not moved.
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
            f"clip={type(clip).__name__}: pass a CLIP checkpoint (id or directory) or a pair (CLIPModel, tokenizer)"
        )

    @classmethod
    @lru_cache(maxsize=4)
    def _load_once(cls, name: str, files: tuple, home: Home) -> TextTower:
        return cls.load(name, home)

    @classmethod
    def load(cls, name: str, home: Home = ANYWHERE) -> TextTower:
        """Load the text tower of a checkpoint and, from the vision tower, only the projection matrix."""
        from transformers import AutoTokenizer, CLIPTextModelWithProjection

        class TextHalf(CLIPTextModelWithProjection):
            """Without transformers' warning about each tensor of the vision tower."""

            _keys_to_ignore_on_load_unexpected = [r"^vision_model\.", r"^visual_projection\.", "^logit_scale$"]

        try:
            text: Any = TextHalf.from_pretrained(name, dtype=home.dtype or "auto")
        except (OSError, ValueError) as error:
            raise CovistError(
                f"clip={name!r}: neither a directory with a CLIP checkpoint nor an id that could be loaded from the hub"
            ) from error
        weight = _read_tensor(name, "visual_projection.weight")
        projection = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        projection.weight = nn.Parameter(weight.to(text.dtype), requires_grad=False)
        tokenizer = AutoTokenizer.from_pretrained(name)
        text = text.to(home.device)
        return cls(text.text_model, text.text_projection, projection.to(home.device), tokenizer)

    def require_width(self, width: int) -> None:
        """Refuse a tower that belongs to a vision tower of another width."""
        expected = self.visual_projection.weight.shape[1]
        if expected != width:
            raise CovistError(
                f"clip= projects image features of width {expected}, but the model's vision tower has {width}; pass "
                "the CLIP checkpoint from which this vision tower was taken"
            )

    def encode(self, text: str) -> Tensor:
        """Projected token features [T, p] of an instruction truncated to CLIP's context, BOS dropped and EOS last."""
        return self._project(self.tokenizer(text, truncation=True, max_length=self._context).input_ids)

    def encode_segments(self, text: str) -> Tensor:
        """Projected pooled features [M, p] of a text of any length, one for each part that fits CLIP's context."""
        return torch.stack([self._project(part)[-1] for part in self._parts(text)])

    def encode_padded(self, text: str) -> Tensor:
        """Projected features [M, context, p] of every position of CLIP's context, for each part of a text that fits it.

        Begin and end tokens are included, and the padding after them (token 0, to which no token attends).
        """
        return torch.stack([self._states(part, self._context) for part in self._parts(text)])

    def _parts(self, text: str) -> list[list[int]]:
        """The tokens of each part of a text that fits CLIP's context, each with its own begin and end token."""
        begin, *words, end = self.tokenizer(text).input_ids
        fit = self._context - 2
        return [[begin, *words[start : start + fit], end] for start in range(0, max(1, len(words)), fit)]

    @property
    def _context(self) -> int:
        return min(CONTEXT_LENGTH, self.text_model.config.max_position_embeddings)

    def _project(self, tokens: list[int]) -> Tensor:
        """Features of all tokens except the first, in the text space [T, p]."""
        return self._states(tokens, len(tokens))[1:]

    @torch.no_grad()
    def _states(self, tokens: list[int], length: int) -> Tensor:
        """Features of tokens padded to `length`, in the text space [length, p]."""
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
    """A module on the device and in the precision of `home`: itself if it matches, else a copy."""
    weight = next(module.parameters())
    if (home.device or weight.device, home.dtype or weight.dtype) == (weight.device, weight.dtype):
        return module
    return copy.deepcopy(module).to(device=home.device, dtype=home.dtype)


def _file_times(directory: Path) -> tuple:
    """A key that changes when a local checkpoint is written again."""
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
