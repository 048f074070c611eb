"""Transfers from the host to a device."""

import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device, without waiting where that is safe.

    CUDA copies what it was given before the call returns; others may not.
    """
    return values.to(device, non_blocking=device.type == "cuda")
