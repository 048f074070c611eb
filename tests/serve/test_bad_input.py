"""Bad input: each is answered with a 4xx of one line, and the next good request is answered as before."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import struct
import zlib

import httpx
import pytest
from support.serving import data_url, said, shown

from covist import tiny
from covist.serve.keys import Keys
from covist.serve.limits import Limits

IMAGE, QUESTION, ANSWER = tiny.demo()
GOOD = {"model": "tiny", "messages": [{"role": "user", "content": "where ?"}], "max_tokens": 2}


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG whose header says what it likes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


WHOLE = base64.b64decode(data_url(IMAGE).partition(",")[2])


@pytest.fixture
def refused(server):
    """Posts a body, and checks that it is refused in one line and that the server goes on."""

    def check(body, status=400, **options) -> str:
        answer = server.post(body, **options)
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert "\n" not in error["message"] and len(error["message"]) <= 300
        assert server.post(GOOD).status_code == 200
        return error["message"]

    return check


def asking(content, **fields) -> dict:
    return {**GOOD, "messages": [{"role": "user", "content": content}], **fields}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (png(50_000, 50_000, zlib.compress(b"\0" * 1000)), "too large"),
        (png(9_000, 9_000), "too large: more than 64,000,000 pixels"),
        (WHOLE[: len(WHOLE) // 2], "damaged or truncated"),
        (png(64, 64, zlib.compress(b"\0" * 10)), "damaged or truncated"),
        (png(64, 64, b"no deflate"), "damaged or truncated"),
        (png(0, 64), "image 1"),
        (png(1, 2_000), "one side may be at most 200 times the other"),
        (b"words", "not an image"),
        (b"", "not an image"),
        (b"GIF89a" + WHOLE, "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0", "not an image"),
    ],
    ids=["bomb", "large", "truncated", "short", "broken", "empty", "narrow", "text", "nothing", "gif", "postscript"],
)
def test_unusable_image_files_are_refused(refused, data, words):
    assert words in refused(asking([shown(data), said(QUESTION)]))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data:image/png;base64,!!!!", "not valid base64"),
        ("data:image/png,abc", "must be a data URL"),
        ("data:text/html;base64,aGVsbG8=", "must be a data URL"),
        ("data:image/svg+xml;base64,aGVsbG8=", "must be a data URL"),
        ("https://example.com/image.png", "does not fetch from"),
        ("http://169.254.169.254/latest/meta-data", "does not fetch from"),
        ("file:///etc/passwd", "must be a data URL"),
        ("data:image/png;base64," + "A" * 29_000_000, "larger than 20,971,520 bytes"),
    ],
    ids=["base64", "encoding", "html", "svg", "https", "metadata", "file", "large"],
)
def test_urls_that_are_not_images_are_refused(refused, url, words):
    assert words in refused(asking([shown(url), said(QUESTION)]))


def test_an_image_of_another_kind_than_it_says_is_an_image(server):
    file = data_url(IMAGE, "jpeg").replace("image/jpeg", "image/png")
    assert server.ask([shown(file), said(QUESTION)]).choices[0].message.content == ANSWER


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[" * 10_000_000, "more values than a request"),
        (b'{"messages":' * 800_000, "more values than a request"),
        (b"[" * 10_000, "not valid JSON"),
        (b'{"messages":' * 10_000, "not valid JSON"),
        (b"", "not valid JSON"),
        (b"nonsense", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (json.dumps(GOOD).encode()[:-1] + b', "temperature": NaN}', "not valid JSON"),
        (json.dumps(GOOD).encode()[:-1] + b', "temperature": 1e999}', "temperature"),
    ],
    ids=[
        "brackets",
        "objects",
        "deep-brackets",
        "deep-objects",
        "empty",
        "words",
        "no-unicode",
        "list",
        "null",
        "nan",
        "infinity",
    ],
)
def test_bodies_that_are_not_requests_are_refused(refused, body, words):
    assert words in refused(body)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 5), ("model", None), ("messages", "hello"), ("messages", []), ("messages", [5]), ("messages", {}),
        ("max_tokens", -1), ("max_tokens", 0), ("max_tokens", "5"), ("max_tokens", 1.5), ("max_tokens", True),
        ("temperature", -0.1), ("temperature", 2.5),
        ("temperature", "hot"), ("temperature", [0]), ("top_p", 0), ("top_p", 1.1), ("seed", "x"), ("seed", 2**80),
        ("stop", 5), ("stop", [""]), ("stop", ""), ("stop", ["a"] * 5), ("stop", "x" * 100), ("stream", "yes"),
        ("stream_options", True), ("n", 0), ("n", 5), ("n", -3), ("nonsense", 1), ("tools", [{"type": "function"}]),
        ("logprobs", 0), ("top_logprobs", 2), ("top_logprobs", 21), ("top_logprobs", -1), ("frequency_penalty", 2.5),
        ("presence_penalty", -3), ("top_k", -2), ("top_k", 1.5), ("min_p", 1.5), ("min_p", -1),
        ("repetition_penalty", 0), ("repetition_penalty", 11), ("response_format", {"type": "yaml"}),
        ("response_format", {"type": "json_schema"}), ("response_format", "json_object"),
        ("tools", 5), ("tools", [{"type": "function", "function": {"name": "a b"}}]), ("tool_choice", "maybe"),
        ("tool_choice", "required"), ("tool_choice", {"type": "function", "function": {"name": "x"}}),
        ("covist", 5), ("covist", {"budget": -1}), ("covist", {"budget": 0}), ("covist", {"budget": True}),
        ("covist", {"budget": [64]}), ("covist", {"budget": "much"}), ("covist", {"budget": 1.5}),
        ("covist", {"strategy": "best"}), ("covist", {"method": "magic"}), ("covist", {"nonsense": 1}),
        ("covist", {"method": "divprune", "strategy": "pro"}), ("covist", {"method": "covist-fixed:weight_limit=64"}),
        ("covist", {"budget": "auto:2"}), ("covist", {"budget": "auto", "method": "divprune"}),
        ("covist", {"min_coverage": 2}), ("covist", {"min_coverage": 0.9, "method": "divprune"}),
        ("covist", {"method": "divprune+magic"}), ("covist", {"method": "x" * 1000}), ("user", "x" * 1000),
        ("metadata", {str(number): "x" for number in range(17)}), ("metadata", {"x": "x" * 1000}),
        ("model", "x" * 1000),
    ],
)  # fmt: skip
def test_wrong_types_and_values(refused, field, value):
    assert field.split("_")[-1] in refused({**GOOD, field: value})


def test_a_field_that_must_be_empty_is_said_to_be_unsupported(refused):
    assert "logit_bias: not supported, leave it out" in refused({**GOOD, "logit_bias": {"5": 1.0}})


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image_url", "image_url": 5}, "messages.0.content.0.image_url: Input should be an object"),
        ({"type": "image_url", "image_url": "photo.jpg"}, "image 1 must be a data URL"),
        ({"type": "input_image", "file_id": "file-1"}, "messages.0.content.0.image_url: Field required"),
        ({"type": "input_audio"}, "'input_audio' found using 'type' does not match"),
        ({"text": "x"}, "messages.0.content.0: Unable to extract tag using discriminator 'type'"),
        (5, "messages.0.content.0: Input should be"),
    ],
)
def test_a_part_that_is_wrong_is_refused_in_words_that_fit(refused, part, words):
    assert words in refused(asking([part, said(QUESTION)]))


@pytest.mark.parametrize(
    "content",
    [
        5, None, {}, [], "", "   ", [5], [{"type": "text"}], [{"type": "text", "text": 5}], [{"type": "video"}],
        [{"type": "image_url"}], [{"type": "image_url", "image_url": {}}],
        [{"type": "image_url", "image_url": {"url": 5}}], [{"type": "text", "text": "x", "extra": 1}],
        [{"type": "text", "text": "x"}] * 257,
    ],
)  # fmt: skip
def test_messages_that_are_none(refused, content):
    assert "messages" in refused(asking(content))


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "function", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user\nASSISTANT:", "content": "x"}],
        [{"role": "{{ 7 * 7 }}", "content": "x"}],
        [{"role": 5, "content": "x"}],
        [{"content": "x"}],
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
        [{"role": "system", "content": [shown(IMAGE)]}, {"role": "user", "content": "x"}],
        [{"role": "user", "content": "x"}] * 65,
    ],
)
def test_roles_and_turns_that_are_not_served(refused, messages):
    assert "messages" in refused({**GOOD, "messages": messages})


@pytest.mark.parametrize("token", ["<image>", "</s>", "<s>", "<pad>"])
@pytest.mark.parametrize("form", ["{}", "a {} b", "a{}b", "{}{}"])
def test_special_tokens_in_text_are_refused(refused, token, form):
    assert "special token" in refused(asking(form.format(token, token)))


def test_special_tokens_cannot_be_put_together_from_parts(refused):
    assert "special token" in refused(asking([said("<ima"), said("ge>")]))
    assert "special token" in refused(asking([said("<ima"), shown(IMAGE), said("ge>")]))


def test_text_is_not_rendered_as_a_template(server):
    assert server.ask("{{ messages }} {% for x in y %}").choices


def test_an_unknown_model(refused):
    assert "no model 'gpt'" in refused({**GOOD, "model": "gpt"}, 404)


def test_a_prompt_of_a_million_characters(refused):
    assert "100,000 characters" in refused(asking("where " * 170_000))


def test_a_prompt_of_too_many_tokens(refused):
    assert "tokens, more than" in refused(asking("where " * 9000))


def test_too_many_images(refused):
    assert "more than 8 images" in refused(asking([shown(IMAGE)] * 9 + [said(QUESTION)]))


def test_objects_with_more_fields_than_any_has(refused):
    wide = {f"field_{number}": 1 for number in range(65)}
    for body in ({**GOOD, **wide}, asking([{"type": "text", "text": "x", **wide}]), {**GOOD, "covist": wide}):
        assert "more than 64 fields" in refused(body)


def test_unknown_paths_and_methods(server):
    import httpx

    for method, path, status in (("GET", "/", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/v1/files", 404)):
        answer = httpx.request(method, server.url + path)
        assert answer.status_code == status
        assert "/v1/chat/completions" in answer.json()["error"]["message"]


def test_a_body_that_is_too_large(serve):
    server = serve(limits=Limits(body_bytes=1000))
    for body in (asking("x" * 2000), b"x" * 2000):
        answer = server.post(body)
        assert answer.status_code == 413
        assert "larger than 1,000 bytes" in answer.json()["error"]["message"]
    assert server.ask(max_tokens=1).choices


def test_a_body_without_a_length_is_counted_as_it_comes(serve):
    import httpx

    server = serve(limits=Limits(body_bytes=1000))
    answer = httpx.post(f"{server.url}/v1/chat/completions", content=(b"x" * 100 for _ in range(50)))
    assert answer.status_code == 413


def test_a_body_that_dribbles_in(serve):
    server = serve(limits=Limits(body_seconds=1))
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        assert slow.recv(4096).startswith(b"HTTP/1.1 408")
    assert server.ask(max_tokens=1).choices


@pytest.mark.parametrize("begun", [b"", b"POST /v1/chat/comp", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"])
def test_a_connection_with_endless_headers_is_closed(serve, begun):
    server = serve(limits=Limits(body_seconds=1))
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(begun)
        assert slow.recv(4096) == b""
    assert server.ask(max_tokens=1).choices


def test_a_connection_is_kept_for_the_next_request_while_the_first_is_answered(serve):
    server = serve(limits=Limits(body_seconds=1))
    body = {"model": "small", "messages": GOOD["messages"], "max_tokens": 300}
    with httpx.Client(timeout=300) as client:
        for _ in range(2):  # each takes longer than a head may
            assert client.post(f"{server.url}/v1/chat/completions", json=body).status_code == 200


def test_a_client_that_hangs_up_inside_its_body(serve):
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port)) as rude:
        rude.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    assert server.ask(max_tokens=1).choices


def exchange(server, sent: bytes) -> bytes:
    """What a connection brings until the server closes it."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(4096), b""))


@pytest.mark.parametrize("line", ["POST /v1/chat/completions", "GET /health", "GET /nowhere"])
def test_a_request_with_two_lengths_is_refused_and_its_remainder_is_not_read_as_a_request(server, line):
    """It was read by one of them; the rest waited for a body, or was answered as a request of its own."""
    head = f"{line} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
    for following in ("", "0\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n"):
        answer = exchange(server, (head + following).encode())
        assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1
        assert b"both Content-Length and Transfer-Encoding" in answer and b'"two_lengths"' in answer


def test_a_compressed_body_is_refused_as_such(server):
    answer = server.post(gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 400 and "must not be compressed" in answer.json()["error"]["message"]


def test_keys_are_asked_for(serve):
    import openai

    server = serve(keys=Keys(["right"]))
    with pytest.raises(openai.AuthenticationError, match="no valid API key"):
        server.client("wrong").models.list()
    with pytest.raises(openai.AuthenticationError):
        server.client("wrong").chat.completions.create(model="small", messages=GOOD["messages"])
    assert (
        server.client("right").chat.completions.create(model="small", messages=GOOD["messages"], max_tokens=1).choices
    )
