"""A stream's state word by word: representatives with the places that they stand for, in float64."""

import numpy as np

from reference.covist_max import order
from reference.ops import unit


class Representative:
    def __init__(self, home, places, hidden, embedding):
        self.home, self.places, self.hidden, self.embedding = home, set(places), hidden, embedding

    @classmethod
    def of(cls, home, members):
        """Several as one: their places together, and means over their tokens."""
        sizes = [len(one.places) for one in members]
        hidden, embedding = (
            sum(size * getattr(one, name) for size, one in zip(sizes, members, strict=True)) / sum(sizes)
            for name in ("hidden", "embedding")
        )
        return cls(home, set().union(*(one.places for one in members)), hidden, embedding)


class Stream:
    def __init__(self, budget, moments, half_life):
        self.budget, self.moments, self.half_life = budget, moments, half_life
        self.held, self.lengths = [], []

    def add(self, hidden, embedding):
        for cell, (own, content) in enumerate(zip(hidden, embedding, strict=True)):
            place = (len(self.lengths), cell)
            self.held.append(Representative(place, [place], np.float64(own), np.float64(content)))
        self.lengths.append(1)
        if len(self.lengths) > self.moments:
            self.merge()
        if len(self.held) > self.budget:
            self.reduce()

    def merge(self):
        """The neighbours whose length is least for the age of their middle; of equal ones the oldest."""
        ages, together = [], []
        for first in range(len(self.lengths) - 1):
            together.append(self.lengths[first] + self.lengths[first + 1])
            ages.append(sum(self.lengths[first:]) - together[-1] / 2)
        first = min(range(len(ages)), key=lambda place: together[place] / ages[place])
        gone = first + 1 if self.lengths[first] > self.lengths[first + 1] else first  # of the two, it is not shown
        likeness = self.likeness()
        kept = {}  # new home -> who stays there: the one less like any other, the later of equals
        for number, one in enumerate(self.held):
            home = _earlier(one.home, first)
            if home not in kept or likeness[number] <= likeness[kept[home]]:
                kept[home] = number
        groups = self.groups(list(kept.values()))
        held = []
        for home in sorted(kept):
            one = Representative.of(home, [self.held[number] for number in groups[kept[home]]])
            one.places = {_earlier(place, first) for place in one.places if place[0] != gone}
            held.append(one)
        for one in held:  # whoever lives at a place represents it
            for other in held:
                other.places.discard(one.home)
            one.places.add(one.home)
        self.held, self.lengths[first : first + 2] = held, [together[first]]

    def reduce(self):
        s, sizes, newest = self.affinities(), [len(one.places) for one in self.held], len(self.lengths) - 1
        omega = [
            size / sum(other * value**2 for other, value in zip(sizes, row, strict=True))
            for size, row in zip(sizes, s, strict=True)
        ]
        omega = [value / sum(omega) for value in omega]
        aged = [
            value * 0.5 ** ((newest - one.home[0]) / self.half_life)
            for value, one in zip(omega, self.held, strict=True)
        ]
        groups = self.groups(order(s, aged, self.budget))
        self.held = [
            Representative.of(self.held[place].home, [self.held[one] for one in members])
            for place, members in sorted(groups.items())
        ]

    def affinities(self):
        """exp(-2 d / D), d the cosine distance, D the mean over all tokens of the distance to the farthest token."""
        rows, sizes = [unit(one.hidden) for one in self.held], [len(one.places) for one in self.held]
        distance = [[1 - float(a @ b) for b in rows] for a in rows]
        farthest = sum(size * max(row) for size, row in zip(sizes, distance, strict=True)) / sum(sizes)
        return [[np.exp(-2 * d / (farthest + 1e-4)) for d in row] for row in distance]

    def likeness(self):
        """The largest affinity of each to another one."""
        s = self.affinities()
        return [max(value for other, value in enumerate(row) if other != one) for one, row in enumerate(s)]

    def groups(self, kept):
        """Representative -> those that it stands for from now on."""
        s = self.affinities()
        found = {place: [place] for place in kept}
        for place in range(len(self.held)):
            if place not in found:
                found[max(sorted(kept), key=lambda one: s[one][place])].append(place)
        return found


def _earlier(place, first):
    """A place after the moment `first + 1` has become one with the moment `first`."""
    moment, cell = place
    return (moment - (moment > first), cell)
