"""Writes the table of models in docs/vllm.md.

    python tools/vllm_page.py

What a class takes comes from src/covist/vllm/models.json, which `tools/vllm_models.py` writes. What its attention can
carry was judged by its family and source; only what is marked as run was executed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from covist.vllm.command import BACKEND, MODELS
from covist.vllm.limits import UNFIT

PAGE = Path(__file__).parent.parent / "docs" / "vllm.md"
BEGIN, END = "<!-- written by tools/vllm_page.py -->", "<!-- end -->"
RUN = {
    "Glm4vForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
}
"""Classes of which `make test-vllm` compares a small model with transformers."""
HYBRID = "in the attention layers; linear layers see every kept token once"
LATENT = "no: latent or sparse attention"
BOTH_WAYS = "TRITON_ATTN, FLEX_ATTENTION or FA4: images attend both ways"
WEIGHTS = {
    r"Qwen3_5|InternS2|Lfm2|NemotronH|MiniCPMV4": HYBRID,
    r"Kimi|BailingMoeV3|Step3VL|Glm5Next|MiniMaxM3|DeepseekVLV2": LATENT,
    r"Gemma3|Molmo2|Bagel|Moondream": BOTH_WAYS,
    r"Gemma4": "no: heads of 512",
    r"PaliGemma": "no for version 2: soft-capped logits",
    r"Llama4": "no: chunked attention",
}
"""Pattern of a class -> whether wide heads can carry the weights, where it is not simply yes."""


def weights_of(name: str) -> str:
    return next((note for pattern, note in WEIGHTS.items() if re.search(pattern, name)), "yes")


def rows() -> list[str]:
    made = ["| vLLM's class | takes | weights | run here |", "|---|---|---|---|"]
    for name, modalities in MODELS.items():
        takes = " and ".join(f"{modality}s" for modality in modalities)
        made.append(f"| `{name}` | {takes} | {weights_of(name)} | {'yes' if name in RUN else ''} |")
    made.append(f"| `{BACKEND}` (any model of transformers without a class) | images and videos | yes | yes |")
    return made


def refused() -> list[str]:
    return ["| refused | because |", "|---|---|", *(f"| `{name}` | {reason} |" for name, reason in UNFIT.items())]


def table() -> str:
    videos = sum("video" in modalities for modalities in MODELS.values())
    lines = [f"{len(MODELS)} classes of vLLM 0.32, {videos} of them with videos:", "", *rows(), "", *refused()]
    return "\n".join([BEGIN, "", *lines, "", END])


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    start, end = page.index(BEGIN), page.index(END) + len(END)
    PAGE.write_text(page[:start] + table() + page[end:], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
