"""An agent that keeps its screenshots: 40 of them in one prompt, and 4,096 visual tokens for all of them together.

The embedded model needs no download, and shows what is kept; it was not trained to answer about many images:

    python examples/agent.py

A model and screenshots of your own:

    python examples/agent.py --model Qwen/Qwen3-VL-4B-Instruct --screenshots folder --budget ages:512,256,128,32
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

import covist

TASK, ACTION, QUESTION = "What do you do next?", "I click on it.", "Where is the blue square?"


def history(screenshots: int) -> list[dict[str, Any]]:
    """A turn with a screenshot for each step, an action after it, and a question about all of them at the end."""
    turns: list[dict[str, Any]] = []
    for step in range(1, screenshots + 1):
        text = TASK if step < screenshots else QUESTION
        turns.append({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]})
        turns.append({"role": "assistant", "content": [{"type": "text", "text": ACTION}]})
    return turns[:-1]


def answer(
    model: Any, processor: Any, screenshots: Sequence[Image.Image], new_tokens: int = 16, **compression: Any
) -> tuple[str, covist.Report]:
    """The answer to the last question, and what was kept of every screenshot."""
    prompt = processor.apply_chat_template(history(len(screenshots)), add_generation_prompt=True)
    inputs = processor(images=list(screenshots), text=prompt, return_tensors="pt").to(model.device)
    with covist.compress(model, processor, method="covist-max", **compression) as handle:
        output = model.generate(**inputs, max_new_tokens=new_tokens)
    said = processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert handle.report is not None
    return said.strip(), handle.report


def rendered(count: int) -> list[Image.Image]:
    """Scenes of the embedded model, every fifth of them crowded, in place of screenshots."""
    scenes = [covist.tiny.sample_scene(seed) for seed in range(count)]
    scenes[::5] = [covist.tiny.sample_dense_scene(seed) for seed in range(0, count, 5)]
    return [covist.tiny.scene_image(scene) for scene in scenes]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="tiny")
    options.add_argument("--screenshots", type=Path, help="a folder of images, in the order of their names")
    options.add_argument("--budget", default="total:4096")
    given = options.parse_args()
    loaded = covist.load_model(given.model)
    shots = rendered(40) if given.screenshots is None else [*map(Image.open, sorted(given.screenshots.iterdir()))]
    said, report = answer(loaded.model, loaded.processor, shots, budget=given.budget)
    print(report)
    print("tokens of each screenshot:", *(image.budget for image in report.visuals))
    print("answer:", said)


if __name__ == "__main__":
    main()
