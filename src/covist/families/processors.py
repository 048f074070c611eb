"""Processors that work without torchvision, which the video half of transformers' processors needs: for images only, or
with a stand-in for the video half."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from covist.contract.family import Family
from covist.errors import CovistError

VIDEO_PART = "video_processor"
VIDEO_PACKAGE = "num2words"
"""A package that a processor may require when it is built, although only videos need it."""


def load_processor(family: type[Family], name: str, **options: Any) -> Any:
    """The processor of a checkpoint (a folder or a hub id). If torchvision is missing, its video half is the family's
    stand-in, or is left out.

    options: of `from_pretrained`, such as a revision
    """
    import transformers  # here, because plans import the family modules too and do not need transformers

    class_name = None if find_spec("torchvision") else family.processor or processor_name(name, **options)
    if class_name is None:
        return transformers.AutoProcessor.from_pretrained(name, **options)
    original = getattr(transformers, class_name)
    processor_class = without_torchvision(original)
    if VIDEO_PART not in processor_class.get_attributes():
        whole = transformers.AutoProcessor if processor_class is original else processor_class
        return whole.from_pretrained(name, **options)
    processor = image_only(processor_class).from_pretrained(name, **options)
    if family.video_stand_in is not None:
        from covist.families import _pil_videos

        stand_in = getattr(_pil_videos, family.video_stand_in)
        processor.video_processor = stand_in.of(name, processor.image_processor)
    return processor


def processor_name(name: str, **options: Any) -> str | None:
    """The processor class of a checkpoint's model type; None if transformers has none of its own for it."""
    from transformers import AutoConfig
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES  # type: ignore[attr-defined]

    found: str | None = PROCESSOR_MAPPING_NAMES.get(AutoConfig.from_pretrained(name, **options).model_type)
    return found


@cache
def without_torchvision(processor_class: Any) -> Any:
    """The real class behind a placeholder of transformers, if its file imports a torchvision image processor.

    The functions that it imports also exist in the image processor for PIL, and are taken from there.
    """
    if not getattr(processor_class, "is_dummy", False):
        return processor_class
    module = processor_class.__module__
    for_torchvision, for_pil = (module.replace("processing_", f"image_processing_{kind}") for kind in ("", "pil_"))
    sys.modules[for_torchvision] = import_module(for_pil)
    try:
        return getattr(import_module(module), processor_class.__name__)
    finally:
        del sys.modules[for_torchvision]


@cache
def image_only(processor_class: Any) -> Any:
    """A processor class without its video half. It is built, saved and loaded like the original, and refuses videos
    unless it is given a `video_processor` afterwards.

    transformers reads the parts of a processor from the constructor's signature, so the signature omits the video
    processor. The class keeps the original's name, because saved checkpoints contain it.
    """
    from transformers.processing_utils import ProcessorMixin

    parts = processor_class.get_attributes()
    signature = inspect.signature(processor_class.__init__)
    kept = [parameter for name, parameter in signature.parameters.items() if name != VIDEO_PART]
    settings = set(signature.parameters) - {*parts, "self", "kwargs"}

    class PartsWithoutVideo(ProcessorMixin):
        """Sits between the original and its base class, to which the original passes all parts in its own order."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            given = {**dict(zip(parts, args, strict=True)), **kwargs}
            super().__init__(**{name: part for name, part in given.items() if name != VIDEO_PART})

    class ImagesAlone(processor_class, PartsWithoutVideo):
        video_processor = SimpleNamespace(num_frames=None, fps=None)  # read by chat templates

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            given = inspect.Signature(kept).bind(self, *args, **kwargs).arguments
            with _stand_in_for_package(processor_class):
                super().__init__(**{VIDEO_PART: None, **given.pop("kwargs", {}), **_without_self(given)})

        @classmethod
        def from_args_and_dict(cls, args: list[Any], processor_dict: dict[str, Any], **kwargs: Any) -> Any:
            """Like the original, which finds out from its constructor's code what a checkpoint may set."""
            found = dict(zip(cls.get_attributes(), args, strict=True))
            stored = {**processor_dict, **kwargs}
            return cls(**found, **{name: stored[name] for name in settings if name in stored})

        def __call__(self, *args: Any, videos: Any = None, **kwargs: Any) -> Any:
            if videos is None:
                return super().__call__(*args, **kwargs)
            if VIDEO_PART not in vars(self):
                raise CovistError(
                    f"this processor handles images only; use {processor_class.__name__} with torchvision for videos"
                )
            return super().__call__(*args, videos=videos, **kwargs)

    ImagesAlone.__init__.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    ImagesAlone.__name__ = processor_class.__name__
    return ImagesAlone


def _without_self(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name != "self"}


@contextmanager
def _stand_in_for_package(processor_class: Any) -> Iterator[None]:
    """Let a constructor succeed that requires a package which only videos need."""
    module = sys.modules[processor_class.__module__]
    missing = vars(module).get(VIDEO_PACKAGE, module) is None
    if missing:
        setattr(module, VIDEO_PACKAGE, VIDEO_PACKAGE)
    try:
        yield
    finally:
        if missing:
            setattr(module, VIDEO_PACKAGE, None)
