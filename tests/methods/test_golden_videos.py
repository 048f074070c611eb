"""Methods for videos against the authors' code: the shipped methods on the golden inputs."""

from functools import partial

import numpy as np
import pytest
import torch
from support.golden import FOLDER, named_case
from support.images import film
from torch import Tensor

from covist.methods.frames import Kept, largest_by_frame, same_place_cosines, similar_segments
from covist.methods.published import fastvid, flashvid, holitom, prunevid, scissor
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


def kept_rows(kept: Kept, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Indices and contents of all tokens that are kept, increasing."""
    indices = torch.cat([kept.plain, kept.merged])
    contents = torch.cat([tokens.flatten(0, 1)[kept.plain], kept.features])
    order = indices.argsort()
    return indices[order], contents[order]


@pytest.mark.parametrize(("name", "least"), [("a25", 3), ("a15", 2), ("default_c8", 8)])
def test_fastvid(name: str, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = named_case("fastvid", name)
    tokens, salient = case["x"], case["out_salient"]
    segments = similar_segments(tokens.mean(1), 0.9, least)
    assert [len(segment) for segment in segments] == case["out_segments"].tolist()
    monkeypatch.setattr(fastvid, "SEGMENTS", least)
    state = fastvid.FastVID().begin(film(tokens, case["a"]), len(case["out_index"])).state
    same(state.indices, case["out_index"])
    close(state.features, case["out_tokens"])
    kept = Kept.by_segment(
        segments, partial(fastvid.compress, each=len(state.indices) // len(tokens)), tokens, case["a"]
    )
    places = torch.arange(len(tokens))[:, None] * tokens.shape[1]
    same(kept.plain.sort().values, (places + salient).flatten())


@pytest.mark.parametrize(
    ("name", "share", "similarity"),
    [
        ("a15", 0.15, 0.8),
        ("a10", 0.1, 0.65),
        ("many_windows", 0.25, 0.8),
        ("one", 0.25, 0.8),
        ("same_frames", 0.25, 0.8),
        ("odd", 0.3, 0.8),
    ],
)
def test_holitom(name: str, share: float, similarity: float) -> None:
    case = named_case("holitom", name)
    tokens = case["x"]
    still = same_place_cosines(tokens[:-1], tokens[1:]) > similarity
    windows, saved = holitom.best_windows(still)
    assert [[window[0], window[-1]] for window in windows] == case["out_windows"].tolist()
    total = tokens.shape[:2].numel()
    ratio = min(1.0, share * total / (total - saved))
    assert (saved, pytest.approx(ratio)) == (int(case["out_reduced"]), float(case["out_ratio"]))
    moves = torch.cat([still, torch.zeros_like(tokens[:1, :, 0], dtype=torch.bool)])
    rows = []
    for window in windows:
        own = slice(window.start, window.stop)
        kept = holitom.compress(tokens[own], case["a"][own], moves[own], ratio)
        rows += [kept.features[kept.merged.argsort()], tokens[own].flatten(0, 1)[kept.plain]]
    close(torch.cat(rows), case["out_tokens"])


def test_holitom_windows() -> None:
    case = named_case("holitom", "windows")
    windows, saved = holitom.best_windows(case["sim"] > 0.8)
    assert [[window[0], window[-1]] for window in windows] == case["out_windows"].tolist()
    assert saved == int(case["out_reduced"])


@pytest.mark.parametrize(("name", "each", "least"), [("a25", 12, 2), ("v1", 12, 2), ("a12", 8, 3)])
def test_flashvid(name: str, each: int, least: int) -> None:
    case = named_case("flashvid", name)
    tokens, attention = case["x"], case["a"]
    segments = similar_segments(tokens.mean(1), 0.9, least)
    assert [len(segment) for segment in segments] == case["out_segments"].tolist()
    assert min(map(len, segments)) > 1, "published, a single frame is treated in another way"

    def compress(own: Tensor, salience: Tensor) -> Kept:
        return flashvid.compress(own, salience if name == "v1" else salience * flashvid.closeness(own), each)

    indices, contents = kept_rows(Kept.by_segment(segments, compress, tokens, attention), tokens)
    same(indices, case["out_index"])
    close(contents, case["out_tokens"])


@pytest.mark.parametrize("name", ["default_segments", "one_frame", "four_frames_default"])
def test_flashvid_with_segments_of_one_frame_which_cluster_all_tokens_as_published(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours clusters only what was not selected, so that no token is kept twice."""
    case = named_case("flashvid", name)
    tokens, selected = case["x"], int(case["out_selected_per_frame"])
    segments = similar_segments(tokens.mean(1), 0.9, 8)
    assert [len(segment) for segment in segments] == [own for own in case["out_segments"].tolist() if own]

    def compress(own: Tensor, salience: Tensor) -> Kept:
        weight, each = salience * flashvid.closeness(own), selected + int(case["out_merged_per_frame"])
        ours = flashvid.compress(own, weight, each)
        if len(own) > 1:
            return ours
        none = torch.zeros_like(salience, dtype=torch.bool)
        ((centres, features, sizes),) = flashvid.cluster(flashvid.grow(own, none, each), ~none, [each - selected])
        return Kept(ours.plain, centres, features, sizes)

    kept = Kept.by_segment(segments, compress, tokens, case["a"])
    indices = torch.cat([kept.plain, kept.merged])
    contents = torch.cat([tokens.flatten(0, 1)[kept.plain], kept.features])
    order = sorted(range(len(indices)), key=lambda row: (int(indices[row]), float(contents[row, 0])))
    same(indices[order], case["out_index"])
    close(contents[order], case["out_tokens"])


@pytest.mark.parametrize("name", ["adts1", "adts2"])
def test_flashvid_selects(name: str) -> None:
    case = named_case("flashvid", name)
    weight = case["a"] * flashvid.closeness(case["x"]) if name == "adts2" else case["a"]
    chosen = flashvid.select(case["x"], weight, 9)
    assert [row.nonzero()[:, 0].tolist() for row in chosen] == case["out_index"].tolist()


def test_flashvid_divides_a_chain_by_its_direct_members_as_published() -> None:
    case = named_case("flashvid", "chain")
    tokens = case["x"]
    trees = flashvid.grow(tokens, torch.zeros(tokens.shape[:2], dtype=torch.bool), each=0)
    assert trees.is_root.sum(1).tolist() == case["out_counts"].tolist()
    close(trees.contents[trees.is_root], case["out_tokens"])
    assert trees.sizes[trees.is_root].sum() == tokens.shape[:2].numel()


@pytest.mark.parametrize("frames", [2, 3, 4, 6, 8, 9])
def test_flashvid_segments(frames: int) -> None:
    """Published, segments of no frames arise from few frames; they contribute nothing."""
    case = named_case("flashvid", f"seg{frames}")
    lengths = [len(segment) for segment in similar_segments(case["x"], 0.9, 8)]
    assert lengths == [length for length in case["out"].tolist() if length]


@pytest.mark.parametrize(("name", "similarity"), [("a", 0.8), ("b", 0.9), ("seven", 0.8)])
def test_prunevid(name: str, similarity: float) -> None:
    case = named_case("prunevid", name)
    tokens = case["x"]
    sets = prunevid.Sets.of(tokens.flatten(0, 1), film(tokens).grid, similarity)
    assert [len(window) for window in sets.windows] == case["out_windows"].tolist()
    counts = [size if size <= 14 else size // 2 for size in sets.sizes()]
    frames = len(tokens)
    assert counts[frames:] == case["out_static"].tolist()
    assert [sum(counts[f] for f in window) for window in sets.windows] == case["out_dynamic"].tolist()
    kept = sets.merged(counts)
    groups = kept.features.split([counts[part] for part in published_order(sets.windows)])
    rows = [sorted(group.tolist(), key=lambda row: row[:2]) for group in groups]
    close(torch.tensor([row for group in rows for row in group]), case["out_tokens"])


def published_order(windows: list[range]) -> list[int]:
    """The sets of a video as they follow each other in the output: of a window, then of its frames."""
    frames = windows[-1].stop
    return [part for number, window in enumerate(windows) for part in (frames + number, *window)]


@pytest.mark.parametrize("number", range(6))
def test_prunevid_refines_labels(number: int) -> None:
    with np.load(FOLDER / "prunevid.npz") as stored:
        labels, expected = stored[f"labels{number}"].tolist(), stored[f"labels{number}_out"].tolist()
    assert prunevid.refined(labels) == expected


@pytest.mark.parametrize(("name", "threshold"), [("a90", 0.9), ("a80", 0.8), ("one", 0.85), ("same_frames", 0.9)])
def test_scissor(name: str, threshold: float) -> None:
    case = named_case("scissor", name)
    tokens = case["x"]
    assert len(scissor.connected(tokens, threshold).places) == int(case["out_first"])
    found = scissor.connected_twice(tokens, threshold)
    assert len(found.places) == int(case["out_second"])
    contents, cluster, _ = found.spread(tokens.flatten(0, 1))
    same(cluster, case["out_assigned"])
    close(contents, case["out_tokens"])
