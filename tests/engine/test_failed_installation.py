"""`compress()` that fails, wherever it fails, leaves the model bit for bit as it was."""

import inspect
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.leftovers import fingerprint, hooks_on
from support.llava import ask, build_llava, processor
from support.requests import assert_same, greedy
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

import covist
from covist.contract.encoder import EncoderRead
from covist.errors import CovistError
from covist.methods.covist import CovistFixed

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
SOURCES = str(Path(covist.__file__).parent)
METHODS = ["covist-fixed", "covist-pro", "transprune", "vscan", "flowcut", "evocut"]
"""Methods that put different hooks on a model: on blocks of the decoder, on layers of the tower, on its entry."""
REGISTRATIONS = ("register_forward_hook", "register_forward_pre_hook")


class Stop(RuntimeError):
    pass


class FfnLayer(LlamaDecoderLayer):
    """A decoder layer whose feed-forward block has a name of its own."""

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, **options):
        attended, _ = self.self_attn(
            hidden_states=self.input_layernorm(hidden_states),
            position_embeddings=position_embeddings,
            attention_mask=attention_mask,
            **options,
        )
        hidden_states = hidden_states + attended
        return hidden_states + self.ffn(self.post_attention_layernorm(hidden_states))


def rename_feed_forward(model, first):
    """Other layers from `first` on, with the same weights."""
    for layer in model.model.language_model.layers[first:]:
        layer.__class__ = FfnLayer
        layer.ffn = layer.mlp
        del layer.mlp


class FlatLayer(FfnLayer):
    """A decoder layer that does the work of its feed-forward block itself."""

    def ffn(self, hidden_states):
        return self.down(self.act(self.gate(hidden_states)) * self.up(hidden_states))


def dissolve_feed_forward(model, first):
    """Other layers from `first` on, with the same weights."""
    for layer in model.model.language_model.layers[first:]:
        layer.__class__ = FlatLayer
        layer.gate, layer.up, layer.down = layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj
        layer.act = layer.mlp.act_fn
        del layer.mlp


@pytest.fixture
def own_model():
    """A model for one test, since what a failure leaves behind would reach every later test."""
    model = build_llava()
    greedy(model, ask(PROMPT), 1)  # transformers puts hooks of its own on a model that runs
    return model


@pytest.fixture
def untouched(own_model):
    """Checks that the model is as it was before."""
    before, functions, hooks = fingerprint(own_model), dict(ALL_ATTENTION_FUNCTIONS), hooks_on(own_model)
    plain = greedy(own_model, ask(PROMPT), 2)

    def check():
        assert hooks_on(own_model) == hooks
        assert fingerprint(own_model) == before and covist.Compression.of(own_model) is None
        assert dict(ALL_ATTENTION_FUNCTIONS) == functions
        assert "generate" not in vars(own_model) and "get_image_features" not in vars(own_model.model)
        assert_same(greedy(own_model, ask(PROMPT), 2), plain, 0)

    return check


def test_feed_forward_block_with_another_name(own_model, compress):
    """Whatever it is called, it is watched."""
    named = compress(own_model, budget=24, method="transprune", concentration=None)
    expected = greedy(own_model, ask(PROMPT), 2)
    kept = named.report.images[0].kept.tolist()
    named.remove()
    rename_feed_forward(own_model, 0)
    renamed = compress(own_model, budget=24, method="transprune", concentration=None)
    assert_same(greedy(own_model, ask(PROMPT), 2), expected, 0)
    assert renamed.report.images[0].kept.tolist() == kept


@pytest.mark.parametrize("first", [0, 4])
def test_layer_without_a_feed_forward_block(own_model, compress, first):
    dissolve_feed_forward(own_model, first)
    plain, before, hooks = greedy(own_model, ask(PROMPT), 2), fingerprint(own_model), hooks_on(own_model)
    with failing_registration(None, Stop) as asked, pytest.raises(CovistError, match="^transprune .* FlatLayer"):
        compress(own_model, budget=24, method="transprune", concentration=None)
    assert not asked
    assert hooks_on(own_model) == hooks
    assert fingerprint(own_model) == before and covist.Compression.of(own_model) is None
    assert_same(greedy(own_model, ask(PROMPT), 2), plain, 0)
    compress(own_model, budget=24)  # which needs nothing of the blocks
    greedy(own_model, ask(PROMPT), 2)


@pytest.mark.parametrize(
    "requests",
    [
        (99,),
        (0, 1, 99),
        (EncoderRead("states", 0), 99),
        (EncoderRead("received", 0), EncoderRead("values", 1), EncoderRead("states", 99)),
        (EncoderRead("entry"), EncoderRead("values", -99)),
    ],
)
def test_encoder_layer_that_does_not_exist(own_model, compress, untouched, requests):
    class Deep(CovistFixed):
        encoder_requests = requests

    with pytest.raises((CovistError, IndexError)):
        compress(own_model, budget=24, method=Deep())
    untouched()


def test_refused_method_of_a_call_leaves_no_hooks(own_model, compress):
    """A method whose hooks come with its first use must not leave some of them either."""
    dissolve_feed_forward(own_model, 4)
    before = fingerprint(own_model)
    handle = compress(own_model, budget=24, per_call=True)
    greedy(own_model, ask(PROMPT), 2)
    installed = hooks_on(own_model)
    for _ in range(2):
        with pytest.raises(CovistError), handle.using(method="transprune"):
            own_model(**ask(PROMPT))
    assert hooks_on(own_model) == installed
    handle.remove()
    assert fingerprint(own_model) == before


# -- a failure at every single step -----------------------------------------------------------------------------------


@contextmanager
def failing_registration(number, error):
    """The `number`-th hook of a handle cannot be registered; yields how many were asked for."""
    originals = {name: getattr(nn.Module, name) for name in REGISTRATIONS}
    asked = []

    def failing(name):
        def register(*args, **kwargs):
            asked.append(name)
            if len(asked) == number:
                raise error
            return originals[name](*args, **kwargs)

        return register

    for name in REGISTRATIONS:
        setattr(nn.Module, name, failing(name))
    try:
        yield asked
    finally:
        for name, original in originals.items():
            setattr(nn.Module, name, original)


def start(compress, model, method):
    return compress(model, budget=24, method=method, concentration=None, per_call=True)


@pytest.mark.parametrize(
    ("method", "error"),
    [*((method, Stop) for method in METHODS), ("covist-pro", KeyboardInterrupt), ("transprune", MemoryError)],
)
def test_every_hook_point_that_fails(own_model, compress, untouched, method, error):
    with failing_registration(0, error) as asked:
        start(compress, own_model, method).remove()
    assert len(asked) > 10
    before = hooks_on(own_model)
    for number in range(1, len(asked) + 1):
        with failing_registration(number, error), pytest.raises(error):
            start(compress, own_model, method)
        assert hooks_on(own_model) == before, f"{asked[number - 1]} number {number} failed"
    untouched()


@contextmanager
def interrupted_call(number):
    """The stop button at the `number`-th call of a function of ours; yields the names of all that were called."""
    called = []

    def watch(frame, event, argument):
        code = frame.f_code
        # Python swallows what is raised in a generator that it closes by itself.
        if event == "call" and code.co_filename.startswith(SOURCES) and not code.co_flags & inspect.CO_GENERATOR:
            called.append(code.co_name)
            if len(called) == number:
                raise KeyboardInterrupt

    sys.setprofile(watch)
    try:
        yield called
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("method", ["covist-pro", "transprune"])
def test_stop_button_anywhere_in_compress(own_model, compress, untouched, method):
    with interrupted_call(0) as called:
        handle = start(compress, own_model, method)
    handle.remove()
    before = hooks_on(own_model)
    for number in range(1, len(called) + 1, 7):
        with interrupted_call(number) as names, pytest.raises(KeyboardInterrupt):
            start(compress, own_model, method)
        assert hooks_on(own_model) == before, f"interrupted in {names[-1]}"
    untouched()


# -- refusals ---------------------------------------------------------------------------------------------------------

REFUSED = {
    "budget": {"budget": -3},
    "method": {"method": "nobody"},
    "strategy": {"strategy": "other"},
    "both": {"method": "divprune", "strategy": "pro"},
    "option": {"method": "divprune", "nonsense": 1},
    "min_coverage": {"min_coverage": 3},
    "config": {"config": "missing.json"},
    "clip": {"clip": "no/such/folder"},
    "markers": {"turn_markers": {"nobody": "X"}},
    "processor": {"processor": object()},
}


@pytest.mark.parametrize("options", REFUSED.values(), ids=REFUSED.keys())
def test_refused_arguments(own_model, untouched, options):
    with pytest.raises(CovistError) as complaint:
        covist.compress(own_model, **{"processor": processor(), "budget": 24, **options})
    assert "\n" not in str(complaint.value)
    untouched()


def test_refused_attention_implementation(own_model, compress):
    config = own_model.config.text_config
    before = config._attn_implementation
    config._attn_implementation = {"": "paged|sdpa"}
    marked = fingerprint(own_model)
    try:
        with pytest.raises(CovistError, match="attention implementation"):
            compress(own_model, budget=24)
        assert fingerprint(own_model) == marked
    finally:
        config._attn_implementation = {"": before}
