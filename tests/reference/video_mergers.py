"""Literal versions of the methods that merge tokens of a video: tokens [F][n][d], attention [F][n] -> {index: content}.

Each meets the count exactly, by our rule."""

import math

import numpy as np

from reference.ops import first_largest, ranking
from reference.videos import cosine


def peaks(points, clusters, neighbours):
    """Density peaks: the centres by falling score, and the centre of every point."""
    points = np.asarray(points, dtype=np.float64)
    distance = np.array([[math.dist(p, q) / math.sqrt(len(p)) for q in points] for p in points])
    density = [math.exp(-np.mean(sorted(row)[:neighbours])) for row in distance**2]
    return _peaks(distance, density, clusters)


def peaks_by_others(points, clusters, neighbours):
    """The same with plain distances, and without the point itself among its neighbours."""
    points = np.asarray(points, dtype=np.float64)
    distance = np.array([[math.dist(p, q) for q in points] for p in points])
    near = [sorted(row)[1 : neighbours + 1] for row in distance**2]
    return _peaks(distance, [math.exp(-np.mean(row)) if row else 1.0 for row in near], clusters)


def _peaks(distance, density, clusters):
    points = range(len(distance))
    scores = []
    for i in points:
        denser = [j for j in points if (-density[j], j) < (-density[i], i)]
        scores.append(density[i] * (min(distance[i][j] for j in denser) if denser else distance.max()))
    centres = ranking(scores)[:clusters]
    nearest = [i if i in centres else min(centres, key=lambda c: distance[i][c]) for i in points]
    return centres, nearest


def fit(kept, contents, attention, count):
    """Exactly `count` of the tokens: contents of merged ones are given, all others are in `kept` or not."""
    order = ranking(attention)
    tiers = [[i for i in order if i in contents], [i for i in order if i in kept and i not in contents]]
    tiers.append([i for i in order if i not in kept and i not in contents])
    return sorted(sum(tiers, [])[:count])


def cut(tokens, threshold, least):
    """Segments of frames, as lists."""
    means = [np.mean(frame, axis=0) for frame in tokens]
    cosines = [cosine(a, b) for a, b in zip(means, means[1:], strict=False)]
    cuts = [f for f, value in enumerate(cosines) if value < threshold]
    for f in sorted(range(len(cosines)), key=lambda f: cosines[f]):
        if len(cuts) < least - 1 and f not in cuts:
            cuts.append(f)
    segments = [[0]]
    for f in range(1, len(tokens)):
        segments.append([f]) if f - 1 in cuts else segments[-1].append(f)
    return segments


def fastvid(tokens, attention, count, threshold=0.9):
    frames, places = len(tokens), len(tokens[0])
    each = count // frames
    context = int(0.4 * each)
    kept, contents = [], {}
    for segment in cut(tokens, threshold, 8):
        salient = {f: ranking(attention[f])[: each - context] for f in segment}
        kept += [f * places + i for f in segment for i in salient[f]]
        pool = [tokens[f][i] for f in segment for i in range(places) if i not in salient[f]]
        anchor_frames = [segment[place] for place in range(len(segment) - 1, -1, -4)]
        for f in anchor_frames:
            rest = [i for i in range(places) if i not in salient[f]]
            number = min(context * len(segment) // len(anchor_frames), len(rest))
            if number:
                anchors = sorted(rest[c] for c in peaks([tokens[f][i] for i in rest], number, 4)[0])
                contents |= _with_members(f, anchors, tokens, pool)
    flat, scores = _flat(tokens), _flat(attention)
    return {i: contents.get(i, flat[i]) for i in fit(kept, contents, scores, count)}


def _with_members(f, anchors, tokens, pool):
    members = {anchor: [] for anchor in anchors}
    for token in pool:
        similar = [cosine(token, tokens[f][anchor]) for anchor in anchors]
        members[anchors[first_largest(similar, range(len(anchors)), 1e-6)]].append(token)
    contents = {}
    for anchor, own in members.items():
        weight = max(0.6, 1 / (len(own) + 1))
        mean = np.mean(own, axis=0) if own else 0
        contents[f * len(tokens[f]) + anchor] = weight * tokens[f][anchor] + (1 - weight) * mean
    return contents


def holitom(tokens, attention, count, threshold=0.8):
    frames, places = len(tokens), len(tokens[0])
    best = _windows(tokens, threshold)
    saved = sum((len(window) - 1) * len(static) for window, static in best)
    ratio = min(1, count / (frames * places - saved))
    kept, contents = [], {}
    for window, static in best:
        dynamic = [i for i in range(places) if i not in static]
        for f in window:
            order = sorted(dynamic, key=lambda i: (-attention[f][i], i))
            kept += [f * places + i for i in order[: math.ceil(len(dynamic) * ratio - 1e-9)]]
        means = [np.mean([tokens[f][i] for f in window], axis=0) for i in static]
        clusters = round(len(static) * ratio)
        if clusters:
            centres, nearest = peaks(means, clusters, min(7, clusters))
            for centre in centres:
                own = [means[j] for j in range(len(means)) if nearest[j] == centre and j != centre]
                content = 0.6 * means[centre] + 0.4 * np.mean(own, axis=0) if own else means[centre]
                contents[window[0] * places + static[centre]] = content
    flat, scores = _flat(tokens), _flat(attention)
    return {i: contents.get(i, flat[i]) for i in fit(kept, contents, scores, count)}


def holitom_inside(hidden, attention, count):
    """{token: content} of what stays of [n][d] inside the decoder, and {token: how many it stands for}."""
    kept = sorted(sorted(range(len(hidden)), key=lambda i: (-attention[i], i))[:count])
    contents, sizes = {i: hidden[i] for i in kept}, dict.fromkeys(kept, 1)
    for i in range(len(hidden)):
        if i not in sizes:
            nearest = max(kept, key=lambda k: cosine(hidden[i], hidden[k]))
            contents[nearest] = (contents[nearest] + hidden[i]) / 2
            sizes[nearest] += 1
    return contents, sizes


def _windows(tokens, threshold):
    """The windows that save most, each with the places that stand still throughout it."""
    frames, places = len(tokens), len(tokens[0])
    still = [[cosine(tokens[f][i], tokens[f + 1][i]) > threshold for i in range(places)] for f in range(frames - 1)]

    def resting(window):
        return [i for i in range(places) if len(window) > 1 and all(still[f][i] for f in window[:-1])]

    def saved(windows):
        return sum((len(window) - 1) * len(resting(window)) for window in windows)

    # Among equal savings the last window is as short as possible, then the one before it, and so on.
    best = min(_partitions(frames), key=lambda windows: (-saved(windows), [len(window) for window in windows[::-1]]))
    return [(window, resting(window)) for window in best]


def _partitions(frames):
    """All ways to cut frames into windows."""
    for cuts in range(2 ** (frames - 1)):
        windows = [[0]]
        for f in range(1, frames):
            windows.append([f]) if cuts >> (f - 1) & 1 else windows[-1].append(f)
        yield windows


def flashvid(tokens, attention, count, mean=False):
    frames, places = len(tokens), len(tokens[0])
    each = math.ceil(count / frames)
    selected = math.ceil(0.7 * each)
    kept, contents = [], {}
    for segment in cut(tokens, 0.9, 8):
        centre = np.mean([tokens[f][i] for f in segment for i in range(places)], axis=0)
        chosen = {f: _selected(tokens[f], attention[f], centre, selected) for f in segment}
        kept += [f * places + i for f in segment for i in chosen[f]]
        if each > selected:
            contents |= _trees(tokens, segment, chosen, each, each - selected, mean)
    flat, scores = _flat(tokens), _flat(attention)
    return {i: contents.get(i, flat[i]) for i in fit(kept, contents, scores, count)}


def _selected(frame, attention, centre, count):
    weight = [a * float(token @ centre) for a, token in zip(attention, frame, strict=True)]
    distance = [[(1 - cosine(a, b)) * w for b, w in zip(frame, weight, strict=True)] for a in frame]
    values = [sorted(distance[i][j] for i in range(len(frame)))[1] for j in range(len(frame))]
    chosen = []
    while len(chosen) < count:
        chosen.append(max((j for j in range(len(frame)) if j not in chosen), key=lambda j: values[j]))
        values = [min(distance[i][j] for i in chosen) for j in range(len(frame))]
    return chosen


def _trees(tokens, segment, chosen, each, merged_each, mean):
    places = len(tokens[0])
    best = {}
    for before, f in zip(segment, segment[1:], strict=False):
        for i in range(places):
            able = [j for j in range(places) if j not in chosen[before] and i not in chosen[f]]
            if able:
                similar = {j: cosine(tokens[f][i], tokens[before][j]) for j in able}
                best[f, i] = max(similar.values()), max(similar, key=similar.get)
    joins = [token for token in best if best[token][0] > 0.8]
    most = (places - each) * len(segment)
    if len(joins) > most:
        joins = sorted(joins, key=lambda token: -best[token][0])[: most - 1] if most else []
    total = {(f, i): (tokens[f][i].copy(), 1, 1) for f in segment for i in range(places)}
    for f, i in sorted(joins, key=lambda token: -token[0]):
        place = (f - 1, best[f, i][1])
        content, direct, size = total[place]
        total[place] = content + total[f, i][0], direct + 1, size + total[f, i][2]
    free = {f: [i for i in range(places) if i not in chosen[f] and (f, i) not in joins] for f in segment}
    share = merged_each * len(segment) / sum(map(len, free.values()))
    contents = {}
    for f, own in free.items():
        points = [total[f, i][0] / total[f, i][2 if mean else 1] for i in own]
        clusters = math.ceil(len(own) * share) if share < 1 else len(own)
        if clusters:
            every = range(len(own))
            centres, nearest = peaks(points, clusters, min(clusters, 7)) if share < 1 else (every, every)
            for c in centres:
                members = [point for point, owner in zip(points, nearest, strict=True) if owner == c]
                contents[f * places + own[c]] = np.mean(members, axis=0)
    return contents


def prunevid(tokens, windows, count, threshold=0.8):
    """`windows` are lists of frames."""
    places = len(tokens[0])
    likeness = {}
    for number, window in enumerate(windows):
        for i in range(places):
            pairs = [cosine(tokens[f][i], tokens[g][i]) for f in window for g in window if f != g]
            likeness[number, i] = np.mean(pairs) if pairs else -1.0
    still, left = [], len(tokens) * places - count
    for number, i in sorted(likeness, key=lambda key: (-likeness[key], key)):
        left -= len(windows[number]) - 1
        if likeness[number, i] <= threshold or left < 0:
            break
        still.append((number, i))
    sets = []
    for number, window in enumerate(windows):
        for f in window:
            sets.append([(f * places + i, tokens[f][i]) for i in range(places) if (number, i) not in still])
    for number, window in enumerate(windows):
        resting = [i for i in range(places) if (number, i) in still]
        sets.append([(window[0] * places + i, np.mean([tokens[f][i] for f in window], axis=0)) for i in resting])
    contents = {}
    for own, clusters in zip(sets, _shares([len(own) for own in sets], count), strict=True):
        if clusters:
            centres, nearest = peaks([point for _, point in own], clusters, 7)
            for c in centres:
                members = [point for (_, point), owner in zip(own, nearest, strict=True) if owner == c]
                contents[own[c][0]] = np.mean(members, axis=0)
    return contents


def _shares(sizes, count):
    """Sets of at most 14 stay whole if every other one gets a token; what is not whole is shared by size."""
    whole = [size if size <= 14 else 0 for size in sizes]
    left = count - sum(whole)
    large = [size for size in sizes if size > 14]
    if left <= 0 or left < len(large):
        whole, left, large = [0] * len(sizes), count, sizes
    exact = [left * size / sum(large) if not own else 0 for size, own in zip(sizes, whole, strict=True)]
    parts = [math.floor(value + 1e-9) for value in exact]
    for number in sorted(range(len(sizes)), key=lambda n: (-round(exact[n] - parts[n], 9), n)):
        if sum(parts) < left:
            parts[number] += 1
    return [own or part for own, part in zip(whole, parts, strict=True)]


def scissor(tokens, count):
    points = [(f * len(frame) + i, token, f) for f, frame in enumerate(tokens) for i, token in enumerate(frame)]

    def twice(threshold):
        inner = [part for f in range(len(tokens)) for part in _components([p for p in points if p[2] == f], threshold)]
        return _components(inner, threshold)

    low, high, best = -1.0, 1.0, twice(-2.0)
    for _ in range(14):
        found = twice((low + high) / 2)
        if len(found) <= count:
            low, best = (low + high) / 2, max(best, found, key=len)
        else:
            high = (low + high) / 2
    places = [place for place, _, _ in best]
    others = [(max(cosine(token, mean) for _, mean, _ in best), i) for i, token, _ in points if i not in places]
    added = [i for _, i in sorted(others)[: count - len(best)]]
    targets = sorted(
        [(place, mean) for place, mean, _ in best] + [(i, points[i][1]) for i in added], key=lambda t: t[0]
    )
    members = [[mean] for _, mean in targets]
    for _, token, _ in points:
        similar = [cosine(token, mean) for _, mean in targets]
        members[first_largest(similar, range(len(targets)), 1e-6)].append(token)
    return {place: np.mean(own, axis=0) for (place, _), own in zip(targets, members, strict=True)}


def _components(points, threshold):
    """(place of the most connected token, mean, 0) of each component of points (place, content, ...), by place."""
    similar = [[cosine(a[1], b[1]) > threshold for b in points] for a in points]
    seen, found = set(), []
    for start in range(len(points)):
        if start not in seen:
            stack, own = [start], set()
            while stack:
                node = stack.pop()
                if node not in own:
                    own.add(node)
                    stack += [other for other in range(len(points)) if similar[node][other]]
            seen |= own
            most = min(own, key=lambda node: (-sum(similar[node]), node))
            found.append((points[most][0], np.mean([points[node][1] for node in sorted(own)], axis=0), 0))
    return sorted(found, key=lambda part: part[0])


def tango(tokens, attention, count, columns, threshold=0.65):
    frames, places = len(tokens), len(tokens[0])
    turned = [[_turned(tokens[f][i], f, i // columns, i % columns) for i in range(places)] for f in range(frames)]
    kept, contents = [], {}
    for window, static in _windows(tokens, threshold):
        changing = [i for i in range(places) if i not in static]
        whole = len(window) * places
        ratio = min(1, count / (frames * places) * whole / (whole - (len(window) - 1) * len(static)))
        groups = [[(f * places + i, tokens[f][i], turned[f][i], attention[f][i]) for i in changing] for f in window]
        plain, merged = _tango_set(groups, ratio)
        kept += plain
        means = [np.mean([tokens[f][i] for f in window], axis=0) for i in static]
        scores = [np.mean([attention[f][i] for f in window]) for i in static]
        first = window[0]
        group = [(first * places + i, m, turned[first][i], a) for i, m, a in zip(static, means, scores, strict=True)]
        plain, averaged = _tango_set([group], ratio)
        contents |= merged | averaged | {index: mean for index, mean, _, _ in group if index in plain}
    flat, scores = _flat(tokens), _flat(attention)
    return {i: contents.get(i, flat[i]) for i in fit(kept, contents, scores, count)}


def _turned(token, *position):
    """Rotated by frame, row and column."""
    unit = np.asarray(token) / math.sqrt(sum(value**2 for value in token))
    side = 2 * (len(token) // 6)
    parts = np.split(unit, [len(token) - 2 * side, len(token) - side])
    made = []
    for part, place, base in zip(parts, position, (10000, 1000, 1000), strict=True):
        half = len(part) // 2
        turns = [
            complex(part[j], part[half + j]) * np.exp(1j * place * base ** (-2 * j / len(part))) for j in range(half)
        ]
        made += [turn.real for turn in turns] + [turn.imag for turn in turns] + list(part[2 * half :])
    return np.array(made)


def _tango_set(groups, ratio):
    """(index, content, point, attention) of each frame -> indices that stay, {index: content} of merged ones."""
    each = math.ceil(len(groups[0]) * ratio - 1e-9)
    salient = int(0.6 * each)
    plain = []
    for group in groups if salient else []:
        candidates = sorted(group, key=lambda token: (-token[3], token[0]))[: int(1.5 * salient)]
        _, nearest = peaks_by_others([token[2] for token in candidates], salient, 7)
        plain += [candidates[nearest.index(centre)][0] for centre in set(nearest)]
    rest = [token for group in groups for token in group if token[0] not in plain]
    merged, number = {}, (each - salient) * len(groups)
    if number:
        centres, nearest = peaks_by_others([token[2] for token in rest], number, 7)
        for centre in centres:
            own = [token[1] for token, owner in zip(rest, nearest, strict=True) if owner == centre]
            weight = max(0.6, 1 / len(own))
            merged[rest[centre][0]] = weight * rest[centre][1] + (1 - weight) * np.mean(own, axis=0)
    return plain, merged


def _flat(values):
    return [value for frame in values for value in frame]
