"""Literal versions of the reductions inside the decoder, on top of transformers' own attention of one layer."""

import math

import numpy as np
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from reference.ops import half_up, ranking, softmax, unit


def layer_attention(view):
    """Eager attention probabilities of the observed layer [heads, n, n]."""
    n = len(view.observed)
    layer = view.decoder.module.layers[view.observed_layer]
    mask = torch.full((1, 1, n, n), float("-inf")).triu(1)
    rotary = tuple(part[None] for part in view.rotary)
    with torch.no_grad():
        normed = layer.input_layernorm(view.observed)[None]
        return layer.self_attn(normed, rotary, mask)[1][0].double().numpy()


def rotated_keys(view):
    """[n, all key heads side by side, repeated for grouped queries]"""
    layer = view.decoder.module.layers[view.observed_layer]
    with torch.no_grad():
        keys = layer.self_attn.k_proj(layer.input_layernorm(view.observed))
        keys = keys.view(1, len(keys), -1, view.decoder.head_width).transpose(1, 2)
        keys = apply_rotary_pos_emb(keys, keys, *(part[None] for part in view.rotary))[1]
    return keys[0].transpose(0, 1).flatten(1).double().numpy()


def last_row_score(view, row):
    attention = layer_attention(view)
    return [float(np.mean([head[row, column] for head in attention])) for column in view.visual.tolist()]


def raters(view):
    image, text = view.signals.embeddings.numpy(), view.text_embeddings.numpy()
    pointed = np.mean([softmax([float(x @ t) for t in text]) for x in image], axis=0)
    return [int(row) for row, value in zip(view.text, pointed, strict=True) if value > pointed.mean()]


def sparsevlm_score(view):
    attention, rows = layer_attention(view), raters(view)
    return [float(np.mean([[head[r, c] for r in rows] for head in attention])) for c in view.visual.tolist()]


def sparsevlm_plus_score(view):
    attention, rows = layer_attention(view), raters(view)
    width = view.decoder.head_width
    ones = torch.ones(1, 1, len(view.hidden), width)
    rotated = apply_rotary_pos_emb(ones, ones, *(part[None] for part in view.rotary))[0][0, 0].double().numpy()
    columns = view.visual.tolist()
    floor = 0.1 * math.sqrt(width)
    by_rotation = {(r, c): max(float(rotated[r] @ rotated[c]) / math.sqrt(width), floor) for r in rows for c in columns}
    rated = [[np.mean([head[r, c] / by_rotation[r, c] for r in rows]) for c in columns] for head in attention]
    heads = ranking([sum(head) for head in rated])[: half_up(14 * len(rated) / 32)]
    return [float(np.mean([rated[h][c] for h in heads])) for c in range(len(columns))]


def recycle(features, score, kept):
    """SparseVLM's published rule for `kept` tokens -> (kept places, [(cluster members, mean)])."""
    order = ranking(score)
    removed = order[kept:]
    pool = removed[: int(0.3 * len(removed)) + 1]
    count = int(len(pool) / 10) + 1
    rows = [features[i] for i in pool]
    d = len(rows[0])
    distance = np.array([[math.dist(a, b) / math.sqrt(d) for b in rows] for a in rows])
    density = [math.exp(-np.mean([x * x for x in sorted(row)[:count]])) for row in distance]
    apart = []
    for i in range(len(pool)):
        denser = [distance[i, j] for j in range(len(pool)) if density[j] > density[i]]
        apart.append(min(denser) if denser else distance.max())
    centres = ranking([a * b for a, b in zip(density, apart, strict=True)])[:count]
    members = {c: [c] for c in centres}
    for i in range(len(pool)):
        if i not in centres:
            members[min(centres, key=lambda c: distance[i, c])].append(i)
    means = {pool[c]: np.mean([rows[i] for i in own], axis=0) for c, own in members.items()}
    return sorted(order[:kept]), means


def dart(view, quota):
    """The published rule: 4 image and 4 text pivots with `quota` tokens each."""
    norms = np.abs(rotated_keys(view)).sum(1)
    visual, text = view.visual.tolist(), view.text.tolist()
    image_pivots = sorted(visual, key=lambda row: -norms[row])[:4]
    text_pivots = sorted(text, key=lambda row: -norms[row])[:4]
    with torch.no_grad():
        normed = view.decoder.module.norm(view.hidden).double().numpy()
    taken = list(image_pivots)
    for pivot in image_pivots + text_pivots:
        free = [row for row in visual if row not in taken]
        taken += sorted(free, key=lambda row: float(unit(normed[row]) @ unit(normed[pivot])))[:quota]
    return sorted(visual.index(row) for row in taken)


def ivc(view, positions, count):
    layer = view.decoder.module.layers[view.observed_layer]
    with torch.no_grad():
        values = layer.self_attn.v_proj(layer.input_layernorm(view.observed)).double().numpy()
    width = view.decoder.head_width
    heads = [values[:, start : start + width] for start in range(0, values.shape[1], width)]
    visual = view.visual.tolist()

    def closeness(rows):
        tables = [
            [softmax([float(v[r] @ v[c]) / math.sqrt(width) for c in range(len(v))]) for r in rows] for v in heads
        ]
        mean = np.mean(tables, axis=(0, 1))
        return [mean[row] for row in visual]

    theta = view.decoder.frequencies(0).double().numpy()
    by_cos = ranking([float(np.mean(np.cos(p * theta))) for p in positions])
    by_sin = ranking([float(np.mean(np.sin(p * theta))) for p in positions])
    question = view.text.tolist()[2:]
    n = len(visual)
    seeds = ranking(closeness(question))[: max(1, half_up(0.01 * n))]
    by_value = ranking(closeness([visual[s] for s in seeds] + question))
    sets = [(order, max(1, half_up(share * n))) for order, share in ((by_cos, 0.05), (by_sin, 0.05), (by_value, 0.2))]
    scales = sorted({rank / places for _, places in sets for rank in range(n + 1)})
    kept = set()
    for scale in scales:  # the sets grow together; ties go to the lowest index
        grown = {i for order, places in sets for rank, i in enumerate(order, 1) if rank / places <= scale}
        kept |= set(sorted(grown - kept)[: count - len(kept)])
    return sorted(kept)
