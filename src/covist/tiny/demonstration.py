"""The images and questions that commands use if none is given."""

from pathlib import Path

from PIL import Image

from covist.tiny.hd.questions import hd_questions_for
from covist.tiny.hd.scenes import sample_hd_scene
from covist.tiny.scenes import scene_image

DEMO_IMAGE = Path(__file__).parent / "demo.png"  # the held-out scene of DEMO_SEED
DEMO_SEED = 2_900_008
DEMO_QUESTION, DEMO_ANSWER = "where is the blue square?", "top-right"
HD_DEMO_SEED = 2_900_000


def demo(bed: str = "tiny") -> tuple[Image.Image, str, str]:
    """A held-out image of an embedded model ("tiny" or "next"), a question about it, and the right answer.

    >>> covist.tiny.demo()[1:]
    ('where is the blue square?', 'top-right')
    """
    if bed == "next":
        scene = sample_hd_scene(HD_DEMO_SEED)
        (item,) = hd_questions_for(scene, per_family={"reading": 1})
        return scene_image(scene), item.question, item.answer
    with Image.open(DEMO_IMAGE, formats=["PNG"]) as image:
        return image.convert("RGB"), DEMO_QUESTION, DEMO_ANSWER
