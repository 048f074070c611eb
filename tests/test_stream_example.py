"""The camera of examples/stream.py."""

import importlib.util
from pathlib import Path

from support.films import moving_square

from covist.request.loading import load_model

EXAMPLE = Path(__file__).parents[1] / "examples" / "stream.py"


def example():
    spec = importlib.util.spec_from_file_location("stream", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_answers_after_every_film_and_holds_no_more(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["stream.py", "--budget", "32"])
    example().main()
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("Stream")] == [
        f"Stream of {count} frames: 32 of 256 visual tokens in 16 moments" for count in (16, 32, 48, 64)
    ]
    assert sum(line.startswith("  what is the last digit? ") for line in lines) == 4


def test_it_watches_any_frames():
    model, processor, _ = load_model("tiny-video")
    seen = list(example().watch(model, processor, moving_square(6), "where is it?", every=3, budget=16))
    assert [held.split(":")[0] for held, _ in seen] == ["Stream of 3 frames", "Stream of 6 frames"]
