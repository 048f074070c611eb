"""Dense counting: crowded scenes of the first test bed, and every group in them that takes counting.

For evaluation only. Training draws neither these scenes nor these questions.
"""

from covist.tiny.questions import MOST_COUNTED, Question, groups
from covist.tiny.scenes import Scene, sample_scene

DENSE_FAMILY = "dense counting"
CROWD = 14  # objects asked for, more than training ever showed; about 13.4 find room
FEWEST_COUNTED = 2  # whether there is one or none can be seen without counting


def sample_dense_scene(seed: int) -> Scene:
    """The crowded scene of a seed.

    >>> len(covist.tiny.sample_dense_scene(7).objects) > 10
    True
    """
    return sample_scene(seed, objects=CROWD)


def dense_questions_for(scene: Scene) -> list[Question]:
    """How many there are of every group of two to four objects that share a colour or a shape.

    >>> scene = covist.tiny.sample_dense_scene(7)
    >>> sorted({question.answer for question in covist.tiny.dense_questions_for(scene)})
    ['2', '3', '4']
    """
    return [
        Question(DENSE_FAMILY, f"how many {name} are there?", str(len(group)), tuple(group))
        for name, group in groups(scene).items()
        if FEWEST_COUNTED <= len(group) <= MOST_COUNTED
    ]
