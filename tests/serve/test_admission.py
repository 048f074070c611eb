"""Before a request waits for the model: no client, however slow or greedy, keeps the others waiting."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from io import BytesIO

import httpx
import pytest
from PIL import Image
from support.serving import data_url, metric, posting, said, shown, wait_until

from covist import CovistError, tiny
from covist.serve import app
from covist.serve.admission import PREPARING_THREADS
from covist.serve.images import Source
from covist.serve.limits import Limits

HOST = "images.example.com"
WEB = {"type": "image_url", "image_url": {"url": f"https://{HOST}/a.png"}}
IMAGE = tiny.demo()[0]


def asking(*content, **fields) -> dict:
    return {"model": "small", "messages": [{"role": "user", "content": list(content)}], "max_tokens": 1, **fields}


TEXT = asking(said("where ?"))


class SilentHost:
    """A host that accepts connections and says nothing."""

    def __init__(self, server):
        self.open = 0
        fetcher = server.service._admission._fetcher
        fetcher._resolve, fetcher._connect = self.resolve, self.connect
        self._far = []

    def resolve(self, host, port, **options):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.215.14", port))]

    async def connect(self, address, host):
        near, far = socket.socketpair()
        self._far.append(far)
        streams = await asyncio.open_connection(sock=near)
        self.open += 1
        abort = streams[1].transport.abort

        def count() -> None:
            self.open -= 1
            abort()

        streams[1].transport.abort = count
        return streams


@contextmanager
def busy_threads(server):
    """All preparing threads at work."""
    free, begun = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        begun.release()
        free.wait()

    for _ in range(PREPARING_THREADS):
        server.service._admission._threads.submit(work)
    for _ in range(PREPARING_THREADS):
        begun.acquire()
    try:
        yield
    finally:
        free.set()


@pytest.fixture
def slow(serve):
    server = serve(image_hosts=[HOST], limits=Limits(fetch_seconds=600, request_seconds=600))
    return server, SilentHost(server)


def test_clients_that_wait_for_a_slow_host_take_no_thread(slow):
    server, host = slow
    with ExitStack() as clients:
        for _ in range(32):
            clients.enter_context(posting(server, asking(WEB, said("where ?"))))
        wait_until(lambda: host.open == 32)
        assert server.post(TEXT).status_code == 200
    wait_until(lambda: host.open == 0)  # the connections of clients that left are closed
    wait_until(lambda: metric(server, 'covist_refusals_total{reason="disconnected"}') == 32)
    assert server.service.room.taken == 0


def test_clients_that_left_while_they_waited_for_a_thread_are_forgotten(serve):
    server = serve()
    with busy_threads(server):
        with ExitStack() as clients:
            for _ in range(32):
                clients.enter_context(posting(server, TEXT))
            wait_until(lambda: server.service._admission._threads._work_queue.qsize() == 32)
        wait_until(lambda: metric(server, 'covist_refusals_total{reason="disconnected"}') == 32)
    assert server.post(TEXT).status_code == 200
    assert metric(server, "covist_output_tokens_total") == 1, "somebody who left was answered"


def test_the_deadline_includes_the_wait_for_a_thread(serve):
    server = serve(limits=Limits(request_seconds=0.1))
    with busy_threads(server):
        answer = server.post(TEXT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")


def test_the_deadline_includes_slow_hosts(serve):
    server = serve(image_hosts=[HOST], limits=Limits(request_seconds=0.1, fetch_seconds=600))
    host = SilentHost(server)
    assert server.post(asking(WEB, said("where ?"))).status_code == 504
    wait_until(lambda: host.open == 0)


def test_a_client_that_leaves_stops_the_decoding_of_its_images(serve, monkeypatch):
    server, decoded, go_on = serve(), [], threading.Event()

    def decode(self, image, check):
        decoded.append(image.place)
        go_on.wait()
        return IMAGE

    monkeypatch.setattr("covist.serve.images.ImageReader.decoded", decode)
    with posting(server, asking(shown(IMAGE), shown(IMAGE), said("where ?"))):
        wait_until(lambda: decoded == ["image 1"])
    wait_until(lambda: metric(server, 'covist_refusals_total{reason="disconnected"}') == 1)
    assert server.service._admission._pixels.taken == 2 * IMAGE.width * IMAGE.height, "the thread still has its image"
    go_on.set()
    wait_until(lambda: server.service._admission._pixels.taken == 0)
    assert decoded == ["image 1"]


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_a_body_of_many_tiny_values_is_refused_before_it_is_parsed(serve, monkeypatch):
    server = serve()
    monkeypatch.setattr(app, "parse_chat", lambda *given: pytest.fail("it was parsed"))
    body = b'{"model":"small","messages":[' + b'{"role":"user","content":""},' * 1_080_000 + b"{}]}"
    assert len(body) < server.service.limits.body_bytes
    answer = server.post(body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_many_values")
    assert server.service.room.taken == 0


def test_messages_are_counted_before_they_are_looked_at(serve):
    server = serve(limits=Limits(messages=3))
    message = server.post({**TEXT, "messages": [5] * 4}).json()["error"]["message"]
    assert message == "messages: more than 3 messages"


def test_bodies_are_parsed_off_the_event_loop(serve, monkeypatch):
    server, parsing, go_on = serve(), threading.Event(), threading.Event()
    parse = app.parse_chat

    def wait(*given):
        parsing.set()
        go_on.wait()
        return parse(*given)

    monkeypatch.setattr(app, "parse_chat", wait)
    with ThreadPoolExecutor(1) as client:
        answer = client.submit(server.post, TEXT)
        parsing.wait()
        assert httpx.get(f"{server.url}/health", timeout=600).status_code == 200
        go_on.set()
        assert answer.result().status_code == 200


def test_bodies_in_progress_share_their_room(serve):
    body = asking(WEB, said("x" * 5000))
    server = serve(image_hosts=[HOST], limits=Limits(body_bytes=8000, bytes_at_once=8000))
    host = SilentHost(server)
    with posting(server, body):
        wait_until(lambda: host.open == 1)
        refused = server.post(body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
        assert refused.headers["Retry-After"] == "1"
        assert server.post(TEXT).status_code == 200, "there is room for a small one"
    wait_until(lambda: server.service.room.taken == 0)


def test_the_room_of_a_body_is_free_again_while_its_answer_is_written(serve, small_model):
    server, go_on = serve(), threading.Event()
    holding = small_model.model.register_forward_pre_hook(lambda *call: go_on.wait() and None)
    with ThreadPoolExecutor(1) as client:
        answer = client.submit(server.post, TEXT)
        wait_until(lambda: server.service._workers.running == 1)
        wait_until(lambda: server.service.room.taken == 0)
        go_on.set()
        assert answer.result().status_code == 200
    holding.remove()


def test_the_images_of_a_request_are_measured_before_any_is_decoded(serve, monkeypatch):
    server = serve(limits=Limits(image_pixels=10_000, request_pixels=15_000))
    monkeypatch.setattr("covist.serve.images.decode_image", lambda *given: pytest.fail("it was decoded"))
    large = data_url(Image.new("RGB", (100, 100)))
    answer = server.post(asking(shown(large), shown(large), said("where ?")))
    assert answer.status_code == 400
    assert "more than 15,000 pixels together" in answer.json()["error"]["message"]


def photograph(width: int, height: int, **options) -> bytes:
    file = BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(file, "jpeg", **options)
    return file.getvalue()


def test_a_photograph_of_48_megapixels_is_decoded_at_half_its_size(serve):
    server, large = serve(), photograph(8064, 6048)
    reader = server.service._admission._images
    (measured,) = reader.measured([Source("image", "image 1", data_url(large, "jpeg"))])
    assert measured.pixels == 4032 * 3024
    assert reader.decoded(measured).size == (4032, 3024)
    answer = server.post(asking(shown(large), said("where ?")))
    assert answer.status_code == 200


def test_a_progressive_photograph_counts_as_a_whole(serve):
    reader = serve().service._admission._images
    (measured,) = reader.measured(
        [Source("image", "image 1", data_url(photograph(6000, 4500, progressive=True), "jpeg"))]
    )
    assert measured.pixels == 27_000_000


def test_images_that_are_decoded_at_once_share_their_room(serve, monkeypatch):
    pixels = IMAGE.width * IMAGE.height
    limits = Limits(image_pixels=pixels, request_pixels=pixels, pixels_at_once=2 * pixels)
    server, at_once, most, lock = serve(limits=limits), 0, 0, threading.Lock()
    together = threading.Barrier(2)

    def decode(self, image, check):
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        together.wait()  # the requests are even in number, so each has company
        with lock:
            at_once -= 1
        return IMAGE

    monkeypatch.setattr("covist.serve.images.ImageReader.decoded", decode)
    with ThreadPoolExecutor(6) as clients:
        answers = list(clients.map(lambda _: server.post(asking(shown(IMAGE), said("where ?"))), range(6)))
    assert [answer.status_code for answer in answers] == [200] * 6
    assert most == 2
    assert server.service._admission._pixels.taken == 0


def test_prompts_that_wait_share_their_room(serve, small_model):
    server, go_on = serve(limits=Limits(batches=1, batch_size=1, queue_bytes=1)), threading.Event()
    holding = small_model.model.register_forward_pre_hook(lambda *call: go_on.wait() and None)
    body = asking(shown(IMAGE), said("where ?"))
    with ThreadPoolExecutor(2) as clients:
        running = clients.submit(server.post, body)
        wait_until(lambda: server.service._workers.running == 1)
        waiting = clients.submit(server.post, body)
        wait_until(lambda: len(server.service._queue) == 1)
        refused = server.post(body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        go_on.set()
        assert running.result().status_code == waiting.result().status_code == 200
    holding.remove()


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"body_bytes": 10**9}, "--bytes-at-once must be at least --body-bytes"),
        ({"image_pixels": 10**9}, "--request-pixels must be at least --image-pixels"),
        ({"request_pixels": 10**9}, "--pixels-at-once must be at least --request-pixels"),
    ],
)
def test_a_whole_that_is_smaller_than_its_part_is_refused_at_the_start(limits, words):
    with pytest.raises(CovistError, match=words):
        Limits(**limits)
