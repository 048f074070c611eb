"""Count what runs of covist inside one call of a model: files, functions and changes of room.

    python tools/trace.py [--files]

Prints the table of docs/architecture.md, which a test compares with it; `--files` adds the files of each call with the
functions that ran in them. The calls are those of the embedded LLaVA with its CLIP, one image and a budget of 64; only
what runs inside `model(...)` counts, so neither loading nor `compress()` does.

functions: the distinct functions of covist that were entered, with lambdas and generator expressions, but without
    comprehensions, which Python runs inline from 3.12 on
files: the files that these functions are in
changes of room: how often the next function that was entered is in another room than the one before, over all calls in
    order; a room is a package of covist, or a module of covist's root such as `state`
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import torch

import covist

ROOT = Path(covist.__file__).parent
INLINE = ("<listcomp>", "<dictcomp>", "<setcomp>")
BUDGET = 64
HEADER = ("call", "files", "functions", "changes of room")


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

    def functions_of(self, file: str) -> list[str]:
        return list(dict.fromkeys(code.co_name for code in self.entered if _file(code) == file))


def trace(run: Callable[[], object]) -> Trace:
    """Run something, and note what is entered meanwhile."""
    entered: list[CodeType] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)) and code.co_name not in INLINE:
            entered.append(code)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return Trace(tuple(entered))


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


def table(found: dict[str, Trace]) -> str:
    """The table in Markdown."""
    rows = [(name, len(one.files), one.functions, one.changes) for name, one in found.items()]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (HEADER, ["---"] * len(HEADER), *rows))


def _file(code: CodeType) -> str:
    return Path(code.co_filename).relative_to(ROOT).as_posix()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", action="store_true", help="also list the files and functions of each call")
    found, options = traces(), parser.parse_args()
    print(table(found))
    for name, one in found.items() if options.files else ():
        print(f"\n{name}")
        for file in one.files:
            print(f"  {file}: {', '.join(one.functions_of(file))}")


if __name__ == "__main__":
    main()
