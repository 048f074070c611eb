"""The commands of the documentation that need lmms-eval."""

from __future__ import annotations

import pytest
from support.page_runs import run_page
from support.pages import pages_with

pytestmark = pytest.mark.lmms


@pytest.mark.parametrize("page", pages_with("lmms"))
def test_the_commands_of_a_page_run(page, tmp_path, monkeypatch, capfd):
    run_page(page, {"lmms"}, tmp_path, monkeypatch)
    assert "|covist_scenes" in capfd.readouterr().out  # lmms-eval ends with 0 after an error too
