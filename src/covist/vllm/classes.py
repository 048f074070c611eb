"""The model classes: `CovistX` is vLLM's class X with compression, made when vLLM asks for it by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from vllm.model_executor.models.interfaces import SupportsMRoPE
from vllm.multimodal import MULTIMODAL_REGISTRY

from covist.vllm.model import CompressedModel
from covist.vllm.plugin import ARCHITECTURES
from covist.vllm.processing import CompressedProcessor
from covist.vllm.settings import PREFIX


def __getattr__(name: str) -> type[Any]:
    architecture = name.removeprefix(PREFIX)
    if architecture == name or architecture not in ARCHITECTURES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, base = ARCHITECTURES[architecture]
    module = module if module.startswith("vllm.") else f"vllm.model_executor.models.{module}"
    made = compressed_class(name, getattr(import_module(module), base))
    globals()[name] = made
    return made


def compressed_class(name: str, base: type[Any]) -> type[Any]:
    """A vLLM model class with compression."""
    also = () if SupportsMRoPE in base.__mro__ else (SupportsMRoPE,)
    made = type(name, (CompressedModel, base, *also), {"__module__": __name__})
    theirs = base._processor_factory

    def build(info: Any, dummy_inputs: Any) -> Any:
        # what is registered may be a function that chooses among classes
        own = type(theirs.processor(info, dummy_inputs))
        return type(f"Compressed{own.__name__}", (CompressedProcessor, own), {})(info, dummy_inputs)

    return MULTIMODAL_REGISTRY.register_processor(build, info=theirs.info, dummy_inputs=theirs.dummy_inputs)(made)
