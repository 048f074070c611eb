"""Literal versions of the rivals that reduce before the decoder and again inside it, or merge inside it."""

import math

import numpy as np
import torch

from reference.inside import layer_attention, rotated_keys
from reference.ops import first_largest, ranking, softmax, unit
from reference.selectors import cosines

TIE = 1e-6


def farthest(rows, start, count):
    """Each next one is the farthest by Euclid from those before it."""
    chosen = [start]
    while len(chosen) < count:
        nearest = {
            i: min(math.dist(rows[i], rows[j]) ** 2 for j in chosen) for i in range(len(rows)) if i not in chosen
        }
        chosen.append(first_largest(nearest, nearest, TIE * max(nearest.values())))
    return chosen


def apet(features, count, start):
    """{kept: content} and the targets with what they took in {target: members}."""
    size = min(10, count // 2)
    basis = sorted(farthest(features, start, size)) if size else []
    directions = np.array([features[i] for i in basis])
    errors = []
    for row in features:
        left = row
        if basis:
            weights = np.linalg.solve(directions @ directions.T + 1e-5 * np.eye(size), directions @ row)
            left = row - weights @ directions
        errors.append(math.sqrt(math.fsum(left * left)))
    order = ranking(errors)[:count]
    targets, overwritten = order[: count - size], sorted(order[count - size :])
    members = {target: [] for target in sorted(targets)}
    for j in range(len(features)):
        if j not in order:
            alike = {t: float(unit(features[j]) @ unit(features[t])) for t in members}
            members[first_largest(alike, members, TIE)].append(j)
    content = {t: (features[t] + sum(features[j] for j in own)) / (1 + len(own)) for t, own in members.items()}
    content.update({place: features[i] for place, i in zip(overwritten, basis, strict=True)})
    return content, members


def mob(view, count):
    """(named tokens that stay, all that stay)."""
    norms = np.abs(rotated_keys(view)).sum(1)
    with torch.no_grad():
        states = [unit(row) for row in view.decoder.module.norm(view.hidden).double().numpy()]
    visual, text = view.visual.tolist(), view.text.tolist()
    anchors = sorted(text, key=lambda row: -norms[row])[:8]
    prompt_places = max(1, count // 2)
    least = max(1, int(0.125 * prompt_places))
    total = sum(norms[anchor] for anchor in anchors)
    scores = {}
    for anchor in anchors:
        quota = max(least, math.ceil(least * len(anchors) * norms[anchor] / total))
        near = sorted(range(len(visual)), key=lambda i: -float(states[anchor] @ states[visual[i]]))[:quota]
        for i in near:
            scores.setdefault(i, []).append(float(states[anchor] @ states[visual[i]]) + norms[anchor])
    named = sorted(scores, key=lambda i: (-max(scores[i]), i))[:prompt_places]
    chosen = list(named)
    while len(chosen) < count:
        nearest = {
            i: min(1 - float(states[visual[i]] @ states[visual[j]]) for j in chosen)
            for i in range(len(visual))
            if i not in chosen
        }
        chosen.append(first_largest(nearest, nearest, TIE))
    return named, sorted(chosen)


def vlm_pruner(view, places, count):
    """{kept: (content, members)}; `places` are the tokens' (x, y) in a unit square."""
    visual = view.visual.tolist()
    keys = rotated_keys(view)[visual]
    chosen = farthest(keys, ranking(np.abs(keys).sum(1))[0], min(4, count))
    hidden = view.hidden[view.visual].double().numpy()
    channels = sorted(ranking(hidden.var(0))[:256])
    similarity = cosines(hidden[:, channels])

    def score(i):
        apart = min(min(math.dist(places[i], places[j]) / math.sqrt(2) for j in chosen), 1)
        return round(max(similarity[i, j] for j in chosen) * (1 + 0.5 * apart), 5)

    rounds = 0
    while len(chosen) < count:
        threshold = 0.8 + 0.1 * rounds
        left = {i: score(i) for i in range(len(visual)) if i not in chosen}
        order = sorted(left, key=lambda i: (left[i], i))
        for first in range(0, len(order), 16):
            scores = {i: score(i) for i in order[first : first + 16]}
            accepted = [i for i in sorted(scores, key=lambda i: scores[i]) if scores[i] < threshold]
            accepted = accepted[: count - len(chosen)]
            if first == 0 and not accepted:
                break
            chosen += accepted
        rounds += 1
    members = {i: [] for i in sorted(chosen)}
    for j in range(len(visual)):
        if j not in members:
            members[max(members, key=lambda i: similarity[j, i])].append(j)
    merged = {}
    for i, own in members.items():
        mean = sum(max(similarity[i, j], 1e-6) * hidden[j] for j in own)
        total = sum(max(similarity[i, j], 1e-6) for j in own)
        merged[i] = (0.3 * hidden[i] + 0.7 * mean / total if own else hidden[i], own)
    return merged


def tops(relevance, features, count, coverage_weight):
    """In the order of choice."""
    similarity = cosines(features)
    similarity[similarity > 1 - 1e-5] = 1
    tokens = range(len(features))
    chosen = [first_largest(relevance, tokens, TIE * max(relevance))]
    while len(chosen) < count:
        free = [i for i in tokens if i not in chosen]
        covered = [max(similarity[i, j] for j in chosen) for i in tokens]
        terms = [
            (1.0, {i: relevance[i] for i in free}),
            (0.5, {i: 1 - covered[i] for i in free}),
            (coverage_weight, {i: math.fsum(max(0, similarity[i, j] - covered[j]) for j in free) for i in free}),
        ]
        score = dict.fromkeys(free, 0.0)
        for weight, term in terms:
            mean = max(math.fsum(term.values()) / len(free), 1e-6)
            for i in free:
                score[i] += weight * term[i] / mean
        chosen.append(first_largest(score, free, TIE * max(score.values())))
    return chosen


def tops_relevance(view):
    """Attention of the text tokens that the image's current states point to more than on average."""
    hidden = view.hidden.double().numpy()
    visual, text = view.visual.tolist(), view.text.tolist()
    pointed = np.mean([softmax([float(hidden[i] @ hidden[t]) for t in text]) for i in visual], axis=0)
    rows = [row for row, value in zip(text, pointed, strict=True) if value > pointed.mean()]
    attention = layer_attention(view)
    return [float(np.mean([[head[r, c] for r in rows] for head in attention])) for c in visual]


def e2s_evidence(view):
    """[(for, against, undecided)] of every image token, from the queries and keys of the layer."""
    attention = layer_attention(view)
    visual, text = view.visual.tolist(), view.text.tolist()
    count, supports = len(visual), []
    for head in attention:
        # log of a softmax row is the logit up to a constant of the row, which the mean over rows keeps constant
        logits = [np.mean([math.log(head[t, v]) for t in text]) for v in visual]
        shares = softmax(logits)
        supports.append([count * r / (1 + count * r) for r in shares])
    heads, masses = len(supports), []
    for p in zip(*supports, strict=True):
        mean = math.fsum(p) / heads
        rho = 2 / heads * abs(math.fsum(x - 0.5 for x in p)) * (1 - 2 / heads * math.fsum(abs(x - mean) for x in p))
        masses.append((rho * mean, rho * (1 - mean), 1 - rho))
    return masses


def dempster(first, second):
    """Combined masses over all pairs of focal sets, and the conflict."""
    sets = [frozenset("I"), frozenset("U"), frozenset("IU")]
    found, conflict = dict.fromkeys(sets, 0.0), 0.0
    for a, mass in zip(sets, first, strict=True):
        for b, other in zip(sets, second, strict=True):
            if a & b:
                found[a & b] += mass * other
            else:
                conflict += mass * other
    return tuple(found[own] / (1 - conflict) for own in sets), conflict


def e2s(masses, conflicts, cells, count):
    """Kept tokens; `cells` says in which cell of the 4 x 4 grid each lies."""
    score = [1 - (1 - (1 - m[1])) * (1 - c) for m, c in zip(masses, conflicts, strict=True)]
    best = {}
    for i in ranking(score):
        best.setdefault(cells[i], i)
    return sorted(ranking([0.9 * q + 0.1 * (i in best.values()) for i, q in enumerate(score)])[:count])
