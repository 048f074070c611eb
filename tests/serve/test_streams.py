"""Streams over WebSockets: with starlette's client, and with a real one over loopback; hostile clients."""

import json
import threading

import pytest
from PIL import Image
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect
from support.serving import CONCENTRATION, data_url, serving, wait_until

import covist
from covist.api.setup import Setup
from covist.request.loading import load_model
from covist.serve.app import create_app
from covist.serve.keys import Keys
from covist.serve.limits import Limits
from covist.serve.service import Service

PATH = "/v1/stream"
FRAMES, QUESTION, ANSWER = covist.tiny.films.film_demo()


@pytest.fixture(scope="module")
def films():
    return load_model("tiny-video", device="cpu")


@pytest.fixture
def client(films):
    """Starts applications of the embedded video model with options of their own."""
    opened = []

    def start(keys=None, origins=(), **limits) -> TestClient:
        service = Service(films, Setup(concentration=CONCENTRATION), limits=Limits(**limits), keys=keys)
        opened.append(TestClient(create_app(service, origins)))
        return opened[-1].__enter__()

    yield start
    for one in opened:
        one.__exit__(None, None, None)


def say(socket, **message):
    socket.send_text(json.dumps(message))
    return socket.receive_json()


def show(socket, frame=FRAMES[0]):
    return say(socket, type="frame", image=data_url(frame))


def refused(reply, code):
    """The line of an error, in the shape of all others."""
    error = reply["error"]
    assert error["code"] == code and "\n" not in error["message"]
    return error["message"]


def test_frames_come_in_and_questions_are_answered_at_any_moment(client):
    with client().websocket_connect(PATH) as socket:
        assert say(socket, type="settings", budget=128) == {"type": "settings", "budget": 128, "moments": 16}
        replies = [show(socket, frame) for frame in FRAMES]
        assert replies[-1] == {"type": "frame", "frames": 16, "tokens": 128}
        for _ in range(2):
            answer = say(socket, type="ask", question=QUESTION, max_tokens=4)
            assert answer == {"type": "answer", "answer": ANSWER, "frames": 16, "tokens": 128}


def test_connections_have_streams_of_their_own_and_share_the_model_with_other_requests(client):
    here = client()
    with here.websocket_connect(PATH) as one, here.websocket_connect(PATH) as other:
        assert show(one)["frames"] == 1 and show(other)["frames"] == 1 and show(one)["frames"] == 2
        body = {"model": "tiny-video", "messages": [{"role": "user", "content": "is there a ring?"}], "max_tokens": 2}
        assert here.post("/v1/chat/completions", json=body).status_code == 200
        assert b"covist_streams 2.0" in here.get("/metrics").content
        assert say(one, type="ask", question=QUESTION, max_tokens=1)["frames"] == 2
    assert b"covist_streams 0.0" in here.get("/metrics").content


@pytest.mark.parametrize(
    ("message", "code", "line"),
    [
        ("no JSON", "invalid_json", "the message is not valid JSON"),
        ("[1]", "invalid_json", "must be a JSON object"),
        ('{"type": "film"}', "invalid_request", "'film'"),
        ("{}", "invalid_request", "type"),
        ('{"type": "frame"}', "invalid_request", "image"),
        ('{"type": "frame", "image": 7}', "invalid_request", "image"),
        ('{"type": "frame", "image": "https://example.com/a.png"}', "bad_image", "must be a data URL"),
        ('{"type": "frame", "image": "data:image/png;base64,AAAA"}', "bad_image", "frame"),
        ('{"type": "ask", "question": "what?", "frames": 3}', "invalid_request", "frames"),
        ('{"type": "ask", "question": "what?"}', "bad_question", "no frame yet"),
        ('{"type": "settings", "budget": 4}', "bad_setting", "less than one token for each of 16 moments"),
        ('{"type": "settings", "budget": 100000}', "bad_setting", "at most 1024 tokens"),
        ('{"type": "settings", "moments": 1000}', "invalid_request", "moments"),
    ],
)
def test_a_bad_message_is_one_line_and_the_stream_goes_on(client, message, code, line):
    with client().websocket_connect(PATH) as socket:
        socket.send_text(message)
        assert line in refused(socket.receive_json(), code)
        assert show(socket)["frames"] == 1


def test_binary_and_empty_questions_and_late_settings_are_one_line(client):
    with client(prompt_characters=20).websocket_connect(PATH) as socket:
        socket.send_bytes(b"\x89PNG")
        assert "text in JSON" in refused(socket.receive_json(), "invalid_json")
        show(socket)
        assert "before the first frame" in refused(say(socket, type="settings", budget=64), "bad_setting")
        assert "empty" in refused(say(socket, type="ask", question=" "), "bad_question")
        assert "more than 20 characters" in refused(say(socket, type="ask", question="what " * 9), "invalid_request")
        assert "a special token" in refused(say(socket, type="ask", question="<video>"), "special_token")
        assert say(socket, type="ask", question="what?", max_tokens=1)["frames"] == 1


def test_a_frame_has_the_limits_of_images_and_any_size_that_the_tower_takes(client):
    with client(image_pixels=64 * 64, image_bytes=20_000).websocket_connect(PATH) as socket:
        refused(show(socket, Image.new("RGB", (65, 64))), "bad_image")
        noise = Image.effect_noise((64, 64), 99).convert("RGB").resize((64, 64))
        refused(say(socket, type="frame", image=data_url(noise) + "A" * 40_000), "image_too_large")
        assert show(socket)["frames"] == 1 and show(socket, Image.new("RGB", (20, 60)))["frames"] == 2


def test_there_are_only_so_many_streams(client):
    here = client(streams=1)
    with here.websocket_connect(PATH) as socket:
        show(socket)
        with pytest.raises(WebSocketDenialResponse) as denied, here.websocket_connect(PATH):
            pass
        assert denied.value.status_code == 503 and denied.value.json()["error"]["code"] == "busy"
    with here.websocket_connect(PATH) as socket:
        assert show(socket)["frames"] == 1


def test_a_silent_client_is_told_and_left(client):
    with client(stream_seconds=0.05).websocket_connect(PATH) as socket:
        assert "nothing was sent for 0.05 seconds" in refused(socket.receive_json(), "idle")
        with pytest.raises(WebSocketDisconnect):
            socket.receive_json()


def test_streams_need_the_key_of_other_routes(client):
    here = client(keys=Keys(["secret"]))
    with pytest.raises(WebSocketDenialResponse) as denied, here.websocket_connect(PATH):
        pass
    assert denied.value.status_code == 401 and denied.value.json()["error"]["code"] == "invalid_api_key"
    with here.websocket_connect(PATH, headers={"authorization": "Bearer secret"}) as socket:
        assert show(socket)["frames"] == 1


def test_scripts_of_other_sites_open_no_streams(client):
    here = client(origins=["https://mine.example"])
    with (
        pytest.raises(WebSocketDenialResponse) as denied,
        here.websocket_connect(PATH, headers={"origin": "https://other.example"}),
    ):
        pass
    assert denied.value.status_code == 403
    for origin in ("https://mine.example", "http://testserver"):
        with here.websocket_connect(PATH, headers={"origin": origin}) as socket:
            assert show(socket)["frames"] == 1


def test_a_model_without_videos_says_so(small_model):
    service = Service(small_model, Setup(concentration=CONCENTRATION))
    with TestClient(create_app(service)) as here:
        with pytest.raises(WebSocketDenialResponse) as denied, here.websocket_connect(PATH):
            pass
        assert denied.value.status_code == 400 and "takes no videos" in denied.value.json()["error"]["message"]


@pytest.fixture
def real(films):
    pytest.importorskip("websockets", reason="a real client needs websockets (the extra `serve`)")
    limits = Limits(image_bytes=100_000)
    with serving(Service(films, Setup(concentration=CONCENTRATION), limits=limits)) as server:
        yield server


def connect(server, **options):
    from websockets.sync.client import connect

    return connect(f"ws://127.0.0.1:{server.port}{PATH}", **options)


def test_a_real_client_over_loopback(real):
    with connect(real) as socket:
        for frame in FRAMES:
            socket.send(json.dumps({"type": "frame", "image": data_url(frame)}))
        replies = [json.loads(socket.recv()) for _ in FRAMES]
        assert [reply["frames"] for reply in replies] == list(range(1, 17))
        socket.send(json.dumps({"type": "ask", "question": QUESTION, "max_tokens": 4}))
        assert json.loads(socket.recv())["answer"] == ANSWER


def test_a_huge_message_closes_the_connection_and_nothing_else(real):
    from websockets.exceptions import ConnectionClosed

    with connect(real) as hostile, pytest.raises(ConnectionClosed):
        hostile.send("x" * 1_000_000)
        hostile.recv()
    wait_until(lambda: real.service.streams.open == 0)
    with connect(real) as socket:
        socket.send(json.dumps({"type": "frame", "image": data_url(FRAMES[0])}))
        assert json.loads(socket.recv())["frames"] == 1


def test_a_client_that_leaves_in_the_middle_of_an_answer_ends_it(real, films, monkeypatch):
    monkeypatch.setattr(films.model.generation_config, "eos_token_id", None)  # it writes as long as it may
    steps, writing = [], threading.Event()

    def count(*call):
        steps.append(1)
        if len(steps) > 3:
            writing.set()

    hook = films.model.register_forward_pre_hook(count)
    try:
        with connect(real) as socket:
            socket.send(json.dumps({"type": "frame", "image": data_url(FRAMES[0])}))
            socket.recv()
            socket.send(json.dumps({"type": "ask", "question": QUESTION, "max_tokens": 3_000}))
            assert writing.wait(60)
        wait_until(lambda: real.service.streams.open == 0)
        assert len(steps) < 3_000
    finally:
        hook.remove()
