"""One timed request, with the boundaries of the paper's runtime protocol.

TTFT        from inputs on the device to the first output token
prefill     from the decoder's entry (before compression) to the end of the first forward pass, LM head included
generation  the whole `generate` call: encoding, compression, prefill and decoding
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from transformers.generation.streamers import BaseStreamer

from covist.engine.capture import execution_device
from covist.families.registry import family_for
from covist.request.decoding import generate
from covist.request.inputs import Request


@dataclass(frozen=True)
class Measurement:
    """Seconds and bytes of one request, or medians over several."""

    ttft: float
    prefill: float
    generation: float
    output: Tensor  # [batch, new tokens]
    kv_bytes: int  # keys and values stored by the prefill, over all layers
    peak_bytes: int | None  # allocated on the accelerator, or resident on the CPU where the system reports it
    requests: int = 1  # how many requests the times are medians of

    @property
    def new_tokens(self) -> int:
        return self.output.numel()


class _Marks(BaseStreamer):
    """Records when the prompt entered the decoder, when its forward pass ended, and when the first token appeared."""

    def __init__(self, device: torch.device):
        self._device = device
        self._prompt_seen = False
        self.times: dict[str, float] = {}
        self.kv_bytes = 0

    def mark(self, name: str) -> None:
        # What is marked is the prompt's, which is never compiled.
        if not torch.compiler.is_compiling() and name not in self.times:
            synchronise(self._device)
            self.times[name] = perf_counter()

    def put(self, value: Tensor) -> None:
        # `generate` passes the prompt first, then one token after another.
        if self._prompt_seen:
            self.mark("first token")
        self._prompt_seen = True

    def end(self) -> None:
        """Required by the interface; nothing is buffered."""

    def enter_decoder(self, module: nn.Module, args: Any) -> None:
        self.mark("decoder entry")

    def leave_model(self, module: nn.Module, args: Any, output: Any) -> None:
        if "first pass" not in self.times:
            self.mark("first pass")
            self.kv_bytes = cache_bytes(output.past_key_values)


@torch.no_grad()
def measure(model: Any, request: Request, max_new_tokens: int = 128, **explicit: Any) -> Measurement:
    """Answer one prompt and measure the times; `explicit` goes to `generate`."""
    device = execution_device(model)
    with _marked(model, device) as marks, _peak_memory(device) as peak:
        synchronise(device)
        started = perf_counter()
        output = generate(model, request.inputs(model), max_new_tokens, streamer=marks, **explicit)
        synchronise(device)
        ended = perf_counter()
    times = marks.times
    return Measurement(
        ttft=times["first token"] - started,
        prefill=times["first pass"] - times["decoder entry"],
        generation=ended - started,
        output=output,
        kv_bytes=marks.kv_bytes,
        peak_bytes=peak[-1],
    )


def median_of(measurements: Sequence[Measurement]) -> Measurement:
    """The last of several measurements of one request, with the median of each time."""
    times = {name: median(getattr(one, name) for one in measurements) for name in ("ttft", "prefill", "generation")}
    return replace(measurements[-1], **times, requests=len(measurements))


@torch.no_grad()
def measure_plain_decoder(model: Any, length: int) -> float:
    """Seconds that the plain decoder needs to prefill `length` tokens: a lower bound for any compression."""
    decoder = family_for(model).decoder
    weight = model.get_input_embeddings().weight
    rows = torch.arange(length, device=weight.device) % len(weight)
    embeddings = weight[rows][None]  # [1, length, d]; the values do not matter, their scale does
    synchronise(execution_device(model))
    started = perf_counter()
    hidden = decoder(inputs_embeds=embeddings, use_cache=True).last_hidden_state
    model.get_output_embeddings()(hidden[:, -1:])
    synchronise(execution_device(model))
    return perf_counter() - started


def cache_bytes(cache: Any) -> int:
    """Bytes of the keys and values in a cache."""
    attending = [
        layer for layer in cache.layers if getattr(layer, "keys", None) is not None
    ]  # others keep a constant state
    return sum(states.nbytes for layer in attending for states in (layer.keys, layer.values))


def synchronise(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@contextmanager
def _marked(model: Any, device: torch.device) -> Iterator[_Marks]:
    marks = _Marks(device)
    decoder = family_for(model).decoder
    hooks = [
        # Before every other hook, so that the interval includes the initial compression.
        decoder.register_forward_pre_hook(marks.enter_decoder, prepend=True),
        model.register_forward_hook(marks.leave_model),
    ]
    try:
        yield marks
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _peak_memory(device: torch.device) -> Iterator[list[int | None]]:
    """A list whose last item, after the block, is the peak in bytes, or None if the system does not report it."""
    peak: list[int | None] = [None]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        peak.append(torch.cuda.max_memory_allocated(device))
    else:
        resettable = _reset_resident_peak()
        yield peak
        if resettable:
            peak.append(_resident_peak())


def _reset_resident_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Linux: reset the high-water mark
    except OSError:
        return False
    return True


def _resident_peak() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
