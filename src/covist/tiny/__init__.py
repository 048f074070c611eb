"""The embedded default model: a real LLaVA, only tiny, trained from scratch on rendered scenes.

model, processor, clip = covist.tiny.load()
image, question, answer = covist.tiny.demo()
"""

from covist.tiny.demonstration import DEMO_IMAGE, demo
from covist.tiny.model import Size
from covist.tiny.questions import FAMILIES, Question, questions_for
from covist.tiny.scenes import HELD_OUT_SEEDS, Scene, render, sample_scene, scene_image
from covist.tiny.store import WEIGHTS, build_random, load, save
from covist.tiny.text import prompt_for

__all__ = [
    "DEMO_IMAGE",
    "FAMILIES",
    "HELD_OUT_SEEDS",
    "WEIGHTS",
    "Question",
    "Scene",
    "Size",
    "build_random",
    "demo",
    "load",
    "prompt_for",
    "questions_for",
    "render",
    "sample_scene",
    "scene_image",
    "save",
]
