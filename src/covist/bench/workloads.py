"""What a benchmark runs: a model, and requests that are ready on its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from covist.bench.random_models import build_random
from covist.errors import CovistError
from covist.eval.suite import load_suite
from covist.request.inputs import Request, prepare
from covist.request.loading import LoadedModel
from covist.request.videos import Video
from covist.request.weights import find_device


@dataclass(frozen=True)
class Volume:
    """How much to run."""

    prompts: int = 10
    warmup: int = 2
    max_new_tokens: int = 16


@dataclass(frozen=True)
class Workload:
    """A model and its requests; warm-up requests differ from the timed ones if there are enough of them."""

    name: str
    loaded: LoadedModel
    warmup: Sequence[Request]
    requests: Sequence[Request]
    max_new_tokens: int
    instruction: str | None = None  # if no processor can read it from the prompt


def scene_workload(loaded: LoadedModel, volume: Volume) -> Workload:
    """Questions about the held-out scenes, one per image."""
    wanted = volume.prompts + volume.warmup
    items = load_suite("scenes").items(wanted)
    if len(items) < wanted:
        raise CovistError(f"the suite has {len(items)} images, too few for {wanted} prompts with warm-up; run fewer")
    requests = [
        prepare(loaded, [item.image], item.questions[item.number % len(item.questions)].question) for item in items
    ]
    return _of_model(loaded, "scenes", requests, volume)


def image_workload(
    loaded: LoadedModel, images: Sequence[Image.Image], prompt: str, volume: Volume, videos: Sequence[Video] = ()
) -> Workload:
    """One question about the user's own images and videos, asked repeatedly."""
    request = prepare(loaded, images, prompt, videos=videos)
    what = "own images" if images else "own videos"
    return _of_model(loaded, what, [request] * (volume.prompts + volume.warmup), volume)


def geometry_workload(name: str, scale: float, text: int, volume: Volume, device: str = "auto") -> Workload:
    """A random-weight model of a published geometry at the paper's resolution."""
    place = find_device(device)
    random = build_random(name, scale)
    requests = [
        Request.of_inputs({key: value.to(place) for key, value in random.request(seed, text).items()})
        for seed in range(volume.prompts + volume.warmup)
    ]
    return Workload(
        name=f"{name} x {scale:g}, random weights",
        loaded=LoadedModel(name, random.model.to(place), random.tokenizer, random.clip),
        warmup=requests[volume.prompts :],
        requests=requests[: volume.prompts],
        max_new_tokens=volume.max_new_tokens,
        # Its words are in the vocabulary of the random tower, which is that of the embedded model.
        instruction=None if random.clip is None else "is there a square in the picture?",
    )


def _of_model(loaded: LoadedModel, what: str, requests: Sequence[Request], volume: Volume) -> Workload:
    return Workload(
        name=f"{loaded.name}, {what}",
        loaded=loaded,
        warmup=requests[volume.prompts :],
        requests=requests[: volume.prompts],
        max_new_tokens=volume.max_new_tokens,
    )
