"""What a method remembers about an image from one reduction inside the decoder to the next."""

from support.llava import LAYERS, ask

import covist

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
CUTS = (1, 2)


class Diary(covist.Method):
    """Halves every image twice inside the decoder, and writes down when."""

    name = "diary"

    def __init__(self):
        super().__init__()
        self.diaries = []

    def schedule(self, layers, budget, tokens):
        return covist.Schedule(layers, ((0, tokens), (CUTS[0], tokens // 2), (CUTS[1], tokens // 4)))

    def memory(self, image):
        self.diaries.append([image.grid.size])
        return self.diaries[-1]

    def reduce(self, state, view, count):
        view.memory.append(view.depth)
        return covist.Reduction(state.restrict(view.visual.argsort()[:count]))


def test_every_image_of_every_prompt_has_a_memory_of_its_own(multi_head, compress):
    """Also rows with one image and question, which share their first state."""
    assert max(CUTS) < LAYERS
    method, inputs = Diary(), ask(PROMPT)
    compress(multi_head, method=method)
    twice = {name: value.repeat(2, *[1] * (value.dim() - 1)) for name, value in inputs.items()}
    multi_head(**twice)
    tokens = method.diaries[0][0]
    assert method.diaries == [[tokens, *CUTS]] * 2
    multi_head(**inputs)
    assert len(method.diaries) == 3


def test_without_a_memory_of_its_own_a_method_finds_none(multi_head, compress):
    found = []

    class Forgetful(Diary):
        def memory(self, image):
            return covist.Method.memory(self, image)

        def reduce(self, state, view, count):
            found.append(view.memory)
            return covist.Reduction(state.restrict(view.visual.argsort()[:count]))

    compress(multi_head, method=Forgetful())
    multi_head(**ask(PROMPT))
    assert found == [None, None]
