"""What a model looks like from outside, to see that nothing of a handle was left behind."""

from __future__ import annotations

import gc
from typing import Any

from torch import nn

HOOKS = [name for name in vars(nn.Module()) if "hooks" in name]


def fingerprint(model: Any) -> tuple[dict, list, dict]:
    """Everything that hangs on the modules and configs, by identity."""
    modules = {
        name: {
            **{key: id(value) for key, value in vars(module).items() if key not in HOOKS},
            **{key: tuple(getattr(module, key).items()) for key in HOOKS if isinstance(getattr(module, key), dict)},
        }
        for name, module in model.named_modules()
    }
    configs = [module.config._attn_implementation for module in model.modules() if hasattr(module, "config")]
    return modules, configs, {name: value.data_ptr() for name, value in model.state_dict().items()}


def changed(before: tuple[dict, list, dict], after: tuple[dict, list, dict]) -> set[tuple[str, str]]:
    """(module, attribute) of everything by which two fingerprints differ."""
    found = {
        (module, key)
        for module in before[0].keys() | after[0].keys()
        for key in before[0].get(module, {}).keys() | after[0].get(module, {}).keys()
        if before[0].get(module, {}).get(key) != after[0].get(module, {}).get(key)
    }
    return found | {("", part) for part, index in (("configs", 1), ("weights", 2)) if before[index] != after[index]}


def hooks_on(model: Any) -> int:
    """The number of hooks on all modules of a model."""
    return sum(len(getattr(module, key) or ()) for module in model.modules() for key in HOOKS)


def objects_of_covist() -> int:
    """Live objects of covist's classes."""
    gc.collect()
    return sum(str(type(one).__module__).partition(".")[0] == "covist" for one in gc.get_objects())
