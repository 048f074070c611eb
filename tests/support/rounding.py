"""Another CPU's rounding: a pytest option that shakes the last bits of every result that CPUs round differently.

Instruction sets, threads and batch sizes change the order in which sums are added. `--rounding SEED` imitates this in
every test: products, sums, norms, exponentials and the like move by about their last bit, depending on their value and
on their place in the tensor. The same call still gives the same result, as on a real CPU, but equal rows of a tensor no
longer give equal results. A test that fails under it hangs on a tie. `--rounding SEED:SIZE` shakes SIZE times as much,
which also finds what is nearly a tie (and tolerances that were chosen narrowly).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

# fmt: off
SUMS = {
    "mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "convolution", "_cdist_forward", "native_layer_norm",
    "native_group_norm", "_fused_rms_norm", "_linalg_solve_ex", "_linalg_eigh", "_linalg_svd", "linalg_qr",
    "linalg_cholesky_ex", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math",
}
"""Sums of terms of either sign: their error is relative to the terms, so small results lose as much as large ones."""

SINGLE = {
    "sum", "mean", "var", "std", "var_mean", "std_mean", "prod", "cumsum", "logsumexp", "_softmax", "_log_softmax",
    "linalg_vector_norm", "norm", "exp", "expm1", "log", "log2", "log1p", "pow", "rsqrt", "sin", "cos", "tan", "tanh",
    "atan", "acos", "sigmoid", "gelu", "silu", "erf", "softplus", "logit", "special_entr",
}
"""Their error is relative to each result."""
# fmt: on

FUSED = {"addcmul", "addcdiv", "lerp"}
"""Rounded once or twice, depending on the instructions; exact where nothing is added."""

MANTISSA = {torch.float64: 52, torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}
INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16}


class OtherRounding(TorchDispatchMode):
    """seed: which CPU. size: how far results move, in units of their last place."""

    def __init__(self, seed: int, size: float = 1.0):
        super().__init__()
        self.seed, self.size = seed, size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in SUMS | SINGLE | FUSED or _is_exact(name, args, result):
            return result
        moved = tree_map_only(Tensor, lambda tensor: self._moved(tensor, name in SUMS), result)
        return torch.where(result == args[0], result, moved) if name in FUSED else moved

    def _moved(self, result: Tensor, of_terms: bool) -> Tensor:
        if result.dtype not in MANTISSA or not result.numel() or result.is_meta:
            return result
        noise, inexact = self._noise(result)
        size = result.abs() + result.abs().mean() if of_terms else result
        moved = result + size * (noise * self.size * torch.finfo(result.dtype).eps).to(result.dtype)
        return torch.where(inexact & moved.isfinite(), moved, result)

    def _noise(self, result: Tensor) -> tuple[Tensor, Tensor]:
        """A number in [-1, 1] for each element, from its bits and its place, and which elements are inexact."""
        bits = result.contiguous().view(INTEGERS[result.dtype.itemsize]).long()
        # Whole numbers and simple fractions have no last bits: CPUs agree on them.
        inexact = bits & ((1 << MANTISSA[result.dtype] // 2) - 1) != 0
        place = torch.arange(result.numel()).view(result.shape)
        mixed = (bits * 0x9E3779B1 + place * 0x85EBCA77 + self.seed * 0xC2B2AE3D) & 0x7FFFFFFF
        mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0x7FFFFFFF
        mixed = ((mixed ^ (mixed >> 12)) * 0x297A2D39) & 0x7FFFFFFF
        noise = (mixed ^ (mixed >> 15)).double() / 2**30 - 1
        if result.dtype.itemsize == 2:  # added up in float32, so only few results fall to the other neighbour
            return noise.sign(), inexact & (mixed % 64 == 0)
        return noise, inexact


def _is_exact(name: str, args: Any, result: Any) -> bool:
    """A square is one product; a sum or a mean of single values is these values."""
    if name == "pow":
        return not isinstance(args[1], Tensor) and args[1] == 2
    return name in ("sum", "mean") and result.numel() == args[0].numel()


def pytest_addoption(parser: pytest.Parser) -> None:
    explained = "run with another CPU's rounding (tests/support/rounding.py)"
    parser.addoption("--rounding", metavar="SEED[:SIZE]", help=explained)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What test modules prepare on import is rounded like what their tests compare with it."""
    with _rounding(session.config):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fixtures included."""
    with nullcontext() if item.get_closest_marker("own_rounding") else _rounding(item.config):
        return (yield)


def _rounding(config: pytest.Config) -> AbstractContextManager[Any]:
    wanted = config.getoption("--rounding")
    if wanted is None:
        return nullcontext()
    seed, _, size = wanted.partition(":")
    return OtherRounding(int(seed), float(size or 1))
