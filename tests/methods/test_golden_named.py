"""Methods against the authors' code, on golden inputs whose cases have names (tests/golden/README.md)."""

from dataclasses import replace

import pytest
import torch
from support import golden
from support.images import image

from covist.methods.published.otprune import OTPrune


def of(file):
    return pytest.mark.parametrize("case", golden.named_cases(file), ids=str)


def shown(embeddings, **known):
    """An image of one row with these embeddings [N, d], and with other signals given."""
    context = image(((1, len(embeddings)),))
    context.signals = replace(context.signals, span=embeddings, **known)
    return context


@of("otprune")
def test_otprune(case):
    order = case["out_order"]
    context = shown(case["x"][0])
    assert torch.equal(OTPrune().select(context, len(order)), order)
    assert torch.equal(OTPrune().begin(context, len(order)).state.indices, case["out_kept"])
