"""A later question chooses the tokens of an earlier image again."""

import pytest
import torch
from support.llava import ask, processor
from support.requests import assert_same, greedy, step_logits
from support.slow_llava import SlowLlava

from covist.engine.question import InstructionReader
from covist.engine.sequence.cache import book_of
from covist.errors import CovistError
from covist.families.registry import family_for

FIRST = "USER: <image> what color is this ? ASSISTANT:"
SECOND = "USER: where is the left object ? ASSISTANT:"
THIRD = "USER: is there a word in the image ? ASSISTANT:"


def continued(output, text):
    return torch.cat([output.sequences, ask(text)["input_ids"][:, 1:]], dim=1)


def turn(model, before, text, tokens=3):
    """The next question, with the cache that the one before it returned."""
    return greedy(model, {"input_ids": continued(before, text)}, tokens, past_key_values=before.past_key_values)


@pytest.fixture
def asked():
    """The handle's report of a first question alone: which tokens it keeps."""

    def keep(model, compress, question, **options):
        handle = compress(model, **options)
        greedy(model, ask(question.replace("USER:", "USER: <image>")), 1)
        kept = handle.report.images[0].stages[0].kept
        handle.remove()
        return kept

    return keep


def test_a_later_question_keeps_what_it_asks_for(model, strategy, compress, clip, asked):
    options = {"budget": 24, "strategy": strategy, "clip": clip}
    wanted = [asked(model, compress, question, **options) for question in (SECOND, THIRD)]
    assert wanted[0].tolist() != wanted[1].tolist()
    handle = compress(model, **options, reselect=True)
    output = greedy(model, ask(FIRST), 3)
    assert not handle.report.asked_again
    for question, kept in zip((SECOND, THIRD), wanted, strict=True):
        output = turn(model, output, question)
        assert handle.report.asked_again
        assert torch.equal(handle.report.images[0].stages[0].kept, kept)


def test_the_conversation_runs_as_the_slow_model_says(model, strategy, compress):
    handle = compress(model, budget=24, strategy=strategy, reselect=True)
    inputs = ask(FIRST)
    first = greedy(model, inputs, 3)
    second = turn(model, first, SECOND)
    handle.remove()
    slow, length = SlowLlava(model, strategy == "pro"), continued(first, SECOND).shape[1]
    for step in range(3):
        expected = slow.logits(
            second.sequences[0, : length + step].tolist(), inputs["pixel_values"], handle.report.images
        )
        torch.testing.assert_close(second.logits[step][0], expected, atol=1e-4, rtol=1e-4)


def test_the_cache_says_the_same_as_the_conversation_sent_again(model, strategy, compress, clip):
    handle = compress(model, budget=24, strategy=strategy, clip=clip, reselect=True)
    inputs = ask(FIRST)
    first = greedy(model, inputs, 3)
    ids = continued(first, SECOND)
    again = greedy(model, {"input_ids": ids, "pixel_values": inputs["pixel_values"]}, 3)
    resent = [stage.kept.tolist() for stage in handle.report.images[0].stages]
    second = turn(model, first, SECOND)
    assert [stage.kept.tolist() for stage in handle.report.images[0].stages] == resent
    assert_same(second, again)


def test_without_it_the_first_question_decides(multi_head, compress, clip):
    handle = compress(multi_head, budget=24, clip=clip)
    inputs = ask(FIRST)
    first = greedy(multi_head, inputs, 3)
    kept = handle.report.images[0].kept
    greedy(multi_head, {"input_ids": continued(first, SECOND), "pixel_values": inputs["pixel_values"]}, 1)
    assert torch.equal(handle.report.images[0].kept, kept)
    assert handle.report.host_bytes == 0
    assert book_of(first.past_key_values).conversation is None


def test_a_padded_batch_of_conversations_equals_each_alone(multi_head, compress):
    compress(multi_head, budget=24, reselect=True)
    both = ask(FIRST, "USER: is the object in the left of this <image> red ? ASSISTANT:")
    together = greedy(multi_head, both, 3)
    ids = torch.cat([together.sequences, ask(SECOND)["input_ids"][:, 1:].expand(2, -1)], dim=1)
    mask = torch.cat([both["attention_mask"], torch.ones_like(ids[:, both["attention_mask"].shape[1] :])], dim=1)
    second = greedy(multi_head, {"input_ids": ids, "attention_mask": mask}, 3, past_key_values=together.past_key_values)
    for row in range(2):
        valid = mask[row].bool()
        alone = {"input_ids": ids[row : row + 1, valid], "pixel_values": both["pixel_values"][row : row + 1]}
        expected = step_logits(greedy(multi_head, alone, 3))
        torch.testing.assert_close(step_logits(second)[:, row], expected[:, 0], atol=1e-4, rtol=1e-4)


def test_what_is_kept_on_the_host_is_stated(multi_head, compress):
    handle = compress(multi_head, budget=24, reselect=True)
    output = greedy(multi_head, ask(FIRST), 1)
    known = book_of(output.past_key_values).conversation
    assert handle.report.host_bytes == known.host_bytes > 0
    assert "kept on the host" in repr(handle.report)
    assert all(one.keys.device.type == "cpu" for one in known.signals)


def test_a_cache_whose_rows_were_rearranged_is_continued_as_it_is(multi_head, compress):
    handle = compress(multi_head, budget=24, reselect=True)
    first = greedy(multi_head, ask(FIRST), 3)
    kept = handle.report.images[0].kept
    first.past_key_values.batch_select_indices(torch.tensor([0]))
    turn(multi_head, first, SECOND)
    assert torch.equal(handle.report.images[0].kept, kept)
    assert not handle.report.asked_again


def test_it_needs_the_tokenizer(multi_head, compress):
    with pytest.raises(CovistError, match="reselect= needs the processor"):
        compress(multi_head, processor=None, reselect=True)


@pytest.mark.parametrize(
    "text, latest",
    [
        (FIRST, "what color is this ?"),
        (f"{FIRST} red {SECOND}", "where is the left object ?"),
        (f"{FIRST} red {SECOND} left {THIRD}", "is there a word"),
        (f"{FIRST} red USER: where is the left object ?", "where is the left object ?"),
        ("what color is this ?", "what color is this ?"),
    ],
)
def test_the_latest_question_is_found(multi_head, text, latest):
    reader = InstructionReader(family_for(multi_head), processor(), None)
    ids = processor().tokenizer(text.replace("<image> ", ""), return_tensors="pt")["input_ids"][0]
    is_text = torch.ones_like(ids, dtype=torch.bool)
    begins = reader.latest_turn(ids, reader.turns(ids, is_text))
    assert processor().tokenizer.decode(ids[begins:], skip_special_tokens=True).startswith(latest.removesuffix(" ?"))
