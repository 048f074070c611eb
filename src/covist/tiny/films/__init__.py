"""The test bed for videos: a LLaVA-OneVision, and short films with questions about what happens in them.

loaded = covist.load_model("tiny-video")
frames, question, answer = covist.tiny.films.film_demo()
"""

from covist.tiny.films.demonstration import VIDEO_WEIGHTS, film_demo
from covist.tiny.films.questions import FILM_FAMILIES, film_questions_for
from covist.tiny.films.scenes import Film, film_frames, render_film, sample_film

__all__ = [
    "FILM_FAMILIES",
    "VIDEO_WEIGHTS",
    "Film",
    "film_demo",
    "film_frames",
    "film_questions_for",
    "render_film",
    "sample_film",
]
