"""Conversations in a model's chat template, or in the format of LLaVA-1.5 where it has none."""

import pytest

from covist import CovistError
from covist.request.prompts import chat_prompt, conversation_prompt

SYSTEM = {"role": "system", "content": [{"type": "text", "text": "be brief"}]}
USER = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}
ASSISTANT = {"role": "assistant", "content": [{"type": "text", "text": "red"}]}
FILM = {"role": "user", "content": [{"type": "video"}, {"type": "text", "text": ""}]}


class Processor:
    image_token, video_token, chat_template = "<image>", "<video>", None

    def apply_chat_template(self, turns, add_generation_prompt):
        assert add_generation_prompt
        return "|".join(turn["role"] + "".join(part.get("text", "*") for part in turn["content"]) for turn in turns)


def with_template(template: str) -> Processor:
    made = Processor()
    made.chat_template = template
    return made


def test_without_a_template_the_format_is_that_of_llava():
    assert chat_prompt(Processor(), "what?", images=2) == "USER: <image>\n<image>\nwhat? ASSISTANT:"
    turns = [SYSTEM, USER, ASSISTANT, FILM]
    assert conversation_prompt(Processor(), turns) == (
        "USER: be brief\n<image>\nwhat? ASSISTANT: red USER: <video>\n ASSISTANT:"
    )


def test_a_template_without_system_gets_its_text_in_the_next_turn_of_the_user():
    assert conversation_prompt(with_template("{{ messages }}"), [SYSTEM, USER]) == "userbe brief\n*what?"


def test_a_template_with_system_gets_all_turns():
    assert conversation_prompt(with_template("system user"), [SYSTEM, USER]) == "systembe brief|user*what?"


@pytest.mark.parametrize("word", ["<image>", "<video>"])
def test_a_question_may_not_bring_placeholders(word):
    with pytest.raises(CovistError, match="remove it"):
        chat_prompt(Processor(), f"what is {word}?")


@pytest.mark.parametrize("processor", [Processor(), with_template("system user"), with_template("user")])
def test_half_a_character_is_refused_as_such(processor):
    """JSON may contain it, and so may a command line whose bytes are not UTF-8; tokenizers raise a TypeError."""
    with pytest.raises(CovistError, match=r"contains '\\udcff', which is half a character; remove it"):
        chat_prompt(processor, "is there a square \udcff ?")
