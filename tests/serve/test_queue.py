"""What shares a batch, and who is refused."""

from types import SimpleNamespace

import pytest

from covist.serve.errors import Refusal
from covist.serve.limits import Limits
from covist.serve.queue import Queue
from covist.serve.sequence import Sequence
from covist.serve.settings import Setting

ONE, OTHER = Setting("covist-fixed", 64), Setting("covist-fixed", 32, (("budget", 32),))


def waiting(setting=ONE, length=10, max_tokens=10) -> Sequence:
    return Sequence(SimpleNamespace(length=length), setting, lambda event: None, max_tokens)


def filled(*sequences, **limits) -> Queue:
    queue = Queue(Limits(batch_milliseconds=0, **limits))
    queue.put(list(sequences))
    return queue


def test_a_batch_has_one_setting_and_keeps_the_order():
    first, second, third = waiting(), waiting(OTHER), waiting()
    queue = filled(first, second, third)
    assert queue.take() == [first, third]
    assert queue.take() == [second]
    assert len(queue) == 0


def test_a_batch_is_limited_by_count():
    sequences = [waiting() for _ in range(5)]
    queue = filled(*sequences, batch_size=2)
    assert [queue.take() for _ in range(3)] == [sequences[:2], sequences[2:4], sequences[4:]]


def test_a_batch_is_limited_by_tokens_as_padding_counts_them():
    short, long, last = waiting(length=10), waiting(length=90), waiting(length=10)
    queue = filled(short, long, last, batch_tokens=150)
    assert queue.take() == [short]
    assert queue.take() == [long]
    assert queue.take() == [last]


def test_whoever_is_longer_than_a_batch_may_be_runs_alone():
    giant = waiting(length=1000)
    assert filled(giant, batch_tokens=100).take() == [giant]


def test_a_full_queue_refuses_with_a_time_to_come_back():
    queue = filled(waiting(), waiting(), queue=2)
    with pytest.raises(Refusal, match="2 answers are waiting") as refused:
        queue.put([waiting()])
    assert refused.value.status == 429
    assert int(refused.value.headers["Retry-After"]) >= 1


def test_all_choices_of_a_request_wait_or_none():
    queue = filled(waiting(), queue=2)
    with pytest.raises(Refusal):
        queue.put([waiting(), waiting()])
    assert len(queue) == 1


def test_whoever_left_frees_the_place():
    gone, here = waiting(), waiting()
    queue = filled(gone, queue=1)
    gone.cancel()
    queue.put([here])
    assert queue.take() == [here]


def test_a_closed_queue_hands_out_what_waits_and_takes_nothing_more():
    one = waiting()
    queue = Queue(Limits(batch_milliseconds=10_000))
    queue.put([one])
    queue.close()
    assert queue.take() == [one]
    assert queue.take() is None
    with pytest.raises(Refusal, match="shutting down"):
        queue.put([waiting()])
