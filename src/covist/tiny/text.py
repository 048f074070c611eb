"""The word-level vocabulary, its tokenizer, and the processor, all in Hugging Face format."""

from collections.abc import Mapping

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import LlavaProcessor, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from covist.tiny.glyphs import DIGITS, LETTERS
from covist.tiny.questions import QUADRANTS, plural
from covist.tiny.scenes import COLORS, IMAGE_SIZE, PATCH, SHAPES, SIZES

# not in the order of the Llama vocabulary: an end token of 2 would switch CLIP's text tower to its legacy pooling
PAD, START, UNKNOWN, END, IMAGE = SPECIAL = ("<pad>", "<s>", "<unk>", "</s>", "<image>")
_WORDS = (
    "USER:", "ASSISTANT:", "?", ",", ".", "a", "an", "and", "the", "is", "are", "there", "what", "where", "how",
    "many", "color", "shape", "of", "object", "objects", "left", "right", "above", "below", "or", "first", "last",
    "digit", "letter", "number", "word", "yes", "no", "with", "in", "this", "picture",
)  # fmt: skip
VOCABULARY = (
    *SPECIAL,
    *_WORDS,
    *COLORS,
    *SHAPES,
    *map(plural, SHAPES),
    *SIZES,
    *QUADRANTS,
    *DIGITS,
    *LETTERS,
)
TOKEN_ID = {word: index for index, word in enumerate(VOCABULARY)}
CAPTION_LENGTH = 40

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}USER: {% else %}ASSISTANT: {% endif %}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>\n{% endif %}{% endfor %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}"
    "{% if message['role'] == 'user' %} {% else %}</s>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def prompt_for(question: str) -> str:
    """Write a question about one image in the embedded model's chat format.

    >>> covist.tiny.prompt_for("where is it?")
    'USER: <image>\\nwhere is it? ASSISTANT:'
    """
    return f"USER: {IMAGE}\n{question} ASSISTANT:"


def word_tokenizer(template: str, token_id: Mapping[str, int], **visual: str) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words; `visual` names the placeholders of images and videos among them."""
    backend = Tokenizer(models.WordLevel(dict(token_id), unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(r"[?,.]"), behavior="isolated")]
    )
    backend.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(token, token_id[token]) for token in (START, END)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=START,
        eos_token=END,
        unk_token=UNKNOWN,
        pad_token=PAD,
        extra_special_tokens=visual,
        padding_side="left",
        clean_up_tokenization_spaces=True,
    )


def build_tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer(f"{START} $A", TOKEN_ID, image_token=IMAGE)


def build_caption_tokenizer() -> PreTrainedTokenizerFast:
    """The same words for the CLIP text tower, which reads the feature at the end token."""
    tokenizer = word_tokenizer(f"{START} $A {END}", TOKEN_ID, image_token=IMAGE)
    tokenizer.padding_side, tokenizer.model_max_length = "right", CAPTION_LENGTH
    return tokenizer


def build_processor() -> LlavaProcessor:
    side = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    image_processor = CLIPImageProcessorPil(
        size=side, crop_size=side, do_center_crop=False, image_mean=[0.5] * 3, image_std=[0.25] * 3
    )
    return LlavaProcessor(
        image_processor=image_processor,
        tokenizer=build_tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # the class token, which "default" drops
        image_token=IMAGE,
        chat_template=CHAT_TEMPLATE,
    )
