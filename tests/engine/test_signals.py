"""What is taken from the encoder, and what the decoder stages are fed, against values computed another way."""

import gc
from functools import partial

import numpy as np
import pytest
import torch
from reference import internal
from support.llava import CLIP_WIDTH, ask, llava_config
from support.requests import greedy
from support.slow_llava import SlowLlava
from transformers import LlavaForConditionalGeneration

from covist.contract.signals import ImageSignals
from covist.engine.sequence.prompts import stands_in
from covist.families.registry import family_for

PROMPT = "USER: <image> what color is this ? ASSISTANT:"


@pytest.fixture
def captured(multi_head):
    """Signals of two images, encoded with the tower as it is."""
    signals = []
    hooks = family_for(multi_head).capture(signals.extend)
    pixels = ask("<image> <image>")["pixel_values"]
    multi_head.get_image_features(pixels)
    for hook in hooks:
        hook.remove()
    return signals, pixels


def test_class_attention_and_keys_are_those_of_the_layer_that_feeds_the_projector(multi_head, captured):
    signals, pixels = captured
    tower = multi_head.model.vision_tower
    tower.set_attn_implementation("eager")
    outputs = tower(pixels, output_attentions=True, output_hidden_states=True)
    tower.set_attn_implementation("sdpa")
    same = partial(torch.testing.assert_close, atol=1e-3, rtol=1e-3)  # another attention kernel, large features
    for index, image in enumerate(signals):
        attention = outputs.attentions[-2][index, :, 0, 1:]  # class token, its own key dropped
        same(image.attention[0], attention / attention.sum(-1, keepdim=True))
        same(image.feeding.class_row()[0], attention)
        same(image.hidden, outputs.hidden_states[-2][index, 1:])
        block = tower.encoder.layers[-2]
        keys = block.self_attn.k_proj(block.layer_norm1(outputs.hidden_states[-3]))[index, 1:]
        same(image.keys, keys)
        same(image.project(image.hidden), image.embeddings)
        assert image.text_space(image.hidden).shape == (144, CLIP_WIDTH)


def test_signals_know_their_own_embeddings(captured):
    first, second = captured[0]
    prompt = torch.cat([torch.zeros_like(first.span), first.span.flip(0)])
    rows = torch.arange(2 * len(first.span) - 1, len(first.span) - 1, -1)
    assert stands_in(first, prompt, rows) and not stands_in(second, prompt, rows)
    assert not stands_in(first, prompt, rows[:-1])


def test_projector_that_reads_several_layers():
    """The last of them gives the evidence and CLIP's text space; the class token has the width of all of them."""
    config = llava_config(layers=2)
    config.vision_feature_layer = [-3, -2]
    model = LlavaForConditionalGeneration(config).eval()
    signals = []
    family_for(model).capture(signals.extend)
    pixels = ask("<image>")["pixel_values"]
    model.get_image_features(pixels)
    states = model.model.vision_tower(pixels, output_hidden_states=True).hidden_states
    (image,) = signals
    torch.testing.assert_close(image.hidden, torch.cat([states[-3], states[-2]], -1)[0, 1:])
    torch.testing.assert_close(image.class_features, torch.cat([states[-3], states[-2]], -1)[:, 0])
    expected = model.model.vision_tower.post_layernorm(states[-2])[0, 1:]
    torch.testing.assert_close(image.text_space(image.hidden), expected)


def test_images_encoded_one_after_the_other_come_with_one_prompt(multi_head, strategy, compress):
    """A later encoding does not take the place of one whose features have yet to come."""
    inputs = ask(PROMPT)
    compress(multi_head, budget=24, strategy=strategy)
    expected = greedy(multi_head, inputs, 2)
    encoded = multi_head.get_image_features(inputs["pixel_values"], return_dict=True)
    multi_head.get_image_features(ask(PROMPT, seeds=(7,))["pixel_values"], return_dict=True)
    output = greedy(multi_head, {"input_ids": inputs["input_ids"]}, 2, mm_encoder_outputs={"image": encoded})
    assert torch.equal(torch.stack(output.logits), torch.stack(expected.logits))


def living_signals():
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is ImageSignals]


def test_signals_are_released_with_their_features(multi_head, strategy, compress):
    inputs = ask(PROMPT)
    handle = compress(multi_head, budget=24, strategy=strategy)
    before = len(living_signals())
    for call in (lambda: multi_head(**inputs), lambda: greedy(multi_head, inputs, 2)):
        call()
        assert len(living_signals()) == before
    encoded = multi_head.get_image_features(inputs["pixel_values"], return_dict=True)
    for _ in range(2):  # one encoding serves several prompts
        greedy(multi_head, {"input_ids": inputs["input_ids"]}, 2, mm_encoder_outputs={"image": encoded})
    assert len(living_signals()) == before + 1
    del encoded
    assert len(living_signals()) == before
    assert handle.report.images[0].tokens == 144


class Recording(SlowLlava):
    """Remembers what every reduction saw."""

    def _reduce(self, depth, hidden, rows, states):
        image = states[0]
        if depth > 0:
            self.seen[depth] = (hidden, list(rows), list(image.tokens), image.affinity, image.coordinates)
        return super()._reduce(depth, hidden, rows, states)


def rotated(states, positions, theta):
    angles = torch.tensor(positions, dtype=torch.float64)[:, None] * torch.from_numpy(theta)
    first, second = states.double().chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).numpy()


def test_internal_stages_score_and_select_as_written(model, compress):
    """The first internal reduction from hidden states, last instruction token and gains; the last one by spacing."""
    inputs = ask(PROMPT)
    handle = compress(model, budget=24, strategy="pro")
    greedy(model, inputs, 1)
    handle.remove()
    ids = inputs["input_ids"][0].tolist()
    slow = Recording(model, pro=True)
    slow.seen = {}
    slow.logits(ids, inputs["pixel_values"], handle.report.images)
    _, first, last = handle.report.images[0].stages

    hidden, rows, tokens, affinity, coordinates = slow.seen[first.depth]
    block = model.model.language_model.layers[first.depth]
    normed = block.input_layernorm(hidden)
    visual = [rows.index(2 + token) for token in tokens]  # after the start token and USER:
    asking = len(rows) - 2  # the last token before ASSISTANT:
    instruction = list(range(visual[-1] + 1, asking + 1))

    def heads(projection, places, count):
        return projection(normed[places]).view(len(places), count, -1).transpose(0, 1)

    attn = block.self_attn
    query = rotated(heads(attn.q_proj, [asking], slow.heads), [rows[asking]], slow.theta)[:, 0]
    keys = rotated(heads(attn.k_proj, visual, slow.kv_heads), [2 + token for token in tokens], slow.theta)
    distances = np.array([rows[asking] - (2 + token) for token in tokens], dtype=float)
    factor = np.log(2 - np.cos(distances[:, None] * slow.theta).mean(-1))
    values = [heads(attn.v_proj, places, slow.kv_heads).double().numpy() for places in (instruction, visual)]
    score = internal.score(
        internal.attention_score(query, keys, factor, slow.gains[first.depth]), internal.value_score(*values)
    )
    np.testing.assert_allclose(first.maps["combined"].numpy(), score, atol=1e-3)

    count = len(first.indices)
    positions = [2 + token for token in tokens]
    chosen = internal.select(score, affinity, [False] * len(tokens), positions, coordinates, count, slow.theta)
    assert [tokens[place] for place in chosen] == first.indices.tolist()
    _, _, tokens, affinity, _ = slow.seen[last.depth]
    chosen = internal.subsample(len(tokens), affinity, len(last.indices))
    assert [tokens[place] for place in chosen] == last.indices.tolist()
