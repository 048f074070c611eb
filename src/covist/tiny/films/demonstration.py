"""The embedded video model's folder, and the film and question that commands use if none is given."""

from pathlib import Path

from PIL import Image

from covist.tiny.films.questions import film_questions_for
from covist.tiny.films.scenes import film_frames, sample_film

VIDEO_WEIGHTS = Path(__file__).parent / "weights"
DEMO_SEED = 2_900_000


def film_demo() -> tuple[list[Image.Image], str, str]:
    """The frames of a held-out film, a question about it, and the right answer.

    >>> covist.tiny.films.film_demo()[1:]
    ('what is the first digit?', '9')
    """
    film = sample_film(DEMO_SEED)
    (item,) = film_questions_for(film, per_family={"digit": 1})
    return film_frames(film), item.question, item.answer
