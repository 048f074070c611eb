"""The tables of docs/vllm.md that need neither vLLM nor a model.

    python benchmarks/vllm_tables.py

The error of the cosine series for the distance factor, by extra head dimensions; and how many requests with one image
fit on a GPU of 80 GB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from covist.families.registry import geometry_named
from covist.formulas.attention import DistanceTable
from covist.formulas.cosine_series import REACH, CosineSeries, error_bound, fit_series
from covist.formulas.wide_heads import terms_in
from covist.plan import HALF, Geometry
from covist.schedule import kv_bytes

HEAD_WIDTH = 128
COLUMNS = (8, 16, 32, 64)
QWEN_AXES = [0] * 16 + [1] * 24 + [2] * 24
PARAMETERS = {"llava-next-7b": 7.06e9, "qwen2.5-vl-7b": 8.29e9}
TEXT = 128
"""Tokens of question and answer in a request."""
BLOCK = 16
"""Tokens per block of vLLM's cache; requests do not share blocks."""


@dataclass(frozen=True)
class Card:
    """A GPU: its memory in bytes, and the share that vLLM uses (`--gpu-memory-utilization`)."""

    memory: float = 80e9
    share: float = 0.9


def frequencies(base: float) -> Tensor:
    return base ** (-torch.arange(0, HEAD_WIDTH, 2) / HEAD_WIDTH)


TABLES = {
    "one axis, base 10,000 (LLaVA-1.5, LLaVA-NeXT on Vicuna)": DistanceTable(frequencies(1e4)),
    "one axis, base 1,000,000 (LLaVA-NeXT on Mistral)": DistanceTable(frequencies(1e6)),
    "three axes, base 1,000,000 (Qwen2.5-VL)": DistanceTable(frequencies(1e6), QWEN_AXES),
}


def text_errors(series: CosineSeries, table: DistanceTable) -> Tensor:
    """|series - log(2 - D)| for text that follows an image token by 0 to REACH positions on every axis, [REACH + 1]."""
    after = torch.arange(REACH + 1)
    distances = after[:, None].expand(-1, int(table.axes.max()) + 1)
    given = distances if table.multidimensional else after
    exact = table.log_factor(given, torch.zeros_like(given[:1]))[:, 0]
    return (series(distances) - exact).abs()


def error_rows() -> Iterator[str]:
    yield "| positions | further dimensions | cosines | rms | largest from 64 on | largest |"
    yield "|---|---|---|---|---|---|"
    for name, table in TABLES.items():
        for columns in COLUMNS:
            series = fit_series(table, terms_in(columns))
            errors = text_errors(series, table)
            rms, far, bound = errors.square().mean().sqrt(), errors[64:].max(), error_bound(series, table)
            yield f"| {name} | {columns} | {terms_in(columns)} | {rms:.3f} | {far:.2f} | {bound:.2f} |"


def token_bytes(geometry: Geometry, columns: int = 0) -> int:
    """Bytes of a token in the cache in fp16 or bf16, with `columns` extra dimensions per head.

    Text tokens and values have the extra dimensions too, because a cache has one width.
    """
    return int(kv_bytes([1] * geometry.layers, geometry.kv_heads, geometry.head_width + columns, HALF))


def concurrent_requests(
    geometry: Geometry, parameters: float, tokens: int, columns: int = 0, card: Card | None = None
) -> int:
    """How many requests of `tokens` tokens each fit into memory with the weights of a model of so many parameters.

    This ignores activations and the encoder's working memory, which vLLM subtracts.
    """
    card = card or Card()
    free = card.memory * card.share - HALF * parameters
    request = ceil(tokens / BLOCK) * BLOCK * token_bytes(geometry, columns)
    return max(0, int(free // request))


def capacity_rows() -> Iterator[str]:
    yield "| model | visual tokens | head width | bytes per token | tokens per request | requests at once | ratio |"
    yield "|---|---|---|---|---|---|---|"
    for name, parameters in PARAMETERS.items():
        geometry = geometry_named(name)
        shapes = [(budget, columns) for budget in geometry.budgets for columns in (8, 128)]
        before = 0
        for budget, columns in [(geometry.tokens, 0), *shapes]:
            tokens = budget + geometry.markers + TEXT
            count = concurrent_requests(geometry, parameters, tokens, columns, Card())
            before = before or count
            yield (
                f"| {name} | {budget:,} | {HEAD_WIDTH + columns} | {token_bytes(geometry, columns):,} | {tokens:,} | "
                f"{count:,} | {count / before:.1f} |"
            )


if __name__ == "__main__":
    print(*error_rows(), "", *capacity_rows(), sep="\n")
