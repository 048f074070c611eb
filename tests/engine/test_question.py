"""The turns of a prompt are found once, however many images it has."""

from dataclasses import dataclass

import pytest
import torch
from support.llava import IMAGE, TOKEN_ID, processor

from covist.engine.question import InstructionReader
from covist.families.registry import family_for

TURN = "USER: <image> what color ? ASSISTANT: red "


@dataclass
class Span:
    start: int
    end: int


class Counting:
    """A tokenizer that counts how many tokens it decodes."""

    def __init__(self, tokenizer):
        self._tokenizer, self.calls, self.tokens = tokenizer, 0, 0

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def __call__(self, *args, **options):
        return self._tokenizer(*args, **options)

    def decode(self, tokens, **options):
        self.calls, self.tokens = self.calls + 1, self.tokens + len(tokens)
        return self._tokenizer.decode(tokens, **options)


def asked(model, prompt, length=4):
    """The instruction text of every image of a prompt in which an image has `length` tokens, and the tokenizer."""
    image = TOKEN_ID[IMAGE]
    tokenizer = Counting(processor().tokenizer)
    parts = [tokenizer(part, add_special_tokens=False).input_ids for part in prompt.split("<image>")]
    tokens = [*parts[0]]
    spans = []
    for part in parts[1:]:
        spans.append(Span(len(tokens), len(tokens) + length))
        tokens += [image] * length + part
    ids = torch.tensor(tokens)
    is_text = ids != image
    reader = InstructionReader(family_for(model), tokenizer, None)
    tokenizer.calls = tokenizer.tokens = 0
    turns = reader.turns(ids, is_text)
    firsts = [turns.first_of_turn(spans, number) for number in range(len(spans))]
    embeddings = torch.zeros(len(ids), 1)
    texts = {first: reader.read(ids, is_text, spans[first].end, embeddings, turns).text for first in set(firsts)}
    return firsts, [texts[first] for first in firsts], tokenizer


def test_images_of_one_turn_have_one_first_image(multi_head):
    firsts, texts, _ = asked(
        multi_head, "USER: <image> and <image> what color ? ASSISTANT: red USER: <image> where ? ASSISTANT:"
    )
    assert firsts == [0, 0, 2]
    assert [text.replace(" ", "") for text in texts] == ["andwhatcolor?", "andwhatcolor?", "where?"]


def test_an_answer_before_the_first_image_ends_no_turn_of_images(multi_head):
    firsts, texts, _ = asked(multi_head, "USER: where ? ASSISTANT: left USER: <image> <image> what color ? ASSISTANT:")
    assert firsts == [0, 0] and {text.replace(" ", "") for text in texts} == {"whatcolor?"}


def test_many_images_of_one_turn_take_few_decodes(multi_head):
    """It was 1,136 decodes for 32 images."""
    firsts, texts, tokenizer = asked(multi_head, "USER: " + "<image> and " * 32 + "what color ? ASSISTANT:")
    assert set(firsts) == {0} and len(set(texts)) == 1
    assert tokenizer.calls <= 32 + 40


@pytest.mark.parametrize("turns", [16, 32])
def test_decoding_is_linear_in_the_turns(multi_head, turns):
    firsts, texts, tokenizer = asked(multi_head, TURN * turns)
    assert firsts == list(range(turns)) and {text.replace(" ", "") for text in texts} == {"whatcolor?"}
    assert tokenizer.tokens <= 130 * turns
