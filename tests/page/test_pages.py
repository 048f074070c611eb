"""The commands of the documentation that need the page's extra."""

from __future__ import annotations

import pytest
from support.page_runs import run_page
from support.pages import pages_with

pytestmark = pytest.mark.page


@pytest.mark.parametrize("page", pages_with("page"))
def test_the_commands_of_a_page_run(page, tmp_path, monkeypatch):
    pytest.importorskip("gradio", reason="the page needs gradio: make test-page")
    run_page(page, {"page"}, tmp_path, monkeypatch)
