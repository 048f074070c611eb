"""Commands that pages mention without running them exist, and so do the files that they name."""

from __future__ import annotations

import re

import pytest
from support.pages import PAGES, ROOT, blocks_of, prose_of
from support.spans import mistake_in, spans_of, strings_of

PYTHON = [path for folder in ("benchmarks", "deploy", "src", "tools") for path in sorted((ROOT / folder).rglob("*.py"))]
OTHER = [
    *sorted((ROOT / ".github").rglob("*.yml")),
    *(ROOT / name for name in ("Makefile", "pyproject.toml", "zensical.toml")),
]
INDENTED = re.compile(r"\n\n {4,}(?:\$ )?((?:covist|curl|docker|lmms-eval|make|pip|python|ray|torchrun|vllm) .*)")


def mistakes(spans: list[str]) -> dict[str, str]:
    return {span: found for span in spans if (found := mistake_in(span))}


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_mentions_exists(page):
    assert mistakes(spans_of(prose_of(page))) == {}


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_are_not_run_would_be_understood(page):
    shell = [command for block in blocks_of(page) if block.language == "bash" for command in block.commands]
    assert mistakes([command for command in shell if command.startswith(("covist ", "make "))]) == {}


@pytest.mark.parametrize("page", PAGES)
def test_commands_stand_in_blocks_that_are_run_or_are_synopses(page):
    assert INDENTED.findall(prose_of(page)) == []
    other = [block.code for block in blocks_of(page) if block.language not in ("bash", "python")]
    lines = [" ".join(line.split()) for code in other for line in re.sub(r"\n +", " ", code).splitlines()]
    synopses = [line for line in lines if line.startswith(("covist ", "$ "))]
    assert [line for line in synopses if "[" not in line] == []
    assert mistakes(synopses) == {}


def test_what_docstrings_and_messages_mention_exists():
    assert mistakes([span for path in PYTHON for text in strings_of(path) for span in spans_of(text)]) == {}


@pytest.mark.parametrize("path", OTHER, ids=lambda path: path.name)
def test_what_other_files_mention_exists(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert mistakes([span for line in lines for span in spans_of(line)]) == {}


@pytest.mark.parametrize(
    "span",
    [
        "covist ruin --compare",
        "covist run --compair",
        "covist eval --limit many",
        "covist bench [--methods NAME] [--budget 64]",
        "covist plan --preset llava-1.5-7b extra words",
        "make test-nothing",
        "python benchmarks/nothing.py --rows 64",
        "python benchmarks/batch.py --rose 64",
        "python -m covist.nothing",
        "tests/formulas/test_nothing.py::test_closure",
        "docs/nothing.md",
    ],
)
def test_a_mistake_is_found(span):
    assert mistake_in(span)


@pytest.mark.parametrize(
    "span",
    [
        "covist run",
        "covist batch",
        "covist run --compare | head",
        "covist serve --ray --replicas 2",
        "covist eval --limit N --methods NAME,...",
        "covist methods NAME",
        "make test-NAME",
        "make test-...",
        "src/covist/methods/published/NAME.py",
        "src/covist/reproduce/tables/*.json",
        "don't",
    ],
)
def test_correct_and_unverifiable_spans_are_accepted(span):
    assert mistake_in(span) is None
