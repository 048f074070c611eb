"""The image and the question that commands use when none is given."""

from pathlib import Path

from PIL import Image

DEMO_IMAGE = Path(__file__).parent / "demo.png"  # the held-out scene of DEMO_SEED
DEMO_SEED = 2_900_008
DEMO_QUESTION, DEMO_ANSWER = "where is the blue square?", "top-right"


def demo() -> tuple[Image.Image, str, str]:
    """A held-out image, a question about it, and the right answer.

    >>> covist.tiny.demo()[1:]
    ('where is the blue square?', 'top-right')
    """
    with Image.open(DEMO_IMAGE) as image:
        return image.convert("RGB"), DEMO_QUESTION, DEMO_ANSWER
