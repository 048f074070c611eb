"""A method that watches the decoder is shown every block of every layer, for each image by itself."""

import torch
from support.llava import IMAGE, LAYERS, TOKEN_ID, TOKENS, ask

import covist

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
TWO_IMAGES = "USER: where <image> and <image> what color is the left object ? ASSISTANT:"
CUT, COUNT = 3, TOKENS // 4


class Watcher(covist.Method):
    """Keeps every fourth token from layer 3 on, and all that it is shown."""

    name, watches_blocks = "watcher", True

    def __init__(self):
        super().__init__()
        self.albums = []

    def schedule(self, layers, budget, tokens):
        return covist.Schedule(layers, ((0, tokens), (CUT, tokens // 4)))

    def memory(self, image):
        self.albums.append([])
        return self.albums[-1]

    def see_block(self, memory, block: covist.BlockView):
        memory.append(block)

    def reduce(self, state, view, count):
        return covist.Reduction(state.restrict(torch.arange(0, state.count, 4)))


def watched(model, compress, inputs):
    """What a method is shown of a prompt, and what the blocks of the model were given and made in the same call."""
    method, blocks = Watcher(), []
    compress(model, method=method, budget=64)
    hooks = [
        block.register_forward_hook(
            lambda module, args, kwargs, output: blocks.append(
                (args[0] if args else kwargs["hidden_states"], output[0] if isinstance(output, tuple) else output)
            ),
            with_kwargs=True,
        )
        for layer in model.model.language_model.layers
        for block in (layer.self_attn, layer.mlp)
    ]
    try:
        model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return method.albums, blocks


def test_every_block_shows_the_representatives_of_each_image(multi_head, compress):
    inputs = ask(TWO_IMAGES, PROMPT)  # of different lengths, so that the second is padded
    albums, blocks = watched(multi_head, compress, inputs)
    assert [len(album) for album in albums] == [2 * LAYERS] * 3 and len(blocks) == 2 * LAYERS
    is_image = (inputs["input_ids"] == TOKEN_ID[IMAGE]) & (inputs["attention_mask"] != 0)
    places = [*is_image[0].nonzero()[:, 0].view(2, TOKENS), is_image[1].nonzero()[:, 0]]
    for number, (given, made) in enumerate(blocks[: 2 * CUT]):  # every token is still where it was
        for row, album, rows in zip((0, 0, 1), albums, places, strict=True):
            shown = album[number]
            assert shown.layer == number // 2 and shown.schedule.stages == ((0, TOKENS), (CUT, COUNT))
            assert shown.indices.tolist() == list(range(TOKENS))
            assert torch.equal(shown.given, given[row, rows]) and torch.equal(shown.made, made[row, rows])
    for number, (given, _) in enumerate(blocks[2 * CUT :], 2 * CUT):
        for row, album in zip((0, 0, 1), albums, strict=True):
            shown = album[number]
            assert shown.layer == number // 2 and shown.indices.tolist() == list(range(0, TOKENS, 4))
            assert shown.given.shape == shown.made.shape == (COUNT, given.shape[-1])
            assert torch.isin(shown.given[:, 0], given[row, :, 0]).all()


def test_decoding_shows_nothing(multi_head, compress):
    method = Watcher()
    compress(multi_head, method=method, budget=64)
    multi_head.generate(**ask(PROMPT), max_new_tokens=3, do_sample=False)
    assert [len(album) for album in method.albums] == [2 * LAYERS]


def test_other_methods_of_a_handle_are_shown_nothing(multi_head, compress):
    watching, idle = Watcher(), Watcher()
    idle.watches_blocks = False
    handle = compress(multi_head, method=watching, budget=64)
    with handle.using(method=idle):
        multi_head(**ask(PROMPT))
    assert idle.albums == [[]] and watching.albums == []


def test_a_combined_method_watches_too(multi_head, compress):
    handle = compress(multi_head, method="transprune+csc", budget=40, concentration=None)
    multi_head(**ask(PROMPT))
    combined = handle.report.images[0].stages[1].indices.tolist()
    handle.remove()
    handle = compress(multi_head, method="transprune", positions="keep", budget=40, concentration=None)
    multi_head(**ask(PROMPT))
    assert combined == handle.report.images[0].stages[1].indices.tolist()
