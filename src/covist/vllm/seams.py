"""The parts of vLLM that the classes build on, checked by name and signature when an engine starts."""

from __future__ import annotations

from importlib import import_module
from inspect import signature

from covist.errors import CovistError

MODELS, MULTIMODAL = "vllm.model_executor.models", "vllm.multimodal"
PROCESSOR = f"{MULTIMODAL}.processing:BaseMultiModalProcessor"
INTERFACES = f"{MODELS}.interfaces"
SEAMS: dict[str, tuple[str, ...] | None] = {
    f"{PROCESSOR}.apply": ("inputs", "timing_ctx"),
    f"{PROCESSOR}.get_dummy_inputs": ("seq_len", "mm_counts", "mm_options"),
    f"{PROCESSOR}._get_mm_hashes": ("inputs",),
    f"{PROCESSOR}._get_cache_missing_processor_kwargs": ("inputs", "mm_is_cached"),
    f"{PROCESSOR}._apply_hf_processor_main": ("mm_items", "hf_kwargs"),
    f"{PROCESSOR}._get_mm_fields_config": ("hf_inputs", "hf_processor_mm_kwargs"),
    f"{PROCESSOR}._get_mm_prompt_updates": ("mm_items", "hf_processor_mm_kwargs", "out_mm_kwargs"),
    f"{PROCESSOR}._maybe_apply_prompt_updates": ("mm_items", "mm_res"),
    f"{MULTIMODAL}.processing:PromptUpdateDetails": ("full", "is_embed"),
    f"{MULTIMODAL}.inputs:MultiModalFieldElem": ("data", "field"),
    f"{MULTIMODAL}.inputs:MultiModalFeatureSpec": ("data", "modality", "identifier", "mm_position", "mm_hash"),
    f"{MULTIMODAL}.inputs:PlaceholderRange": ("offset", "length", "is_embed"),
    f"{MULTIMODAL}.inputs:MultiModalFlatField": None,
    f"{MULTIMODAL}.registry:_ProcessorFactories": ("info", "processor", "dummy_inputs"),
    f"{INTERFACES}:SupportsMultiModal.embed_input_ids": ("input_ids", "multimodal_embeddings", "is_multimodal"),
    f"{INTERFACES}:SupportsMultiModal.get_language_model": (),
    f"{INTERFACES}:SupportsMRoPE.get_mrope_input_positions": ("input_tokens", "mm_features"),
    f"{MODELS}.config:VerifyAndUpdateConfig.verify_and_update_model_config": ("model_config",),
    f"{MODELS}.config:MODELS_CONFIG_MAP": None,
    f"{MODELS}.registry:_MULTIMODAL_MODELS": None,
    "vllm.transformers_utils.config:mrope_num_dims": ("config",),
    "vllm.model_executor.layers.attention:Attention.forward": (
        *("query", "key", "value", "output_shape", "output_dtype"),
    ),
    "vllm.model_executor.layers.attention:Attention": (
        *("num_heads", "head_size", "scale", "num_kv_heads", "alibi_slopes", "use_alibi_sqrt", "cache_config"),
        *("quant_config", "logits_soft_cap", "per_layer_sliding_window", "prefix", "attn_type"),
        *("kv_sharing_target_layer_name", "mm_prefix_clamp_sliding_window", "attn_backend", "head_size_v"),
        "extra_impl_args",
    ),
}
"""module:name -> its parameters; None if it takes none or they do not matter."""


def moved_seams(seams: dict[str, tuple[str, ...] | None] | None = None) -> list[str]:
    """The parts that are missing, or whose parameters are others."""
    moved = []
    for place, wanted in (SEAMS if seams is None else seams).items():
        module, _, path = place.partition(":")
        try:
            found = import_module(module)
            for name in path.split("."):
                found = getattr(found, name)
        except (ImportError, AttributeError):
            moved.append(f"{place} is missing")
            continue
        if wanted is not None:
            given = tuple(name for name in signature(found).parameters if name != "self")  # type: ignore[arg-type]
            if given != wanted:
                moved.append(f"{place} takes {', '.join(given) or 'nothing'}")
    return moved


def require_seams() -> None:
    """Refuse a vLLM whose internals differ, whatever its version says."""
    if moved := moved_seams():
        raise CovistError(f"covist: this vLLM differs from the one that was tested: {'; '.join(moved)}")
