"""Second questions about an image."""

from studies.dialogues import WAYS, second_questions, table


def test_second_questions_are_asked_in_every_way():
    found = second_questions(budget=64, limit=2, pairs=1)
    assert [one.way for one in found] == list(WAYS)
    assert all(0 <= one.accuracy <= 100 for one in found)
    assert found[1].difference == 0 and found[2].difference == found[2].accuracy - found[1].accuracy
    assert table(found).count("\n") == 4
