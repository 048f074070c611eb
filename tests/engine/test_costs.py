"""Counts that must not grow faster than what they are counted for: images, prompts, generated tokens."""

import pytest
import torch
from support.counts import counted_decodes, device_reads, own_calls
from support.llava import ask, build_llava, processor
from support.requests import greedy

PROMPT = "USER: <image> what color is this ? ASSISTANT:"


def is_linear(counts):
    """Whether counts for sizes that double (n, 2n, 4n) grow in proportion; single images differ by a few."""
    small, middle, large = counts
    return large - middle <= 2.06 * (middle - small)


@pytest.fixture(scope="module")
def short():
    """Two layers, since counts of the engine itself are wanted."""
    return build_llava(layers=2)


@pytest.fixture(params=["fixed", "pro"])
def four_layers(request, compress):
    model = build_llava(layers=4)
    compress(model, budget=24, strategy=request.param)
    return model


# -- batches ----------------------------------------------------------------------------------------------------------


def test_reads_of_a_batch_grow_with_the_batch(short, compress, strategy):
    """Every prompt has its own image: finding it must not compare it with the images of all prompts before."""
    compress(short, budget=24, strategy=strategy)
    short(**ask(PROMPT))
    counts = [device_reads(lambda size=size: short(**ask(*[PROMPT] * size))) for size in (4, 8, 16)]
    assert is_linear(counts), counts


def test_reads_of_a_prompt_grow_with_its_images(short, compress, strategy):
    compress(short, budget=24, strategy=strategy)
    short(**ask(PROMPT))
    prompts = ["USER: " + "<image> and " * size + "what color is this ? ASSISTANT:" for size in (4, 8, 16)]
    counts = [device_reads(lambda text=text: short(**ask(text))) for text in prompts]
    assert is_linear(counts), counts


# -- the text of a prompt ---------------------------------------------------------------------------------------------


def of_turns(images):
    """One image per turn."""
    return "".join("USER: <image> what color is this ? ASSISTANT: red " for _ in range(images - 1)) + PROMPT


def in_one_turn(images):
    return "USER: " + "<image> and " * images + "what color is this ? ASSISTANT:"


@pytest.mark.parametrize("prompt", [of_turns, in_one_turn])
def test_decodes_of_the_tokenizer_grow_with_the_images(short, compress, prompt):
    compress(short, budget=4)
    counts = []
    for images in (8, 16, 32):
        inputs = ask(prompt(images))
        with counted_decodes(processor().tokenizer) as lengths:
            short(**inputs)
        counts.append(len(lengths))
    assert counts[2] <= 2.5 * counts[1], counts
    assert counts[2] <= 32 * 20, counts  # two bisections for each of two markers of a turn


@pytest.mark.parametrize("prompt", [of_turns, in_one_turn])
def test_decoded_text_grows_with_the_prompt(short, compress, prompt):
    """Decoding the whole conversation again for every image would be quadratic, too."""
    compress(short, budget=4)
    counts = []
    for images in (8, 16, 32):
        inputs = ask(prompt(images))
        with counted_decodes(processor().tokenizer) as lengths:
            short(**inputs)
        counts.append(sum(lengths))
    assert counts[2] <= 3 * counts[1], counts


# -- decoding ---------------------------------------------------------------------------------------------------------


def steps(model, after, measure):
    """What the next step costs after so many steps."""
    output = greedy(model, ask(PROMPT), 1)
    cache, token = output.past_key_values, output.sequences[:, -1:]
    for _ in range(after):
        model(token, past_key_values=cache)
    return measure(lambda: model(token, past_key_values=cache))


def test_calls_of_a_step_do_not_grow(four_layers):
    """Not even in Python: 4,000 waiting keys were counted four times per stage and step."""
    early, late = (steps(four_layers, after, own_calls) for after in (4, 100))
    assert late <= early, (early, late)


def test_reads_of_a_step_do_not_grow(four_layers):
    early, late = (steps(four_layers, after, device_reads) for after in (4, 40))
    assert late <= early <= 2, (early, late)


def test_step_with_a_mask_costs_as_much_at_any_length(four_layers):
    def with_mask(after):
        inputs = ask(PROMPT)
        output = greedy(four_layers, inputs, 1)
        cache, token, mask = output.past_key_values, output.sequences[:, -1:], inputs["attention_mask"]
        for _ in range(after + 1):
            mask = torch.cat([mask, torch.ones_like(token)], 1)
            calls = own_calls(lambda mask=mask: four_layers(token, past_key_values=cache, attention_mask=mask))
        return calls

    early, late = with_mask(4), with_mask(100)
    assert late <= early, (early, late)
