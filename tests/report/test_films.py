"""Segments of a video, joined to one report: the same frames, tokens, owners and weights."""

from dataclasses import replace

import pytest
import torch
from support.reports import image_report, stage

from covist.grid import Grid, PartialGrid
from covist.report.films import joined, whole_videos
from covist.report.stages import ImageReport


def film(frames, counts=(6,), composed=True):
    return image_report(Grid(((2, 3),) * frames, "frames"), counts, composed)


def parts(counts=(6,), composed=True):
    return [film(3, counts, composed), replace(film(2, counts, composed), continues=True)]


def test_a_video_counts_by_frame():
    kept = torch.tensor([0, 5, 6, 13])
    weights = torch.tensor([1.0, 2.0, 4.0, 8.0])
    one = ImageReport(
        0, Grid(((2, 3),) * 3, "frames"), 18, 0, 4, (4,) * 2, (4,) * 2, (stage(0, kept, weights=weights),)
    )
    assert (one.frames, one.tokens_per_frame, one.is_video, one.kind) == (3, 6, True, "video")
    assert one.kept_per_frame().tolist() == [2, 1, 1] and one.weight_per_frame().tolist() == [3, 4, 8]
    assert repr(one) == "ImageReport(video of 3 frames, 18 tokens in 2 x 3 each; layers 0-1: 4 tokens (1.33 per frame))"


def test_coverage_is_a_mean_over_the_tokens_of_a_frame_and_unknown_without_a_measure():
    covered = torch.tensor([1.0, 0.5, 0.0, 0.5, 1.0, 0.6] + [0.25] * 6)
    one, other = (replace(film(2), stages=(stage(0, [0, 4], covered=each),)) for each in (covered, torch.ones(12)))
    assert one.coverage_per_frame().tolist() == pytest.approx([0.6, 0.25])
    whole = joined([one, replace(other, continues=True)])
    assert whole.coverage_per_frame().tolist() == pytest.approx([0.6, 0.25, 1, 1])
    assert joined(parts()).coverage_per_frame() is None and film(2).coverage_per_frame() is None


def test_an_image_is_one_frame():
    image = image_report(Grid(((4, 4), (2, 6))), (8,))
    assert (image.frames, image.is_video, image.kind, image.describe()) == (1, False, "image", "image")
    assert image.kept_per_frame().tolist() == [8] and image.weight_per_frame().tolist() == pytest.approx(
        [float(image.weights.sum())]
    )


def test_only_the_segments_of_one_video_are_joined():
    image = image_report(Grid(((4, 4),)), (4,))
    whole = whole_videos([image, *parts(), film(1)])
    assert [one.frames for one in whole] == [1, 5, 1] and whole[0] is image
    assert whole[1].segments == (3, 2) and whole[2].segments == ()


@pytest.mark.parametrize("counts", [(6,), (8, 5, 2)])
def test_a_joined_video_has_the_sums_of_its_segments(counts):
    first, second = parts(counts)
    whole = joined([first, second])
    assert whole.tokens == whole.grid.size == 30 and whole.grid.relation == "frames"
    assert whole.tokens_per_layer == tuple(2 * count for count in counts for _ in range(2))
    for place in range(len(counts)):
        assert whole.stages[place].kept.tolist() == [
            *first.stages[place].kept.tolist(),
            *(18 + second.stages[place].kept).tolist(),
        ]
        per_frame = [part.kept_per_frame(place) for part in (first, second)]
        assert torch.equal(whole.kept_per_frame(place), torch.cat(per_frame))
        weights = [part.weight_per_frame(place) for part in (first, second)]
        torch.testing.assert_close(whole.weight_per_frame(place), torch.cat(weights))
        owners = [
            part.stages[place].kept[part.assignment_at(place)] + start for part, start in ((first, 0), (second, 18))
        ]
        assert torch.equal(whole.stages[place].kept[whole.assignment_at(place)], torch.cat(owners))


def test_dropped_tokens_stay_dropped():
    whole = joined(parts((8, 3), composed=False))
    assert whole.assignment is None
    assert len(whole.discarded_at(0)) == 30 - 16 and len(whole.discarded_at(1)) == 30 - 6


def test_a_segment_that_a_stage_leaves_alone_stays_as_it_was():
    """A short segment may have nothing to lose where the others shrink."""
    long, short = film(3, (8, 4)), replace(film(1, (5,)), continues=True)
    short = replace(short, tokens_per_layer=(5,) * 4, cached_tokens_per_layer=(5,) * 4)
    whole = joined([long, short])
    assert [step.depth for step in whole.stages] == [0, 2]
    assert whole.stages[1].kept.tolist() == [*long.kept.tolist(), *(18 + short.kept).tolist()]
    assert whole.assignment_at(1)[18:].tolist() == (4 + short.assignment).tolist()
    seen = whole.stages[1].maps["combined"]
    assert len(seen) == 8 + 5 and seen[:8].isfinite().all() and seen[8:].isnan().all()


def test_masked_tokens_keep_their_frames():
    whole_grid = Grid(((2, 3),) * 2, "frames")
    left = image_report(PartialGrid.of(whole_grid, [0, 1, 7, 8, 9]), (3,))
    one = joined([film(1), replace(left, continues=True)])
    assert one.frames == 3 and one.tokens == 11
    assert one.grid.view_numbers().tolist() == [0] * 6 + [1, 1, 2, 2, 2]


def test_pixels_of_a_joined_video_are_read_when_they_are_asked_for():
    read = []

    def pixels(name, frames):
        return lambda: read.append(name) or [torch.zeros(3, 4, 6)] * frames

    first, second = parts()
    whole = joined([replace(first, read_pixels=pixels("a", 3)), replace(second, read_pixels=pixels("b", 2))])
    assert read == []
    assert len(whole.pixels) == 5 and read == ["a", "b"]
