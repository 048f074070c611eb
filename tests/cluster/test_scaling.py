"""--replicas and --autoscale."""

import pytest

from covist.cluster.scaling import Scaling
from covist.errors import CovistError


def test_a_number_of_replicas_is_that_number():
    assert Scaling.read(None, None, 16) == Scaling(1)
    assert Scaling.read(3, None, 16) == Scaling(3)


@pytest.mark.parametrize(
    ("replicas", "autoscale", "words"),
    [
        (2, "1:2", "either --replicas or --autoscale"),
        (None, "many", "give MIN:MAX"),
        (None, "1:2,", "give MIN:MAX"),
        (None, "1:2,delay", "give MIN:MAX"),
        (None, "0:2", "MIN must be at least 1"),
        (None, "3:2", "at most MAX"),
    ],
)
def test_impossible_scaling_is_refused_in_one_line(replicas, autoscale, words):
    with pytest.raises(CovistError, match=words) as refusal:
        Scaling.read(replicas, autoscale, 16)
    assert "\n" not in str(refusal.value)


@pytest.mark.ray
def test_options_of_ray_serve_are_passed_through():
    pytest.importorskip("ray", reason="Ray is not installed; make test-ray has it")
    scaling = Scaling.read(None, "1:4,downscale_delay_s=30,target_ongoing_requests=2", 16)
    assert scaling.replicas == 4
    assert scaling.autoscaling == {
        "min_replicas": 1,
        "max_replicas": 4,
        "target_ongoing_requests": 2,
        "downscale_delay_s": 30,
    }
    assert Scaling.read(None, "1:4", 16).autoscaling["target_ongoing_requests"] == 16


@pytest.mark.ray
@pytest.mark.parametrize("option", ["nonsense=1", "downscale_delay_s=soon", "downscale_delay_s=-1", "policy=x"])
def test_options_that_ray_serve_would_not_take_are_refused_in_one_line(option):
    pytest.importorskip("ray", reason="Ray is not installed; make test-ray has it")
    with pytest.raises(CovistError, match="--autoscale: ") as refusal:
        Scaling.read(None, f"1:4,{option}", 16)
    assert "\n" not in str(refusal.value)
