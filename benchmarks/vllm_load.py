"""vLLM's CPU engine under load: `vllm_serving.py --in-flight 1,8,32`.

Two workloads on random weights: images on LLaVA-1.5's geometry, and videos on Qwen3-VL's class. A certain number of
requests is always in flight; when one ends, the next begins. Every engine runs in its own process, and all of them
serve the same requests with new images. Figures are processor time per request, and processor time until a request's
first token: on a busy machine, only they mean something. A CPU has no idle units that a larger batch could fill, so
the curve shows work per request, not the saturation of a GPU.

calls: how many functions of covist, and of vLLM's own pruning, run on the host in a step in which every request decodes
one token. It must not grow with the requests in flight; exits with 1 if it does.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from time import perf_counter, process_time
from typing import Any

import numpy as np
from transformers import Qwen2VLImageProcessor, Qwen3VLConfig, Qwen3VLProcessor, Qwen3VLVideoProcessor
from vllm_serving import ARCHITECTURE, ENGINE, shown, words, write_model

from covist.tiny.text import build_tokenizer
from covist.vllm.settings import BY_EMBEDDINGS

FRAMES, FRAME_SIDE, SHARE = 16, 224, 0.25
MARKS = ("<|vision_start|>", "<|video_pad|>", "<|vision_end|>", "<|image_pad|>")
OURS, THEIRS = f"{os.sep}covist{os.sep}", "recompute_mrope_positions"
LOADED = {**ENGINE, "max_model_len": 2048, "max_num_batched_tokens": 4096, "max_num_seqs": 64}


@dataclass(frozen=True)
class Load:
    """One engine with so many requests in flight: seconds per request and to the first token, calls in a step."""

    seconds: float
    processor: float
    first: float
    calls: int


class LoadedEngine:
    """An engine in its own process."""

    def __init__(self, **options: Any):
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, options))
        self._process.start()

    def run(self, prompts: Sequence[dict[str, Any]], new: int, at_once: int) -> Load:
        self._connection.send((list(prompts), new, at_once))
        return self._connection.recv()

    def close(self) -> None:
        self._connection.send(None)
        self._process.join()


def _serve(connection: Any, options: dict[str, Any]) -> None:
    from vllm import LLM

    engine = LLM(**{**LOADED, **options}).llm_engine
    if "video_pruning_rate" in options:
        # the CPU's runner leaves vLLM's own pruning off, although the model and the processor have it on
        runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        runner.is_multimodal_pruning_enabled = True
    while (asked := connection.recv()) is not None:
        prompts, new, at_once = asked
        calls = calls_in_a_step(engine, prompts[:at_once])
        seconds, processor, firsts = under_load(engine, prompts[at_once:], new, at_once)
        count = len(prompts) - at_once
        connection.send(Load(seconds / count, processor / count, mean(firsts), calls))


def _begin(engine: Any, name: str, prompt: dict[str, Any], new: int) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    kind = RequestOutputKind.DELTA
    sampling = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False, output_kind=kind)
    engine.add_request(name, prompt, sampling)


def under_load(
    engine: Any, prompts: Sequence[dict[str, Any]], new: int, at_once: int
) -> tuple[float, float, list[float]]:
    """Wall-clock and processor seconds of all requests, and processor seconds until each one's first token."""
    waiting, begun, firsts = list(enumerate(prompts)), dict[str, float](), dict[str, float]()
    running: set[str] = set()
    started, worked = perf_counter(), process_time()
    while waiting or running:
        while waiting and len(running) < at_once:
            number, prompt = waiting.pop(0)
            begun[str(number)] = process_time()
            _begin(engine, str(number), prompt, new)
            running.add(str(number))
        for output in engine.step():
            firsts.setdefault(output.request_id, process_time() - begun[output.request_id])
            if output.finished:
                running.discard(output.request_id)
    return perf_counter() - started, process_time() - worked, list(firsts.values())


def calls_in_a_step(engine: Any, prompts: Sequence[dict[str, Any]]) -> int:
    """Functions of covist and of vLLM's pruning that a step calls in which every request decodes a token."""
    seen: set[str] = set()
    for number, prompt in enumerate(prompts):
        _begin(engine, f"counted {number}", prompt, 64)
    while len(seen) < len(prompts):
        seen |= {output.request_id for output in engine.step()}
    engine.step()
    calls = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        code = frame.f_code
        calls += event == "call" and (OURS in code.co_filename or code.co_name == THEIRS)

    sys.setprofile(note)
    try:
        engine.step()
    finally:
        sys.setprofile(None)
    engine.abort_request([f"counted {number}" for number in range(len(prompts))])
    while engine.has_unfinished_requests():
        engine.step()
    return calls


# -- videos ------------------------------------------------------------------------------------------------------------


def write_video_model(folder: Path) -> None:
    """A checkpoint folder of Qwen3-VL without weights: 8 layers, heads of 128."""
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS)})
    start, video, end, image = tokenizer.convert_tokens_to_ids(MARKS)
    sections = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    text = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 4}
    text |= {"num_key_value_heads": 2, "head_dim": 128, "vocab_size": len(tokenizer), "rope_parameters": sections}
    vision = {"depth": 4, "hidden_size": 256, "intermediate_size": 512, "num_heads": 4, "out_hidden_size": 512}
    ids = {"image_token_id": image, "video_token_id": video, "vision_start_token_id": start, "vision_end_token_id": end}
    config = Qwen3VLConfig(text_config=text, vision_config={**vision, "deepstack_visual_indexes": [1, 2]}, **ids)
    config.architectures = ["Qwen3VLForConditionalGeneration"]
    config.save_pretrained(folder)
    images, films = Qwen2VLImageProcessor(patch_size=16), Qwen3VLVideoProcessor()
    Qwen3VLProcessor(images, tokenizer, films).save_pretrained(folder)


def film(seed: int, text: int, ids: tuple[int, int, int]) -> dict[str, Any]:
    """Random frames among `text` words."""
    size = (FRAMES, FRAME_SIDE, FRAME_SIDE, 3)
    frames = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    told = {"fps": 2.0, "duration": FRAMES / 2, "total_num_frames": FRAMES, "frames_indices": list(range(FRAMES))}
    told |= {"video_backend": "opencv", "do_sample_frames": False}
    said = words(text, seed)
    return {"prompt_token_ids": [*said[:4], *ids, *said[4:]], "multi_modal_data": {"video": [(frames, told)]}}


# -- the table ---------------------------------------------------------------------------------------------------------


def engines_for(workload: str, folder: str, budget: int) -> dict[str, dict[str, Any]]:
    """Name -> options of the engines that serve a workload."""
    settings = {"method": BY_EMBEDDINGS, "budget": budget if workload == "images" else SHARE}
    name = ARCHITECTURE if workload == "images" else "CovistQwen3VLForConditionalGeneration"
    engines: dict[str, dict[str, Any]] = {
        "plain": {"model": folder},
        "covist": {"model": folder, "hf_overrides": {"architectures": [name], "covist": settings}},
    }
    if workload == "videos":
        for name, method in (("vLLM's EVS", "evs"), ("VidCom2", "vidcom2")):
            engines[name] = {"model": folder, "video_pruning_rate": 1 - SHARE, "video_pruning_method": method}
    return engines


def measure(arguments: argparse.Namespace, in_flight: Sequence[int]) -> int:
    """Print a table for each workload; returns 1 if calls on the host grow with the requests in flight."""
    print("load of the machine before:", *(f"{load:.1f}" for load in os.getloadavg()))
    kept = True
    for workload in ("images", "videos"):
        with tempfile.TemporaryDirectory() as folder:
            if workload == "images":
                write_model(Path(folder), arguments.scale)
                ids = (0, 0, 0)
            else:
                write_video_model(Path(folder))
                ids = _marks(folder)
            kept &= _compare(workload, folder, ids, arguments, in_flight)
    print("load of the machine after:", *(f"{load:.1f}" for load in os.getloadavg()))
    return 0 if kept else 1


def _marks(folder: str) -> tuple[int, int, int]:
    from transformers import AutoTokenizer

    start, video, end = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(MARKS[:3])
    return start, video, end


def _compare(
    workload: str, folder: str, ids: tuple[int, int, int], given: argparse.Namespace, in_flight: Sequence[int]
) -> bool:
    print(f"\n{workload}: processor seconds per request (to its first token), calls on the host in a decoding step")
    found: dict[str, dict[int, Load]] = {}
    for name, options in engines_for(workload, folder, given.budget).items():
        engine = LoadedEngine(**options)
        for at_once in in_flight:
            count = at_once + max(at_once, given.requests)
            seeds = [10_000 * at_once + number for number in range(count)]
            prompts = [
                shown(seed, given.text) if workload == "images" else film(seed, given.text, ids) for seed in seeds
            ]
            found.setdefault(name, {})[at_once] = engine.run(prompts, given.new, at_once)
        engine.close()
    for name, loads in found.items():
        for at_once, load in loads.items():
            plain = found["plain"][at_once]
            print(
                f"{name:<12} {at_once:>3} in flight: {load.processor:6.2f} ({load.first:6.2f}) s, "
                f"{plain.processor / load.processor:4.1f} ({plain.first / load.first:4.1f}) times the plain engine, "
                f"{1 / load.seconds:6.2f} requests per second of the clock, {load.calls} calls"
            )
    return len({load.calls for load in found["covist"].values()}) == 1
