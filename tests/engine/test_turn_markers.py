"""Turns are found by what the chat template writes, by marks that are given, or by marks of widely used templates."""

import pytest
import torch
from support.llava import ask, processor
from support.requests import greedy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from covist.engine.question import InstructionReader, TurnMarkers
from covist.errors import CovistError
from covist.families.registry import family_for

LLAMA_3 = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    "+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nbe kind<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)
VICUNA = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] + ' ' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
OWN = (
    "{% for message in messages %}{{ '(Q) ' if message['role'] == 'user' else '(A) ' }}{{ message['content'] + ' ' }}"
    "{% endfor %}{% if add_generation_prompt %}(A){% endif %}"
)
TEMPLATES = {
    "llama-3": (
        LLAMA_3,
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>",
        "<|start_header_id|>user<|end_header_id|>",
    ),
    "chatml": (CHATML, "<|im_end|>\n<|im_start|>assistant", "<|im_end|>\n<|im_start|>user"),
    "mistral": (MISTRAL, "[/INST]", "[INST]"),
    "vicuna": (VICUNA, "ASSISTANT:", "USER:"),
    "a template of one's own": (OWN, "(A)", "(Q)"),
}
SPECIAL = (
    *("<s>", "</s>", "<unk>", "<image>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|im_start|>", "<|im_end|>"),
)
WORDS = (
    *("user", "assistant", "system", "be", "kind", "what", "is", "this", "that", "and", "red", "where", "look", "at"),
    *("USER:", "ASSISTANT:", "[INST]", "[/INST]", "(Q)", "(A)", "\n", "\n\n", "?"),
)


def tokenizer(template):
    """One token per word, with or without a space before it; decoding gives the text back."""
    pieces = (*SPECIAL, "▁", *WORDS, *("▁" + word for word in WORDS))
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(pieces)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.Metaspace(prepend_scheme="never")]
    )
    words.decoder = decoders.Metaspace(prepend_scheme="never")
    fast = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.add_special_tokens({"additional_special_tokens": list(SPECIAL[3:])})
    fast.chat_template = template
    return fast


def rendered(fast, *texts):
    """A conversation; parts of a template that wants parts, texts elsewhere."""
    parts = "selectattr" in fast.chat_template
    roles = ("user", "assistant") * len(texts)

    def content(text):
        if not parts:
            return text
        images = [{"type": "image"}] * text.count("<image>")
        return [*images, {"type": "text", "text": text.replace("<image>", "").strip()}]

    messages = [{"role": role, "content": content(text)} for role, text in zip(roles, texts, strict=False)]
    return fast.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def read(model, fast, text, image=0, **options):
    ids = torch.tensor(fast(text, add_special_tokens=False).input_ids)
    assert fast.unk_token_id not in ids.tolist()
    is_text = ids != fast.convert_tokens_to_ids("<image>")
    reader = InstructionReader(family_for(model), fast, None, **options)
    end = int((~is_text).nonzero()[image]) + 1
    instruction = reader.read(ids, is_text, end, torch.zeros(len(ids), 1))
    return instruction, fast.decode(ids[instruction.rows])


@pytest.mark.parametrize("template, assistant, user", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_markers_are_what_the_template_writes(multi_head, template, assistant, user):
    markers = TurnMarkers.resolve(None, family_for(multi_head), tokenizer(template))
    assert markers.assistant[0] == assistant and markers.user[0] == user
    assert set(family_for(multi_head).assistant_markers) <= set(markers.assistant)  # prompts written by hand


@pytest.mark.parametrize("template", [case[0] for case in TEMPLATES.values()], ids=TEMPLATES.keys())
def test_each_turn_has_its_own_instruction(multi_head, template):
    fast = tokenizer(template)
    text = rendered(fast, "<image> what is this ?", "red", "<image> and that ?")
    for image, expected in enumerate(("what is this ?", "and that ?")):
        instruction, rows = read(multi_head, fast, text, image)
        assert instruction.text == expected
        assert rows.strip() == expected


@pytest.mark.parametrize("template", [LLAMA_3, CHATML, MISTRAL, OWN], ids=["llama-3", "chatml", "mistral", "own"])
def test_text_before_the_image_begins_with_its_turn(multi_head, template):
    fast = tokenizer(template)
    text = rendered(fast, "where is this ?", "red", "look at that <image>")
    assert read(multi_head, fast, text)[0].text == "look at that"
    assert read(multi_head, fast, rendered(fast, "look at that <image>"))[0].text == "look at that"


def test_llama_3_prompts_are_read_without_a_template_too(multi_head):
    text = rendered(tokenizer(LLAMA_3), "<image> what is this ?", "red", "and that ?")
    assert read(multi_head, tokenizer(None), text)[0].text == "what is this ?"


@pytest.mark.parametrize("template", [None, "{{ raise_exception('no') }}", "{{ messages[0] }}", "nothing"])
def test_an_unusable_template_leaves_the_known_markers(multi_head, template):
    family = family_for(multi_head)
    assert TurnMarkers.resolve(None, family, tokenizer(template)).assistant == family.assistant_markers


def test_markers_can_be_given(multi_head):
    fast = tokenizer(None)
    text = "(Q) look at this <image> (A) red (Q) what is that ? (A)"
    assert read(multi_head, fast, text)[0].text == "(A) red (Q) what is that ? (A)"  # nothing marks the turns
    given = {"assistant": "(A)", "user": ["(Q)"]}
    assert read(multi_head, fast, text, turn_markers=given)[0].text == "look at this"
    assert read(multi_head, fast, text, turn_markers={"assistant": "(A)"})[0].text == "(Q) look at this"


def test_given_markers_reach_the_instruction_of_a_request(multi_head, compress):
    """The prompt ends the question in words that only the user knows to be a mark."""
    maps = []
    for prompt, options in (
        ("USER: <image> what color ? there is the word", {"turn_markers": {"assistant": "there is"}}),
        ("USER: <image> what color ? there is the word", {}),
        ("USER: <image> what color ?", {}),
    ):
        handle = compress(multi_head, budget=24, **options)
        greedy(multi_head, ask(prompt), 1)
        maps.append(handle.report.images[0].stages[0].maps["instruction"])
        handle.remove()
    assert torch.equal(maps[0], maps[2]) and not torch.equal(maps[1], maps[2])


@pytest.mark.parametrize(
    "given",
    ["(A)", ("(A)",), {}, {"user": "(Q)"}, {"assistant": ""}, {"assistant": []}, {"assistant": 3}, {"bot": "(A)"}],
)
def test_bad_markers_are_refused_in_one_line(multi_head, compress, given):
    with pytest.raises(CovistError, match="turn_markers") as refusal:
        compress(multi_head, turn_markers=given)
    assert "\n" not in str(refusal.value)


def test_markers_without_a_tokenizer_are_refused(multi_head, compress):
    with pytest.raises(CovistError, match="turn_markers= needs the processor"):
        compress(multi_head, processor=None, turn_markers={"assistant": "(A)"})


def test_the_template_of_a_whole_processor_is_read(multi_head):
    markers = TurnMarkers.resolve(None, family_for(multi_head), processor())
    assert markers.assistant[0] == "ASSISTANT:" and markers.user[0] == "USER:"
