"""Masks that a model builds before its text model runs: Gemma 3, whose images see all of themselves."""

import pytest
import torch
from support.literal import Chosen, Literal
from support.requests import greedy, step_logits
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

import covist
from covist.contract.family import Family
from covist.contract.signals import ImageSignals
from covist.families import registry
from covist.families.hooks import WrappedMethod
from covist.grid import Grid
from covist.methods.create import create_method

SIDE, BUDGET, IMAGE = 4, 5, 60
TOKENS = SIDE * SIDE


class Gemma3(Family):
    """What the engine needs of it: embeddings of each image, and uniform attention."""

    name = "gemma3-of-a-test"
    model_classes = ("Gemma3ForConditionalGeneration",)
    needs_clip_text = False

    def capture(self, sink, requests=(), requested_now=None):
        def assemble(arguments, output):
            sink([self._signals(span.detach()) for span in output.pooler_output])

        return [WrappedMethod(self.base, "get_image_features", assemble)]

    def _signals(self, span):
        return ImageSignals(
            grid=Grid(((SIDE, SIDE),)),
            span=span,
            content=torch.ones(TOKENS, dtype=torch.bool),
            read_attention=lambda: torch.full((1, 1, TOKENS), 1 / TOKENS),
            read_keys=lambda: span,
            read_hidden=lambda: span,
            pack=torch.arange(TOKENS),
            project=lambda features: features,
        )


@pytest.fixture(scope="module")
def gemma():
    text = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 4,
    }
    config = Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=TOKENS,
        image_token_index=IMAGE,
        boi_token_index=61,
        eoi_token_index=62,
    )
    torch.manual_seed(0)
    model = Gemma3ForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    return model


@pytest.fixture
def compress(monkeypatch):
    monkeypatch.setattr(registry, "_FAMILIES", {**registry._FAMILIES, (Gemma3.model_classes[0], ""): Gemma3})
    handles = []

    def start(model, **options):
        handles.append(covist.compress(model, **options))
        return handles[-1]

    yield start
    for handle in handles:
        handle.remove()


def prompt(before=4, after=10, padding=0, seed=1):
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(5, 50, (before + after,), generator=generator).tolist()
    row = [0] * padding + [*words[:before], *[IMAGE] * TOKENS, *words[before:]]
    ids = torch.tensor([row])
    return {
        "input_ids": ids,
        "attention_mask": torch.tensor([[0] * padding + [1] * (len(row) - padding)]),
        "token_type_ids": (ids == IMAGE).long(),
        "pixel_values": torch.randn(1, 3, 32, 32, generator=generator),
    }


def test_a_budget_of_all_tokens_is_the_plain_model(gemma, compress):
    inputs = prompt()
    plain = step_logits(greedy(gemma, inputs, 5))
    compress(gemma, method="covist-max", budget=TOKENS)
    assert torch.equal(step_logits(greedy(gemma, inputs, 5)), plain)


@pytest.mark.parametrize("name", ["covist-max", "divprune"])
def test_kept_tokens_see_what_they_would_have_seen(gemma, compress, name):
    """Kept tokens of the image see each other in both directions, and windows count the tokens that were removed."""
    inputs, method = prompt(), create_method(name)
    handle = compress(gemma, method=method, budget=BUDGET)
    rule = handle.settings.rule
    with Chosen.by(method) as chosen:
        output = greedy(gemma, inputs, 4)
    handle.remove()
    for step in range(4):
        seen = output.sequences[:, : inputs["input_ids"].shape[1] + step]
        types = torch.nn.functional.pad(inputs["token_type_ids"], (0, step))
        whole = {**inputs, "input_ids": seen, "attention_mask": torch.ones_like(seen), "token_type_ids": types}
        expected = Literal(gemma, rule, method.positions == "reindex").logits(whole, chosen)
        torch.testing.assert_close(output.logits[step][0], expected, atol=1e-5, rtol=1e-5)


def test_a_padded_batch_is_its_prompts_alone(gemma, compress):
    compress(gemma, method="covist-max", budget=BUDGET)
    short, long = prompt(after=6, padding=4, seed=2), prompt(seed=3)
    together = step_logits(greedy(gemma, {name: torch.cat([short[name], long[name]]) for name in short}, 4))
    alone = {name: value if name == "pixel_values" else value[:, 4:] for name, value in short.items()}
    for row, inputs in enumerate((alone, long)):
        torch.testing.assert_close(together[:, row], step_logits(greedy(gemma, inputs, 4))[:, 0], atol=1e-5, rtol=1e-5)
