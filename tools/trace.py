"""Count what runs of covist inside one call of a model, and around it: files, functions and changes of room.

    python tools/trace.py [--files]

Prints the tables of docs/architecture.md, which a test compares with them; `--files` adds the files of each call with
the functions that ran in them. The calls are those of the embedded LLaVA with its CLIP, one image and a budget of 64.
In the first table only what runs inside `model(...)` counts, so neither loading nor `compress()` does. The second is
the way of one question to the model and of its answer back, in the rooms around the model.

functions: the distinct functions of covist that were entered, with lambdas and generator expressions, but without
    comprehensions, which Python runs inline from 3.12 on
files: the files that these functions are in
changes of room: how often the next function that was entered is in another room than the one before, over all calls in
    order; a room is a package of covist, or a module of covist's root such as `state`
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import torch

import covist

ROOT = Path(covist.__file__).parent
INLINE = ("<listcomp>", "<dictcomp>", "<setcomp>")
METHOD, BUDGET = "covist-fixed", 64
HEADER = ("call", "files", "functions", "changes of room")
AROUND = ("api", "request", "eval", "batch", "serve")
"""The rooms around the model."""


class Trace(NamedTuple):
    """The functions of covist that were entered, in order."""

    entered: tuple[CodeType, ...]

    @property
    def functions(self) -> int:
        return len(set(self.entered))

    @property
    def files(self) -> list[str]:
        """Paths under covist, in the order in which they were first reached."""
        return list(dict.fromkeys(map(_file, self.entered)))

    @property
    def changes(self) -> int:
        rooms = [_file(code).partition("/")[0].removesuffix(".py") for code in self.entered]
        return sum(room != before for before, room in zip(rooms, rooms[1:], strict=False))

    def within(self, rooms: Sequence[str]) -> Trace:
        return Trace(
            tuple(code for code in self.entered if _file(code).startswith(tuple(f"{room}/" for room in rooms)))
        )

    def functions_of(self, file: str) -> list[str]:
        return list(dict.fromkeys(code.co_name for code in self.entered if _file(code) == file))


class Recorder:
    """Notes what is entered, in this thread and in those that begin while it is installed."""

    def __init__(self) -> None:
        self._entered: list[CodeType] | None = None

    def note(self, frame: Any, event: str, argument: Any) -> None:
        code, entered = frame.f_code, self._entered
        if entered is not None and event == "call" and code.co_filename.startswith(str(ROOT)):
            entered += [] if code.co_name in INLINE else [code]

    def __enter__(self) -> Recorder:
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # typeshed forgets that None ends it

    def of(self, run: Callable[[], object]) -> Trace:
        self._entered = entered = []
        try:
            run()
        finally:
            self._entered = None
        return Trace(tuple(entered))


def trace(run: Callable[[], object]) -> Trace:
    """Run something, and note what is entered meanwhile."""
    with Recorder() as recorder:
        return recorder.of(run)


@torch.no_grad()
def traces() -> dict[str, Trace]:
    """The calls of the table: a prefill of each strategy, and a decoding step, which comes after a prefill of Pro."""
    model, processor, clip = covist.tiny.load()
    image, question, _ = covist.tiny.demo()
    inputs = processor(images=image, text=covist.tiny.prompt_for(question), return_tensors="pt")
    found = {}
    for strategy in ("fixed", "pro"):
        with covist.compress(model, processor, budget=BUDGET, strategy=strategy, clip=clip):
            model(**inputs)  # what only the first call does is not the walk of a call
            found[f"CoViST-{strategy.capitalize()}, prefill"] = trace(lambda: model(**inputs))
            output = model(**inputs, use_cache=True)
            step = {"input_ids": inputs["input_ids"][:, -1:], "past_key_values": output.past_key_values}
            model(**step)
            decoding = trace(lambda step=step: model(**step))
    return {**found, "CoViST-Pro, decoding step": decoding}


def requests() -> dict[str, Trace]:
    """One question on its way to the model and back, through each room that takes questions."""
    found = {}
    with Recorder() as recorder, tempfile.TemporaryDirectory() as folder:
        for name, room in _ways(Path(folder)).items():
            with room as ask:
                ask()  # what only the first question does is not the way of a question
                found[name] = recorder.of(ask).within(AROUND)
    return found


def _ways(folder: Path) -> dict[str, AbstractContextManager[Callable[[], object]]]:
    """The rooms that take questions, as functions that ask one."""
    from covist.batch.rows import read_row
    from covist.batch.spec import WorkerSpec
    from covist.batch.worker import Worker
    from covist.eval import evaluate
    from covist.eval.questions import Question
    from covist.eval.suite import Item, Suite
    from covist.request.answer import ask
    from covist.request.inputs import prepare
    from covist.request.loading import load_model
    from covist.serve.service import Service

    loaded, setup = load_model("tiny"), covist.Setup(METHOD, BUDGET, concentration=0.05)
    image, question, _ = covist.tiny.demo()
    image.save(folder / "image.png")

    @contextmanager
    def batch() -> Iterator[Callable[[], object]]:
        worker = Worker(WorkerSpec("tiny", setup=setup, max_new_tokens=4), loaded)
        with closing(worker):
            yield lambda: worker([read_row(0, {"image": "image.png", "prompt": question}, folder)])

    @contextmanager
    def serve() -> Iterator[Callable[[], object]]:
        with closing(Service(loaded, setup)) as service:
            yield lambda: asyncio.run(_chat(service, folder / "image.png", question))

    suite = Suite.of("one", [Item.of(image, Question(question))])
    return {
        "a question of `covist run`": nullcontext(lambda: ask(loaded, prepare(loaded, [image], question), setup, 4)),
        "an evaluation of one question": nullcontext(
            lambda: evaluate(METHOD, str(BUDGET), suite=suite, model=loaded, config=setup)
        ),
        "a row of `covist batch`": batch(),
        "a chat over HTTP": serve(),
    }


async def _chat(service: Any, image: Path, question: str) -> None:
    """A request to the server's application, in this process and without a socket."""
    import httpx

    from covist.serve.app import create_app

    url = "data:image/png;base64," + base64.b64encode(image.read_bytes()).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    body = {"model": service.name, "messages": [{"role": "user", "content": parts}], "max_tokens": 4}
    transport = httpx.ASGITransport(create_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://covist") as client:
        (await client.post("/v1/chat/completions", json=body)).raise_for_status()


def way_table(found: dict[str, Trace]) -> str:
    """The second table. Which functions run around the model depends on the order of threads; the files do not."""
    rows = [("way", "files"), ("---", "---"), *((name, len(one.files)) for name, one in found.items())]
    return "\n".join(f"| {name} | {files} |" for name, files in rows)


def table(found: dict[str, Trace]) -> str:
    """The table in Markdown."""
    rows = [(name, len(one.files), one.functions, one.changes) for name, one in found.items()]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (HEADER, ["---"] * len(HEADER), *rows))


def _file(code: CodeType) -> str:
    return Path(code.co_filename).relative_to(ROOT).as_posix()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", action="store_true", help="also list the files and functions of each call")
    options, tables = parser.parse_args(), (traces(), requests())
    print(f"{table(tables[0])}\n\n{way_table(tables[1])}")
    for name, one in ((name, one) for found in tables for name, one in found.items() if options.files):
        print(f"\n{name}")
        for file in one.files:
            print(f"  {file}: {', '.join(one.functions_of(file))}")


if __name__ == "__main__":
    main()
