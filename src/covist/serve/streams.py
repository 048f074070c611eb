"""Streams over WebSockets: one for each connection. Frames are added one by one; questions may come at any moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import torch
from pydantic import Field, TypeAdapter
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from covist.api.handle import Compression
from covist.errors import CovistError
from covist.request.decoding import generate
from covist.request.loading import LoadedModel
from covist.request.stream import MOMENTS, Stream
from covist.request.videos import FOLDER_RATE
from covist.serve.admission import Admission
from covist.serve.batches import log_failure, pass_on
from covist.serve.errors import Refusal, busy, draining, gone, out_of_time
from covist.serve.limits import Limits
from covist.serve.logs import log
from covist.serve.prompts import PromptMaker
from covist.serve.room import RoomClaim
from covist.serve.schema import Strict, parse
from covist.serve.turns import Turns

PATH = "/v1/stream"
NORMAL, FAILED, RESTARTING = 1000, 1011, 1012
"""Codes with which connections are closed."""
MOST_MOMENTS = 64


class SettingsMessage(Strict):
    """How the stream is held; only before its first frame."""

    type: Literal["settings"]
    budget: Annotated[int, Field(ge=1)] | None = None
    moments: Annotated[int, Field(ge=1, le=MOST_MOMENTS)] = MOMENTS
    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = FOLDER_RATE


class FrameMessage(Strict):
    """The next frame, as a data URL."""

    type: Literal["frame"]
    image: str


class AskMessage(Strict):
    """A question about what the stream has shown."""

    type: Literal["ask"]
    question: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None


Message = SettingsMessage | FrameMessage | AskMessage
MESSAGE: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


class Streams:
    """The streams of a service, which take turns at the model with its batches."""

    def __init__(
        self,
        loaded: LoadedModel,
        handle: Compression,
        turns: Turns,
        prompts: PromptMaker,
        admission: Admission,
        limits: Limits,
    ):
        self._loaded, self._handle, self._turns, self._prompts = loaded, handle, turns, prompts
        self.admission, self.limits, self.open = admission, limits, 0

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A stream of its own for a connection; refused if there are too many, or the model cannot stream."""
        if self.open >= self.limits.streams:
            raise busy("streams")
        session = Session(self)
        self.open += 1
        try:
            yield session
        finally:
            self.open -= 1

    def stream(self, wanted: SettingsMessage) -> Stream:
        caps = (self.limits.stream_tokens, self._handle.setup.max_visual_tokens)
        most = min(cap for cap in caps if cap is not None)
        if wanted.budget is not None and wanted.budget > most:
            raise CovistError(f"budget={wanted.budget}: this server holds at most {most} tokens of a stream")
        model, processor, _ = self._loaded
        return Stream(model, processor, budget=wanted.budget or most, moments=wanted.moments, rate=wanted.rate)

    def add(self, stream: Stream, frame: Any) -> None:
        with self._turns:
            stream.add(frame)

    def ask(self, stream: Stream, wanted: AskMessage, left: threading.Event) -> str:
        """An answer; after every token, batches and other streams have their turn."""
        steps = StoppingCriteriaList([_Step(self._handle, self._turns, left)])
        with self._turns, ExitStack() as prompt:
            tokens = self.admission.stream_tokens(stream, wanted.question, wanted.max_tokens)
            with self._prompts.busy:
                inputs = prompt.enter_context(stream.prompt(wanted.question))
            written = generate(self._loaded.model, inputs, tokens, stopping_criteria=steps)
        with self._prompts.busy:
            answer: str = self._loaded.processor.batch_decode(written, skip_special_tokens=True)[0]
        return answer.strip()


class _Step(StoppingCriteria):
    """Called by `generate` after every token; ends an answer for which nobody waits."""

    def __init__(self, handle: Compression, turns: Turns, left: threading.Event):
        self._handle, self._turns, self._left = handle, turns, left

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        pass_on(self._turns, self._handle)
        return torch.full((len(input_ids),), self._left.is_set(), device=input_ids.device)


class Session:
    """The stream of one connection."""

    def __init__(self, streams: Streams):
        self._streams, self.answers = streams, 0
        with _refusing("bad_setting", "settings"):
            self.stream = streams.stream(SettingsMessage(type="settings"))

    def configure(self, wanted: SettingsMessage) -> dict[str, Any]:
        with _refusing("bad_setting", "settings"):
            if len(self.stream):
                raise CovistError("settings must come before the first frame")
            self.stream = self._streams.stream(wanted)
        return {"type": "settings", "budget": self.stream.budget, "moments": self.stream.moments}

    async def add(self, wanted: FrameMessage) -> dict[str, Any]:
        frame = await self._streams.admission.frame(wanted.image)
        with _refusing("bad_frame", "image"):
            await asyncio.to_thread(self._streams.add, self.stream, frame)
        return {"type": "frame", **self._figures()}

    async def ask(self, wanted: AskMessage, left: threading.Event) -> dict[str, Any]:
        with _refusing("bad_question", "question"):
            said = await asyncio.to_thread(self._streams.ask, self.stream, wanted, left)
        self.answers += 1
        return {"type": "answer", "answer": said, **self._figures()}

    def _figures(self) -> dict[str, Any]:
        return {"frames": len(self.stream), "tokens": self.stream.tokens}


@contextmanager
def _refusing(reason: str, param: str) -> Iterator[None]:
    """What is wrong with a message is an error of one line; what is wrong with the server ends the stream."""
    try:
        yield
    except CovistError as error:
        raise Refusal(400, reason, str(error), param=param) from None
    except Refusal:
        raise
    except Exception as error:
        log_failure(error, 1)
        raise Refusal(500, "stream_failed", "the stream failed; other requests are not affected") from error


# -- the route ---------------------------------------------------------------------------------------------------------


async def serve_stream(socket: WebSocket) -> None:
    """Answer one connection until its client leaves, or sends nothing for too long."""
    service, began, session = socket.app.state.service, monotonic(), None
    try:
        service.keys.check(socket.headers.get("authorization"))
        _check_origin(socket)
        if service.is_draining:
            raise draining()
        if service.streams is None:
            raise Refusal(404, "no_streams", "replicas hold no streams; start a server without --ray for them")
        with service.streams.session() as session:
            await socket.accept()
            await _Conversation(socket, session).run()
    except Refusal as refusal:  # before it was accepted
        service.metrics.refused(refusal.reason)
        await socket.send_denial_response(JSONResponse(refusal.body, refusal.status, headers=refusal.headers))
    except WebSocketDisconnect:
        pass
    finally:
        if session is not None:
            figures = {"frames": len(session.stream), "answers": session.answers}
            log("stream", path=PATH, seconds=round(monotonic() - began, 4), **figures)


def _check_origin(socket: WebSocket) -> None:
    """Refuse the scripts of other web sites: browsers let them open WebSockets anywhere."""
    origin, allowed = socket.headers.get("origin"), socket.app.state.origins
    own = urlsplit(origin or "").netloc == socket.headers.get("host")
    if origin is not None and not own and not {origin, "*"} & allowed:
        raise Refusal(403, "other_origin", f"pages of {origin} may not open streams here; see --allow-origin")


class _Conversation:
    """The messages of one connection, each with its reply; the next one is read ahead while an answer is written."""

    def __init__(self, socket: WebSocket, session: Session):
        self._socket, self._session = socket, session
        self._service, self._drain = socket.app.state.service, socket.app.state.drain
        self._reading: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        try:
            while True:
                try:
                    reply = await self._reply(await self._next())
                except Refusal as refusal:
                    self._service.metrics.refused(refusal.reason)
                    reply = {"type": "error", **refusal.body}
                    if (code := _ENDS.get(refusal.reason)) is not None:
                        await self._socket.send_json(reply)
                        await self._socket.close(code, refusal.reason)
                        return
                await self._socket.send_json(reply)
        finally:
            if self._reading is not None:
                self._reading.cancel()

    def _ahead(self) -> asyncio.Task[Any]:
        self._reading = self._reading or asyncio.ensure_future(self._socket.receive())
        return self._reading

    async def _next(self) -> str:
        seconds = self._service.limits.stream_seconds
        done, _ = await asyncio.wait({self._ahead()}, timeout=seconds)
        if not done:
            raise Refusal(408, "idle", f"nothing was sent for {seconds:g} seconds; the stream is closed")
        message, self._reading = self._ahead().result(), None
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect
        if message.get("text") is None:
            raise Refusal(400, "invalid_json", "a message must be text in JSON, not binary")
        text: str = message["text"]
        return text

    async def _reply(self, text: str) -> dict[str, Any]:
        if self._service.is_draining:
            raise draining()
        with RoomClaim(self._service.room, "bytes of frames") as claim:
            claim.grow(len(text))
            wanted = await asyncio.to_thread(parse, text.encode(), MESSAGE.validate_python, "the message")
            if isinstance(wanted, FrameMessage):
                return await self._session.add(wanted)
        return self._session.configure(wanted) if isinstance(wanted, SettingsMessage) else await self._answer(wanted)

    async def _answer(self, wanted: AskMessage) -> dict[str, Any]:
        """An answer, unless its client leaves or it takes too long."""
        left = threading.Event()
        answering = asyncio.ensure_future(self._session.ask(wanted, left))
        self._drain.requests += 1
        try:
            waiting, until = {answering, self._ahead()}, monotonic() + self._service.limits.request_seconds
            await asyncio.wait(waiting, timeout=until - monotonic(), return_when=asyncio.FIRST_COMPLETED)
            is_gone = self._ahead().done() and self._ahead().result()["type"] == "websocket.disconnect"
            if not answering.done() and not is_gone:  # the next message has come, or the time is over
                await asyncio.wait({answering}, timeout=max(0.0, until - monotonic()))
            if not answering.done():
                left.set()
                await asyncio.wait({answering})
                raise gone() if is_gone else out_of_time()
            return answering.result()
        finally:
            left.set()
            self._drain.requests -= 1


_ENDS = {"idle": NORMAL, "stream_failed": FAILED, "disconnected": NORMAL, "draining": RESTARTING}
"""Refusals after which a connection is closed, with their codes."""
