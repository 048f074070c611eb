"""`covist.Stream`: frames come one by one, what is held of them stays bounded, and questions may come at any moment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling

from covist.api.compress import compress
from covist.api.handle import Compression
from covist.budget import Budget, Count, Share, Total, Written
from covist.contract.family import unwrap
from covist.contract.signals import ImageSignals
from covist.engine.capture import execution_device
from covist.errors import CovistError
from covist.families.registry import family_for
from covist.methods.covist_max import CovistMax
from covist.methods.create import create_method
from covist.methods.streaming import EMBEDDING, StreamState
from covist.reduction import Reduction
from covist.report.stages import ImageReport, StageReport
from covist.request.decoding import generate
from covist.request.inputs import Request, prepare, require_videos
from covist.request.loading import LoadedModel
from covist.request.videos import FOLDER_RATE, Video
from covist.state import VisualState
from covist.units import counted

MOMENTS = 16
"""The default number of moments, that of frames elsewhere."""
HALF_LIFE = math.inf
"""In moments. Shorter ones answered less about the past on films (docs/video.md)."""
GRID = "video_grid_thw"
"""What processors for towers of any size say about a video: moments, rows and columns of patches."""


class Stream:
    """A video without an end, of which at most `budget` visual tokens are held; CoViST-Max's composition over time.

    model, processor: a model that sees a video as a whole, with a processor that takes videos
    budget: visual tokens for all of the stream, at least one for each moment
    moments: how many points in time the model is shown; the longer ago, the more frames share one
    half_life: moments after which evidence weighs half as much when representatives are chosen; by default it does not
    rate: frames per second, for models that are told the time
    method: "covist-max", or the same with options

    Until it is closed, the stream compresses the model as `covist.compress` does, or uses the handle that does so.

    >>> import covist
    >>> model, processor, _ = covist.load_model("tiny-video")
    >>> frames, question, answer = covist.tiny.films.film_demo()
    >>> with covist.Stream(model, processor, budget=128) as stream:
    ...     for frame in frames:
    ...         stream.add(frame)
    ...     print(stream.ask(question, max_new_tokens=4))
    9
    >>> stream
    Stream of 16 frames: 128 of 256 visual tokens in 16 moments
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        *,
        budget: Budget | Written,
        moments: int = MOMENTS,
        half_life: float = HALF_LIFE,
        rate: float = FOLDER_RATE,
        method: str = CovistMax.name,
    ):
        self._loaded = LoadedModel(type(unwrap(model)).__name__, model, processor)
        _check_model(self._loaded)
        if not isinstance(create_method(method), CovistMax):
            raise CovistError(f"method={method!r} cannot stream: only {CovistMax.name} reduces its own states further")
        for name, given in {"moments": moments, "half_life": half_life, "rate": rate}.items():
            if not given > 0:
                raise CovistError(f"{name}={given!r} must be positive")
        self.budget, self.moments = _tokens(budget, moments), moments
        self.half_life, self.rate, self.method = half_life, rate, method
        # Some models see two successive frames as one.
        vision: Any = family_for(model).model.config.vision_config
        self._together = int(getattr(vision, "temporal_patch_size", 1))
        self._own: Compression | None = None
        self.reset()

    def reset(self) -> None:
        """Forget all frames."""
        self._state: StreamState | None = None
        self._waiting: list[Image.Image] = []  # for those that the model sees together with them
        self._filled: StreamState | None = None  # the state with those that wait, once it was asked for
        self._look: _Look | None = None
        self._markers, self._stacked, self._count = torch.empty(0), False, 0

    def __len__(self) -> int:
        """How many frames were added."""
        return self._count

    def __repr__(self) -> str:
        state = self._state
        if state is None:
            return "Stream without a frame yet"
        kept = f"{state.count} of {state.grid.size} visual tokens"
        return f"Stream of {counted(self._count, 'frame')}: {kept} in {counted(len(state.lengths), 'moment')}"

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the model as it was. What is held stays; the stream goes on if a frame or a question comes."""
        if self._own is not None:
            self._own.remove()

    # -- frames --------------------------------------------------------------------------------------------------------

    def add(self, frame: Image.Image | np.ndarray) -> None:
        """Add the next frame: an image, or an array [height, width, 3] of bytes. Work and memory do not grow."""
        image = _image(frame)
        if self._look is None:
            self._look = _Look.of(self._loaded.processor, image, self._together, self.moments)
        waiting = [*self._waiting, self._look.fitted(image)]
        if len(waiting) == self._together:
            self._state, waiting = self._extended(waiting), []
        self._waiting, self._filled, self._count = waiting, None, self._count + 1

    def _extended(self, frames: Sequence[Image.Image]) -> StreamState:
        """The state with one more moment, no larger than it may be."""
        newest = self._encoded(frames)
        state = newest if self._state is None else self._state.followed_by(newest).within(self.moments)
        return state.reduced(self.budget, self.half_life)

    def _encoded(self, frames: Sequence[Image.Image]) -> StreamState:
        """One moment, by the model's own tower."""
        shown = [*frames, *[frames[-1]] * (self._together - len(frames))]
        request = Request.of_inputs(_seen(self._loaded.processor, shown))
        with torch.no_grad(), self._compressed().encoding() as signals:
            made = request.to(execution_device(self._loaded.model)).encode(self._loaded.model)["video"]
        if [one.grid.frames for one in signals] != [1] or not signals[0].content[: signals[0].grid.size].all():
            raise CovistError(f"{self._loaded.name} does not encode frames one by one, so it cannot stream")
        self._markers = signals[0].span[signals[0].grid.size :].clone()
        self._stacked = isinstance(made.pooler_output, Tensor)
        return StreamState.of(signals[0])

    def _compressed(self) -> Compression:
        """The handle of the model: its present one, or the stream's own."""
        handle = Compression.of(self._loaded.model)
        if handle is None:
            model, processor, _ = self._loaded
            handle = self._own = compress(model, processor, method=self.method, budget=Total(self.budget))
        return handle

    # -- questions -----------------------------------------------------------------------------------------------------

    def ask(self, question: str, max_new_tokens: int = 128) -> str:
        """The greedy answer to a question about what is held. The stream stays as it is."""
        with self.prompt(question) as inputs:
            written = generate(self._loaded.model, inputs, max_new_tokens)
        answer: str = self._loaded.processor.batch_decode(written, skip_special_tokens=True)[0]
        return answer.strip()

    @contextmanager
    def prompt(self, question: str) -> Iterator[dict[str, Any]]:
        """Arguments of the model's `generate` for a question, valid in a `with` block."""
        held = self._held()
        signals = held.signals(self._markers)
        request = prepare(self._loaded, [], question, videos=[self._video(held)])
        shown = int(family_for(self._loaded.model).image_mask(request.prompts["input_ids"], None).sum())
        if shown != len(signals.span):
            raise CovistError(
                f"{counted(len(held.lengths), 'moment')} of a video have {shown} tokens, those of the stream "
                f"{len(signals.span)}: the processor treats single frames differently; give larger or smaller frames, "
                "or fewer moments"
            )
        handle = self._compressed()
        with handle.using(method=self.method, budget=Share(held.count / held.owner.shape[0])):
            handle.expect(signals)
            yield request.bringing({"video": _features(signals, self._stacked)})

    def _held(self) -> StreamState:
        """The state, with frames that still wait for others: the model would repeat the last one."""
        if not self._count:
            raise CovistError("the stream has no frame yet; add one before asking")
        if self._filled is None:
            self._filled = self._extended(self._waiting) if self._waiting else self._state
        assert self._filled is not None, "there is a frame"
        return self._filled

    def _video(self, held: StreamState) -> Video:
        """Blank frames in place of the moments, with the times at which these were in their middle."""
        assert self._look is not None, "there is a frame"
        middles = [moment.start + (len(moment) - 1) // 2 for moment in _ranges(held.lengths)]
        numbers = [middle * self._together + frame for middle in middles for frame in range(self._together)]
        return Video((Image.new("RGB", self._look.size),) * len(numbers), tuple(numbers), numbers[-1] + 1, self.rate)

    # -- what is held --------------------------------------------------------------------------------------------------

    @property
    def spans(self) -> list[range]:
        """The frames that each moment stands for, counted from 0."""
        ranges = _ranges(self._held().lengths)
        return [range(one.start * self._together, min(one.stop * self._together, self._count)) for one in ranges]

    @property
    def report(self) -> ImageReport:
        """What is held, as a video of so many moments: representatives, their weights, and what each stands for."""
        held = self._held()
        state = VisualState.initial(held.contents[EMBEDDING], held.home, None, held.grid)
        stage = StageReport.of(0, Reduction(state.replace(indices=held.home, weights=held.weights), held.owner))
        layers = (held.count,) * len(family_for(self._loaded.model).decoder.layers)
        size, markers = held.owner.shape[0], len(self._markers)
        return ImageReport(0, held.grid, size, markers, self.budget, layers, layers, (stage,))

    @property
    def tokens(self) -> int:
        """Visual tokens that are held, without those of frames that wait for others."""
        return 0 if self._state is None else self._state.count

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors that are held between two frames."""
        return 0 if self._state is None else self._state.nbytes + self._markers.nbytes


def hold(stream: Stream, frames: Callable[[], Iterable[Image.Image]]) -> list[Image.Image]:
    """Add all frames, and return those in the middle of the moments, which a second run through `frames` finds."""
    for frame in frames():
        stream.add(frame)
    middles = {span[(len(span) - 1) // 2] for span in stream.spans}
    return [frame for number, frame in enumerate(frames()) if number in middles]


@dataclass(frozen=True)
class _Look:
    """What the frames of a stream look like to the model.

    given: the size of its first frame; None if the tower sees all frames in one size, whatever theirs is
    size:  in which the processor receives them
    """

    given: tuple[int, int] | None
    size: tuple[int, int]

    @classmethod
    def of(cls, processor: Any, frame: Image.Image, together: int, moments: int) -> _Look:
        alone, whole = (_seen(processor, [frame] * count).get(GRID) for count in (together, together * moments))
        if alone is None or whole is None:
            return cls(None, frame.size)
        if torch.equal(alone[0, 1:], whole[0, 1:]):
            return cls(frame.size, frame.size)
        # The processor makes the frames of a long video smaller: from the first one on, so that all are alike.
        rows, columns = (whole[0, 1:] * processor.video_processor.patch_size).tolist()
        return cls(frame.size, (columns, rows))

    def fitted(self, frame: Image.Image) -> Image.Image:
        if self.given not in (None, frame.size):
            shown, first = ("{} x {}".format(*size) for size in (frame.size, self.given))
            raise CovistError(f"a frame of {shown} pixels in a stream of {first}: this model needs one size; resize it")
        return frame if self.given is None or self.size == frame.size else frame.resize(self.size)


def _seen(processor: Any, frames: Sequence[Image.Image]) -> dict[str, Tensor]:
    """What the tower is given of some frames."""
    made = processor.video_processor(videos=[list(frames)], do_sample_frames=False, return_tensors="pt")
    return {name: values for name, values in made.items() if isinstance(values, Tensor)}


def _features(signals: ImageSignals, stacked: bool) -> BaseModelOutputWithPooling:
    """A video in the form in which the tower returns it: a list of videos, or all of them `stacked`."""
    made: Any = BaseModelOutputWithPooling()
    made.pooler_output = signals.span[None] if stacked else [signals.span]
    made.deepstack_features = [[features] for features in signals.companions.values()]
    return made


def _ranges(lengths: Sequence[int]) -> list[range]:
    return [range(end - length, end) for length, end in zip(lengths, accumulate(lengths), strict=True)]


def _check_model(loaded: LoadedModel) -> None:
    require_videos(loaded)
    if family_for(loaded.model).video != "compressed":
        raise CovistError(f"{loaded.name} sees a video as a series of images; a stream needs one that sees it whole")
    if getattr(loaded.processor, "video_processor", None) is None:
        raise CovistError(f"{type(loaded.processor).__name__} takes no videos; pass the model's processor")


def _tokens(budget: Budget | Written, moments: int) -> int:
    parsed = Budget.parse(budget)
    if not isinstance(parsed, (Count, Total)):
        raise CovistError(f"budget={budget!r}: a stream has no end, so its budget is a number of tokens for all of it")
    if parsed.tokens < moments:
        raise CovistError(f"budget={budget!r} is less than one token for each of {moments} moments; raise it")
    return parsed.tokens


def _image(frame: Image.Image | np.ndarray) -> Image.Image:
    if isinstance(frame, Image.Image):
        return frame.convert("RGB")
    if isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[-1] == 3:
        return Image.fromarray(frame)
    raise CovistError("a frame is a PIL image, or a numpy array [height, width, 3] of uint8")
