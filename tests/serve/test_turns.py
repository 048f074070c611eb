"""Nobody who waits for a turn is overtaken."""

import threading

from covist.serve.turns import Turns


def test_holders_take_turns_step_by_step():
    turns, order, steps = Turns(), [], 5

    def work(name):
        with turns:
            for _ in range(steps):
                order.append(name)
                turns.pass_on()

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    with turns:
        for thread in threads:
            thread.start()
        while turns.waiting < len(threads):
            pass
    for thread in threads:
        thread.join()
    assert len(order) == 3 * steps
    assert [order[place : place + 3] for place in range(0, len(order), 3)] == [order[:3]] * steps


def test_a_turn_ends_with_an_error_too():
    turns = Turns()
    try:
        with turns:
            raise RuntimeError
    except RuntimeError:
        pass
    with turns:
        assert turns.waiting == 0


def test_a_holder_alone_goes_on_at_once():
    turns = Turns()
    with turns:
        turns.pass_on()
