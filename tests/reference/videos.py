"""Literal versions of the methods for videos, where they do not follow the authors' code: token by token."""

import math

import numpy as np

from reference.ops import unit


def cosine(one, other):
    return float(unit(one) @ unit(other))


def evs(change, places, count):
    """Tokens by falling change [F][n]; the first frame goes first if it fits."""
    whole = count >= places
    order = sorted(
        ((f, i) for f in range(len(change)) for i in range(places)),
        key=lambda token: (-np.inf if whole and token[0] == 0 else -change[token[0]][token[1]], token),
    )
    return sorted(f * places + i for f, i in order[:count])


def changed_embeddings(tokens):
    """[F][n]"""
    change = [[1 - cosine(token, np.mean(tokens[0], axis=0)) for token in tokens[0]]]
    for before, now in zip(tokens, tokens[1:], strict=False):
        change.append([1 - cosine(b, n) for b, n in zip(before, now, strict=True)])
    return change


def changed_pixels(frames, rows, columns):
    """[F][n] of frames [3, h, w], whose sides are multiples of rows and columns."""
    change = []
    for number, frame in enumerate(frames):
        before = frames[number - 1] if number else np.broadcast_to(frame.mean((1, 2))[:, None, None], frame.shape)
        tall, wide = frame.shape[1] // rows, frame.shape[2] // columns
        change.append(
            [
                float(np.abs(frame - before)[:, y * tall : (y + 1) * tall, x * wide : (x + 1) * wide].mean())
                for y in range(rows)
                for x in range(columns)
            ]
        )
    return change


def dycoke(tokens, count):
    """Of every four frames the first stays whole; with less than 3/10 of it for each other, all shrink."""
    frames, places = len(tokens), len(tokens[0])
    partner = {}
    for f in range(1, frames, 2):
        partner[f] = f - 1
    for f in range(0, frames - 3, 4):
        partner[f + 2] = f
    whole = [f for f in range(frames) if f not in partner]
    least = int(0.3 * places) / places
    if partner and (count - len(whole) * places) / len(partner) >= least * places:
        share = {f: (count - len(whole) * places) / len(partner) if f in partner else places for f in range(frames)}
    else:
        shrunk = count / (len(whole) + least * len(partner))
        share = {f: least * shrunk if f in partner else shrunk for f in range(frames)}
    counts = fitted([math.floor(share[f] + 1e-9) for f in range(frames)], share, count, places)
    kept = []
    for f in range(frames):
        before = [partner[f]] if f in partner else [other for other in whole if other < f]
        other = tokens[before[-1]] if before else [np.mean(tokens[f], axis=0)] * places
        order = sorted(range(places), key=lambda i: (cosine(tokens[f][i], other[i]), i))
        kept += [f * places + i for i in order[: counts[f]]]
    return sorted(kept)


def fitted(counts, wanted, total, most):
    """Counts of which the one farthest from what was wanted changes until they add up."""
    counts, least = list(counts), 1 if total >= len(counts) else 0
    while sum(counts) != total:
        step = 1 if sum(counts) < total else -1
        able = [f for f in range(len(counts)) if least <= counts[f] + step <= most]
        best = max(step * (wanted[f] - counts[f]) for f in able)
        counts[next(f for f in able if step * (wanted[f] - counts[f]) == best)] += step
    return counts
