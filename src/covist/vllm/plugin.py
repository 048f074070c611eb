"""vLLM calls this in every process that it starts: it registers the model classes and checks their configuration."""

from __future__ import annotations

from typing import Any, ClassVar

import vllm
from vllm import ModelRegistry
from vllm.model_executor.models.config import MODELS_CONFIG_MAP, VerifyAndUpdateConfig
from vllm.model_executor.models.registry import _MULTIMODAL_MODELS, _TRANSFORMERS_BACKEND_MODELS
from vllm.transformers_utils.config import mrope_num_dims

from covist.errors import CovistError
from covist.vllm.limits import refusals, require_fit, require_tested
from covist.vllm.seams import require_seams
from covist.vllm.settings import AXES, PREFIX, Serving, require_readable
from covist.vllm.tower import family_read

ARCHITECTURES = {**_MULTIMODAL_MODELS, **_TRANSFORMERS_BACKEND_MODELS}


def register() -> None:
    """The entry point `vllm.general_plugins`; vLLM may call it more than once."""
    for architecture in ARCHITECTURES:
        name = f"{PREFIX}{architecture}"
        ModelRegistry.register_model(name, f"covist.vllm.classes:{name}")
        own = {"theirs": MODELS_CONFIG_MAP.get(architecture, VerifyAndUpdateConfig)}
        MODELS_CONFIG_MAP[name] = type("CompressedConfig", (CompressedConfig,), own)


class CompressedConfig(VerifyAndUpdateConfig):
    """The checks that vLLM runs before it builds one of the model classes."""

    theirs: ClassVar[type[VerifyAndUpdateConfig]]
    """Those for the class without compression."""

    @classmethod
    def verify_and_update_model_config(cls, model_config: Any) -> None:
        """Refuse what is not supported, and make vLLM ask the model for positions."""
        require_tested(vllm.__version__)
        require_seams()
        cls.theirs.verify_and_update_model_config(model_config)
        config, text = model_config.hf_config, model_config.hf_text_config
        serving = Serving.read(getattr(config, "covist", None))
        name = model_config.architecture.removeprefix(PREFIX)
        require_fit(name)
        require_readable(serving, name, family_read(config, name) is not None)
        if not hasattr(config, AXES):
            setattr(config, AXES, mrope_num_dims(config) or 1)
        if getattr(config, AXES) == 1:
            # The attribute makes vLLM ask the model for positions; `rope_parameters` still define the rotation.
            text.mrope_section = [model_config.get_head_size() // 2, 0, 0]

    @classmethod
    def verify_and_update_config(cls, vllm_config: Any) -> None:
        """Refuse an engine that cannot carry compressed images."""
        cls.theirs.verify_and_update_config(vllm_config)
        serving = Serving.of(vllm_config.model_config.hf_config)
        for reason in refusals(vllm_config, serving.biases):
            raise CovistError(f"covist: {reason}")
        if not serving.reads_embeddings:  # transformers' tower expects pixels that the processor has normalised
            vllm_config.model_config.multimodal_config.mm_device_do_normalize = False
