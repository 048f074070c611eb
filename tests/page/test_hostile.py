"""Visitors who want more than the page offers: files of the server, addresses, routes, endless uploads."""

import os

import httpx
import pytest
from support.page_client import API, Caller, file_of
from support.postscript import PROGRAM, FakeGhostscript

from covist import tiny
from covist.page.uploads import Uploads

pytestmark = pytest.mark.page

USED = {
    ("GET", "/"),
    ("HEAD", "/"),
    ("GET", "/theme.css"),
    ("GET", "/assets/{path:path}"),
    ("GET", "/static/{path:path}"),
    ("GET", "/gradio_api/app_id"),
    ("GET", "/gradio_api/heartbeat/{session_hash}"),
    ("GET", "/gradio_api/file={path_or_url:path}"),
    ("HEAD", "/gradio_api/file={path_or_url:path}"),
    ("POST", "/gradio_api/upload"),
    ("GET", "/gradio_api/upload_progress"),
    ("POST", "/gradio_api/queue/join"),
    ("GET", "/gradio_api/queue/data"),
}
"""All that the page needs of Gradio."""


@pytest.fixture(scope="module")
def caller(paged):
    return Caller(paged.url)


@pytest.fixture(scope="module")
def folder(caller):
    """Where uploads are."""
    from covist.page.mount import _folder

    return _folder().resolve()


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    """An image that was never uploaded."""
    path = tmp_path_factory.mktemp("private") / "secret.png"
    tiny.demo()[0].save(path)
    return path


def linked(folder, secret) -> str:
    link = folder / "link.png"
    if not link.is_symlink():
        link.symlink_to(secret)
    return str(link)


HOSTILE = {
    "an image of the server": lambda folder, secret: str(secret),
    "from the folder upwards": lambda folder, secret: f"{folder}/{os.path.relpath(secret, folder)}",
    "a relative path": lambda folder, secret: os.path.relpath(secret),
    "a link in the folder": linked,
    "the folder": lambda folder, secret: str(folder),
    "a missing file": lambda folder, secret: "/nowhere/missing.png",
    "a missing file of the working directory": lambda folder, secret: "missing.png",
    "a missing file of the folder": lambda folder, secret: f"{folder}/missing.png",
    "an endless device": lambda folder, secret: "/dev/zero",
    "a device that waits": lambda folder, secret: "/dev/tty",
    "a process": lambda folder, secret: "/proc/self/environ",
    "a URL of a file": lambda folder, secret: f"file://{secret}",
    "a web address": lambda folder, secret: "https://example.com/photo.png",
    "an address of this machine": lambda folder, secret: "http://127.0.0.1:1/photo.png",
    "a zero byte": lambda folder, secret: f"{folder}/\0.png",
    "a long name": lambda folder, secret: f"{folder}/{'x' * 5000}",
    "nothing": lambda folder, secret: "",
    "another machine": lambda folder, secret: "\\\\example.com\\share\\photo.png",
}
SOME = ["an image of the server", "an endless device", "a web address", "a missing file"]
SHAPES = {
    "a path alone": lambda path: {"path": path},
    "as Gradio's clients send it": file_of,
    "as a stream": lambda path: file_of(path, is_stream=True),
    "with an address": lambda path: file_of(path, url=f"/gradio_api/file={path}", orig_name="photo.png"),
    "deep inside": lambda path: [[{"image": file_of(path)}]],
}


def is_refused(answer: httpx.Response) -> bool:
    """With a status of its own, and with words that tell nothing about the server."""
    reveals = any(word in answer.text for word in (os.getcwd(), "Traceback", "No such file", "not allowed"))
    return 400 <= answer.status_code < 500 and not reveals


def test_an_image_that_was_uploaded_is_answered(caller, secret):
    """Otherwise refusing everything would pass."""
    (path,) = caller.upload(secret.read_bytes()).json()
    for shape in ("a path alone", "as Gradio's clients send it", "with an address"):
        assert "top-right" in caller.ask(SHAPES[shape](path))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_question_about_another_file_is_refused(caller, folder, secret, kind, shape):
    image = SHAPES[shape](HOSTILE[kind](folder, secret))
    for function, others in (
        ("ask", ["what?", 64, "covist", "fixed", None]),
        ("compare", ["what?", 64, ["random"], True]),
    ):
        assert is_refused(caller.join(function, [image, *others]))


@pytest.mark.parametrize("place", range(1, 6))
@pytest.mark.parametrize("kind", SOME)
def test_a_file_in_another_field_is_refused_too(caller, folder, secret, kind, place):
    """Gradio would copy it to where it can be downloaded, whatever the field is for."""
    data = [None, "what?", 64, "covist", "fixed", None]
    data[place] = file_of(HOSTILE[kind](folder, secret))
    assert is_refused(caller.join("ask", data))


@pytest.mark.parametrize("kind", HOSTILE)
def test_other_files_cannot_be_downloaded(caller, folder, secret, kind):
    path = HOSTILE[kind](folder, secret).replace("\0", "%00").replace("..", "%2e%2e")
    for route in (f"{API}/file={path}", f"{API}/file/{path}", f"{API}/proxy={path}"):
        for method in ("GET", "HEAD"):
            assert is_refused(caller.http.request(method, route))


@pytest.mark.parametrize("kind", SOME)
@pytest.mark.parametrize("route", ["call/ask", "call/v2/ask", "run/ask", "api/ask", "component_server", "stream/some"])
def test_no_other_route_takes_a_file(caller, folder, secret, route, kind):
    image = file_of(HOSTILE[kind](folder, secret))
    body = {
        "data": [image, "what?", 64, "covist", "fixed", None],
        "session_hash": "x",
        "fn_name": "x",
        "component_id": 4,
    }
    assert caller.http.post(f"{API}/{route}", json=body).status_code == 404


@pytest.mark.parametrize(
    "name", ["../../photo.png", "/etc/photo.png", "..", "a/../../b.png", "x\\..\\y.png", "\udcff.png"]
)
def test_an_upload_lies_in_the_folder_whatever_its_name(caller, folder, name):
    head = f'--b\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
    body = head.encode("utf-8", "surrogateescape") + b"data\r\n--b--\r\n"
    sent = caller.http.post(f"{API}/upload", content=body, headers={"Content-Type": "multipart/form-data; boundary=b"})
    assert sent.status_code == 200 or is_refused(sent)
    if sent.status_code == 200:
        assert Uploads(folder).find(sent.json()[0]).parent.parent == folder


@pytest.fixture
def without_gate(monkeypatch):
    """Lets every question through to Gradio."""
    monkeypatch.setattr("covist.page.gate._paths", lambda value: [])


@pytest.mark.parametrize("shape", ["a path alone", "as Gradio's clients send it", "as a stream"])
@pytest.mark.parametrize("kind", SOME)
def test_where_a_file_is_read_its_path_is_checked_again(caller, folder, secret, without_gate, kind, shape):
    told = caller.ask(SHAPES[shape](HOSTILE[kind](folder, secret)))
    assert "top-right" not in told and "data:image" not in told
    assert os.getcwd() not in told and str(secret) not in told


def test_gradio_checks_too(caller, folder, secret, without_gate, monkeypatch):
    """Its own check runs only for applications that have been launched, which mounting does not do."""
    monkeypatch.setattr(Uploads, "find", lambda self, place: secret)
    told = caller.ask(file_of(secret))
    assert '"success":false' in told and "top-right" not in told
    told = caller.ask(None, file_of(secret))
    assert '"success":false' in told


def test_gradio_does_not_serve_an_uploaded_drawing_as_a_page(caller):
    """SVG may contain scripts."""
    (path,) = caller.upload(b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>", "x.svg").json()
    caller.ask(file_of(path))
    answer = caller.http.get(f"{API}/file={path}")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def routes_of(router) -> set[tuple[str, str]]:
    """The routes of a router and of those that it includes, as FastAPI keeps them."""
    found = set()
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        found |= {(method, route.path) for method in route.methods} if inner is None else routes_of(inner)
    return found


def test_every_route_that_the_page_does_not_use_is_closed(caller):
    import gradio as gr

    found = routes_of(gr.routes.App.create_app(gr.Blocks()))
    assert len(found) > 80 and found > USED
    for method, path in sorted(found - USED):
        address = path.replace("{path:path}", "x").replace("{", "").replace("}", "").replace(":path", "")
        answer = caller.http.request(method, f"/page{address}")
        assert answer.status_code == 404 and (method == "HEAD" or "no such path" in answer.text), (method, path)


def test_links_into_the_state_of_others_are_switched_off(caller):
    assert caller.http.get("/page/?deep_link=abc").status_code == 404


@pytest.mark.parametrize(
    "path", ["static/../../../routes.py", "static/%2e%2e/%2e%2e/routes.py", "assets/..%2f..%2froutes.py"]
)
def test_gradios_own_files_do_not_expose_the_server(caller, path):
    answer = caller.http.get(f"/page/{path}")
    assert answer.status_code in (403, 404) and "import" not in answer.text


@pytest.mark.parametrize("mode", ["cors", "no-cors"])
def test_another_site_cannot_use_a_visitors_browser(caller, mode):
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode}
    assert caller.http.get("/page/", headers=headers).status_code == 403
    assert caller.http.post(f"{API}/upload", files={"files": b"x"}, headers=headers).status_code == 403
    form = {**headers, "Sec-Fetch-Mode": "navigate"}
    assert caller.http.post(f"{API}/queue/join", json={}, headers=form).status_code == 403
    assert caller.http.get("/page/", headers=form).status_code == 200, "a link"


def test_a_question_that_is_not_json_or_too_long_is_refused(caller):
    for body, status in ((b"{", 400), (b"[" * 100_000, 400), (b"9" * 5000, 400), (b" " * 300_000, 413)):
        sent = caller.http.post(f"{API}/queue/join", content=body, headers={"Content-Type": "application/json"})
        assert sent.status_code == status


def test_a_photograph_that_is_postscript_is_not_run(caller, tmp_path, monkeypatch):
    ghostscript = FakeGhostscript.install(tmp_path / "bin", monkeypatch)
    (path,) = caller.upload(PROGRAM, "photo.jpg").json()
    assert "is not an image in" in caller.ask(file_of(path))
    assert not ghostscript.has_run
