"""Literal versions of the reductions that look at more than one attention row inside the decoder."""

import math

import numpy as np

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
