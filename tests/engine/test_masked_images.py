"""Image tokens that the attention mask hides: they are not seen, not selected and not merged into others."""

import pytest
import torch
from support.cases import first_of
from support.ledgers import keys_at
from support.llava import IMAGE, TOKEN_ID, TOKENS, ask
from support.requests import assert_same, greedy, step_logits
from support.slow_llava import SlowLlava, _Image

from covist.config import CovistConfig

PROMPT = "USER: what <image> color is this ? ASSISTANT:"
HIDDEN = {
    "first half": range(TOKENS // 2),
    "second half": range(TOKENS // 2, TOKENS),
    "every third": range(0, TOKENS, 3),
    "all but two": range(2, TOKENS),
}


def hide(inputs, tokens, sample=0):
    """The same inputs with some tokens of the first image masked."""
    first = inputs["input_ids"][sample].tolist().index(TOKEN_ID[IMAGE])
    mask = inputs["attention_mask"].clone()
    mask[sample, [first + token for token in tokens]] = 0
    return {**inputs, "attention_mask": mask}


class MaskedSlowLlava(SlowLlava):
    """The formulas on the tokens that are left, with the positions that `generate` gives them."""

    def __init__(self, model, pro, mask):
        super().__init__(model, pro)
        self.mask = mask

    def _seen(self, ids):
        return torch.cat([self.mask, self.mask.new_ones(len(ids) - len(self.mask))]).bool()

    def positions(self, ids, shown):
        return (self._seen(ids).long().cumsum(0) - 1).clamp(min=0)[:, None].double().numpy()

    def _enter(self, ids, shown, images):
        hidden, seen = self.decoder.embed_tokens(torch.tensor(ids)), self._seen(ids)
        ((span, _, affinity),), start = self.encode(shown), ids.index(TOKEN_ID[IMAGE])
        hidden[start : start + len(span)] = span
        left = seen[start : start + len(span)].nonzero()[:, 0]
        rows = seen.nonzero()[:, 0].tolist()
        return hidden[rows], rows, [_Image(images[0], (start + left).tolist(), affinity[left][:, left])]


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN.keys())
def test_full_budget_is_the_plain_model_with_the_same_mask(model, strategy, compress, hidden):
    inputs = hide(ask(PROMPT), hidden)
    plain = greedy(model, inputs)
    compress(model, budget=TOKENS, strategy=strategy)
    assert_same(greedy(model, inputs), plain, 1e-4)


@pytest.mark.parametrize("hidden", list(HIDDEN.values())[:3], ids=list(HIDDEN)[:3])
def test_selection_and_composition_see_only_the_tokens_that_are_left(model, strategy, compress, hidden):
    inputs = hide(ask(PROMPT), hidden)
    handle = compress(model, budget=24, strategy=strategy)
    output = greedy(model, inputs, 3)
    (image,) = handle.report.images
    assert image.tokens == TOKENS - len(hidden)
    handle.remove()
    slow = MaskedSlowLlava(model, strategy == "pro", inputs["attention_mask"][0])
    for step, logits in enumerate(output.logits):
        ids = output.sequences[0, : inputs["input_ids"].shape[1] + step].tolist()
        expected = slow.logits(ids, inputs["pixel_values"], [image])
        torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=1e-4)


def test_masked_tokens_have_no_influence(multi_head, strategy, compress):
    """Other embeddings at the masked tokens, the same answer: nothing of them is merged into what is left."""
    inputs = hide(ask(PROMPT), HIDDEN["first half"])
    compress(multi_head, budget=24, strategy=strategy)
    expected = step_logits(greedy(multi_head, inputs))
    projector = multi_head.model.multi_modal_projector

    def disturb(module, args, output):
        output = output.clone()
        output[:, list(HIDDEN["first half"])] += 1
        return output

    hook = projector.register_forward_hook(disturb)
    try:
        disturbed = step_logits(greedy(multi_head, inputs))
    finally:
        hook.remove()
    torch.testing.assert_close(disturbed, expected, atol=1e-5, rtol=1e-5)


def test_text_around_a_masked_image_is_untouched(multi_head, strategy, compress):
    inputs = hide(ask(PROMPT), HIDDEN["second half"])
    is_text = inputs["input_ids"][0] != TOKEN_ID[IMAGE]
    plain = greedy(multi_head, inputs, 1).past_key_values.layers[0].keys[0][:, is_text]
    compress(multi_head, budget=24, strategy=strategy)
    cache = greedy(multi_head, inputs, 1).past_key_values
    torch.testing.assert_close(cache.layers[0].keys[0][:, ~keys_at(cache).visual[0]], plain)


def test_a_fully_masked_image_is_ignored(model, strategy, compress):
    inputs = hide(ask(PROMPT), range(TOKENS))
    plain = greedy(model, inputs)
    handle = compress(model, budget=24, strategy=strategy)
    assert_same(greedy(model, inputs), plain, 1e-4)
    assert handle.report is None


def test_masked_prompt_in_a_batch_equals_the_prompt_alone(multi_head, strategy, compress):
    compress(multi_head, budget=24, strategy=strategy)
    texts = (PROMPT, "USER: <image> what is the color of the left object ? ASSISTANT:")
    together = hide(ask(*texts), HIDDEN["every third"])
    logits = step_logits(greedy(multi_head, together, 3))
    alone = hide(ask(texts[0]), HIDDEN["every third"])
    torch.testing.assert_close(logits[:, 0], step_logits(greedy(multi_head, alone, 3))[:, 0], atol=1e-4, rtol=1e-4)
    other = ask(texts[1], seeds=(1,))
    torch.testing.assert_close(logits[:, 1], step_logits(greedy(multi_head, other, 3))[:, 0], atol=1e-4, rtol=1e-4)


def test_shortened_span_of_a_masked_image_counts_its_positions(multi_head, compress):
    """72 tokens are left on 72 positions; the rule gives them min(72, round(4.5 x 12)) = 54, and the text follows."""
    inputs = hide(ask("what <image> color"), HIDDEN["second half"])
    compress(multi_head, budget=12, config=CovistConfig.cumulative_row("a"))
    ledger = keys_at(greedy(multi_head, inputs, 2).past_key_values)
    positions, image = ledger.positions[0], ledger.image[0]
    assert positions[image < 0].tolist() == [0, 1, 56, 57]
    own = positions[image == 0]
    assert len(own) == 12 and own.min() >= 2 and own.max() < 56


@pytest.mark.parametrize("method", ["uniform", "downsample", "vscan", "holov", "prumerge", "visionzip", "divprune"])
def test_every_kind_of_method_leaves_masked_tokens_out(multi_head, compress, method):
    inputs = hide(ask(PROMPT), HIDDEN["every third"])
    handle = compress(multi_head, budget=24, method=method, concentration=None)
    assert step_logits(greedy(multi_head, inputs, 2)).isfinite().all()
    assert handle.report.images[0].tokens == TOKENS - 48
    assert handle.report.images[0].tokens_per_layer[0] < TOKENS - 48


@pytest.mark.parametrize("budget", [1.0, 8])
def test_masked_newlines_and_tiles(compress, strategy, budget):
    """LLaVA-NeXT's own tests mask an arbitrary part of the image span."""
    case = first_of("llava-next")
    inputs = case.ask("{image}what is this ?")
    first, count = inputs["input_ids"][0].tolist().index(case.model.config.image_token_id), case.tokens(inputs)
    mask = inputs["attention_mask"].clone()
    mask[0, first + 5 : first + count // 2] = 0
    given = {**inputs, "attention_mask": mask}
    plain = greedy(case.model, given)
    compress(case.model, processor=case.processor(), budget=budget, strategy=strategy)
    ours = greedy(case.model, given)
    if budget == 1.0:
        assert_same(ours, plain, 1e-4)
    else:
        uncached = greedy(case.model, given, use_cache=False)
        torch.testing.assert_close(step_logits(ours), step_logits(uncached), atol=1e-4, rtol=1e-4)
