"""docs/vllm.md has the models that the plugin serves."""

import re

import pytest
from support import tools

from covist.vllm.command import MODELS


@pytest.fixture(scope="module")
def tool():
    return tools.tool("vllm_page.py")


def test_the_table_is_up_to_date(tool):
    assert tool.table() in tool.PAGE.read_text(encoding="utf-8"), "run python tools/vllm_page.py"


def test_every_pattern_and_every_class_that_was_run_is_a_class_of_vllm(tool):
    assert set(tool.RUN) <= set(MODELS)
    assert all(any(re.search(pattern, name) for name in MODELS) for pattern in tool.WEIGHTS)
    assert not set(tool.UNFIT) & set(MODELS)
