"""Frames of videos: evenly spaced, in order, from folders and files; one clear line for what is wrong with them."""

import builtins
from types import SimpleNamespace

import pytest
from PIL import Image
from support.films import moving_square, place_of, write_file, write_folder

from covist.errors import CovistError
from covist.request.videos import FOLDER_RATE, Video, _upright, load_video


def test_a_folder_is_read_in_the_order_of_its_numbers(tmp_path):
    video = load_video(write_folder(tmp_path / "film", moving_square(12)), frames=12)
    places = [place_of(frame) for frame in video.frames]
    assert places == sorted(places) and video.numbers == tuple(range(12))
    assert video.seconds == tuple(number / FOLDER_RATE for number in range(12))


def test_files_that_pillow_can_only_write_are_not_frames(tmp_path):
    folder = write_folder(tmp_path / "film", moving_square(3))
    (folder / "notes.pdf").write_bytes(b"%PDF-1.7")
    assert load_video(folder, frames=3).total == 3


def test_some_frames_of_a_folder_keep_their_times(tmp_path):
    video = load_video(write_folder(tmp_path / "film", moving_square(11)), frames=3, rate=4)
    assert (video.numbers, video.total, video.seconds) == ((0, 5, 10), 11, (0, 1.25, 2.5))
    assert [round(place_of(frame), 1) for frame in video.frames] == [0, 0.5, 1]


def test_metadata_names_the_frames_as_transformers_does(tmp_path):
    from transformers.video_utils import VideoMetadata

    video = load_video(write_folder(tmp_path / "film", moving_square(11)), frames=3, rate=4)
    metadata = VideoMetadata(**video.metadata)
    assert tuple(metadata.timestamps) == video.seconds
    assert metadata.sampled_fps == pytest.approx(3 / 11 * 4) and metadata.duration == 11 / 4


def test_frames_at_hand_are_a_video_of_their_own():
    video = Video.of(moving_square(4), rate=2)
    assert (video.numbers, video.total, video.seconds) == ((0, 1, 2, 3), 4, (0, 0.5, 1, 1.5))


@pytest.mark.parametrize("name", ["film.mp4", "film.avi", "film.mkv"])
def test_a_file_is_read_with_its_own_rate(tmp_path, name):
    video = load_video(write_file(tmp_path / name, moving_square(25)), frames=5)
    assert (video.numbers, video.total, video.rate) == ((0, 6, 12, 18, 24), 25, 10)
    assert [place_of(frame) for frame in video.frames] == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=0.05)
    assert {frame.mode for frame in video.frames} == {"RGB"}


def test_a_file_of_fewer_frames_is_read_whole(tmp_path):
    assert load_video(write_file(tmp_path / "film.mp4", moving_square(3)), frames=16).numbers == (0, 1, 2)


def test_a_truncated_file_shows_what_is_left_or_says_so(tmp_path):
    whole = write_file(tmp_path / "film.avi", moving_square(25)).read_bytes()
    (tmp_path / "half.avi").write_bytes(whole[: len(whole) * 2 // 3])
    video = load_video(tmp_path / "half.avi", frames=4)
    assert video.total < 25 and len(video.frames) == 4 and video.numbers[-1] == video.total - 1


@pytest.mark.parametrize("content", [b"no video at all", b"\0" * 5000])
def test_a_file_that_is_not_a_video_gives_one_line(tmp_path, content):
    pytest.importorskip("av", reason="video files need PyAV (the extra `video`)")
    (tmp_path / "film.mp4").write_bytes(content)
    with pytest.raises(CovistError, match=r"is damaged, or not a video that PyAV can read \([^\n]+\)$"):
        load_video(tmp_path / "film.mp4")


def test_a_file_without_a_picture_is_one_line(tmp_path):
    av = pytest.importorskip("av", reason="video files need PyAV (the extra `video`)")
    with av.open(str(tmp_path / "sound.wav"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame(format="s16", layout="mono", samples=800)
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    with pytest.raises(CovistError, match="contains no video stream$"):
        load_video(tmp_path / "sound.wav")


def test_without_pyav_a_file_names_the_command_that_helps(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "av":
            raise ImportError
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    (tmp_path / "film.mp4").write_bytes(b"anything")
    with pytest.raises(CovistError, match=r'needs PyAV: pip install "covist\[video\]", or give its frames as images'):
        load_video(tmp_path / "film.mp4")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nowhere.mp4", r"nowhere\.mp4 does not exist$"),
        ("empty.mp4", r"is empty \(0 bytes\)$"),
        ("blank", "the folder contains no images$"),
        ("https://example.com/film.mp4", "URLs are not read; download the video"),
    ],
)
def test_a_file_or_folder_that_is_not_a_video_gives_one_line(tmp_path, name, complaint):
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "blank").mkdir()
    with pytest.raises(CovistError, match=complaint):
        load_video(name if name.startswith("https") else tmp_path / name)


def test_frames_of_different_sizes_are_refused_with_their_names(tmp_path):
    folder = write_folder(tmp_path / "film", [*moving_square(2), Image.new("RGB", (10, 20))])
    with pytest.raises(CovistError, match=r"frame2\.png is 10 x 20, frame0\.png 120 x 80; give one size$"):
        load_video(folder)


@pytest.mark.parametrize(("options", "complaint"), [({"frames": 0}, "at least 1"), ({"rate": 0.0}, "positive number")])
def test_impossible_choices_are_refused(tmp_path, options, complaint):
    with pytest.raises(CovistError, match=complaint):
        load_video(write_folder(tmp_path, moving_square(2)), **options)


def test_a_frame_is_rotated_as_its_metadata_asks():
    frame = moving_square(1)[0]
    turned = _upright(SimpleNamespace(to_image=lambda: frame, rotation=90))
    assert turned.size == (80, 120)
    assert turned.getpixel((40, 119)) == frame.getpixel((0, 40))  # what was left is below
