"""Training with several processes: `PYTHONPATH=tools torchrun --nproc-per-node 2 -m train.tiny.train ...`.

Every process draws its own scenes; gradients are averaged, so all take the same step. Without torchrun, there is one
process.
"""

import os
from collections.abc import Iterable

import torch
from torch import distributed, nn


def join() -> None:
    """Join the process group if torchrun started this process."""
    if "RANK" in os.environ and not distributed.is_initialized():
        distributed.init_process_group("gloo")


def rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def processes() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1


def average(parameters: Iterable[nn.Parameter], seconds: float) -> float:
    """Average the gradients over the processes, and the time that they took, so that all end at the same step."""
    if processes() == 1:
        return seconds
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([torch.tensor([seconds]), *(gradient.flatten() for gradient in gradients)])
    distributed.all_reduce(flat)
    flat /= processes()
    for gradient, mean in zip(gradients, flat[1:].split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))
    return float(flat[0])
