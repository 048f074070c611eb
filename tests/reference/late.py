"""Literal versions of the reductions that look at more than one attention row inside the decoder."""

import math

import numpy as np
import torch

from reference.inside import layer_attention


def priortr_score(view, rows="all"):
    """P log(P / Q) over the image, from transformers' own attention."""
    attention = layer_attention(view).mean(0)  # [n, n]
    text, visual = view.text.tolist(), view.visual.tolist()
    if rows == "all":
        looking = [np.mean([attention[row, column] for row in text]) for column in visual]
    else:
        looking = [attention[len(view.hidden) - 1, column] for column in visual]
    prior = [attention[text[0], column] for column in visual]
    p, q = ([x / math.fsum(values) for x in values] for values in (looking, prior))
    return [a * math.log(a / b) for a, b in zip(p, q, strict=True)]


def v2drop_score(view):
    """How far the layer before has moved each token."""
    before, after = view.observed.double().numpy(), view.hidden.double().numpy()
    return [math.dist(after[row], before[row]) for row in view.visual.tolist()]


def fine_structure(states):
    """|inverse transform| of the high frequencies of a view [rows, columns, d], mean over channels [rows, columns].

    The transform is written out over a spectrum whose zero frequency lies in the middle, as it is published.
    """
    rows, columns, channels = states.shape
    down, across = np.arange(rows) - rows // 2, np.arange(columns) - columns // 2
    forth = [np.exp(-2j * np.pi * np.outer(f, np.arange(len(f))) / len(f)) for f in (down, across)]
    back = [np.conj(part.T) / len(part) for part in forth]
    high_pass = [[1 - math.exp(-(math.hypot(u, v) ** 2) / (2 * 1.2**2)) for v in across] for u in down]
    left = [
        np.abs(back[0] @ (forth[0] @ states[:, :, c] @ forth[1].T * high_pass) @ back[1].T) for c in range(channels)
    ]
    return np.mean(left, axis=0)


def clse_evolution(before, after):
    """From the fine structure of all tokens before and after a layer."""
    mean = math.fsum(before) / len(before)
    change = [min(1, abs(b - a) / (mean + a + 1e-6)) for a, b in zip(before, after, strict=True)]
    z = (np.array(change) - np.mean(change)) / (np.std(change, ddof=1) + 1e-6)
    return [1 / (1 + math.exp(-value / 0.1)) for value in z]


def clse_score(view, views):
    """Of the first cut, for an image of some views."""
    attention = layer_attention(view).mean(0)[len(view.hidden) - 1]
    structure = []
    for states in (view.observed, view.hidden):
        own, start = [], 0
        for rows, columns in views:
            tokens = states[view.visual][start : start + rows * columns].double().numpy()
            own += fine_structure(tokens.reshape(rows, columns, -1)).flatten().tolist()
            start += rows * columns
        structure.append(own)
    evolved = clse_evolution(*structure)
    return [attention[row] * factor for row, factor in zip(view.visual.tolist(), evolved, strict=True)]


def transprune_change(given, made):
    """Of one block, for every token of the image."""
    turned = [1 - float(a @ b) / (np.linalg.norm(a) * np.linalg.norm(b)) for a, b in zip(given, made, strict=True)]
    total = math.fsum(math.exp(x) for x in turned)
    grown = [np.linalg.norm(b) / np.linalg.norm(a) for a, b in zip(given, made, strict=True)]
    return np.array([g * math.exp(x) / total for g, x in zip(grown, turned, strict=True)])


def transprune_score(view):
    attention = layer_attention(view)
    looked = [np.mean([[head[r, c] for r in view.text.tolist()] for head in attention]) for c in view.visual.tolist()]
    change = view.memory.double().tolist()  # of every token of the image
    return [a / math.fsum(change) + b / math.fsum(looked) for a, b in zip(change, looked, strict=True)]


def followed_decoder(decoder, embeddings, visual, kept, first, last):
    """Runs a plain decoder's own layers on one prompt [n, d] whose image shrinks.

    kept: depth -> tokens of the image that are left from there on
    Returns depth -> the change of those tokens that were there before, summed over blocks from `first` to `last` - 1.
    """
    rows, hidden, seen = list(range(len(embeddings))), embeddings, {}
    change = dict.fromkeys(visual, 0.0)
    for index, layer in enumerate(decoder.layers):
        if index in kept:
            seen[index] = [change[row] for row in visual if row in rows]
            stay = [row for row in rows if row not in visual or visual.index(row) in kept[index]]
            rows, hidden = stay, hidden[[rows.index(row) for row in stay]]
        blocks = (
            (layer.input_layernorm, attention_block(decoder, layer, rows)),
            (layer.post_attention_layernorm, layer.mlp),
        )
        for norm, block in blocks:
            given = norm(hidden)
            made = block(given)
            hidden = hidden + made
            places = [place for place, row in enumerate(rows) if row in visual]
            own = transprune_change(given[places].double().numpy(), made[places].double().numpy())
            for place, value in zip(places, own, strict=True):
                change[rows[place]] += value if first <= index < last else 0
    return seen


def attention_block(decoder, layer, rows):
    """Attention of a layer among prompt rows that stand at their own positions."""

    def attend(given):
        rotary = decoder.rotary_emb(given[None], torch.tensor([rows]))
        mask = torch.full((1, 1, len(rows), len(rows)), float("-inf")).triu(1)
        return layer.self_attn(given[None], position_embeddings=rotary, attention_mask=mask)[0][0]

    return attend


def fitprune_received(view):
    """(from the text, from the image) by the strongest head."""
    attention = layer_attention(view).max(0)  # [n, n]
    visual, text = view.visual.tolist(), view.text.tolist()
    cross = [math.fsum(attention[row, column] for row in text) for column in visual]
    own = [math.fsum(attention[row, column] for row in visual) / len(visual) for column in visual]
    return cross, own


def fitprune_left(cross, own, alpha):
    """How many tokens of one image each layer sees, where (cross, own) of every layer but the last is [N]."""
    left = list(range(len(cross[0])))
    counts = [len(left)]
    for masses in zip(cross, own, strict=True):
        spared = []
        for mass in masses:
            candidates, gone = sorted(left, key=lambda i: (mass[i], i)), set()
            for token in candidates:
                stays = [i for i in left if i not in gone and i != token]
                if math.fsum(mass[i] for i in stays) < (1 - alpha) * math.fsum(mass):
                    break
                gone.add(token)
            spared.append(gone)
        left = [i for i in left if i not in spared[0] & spared[1]]
        counts.append(len(left))
    return counts
