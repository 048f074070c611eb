"""What cannot be combined with compression in vLLM, and the range of positions."""

from __future__ import annotations

from typing import Any

from covist.errors import CovistError
from covist.vllm.settings import COST, WITHOUT_WEIGHTS

SERIES = "0.32."
"""The tested versions of vLLM: its internals change between series."""
_RAW_IDS = "it reads the ids of image tokens, of which some are removed"
UNFIT = {
    "DeepseekV41ForCausalLM": _RAW_IDS,
    "DeepseekV4ForConditionalGeneration": "its class depends on the device",
    "DiffusionGemmaForBlockDiffusion": "it writes blocks of text at once",
    "NemotronParseForConditionalGeneration": "its decoder reads images by cross-attention",
    "PixtralForConditionalGeneration": "Mistral's tokenizer writes its tokens; use a checkpoint of transformers",
    "Qwen4ExpForConditionalGeneration": _RAW_IDS,
}
"""Model classes of vLLM that cannot be compressed, and why."""
FURTHER = 4
"""Rotary tables cover so many times the longest prompt, as vLLM's own do for multidimensional positions."""


def require_tested(version: str) -> None:
    """Refuse a version of vLLM whose internals may differ."""
    if not version.startswith(SERIES):
        raise CovistError(f"covist: vLLM {version} is not supported; install vllm>=0.32,<0.33")


def require_fit(architecture: str) -> None:
    """Refuse a model class that cannot be compressed."""
    if reason := UNFIT.get(architecture):
        raise CovistError(f"vLLM: {architecture} cannot be compressed: {reason}")


def position_room(max_model_len: int) -> int:
    """The number of positions in rotary tables."""
    return FURTHER * max_model_len


def require_room(shift: int, max_model_len: int) -> None:
    """Refuse a prompt whose images leave more empty positions than the tables have room for."""
    room = position_room(max_model_len) - max_model_len
    if shift > room:
        raise CovistError(
            f"the images of this prompt leave {shift} positions empty, more than {room}; send fewer images, "
            "or serve with a larger budget, a larger --max-model-len or positions=reindex"
        )


def refusals(vllm_config: Any, biases: bool = True) -> list[str]:
    """The parts of an engine's configuration that cannot be combined with compression, one sentence each.

    biases: whether the method adds something to attention
    """
    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    multimodal = vllm_config.model_config.multimodal_config
    speculative = vllm_config.speculative_config
    found = []
    if parallel.pipeline_parallel_size > 1:
        found.append(
            "pipeline parallelism is not possible, because only the first stage sees the weights of the rows; "
            "use --tensor-parallel-size"
        )
    if biases and str(cache.cache_dtype).startswith(("fp8", "int8", "nvfp4", "turboquant")):
        found.append(
            f"a KV cache in {cache.cache_dtype} cannot hold the bias; use --kv-cache-dtype auto, or {WITHOUT_WEIGHTS}, "
            f"which leaves out the weights, {COST}"
        )
    if speculative is not None and speculative.method not in ("ngram", "ngram_gpu", "suffix"):
        found.append(
            f"draft models ({speculative.method!r}) read image embeddings, which have extra columns; use ngram or none"
        )
    if getattr(multimodal, "enable_mm_embeds", False):
        found.append("embeddings of images cannot be compressed; omit --enable-mm-embeds")
    if getattr(multimodal, "video_pruning_rate", None):
        found.append("vLLM's own pruning of videos cannot be combined with compression; omit --video-pruning-rate")
    return found
