"""Muon for the matrices and AdamW for the rest, in fp32 (torch's own Muon uses bf16, which is slow on most CPUs)."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


def orthogonalise(matrices: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """Nearest semi-orthogonal matrices of a batch [n, rows, columns], by the quintic Newton-Schulz iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates; matrices of the same shape are processed as one batch."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                updates = []
                for parameter in parameters:
                    state = self.state[parameter]
                    trace = state.setdefault("momentum", torch.zeros_like(parameter))
                    trace.lerp_(parameter.grad, 1 - group["momentum"])
                    updates.append(parameter.grad.lerp(trace, group["momentum"]))
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for parameter, update in zip(parameters, orthogonalise(torch.stack(updates)), strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=scale)


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
        self.parts = [Muon(matrices, matrix_lr, weight_decay=0.02), torch.optim.AdamW(others, other_lr, (0.9, 0.98))]
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
