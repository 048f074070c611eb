"""Selectors before the decoder against literal references, and the facts about the originals that are easily missed."""

import numpy as np
import pytest
import reference.selectors as literal
import torch
from support.images import FakeText, image

from covist.errors import CovistError
from covist.methods.create import create_method
from covist.methods.published.anchorprune import AnchorPrune
from covist.methods.published.cdpruner import CDPruner, most_probable_subset
from covist.methods.published.divprune import DivPrune
from covist.methods.published.fastervlm import FasterVLM
from covist.methods.published.holov import HoloV
from covist.methods.published.mmtok import MMTok, content_words
from covist.methods.published.scope import Scope
from covist.methods.published.vispruner import VisPruner
from covist.methods.random import Random
from covist.methods.relevance import bare_question
from covist.methods.shared import received_attention
from covist.methods.uniform import Uniform

COUNTS = [1, 2, 7, 18, 33]  # of 35 tokens, odd on purpose
SEEDS = [0, 1, 2]


def kept(method, context, count):
    outcome = method.begin(context, count)
    assert outcome.state.count == count
    return outcome.state.indices.tolist()


def arrays(context):
    signals = context.signals
    return (
        received_attention(signals).double().numpy(),
        signals.hidden.double().numpy(),
        signals.embeddings.double().numpy(),
    )


@pytest.fixture(params=SEEDS)
def context(request):
    return image(seed=request.param)


@pytest.mark.parametrize("count", COUNTS)
def test_fastervlm(context, count):
    assert kept(FasterVLM(), context, count) == literal.fastervlm(arrays(context)[0], count)


def test_a_head_counts_as_far_as_its_class_token_looks_at_patches(context):
    layer = context.signals.feeding
    states = (states[0].double().numpy() for states in (layer.class_query, layer.class_key, layer.keys))
    torch.testing.assert_close(arrays(context)[0], literal.class_attention(*states, layer.heads), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("important", [0.5, 0.75])
@pytest.mark.parametrize("count", COUNTS)
def test_vispruner_also_with_odd_lists(context, count, important):
    attention, hidden, _ = arrays(context)
    assert kept(VisPruner(important), context, count) == literal.vispruner(attention, hidden, count, important)


@pytest.mark.parametrize("count", COUNTS)
def test_divprune(context, count):
    assert kept(DivPrune(), context, count) == literal.divprune(arrays(context)[2], count)


@pytest.mark.parametrize("count", [1, 5, 12])
def test_cdpruner_maximises_the_determinant(count):
    context = image(seed=4, clip=True)
    text = FakeText().encode_segments("what color is the cat?").double().numpy()
    relevance = literal.published_relevance(context.patch_text_features.double().numpy(), text)
    assert kept(CDPruner(), context, count) == literal.cdpruner(arrays(context)[2], relevance, count)


def test_cdpruner_prefers_what_clip_finds_dissimilar():
    context = image(seed=4, clip=True)
    patches, segments = context.patch_text_features, FakeText().encode_segments("what color is the cat?")
    most_dissimilar = torch.stack([torch.cosine_similarity(patches, text[None]) for text in segments]).mean(0).argmin()
    assert kept(CDPruner(), context, 1) == [int(most_dissimilar)]


def test_cdpruner_without_clip_prefers_what_resembles_the_question():
    context = image(seed=4)
    question, tokens = context.instruction.embeddings, context.signals.embeddings
    mean = torch.stack([torch.cosine_similarity(tokens, word[None]) for word in question]).mean(0)
    assert kept(CDPruner(), context, 1) == [int(mean.argmax())]


@pytest.mark.parametrize("clip", [True, False], ids=["clip", "no clip"])
def test_cdpruner_without_relevance_looks_at_diversity_alone(clip):
    context = image(seed=4, clip=clip)
    ones = np.ones(context.grid.size)
    assert kept(create_method("cdpruner:relevance=none"), context, 7) == literal.cdpruner(arrays(context)[2], ones, 7)


def test_cdpruner_with_the_plain_sign_prefers_what_clip_finds_similar():
    context = image(seed=4, clip=True)
    patches, segments = context.patch_text_features, FakeText().encode_segments("what color is the cat?")
    most_similar = torch.stack([torch.cosine_similarity(patches, text[None]) for text in segments]).mean(0).argmax()
    assert kept(CDPruner("plain"), context, 1) == [int(most_similar)]
    with pytest.raises(CovistError, match="choose negated, plain or none"):
        CDPruner("positive")


def test_cdpruner_keeps_distinct_tokens_only_and_stops_where_the_determinant_is_used_up():
    """One token of each of three directions, and nothing else to gain."""
    directions = torch.eye(3)[torch.tensor([2, 0, 1, 0, 2, 1])]
    relevance = torch.tensor([1.0, 0.5, 0.25, 0.5, 1.0, 0.25])
    assert most_probable_subset(directions @ directions.T, relevance, 6).tolist() == [0, 1, 2]


def test_answer_hints_are_not_part_of_the_question():
    question = "what color is the cat?"
    context = image(clip=True, text=f"{question} Answer the question using a single word or phrase.")
    CDPruner().begin(context, 3)
    assert context.text_tower.asked == [question]
    assert bare_question("Answer the question using a single word or phrase.") == ""


@pytest.mark.parametrize("count", COUNTS)
def test_scope(context, count):
    attention, hidden, _ = arrays(context)
    assert kept(Scope(1.0), context, count) == literal.scope(hidden, attention, count)


@pytest.mark.parametrize("count", COUNTS)
def test_scope_without_attention_covers_as_much(context, count):
    """Not by the same tokens: of two that only resemble each other, each adds as much as the other."""
    attention, hidden, _ = arrays(context)
    found, expected = kept(Scope(0.0), context, count), literal.scope(hidden, attention, count, alpha=0.0)
    covered = [literal.cosines(hidden)[:, chosen].max(1).clip(0).sum() for chosen in (found, expected)]
    assert covered[0] == pytest.approx(covered[1], abs=1e-5)


@pytest.mark.parametrize("count", COUNTS)
def test_mmtok(context, count):
    _, hidden, embeddings = arrays(context)
    words = context.instruction.embeddings[[1, 4]].double().numpy()  # "color" and "cat"
    assert kept(MMTok(), context, count) == literal.mmtok(words, embeddings, hidden, count)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["What", " is", " the", " an", "imal", "?"], [3, 4]),
        (["where", " is", " it", "?"], [0, 1, 2, 3]),
        (["cat", "?", " Answer the question using", " a single word or phrase."], [0]),
        (["", "", ""], [0, 1, 2]),
        ([], []),
    ],
    ids=["parts of a word stay together", "nothing left", "answer hint", "unknown text", "no question"],
)
def test_mmtok_drops_words_that_say_nothing(pieces, expected):
    assert content_words(pieces).tolist() == expected


@pytest.mark.parametrize("views", [((5, 7),), ((3, 3),), ((8, 9),)], ids=["35", "9", "72"])
@pytest.mark.parametrize("count", [1, 4, 8])
def test_holov(views, count):
    context = image(views, seed=3)
    attention, _, embeddings = arrays(context)
    assert kept(HoloV(), context, count) == literal.holov(attention, embeddings, count)


def test_holov_redistributes_what_a_chunk_cannot_hold():
    context = image(((4, 8),), seed=1)
    attention, _, embeddings = arrays(context)
    for count in (20, 29, 31):  # chunks of two tokens
        assert kept(HoloV(), context, count) == literal.holov(attention, embeddings, count)


@pytest.mark.parametrize("count", COUNTS)
def test_anchorprune(count):
    context = image(seed=6, clip=True)
    attention, hidden, _ = arrays(context)
    patches = context.patch_text_features.double().numpy()
    text = FakeText().encode_segments("what color is the cat?").double().numpy()
    relevance = literal.published_relevance(patches, text)
    expected = literal.anchorprune(relevance, patches, attention, hidden, count)
    assert kept(AnchorPrune(), context, count) == expected


@pytest.mark.parametrize("count", COUNTS)
def test_anchorprune_without_clip_takes_the_best_matching_word(context, count):
    attention, hidden, embeddings = arrays(context)
    words = context.instruction.embeddings
    cosines = torch.stack([torch.cosine_similarity(context.signals.embeddings, word[None]) for word in words])
    relevance = cosines.amax(0).double().numpy()
    expected = literal.anchorprune(relevance, embeddings, attention, hidden, count)
    assert kept(AnchorPrune(), context, count) == expected


SELECTORS = [FasterVLM, VisPruner, DivPrune, CDPruner, Scope, MMTok, HoloV, AnchorPrune, Random, Uniform]


@pytest.mark.parametrize("method", SELECTORS)
@pytest.mark.parametrize("count", [1, 9, 20, 35])
def test_duplicates_never_cost_a_place(method, count):
    """Seven times the same five tokens: the originals pick tokens twice, divide by zero or stop early."""
    state = method().begin(image(copies=7, clip=True), count).state
    assert state.count == state.indices.unique().numel()
    assert state.count == count or method is CDPruner and min(5, count) <= state.count < count


@pytest.mark.parametrize("method", SELECTORS)
def test_no_class_token_and_no_question(method):
    context = image(class_token=False, text="")
    context.instruction = type(context.instruction)(torch.empty(0).long(), 37, "", lambda: torch.empty(0, 16))
    assert method().begin(context, 6).state.count == 6


def test_random_depends_on_seed_and_content_only():
    context = image(seed=0)
    first = kept(Random(), context, 9)
    context.signals.span += 1e-6  # the rounding of another batch size
    assert kept(Random(), context, 9) == first
    assert kept(Random(seed=1), context, 9) != first
    assert kept(Random(), image(seed=1), 9) != first


@pytest.mark.parametrize("views", [((12, 12),), ((5, 7), (10, 3)), ((1, 9),), ((9, 1),)])
def test_uniform_is_even_in_both_directions(views):
    context = image(views)
    for count in range(1, context.grid.size):
        indices = Uniform().select(context, count)
        assert len(indices.unique()) == count
    if views == ((12, 12),):
        rows, columns = Uniform().select(context, 36) // 12, Uniform().select(context, 36) % 12
        assert rows.bincount().tolist() == [0, 6] * 6 and columns.bincount().tolist() == [0, 6] * 6
