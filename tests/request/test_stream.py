"""`covist.Stream`: what fits is answered as by the plain model, questions disturb nothing, bad input is one line."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from support.cases import first_of
from support.films import moving_square
from support.videos import STAND_INS, with_videos

import covist
from covist.errors import CovistError
from covist.families._pil_videos import LlavaNextVideos
from covist.request.inputs import prepare
from covist.request.loading import LoadedModel, load_model
from covist.request.videos import Video

QUESTION = "what is the colour of this ?"
RATE = 2.0


@pytest.fixture(scope="module", params=["tiny-video", *STAND_INS])
def loaded(request):
    return load_model("tiny-video") if request.param == "tiny-video" else with_videos(request.param)


def logits(loaded, stream, question=QUESTION):
    with stream.prompt(question) as inputs, torch.no_grad():
        return loaded.model(**inputs).logits


def plain(loaded, frames, question=QUESTION):
    with torch.no_grad():
        return loaded.model(
            **prepare(loaded, [], question, videos=[Video.of(frames, RATE)]).inputs(loaded.model)
        ).logits


def streamed(loaded, frames, **options):
    stream = covist.Stream(loaded.model, loaded.processor, rate=RATE, **options)
    for frame in frames:
        stream.add(frame)
    return stream


def tensors(stream):
    state = stream._state
    return [*state.contents.values(), state.home, state.owner, torch.tensor(state.lengths)]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_frames_that_fit_are_answered_as_by_the_plain_model(loaded, count):
    """A pair that lacks its second frame is filled up as the model fills up a video."""
    frames = moving_square(count)
    expected = plain(loaded, frames if count > 1 or "qwen" not in loaded.name else frames * 2)
    with streamed(loaded, frames, budget=4000) as stream:
        found = logits(loaded, stream)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-5 * max(1, expected.abs().max())


def test_a_question_disturbs_nothing(loaded):
    frames = moving_square(5)
    with streamed(loaded, (), budget=12, moments=2) as asked, streamed(loaded, frames, budget=12, moments=2) as quiet:
        for frame in frames:
            asked.add(frame)
            first, second = logits(loaded, asked), logits(loaded, asked)
            assert torch.equal(first, second)
        for one, other in zip(tensors(asked), tensors(quiet), strict=True):
            assert torch.equal(one, other)
        assert torch.equal(second, logits(loaded, quiet))
    assert covist.Compression.of(loaded.model) is None  # both have closed


def test_what_the_decoder_sees_is_bounded(loaded):
    with streamed(loaded, moving_square(12), budget=10, moments=4) as stream:
        handle = stream._compressed()
        stream.ask(QUESTION, max_new_tokens=1)
        report = stream.report
        assert len(report.kept) == 10 and report.frames == 4
        assert report.weights.sum() == report.tokens == 4 * report.tokens_per_frame
        assert [len(span) for span in stream.spans] == sorted(map(len, stream.spans), reverse=True)
        assert sum(map(len, stream.spans)) == len(stream) == 12
        assert handle.report is None  # its own settings were not used
    assert "10 of" in repr(stream)


def test_the_weights_reach_the_attention(loaded):
    with streamed(loaded, moving_square(8), budget=6, moments=4) as stream:
        heavy = logits(loaded, stream)
        stream.method = "covist-max:weights=off"
        light = logits(loaded, stream)
    assert not torch.allclose(heavy, light)


def test_it_shares_the_handle_of_a_compressed_model(loaded):
    frames = moving_square(4)
    with streamed(loaded, frames, budget=12, moments=4) as alone:
        expected = logits(loaded, alone)
    with covist.compress(loaded.model, loaded.processor, budget=3, method="random") as handle:
        with streamed(loaded, frames, budget=12, moments=4) as stream:
            assert torch.equal(logits(loaded, stream), expected)
        assert handle.is_active


def test_two_streams_of_one_model_do_not_mix(loaded):
    first, second = moving_square(4), moving_square(4)[::-1]
    alone = []
    for frames in (first, second):
        with streamed(loaded, frames, budget=12, moments=4) as stream:
            alone.append(logits(loaded, stream))
    with streamed(loaded, (), budget=12, moments=4) as one, streamed(loaded, (), budget=12, moments=4) as other:
        for here, there in zip(first, second, strict=True):
            one.add(here), other.add(there)
        one.close()
        assert torch.equal(logits(loaded, one), alone[0]) and torch.equal(logits(loaded, other), alone[1])
        one.close()


def test_reset_forgets_everything(loaded):
    frames = moving_square(4)
    with streamed(loaded, moving_square(7, 56, 56), budget=12, moments=4) as stream:
        stream.reset()
        assert len(stream) == 0 and stream.nbytes == 0 and repr(stream) == "Stream without a frame yet"
        for frame in frames:
            stream.add(np.asarray(frame))
        found = logits(loaded, stream)
    with streamed(loaded, frames, budget=12, moments=4) as fresh:
        assert torch.equal(found, logits(loaded, fresh))


def test_frames_of_another_size_are_resized_by_the_processor_or_refused(loaded):
    with streamed(loaded, moving_square(2), budget=32) as stream:
        if loaded.name == "tiny-video":  # its tower sees one size
            stream.add(Image.new("RGB", (200, 90)))
            assert len(stream) == 3
        else:
            with pytest.raises(CovistError, match="a frame of 200 x 90 pixels in a stream of 120 x 80"):
                stream.add(Image.new("RGB", (200, 90)))
            assert len(stream) == 2


def test_a_processor_that_shrinks_long_videos_shrinks_every_frame():
    loaded = with_videos("qwen3-vl")
    loaded.processor.video_processor.size = {"shortest_edge": 56 * 56, "longest_edge": 16 * 64 * 96}
    with streamed(loaded, moving_square(12, 192, 128), budget=40, moments=8) as stream:
        stream.ask(QUESTION, max_new_tokens=1)
        assert stream.report.grid.views[0] == (2, 3)


def test_a_processor_that_enlarges_single_frames_is_one_line():
    loaded = with_videos("qwen3-vl")
    loaded.processor.video_processor.size = {"shortest_edge": 4 * 200 * 200, "longest_edge": 10**7}
    line = "the processor treats single frames differently; give larger"
    with streamed(loaded, moving_square(4), budget=400, moments=8) as stream, pytest.raises(CovistError, match=line):
        stream.ask(QUESTION)


def test_llava_next_video_answers_as_the_plain_model():
    case = first_of("llava-next-video")
    processor, side = case.chatting_processor(), case.model.config.vision_config.image_size
    crop = {"height": side, "width": side}
    processor.video_processor = LlavaNextVideos(size={"shortest_edge": side}, crop_size=crop)
    loaded, frames = LoadedModel(case.name, case.model, processor), moving_square(3)
    with streamed(loaded, frames, budget=400) as stream:
        torch.testing.assert_close(logits(loaded, stream), plain(loaded, frames), atol=1e-5, rtol=0)


def test_it_runs_in_half_precision():
    model, processor, _ = load_model("tiny-video", dtype="bfloat16")
    frames, question, answer = covist.tiny.films.film_demo()
    with covist.Stream(model, processor, budget=128) as stream:
        for frame in frames:
            stream.add(frame)
        assert stream.ask(question, max_new_tokens=2) == answer


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"budget": 15}, "budget=15 is less than one token for each of 16 moments"),
        ({"budget": "25%"}, "budget='25%': a stream has no end"),
        ({"budget": "auto"}, "a stream has no end"),
        ({"budget": 0}, "budget must be"),
        ({"budget": 64, "moments": 0}, "moments=0 must be positive"),
        ({"budget": 64, "half_life": 0}, "half_life=0 must be positive"),
        ({"budget": 64, "rate": math.nan}, "rate=nan must be positive"),
        ({"budget": 64, "method": "covist-pro"}, "'covist-pro' cannot stream: only covist-max"),
        ({"budget": 64, "method": "vidcom2"}, "'vidcom2' cannot stream"),
    ],
)
def test_impossible_settings_are_one_line(options, line):
    loaded = load_model("tiny-video")
    with pytest.raises(CovistError, match=line) as refused:
        covist.Stream(loaded.model, loaded.processor, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("frame", [None, "clip.mp4", np.zeros((4, 4)), np.zeros((4, 4, 3)), torch.zeros(4, 4, 3)])
def test_what_is_no_frame_is_one_line(frame):
    loaded = load_model("tiny-video")
    with streamed(loaded, (), budget=32) as stream, pytest.raises(CovistError, match="a frame is a PIL image, or"):
        stream.add(frame)


def test_a_question_before_the_first_frame_is_one_line():
    loaded = load_model("tiny-video")
    with streamed(loaded, (), budget=32) as stream, pytest.raises(CovistError, match="no frame yet; add one"):
        stream.ask(QUESTION)


@pytest.mark.parametrize("family", ["llava-1.5", "internvl"])
def test_models_without_whole_videos_are_one_line(family):
    case = first_of(family)
    with pytest.raises(CovistError, match=r"takes no videos|as a series of images") as refused:
        covist.Stream(case.model, case.processor(), budget=64)
    assert "\n" not in str(refused.value)


def test_a_processor_without_videos_is_one_line():
    case = first_of("qwen2.5-vl")
    with pytest.raises(CovistError, match="takes no videos; pass the model's processor"):
        covist.Stream(case.model, case.processor().tokenizer, budget=64)
