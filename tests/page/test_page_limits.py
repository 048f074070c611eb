"""What the page takes from visitors, and from whom: sizes, times and numbers of uploads, and keys."""

import os
import socket
import time
from base64 import b64encode
from functools import partial

import pytest
from support.page_client import API, Caller, file_of
from support.serving import CONCENTRATION, serving

from covist import tiny
from covist.api.setup import Setup
from covist.page.uploads import EXAMPLES, Uploads
from covist.request.loading import LoadedModel
from covist.serve.errors import Refusal
from covist.serve.keys import Keys
from covist.serve.limits import Limits
from covist.serve.service import Service

KEY = "open-sesame"


@pytest.fixture
def folder(tmp_path):
    """Five uploads, one second after the other, and an example that is older than all of them."""
    (tmp_path / EXAMPLES).mkdir()
    (tmp_path / EXAMPLES / "example.png").write_text("ours")
    os.utime(tmp_path / EXAMPLES / "example.png", (1, 1))
    for number in range(5):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "photo.png").write_text("theirs")
        os.utime(tmp_path / f"{number}" / "photo.png", (time.time() - 100 + number,) * 2)
    return tmp_path


def names(folder) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize("limits", [{"most": 2}, {"seconds": 97.5}])
def test_old_uploads_and_the_oldest_of_too_many_are_deleted(folder, limits):
    gone = Uploads(folder, **limits).tidy()
    assert sorted(gone) == [str(folder.resolve() / f"{number}" / "photo.png") for number in range(3)]
    assert names(folder) == {EXAMPLES, f"{EXAMPLES}/example.png", "3", "3/photo.png", "4", "4/photo.png"}


def test_unfinished_uploads_are_tidied_too(folder):
    (folder / "tmp-part").write_text("half")
    os.utime(folder / "tmp-part", (1, 1))
    Uploads(folder).tidy()
    assert "tmp-part" not in names(folder) and "0/photo.png" in names(folder)


def test_only_files_of_the_folder_are_found(folder):
    uploads = Uploads(folder)
    assert uploads.find(str(folder / "1" / "photo.png")) == folder.resolve() / "1" / "photo.png"
    for place in (
        folder,
        folder / "1",
        folder / "missing",
        folder / "1" / ".." / "1" / "photo.png",
        "/dev/zero",
        7,
        "",
    ):
        with pytest.raises(Refusal, match="^the image is not on the server, or not any more"):
            uploads.find(place)


# -- the running page --------------------------------------------------------------------------------------------------


@pytest.fixture
def serve(mount_page):
    """Starts servers of a small model, with limits and keys of their own."""
    model, processor, clip = tiny.build_random(size=tiny.Size(vision_layers=2, text_layers=1, decoder_layers=3))
    loaded = LoadedModel("small", model, processor, clip)

    def start(keys=None, **limits):
        service = Service(loaded, Setup(concentration=CONCENTRATION), limits=Limits(**limits), keys=keys)
        return serving(service, mount_page)

    return start


@pytest.mark.page
def test_an_upload_beyond_the_limit_or_of_unknown_length_is_refused(serve):
    with serve(image_bytes=100_000) as running:
        caller = Caller(running.url)
        assert caller.upload(b"0" * 200_000).status_code == 413
        assert caller.upload(b"0" * 101_000).status_code == 413
        assert caller.upload(b"0" * 99_000).status_code == 200
        many = [("files", (f"{number}.png", b"0" * 50_000)) for number in range(10)]
        assert caller.http.post(f"{API}/upload", files=many).status_code == 413
        chunked = {"Content-Type": "multipart/form-data; boundary=b"}
        assert caller.http.post(f"{API}/upload", content=iter([b"--b"]), headers=chunked).status_code == 411


@pytest.mark.page
def test_an_upload_that_drips_is_ended(serve):
    with serve(body_seconds=1) as running, socket.create_connection(("127.0.0.1", running.port)) as client:
        head = f"POST {API}/upload HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n"
        client.sendall((head + "Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n").encode())
        client.settimeout(120)
        assert b" 408 " in client.recv(4096).split(b"\r\n")[0]


@pytest.mark.page
def test_only_so_many_uploads_are_on_their_way_at_once(serve, monkeypatch):
    monkeypatch.setattr("covist.page.gate.UPLOADS_AT_ONCE", 0)
    with serve() as running:
        refused = Caller(running.url).upload(b"data")
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"


@pytest.mark.page
def test_a_visitor_is_told_that_an_upload_is_gone(serve, monkeypatch):
    monkeypatch.setattr("covist.page.mount.Uploads", partial(Uploads, most=2))
    with serve() as running:
        caller = Caller(running.url)
        sent = [caller.upload(bytes([number])).json()[0] for number in range(4)]
        found = [caller.http.get(f"{API}/file={path}").status_code for path in sent]
        assert found == [400, 400, 200, 200]
        assert "upload it, or pick an example" in caller.ask(file_of(sent[0]))


@pytest.mark.page
def test_abandoned_uploads_are_deleted_in_time(serve, monkeypatch):
    monkeypatch.setattr("covist.page.mount.Uploads", partial(Uploads, seconds=0.2))
    monkeypatch.setattr("covist.page.mount.SECONDS", 0.5)
    with serve() as running:
        caller = Caller(running.url)
        (path,) = caller.upload(b"data").json()
        deadline = time.monotonic() + 60
        while os.path.exists(path):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.page
def test_the_page_asks_for_a_key_as_the_password(serve):
    with serve(keys=Keys([KEY, "other"])) as running:
        for caller in (Caller(running.url), Caller(running.url, "wrong"), Caller(running.url, "")):
            for path in ("/page/", "/page/theme.css", f"{API}/file=x", f"{API}/queue/data?session_hash=x", "/page/x"):
                refused = caller.http.get(path)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == 'Basic realm="covist", charset="UTF-8"'
            assert caller.upload(b"data").status_code == 401
            assert caller.http.post(f"{API}/queue/join", json={}).status_code == 401
        for key in (KEY, "other"):
            caller = Caller(running.url, key)
            assert caller.upload(b"data").status_code == 200
            assert "not an image" in caller.ask(file_of(caller.upload(b"data").json()[0]))


@pytest.mark.page
@pytest.mark.parametrize(
    "header", ["Bearer other", "Basic", "Basic other", "Basic !", f"Basic {b64encode(b'other').decode()}", "Basic /w=="]
)
def test_other_ways_to_give_a_key_do_not_open_the_page(serve, header):
    with serve(keys=Keys(["other"])) as running:
        assert Caller(running.url).http.get("/page/", headers={"Authorization": header}).status_code == 401
        assert Caller(running.url, "other").http.get("/page/").status_code == 200
