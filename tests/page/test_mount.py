"""The page in the server's application, without a browser."""

import threading

import httpx
import pytest
from support.serving import CONCENTRATION, serving

from covist import tiny
from covist.api.setup import Setup
from covist.errors import CovistError
from covist.request.loading import LoadedModel
from covist.serve.limits import Limits
from covist.serve.service import Service

pytestmark = pytest.mark.page


def test_the_root_leads_to_the_page_and_keeps_the_query(paged):
    answer = httpx.get(f"{paged.url}/?budget=32")
    assert answer.status_code == 307 and answer.headers["location"] == "/page/?budget=32"
    assert httpx.get(f"{paged.url}/page/").status_code == 200


@pytest.fixture
def serve(mount_page):
    """Starts servers with limits of their own."""
    model, processor, clip = tiny.build_random(size=tiny.Size(vision_layers=2, text_layers=1, decoder_layers=3))
    loaded = LoadedModel("small", model, processor, clip)
    return lambda **limits: serving(
        Service(loaded, Setup(concentration=CONCENTRATION), limits=Limits(**limits)), mount_page
    )


def test_limits_that_the_pages_own_example_exceeds_are_one_line(serve):
    words = r"^--page: the limits refuse the page's own example \(image 1 .*pixels"
    with pytest.raises(CovistError, match=words), serve(image_pixels=100):
        pass


def test_open_pages_do_not_hold_up_the_end(serve):
    began, ended = threading.Event(), threading.Event()

    def stay(url: str) -> None:
        with httpx.stream("GET", f"{url}/page/gradio_api/heartbeat/somebody", timeout=None) as beats:
            for _ in beats.iter_text():
                began.set()
        ended.set()

    with serve(drain_seconds=3600) as running:
        threading.Thread(target=stay, args=(running.url,), daemon=True).start()
        assert began.wait(60)
    assert ended.wait(60)
