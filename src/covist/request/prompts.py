"""Questions and conversations in a model's own chat format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from covist.errors import CovistError

Turn = dict[str, Any]
"""A turn for chat templates: a role, and parts that are texts or mark the places of images and videos."""

Tool = dict[str, Any]
"""A function that a model may call, as OpenAI's clients describe it."""


def chat_prompt(processor: Any, question: str, images: int = 1, videos: int = 0) -> str:
    """The prompt text for a question about so many images, followed by so many videos."""
    refuse_placeholders(processor, question)
    shown = ["image"] * images + ["video"] * videos
    content = [*({"type": kind} for kind in shown), {"type": "text", "text": question}]
    return conversation_prompt(processor, [{"role": "user", "content": content}])


def conversation_prompt(processor: Any, turns: Sequence[Turn], tools: Sequence[Tool] = ()) -> str:
    """A conversation up to the assistant's next turn, in the processor's template or in LLaVA-1.5's format.

    tools: what the model may call, if the template takes tools (`takes_tools`)
    """
    template = getattr(processor, "chat_template", None)
    if not template:
        return _whole_characters(_plain_format(turns, processor))
    if "system" not in template:
        turns = _without_system(turns)
    offered = {"tools": list(tools)} if tools else {}
    return _whole_characters(processor.apply_chat_template(list(turns), add_generation_prompt=True, **offered))


def takes_tools(processor: Any) -> bool:
    """Whether the chat template shows tools to the model."""
    return "tools" in (getattr(processor, "chat_template", None) or "")


def placeholders(processor: Any) -> list[str]:
    """The placeholder tokens for an image and for a video, if the processor has them."""
    return [token for kind in ("image", "video") if (token := getattr(processor, f"{kind}_token", None))]


def refuse_placeholders(processor: Any, text: str) -> None:
    """Refuse placeholders in the user's text: there would be more of them than images."""
    for placeholder in placeholders(processor):
        if placeholder in text:
            raise CovistError(f"the prompt contains {placeholder!r}; remove it, images are placed before the question")


def _whole_characters(text: str) -> str:
    """Refuse what JSON and the command line can hold but no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CovistError(f"the prompt contains {text[error.start]!r}, which is half a character; remove it") from None
    return text


def _without_system(turns: Sequence[Turn]) -> list[Turn]:
    """For templates without a system role: put the system text before the user's next message."""
    made: list[Turn] = []
    held: list[dict[str, str]] = []
    for turn in turns:
        if turn["role"] == "system":
            held += [{**part, "text": part["text"] + "\n"} for part in turn["content"]]
        elif turn["role"] == "user":
            made.append({"role": "user", "content": [*held, *turn["content"]]})
            held = []
        else:
            made.append(turn)
    return made


def _plain_format(turns: Sequence[Turn], processor: Any) -> str:
    """The format of LLaVA-1.5, for processors without a template."""
    written = []
    for turn in _without_system(turns):
        parts = "".join(_plain_part(part, processor) for part in turn["content"])
        written.append(f"{turn['role'].upper()}: {parts}")
    return " ".join([*written, "ASSISTANT:"])


def _plain_part(part: dict[str, str], processor: Any) -> str:
    return part["text"] if part["type"] == "text" else f"{getattr(processor, part['type'] + '_token')}\n"
