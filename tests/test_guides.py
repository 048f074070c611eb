"""The code on the pages: each block runs here or in the tests of an extra, or needs a GPU or a network."""

from __future__ import annotations

from subprocess import CalledProcessError

import pytest
from support.page_runs import make_stand_ins, run_page
from support.pages import PAGES, Block, blocks_of, pages_with

from covist import tiny

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


def test_the_python_of_the_guide_to_a_gpu_runs_on_a_cpu_with_a_smaller_checkpoint(tmp_path, monkeypatch):
    """All of it but the switch to flash attention."""
    monkeypatch.chdir(tmp_path)
    make_stand_ins(tmp_path)
    for part in tiny.load()[2]:
        part.save_pretrained("clip")
    stand_ins = {
        '"llava-hf/llava-1.5-7b-hf"': '"checkpoint"',
        '"openai/clip-vit-large-patch14-336"': '"clip"',
        '"cuda"': '"cpu"',
        '"kitchen.jpg", "street.jpg"': '"photo.jpg", "photos/1.jpg"',
    }
    code = [block.code for block in blocks_of("docs/gpu.md") if block.language == "python"]
    program = "".join(part for part in code if '"flash_attention_2"' not in part)
    for published, here in stand_ins.items():
        assert published in program
        program = program.replace(published, here)
    names: dict[str, object] = {}
    exec(compile(program, "docs/gpu.md", "exec"), names)
    assert len(names["answers"]) == 2 and "64 of 576" in str(names["handle"].report)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no clip= given")
@pytest.mark.parametrize("page", pages_with("slow"))
def test_the_slow_code_of_a_page_runs_too(page, tmp_path, monkeypatch):
    run_page(page, {"", "slow"}, tmp_path, monkeypatch)
