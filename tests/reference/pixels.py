"""PixelPrune literally: token after token, in reading order."""

import numpy as np

DISTANCES = {
    "max": lambda one, other: np.max(np.abs(one - other)),
    "mae": lambda one, other: np.mean(np.abs(one - other)),
    "rmse": lambda one, other: np.sqrt(np.mean((one - other) ** 2)),
}


def pixelprune(frames, threshold, distance):
    """Which tokens of frames [F, rows, columns, values] are encoded, and how far each is from what predicts it.

    A token that is left out is taken to look as predicted. One of a later frame is also predicted by the token at
    its place one frame earlier, if that is nearer. The first token of a frame is always encoded.
    """
    far = DISTANCES[distance]

    def alike(one, other):
        return far(one, other) <= threshold

    kept, distances, before = [], np.zeros(frames.shape[:3]), None
    for number, frame in enumerate(frames):
        looks = {}
        for row in range(frame.shape[0]):
            for column in range(frame.shape[1]):
                own, place = frame[row, column], (row, column)
                left, above = looks.get((row, column - 1)), looks.get((row - 1, column))
                corner = looks.get((row - 1, column - 1))
                if left is None and above is None:
                    looks[place], distances[number, row, column] = own, np.inf
                    kept.append((number, row, column))
                    continue
                if left is None:
                    predicted = above
                elif above is None:
                    predicted = left
                else:
                    predicted = above if alike(corner, left) and not alike(corner, above) else left
                if before is not None and far(own, before[place]) <= far(own, predicted):
                    predicted = before[place]
                distances[number, row, column] = far(own, predicted)
                if alike(own, predicted):
                    looks[place] = predicted
                else:
                    looks[place] = own
                    kept.append((number, row, column))
        before = looks
    return kept, distances
