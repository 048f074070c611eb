"""Methods that act inside the decoder against what the authors' code made of the same inputs (tests/golden)."""

from types import SimpleNamespace

import pytest
import torch
from support import golden
from transformers import LlamaConfig, LlamaModel

from covist.config import CovistConfig
from covist.contract.views import DecoderView
from covist.engine.decoder import FrozenDecoder
from covist.engine.sequence.batch import Batch
from covist.engine.sequence.images import ImageInPrompt, Sample
from covist.formulas.attention import DistanceTable
from covist.formulas.internal import coordinate_signals
from covist.grid import Grid
from covist.methods.create import create_method
from covist.methods.density import density_peaks
from covist.methods.inside import last_prompt_row
from covist.methods.published._raters import pointed_at, raters
from covist.methods.published.dart import Dart, pivots, similarity_to, spread_from
from covist.methods.published.fastv import FastV
from covist.methods.published.ivcprune import IVCPrune, closeness, foreground
from covist.methods.published.pyramiddrop import PyramidDrop
from covist.methods.published.sparsevlm import SparseVLM, recycled, split_places
from covist.methods.published.sparsevlm_plus import SparseVLMPlus, rotation_logits, strongest_heads
from covist.methods.shared import cluster_means, largest
from covist.state import VisualState

TOKENS, SQUARE = 576, Grid(((24, 24),))


def of(*files):
    return pytest.mark.parametrize("case", [case for file in files for case in golden.cases(file)], ids=str)


at_budgets = pytest.mark.parametrize("budget", golden.BUDGETS)


class Recorded(DecoderView):
    """A view of an image at `start` in a sequence of `length` tokens that answers with what was recorded."""

    def __init__(self, start, length, **recorded):
        self.visual = torch.arange(start, start + TOKENS)
        self.text = torch.arange(start + TOKENS, length)
        self.hidden = self.observed = recorded.get("hidden", torch.zeros(length, 1))
        self.decoder, self.observed_layer, self.rotary = recorded.get("decoder"), 0, recorded.get("rotary")
        self.depth = 0
        self.text_embeddings = recorded.get("text_embeddings")
        self.signals = SimpleNamespace(embeddings=recorded.get("visual_embeddings"))
        self._recorded = recorded

    def attention(self, rows):
        own = self._recorded["attention"]  # [heads, last rows, n]
        return own[:, rows - len(self.hidden) + own.shape[1]]

    def keys(self, rows=None, rotate=True):
        return self._recorded["keys"]

    def values(self, rows):
        return self._recorded["values"][:, rows]


def initial_state(features=None, start=0):
    features = torch.zeros(TOKENS, 1) if features is None else features
    return VisualState.initial(features, torch.arange(start, start + TOKENS), None, SQUARE)


def places_of_all(method, kept, start, length):
    """RoPE positions that the engine gives to a sequence of `length` tokens of which `kept` of the image stay."""
    rows, span = torch.arange(length), torch.arange(start, start + TOKENS)
    image = ImageInPrompt(None, None, None, len(kept), start, start + TOKENS, span, span[:0])
    image.reductions.append((0, SimpleNamespace(state=initial_state(start=start).restrict(kept))))
    sample = Sample(rows, rows, torch.zeros(length, 1), [image])
    return Batch([sample], method).ledger().keys.positions[0]


def causal_softmax(case):
    """Attention of the last rows, from logits in sixteenths [heads, rows, n]."""
    logits = case["attention_logits"].float() / 16
    rows, length = logits.shape[1:]
    future = torch.arange(length)[None] > torch.arange(length - rows, length)[:, None]
    return logits.masked_fill(future, -torch.inf).softmax(-1)


# -- FastV --------------------------------------------------------------------------------------------------------


@of("fastv")
@at_budgets
def test_fastv(case, budget):
    start, length = int(case["start"]), case["attention"].shape[-1]
    view = Recorded(start, length, attention=case["attention"])
    torch.testing.assert_close(FastV().score(view), case["score"])
    kept = FastV().reduce(initial_state(start=start), view, budget).state.indices
    assert torch.equal(kept, case[f"kept_{budget}"])
    assert torch.equal(places_of_all(FastV(), kept, start, length), case[f"positions_{budget}"])


# -- PyramidDrop --------------------------------------------------------------------------------------------------


def ranking_layers(case):
    """A decoder whose layers 8, 16 and 24 rank as in the file."""
    heads = int(case["heads"])
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=32,
        intermediate_size=8,
        num_hidden_layers=25,
        num_attention_heads=heads,
        rms_norm_eps=1e-5,
    )
    model = LlamaModel(config).eval()
    for number, depth in enumerate((8, 16, 24)):
        layer = model.layers[depth]
        layer.input_layernorm.weight.copy_(case["norm_weight"][number])
        layer.self_attn.q_proj.weight.copy_(case["query_weight"][number])
        layer.self_attn.k_proj.weight.copy_(case["key_weight"][number])
    return FrozenDecoder(model)


def ranked_view(decoder, hidden, depth, visual):
    """States before a layer, numbered without gaps."""
    positions = torch.arange(len(hidden))
    cos, sin = decoder.rotary(hidden[None], positions[None])
    return DecoderView(
        depth,
        decoder,
        hidden,
        hidden,
        depth,
        positions,
        (cos[0], sin[0]),
        visual,
        positions[:0],
        hidden[:0],
        *[None] * 3,
    )


@of("pyramiddrop")
def test_pyramiddrop_stage_by_stage(case):
    method, decoder = PyramidDrop(), ranking_layers(case)
    start, hidden, state = int(case["start"]), case["hidden"], initial_state(start=int(case["start"]))
    schedule = method.schedule(32, 270, TOKENS)
    assert schedule.tokens_per_layer == tuple(case["tokens_per_layer"].tolist())
    for number, (depth, count) in enumerate(schedule.stages[1:]):
        view = ranked_view(decoder, hidden, depth, torch.arange(start, start + state.count))
        assert method.observed_layer(depth) == depth
        assert last_prompt_row(view).tolist() == [case[f"stage{number}_row"]]
        if number == 0:
            torch.testing.assert_close(view.attention(last_prompt_row(view))[:, 0], case["stage0_row_attention"])
        torch.testing.assert_close(method.score(view), case[f"stage{number}_score"])
        places = method.choose(state, view, count).sort().values
        assert torch.equal(places, case[f"stage{number}_kept_places"])
        gone = torch.ones(len(hidden), dtype=torch.bool)
        gone[view.visual[places]] = False
        hidden = hidden[~(gone & torch.isin(torch.arange(len(hidden)), view.visual))]
        state = method.reduce(state, view, count).state
        assert torch.equal(state.indices, case[f"stage{number}_kept"])
        placed = places_of_all(method, state.indices, start, len(case["hidden"]))
        assert torch.equal(placed, case[f"stage{number}_positions"])


@of("pyramiddrop")
@at_budgets
def test_pyramiddrop_with_one_cut(case, budget):
    start = int(case["start"])
    view = ranked_view(ranking_layers(case), case["hidden"], 8, torch.arange(start, start + TOKENS))
    assert torch.equal(PyramidDrop().reduce(initial_state(), view, budget).state.indices, case[f"kept_{budget}"])


# -- SparseVLM and SparseVLM+ -------------------------------------------------------------------------------------


def rated_view(case):
    given = {name: case[name] for name in ("visual_embeddings", "text_embeddings")}
    return Recorded(int(case["start"]), case["attention_logits"].shape[-1], attention=causal_softmax(case), **given)


@of("sparsevlm")
def test_sparsevlm_raters_and_score(case):
    view = rated_view(case)
    torch.testing.assert_close(pointed_at(view), case["pointed"])
    assert torch.equal(raters(view), view.text[case["is_rater"].bool()])
    torch.testing.assert_close(SparseVLM().score(view), case["score"])


@of("sparsevlm")
@at_budgets
def test_sparsevlm_keeps_and_recycles(case, budget):
    view, kept, pool, centres = rated_view(case), *(case[f"{name}_{budget}"] for name in ("kept", "pool", "centres"))
    count = int(case[f"count_{budget}"])
    assert split_places(TOKENS, count) == (len(kept), len(centres)) and recycled(TOKENS - len(kept)) == len(pool)
    found, cluster = density_peaks(case["output"][pool], len(centres), neighbours=len(centres))
    assert torch.equal(pool[found], centres) and torch.equal(cluster, case[f"cluster_{budget}"])
    means, _ = cluster_means(case["output"][pool], cluster, len(centres))
    torch.testing.assert_close(means, case[f"recycled_{budget}"])

    state = SparseVLM().reduce(initial_state(case["output"]), view, count).state
    assert torch.equal(state.indices, torch.cat([kept, centres]).sort().values)
    written = torch.searchsorted(state.indices, centres)
    torch.testing.assert_close(state.features[written], case[f"recycled_{budget}"])
    length = case["attention_logits"].shape[-1]
    placed = places_of_all(SparseVLM(), state.indices, int(case["start"]), length)
    assert torch.equal(placed, torch.arange(int(case[f"sequence_length_{budget}"])))


def wide_decoder(head_width, heads):
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=heads,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=heads,
        head_dim=head_width,
    )
    return FrozenDecoder(LlamaModel(config).eval())


@of("sparsevlm_plus")
@at_budgets
def test_sparsevlm_plus(case, budget, monkeypatch):
    attention = causal_softmax(case)
    heads, rows, length = attention.shape
    decoder = wide_decoder(int(case["head_dim"]), heads)
    cos, sin = decoder.rotary(torch.zeros(1, length, heads), torch.arange(length)[None])
    start = int(case["start"])
    view = Recorded(start, length, attention=attention, decoder=decoder, rotary=(cos[0], sin[0]))
    assert len(view.text) == rows
    logits = rotation_logits(view, view.text)
    torch.testing.assert_close(logits, case["rotation_logits"], atol=1e-4, rtol=1e-4)

    chosen = view.text[case["raters"]]
    rated = view.attention(chosen)[..., view.visual] / logits[case["raters"]]
    torch.testing.assert_close(rated.sum((1, 2)), case["head_mass"], atol=1e-4, rtol=1e-4)
    assert torch.equal(strongest_heads(rated, 14).sort().values, case["heads"])

    monkeypatch.setattr("covist.methods.published.sparsevlm_plus.raters", lambda _: chosen)  # the file gives them
    monkeypatch.setattr("covist.methods.published.sparsevlm_plus.OF_HEADS", heads)  # 14 of its 16
    method = SparseVLMPlus()
    torch.testing.assert_close(method.score(view), case["score"], atol=1e-6, rtol=1e-4)
    count = len(case[f"kept_{budget}"])
    kept = method.reduce(initial_state(), view, count).state.indices
    assert torch.equal(kept, case[f"kept_{budget}"])
    assert torch.equal(places_of_all(method, kept, start, length), case[f"positions_{budget}"])


# -- DART ---------------------------------------------------------------------------------------------------------


@of("dart")
@at_budgets
def test_dart(case, budget):
    length, start = len(case["hidden"]), int(case["start"])
    decoder = SimpleNamespace(final_norm=lambda hidden: hidden)  # the recorded states are normed
    view = Recorded(start, length, hidden=case["hidden"], keys=case["keys"], decoder=decoder)
    image_pivots, text_pivots = pivots(view, 4)
    assert set(image_pivots.tolist()) == set(case["image_pivots"].tolist())
    assert set(text_pivots.tolist()) == set(case["text_pivots"].tolist())
    kept = case[f"kept_{budget}"]
    visited = spread_from(image_pivots, similarity_to(view, case["pivot_order"]), len(kept))
    assert torch.equal(visited.sort().values, kept)

    rows = torch.cat([view.visual[image_pivots], text_pivots])
    own = spread_from(image_pivots, similarity_to(view, rows), len(kept)).sort().values
    assert torch.equal(Dart().reduce(initial_state(), view, len(kept)).state.indices, own)


# -- IVC-Prune ----------------------------------------------------------------------------------------------------


def question_view(case):
    width = int(case["rotary_dim"])
    theta = 10000 ** (-torch.arange(0, width, 2).double() / width)
    decoder = SimpleNamespace(layers=1, frequencies=lambda layer: theta)
    return Recorded(int(case["start"]), case["values"].shape[1], values=case["values"], decoder=decoder)


@of("ivcprune")
def test_ivc_prune_coordinates_and_foreground(case):
    view, state = question_view(case), initial_state(start=int(case["start"]))
    for name, signal in zip(
        ("cosine", "sine"), coordinate_signals(state, view.decoder.frequencies(0), CovistConfig()), strict=True
    ):
        torch.testing.assert_close(signal, case[f"{name}_mean"])
        tokens = case[f"{name}_tokens"]
        assert torch.equal(largest(signal, len(tokens)).sort().values, tokens.sort().values)
    by_question = closeness(case["values"], view.text[2:])[view.visual]
    torch.testing.assert_close(by_question, case["question_score"])
    assert set(largest(by_question, 6).tolist()) == set(case["seeds_kept"].tolist())
    torch.testing.assert_close(foreground(view), case["foreground_score"])
    assert set(largest(foreground(view), 115).tolist()) == set(case["foreground"].tolist())


@of("ivcprune")
def test_ivc_prune_keeps_the_published_union_at_its_size(case):
    kept = (
        IVCPrune()
        .reduce(initial_state(start=int(case["start"])), question_view(case), int(case["kept_count"]))
        .state.indices
    )
    assert torch.equal(kept, case["kept"])


# -- RESTORE ------------------------------------------------------------------------------------------------------


@of("restore")
@at_budgets
def test_restore_on_divprune(case, budget):
    method, features = create_method("restore-divprune"), case["features"]
    image = SimpleNamespace(signals=SimpleNamespace(embeddings=features))
    outcome = method.enter(image, initial_state(features), budget)
    state = outcome.state
    assert set(case[f"kept_{budget}"].tolist()) <= set(state.indices.tolist())
    assert torch.equal(state.indices, case[f"positions_{budget}"])
    assert torch.equal(state.weights.long(), case[f"sizes_{budget}"])
    assert torch.equal(outcome.assignment, case[f"assignment_{budget}"])
    places = torch.searchsorted(state.indices, case[f"merged_positions_{budget}"])
    torch.testing.assert_close(state.features[places], case[f"merged_{budget}"], atol=1e-4, rtol=1e-4)


def test_restore_biases_by_the_published_distance():
    expected = golden.cases("restore")[0]["mean_cosine"]
    table = DistanceTable(10000 ** (-torch.arange(0, 128, 2).double() / 128))
    query = torch.tensor([len(expected) - 1])
    keys = query - torch.arange(len(expected))
    torch.testing.assert_close(table.log_factor(query, keys)[0], (2 - expected).log(), atol=1e-5, rtol=1e-4)
