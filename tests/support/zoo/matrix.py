"""The checks of `make test-families`, by the names that its table has."""

from __future__ import annotations

from collections.abc import Callable

from covist.methods.create import create_method
from support import checks
from support.checks import TOLERANCE, Compress, Subject
from support.literal import Chosen
from support.zoo.animal import Animal

Check = Callable[[Compress, Animal], float]
METHOD = "covist-max"


def _inside(method: str) -> Check:
    """With a layer average that leaves something to remove in later layers."""
    return lambda compress, animal: checks.from_the_literal_reference(
        compress, animal, method, budget=max(6, animal.count(0) // 2)
    )


EXACT: dict[str, Check] = {
    "full budget": lambda compress, animal: checks.from_the_plain_model(compress, animal, METHOD),
    "undone": lambda compress, animal: checks.from_itself_before(compress, animal, METHOD),
}
CLOSE: dict[str, Check] = {
    "reference": lambda compress, animal: checks.from_the_literal_reference(compress, animal, METHOD),
    "two images": lambda compress, animal: checks.from_the_literal_reference(compress, animal, METHOD, images=2),
    "no cache": lambda compress, animal: checks.from_generation_without_a_cache(compress, animal, METHOD),
    "batch": lambda compress, animal: checks.from_the_prompts_alone(compress, animal, METHOD),
    "turn": lambda compress, animal: checks.from_one_conversation(compress, animal, METHOD),
    "beams": lambda compress, animal: checks.scores_of_beams(compress, animal, METHOD),
    "fixed": lambda compress, animal: checks.from_the_literal_reference(compress, animal, "covist-fixed"),
}
FILM: dict[str, Check] = {
    "video": lambda compress, animal: checks.from_the_literal_reference(compress, animal, METHOD, inputs=animal.film())
}
INSIDE: dict[str, Check] = {"pro": _inside("covist-pro"), "fastv": _inside("fastv")}
PLAIN: dict[str, Callable[[Animal], float]] = {
    "no cache": checks.of_the_cache,
    "batch": checks.of_the_batch,
    "turn": checks.of_the_turn,
    "beams": checks.of_the_beams,
}
"""What the plain model makes of the checks that it can be asked, too."""


def limit(animal: Animal, check: str) -> float:
    """How far a check may be off: by rounding, or where that is known, by twice what the plain model is, here."""
    if check in EXACT:
        return 0.0
    if check not in animal.entry.known:
        return TOLERANCE
    plain = PLAIN[check](animal)
    assert plain > TOLERANCE, f"the plain model passes {check}: state it no longer"
    return 2 * plain


def unevenness(compress: Compress, subject: Subject) -> float:
    """Of the tower's attention to an image, in which uniform attention is 0: the largest share over the mean."""
    method = create_method("covist-fixed")
    compress(subject.model, method=method, budget=subject.budget)
    with Chosen.by(method) as chosen:
        subject.model(**subject.prompt())
    received = chosen.signals[0].attention.mean(1)  # [tiles, patches]
    return float((received / received.mean(-1, keepdim=True)).max() - 1)
