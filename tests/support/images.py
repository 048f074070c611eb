"""One image or video outside any model: random encoder signals, a small decoder, and views inside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from covist.contract.encoder import EncoderRead, LayerRun, Tower
from covist.contract.instruction import Instruction
from covist.contract.method import Method
from covist.contract.signals import EncoderLayer, ImageSignals
from covist.contract.views import BlockView, DecoderView, ImageContext
from covist.engine.decoder import FrozenDecoder
from covist.grid import Grid
from covist.methods.registry import available_methods
from covist.schedule import Schedule
from covist.state import VisualState

ENCODER_WIDTH, ENCODER_HEADS, WIDTH, HEADS, LAYERS, TEXT_WIDTH, CONTEXT = 12, 2, 16, 4, 6, 5, 11
BEFORE, QUESTION = 3, ["what", " color", " is", " the", " cat", "?"]
BEHIND = len(QUESTION) + 1  # the prompt ends with a token that is no part of the instruction


class FakeText:
    """Stands for CLIP's text space; remembers what it was asked to encode."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._weight = torch.randn(TEXT_WIDTH, ENCODER_WIDTH, generator=torch.Generator().manual_seed(5))

    def encode(self, text: str) -> Tensor:
        self.asked.append(text)
        return torch.randn(3, TEXT_WIDTH, generator=torch.Generator().manual_seed(len(text)))

    def encode_segments(self, text: str) -> Tensor:
        return self.encode(text)[1:]

    def encode_padded(self, text: str) -> Tensor:
        return torch.randn(2, CONTEXT, TEXT_WIDTH, generator=torch.Generator().manual_seed(len(text) + 1))

    def project_patches(self, features: Tensor) -> Tensor:
        return features.float() @ self._weight.T


@cache
def decoder(kv_heads: int = HEADS, seed: int = 0) -> FrozenDecoder:
    """A random decoder; always the same one, because building it takes longer than most tests."""
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=WIDTH,
        intermediate_size=16,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=kv_heads,
        initializer_range=0.4,
        attn_implementation="eager",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FrozenDecoder(LlamaModel(config).eval())


def image(
    views: tuple[tuple[int, int], ...] = ((5, 7),),
    seed: int = 0,
    copies: int = 1,
    clip: bool = False,
    class_token: bool = True,
    text: str = "what color is the cat?",
) -> ImageContext:
    """An image with the given views; every token's content occurs `copies` times in a row."""
    generator = torch.Generator().manual_seed(seed)
    grid = Grid(views)
    tokens = grid.size

    def rows(width: int) -> Tensor:
        return torch.randn(tokens, width, generator=generator)[torch.arange(tokens) // copies]

    hidden, keys, first_keys = rows(ENCODER_WIDTH), rows(ENCODER_WIDTH), rows(ENCODER_WIDTH)
    torch.manual_seed(seed)
    project = nn.Sequential(nn.Linear(ENCODER_WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)).requires_grad_(False)

    def layer(own_keys: Tensor) -> EncoderLayer:
        query, class_key = torch.randn(2, 1, ENCODER_WIDTH, generator=generator)
        return EncoderLayer(3 * query, class_key, own_keys[None], ENCODER_HEADS)

    feeding = layer(keys)
    further = {0: layer(first_keys), 3: layer(rows(ENCODER_WIDTH))} if class_token else {}
    signals = ImageSignals(
        grid=grid,
        span=project(hidden),
        content=torch.ones(tokens, dtype=torch.bool),
        read_attention=feeding.attention,
        read_keys=lambda: keys,
        read_hidden=lambda: hidden,
        pack=torch.arange(tokens),
        project=project,
        class_features=torch.randn(1, ENCODER_WIDTH, generator=generator) if class_token else None,
        text_space=lambda features: features,
        feeding=feeding if class_token else None,
        layers=further,
        requested=random_reads(torch.arange(tokens) // copies, seed, class_token),
        tower=tower_of(hidden, seed) if class_token else None,
    )
    words = torch.arange(BEFORE + tokens, BEFORE + tokens + len(QUESTION))
    embeddings = torch.randn(len(QUESTION), WIDTH, generator=generator)
    instruction = Instruction(words, int(words[-1]), text, lambda: embeddings, lambda: QUESTION)
    tower: Any = FakeText() if clip else None
    return ImageContext(signals, torch.arange(BEFORE, BEFORE + tokens), instruction, decoder(), tower)


def film(
    tokens: Tensor,
    attention: Tensor | None = None,
    shape: tuple[int, int] | None = None,
    pixels: list[Tensor] | None = None,
) -> ImageContext:
    """A video of these tokens [F, n, d], with attention [F, n] from the tower; frames have a `shape`, or one row."""
    frames, places = tokens.shape[:2]
    attention = torch.ones(frames, places) / places if attention is None else attention
    signals = ImageSignals(
        grid=Grid((shape or (1, places),) * frames, "frames"),
        span=tokens.flatten(0, 1),
        content=torch.ones(frames * places, dtype=torch.bool),
        read_attention=lambda: attention[:, None],
        read_keys=lambda: tokens.flatten(0, 1),
        read_hidden=lambda: tokens.flatten(0, 1),
        pack=torch.arange(frames * places),
        project=lambda features: features,
        read_pixels=None if pixels is None else lambda: pixels,
    )
    instruction = Instruction(torch.arange(0), -1, "", lambda: torch.empty(0, 1))
    return ImageContext(signals, torch.arange(frames * places), instruction, decoder())


def random_reads(place: Tensor, seed: int, class_token: bool) -> dict[EncoderRead, Callable[[], list[Tensor]]]:
    """All that any method asks of the encoder, for tokens whose content is that of token `place` [N]."""

    def read(request: EncoderRead) -> list[Tensor]:
        generator = torch.Generator().manual_seed(1000 + seed)
        tokens = len(place)
        if request.what == "received":
            share = torch.rand(3, tokens, generator=generator)[:, place] / tokens
            return [share[0] + share[1] + class_token * share[2], share[1], class_token * share[2]]
        if request.what == "values":
            return [torch.randn(tokens, ENCODER_HEADS, ENCODER_WIDTH // ENCODER_HEADS, generator=generator)[place]]
        return [torch.randn(tokens, ENCODER_WIDTH, generator=generator)[place] for _ in range(4)]

    requests = (request for method in available_methods().values() for request in method.encoder_requests)
    return {wish: partial(read, wish) for wish in requests if isinstance(wish, EncoderRead)}


def tower_of(patches: Tensor, seed: int, layers: int = 6, feature_layers: tuple[int, ...] = (4,)) -> Tower:
    """A random tower that these patches [n, v] enter with a class token; its layers are attention alone."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(layers, 3, ENCODER_WIDTH, ENCODER_WIDTH, generator=generator) / 3

    def run(layer: int, states: Tensor) -> LayerRun:
        queries, keys, values = (
            (states @ weight.T).unflatten(-1, (ENCODER_HEADS, -1)).transpose(0, 1) for weight in weights[layer]
        )
        attention = (queries @ keys.transpose(1, 2)).softmax(-1)
        return LayerRun(states + (attention @ values).transpose(0, 1).flatten(1), attention[:, 0], values)

    entry = torch.cat([torch.randn(1, ENCODER_WIDTH, generator=generator), patches])
    return Tower(entry[None], run, feature_layers)


def inside(
    context: ImageContext, depth: int, method: Method, seed: int = 0, kv_heads: int = HEADS, copies: int = 1
) -> tuple[VisualState, DecoderView]:
    """The image before layer `depth` of a decoder, uncompressed, with random states, as a method views it."""
    generator = torch.Generator().manual_seed(seed)
    tokens = context.grid.size
    total = BEFORE + tokens + BEHIND
    visual = torch.arange(BEFORE, BEFORE + tokens)
    hidden, observed = (torch.randn(total, WIDTH, generator=generator) for _ in range(2))
    for states in (hidden, observed):
        states[visual] = states[BEFORE + torch.arange(tokens) // copies]
    text = torch.arange(BEFORE + tokens, total)
    frozen = decoder(kv_heads)
    cos, sin = frozen.rotary(hidden[None], torch.arange(total)[None])
    view = DecoderView(
        depth=depth,
        decoder=frozen,
        hidden=hidden,
        observed=observed,
        observed_layer=method.observed_layer(depth),
        positions=torch.arange(total),
        rotary=(cos[0], sin[0]),
        visual=visual,
        text=text,
        text_embeddings=torch.cat([context.instruction.embeddings, torch.randn(1, WIDTH, generator=generator)]),
        instruction_rows=text[:-1],
        last_instruction_row=int(text[-2]),
        signals=context.signals,
        memory=method.memory(context),
    )
    if method.watches_blocks:
        schedule = Schedule(LAYERS, ((0, tokens), (depth, 1)))
        block = BlockView(depth - 1, schedule, torch.arange(tokens), given=observed[visual], made=hidden[visual])
        method.see_block(view.memory, block)
    return context.initial_state().with_features(hidden[visual]), view
