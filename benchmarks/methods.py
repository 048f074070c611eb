"""The cost of each method's selection per image, as a ratio to CoViST's own state building in the same run.

    python benchmarks/methods.py [--tokens 576 2880] [--methods divprune fastv]

Geometry of a 7B LLaVA: encoder width 1024, decoder width 4096, 32 layers (one set of weights, reused), a ninth of the
tokens kept. Methods that act before the decoder are compared with CoViST-Fixed, the others with CoViST-Pro. The cost is
everything that a method does to an image on its way through the decoder, and nothing else. Text features are computed
beforehand: encoding the question is not part of the selection.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial

import torch
from common import interleaved, verdict
from torch import Tensor, nn
from transformers import CLIPVisionConfig, CLIPVisionModel, LlamaConfig, LlamaModel

from covist.contract.encoder import EncoderRead, Tower
from covist.contract.instruction import Instruction
from covist.contract.method import Method
from covist.contract.signals import EncoderLayer, ImageSignals
from covist.contract.views import BlockView, DecoderView, ImageContext
from covist.engine.decoder import FrozenDecoder
from covist.families.clip_tower import run_layer
from covist.families.patch_attention import PatchAttention
from covist.families.reads import Placing
from covist.families.text_tower import TextTower
from covist.grid import Grid
from covist.methods.create import create_method
from covist.methods.registry import available_methods
from covist.schedule import Schedule

LIMIT = 3.0
WIDTH, LAYERS, HEADS = 4096, 32, 32
ENCODER_WIDTH, ENCODER_HEADS, TILE, TEXT_WIDTH = 1024, 16, 576, 768
BEFORE, BEHIND = 35, 40  # text tokens around the image
GRIDS = {576: Grid(((24, 24),)), 2880: Grid(((24, 24), (48, 48)))}


def build_decoder() -> FrozenDecoder:
    config = LlamaConfig(
        vocab_size=8, hidden_size=WIDTH, intermediate_size=8, num_hidden_layers=1, num_attention_heads=HEADS
    )
    module = LlamaModel(config).eval()
    module.layers = nn.ModuleList([module.layers[0]] * LAYERS)
    return FrozenDecoder(module)


def smooth(tokens: int, width: int, generator: torch.Generator) -> Tensor:
    """Features [tokens, width] whose neighbours are similar, as those of patches are."""
    blobs = torch.randn(tokens // 12 + 1, width, generator=generator).repeat_interleave(12, 0)[:tokens]
    return blobs + 0.7 * torch.randn(tokens, width, generator=generator)


class ReadyText(TextTower):
    """CLIP's text space with an instruction that is already encoded."""

    def __init__(self, generator: torch.Generator):
        projection = nn.Linear(ENCODER_WIDTH, TEXT_WIDTH, bias=False)
        super().__init__(nn.Identity(), nn.Identity(), projection, tokenizer=None)
        self._features = torch.randn(BEHIND, TEXT_WIDTH, generator=generator)

    def encode(self, text: str) -> Tensor:
        return self._features

    def encode_segments(self, text: str) -> Tensor:
        return self._features[-1:]

    def encode_padded(self, text: str) -> Tensor:
        return self._features[None]


def build_image(tokens: int, decoder: FrozenDecoder) -> ImageContext:
    generator = torch.Generator().manual_seed(tokens)
    hidden = smooth(tokens, ENCODER_WIDTH, generator)
    keys = smooth(tokens, ENCODER_WIDTH, generator)
    project = nn.Linear(ENCODER_WIDTH, WIDTH)
    tiles = tokens // TILE
    query, class_key = torch.randn(2, tiles, ENCODER_WIDTH, generator=generator)
    layer = EncoderLayer(query, class_key, keys.view(tiles, TILE, -1), ENCODER_HEADS)
    signals = ImageSignals(
        grid=GRIDS[tokens],
        span=project(hidden).detach(),
        content=torch.ones(tokens, dtype=torch.bool),
        read_attention=layer.attention,
        read_keys=lambda: keys,
        read_hidden=lambda: hidden,
        pack=torch.arange(tokens),
        project=project,
        text_space=nn.LayerNorm(ENCODER_WIDTH),
        class_features=torch.randn(tiles, ENCODER_WIDTH, generator=generator),
        feeding=layer,
        layers={5: layer, 23: layer},
        asked=build_reads(tiles, generator),
        tower=build_tower(tiles, generator),
    )
    rows = torch.arange(BEFORE + tokens, BEFORE + tokens + BEHIND)
    words = Instruction(rows, int(rows[-1]), "what is this ?", partial(torch.randn, BEHIND, WIDTH, generator=generator))
    return ImageContext(signals, torch.arange(BEFORE, BEFORE + tokens), words, decoder, ReadyText(generator))


def build_reads(tiles: int, generator: torch.Generator) -> dict[EncoderRead, Callable[[], list[Tensor]]]:
    """Everything that methods read of a CLIP tower; attention is computed when it is read, as in a model."""
    count = 1 + TILE
    blocks = [
        PatchAttention(*torch.randn(2, count, ENCODER_HEADS, ENCODER_WIDTH // ENCODER_HEADS, generator=generator))
        for _ in range(tiles)
    ]
    states = [torch.randn(tiles, count, ENCODER_WIDTH, generator=generator) for _ in range(13)]
    seen = {"received": blocks, "values": [replace(block, values=block.keys) for block in blocks], "states": states}
    placing = Placing(
        asking=lambda: [torch.arange(count)],
        masses=lambda per_patch: per_patch.flatten(),
        means=lambda per_patch: per_patch.flatten(0, 1),
        states=lambda per_patch: per_patch.flatten(0, 1),
        class_tokens=1,
    )
    requests = (request for method in available_methods().values() for request in method.encoder_requests)
    reads = {wish for wish in requests if isinstance(wish, EncoderRead) and wish.what in seen}
    return placing.reads({read: seen[read.what] for read in reads})


def build_tower(tiles: int, generator: torch.Generator) -> Tower:
    """A tower of 24 layers (one set of weights, reused) that methods can run layer by layer."""
    config = CLIPVisionConfig(
        hidden_size=ENCODER_WIDTH,
        intermediate_size=4 * ENCODER_WIDTH,
        num_hidden_layers=1,
        num_attention_heads=ENCODER_HEADS,
        image_size=336,
        patch_size=14,
    )
    (layer,) = CLIPVisionModel(config).eval().encoder.layers
    entry = torch.randn(tiles, 1 + TILE, ENCODER_WIDTH, generator=generator)
    return Tower(entry, lambda number, states: run_layer(layer, states), feature_layers=(22,))


class Journey:
    """One image on its way through the decoder with one method; only the method's own work is done."""

    def __init__(self, method: Method, image: ImageContext):
        self.method, self.image = method, image
        self.schedule: Schedule = method.schedule(LAYERS, image.grid.size // 9, image.grid.size)
        generator = torch.Generator().manual_seed(7)
        self.states = torch.randn(BEFORE + image.grid.size + BEHIND, WIDTH, generator=generator)
        positions = torch.arange(len(self.states))
        self.rotary = [part[0] for part in image.decoder.rotary(self.states[None], positions[None])]

    def __call__(self) -> None:
        image = copy(self.image)  # the method knows nothing about it from the last time
        state = self.method.begin(image, self.schedule.tokens_per_layer[0]).state
        memory = self.method.memory(image)
        before = self.schedule.stages[1][0] - 1 if len(self.schedule.stages) > 1 else 0
        for depth, count in self.schedule.stages[1:]:
            for block in range(2 * (depth - before) if self.method.watches_blocks else 0):  # attention, feed-forward
                states = self.states[BEFORE + state.indices]
                seen = BlockView(before + block // 2, self.schedule, state.indices, given=states, made=states)
                self.method.see_block(memory, seen)
            before = depth
            if count < state.count:
                view = replace(self.view(depth, BEFORE + state.indices), memory=memory)
                state = self.method.reduce(state.with_features(view.hidden[view.visual]), view, count).state

    def view(self, depth: int, kept: Tensor) -> DecoderView:
        text = torch.arange(BEHIND) + BEFORE + len(kept)
        total = len(self.states)
        rows = torch.cat([torch.arange(BEFORE), kept, torch.arange(total - BEHIND, total)])
        hidden = self.states[rows]
        return DecoderView(
            depth=depth,
            decoder=self.image.decoder,
            hidden=hidden,
            observed=hidden,
            observed_layer=self.method.observed_layer(depth),
            positions=rows,
            rotary=(self.rotary[0][rows], self.rotary[1][rows]),
            visual=torch.arange(len(kept)) + BEFORE,
            text=text,
            text_embeddings=self.image.instruction.embeddings,
            instruction_rows=text,
            last_instruction_row=int(text[-1]),
            signals=self.image.signals,
        )


def measure(names: list[str], tokens: int, decoder: FrozenDecoder, repetitions: int) -> None:
    image = build_image(tokens, decoder)
    journeys = {name: Journey(create_method(name), image) for name in dict.fromkeys([*OURS.values(), *names])}
    variants: dict[str, Callable[[], object]] = {name: partial(journey) for name, journey in journeys.items()}
    seconds = interleaved(variants, repetitions)
    print(f"{tokens} tokens, {tokens // 9} kept")
    for name in names:
        inside = len(journeys[name].schedule.stages) > 1
        ours = OURS["inside" if inside else "before"]
        print(verdict(f"{name} ({1000 * seconds[name]:.0f} ms) / {ours}", seconds[name] / seconds[ours], LIMIT))


OURS = {"before": "covist-fixed", "inside": "covist-pro"}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=sorted(GRIDS), choices=sorted(GRIDS))
    parser.add_argument("--methods", nargs="+", default=list(available_methods()))
    parser.add_argument("--repetitions", type=int, default=3)
    chosen = parser.parse_args()
    shared = build_decoder()
    with torch.inference_mode():
        for tokens in chosen.tokens:
            measure(chosen.methods, tokens, shared, chosen.repetitions)
