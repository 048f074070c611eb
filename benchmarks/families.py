"""What compression costs and saves with the geometry of each family, with decoders of about 1B parameters.

    python benchmarks/families.py --geometry llava-1.5-7b --decoding
    python benchmarks/families.py --geometry llava-next-7b --strategy fixed
    python benchmarks/families.py --geometry qwen2.5-vl-7b --strategy pro --budget 128
    python benchmarks/families.py --geometry qwen2.5-vl-7b --budget 128 --exact-attention

Weights are random and fp32; all figures are ratios within one run. The image features are encoded once beforehand by a
shallow tower of the real width. Times exclude the tower, but include building the state from its signals.
"""

from __future__ import annotations

import argparse
import math
import warnings
from typing import Any

import torch
from common import interleaved, timed, verdict
from transformers import DynamicCache

import covist
from covist.bench.random_models import RandomModel, build_random
from covist.bench.recipes import buildable
from covist.families.registry import family_for
from covist.plan import Geometry
from covist.request.inputs import Request

TEXT, HIDDEN, HEADS, INTERMEDIATE = 64, 2048, 16, 5504
SIZE = 1e9  # parameters of a decoder, about
LIMITS = {
    ("llava-1.5-7b", 64): (1.15, 4.0),
    ("llava-1.5-7b", 192): (1.15, None),
    ("llava-next-7b", 160): (1.25, 5.0),
    ("llava-next-7b", 640): (1.15, None),
    ("qwen2.5-vl-7b", 128): (1.25, None),
    ("qwen3-vl-8b", 128): (1.25, None),
    ("internvl3-8b", 160): (1.2, None),
}
"""(geometry, K) -> the upper limit of compressed / plain and the lower limit of vanilla / compressed, for Fixed."""
DECODING_LIMIT = 1.05


def decoder_of_a_billion(geometry: Geometry) -> dict[str, Any]:
    """Fields of a text model with the geometry's share of key heads, and enough layers for about 1B parameters."""
    kv_heads = max(1, round(HEADS * geometry.kv_heads / geometry.heads))
    # queries and outputs, keys and values, and the three matrices of the MLP
    layer = 2 * HIDDEN**2 * (1 + kv_heads / HEADS) + 3 * HIDDEN * INTERMEDIATE
    return {
        "vocab_size": 32000,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": kv_heads,
        "head_dim": HIDDEN // HEADS,
        "num_hidden_layers": math.ceil(SIZE / layer),
    }


class Bench:
    """A random model and one request, whose image is encoded once beforehand."""

    def __init__(self, random: RandomModel):
        self.model, self.geometry, self.tokenizer = random.model, random.geometry, random.tokenizer
        self.decoder = family_for(self.model).decoder
        self.request = Request.of_inputs(random.request(1, TEXT))

    def length(self, budget: int) -> int:
        """Tokens of the prompt when `budget` visual tokens are left, of each frame if it is a video."""
        return self.request.length - self.geometry.tokens + budget * self.geometry.frames

    def encode(self) -> dict[str, Any]:
        kind = "image" if self.geometry.frames == 1 else "video"
        encode = getattr(self.model.model, f"get_{kind}_features")
        return {kind: encode(**self.request.images, return_dict=True)}

    def prefill(self, encoded: dict[str, Any]) -> Any:
        sizes = {name: value for name, value in self.request.images.items() if not name.startswith("pixel_values")}
        prompt = {**self.request.prompts, **sizes, "mm_encoder_outputs": dict(encoded)}
        return self.model(**prompt, logits_to_keep=1)

    def compress(self, budget: int, strategy: str, **options: Any) -> covist.Compression:
        return covist.compress(self.model, self.tokenizer, budget=budget, strategy=strategy, **options)

    def plain(self, length: int) -> object:
        hidden = self.decoder(inputs_embeds=torch.randn(1, length, HIDDEN)).last_hidden_state
        return self.model.lm_head(hidden[:, -1:])

    def compressed(self, handle: covist.Compression, encoded: dict[str, Any]) -> object:
        # Every repetition builds the state again, so cached data about the image is cleared first.
        for signals in handle._hooks.encoded.all():
            signals.references.clear()
            signals.prompts.clear()
            signals.joins.clear()
            for name in ("attention", "keys", "hidden", "embeddings"):
                signals.__dict__.pop(name, None)
        return self.prefill(encoded)

    def decode(self, cache: DynamicCache) -> object:
        """One decoding step; its token is removed again, so that every repetition has the same cache."""
        output = self.model(input_ids=self.request.prompts["input_ids"][:, :1], past_key_values=cache)
        cache.crop(-1)
        return output


def measure(bench: Bench, budget: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Median seconds of compressed and plain prefill, and the parts of the cost of the state in the last repetition."""
    strategy, repetitions, exact = arguments.strategy, arguments.repetitions, arguments.exact_attention
    with bench.compress(budget, strategy, exact_attention=exact) as handle:
        encoded = bench.encode()
        length = bench.length(budget)
        times = interleaved(
            {"compressed": lambda: bench.compressed(handle, encoded), "plain": lambda: bench.plain(length)}, repetitions
        )
        return {**times, **handle.report.seconds}


def measure_decoding(bench: Bench, budget: int, strategy: str, repetitions: int) -> float:
    """Seconds of a decoding step with compression / of a plain one with a cache of the same length."""
    plain = DynamicCache(config=bench.model.config)
    length = bench.length(budget)
    bench.decoder(inputs_embeds=torch.randn(1, length, HIDDEN), past_key_values=plain)
    with bench.compress(budget, strategy):
        cache = bench.prefill(bench.encode()).past_key_values
        times = interleaved(
            {"compressed": lambda: bench.decode(cache), "plain": lambda: bench.decode(plain)}, 4 * repetitions
        )
    return times["compressed"] / times["plain"]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--geometry", choices=buildable(), default="llava-next-7b")
    options.add_argument("--strategy", choices=("fixed", "pro"), default="fixed")
    options.add_argument("--budget", type=int, action="append", help="default: the smallest and largest of the paper")
    options.add_argument("--layers", type=int, help="decoder layers; default: enough for about 1B parameters")
    options.add_argument("--repetitions", type=int, default=3)
    options.add_argument("--decoding", action="store_true", help="measure decoding steps as well")
    options.add_argument("--exact-attention", action="store_true", help="query with every patch in every tower head")
    options.add_argument("--no-vanilla", action="store_true", help="skip the long uncompressed prefill")
    arguments = options.parse_args()
    warnings.simplefilter("ignore")
    geometry, recipe = buildable()[arguments.geometry]
    layers = {} if arguments.layers is None else {"num_hidden_layers": arguments.layers}
    decoder = {**decoder_of_a_billion(geometry), **layers}
    bench = Bench(build_random(geometry.name, 1.0, decoder=decoder, vision=recipe.shallow))
    size = sum(p.numel() for p in bench.decoder.parameters()) / 1e9
    visual = f"{geometry.tokens} + {geometry.markers}"
    print(f"{geometry.name}: decoder {size:.2f}B, {visual} visual and {TEXT} text tokens")
    with torch.inference_mode():
        encoded = bench.encode()
        vanilla = None if arguments.no_vanilla else timed(lambda: bench.prefill(encoded))
        for budget in arguments.budget or (min(geometry.budgets), max(geometry.budgets)):
            times = measure(bench, budget, arguments)
            _print(arguments, budget, times, vanilla)
            if arguments.decoding:
                ratio = measure_decoding(bench, budget, arguments.strategy, arguments.repetitions)
                print(verdict("decoding / plain decoding at the same cache length", ratio, DECODING_LIMIT))


def _print(arguments: argparse.Namespace, budget: int, times: dict[str, float], vanilla: float | None) -> None:
    times = times if vanilla is None else {"vanilla": vanilla, **times}
    print(f"{arguments.strategy}, K={budget}: " + ", ".join(f"{name} {1e3 * s:.0f} ms" for name, s in times.items()))
    limited = arguments.strategy == "fixed" and not arguments.exact_attention
    most, least = LIMITS.get((arguments.geometry, budget), (None, None)) if limited else (None, None)
    print(verdict("compressed prefill / plain prefill of the same length", times["compressed"] / times["plain"], most))
    if vanilla is not None:
        print(verdict("vanilla prefill / compressed prefill", vanilla / times["compressed"], least, at_least=True))


if __name__ == "__main__":
    main()
