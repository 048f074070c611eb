"""Videos: files and frames, within limits, and never a container that leads elsewhere."""

from __future__ import annotations

import base64
from io import BytesIO

import pytest
from PIL import Image
from support.cases import FROZEN, first_of
from support.families import smooth_image
from support.serving import data_url, said, serving

from covist.api.setup import Setup
from covist.families._pil_videos import Qwen2Videos
from covist.request.loading import LoadedModel
from covist.serve.errors import Refusal
from covist.serve.images import ImageReader, Source
from covist.serve.limits import Limits
from covist.serve.service import Service
from covist.serve.videos import MOST_FRAMES, read_video

FRAMES = [smooth_image(56, 56, seed=seed) for seed in range(4)]
TEXT = said("what is this ?")


def frames_url(frames: list[Image.Image]) -> str:
    return "data:video/jpeg;base64," + ",".join(data_url(frame, "jpeg").partition(",")[2] for frame in frames)


def film(count: int = 20, size: tuple[int, int] = (64, 48)) -> bytes:
    """An MP4 file."""
    av = pytest.importorskip("av", reason="video files need PyAV (the extra `video`)")
    file = BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for number in range(count):
            shade = Image.new("RGB", size, (10 * number % 256, 0, 0))
            container.mux(stream.encode(av.VideoFrame.from_image(shade)))
        container.mux(stream.encode())
    return file.getvalue()


def url(data: bytes, kind: str = "mp4") -> str:
    return f"data:video/{kind};base64,{base64.b64encode(data).decode()}"


@pytest.fixture(scope="module")
def watching():
    case = first_of("qwen2.5-vl")
    processor = case.chatting_processor()
    size = {"shortest_edge": 56 * 56, "longest_edge": 10**6}
    processor.video_processor = Qwen2Videos(size=size, patch_size=processor.image_processor.patch_size)
    loaded = LoadedModel("watcher", case.model, processor)
    with serving(Service(loaded, Setup(concentration=FROZEN, budget=2))) as running:
        yield running


def part(address: str) -> dict:
    return {"type": "video_url", "video_url": {"url": address}}


def test_frames_are_one_video(watching):
    own = watching.ask([part(frames_url(FRAMES)), TEXT], max_tokens=2).covist
    assert own["visual_tokens"]["before"] > own["visual_tokens"]["after"] > 0
    assert len(own["certificates"]) == 1


def test_a_file_is_a_video(watching):
    own = watching.ask([part(url(film())), TEXT], max_tokens=2).covist
    assert own["visual_tokens"]["before"] > own["visual_tokens"]["after"] > 0


def test_a_model_without_videos_says_which_have_them(server):
    body = {"model": "tiny", "messages": [{"role": "user", "content": [part(frames_url(FRAMES)), TEXT]}]}
    answer = server.post(body)
    assert answer.status_code == 400 and "takes no videos; these families do" in answer.json()["error"]["message"]


def refusal(address: str, **limits) -> str:
    reader = ImageReader(Limits(**limits), None)
    with pytest.raises(Refusal) as refused:
        reader.decoded(*reader.measured([Source("video", "video 1", address)]))
    assert refused.value.status == 400 and "\n" not in refused.value.message
    return refused.value.message


PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (url(PLAYLIST), "not a video in MP4"),
        (url(b"ffconcat version 1.0\nfile /etc/passwd"), "not a video in MP4"),
        (url(b"words"), "not a video in MP4"),
        ("data:video/mp4;base64,!!!!", "not valid base64"),
        ("data:text/html;base64,aGk=", "must be a data URL: data:video/mp4"),
        ("data:video/jpeg;base64,aGk=", "is not an image"),
        ("data:video/jpeg;base64,", "is not an image"),
        ("data:video/jpeg;base64," + "," * MOST_FRAMES, "more than 1,024 frames"),
        (frames_url([FRAMES[0], smooth_image(28, 28)]), "frame 2 is 28 x 28, frame 1 56 x 56; give one size"),
    ],
    ids=["playlist", "list", "text", "base64", "html", "frame", "nothing", "many", "sizes"],
)
def test_what_is_no_video_is_refused(address, words):
    assert words in refusal(address)


def test_files_are_bounded_before_and_while_they_are_decoded():
    data = film()
    assert "damaged" in refusal(url(data[:40] + b"x" * 400))
    assert "a frame has more than 3,000 pixels" in refusal(url(data), image_pixels=3000)
    assert "too long: its frames have more than 40,000 pixels" in refusal(url(data), video_pixels=40_000)
    assert "more than 10,000 pixels together" in refusal(url(data), image_pixels=10_000, request_pixels=10_000)


def test_a_client_that_leaves_stops_the_decoding_of_its_video():
    seen = []

    def check() -> None:
        seen.append(1)
        if len(seen) == 3:
            raise Refusal(499, "disconnected", "gone")

    reader = ImageReader(Limits(), None)
    (video,) = reader.measured([Source("video", "video 1", url(film()))])
    with pytest.raises(Refusal, match="gone"):
        reader.decoded(video, check)
    assert len(seen) == 3


def test_frames_are_chosen_evenly():
    video = read_video(frames_url(FRAMES * 5), "video 1", Limits(video_frames=4))
    assert len(video.decoded(Limits(video_frames=4), lambda: None).frames) == 4


def test_too_many_videos(server):
    body = {"model": "tiny", "messages": [{"role": "user", "content": [part(frames_url(FRAMES))] * 2}]}
    assert "more than 1 video" in server.post(body).json()["error"]["message"]
