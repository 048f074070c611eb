"""An untrained model whose answers depend on what it sees, so that equal answers mean equal computation."""

import pytest
import torch

from covist.tiny import Size, build_random

SMALL = Size(width=32, heads=2, vision_layers=2, text_layers=1, decoder_layers=4, decoder_mlp=64)


@pytest.fixture(scope="session")
def untrained():
    model, processor, clip = build_random(seed=3, size=SMALL)
    with torch.no_grad():
        for part in (model.model.language_model.layers, model.model.multi_modal_projector):
            for name, values in part.named_parameters():
                if name.endswith("weight") and values.ndim == 2:
                    values *= 12  # the usual small start makes every answer the same
    return model, processor, clip


@pytest.fixture(scope="session", autouse=True)
def few_reference_images():
    """Measuring the concentration reference on all its images would take longer than the tests themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("covist.eval.subject.REFERENCE_IMAGES", 4)
        yield
