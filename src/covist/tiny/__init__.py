"""The embedded models: a real but tiny LLaVA and LLaVA-NeXT, trained from scratch on rendered scenes.

model, processor, clip = covist.tiny.load()  # or load("next")
image, question, answer = covist.tiny.demo()
"""

from covist.tiny.demonstration import DEMO_IMAGE, demo
from covist.tiny.dense import DENSE_FAMILY, dense_questions_for, sample_dense_scene
from covist.tiny.model import Size
from covist.tiny.questions import FAMILIES, Question, questions_for
from covist.tiny.scenes import HELD_OUT_SEEDS, Scene, render, sample_scene, scene_image
from covist.tiny.store import NEXT_WEIGHTS, WEIGHTS, build_random, load, save
from covist.tiny.text import prompt_for

__all__ = [
    "DEMO_IMAGE",
    "DENSE_FAMILY",
    "FAMILIES",
    "HELD_OUT_SEEDS",
    "NEXT_WEIGHTS",
    "WEIGHTS",
    "Question",
    "Scene",
    "Size",
    "build_random",
    "demo",
    "dense_questions_for",
    "load",
    "prompt_for",
    "questions_for",
    "render",
    "sample_dense_scene",
    "sample_scene",
    "scene_image",
    "save",
]
