"""Literal versions of the methods that read more of the vision tower, written after the descriptions."""

import math
from fractions import Fraction

import numpy as np

from reference.ops import entropy, half_up, mass_norm, ranking, softmax, unit
from reference.selectors import cosines

# -- the tower ---------------------------------------------------------------------------------------------------------


def head_rows(states, heads):
    """[n, heads x w] -> heads of [n, w]."""
    width = states.shape[1] // heads
    return [states[:, head * width : (head + 1) * width] for head in range(heads)]


def attention_matrix(queries, keys, heads):
    """Head-mean attention [queries, keys]."""
    maps = []
    for q, k in zip(head_rows(queries, heads), head_rows(keys, heads), strict=True):
        maps.append([softmax(np.array([float(a @ b) / math.sqrt(len(a)) for b in k])) for a in q])
    return np.mean(np.array(maps), axis=0)


def received(queries, keys, heads, class_tokens):
    """Three shares for each patch: of all queries, of itself, of the class token."""
    matrix = attention_matrix(queries, keys, heads)
    total = len(matrix)
    patches = range(class_tokens, total)
    everywhere = [sum(matrix[q, i] for q in range(total)) / total for i in patches]
    itself = [matrix[i, i] / total for i in patches]
    of_class = [matrix[0, i] / total if class_tokens else 0.0 for i in patches]
    return np.array([everywhere, itself, of_class])


# -- PruneSID ----------------------------------------------------------------------------------------------------------


def prunesid_groups(hidden, count):
    matrix = np.array([[1 / (1 + math.exp(-x)) for x in row] for row in hidden]).T  # [v, N], tokens are columns
    matrix = matrix - matrix.mean(axis=0, keepdims=True)
    _, strength, right = np.linalg.svd(matrix, full_matrices=False)
    loadings = [right[c] if strength[c] ** 2 > 1e-10 * strength[0] ** 2 else 0 * right[c] for c in range(len(right))]
    loadings = np.abs(np.array(loadings[:count]))
    return [int(np.argmax(loadings[:, token])) for token in range(matrix.shape[1])]


def prunesid_survivors(hidden, attention, group, budget):
    similarity = cosines(hidden)
    tokens = len(hidden)
    mean = np.mean([similarity[i, j] for i in range(tokens) for j in range(i + 1, tokens)])
    alive = []
    for own in sorted(set(group)):
        waiting = [i for i in ranking(attention) if group[i] == own]
        while waiting:
            best, *waiting = waiting
            alive.append(best)
            waiting = [i for i in waiting if not similarity[best, i] > budget / 32 * mean]
    return alive


def prunesid_quotas(sizes, survived, budget, patches):
    lower = [min(1, size) for size in sizes]
    upper = [min(5 * math.ceil(budget / 64), size, own) for size, own in zip(sizes, survived, strict=True)]
    while sum(upper) < budget:
        upper = [min(limit + 1, size) for limit, size in zip(upper, sizes, strict=True)]
    rest = patches - sum(lower)
    places, before, cumulative = [], 0, Fraction(0)
    for own, least, limit in zip(survived, lower, upper, strict=True):
        cumulative += Fraction(rest * own, sum(survived))
        end = round(cumulative)
        places.append(min(least + end - before, limit))
        before = end
    while sum(places) < patches:
        for number in sorted(range(len(sizes)), key=lambda n: -survived[n]):
            if sum(places) < patches and places[number] < upper[number]:
                places[number] += 1
    return places


def prunesid(hidden, attention, budget, patches):
    if patches == 0:
        return []
    group = prunesid_groups(hidden, max(1, int(budget / 4)))
    alive = prunesid_survivors(hidden, attention, group, budget)
    names = range(max(group) + 1)
    sizes = [group.count(name) for name in names]
    survived = [sum(group[i] == name for i in alive) for name in names]
    kept = []
    for name, places in zip(names, prunesid_quotas(sizes, survived, budget, patches), strict=True):
        order = [i for i in ranking(attention) if group[i] == name]
        order = [i for i in order if i in alive] + [i for i in order if i not in alive]
        kept += order[:places]
    return sorted(kept)


# -- HiPrune -----------------------------------------------------------------------------------------------------------


def hiprune(objects, whole, rows, columns, count, alpha=0.1):
    """Of one tile of rows x columns tokens."""
    anchors = ranking(objects)[: round(count * alpha / 5)]
    chosen = list(anchors)
    for anchor in anchors:
        row, column = divmod(anchor, columns)
        for r, c in ((row, column - 1), (row, column + 1), (row - 1, column), (row + 1, column)):
            if 0 <= r < rows and 0 <= c < columns and r * columns + c not in chosen:
                chosen.append(r * columns + c)
    chosen = chosen[:count]
    others = [i for i in ranking(whole) if i not in chosen]
    return sorted(chosen + others[: count - len(chosen)])


# -- VisionTrim --------------------------------------------------------------------------------------------------------


def visiontrim_coded(attention, from_others):
    return 0.5 * attention / np.linalg.norm(attention) + 0.5 * from_others / np.linalg.norm(from_others)


def visiontrim_paper(attention, features, rows, columns):
    places = np.array([(r, c) for r in range(rows) for c in range(columns)], dtype=float)
    spread, place_spread = features.var(ddof=1), places.var(ddof=1)
    local = []
    for i, (row, column) in enumerate(places.astype(int)):
        total = 0.0
        for r in range(row - 1, row + 2):
            for c in range(column - 1, column + 2):
                if 0 <= r < rows and 0 <= c < columns:
                    j = r * columns + c
                    apart = math.fsum((features[i] - features[j]) ** 2) / spread
                    total += -apart - 0.5 * math.fsum((places[i] - places[j]) ** 2) / place_spread
        local.append(total / 9)
    local = softmax(np.array(local))
    of_global, of_local = attention.var(ddof=1), local.var(ddof=1)
    return of_local / (of_global + of_local) * attention + of_global / (of_global + of_local) * local


def visiontrim(score, hidden, relate, count):
    """-> (dominant tokens, complement tokens, their features). `relate` says what ties features to each text token."""
    dominant = ranking(score)[: max(1, half_up(0.75 * count))]
    rest = [i for i in range(len(score)) if i not in dominant]
    places = count - len(dominant)
    relevance = {i: np.mean(relate(hidden[i : i + 1])[0]) for i in rest}
    targets = sorted(sorted(rest, key=lambda i: -relevance[i])[:places])
    leftovers = [i for i in rest if i not in targets]
    merged = [hidden[i].copy() for i in targets]
    for _ in range(3):
        members = [[] for _ in targets]
        ties = relate(np.array(merged)) if targets else None
        for i in leftovers if targets else ():
            own = relate(hidden[i : i + 1])[0]
            members[int(np.argmax([own @ there for there in ties]))].append(hidden[i])
        merged = [target + np.mean(own, axis=0) if own else target for target, own in zip(merged, members, strict=True)]
    return sorted(dominant), targets, merged


# -- FlowCut -----------------------------------------------------------------------------------------------------------


def flow(class_row, values):
    """class_row [heads, n], values [heads, n, w], the class token first -> score of the patches."""
    attention = mass_norm(np.mean(class_row, axis=0)[1:])
    alike = mass_norm(np.mean([softmax(np.array([own[0] @ v for v in own])) for own in values], axis=0)[1:])
    strength = np.array([np.abs(v).sum() for v in np.mean(values, axis=0)[1:]])
    return (attention + alike) * strength


def flowcut(entry, run, feeding, count):
    """-> (patches that stay, their states after layer `feeding`, tokens that ran in every layer)."""
    states, patches, score, ran = entry, list(range(len(entry) - 1)), None, []
    for layer in range(feeding + 1):
        ran.append(len(states))
        states, class_row, values = run(layer, states)
        if len(patches) > count:
            now = flow(class_row, values)
            score = now if score is None else 0.5 * score + 0.5 * now
            attention, n, r = mass_norm(np.mean(class_row, axis=0)[1:]), len(patches), feeding - layer - 1
            leaving = 0
            if r <= 0:
                leaving = n - count
            elif r % 2 == 0:
                leaving = round((n - count) / math.sqrt(r) * (1 - (entropy(attention) / math.log(n)) ** 2))
            stay = sorted(ranking(score)[: n - leaving])
            patches, score = [patches[i] for i in stay], np.array([score[i] for i in stay])
            states = states[[0, *(i + 1 for i in stay)]]
    return patches, states[1:], ran


# -- EvoCut ------------------------------------------------------------------------------------------------------------


def evocut_scores(states, first):
    score = np.zeros(len(states[0]))
    for before, after in zip(states, states[1:], strict=False):
        directions = np.array([unit(b - a) for a, b in zip(before, after, strict=True)])
        centres = [directions[i] for i in first]
        for _ in range(10):
            members = [[] for _ in centres]
            for direction in directions:
                members[int(np.argmax([direction @ centre for centre in centres]))].append(direction)
            centres = [
                unit(np.mean(own, axis=0)) if own else centre for centre, own in zip(centres, members, strict=True)
            ]
        for i, direction in enumerate(directions):
            score[i] = 0.95 * score[i] + 0.05 * (1 - max(direction @ centre for centre in centres))
    return score
