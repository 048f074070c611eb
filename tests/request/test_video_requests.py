"""Requests about videos: prompts as transformers writes them, one encoding for several prompts, tokens counted."""

import re

import pytest
import torch
from support.cases import first_of
from support.families import smooth_image
from support.films import moving_square
from support.videos import STAND_INS, with_videos
from transformers import Qwen2_5_VLProcessor, Qwen2VLProcessor, Qwen3VLProcessor

from covist.api.setup import Setup
from covist.errors import CovistError
from covist.families import video
from covist.families._pil_videos import Qwen3Videos
from covist.request.answer import ask, compressed
from covist.request.decoding import generate
from covist.request.inputs import prepare
from covist.request.loading import load_model
from covist.request.tokens import visual_tokens
from covist.request.videos import Video

QUESTIONS = ("what is the colour of this ?", "is this that ?")
FILM = Video(tuple(moving_square(5)), (0, 3, 6, 9, 12), 13, rate=4.0)


@pytest.fixture(params=STAND_INS)
def loaded(request):
    return with_videos(request.param)


def test_a_saved_folder_loads_with_its_stand_in(tmp_path):
    case = first_of("qwen3-vl")
    case.model.save_pretrained(tmp_path)
    case.chatting_processor().save_pretrained(tmp_path)
    processor = load_model(str(tmp_path)).processor
    assert type(processor.video_processor) is Qwen3Videos
    assert processor.video_processor.patch_size == processor.image_processor.patch_size


def test_a_prompt_has_a_placeholder_for_every_token_of_the_video(loaded):
    made = prepare(loaded, [smooth_image(90, 90)], QUESTIONS[0], videos=[FILM])
    config, ids = loaded.model.config, made.prompts["input_ids"]
    frames, rows, columns = made.images["video_grid_thw"][0].tolist()
    assert frames == 3  # five frames, two of which share a patch in time
    assert int((ids == config.video_token_id).sum()) == frames * rows * columns // 4
    assert torch.equal(made.prompts["mm_token_type_ids"] == 2, ids == config.video_token_id)
    assert torch.equal(made.prompts["mm_token_type_ids"] == 1, ids == config.image_token_id)
    patch = loaded.processor.video_processor.patch_size
    assert made.images["pixel_values_videos"].shape == (frames * rows * columns, 3 * 2 * patch**2)
    first = int((ids[0] == config.image_token_id).nonzero()[0])
    assert first < int((ids[0] == config.video_token_id).nonzero()[0])


def test_qwen2_5_learns_how_long_a_patch_in_time_lasts():
    made = prepare(with_videos("qwen2.5-vl"), [], QUESTIONS[0], videos=[FILM])
    assert made.images["second_per_grid_ts"].tolist() == pytest.approx([2 / (5 / 13 * 4)])


def test_qwen3_writes_the_time_before_every_run():
    loaded = with_videos("qwen3-vl")
    made = loaded.processor(
        text=[loaded.processor.video_token],
        videos=[list(FILM.frames)],
        video_metadata=[FILM.metadata],
        return_text_replacement_offsets=True,
    )
    ((written,),) = made["text_replacement_offsets"]
    times = re.findall(r"<([\d.]+) seconds>", written["replacement"])
    seconds = [*FILM.seconds, FILM.seconds[-1]]  # the odd frame lasts on
    assert times == [f"{(seconds[place] + seconds[place + 1]) / 2:.1f}" for place in (0, 2, 4)]


@pytest.mark.parametrize(
    ("family", "official"),
    [("qwen2-vl", Qwen2VLProcessor), ("qwen2.5-vl", Qwen2_5_VLProcessor), ("qwen3-vl", Qwen3VLProcessor)],
)
def test_ids_are_what_the_official_replacement_gives(family, official):
    """The run of a video by transformers' own function, around it the chat template, in the model's tokenizer."""
    loaded = with_videos(family)
    ids = prepare(loaded, [], QUESTIONS[0], videos=[FILM]).prompts["input_ids"]
    seen = loaded.processor.video_processor(
        [list(FILM.frames)], video_metadata=[FILM.metadata], return_metadata=True, return_tensors="pt"
    )
    run = official.replace_video_token(loaded.processor, seen, 0)
    case = first_of(family)
    text = case.turn.replace("{}", case.video.replace(loaded.processor.video_token, run) + QUESTIONS[0])
    assert ids[0].tolist() == loaded.processor.tokenizer(text).input_ids


@pytest.mark.parametrize("setup", [Setup("vanilla"), Setup("covist-fixed", 3, 0.05)], ids=str)
def test_several_prompts_share_one_encoding_and_answer_as_alone(loaded, setup, monkeypatch):
    shown = ([smooth_image(90, 90)],)
    together, *alone = (
        prepare(loaded, *shown, *prompts, videos=[FILM]) for prompts in (QUESTIONS, *((one,) for one in QUESTIONS))
    )
    calls = []
    tower = loaded.model.model.visual
    hook = tower.register_forward_hook(lambda *_: calls.append(1))
    try:
        with compressed(loaded, setup):
            both = generate(loaded.model, together.inputs(loaded.model), 3)
            assert len(calls) == 2  # the image, the video
            each = [generate(loaded.model, one.inputs(loaded.model), 3) for one in alone]
    finally:
        hook.remove()
    assert torch.equal(both, torch.cat(each))


def test_segments_count_as_one_video(loaded, monkeypatch):
    asked = prepare(loaded, [smooth_image(90, 90)], QUESTIONS[0], videos=[FILM])
    (image, film) = visual_tokens(loaded, asked)
    monkeypatch.setattr(video, "SEGMENT_TOKENS", film.content // 3)
    assert visual_tokens(loaded, asked) == [image, film] and film.frames == 3
    answer = ask(loaded, asked, Setup("covist-fixed", "50%"), 1)
    assert len(answer.report.images) == 4 and [one.frames for one in answer.report.visuals] == [1, 3]
    assert answer.report.visuals[1].segments == (1, 1, 1)
    assert answer.report.tokens == (image.content + film.content) / 2
    assert answer.report.summary.startswith("1 image and 1 video, ")
    assert "video 1" in repr(answer.report)


def test_a_single_video_is_summed_up_with_its_frames(loaded):
    answer = ask(loaded, prepare(loaded, [], QUESTIONS[0], videos=[FILM]), Setup("covist-fixed", 2), 1)
    assert answer.report.summary.startswith("1 video of 3 frames, 6 of ")
    assert "(2 per frame)" in repr(answer.report)
    answer.report._repr_html_()


def test_a_report_draws_a_video_from_its_frames_or_from_what_the_encoder_saw(tmp_path):
    loaded = with_videos("qwen2-vl")
    report = ask(loaded, prepare(loaded, [], QUESTIONS[0], videos=[FILM]), Setup("covist-fixed", 2), 1).report
    for image in (None, list(FILM.frames), [list(FILM.frames)]):
        report.save(tmp_path / "film.png", image=image)
    with pytest.raises(CovistError, match="the report has 1 video of 3 frames, got 2; pass one for each"):
        report.save(tmp_path / "film.png", image=[list(FILM.frames)] * 2)


def test_a_placeholder_in_a_question_is_refused(loaded):
    with pytest.raises(CovistError, match="remove it"):
        prepare(loaded, [], f"what {loaded.processor.video_token}", videos=[FILM])


def test_a_video_the_processor_refuses_gives_one_line():
    narrow = Video.of([frame.resize((2, 600)) for frame in FILM.frames])
    with pytest.raises(CovistError, match="refuses the video: "):
        prepare(with_videos("qwen2-vl"), [], QUESTIONS[0], videos=[narrow])
