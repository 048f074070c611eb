"""The words of the photograph bed: vocabulary, tokenizer and processor of the model, in Hugging Face format."""

from collections import Counter
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import LlavaProcessor, PreTrainedModel, PreTrainedTokenizerFast

from covist.eval.photos.data import PROMPT
from covist.tiny.text import CHAT_TEMPLATE, END, IMAGE, PAD, START, UNKNOWN
from train.photos.towers import image_processor

SPECIAL = (PAD, START, UNKNOWN, END, IMAGE)
FEWEST = 4  # words that are rarer are unknown: nothing could be learned about them
_NORMALIZER = normalizers.Sequence(
    [normalizers.Lowercase(), normalizers.Replace(Regex("[^a-z0-9']+"), " ")]  # no capitals, no punctuation
)


def vocabulary(texts: Iterable[str]) -> dict[str, int]:
    """Token ids: the special tokens, the words of the prompt, then those of the texts, frequent ones first."""
    counts = Counter(word for text in texts for word in _NORMALIZER.normalize_str(text).split())
    prompt = _NORMALIZER.normalize_str(f"user {PROMPT} assistant").split()
    words = dict.fromkeys([*SPECIAL, *prompt, *(word for word, times in counts.most_common() if times >= FEWEST)])
    return {word: index for index, word in enumerate(words)}


def build_tokenizer(words: dict[str, int]) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel(words, unk_token=UNKNOWN))
    backend.normalizer = _NORMALIZER
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(single=f"{START} $A", special_tokens=[(START, words[START])])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=START,
        eos_token=END,
        unk_token=UNKNOWN,
        pad_token=PAD,
        extra_special_tokens={"image_token": IMAGE},
        padding_side="left",
    )


def build_processor(tokenizer: PreTrainedTokenizerFast, tower: PreTrainedModel) -> LlavaProcessor:
    return LlavaProcessor(
        image_processor=image_processor(tower),
        tokenizer=tokenizer,
        patch_size=tower.config.patch_size,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # the class token, which "default" drops
        image_token=IMAGE,
        chat_template=CHAT_TEMPLATE,
    )
