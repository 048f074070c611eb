"""Methods that select late and cut the caches of earlier layers afterwards: what decoding then sees."""

import pytest
import torch
from support.cut_caches import CutCaches
from support.ledgers import keys_at, ledgers
from support.llava import IMAGE, LAYERS, TOKEN_ID, TOKENS, ask
from support.requests import greedy, kept_keys
from support.text_models import build, text_config
from transformers import DynamicCache

from covist.contract.method import Method
from covist.reduction import Reduction
from covist.schedule import Schedule

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
TWO_IMAGES = "USER: where <image> and <image> what color is the left object ? ASSISTANT:"
CUT, BUDGET = 4, 24


class LateCut(Method):
    """Keeps every token until layer 4, then every sixth, and cuts the caches from layer `whole` on."""

    name = "late-cut"

    def __init__(self, whole=1, **options):
        super().__init__(**options)
        self.whole = whole

    def schedule(self, layers, budget, tokens):
        return Schedule(layers, ((0, tokens), (CUT, budget)), cache_cut_from=self.whole)

    def reduce(self, state, view, count):
        return Reduction(state.restrict(torch.arange(count) * (state.count // count)))


@pytest.fixture(params=[0, 1, 2])
def whole(request):
    return request.param


@pytest.fixture(params=["keep", "reindex"])
def positions(request):
    return request.param


def embedded(model, ids, pixels):
    """What the plain decoder is given for a whole conversation [n, d]."""
    return model(ids, pixel_values=pixels, output_hidden_states=True).hidden_states[0][0]


def survivors(ids, images=None):
    """Rows of a turn [n] that stay: all text, and the kept tokens of every image (every sixth, if not given)."""
    keep = ids != TOKEN_ID[IMAGE]
    rows = (~keep).nonzero().squeeze(1).view(-1, TOKENS)
    kept = [torch.arange(0, TOKENS, 6)] * len(rows) if images is None else [image.kept for image in images]
    for own, places in zip(rows, kept, strict=True):
        keep[own[places]] = True
    return keep.nonzero().squeeze(1)


def without_start(text, **options):
    inputs = ask(text, **options)
    return {**inputs, "input_ids": inputs["input_ids"][:, 1:]}


def expected_steps(slow, embeddings, turns):
    """Logits of the literal decoder after each of some turns [(length, survivors or None)], in a row."""
    logits, start = [], 0
    for length, kept in turns:
        own = embeddings[start : start + length]
        logits.append(slow.feed(own) if kept is None else slow.prefill(own, kept))
        start += length
    return torch.stack(logits)


@pytest.mark.parametrize("prompt", [PROMPT, TWO_IMAGES], ids=["one image", "two images"])
def test_decoding_and_a_turn_of_text_equal_the_literal_decoder(model, compress, prompt, whole, positions):
    inputs = ask(prompt)
    handle = compress(model, budget=BUDGET, method=LateCut(whole, positions=positions))
    first = greedy(model, inputs, 3)
    ids = torch.cat([first.sequences, without_start("USER: where ? ASSISTANT:")["input_ids"]], 1)
    second = greedy(model, {"input_ids": ids}, 3, past_key_values=first.past_key_values)
    handle.remove()
    prompt_length, turn = inputs["input_ids"].shape[1], ids.shape[1] - first.sequences.shape[1] + 1
    embeddings = embedded(model, second.sequences, inputs["pixel_values"])
    turns = [(prompt_length, survivors(inputs["input_ids"][0])), (1, None), (1, None), (turn, None), (1, None)]
    expected = expected_steps(CutCaches(model, CUT, whole, positions == "reindex"), embeddings, [*turns, (1, None)])
    actual = torch.stack([*first.logits, *second.logits])[:, 0]
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_an_image_in_a_later_turn_equals_the_literal_decoder(model, compress, whole, positions):
    handle = compress(model, budget=BUDGET, method=LateCut(whole, positions=positions))
    inputs, later = ask(PROMPT), without_start("USER: and <image> where is this ? ASSISTANT:", seeds=(9,))
    first = greedy(model, inputs, 2)
    ids = torch.cat([first.sequences, later["input_ids"]], 1)
    given = {"input_ids": ids, "pixel_values": later["pixel_values"]}
    second = greedy(model, given, 3, past_key_values=first.past_key_values)
    handle.remove()
    embeddings = embedded(model, second.sequences, torch.cat([inputs["pixel_values"], later["pixel_values"]]))
    prompt_length = inputs["input_ids"].shape[1]
    turn = ids[0, prompt_length + 1 :]
    turns = [(prompt_length, survivors(ids[0, :prompt_length])), (1, None), (len(turn), survivors(turn))]
    slow = CutCaches(model, CUT, whole, positions == "reindex")
    expected = expected_steps(slow, embeddings, [*turns, (1, None), (1, None)])
    actual = torch.stack([*first.logits, *second.logits])[:, 0]
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_beams_score_as_the_literal_decoder_does(multi_head, compress):
    inputs = ask(PROMPT)
    handle = compress(multi_head, budget=40, method="ivc-prune", concentration=None)
    beams = greedy(multi_head, inputs, 4, num_beams=3, num_return_sequences=3, output_scores=True, length_penalty=0)
    images = handle.report.images[:1]
    handle.remove()
    prompt_length = inputs["input_ids"].shape[1]
    kept = survivors(inputs["input_ids"][0], images)
    for sequence, score in zip(beams.sequences, beams.sequences_scores, strict=True):
        embeddings = embedded(multi_head, sequence[None], inputs["pixel_values"])
        turns = [(prompt_length, kept), *[(1, None)] * 3]
        logits = expected_steps(CutCaches(multi_head, CUT, 1), embeddings, turns)
        chosen = logits.log_softmax(-1).gather(1, sequence[prompt_length:, None])
        torch.testing.assert_close(chosen.sum(), score, atol=1e-4, rtol=1e-4)


def test_ivc_prune_keeps_layer_0_whole_and_reports_both_counts(multi_head, compress):
    inputs = ask(PROMPT)
    text = inputs["input_ids"].shape[1] - TOKENS
    handle = compress(multi_head, budget=40, method="ivc-prune", concentration=None)
    cache = greedy(multi_head, inputs, 1).past_key_values
    report, (image,) = handle.report, handle.report.images
    assert image.tokens_per_layer == (TOKENS,) * 4 + (25,) * 4
    assert image.cached_tokens_per_layer == (TOKENS,) + (25,) * 7
    assert kept_keys(cache) == [text + count for count in image.cached_tokens_per_layer]
    assert report.kv_bytes == sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert report.mean_tokens == 84.5 and report.mean_cached_tokens == 39.875
    assert report.summary == "1 image, 84.50 of 144 visual tokens per layer (58.7 %), 39.88 cached (27.7 %)"
    assert image.summary == "84.50 of 144 visual tokens per layer, 39.88 in the cache"
    stored = report.to_dict()
    assert stored["mean_cached_tokens"] == stored["images"][0]["mean_cached_tokens"] == 39.875
    assert stored["images"][0]["cached_tokens_per_layer"] == list(image.cached_tokens_per_layer)


@pytest.mark.parametrize("opening", [None, ("USER: what ? ASSISTANT:", "USER: where is the word ? ASSISTANT:")])
def test_cut_caches_hold_the_survivors(multi_head, compress, whole, opening):
    """In a padded batch with a sample without an image, as the first turn or after a padded turn of text."""
    inputs = ask(PROMPT, "USER: is there ? ASSISTANT:")
    text = int(inputs["attention_mask"][0].sum()) - TOKENS
    turns = [inputs] if opening is None else [ask(*opening), inputs]
    ids, mask = (torch.cat([turn[name] for turn in turns], 1) for name in ("input_ids", "attention_mask"))
    earlier = ids.shape[1] - inputs["input_ids"].shape[1]

    def run(steps):
        cache = None
        if earlier:
            cache = multi_head(ids[:, :earlier], attention_mask=mask[:, :earlier], use_cache=True).past_key_values
        given = {"input_ids": ids, "attention_mask": mask, "pixel_values": inputs["pixel_values"]}
        return greedy(multi_head, given, steps, past_key_values=cache).past_key_values

    plain = run(1)
    compress(multi_head, budget=BUDGET, method=LateCut(whole))
    cut = run(1)
    visual = [TOKENS] * whole + [BUDGET] * (LAYERS - whole)
    assert kept_keys(cut) == [earlier + text + count for count in visual]
    assert cut.get_seq_length() == ids.shape[1]
    # layers before the cut saw what the plain model sees, so their keys are the plain ones of the survivors
    for row in (0, 1):
        stays = torch.zeros_like(mask[row], dtype=torch.bool)
        stays[survivors(ids[row])] = True
        expected = plain.layers[2].keys[row][:, stays & mask[row].bool()]
        torch.testing.assert_close(cut.layers[2].keys[row][:, keys_at(cut, 2).valid[row]], expected)
    assert kept_keys(run(3)) == [earlier + text + count + 2 for count in visual]


def test_a_cache_of_several_stages_continues_under_a_method_that_cuts(model, compress):
    """Every layer keeps what it held of the earlier turn, whatever the later one cuts."""
    handle = compress(model, budget=40, method="pyramiddrop", positions="keep", concentration=None)
    first = greedy(model, ask(PROMPT), 2)
    held = kept_keys(first.past_key_values)
    assert len(set(held)) > 2
    handle.remove()
    later = without_start("USER: <image> where is this ? ASSISTANT:", seeds=(9,))
    ids = torch.cat([first.sequences, later["input_ids"]], 1)
    compress(model, budget=BUDGET, method=LateCut(1))
    given = {"input_ids": ids, "pixel_values": later["pixel_values"]}
    cache = greedy(model, given, 3, past_key_values=first.past_key_values).past_key_values
    text = later["input_ids"].shape[1] - TOKENS + 1 + 2
    assert kept_keys(cache) == [n + text + (TOKENS if depth == 0 else BUDGET) for depth, n in enumerate(held)]
    assert [ledger.length for ledger in ledgers(cache)] == kept_keys(cache)


ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 4}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"] * 4,
    **{"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
}


def of_kind(name, options):
    return build(text_config(name, {"num_key_value_heads": 2, "head_dim": 8, **options}))


@pytest.mark.parametrize("prompts", [(PROMPT,), (PROMPT, "USER: is there ? ASSISTANT:"), (TWO_IMAGES, PROMPT)])
@pytest.mark.parametrize("window", [20, 400])  # shorter than an image, longer than a prompt
def test_a_sliding_window_forgets_only_what_it_could_not_see(compress, whole, prompts, window):
    """Whether a layer's cache forgets what left its window or not, later tokens see the same keys."""
    model, inputs = of_kind("Gemma3TextConfig", {**ALTERNATING, "sliding_window": window}), ask(*prompts)
    compress(model, budget=BUDGET, method=LateCut(whole))
    forgetting = greedy(model, inputs, 4, past_key_values=DynamicCache(config=model.config.text_config))
    complete = greedy(model, inputs, 4, past_key_values=DynamicCache())
    held, given = (run.past_key_values.layers[2].keys.shape[2] for run in (forgetting, complete))
    assert forgetting.past_key_values.layers[2].cumulative_length == given == max(given, held)
    assert held < given or window > 20
    torch.testing.assert_close(torch.stack(forgetting.logits), torch.stack(complete.logits), atol=1e-4, rtol=1e-4)


def test_layers_without_keys_have_nothing_to_cut(compress, whole):
    model, inputs = of_kind("Qwen3NextConfig", LINEAR), ask(PROMPT)
    text = inputs["input_ids"].shape[1] - TOKENS
    compress(model, budget=BUDGET, method=LateCut(whole))
    cache = greedy(model, inputs, 1).past_key_values
    held = [layer.keys.shape[2] for layer in cache.layers[1::2]]
    assert held == [text + (TOKENS if depth < whole else BUDGET) for depth in (1, 3, 5, 7)]
