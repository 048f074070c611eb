"""Dense counting: crowded scenes of the first test bed, and a question for every group that must be counted.

For evaluation only. Training uses neither these scenes nor these questions.
"""

from covist.tiny.questions import MOST_COUNTED, Question, groups
from covist.tiny.scenes import Scene, sample_scene

DENSE_FAMILY = "dense counting"
CROWD = 14  # objects requested, more than training ever showed; about 13.4 fit
FEWEST_COUNTED = 2  # one or none can be seen without counting


def sample_dense_scene(seed: int) -> Scene:
    """Make the crowded scene of a seed, for dense counting.

    >>> len(covist.tiny.sample_dense_scene(7).objects) > 10
    True
    """
    return sample_scene(seed, objects=CROWD)


def dense_questions_for(scene: Scene) -> list[Question]:
    """Ask for the size of every group of two to four objects that share a colour or a shape.

    >>> scene = covist.tiny.sample_dense_scene(7)
    >>> sorted({question.answer for question in covist.tiny.dense_questions_for(scene)})
    ['2', '3', '4']
    """
    return [
        Question(DENSE_FAMILY, f"how many {name} are there?", str(len(group)), tuple(group))
        for name, group in groups(scene).items()
        if FEWEST_COUNTED <= len(group) <= MOST_COUNTED
    ]
