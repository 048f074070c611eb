"""The code on the pages: each block runs here or in the tests of an extra, or needs a GPU or a network."""

from __future__ import annotations

from subprocess import CalledProcessError

import pytest
from support.page_runs import run_page
from support.pages import PAGES, Block, blocks_of, pages_with

CODE = {"bash", "python"}
OTHER = {"", "bibtex", "json", "mermaid", "text", "toml", "yaml"}


@pytest.mark.parametrize("page", PAGES)
def test_code_runs_or_needs_a_gpu_or_a_network(page):
    blocks = blocks_of(page)
    assert {block.language for block in blocks} <= CODE | OTHER
    code = [block for block in blocks if block.language in CODE]
    assert [block for block in code if block.kind is None and not block.is_excused] == []


@pytest.mark.parametrize("mark", ["", "runable", "runnable: soon", "not run: takes minutes", "not run: a synopsis"])
def test_any_other_mark_is_a_mistake(mark):
    block = Block(mark, "bash", "covist run")
    assert block.kind is None and not block.is_excused


@pytest.mark.parametrize(
    "block",
    [
        "<!-- runnable -->\n```bash\ncovist plan --preset nothing\n```\n",
        "<!-- runnable with --preset nothing -->\n```bash\ncovist plan\n```\n",
        "<!-- runnable -->\n```bash\nfalse | cat\n```\n",
        "<!-- runnable -->\n```bash\npython -m vllm.entrypoints.openai.api_server --nothing\n```\n",
        "1. Then:\n\n   <!-- runnable -->\n   ```python\n   assert False\n   ```\n",
        "<!-- runnable -->\n```bash\ncurl http://127.0.0.1:1/health\n```\n",
    ],
)
def test_a_command_that_fails_fails_the_page(block, tmp_path, monkeypatch):
    monkeypatch.setitem(PAGES, "page.md", block)
    with pytest.raises((AssertionError, CalledProcessError)):
        run_page("page.md", {""}, tmp_path, monkeypatch)


@pytest.mark.filterwarnings("ignore:no clip= given")
@pytest.mark.parametrize("page", pages_with(""))
def test_the_code_of_a_page_runs_in_order_in_one_folder(page, tmp_path, monkeypatch):
    run_page(page, {""}, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no clip= given")
@pytest.mark.parametrize("page", pages_with("slow"))
def test_the_slow_code_of_a_page_runs_too(page, tmp_path, monkeypatch):
    run_page(page, {"", "slow"}, tmp_path, monkeypatch)
