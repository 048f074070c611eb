"""Methods for videos against the authors' code: the shipped methods on the golden inputs."""

import pytest
import torch
from support.golden import named_case
from support.images import film
from torch import Tensor

from covist.methods.frames import largest_by_frame
from covist.methods.published.dycoke import DyCoke, compared_frames, similarity
from covist.methods.published.vcast import VCast, allocate, curvature
from covist.methods.published.vidcom2 import VidCom2, frame_shares, likeness


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=2e-4, rtol=2e-4)


def same(actual: Tensor, expected: Tensor) -> None:
    assert actual.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("name", "share"), [("a25", 0.25), ("a10", 0.1), ("odd", 0.25), ("two", 0.3), ("one", 0.25), ("same_frames", 0.25)]
)
def test_vidcom2(name: str, share: float) -> None:
    case = named_case("vidcom2", name)
    of_video, of_frame = likeness(case["x"])
    close(of_video, case["out_video_score"])
    close(of_frame, case["out_frame_score"])
    shares = frame_shares(of_video, share)
    close(shares, case["out_scales"])
    counts = [max(1, round(own)) for own in (shares * case["x"].shape[1]).tolist()]
    assert counts == case["out_counts"].tolist()
    same(largest_by_frame(-(of_video + of_frame), counts), case["out_kept"])


@pytest.mark.parametrize("name", ["a25", "a10", "odd", "two", "one", "same_frames"])
def test_vidcom2_at_the_number_of_tokens_that_the_authors_keep(name: str) -> None:
    case = named_case("vidcom2", name)
    same(VidCom2().select(film(case["x"]), len(case["out_kept"])), case["out_kept"])


@pytest.mark.parametrize("name", ["a25", "a10", "odd", "two", "three", "tiny_budget", "same_frames"])
def test_v_cast(name: str) -> None:
    case = named_case("vcast", name)
    close(curvature(case["x"]), case["out_curvature"])
    kept = VCast().select(film(case["x"]), len(case["out_kept"]))
    same((kept // case["x"].shape[1]).bincount(minlength=len(case["x"])), case["out_counts"])
    same(kept, case["out_kept"])


@pytest.mark.parametrize("total", [3, 7, 12, 23, 39, 40])
@pytest.mark.parametrize("row", range(3))
def test_v_cast_allocates(row: int, total: int) -> None:
    case = named_case("vcast", "alloc")
    assert allocate(case["weights"][row], total, most=8) == case[f"out_{row}_{total}"].tolist()


@pytest.mark.parametrize(
    ("name", "dropped"), [("eight", 0.7), ("twelve", 0.7), ("six", 0.7), ("nine", 0.5), ("five", 0.3)]
)
def test_dycoke(name: str, dropped: float) -> None:
    """The published loops leave the last group of four to its pairs, and the last of an odd number of frames out."""
    case = named_case("dycoke", name)
    tokens = case["x"][: len(case["x"]) // 2 * 2]
    frames, places = tokens.shape[:2]
    compared = [number - 1 if number % 2 else None for number in range(frames)]
    for first in range(0, len(case["x"]) - 4, 4):
        compared[first + 2] = first
    each = int((1 - dropped) * places)
    counts = [places if other is None else each for other in compared]
    same(largest_by_frame(-similarity(tokens, compared), counts), case["out_order"].sort().values)
    ours, treated = compared_frames(len(case["x"])), (len(case["x"]) - 1) // 4 * 4
    assert ours[:treated] == compared[:treated]


def test_dycoke_as_a_method_where_the_authors_treat_every_group() -> None:
    case = named_case("dycoke", "twelve")
    kept, places = case["out_order"].sort().values, case["x"].shape[1]
    kept = kept[kept < 8 * places]
    same(DyCoke().select(film(case["x"][:8]), len(kept)), kept)
