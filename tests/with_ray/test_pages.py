"""The commands of the documentation that need Ray."""

from __future__ import annotations

import pytest
from support.page_runs import run_page
from support.pages import pages_with

pytestmark = pytest.mark.ray


@pytest.mark.parametrize("page", pages_with("ray"))
def test_the_commands_of_a_page_run(page, tmp_path, monkeypatch):
    run_page(page, {"ray"}, tmp_path, monkeypatch)
