"""What a cache has seen, kept on the host, so that a later question can choose the tokens of an image again.

Removed tokens are not in the cache. So a new question about an image of an earlier turn runs the conversation through
the decoder again, from the encoder's features of the image. The vision tower does not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from covist.contract.signals import ImageSignals
from covist.engine.question import InstructionReader
from covist.engine.sequence.prompt import Prompt


@dataclass
class Conversation:
    """The prompts and answers of a cache, and the signals of their images."""

    prompt: Prompt
    signals: list[ImageSignals]
    ids: list[Tensor] = field(default_factory=list)  # [batch, tokens] since the prompt, call by call
    positions: list[Tensor] = field(default_factory=list)  # [batch, tokens(, axes)]

    @classmethod
    def of(cls, prompt: Prompt, signals: Sequence[ImageSignals], seen: int) -> Conversation | None:
        """The conversation that begins with a prompt; None if its tokens or the text before it are unknown."""
        if seen or prompt.ids is None or prompt.blocks is not None:
            return None
        return cls(prompt.on(torch.device("cpu")), [one.on(torch.device("cpu")) for one in signals])

    @property
    def length(self) -> int:
        """Tokens of a row, padding included."""
        return self.prompt.embeddings.shape[1] + sum(part.shape[1] for part in self.ids)

    @property
    def host_bytes(self) -> int:
        """Memory of the prompt's embeddings and the signals."""
        return self.prompt.embeddings.nbytes + sum(one.nbytes for one in self.signals)

    def feed(self, ids: Tensor | None, positions: Tensor) -> None:
        """Add the tokens of a call; if they are unknown, the conversation is incomplete from here on."""
        if ids is not None:
            self.ids.append(ids)
            self.positions.append(positions)

    def is_asked_again(self, reader: InstructionReader, ids: Tensor | None, seen: int) -> bool:
        """Whether new tokens [batch, n] hold a question to answer; the cache holds `seen` tokens before them."""
        if ids is None or ids.shape[1] == 1 or self.length != seen:
            return False
        return any(reader.has_assistant(row) for row in ids)

    def continued(
        self, ids: Tensor, embeddings: Tensor, positions: Tensor, mask: Tensor | None, embed: Callable[[Tensor], Tensor]
    ) -> tuple[Prompt, list[ImageSignals]]:
        """The whole conversation and new tokens as one prompt, with its signals, on the device of the new tokens."""
        device, before = embeddings.device, self.prompt.on(embeddings.device)
        assert before.ids is not None, "a conversation knows its tokens"
        later = torch.cat([*self.ids, ids], dim=1)
        written = embed(later[:, : later.shape[1] - ids.shape[1]]).to(embeddings)
        valid = torch.cat([before.valid, torch.ones_like(later, dtype=torch.bool)], dim=1)
        prompt = Prompt(
            ids=torch.cat([before.ids, later], dim=1),
            is_image=torch.cat([before.is_image, torch.zeros_like(later, dtype=torch.bool)], dim=1),
            embeddings=torch.cat([before.embeddings, written, embeddings], dim=1),
            positions=torch.cat([before.positions, *self.positions, positions], dim=1),
            valid=valid if mask is None else mask.to(device) != 0,
        )
        return prompt, [one.on(device) for one in self.signals]
