"""uvicorn around the application."""

from __future__ import annotations

import signal
import socket
import threading

import uvicorn

from covist.serve.app import create_app
from covist.serve.connections import impatient
from covist.serve.service import Service


def build_server(service: Service) -> uvicorn.Server:
    """A server that is not running yet."""
    limits = service.limits
    return uvicorn.Server(
        uvicorn.Config(
            create_app(service),
            http=impatient(limits.body_seconds),
            ws="none",
            log_config=None,
            access_log=False,  # ours has no addresses and no queries
            server_header=False,
            limit_concurrency=limits.connections,
            timeout_graceful_shutdown=max(1, round(limits.drain_seconds)),
        )
    )


def run_server(service: Service, bound: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C, which let running requests finish."""
    if threading.current_thread() is threading.main_thread():
        # uvicorn raises the signal again when it has drained; by then it has done its work.
        signal.signal(signal.SIGTERM, lambda number, frame: None)
    build_server(service).run([bound])
