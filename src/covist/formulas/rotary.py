"""Rotary position embedding, split-half convention."""

import torch
from torch import Tensor


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE to states [..., head width] in float32; cos and sin broadcast against them."""
    states = states.float()
    first, second = states.chunk(2, dim=-1)
    cos, sin = (part.to(states.device, torch.float32) for part in (cos, sin))
    return states * cos + torch.cat([-second, first], dim=-1) * sin
