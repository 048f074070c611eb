"""How the images of a prompt share its tokens: an equal start, and then wherever the next token covers most."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush

from covist.checks import require

DIGITS = 6
"""Gains are compared to so many decimals of an image's whole coverage; finer differences are rounding."""


def allocate(gains: Sequence[Iterable[float]], most: Sequence[int], total: int, floor: int = 1) -> list[int]:
    """The tokens of each image: `total` together, or all that there are if that is less.

    gains: what each further token of an image adds, in the order in which it takes them; read only as far as needed
    most: the most tokens of each image
    floor: images take turns until each has so many; then the next token goes to the image that gains most by it

    Of equal gains, that of the image with the fewest tokens comes first, then that of the first image. Tokens are given
    one by one, so a larger total never takes a token away from an image.
    """
    require(len(gains) == len(most), "allocate", f"{len(gains)} images have gains, {len(most)} a maximum")
    counts, ahead = [0] * len(most), [_falling(one) for one in gains]
    waiting: list[tuple[bool, float, int, int]] = []  # (has its floor, -gain, tokens, image)

    def wait(image: int) -> None:
        count = counts[image]
        if count < most[image]:
            gain, has_floor = next(ahead[image]), count >= floor
            heappush(waiting, (has_floor, -gain if has_floor else 0.0, count, image))

    for image in range(len(most)):
        wait(image)
    for _ in range(min(total, sum(most))):
        image = heappop(waiting)[-1]
        counts[image] += 1
        wait(image)
    return counts


def _falling(gains: Iterable[float]) -> Iterator[float]:
    """Rounded gains, none above the one before it: each token covers what those before it have left."""
    least = float("inf")
    for gain in gains:
        least = min(least, round(gain, DIGITS))
        yield least
