"""What a method says that it needs is what it reads: the signals are watched while it reduces an image."""

import warnings

import pytest
import torch
from support.cases import first_of
from support.llava import ask, build_clip, build_llava, processor
from support.requests import greedy

import covist
from covist.contract.instruction import Instruction
from covist.contract.signals import EncoderLayer, ImageSignals
from covist.contract.views import DecoderView, ImageContext
from covist.methods.create import create_method
from covist.methods.registry import available_methods, methods_for_any_model

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
WATCHED = {
    ImageSignals: {
        "attention": "class-attention",
        "hidden": "encoder-features",
        "keys": "encoder-features",
        "requested": "encoder-layers",
        "tower": "encoder-layers",
        "read_pixels": "pixels",
    },
    EncoderLayer: {"class_query": "class-attention"},
    ImageContext: {"patch_text_features": "clip-text", "text_features": "clip-text"},
    Instruction: {"embeddings": "question"},
    DecoderView: {
        "text_embeddings": "question",
        "queries": "decoder",
        "keys": "decoder",
        "values": "decoder",
        "observed": "decoder",
        "change": "decoder",
    },
}
BUILT_IN = [name for name, method in methods_for_any_model().items() if method.__module__.startswith("covist.")]


@pytest.fixture(scope="module")
def model():
    return build_llava()


class Watch:
    """Notes which signals are read while a method looks at an image, before the decoder or inside it."""

    def __init__(self, monkeypatch):
        self.read, self._looking = set(), False
        for owner, names in WATCHED.items():
            monkeypatch.setattr(owner, "__getattribute__", self._getter(owner, names))

    def _getter(self, owner, names):
        def get(instance, name):
            if self._looking and name in names:
                self.read.add(names[name])
            return object.__getattribute__(instance, name)

        return get

    def over(self, method):
        """The same method, watched."""
        for step in ("begin", "reduce"):
            setattr(method, step, self._watched(getattr(method, step)))
        return method

    def _watched(self, step):
        def run(*arguments):
            self._looking = True
            try:
                return step(*arguments)
            finally:
                self._looking = False

        return run


def signals_read(name, monkeypatch, model, tokenizer, inputs, **options):
    watch = Watch(monkeypatch)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no clip= given")
        handle = covist.compress(model, tokenizer, method=watch.over(create_method(name)), **options)
    with handle:
        greedy(model, inputs, 1)
    return watch.read


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_method_needs_what_it_reads(model, name, monkeypatch):
    stated = {need.partition("-")[0] if "decoder" in need else need for need in available_methods()[name].info.needs}
    llava, qwen = (model, processor(), ask(PROMPT)), first_of("qwen2.5-vl")
    merging = (qwen.model, qwen.processor(), qwen.ask("{image} what is this ?"))  # tokens of several patches
    read = set()
    with torch.no_grad():
        for asked, options in (
            (llava, {"budget": 40}),
            (llava, {"budget": 40, "clip": build_clip(model)}),
            (merging, {"budget": "50%"}),
        ):
            with monkeypatch.context() as patched:
                read |= signals_read(name, patched, *asked, **options)
    if name == "covist-fixed":
        read.add("decoder")  # its first layer, which it asks for without a view
    missing, idle = read - stated, stated - read - {"embeddings"}
    assert not missing and not idle, f"{name}: needs= lacks {sorted(missing)} and names {sorted(idle)} without need"
