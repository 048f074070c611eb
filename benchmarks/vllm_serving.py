"""vLLM's CPU engine with and without compression: requests per second, time to first token, memory, overhead.

    .venv-vllm/bin/python benchmarks/vllm_serving.py
    .venv-vllm/bin/python benchmarks/vllm_serving.py --scale 0.05 --rounds 1      a quick run
    .venv-vllm/bin/python benchmarks/vllm_serving.py --in-flight 1,8,32           under load, see vllm_load.py

`make test-vllm` builds the environment. The model has the geometry of LLaVA-1.5 (32 layers, heads of 128, 576 tokens of
a 336 x 336 image), narrowed to 0.3 billion parameters of the decoder, with random weights: its answers do not matter.
Each engine runs in its own process, and they take turns. The figures of interest are ratios within a round; times of a
CPU say little about those of a GPU. Ratios are of processor time, over all threads of an engine's process: on a busy
machine, wall-clock time depends on other programs. Both are printed; OMP_NUM_THREADS=1 makes them comparable.

overhead: images that were encoded before, in the compressed engine, compared with as many words in the plain engine:
the cost of wide heads and rows, without the encoder. Exits with 1 if it is above its limit.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
from common import verdict
from PIL import Image
from transformers import LlavaProcessor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from covist.bench.random_models import random_config
from covist.tiny.text import IMAGE, TOKEN_ID, build_tokenizer

GEOMETRY, SIDE, PATCH, TOKENS = "llava-1.5-7b", 336, 14, 576
ARCHITECTURE = "CovistLlavaForConditionalGeneration"
CACHE_GIB = 2
LIMIT = 1.15
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "passive",  # a waiting engine leaves the cores to the other one
    "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
ENGINE: dict[str, Any] = {
    "load_format": "dummy",  # random weights
    "dtype": "float32",
    "block_size": 32,
    "max_model_len": 1024,
    "max_num_batched_tokens": 16384,  # the encoder cache has the same size, and repeated images must fit into it
    "max_num_seqs": 32,
    "enable_prefix_caching": False,
    "enforce_eager": True,
}


@dataclass(frozen=True)
class Timed:
    """Wall-clock and processor seconds of a batch of requests, and the tokens of the first prompt."""

    seconds: float
    processor: float
    prompt: int


class Engine:
    """An engine in its own process."""

    def __init__(self, name: str, **options: Any):
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, options))
        self._process.start()
        self.blocks: int = self._connection.recv()

    def run(self, prompts: Sequence[dict[str, Any]], new_tokens: int) -> Timed:
        self._connection.send((list(prompts), new_tokens))
        return self._connection.recv()

    def close(self) -> None:
        self._connection.send(None)
        self._process.join()


def _serve(connection: Any, options: dict[str, Any]) -> None:
    """The main function of the process."""
    from vllm import LLM, SamplingParams

    llm = LLM(**ENGINE, **options)
    connection.send(llm.llm_engine.vllm_config.cache_config.num_gpu_blocks)
    while (asked := connection.recv()) is not None:
        prompts, new_tokens = asked
        sampling = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        started, worked = perf_counter(), process_time()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        prompt = len(outputs[0].prompt_token_ids)
        connection.send(Timed(perf_counter() - started, process_time() - worked, prompt))


def write_model(folder: Path, scale: float) -> int:
    """A checkpoint folder without weights; returns the parameters of its decoder's layers."""
    tokenizer = build_tokenizer()
    config = random_config(GEOMETRY, scale, decoder={"vocab_size": len(tokenizer)})
    config.image_token_index = TOKEN_ID[IMAGE]
    config.architectures = ["LlavaForConditionalGeneration"]
    config.save_pretrained(folder)
    side = {"height": SIDE, "width": SIDE}
    pixels = CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=side)
    processor = LlavaProcessor(
        pixels, tokenizer, patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
    processor.save_pretrained(folder)
    text = config.text_config
    heads = (2 * text.num_attention_heads + 2 * text.num_key_value_heads) * text.head_dim
    return text.num_hidden_layers * text.hidden_size * (heads + 3 * text.intermediate_size)


def words(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(max(TOKEN_ID[IMAGE] + 1, 5), len(TOKEN_ID), count).tolist()


def shown(seed: int, text: int) -> dict[str, Any]:
    """A random image among `text` words."""
    noise = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    ids = words(text, seed)
    return {
        "prompt_token_ids": [*ids[:4], TOKEN_ID[IMAGE], *ids[4:]],
        "multi_modal_data": {"image": Image.fromarray(noise)},
    }


def written(seed: int, length: int) -> dict[str, Any]:
    return {"prompt_token_ids": words(length, seed)}


class Comparison:
    """Rounds in which every variant runs once."""

    def __init__(self, plain: Engine, compressed: Engine, arguments: argparse.Namespace):
        self._plain, self._compressed, self._arguments = plain, compressed, arguments
        self.rounds: dict[str, list[Timed]] = {}

    def round(self, number: int) -> None:
        given, length = self._arguments, self._arguments.budget + self._arguments.text
        seeds = [1000 * number + index for index in range(given.requests)]
        new = [shown(seed, given.text) for seed in seeds]
        alone = [shown(seed + 500, given.text) for seed in seeds[:2]]
        texts = [written(seed, length) for seed in seeds]
        for name, engine, prompts, tokens in (
            ("first token, plain", self._plain, alone[:1], 1),
            ("first token, compressed", self._compressed, alone[:1], 1),
            ("all, plain", self._plain, new, given.new),
            ("all, compressed", self._compressed, new, given.new),
            ("seen before, compressed", self._compressed, new, given.new),
            ("text of that length, plain", self._plain, texts, given.new),
        ):
            timed = engine.run(prompts, tokens)
            if number:  # the first round is a warm-up
                self.rounds.setdefault(name, []).append(timed)

    def prompt(self, name: str) -> int:
        return self.rounds[name][0].prompt

    def ratio(self, above: str, below: str) -> float:
        """Median over rounds of the ratio within a round; prints the ratio of every round."""
        pairs = zip(self.rounds[above], self.rounds[below], strict=True)
        ratios = sorted(a.processor / b.processor for a, b in pairs)
        print(f"({above}) / ({below}): " + ", ".join(f"{ratio:.3f}" for ratio in ratios))
        return median(ratios)


def report(found: Comparison, plain: Engine, compressed: Engine, new: int) -> bool:
    """Print the figures; returns whether the overhead is within its limit."""
    for name, rounds in found.rounds.items():
        clock, processor = (median(getattr(one, kind) for one in rounds) for kind in ("seconds", "processor"))
        print(f"{name:<28} {clock:8.2f} s, of the processor {processor:8.2f} s, prompts of {found.prompt(name)} tokens")
    fitting = {}
    for engine in (plain, compressed):
        blocks = ceil((found.prompt(f"all, {engine.name}") + new) / ENGINE["block_size"])
        fitting[engine.name] = engine.blocks / blocks
        print(f"{engine.name:<12} {blocks} KV blocks per request, {engine.blocks} blocks in {CACHE_GIB} GiB")
    rate = found.ratio("all, plain", "all, compressed")
    first = found.ratio("first token, plain", "first token, compressed")
    overhead = found.ratio("seen before, compressed", "text of that length, plain")
    print(verdict("requests per second, compressed / plain", rate, None))
    print(verdict("time to first token, plain / compressed", first, None))
    print(verdict("requests that fit, compressed / plain", fitting["compressed"] / fitting["plain"], None))
    print(verdict("overhead over text of the compressed length", overhead, LIMIT))
    return overhead <= LIMIT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.22, help="width of the decoder (default 0.22: 0.3 billion)")
    parser.add_argument("--budget", type=int, default=64)
    parser.add_argument("--requests", type=int, default=8, help="requests at a time")
    parser.add_argument("--text", type=int, default=24, help="words per prompt")
    parser.add_argument("--new", type=int, default=16, help="generated tokens per request")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-flight", help="measure under load instead, with so many requests at once: 1,8,32")
    arguments = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    if arguments.in_flight:
        from vllm_load import measure  # it uses what is here

        return measure(arguments, [int(count) for count in arguments.in_flight.split(",")])
    with tempfile.TemporaryDirectory() as folder:
        parameters = write_model(Path(folder), arguments.scale)
        print(
            f"decoder of {parameters / 1e9:.2f} billion parameters, {TOKENS} tokens per image, K = {arguments.budget}"
        )
        settings = {"budget": arguments.budget, "concentration": 0.1}
        overrides = {"architectures": [ARCHITECTURE], "covist": settings}
        plain = Engine("plain", model=folder)
        compressed = Engine("compressed", model=folder, hf_overrides=overrides)
        found = Comparison(plain, compressed, arguments)
        for number in range(arguments.rounds + 1):
            found.round(number)
        kept = report(found, plain, compressed, arguments.new)
        plain.close()
        compressed.close()
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
