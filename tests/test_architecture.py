"""The walk of one request in docs/architecture.md is the walk that the code takes."""

import re
import sys
from pathlib import Path

import covist
from covist.cli.app import app

ROOT = Path(covist.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"
STEP = re.compile(r"^\d+\. `([\w/]+\.py)` `(\w+)`", re.MULTILINE)


def first_calls(run) -> list[tuple[str, str]]:
    """(file, function) of ours in the order in which they were first entered."""
    seen: dict[tuple[str, str], None] = {}

    def note(frame, event, argument):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(ROOT)):
            seen.setdefault((Path(path).relative_to(ROOT).as_posix(), frame.f_code.co_name))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return list(seen)


def test_a_request_takes_the_documented_walk(capsys):
    documented = STEP.findall(PAGE.read_text(encoding="utf-8"))
    walked = first_calls(lambda: app(args=["run", "--max-new-tokens", "1"], standalone_mode=False))
    assert len(documented) > 10
    assert [step for step in walked if step in set(documented)] == documented
