"""Refusals, and errors in OpenAI's format."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

LONGEST = 300
"""Characters of a message, which may quote what a client sent."""
GONE = 499
"""Status in the log if the client has disconnected (nginx's convention)."""
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class Refusal(Exception):
    """A request that is answered with an error of one line.

    reason: a word from a small set, by which refusals are counted
    param: the field of the request that was wrong
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.reason, self.message, self.param = status, reason, message, param
        self.headers = dict(headers or {})

    def __reduce__(self) -> tuple[Any, ...]:
        """Lets replicas send refusals to the process that answers."""
        return partial(Refusal, param=self.param, headers=self.headers), (self.status, self.reason, self.message)

    @property
    def body(self) -> dict[str, Any]:
        return error_body(self.status, self.message, self.reason, self.param)


def gone() -> Refusal:
    """For the log: the client has disconnected, so it does not read this."""
    return Refusal(GONE, "disconnected", "the client disconnected before its answer was complete")


def out_of_time() -> Refusal:
    """The deadline of a request has passed."""
    return Refusal(504, "timeout", "the request took longer than the server allows")


def draining() -> Refusal:
    """The server takes no more requests, or ends one that the shutdown could not wait for."""
    return Refusal(503, "draining", "the server is shutting down", headers={"Retry-After": "1"})


def broken() -> Refusal:
    """No request can be answered until the process has been replaced."""
    message = "the accelerator failed; the server must be restarted"
    return Refusal(503, "accelerator_failed", message, headers={"Retry-After": "10"})


def unknown_model(asked: str, served: str) -> Refusal:
    return Refusal(404, "model_not_found", f"no model {asked!r} here; the model is {served!r}", param="model")


def busy(what: str) -> Refusal:
    """The requests in progress take all the room there is."""
    return Refusal(503, "busy", f"too many {what} at once; try again later", headers={"Retry-After": "1"})


def error_body(status: int, message: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's clients expect it."""
    line = " ".join(message.split())
    shown = line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": shown, "type": kind, "param": param, "code": code}}
