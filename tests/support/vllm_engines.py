"""Engines of vLLM, one after the other in a process of their own."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
SMALL: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 32,
    "max_model_len": 2048,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 32,
    "max_logprobs": -1,
    "disable_log_stats": False,
}


@dataclass(frozen=True)
class Ask:
    """A prompt, what it shows, and what its request says beside."""

    prompt: str
    images: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    videos: tuple[Any, ...] = ()
    ids: tuple[int, ...] = ()
    """The tokens of the prompt, if vLLM has a tokenizer of its own for the type of the model."""

    def as_vllm(self) -> dict[str, Any]:
        seen = {name: list(own) for name, own in (("image", self.images), ("video", self.videos)) if own}
        shown = {"multi_modal_data": seen} if seen else {}
        said = {"mm_processor_kwargs": self.options} if self.options else {}
        prompt = {"prompt_token_ids": list(self.ids)} if self.ids else {"prompt": self.prompt}
        return {**prompt, **shown, **said}


@dataclass(frozen=True)
class Completion:
    """What was generated greedily."""

    ids: list[int]
    log_probs: Tensor  # [steps, vocabulary]
    prompt: list[int]
    cached: int
    """Prompt tokens whose keys were there already."""


class EngineError(Exception):
    """What an engine said instead of an answer."""


class Engine:
    """A process with one engine at a time: starting another one there saves its imports."""

    def __init__(self) -> None:
        os.environ.update(ENVIRONMENT)
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,))
        self._process.start()
        other.close()
        self._running: dict[str, Any] = {}

    def serve(
        self, model: str, architecture: str = "", settings: dict[str, Any] | None = None, **options: Any
    ) -> Engine:
        """Start an engine unless it is running; without `settings` of covist it has vLLM's own model class."""
        overrides = {} if settings is None else {"architectures": [architecture], "covist": settings}
        wanted = {**SMALL, "model": model, "hf_overrides": overrides, **options}
        if wanted != self._running:
            self._running = {}
            self._ask("start", wanted)
            self._running = wanted
        return self

    def generate(self, asks: list[Ask], tokens: int = 8, endless: bool = False) -> list[Completion]:
        """Greedy completions of all prompts at once; `endless` ones go on after the model's end token."""
        return self._ask("generate", asks, tokens, endless)

    def preemptions(self) -> int:
        """How often the engine has taken a request's memory away."""
        return self._ask("preemptions")

    def close(self) -> None:
        self._connection.close()
        self._process.join()

    def _ask(self, *command: Any) -> Any:
        self._connection.send(command)
        good, answer = self._connection.recv()
        if not good:
            raise EngineError(answer)
        return answer


def _serve(connection: Connection) -> None:
    """What the process does."""
    host = _Host()
    while True:
        try:
            name, *rest = connection.recv()
        except EOFError:
            return host.stop()
        try:
            connection.send((True, getattr(host, name)(*rest)))
        except Exception:
            connection.send((False, traceback.format_exc()))


class _Host:
    """The engine inside its process."""

    def __init__(self) -> None:
        self._llm: Any = None

    def start(self, arguments: dict[str, Any]) -> None:
        from vllm import LLM

        self.stop()
        self._llm = LLM(**arguments)

    def stop(self) -> None:
        if self._llm is None:
            return
        from vllm.distributed import cleanup_dist_env_and_memory

        self._llm.llm_engine.engine_core.shutdown()
        self._llm = None
        cleanup_dist_env_and_memory()

    def generate(self, asks: list[Ask], tokens: int, endless: bool) -> list[Completion]:
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=tokens, logprobs=-1, detokenize=False, ignore_eos=endless)
        outputs = self._llm.generate([ask.as_vllm() for ask in asks], sampling, use_tqdm=False)
        vocabulary = self._llm.llm_engine.model_config.get_vocab_size()
        return [_completion(output, vocabulary) for output in outputs]

    def preemptions(self) -> int:
        found = [metric for metric in self._llm.get_metrics() if metric.name == "vllm:num_preemptions"]
        return sum(int(metric.value) for metric in found)


def _completion(output: Any, vocabulary: int) -> Completion:
    (generated,) = output.outputs
    log_probs = torch.full((len(generated.token_ids), vocabulary), -torch.inf)
    for row, step in zip(log_probs, generated.logprobs, strict=True):
        row[list(step)] = torch.tensor([found.logprob for found in step.values()])
    return Completion(list(generated.token_ids), log_probs, output.prompt_token_ids, output.num_cached_tokens or 0)
