"""A batch gives every prompt what it gets alone."""

import pytest
import torch
from support.llava import ask
from support.requests import greedy, sample_of, step_logits

PROMPTS = (
    "USER: <image> what color is this ? ASSISTANT:",
    "USER: is there a word in the image ? ASSISTANT:",
    "USER: where <image> and <image> what color is the left object of this image ? ASSISTANT:",
    "<image> what",
)
IMAGES = (slice(0, 1), slice(1, 1), slice(1, 3), slice(3, 4))


def assert_equals_alone(model, inputs):
    together = step_logits(greedy(model, inputs, 3))
    for index, images in enumerate(IMAGES):
        alone = step_logits(greedy(model, sample_of(inputs, index, images), 3))
        torch.testing.assert_close(together[:, index], alone[:, 0], atol=1e-4, rtol=1e-4)


def test_padded_batch_equals_the_prompts_alone(model, strategy, compress):
    compress(model, budget=24, strategy=strategy)
    assert_equals_alone(model, ask(*PROMPTS))


def test_generation_after_right_padding_is_refused(multi_head, strategy, compress):
    compress(multi_head, budget=24, strategy=strategy)
    with pytest.raises(ValueError, match="padded on the right; set tokenizer.padding_side = 'left'"):
        greedy(multi_head, ask(*PROMPTS, side="right"), 3)


def test_right_padded_forward_equals_the_prompts_alone(multi_head, strategy, compress):
    compress(multi_head, budget=24, strategy=strategy)
    inputs = ask(*PROMPTS, side="right")
    together = multi_head(**inputs).logits
    for index, images in enumerate(IMAGES):
        alone = sample_of(inputs, index, images)
        expected = multi_head(**alone).logits[0]
        torch.testing.assert_close(together[index, : len(expected)], expected, atol=1e-4, rtol=1e-4)


def test_batch_equals_alone_with_clip(multi_head, strategy, compress, clip):
    compress(multi_head, budget=24, strategy=strategy, clip=clip)
    assert_equals_alone(multi_head, ask(*PROMPTS))


def test_states_of_a_batch_are_those_of_the_prompts_alone(multi_head, strategy, compress):
    handle = compress(multi_head, budget=24, strategy=strategy)
    inputs = ask(*PROMPTS)
    greedy(multi_head, inputs, 1)
    together = handle.report
    assert [image.sample for image in together.images] == [0, 2, 2, 3]
    assert together.text_tokens == tuple(
        int(row.sum()) - 144 * (images.stop - images.start)
        for row, images in zip(inputs["attention_mask"], IMAGES, strict=True)
    )
    for index, images in enumerate(IMAGES):
        if images.stop == images.start:
            continue
        greedy(multi_head, sample_of(inputs, index, images), 1)
        for ours, alone in zip(together.images[images], handle.report.images, strict=True):
            for stage, expected in zip(ours.stages, alone.stages, strict=True):
                assert torch.equal(stage.indices, expected.indices)
                torch.testing.assert_close(stage.weights, expected.weights)


def test_budget_that_some_images_do_not_exceed(multi_head, compress):
    """Images are reduced one by one; a batch of reduced and untouched prompts keeps both right."""
    compress(multi_head, budget=24, strategy="pro")
    inputs = ask("<image> what color is this ?", "is there a word in this image ?")
    together = step_logits(greedy(multi_head, inputs, 3))
    text = sample_of(inputs, 1, slice(0, 0))
    torch.testing.assert_close(together[:, 1], step_logits(greedy(multi_head, text, 3))[:, 0], atol=1e-4, rtol=1e-4)


def test_right_padded_labels_give_the_loss_of_the_prompts_alone(model, strategy, compress):
    compress(model, budget=24, strategy=strategy)
    inputs = ask(PROMPTS[0], PROMPTS[3], side="right")
    labels = inputs["input_ids"].masked_fill(inputs["input_ids"] == model.config.image_token_id, -100)
    labels = labels.masked_fill(inputs["attention_mask"] == 0, -100)
    together = model(**inputs, labels=labels)
    losses, counts = [], []
    for index in range(2):
        alone = sample_of(inputs, index, slice(index, index + 1))
        own = labels[index : index + 1, inputs["attention_mask"][index].bool()]
        losses.append(model(**alone, labels=own).loss)
        counts.append(int((own[:, 1:] != -100).sum()))
    expected = sum(loss * count for loss, count in zip(losses, counts, strict=True)) / sum(counts)
    torch.testing.assert_close(together.loss, expected, atol=1e-5, rtol=1e-5)
