"""Peak memory of a compressed prefill, compared with that of the plain model on the same long prompt.

    python benchmarks/memory.py
    python benchmarks/memory.py --text 4096 --strategy pro

One image of 576 tokens before the text, K = 64, sdpa, a random decoder of two narrow layers with 32 heads. A peak is
the most memory that torch's allocator held beyond the weights, so that nothing else hides the masks. Exits with 1 if a
compressed prefill needs more than 1.1 times the memory of the plain one.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import Any

import torch
from common import verdict
from state_building import peak_bytes
from torch import Tensor

import covist
from covist.bench.random_models import build_random

CASES = [(8192, torch.float32), (16384, torch.bfloat16)]
HEADS, HEAD_WIDTH, BUDGET = 32, 32, 64
DECODER = {
    "hidden_size": HEADS * HEAD_WIDTH,
    "intermediate_size": 2752,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD_WIDTH,
    "max_position_embeddings": 32768,
}
"""Many heads in narrow layers, so that masks dominate."""
VISION = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2}
LIMIT = 1.1
MIB = 2**20


def prefill(model: Any, inputs: dict[str, Tensor]) -> None:
    """Prefill as in `generate`: only the logits of the last token."""
    with torch.inference_mode():
        model(**inputs, logits_to_keep=1, use_cache=True)


def compare(text: int, dtype: torch.dtype, strategy: str) -> bool:
    """Measure one length; returns whether the limit is kept."""
    random = build_random("llava-1.5-7b", decoder=DECODER, vision=VISION)
    model, inputs = random.model.to(dtype), random.request(1, text)
    inputs["pixel_values"] = inputs["pixel_values"].to(dtype)
    plain = peak_bytes(lambda: prefill(model, inputs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with covist.compress(model, budget=BUDGET, strategy=strategy, concentration=0.1):
            compressed = peak_bytes(lambda: prefill(model, inputs))
    whole = HEADS * (text + BUDGET) ** 2 * 4
    print(
        f"{text} text tokens, {str(dtype).removeprefix('torch.')}, {strategy}: plain {plain / MIB:.0f} MiB, compressed "
        f"{compressed / MIB:.0f} MiB; one mask for all queries would be {whole / MIB:.0f} MiB"
    )
    print(verdict("    compressed / plain", compressed / plain, LIMIT))
    return compressed <= LIMIT * plain


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=int, help="text tokens, in float32 (default: 8192, and 16384 in bfloat16)")
    parser.add_argument("--strategy", choices=("fixed", "pro"), default="fixed")
    arguments = parser.parse_args()
    cases = CASES if arguments.text is None else [(arguments.text, torch.float32)]
    return 0 if all([compare(text, dtype, arguments.strategy) for text, dtype in cases]) else 1


if __name__ == "__main__":
    sys.exit(main())
