"""The internal selection and the ordered spatial subsampling."""

import math

import numpy as np

from reference.coverage import reserve
from reference.evidence import mix_heads
from reference.ops import half_up, min_max, ranking, softmax


def attention_score(queries, keys, log_factor, gains):
    heads, width = queries.shape
    group = heads // len(keys)
    rows = []
    for h in range(heads):
        logits = [
            float(queries[h] @ k) / math.sqrt(width) + gains[h] * f
            for k, f in zip(keys[h // group], log_factor, strict=True)
        ]
        rows.append(softmax(logits))
    return mix_heads(rows)


def value_score(text, visual):
    width = text.shape[-1]
    rows = [softmax([float(t @ v) / math.sqrt(width) for v in visual[h]]) for h in range(len(text)) for t in text[h]]
    return sum(rows) / len(rows)


def score(attention, value):
    return 0.5 * min_max(attention) + 0.5 * min_max(value)


def select(value, s, anchors, positions, xy, count, theta):
    """Anchors, coordinate tokens, stratified tokens, best scored, reserve: in this order, duplicates free."""
    n = len(value)
    places = count - half_up(0.05 * count)
    chosen = [i for i in ranking(value) if anchors[i]]
    angle = np.array([[float(p) * t for p in np.atleast_1d(positions[i]) for t in theta] for i in range(n)])
    quota = half_up(0.10 * count)
    coordinate = []
    for wave, share in ((np.cos(angle), math.ceil(quota / 2)), (np.sin(angle), quota // 2)):
        order = [i for i in ranking(wave.mean(1).astype(np.float32)) if i not in chosen + coordinate]
        coordinate += order[:share]
    chosen += sorted(coordinate, key=lambda i: (-value[i], i))
    cells = half_up(0.125 * count)
    if cells:
        rows = math.isqrt(cells)
        columns = cells // rows
        cell = [(min(int(y * rows), rows - 1), min(int(x * columns), columns - 1)) for x, y in xy]
        served = {cell[i] for i in chosen}
        for i in ranking(value):
            if cell[i] not in served:
                served.add(cell[i])
                chosen.append(i)
    chosen += [i for i in ranking(value) if i not in chosen]
    return sorted(reserve(s, chosen[:places], count - places))


def subsample(n, s, count):
    places = count - half_up(0.05 * count)
    spaced = [math.floor((i + 0.5) * n / places) for i in range(places)]
    return sorted(reserve(s, spaced, count - places))
