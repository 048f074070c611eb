"""Errors of the machine, which are not the fault of what was asked or of who wrote a method."""

import torch

BROKEN: tuple[type[Exception], ...] = tuple(filter(None, [getattr(torch, "AcceleratorError", None)]))
"""After such an error the accelerator is unusable: the process must end, and a new one continues."""


def is_broken(error: BaseException) -> bool:
    """Whether an accelerator is lost; older releases of torch raise a bare RuntimeError."""
    return isinstance(error, BROKEN) or (isinstance(error, RuntimeError) and str(error).startswith("CUDA error:"))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: on an accelerator, in Python, or in torch's allocator on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
