"""Every vision-language type of transformers with visual tokens in a decoder: what compression must leave equal.

`make test` checks one type of each kind, `make test-families` all of them. The figures go into docs/families-matrix.md.
"""

import pytest
from support import checks
from support.checks import TOLERANCE
from support.zoo import ZOO
from support.zoo.animal import animal
from support.zoo.matrix import CLOSE, EXACT, FILM, INSIDE, METHOD, PLAIN, limit, unevenness

from covist.errors import CovistError

ONE_OF_EACH_KIND = {
    "gemma3": "masks of windows and of whole images, made before the text model",
    "gemma3n": "keys of other layers, and inputs for every layer",
    "gemma4": "heads that differ by layer",
    "glm4v": "three axes of positions",
    "kimi_k25": "latent keys",
    "lfm2_vl": "convolutions",
    "llama4": "chunks, and features that are projected later",
    "molmo2": "features that are added to embeddings",
    "paligemma": "a prefix that sees all of itself",
    "qwen3_5": "linear attention",
}
OFTEN = ("full budget", "reference", "batch", "no cache", "turn")


def cases(names):
    """(type, check) for the given checks; most are only for `make test-families`."""
    return pytest.mark.parametrize(
        ("name", "check"),
        [
            pytest.param(
                name,
                check,
                id=f"{name}-{check}",
                marks=() if name in ONE_OF_EACH_KIND and check in OFTEN else pytest.mark.families,
            )
            for name in ZOO
            for check in names
        ],
    )


@pytest.fixture
def note(record_property, request):
    """Write a figure down for the table."""

    def write(figure):
        given = request.node.callspec.params
        known = ZOO[given["name"]].known.get(given["check"])
        for key, value in (*given.items(), ("figure", f"{figure}; {known}" if known else figure)):
            record_property(key, value)
        return figure

    return write


@cases({**EXACT, **CLOSE})
def test_a_compressed_model_is_what_it_should_be(compress, note, name, check):
    subject, how = animal(name), {**EXACT, **CLOSE}[check]
    if check in subject.entry.fails:
        with pytest.raises((IndexError, ValueError)):
            PLAIN[check](subject)
        note(f"the plain model fails: {subject.entry.fails[check]}")
    else:
        most = limit(subject, check)  # of the plain model, so before it is compressed
        assert note(how(compress, subject)) <= most


@cases(INSIDE)
def test_reductions_inside_the_decoder_are_the_literal_reference(compress, note, name, check):
    subject = animal(name)
    if subject.entry.unread:
        with pytest.raises(CovistError, match="cannot be read|keys of another layer"):
            INSIDE[check](compress, subject)
        note(f"refused: {subject.entry.unread}")
    else:
        assert note(INSIDE[check](compress, subject)) <= TOLERANCE


@cases(FILM)
def test_videos_are_the_literal_reference(compress, note, name, check):
    subject = animal(name)
    if subject.entry.film is None:
        pytest.skip("takes no video")
    if check in subject.entry.fails:
        with pytest.raises((RuntimeError, TypeError)):
            subject.model(**subject.film())
        note(f"the plain model fails: {subject.entry.fails[check]}")
    else:
        assert note(FILM[check](compress, subject)) <= TOLERANCE


@cases(["bfloat16"])
def test_half_precision_gives_numbers(compress, note, name, check):
    finite = checks.in_bfloat16(compress, animal(name), METHOD).isfinite().all()
    assert note("runs" if finite else "not finite") == "runs"


@cases(["tower"])
def test_the_attention_of_the_tower_is_read(compress, note, name, check):
    subject = animal(name)
    uneven = unevenness(compress, subject)
    note(f"uniform: {subject.entry.blind}" if subject.entry.blind else "read")
    assert (uneven < 1e-6) == bool(subject.entry.blind)


def test_every_type_that_could_run_is_here():
    """Types that transformers lists, but for those that are refused."""
    from transformers import CONFIG_MAPPING

    from covist.families.refusals import image_text_models, refusal

    there = {entry.model_type for entry in ZOO.values()}
    assert {kind for kind in image_text_models() if refusal(CONFIG_MAPPING[kind]()) is None} == there
