"""Messages in OpenAI's form become turns; what cannot be one is refused with its place."""

import pytest

from covist import CovistError
from covist.request.messages import read_messages

SHOWN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


def user(*parts):
    return {"role": "user", "content": list(parts)}


def test_turns_keep_their_order_and_images_their_places():
    messages = [
        {"role": "developer", "content": "be brief"},
        user(SHOWN, {"type": "text", "text": "what ?"}),
        {"role": "assistant", "content": "red", "refusal": None},
        user({"type": "text", "text": "and"}, SHOWN),
    ]
    turns, urls = read_messages(messages)
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "user"]
    kinds = [part.get("text", part["type"]) for turn in turns for part in turn["content"]]
    assert kinds == ["be brief", "image", "what ?", "red", "and", "image"]
    assert urls == [SHOWN["image_url"]["url"]] * 2


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": "data:,"},
        {"type": "input_image", "image_url": "data:,", "detail": "auto"},
    ],
)
def test_an_image_may_be_written_in_other_ways(part):
    turns, urls = read_messages([user(part, {"type": "input_text", "text": "what ?"})])
    assert turns == [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what ?"}]}]
    assert urls == ["data:,"]


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "must be a list"),
        ({"role": "user"}, "must be a list"),
        ([5], "messages.0: a message needs a role"),
        ([{"role": "tool", "content": "x"}], "messages: tools are not called here"),
        ([{"role": "assistant", "tool_calls": [5]}, user(SHOWN)], "messages.0: a call of a tool needs a function"),
        ([user({"type": "video_url", "video_url": {"url": "a.mp4"}})], "messages: videos are not read here"),
        ([{"role": "user", "content": None}], "messages.0: the content must be text"),
        ([user({"type": "audio"})], "messages.0: a part must be"),
        ([user({"type": "image_url", "image_url": 5})], "messages.0: a part must be"),
        ([user({"type": "text", "text": " "})], "messages.0: the message is empty"),
        ([user()], "messages.0: the message is empty"),
        (
            [user(SHOWN), {"role": "assistant", "content": [SHOWN]}, user(SHOWN)],
            "messages.1: only user messages",
        ),
        ([user(SHOWN), {"role": "assistant", "content": "x"}], "the last message must be the user's"),
    ],
)
def test_invalid_messages_are_refused(messages, complaint):
    with pytest.raises(CovistError, match=complaint):
        read_messages(messages)
