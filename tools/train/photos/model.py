"""The architecture: LLaVA over a real tower, with a small Llama decoder that is trained from scratch."""

from transformers import LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, PreTrainedModel

from covist.tiny.text import END, IMAGE, PAD, START
from train.photos.towers import LAYER

WIDTH, LAYERS, HEADS, MLP = 256, 6, 4, 704


def build_model(tower: PreTrainedModel, words: dict[str, int]) -> LlavaForConditionalGeneration:
    """The whole model, with the tower's weights and a decoder that knows nothing yet."""
    ids = {"bos_token_id": words[START], "eos_token_id": words[END], "pad_token_id": words[PAD]}
    decoder = LlamaConfig(
        vocab_size=len(words),
        hidden_size=WIDTH,
        intermediate_size=MLP,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        **ids,
    )
    config = LlavaConfig(
        vision_config=tower.config,
        text_config=decoder,
        image_token_index=words[IMAGE],
        vision_feature_layer=LAYER,
        vision_feature_select_strategy="default",
        image_seq_length=(tower.config.image_size // tower.config.patch_size) ** 2,
        tie_word_embeddings=False,
        **ids,
    )
    model = LlavaForConditionalGeneration(config)
    model.model.vision_tower.load_state_dict(tower.state_dict())
    return model
