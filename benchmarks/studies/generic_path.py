"""What a model loses that no family file serves: the generic path against the file, on the embedded models.

    PYTHONPATH=benchmarks python -m studies.generic_path --model tiny --limit 30 --out answers

file         the family file of the class
generic      the generic family: attention, keys and features of the tower, read where the tower computes them, and the
             question by the attention of the first decoder layer instead of CLIP's text tower
embeddings   the same without the tower's features and keys: projected embeddings stand for both
uniform      the generic family without the tower's attention: every patch receives the same

CoViST-Max reads only features. Where those of the generic family equal those of the file, as a line tells, so do its
answers; where they do not, it has read embeddings.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from covist.budget import Count
from covist.contract.encoder import EncoderRequest
from covist.contract.family import Family, Removable, RequestedNow, SignalSink
from covist.contract.signals import ImageSignals
from covist.eval.records import Run
from covist.eval.subject import Subject
from covist.eval.suite import load_suite
from covist.families.generic import Generic
from covist.families.registry import family_for, register_family
from studies.variants import Study, Variant, table, written

MAX, FIXED = "covist-max", "covist-fixed"
SUITES = {"tiny": "scenes", "tiny-next": "scenes-hd"}
FILE = "file"


@register_family
class Read(Generic):
    """The generic family for a class that has a file, under another name of the class."""

    name, model_classes = "generic-read", ("ReadByGeneric",)

    def capture(
        self, sink: SignalSink, requests: Sequence[EncoderRequest] = (), requested_now: RequestedNow | None = None
    ) -> list[Removable]:
        return super().capture(lambda images: sink([self.known(image) for image in images]), requests, requested_now)

    def known(self, image: ImageSignals) -> ImageSignals:
        return image


@register_family
class Embeddings(Read):
    name, model_classes = "generic-embeddings", ("ReadByEmbeddings",)

    def known(self, image: ImageSignals) -> ImageSignals:
        return replace(image, read_hidden=lambda: image.embeddings, read_keys=lambda: image.embeddings)


@register_family
class Uniform(Read):
    name, model_classes = "generic-uniform", ("ReadUniformly",)

    def known(self, image: ImageSignals) -> ImageSignals:
        def even() -> torch.Tensor:
            read = image.read_attention()
            return torch.full_like(read, 1 / read.shape[-1])

        return replace(image, read_attention=even, feeding=None)


VARIANTS: dict[str, tuple[type[Family], tuple[str, ...]]] = {
    "generic": (Read, (FIXED,)),
    "embeddings": (Embeddings, (MAX, FIXED)),
    "uniform": (Uniform, (FIXED,)),
}


@contextmanager
def served_by(family: type[Family], subject: Subject) -> Iterator[None]:
    """Families are found by the names of a model's class and its ancestors, the class first.

    The generic family does not know that a tower is CLIP's, so the question is not read by CLIP's text tower either.
    """
    loaded, own = subject.loaded, type(subject.model)
    loaded.model.__class__ = type(family.model_classes[0], (own,), {})
    subject.loaded = replace(loaded, clip=None)
    try:
        yield
    finally:
        subject.loaded, loaded.model.__class__ = loaded, own


def first_features(study: Study) -> torch.Tensor:
    """Features of the first image, [N, v]."""
    images: list[ImageSignals] = []
    hooks = family_for(study.subject.model).capture(images.extend)
    try:
        study.subject.requests(study.items[0])[0].encode(study.subject.model)
    finally:
        for hook in hooks:
            hook.remove()
    return images[0].hidden


def comparison(study: Study) -> str:
    """How the features of the generic family compare with those of the file."""
    expected = first_features(study)
    with served_by(Read, study.subject):
        read = first_features(study)
    if read.shape != expected.shape:
        return f"features: {tuple(expected.shape)} by the file, {tuple(read.shape)} by the generic family"
    return f"features: largest difference {(read - expected).abs().max():.1g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SUITES, default="tiny")
    parser.add_argument("--budgets", type=int, nargs="+", default=[192, 64, 32, 16])
    parser.add_argument("--limit", type=int, default=30, help="images")
    parser.add_argument("--out", type=Path, required=True, help="folder of answers")
    options = parser.parse_args()
    suite = load_suite(SUITES[options.model])
    study = Study(suite, options.limit, Subject.resolve(options.model), options.out)

    def runs(method: str) -> list[Run]:
        return [Run(method, Count(budget)) for budget in options.budgets]

    study.measure(Variant(FILE, lambda subject: nullcontext(), [study.vanilla, *runs(MAX), *runs(FIXED)]))
    rows = [[f"{name}, {FILE}", *(written(study.retention(FILE, run)) for run in runs(name))] for name in (MAX, FIXED)]
    for variant, (family, methods) in VARIANTS.items():
        both = [run for method in methods for run in runs(method)]
        study.measure(Variant(variant, partial(served_by, family), both))
        rows += [
            [f"{name}, {variant} - {FILE}", *(written(study.gain(variant, FILE, run), "+") for run in runs(name))]
            for name in methods
        ]
    print(comparison(study))
    print(f"{options.model}: {written(study.accuracy())} % right uncompressed, {len(study.items)} images\n")
    print(table(["", *map(str, options.budgets)], rows))


if __name__ == "__main__":
    main()
