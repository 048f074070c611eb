"""Where images stand in a prompt, and which positions the tokens around them have."""

import pytest
import torch
from support.ledgers import keys_at, ledgers
from support.llava import IMAGE, TOKEN_ID, TOKENS, ask
from support.requests import greedy, kept_keys

import covist
from covist.config import CovistConfig
from covist.engine.sequence.cache import book_of

PLACES = {
    "start": "<image> what color is this ?",
    "middle": "what color <image> is this ?",
    "end": "what color is this ? <image>",
    "adjacent": "what is <image> <image> this ?",
    "apart": "<image> what is this <image> and <image> ?",
}


def rotary_positions(cache):
    """Rotary positions of the cached keys per stage, from the ledgers of a cache."""
    return [ledger.keys.positions for ledger in book_of(cache).stages.values()]


@pytest.mark.parametrize("prompt", PLACES.values(), ids=PLACES.keys())
def test_text_keeps_its_positions_and_representatives_theirs(multi_head, strategy, compress, prompt):
    inputs = ask(prompt)
    handle = compress(multi_head, budget=24, strategy=strategy)
    cache = greedy(multi_head, inputs, 1).past_key_values
    ids = inputs["input_ids"][0]
    text = (ids != TOKEN_ID[IMAGE]).nonzero().squeeze(1)
    starts, place = [], 0
    for _ in handle.report.images:
        starts.append(ids.tolist().index(TOKEN_ID[IMAGE], place))
        place = starts[-1] + TOKENS
    for number, ledger in enumerate(rotary_positions(cache)):
        kept = [start + i.stages[number].indices for start, i in zip(starts, handle.report.images, strict=True)]
        assert torch.equal(ledger[0], torch.cat([text, *kept]).sort().values)


@pytest.mark.parametrize("prompt", PLACES.values(), ids=PLACES.keys())
def test_keys_are_rotated_to_the_positions_of_the_ledger(multi_head, strategy, compress, prompt):
    """The first layer's keys of text tokens are those of the plain model: same embedding, same position."""
    inputs = ask(prompt)
    is_text = inputs["input_ids"][0] != TOKEN_ID[IMAGE]
    plain = greedy(multi_head, inputs, 1).past_key_values.layers[0].keys[0][:, is_text]
    compress(multi_head, budget=24, strategy=strategy)
    cache = greedy(multi_head, inputs, 1).past_key_values
    torch.testing.assert_close(cache.layers[0].keys[0][:, ~keys_at(cache).visual[0]], plain)


@pytest.mark.parametrize("positions", ["keep", "reindex"])
def test_every_layer_is_handed_the_positions_of_its_stage(multi_head, strategy, compress, positions):
    """Some text models read `position_ids` in their layers: in prefill, in a further turn and while decoding."""
    compress(multi_head, budget=24, strategy=strategy, positions=positions)
    seen = []

    def watch(module, args, kwargs):
        seen.append((args[0].shape[1], kwargs["position_ids"], kwargs["position_embeddings"]))

    decoder = multi_head.model.language_model
    hooks = [layer.register_forward_pre_hook(watch, with_kwargs=True) for layer in decoder.layers]
    try:
        output = greedy(multi_head, ask(PLACES["middle"]), 2)
        later = torch.cat([output.sequences, ask("where is this ?")["input_ids"][:, 1:]], 1)
        cache = greedy(multi_head, {"input_ids": later}, 2, past_key_values=output.past_key_values).past_key_values
    finally:
        for hook in hooks:
            hook.remove()
    for tokens, given, (cos, sin) in seen:
        assert given.shape == (1, tokens)
        torch.testing.assert_close(decoder.rotary_emb(cos, given), (cos, sin))
    for depth, ledger in enumerate(ledgers(cache)):  # all calls together are what the layer's keys are
        fed = torch.cat([given[0] for _, given, _ in seen[depth :: len(decoder.layers)]])
        assert torch.equal(fed, ledger.keys.positions[0])


def test_each_image_has_its_own_budget(multi_head, compress):
    handle = compress(multi_head, budget=0.125)
    inputs = ask(PLACES["apart"])
    cache = greedy(multi_head, inputs, 1).past_key_values
    text = inputs["input_ids"].shape[1] - 3 * TOKENS
    assert [image.budget for image in handle.report.images] == [18] * 3
    assert set(kept_keys(cache)) == {3 * 18 + text}


def test_the_same_image_gets_the_same_state_wherever_it_stands(multi_head, compress, clip):
    """CLIP's evidence does not depend on the place in the prompt, so neither does the first state."""
    handle = compress(multi_head, budget=24, clip=clip, instruction="what color is this")
    greedy(multi_head, ask("where <image> and <image>", seeds=(5, 5)), 1)
    first, second = (image.stages[0] for image in handle.report.images)
    assert torch.equal(first.indices, second.indices)
    assert torch.equal(second.positions - first.positions, torch.full((24,), TOKENS + 1))


@pytest.mark.parametrize("prompt", ["what <image> color ?", "what <image> color <image> is this ?"])
def test_reindexed_positions_have_no_gaps(multi_head, compress, prompt):
    inputs = ask(prompt)
    images = int((inputs["input_ids"] == TOKEN_ID[IMAGE]).sum()) // TOKENS
    compress(multi_head, budget=24, positions="reindex")
    output = greedy(multi_head, inputs, 3)
    ledger = keys_at(output.past_key_values)
    text = inputs["input_ids"].shape[1] - images * TOKENS
    assert ledger.positions[0].tolist() == list(range(images * 24 + text + 2))


def test_shortened_span_moves_the_text_behind_it(multi_head, compress):
    """Row (a) of the cumulative study: an image of 144 tokens occupies min(144, round(4.5 x 24)) = 108 positions."""
    compress(multi_head, budget=24, config=CovistConfig.cumulative_row("a"))
    output = greedy(multi_head, ask("what <image> color <image> is"), 2)
    ledger = keys_at(output.past_key_values)
    positions, image = ledger.positions[0], ledger.image[0]
    # <s> what | 2..109 | color | 111..218 | is, generated
    assert positions[image < 0].tolist() == [0, 1, 110, 219, 220]
    for number, start in ((0, 2), (1, 111)):
        own = positions[image == number]
        assert len(own) == 24 and own.min() >= start and own.max() < start + 108


def test_removed_history_numbers_the_image_contiguously(multi_head, compress):
    compress(multi_head, budget=24, strategy="pro", config=CovistConfig.cumulative_row("g"))
    output = greedy(multi_head, ask("what <image> color"), 1)
    last = keys_at(output.past_key_values, -1)
    start = int(keys_at(output.past_key_values).positions[0, 2])
    visual = last.positions[0][last.image[0] >= 0]
    assert visual.diff().eq(1).all() and visual[0] >= start
    assert last.positions[0][last.image[0] < 0].tolist() == [0, 1, 2 + TOKENS]
    assert last.log_weight.eq(0).all()


def test_a_module_without_a_text_model_is_refused():
    with pytest.raises(ValueError, match="Linear has no text model with `layers`"):
        covist.compress(torch.nn.Linear(2, 2))
