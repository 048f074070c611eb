"""Threads that lose their turn at any line of ours, so that races show without luck."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import covist

SOURCES = str(Path(covist.__file__).parent)


def in_threads(
    tasks: Sequence[Callable[[], Any]], times: int = 4, files: tuple[str, ...] = (), chance: float = 0.02
) -> list[list[Any]]:
    """Run tasks at once, several times each: the results of each task, or the errors that it raised.

    A thread sleeps with a `chance` before a line of a file of covist whose path contains one of `files`.
    """
    results: list[list[Any]] = [[] for _ in tasks]
    barrier = threading.Barrier(len(tasks))

    def work(number: int) -> None:
        draw = random.Random(number)

        def on_line(frame: Any, event: str, argument: Any) -> Any:
            if event == "line" and draw.random() < chance:
                time.sleep(0.0005)
            return on_line

        def on_call(frame: Any, event: str, argument: Any) -> Any:
            path = frame.f_code.co_filename
            return on_line if path.startswith(SOURCES) and any(name in path for name in files) else None

        barrier.wait()
        if files:
            sys.settrace(on_call)
        try:
            for _ in range(times):
                try:
                    results[number].append(tasks[number]())
                except Exception as error:  # the caller compares it with what it expects
                    results[number].append(error)
        finally:
            sys.settrace(None)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
