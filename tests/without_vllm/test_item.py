"""An image or video on its way through vLLM: what it was, what remains, and how a batch of them is split."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from covist.vllm.item import Item, Part, argument_of, part_lengths, runs_of

START, IMAGE, ROW, END = 5, 1, 3, 6
TILED = [START, IMAGE, IMAGE, ROW, IMAGE, IMAGE, ROW, END]


def item(ids=tuple(TILED), count=2, **more) -> Item:
    embeds = torch.tensor(ids) == IMAGE
    ((length, tokens),) = zip(part_lengths(embeds, [int(embeds.sum())]), [int(embeds.sum())], strict=True)
    return Item("image", runs_of(ids, embeds), [Part(length, tokens, count, length)], **more)


def test_what_surrounds_an_image_stays_text_and_what_is_inside_becomes_rows():
    short = item()
    assert short.short_ids == [START, IMAGE, IMAGE, IMAGE, ROW, END]  # two tokens and the mark between them
    assert short.is_row(short.short_ids).tolist() == [False, True, True, True, False, False]
    assert short.rows == 3 and short.length == 5 and not short.is_whole
    assert item(count=4).is_whole and item(count=4).rows == 5


@given(st.lists(st.sampled_from([START, IMAGE, ROW]), min_size=1, max_size=30).filter(lambda ids: IMAGE in ids))
def test_an_item_travels_as_bytes(ids):
    sent = item(
        ids, 1, newlines=3, question={"text": "où ?", "tokens": [3], "pieces": ["où", " ?"]}, fields={"p": [0, 4]}
    )
    found = Item.unpack(sent.pack())
    assert found.ids == ids and torch.equal(found.embeds, torch.tensor(ids) == IMAGE)
    assert (found.parts, found.newlines, found.question, found.fields) == (
        sent.parts,
        sent.newlines,
        sent.question,
        sent.fields,
    )
    assert found.short_ids == sent.short_ids


def test_the_parts_of_a_video_divide_all_of_its_rows():
    embeds = torch.tensor([0, 1, 1, 0, 1, 1, 0, 1, 0]).bool()
    assert part_lengths(embeds, [2, 2, 1]) == [3, 3, 1]
    assert part_lengths(embeds, [5]) == [7] and part_lengths(embeds, [4]) == [7]  # with a newline at the end


def test_the_token_that_most_embeddings_replace_stands_for_all():
    ids = [2, IMAGE, IMAGE, 4]
    whole = Item("image", runs_of(ids, torch.ones(4, dtype=torch.bool)), [Part(4, 4, 2, 4)])
    assert whole.slot == IMAGE and whole.short_ids == [IMAGE, IMAGE]


def test_a_batch_is_split_by_lists_concatenations_and_what_all_share():
    sizes = [3, 1, 2]
    items = [item(fields={"pixels": [1, size], "shared": []}) for size in sizes]
    pixels = torch.arange(12).view(2, 6)
    arguments = {"pixels": pixels, "grids": ["a", "b", "c"], "shared": "same"}
    found = argument_of(arguments, items, slice(1, 3))
    assert torch.equal(found["pixels"], pixels[:, 3:]) and found["grids"] == ["b", "c"] and found["shared"] == "same"
