"""The commands of the documentation that need vLLM."""

from __future__ import annotations

import pytest
from support.page_runs import run_page
from support.pages import pages_with
from support.vllm_engines import ENVIRONMENT

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("page", pages_with("vllm"))
def test_the_commands_of_a_page_run(page, tmp_path, monkeypatch):
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    run_page(page, {"vllm"}, tmp_path, monkeypatch)
