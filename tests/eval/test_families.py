"""The suite runs on every family: images with markers, without CLIP, with multidimensional positions."""

import pytest
from support.families import llava_next, llava_next_processor, qwen, qwen_processor, smooth_image

from covist.eval.subject import Subject
from covist.eval.suite import Item
from covist.request.answer import Configuration, compressed
from covist.tiny import Question

TEMPLATE = (
    "{% for message in messages %}USER: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}PLACEHOLDER{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %} ASSISTANT:{% endfor %}"
)
FAMILIES = {
    "llava-next": (llava_next, llava_next_processor, "<image>"),
    "qwen2.5-vl": (qwen, qwen_processor, "<|vision_start|><|image_pad|><|vision_end|>"),
}
QUESTIONS = [("what is this ?", "the colour of that"), ("is that the colour ?", "what"), ("and this", "is this")]
ITEM = Item(0, tuple(Question("color", *asked) for asked in QUESTIONS), lambda: smooth_image(112, 84))


@pytest.mark.filterwarnings("ignore:no clip= given")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_with_a_shared_image_answers_like_single_requests(family):
    build, build_processor, placeholder = FAMILIES[family]
    model, processor = build(), build_processor()
    processor.chat_template = TEMPLATE.replace("PLACEHOLDER", placeholder)
    subject, item = Subject.resolve((model, processor)), ITEM
    with compressed(subject.loaded, Configuration("covist-fixed", 6), concentration=0.2) as handle:
        together = subject.answer(item)
        kept = [image.stages[0].indices.tolist() for image in handle.report.images]
        for row, question in enumerate(item.questions):
            prompt = f"USER: {placeholder}{question.question} ASSISTANT:"
            inputs = processor(text=[prompt], images=[item.image], return_tensors="pt")
            output = model.generate(**inputs, max_new_tokens=subject._answer_tokens(item), do_sample=False)
            alone = processor.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            assert alone == [together[row]]
            assert handle.report.images[0].stages[0].indices.tolist() == kept[row]
