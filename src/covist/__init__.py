"""Training-free visual token compression for unmodified Hugging Face vision-language models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covist import eval, tiny, viz
    from covist.api.compress import compress
    from covist.api.handle import Compression
    from covist.api.report import Report
    from covist.api.setup import Setup
    from covist.budget import Budget
    from covist.config import CovistConfig
    from covist.contract.encoder import EncoderRead
    from covist.contract.method import Method, MethodInfo
    from covist.contract.signals import ImageSignals
    from covist.contract.views import BlockView, DecoderView, ImageContext, PixelView
    from covist.errors import CovistError
    from covist.families.registry import available_families, register_family
    from covist.formulas.concentration import ConcentrationTracker
    from covist.grid import Grid
    from covist.loading import Loading
    from covist.methods.create import create_method
    from covist.methods.registry import available_methods, register_method
    from covist.reduction import Reduction
    from covist.request.loading import LoadedModel, load_model
    from covist.request.stream import Stream
    from covist.schedule import Schedule
    from covist.state import VisualState

__version__ = "0.2.0"
__all__ = [
    "BlockView",
    "Budget",
    "Compression",
    "ConcentrationTracker",
    "CovistConfig",
    "CovistError",
    "DecoderView",
    "EncoderRead",
    "Grid",
    "ImageContext",
    "ImageSignals",
    "LoadedModel",
    "Loading",
    "Method",
    "MethodInfo",
    "PixelView",
    "Reduction",
    "Report",
    "Schedule",
    "Setup",
    "Stream",
    "VisualState",
    "available_families",
    "available_methods",
    "compress",
    "create_method",
    "eval",
    "load_model",
    "register_family",
    "register_method",
    "tiny",
    "viz",
]

# Looked up on first use: `covist --help` must not wait for torch and transformers.
_MODULES = {
    "BlockView": "covist.contract.views",
    "Budget": "covist.budget",
    "Compression": "covist.api.handle",
    "ConcentrationTracker": "covist.formulas.concentration",
    "CovistConfig": "covist.config",
    "CovistError": "covist.errors",
    "DecoderView": "covist.contract.views",
    "EncoderRead": "covist.contract.encoder",
    "Grid": "covist.grid",
    "ImageContext": "covist.contract.views",
    "ImageSignals": "covist.contract.signals",
    "LoadedModel": "covist.request.loading",
    "Loading": "covist.loading",
    "Method": "covist.contract.method",
    "MethodInfo": "covist.contract.method",
    "PixelView": "covist.contract.views",
    "Reduction": "covist.reduction",
    "Report": "covist.api.report",
    "Schedule": "covist.schedule",
    "Setup": "covist.api.setup",
    "Stream": "covist.request.stream",
    "VisualState": "covist.state",
    "available_families": "covist.families.registry",
    "available_methods": "covist.methods.registry",
    "compress": "covist.api.compress",
    "create_method": "covist.methods.create",
    "load_model": "covist.request.loading",
    "register_family": "covist.families.registry",
    "register_method": "covist.methods.registry",
}
_SUBMODULES = ("eval", "tiny", "viz")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"covist.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'covist' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
