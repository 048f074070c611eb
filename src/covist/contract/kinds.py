"""The words in which methods are sorted: what decides which tokens stay, and which signals a method reads."""

from __future__ import annotations

from covist.errors import CovistError

GOES_BY = {
    "attention": "how much other tokens look at it",
    "diversity": "how little it resembles those that stay",
    "coverage": "how well those that stay stand for all",
    "instruction": "how close it is to what is asked",
    "change": "how much layers change it",
    "nothing": "nothing in the image: a control",
}
"""What mainly decides whether a token stays."""

NEEDS = {
    "class-attention": "attention of the class token, or the attention received in a tower without one",
    "encoder-features": "features, keys or values of the vision tower",
    "encoder-layers": "attention, values or states of further layers of the vision tower, kept for this method alone",
    "embeddings": "projected embeddings",
    "clip-text": "CLIP's text space, where the model has one",
    "question": "input embeddings of the text in the decoder",
    "decoder-attention": "queries and keys of a decoder layer",
    "decoder-states": "hidden states, keys or values of a decoder layer",
}
"""Signals that a method reads where the model has them."""

NO_NEED = "none"
"""How a filter asks for the methods that read no signal at all."""


def check_words(goes_by: str, needs: tuple[str, ...] | None) -> None:
    """Refuse words outside the vocabulary; a method may leave both unsaid."""
    if goes_by not in ("", *GOES_BY):
        raise CovistError(f"goes_by={goes_by!r}: choose {', '.join(GOES_BY)}")
    for need in needs or ():
        if need not in NEEDS:
            raise CovistError(f"needs={need!r}: choose among {', '.join(NEEDS)}")
