"""Hooks that families install."""

import threading

import pytest
from torch import nn

from covist.families.hooks import Running, WrappedMethod


class Encoder(nn.Module):
    def image(self, number):
        if number < 0:
            raise ValueError("negative")
        return number

    def video(self, number):
        return self.image(number + 1)


@pytest.fixture
def seen():
    return []


@pytest.fixture
def encoder(seen):
    encoder, running = Encoder(), Running()
    for name in ("image", "video"):
        WrappedMethod(encoder, name, lambda given, made, name=name: seen.append((name, given["number"], made)), running)
    return encoder


def test_of_methods_that_call_each_other_only_the_outermost_call_is_seen(encoder, seen):
    assert encoder.video(3) == 4 and encoder.image(5) == 5
    assert seen == [("video", 3, 4), ("image", 5, 5)]


def test_a_call_that_failed_is_over(encoder, seen):
    with pytest.raises(ValueError, match="negative"):
        encoder.video(-2)
    encoder.image(1)
    assert seen == [("image", 1, 1)]


def test_calls_of_another_thread_are_not_inside_this_one(encoder, seen):
    other = threading.Thread(target=lambda: encoder.image(7))

    class Slow(int):
        def __add__(self, one):
            other.start()
            other.join()
            return int(self) + one

    encoder.video(Slow(3))
    assert seen == [("image", 7, 7), ("video", 3, 4)]
