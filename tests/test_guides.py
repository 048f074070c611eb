"""The code on the pages: each block runs here or in the tests of an extra, or needs a GPU or a network."""

from __future__ import annotations

import pytest
from support.page_runs import run_page
from support.pages import PAGES, blocks_of, pages_with

CODE = {"bash", "python"}
OTHER = {"", "bibtex", "json", "mermaid", "text", "toml", "yaml"}


@pytest.mark.parametrize("page", PAGES)
def test_code_runs_or_needs_a_gpu_or_a_network(page):
    blocks = blocks_of(page)
    assert {block.language for block in blocks} <= CODE | OTHER
    code = [block for block in blocks if block.language in CODE]
    assert [block for block in code if block.kind is None and not block.is_excused] == []


@pytest.mark.filterwarnings("ignore:no clip= given")
@pytest.mark.parametrize("page", pages_with(""))
def test_the_code_of_a_page_runs_in_order_in_one_folder(page, tmp_path, monkeypatch):
    run_page(page, {""}, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no clip= given")
@pytest.mark.parametrize("page", pages_with("slow"))
def test_the_slow_code_of_a_page_runs_too(page, tmp_path, monkeypatch):
    run_page(page, {"", "slow"}, tmp_path, monkeypatch)
