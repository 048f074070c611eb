"""Every kind of decoder layer of transformers: full budgets are the plain model, small ones a literal reference."""

import copy
from contextlib import nullcontext

import pytest
import torch
from support.layer_kinds import KINDS, build, model_of
from support.leftovers import fingerprint
from support.literal import Chosen, Literal
from support.llava import TOKENS, ask
from support.requests import greedy, sample_of, step_logits

import covist
from covist.engine.decoder import FrozenDecoder
from covist.methods.create import create_method

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
TWO = "USER: where is this <image> and <image> what color is the left object ? ASSISTANT:"
SHORT = "<image> what"
BUDGET, STEPS, TOLERANCE = 24, 6, 1e-5


# -- how far a compressed model is from what it should be --------------------------------------------------------------


def largest(one, other):
    return float((one - other).abs().max())


def steps_of(model, inputs, steps=STEPS, **options):
    output = greedy(model, inputs, steps, **options)
    return output.sequences[:, -steps:], step_logits(output)


def apart(model, inputs, other, **options):
    """The largest difference of logits over all steps; infinite if the tokens differ."""
    tokens, logits = steps_of(model, inputs, **options)
    return largest(logits, other[1]) if torch.equal(tokens, other[0]) else float("inf")


def from_the_plain_model(compress, model, method):
    inputs = ask(PROMPT)
    plain = steps_of(model, inputs)
    compress(model, budget=TOKENS, method=method)
    return apart(model, inputs, plain)


def from_the_literal_reference(compress, model, method, prompt=PROMPT, budget=BUDGET):
    inputs, chosen_method = ask(prompt), create_method(method)
    if chosen_method.tracker is not None:
        chosen_method.tracker.freeze(0.05)
    handle = compress(model, budget=budget, method=chosen_method)
    with Chosen.by(chosen_method) as chosen:
        tokens, logits = steps_of(model, inputs)
    assert min(state.count for states in chosen.states.values() for state in states) < TOKENS
    handle.remove()
    rule = chosen_method.attention_rule(FrozenDecoder(model.model.language_model))
    literal = Literal(model, rule, chosen_method.positions == "reindex")
    differences = []
    for step, found in enumerate(logits):
        ids = torch.cat([inputs["input_ids"], tokens[:, :step]], dim=1)
        expected = literal.logits({"input_ids": ids, "pixel_values": inputs["pixel_values"]}, chosen)
        differences.append(largest(found[0], expected))
    return max(differences)
