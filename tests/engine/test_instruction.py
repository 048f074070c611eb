"""What the user asked about an image, read from prompts of all shapes."""

import pytest
import torch
from support.llava import IMAGE, TOKEN_ID, ask, processor
from support.requests import greedy

import covist
from covist.engine.question import InstructionReader
from covist.families.registry import family_for
from covist.tiny.text import END


@pytest.fixture
def read(multi_head):
    """Reads the instruction of the first image of a prompt; returns it with the prompt's tokens."""

    def reading(prompt, tokenizer=None, override=None, image=0):
        ids = ask(prompt)["input_ids"][0]
        is_text = ids != TOKEN_ID[IMAGE]
        end = (~is_text).nonzero().squeeze(1)[144 * (image + 1) - 1] + 1
        reader = InstructionReader(family_for(multi_head), processor() if tokenizer is None else tokenizer, override)
        embeddings = multi_head.get_input_embeddings()(ids)
        return reader.read(ids, is_text, int(end), embeddings), ids

    return reading


def words(ids, rows):
    return processor().tokenizer.decode(ids[rows])


def words_of(ids, rows):
    return processor().tokenizer.convert_ids_to_tokens(ids[rows])


CASES = {
    "after the image": ("USER: <image> what color ? ASSISTANT:", "what color?"),
    "only up to the assistant": ("USER: <image> what color ? ASSISTANT: red USER: where ? ASSISTANT:", "what color?"),
    "no assistant turn": ("<image> what color ?", "what color?"),
    "before the image if nothing is after it": ("USER: what color ? <image> ASSISTANT:", "what color?"),
    "image at the very end": ("USER: what color ? <image>", "what color?"),
    "the turn's own text, not an earlier turn's": (
        "USER: where is the word ? ASSISTANT: left USER: what color ? <image> ASSISTANT:",
        "what color?",
    ),
    "after wins over before": ("USER: where is this ? <image> what color ? ASSISTANT:", "what color?"),
    "nothing at all": ("USER: <image> ASSISTANT:", ""),
}


@pytest.mark.parametrize("prompt, text", CASES.values(), ids=CASES.keys())
def test_text_of_the_instruction(read, prompt, text):
    instruction, ids = read(prompt)
    assert instruction.text.replace(" ", "") == text.replace(" ", "")
    if text:
        assert ids[instruction.last] == TOKEN_ID["?"]
        assert torch.equal(instruction.rows, instruction.rows.sort().values)
        assert len(instruction.embeddings) == len(instruction.rows)


def test_turn_marks_add_no_text(read):
    instruction, ids = read("USER: <image> what color ? " + END + " ASSISTANT:")
    pieces = dict(zip(words_of(ids, instruction.rows), instruction.pieces, strict=True))
    assert pieces[END] == "" and pieces["color"].strip() == "color"


def test_without_any_words_the_last_prompt_token_asks(read):
    instruction, ids = read("USER: <image> ASSISTANT:")
    assert len(instruction.rows) == 0 and len(instruction.embeddings) == 0
    assert instruction.last == len(ids) - 1


def test_long_instruction_is_read_whole(read):
    question = " ".join(["what color is this object ?"] * 60)
    instruction, ids = read(f"USER: <image> {question} ASSISTANT:")
    assert len(instruction.rows) == 6 * 60
    assert words(ids, instruction.rows).count("object") == 60


def test_explicit_instruction_replaces_text_and_embeddings(read, multi_head):
    instruction, ids = read("USER: <image> what color ? ASSISTANT:", override="where is the word")
    assert instruction.text == "where is the word"
    tokens = processor().tokenizer("where is the word", add_special_tokens=False).input_ids
    expected = multi_head.get_input_embeddings()(torch.tensor(tokens))
    assert torch.equal(instruction.embeddings, expected)
    assert words(ids, instruction.rows).endswith("?")  # rows inside the decoder stay those of the prompt


def test_without_a_processor_everything_behind_the_image_counts(multi_head, compress):
    handle = compress(multi_head, budget=24, processor=None)
    multi_head(**ask("USER: where <image> what color ?"))
    after = handle.report.images[0].stages[0].maps["instruction"]
    handle.remove()
    handle = compress(multi_head, budget=24)
    multi_head(**ask("USER: where <image> what color ?"))
    assert torch.equal(handle.report.images[0].stages[0].maps["instruction"], after)


def test_explicit_instruction_needs_something_that_can_read_it(multi_head, compress, clip):
    with pytest.raises(ValueError, match=r"instruction= needs the processor \(or clip=\)"):
        compress(multi_head, budget=24, processor=None, instruction="what color")
    compress(multi_head, budget=24, processor=None, instruction="what color", clip=clip)


@pytest.mark.parametrize("route", ["clip", "first layer"])
def test_instruction_changes_the_evidence(multi_head, compress, clip, route):
    maps = []
    for instruction in ("what color is the left object", "is there a word", None, None):
        prompt = "USER: <image> where is this ? ASSISTANT:"
        options = {"clip": clip} if route == "clip" else {}
        handle = compress(multi_head, budget=24, instruction=instruction, **options)
        multi_head(**ask(prompt))
        maps.append(handle.report.images[0].stages[0].maps["combined"])
        handle.remove()
    assert not torch.equal(maps[0], maps[1]) and not torch.equal(maps[0], maps[2])
    assert torch.equal(maps[2], maps[3])


def test_empty_instruction_leaves_the_image_alone(multi_head, compress, clip):
    evidence = []
    for options in ({"clip": clip}, {}):
        handle = compress(multi_head, budget=24, **options)
        multi_head(**ask("USER: <image> ASSISTANT:"))
        stage = handle.report.images[0].stages[0]
        assert "instruction" not in stage.maps
        evidence.append(stage.maps["combined"])
        handle.remove()
    assert torch.equal(*evidence)


def test_images_of_one_turn_share_the_instruction(multi_head, compress, clip):
    """Two equal images in one turn, a third in the next: the first two have one instruction."""
    handle = compress(multi_head, budget=24, clip=clip)
    prompt = "USER: <image> and <image> what color ? ASSISTANT: red USER: <image> is there a word ? ASSISTANT:"
    greedy(multi_head, ask(prompt, seeds=(5, 5, 5)), 1)
    first, second, third = (image.stages[0].maps["instruction"] for image in handle.report.images)
    assert torch.allclose(first, second) and not torch.allclose(first, third)


def test_clip_checkpoint_is_asked_for_once(multi_head):
    with pytest.warns(UserWarning, match="no clip= given: instruction and image are compared in the decoder") as log:
        handle = covist.compress(multi_head, processor(), budget=24)
        for _ in range(2):
            multi_head(**ask("<image> what color ?"))
    handle.remove()
    assert len([entry for entry in log if "clip=" in str(entry.message)]) == 1
