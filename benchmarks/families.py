"""What compression costs and saves on the geometry of each family, with decoders of about 1B parameters.

    python benchmarks/families.py --family llava-1.5 --decoding
    python benchmarks/families.py --family llava-next --strategy fixed
    python benchmarks/families.py --family qwen2.5-vl --strategy pro --budget 128

Weights are random and fp32; all figures are ratios inside one run. The image features are encoded once beforehand by a
shallow tower of the real width, so the tower is not part of any time; building the state from its signals is.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from common import interleaved, timed, verdict
from torch import Tensor, nn
from transformers import (
    CLIPVisionConfig,
    DynamicCache,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

import covist

IMAGE, TEXT, HIDDEN = 31999, 64, 2048
DECODER = {"vocab_size": 32000, "hidden_size": HIDDEN, "intermediate_size": 5504, "num_attention_heads": 16}
LIMITS = {
    ("llava-1.5", 64): (1.15, 4.0),
    ("llava-1.5", 192): (1.15, None),
    ("llava-next", 160): (1.25, 5.0),
    ("llava-next", 640): (1.15, None),
}
"""(family, K) -> the most that compressed / plain and the least that vanilla / compressed may be, for Fixed."""
DECODING_LIMIT = 1.05


@dataclass
class Bench:
    """A model, the arguments of its `get_image_features`, and the visual tokens that they give."""

    model: nn.Module
    pixels: dict[str, Tensor]
    content: int
    markers: int
    budgets: tuple[int, ...]

    def __post_init__(self) -> None:
        words = torch.randint(10, 31000, (TEXT,), generator=torch.Generator().manual_seed(1))
        image = torch.full((self.content + self.markers,), IMAGE)
        self.ids = torch.cat([words[:8], image, words[8:]])[None]

    def encode(self) -> dict[str, Any]:
        return {"image": self.model.model.get_image_features(**self.pixels, return_dict=True)}

    def prefill(self, encoded: dict[str, Any]) -> object:
        types = {"mm_token_type_ids": (self.ids == IMAGE).int()} if "image_grid_thw" in self.pixels else {}
        grid = {name: value for name, value in self.pixels.items() if name == "image_grid_thw"}
        return self.model(input_ids=self.ids, mm_encoder_outputs=dict(encoded), logits_to_keep=1, **types, **grid)

    def plain(self, length: int) -> object:
        hidden = self.model.model.language_model(inputs_embeds=torch.randn(1, length, HIDDEN)).last_hidden_state
        return self.model.lm_head(hidden[:, -1:])

    def compressed(self, handle: covist.Compression, encoded: dict[str, Any]) -> object:
        # Every repetition builds the state anew: what is remembered about the image is forgotten first.
        for signals in handle._hooks.call.signals:
            signals.memo.clear()
            for name in ("attention", "keys", "hidden", "embeddings"):
                signals.__dict__.pop(name, None)
        return self.prefill(encoded)

    def decode(self, cache: DynamicCache) -> object:
        """One decoding step; the token is forgotten again, so that every repetition meets the same cache."""
        output = self.model(input_ids=self.ids[:, :1], past_key_values=cache)
        cache.crop(-1)
        return output


def clip_vision() -> CLIPVisionConfig:
    """CLIP ViT-L's widths with one block before the feature layer."""
    return CLIPVisionConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=2,
        num_attention_heads=16,
        image_size=336,
        patch_size=14,
    )


def llava(layers: int) -> Bench:
    """336 x 336 pixels in one view."""
    text = LlamaConfig(**DECODER, num_key_value_heads=16, num_hidden_layers=layers)
    config = LlavaConfig(vision_config=clip_vision(), text_config=text, image_token_index=IMAGE)
    pixels = torch.randn(1, 3, 336, 336, generator=torch.Generator().manual_seed(2))
    return Bench(LlavaForConditionalGeneration(config).eval(), {"pixel_values": pixels}, 576, 0, (64, 192))


def llava_next(layers: int) -> Bench:
    """672 x 672 pixels in five tiles."""
    text = LlamaConfig(**DECODER, num_key_value_heads=16, num_hidden_layers=layers)
    config = LlavaNextConfig(
        vision_config=clip_vision(), text_config=text, image_token_index=IMAGE, image_grid_pinpoints=[[672, 672]]
    )
    pixels = torch.randn(1, 5, 3, 336, 336, generator=torch.Generator().manual_seed(2))
    sizes = torch.tensor([[672, 672]])
    model = LlavaNextForConditionalGeneration(config).eval()
    return Bench(model, {"pixel_values": pixels, "image_sizes": sizes}, 2880, 48, (160, 640))


def qwen(layers: int) -> Bench:
    """The real tower's widths with one full-attention block; 1008 x 1008 pixels, grouped-query decoder."""
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    config = Qwen2_5_VLConfig(
        vision_config={
            "depth": 1,
            "hidden_size": 1280,
            "num_heads": 16,
            "fullatt_block_indexes": [0],
            "out_hidden_size": HIDDEN,
        },
        text_config={**DECODER, "num_key_value_heads": 2, "num_hidden_layers": layers, "rope_parameters": rope},
        image_token_id=IMAGE,
        video_token_id=IMAGE - 1,
    )
    pixels = torch.randn(72 * 72, 1176, generator=torch.Generator().manual_seed(2))
    model = Qwen2_5_VLForConditionalGeneration(config).eval()
    return Bench(model, {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, 72, 72]])}, 1296, 0, (128, 512))


FAMILIES = {"llava-1.5": (llava, 20), "llava-next": (llava_next, 20), "qwen2.5-vl": (qwen, 24)}
"""Family -> its builder and the layers that make about 1B parameters."""


def measure(bench: Bench, budget: int, strategy: str, repetitions: int) -> dict[str, float]:
    """Median seconds of compressed and plain prefill, and the parts of the state's cost in the last repetition."""
    with covist.compress(bench.model, budget=budget, strategy=strategy) as handle:
        encoded = bench.encode()
        length = TEXT + bench.markers + budget
        times = interleaved(
            {"compressed": lambda: bench.compressed(handle, encoded), "plain": lambda: bench.plain(length)}, repetitions
        )
        return {**times, **handle.report.seconds}


def measure_decoding(bench: Bench, budget: int, strategy: str, repetitions: int) -> float:
    """Seconds of a decoding step under compression / of a plain one whose cache has the same length."""
    plain = DynamicCache(config=bench.model.config)
    length = TEXT + bench.markers + budget
    bench.model.model.language_model(inputs_embeds=torch.randn(1, length, HIDDEN), past_key_values=plain)
    with covist.compress(bench.model, budget=budget, strategy=strategy):
        cache = bench.prefill(bench.encode()).past_key_values
        times = interleaved(
            {"compressed": lambda: bench.decode(cache), "plain": lambda: bench.decode(plain)}, 4 * repetitions
        )
    return times["compressed"] / times["plain"]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--family", choices=FAMILIES, default="llava-next")
    options.add_argument("--strategy", choices=("fixed", "pro"), default="fixed")
    options.add_argument("--budget", type=int, action="append", help="default: the smallest and largest of the paper")
    options.add_argument("--layers", type=int, help="decoder layers; default: as many as make about 1B parameters")
    options.add_argument("--repetitions", type=int, default=3)
    options.add_argument("--decoding", action="store_true", help="measure decoding steps as well")
    options.add_argument("--no-vanilla", action="store_true", help="skip the long uncompressed prefill")
    arguments = options.parse_args()
    warnings.simplefilter("ignore")
    build, layers = FAMILIES[arguments.family]
    torch.manual_seed(0)
    bench = build(arguments.layers or layers)
    size = sum(p.numel() for p in bench.model.model.language_model.parameters()) / 1e9
    print(f"{arguments.family}: decoder {size:.2f}B, {bench.content} + {bench.markers} visual and {TEXT} text tokens")
    with torch.inference_mode():
        encoded = bench.encode()
        vanilla = None if arguments.no_vanilla else timed(lambda: bench.prefill(encoded))
        for budget in arguments.budget or bench.budgets:
            times = measure(bench, budget, arguments.strategy, arguments.repetitions)
            _print(arguments, budget, times, vanilla)
            if arguments.decoding:
                ratio = measure_decoding(bench, budget, arguments.strategy, arguments.repetitions)
                print(verdict("decoding / plain decoding at the same cache length", ratio, DECODING_LIMIT))


def _print(arguments: argparse.Namespace, budget: int, times: dict[str, float], vanilla: float | None) -> None:
    times = times if vanilla is None else {"vanilla": vanilla, **times}
    print(f"{arguments.strategy}, K={budget}: " + ", ".join(f"{name} {1e3 * s:.0f} ms" for name, s in times.items()))
    fixed = arguments.strategy == "fixed"
    most, least = LIMITS.get((arguments.family, budget), (None, None)) if fixed else (None, None)
    print(verdict("compressed prefill / plain prefill of the same length", times["compressed"] / times["plain"], most))
    if vanilla is not None:
        print(verdict("vanilla prefill / compressed prefill", vanilla / times["compressed"], least, at_least=True))


if __name__ == "__main__":
    main()
