"""What the user asked about an image: the markers between turns, the turns of a prompt, and the instruction."""

from __future__ import annotations

import os.path
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from covist.contract.family import Family
from covist.contract.instruction import Instruction
from covist.engine.sequence.host import at_rows
from covist.errors import CovistError

Decode = Callable[[list[int]], str]

FIRST, ANSWER, SECOND = "covistfirstquestion", "covistanswer", "covistsecondquestion"
"""Words that no template contains."""


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
        text tokens, both on the host; `turns` are those of the prompt if they are known already. The instruction is
        the text after the image up to the assistant turn; if that is empty, it is the turn's text before the image.
        """
        turns = self.turns(ids, is_text) if turns is None else turns
        rows, border = turns.rows, turns.text_before(first_image_end)
        parts = (rows[turns.until_assistant(border)], rows[turns.since_turn_began(border)])
        chosen = next((part for part in parts if self._says_something(ids, part)), rows[:0])
        last = int(chosen[-1]) if len(chosen) else int(rows[-1]) if len(rows) else first_image_end - 1
        if self._override is None:
            known = [] if ids is None else ids[chosen].tolist()
            embedded, pieces = partial(at_rows, embeddings, chosen), partial(self._pieces, known)
            return Instruction(chosen, last, self._words(ids, chosen), embedded, pieces)
        tokens = self._tokens(self._override)
        embedded, pieces = partial(self._embedded, tokens, embeddings), partial(self._pieces, tokens)
        return Instruction(chosen, last, self._override, embedded, pieces)

    def _embedded(self, tokens: list[int], like: Tensor) -> Tensor:
        """Embeddings [J, d] of tokens that are not in the prompt, on the device and in the dtype of `like`."""
        embed = cast(Any, self._family.base).get_input_embeddings()
        made: Tensor = embed(torch.tensor(tokens, dtype=torch.long, device=like.device))
        return made.to(like)

    def turns(self, ids: Tensor | None, is_text: Tensor) -> Turns:
        """The turns of a prompt `ids` [n] whose valid text tokens `is_text` [n] marks, for all of its images."""
        rows = is_text.nonzero().squeeze(1)
        known = ids is not None and self._tokenizer is not None
        tokens = ids[rows].tolist() if ids is not None and known else None
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


# -- where turns begin -------------------------------------------------------------------------------------------------


class Span(Protocol):
    """Prompt rows [start, end) of an image."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


@dataclass(frozen=True)
class Marker:
    """Where a turn begins: the marker is the text tokens [start, end) of the prompt."""

    start: int
    end: int


class Turns:
    """The turns of a prompt whose text stands in some of its rows.

    The text is decoded in runs without a gap, which end where an image begins. A marker lies within one run, so its
    tokens are searched there alone, and the whole search is linear in the prompt.
    """

    def __init__(self, rows: Tensor, tokens: list[int] | None, markers: TurnMarkers, decode: Decode):
        """`rows` [n] are the prompt rows of the text, `tokens` [n] their ids (None if unknown)."""
        self.rows = rows
        self._tokens, self._markers, self._decode = tokens, markers, decode

    @cached_property
    def _places(self) -> list[int]:
        return self.rows.tolist()

    @cached_property
    def assistant(self) -> list[Marker]:
        """Where assistant turns begin, in order."""
        return self._found(self._markers.assistant_pattern)

    @cached_property
    def beginnings(self) -> list[Marker]:
        """Where turns of any role begin, in order."""
        return self._found(self._markers.turn_pattern)

    def text_before(self, row: int) -> int:
        """How many text tokens stand before a prompt row."""
        return bisect_left(self._places, row)

    def until_assistant(self, start: int) -> slice:
        """The text tokens from `start` up to the next assistant turn."""
        following = (marker.start for marker in self.assistant if marker.start >= start)
        return slice(start, next(following, len(self._places)))

    def since_turn_began(self, end: int) -> slice:
        """The text tokens before `end` back to the beginning of their turn."""
        before = (marker.end for marker in reversed(self.beginnings) if marker.end <= end)
        return slice(next(before, 0), end)

    def first_of_turn(self, images: Sequence[Span], number: int) -> int:
        """The first image of the turn that image `number` belongs to: images of one turn share its instruction."""
        here = self.text_before(images[number].start)
        answers = bisect_right(self.assistant, here, key=lambda marker: marker.end)
        if answers == 0:
            return 0
        border = self.assistant[answers - 1].end
        return bisect_left(images, border, key=lambda image: self.text_before(image.start))

    @cached_property
    def _runs(self) -> list[tuple[int, list[int], str]]:
        """(first token, tokens, text) of each run of text without a gap."""
        tokens, places = self._tokens, self._places
        if not tokens:  # unknown, or a prompt of nothing but images
            return []
        starts = [at for at, row in enumerate(places) if at == 0 or row != places[at - 1] + 1]
        runs = [tokens[start:end] for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True)]
        return [(start, run, self._decode(run)) for start, run in zip(starts, runs, strict=True)]

    def _found(self, pattern: str) -> list[Marker]:
        if not pattern:
            return []
        found = []
        for first, tokens, text in self._runs:
            for hit in re.finditer(pattern, text):
                start = self._token_at(tokens, hit.start() + 1) - 1
                found.append(Marker(first + start, first + self._token_at(tokens, hit.end(), start)))
        return found

    def _token_at(self, tokens: list[int], characters: int, low: int = 0) -> int:
        """The smallest number of leading tokens whose text has at least `characters` characters."""
        high = len(tokens)
        while low < high:
            middle = (low + high) // 2
            if len(self._decode(tokens[:middle])) >= characters:
                high = middle
            else:
                low = middle + 1
        return low


# -- the markers between turns -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TurnMarkers:
    """Texts that begin an assistant turn and a user turn."""

    assistant: tuple[str, ...]
    user: tuple[str, ...]

    @property
    def assistant_pattern(self) -> str:
        return _pattern(self.assistant)

    @property
    def turn_pattern(self) -> str:
        """Matches the beginning of any turn."""
        return _pattern((*self.assistant, *self.user))

    @classmethod
    def resolve(
        cls, given: Mapping[str, str | Sequence[str]] | None, family: Family | type[Family], processor: Any
    ) -> TurnMarkers:
        """The markers that the user gave; otherwise those of the chat template and those that the family knows."""
        if given is not None:
            return cls._given(given)
        known = cls(family.assistant_markers, family.role_markers)
        written = None if processor is None else _written_by_template(processor)
        if written is None:
            return known
        return cls((*written.assistant, *known.assistant), (*written.user, *known.user))

    @classmethod
    def _given(cls, given: Mapping[str, str | Sequence[str]]) -> TurnMarkers:
        if not isinstance(given, Mapping) or not {"assistant"} <= set(given) <= {"assistant", "user"}:
            raise CovistError(
                f"turn_markers={given!r}: pass the text that begins a turn of each role, such as "
                "{'user': '[INST]', 'assistant': '[/INST]'}; 'user' is optional"
            )
        texts = {role: tuple(text) if isinstance(text, (list, tuple)) else (text,) for role, text in given.items()}
        for role, markers in texts.items():
            if not markers or not all(isinstance(marker, str) and marker.strip() for marker in markers):
                raise CovistError(
                    f"turn_markers[{role!r}]={given[role]!r}: pass one or several texts that are not empty"
                )
        return cls(texts["assistant"], texts.get("user", ()))


def _pattern(markers: Sequence[str]) -> str:
    """Markers as a regular expression that allows any space between words, because tokenizers differ in it."""
    words = (marker.split() for marker in markers if marker.strip())
    return "|".join(r"\s*".join(re.escape(word) for word in parts) for parts in words)


def _written_by_template(processor: Any) -> TurnMarkers | None:
    """What a chat template writes before the turns of a small conversation; None without a usable template."""
    tokenizer = getattr(processor, "tokenizer", processor)
    for renderer in dict.fromkeys((processor, tokenizer)):
        # Text first: a template for plain text would print a list of parts literally.
        for wrap in (str, lambda text: [{"type": "text", "text": text}]):
            turns = [("user", FIRST), ("assistant", ANSWER), ("user", SECOND)]
            conversation = [{"role": role, "content": wrap(text)} for role, text in turns]
            try:
                rendered = renderer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
            except Exception:  # no template, or one for other contents: templates may raise anything
                continue
            found = re.fullmatch(f"(.*){FIRST}(.*){ANSWER}(.*){SECOND}(.*)", rendered, re.DOTALL)
            if found:
                return _markers(*(_atoms(part, tokenizer) for part in found.groups()))
    return None


def _markers(opening: list[str], to_answer: list[str], to_question: list[str], ending: list[str]) -> TurnMarkers | None:
    """What is common to both assistant turns, and to both user turns, of a rendered conversation."""
    assistant = "".join(os.path.commonprefix([to_answer, ending])).strip()
    user = "".join(os.path.commonprefix([opening[::-1], to_question[::-1]])[::-1]).strip()
    return TurnMarkers((assistant,), (user,) if user else ()) if assistant else None


def _atoms(text: str, tokenizer: Any) -> list[str]:
    """A text cut into special tokens, which stay whole, and single characters."""
    special = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    longest_first = sorted(filter(None, special), key=len, reverse=True)
    return re.findall("|".join([*map(re.escape, longest_first), "."]), text, re.DOTALL)
