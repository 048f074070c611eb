"""Where turns begin in a prompt: markers from a chat template, from the user, or from widely used templates."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covist.contract.family import Family
from covist.errors import CovistError

FIRST, ANSWER, SECOND = "covistfirstquestion", "covistanswer", "covistsecondquestion"
"""Words that no template contains."""


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
