"""What methods ask of the encoder in every family, against what the tower computes."""

import pytest
import reference.encoder as literal
import torch
from support.cases import first_of
from support.llava import ask, build_llava
from support.videos import CASES_WITH_VIDEO, ask_about

from covist.contract.encoder import EncoderRead
from covist.families.incoming import attention_shares, incoming_attention
from covist.families.registry import family_for

RECEIVED, VALUES = EncoderRead("received"), EncoderRead("values")
EARLY, STATES, ENTRY = EncoderRead("received", 0), EncoderRead("states", 0), EncoderRead("entry")
READS = (RECEIVED, VALUES, EARLY, STATES, ENTRY)
PROMPT = "USER: <image> what color is this ? ASSISTANT:"


def read(model, inputs, reads=READS, requested_now=None):
    """The signals of every piece that the encoder made."""
    seen = []
    hooks = family_for(model).capture(seen.extend, reads, requested_now)
    model(**inputs)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.fixture
def signals(family):
    return read(family.model, family.ask("{image} what is this ?", images=(2,)))[0]


def test_every_family_answers_in_the_order_of_content_tokens(family, signals):
    tokens = signals.grid.size
    assert [share.shape for share in signals.read(RECEIVED)] == [(tokens,)] * 3
    (values,) = signals.read(VALUES)
    assert values.ndim == 3 and len(values) == tokens
    states = signals.read(STATES)
    assert len(states) > 2 and all(len(own) == tokens and own.isfinite().all() for own in states)
    assert (signals.tower is None) == (signals.feeding is None)


def test_the_last_states_read_are_those_given_to_the_projector(family, signals):
    """Not so where a norm, a pooling or a resizing stands between the last layer and the features."""
    last = signals.read(STATES)[-1]
    if family.family in ("idefics3", "smolvlm", "internvl"):
        assert last.shape == signals.hidden.shape
    else:
        torch.testing.assert_close(last, signals.hidden, atol=1e-5, rtol=1e-5)


def test_attention_received_is_the_evidence_where_there_is_no_class_token(family, signals):
    everywhere, itself, of_class = signals.read(RECEIVED)
    assert bool((itself > 0).all()) and bool((everywhere - itself - of_class > -1e-7).all())
    if signals.feeding is None:
        torch.testing.assert_close(everywhere, signals.packed(signals.attention.mean(1)), atol=1e-6, rtol=1e-4)
        assert not of_class.any()
    else:
        rows = 1 + signals.feeding.keys.shape[1]
        torch.testing.assert_close(of_class * rows, signals.packed(signals.feeding.class_row().mean(1)))


@pytest.mark.parametrize("case", CASES_WITH_VIDEO, ids=lambda case: case.name)
def test_frames_of_videos(case):
    (signals,) = read(case.model, ask_about(case, 3))
    frames, tokens = signals.grid.frames, signals.grid.size
    assert frames == 3 and all(
        len(own) == tokens for requested in (RECEIVED, VALUES, STATES) for own in signals.read(requested)
    )
    shares = signals.read(RECEIVED)[0].view(frames, -1)
    assert not torch.equal(shares[0], shares[1]) and signals.tower is None
    torch.testing.assert_close(signals.read(STATES)[-1], signals.hidden, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def llava():
    return build_llava()


@pytest.mark.parametrize(("requested", "layer"), [(RECEIVED, 2), (EARLY, 0), (EncoderRead("received", 0.3), 1)])
def test_received_attention_of_a_clip_tower_is_that_of_its_layer(llava, requested, layer):
    inputs = ask(PROMPT)
    (signals,) = read(llava, inputs, (requested,))
    tower = llava.model.vision_tower
    states = tower(inputs["pixel_values"], output_hidden_states=True).hidden_states[layer]
    block = tower.encoder.layers[layer]
    normed = block.layer_norm1(states)[0]
    queries, keys = (part(normed).double().numpy() for part in (block.self_attn.q_proj, block.self_attn.k_proj))
    expected = literal.received(queries, keys, block.self_attn.num_heads, class_tokens=1)
    found = torch.stack(signals.read(requested)).double()
    torch.testing.assert_close(found, torch.from_numpy(expected), atol=1e-6, rtol=1e-4)


def test_states_of_a_clip_tower_are_its_hidden_states(llava):
    inputs = ask(PROMPT)
    (signals,) = read(llava, inputs, (EncoderRead("states", 1),))
    hidden = llava.model.vision_tower(inputs["pixel_values"], output_hidden_states=True).hidden_states
    for found, expected in zip(signals.read(EncoderRead("states", 1)), hidden[1:4], strict=True):
        torch.testing.assert_close(found, expected[0, 1:])


@pytest.mark.parametrize("name", ["llava-1.5", "llava-next"])
def test_a_walk_with_all_tokens_is_the_tower(name):
    """And runs none of the model's hooks, which would take it for another image."""
    case, calls = first_of(name), []
    (signals,) = read(case.model, case.ask("{image} what is this ?", images=(2,)))
    tower, layers = signals.tower, case.model.model.vision_tower.encoder.layers
    hooks = [layer.self_attn.k_proj.register_forward_hook(lambda *_: calls.append(1)) for layer in layers]
    features = []
    for states in tower.entry:
        for layer in range(max(tower.feature_layers) + 1):
            ran = tower.run(layer, states)
            states = ran.states
        features.append(states[1:])
    for hook in hooks:
        hook.remove()
    assert not calls
    torch.testing.assert_close(torch.cat(features)[signals.pack], signals.hidden, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(
        signals.packed(ran.attention[None, :, 1:].mean(1).expand(len(tower.entry), -1))[-1:],
        signals.packed(signals.feeding.class_row().mean(1))[-1:],
    )


def test_nothing_is_kept_that_the_running_method_does_not_want(llava):
    (signals,) = read(llava, ask(PROMPT), requested_now=lambda: (VALUES,))
    assert set(signals.requested) == {VALUES} and signals.tower is None


def test_reads_survive_masks(llava):
    (signals,) = read(llava, ask(PROMPT))
    visible = torch.arange(signals.grid.size) % 3 > 0
    for requested in (RECEIVED, VALUES, STATES):
        for whole, part in zip(signals.read(requested), signals.restricted(visible).read(requested), strict=True):
            assert torch.equal(whole[visible], part)


def test_windowed_towers_are_read_where_a_patch_sees_the_whole_image():
    case = first_of("qwen2.5-vl")  # blocks 1 and 2 of 4 see the whole image
    inputs = case.ask("{image} what is this ?", images=(2,))
    early, second = EncoderRead("received", 0), EncoderRead("received", 1)
    (signals,) = read(case.model, inputs, (early, second, RECEIVED))
    assert torch.equal(signals.read(early)[0], signals.read(second)[0])
    torch.testing.assert_close(signals.read(RECEIVED)[0], signals.packed(signals.attention[:, 0]))


@pytest.mark.parametrize("parts", [1, 2])
def test_shares_are_those_of_the_whole_attention(parts):
    generator = torch.Generator().manual_seed(parts)
    queries, keys = torch.randn(2, 40, 3, 4, generator=generator)
    query_patches = list(torch.arange(40).view(-1, parts).T)
    received, own = attention_shares(queries, keys, None, query_patches)
    torch.testing.assert_close(received, incoming_attention(queries, keys, None, query_patches))
    attention = torch.einsum("qhw,khw->hqk", queries, keys).div(2).softmax(-1)
    diagonal = torch.zeros(40)
    for head in range(3):
        rows = query_patches[head % parts]
        diagonal[rows] += attention[head].diagonal()[rows] / len(rows) / 3
    torch.testing.assert_close(own, diagonal)
