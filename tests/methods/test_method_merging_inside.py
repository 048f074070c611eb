"""Rivals that merge tokens inside the decoder, against literal references."""

import numpy as np
import pytest
import torch
from reference.inside import layer_attention, rotated_keys
from reference.ops import ranking, unit
from support.images import image, inside

from covist.methods.published.visiondrop import VisionDrop


@pytest.fixture(params=[4, 2], ids=["multi-head", "grouped-query"])
def kv_heads(request):
    return request.param


# -- VisionDrop -------------------------------------------------------------------------------------------------------


def literal_visiondrop(view, count, contextual):
    """{index: content} of the tokens that stay."""
    rows = view.visual.tolist()
    attention = layer_attention(view)
    score = [float(np.mean([[head[r, c] for r in rows] for head in attention])) for c in rows]
    keys = rotated_keys(view).reshape(len(view.hidden), -1, view.decoder.head_width)
    metric = [unit(keys[row].mean(0)) for row in rows]
    content = view.hidden[view.visual].double().numpy()
    stay = ranking(score)[: count - contextual]
    rest = [i for i in range(len(rows)) if i not in stay]
    targets = rest[:: max(1, len(rest) // max(1, contextual))][:contextual]
    members = {target: [] for target in targets}
    for i in rest:
        if i not in targets and targets:
            members[max(targets, key=lambda t: float(metric[i] @ metric[t]))].append(content[i])
    merged = {t: content[t] + (np.mean(own, axis=0) if own else 0) for t, own in members.items()}
    return {**{i: content[i] for i in stay}, **merged}, {t: 1 + len(own) for t, own in members.items()}


@pytest.mark.parametrize(("count", "contextual"), [(1, 0), (2, 1), (9, 2), (33, 5), (34, 5)])
def test_visiondrop_keeps_what_the_image_attends_to_and_merges_the_rest(kv_heads, count, contextual):
    method = VisionDrop()
    state, view = inside(image(seed=1), 2, method, 1, kv_heads)
    reduced = method.reduce(state, view, count).state
    expected, sizes = literal_visiondrop(view, count, contextual)
    assert view.observed_layer == view.depth and reduced.indices.tolist() == sorted(expected)
    wanted = torch.from_numpy(np.stack([expected[i] for i in sorted(expected)])).float()
    torch.testing.assert_close(reduced.features, wanted, atol=1e-5, rtol=1e-5)
    assert reduced.weights.tolist() == [sizes.get(i, 1) for i in sorted(expected)]


def test_visiondrop_passes_on_the_weights_of_what_it_merges():
    method = VisionDrop()
    state, view = inside(image(), 2, method)
    doubled = method.reduce(state.replace(weights=2 * state.weights), view, 9).state.weights
    assert doubled.tolist() == (2 * method.reduce(state, view, 9).state.weights).tolist()
