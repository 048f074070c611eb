"""What tasks show and ask becomes turns, with images and videos in the order in which they are seen."""

import pytest
from PIL import Image

from covist import CovistError
from covist.lmms.conversations import from_messages, from_visuals

RED, BLUE = Image.new("RGB", (8, 6), "red"), Image.new("RGB", (6, 8), "blue")


def kinds(conversation):
    return [part.get("text", part["type"]) for turn in conversation.turns for part in turn["content"]]


def test_images_of_a_simple_task_stand_before_its_text():
    made = from_visuals([RED, BLUE], "which is red?", frames=4)
    assert kinds(made) == ["image", "image", "which is red?"]
    assert made.images == (RED, BLUE)


def test_marked_places_are_kept():
    made = from_visuals([RED, BLUE], "first <image> then <image>", frames=4)
    assert kinds(made) == ["first ", "image", " then ", "image"]


def test_marks_that_do_not_fit_the_images_are_left_out():
    assert kinds(from_visuals([RED], "<image><image> which?", frames=4)) == ["image", " which?"]
    assert kinds(from_visuals([], "which <image>?", frames=4)) == ["which ?"]


def test_text_without_an_image_is_accepted():
    made = from_visuals(None, "why?", frames=4)
    assert kinds(made) == ["why?"] and not made.shows_something


def test_turns_of_a_chat_task_keep_their_roles_and_order():
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "user", "content": [{"type": "image", "url": RED}, {"type": "text", "text": "what?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "red"}]},
        {"role": "user", "content": [{"type": "text", "text": "and"}, {"type": "image", "url": BLUE}]},
    ]
    made = from_messages(messages, frames=4)
    assert [turn["role"] for turn in made.turns] == ["system", "user", "assistant", "user"]
    assert kinds(made) == ["be brief", "image", "what?", "red", "and", "image"]
    assert made.images == (RED, BLUE)


def test_a_folder_of_frames_and_a_list_of_frames_are_videos(tmp_path):
    for number in range(6):
        RED.save(tmp_path / f"{number}.png")
    made = from_visuals([str(tmp_path), [RED, RED]], "what?", frames=3)
    assert kinds(made) == ["video", "video", "what?"]
    assert [len(video.frames) for video in made.videos] == [3, 2]


def test_transparent_images_are_shown_on_white():
    (image,) = from_visuals([Image.new("RGBA", (2, 2), (0, 0, 0, 0))], "what?", frames=4).images
    assert image.getpixel((0, 0)) == (255, 255, 255)


def test_the_fingerprint_is_that_of_what_is_shown():
    asked = [from_visuals([image], text, frames=4).fingerprint for image in (RED, BLUE) for text in ("a?", "b?")]
    assert asked[0] == asked[1] != asked[2] == asked[3]


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        ({"type": "audio", "url": "a.wav"}, "shows audio"),
        ({"type": "video", "url": "a.mp4", "start_time": 1.0}, "shows part of a video"),
        ({"type": "image", "url": "nowhere.png"}, "does not exist"),
    ],
)
def test_content_that_cannot_be_shown_is_refused(part, complaint):
    with pytest.raises(CovistError, match=complaint):
        from_messages([{"role": "user", "content": [part]}], frames=4)


def test_sound_of_a_simple_task_is_refused():
    with pytest.raises(CovistError, match="shows audio"):
        from_visuals([{"array": [0.0]}], "what?", frames=4)
