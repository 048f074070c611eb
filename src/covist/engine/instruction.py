"""What the user asked about an image: which prompt tokens, and their text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from covist.contract.family import Family
from covist.contract.instruction import Instruction
from covist.engine.turns import TurnMarkers
from covist.errors import CovistError


class Span(Protocol):
    """Prompt rows [start, end) of an image."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


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

    def read(self, ids: Tensor | None, is_text: Tensor, first_image_end: int, embeddings: Tensor) -> Instruction:
        """Read the instruction of images of which the first ends before row `first_image_end`.

        `ids` [n] are the sample's prompt tokens (None if only embeddings are known), `is_text` [n] marks its valid
        text tokens. The instruction is the text after the image up to the assistant turn; if that is empty, it is the
        turn's text before the image.
        """
        rows = is_text.nonzero().squeeze(1)
        after = self._until_assistant(ids, rows[rows >= first_image_end])
        before = self._since_turn_began(ids, rows[rows < first_image_end])
        chosen = next((part for part in (after, before) if self._says_something(ids, part)), rows[:0])
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

    def _tokens(self, text: str) -> list[int]:
        """Tokens [J] of a text that is not in the prompt; none without a tokenizer."""
        return [] if self._tokenizer is None else self._tokenizer(text, add_special_tokens=False).input_ids

    def _pieces(self, tokens: list[int]) -> list[str]:
        """The text that each token adds to those before it, empty for special tokens; nothing without a tokenizer."""
        if self._tokenizer is None:
            return []
        grown = [self._decode(tokens[:count], special=False) for count in range(len(tokens) + 1)]
        return [later[len(earlier) :] for earlier, later in zip(grown, grown[1:], strict=False)]

    def has_assistant(self, ids: Tensor | None, start: int, end: int) -> bool:
        """Whether an assistant turn begins between two prompt rows."""
        return self._find(self._markers.assistant_pattern, ids, torch.arange(start, end), first=True) is not None

    def first_of_turn(self, ids: Tensor | None, images: Sequence[Span], number: int) -> int:
        """The first image of the turn that image `number` belongs to: images of one turn share its instruction."""
        first = number
        while first > 0 and not self.has_assistant(ids, images[first - 1].end, images[first].start):
            first -= 1
        return first

    def latest_turn(self, ids: Tensor | None, is_text: Tensor) -> int:
        """The prompt row where the words of the latest question begin; 0 if no marker precedes them."""
        rows = is_text.nonzero().squeeze(1)
        answer = self._find(self._markers.assistant_pattern, ids, rows, first=False)
        if answer is not None and not self._says_something(ids, rows[answer[1] :]):
            rows = rows[: answer[0]]  # the marker that the answer will follow
        began = self._find(self._markers.turn_pattern, ids, rows, first=False)
        return 0 if began is None or began[1] >= len(rows) else int(rows[began[1]])

    def _until_assistant(self, ids: Tensor | None, rows: Tensor) -> Tensor:
        found = self._find(self._markers.assistant_pattern, ids, rows, first=True)
        return rows if found is None else rows[: found[0]]

    def _since_turn_began(self, ids: Tensor | None, rows: Tensor) -> Tensor:
        found = self._find(self._markers.turn_pattern, ids, rows, first=False)
        return rows if found is None else rows[found[1] :]

    def _find(self, pattern: str, ids: Tensor | None, rows: Tensor, first: bool) -> tuple[int, int] | None:
        """Token range [start, end) of the first or last match of a pattern among `rows`."""
        if ids is None or self._tokenizer is None or not len(rows):
            return None
        tokens = ids[rows.to(ids.device)].tolist()
        hits = list(re.finditer(pattern, self._decode(tokens)))
        if not hits:
            return None
        hit = hits[0] if first else hits[-1]
        return self._token_at(tokens, hit.start() + 1) - 1, self._token_at(tokens, hit.end())

    def _token_at(self, tokens: list[int], characters: int) -> int:
        """The smallest number of leading tokens whose text has at least `characters` characters."""
        low, high = 0, len(tokens)
        while low < high:
            middle = (low + high) // 2
            if len(self._decode(tokens[:middle])) >= characters:
                high = middle
            else:
                low = middle + 1
        return low

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
