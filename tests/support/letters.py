"""A small untrained LLaVA that can write any text, byte by byte: the embedded one has only words, and no braces."""

from __future__ import annotations

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlavaProcessor, PreTrainedTokenizerFast

from covist import tiny
from covist.request.loading import LoadedModel
from covist.tiny.text import CHAT_TEMPLATE

SPECIAL = ("<pad>", "<s>", "<unk>", "</s>", "<image>")
"""In the order of the embedded model, whose ids its configuration holds."""
TOOL_TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool['function']['name'] }} {% endfor %}{% endif %}" + CHAT_TEMPLATE
)


def tokenizer() -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: number for number, token in enumerate([*SPECIAL, *letters])}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        unk_token="<unk>",
        eos_token="</s>",
        extra_special_tokens={"image_token": "<image>"},
        padding_side="left",
    )


def writer(template: str = CHAT_TEMPLATE) -> LoadedModel:
    """The model, with a vocabulary a little larger than its tokenizer's, as many have it."""
    model, processor, clip = tiny.build_random(size=tiny.Size(vision_layers=2, text_layers=1, decoder_layers=3))
    model.resize_token_embeddings(272, mean_resizing=False)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(5)
        head = model.get_output_embeddings().weight
        head.copy_(torch.randn(head.shape, generator=generator))
    spelling = LlavaProcessor(
        image_processor=processor.image_processor,
        tokenizer=tokenizer(),
        patch_size=processor.patch_size,
        vision_feature_select_strategy=processor.vision_feature_select_strategy,
        num_additional_image_tokens=processor.num_additional_image_tokens,
        image_token="<image>",
        chat_template=template,
    )
    return LoadedModel("writer", model, spelling, clip)
