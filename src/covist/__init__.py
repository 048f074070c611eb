"""Training-free visual token compression for unmodified Hugging Face vision-language models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covist.api import compress
    from covist.config import CovistConfig
    from covist.engine.compression import Compression
    from covist.engine.report import Report
    from covist.families.registry import supported_models
    from covist.methods.registry import methods as available_methods

__version__ = "0.1.0"
__all__ = ["Compression", "CovistConfig", "Report", "available_methods", "compress", "supported_models"]

# Looked up on first use: `covist --help` must not wait for torch and transformers.
_HOMES = {
    "Compression": ("covist.engine.compression", "Compression"),
    "CovistConfig": ("covist.config", "CovistConfig"),
    "Report": ("covist.engine.report", "Report"),
    "available_methods": ("covist.methods.registry", "methods"),
    "compress": ("covist.api", "compress"),
    "supported_models": ("covist.families.registry", "supported_models"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'covist' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    globals()[name] = value = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
