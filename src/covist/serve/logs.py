"""One line of JSON per request: figures and reasons, never prompts, images, answers or keys."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Any

LOG = logging.getLogger("covist.serve")


class JsonLines(logging.Formatter):
    """Time, level and message, with the figures in a record's `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__  # its text may quote a prompt
        return json.dumps(line)


def log(message: str, **fields: Any) -> None:
    """Write a line with figures."""
    LOG.info(message, extra={"fields": fields})


def write_to_stderr() -> None:
    """Send our lines, and those of uvicorn, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("covist.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
