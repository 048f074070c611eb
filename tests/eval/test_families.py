"""The suite runs on every family: images with markers, without CLIP, with multidimensional positions."""

import pytest
from support.cases import FAMILIES
from support.families import smooth_image

from covist.api.setup import Setup
from covist.eval.subject import Subject
from covist.eval.suite import Item
from covist.request.answer import compressed
from covist.tiny import Question

QUESTIONS = [("what is this ?", "the colour of that"), ("is that the colour ?", "what"), ("and this", "is this")]
ITEM = Item(0, tuple(Question("color", *asked) for asked in QUESTIONS), lambda: smooth_image(112, 84))


@pytest.mark.filterwarnings("ignore:no clip= given")
@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
def test_a_batch_with_a_shared_image_answers_like_single_requests(case):
    model, processor = case.model, case.chatting_processor()
    subject, item = Subject.resolve((model, processor)), ITEM
    with compressed(subject.loaded, Setup("covist-fixed", 6, 0.2)) as handle:
        together = subject.answer(item).texts
        kept = [image.stages[0].indices.tolist() for image in handle.report.images]
        for row, question in enumerate(item.questions):
            inputs = case.encode([case.turn.replace("{}", "{image}" + question.question)], [item.image])
            output = model.generate(**inputs, max_new_tokens=subject.room(item), do_sample=False)
            alone = processor.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            assert alone == [together[row]]
            assert handle.report.images[0].stages[0].indices.tolist() == kept[row]
