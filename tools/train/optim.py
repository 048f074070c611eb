"""torch's Muon for the matrices and AdamW for the rest.

Muon computes in bf16: on CPUs without instructions for it, a step of the embedded model takes a second longer.
"""

from collections.abc import Iterable

import torch
from torch import nn


class Optimiser:
    """Both optimisers with one schedule: warm-up, plateau, linear decay to zero. AdamW also trains the read-outs."""

    def __init__(
        self,
        modules: Iterable[nn.Module],
        matrix_lr: float,
        other_lr: float,
        readouts: Iterable[nn.Module] = (),
        warmup_steps: int = 100,
    ):
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for module in modules:
            for layer in module.modules():
                for name, parameter in layer.named_parameters(recurse=False):
                    hidden = isinstance(layer, nn.Linear) and name == "weight" and min(parameter.shape) >= 64
                    (matrices if hidden else others).append(parameter)
        others += [parameter for readout in readouts for parameter in readout.parameters()]
        self.parts = [
            torch.optim.Muon(matrices, matrix_lr, weight_decay=0.02),
            torch.optim.AdamW(others, other_lr, (0.9, 0.98)),
        ]
        self.peaks = [matrix_lr, other_lr]
        self.warmup_steps, self.steps = warmup_steps, 0
        self.parameters = matrices + others

    def step(self, fraction: float, decay_from: float = 0.6) -> None:
        """One update; `fraction` is the share of the training time that is used up."""
        self.steps += 1
        factor = min(1.0, self.steps / self.warmup_steps, max(0.0, (1 - fraction) / (1 - decay_from)))
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for part, peak in zip(self.parts, self.peaks, strict=True):
            for group in part.param_groups:
                group["lr"] = peak * factor
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> dict:
        return {"steps": self.steps, "parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict) -> None:
        self.steps = state["steps"]
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)
