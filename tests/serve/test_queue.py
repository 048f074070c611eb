"""What shares a batch, and who is refused."""

import threading
from types import SimpleNamespace

import pytest

from covist.api.setup import Setup
from covist.serve.errors import Refusal
from covist.serve.limits import Limits
from covist.serve.queue import Queue
from covist.serve.sequence import Sequence

ONE, OTHER = Setup("covist-fixed", 64), Setup("covist-fixed", 32)


def waiting(setup=ONE, length=10, max_tokens=10, size=1) -> Sequence:
    prompt = SimpleNamespace(length=length, kept_tokens=length, request=SimpleNamespace(nbytes=size))
    return Sequence(prompt, setup, lambda event: None, max_tokens)


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
    short, long, last = waiting(length=60), waiting(length=90), waiting(length=60)
    queue = filled(short, long, last, batch_tokens=150)
    assert [queue.take() for _ in range(3)] == [[short], [long], [last]]
    queue = filled(short, long, last, batch_tokens=200)
    assert [queue.take() for _ in range(2)] == [[short, long], [last]]


def test_prompts_of_very_different_lengths_do_not_share_a_batch():
    first, twice, more = waiting(length=50), waiting(length=100), waiting(length=101)
    queue = filled(first, more, twice)
    assert [queue.take() for _ in range(2)] == [[first, twice], [more]]


def test_a_sequence_longer_than_the_batch_limit_runs_alone():
    giant = waiting(length=1000)
    assert filled(giant, batch_tokens=100).take() == [giant]


def test_a_full_queue_refuses_with_a_retry_time():
    queue = filled(waiting(), waiting(), queue=2)
    with pytest.raises(Refusal, match="2 answers are already waiting") as refused:
        queue.put([waiting()])
    assert refused.value.status == 429
    assert int(refused.value.headers["Retry-After"]) >= 1


def test_all_choices_of_a_request_wait_or_none():
    queue = filled(waiting(), queue=2)
    with pytest.raises(Refusal):
        queue.put([waiting(), waiting()])
    assert len(queue) == 1


def test_a_cancelled_request_frees_its_place():
    gone, here = waiting(), waiting()
    queue = filled(gone, queue=1)
    gone.cancel()
    queue.put([here])
    assert queue.take() == [here]


def test_a_batch_waits_for_others_until_it_is_due_or_full():
    queue, due = Queue(Limits(batch_milliseconds=600_000, batch_size=2)), []
    waiter = threading.Thread(target=lambda: due.append(queue.wait()))
    waiter.start()
    queue.put([waiting()])
    waiter.join(0.05)
    assert waiter.is_alive(), "one of two should wait for the other"
    queue.put([waiting()])
    waiter.join()
    assert due == [True] and len(queue.take()) == 2 and queue.take() == []


def test_a_closed_queue_returns_waiting_requests_and_accepts_no_more():
    one = waiting()
    queue = Queue(Limits(batch_milliseconds=600_000))
    queue.put([one])
    queue.close()
    assert queue.wait() and queue.take() == [one]
    assert not queue.wait()
    with pytest.raises(Refusal, match="shutting down"):
        queue.put([waiting()])
