"""The kernel of greedy coverage, run by Triton's interpreter (`TRITON_INTERPRET=1`), and compiled for GPUs."""

import subprocess
import sys

import pytest
import torch

from covist.formulas.coverage import affinity
from covist.formulas.dense_greedy import MOST_TOKENS, UNITS, grow_in_loop

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.triton


def inputs(images, tokens, seed=0, clusters=4):
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(images, clusters, 6, generator=g)
    member = torch.randint(clusters, (images, tokens), generator=g)[..., None].expand(-1, -1, 6)
    features = centres.gather(1, member) + 0.4 * torch.randn(images, tokens, 6, generator=g)
    s = torch.stack([affinity(one, one + 0.1) for one in features])
    return s, torch.rand(images, tokens, generator=g).softmax(-1).double() * UNITS


def both(s, units, start, steps):
    """What the kernel and the loop choose."""
    from covist.formulas.greedy_kernel import grow_in_kernel

    return grow_in_kernel(s, units, start, steps), grow_in_loop(s, units, start, steps)


@pytest.mark.parametrize("images, tokens, steps", [(1, 1, 1), (1, 7, 7), (3, 33, 12), (2, 70, 20)])
@pytest.mark.parametrize("begun", [0, 2])
def test_the_kernel_chooses_as_the_loop_does(images, tokens, steps, begun):
    s, units = inputs(images, tokens, seed=tokens)
    begun = min(begun, tokens - 1)
    start = torch.stack([torch.randperm(tokens)[:begun] for _ in range(images)])
    kernel, loop = both(s, units, start, min(steps, tokens - begun))
    assert torch.equal(kernel, loop)


def test_one_image_needs_no_dimension_of_images():
    s, units = inputs(1, 20)
    kernel, loop = both(s[0], units[0], torch.arange(2), 5)
    assert kernel.shape == (5,) and torch.equal(kernel, loop)


def test_copies_go_to_the_lowest_index():
    copies = torch.arange(10).repeat(2)
    s = 0.9 * torch.rand(10, 10, generator=torch.Generator().manual_seed(1))
    s = torch.maximum(s, s.T).fill_diagonal_(1)[copies][:, copies].contiguous()
    kernel, loop = both(s, torch.full((20,), UNITS / 20, dtype=torch.float64), torch.arange(0), 15)
    assert kernel.sort().values.tolist() == list(range(15)) and torch.equal(kernel, loop)


def test_ties_that_float_sums_would_hide_go_to_the_lowest_index():
    """Rings of the same affinities, turned: every gain is the same sum in another order."""
    profile, place = torch.rand(13, generator=torch.Generator().manual_seed(3)), torch.arange(24)
    apart = (place[:, None] - place).abs()
    s = profile[torch.minimum(apart, 24 - apart)].fill_diagonal_(1)
    kernel, loop = both(s, torch.full((24,), UNITS / 24, dtype=torch.float64), torch.arange(0), 12)
    assert kernel[0] == 0 and torch.equal(kernel, loop)


COMPILES = """
import os
os.environ.pop("TRITON_INTERPRET", None)
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from covist.formulas.greedy_kernel import TILE, _grow

pointers = {"affinity": "*fp32", "units": "*fp64", "begun": "*i64", "risen": "*i64", "picks": "*i64"}
signature = {**pointers, "tokens": "i32", "steps": "i32", "BLOCK": "constexpr", "ROWS": "constexpr"}
for block, warps in ((1024, 8), (%d, 16)):
    source = ASTSource(_grow, signature, {"BLOCK": block, "ROWS": max(1, TILE // block)})
    made = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": warps})
    assert "atom" not in made.asm["ptx"] and made.asm["cubin"]
print("compiled")
"""


def test_the_kernel_compiles_for_gpus_that_are_not_here():
    made = subprocess.run([sys.executable, "-c", COMPILES % MOST_TOKENS], capture_output=True, text=True)
    assert made.stdout == "compiled\n", made.stderr
