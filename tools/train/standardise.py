"""Features are standardised while a projector is trained on them, and the exported projector does it by itself."""

import torch
from torch import Tensor, nn


class Standardise(nn.Module):
    """Per-channel mean 0 and deviation 1."""

    mean: Tensor
    std: Tensor

    def __init__(self, sample: Tensor):
        super().__init__()
        self.register_buffer("mean", sample.flatten(0, -2).mean(0))  # [width]
        self.register_buffer("std", sample.flatten(0, -2).std(0))

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.std

    @torch.no_grad()
    def fold_into(self, layer: nn.Linear) -> None:
        """Change a layer that was trained on standardised features so that it accepts them as they are."""
        layer.weight.div_(self.std)
        layer.bias.sub_(layer.weight @ self.mean)

    @torch.no_grad()
    def unfold_from(self, layer: nn.Linear) -> None:
        """The reverse of `fold_into`."""
        layer.bias.add_(layer.weight @ self.mean)
        layer.weight.mul_(self.std)
