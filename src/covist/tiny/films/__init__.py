"""The test bed for videos: short rendered films, and questions about what happens in them."""

from covist.tiny.films.questions import FILM_FAMILIES, film_questions_for
from covist.tiny.films.scenes import Film, film_frames, render_film, sample_film

__all__ = ["FILM_FAMILIES", "Film", "film_frames", "film_questions_for", "render_film", "sample_film"]
