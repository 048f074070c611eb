"""Words: the vocabulary covers every question, and the processor is a stock one."""

import torch
from PIL import Image
from transformers import AutoProcessor, AutoTokenizer, LlavaProcessor

from covist.tiny.questions import questions_for
from covist.tiny.scenes import GRID, sample_scene
from covist.tiny.text import END, IMAGE, TOKEN_ID, VOCABULARY, build_caption_tokenizer, build_processor, prompt_for


def test_words_are_unique():
    assert len(set(VOCABULARY)) == len(VOCABULARY)


def test_every_question_and_answer_survives_a_round_trip():
    tokenizer = build_processor().tokenizer
    for seed in range(60):
        for item in questions_for(sample_scene(seed), per_family=3):
            for text in (item.question, item.answer):
                ids = tokenizer(text).input_ids
                assert tokenizer.unk_token_id not in ids
                assert tokenizer.decode(ids, skip_special_tokens=True) == text
            assert len(tokenizer(item.answer, add_special_tokens=False).input_ids) == 1


def test_a_prompt_holds_one_placeholder_per_patch():
    processor = build_processor()
    inputs = processor(images=Image.new("RGB", (200, 120)), text=prompt_for("is there a ring?"), return_tensors="pt")
    assert inputs.pixel_values.shape == (1, 3, 96, 96)
    assert (inputs.input_ids == TOKEN_ID[IMAGE]).sum() == GRID * GRID


def test_the_chat_template_writes_the_prompt_of_the_training():
    processor = build_processor()
    question = "how many crosses are there?"
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}
    assert processor.apply_chat_template([message], add_generation_prompt=True) == prompt_for(question)
    reply = {"role": "assistant", "content": [{"type": "text", "text": "2"}]}
    assert processor.apply_chat_template([message, reply]) == f"{prompt_for(question)} 2{END}"


def test_auto_classes_load_what_was_saved(tmp_path):
    processor = build_processor()
    processor.save_pretrained(tmp_path)
    loaded = AutoProcessor.from_pretrained(tmp_path)
    assert isinstance(loaded, LlavaProcessor)
    image = Image.effect_noise((96, 96), 80).convert("RGB")
    one, other = (
        p(images=image, text=prompt_for("is there a ring?"), return_tensors="pt") for p in (processor, loaded)
    )
    assert torch.equal(one.input_ids, other.input_ids)
    assert torch.equal(one.pixel_values, other.pixel_values)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("is there a ring?").input_ids == processor.tokenizer("is there a ring?").input_ids


def test_captions_end_with_the_token_the_text_tower_pools():
    tokens = build_caption_tokenizer()(["a red circle", "a ring"], padding=True)
    assert all(TOKEN_ID[END] in ids for ids in tokens.input_ids)
    assert tokens.attention_mask[1] == [1, 1, 1, 1, 0]
