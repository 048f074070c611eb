"""Conversations that continue with the returned cache."""

import pytest
import torch
from support.ledgers import ledgers
from support.llava import IMAGE, TOKEN_ID, TOKENS, ask
from support.requests import greedy, kept_keys, step_logits
from support.slow_llava import SlowLlava
from transformers import DynamicCache

from covist.engine.sequence.cache import book_of

FIRST = "USER: <image> what color is this ? ASSISTANT:"


def tokens(text):
    return ask(text)["input_ids"][:, 1:]  # without the start token


def continued(output, text):
    return torch.cat([output.sequences, tokens(text)], dim=1)


def test_text_turn_equals_the_whole_conversation(model, strategy, compress):
    """The second turn from the cache against the slow model on the whole conversation, with the same selection."""
    inputs = ask(FIRST)
    handle = compress(model, budget=24, strategy=strategy)
    first = greedy(model, inputs, 3)
    ids = continued(first, "USER: where is the left object ? ASSISTANT:")
    second = greedy(model, {"input_ids": ids}, 3, past_key_values=first.past_key_values)
    handle.remove()
    slow = SlowLlava(model, strategy == "pro")
    for step in range(3):
        seen = second.sequences[0, : ids.shape[1] + step].tolist()
        expected = slow.logits(seen, inputs["pixel_values"], handle.report.images)
        torch.testing.assert_close(second.logits[step][0], expected, atol=1e-4, rtol=1e-4)


def test_conversation_sent_again_keeps_what_the_first_question_chose(multi_head, compress, clip):
    handle = compress(multi_head, budget=24, clip=clip)
    inputs = ask(FIRST)
    first = greedy(multi_head, inputs, 3)
    kept = handle.report.images[0].kept
    again = continued(first, "USER: where is the left object ? ASSISTANT:")
    greedy(multi_head, {"input_ids": again, "pixel_values": inputs["pixel_values"]}, 1)
    assert torch.equal(handle.report.images[0].kept, kept)


def test_image_in_a_later_turn_equals_the_whole_conversation(model, strategy, compress):
    handle = compress(model, budget=24, strategy=strategy)
    inputs = ask(FIRST)
    first = greedy(model, inputs, 3)
    reports = [*handle.report.images]
    later = ask("<image>", seeds=(9,))
    ids = torch.cat(
        [first.sequences, tokens("USER: and"), later["input_ids"][:, 1:], tokens("where is this ? ASSISTANT:")], dim=1
    )
    second = greedy(
        model, {"input_ids": ids, "pixel_values": later["pixel_values"]}, 3, past_key_values=first.past_key_values
    )
    reports += handle.report.images
    handle.remove()
    pixels = torch.cat([inputs["pixel_values"], later["pixel_values"]])
    slow = SlowLlava(model, strategy == "pro")
    for step in range(3):
        expected = slow.logits(second.sequences[0, : ids.shape[1] + step].tolist(), pixels, reports)
        torch.testing.assert_close(second.logits[step][0], expected, atol=1e-4, rtol=1e-4)


def test_image_after_a_turn_of_text_equals_the_whole_prompt(model, strategy, compress):
    handle = compress(model, budget=24, strategy=strategy)
    text = ask("USER: what is a word ? ASSISTANT:")
    first = greedy(model, text, 2)
    later = ask("<image>")
    ids = torch.cat(
        [first.sequences, tokens("USER:"), later["input_ids"][:, 1:], tokens("where is this ? ASSISTANT:")], dim=1
    )
    second = greedy(
        model, {"input_ids": ids, "pixel_values": later["pixel_values"]}, 3, past_key_values=first.past_key_values
    )
    cache = second.past_key_values
    assert len(book_of(cache).stages) == (3 if strategy == "pro" else 1)
    handle.remove()
    slow = SlowLlava(model, strategy == "pro")
    for step in range(3):
        seen = second.sequences[0, : ids.shape[1] + step].tolist()
        expected = slow.logits(seen, later["pixel_values"], handle.report.images)
        torch.testing.assert_close(second.logits[step][0], expected, atol=1e-4, rtol=1e-4)


def test_padded_batch_of_turns_equals_the_turns_alone(multi_head, strategy, compress):
    """Both turns are padded; the second one brings an image to one sample only."""
    compress(multi_head, budget=24, strategy=strategy)
    first = ask(FIRST, "USER: is there a word ? ASSISTANT:")
    second = ask("USER: where ? ASSISTANT:", "USER: <image> what color is this ? ASSISTANT:", seeds=(4,))

    def converse(samples):
        cache = DynamicCache(config=multi_head.config.text_config)
        outputs, mask = [], torch.zeros(len(samples), 0, dtype=torch.long)
        for turn, pixels in ((first, 0), (second, 1)):
            ids, own = turn["input_ids"][samples], turn["attention_mask"][samples]
            if len(samples) == 1:
                ids, own = ids[:, own[0].bool()], own[:, own[0].bool()]
            mask = torch.cat([mask, own], 1)
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            images = {"pixel_values": turn["pixel_values"]} if pixels in samples else {}
            outputs.append(
                multi_head(
                    ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True, **images
                ).logits[:, -1]
            )
        return outputs

    together = converse([0, 1])
    for sample in (0, 1):
        for logits, alone in zip(together, converse([sample]), strict=True):
            torch.testing.assert_close(logits[sample], alone[0], atol=1e-4, rtol=1e-4)


def test_ledger_of_a_longer_conversation(multi_head, compress):
    """Three turns, two with an image: keys grow by what each turn adds, images keep separate numbers."""
    compress(multi_head, budget=24, strategy="pro")
    output = greedy(multi_head, ask(FIRST), 2)
    lengths = [kept_keys(output.past_key_values)]
    for turn in ("USER: where ? ASSISTANT:", "USER: <image> and this ? ASSISTANT:"):
        inputs = ask(turn)
        images = {"pixel_values": inputs["pixel_values"]} if "pixel_values" in inputs else {}
        ids = torch.cat([output.sequences, inputs["input_ids"][:, 1:]], 1)
        output = greedy(multi_head, {"input_ids": ids, **images}, 2, past_key_values=output.past_key_values)
        lengths.append(kept_keys(output.past_key_values))
    visual = [36] * 4 + [18] * 2 + [6] * 2
    # the last token of the first turn, four tokens of the second, and the first that was generated
    assert [b - a for a, b in zip(*lengths[:2], strict=True)] == [1 + 4 + 1] * 8
    grown = [b - a for a, b in zip(*lengths[1:], strict=True)]
    assert [growth - count for growth, count in zip(grown, visual, strict=True)] == [grown[0] - 36] * 8
    ledger = ledgers(output.past_key_values)[0]
    keys = ledger.keys
    assert [(keys.image == number).sum().item() for number in (0, 1)] == [36, 36]
    ids = output.sequences[0, : output.past_key_values.get_seq_length()]
    text = (ids != TOKEN_ID[IMAGE]).nonzero().squeeze(1)
    assert torch.equal(keys.positions[0][keys.image[0] < 0], text)
    assert ledger.reach == keys.positions.max()
    assert output.past_key_values.get_seq_length() == len(text) + 2 * TOKENS


@pytest.mark.parametrize("positions", ["keep", "reindex"])
def test_turn_from_cache_equals_one_prompt_with_frozen_choices(multi_head, compress, positions):
    """Without an instruction the selection is the same, so one prompt and two turns must agree."""
    compress(multi_head, budget=24, positions=positions, instruction="")
    whole = ask(FIRST + " no USER: where is this ? ASSISTANT:")
    expected = step_logits(greedy(multi_head, whole, 3))
    part = ask(FIRST)
    cache = multi_head(**part, use_cache=True).past_key_values
    rest = greedy(multi_head, {"input_ids": whole["input_ids"]}, 3, past_key_values=cache)
    torch.testing.assert_close(step_logits(rest), expected, atol=1e-4, rtol=1e-4)
