"""The words by which methods are classified: what decides which tokens stay, what they read, what they are made for."""

from __future__ import annotations

from covist.errors import CovistError

CRITERIA = {
    "attention": "how much attention it receives",
    "diversity": "how little it resembles the kept tokens",
    "coverage": "how well the kept tokens represent all tokens",
    "instruction": "how close it is to the question",
    "change": "how much the layers change it",
    "nothing": "nothing in the image: a control",
}
"""What mainly decides whether a token stays."""

NEEDS = {
    "class-attention": "attention of the class token, or received attention in a tower without one",
    "encoder-features": "features, keys or values of the vision tower",
    "encoder-layers": "attention, values or states of further vision-tower layers, recorded for this method only",
    "embeddings": "projected embeddings",
    "pixels": "pixels as the vision tower saw them",
    "clip-text": "CLIP's text space, where the model has one",
    "question": "input embeddings of the text in the decoder",
    "decoder-attention": "queries and keys of a decoder layer",
    "decoder-keys": "keys or values of a decoder layer",
    "decoder-states": "hidden states of a decoder layer",
}
"""Signals that a method reads if the model has them."""

NO_NEED = "none"
"""The filter word for methods that read no signal."""


MADE_FOR = ("image", "video")
"""What a method was published for. Every method takes both."""


def check_words(criterion: str, needs: tuple[str, ...] | None, made_for: str) -> None:
    """Refuse words outside the vocabulary; a method may leave criterion and needs unspecified."""
    if criterion not in ("", *CRITERIA):
        raise CovistError(f"criterion={criterion!r}: choose one of {', '.join(CRITERIA)}")
    for need in needs or ():
        if need not in NEEDS:
            raise CovistError(f"needs={need!r}: choose from {', '.join(NEEDS)}")
    if made_for not in MADE_FOR:
        raise CovistError(f"made_for={made_for!r}: choose one of {', '.join(MADE_FOR)}")
