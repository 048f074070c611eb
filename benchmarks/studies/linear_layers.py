"""Compression before linear layers: how much a hybrid decoder keeps, and whether a representative should enter once.

    PYTHONPATH=tools python -m train.hybrid.train --out run
    PYTHONPATH=benchmarks python -m studies.linear_layers --model run/export --out answers

A linear layer keeps a state instead of keys: every token first lets it decay and then corrects what it says about the
token's key. A representative of m tokens enters it once in covist, because log m has no place there. The alternatives:

m times   the layer is given m copies of the representative, as if its tokens were equal; the last output is used
scaled    one copy that counts for m: decay to the power m, and the correction that m of them would make together
aged      only the decay of m tokens
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covist.budget import Count
from covist.engine.prefill import Prefill
from covist.engine.running import current
from covist.eval.records import Run
from covist.eval.subject import Subject
from covist.eval.suite import load_suite
from studies.variants import Study, Variant, table, written

METHODS = ("covist-max", "covist-fixed", "divprune", "fastv", "random")
WEIGHED = "covist-max"  # its weights are numbers of tokens
BUDGETS = (64, 32, 16)
ONCE = "once"


def represented() -> Tensor | None:
    """How many tokens each token of the running prefill stands for, [batch, n]; None outside a compressed prefill."""
    one = current()
    if not isinstance(one, Prefill):
        return None
    return one.batch.ledger(one.settings.method, one.seen).joined.log_weight.exp()


def give_copies(layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
    counts = represented()
    if counts is None:
        return None
    copies = [row.round().long() for row in counts]

    def spread(value: Tensor) -> Tensor:
        return torch.stack([row.repeat_interleave(number, 0) for row, number in zip(value, copies, strict=True)])

    mask = kwargs["attention_mask"]
    spread_mask = None if mask is None else spread(mask)
    return args, {**kwargs, "hidden_states": spread(kwargs["hidden_states"]), "attention_mask": spread_mask}


def take_last_copy(layer: nn.Module, args: tuple, output: Tensor) -> Tensor | None:
    counts = represented()
    if counts is None:
        return None
    last = counts.round().long().cumsum(1) - 1  # [batch, n]
    return output.gather(1, last[..., None].expand(-1, -1, output.shape[-1]))


def age(bias: Tensor, layer: nn.Module, args: tuple, output: Tensor) -> Tensor | None:
    """The step of the decay, softplus(output + bias), times the number of tokens."""
    counts = represented()
    if counts is None:
        return None
    steps = F.softplus(output + bias) * counts[..., None]
    return steps + torch.log(-torch.expm1(-steps)) - bias


def strengthen(layer: nn.Module, args: tuple, output: Tensor) -> Tensor | None:
    """Corrections by a share beta leave (1 - beta)^m of an error; beta is the sigmoid of the output."""
    counts = represented()
    if counts is None:
        return None
    left = F.logsigmoid(-output) * counts[..., None]  # log (1 - beta)^m
    return torch.log(-torch.expm1(left)) - left


@contextmanager
def entering(how: str, subject: Subject) -> Iterator[None]:
    hooks = []
    for layer in subject.model.model.language_model.layers:
        linear = getattr(layer, "linear_attn", None)
        if linear is None:
            continue
        if how == "m times":
            hooks.append(linear.register_forward_pre_hook(give_copies, with_kwargs=True))
            hooks.append(linear.register_forward_hook(take_last_copy))
        if how in ("scaled", "aged"):
            hooks.append(linear.in_proj_a.register_forward_hook(partial(age, linear.dt_bias)))
        if how == "scaled":
            hooks.append(linear.in_proj_b.register_forward_hook(strengthen))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def reached(study: Study, run: Run) -> str:
    """The retention of a run, and its tokens if they are more than the budget."""
    tokens, kept = study.tokens[ONCE, run], written(study.retention(ONCE, run))
    return kept if tokens <= run.budget.tokens else f"{kept} at {tokens:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the trained hybrid")
    parser.add_argument("--limit", type=int, default=30, help="images")
    parser.add_argument("--out", type=Path, required=True, help="folder of answers")
    options = parser.parse_args()
    study = Study(load_suite("scenes"), options.limit, Subject.resolve(options.model), options.out)
    runs = [Run(method, Count(budget)) for method in METHODS for budget in BUDGETS]
    study.measure(Variant(ONCE, lambda subject: nullcontext(), [study.vanilla, *runs]))
    print(f"uncompressed: {written(study.accuracy())} % right, {len(study.items)} images\n")
    rows = [[method, *(reached(study, Run(method, Count(budget))) for budget in BUDGETS)] for method in METHODS]
    print(table(["retention", *map(str, BUDGETS)], rows), end="\n\n")
    weighed, rows = [Run(WEIGHED, Count(budget)) for budget in BUDGETS], []
    for how in ("m times", "scaled", "aged"):
        study.measure(Variant(how, partial(entering, how), weighed))
        rows.append([how, *(written(study.gain(how, ONCE, run), "+") for run in weighed)])
    print(table([f"{WEIGHED}, against once", *map(str, BUDGETS)], rows))


if __name__ == "__main__":
    main()
