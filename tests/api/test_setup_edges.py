"""Settings with numpy's numbers, and files that are missing or broken: saved plainly, or refused in one line."""

import errno
import json

import numpy as np
import pytest

from covist import ConcentrationTracker, CovistConfig, CovistError, Setup

KINDS = [Setup, CovistConfig, ConcentrationTracker]


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"budget": np.int64(64)}, {"budget": 64}),
        ({"budget": np.float32(0.25)}, {"budget": 0.25}),
        ({"budget": np.str_("auto:0.5")}, {"budget": "auto:0.5"}),
        ({"concentration": np.float32(0.5)}, {"concentration": 0.5}),
        ({"min_coverage": np.float32(0.5)}, {"min_coverage": 0.5}),
        ({"method": np.str_("divprune")}, {"method": "divprune"}),
        ({"origin": {"images": np.int64(3), "figures": np.arange(2)}}, {"origin": {"images": 3, "figures": [0, 1]}}),
    ],
    ids=lambda values: next(iter(values)),
)
def test_numbers_of_numpy_are_saved_as_plain_ones(tmp_path, given, plain):
    Setup(**given).save(tmp_path / "covist.json")
    read = Setup.load(tmp_path / "covist.json")
    assert read == Setup(**plain) and read.origin == plain.get("origin", {})


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"weight_limit": np.float32(32)}, {"weight_limit": 32.0}),
        ({"regions": np.int64(9)}, {"regions": 9}),
        ({"gain_range": np.array([0.5, 1.5])}, {"gain_range": (0.5, 1.5)}),
    ],
    ids=lambda values: next(iter(values)),
)
def test_constants_of_numpy_are_plain_ones(tmp_path, given, plain):
    config = CovistConfig(**given)
    assert config == CovistConfig(**plain)
    config.save(tmp_path / "constants.json")
    assert CovistConfig.load(tmp_path / "constants.json") == config


def test_tracker_that_has_seen_numpy_is_saved(tmp_path):
    tracker = ConcentrationTracker()
    tracker.update(np.float32(0.5))
    tracker.save(tmp_path / "tracker.json")
    assert ConcentrationTracker.load(tmp_path / "tracker.json").mean == 0.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ("[1]", "expected"),
        ("\udcff", "cannot be read"),
        ('{"nonsense": 1}', "nonsense"),
    ],
    ids=["missing", "cut off", "no object", "no text", "unknown field"],
)
def test_file_that_cannot_be_read_is_one_line(tmp_path, kind, content, complaint):
    path = tmp_path / "settings.json"
    if content is not None:
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(CovistError, match=complaint) as error:
        kind.load(path)
    assert "\n" not in str(error.value) and "settings.json" in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_folder_that_does_not_exist_is_one_line(tmp_path, kind):
    with pytest.raises(CovistError, match="cannot write") as error:
        kind().save(tmp_path / "missing" / "settings.json")
    assert "\n" not in str(error.value)


def test_origin_that_no_file_can_hold_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "covist.json"
    Setup(budget=24).save(path)
    before = path.read_text(encoding="utf-8")
    with pytest.raises(CovistError, match="origin") as error:
        Setup(budget=32, origin={"model": object()}).save(path)
    assert "\n" not in str(error.value)
    assert path.read_text(encoding="utf-8") == before and json.loads(before)["budget"] == 24


def test_a_file_is_written_in_one_step_or_not_at_all(tmp_path, monkeypatch):
    file, link = tmp_path / "covist.json", tmp_path / "link.json"
    Setup(budget=7).save(file)
    link.symlink_to(file)
    Setup(budget=8).save(link)
    assert link.is_symlink() and Setup.load(file) == Setup(budget=8)

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CovistError, match="no space left on device"):
        Setup(budget=9).save(file)
    assert Setup.load(file) == Setup(budget=8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["covist.json", "link.json"]
