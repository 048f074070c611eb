"""The agent of examples/agent.py: 40 screenshots in one prompt."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from support.llava import TOKENS, build_llava, processor

EXAMPLE = Path(__file__).parents[1] / "examples" / "agent.py"


@pytest.fixture(scope="module")
def agent():
    spec = importlib.util.spec_from_file_location("agent", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_forty_screenshots_share_4096_tokens(agent):
    shots = agent.rendered(40)
    _, report = agent.answer(build_llava(layers=2), processor(), shots, new_tokens=1, budget="total:4096")
    assert len(report.images) == 40 and 40 * TOKENS > 4096
    assert sum(image.budget for image in report.images) == 4096
    assert all(16 <= len(image.kept) <= TOKENS for image in report.images)


def test_screenshots_fade_with_their_age_and_keep_to_a_cap(agent):
    shots, model = agent.rendered(8), build_llava(layers=2)
    _, report = agent.answer(model, processor(), shots, new_tokens=1, budget="ages:64,32,8")
    assert [image.budget for image in report.images] == [8] * 6 + [32, 64]
    _, report = agent.answer(model, processor(), shots, new_tokens=1, budget="ages:64,32,8", max_visual_tokens=96)
    assert sum(image.budget for image in report.images) == 96


@pytest.mark.slow
def test_the_script_runs_with_the_embedded_model():
    ran = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True)
    counts = next(line for line in ran.stdout.splitlines() if line.startswith("tokens of each screenshot:"))
    numbers = [int(word) for word in counts.split(":")[1].split()]
    assert len(numbers) == 40 and sum(numbers) == 4096
