"""Facts about this machine and this installation: recorded with every measurement, checked by `covist doctor`."""

from __future__ import annotations

import importlib.util
import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

REQUIRED = (
    "torch",
    "transformers",
    "pillow",
    "numpy",
    "scipy",
    "filelock",
    "safetensors",
    "typer",
    "rich",
)


def versions() -> dict[str, str]:
    """Versions of Python, covist and its required packages."""
    return {
        "python": platform.python_version(),
        **{name: _version(name) or "missing" for name in ("covist", *REQUIRED)},
    }


def machine() -> dict[str, Any]:
    """Processor, cores, memory and accelerator."""
    import torch

    return {
        "system": platform.platform(terse=True),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": _memory_gib(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


@dataclass(frozen=True)
class Check:
    """One line of `covist doctor`."""

    name: str
    status: str  # "ok", "missing" (covist does not work without it) or "optional"
    found: str
    advice: str = ""

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def checks(model: str | None = None) -> list[Check]:
    """What is installed, what is missing and how to install it; if `model` is given, also whether it is supported."""
    required = [_required(name) for name in REQUIRED]
    if any(check.status == "missing" for check in required):
        return required
    asked = [] if model is None else [_model(model)]
    return [*required, *_embedded_models(), _device(), _attention(), _waiting_threads(), *_extras(), *asked]


def _required(name: str) -> Check:
    have, declared = _version(name), _declared(name)
    if have is None:
        return Check(name, "missing", "not installed", f"pip install '{name}{declared}'")
    if not declared.contains(have, prereleases=True):
        return Check(name, "missing", f"{have}, but covist needs {declared}", f"pip install '{name}{declared}'")
    return Check(name, "ok", have)


def _declared(name: str) -> SpecifierSet:
    """The releases that this installation declares; any release if covist runs from source without being installed."""
    try:
        declared = [Requirement(line) for line in requires("covist") or ()]
    except PackageNotFoundError:
        return SpecifierSet()
    return next((one.specifier for one in declared if one.name == name and one.marker is None), SpecifierSet())


def _embedded_models() -> list[Check]:
    from covist.tiny import NEXT_WEIGHTS, WEIGHTS
    from covist.tiny.films import VIDEO_WEIGHTS

    return [
        _embedded_model("embedded model tiny", WEIGHTS),
        _embedded_model("embedded model tiny-next", NEXT_WEIGHTS),
        _embedded_model("embedded model tiny-video", VIDEO_WEIGHTS),
    ]


def _embedded_model(name: str, folder: Path) -> Check:
    """Whether the weights are complete: opening the file reads its index and checks its length."""
    from safetensors import SafetensorError, safe_open

    weights = folder / "model.safetensors"
    try:
        with safe_open(weights, "pt") as file:
            file.keys()
    except FileNotFoundError:
        problem = "no weights"
    except SafetensorError as error:
        problem = f"damaged weights ({error})"
    else:
        return Check(name, "ok", f"{weights.stat().st_size / 1e6:.1f} MB")
    return Check(name, "missing", problem, "install covist again")


def _device() -> Check:
    import torch

    if torch.cuda.is_available():
        return Check("accelerator", "ok", torch.cuda.get_device_name())
    return Check("accelerator", "optional", "none, running on the CPU", "install torch for your GPU: pytorch.org")


def _attention() -> Check:
    from covist.engine.decoder import BACKENDS

    return Check("attention backends", "ok", ", ".join(BACKENDS))


def _waiting_threads() -> Check:
    """The command line sets this policy itself; a script must set it before it imports torch."""
    policy = os.environ.get("OMP_WAIT_POLICY", "").lower()
    if policy == "passive":
        return Check("OMP_WAIT_POLICY", "ok", "passive", "in Python: export it as well, see docs/measuring.md")
    advice = "export OMP_WAIT_POLICY=passive if other processes share the cores"
    return Check("OMP_WAIT_POLICY", "optional", policy or "not set: threads wait actively", advice)


def _extras() -> list[Check]:
    uses = {
        "matplotlib": "figures of `covist show` and the plot of `covist eval --out`",
        "pyarrow": "Parquet files of `covist batch`",
        "torchvision": "AutoProcessor of some checkpoints, and faster image processors",
        "accelerate": "device_map, for one device or several",
        "peft": "models with LoRA adapters",
    }
    return [
        Check(name, "ok", _version(name) or "found")
        if importlib.util.find_spec(name)
        else Check(name, "optional", "not installed", f"pip install {name} ({use})")
        for name, use in uses.items()
    ]


def _model(name: str) -> Check:
    """Whether a model can be compressed, judged by its configuration; no weights are read or downloaded."""
    from covist.errors import CovistError
    from covist.request.checkpoints import EMBEDDED, served

    try:
        _, family, _ = served(name)
    except CovistError as error:
        return Check(f"model {name}", "missing", "cannot be compressed", str(error))
    wants_clip = family.needs_clip_text and name not in EMBEDDED
    advice = "give --clip with the CLIP of its vision tower, or use covist-max" if wants_clip else ""
    return Check(f"model {name}", "ok", f"supported, family {family.name}", advice)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None
