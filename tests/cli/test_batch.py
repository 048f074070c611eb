"""`covist batch`: its summary, its refusals, its exit codes, and how to go on."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console
from rich.progress import Progress
from support.batches import FakeDriver, answers_of, questions, write_rows

from covist.batch.answers import RowAnswer
from covist.cli.console import _Bar, _columns


@pytest.fixture
def fake(monkeypatch):
    """The command with a driver that has no model."""
    driver = FakeDriver()
    monkeypatch.setattr("covist.batch.drivers.LocalDriver", lambda: driver)
    return driver


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "rows.jsonl", questions(5))


def refused(ran, *words: str) -> None:
    assert ran.code == 2 and ran.stdout == ""
    assert ran.stderr.startswith("covist: ") and ran.stderr.count("\n") == 1, ran.stderr
    for word in words:
        assert word in ran.stderr


def test_a_real_model_answers_a_file_of_rows(covist, model_folder, image, tmp_path):
    lines = [{"id": "a", "image": image.name, "prompt": "where is the blue square ?"}, {"id": "b", "image": "none.png"}]
    path = write_rows(tmp_path / "rows.jsonl", lines)
    options = ("--model", model_folder, "--concentration", 0.1, "--max-new-tokens", 2, "--prompt", "what ?")
    ran = covist("batch", path, "--out", tmp_path / "out", "--format", "jsonl", *options)
    assert ran.code == 0, ran.stderr
    for text in ("2 rows", "answered", "errors", "576", "64 (11.1 %)", "KV cache saved", "rows/s", "--retry-errors"):
        assert text in ran.stdout
    assert "──" not in ran.stdout  # the table has no heading, so no rule below one
    good, bad = answers_of(tmp_path / "out")
    assert (good.id, good.tokens_before, good.tokens_after, good.error) == ("a", 576, 64.0, None)
    assert bad.error.endswith("none.png does not exist")
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert manifest["model"]["identity"]["model"].startswith("Llava") and manifest["versions"]["torch"]
    alone = covist(
        "run",
        "--model",
        model_folder,
        "--image",
        image,
        "--prompt",
        lines[0]["prompt"],
        "--max-new-tokens",
        2,
        "--config",
        frozen(tmp_path),
        "--json",
    )
    assert good.answer == alone.json["results"][-1]["answer"]


def frozen(folder):
    path = folder / "covist.json"
    path.write_text(json.dumps({"covist_settings": 1, "method": "covist-fixed", "budget": 64, "concentration": 0.1}))
    return path


def test_the_summary_as_json_has_a_stable_schema(covist, fake, rows, tmp_path):
    told = covist("batch", rows, "--out", tmp_path / "out", "--json").json
    assert told.pop("seconds_now") > 0
    assert told == {
        "input": str(rows), "out": str(tmp_path / "out"), "model": "tiny", "method": "covist-fixed", "budget": "64",
        "parts": 1, "rows": 5, "answered": 5, "errors": 0, "repeated": 0, "whole": 0, "capped": 0,
        "tokens_before": 50, "tokens_after": 20.0,
        "tokens_saved": 30.0, "kv_bytes_saved": 240.0, "seconds": 1.25, "rows_now": 5, "reasons": {}, "left_out": {},
    }  # fmt: skip


def test_a_single_row_is_named_in_the_singular(covist, fake, tmp_path):
    told = covist("batch", write_rows(tmp_path / "rows.jsonl", questions(1)), "--out", tmp_path / "out")
    said = " ".join(told.stdout.split())  # a long path moves the breaks of the lines
    assert "rows.jsonl: 1 row," in said and "1 row in" in said
    assert not re.search(r"\b1 rows(?!/s)", said)  # the pace of a fast machine may end in "1 rows/s"


def test_running_it_again_does_nothing_and_says_what_is_there(covist, fake, rows, tmp_path):
    covist("batch", rows, "--out", tmp_path / "out")
    again = covist("batch", rows, "--out", tmp_path / "out", "--json")
    assert again.code == 0 and again.json["answered"] == 5 and again.json["rows_now"] == 0
    assert len(fake.asked) == 5


def test_an_interruption_says_how_to_continue(covist, fake, rows, tmp_path, monkeypatch):
    def interrupted(spec, blocks):
        yield from original(spec, list(blocks)[:1])
        raise KeyboardInterrupt

    original = fake.run
    monkeypatch.setattr(fake, "run", interrupted)
    ran = covist("batch", rows, "--out", tmp_path / "out", "--part-rows", 2)
    assert ran.code == 130 and ran.stdout == ""
    assert f"the same command with --out {tmp_path / 'out'} continues from there" in ran.stderr
    assert ran.stderr.endswith("covist: interrupted\n")
    monkeypatch.setattr(fake, "run", original)
    assert covist("batch", rows, "--out", tmp_path / "out", "--part-rows", 2).code == 0
    assert sorted(fake.asked) == [f"row-{number}" for number in range(5)]


def test_the_exit_code_is_3_only_if_not_one_row_could_be_answered(covist, fake, rows, tmp_path):
    fake._answer = lambda row: RowAnswer(row.id, error="no")
    ran = covist("batch", rows, "--out", tmp_path / "out")
    assert ran.code == 3 and "5" in ran.stdout
    fake._answer = lambda row: RowAnswer(row.id, "yes") if row.id == "row-3" else RowAnswer(row.id, error="no")
    assert covist("batch", rows, "--out", tmp_path / "out", "--retry-errors").code == 0


def test_without_a_terminal_progress_is_lines_with_a_rate(covist, fake, rows, tmp_path, monkeypatch):
    monkeypatch.setattr("covist.cli.console._Lines.EVERY", 0.0)
    lines = covist("batch", rows, "--out", tmp_path / "out").stderr.splitlines()
    assert lines[0].startswith("covist: 0 of 5, 0 s, 0 tokens and 0.0 KiB of cache saved, 0 errors")
    assert lines[1].startswith("covist: 3 of 5, ") and "/s, " in lines[1] and "s left, 18 tokens" in lines[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--workers", 2), "--workers 2 needs --ray (pip install 'covist[ray]')"),
        (("--batch-size", "many"), "--batch-size 'many': give auto or a number of rows"),
        (("--batch-size", "0"), "give auto or a number of rows"),
        (("--prompt", " "), "--prompt is empty"),
        (("--method", "magic"), "unknown method 'magic'"),
        (("--budget", "0"), "budget"),
        (("auto",), "input auto does not exist"),  # an address without --ray
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_written(covist, rows, tmp_path, options, words):
    refused(covist("batch", rows, *options, "--out", tmp_path / "out"), words)
    assert not (tmp_path / "out").exists()


def test_ray_is_asked_for_by_name_where_it_is_missing(covist, rows, tmp_path, monkeypatch):
    monkeypatch.setattr("covist.extras.find_spec", lambda package: None)
    refused(covist("batch", rows, "--out", tmp_path / "out", "--ray"), "needs ray: pip install 'covist[ray]'")


def test_inputs_and_places_that_cannot_be_are_refused(covist, fake, rows, tmp_path):
    refused(covist("batch", tmp_path / "none.jsonl", "--out", tmp_path / "out"), "none.jsonl does not exist")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").touch()
    refused(covist("batch", tmp_path / "photos", "--out", tmp_path / "out"), "photos: images need a --prompt")
    assert not (tmp_path / "out").exists()
    refused(covist("batch", rows, "--out", tmp_path / "no" / "out"), "there is no directory")
    covist("batch", rows, "--out", tmp_path / "out")
    refused(covist("batch", rows, "--out", tmp_path / "out", "--budget", 32), "budget: 64 then, 32 now")


def test_rows_of_an_earlier_run_do_not_count_towards_the_rate_on_a_terminal():
    now = [0.0]
    bar = Progress(get_time=lambda: now[0])
    advance = _Bar(bar, bar.add_task("starting", total=None))
    for second in range(4):
        now[0] = float(second)
        advance(1000 + 2 * second, 2000, "saved")
    assert bar.tasks[0].completed == 1006 and bar.tasks[0].speed == pytest.approx(2.0)


def test_a_window_of_80_columns_shows_how_far_a_job_of_millions_is():
    now = [0.0]
    console = Console(width=80, force_terminal=True, color_system=None)
    bar = Progress(*_columns(), console=console, get_time=lambda: now[0])
    advance = _Bar(bar, bar.add_task("starting", total=None))
    for second in range(4):
        now[0] = float(second)
        advance(second, 2_000_000, "1,024,000,000 tokens and 7,812.5 GiB of cache saved, 12,345 errors")
    with console.capture() as captured:
        console.print(bar.get_renderable())
    text = captured.get()
    assert "3/2000000" in text and " 1.0/s " in text and "12,345 errors" in text, text


def test_a_row_has_as_many_tokens_as_its_image_needs(covist, model_folder, image, tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", [{"id": "a", "image": image.name, "prompt": "where is it ?"}])
    asked = ("--model", model_folder, "--method", "covist-max", "--max-new-tokens", 1, "--format", "jsonl")
    assert covist("batch", path, "--out", tmp_path / "auto", "--budget", "auto:0.5:3:40", *asked).code == 0
    (followed,) = answers_of(tmp_path / "auto")
    assert 3 <= followed.tokens_after <= 40
    short = covist("batch", path, "--out", tmp_path / "capped", "--budget", "auto:0.999:1:3", *asked)
    assert "auto:0.999:1:3 reached its maximum on 1 of 1 row without covering enough" in short.stderr
    assert answers_of(tmp_path / "capped")[0].capped is True and followed.capped is False
    demanding = ("--budget", 8, "--min-coverage", 1, *asked)
    assert covist("batch", path, "--out", tmp_path / "whole", *demanding).code == 0
    (whole,) = answers_of(tmp_path / "whole")
    assert whole.tokens_after == whole.tokens_before == 576
    refused(
        covist("batch", path, "--out", tmp_path / "whole", "--budget", 8, *asked), "min-coverage: 1.0 then, None now"
    )


def test_the_summary_says_why_rows_failed_and_how_many(covist, fake, tmp_path, monkeypatch):
    broken = {0: "image a.png does not exist", 1: "image b.png does not exist", 2: "image c.png is empty (0 bytes)"}
    monkeypatch.setattr(fake, "_answer", lambda row: RowAnswer(row.id, error=broken.get(row.number, "")))
    rows = write_rows(tmp_path / "rows.jsonl", questions(3))
    ran = covist("batch", rows, "--out", tmp_path / "out")
    assert ran.code == 3
    assert "2 failed: image … does not exist\n1 failed: image … is empty\n" in ran.stdout, ran.stdout
    told = covist("batch", rows, "--out", tmp_path / "out", "--json").json
    assert told["reasons"] == {"image … does not exist": 2, "image … is empty": 1}


def test_a_folder_says_what_it_leaves_out_and_that_it_has_grown(covist, fake, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("b.png", "x.heif7", "y.svg", "z.svg"):
        (folder / name).touch()
    command = ("batch", folder, "--prompt", "what ?", "--out", tmp_path / "out")
    ran = covist(*command)
    assert ran.code == 0 and "left out: 2 .svg, 1 .heif7" in " ".join(ran.stderr.split())
    (folder / "a.png").touch()
    again = covist(*command, "--json")
    assert "photos has grown: 1 row more than the 1 of before" in " ".join(again.stderr.split())
    assert (again.json["rows"], again.json["rows_now"], again.json["left_out"]) == (2, 1, {".svg": 2, ".heif7": 1})


def test_photographs_of_phones_in_a_folder_name_what_they_need(covist, fake, tmp_path, monkeypatch):
    monkeypatch.setattr("covist.batch.folders.has_image_ending", lambda name: name.endswith(".png"))
    for name in ("a.HEIC", "b.png"):
        (tmp_path / name).touch()
    ran = covist("batch", tmp_path, "--prompt", "what ?", "--out", tmp_path / "out")
    assert "left out: 1 .heic (HEIC needs pip install 'covist[heic]')" in " ".join(ran.stderr.split())
    (tmp_path / "b.png").unlink()
    refused(
        covist("batch", tmp_path, "--prompt", "x", "--out", tmp_path / "new"), "contains no images: left out: 1 .heic"
    )


def test_a_real_image_is_answered_and_one_that_cannot_be_read_is_refused_at_once(covist, model_folder, image, tmp_path):
    asked = ("--prompt", "where ?", "--model", model_folder, "--max-new-tokens", 1, "--concentration", 0.1)
    assert covist("batch", image, *asked, "--out", tmp_path / "out").code == 0
    (answer,) = answers_of(tmp_path / "out")
    assert answer.id == str(image) and answer.error is None
    (tmp_path / "photo.jpg").write_bytes(image.read_bytes()[:30])
    unread = covist("batch", tmp_path / "photo.jpg", "--prompt", "x", "--model", "none", "--out", tmp_path / "new")
    refused(unread, "photo.jpg is")


def test_rows_from_standard_input_are_answered(covist, fake, tmp_path, monkeypatch):
    rows = write_rows(tmp_path / "rows.jsonl", questions(3))
    with rows.open("rb") as file:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(file))
        told = covist("batch", "-", "--out", tmp_path / "out", "--json").json
    assert (told["input"], told["answered"]) == ("standard input", 3)
