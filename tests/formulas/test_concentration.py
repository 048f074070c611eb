import pytest

from covist.formulas.concentration import ConcentrationTracker


def test_nothing_is_read_during_the_warm_up_and_then_the_plain_mean():
    tracker = ConcentrationTracker()
    for step in range(16):
        assert tracker.read() is None
        tracker.update(step / 10)
    assert tracker.read() == pytest.approx(sum(range(16)) / 160)


def test_after_the_warm_up_the_mean_is_exponential():
    tracker = ConcentrationTracker()
    for _ in range(16):
        tracker.update(0.5)
    tracker.update(1.0)
    assert tracker.read() == pytest.approx(0.98 * 0.5 + 0.02 * 1.0)
    tracker.update(0.0)
    assert tracker.read() == pytest.approx(0.98 * (0.98 * 0.5 + 0.02))


def test_a_frozen_tracker_ignores_images_until_it_is_released():
    tracker = ConcentrationTracker()
    tracker.freeze(0.3)
    tracker.update(0.9)
    assert tracker.read() == 0.3
    tracker.freeze(None)
    assert tracker.read() is None and tracker.samples == 0


@pytest.mark.parametrize("value", [float("nan"), -0.1, 1.5, "0.3"])
def test_a_reference_that_no_image_can_have_is_refused(value):
    tracker = ConcentrationTracker()
    with pytest.raises(ValueError, match=r"concentration must be a number in \[0, 1\] or None, got"):
        tracker.freeze(value)
    assert tracker.frozen is None


def test_reset_starts_over():
    tracker = ConcentrationTracker(warm_up=1)
    tracker.update(0.4)
    assert tracker.read() == pytest.approx(0.4)
    tracker.reset()
    assert tracker.read() is None


def test_a_saved_tracker_goes_on_where_it_stopped(tmp_path):
    tracker = ConcentrationTracker(warm_up=2)
    for value in (0.2, 0.4, 0.9):
        tracker.update(value)
    tracker.save(tmp_path / "tracker.json")
    loaded = ConcentrationTracker.load(tmp_path / "tracker.json")
    assert loaded.state_dict() == tracker.state_dict()
    for one in (tracker, loaded):
        one.update(0.1)
    assert loaded.read() == tracker.read()


def test_a_foreign_state_is_refused():
    with pytest.raises(ValueError, match="ConcentrationTracker: expected the fields"):
        ConcentrationTracker().load_state_dict({"mean": 0.1})
