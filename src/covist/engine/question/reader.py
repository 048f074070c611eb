"""What the user asked about an image: which prompt tokens, and their text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from covist.contract.family import Family
from covist.contract.instruction import Instruction
from covist.engine.question.markers import TurnMarkers
from covist.engine.question.turns import Turns
from covist.errors import CovistError


class InstructionReader:
    """Finds the instruction of an image in a prompt by the markers between turns."""

    def __init__(
        self,
        family: Family | type[Family],
        processor: Any | None,
        override: str | None,
        turn_markers: Mapping[str, str | Sequence[str]] | None = None,
    ):
        self._tokenizer: Any = getattr(processor, "tokenizer", processor)
        if processor is not None and not hasattr(self._tokenizer, "decode"):
            raise CovistError(f"processor={type(processor).__name__}: pass the model's processor or its tokenizer")
        if processor is None and turn_markers is not None:
            raise CovistError("turn_markers= needs the processor (or the tokenizer) to find them in a prompt")
        self._markers = TurnMarkers.resolve(turn_markers, family, processor)
        self._family = family
        self._override = override

    def read(
        self, ids: Tensor | None, is_text: Tensor, first_image_end: int, embeddings: Tensor, turns: Turns | None = None
    ) -> Instruction:
        """Read the instruction of images of which the first ends before row `first_image_end`.

        `ids` [n] are the sample's prompt tokens (None if only embeddings are known), `is_text` [n] marks its valid
        text tokens, `turns` are those of the prompt if they are known already. The instruction is the text after the
        image up to the assistant turn; if that is empty, it is the turn's text before the image.
        """
        turns = self.turns(ids, is_text) if turns is None else turns
        rows, border = turns.rows, turns.text_before(first_image_end)
        parts = (rows[turns.until_assistant(border)], rows[turns.since_turn_began(border)])
        chosen = next((part for part in parts if self._says_something(ids, part)), rows[:0])
        last = int(chosen[-1]) if len(chosen) else int(rows[-1]) if len(rows) else first_image_end - 1
        if self._override is None:
            known = [] if ids is None else ids[chosen].tolist()
            pieces = partial(self._pieces, known)
            return Instruction(chosen, last, self._words(ids, chosen), embeddings[chosen], pieces)
        tokens, base = self._tokens(self._override), cast(Any, self._family.base)
        embedded = base.get_input_embeddings()(torch.tensor(tokens, dtype=torch.long, device=embeddings.device)).to(
            embeddings
        )
        return Instruction(chosen, last, self._override, embedded, partial(self._pieces, tokens))

    def turns(self, ids: Tensor | None, is_text: Tensor) -> Turns:
        """The turns of a prompt `ids` [n] whose valid text tokens `is_text` [n] marks, for all of its images."""
        rows = is_text.nonzero().squeeze(1)
        known = ids is not None and self._tokenizer is not None
        tokens = ids[rows.to(ids.device)].tolist() if ids is not None and known else None
        return Turns(rows, tokens, self._markers, self._decode)

    def _tokens(self, text: str) -> list[int]:
        """Tokens [J] of a text that is not in the prompt; none without a tokenizer."""
        return [] if self._tokenizer is None else self._tokenizer(text, add_special_tokens=False).input_ids

    def _pieces(self, tokens: list[int]) -> list[str]:
        """The text that each token adds to those before it, empty for special tokens; nothing without a tokenizer."""
        if self._tokenizer is None:
            return []
        grown = [self._decode(tokens[:count], special=False) for count in range(len(tokens) + 1)]
        return [later[len(earlier) :] for earlier, later in zip(grown, grown[1:], strict=False)]

    def _says_something(self, ids: Tensor | None, rows: Tensor) -> bool:
        """Whether tokens hold words; without a tokenizer, any token counts."""
        return len(rows) > 0 if ids is None or self._tokenizer is None else bool(self._words(ids, rows))

    def _words(self, ids: Tensor | None, rows: Tensor) -> str:
        """The decoded text without special tokens and role markers."""
        if ids is None or self._tokenizer is None or not len(rows):
            return ""
        text = self._tokenizer.decode(ids[rows].tolist(), skip_special_tokens=True)
        for marker in self._markers.user:
            text = text.replace(marker, " ")
        return " ".join(text.split())

    def _decode(self, tokens: list[int], special: bool = True) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=not special, clean_up_tokenization_spaces=False)
