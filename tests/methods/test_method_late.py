"""Rivals that reduce only inside the decoder, against literal references."""

import pytest
import reference.late as literal
import torch
from reference.ops import ranking
from support.images import image, inside

from covist.errors import CovistError
from covist.methods.create import create_method
from covist.methods.priortr import PriorTR


@pytest.fixture(params=[4, 2], ids=["multi-head", "grouped-query"])
def kv_heads(request):
    return request.param


def looked_at(method, kv_heads=4, seed=0, depth=2, views=((5, 7),), copies=1):
    return inside(image(views, seed), depth, method.observed_layer(depth), seed, kv_heads, copies)


def kept(method, state, view, count):
    outcome = method.reduce(state, view, count)
    assert outcome.state.count == count
    return outcome.state.indices.tolist()


@pytest.mark.parametrize("count", [1, 8, 34])
@pytest.mark.parametrize("rows", ["all", "last"])
def test_priortr_keeps_what_the_prior_does_not_explain(kv_heads, count, rows):
    method = PriorTR(rows=rows)
    state, view = looked_at(method, kv_heads)
    assert view.observed_layer == 1
    score = literal.priortr_score(view, rows)
    torch.testing.assert_close(method.score(view), torch.tensor(score, dtype=torch.float32), atol=1e-6, rtol=1e-4)
    assert kept(method, state, view, count) == sorted(ranking(score)[:count])


def test_priortr_keeps_the_first_tokens_where_no_text_follows():
    method = PriorTR()
    state, view = looked_at(method)
    view.text = view.text[:0]
    assert kept(method, state, view, 5) == [0, 1, 2, 3, 4]


def test_priortr_refuses_other_rows():
    with pytest.raises(CovistError, match="rows='first': choose 'all' or 'last'"):
        create_method("priortr:rows=first")
