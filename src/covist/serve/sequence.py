"""One answer that is waiting or being generated."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal

from covist.api.setup import Setup
from covist.report.stages import ImageReport
from covist.serve.constraint import Constraint
from covist.serve.prompts import ChatPrompt
from covist.serve.sampling import Chances, Drawing, Sampling
from covist.serve.text import Detokenizer, StopStrings


@dataclass(frozen=True)
class PromptCost:
    """The cost of the images and the prompt of an answer."""

    visual_tokens: float  # before compression
    visual_tokens_kept: float  # after it, averaged over layers
    cache_bytes: float  # keys and values of the prompt
    cache_bytes_uncompressed: float
    flops: float  # prefill of the decoder, Eq. 19
    flops_uncompressed: float
    certificates: tuple[dict[str, Any] | None, ...] = ()  # of its images
    images: tuple[ImageReport, ...] = field(default=(), repr=False, compare=False)  # empty for the plain model


@dataclass(frozen=True)
class TokenChance:
    """The text of a token of an answer, and the likeliest ones in its place, each with a logarithm of its chance."""

    text: str
    logprob: float
    likeliest: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Written:
    """More text of an answer, and the chances of its tokens if the request asks for them."""

    text: str
    chances: tuple[TokenChance, ...] = ()


@dataclass(frozen=True)
class Finished:
    """The end of an answer."""

    reason: Literal["stop", "length"]
    tokens: int
    cost: PromptCost
    waited: float  # seconds from the arrival to the start of its batch
    first_token: float  # seconds from the arrival to the first token
    prefill: float  # seconds in which its batch had the model, up to the first token
    computed: float  # seconds in which its batch had the model, up to the end


@dataclass(frozen=True)
class Failed:
    """The generation failed, or was ended; a `Refusal` says what the client is told."""

    error: BaseException


Event = Written | Finished | Failed


@dataclass(eq=False)
class Sequence:
    """An answer to generate, and the listener of its events. `cancel` may be called from any thread."""

    prompt: ChatPrompt
    setup: Setup
    listen: Callable[[Event], None]
    max_tokens: int = 128
    sampling: Sampling = Sampling()
    stops: tuple[str, ...] = ()
    constraint: Constraint | None = None
    arrived: float = field(default_factory=monotonic)
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True

    def fail(self, error: BaseException) -> None:
        """End it, and tell its listener why; nobody is told of one that was cancelled."""
        if not self.cancelled:
            self.cancelled = True
            self.listen(Failed(error))


class RunningSequence:
    """A sequence in a running batch."""

    def __init__(self, sequence: Sequence, tokenizer: Any, ends: Collection[int]):
        self.sequence = sequence
        self._text, self._stops = Detokenizer(tokenizer), StopStrings(sequence.stops)
        self._ends = ends
        self.drawing = Drawing(sequence.sampling, sequence.prompt.token_ids, sequence.constraint)
        self._chances: list[TokenChance] = []  # of tokens whose text is held back
        self._repeating = 0  # tokens that are still to come again
        self._started = monotonic()
        self._first_token = self._started
        self._prefill = 0.0
        self.is_done = False

    def start(self) -> None:
        """Begin an attempt; the tokens of an earlier one, whose batch failed, come again and are not passed on."""
        self._repeating = len(self.drawing.tokens)

    def take(self, token: int, cost: PromptCost, computed: float = 0.0) -> bool:
        """Take the next token; returns True after the last. `computed`: seconds in which its batch had the model."""
        if self.is_done or self.sequence.cancelled:
            self.is_done = True
            return True
        if self._repeating:
            self._repeating -= 1
            return False
        if self.drawing.refusal is not None:
            self.fail(self.drawing.refusal)
            return True
        is_end = token in self._ends
        if not is_end and self.drawing.chances is not None:
            self._chances.append(self._chance(token, self.drawing.chances))
        self.drawing.add(token)
        count = len(self.drawing.tokens)
        if count == 1:
            self._first_token, self._prefill = monotonic(), computed
        text = self._stops.add("" if is_end else self._text.add(token))
        is_ended = is_end or self._stops.found or self.drawing.is_complete
        is_last = is_ended or count == self.sequence.max_tokens
        if is_last and not self._stops.found:
            text += self._stops.add(self._text.rest())
            text += "" if self._stops.found else self._stops.rest()
        if text:
            self.sequence.listen(Written(text, tuple(self._chances)))
            self._chances.clear()
        if is_last:
            self._finish("stop" if is_ended else "length", cost, computed)
        return self.is_done

    def _chance(self, token: int, chances: Chances) -> TokenChance:
        piece = self._text.piece
        likeliest = tuple((piece(other), logprob) for other, logprob in chances.likeliest)
        return TokenChance(piece(token), chances.taken, likeliest)

    def fail(self, error: BaseException) -> None:
        if not self.is_done:
            self.is_done = True
            self.sequence.fail(error)

    def _finish(self, reason: Literal["stop", "length"], cost: PromptCost, computed: float) -> None:
        self.is_done = True
        arrived = self.sequence.arrived
        times = self._started - arrived, self._first_token - arrived, self._prefill, computed
        self.sequence.listen(Finished(reason, len(self.drawing.tokens), cost, *times))
