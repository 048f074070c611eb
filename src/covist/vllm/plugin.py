"""vLLM calls this in every process that it starts: it registers the model classes and checks their configuration."""

from __future__ import annotations

from typing import Any

import vllm
from vllm import ModelRegistry
from vllm.model_executor.models.config import MODELS_CONFIG_MAP, VerifyAndUpdateConfig

from covist.errors import CovistError
from covist.vllm.limits import refusals, require_tested, require_tower
from covist.vllm.settings import ARCHITECTURES, Serving


def register() -> None:
    """The entry point `vllm.general_plugins`; vLLM may call it more than once."""
    for architecture, place in ARCHITECTURES.items():
        ModelRegistry.register_model(architecture, place)
        MODELS_CONFIG_MAP[architecture] = CompressedConfig


class CompressedConfig(VerifyAndUpdateConfig):
    """The checks that vLLM runs before it builds one of the model classes."""

    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        """Refuse what is not supported, and make vLLM ask the model for positions."""
        require_tested(vllm.__version__)
        require_tower(model_config.architecture, model_config.hf_config.vision_config.model_type)
        Serving.read(getattr(model_config.hf_config, "covist", None))
        if not model_config.uses_mrope:
            # The attribute makes vLLM ask the model for positions; `rope_parameters` still define the rotation.
            model_config.hf_text_config.mrope_section = [model_config.get_head_size() // 2, 0, 0]

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Refuse an engine that cannot carry compressed images."""
        for reason in refusals(vllm_config):
            raise CovistError(f"covist: {reason}")
