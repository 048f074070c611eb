"""What a worker may take, and which addresses Ray can be at: nothing here starts Ray."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covist.cluster.start import check_address, is_address, reservation_of
from covist.errors import CovistError


def test_on_two_cores_two_workers_have_half_a_core_each():
    assert reservation_of(2, cpus=2, gpus=0).options == {"num_cpus": 0.5, "num_gpus": 0}


def test_each_worker_has_a_gpu_where_there_are_some():
    assert reservation_of(8, cpus=64, gpus=8).options == {"num_cpus": 1.0, "num_gpus": 1}


@given(workers=st.integers(1, 64), cpus=st.integers(1, 512), gpus=st.integers(0, 64))
def test_workers_leave_ray_one_core_or_half_of_a_single_one(workers, cpus, gpus):
    reservation = reservation_of(workers, cpus, gpus)
    assert reservation.cpus > 0
    left = cpus - workers * reservation.cpus
    assert left >= min(1, cpus / 2) - 0.001 * workers  # Ray counts thousandths


@given(workers=st.integers(1, 16), cpus=st.integers(2, 512))
def test_a_worker_with_a_core_or_more_has_whole_cores(workers, cpus):
    found = reservation_of(workers, cpus, 0).cpus
    assert found < 1 or found == int(found)


@pytest.mark.parametrize("text", ["auto", "local", "10.0.0.1:6379", "head.example.org:6379"])
def test_addresses(text):
    check_address(text)


@pytest.mark.parametrize("text", ["rows.jsonl", "ray://head:10001", "photos", "", "--out"])
def test_an_invalid_address_is_refused_in_one_line(text):
    assert not is_address(text)
    with pytest.raises(CovistError, match="ray job submit") as refusal:
        check_address(text)
    assert "\n" not in str(refusal.value)
